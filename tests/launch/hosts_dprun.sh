#!/usr/bin/env bash
# hosts_dprun.sh - dprun on machines of their own (tests/hosts/hosts.sh): how a job starts there, what
# comes back, how it ends, and that nothing stays on any of them.
#
#   hosts_dprun.sh HOSTS_SH DPRUN MEMBER CASE
set -u
if [ "${1:-}" != inside ]; then
    export HOSTS_KEEP="$(dirname "$(readlink -f "$2")"):$(dirname "$(readlink -f "$3")")${HOSTS_KEEP:+:$HOSTS_KEEP}"
    case $4 in timeline) export HOSTS_CLOCK=b:5000 ;; esac
    slurm=
    [ "$4" != slurm ] || slurm=$(dirname "$(readlink -f "$1")")/slurm.sh
    # shellcheck disable=SC2086
    exec timeout -k 10 280 "$1" a b c d -- $slurm "$(readlink -f "$0")" inside "$(readlink -f "$1")" \
        "$(readlink -f "$2")" "$(readlink -f "$3")" "$4"
fi
hosts=$2 dprun=$3 member=$4 case=$5
mkdir "$HOSTS_DIR/work" && cd "$HOSTS_DIR/work" || exit 1
bad() { echo "FAILED: $case: $*"; tail -n +1 ./out* ./err* 2>/dev/null; exit 1; }
expect() { # FILE TEXT...: each text is in the file
    local file=$1 text; shift
    for text in "$@"; do grep -qF -- "$text" "$file" || bad "'$text' is not in $file"; done
}
until_holds() { # COMMAND...: within 60 seconds
    local end=$((SECONDS + 60))
    while [ $SECONDS -lt $end ]; do "$@" && return; sleep 0.02; done
    bad "never: $*"
}
# run CODE ARGUMENTS...: dprun ends with that code
run() {
    local wanted=$1 code; shift
    timeout -k 5 120 "$dprun" "$@" >out 2>err; code=$?
    [ $code = "$wanted" ] || bad "exit code $code instead of $wanted: dprun $*"
}
files_of() { # NAME PATTERN: its own files of that name; folders that all machines share are mounted, and left out
    "$hosts" --in "$1" find /tmp /dev/shm -xdev -mindepth 1 -name "$2" ! -exec mountpoint -q {} \; -print 2>/dev/null
}
is_clean() { # NAME: neither a process nor a file of ours
    [ -z "$("$hosts" --processes "$1" | grep -Ev ' ps |sshd:')" ] && [ -z "$(files_of "$1" '*dp*')" ]
}
nothing_left() { # NAME...
    local name
    for name in "$@"; do until_holds is_clean "$name"; done
    until_holds eval '! pgrep -x ssh >/dev/null && ! pgrep -x dprun >/dev/null'
    [ -z "$(find /tmp /dev/shm -mindepth 1 -maxdepth 1 -name 'dprun-*')" ] || bad "left here: $(ls /tmp)"
}
marked() { "$hosts" --processes "$1" | grep -q 'sleep 7[7]7'; }  # its ranks run
marked_all() { local name; for name in "$@"; do marked "$name" || return 1; done; }
# start_sleepers FLAGS...: a job of four ranks on a and b, in the background as $job
start_sleepers() {
    "$dprun" -H a:2,b:2 "$@" sleep 777 >out 2>err & job=$!
    until_holds marked_all a b
}
ends() { wait $job; code=$?; [ $code = "$1" ] || bad "exit code $code instead of $1"; }
station_of() { "$hosts" --processes "$1" | awk '/dprun --station/ && !/sh -c/ { print $1; exit }'; }

case $case in
start)
    run 0 -np 8 -H a:2,b:2,c:2,d:2 "$member"
    for rank in 0 1 2 3 4 5 6 7; do expect out "rank $rank of 8, local $((rank % 2)) of 2, sum 36"; done
    expect out "[0@a] rank 0" "[5@c] rank 5" "[7@d] rank 7"
    printf 'a slots=1\n# comment\nb:2\n' >hostfile
    run 0 --hostfile hostfile sh -c 'echo $DP_RANK $DP_SIZE $DP_LOCAL_RANK $DP_LOCAL_SIZE $RANK $WORLD_SIZE $LOCAL_RANK $GROUP_RANK $MASTER_ADDR $(hostname) $(pwd)'
    expect out "[0@a] 0 3 0 1 0 3 0 0 a a $PWD" "[2@b] 2 3 1 2 2 3 1 1 a b $PWD"
    FROM_HERE=1 DP_LOG=info run 0 -H a,b -x FROM_HERE -x 'OTHER=a b' --wdir /usr \
        sh -c 'echo "$FROM_HERE,$OTHER,$DP_LOG,$HOME,$(pwd)"'
    expect out "[1@b] 1,a b,info,/root,/usr"
    HIDDEN=1 run 0 -H a sh -c 'echo "<$HIDDEN>"'; expect out "[0@a] <>"
    run 0 -H localhost:1,a:1 "$member"; expect out "[0@localhost] rank 0 of 2" "[1@a] rank 1 of 2"
    run 0 -H a.v6:1,b.v6:1 "$member"; expect out "rank 1 of 2"
    run 0 --dry-run -H a:2,b:1 "$member"; expect out "3 ranks on 2 nodes" "rank 2   node b, local 0"
    nothing_left a b c d ;;
secret) # of a job comes by ssh's standard input: it stands in no command line and no environment of any process
    cat >tap <<'END'
#!/bin/sh
# an ssh that keeps what dprun writes to it
tee "$TAP.$$" | ssh "$@"
END
    chmod +x tap
    TAP=$PWD/ticket "$dprun" -H a:2,b:2 --ssh "$PWD/tap" sleep 777 >out 2>err & job=$!
    until_holds marked_all a b
    python3 - <<'END' || bad "the secret can be read"
import glob
tickets = [open(name, "rb").read() for name in glob.glob("ticket.*")]
assert len(tickets) == 2 and all(len(ticket) >= 40 for ticket in tickets), tickets
# The bytes that both tickets have: the secret, and an address that is no secret.
pieces = {tickets[0][i:i + 16] for i in range(len(tickets[0]) - 15)} & {tickets[1][i:i + 16] for i in range(len(tickets[1]) - 15)}
pieces = [piece for piece in pieces if len(set(piece)) > 10]
assert len(pieces) >= 10, len(pieces)
looked = 0
for path in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
    try:
        data = open(path, "rb").read()
    except OSError:
        continue  # it has ended
    looked += b"dprun" in data
    for piece in pieces:
        assert piece not in data and piece.hex().encode() not in data.lower(), (path, data)
assert looked >= 8, looked  # dprun, ssh, and three of dprun's processes on each of two nodes
END
    kill -TERM $job; ends 143
    nothing_left a b ;;
output)
    # shellcheck disable=SC2016
    run 0 -H a:2,b:2 --output-dir logs sh -c 'seq -f "$DP_RANK-%g" 100000; echo error $DP_RANK >&2'
    for rank in 0 1 2 3; do
        [ "$(grep -c "] $rank-" out)" = 100000 ] || bad "rank $rank: lines lost"
        seq -f "$rank-%g" 100000 | cmp - logs/rank.$rank.out || bad "rank $rank: file"
        expect err "error $rank"
    done
    # A reader that takes nothing for a while slows the ranks down, and loses nothing.
    "$dprun" -H a:2,b:2 seq 300000 2>err | { sleep 1; cat; } >out
    [ "$(wc -l <out)" = 1200000 ] || bad "$(wc -l <out) lines instead of 1200000"
    seq 200000 >input
    run 0 -H a:1,b:1 --no-prefix --stdin 1 sh -c '[ $DP_RANK = 0 ] || cat' <input
    cmp out input || bad "input from a file"
    seq 200000 | "$dprun" -H a:1,b:1 --no-prefix sh -c '[ $DP_RANK = 1 ] || cat' >out 2>err
    cmp out input || bad "input from a pipe"
    run 0 -H a:1,b:1 --no-prefix cat </dev/null
    nothing_left a b ;;
codes)
    # shellcheck disable=SC2016
    run 7 -H a:2,b:2 sh -c '[ $DP_RANK != 3 ] || exit 7; exec sleep 777'
    expect err "FAILED  rank 3 (b, local 1, pid " "exited with code 7" "0-2: stopped by dprun"
    # shellcheck disable=SC2016
    run 139 -H a:2,b:2 sh -c '[ $DP_RANK != 2 ] || kill -SEGV $$; exec sleep 777'
    expect err "rank 2 (b, local 0, pid "
    run 124 -H a:1,b:1 --timeout 1 sleep 777; expect err "TIMEOUT"
    start_sleepers; kill -TERM $job; ends 143; expect err "interrupted by SIGTERM" "ended 4 ranks"
    # shellcheck disable=SC2016
    "$dprun" -H a:1,b:1 sh -c 'trap "echo got $DP_RANK; exit 0" USR1; touch ready.$DP_RANK; while :; do sleep 0.05; done' >out 2>err & job=$!
    until_holds [ -e ready.0 -a -e ready.1 ]
    kill -USR1 $job; ends 0; expect out "[0@a] got 0" "[1@b] got 1"
    # A signal that comes to dprun's ssh as well cuts nobody's grace.
    # shellcheck disable=SC2016
    "$dprun" -H a:1,b:1 sh -c 'trap "sleep 1; touch saved.$DP_RANK; exit 0" TERM; touch runs.$DP_RANK; while :; do sleep 0.05; done' >out 2>err & job=$!
    until_holds [ -e runs.0 -a -e runs.1 ]
    pkill -TERM -x ssh; kill -TERM $job; ends 143; expect err "ended 2 ranks within the grace time"
    [ -e saved.0 ] && [ -e saved.1 ] || bad "a rank was cut off"
    # A signal ends the wait for the files of a failed job, which take a minute on this network.
    "$hosts" --rate b 8M
    # shellcheck disable=SC2016
    "$dprun" -H a:1,b:1 --keep-runs 0 sh -c '[ $DP_RANK = 0 ] || head -c 60000000 /dev/zero >$DP_RUN_DIR/trace.9.dpt; exit 7' >out 2>err & job=$!
    until_holds eval 'compgen -G "/tmp/dprun-*/trace.9.dpt" >/dev/null'
    SECONDS=0
    kill -TERM $job; ends 7
    [ $SECONDS -lt 20 ] || bad "dprun ended $SECONDS s after the signal"
    "$hosts" --heal b
    # A stray process of a rank is ended, and told.
    run 0 -H a:1,b:1 sh -c 'setsid sleep 777 & exit 0'; expect err "was still there"
    nothing_left a b ;;
missing)
    ssh b 'mkdir /tmp/only && cp /bin/true /tmp/only/prog'
    run 127 -H a,b /tmp/only/prog; expect err "node a: program /tmp/only/prog: No such file" "nothing was started"
    run 1 -H a,b --wdir /tmp/only true; expect err "node a: the working folder /tmp/only"
    run 1 -H a,nowhere true; expect err "node nowhere: no host of this name is known here"
    run 1 -H a,b --ssh "ssh -p 2222" true; expect err "does sshd run there"
    run 1 -H a --ssh "ssh -o UserKnownHostsFile=/dev/null -o GlobalKnownHostsFile=/dev/null" true
    expect err "ssh-keyscan"
    run 1 -H a --ssh "ssh -o IdentityFile=/dev/null -F none" true; expect err "node a: "
    mkdir elsewhere && cp "$dprun" elsewhere/
    run 2 -H a:x true; expect err '"a:x"'
    run 2 -np 5 -H a:2,b:2 true; expect err "2 hosts, 4 slots"
    run 2 -np 3 -H a:1,b:1 --stdin 7 true
    nothing_left a b ;;
lost_machine)
    start_sleepers
    "$hosts" --kill b; ends 137
    expect err "lost node b" "FAILED  node b (rank 2,3)" "0,1: stopped by dprun"
    nothing_left a ;;
lost_link)
    start_sleepers
    "$hosts" --cut b; ends 137
    expect err "lost node b: no sign of life" "FAILED  node b (rank 2,3)"
    nothing_left a
    until_holds is_clean b # its own lease ended it, without anybody reaching it
    "$hosts" --heal b
    # Nothing reaches b, which repeats what nobody acknowledges. Those packets would be a sign of life for 7.5 s, but b
    # resets its connection.
    "$dprun" -H a:1,b:1 --keep-runs 0 "${member%/*}/victim" 1000000 "$PWD" >out 2>err & job=$!
    until_holds [ -e part.0 -a -e part.1 ] # they train
    "$hosts" --oneway b in; ends 137
    expect err "FAILED  node b (rank 1)"
    grep -q 'lost node b: nothing reaches it any more.* for [23]\.' err || bad "b was kept for too long"
    until_holds is_clean b
    "$hosts" --heal b
    nothing_left a
    # The same without ssh.
    (umask 077; head -c 32 /dev/urandom >secret); rm -f part.*
    for n in 1 0; do
        "$hosts" --in $([ $n = 0 ] && echo a || echo b) env DP_SECRET_FILE="$PWD/secret" "$dprun" --node $n/2 --meet a:29500 \
            --keep-runs 0 "${member%/*}/victim" 1000000 "$PWD" >out$n 2>err$n & pids[n]=$!
    done
    until_holds [ -e part.0 -a -e part.1 ]
    "$hosts" --oneway b in
    SECONDS=0
    wait "${pids[0]}"; code=$?; [ $code = 137 ] || bad "node 0: exit code $code"
    [ $SECONDS -lt 6 ] || bad "node 0 ended after $SECONDS s"
    expect err0 "FAILED  node b (rank 1)"
    wait "${pids[1]}" && bad "node 1: exit code 0"
    until_holds is_clean b
    "$hosts" --heal b
    # c has had no core for longer, but its kernel answers: b, which nothing reaches, is the cause, although dprun gives
    # c up first.
    rm -f part.*
    for n in 2 1 0; do
        "$hosts" --in $(echo a b c | cut -d' ' -f$((n + 1))) env DP_SECRET_FILE="$PWD/secret" "$dprun" --node $n/3 \
            --meet a:29500 --keep-runs 0 "${member%/*}/victim" 1000000 "$PWD" >out$n 2>err$n & pids[n]=$!
    done
    until_holds [ -e part.0 -a -e part.1 -a -e part.2 ]
    "$hosts" --freeze c
    sleep 0.3
    "$hosts" --oneway b in
    wait "${pids[0]}"; code=$?; [ $code = 137 ] || bad "node 0: exit code $code"
    expect err0 "lost node c: no sign of life" "FAILED  node b (rank 1)"
    "$hosts" --heal b
    "$hosts" --thaw c
    kill -CONT "${pids[2]}" # nsenter stopped with its child
    wait "${pids[1]}" "${pids[2]}"
    nothing_left a b c
    # Nothing comes from b, which still hears that dprun has given it up, and does not wait for the end of its lease.
    start_sleepers
    "$hosts" --oneway b out; ends 137
    SECONDS=0
    until_holds is_clean b
    [ $SECONDS -lt 9 ] || bad "b was busy for $SECONDS s"
    "$hosts" --heal b
    nothing_left a ;;
lost_ssh)
    start_sleepers
    pkill -9 -f 'ssh .* -- b exec'; ends 137
    expect err "lost node b"
    nothing_left a b ;;
lost_agent)
    start_sleepers
    "$hosts" --in b kill -9 "$(station_of b)"; ends 137
    expect err "lost node b" "FAILED  node b (rank 2,3)"
    nothing_left a b
    start_sleepers # the agent, its guard and their parent: the next job there removes what they left
    "$hosts" --in b pkill -9 -f 'dprun --station'; ends 137
    nothing_left a
    until_holds eval '[ -z "$("$hosts" --processes b | grep -Ev " ps |sshd:")" ]'
    "$hosts" --in b find /tmp -name 'dprun-*' -exec touch -d '1 minute ago' {} +
    run 0 -H b true
    nothing_left b ;;
lost_dprun)
    start_sleepers
    kill -9 $job; wait $job 2>/dev/null
    nothing_left a b
    start_sleepers # frozen instead: after the lease the nodes are free
    kill -STOP $job
    until_holds is_clean a; until_holds is_clean b
    kill -CONT $job; wait $job
    nothing_left a b ;;
timeline) # b's clock is ahead by 5000 s
    run 0 -H a:2,b:2 --timeline t.pftrace "$member"
    expect err "saved timeline t.pftrace (clocks within"
    "$(dirname "$dprun")/dptrace" info t.pftrace >out.info 2>&1 || bad "dptrace info"
    expect out.info "clock error <="
    # dprun tells no smaller error than the timeline, which has b's clock on the axis of a's.
    told=$(sed -n 's/.*clocks within \([0-9]*\) us of each other.*/\1/p' err)
    sed -n 's/.*clock error <= \([0-9.]*\) us.*/\1/p' out.info >errors
    [ -s errors ] && awk -v told="$told" '$1 > told + 1 { exit 1 }' errors || bad "$told us are told, $(tr '\n' ' ' <errors)"
    nothing_left a b ;;
node)
    (umask 077; head -c 32 /dev/urandom >secret)
    export DP_SECRET_FILE=$PWD/secret
    for n in 1 2 0; do # in any order
        # shellcheck disable=SC2086
        "$hosts" --in "$(echo a b c | cut -d' ' -f$((n + 1)))" env DP_SECRET_FILE="$PWD/secret" \
            "$dprun" --node $n/3 --meet a:29500 -np 2 "$member" >out$n 2>err$n & pids[n]=$!
    done
    for n in 0 1 2; do wait "${pids[n]}" || bad "node $n: exit code $?"; done
    for rank in 0 1 2 3 4 5; do expect out0 "rank $rank of 6, local $((rank % 2)) of 2, sum 21"; done
    expect out0 "[1@a] rank 1" "[2@b] rank 2" "[5@c] rank 5" # by the names of their machines
    PET_NNODES=2 PET_NODE_RANK=0 PET_MASTER_ADDR=login PET_MASTER_PORT=29501 PET_NPROC_PER_NODE=1 \
        "$dprun" --node env "$member" >out 2>err & leader=$!
    "$hosts" --in a env PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=login PET_MASTER_PORT=29501 \
        PET_NPROC_PER_NODE=1 DP_SECRET_FILE="$PWD/secret" "$dprun" --node env "$member" >out1 2>err1 ||
        bad "the follower failed"
    wait $leader || bad "the leader failed"
    expect out "rank 1 of 2"
    head -c 32 /dev/urandom >other; chmod 600 other # another secret gets nobody in
    DP_START_TIMEOUT=60s timeout 60 "$dprun" --node 0/2 --meet login:29502 true >out 2>err & leader=$!
    for _ in 1 2; do # it learns why, and does not try until its timeout
        "$hosts" --in a env DP_START_TIMEOUT=60s DP_SECRET_FILE="$PWD/other" timeout 30 \
            "$dprun" --node 1/2 --meet login:29502 true >out1 2>err1; code=$?
        [ $code = 1 ] || bad "another secret: code $code"
        expect err1 "dprun at 10.99.0.254, port 29502: it refused our proof: the secrets differ"
    done
    kill -TERM $leader
    wait $leader && bad "a leader without a follower: code 0"
    expect err "dropped: 10.99.0.1:" "as node 1: its proof is wrong (another job, an old secret, or recorded)"
    # Strangers who say nothing, and come again once they are dropped, keep no node out.
    DP_START_TIMEOUT=20s timeout 60 "$dprun" --node 0/2 --meet login:29502 true >out 2>err & leader=$!
    "$hosts" --in c python3 - <<'END' &
import pathlib, selectors, socket, time  # more than dprun has places for
held = selectors.DefaultSelector()
ends = time.monotonic() + 60
def connect():
    try:
        stranger = socket.create_connection(("login", 29502), 5)
    except OSError:
        return  # not open yet, or no more
    held.register(stranger, selectors.EVENT_READ)
while time.monotonic() < ends and not pathlib.Path("no_more_strangers").exists():
    for _ in range(300 - len(held.get_map())):
        connect()
    if len(held.get_map()) == 300:
        pathlib.Path("strangers").touch()
    for key, _ in held.select(0.05):
        try:
            if key.fileobj.recv(4096):
                continue
        except OSError:
            pass
        held.unregister(key.fileobj)
        key.fileobj.close()
END
    strangers=$!
    until_holds [ -e strangers ]
    "$hosts" --in a env DP_START_TIMEOUT=15s DP_SECRET_FILE="$PWD/secret" \
        "$dprun" --node 1/2 --meet login:29502 true >out1 2>err1 || bad "strangers keep a node out"
    wait $leader || bad "strangers keep a leader waiting"
    touch no_more_strangers
    wait $strangers
    DP_START_TIMEOUT=1s timeout 60 "$dprun" --node 0/2 --meet login:29502 true >out 2>err && bad "nobody came: code 0"
    expect err "node node1: its station did not come within DP_START_TIMEOUT"
    nothing_left a b c ;;
listen) # while a job starts, nothing of it listens on an interface that leads to no other node
    watch=$(dirname "$hosts")/watch_listeners.py
    mkdir slow && printf '%s\n' '#!/bin/sh' 'sleep 1' 'exec /usr/bin/ssh "$@"' >slow/ssh && chmod +x slow/ssh
    export DP_SSH=$PWD/slow/ssh # so that the start lasts, and a busy machine sees it
    watched() { # COMMAND...: with all that listened meanwhile in seen.login, seen.a, seen.b
        local watchers=() name
        rm -f stop seen.* watches.*
        python3 "$watch" login & watchers+=($!)
        for name in a b; do "$hosts" --in $name python3 "$watch" $name & watchers+=($!); done
        until_holds [ -e watches.login -a -e watches.a -a -e watches.b ]
        "$@"
        touch stop
        wait "${watchers[@]}"
    }
    only() { # NAME ADDRESS...: nothing else was listened on there
        local name=$1; shift
        printf '%s\n' "$@" | sort >may
        comm -23 seen.$name may | grep . && bad "$name listens on: $(tr '\n' ' ' <seen.$name)"
    }
    for name in login a b; do # a bridge of containers, and a network of this machine alone
        on=("$hosts" --in $name); [ $name != login ] || on=()
        "${on[@]}" ip link add docker0 type bridge; "${on[@]}" ip addr add 172.17.0.1/16 dev docker0; "${on[@]}" ip link set docker0 up
        "${on[@]}" ip link add own0 type veth peer name own1
        "${on[@]}" ip addr add 10.$((98 - $(printf %d "'$name") % 7)).0.1/24 dev own0; "${on[@]}" ip link set own0 up; "${on[@]}" ip link set own1 up
    done
    for try in 1 2 3; do
        watched run 0 -np 4 -H a:2,b:2 "$member"; expect out "rank 3 of 4"
        only login 10.99.0.254
        only a 10.99.0.1 fd99::1; only b 10.99.0.2 fd99::2
        expect seen.login 10.99.0.254; expect seen.a 10.99.0.1 # they were seen
    done
    watched run 0 --check -H a,b; expect out "on a 10.99.0.1 (eth0), b 10.99.0.2 (eth0)"
    only login 10.99.0.254; only a 10.99.0.1 fd99::1; only b 10.99.0.2 fd99::2; expect seen.login 10.99.0.254
    watched run 0 -np 2 -H a.v6:1,b.v6:1 "$member"; only login fd99::254; expect seen.login fd99::254
    watched run 0 -np 3 -H localhost:1,a:1,b:1 "$member"; only login 127.0.0.1 10.99.0.254 fd99::254
    expect seen.login 127.0.0.1 10.99.0.254
    (umask 077; head -c 32 /dev/urandom >secret); export DP_SECRET_FILE=$PWD/secret
    meet() { # by --node: login leads, at the address that --meet names
        "$hosts" --in a env DP_SECRET_FILE="$PWD/secret" "$dprun" --node 1/2 --meet login:29500 "$member" >out1 2>err1 & local other=$!
        run 0 --node 0/2 --meet login:29500 "$member"
        wait $other || bad "node 1: exit code $?"
    }
    watched meet; only login 10.99.0.254 127.0.0.1 fd99::254; expect seen.login 10.99.0.254
    # A link's own address: only ssh knows dprun's for the other side. Ranks need another one.
    own=$("$hosts" --in a ip -6 -o addr show dev eth0 scope link | awk '{ sub("/.*", "", $4); print $4; exit }')
    printf '[%s]\n' "$own%eth0" >hostfile
    watched run 0 --hostfile hostfile hostname; expect out "] a"
    grep -q '^fe80' seen.login || bad "login listens on: $(tr '\n' ' ' <seen.login)"
    only login "$(grep '^fe80' seen.login)"
    # ssh's configuration knows another address than the name: its station reaches nothing, and then all is opened.
    echo "172.17.0.9 elsewhere" >>/etc/hosts
    printf '%s\n' 'Host elsewhere alias' 'HostName 10.99.0.1' >>/etc/ssh/ssh_config
    run 0 -H elsewhere hostname; expect out "] a"; expect err "listening on all addresses now (--net-interface names one)"
    # A name that ssh alone knows.
    watched run 0 -H alias hostname; expect out "] a"; expect seen.login ::
    nothing_left a b ;;
slurm) # inside an allocation, by a srun of dprun's own. -w: Slurm still cleans up after the last job, and would take others
    in_allocation() { local wanted=$1 code; shift
        timeout -k 5 120 salloc -Q "$@" >out 2>err; code=$?
        [ $code = "$wanted" ] || bad "exit code $code instead of $wanted: salloc $*"; }
    in_allocation 0 -N 3 --ntasks-per-node=2 "$dprun" "$member"
    for rank in 0 1 2 3 4 5; do expect out "rank $rank of 6, local $((rank % 2)) of 2, sum 21"; done
    in_allocation 0 -w a,b --ntasks-per-node=4 "$dprun" -np 5 "$member"
    expect out "rank 4 of 5, local 0 of 1" "[4@b]"
    # shellcheck disable=SC2016
    in_allocation 0 -w a,b,c --ntasks-per-node=2 "$dprun" -np 3 sh -c 'echo $DP_RANK on $(hostname)' # some of the nodes
    expect out "[1@a] 1 on a" "[2@b] 2 on b"
    # shellcheck disable=SC2016
    in_allocation 7 -w a,b --ntasks-per-node=2 "$dprun" sh -c '[ $DP_RANK != 3 ] || exit 7; exec sleep 777'
    expect err "FAILED  rank 3 (b, local 1, pid "
    mkdir "/tmp/here" && cp "$dprun" /tmp/here/ # the nodes have other folders in /tmp
    in_allocation 1 -w a,b /tmp/here/dprun true; expect err "there is no /tmp/here/dprun to run" "nothing was started"
    grep -q 'not started$\|ssh' err && bad "an ssh, or nodes that nobody names"
    in_allocation 127 -w a,b "$dprun" /no/program; expect err "node a: program /no/program" "node b: program /no/program"
    for signal in TERM KILL; do
        salloc -Q -w a,b --ntasks-per-node=2 "$dprun" sleep 777 >out 2>err & job=$!
        until_holds marked_all a b
        pkill -$signal -x dprun; wait $job
        until_holds eval '! marked a && ! marked b'
        until_holds eval '! "$hosts" --processes a | grep -q "dprun"' ; until_holds eval '! "$hosts" --processes b | grep -q "dprun"'
    done
    until_holds eval '[ -z "$(files_of a "dprun-*")$(files_of b "dprun-*")" ]' ;;
check)
    run 0 --check -H a,b,c
    expect out "ok      a " "ok      c " "eth0 10.99.0.2" "these machines can run jobs"
    ucx=$("$dprun" --check | sed -n 's/.*libucp.so.0 //p')
    grep -qE "^ok +b +b +[0-9.]+ +${ucx:-?} " out || bad "no version of UCX ($ucx)"
    expect out "ok      network: every node reaches every other one, on a 10.99.0.1 (eth0), b 10.99.0.2 (eth0), c 10.99.0.3 (eth0)"
    run 1 --check -H a,nowhere; expect out "ok      a" "FAILED  nowhere" "1 of these must be put right"
    expect err "no host of this name is known here"; expect out "network: not tried"
    nothing_left a b c ;;
check_network) # firewalls that stop the nodes' talk with each other, not that with dprun
    wall() { # MACHINE HOOK CONDITION...: drops what opens connections
        local name=$1 hook=$2
        shift 2
        "$hosts" --in "$name" nft add table inet wall
        "$hosts" --in "$name" nft add chain inet wall "$hook" "{ type filter hook $hook priority 0; }"
        "$hosts" --in "$name" nft add rule inet wall "$hook" "$@" 'tcp flags & (syn | ack) == syn' drop
    }
    export DP_START_TIMEOUT=20s
    wall b input ip saddr != 10.99.0.254
    "$hosts" --in b nft add rule inet wall input ip6 saddr != fd99::254 'tcp flags & (syn | ack) == syn' drop
    run 1 --check -H a,b,c
    expect out "FAILED  network: " "        a -> b: 10.99.0.2 port " "        c -> b: 10.99.0.2 port " "(eth0): no answer" \
        "while b reaches a: a firewall on b stops what comes in (TCP)" "1 of these must be put right"
    grep -qE '^ +(b ->|a -> c|c -> a)' out && bad "a pair that is open"
    "$hosts" --in b nft delete table inet wall
    wall a output ip daddr 10.99.0.3 # one pair, in one direction
    "$hosts" --in a nft add rule inet wall output ip6 daddr fd99::3 'tcp flags & (syn | ack) == syn' drop
    run 1 --check -H a,b,c; expect out "        a -> c: 10.99.0.3 port " "Other nodes reach c: something between the two stops it"
    "$hosts" --in a nft delete table inet wall
    run 0 --check -H a,b --net-interface eth0; expect out "ok      network: every node reaches"
    for change in down 'name net0'; do "$hosts" --in b ip link set eth0 $change; done
    "$hosts" --in b ip link set net0 up
    run 1 --check -H a,b --net-interface eth0; expect out "b has no address on the interface eth0"
    run 0 --check -H a,b; expect out "b 10.99.0.2 (net0)"
    nothing_left a b c ;;
*) bad "no such case" ;;
esac
echo ok
