#!/usr/bin/env bash
# bed.sh - the machines of hosts.sh: each is one of its own, each harm does what it says, and nothing
# stays behind however hosts.sh ends.
#
#   bed.sh HOSTS_SH
set -u
hosts=$(readlink -f "$1") self=$(readlink -f "$0")
bad() { echo "FAILED: $*" >&2; exit 1; }
until_holds() { # COMMAND...: within 30 seconds
    for ((i = 0; i < 1500; i++)); do "$@" && return; sleep 0.02; done
    bad "never: $*"
}
equal() { [ "$2" = "$3" ] || bad "$1: \"$2\" instead of \"$3\""; }

# Whether a datagram from one machine comes to another: only a port that nobody has counts it.
arrived() { $1 awk '/^Udp: [0-9]/ { print $3 }' /proc/net/snmp; } # [hosts.sh --in NAME]
reaches() { # FROM_COMMAND ADDRESS TO_COMMAND [DATAGRAMS]: one of them comes
    local before
    before=$(arrived "$3")
    for ((i = 0; i < ${4:-100}; i++)); do
        $1 bash -c "echo x >/dev/udp/$2/9" 2>/dev/null
        for wait in 0 0.01 0.05; do
            [ "$(arrived "$3")" = "$before" ] || return 0
            sleep $wait
        done
    done
    return 1
}
from_login() { reaches "" 10.99.0.1 "$hosts --in a" "${1:-100}"; }
to_login() { reaches "$hosts --in a" 10.99.0.254 "" "${1:-100}"; }
answers() { timeout 5 bash -c ": </dev/tcp/$1/22" 2>/dev/null; }
files_of() { ssh "$1" "find $2 -xdev ! -type d"; } # the source tree, which all share, may be mounted there
ssh_to() { timeout 60 ssh -o ConnectTimeout=30 "$@"; }

inside() {
    # Each is a machine: name, boot id, folders, pids, home are its own; the tree is everybody's.
    equal "host name" "$(ssh a hostname)" a
    boots=$(for m in a b c; do ssh $m cat /proc/sys/kernel/random/boot_id; done; cat /proc/sys/kernel/random/boot_id)
    equal "boot ids" "$(sort -u <<<"$boots" | wc -l)" 4
    # shellcheck disable=SC2016
    ssh a 'touch /tmp/x /dev/shm/x /run/x $HOME/x; ipcmk -M 4 >/dev/null'
    for folder in /tmp /dev/shm /root; do equal "$folder" "$(files_of b $folder)" ""; done
    equal "System V memory" "$(ssh b 'ipcs -m | grep -c 0x')" 0
    until_holds eval '[ -z "$("$hosts" --processes b)" ]' # the sshd of the last login ends after it
    ssh b sleep 77 & sleeper=$!
    until_holds eval '"$hosts" --processes b | grep -q "sleep 77"'
    "$hosts" --in b pkill -fx 'sleep 77'; wait $sleeper
    equal "the tree" "$(ssh b cat "$self" | cksum)" "$(cksum <"$self")"
    echo there >"$HOSTS_DIR/file"; equal "the shared folder" "$(ssh c cat "$HOSTS_DIR/file")" there
    equal "exit code of --in" "$("$hosts" --in a sh -c 'exit 9'; echo $?)" 9
    equal "version 6" "$(ssh b.v6 hostname)" b
    # c's clock is ahead by a day.
    ahead=$(($(ssh c cut -d. -f1 /proc/uptime) - $(cut -d. -f1 /proc/uptime)))
    [ $ahead -ge 86399 ] && [ $ahead -lt 86460 ] || bad "clock: $ahead s ahead"

    # Harm to the network.
    from_login && to_login || bad "a cannot be reached"
    "$hosts" --cut a; from_login 2 && bad "cut: it hears"
    "$hosts" --heal a; from_login && to_login || bad "not healed after a cut"
    "$hosts" --oneway a in; from_login 2 && bad "oneway in: it hears"
    to_login || bad "oneway in: it cannot send"
    "$hosts" --heal a
    "$hosts" --oneway a out; to_login 2 && bad "oneway out: it sends"
    from_login || bad "oneway out: it does not hear"
    "$hosts" --heal a; from_login && to_login || bad "not healed after a one-way cut"
    "$hosts" --split a b
    reaches "$hosts --in a" 10.99.0.2 "$hosts --in b" || bad "split: a cannot reach b"
    reaches "$hosts --in a" 10.99.0.3 "$hosts --in c" 2 && bad "split: a reaches c"
    reaches "$hosts --in c" 10.99.0.2 "$hosts --in b" 2 && bad "split: c reaches b"
    to_login 2 && bad "split: a reaches login"
    "$hosts" --heal a b; reaches "$hosts --in c" 10.99.0.2 "$hosts --in b" || bad "not healed after a split"
    "$hosts" --loss a 50
    before=$(arrived "$hosts --in a")
    for ((i = 0; i < 200; i++)); do echo x >/dev/udp/10.99.0.1/9; done
    lost=$((200 - ($(arrived "$hosts --in a") - before)))
    [ $lost -gt 50 ] && [ $lost -lt 150 ] || bad "loss: $lost of 200 instead of some 100"
    "$hosts" --heal a
    "$hosts" --rate a 8M
    began=$(date +%s%N)
    head -c 1000000 /dev/zero | ssh a 'cat >/dev/null' || bad "rate: nothing goes"
    took=$((($(date +%s%N) - began) / 1000000))
    [ $took -ge 900 ] || bad "rate: 1 MB takes $took ms instead of a second"
    "$hosts" --heal a

    "$hosts" --rate a 0 50
    began=$(date +%s%N)
    answers 10.99.0.1 || bad "delay: no answer"
    took=$((($(date +%s%N) - began) / 1000000))
    [ $took -ge 100 ] || bad "delay: a connection takes $took ms instead of 100 and more"
    "$hosts" --oneway a in; from_login 2 && bad "one way and slow: it hears"
    "$hosts" --heal a; from_login && to_login || bad "not healed after a slow link"

    # A frozen machine's kernel answers, its sshd does not.
    "$hosts" --freeze b; until_holds answers 10.99.0.2
    timeout 2 ssh b true && bad "freeze: sshd is there"
    "$hosts" --thaw b; ssh_to b true || bad "thaw: sshd is not there"

    # Dead, and back again as another one.
    ssh b 'touch /tmp/x; exec sleep 77' & sleeper=$!
    until_holds eval '"$hosts" --processes b | grep -q "sleep 77"'
    "$hosts" --kill b; wait $sleeper
    equal "ssh's end when its machine is killed" $? 255
    answers 10.99.0.2 && bad "kill: something answers"
    "$hosts" --boot b
    equal "files after a boot" "$(files_of b /tmp)" ""
    grep -qx "$(ssh b cat /proc/sys/kernel/random/boot_id)" <<<"$boots" && bad "the same boot id"
    "$hosts" --power c; from_login || bad "power of c: a is hit"
    "$hosts" --boot c; equal "host name after a boot" "$(ssh_to c hostname)" c
    exit 42
}
[ "${2:-}" != inside ] || inside

# Processes of the bed, known by a variable of their environment.
export HOSTS_BED_TEST=$$.$RANDOM
bed_processes() {
    local p
    for p in /proc/[0-9]*; do
        grep -qzxF "HOSTS_BED_TEST=$HOSTS_BED_TEST" "$p/environ" 2>/dev/null || continue
        tr '\0' ' ' <"$p/cmdline" | grep -E '^unshare|hosts.sh --|^ssh|^sleep 1000|sshd' | sed "s|^|${p#/proc/} |"
    done
}
nothing_left() { [ -z "$(bed_processes)" ]; }

HOSTS_CLOCK=c:86400 timeout 300 "$hosts" a b c -- "$self" "$hosts" inside
code=$?
[ $code != 77 ] || exit 77
equal "COMMAND's exit code" $code 42
until_holds nothing_left
for signal in KILL TERM INT; do
    env --default-signal=INT "$hosts" a b -- ssh a sleep 1000 & outer=$!
    until_holds eval 'bed_processes | grep -q "[0-9] ssh a sleep 1000"'
    kill -$signal $outer; wait $outer 2>/dev/null
    until_holds nothing_left
done
[ ! -e /srv/.bed ] || bad "/srv/.bed is there"
echo ok
