#!/usr/bin/env bash
# machine.sh - what ranks need of the machine beside the GPU: loopback (NCCL's and UCX's sockets),
# shared memory, somewhere to write.
failed=0
flags=$(cat /sys/class/net/lo/flags 2>/dev/null)
if [ -z "$flags" ]; then
    echo "loopback: unknown, no /sys/class/net/lo"
elif ((flags & 1)); then
    echo "loopback: up"
else
    echo "loopback is down: ip link set lo up"
    failed=1
fi
room=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print int($4 / 1024) }')
echo "/dev/shm: ${room:-?} MiB free"
if [ -n "$room" ] && [ "$room" -lt 64 ]; then
    echo "/dev/shm is too small: mount -o remount,size=1G /dev/shm"
    failed=1
fi
echo "ptrace_scope $(cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null || echo none), locked memory $(ulimit -l), files $(ulimit -n)"
echo "$(uname -srm), $(nproc) cores, $(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo) MiB of memory available"
exit $failed
