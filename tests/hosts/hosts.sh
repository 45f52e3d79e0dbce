#!/usr/bin/env bash
# hosts.sh - several machines inside one, for tests of jobs that span machines.
#
#   hosts.sh NAME... -- COMMAND...     boots the machines, runs COMMAND on a further one called "login",
#                                      ends with COMMAND's exit code; nothing stays behind
# COMMAND, and what it starts on login, may call:
#   hosts.sh --kill NAME               all its processes die at once; its kernel still closes connections
#   hosts.sh --power NAME              the same in silence: the link goes down first
#   hosts.sh --boot NAME               a killed machine comes back: same address, all else new
#   hosts.sh --cut NAME                pulls its network cable
#   hosts.sh --split NAME...           these machines reach each other, and none of the others
#   hosts.sh --oneway NAME in|out      everything sent to it (in), or by it (out), is lost
#   hosts.sh --loss NAME PERCENT       so many packets are lost, in each direction
#   hosts.sh --rate NAME RATE [DELAY]  in each direction: bits per second (1M; 0: no limit), milliseconds
#   hosts.sh --heal NAME...            ends all harm to its network
#   hosts.sh --freeze NAME             stops its processes; its kernel still answers
#   hosts.sh --thaw NAME               they go on
#   hosts.sh --in NAME COMMAND...      runs COMMAND there, without ssh
#   hosts.sh --processes NAME          its processes but those of the bed: PID and command line
#
# A machine is a set of namespaces. It has its own network (10.99.0.i and fd99::i on eth0; the i-th
# NAME), /tmp, /dev/shm, /run, home directory, pids, System V memory, host name, boot id and sshd.
# Everything else, the build tree above all, is the same on all machines. $HOSTS_DIR is an empty
# folder that all of them share. "NAME" resolves to IPv4, "NAME.v6" to IPv6; ssh needs no password.
#
# HOSTS_KEEP   more folders, with colons between them, that all machines see although they lie in /tmp
#              or the home directory; the source tree is one of them anyway
# HOSTS_CLOCK  "NAME:SECONDS ...": on these machines the monotonic clock is ahead by so many seconds
#
# Needs root, namespaces, iproute2, nftables and openssh-server; ends with 77 and a sentence without.
# Nothing outside is touched: networks and mounts are private, and the kernel removes all of it with the
# first process of login, which dies when this script does, even by SIGKILL.
set -eu
me=$(readlink -f "$0")
bed=/srv/.bed # keys, logs and pids of the bed itself, on the folder that all machines share

skip() { echo "hosts.sh: skipped: $*" >&2; exit 77; }
fail() { echo "hosts.sh: $*" >&2; exit 1; }

# ---- Outside: before there is anything -----------------------------------------------------------

start_bed() {
    local program
    [ "$(id -u)" = 0 ] || skip "machines are made by root"
    for program in ip nft unshare nsenter setpriv pgrep ssh-keygen /usr/sbin/sshd; do
        command -v "$program" >/dev/null || skip "there is no $program"
    done
    unshare --net --mount --uts --ipc --pid --fork --mount-proc true 2>/dev/null ||
        skip "namespaces are not permitted here"
    # unshare holds back SIGTERM while its child lives, therefore this shell waits beside it. The end of
    # this shell ends unshare, that ends login's first process, and that ends all machines.
    setpriv --pdeathsig KILL env --default-signal=INT,QUIT \
        unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc \
        "$me" --login "$@" <&0 &
    trap 'kill -9 $!; exit 143' TERM HUP
    trap 'kill -9 $!; exit 130' INT
    wait $!
}

# ---- login, the first process inside -------------------------------------------------------------

# Folders of HOSTS_KEEP stay where they are, whatever is mounted above them.
keep_folders() { # PLACE: binds them to PLACE/1, PLACE/2 ...
    local path number=0
    while read -r path; do
        [ -d "$path" ] || fail "HOSTS_KEEP: $path is no folder"
        number=$((number + 1))
        mkdir -p "$1/$number"
        mount --rbind "$path" "$1/$number"
    done < <(kept_folders)
}
kept_folders() { printf '%s\n' "${HOSTS_KEEP:-}" "${me%/*/*/*}" | tr ':' '\n' | grep '^/' | sort -u; }
show_kept_folders() { # PLACE: binds them back to where they were, if they are hidden now
    local path number=0
    while read -r path; do
        number=$((number + 1))
        [ "$path" -ef "$1/$number" ] && continue
        mkdir -p "$path"
        mount --rbind "$1/$number" "$path"
    done < <(kept_folders)
}

make_ssh() { # one user's key and one host key for all machines
    mkdir "$bed/ssh"
    (
        cd "$bed/ssh"
        ssh-keygen -q -t ed25519 -N '' -f user
        ssh-keygen -q -t ed25519 -N '' -f host
        echo "* $(cat host.pub)" >ssh_known_hosts
        printf '%s\n' 'Host *' 'IdentityFile /etc/ssh/user' \
            'GlobalKnownHostsFile /etc/ssh/ssh_known_hosts' >ssh_config
        printf '%s\n' 'HostKey /etc/ssh/host' 'AuthorizedKeysFile /etc/ssh/user.pub' \
            'PermitRootLogin prohibit-password' 'StrictModes no' 'UsePAM no' 'PidFile none' \
            'Subsystem sftp internal-sftp' >sshd_config
        mount --bind . /etc/ssh
    )
    [ ! -d "$HOME/.ssh" ] || mount -t tmpfs tmpfs "$HOME/.ssh"
}

make_names() { # NAME...: /etc/hosts of all machines
    local number=0 name
    {
        echo "127.0.0.1 localhost"
        echo "::1 localhost"
        echo "10.99.0.254 login"
        for name in "$@"; do
            number=$((number + 1))
            echo "10.99.0.$number $name"
            echo "fd99::$number $name.v6"
        done
    } >"$bed/hosts"
    mount --bind "$bed/hosts" /etc/hosts
}

# All networks of a kernel share one table of neighbours, of 1024 by default, which the pairs of many
# machines overflow. Permanent entries do not count. Up to 20 machines resolve addresses as on any
# network, where that of a dead machine stops resolving after some seconds.
make_neighbours() { # NUMBER_OF_MACHINES
    local number
    : >"$bed/neighbours"
    [ "$1" -gt 20 ] || return 0
    for number in $(seq "$1") 254; do
        printf 'neigh replace %s lladdr 02:00:00:00:00:%02x dev eth0 nud permanent\n' \
            "10.99.0.$number" "$number" "fd99::$number" "$number"
    done >"$bed/neighbours"
}
know_neighbours() { ip "$@" -batch "$bed/neighbours" 2>/dev/null || true; } # [-n NAME]; without version 6
hardware_address() { printf '02:00:00:00:00:%02x' "$1"; } # NUMBER

own_boot_id() { # FILE of this machine
    cat /proc/sys/kernel/random/uuid >"$1"
    mount --bind "$1" /proc/sys/kernel/random/boot_id
}

login() { # NAME... -- COMMAND...
    local names=() name pids=() pid folder
    while [ "$1" != -- ]; do
        [ ${#1} -le 13 ] || fail "$1: a machine's name has 13 characters at most"
        names+=("$1")
        shift
    done
    shift
    # Login's own folders: the home directory is the user's, for programs that lie there.
    mount -t tmpfs tmpfs /run
    mount -t sysfs sysfs /sys # of its own network; control groups are the outer machine's, and stay away
    mkdir /run/netns
    keep_folders /run/keep
    mount -t tmpfs tmpfs /srv
    mkdir -p "$bed"
    chmod 755 /srv
    keep_folders "$bed/keep"
    for folder in /tmp /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs "$folder"; done
    show_kept_folders "$bed/keep"
    make_ssh
    make_names "${names[@]}"
    make_neighbours ${#names[@]}
    own_boot_id /run/boot_id
    echo login >/proc/sys/kernel/hostname
    export HOSTS_DIR=/srv HOSTNAME=login
    unset XDG_RUNTIME_DIR TMPDIR
    # The network: a bridge, which is login's own interface, too.
    ip link set lo up
    ip link add eth0 address "$(hardware_address 254)" type bridge 2>/dev/null || skip "this kernel has no bridges"
    ip addr add 10.99.0.254/24 dev eth0
    ip -6 addr add fd99::254/64 dev eth0 nodad 2>/dev/null || true
    ip link set eth0 up
    know_neighbours
    for name in "${names[@]}"; do
        boot "$name" &
        pids+=($!)
        [ $((${#pids[@]} % 8)) != 0 ] || wait "${pids[@]}"
    done
    for pid in "${pids[@]}"; do wait "$pid" || fail "a machine did not start"; done
    exec 3>&-
    "$@"
}

# ---- Machines ------------------------------------------------------------------------------------

known() { # NAME
    awk -v name="$1" '$2 == name { found = 1 } END { exit !found }' "$bed/hosts" ||
        fail "there is no machine $1"
}
number_of() { awk -v name="$1" '$2 == name { sub(/.*\./, "", $1); print $1 }' "$bed/hosts"; }
first_process() { cat "$bed/$1.pid" 2>/dev/null || fail "machine $1 is not running"; }

make_link() { # NAME: its end is eth0, the bridge's end v-NAME. It stays when the machine is killed
    local name=$1 number
    number=$(number_of "$name")
    if [ ! -e "/run/netns/$name" ]; then
        ip netns add "$name"
        ip link add "v-$name" type veth \
            peer name eth0 address "$(hardware_address "$number")" netns "$name" || skip "this kernel has no veth"
        ip link set "v-$name" master eth0
        ip -n "$name" link set lo up
        ip -n "$name" addr add "10.99.0.$number/24" dev eth0
        ip -n "$name" -6 addr add "fd99::$number/64" dev eth0 nodad 2>/dev/null || true
        ip -n "$name" link set eth0 up
        know_neighbours -n "$name"
    fi
    ip link set "v-$name" up
}

boot() { # NAME: returns when its sshd listens
    local name=$1 ahead clock=() outer
    known "$name"
    [ ! -e "$bed/$name.pid" ] || fail "machine $name is running"
    make_link "$name"
    for ahead in ${HOSTS_CLOCK:-}; do
        [ "${ahead%%:*}" != "$name" ] ||
            clock=(--time --monotonic "${ahead#*:}" --boottime "${ahead#*:}")
    done
    rm -f "$bed/$name.up"
    ip netns exec "$name" unshare --mount --uts --ipc --pid --fork --kill-child --mount-proc \
        ${clock[@]+"${clock[@]}"} "$me" --init "$name" </dev/null >"$bed/$name.boot" 2>&1 &
    outer=$!
    until [ -e "$bed/$name.up" ]; do
        kill -0 "$outer" 2>/dev/null || fail "machine $name did not start: $(cat "$bed/$name.boot")"
        sleep 0.01
    done
    pgrep -P "$outer" >"$bed/$name.pid"
}

init() { # NAME: the first process of a machine. A shell, because it has to reap orphans
    local name=$1 folder
    for folder in /tmp /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs "$folder"; done
    for folder in /run "$HOME" "$(getent passwd 0 | cut -d: -f6)"; do
        mount -t tmpfs -o mode=755 tmpfs "$folder"
    done
    show_kept_folders "$bed/keep"
    echo "$name" >/proc/sys/kernel/hostname
    own_boot_id /run/boot_id
    mkdir /run/sshd
    cd /
    env -u HOSTS_CLOCK /usr/sbin/sshd -E "$bed/$name.sshd"
    until grep -q ':0016 .* 0A ' /proc/net/tcp; do sleep 0.01; done
    touch "$bed/$name.up"
    while :; do sleep 1000 & wait $! || true; done
}

kill_machine() { # NAME: returns when its last process has gone
    local first
    first=$(first_process "$1")
    kill -9 "$first"
    while kill -0 "$first" 2>/dev/null; do sleep 0.01; done
    rm -f "$bed/$1.pid"
}

inside() { # NAME COMMAND...
    local name=$1 first
    shift
    first=$(first_process "$name")
    # shellcheck disable=SC2016
    HOSTNAME=$name exec nsenter -t "$first" --all sh -c 'cd "$0" 2>/dev/null || cd /; exec "$@"' "$PWD" "$@"
}

signal_all() { # SIGNAL NAME: to all its processes but the first
    nsenter -t "$(first_process "$2")" --pid sh -c "kill -$1 -1"
}

# Processes of the bed are the first one, its sleep, and the sshd that listens.
processes() { # NAME
    (inside "$1" ps -ww -eo pid=,ppid=,args=) | awk '
        $1 == 1 || $2 == 1 && ($3 == "sleep" && $4 == 1000 || $3 == "sshd:" && /listener/) { next }
        $3 == "ps" && $4 == "-ww" { next }
        { $2 = ""; print }'
}

# ---- Harm to the network -------------------------------------------------------------------------

# The ports of the bridge that may lead to these machines: the second kind is a relay's.
ports() { # NAME...
    local name all=
    for name in "$@"; do all+="${all:+, }\"v-$name\", \"r-$name\""; done
    echo "{ $all }"
}

# Each harmed machine has a table of its own. Frames between machines pass the bridge's hook forward,
# those from and to login input and output.
drop() { # NAME DIRECTIONS [CONDITION]: what arrives from it (out), is sent to it (in)
    local name=$1 way=$2 condition=${3:-} ports
    ports=$(ports "$1")
    nft add table bridge "$name"
    for hook in forward input output; do
        nft add chain bridge "$name" "$hook" "{ type filter hook $hook priority 0; }"
    done
    case $way in *out*)
        nft add rule bridge "$name" forward iifname "$ports" $condition drop
        nft add rule bridge "$name" input iifname "$ports" $condition drop ;;
    esac
    case $way in *in*)
        nft add rule bridge "$name" forward oifname "$ports" $condition drop
        nft add rule bridge "$name" output oifname "$ports" $condition drop ;;
    esac
}

split() { # NAME...: a machine of these hears nobody else
    local name ours all
    all=$(ports "$@")
    for name in "$@"; do
        ours=$(ports "$name")
        drop "$name" none
        nft add rule bridge "$name" forward iifname "$ours" oifname != "$all" drop
        nft add rule bridge "$name" forward oifname "$ours" iifname != "$all" drop
        nft add rule bridge "$name" input iifname "$ours" drop
        nft add rule bridge "$name" output oifname "$ours" drop
    done
}

end_relay() { # NAME
    local pid
    pid=$(pgrep -f "^$bed/relay v-$1 ") || return 0
    kill "$pid"
    while [ -e "/sys/class/net/r-$1" ]; do sleep 0.01; done
    ip link set "v-$1" master eth0
}

slow() { # NAME BITS_PER_SECOND [DELAY_MS]: a relay takes the place of its port of the bridge
    local name=$1 rate=${2%bit}
    case $rate in
    *[kK]) rate=${rate%?}000 ;;
    *[mM]) rate=${rate%?}000000 ;;
    *[gG]) rate=${rate%?}000000000 ;;
    esac
    (
        flock 9
        [ -x "$bed/relay" ] || cc -O2 -o "$bed/relay" "${me%/*}/relay.c"
    ) 9>"$bed/relay.lock"
    end_relay "$name"
    ip link set "v-$name" nomaster
    "$bed/relay" "v-$name" "r-$name" "${3:-0}" "$rate" </dev/null >"$bed/$name.relay" 2>&1 &
    until [ -e "/sys/class/net/r-$name" ]; do
        kill -0 $! 2>/dev/null || fail "no relay: $(cat "$bed/$name.relay")"
        sleep 0.01
    done
    ip link set "r-$name" master eth0 up
}

heal() { # NAME
    ip link set "v-$1" up
    nft delete table bridge "$1" 2>/dev/null || true
    end_relay "$1"
}

case ${1:-} in
--login) shift; login "$@" ;;
--init) init "$2" ;;
--boot) boot "$2" ;;
--kill) kill_machine "$2" ;;
--power) ip link set "v-$2" down; kill_machine "$2" ;;
--cut) known "$2"; ip link set "v-$2" down ;;
--split) shift; split "$@" ;;
--oneway) known "$2"; drop "$2" "$3" ;;
--loss) known "$2"; drop "$2" "in out" "numgen random mod 100 < $3" ;;
--rate) known "$2"; slow "$2" "$3" "${4:-}" ;;
--heal) shift; for name in "$@"; do known "$name"; heal "$name"; done ;;
--freeze) signal_all STOP "$2" ;;
--thaw) signal_all CONT "$2" ;;
--in) shift; inside "$@" ;;
--processes) processes "$2" ;;
-h | --help | '') sed -n '2,32s/^# \{0,1\}//p' "$me"; [ $# -gt 0 ] || exit 2 ;;
-*) fail "$1: unknown; see --help" ;;
*) start_bed "$@" ;;
esac
