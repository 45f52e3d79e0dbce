#!/usr/bin/env bash
# slurm_jobs.sh - jobs that a real Slurm starts on two machines.
#
#   slurm_jobs.sh BUILD [CASE...]     srun, dprun, python; without any these; ends
set -u
self=$(readlink -f "$0") here=$(dirname "$(readlink -f "$0")") build=$(readlink -f "$1")
bad() { echo "FAILED: $*" >&2; tail -n +1 out err 2>/dev/null; exit 1; }
until_holds() { # COMMAND...: within a minute
    for ((i = 0; i < 3000; i++)); do "$@" && return; sleep 0.02; done
    bad "never: $*"
}
nobody_left() {
    for name in a b; do
        [ -z "$("$here/hosts.sh" --processes "$name" | grep -E 'hello|victim|mnist_like|dprun|slurmstepd')" ] || return 1
    done
}
met() { # RANKS: all of them did
    local rank
    for ((rank = 0; rank < $1; rank++)); do
        grep -qx "rank $rank of $1: the sum is $(($1 * ($1 + 1) / 2))" out || bad "rank $rank did not meet"
    done
}
job() { timeout -k 5 100 srun -N2 -n4 --ntasks-per-node=2 "$@" >out 2>err; }

# dprun asks srun for its stations, and Slurm for nothing else.
dprun_in_an_allocation() {
    local dprun=(timeout -k 5 100 salloc -Q -N2 -n4 --ntasks-per-node=2 "$build/dprun")
    "${dprun[@]}" --no-prefix "$build/hello" >out 2>err || bad "dprun in an allocation: code $?"
    met 4
    PATH=$build:$PATH timeout -k 5 100 sbatch -Q --wait -o out "$here/../../examples/cluster/slurm.sh" --no-prefix \
        "$build/hello" 2>err || bad "examples/cluster/slurm.sh: code $?"
    met 4
    grep -q '"outcome": "succeeded"' report.*.json || bad "examples/cluster/slurm.sh: no report"
    DP_INJECT=kill:2@30 "${dprun[@]}" "$build/tests/victim" 100000 "$HOSTS_DIR" >out 2>err
    [ $? = 137 ] || bad "a rank is killed under dprun: code $?"
    grep -q 'FAILED  rank 2 .*SIGKILL at step 30' err || bad "dprun does not say which rank was killed"
    until_holds nobody_left
    # Slurm takes the job back.
    "${dprun[@]}" "$build/tests/victim" 1000000 "$HOSTS_DIR" >out 2>err & step=$!
    until_holds eval '"$here/hosts.sh" --processes b | grep -q victim'
    scancel "$(squeue -h -o %A)"
    wait $step && bad "a cancelled dprun ended well"
    until_holds nobody_left
    # The end of dprun is that of its stations and ranks.
    "${dprun[@]}" "$build/tests/victim" 1000000 "$HOSTS_DIR" >out 2>err & step=$!
    until_holds eval '"$here/hosts.sh" --processes b | grep -q victim'
    pkill -KILL -f "^$build/dprun "
    wait $step # with a code of salloc's own
    until_holds nobody_left
}

# A job that Slurm ends: every process of it gets SIGTERM, and the ranks have dprun's grace to save what they have, which
# takes a second here.
ended_by_slurm() {
    local id way nodes limits=()
    cat >saver <<'END'
trap 'sleep 1; echo x >saved.$SLURM_JOB_ID.$DP_RANK; exit 0' TERM
trap 'echo x >warned.$SLURM_JOB_ID.$DP_RANK' USR1
echo x >runs.$SLURM_JOB_ID.$DP_RANK
while :; do sleep 0.05; done
END
    printf '%s\n' '#!/bin/bash' "cd '$HOSTS_DIR'" 'exec >"out.$SLURM_JOB_ID" 2>&1' \
        "exec '$build/dprun' -np 2 -x SLURM_JOB_ID=\$SLURM_JOB_ID sh saver" >script
    both() { [ -e "$1.$2.0" ] && [ -e "$1.$2.1" ]; } # FILE JOB
    has_ended() { grep -q '^dprun: interrupted' "out.$1"; }
    saved() { # JOB WAY
        until_holds has_ended "$1"
        cp "out.$1" out
        both saved "$1" || bad "$2: $(ls saved."$1".* 2>/dev/null | wc -l) of 2 ranks saved"
        grep -q 'interrupted by SIGTERM .*: ended 2 ranks within the grace time, 0 processes left' out ||
            bad "$2: dprun does not say how it ended"
    }
    for nodes in 1 2; do # both run into their limit, a minute at least, while the others come and go
        id=$(sbatch --parsable -N$nodes --ntasks=2 -t 1 script) || bad "sbatch"
        until_holds both runs "$id"
        limits+=("$id")
    done
    for nodes in 1 2; do
        for way in "" "--full --signal=TERM" "--batch --signal=TERM"; do
            id=$(sbatch --parsable -N$nodes --ntasks=2 script) || bad "sbatch"
            until_holds both runs "$id"
            if [ $nodes = 2 ]; then # a warning to the step, which has the ranks' parents, too
                scancel --signal=USR1 "$id"
                until_holds both warned "$id"
            fi
            # shellcheck disable=SC2086
            scancel $way "$id"
            saved "$id" "scancel $way, $nodes nodes"
        done
    done
    for ((i = 0; i < 120; i++)); do has_ended "${limits[0]}" && has_ended "${limits[1]}" && break; sleep 1; done
    saved "${limits[0]}" "time limit, 1 node"
    saved "${limits[1]}" "time limit, 2 nodes"
    until_holds nobody_left
}

srun_alone() {
    (umask 077; head -c 32 /dev/urandom >secret)
    # PMI-2 carries address and secret. Rank 0 listens where its node's name leads, and for its own node.
    job --mpi=pmi2 env DP_LOG=info "$build/hello" || bad "pmi2: code $?"
    met 4
    grep -Eq 'rendezvous: listens on 10\.99\.0\.1, 127\.0\.0\.1, port [0-9]+' err || bad "pmi2: it listens elsewhere"
    # Without it both are given. The first node of a step has rank 0.
    for mpi in none pmix; do
        # Slurm lists PMIx where its plug-in is, and loads it only where libpmix.so is (libpmix-dev), too.
        srun --mpi=$mpi true 2>err || { grep -q 'MPI' err && echo "no $mpi in this Slurm" && continue; }
        DP_RENDEZVOUS=a:29510 DP_SECRET_FILE=$HOSTS_DIR/secret job --mpi=$mpi "$build/hello" ||
            bad "$mpi: code $?"
        met 4
        # Only the address is missing: that is what has to be said.
        DP_SECRET_FILE=$HOSTS_DIR/secret job --mpi=$mpi "$build/hello" && bad "$mpi: started without an address"
        grep -q 'DP_RENDEZVOUS' err || bad "$mpi: the missing address is not told"
        nobody_left || until_holds nobody_left
    done
    # A cancelled job leaves nobody.
    job --mpi=pmi2 "$build/tests/victim" 1000000 "$HOSTS_DIR" & step=$!
    until_holds eval '"$here/hosts.sh" --processes b | grep -q victim'
    scancel "$(squeue -h -o %A)"
    wait $step && bad "a cancelled job ended well"
    until_holds nobody_left
    # A killed rank: the three others name it.
    DP_INJECT=kill:1@30 job --mpi=pmi2 "$build/tests/victim" 100000 "$HOSTS_DIR" && bad "a killed rank ended well"
    [ "$(grep -c '^learned: DP_ERR_PEER_LOST: rank 1 ' err)" = 3 ] || bad "not all know that rank 1 died"
    until_holds nobody_left
}
# The front end takes its world from srun alone, as programs in C do.
python_under_srun() {
    local python= name
    for name in python3 /usr/bin/python3; do
        "$name" -c 'import numpy, torch' 2>/dev/null && python=$name && break
    done
    [ -n "$python" ] || { echo "no python: no Python here has PyTorch (Debian: python3-torch)"; return; }
    PYTHONPATH=$here/../../python LIBDP_PATH=$build/libdp.so PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 \
        DP_FUSION_BYTES=1M DP_START_TIMEOUT=90s job --mpi=pmi2 \
        "$python" "$here/../../python/examples/mnist_like.py" --epochs 1 --pictures 256 || bad "python: code $?"
    # One world of four, not four of one.
    [ "$(grep -c '^learned .* on 4 ranks$' out)" = 1 ] || bad "python: the ranks did not meet"
    until_holds nobody_left
}
if [ "${2:-}" = inside ]; then
    cd "$HOSTS_DIR" || exit 1
    shift 2
    [ $# -gt 0 ] || set -- srun dprun python
    for case in "$@"; do
        case $case in
        srun) srun_alone ;;
        dprun) dprun_in_an_allocation ;;
        ends) ended_by_slurm ;;
        python) python_under_srun ;;
        *) bad "no case $case" ;;
        esac
        echo "ok $case"
    done
    exit
fi
HOSTS_KEEP=${HOSTS_KEEP:-$build} exec timeout 280 "$here/hosts.sh" a b -- "$here/slurm.sh" "$self" "$build" inside "${@:2}"
