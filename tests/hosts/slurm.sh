#!/usr/bin/env bash
# slurm.sh - Slurm on the machines of hosts.sh: munge everywhere, slurmctld on login, a slurmd on each.
#
#   hosts.sh a b -- slurm.sh COMMAND...     runs COMMAND on login when all nodes are idle
#
# Ends with COMMAND's exit code, or with 77 where Slurm's programs are missing. The daemons go with the
# machines. Logs are in $HOSTS_DIR/slurm.
set -eu
hosts=$(dirname "$(readlink -f "$0")")/hosts.sh
for program in munged slurmctld slurmd srun sinfo; do
    PATH=$PATH:/usr/sbin:/sbin command -v $program >/dev/null ||
        { echo "slurm.sh: skipped: there is no $program" >&2; exit 77; }
done
PATH=$PATH:/usr/sbin:/sbin
dir=$HOSTS_DIR/slurm
mkdir -p "$dir/state"
mapfile -t names < <(awk '/^10\.99\.0\./ && $2 != "login" { print $2 }' /etc/hosts)

# Four CPUs are promised on each node, whatever the machine has. Control groups are not there.
cat >"$dir/slurm.conf" <<CONF
ClusterName=dp
SlurmctldHost=login
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool.%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
SlurmdTimeout=5
SlurmctldTimeout=5
KillWait=5
ReturnToService=2
NodeName=$(IFS=,; echo "${names[*]}") CPUs=4 RealMemory=1000 State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES State=UP MaxTime=INFINITE
CONF
echo CgroupPlugin=cgroup/v1 >"$dir/cgroup.conf"
(umask 077; head -c128 /dev/urandom >"$dir/munge.key")

start_munge() { # NAME [COMMAND that runs things there]
    local name=$1
    shift
    "$@" mkdir -p /run/munge
    "$@" munged --force --key-file="$dir/munge.key" --log-file="$dir/munged.$name.log" \
        --seed-file=/run/munge/seed --pid-file=/run/munge/pid --socket=/run/munge/munge.socket.2
}
export SLURM_CONF=$dir/slurm.conf
start_munge login env 2>"$dir/munged.login.err"
slurmctld -f "$SLURM_CONF"
for name in "${names[@]}"; do
    mkdir -p "$dir/spool.$name"
    start_munge "$name" "$hosts" --in "$name" 2>"$dir/munged.$name.err"
    "$hosts" --in "$name" slurmd -f "$SLURM_CONF"
done
for ((i = 0; ; i++)); do
    [ "$(sinfo -h -o '%T %D' 2>/dev/null)" != "idle ${#names[@]}" ] || break
    [ $i -lt 600 ] || { tail -n 20 "$dir"/*.log "$dir"/*.err; sinfo; exit 1; }
    sleep 0.05
done
"$@"
