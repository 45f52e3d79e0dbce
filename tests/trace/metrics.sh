#!/usr/bin/env bash
# dprun --metrics: the figures of a running job by HTTP, in a file and in a folder; what they say of a rank that is
# stopped; requests that are none, and too many of them; places that cannot be had. metrics.sh DPRUN STRAGGLER
set -u
here=$(dirname "$(readlink -f "$0")")
. "$here/../launch/port.sh"
dprun=$(readlink -f "$1") straggler=$(readlink -f "$2") board=$here/../../examples/operations
work=$(mktemp -d) || exit 1
job=
trap '[ -z "$job" ] || kill -KILL "$job" 2>/dev/null; rm -rf "$work"' EXIT # its agent ends the ranks
cd "$work" || exit 1
mkdir -m 700 run folder
export XDG_RUNTIME_DIR=$work/run
bad() { echo "FAILED: $*"; head -50 text err 2>/dev/null; exit 1; }
start() { # ARGUMENTS...: a job of two ranks, of which rank 1 is late
    "$dprun" -np 2 "$@" "$straggler" 3000 >out 2>err &
    job=$!
}
stop() { kill -TERM $job; wait $job; job=; }
get() { # [PATH]: into text
    timeout 20 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$0" && printf "GET $1 HTTP/1.1\r\nHost: x\r\n\r\n" >&3 && cat <&3' \
        "$port" "${1:-/metrics}" >answer 2>/dev/null || return 1
    tr -d '\r' <answer | sed '1,/^$/d' >text
}
await() { # PATTERN COMMAND...: until text has such a line; a minute at most
    local pattern=$1; shift
    for ((i = 0; i < 600; i++)); do
        "$@" && grep -Eq "$pattern" text && return
        kill -0 $job 2>/dev/null || bad "the job has ended, and no text had a line: $pattern"
        sleep 0.1
    done
    bad "no text has a line: $pattern"
}
value() { sed -n "s/^$1 //p" text; }
from() { cat $1 >text 2>/dev/null; } # a pattern of names

"$here/prometheus.py" --planted || bad "the checker does not find what it must"
port=$(free_port) || exit 1
start --metrics ":$port"
await '^dp_steps_total\{rank="1",.*\} [2-9]' get
head -1 answer | grep -q '^HTTP/1.1 200 ' || bad "$(head -1 answer)"
"$here/prometheus.py" text "$board"/*.yml "$board"/*.json || bad "the text is not Prometheus'"
command -v promtool >/dev/null && { promtool check metrics <text || bad "promtool"; }
node=$(hostname)
[ "$(value 'dp_up{rank="0",node="'"$node"'"}')" = 1 ] || bad "rank 0 does not run"
awk '/^dp_memory_bytes/ && $2 < 1e6 { exit 1 }' text || bad "memory"
# Rank 0 waits for rank 1, for seconds in each step; rank 1 has no reason to.
awk -F'[ "]' '/^dp_wait_seconds_total.*for="ranks"/ { waited[$2] = $NF }
    END { exit !(waited[0] > 2 && waited[0] > 2 * waited[1]) }' text || bad "rank 1 is the late one"
awk '/^dp_reduced_bytes_total/ && $2 < 4194304 { exit 1 }' text || bad "bytes: 2 MB a step"
await '^dp_waiting_seconds\{rank="0",.*\} [1-9]' get
directory=$(echo run/dprun-*)
for process in /proc/[0-9]*; do
    grep -qs "$directory/trace.1.dpt" "$process/maps" && rank=${process#/proc/}
done
kill -STOP "$rank" || bad "no process has the recorder of rank 1"
await '^dp_stopped\{rank="1",.*\} 1$' get
kill -CONT "$rank"
await '^dp_stopped\{rank="1",.*\} 0$' get
get / || bad "GET /"
get /other && [ ! -s text ] || bad "there is another page: $(head -1 answer)"
grep -q '^HTTP/1.1 404 ' answer || bad "another page: $(head -1 answer)"
# Strangers that say nothing, or too much, keep nobody out and cost dprun no descriptors.
for i in {1..40}; do exec {fd}<>"/dev/tcp/127.0.0.1/$port"; fds+=("$fd"); done
head -c 100000 /dev/zero >&"${fds[0]}" 2>/dev/null
open=$(find /proc/$job/fd -type l 2>/dev/null | wc -l)
[ "$open" -lt 45 ] || bad "$open descriptors are open"
await '^dp_up' get
for fd in "${fds[@]}"; do exec {fd}>&-; done
# The port is this machine's own.
grep -qi ":$(printf %04X "$port") .* 0A " /proc/net/tcp6 && bad "it listens on version 6"
grep -i ":$(printf %04X "$port") .* 0A " /proc/net/tcp | grep -vq ' 0100007F:' && bad "it listens elsewhere"
"$dprun" -np 1 --metrics ":$port" true >text 2>err && bad "two jobs have one port"
grep -qx "dprun: --metrics :$port: another program has this port" err && [ "$(wc -l <err)" = 1 ] || bad "a port in use"
stop
get && bad "somebody still listens"

start --metrics job.prom
await '^dp_steps_total\{rank="0",.*\} [1-9]' from job.prom
"$here/prometheus.py" text || bad "the file is not Prometheus'"
stop
[ -z "$(ls job.prom* 2>/dev/null)" ] || bad "the file stays"
start --metrics folder
await '^dp_up' from 'folder/dprun-*.prom'
stop
[ -z "$(ls folder)" ] || bad "the file stays in its folder"

refused() { # TEXT WHERE
    "$dprun" -np 1 --metrics "$2" touch started >out 2>err
    [ $? = 2 ] && [ ! -e started ] && [ "$(wc -l <err)" = 1 ] || bad "$2 is not refused"
    grep -q -- "$1" err || bad "$2: the error does not say: $1"
}
refused 'the folder nowhere: No such file' nowhere/file
refused 'a port is 1 to 65535' :0
refused 'a port is 1 to 65535' :65536
refused 'nowhere.invalid' nowhere.invalid:9400
refused 'must be FILE' ''
echo "metrics: ok"
