#!/usr/bin/env bash
# Signals to a whole job: batch systems, service managers, terminals and timeout(1) signal every process
# of it. Ranks get the signal and the whole grace, and dprun says how they ended. With a real Slurm see
# tests/hosts/slurm_jobs.sh.
#
#   signals.sh DPRUN VICTIM CASE
set -u
dprun=$1 victim=$2 case=$3
work=$(mktemp -d)
trap 'kill -9 $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT
cd "$work" || exit 1
mkdir -m 700 run
export XDG_RUNTIME_DIR=$work/run TMPDIR=$work SIGNALS_MARK=$$.$case DP_FUSION_BYTES=1M
while read -r name; do unset "$name"; done < <(env | grep -Eo '^(DP_[^F]|SLURM_|PMI_|PMIX_|OMPI_)[A-Z0-9_]*')

bad() { echo "FAILED: $case: $*"; tail -n 20 "$work"/out* "$work"/err* 2>/dev/null; exit 1; }
skip() { echo "skipped: $*"; exit 77; }
expect() { grep -qE -- "$2" "$1" || bad "no line of $1 matches: $2"; }
wait_for() { for ((i = 0; i < 3000; i++)); do "$@" && return; sleep 0.02; done; bad "never: $*"; }
# The processes below PID, and PID first.
tree() {
    ps -e -o pid= -o ppid= | awk -v root="$1" '
        { parent[$1] = $2 }
        END { found[root] = 1; print root
              for (more = 1; more;) { more = 0
                  for (pid in parent) if (!(pid in found) && parent[pid] in found) { found[pid] = more = 1; print pid } } }'
}
to_tree() { tree "$2" | ${3:-cat} | while read -r pid; do kill -"$1" "$pid" 2>/dev/null; done; } # SIGNAL PID [ORDER]
of_tree() { # PID NAME: the process of that name
    local pid
    for pid in $(tree "$1"); do [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$2" ] && echo "$pid"; done
}
left() { grep -lsz "^SIGNALS_MARK=$SIGNALS_MARK\$" /proc/[0-9]*/environ | grep -v "/$$/" | xargs -r -n1 dirname | while read -r process; do
    [ "$(cat "$process/comm" 2>/dev/null)" = sleep ] && echo "$process"; done; }
nothing_left() {
    gone() { [ -z "$(ls "$work/run")" ] && [ -z "$(left)" ]; }
    wait_for gone
}
# Rank 0 ends at once; rank 1 needs 1.2 s, more than the victims of a failed rank get.
cat >saver <<'END'
if [ $DP_RANK = 1 ]; then trap 'sleep 1.2; echo x >saved; exit 0' TERM INT HUP QUIT; fi
trap 'echo x >warned.$DP_RANK' USR1
echo x >ready.$DP_RANK
while :; do sleep 0.05; done
END
# What stands for ssh: it stays above the station, as ssh is signalled with dprun.
printf '%s\n' '#!/bin/sh' 'shift' 'sh -c "$*"' 'exit $?' >remote
chmod +x remote
start() { # FLAGS...: a job of two ranks; a background job of a script ignores SIGINT
    rm -f saved ready.* warned.*
    env --default-signal=INT,QUIT "$dprun" "$@" >out 2>err & job=$!
    wait_for test -e ready.0; wait_for test -e ready.1
}
ends() { # CODE WORDS
    wait $job; code=$?
    [ $code = "$1" ] || bad "code $code instead of $1"
    expect err "$2"
    nothing_left
}
number() { kill -l "$1"; }
two_nodes="-H 127.0.0.2:1,127.0.0.3:1 --ssh $work/remote"

case $case in
nohup) # what dprun ignores, its helpers pass on to nobody
    for flags in "-np 2" "-H localhost:1,127.0.0.1:1" "$two_nodes"; do
        rm -f ready.*
        # shellcheck disable=SC2086
        env --ignore-signal=HUP "$dprun" $flags sh saver >out 2>err & job=$!
        wait_for test -e ready.0; wait_for test -e ready.1
        helpers=$(tree $job | grep -vx $job)
        for pid in $helpers; do # the ranks of other nodes have their own will, as those of a login there
            case $(cat /proc/$pid/comm 2>/dev/null) in dp*) kill -HUP $pid ;; esac
        done
        sleep 0.3
        kill -TERM $job
        [ "$flags" = "$two_nodes" ] || ends 143 'interrupted by SIGTERM at .*: ended 2 ranks within the grace time'
        [ "$flags" != "$two_nodes" ] || ends 129 'interrupted by SIGHUP at .*: ended 2 ranks within the grace time'
    done ;;
tree | tree_nodes)
    [ $case = tree ] && flags="-np 2" || flags=$two_nodes
    for signal in TERM INT HUP; do
        for order in cat tac; do # dprun first, or its ranks
            # shellcheck disable=SC2086
            start $flags sh saver
            if [ $order = cat ]; then # a warning ends nobody
                to_tree USR1 $job
                wait_for test -e warned.0; wait_for test -e warned.1
            fi
            to_tree $signal $job $order
            ends $((128 + $(number $signal))) \
                "interrupted by SIG$signal at .*: ended 2 ranks within the grace time, 0 processes left"
            [ -e saved ] || bad "SIG$signal, $order: rank 1 was cut off"
        done
    done
    # shellcheck disable=SC2086
    start $flags sh saver
    to_tree QUIT $job # at once
    ends 131 'interrupted by SIGQUIT at .*: ended 2 ranks.*, 0 processes left'
    [ -e saved ] && bad "SIGQUIT: rank 1 had its grace"
    # shellcheck disable=SC2086
    start $flags --grace 0.5 sh saver
    to_tree TERM $job
    ends 143 'ended 2 ranks, killed 1 of them \(rank 1\) after the grace time of 0.5 s \(--grace gives more\), 0 proc'
    # shellcheck disable=SC2086
    start $flags --grace 0.5 --timeout 3 sh saver
    ends 124 'killed +1: still there after the grace time of 0.5 s \(--grace gives more\)' ;;
twice) # signals of one request
    for signals in 'HUP HUP' 'TERM TERM' 'INT INT' 'HUP TERM CONT' 'TERM CONT HUP'; do
        start -np 2 sh saver
        for signal in $signals; do kill -"$signal" $job; sleep 0.05; done
        ends $((128 + $(number ${signals%% *}))) 'ended 2 ranks within the grace time'
        [ -e saved ] || bad "$signals: rank 1 was cut off"
    done
    start -np 2 sh saver # a logout whose second half comes late
    kill -HUP $job; sleep 0.7; kill -TERM $job
    ends 129 'ended 2 ranks within the grace time'
    start -np 2 --grace 60 sh saver # who asks again wants it at once
    kill -INT $job; sleep 0.7; kill -INT $job
    ends 130 'ended 2 ranks, killed 1 of them \(rank 1\) at once, as asked, 0 processes left'
    rm -f saved ready.*
    timeout -s TERM 2 "$dprun" -np 2 sh saver >out 2>err # signals dprun, then its group
    [ $? = 124 ] || bad "timeout: another code"
    expect err 'ended 2 ranks within the grace time'
    [ -e saved ] || bad "timeout: rank 1 was cut off" ;;
terminal) # it closes: bash and the kernel signal dprun
    cat >close.py <<'END'
import os, pty, sys, time
pid, fd = pty.fork()
if pid == 0:
    os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
os.write(fd, b"%s -np 2 sh saver >out 2>err\n" % sys.argv[1].encode())
while not (os.path.exists("ready.0") and os.path.exists("ready.1")):
    time.sleep(0.02)
os.close(fd)
END
    for ((try = 0; try < 5; try++)); do
        rm -f saved ready.*
        timeout 60 python3 close.py "$dprun" || bad "no terminal"
        says() { grep -q 'dprun: interrupted' err; }
        wait_for says
        expect err 'interrupted by SIGHUP at .*: ended 2 ranks within the grace time, 0 processes left'
        [ -e saved ] || bad "try $try: rank 1 was cut off"
        nothing_left
    done ;;
pid_1) # dprun is the first process of a container
    unshare --pid --fork --mount-proc true 2>/dev/null || skip "namespaces are not permitted here"
    for order in cat tac; do
        rm -f saved ready.*
        unshare --pid --fork --kill-child --mount-proc "$dprun" -np 2 sh saver >out 2>err & job=$!
        wait_for test -e ready.0; wait_for test -e ready.1
        to_tree TERM "$(tree $job | sed -n 2p)" $order
        ends 143 'interrupted by SIGTERM at .*: ended 2 ranks within the grace time, 0 processes left'
        [ -e saved ] || bad "$order: rank 1 was cut off"
    done ;;
timeline) # of a job that a batch system ended
    for flags in "-np 2" "$two_nodes"; do
        rm -f part.* t.pftrace
        # shellcheck disable=SC2086
        "$dprun" $flags --timeline t.pftrace "$victim" 1000000 "$work" >out 2>err & job=$!
        wait_for test -e part.0; wait_for test -e part.1
        to_tree TERM $job
        ends 143 'saved timeline t.pftrace'
        [ -s t.pftrace ] || bad "no timeline"
    done ;;
stopped) # a helper of dprun's that is stopped holds nothing up
    start -np 2 sh -c 'echo x >ready.$DP_RANK; until [ -e go ]; do sleep 0.02; done'
    kill -STOP "$(of_tree $job dp-guard)"
    touch go
    wait $job; code=$?
    [ $code = 0 ] || bad "a stopped guard: code $code"
    nothing_left
    start -np 2 sh saver # dprun is killed, and its agent does not see it
    kill -STOP "$(of_tree $job dprun-agent)"
    kill -9 $job
    wait $job 2>/dev/null
    nothing_left ;;
stopped_agent) # nor does one that cannot kill the ranks
    # shellcheck disable=SC2086
    for flags in "-np 2" "$two_nodes"; do
        start $flags --grace 0.2 sh saver
        for agent in $(of_tree $job dprun-agent); do kill -STOP $agent; done
        kill -TERM $job
        ends 143 'interrupted by SIGTERM at .*: ended 2 ranks'
    done ;;
*) bad "no such case" ;;
esac
echo "ok: $case"
