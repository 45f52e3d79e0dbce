#!/usr/bin/env bash
# Real processes started as each kind of launcher starts them, and what they say when something is
# missing. Nothing depends on how fast the machine is: waits are for what must happen, and the only
# clocks are DP_START_TIMEOUT where a rank never comes, and a bound that only a hang exceeds.
#
#   launch.sh MEMBER FAKE_PMI CASE
set -u
. "$(dirname "$0")/port.sh"
member=$1 fake_pmi=$2 case=$3
work=$(mktemp -d)
trap 'kill -9 $(jobs -p) $(cat "$work/pid" 2>/dev/null) 2>/dev/null; rm -rf "$work"' EXIT
export XDG_RUNTIME_DIR=$work/run TMPDIR=$work
mkdir -m 700 "$work/run"
cd "$work" || exit 1
# Whatever started this test must not be mistaken for what it starts.
while read -r name; do unset "$name"; done < <(env | grep -Eo \
    '^(DP_|SLURM_|PMI_|PMIX_|OMPI_|MPI_LOCAL|TORCHELASTIC_|(LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_)[A-Z0-9_]*')
export DP_FUSION_BYTES=1M # a job need not fill 96 MiB when it starts

bad() { echo "FAILED: $case: $*"; tail -n +1 "$work"/out* "$work"/err* 2>/dev/null; exit 1; }
skip() { echo "skipped: $*"; exit 77; }
bound() { timeout -k 5 60 "$@"; }
# expect FILE TEXT...: each text is in the file
expect() {
    local file=$1 text; shift
    for text in "$@"; do grep -qF -- "$text" "$file" || bad "'$text' is not in $file"; done
}
# torch RANK SIZE COMMAND...: the environment of torchrun's worker on one machine
torch() {
    local rank=$1 size=$2; shift 2
    RANK=$rank WORLD_SIZE=$size LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$size GROUP_RANK=0 GROUP_WORLD_SIZE=1 \
        ROLE_RANK=$rank ROLE_WORLD_SIZE=$size MASTER_ADDR=${master_addr:-localhost} \
        MASTER_PORT=${master_port:-29500} TORCHELASTIC_RUN_ID=${run_id:-none} \
        TORCHELASTIC_RESTART_COUNT=${restart:-0} TORCHELASTIC_MAX_RESTARTS=0 "$@"
}
plain() {
    local rank=$1 size=$2; shift 2
    DP_RANK=$rank DP_SIZE=$size DP_RENDEZVOUS=$rendezvous "$@"
}
# each rank alone on its machine, as it believes: by port and secret
apart() { DP_LOCAL_RANK=0 DP_LOCAL_SIZE=1 plain "$@"; }
slurm() {
    local rank=$1 size=$2; shift 2
    SLURM_JOB_ID=12 SLURM_STEP_ID=0 SLURM_PROCID=$rank SLURM_NTASKS=$size SLURM_STEP_NUM_TASKS=$size \
        SLURM_LOCALID=$rank SLURM_STEP_NUM_NODES=${nodes:-1} "$@"
}
# all FAMILY SIZE COMMAND...: every rank at once; codes in $codes
all() {
    local family=$1 size=$2 pids=() rank; shift 2
    for ((rank = 0; rank < size; rank++)); do
        "$family" "$rank" "$size" bound "$@" >"$work/out$rank" 2>"$work/err$rank" &
        pids+=($!)
    done
    codes=
    for rank in "${pids[@]}"; do wait "$rank"; codes+="$? "; done
}
# everyone of SIZE was there, alone on this machine, ROUNDS times
met() {
    local size=$1 rounds=${2:-1} rank n
    for ((rank = 0; rank < size; rank++)); do
        n=$(grep -cxF "rank $rank of $size, local $rank of $size, sum $((size * (size + 1) / 2))" \
            "$work/out$rank")
        [ "$n" = "$rounds" ] || bad "rank $rank met $n times, expected $rounds"
    done
}
nothing_left() {
    [ -z "$(find "$work/run" -mindepth 1)" ] || bad "left: $(find "$work/run" -mindepth 1)"
}
wait_for() { # until the command holds
    for ((i = 0; i < 3000; i++)); do "$@" && return; sleep 0.02; done
    bad "never: $*"
}
has_beacon() { [ -n "$(find "$work/run" -type f ! -name '.*' 2>/dev/null)" ]; }
secret_file() { (umask 077; head -c 32 /dev/urandom >"$work/secret"); export DP_SECRET_FILE=$work/secret; }

rendezvous=127.0.0.1:$(free_port) || bad "no free port"

case $case in
torchrun) all torch 3 "$member"; met 3 ;;
plain) all plain 3 "$member"; met 3 ;;
slurm) all slurm 3 "$member"; met 3 ;;
torchrun_of_one) all torch 1 "$member"; met 1 ;;
slow_root) all plain 3 "$member" 1 3; met 3 ;;
again) # one world after another, by file and by port
    all plain 3 "$member" 4; met 3 4
    secret_file
    all apart 3 "$member" 4; met 3 4 ;;
mpirun)
    mpirun --version 2>/dev/null | grep -q 'Open MPI' || skip "no Open MPI here"
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        bound mpirun --oversubscribe -n 3 "$member" >out 2>err || bad "code $?"
    for rank in 0 1 2; do expect out "rank $rank of 3, local $rank of 3, sum 6"; done ;;
hydra)
    mpiexec.hydra -info >/dev/null 2>&1 || skip "no mpiexec.hydra (MPICH) here"
    bound mpiexec.hydra -launcher fork -n 3 "$member" >out 2>err || bad "code $?"
    for rank in 0 1 2; do expect out "rank $rank of 3, local $rank of 3, sum 6"; done ;;
pmi1 | pmi2)
    bound "$fake_pmi" "${case#pmi}" 3 "$member" >out 2>err || bad "code $?"
    for rank in 0 1 2; do expect out "rank $rank of 3, local $rank of 3, sum 6"; done
    expect out "PMI-${case#pmi}, 3 of 3 said farewell" ;;
pmi_versions) # a launcher of version 1 that sets PMI_JOBID; one of both that does not
    PMI_JOBID=x bound "$fake_pmi" 1 2 "$member" >out 2>err || bad "code $?"
    expect out "PMI-1, 2 of 2 said farewell" "rank 1 of 2, local 1 of 2, sum 3" ;;
pmi_missing)
    DP_START_TIMEOUT=1s bound "$fake_pmi" 2 3 -m 1 "$member" >out 2>err && bad "code 0"
    expect err "rank 0 of 3 (PMI): PMI: not all ranks came to the fence in time" \
        "rank 2 of 3 (PMI)" "DP_ERR_TIMEOUT" ;;
pmi_stale) # a variable that outlived its launcher
    PMI_RANK=1 PMI_SIZE=2 PMI_FD=77 bound "$member" >out 2>err && bad "code 0"
    expect err "DP_ERR_CONFIG" "PMI_FD=77" "no launcher listens there" ;;
half)
    RANK=0 bound "$member" >out 2>err && bad "half of torchrun: code 0"
    expect err "half of torchrun: RANK=0 is set, but not WORLD_SIZE, MASTER_ADDR, MASTER_PORT"
    OMPI_COMM_WORLD_SIZE=2 bound "$member" >out 2>err && bad "half of Open MPI: code 0"
    expect err "half of Open MPI" "OMPI_COMM_WORLD_SIZE=2 is set" "OMPI_COMM_WORLD_RANK, PMIX_NAMESPACE"
    PMI_RANK=1 PMI_SIZE=2 bound "$member" >out 2>err && bad "half of PMI: code 0"
    expect err "half of PMI: PMI_RANK=1, PMI_SIZE=2 are set, but not PMI_FD"
    SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_NTASKS=2 bound "$member" >out 2>err && bad "Slurm: code 0"
    expect err "half of Slurm" "but not SLURM_PROCID"
    DP_RANK=0 DP_SIZE=2 bound "$member" >out 2>err && bad "half of plain variables: code 0"
    expect err "half of plain variables: DP_RANK=0, DP_SIZE=2 are set, but not DP_RENDEZVOUS" ;;
allocation) # a shell in an allocation, a batch script, an interactive step: a world of one
    SLURM_JOB_ID=12 SLURM_NTASKS=8 SLURM_PROCID=0 bound "$member" >out0 2>err0; met 1
    SLURM_JOB_ID=12 SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_STEP_ID=4294967290 \
        bound "$member" >out0 2>err0; met 1 ;;
nested) # srun started torchrun; half of Open MPI lies about
    all torch 3 env SLURM_JOB_ID=12 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 \
        OMPI_COMM_WORLD_SIZE=9 "$member"
    met 3
    expect err0 "torchrun says rank 0 of 3 (RANK, WORLD_SIZE), Slurm says rank 1 of 2 (SLURM_PROCID, SLURM_STEP_NUM_TASKS): using torchrun" \
        "half of Open MPI is set too, without OMPI_COMM_WORLD_RANK, PMIX_NAMESPACE: using torchrun"
    grep -q 'Slurm' err1 err2 && bad "not rank 0 alone warns" ;;
missing)
    export DP_START_TIMEOUT=1s
    torch 1 2 bound "$member" >out 2>err && bad "code 0"
    expect err "DP_ERR_TIMEOUT" "rank 1 of 2 (torchrun): rank 0 did not come within DP_START_TIMEOUT=1s" \
        "unset RANK and WORLD_SIZE"
    DP_START_TIMEOUT=8s # both have to come within it
    torch 0 4 bound "$member" >out0 2>err0 &
    torch 2 4 bound "$member" >out2 2>err2 &
    wait
    for rank in 0 2; do
        expect "err$rank" "DP_ERR_TIMEOUT: rank $rank of 4 (torchrun): 2 of 4 ranks did not come in" \
            "time: 1, 3; there were 0, 2"
    done ;;
stale) # rank 0 of an earlier run was killed; the next run finds its file, and others' of the kind
    torch 0 2 bash -c 'echo $$ >pid; exec "$0"' "$member" 2>/dev/null &
    wait_for has_beacon
    kill -9 "$(cat pid)"; wait 2>/dev/null
    has_beacon || bad "the file went by itself"
    DP_START_TIMEOUT=1s torch 1 2 bound "$member" >out 2>err && bad "code 0"
    expect err "is stale: its process $(cat pid) has ended"
    all torch 2 "$member"; met 2 ;;
kill_root) # while the ranks gather
    torch 0 3 bash -c 'echo $$ >pid; exec "$0"' "$member" 2>/dev/null &
    wait_for has_beacon
    name=$(grep -aho '@dp-[0-9a-f]\{32\}' "$(find "$work/run" -type f)")
    torch 1 3 bound "$member" >out1 2>err1 &
    member_pid=$!
    both_in() { [ "$(grep -c "$name" /proc/net/unix)" -ge 3 ]; } # and the listener
    wait_for both_in
    kill -9 "$(cat pid)"
    wait $member_pid && bad "code 0"
    expect err1 "rank 1 of 3 (torchrun): rank 0" "has ended"
    wait 2>/dev/null
    rm -rf "$work/run/dp" ;; # rank 0 could not
stopped_root) # it serves no more; the other knows whom to look at
    torch 0 2 bash -c 'echo $$ >pid; exec "$0"' "$member" 2>/dev/null &
    wait_for has_beacon
    name=$(grep -aho '@dp-[0-9a-f]\{32\}' "$(find "$work/run" -type f)")
    is_in() { [ "$(grep -c "$name" /proc/net/unix)" -ge 2 ]; }
    wait_for is_in
    kill -STOP "$(cat pid)"
    DP_START_TIMEOUT=2s torch 1 2 bound "$member" >out 2>err && bad "code 0"
    expect err "DP_ERR_TIMEOUT: rank 1 of 2 (torchrun): rank 0" "did not come in time"
    kill -9 "$(cat pid)"
    wait 2>/dev/null
    rm -rf "$work/run/dp" ;; # rank 0 could not
two_jobs) # at once, of one user on one machine
    mkdir a b
    for job in a b; do (work=$work/$job run_id=$job; all torch 3 "$member" 5; met 3 5) & pids+=($!); done
    for pid in "${pids[@]}"; do wait "$pid" || exit 1; done ;;
same_job_twice)
    torch 0 2 bash -c 'echo $$ >pid; exec "$0"' "$member" >/dev/null 2>&1 &
    wait_for has_beacon
    torch 0 2 bound "$member" >out 2>err && bad "code 0"
    expect err "process $(cat pid) is rank 0 of the same job"
    torch 1 2 bound "$member" >out1 2>err1 || bad "the first job does not go on"
    wait ;;
address) # as if on several machines: by MASTER_ADDR and MASTER_PORT + 1, or as we are told
    secret_file
    master_port=$(($(free_port 1) - 1))
    all torch 3 env LOCAL_WORLD_SIZE=1 LOCAL_RANK=0 "$member"; met 3
    export DP_RENDEZVOUS_PORT=$(free_port 2)
    all torch 3 env LOCAL_WORLD_SIZE=1 LOCAL_RANK=0 "$member"; met 3
    export DP_RENDEZVOUS=127.0.0.1:$(free_port 3)
    nodes=2
    all slurm 3 "$member"; met 3 ;;
no_secret)
    torch 1 2 env LOCAL_WORLD_SIZE=1 LOCAL_RANK=0 "$member" >out 2>err && bad "code 0"
    expect err "DP_ERR_CONFIG" "several machines need a secret (DP_SECRET_FILE)"
    nodes=2
    slurm 1 2 "$member" >out 2>err && bad "code 0"
    expect err "several machines need an address (DP_RENDEZVOUS=HOST:PORT) and a secret (DP_SECRET_FILE)"
    (secret_file; slurm 1 2 "$member") >out 2>err && bad "code 0"
    expect err "several machines need an address (DP_RENDEZVOUS=HOST:PORT): of the machine of rank 0"
    ! grep -q "urandom" err || bad "tells how to make a secret, which is there"
    rendezvous=10.255.255.1:99
    plain 1 2 "$member" >out 2>err && bad "code 0"
    expect err "rank 1 of 2 (plain variables): several machines need a secret" ;;
wrong_secret)
    secret_file
    cp secret other && chmod 600 other && printf x >>other
    apart 0 2 bash -c 'echo $$ >pid; exec "$0"' "$member" >out0 2>err0 &
    DP_SECRET_FILE=$work/other apart 1 2 bound "$member" >out 2>err && bad "code 0"
    expect err "DP_ERR_CONFIG: rank 1 of 2" "the job's secrets differ"
    dropped() { grep -q 'rendezvous: dropped 127.0.0.1:.*does not prove the job' err0; }
    wait_for dropped
    apart 1 2 bound "$member" >out 2>err || bad "the job does not go on"
    wait ;;
loose_secret)
    secret_file
    chmod 644 secret
    apart 1 2 bound "$member" >out 2>err && bad "code 0"
    expect err "DP_SECRET_FILE=$work/secret: mode 644" "chmod 600"
    chmod 600 secret; printf x >secret
    apart 1 2 bound "$member" >out 2>err && bad "code 0"
    expect err "1 bytes, expected 32 to 4096" ;;
loose_directory)
    mkdir -m 755 "$work/run/dp"
    for rank in 0 1; do
        plain $rank 2 bound "$member" >out 2>err && bad "code 0"
        expect err "$work/run/dp belongs to user $(id -u) with mode 755"
    done
    rmdir "$work/run/dp" ;;
port_taken)
    secret_file
    apart 0 2 bash -c 'echo $$ >pid; exec "$0"' "$member" >out0 2>err0 &
    is_taken() { (exec 3<>"/dev/tcp/127.0.0.1/${rendezvous#*:}") 2>/dev/null; }
    wait_for is_taken
    apart 0 2 bound "$member" >out 2>err && bad "code 0"
    expect err "rendezvous on 127.0.0.1 port ${rendezvous#*:}: Address already in use" "choose another port"
    apart 1 2 bound "$member" >out 2>err || bad "the first job does not go on"
    wait ;;
*) bad "no such case" ;;
esac
nothing_left
echo "ok: $case"
