#!/usr/bin/env bash
# gpu.sh - what nvidia-smi shows, and what of it would spoil a visit: another compute mode than
# Default refuses a second process, and slices of a GPU (MIG) are another machine.
nvidia-smi -L || { echo "nvidia-smi -L fails: exit code $?"; exit 1; }
nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,clocks.sm,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu \
    --format=csv
modes=$(nvidia-smi --query-gpu=compute_mode,mig.mode.current --format=csv,noheader) ||
    { echo "nvidia-smi tells no modes: exit code $?"; exit 1; }
echo "compute mode, MIG: $modes"
failed=0
while IFS=, read -r compute mig; do
    case $compute in Default) ;; *) echo "compute mode is $compute: two processes cannot share this GPU"; failed=1 ;; esac
    case $mig in *Enabled*) echo "MIG is on: this is a slice of a GPU"; failed=1 ;; esac
done <<<"$modes"
[ $failed = 1 ] || nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1
exit $failed
