#!/usr/bin/env bash
# network.sh - the ranks of three machines find the network on which they reach each other, or say
# which side of which connection is closed.
#
#   network.sh HOSTS_SH MEMBER CASE
#
# A rank on each machine, started by variables alone, as a script or another launcher would.
set -u
hosts=$(readlink -f "$1") member=$(readlink -f "$2") self=$(readlink -f "$0") case=$3

if [ "${4:-}" != inside ]; then
    exec timeout 250 "$hosts" a b c -- "$self" "$hosts" "$member" "$case" inside
fi

machines=(a b c)
port=29510
on() { local name=$1; shift; "$hosts" --in "$name" "$@"; }
cd "$HOSTS_DIR" || exit 1
(umask 077; head -c 32 /dev/urandom >secret)
bad() { echo "FAILED: $case: $*" >&2; tail -n 20 out.* err.* >&2; exit 1; }

# job ADDRESS VARIABLES...: a rank on each machine. Writes out.NAME and err.NAME, codes into codes.
job() {
    local address=$1 rank pids=()
    shift
    for rank in 0 1 2; do
        on "${machines[rank]}" env DP_RANK=$rank DP_SIZE=3 DP_LOCAL_RANK=0 DP_LOCAL_SIZE=1 DP_LOG=info \
            DP_RENDEZVOUS="$address:$port" DP_SECRET_FILE="$HOSTS_DIR/secret" DP_START_TIMEOUT=60s "$@" \
            "$member" "${rounds[@]}" >"out.${machines[rank]}" 2>"err.${machines[rank]}" &
        pids+=($!)
    done
    codes=
    for pid in "${pids[@]}"; do wait "$pid"; codes+="$? "; done
}
rounds=(1)
meets() { # ADDRESS VARIABLES...
    job "$@"
    [ "$codes" = "0 0 0 " ] || bad "codes $codes"
    [ "$(cat out.* | grep -c 'of 3, local 0 of 1, sum 6')" = 3 ] || bad "they did not meet"
}
fails() { # TEXT ADDRESS VARIABLES...: all ranks, with this sentence
    local text=$1
    shift
    job "$@"
    [ "$codes" = "1 1 1 " ] || bad "codes $codes, expected a failure of all"
    for machine in "${machines[@]}"; do
        grep -qF -- "$text" "err.$machine" || bad "$machine does not say: $text"
    done
}
uses() { # MACHINE TEXT
    grep -qF -- "network: $2" "err.$1" || bad "$1 does not use $2: $(grep network: "err.$1")"
}
second_nic() { # NAME...: eth1 with 10.98.0.i on a switch of its own; without a name nobody is on it
    local i
    ip link show sw1 >/dev/null 2>&1 || ip link add sw1 type bridge
    ip link set sw1 up
    for i in 1 2 3; do
        ip link add "w-${machines[i - 1]}" type veth peer name eth1 netns "${machines[i - 1]}"
        ip link set "w-${machines[i - 1]}" up
        on "${machines[i - 1]}" ip addr add 10.98.0.$i/24 dev eth1
        on "${machines[i - 1]}" ip link set eth1 up
    done
    for i in "$@"; do ip link set "w-$i" master sw1; done
}
drop_first_packets() { # NAME input|output CONDITION...: of TCP connections
    local name=$1 hook=$2
    shift 2
    on "$name" nft add table inet wall
    on "$name" nft add chain inet wall "$hook" "{ type filter hook $hook priority 0; }"
    on "$name" nft add rule inet wall "$hook" "$@" 'tcp flags & (syn | ack) == syn' drop
}

case $case in
docker0) # a bridge with one address on every machine, and a port so that it is up
    for machine in "${machines[@]}"; do
        on $machine ip link add docker0 type bridge
        on $machine ip link add veth0 type veth peer name veth1
        on $machine ip link set veth0 master docker0
        on $machine ip link set veth0 up
        on $machine ip link set veth1 up
        on $machine ip addr add 172.17.0.1/16 dev docker0
        on $machine ip link set docker0 up
    done
    meets 10.99.0.1
    uses b "eth0 with 10.99.0.2"
    fails "at 172.17.0.1 port" 10.99.0.1 DP_NET_INTERFACE=docker0
    grep -qE 'docker0.: [abc] .rank [012]. has this address, too' err.a || bad "no word on the address" ;;
dead_nic) # the second network leads nowhere on b, then the first one does not
    second_nic a c
    meets 10.99.0.1
    uses b "eth0 with 10.99.0.2"
    ip link set w-b master sw1
    "$hosts" --cut b
    meets 10.98.0.1
    for i in 1 2 3; do uses "${machines[i - 1]}" "eth1 with 10.98.0.$i"; done ;;
names) # interfaces are called otherwise on each machine
    for machine in b c; do
        on $machine ip link set eth0 down
        on $machine ip link set eth0 name "net-$machine"
        on $machine ip link set "net-$machine" up
    done
    meets 10.99.0.1
    uses a "eth0 with 10.99.0.1"
    uses b "net-b with 10.99.0.2"
    uses c "net-c with 10.99.0.3"
    job 10.99.0.1 DP_NET_INTERFACE=eth0
    [ "$codes" = "1 1 1 " ] || bad "codes $codes, expected a failure of all"
    grep -qF "DP_NET_INTERFACE: rank 1 (b) has no network interface eth0" err.b || bad "b does not say why" ;;
firewall_in) # nothing comes in to b
    drop_first_packets b input
    fails "while b (rank 1) reaches a (rank 0): a firewall on b (rank 1) stops what comes in (TCP)" 10.99.0.1
    grep -qE 'does not reach b .rank 1. at 10.99.0.2 port [0-9]+ .eth0.: no answer' err.c || bad "no port" ;;
firewall_out) # nothing goes out of c but to the rendezvous
    drop_first_packets c output tcp dport != $port
    fails "so a firewall on c (rank 2) stops what goes out (TCP)" 10.99.0.1 ;;
link_late) # packets pass, but b's kernel does not call its interface running yet, as after a cable was plugged in
    on b ip link set eth0 mode dormant
    "$hosts" --cut b
    "$hosts" --heal b
    for ((i = 0; i < 500; i++)); do # the kernel may take a second to look at the state
        on b ip link show eth0 | grep -q 'state DORMANT' && break
        sleep 0.02
    done
    meets 10.99.0.1 &
    job=$!
    for ((i = 0; i < 3000; i++)); do
        grep -qF 'waiting for the link of eth0' err.b 2>/dev/null && break
        kill -0 $job 2>/dev/null || break
        sleep 0.02
    done
    grep -qF 'waiting for the link of eth0' err.b || bad "b does not wait for its link"
    on b ip link set eth0 mode default
    "$hosts" --cut b # the kernel looks at the state again
    "$hosts" --heal b
    wait $job || exit 1
    uses b "eth0 with 10.99.0.2" ;;
version_6) # no address of version 4 but loopback's
    for machine in "${machines[@]}"; do on $machine ip -4 addr flush dev eth0; done
    meets '[fd99::1]'
    uses c "eth0 with fd99::3"
    meets a.v6 ;;
version_mixed) # b alone has no address of version 4
    on b ip -4 addr flush dev eth0
    meets '[fd99::1]'
    uses a "eth0 with fd99::1"
    uses b "eth0 with fd99::2" ;;
quiet) # while the job runs nothing listens but on the chosen interface
    second_nic a b c
    rounds=(1 3)
    meets 10.99.0.1 DP_NET_INTERFACE=eth0 &
    job=$!
    listening() { # MACHINE: addresses but sshd's, in hexadecimal
        on "$1" awk '$4 == "0A" && $2 !~ /:0016$/ { print $2 }' /proc/net/tcp /proc/net/tcp6
    }
    for ((i = 0; i < 3000; i++)); do grep -q 'data between nodes' err.a 2>/dev/null && break; sleep 0.02; done
    found=$(listening b)
    wait $job || exit 1
    [ -n "$found" ] || bad "nothing listens: UCX should"
    grep -qv '^0200630A:' <<<"$found" && bad "listens beside 10.99.0.2: $found" ;;
*) bad "no such case" ;;
esac
echo ok
