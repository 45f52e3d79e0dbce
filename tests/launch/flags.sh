#!/usr/bin/env bash
# Every flag of dprun under every way of starting: it takes effect, or is refused with one sentence. The flags
# come from the option table (flag_names.c): one without a row here fails.
#
#   flags.sh DPRUN FLAG_NAMES WAY        WAY: here, ssh (-H), file (--hostfile), srun, node (--node)
set -u
. "$(dirname "$0")/port.sh"
dprun=$(readlink -f "$1") names=$(readlink -f "$2") way=$3
"$names" >/dev/null || { echo "no list of flags"; exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
mkdir -m 700 run folder
export XDG_RUNTIME_DIR=$work/run TMPDIR=$work
while read -r name; do unset "$name"; done < <(env | grep -Eo '^(DP_|SLURM_|PMI_|PMIX_|OMPI_|PET_|VC_|SM_)[A-Z0-9_]*')
port=$(free_port) || exit 1

# ssh and srun, without a second machine: they run the agent here, and note whether dprun listens at --port.
cat >rsh <<END
#!/bin/sh
grep -q ":$(printf %04X "$port") .* 0A " /proc/net/tcp /proc/net/tcp6 && touch "$work/listens"
shift; exec sh -c "\$*"
END
cat >srun <<END
#!/bin/sh
grep -q ":$(printf %04X "$port") .* 0A " /proc/net/tcp /proc/net/tcp6 && touch "$work/listens"
while [ "\${1#-}" != "\$1" ] || [ "\${1#/}" = "\$1" ]; do shift; done
SLURM_NODEID=0 SLURM_PROCID=0 exec "\$@"
END
chmod +x rsh srun
export DP_SSH=$work/rsh
echo 127.0.0.2 slots=2 >hosts
(umask 077; head -c 32 /dev/urandom >secret)
how= np=
case $way in
here) np="-np 2" ;;
ssh) how="-H 127.0.0.2:2" ;;
file) how="--hostfile hosts" ;;
srun) np="-np 2"
    export PATH=$work:$PATH SLURM_JOB_ID=12 SLURM_JOB_NODELIST='127.0.0.[2-3]' SLURM_JOB_NUM_NODES=2 SLURM_TASKS_PER_NODE='2(x2)' ;;
node) how="--node 0/1 --meet 127.0.0.1:$port" np="-np 2"; export DP_SECRET_FILE=$work/secret ;;
esac

bad() { echo "FAILED: $way: $flag: $*"; tail -n 15 out err 2>/dev/null; exit 1; }
expect() { grep -qE -- "$2" "$1" || bad "no line of $1 matches: $2"; }
lacks() { grep -qE -- "$2" "$1" && bad "a line of $1 matches: $2"; }
# run CODE ARGUMENTS...: dprun, started this way
run() {
    local wanted=$1 code; shift
    rm -f listens saved
    timeout -k 5 60 "$dprun" $how $np "$@" >out 2>err </dev/null; code=$?
    [ $code = "$wanted" ] || bad "code $code, expected $wanted: $*"
}
# refused TEXT ARGUMENTS...: with one line that says why
refused() {
    local text=$1; shift
    run 2 "$@"
    [ "$(grep -vc 'is given twice' err)" = 1 ] || bad "not one line"
    expect err "$text"
    [ -s out ] && bad "something was started"
}
two() { [ "$(grep -cE -- "$1" out)" = 2 ] || bad "not two ranks say: $1"; }

while read -r kind flag variable value; do
    [ "$kind" = flag ] || continue
    case $flag in
    -np | -n | --np) (np=; run 0 $flag 2 sh -c 'echo size $DP_SIZE') || exit 1; two 'size 2$' ;;
    --config) echo "fusion-bytes = 3M" >file; run 0 $flag file sh -c 'echo $DP_FUSION_BYTES'; two ' (3M|3145728)$' ;;
    --env | -x)
        run 0 $flag A='b c' sh -c 'echo "<$A>"'; two '<b c>'
        HERE=1 run 0 $flag HERE $flag 'OTH*' sh -c 'echo "<$HERE>"'; two '<1>'
        refused 'NOT_HERE: not set here' $flag NOT_HERE true ;;
    --bind) run 0 $flag core grep Cpus_allowed_list /proc/self/status
        [ "$(nproc)" = 1 ] || lacks out '[-,]' ;;
    --share-gpu) run 0 $flag sh -c 'echo $NCCL_HOSTID'; two 'dprun-[0-9]+-r[01]$' ;;
    --stdin)
        timeout -k 5 60 "$dprun" $how $np $flag 1 cat <<<hello >out 2>err || bad "code $?"
        expect out '^\[1[]@].*hello'; [ "$(wc -l <out)" = 1 ] || bad "not rank 1 alone"
        timeout -k 5 60 "$dprun" $how $np $flag none cat <<<hello >out 2>err || bad "code $?"
        [ -s out ] && bad "somebody reads"
        refused 'ranks 0 to 1' $flag 2 true ;;
    --wdir)
        run 0 $flag folder sh -c 'echo $(pwd) $PWD'; two " $work/folder $work/folder\$"
        cp "$(type -P true)" folder/only; run 0 $flag "$work/folder" ./only
        run 1 $flag /not/there true; expect err 'node [^ ]+: the working folder /not/there.*: No such file'
        refused 'must be DIR' $flag '' true ;;
    -H | --hosts | --host | --hostfile | --machinefile) # they are a way of their own, and no two go together
        list=127.0.0.2:2; [[ $flag = *file ]] && list=hosts
        case $way in
        here | srun) run 0 $flag $list sh -c 'echo "node $0"'; two '^\[[01]@127.0.0.2\]' ;;
        ssh) [[ $flag = *file ]] && refused 'give one of them' $flag $list true ;;
        file) [[ $flag = *file ]] || refused 'give one of them' $flag $list true ;;
        node) refused 'give one of them' $flag $list true ;;
        esac ;;
    --node)
        export DP_SECRET_FILE=$work/secret
        case $way in
        here | srun) run 0 $flag 0/1 --meet 127.0.0.1:$port sh -c 'echo $DP_SIZE'; two ' 2$' ;;
        node) refused 'must be R/N' $flag 2/1 true ;;
        *) refused 'give one of them' $flag 0/1 --meet 127.0.0.1:$port true ;;
        esac
        [ $way = node ] || unset DP_SECRET_FILE ;;
    --meet) [ $way = node ] || refused 'goes with --node' $flag 127.0.0.1:$port true ;;
    --port)
        case $way in
        here) refused 'on one machine' $flag $port true ;;
        node) refused 'that of --meet' $flag $port true ;;
        *) run 0 $flag $port true; [ -e listens ] || bad "dprun does not listen there" ;;
        esac ;;
    --station | --probe) ;; # dprun's own, on other machines
    --output-dir) run 0 $flag logs printf 'x\ny'; [ "$(cat logs/rank.0.out logs/rank.1.out)" = "$(printf 'x\nyx\ny')" ] || bad "files" ;;
    --report) run 0 $flag report.json echo x; grep -q '"outcome": "succeeded"' report.json || bad "no report" ;;
    --metrics) # of two nodes on one machine each has its own file
        mkdir metrics; run 0 $flag "$work/metrics" sh -c 'for i in $(seq 600); do ls '"$work"'/metrics/*.prom && exit 0; sleep 0.1; done; exit 1'
        rmdir metrics || bad "a file stays"
        run 2 $flag nowhere/file true; expect err 'the folder nowhere: No such file' ;;
    --quiet | -q) run 0 $flag echo x; [ -s out ] && bad "not quiet" ;;
    --timestamps) run 0 $flag echo x; two '^\+[0-9:.]+ \[' ;;
    --prefix) run 0 --no-prefix $flag echo x; two '^\[[01].*\] x$' ;;
    --no-prefix) run 0 $flag echo x; two '^x$' ;;
    --color | --colour) run 0 $flag always echo x; two $'^\x1b' ;;
    --grace) # no moment for the trap: nothing is saved. Without the flag it is.
        run 124 $flag 0 --timeout 300ms sh -c 'trap "sleep 1; touch '"$work"'/saved; exit" TERM; while :; do sleep 0.02; done'
        [ -e saved ] && bad "the ranks had a grace" ;;
    --timeout) run 124 $flag 100ms sleep 60 ;;
    --keep-run-dir) run 0 $flag sh -c 'echo x >$DP_RUN_DIR/mine.$DP_RANK'
        expect err 'run directory /'; [ -d "$(grep -o '/[^ ]*dprun-[A-Za-z0-9]*' err | head -1)" ] || bad "it is not kept" ;;
    --dry-run) run 0 $flag touch saved; expect out 'nothing started'; [ -e saved ] && bad "it was started" ;;
    --check) timeout -k 5 60 "$dprun" $how $np $flag >out 2>err; expect out '^ok ' ;;
    --help | -h) run 0 $flag; expect out '^usage:' ;;
    --version | -V) run 0 $flag; expect out '^dprun [0-9.]+$' ;;
    *) bad "this flag has no row here" ;;
    esac
done < <("$names")

# The settings: each reaches the ranks as its variable.
flag=settings words=()
while read -r kind name variable value; do
    [ "$kind" = setting ] || continue
    case $variable in DP_SSH) value=$work/rsh ;; DP_TIMELINE) value=$work/t.json ;; DP_NET_INTERFACE) [ $way = here ] && value=eth9 ;; esac
    words+=("$name=$value")
done < <("$names")
run 0 "${words[@]}" env
while read -r kind name variable value; do
    [ "$kind" = setting ] && two "\\b$variable="
done < <("$names")
echo "ok: $way, ${#words[@]} settings"
