# c_nccl.sh - libdp over NCCL: one rank, then two and three that share the GPU, and what happens to
# a job when a rank dies, stops or gives up. A hang in one case leaves the others.

part_c() {
    local run=$root/dprun program=$root/embed_cuda
    part c nccl 190 "NCCL: one rank, ranks on one GPU, faults"
    step one 25 "one rank" --says 'rank 0 of 1: off by' -- ours "$run" -np 1 "$program"
    step allreduce 30 "two ranks, one allreduce (NCCL talks)" --says 'allreduce: ok' -- told allreduce
    ranks_case steps "an optimizer behind the skip flag"
    step two 30 "two ranks train" --says 'rank 1 of 2: off by' -- sharing "$run" -np 2 --share-gpu "$program"
    step three 35 "three ranks train" --says 'rank 2 of 3: off by' -- sharing "$run" -np 3 --share-gpu "$program"
    step wire 30 "fp16 on the wire" --says 'rank 1 of 2: off by' -- \
        sharing "$run" -np 2 --share-gpu --wire fp16 "$program"
    step killed 30 "a killed rank ends the job" --wants 137 --says 'FAILED +rank 1' -- \
        sharing "$run" -np 2 --share-gpu --inject kill:1@30 "$program"
    step stopped 40 "a stopped rank ends the job" --wants 1 --says 'stopped by SIGSTOP' -- \
        sharing "$run" -np 2 --share-gpu --inject stop:1@30 "$program"
    ranks_case abort-3 "abort while averages are under way"
    ranks_case abort-5 "abort behind rows under way"
    ranks_case kill "a killed rank leaves nothing half-reduced"
    ranks_case mixed "mixed types"
    ranks_case scaled "scales and overflow"
    ranks_case fp16 "fp16 in program order"
    ranks_case check "weights compared"
    ranks_case free "memory given back waits for the device"
    ranks_case abort-0 "abort before the gradients"
    ranks_case abort-1 "abort among the gradients"
    ranks_case abort-2 "abort before the sync"
    ranks_case abort-4 "abort behind the sync"
}

ranks_case() { # CASE TITLE
    step "$1" 25 "$2" --says "^$1: ok" -- sharing one_case "$1"
}

one_case() { # CASE
    "$here/ranks_cuda.sh" "$root/dprun" "$root/tests/ranks_cuda" --case "$1" --share-gpu
}

# The first operation between ranks says what NCCL chose: two nodes, sockets, a ring.
told() { # CASE
    NCCL_DEBUG=INFO sharing "$root/dprun" -np 2 --share-gpu "$root/tests/ranks_cuda" "$1" && echo "$1: ok"
}
