#!/bin/bash
# Slurm, a batch job: sbatch [-N NODES] slurm.sh ./train --data tokens.bin
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --open-mode=append
# dprun takes nodes and ranks from the allocation. exec: a batch shell dies of SIGTERM at once, and Slurm then kills
# what it has left. --grace is shorter than Slurm's KillWait (30 s).
exec dprun --grace 25 --report "report.$SLURM_JOB_ID.json" "$@"
