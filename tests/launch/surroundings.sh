#!/usr/bin/env bash
# What a clumsy or hostile surrounding does to a job that starts: floods of connections, few
# descriptors, old runs, killed helpers.
#
#   surroundings.sh DPRUN MEMBER VICTIM FLOOD CASE
set -u
. "$(dirname "$0")/port.sh"
dprun=$1 member=$2 victim=$3 flood=$4 case=$5
work=$(mktemp -d)
trap 'touch "$work/stop"; kill -9 $(jobs -p) $(cat "$work"/pid* 2>/dev/null) 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT
mkdir -m 700 "$work/run"
cd "$work" || exit 1
chmod 755 "$work"
export XDG_RUNTIME_DIR=$work/run TMPDIR=$work
while read -r name; do unset "$name"; done < <(env | grep -Eo '^(DP_|SLURM_|PMI_|PMIX_|OMPI_)[A-Z0-9_]*')
export DP_FUSION_BYTES=1M # a job need not fill 96 MiB when it starts

bad() { echo "FAILED: $case: $*"; tail -n 20 "$work"/out* "$work"/err* 2>/dev/null; exit 1; }
expect() { grep -qE -- "$2" "$1" || bad "no line of $1 matches: $2"; }
met() { # SIZE FILE
    [ "$(grep -c "of $1, .* sum $(($1 * ($1 + 1) / 2))" "$2")" = "$1" ] || bad "not all $1 met"
}
wait_for() { for ((i = 0; i < 3000; i++)); do "$@" && return; sleep 0.02; done; bad "never: $*"; }
runs() { find "$work/run" -maxdepth 1 -name 'dprun-*' | wc -l; }
children() { grep -lsE "^PPid:[[:space:]]$1\$" /proc/[0-9]*/status | grep -o '[0-9]*'; }

case $case in
flood | flood_of_ours) # rank 0 calls a flood upon its own rendezvous, the others come into it
    user=65534; [ $case = flood ] || user=$(id -u)
    [ $case = flood_of_ours ] || [ "$(id -u)" = 0 ] || { echo "skipped: only root can flood as another user"; exit 77; }
    cat >rank <<END
if [ \$DP_RANK = 0 ]; then
    address=\$(grep -aoE '@dp-[0-9a-f]{32}|127[.]0[.]0[.]1' /proc/self/fd/200)
    port=\$(tail -c +7 /proc/self/fd/200 | head -c 2 | od -An -tu2 | tr -d ' ')
    for i in 1 2; do "$flood" \$address \$port $user "$work/stop" >>"$work/flowing" & done
fi
until [ "\$(grep -c flowing "$work/flowing")" = 2 ]; do sleep 0.02; done
until grep -q 'rendezvous: dropped' "$work/err"; do sleep 0.02; done
"$member" && touch "$work/done.\$DP_RANK"
END
    touch flowing
    (wait_for test -e done.0; wait_for test -e done.1; wait_for test -e done.2; touch stop) &
    timeout 100 "$dprun" -np 3 bash rank >out 2>err || bad "code $?"
    met 3 out
    [ "$(grep -c 'rendezvous: dropped' err)" -ge 1 ] || bad "nobody was dropped"
    [ "$(grep -c 'rendezvous: dropped' err)" -le 20 ] || bad "the flood fills the screen" ;;
flood_of_a_port) # as between machines: by port and secret
    (umask 077; head -c 32 /dev/urandom >secret)
    port=$(free_port) || bad "no free port"
    rank() {
        DP_RANK=$1 DP_SIZE=3 DP_LOCAL_RANK=0 DP_LOCAL_SIZE=1 DP_RENDEZVOUS=127.0.0.1:$port \
            DP_SECRET_FILE=$work/secret timeout 60 "$member" >"out$1" 2>"err$1"
    }
    rank 0 & pids=$!
    is_up() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }
    wait_for is_up
    for i in 1 2; do "$flood" 127.0.0.1 "$port" 65534 "$work/stop" >>flowing & done
    flows() { [ "$(grep -c flowing flowing)" = 2 ]; }
    wait_for flows
    # The flood has to be in full flow first: ranks that are quick get in before it is one.
    is_flooded() { grep -q 'a flood' err0; }
    wait_for is_flooded
    for r in 1 2; do rank $r & pids+=" $!"; done
    for pid in $pids; do wait "$pid" || bad "code $?"; done
    cat out0 out1 out2 >out
    met 3 out
    expect err0 'rendezvous: dropped .*a flood. [0-9]+ connections without a proof, [0-9]+ from there' ;;
descriptors)
    (ulimit -Sn 64; "$dprun" -np 3 "$member" >out 2>err) || bad "soft limit: code $?"
    met 3 out
    (ulimit -n 100; "$dprun" -np 3 "$member" >out 2>err) || bad "hard limit: code $?"
    met 3 out
    (ulimit -n 60; "$dprun" -np 2 "$member" >out 2>err) && bad "too few for dprun: code 0"
    expect err '2 ranks need 70 open files, the hard limit is 60'
    "$dprun" -np 8 sh -c 'ulimit -n 44; exec "$0"' "$member" >out 2>err && bad "too few for a rank: code 0"
    expect err '8 ranks on one machine need 48 open files in each rank, the limit is 44 .ulimit -Hn: 44' ;;
limits) # of address space (a batch system's h_vmem), file size, data and locked memory: works, or names limit and way
    ldd "$dprun" | grep -qE 'lib(a|t)san' && { echo "skipped: sanitizers need all address space"; exit 77; }
    unset DP_FUSION_BYTES
    for kib in 4000000 16000000 100000000; do
        (ulimit -v $kib; timeout -k 5 60 "$dprun" -np 2 "$member" >out 2>err) || bad "ulimit -v $kib: code $?"
        met 2 out
    done
    (ulimit -v 4000000; timeout -k 5 60 "$dprun" -np 8 --arena-bytes 128M --fusion-bytes 1M "$member" >out 2>err) || bad "8 ranks: code $?"
    met 8 out
    (ulimit -v 200000; timeout -k 5 60 "$dprun" -np 2 "$member" >out 2>err) && bad "ulimit -v 200000: code 0"
    expect err 'no memory for 3 fused buffers .*ulimit -v \(RLIMIT_AS\) is 204800000 bytes.*--fusion-bytes 1M \(DP_FUSION_BYTES\)'
    (ulimit -v 200000; timeout -k 5 60 "$dprun" -np 2 --fusion-bytes 1M "$member" >out 2>err) || bad "as the text says: code $?"
    met 2 out
    (ulimit -v 120000; timeout -k 5 60 "$dprun" -np 2 "$member" >out 2>err) && bad "ulimit -v 120000: code 0"
    expect err 'RLIMIT_AS'
    one_less='[ $DP_RANK = 0 ] || ulimit -v 600000; exec "$0"' # rank 1 alone, so that 0's arena is too large for it
    timeout -k 5 60 "$dprun" -np 2 --fusion-bytes 1M sh -c "$one_less" "$member" >out 2>err && bad "64G in 600000 KiB: code 0"
    expect err 'RLIMIT_AS. is 614400000 bytes, of which [0-9]+ are used: .* ulimit -v [0-9]+ works, or --arena-bytes [0-9]+M'
    fitting=$(grep -oE -- '--arena-bytes [0-9]+M' err | head -1)
    timeout -k 5 60 "$dprun" -np 2 --fusion-bytes 1M $fitting sh -c "$one_less" "$member" >out 2>err || bad "$fitting, as the text says: code $?"
    met 2 out
    for kib in 10 1000; do
        (ulimit -f $kib; timeout -k 5 60 "$dprun" -np 2 "$member" >out 2>err) && bad "ulimit -f $kib: code 0"
        expect err 'exited with code'
        expect err 'ulimit -f'
    done
    (ulimit -f 20000; timeout -k 5 60 "$dprun" -np 2 --fusion-bytes 1M "$member" >out 2>err) || bad "ulimit -f: code $?"
    met 2 out
    (ulimit -f 8; timeout -k 5 60 "$dprun" -np 1 head -c 100000 /dev/zero >out 2>err); code=$?
    [ $code = 125 ] || bad "output past ulimit -f: code $code"
    expect err 'File too large'
    if [ "$(id -u)" = 0 ] && setpriv --reuid 54321 --clear-groups test -x "$dprun"; then # root has no limit
        chmod 777 "$work/run"
        TMPDIR=$work/run XDG_RUNTIME_DIR= timeout -k 5 60 setpriv --reuid 54321 --clear-groups \
            bash -c "ulimit -u 6; exec $dprun -np 4 $member" >out 2>err && bad "ulimit -u 6: code 0"
        expect err 'ulimit -u, RLIMIT_NPROC'
    fi
    (ulimit -l 0; ulimit -d 100000; timeout -k 5 60 "$dprun" -np 2 "$member" >out 2>err) || bad "ulimit -l, -d: code $?"
    met 2 out ;;
old_runs) # the newest three failures stay, what is in use or was asked for stays, too
    for ((i = 0; i < 6; i++)); do
        "$dprun" -np 2 --inject kill:1@1 "$victim" 3 "$work" >out 2>err
        kept=$(grep -o "$work/run/dprun-[A-Za-z0-9]*" err)
        touch -d "$((100 - i)) minutes ago" "$kept"
        [ $i = 0 ] && first=$kept
    done
    expect err 'saved    run directory .*dprun-[A-Za-z0-9]* \(2 files, [0-9]+ kB\)'
    [ "$(runs)" -le 4 ] || bad "$(runs) runs are left"
    [ -e "$first" ] && bad "the oldest is still there"
    [ "$(du -s --block-size=1k run | cut -f1)" -lt 4000 ] || bad "they take $(du -sh run)"
    mkdir -m 700 run/dprun-abcdef # of a dprun that was killed long ago
    touch -d '3 hours ago' run/dprun-abcdef
    mkdir -m 700 run/dprun-ofnode # an agent's whose processes were all killed: it is kept by nobody
    touch run/dprun-ofnode/.node
    touch -d '1 minute ago' run/dprun-ofnode
    "$dprun" -np 1 --keep-run-dir sh -c 'echo x >$DP_RUN_DIR/asked' 2>err || bad "code $?"
    [ -e run/dprun-ofnode ] && bad "a run directory of a node is still there"
    kept=$(grep -o "$work/run/dprun-[A-Za-z0-9]*" err)
    touch -d '2 hours ago' "$kept"
    "$dprun" -np 1 --keep-runs 0 sh -c 'touch -d "2 hours ago" $DP_RUN_DIR; "$0" -np 1 --keep-runs 0 true; test -d $DP_RUN_DIR' "$dprun" \
        2>err || bad "a run directory in use was removed"
    [ -e "$kept/asked" ] || bad "a run directory that was asked for was removed"
    [ "$(runs)" = 1 ] || bad "$(runs) run directories, expected 1"
    "$dprun" -np 2 --keep-runs 0 --inject kill:1@1 "$victim" 3 "$work" >out 2>err
    expect err 'last op  ..'
    [ "$(runs)" = 1 ] || bad "--keep-runs 0 keeps a run" ;;
killed | killed_late) # dprun and its agent at once; a wrapper's program, whose parent was the rank, is ended
    "$dprun" -np 2 sh -c 'setsid sh -c "echo \$\$ >pid.$DP_RANK; exec sleep 1000" & sleep 1000' >out 2>err &
    job=$!
    wait_for test -s pid.0; wait_for test -s pid.1
    agent=
    for pid in $(children $job) $(for child in $(children $job); do children "$child"; done); do
        [ "$(cat "/proc/$pid/comm")" = dprun-agent ] && agent=$pid
    done
    [ -n "$agent" ] || bad "no agent"
    if [ $case = killed_late ]; then # dprun's end is seen long after the agent's
        kill -STOP $job
        kill -9 "$agent"
        for rank in 0 1; do wait_for sh -c "! kill -0 $(cat pid.$rank) 2>/dev/null"; done
        sleep 0.5
        kill -9 $job
    else
        kill -9 $job "$agent"
    fi
    wait $job 2>/dev/null
    for rank in 0 1; do
        gone() { ! kill -0 "$(cat pid.$rank)" 2>/dev/null; }
        for ((i = 0; i < 3000; i++)); do gone && break; sleep 0.02; done
        gone || bad "what rank $rank started runs on"
    done
    empty() { [ "$(runs)" = 0 ]; }
    wait_for empty
    wait 2>/dev/null ;;
foreign) # an MPI that finds no launcher (here any library of that name), and a libdp that finds none: each is told
    cp "$(dirname "$member")/libslices.so" libmpi.so.40
    export ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0 # it is preloaded
    timeout -k 5 60 "$dprun" -np 3 sh -c 'LD_PRELOAD=./libmpi.so.40 sleep 0.7; exit 0' >out 2>err || bad "code $?"
    [ "$(grep -c 'has loaded libmpi.so.40, an MPI that finds no launcher' err)" = 1 ] || bad "not said once"
    expect err 'launcher: mpirun -np 3 sh -c '
    timeout -k 5 60 "$dprun" -np 2 sh -c 'LD_PRELOAD=./libmpi.so.40 sleep 30' >out 2>err & job=$!
    wait_for grep -q 'has loaded libmpi.so.40' err # while it runs
    kill $job; wait $job
    timeout -k 5 60 "$dprun" -np 2 sh -c 'PMI_RANK=0 LD_PRELOAD=./libmpi.so.40 sleep 0.7' >out 2>err || bad "code $?"
    timeout -k 5 60 "$dprun" -np 1 sh -c 'LD_PRELOAD=./libmpi.so.40 sleep 0.7' >>out 2>>err || bad "code $?"
    timeout -k 5 60 "$dprun" -np 2 sh -c 'LD_PRELOAD=./libmpi.so.40 "$0"; sleep 0.7' "$member" >>out 2>>err || bad "code $?"
    grep -q 'has loaded' err && bad "said of a launched one, of a rank alone, or of ranks that have joined"
    timeout -k 5 60 "$dprun" -np 2 env -i "$member" >out 2>err || bad "code $?"
    [ "$(grep -c 'runs below dprun, but DP_RANK and DP_SIZE are not in its environment' err)" = 2 ] || bad "the lost environment is not named"
    timeout -k 5 60 "$dprun" -np 2 env -i DP_RANK=0 DP_SIZE=1 "$member" >out 2>err || bad "code $?"
    [ -s err ] && bad "said although it is meant" ;;
words) # files of Windows, a program whose interpreter is missing, a /tmp that cannot be written
    printf '#!/bin/sh\r\necho hello\r\n' >crlf; printf '#!/no/such/python\necho\n' >nowhere; chmod +x crlf nowhere
    for way in -np "-H localhost:2 -np"; do
        "$dprun" $way 2 ./crlf >out 2>err; [ $? = 127 ] || bad "crlf: code $?"
        expect err 'program ./crlf: its interpreter "/bin/sh\\r" is not there: its lines end as on Windows; mend it: sed -i .s/\\r\$//. ./crlf'
        "$dprun" $way 2 ./nowhere >out 2>err; [ $? = 127 ] || bad "nowhere: code $?"
        expect err 'program ./nowhere: its interpreter "/no/such/python" is not there$'
    done
    printf '\xef\xbb\xbflocalhost slots=2\r\n' >hosts; printf '\xef\xbb\xbffusion-bytes = 3M\r\n' >config
    "$dprun" --hostfile hosts --config config sh -c 'echo $DP_FUSION_BYTES' >out 2>err || bad "code $?"
    [ "$(grep -c '^.[01]@localhost. 1M$' out)" = 2 ] || bad "a hostfile with a mark of its encoding" # the variable wins
    (unset DP_FUSION_BYTES; "$dprun" -np 1 --config config sh -c 'echo $DP_FUSION_BYTES' >out 2>err) || bad "code $?"
    expect out '3M$'
    if unshare -m sh -c 'mount -t tmpfs -o ro none /tmp' 2>/dev/null; then
        unshare -m sh -c 'mount -t tmpfs -o ro none /tmp; XDG_RUNTIME_DIR= TMPDIR=/tmp exec "$0" -np 1 true' "$dprun" >/dev/null 2>"$work/err"
        expect err 'run directory in /tmp: Read-only file system .TMPDIR=/another/folder'
    fi ;;
twice) # two programs in one rank: the second is told that it cannot be
    "$dprun" -np 2 sh -c '"$0" && "$0"' "$member" >out 2>err && bad "code 0"
    met 2 out
    expect err 'A rank has one dp_init\(\): a second program in it needs a dprun of its own' ;;
never) # an injection that does not come to pass
    "$dprun" -np 2 --inject stop:1@engine/3,drop:1=100000 "$member" >out 2>err || bad "code $?"
    expect err "rank 1: DP_INJECT: 'stop:1@engine/3' never came to pass: no step began"
    expect err "rank 1: DP_INJECT: 'drop:1=100000' never came to pass: there were [0-9]+ control messages" ;;
*) bad "no such case" ;;
esac
echo "ok: $case"
