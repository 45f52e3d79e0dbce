#!/usr/bin/env bash
# srun.sh - what dprun asks of Slurm in an allocation, and what stays of it. srun is a script here that
# starts nothing, as on nodes that are busy: with a real Slurm see tests/hosts/slurm_jobs.sh.
#
#   srun.sh DPRUN
set -u
dprun=$(readlink -f "$1")
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
bad() { echo "FAILED: $*" >&2; tail -n +1 out err asked 2>/dev/null; exit 1; }
cat >srun <<'END'
#!/bin/sh
echo "$@" >asked
echo $$ >pid
exec sleep 777
END
chmod +x srun
# in_allocation CODE ARGUMENTS...: dprun on four nodes with two slots each
in_allocation() {
    local wanted=$1 code; shift
    PATH=$work:$PATH SLURM_JOB_ID=12 SLURM_JOB_NODELIST='127.0.0.[1-4]' SLURM_JOB_NUM_NODES=4 \
        SLURM_TASKS_PER_NODE='2(x4)' timeout -k 5 100 "$dprun" "$@" >out 2>err; code=$?
    [ $code = "$wanted" ] || bad "exit code $code instead of $wanted: $*"
}

# Ranks that need some of the nodes get the ones that dprun speaks of; Slurm might choose others.
in_allocation 0 --dry-run -np 3 true
grep -q 'srun --nodes=2 .*--nodelist 127.0.0.1,127.0.0.2 ' out || bad "the used nodes are not asked for"
in_allocation 0 --dry-run true
grep -q 'srun --nodes=4 ' out || bad "not all nodes"
grep -q nodelist out && bad "names of nodes, though all are used"

# A srun that waits for its nodes ends with a start that was given up.
in_allocation 1 -np 3 --start-timeout 2s true
grep -q -- '--nodelist 127.0.0.1,127.0.0.2 ' asked || bad "the used nodes are not asked for"
grep -q 'did not come within DP_START_TIMEOUT' err || bad "the start was not given up for its timeout"
grep -q 'waiting for 0 of' err && bad "it waits for nobody, and says so"
if kill -0 "$(cat pid)" 2>/dev/null; then kill "$(cat pid)"; bad "srun is still there"; fi
echo ok
