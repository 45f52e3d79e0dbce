#!/usr/bin/env bash
# launchers.sh - jobs on two machines under the variables that other launchers and operators leave,
# and nothing else of them; open_mpi: under mpirun itself, where there is one.
#
#   launchers.sh BUILD [CASE...]
set -u
self=$(readlink -f "$0") here=$(dirname "$(readlink -f "$0")") build=$(readlink -f "$1")
shift
if [ "${1:-}" != inside ]; then
    HOSTS_KEEP=${HOSTS_KEEP:-$build} exec timeout 280 "$here/hosts.sh" a b -- "$self" "$build" inside "$@"
fi
shift

bad() { echo "FAILED: $case: $*" >&2; tail -n +1 out.* err.* 2>/dev/null; exit 1; }
cd "$HOSTS_DIR" || exit 1
(umask 077; head -c 32 /dev/urandom >secret)
# Whatever started this test must not be mistaken for what it starts.
while read -r name; do unset "$name"; done < <(env | grep -Eo \
    '^(DP_|SLURM_|PMI_|PMIX_|PET_|VC_|SM_|OMPI_|MPI_LOCAL|TORCHELASTIC_|(LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_)[A-Z0-9_]*')

machines=(a b) pids=()
start() { # MACHINE VARIABLES... COMMAND...: what an operator starts there
    local machine=$1 number=${#pids[@]}
    shift
    timeout -k 5 60 "$here/hosts.sh" --in "$machine" env DP_SECRET_FILE="$HOSTS_DIR/secret" "$@" \
        >"out.$number" 2>"err.$number" &
    pids+=($!)
}
finish() {
    local pid
    for pid in "${pids[@]}"; do wait "$pid" || bad "exit code $?"; done
}
met() { # SIZE LOCAL_SIZE: each rank said so once
    local rank
    finish
    for ((rank = 0; rank < $1; rank++)); do
        [ "$(cat out.* | grep -cE "(^| )rank $rank of $1, local $((rank % $2)) of $2, sum $(($1 * ($1 + 1) / 2))\$")" = 1 ] ||
            bad "rank $rank did not meet the others"
    done
    ! cat out.* err.* | grep -v '^dp info' | grep -q UCX || bad "UCX talks to the user"
}
member=$build/tests/launch_member

workers() { # of torchrun on two machines
    local rank
    for rank in 0 1 2 3; do
        start "${machines[rank / 2]}" RANK=$rank WORLD_SIZE=4 LOCAL_RANK=$((rank % 2)) \
            LOCAL_WORLD_SIZE=2 GROUP_RANK=$((rank / 2)) GROUP_WORLD_SIZE=2 MASTER_ADDR=a \
            MASTER_PORT=29400 TORCHELASTIC_RUN_ID=job7 TORCHELASTIC_RESTART_COUNT=0 "$@" "$member"
    done
    met 4 2
}
plain() { # a script of the user's own, through ssh
    local rank
    for rank in 0 1 2 3; do
        timeout -k 5 60 ssh "${machines[rank / 2]}" DP_RANK=$rank DP_SIZE=4 DP_RENDEZVOUS=a:29510 \
            DP_SECRET_FILE="$HOSTS_DIR/secret" "$member" >"out.$rank" 2>"err.$rank" &
        pids+=($!)
    done
    met 4 2
}
torchrun() { workers; }
torchrun_in_kubeflow() { workers PET_NNODES=2 PET_NPROC_PER_NODE=2 PET_MASTER_ADDR=a PET_MASTER_PORT=29500; }
pytorchjob() { # Kubeflow's first operator: a pod has one process, and the variables count pods
    start a PYTHONUNBUFFERED=0 MASTER_ADDR=a MASTER_PORT=23456 WORLD_SIZE=2 RANK=0 "$member"
    start b PYTHONUNBUFFERED=0 MASTER_ADDR=a MASTER_PORT=23456 WORLD_SIZE=2 RANK=1 "$member"
    met 2 1
}
mpirun() { # rank by rank over the machines, --map-by node
    local rank
    for rank in 0 1; do
        start "${machines[rank]}" OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=2 \
            OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 PMIX_NAMESPACE=3781099521 \
            PMIX_RANK=$rank DP_RENDEZVOUS=a:29510 "$member"
    done
    met 2 1
}
open_mpi() { # docs/launch.md's line, for Debian's mpirun; tests run as root
    command -v mpirun.openmpi >/dev/null || { echo "skipped: there is no mpirun (Debian: openmpi-bin)"; exit 77; }
    DP_SECRET_FILE=$HOSTS_DIR/secret DP_RENDEZVOUS=a:29510 timeout -k 5 100 mpirun.openmpi --allow-run-as-root \
        -H a:2,b:2 -x DP_SECRET_FILE -x DP_RENDEZVOUS "$member" >out.0 2>err.0 || bad "exit code $?"
    met 4 2
    DP_SECRET_FILE=$HOSTS_DIR/secret timeout -k 5 100 mpirun.openmpi --allow-run-as-root \
        -H a:2,b:2 -x DP_SECRET_FILE "$member" >out.0 2>err.0 && bad "it started without an address"
    grep -q DP_RENDEZVOUS err.0 || bad "the missing address is not told"
}
mpi_operator() { # its launcher pod: a hostfile, and sshd on the workers
    printf '%s slots=2\n' a b >hostfile
    timeout -k 5 60 "$build/dprun" --hostfile hostfile "$member" >out.0 2>err.0 || bad "exit code $?"
    met 4 2
}
bare_trainjob() { # the same without anything that starts ranks: no two worlds of one
    start a PET_NNODES=2 PET_NPROC_PER_NODE=1 PET_NODE_RANK=0 PET_MASTER_ADDR=a PET_MASTER_PORT=29500 "$member"
    wait "${pids[0]}" && bad "a world of one"
    grep -q 'dprun --node env' err.0 || bad "it does not say how"
}
trainjob() { # Kubeflow's trainer: variables for each node
    local node
    for node in 0 1; do
        start "${machines[node]}" PET_NNODES=2 PET_NPROC_PER_NODE=2 PET_NODE_RANK=$node \
            PET_MASTER_ADDR=a PET_MASTER_PORT=29500 "$build/dprun" --node env "$member"
    done
    met 4 2
}
volcano() {
    local node
    for node in 0 1; do
        start "${machines[node]}" VC_TASK_INDEX=$node VC_WORKER_HOSTS=a,b VC_WORKER_NUM=2 \
            "$build/dprun" --node env -np 2 "$member"
    done
    met 4 2
}
sagemaker() {
    local machine
    for machine in b a; do
        start $machine 'SM_HOSTS=["a","b"]' SM_CURRENT_HOST=$machine SM_NUM_GPUS=2 \
            SM_NETWORK_INTERFACE_NAME=eth0 "$build/dprun" --node env "$member"
    done
    met 4 2
}
ray() { # what examples/cluster/ray_job.py starts on its nodes
    local node
    for node in 1 0; do
        start "${machines[node]}" "$build/dprun" --node $node/2 --meet a:29500 -np 2 "$member"
    done
    met 4 2
}
# Rank 0's port is open on no interface that it was not told to use, nor is any other of ours.
watched() { # COMMAND...: with all that listened on a meanwhile in seen.a
    local watcher
    rm -f stop seen.a watches.a
    "$here/hosts.sh" --in a python3 "$here/watch_listeners.py" a & watcher=$!
    until [ -e watches.a ]; do sleep 0.02; done
    "$@"
    touch stop
    wait $watcher
}
listened() { # ADDRESS... [or ADDRESS...]: on all of the first ones, perhaps on the others, on nothing else
    local address may=
    for address in "$@"; do
        if [ "$address" = or ]; then may=1; continue; fi
        [ -n "$may" ] || grep -qxF -- "$address" seen.a || bad "a does not listen on $address: $(tr '\n' ' ' <seen.a)"
    done
    ! printf '%s\n' "$@" | grep -vxFf - seen.a >&2 || bad "a listens beside $*"
}
two() { # ADDRESS [VARIABLES...]: a rank on each machine; b's starts last, so that a's port is open for a while
    local address=$1 i
    shift
    pids=()
    rm -f out.* err.*
    start a "$@" DP_LOG=info DP_RANK=0 DP_SIZE=2 DP_LOCAL_RANK=0 DP_LOCAL_SIZE=1 DP_RENDEZVOUS="$address:29510" "$member"
    for ((i = 0; i < 1000; i++)); do grep -q 'rendezvous: listens' err.0 2>/dev/null && break; sleep 0.02; done
    sleep 0.3 # the watcher looks
    start b "$@" DP_RANK=1 DP_SIZE=2 DP_LOCAL_RANK=0 DP_LOCAL_SIZE=1 DP_RENDEZVOUS="$address:29510" "$member"
    met 2 1
}
second_network() { # MACHINE NUMBER: 10.98.0.NUMBER on eth1
    ip link add "w-$1" type veth peer name eth1 netns "$1"
    "$here/hosts.sh" --in "$1" ip addr add "10.98.0.$2/24" dev eth1
    "$here/hosts.sh" --in "$1" ip link set eth1 up
    ip link set "w-$1" master sw1 up
}
listen() {
    local name
    for name in a b; do # a bridge of containers
        "$here/hosts.sh" --in $name ip link add docker0 type bridge
        "$here/hosts.sh" --in $name ip addr add 172.17.0.1/16 dev docker0
        "$here/hosts.sh" --in $name ip link set docker0 up
    done
    ip link add sw1 type bridge; ip link set sw1 up
    second_network a 1 # which leads to no other machine yet; else it would be tried
    watched torchrun; listened 10.99.0.1 or fd99::1
    pids=(); rm -f out.* err.*
    watched mpirun; listened 10.99.0.1 or fd99::1
    second_network b 2
    # The interface has the named address, and only its addresses are used for the network and the ranks' data.
    watched two a DP_NET_INTERFACE=eth0; listened 10.99.0.1 or fd99::1
    watched two 10.98.0.1 DP_NET_INTERFACE=eth1; listened 10.98.0.1
    grep -q 'rendezvous: listens on 10.98.0.1, port 29510' err.0 || bad "it does not say where it listens"
    watched two a.v6 DP_NET_INTERFACE=eth0; listened fd99::1 or 10.99.0.1
    # Debian's own name is loopback at home; the others know a real address of it.
    # Or its name leads to another machine at home, which translates addresses.
    printf '%s\n' '127.0.1.1 trap' '10.97.0.1 translated' >trap.a; cat /etc/hosts >>trap.a
    "$here/hosts.sh" --in a mount --bind trap.a /etc/hosts
    printf '%s\n' '10.98.0.1 trap' '10.99.0.1 translated' >>/etc/hosts
    watched two trap DP_NET_INTERFACE=eth1; listened 10.98.0.1 127.0.1.1
    watched two trap; listened :: or 10.99.0.1 10.98.0.1 fd99::1
    grep -q 'rendezvous: listens on every address, port 29510: trap leads to no address of this machine but loopback' err.0 ||
        bad "it does not say why it listens everywhere"
    watched two translated DP_NET_INTERFACE=eth0; listened 10.99.0.1 fd99::1
    watched two translated; listened :: or 10.99.0.1 10.98.0.1 fd99::1
}
for case in "$@"; do
    pids=()
    rm -f out.* err.*
    "$case"
    echo "ok $case"
done
