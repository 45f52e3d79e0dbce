#!/usr/bin/env bash
# soak.sh - many jobs of four ranks on three machines, each harmed once, at a random place and moment.
#
#   soak.sh BUILD [JOBS [SEED [KIND]]]
#
# Of each job: dprun ends in time and names what was harmed; afterwards no process, file, shared memory or
# listening socket of it is left on any machine, those that were cut off included. dprun and the agents of
# its nodes that end in order have closed each descriptor they opened (descriptors.c). The seed is printed;
# the same seed harms the same things. At the end a line for each kind of harm: how many jobs, and
# milliseconds from the harm to dprun's end and until nothing was left, as median and maximum.
set -u
self=$(readlink -f "$0") here=$(dirname "$(readlink -f "$0")") build=$(readlink -f "$1")
jobs=${2:-10} seed=${3:-$((RANDOM * 32768 + RANDOM))} only=${4:-}
hosts=$here/hosts.sh
if [ -z "${SOAK_INSIDE:-}" ]; then
    echo "seed $seed"
    SOAK_INSIDE=1 HOSTS_KEEP=${HOSTS_KEEP:-$build} exec "$hosts" red green blue -- "$self" "$build" "$jobs" "$seed" "$only"
fi
cd "$HOSTS_DIR" || exit 1
RANDOM=$seed
machines=(red green blue) # no words of other messages
kinds=(rank machine power cut oneway_in oneway_out freeze dprun agent ssh)
limit=60 # seconds for an end, and for the last process to go; only a hang is slower
export DP_START_TIMEOUT=20s

# ssh as dprun calls it: what it starts on a machine, the agent, is watched as dprun is.
export DESCRIPTORS_OF=dprun DESCRIPTORS_IN=$PWD/descriptors
mkdir descriptors bin
cc -shared -fPIC -O1 -o descriptors.so "$here/descriptors.c" || exit 1
cat >bin/ssh <<END_SSH
#!/bin/bash
exec -a ssh /usr/bin/ssh "\${@:1:\$#-1}" "export LD_PRELOAD=$PWD/descriptors.so DESCRIPTORS_OF=dprun DESCRIPTORS_IN=$PWD/descriptors; \${@: -1}"
END_SSH
chmod +x bin/ssh

now_ms() { echo $(($(date +%s%N) / 1000000)); }
on() { # MACHINE COMMAND...
    local machine=$1
    shift
    if [ "$machine" = login ]; then "$@"; else "$hosts" --in "$machine" "$@"; fi
}

# ---- What is there -------------------------------------------------------------------------------

things() { # HOME, run on each machine: files, shared memory, listening ports, abstract sockets, processes
    find /tmp /dev/shm /run "$1" -xdev 2>/dev/null | grep -v '^/run/\(utmp\|keep\)'
    ipcs -m | grep 0x
    awk '$4 == "0A" { print "port", $2 }' /proc/net/tcp /proc/net/tcp6
    awk '$8 ~ /^@/ { print "socket", $8 }' /proc/net/unix
    ps -ww -eo comm= | grep -xE 'victim|dprun|ssh'
}
sight() { # MACHINE
    local script
    script="$(declare -f things); things"
    if [ "$1" = login ]; then
        bash -c "$script /nowhere"
    else
        on "$1" bash -c "$script /root"
        # The system's sshd waits for its client across a cut link; what it started must not.
        "$hosts" --processes "$1" | grep -v 'sshd: '
    fi | sort
}
remember() { for m in login "${machines[@]}"; do sight $m >"before.$m"; done; }
left_on() { sight "$1" | diff "before.$1" - | grep '^[<>]'; }
# Descriptors that a dprun or an agent had at its end and not when it began, and how many were looked at. The
# lock of a run directory lasts as long as its process.
leaked() {
    looked_at=$((looked_at + $(ls descriptors | wc -l)))
    cat descriptors/* 2>/dev/null | grep -vE '/dprun-[[:alnum:]]{6}( \(deleted\))?$'
    rm -f descriptors/*
}
gone_from() { # MACHINE...: within the limit
    local end=$((SECONDS + limit)) m
    for m in "$@"; do
        while [ -n "$(left_on "$m")" ]; do
            [ $SECONDS -lt $end ] || { problem "left on $m: $(left_on "$m")"; return; }
            sleep 0.05
        done
    done
}
problem() { problems+="$*; "; }

# ---- Harm ----------------------------------------------------------------------------------------

# pid_of MACHINE PATTERN [WHICH]: waits for such a process, if the job still runs
pid_of() {
    local pid
    while kill -0 "$job" 2>/dev/null; do
        pid=$(on "$1" pgrep -f "$2" | sed -n "${3:-1}p")
        [ -n "$pid" ] && { echo "$pid"; return; }
        sleep 0.01
    done
}
kill_process() { # MACHINE PATTERN [WHICH]
    local pid
    pid=$(pid_of "$@")
    [ -n "$pid" ] && on "$1" kill -9 "$pid"
}
harm() { # KIND MACHINE
    case $1 in
    rank) kill_process "$2" "^$build/tests/victim" ;;
    machine) "$hosts" --kill "$2" ;;
    power) "$hosts" --power "$2" ;;
    cut) "$hosts" --cut "$2" ;;
    oneway_in) "$hosts" --oneway "$2" in ;;
    oneway_out) "$hosts" --oneway "$2" out ;;
    freeze) "$hosts" --freeze "$2" ;;
    dprun) kill -9 "$job" ;;
    agent) kill_process "$2" "^$build/dprun --station" ;;
    ssh) kill_process login "^ssh .*$2 " ;;
    esac
}
mend() { # KIND MACHINE
    case $1 in
    machine | power) "$hosts" --heal "$2"; "$hosts" --boot "$2" ;;
    cut | oneway_*) "$hosts" --heal "$2" ;;
    freeze) "$hosts" --thaw "$2" ;;
    esac
}

# told KIND MACHINE CODE: dprun's end says what was harmed
told() {
    local line
    case $1 in
    dprun) return ;; # nobody is left to tell
    esac
    [ "$3" != 0 ] || { problem "exit code 0"; return; }
    [ "$3" != 124 ] || { problem "timeout"; return; }
    # The verdict, or why nothing was started.
    line=$(grep -E '^dprun: FAILED' err || grep -E '^dprun: ' err | head -n 1)
    grep -qw -- "$2" <<<"$line" || problem "$2 is not named in \"$line\""
    [ "$1" != rank ] || grep -q SIGKILL err || problem "SIGKILL is not named"
}

one_job() { # NUMBER
    local kind=${only:-${kinds[RANDOM % ${#kinds[@]}]}} machine=${machines[RANDOM % 3]} two=$((RANDOM % 3))
    local moment=$((RANDOM % 2500)) slots=(1 1 1) code began end
    slots[two]=2
    problems=
    rm -f out err
    PATH=$PWD/bin:$PATH LD_PRELOAD=$PWD/descriptors.so \
        "$build/dprun" -np 4 -H "red:${slots[0]},green:${slots[1]},blue:${slots[2]}" "$build/tests/victim" 1000000 "$HOSTS_DIR" \
        >out 2>err </dev/null &
    job=$!
    sleep "$(printf %d.%03d $((moment / 1000)) $((moment % 1000)))"
    began=$(now_ms)
    harm "$kind" "$machine"
    (sleep $limit; kill -9 $job) 2>/dev/null & watch=$!
    disown $watch
    wait $job 2>/dev/null
    code=$?
    end=$(now_ms)
    kill $watch
    # The run directory of a failed job stays for its user, who is told where.
    saved=$(sed -n 's/.*saved    run directory \([^ ]*\).*/\1/p' err)
    [ -z "$saved" ] || rm -rf "$saved"
    [ $((end - began)) -lt $((limit * 1000)) ] || problem "dprun did not end"
    told "$kind" "$machine" $code
    case $kind in # a machine that is cut off cleans up by itself
    machine | power | freeze) mend "$kind" "$machine"; gone_from login "${machines[@]}" ;;
    *) gone_from login "${machines[@]}"; mend "$kind" "$machine" ;;
    esac
    gone=$(now_ms)
    leaked >leaks
    [ ! -s leaks ] || problem "open at the end: $(tr '\n' ';' <leaks)"
    printf '%3d %-10s %-5s at %4d ms: code %3d after %5d ms, nothing left after %5d ms: %s\n' "$1" "$kind" \
        "$machine" "$moment" $code $((end - began)) $((gone - began)) "${problems:-ok}"
    echo "$kind $((end - began)) $((gone - began))" >>ends
    [ -z "$problems" ] || { failed=$((failed + 1)); sed 's/^/      | /' err | tail -n 30; }
}

failed=0 looked_at=0
: >ends
LD_PRELOAD=$PWD/descriptors.so DESCRIPTORS_OF=bash bash -c 'exec 9</dev/null'
[ "$(leaked)" = "9 /dev/null" ] || { echo "descriptors.so sees nothing"; exit 1; }
looked_at=0
remember
for ((number = 1; number <= jobs; number++)); do one_job $number; done
for kind in "${kinds[@]}"; do
    grep "^$kind " ends >of_kind || continue
    count=$(wc -l <of_kind)
    middle() { sort -n -k"$1" of_kind | awk -v c="$1" -v n="$count" 'NR == int((n + 1) / 2) { print $c }'; }
    most() { sort -n -k"$1" of_kind | tail -n 1 | cut -d' ' -f"$1"; }
    printf '%-10s %3d jobs: dprun ends after %5d ms (most %5d), nothing left after %5d ms (most %5d)\n' \
        "$kind" "$count" "$(middle 2)" "$(most 2)" "$(middle 3)" "$(most 3)"
done
[ $looked_at -ge "$jobs" ] || { echo "descriptors of $looked_at programs in $jobs jobs"; failed=$((failed + 1)); }
echo "$jobs jobs, $failed with problems, descriptors of $looked_at programs compared, seed $seed"
[ $failed = 0 ]
