#!/usr/bin/env bash
# What a job offers to strangers: who listens where, and what becomes of garbage and a forged write.
#
#   security.sh DPRUN MEMBER ATTACK CASE
#   KILLS=200 FIRST=1 security.sh ... kills: ranks die at so many places of their start (default 6)
#
# Cases with machines make them from namespaces: each has its own network, boot id, pids and host
# name. They need root, or user namespaces; without either they are skipped (77).
set -u
. "$(dirname "$0")/../launch/port.sh"
dprun=$(readlink -f "$1") member=$(readlink -f "$2") attack=$(readlink -f "$3") case=$4 self=$(readlink -f "$0")
if [ "${SECURITY_WORK:-}" = "" ]; then
    SECURITY_WORK=$(mktemp -d) || exit 1
    trap 'kill_all; rm -rf "$SECURITY_WORK"' EXIT
fi
export SECURITY_WORK XDG_RUNTIME_DIR=$SECURITY_WORK/run TMPDIR=$SECURITY_WORK
work=$SECURITY_WORK preload=$(dirname "$member")/libsecurity_preload.so waits=$(dirname "$member")/libsecurity_waits.so
mkdir -p -m 700 "$XDG_RUNTIME_DIR"
cd "$work" || exit 1
# Whatever started this test must not be mistaken for what it starts.
while read -r name; do unset "$name"; done < <(env | grep -Eo \
    '^(DP_|SLURM_|PMI_|PMIX_|OMPI_|MPI_LOCAL|TORCHELASTIC_|(LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_)[A-Z0-9_]*')
export DP_FUSION_BYTES=1M # a job need not fill 96 MiB when it starts

bad() { echo "FAILED: $case: $*"; tail -n +1 out* err* seen* 2>/dev/null; kill_all; exit 1; }
skip() { echo "skipped: $*"; exit 77; }
# Processes of this job: known by their program and their folder.
job_processes() {
    local p exe
    for p in /proc/[0-9]*; do
        exe=$(readlink "$p/exe" 2>/dev/null) || continue
        [ "$exe" = "$dprun" ] || [ "$exe" = "$member" ] || continue
        tr '\0' '\n' <"$p/environ" 2>/dev/null | grep -qxF "SECURITY_WORK=$work" && echo "${p#/proc/}"
    done
}
kill_all() { # whoever started it: a killed "timeout" leaves its child
    local pid
    for pid in $(jobs -p) $(job_processes); do kill -9 "$pid" 2>/dev/null; done
}
bound() { timeout -k 5 60 "$@"; }
wait_for() { # until the command holds
    for ((i = 0; i < 3000; i++)); do
        "$@" && return
        for pid in ${pids[@]+"${pids[@]}"}; do kill -0 "$pid" 2>/dev/null || bad "ended before: $*"; done
        sleep 0.02
    done
    bad "never: $*"
}
all_are_there() { [ "$(find . -maxdepth 1 -name 'rank.*[0-9]' | wc -l)" = "$size" ]; }
address_of() { cut -d' ' -f1 "rank.$1"; }
locals_of() { cut -d' ' -f3 "rank.$1"; }

# listeners: a line for each listening TCP socket and each UDP socket of the job's processes:
# PID RANK_OR_- PROTOCOL HEX_IP:HEX_PORT
listeners() {
    local p rank inodes
    for p in $(job_processes); do
        p=/proc/$p
        rank=$(tr '\0' '\n' <"$p/environ" | sed -n 's/^\(DP_RANK\|RANK\)=//p' | head -1)
        inodes=$(find "$p/fd" -printf '%l\n' 2>/dev/null | sed -n 's/^socket:\[\(.*\)\]$/\1/p' | tr '\n' ' ')
        for protocol in tcp tcp6 udp udp6; do
            awk -v inodes=" $inodes" -v pid="${p#/proc/}" -v rank="${rank:--}" -v protocol="$protocol" \
                'NR > 1 && index(inodes, " " $10 " ") && (protocol ~ /udp/ || $4 == "0A") {
                    print pid, rank, protocol, $2 }' "$p/net/$protocol" 2>/dev/null
        done
    done
}

# throw RANK HEX_IP:HEX_PORT: both attacks at a listener. Whoever can be reached has failed already
# in the cases that call it for a rank of one machine.
throw() {
    "$attack" garbage "$2"; "$attack" put "$2" "$(address_of "$1")"
}

finish() { # SIZE: stops the job that runs in the background, all ranks end well
    touch stop
    wait "${pids[@]}" || bad "the job failed"
    codes=; for pid in "${pids[@]}"; do wait "$pid"; codes+="$? "; done
    [ -z "${codes//0 /}" ] || bad "exit codes: $codes"
}

# No process of the job may listen. If one does, it is attacked, which shows what that means.
nobody_listens() {
    listeners >seen
    [ -s seen ] || return 0
    while read -r _ rank _ where; do throw "${rank/-/0}" "$where"; done <seen
    touch stop; wait
    bad "the job listens"
}

on_this_machine() { # SIZE COMMAND...: one job
    size=$1; shift
    "$@" >out 2>err & pids=($!)
    wait_for all_are_there
    nobody_listens
    finish
}

by_rank() { # SIZE VARIABLES...: what starts ranks gives each of them some variables
    local rank; size=$1; shift; pids=()
    for ((rank = 0; rank < size; rank++)); do
        env $(for v in "$@"; do echo "${v//%/$rank}"; done) timeout -k 5 60 "$member" "$work" >"out$rank" 2>"err$rank" &
        pids+=($!)
    done
    wait_for all_are_there
}

# ---- Machines ------------------------------------------------------------------------------------

# machines CASE: runs that case again where "ip" and mounts are its own
machines() {
    local way=(unshare)
    command -v ip >/dev/null && command -v nsenter >/dev/null || skip "no iproute2, or no nsenter"
    [ "$(id -u)" = 0 ] || way=(unshare -Ur)
    "${way[@]}" --net --mount true 2>/dev/null || skip "namespaces are not permitted here"
    SECURITY_INNER=1 "${way[@]}" --net --mount --uts --ipc --pid --fork --kill-child --mount-proc \
        "$self" "$dprun" "$member" "$attack" "$case"
}

# boot NAME NUMBER HOST_NAME: a machine with 10.99.0.NUMBER and 10.98.0.NUMBER, and a bridge of
# containers whose address is the same on all of them. Its first process is in $NAME.pid.
boot() {
    local name=$1 number=$2
    cat /proc/sys/kernel/random/uuid >"$name.boot"
    mkfifo "$name.up"
    unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc sh -c "
        mount --bind '$work/$name.boot' /proc/sys/kernel/random/boot_id && echo '$3' >/proc/sys/kernel/hostname && mount -t sysfs none /sys && echo up >'$work/$name.up'
        exec sleep 1000" &
    read -r _ <"$name.up" || bad "machine $name did not start"
    wait_for pgrep -P $! >"$name.pid"
    local pid; pid=$(cat "$name.pid")
    for net in ${nets:-99 98}; do
        ip link add "v$net$name" type veth peer name "eth$net" netns "$pid" || skip "no virtual links here"
        ip link set "v$net$name" master "br$net" up
        inside "$name" ip addr add "10.$net.0.$number/24" dev "eth$net"
        inside "$name" ip link set "eth$net" up
    done
    inside "$name" ip link set lo up
    inside "$name" ip link add docker0 type bridge
    inside "$name" ip addr add 172.17.0.1/16 dev docker0
    inside "$name" ip link set docker0 up
}
inside() { local name=$1; shift; nsenter -t "$(cat "$work/$name.pid")" --net --mount --uts --ipc --pid "$@"; }

network() {
    mount --make-rprivate /
    ip link set lo up
    for net in 99 98; do
        ip link add "br$net" type bridge || skip "no bridges here"
        ip addr add "10.$net.0.254/24" dev "br$net"
        ip link set "br$net" up
    done
}

# on_machines NAME... : rank i on the i-th; with the variables of an array extraI, if there is one
on_machines() {
    local rank=0 name; size=$#; pids=()
    (umask 077; head -c 32 /dev/urandom >secret)
    for name in "$@"; do
        SECURITY_WORK=$work DP_RANK=$rank DP_SIZE=$size DP_RENDEZVOUS=10.99.0.1:29511 DP_SECRET_FILE=$work/secret \
            nsenter -t "$(cat "$name.pid")" --net --mount --uts --ipc --pid \
            timeout -k 5 60 env ${extra[$rank]:-A=B} "$member" "$work" >"out$rank" 2>"err$rank" &
        pids+=($!); rank=$((rank + 1))
    done
}
extra=() strangers=()
end_machines() { kill -9 $(cat ./*.pid) 2>/dev/null; }

# Ranks listen, and only at the first three bytes of an address that are $1.
only_on() {
    listeners >seen
    [ -s seen ] || bad "two machines, and nobody listens"
    awk -v net="$1" '$3 != "tcp" || substr($4, 3, 6) != net { exit 1 }' seen || bad "listens elsewhere"
}

# ---- Event loops ---------------------------------------------------------------------------------

# Functions that may wait on the thread of an event loop, each with the reason.
may_wait='
dp_look_for_ucx        --check alone: a throw-away child that loads a library, killed after a second
sleep_until_due        the coordinator backs off for microseconds from a neighbour that wakes it for nothing
read_piece             standard input, once the loop has said that it is readable; another process may read it too, so its flags are not ours
'

# No thread with an event loop may wait: what libsecurity_waits.so noted of these threads.
nobody_waits() { # THREAD...
    local thread line place function callers
    for thread in "$@"; do grep -q "^serves $thread" waits || bad "no $thread was looked at: $(grep ^serves waits | sort -u | tr '\n' ' ')"; done
    [ "$(grep -c '^canary' waits)" = "$(grep -c '^serves' waits)" ] || bad "some threads would not be noted"
    while read -r line; do
        callers=
        for place in $line; do
            [[ $place =~ ^(dprun|libdp.so[^+]*|security_member)[+](0x[0-9a-f]+)$ ]] || continue
            function=$(addr2line -f -e "$(find "$(dirname "$dprun")" -maxdepth 2 -name "${BASH_REMATCH[1]}" | head -1)" "${BASH_REMATCH[2]}" | head -1)
            grep -q "^$function " <<<"$may_wait" && continue 2
            callers+=" < $function"
        done
        echo "${line%% *}()$callers"
    done < <(grep -v '^serves\|^canary' waits | sed 's/ fd -\{0,1\}[0-9]*//' | sort -u) >waiting
    [ ! -s waiting ] || bad "calls on the thread of an event loop that may wait: $(cat waiting)"
}

case $case in
one) on_this_machine 1 env timeout 60 "$dprun" -np 1 "$member" "$work" ;;
alone) on_this_machine 1 timeout 60 "$member" "$work" ;;
dprun) on_this_machine 4 timeout 60 "$dprun" -np 4 "$member" "$work" ;;
torchrun)
    by_rank 3 RANK=% WORLD_SIZE=3 LOCAL_RANK=% LOCAL_WORLD_SIZE=3 MASTER_ADDR=localhost MASTER_PORT=29500 \
        TORCHELASTIC_RUN_ID=$$ TORCHELASTIC_RESTART_COUNT=0
    nobody_listens; finish ;;
mpirun)
    by_rank 3 OMPI_COMM_WORLD_RANK=% OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=% \
        OMPI_COMM_WORLD_LOCAL_SIZE=3 PMIX_NAMESPACE="$$"
    nobody_listens; finish ;;
pretended | ucx) # for tests: UCX, on the loopback interface alone
    option=(--pretend-nodes 2); [ "$case" = pretended ] || option=(--node-transport ucx)
    size=3
    timeout 60 "$dprun" -np 3 "${option[@]}" "$member" "$work" >out 2>err & pids=($!)
    wait_for all_are_there
    listeners >seen
    grep -q tcp seen || bad "UCX does not listen"
    awk '$3 != "tcp" || substr($4, 1, 8) != "0100007F" { exit 1 }' seen || bad "listens elsewhere"
    while read -r _ _ _ where; do "$attack" garbage "$where"; done <seen # its magic number is missing
    finish ;;
two_machines | one_name | interface | routes)
    [ -n "${SECURITY_INNER:-}" ] || { machines; exit; }
    network
    name=b; [ "$case" != one_name ] || name=localhost
    first=a; [ "$case" != one_name ] || first=localhost
    [ "$case" != routes ] || nets="98 99"
    boot a 1 "$first"; boot b 2 "$name"
    if [ "$case" = routes ]; then # a's default route seems to lead to a bridge of b's
        inside b ip link del eth98
        inside b ip link add containers type bridge
        inside b ip addr add 172.19.0.1/16 dev containers
        inside b ip link set containers up
        inside a ip route add default via 10.98.0.254
    fi
    [ "$case" != interface ] || export DP_NET_INTERFACE=eth98
    on_machines a b
    wait_for all_are_there
    [ "$(locals_of 0)$(locals_of 1)" = 11 ] || bad "two machines are one host"
    if [ "$case" = interface ]; then only_on 00620A; else only_on 00630A; fi
    while read -r _ rank _ where; do
        "$attack" garbage "$where"
        # Behind the other address of the machine there is nobody.
        other=${where/630A/620A}; [ "$case" != interface ] || other=${where/620A/630A}
        "$attack" put "$other" "$(address_of "$rank")"
        [ $? = 3 ] || bad "rank $rank can be reached at $other"
    done <seen
    finish; end_machines ;;
lines) # strangers wait at the port of a rank's line when it opens
    [ -n "${SECURITY_INNER:-}" ] || { machines; exit; }
    network; boot a 1 a; boot b 2 b
    extra[1]="DP_INJECT=stop:1@trace" # rank 0 listens, and looks at nothing before rank 1 goes on
    on_machines a b
    is_stopped() { grep -q 'DP_INJECT: stop' err1 2>/dev/null; }
    wait_for is_stopped
    ports_are_open() { [ "$(listeners | grep -c ' 0 ')" -ge 2 ]; } # UCX, line
    wait_for ports_are_open
    only_on 00630A
    while read -r _ _ _ where; do
        "$attack" hello "$where" >"answer.$where" 2>&1 & strangers+=($!)
        for _ in 1 2 3; do "$attack" garbage "$where" & strangers+=($!); done
    done <seen
    have_spoken() { [ "$(cat answer.* | grep -c '^said hello')" = "$(wc -l <seen)" ]; }
    wait_for have_spoken
    inside b pkill -CONT -x security_member
    wait_for all_are_there
    only_on 00630A
    was_refused() { line=$(grep -l "DPLN refused: another job" answer.*); } # as soon as rank 0 has looked
    wait_for was_refused
    grep -q "${line#answer.}" seen && bad "the port is still open"
    finish
    wait "${strangers[@]}"
    grep -q "refused a connection from 10.99.0.254:.* rank 1: of another job, or of a run with another secret" err0 ||
        bad "rank 0 does not say whom it refused"
    end_machines ;;
apart) # one machine whose ranks may not connect to each other: two hosts
    size=2 pids=() port=$(free_port) || bad "no free port"
    for rank in 0 1; do
        env DP_RANK=$rank DP_SIZE=2 DP_LOCAL_RANK=$rank DP_LOCAL_SIZE=2 DP_RENDEZVOUS=127.0.0.1:$port \
            timeout -k 5 60 env LD_PRELOAD="$preload" REFUSE_LOCAL=1 "$member" "$work" >"out$rank" 2>"err$rank" &
        pids+=($!)
    done
    wait_for all_are_there
    [ "$(locals_of 0)$(locals_of 1)" = 11 ] || bad "they are one host"
    finish ;;
kills) # a rank dies while UCX connects it to another machine: no survivor may die of that
    [ -n "${SECURITY_INNER:-}" ] || { machines; exit; }
    network; boot a 1 a; boot b 2 b
    # How many calls there are in a start, for each rank.
    for rank in 0 1 2 3; do extra[rank]="LD_PRELOAD=$preload DIE_COUNT=$work/calls.$rank"; done
    on_machines a a b b; wait_for all_are_there; finish
    export DP_START_TIMEOUT=4s # for those whose victim dies before the others know it
    for ((kill = 0; kill < ${KILLS:-6}; kill++)); do
        victim=$(((kill + 2) % 4)) # leaders are connected from the first, others by the engine
        calls=$(cat "calls.$victim")
        at=$((1 + (kill * 7919 + ${FIRST:-40}) % calls))
        rm -f rank.* stop; extra=(); extra[victim]="LD_PRELOAD=$preload DIE_AT=$at"
        on_machines a a b b
        for ((rank = 0; rank < 4; rank++)); do
            [ "$rank" = "$victim" ] && continue
            # Where the calls were fewer this time the victim lives: rank 0 stops them all.
            while kill -0 "${pids[rank]}" 2>/dev/null && kill -0 "${pids[victim]}" 2>/dev/null; do
                all_are_there && touch stop
                sleep 0.02
            done
            wait "${pids[rank]}"; code=$?
            [ "$code" = 1 ] || [ "$code" = 0 ] ||
                bad "rank $victim died at call $at of $calls: rank $rank ended with $code"
        done
        wait "${pids[victim]}" 2>/dev/null
        printf 'rank %d at call %d of %d: ok\n' "$victim" "$at" "$calls"
    done
    end_machines ;;
containers) # of one machine with one network: pids and System V memory are apart, or there is no /proc
    [ -n "${SECURITY_INNER:-}" ] || { machines; exit; }
    ip link set lo up
    rank=0 size=2 pids=()
    for rank in 0 1; do
        DP_RANK=$rank DP_SIZE=2 DP_RENDEZVOUS=127.0.0.1:29511 unshare --ipc --pid --uts --mount-proc --fork \
            --kill-child timeout -k 5 60 "$member" "$work" >"out$rank" 2>"err$rank" &
        pids+=($!)
    done
    wait_for all_are_there
    [ "$(locals_of 0)$(locals_of 1)" = 22 ] || bad "one machine is two hosts"
    share_mailboxes() { [ "$(cat /proc/[0-9]*/maps 2>/dev/null | grep -c 'memfd:dp-mailbox')" = 4 ]; } # own, other's
    wait_for share_mailboxes
    nobody_listens; finish
    rm -f rank.* stop
    # The address sanitizer reads its options, and looks for leaks, in /proc.
    ! ldd "$member" | grep -q libasan || { echo "skipped: /proc hidden from a sanitized build"; exit 0; }
    timeout -k 5 60 "$dprun" -np 2 unshare --mount sh -c 'mount -t tmpfs none /proc && exec "$@"' \
        sh "$member" "$work" >out0 2>err0 & pids=($!)
    wait_for all_are_there
    wait_for share_mailboxes
    finish ;;
strangers) # another user floods all local sockets while a job on two machines (agents of one, here) starts
    [ -n "${SECURITY_INNER:-}" ] || { machines; exit; }
    [ "$(id -u)" = 0 ] && grep -q ' 4294967295$' /proc/self/uid_map || skip "only root can be another user"
    ip link set lo up
    chmod 755 "$work"
    (umask 077; head -c 32 /dev/urandom >secret)
    for i in 1 2; do timeout -k 5 60 "$attack" strangers "$work/met" >"seen$i" 2>&1 & strangers+=($!); done
    size=4 pids=()
    for n in 0 1; do
        WAITS=$work/waits LD_PRELOAD=$([ -e "$waits" ] && echo "$waits") DP_SECRET_FILE=$work/secret \
            timeout -k 5 50 "$dprun" --node $n/2 --meet 127.0.0.1:29512 -np 2 --start-timeout 40s \
            sh -c 'sleep 1; exec "$0" "$1"' "$member" "$work" >"out$n" 2>"err$n" &
        pids+=($!)
    done
    wait_for all_are_there
    touch met
        for pid in "${strangers[@]}"; do wait "$pid" || bad "a socket spoke to a stranger, or let one be"; done
    # What a rank listens at differs in name, and is there for moments: the agents' sockets must have been met.
    [ "$(grep -c '^@dp-[0-9a-f]\{8\} [0-9]\{3,\} connections, 0 bytes' seen1)" -ge 2 ] || bad "the agents were not flooded"
    finish
    [ ! -e "$waits" ] || nobody_waits dprun dprun-station coordinator ;;
keys) # once all ranks have met, no process of a job has a key in its memory that would let another one in
    (umask 077; head -c 32 /dev/urandom >secret)
    export DP_SECRET_FILE=$work/secret
    port=$(free_port) || bad "no free port"
    [ -r /proc/self/mem ] && python3 -c 'open("/proc/'$$'/mem", "rb")' 2>/dev/null || skip "no right to read the memory of processes"
    begin='tail -c 32 /proc/self/fd/200 >"ticket.$DP_RANK"; exec "$0" "$1"'
    forgotten() { # LEAST TICKET: processes there must be
        local processes; processes=$(job_processes)
        [ "$(wc -w <<<"$processes")" -ge "$1" ] || bad "processes: $processes"
        for ((i = 0; i < 8; i++)); do # dprun, agents and stations hear a moment later that all have met
            "$(dirname "$self")/keys.py" secret "$2" $processes >keys.found 2>&1 && return
            sleep 0.2
        done
        bad "$(cat keys.found)"
    }
    size=2; bound "$dprun" -np 2 sh -c "$begin" "$member" "$work" >out 2>err & pids=($!)
    wait_for all_are_there; forgotten 5 ticket.0; finish
    size=4 pids=(); rm -f rank.* stop
    for n in 0 1; do
        bound "$dprun" --node $n/2 --meet 127.0.0.1:"$port" -np 2 sh -c "$begin" "$member" "$work" >out$n 2>err$n & pids+=($!)
    done
    wait_for all_are_there; forgotten 11 ticket.3; finish
    size=2 pids=(); rm -f rank.* stop
    for rank in 0 1; do
        DP_RANK=$rank DP_SIZE=2 DP_LOCAL_RANK=0 DP_LOCAL_SIZE=1 DP_RENDEZVOUS=127.0.0.1:$port bound "$member" "$work" >out$rank 2>err$rank &
        pids+=($!)
    done
    wait_for all_are_there; forgotten 2 -; finish ;;
waits) # jobs of every kind, good, failed and interrupted: no event loop's thread makes a call that could wait
    export WAITS=$work/waits
    printf '#!/bin/sh\nshift\nexec sh -c "$*"\n' >remote; chmod +x remote # takes the place of ssh
    (umask 077; head -c 32 /dev/urandom >secret)
    port=$(free_port) || bad "no free port"
    watched() { timeout -k 5 30 env LD_PRELOAD="$waits" "$@"; }
    job() { # SIZE COMMAND...: until all ranks are there
        size=$1; shift; rm -f rank.* stop
        watched "$@" >>out 2>>err & pids+=($!)
        [ "$(pgrep -c -P $$)" = 0 ] || wait_for all_are_there
        touch stop
    }
    pids=(); job 2 "$dprun" -np 2 --timeline x.pftrace "$member" "$work"; wait "${pids[@]}" || bad "one machine: code $?"
    pids=(); job 4 "$dprun" --ssh "$work/remote" -H a:2,b:2 "$member" "$work"; wait "${pids[@]}" || bad "two machines: code $?"
    for n in 0 1; do
        DP_SECRET_FILE=$work/secret watched "$dprun" --node $n/2 --meet 127.0.0.1:"$port" -np 2 --stdin 0 \
            sh -c 'yes | head -n 100000; cat; exit 3' >out$n 2>err$n < <(sleep 1; yes | head -n 100000) & pids+=($!)
    done
    wait
    size=2; rm -f rank.* stop; pids=()
    for rank in 0 1; do
        DP_RANK=$rank DP_SIZE=2 DP_LOCAL_RANK=0 DP_LOCAL_SIZE=1 DP_RENDEZVOUS=127.0.0.1:$port DP_SECRET_FILE=$work/secret \
            watched "$member" "$work" >out$rank 2>err$rank & pids+=($!)
    done
    wait_for all_are_there; finish
    watched "$dprun" --check --ssh "$work/remote" -H a:1,b:1 >out 2>err || bad "--check: code $?"
    timeout 2 env LD_PRELOAD="$waits" "$dprun" -np 2 sh -c 'yes | head -n 100000; sleep 100' 2>&1 | cat >out # a pipe, and a signal
    nobody_waits dprun dprun-station rendezvous coordinator ;;
*) echo "no case $case"; exit 2 ;;
esac
