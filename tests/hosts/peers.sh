#!/usr/bin/env bash
# peers.sh - libdp's launcher beside those of Open MPI, PyTorch and Horovod, on machines of hosts.sh:
# how soon a job starts, how soon its launcher ends when a part of it comes to harm, what is left.
#
#   peers.sh BUILD [--peers "dprun mpirun torchrun horovodrun"] [--starts "4x2 loop 16 64"]
#            [--harms "rank machine cut freeze launcher"] [--tries 5] [--tsv FILE]
#   peers.sh --page FILE...          writes the tables of docs/launch.md from such files
#
# A start is timed from the command to its end: `true` on 4 machines with 2 ranks each (4x2), on 16 and
# on 64 machines; and on 4x2 a program whose ranks average once (loop). A row ends after a minute and a
# half, or so many tries.
# A harm comes to a job of 4x2 whose ranks average all the time: rank (SIGKILL to one), machine (killed,
# its kernel closes connections), cut (its cable), freeze (its processes stop, its kernel answers),
# launcher (SIGKILL to the launcher on login). Timed until the launcher has ended, at most a minute: a
# launcher that goes on is then told to end by SIGTERM. "Left" is what still lies on the machines ten
# seconds later, on the harmed one before its network is back: processes, and entries of /tmp and
# /dev/shm. A peer that hangs twice is not tried again.
#
#   TORCH_PYTHON, HOROVOD_PYTHON     interpreters that have them; a peer that is missing has a row that
#                                    says so. torchrun starts on one machine: a loop over ssh starts it
#                                    on each, and its end is that of the machines that were not harmed.
set -u
self=$(readlink -f "$0") here=$(dirname "$(readlink -f "$0")")
hosts=$here/hosts.sh
export LC_ALL=C
names=(red green blue black) # no words of other messages
limit=60

# ---- The page ------------------------------------------------------------------------------------

replace_between() { # MARKER FILE_WITH_TABLE
    local page=${here%/*/*}/docs/launch.md
    awk -v marker="$1" -v table="$2" '
        index($0, "<!-- " marker ":begin") { print; while ((getline line < table) > 0) print line; skip = 1 }
        index($0, "<!-- " marker ":end") { skip = 0 }
        !skip' "$page" >"$page.new" && mv "$page.new" "$page"
}
page() { # FILE...: of rows with one peer and one kind the last counts
    local table
    table=$(mktemp)
    cat "$@" | awk -F '\t' '
        $1 == "start" { if (!($2 in seen)) { seen[$2] = 1; order[++n] = $2 } cell[$2, $3] = $4 }
        END { split("4x2 loop 16 64", kinds, " ")
              print "| | `true`, 4 machines x 2 ranks | the same, averaging once | 16 machines | 64 machines |\n|---|---|---|---|---|"
              for (i = 1; i <= n; i++) {
                  printf "| %s |", order[i]
                  for (k = 1; k <= 4; k++) printf " %s |", (order[i], kinds[k]) in cell ? cell[order[i], kinds[k]] : "-"
                  print "" } }' >"$table"
    replace_between starts "$table"
    cat "$@" | awk -F '\t' '
        $1 == "harm" { if (!($2 in seen)) { seen[$2] = 1; order[++n] = $2 } cell[$2, $3] = $4 }
        END { split("rank machine cut freeze launcher", kinds, " ")
              split("a rank is killed,a machine is killed,a cable is cut,a machine is frozen,the launcher is killed", words, ",")
              printf "| |"; for (i = 1; i <= n; i++) printf " %s |", order[i]
              printf "\n|---|"; for (i = 1; i <= n; i++) printf "---|"; print ""
              for (k = 1; k <= 5; k++) {
                  printf "| %s |", words[k]
                  for (i = 1; i <= n; i++) printf " %s |", (order[i], kinds[k]) in cell ? cell[order[i], kinds[k]] : "-"
                  print "" } }' >"$table"
    replace_between harms "$table"
    rm -f "$table"
}
if [ "${1:-}" = --page ]; then shift; page "$@"; exit; fi

# ---- Arguments -----------------------------------------------------------------------------------

[ $# -ge 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$self"; exit 2; }
build=$(readlink -f "$1")
shift
peers="dprun mpirun torchrun horovodrun" starts="4x2 loop 16 64" harms="rank machine cut freeze launcher"
tries=5 tsv=/dev/null inside=
while [ $# -gt 0 ]; do
    case $1 in
    --peers) peers=$2 ;;
    --starts) starts=$2 ;;
    --harms) harms=$2 ;;
    --tries) tries=$2 ;;
    --tsv) tsv=$(readlink -f "$2") ;;
    --inside) inside=$2 ;;
    *) echo "peers.sh: $1: unknown" >&2; exit 2 ;;
    esac
    shift 2
done
torch=${TORCH_PYTHON:-/usr/bin/python3} horovod=${HOROVOD_PYTHON:-/usr/bin/python3}

# ---- Outside: a bed for each number of machines --------------------------------------------------

inside_of() { # PART MACHINES...: runs PART of this script on them
    local part=$1 keep=$build:$work python
    shift
    for python in "$torch" "$horovod"; do # it, and its virtual environment, may lie at home or in /tmp
        keep+=:$("$python" -c 'import sys; print(sys.base_prefix + ":" + sys.prefix)' 2>/dev/null)
    done
    HOSTS_KEEP=${keep%:} TORCH_PYTHON=$torch HOROVOD_PYTHON=$horovod PEERS_WORK=$work \
        "$hosts" "$@" -- "$self" "$build" --peers "$peers" --starts "$starts" --harms "$harms" --tries "$tries" \
        --tsv "$tsv" --inside "$part"
}
if [ -z "$inside" ]; then
    work=$(mktemp -d /var/tmp/peers.XXXXXX)
    trap 'rm -rf "$work"' EXIT
    mpicc -O2 -o "$work/loop_mpi" "$here/peers/loop_mpi.c" 2>/dev/null
    : >>"$tsv"
    case " $starts " in *" 4x2 "* | *" loop "*) inside_of start4 "${names[@]}" ;; esac
    case " $starts " in *" 16 "*) inside_of start16 $(seq -f 'm%g' 16) ;; esac
    case " $starts " in *" 64 "*) inside_of start64 $(seq -f 'm%g' 64) ;; esac
    [ -z "$harms" ] || inside_of harm "${names[@]}"
    exit
fi
work=$PEERS_WORK

# ---- Peers ---------------------------------------------------------------------------------------

now_ms() { echo $(($(date +%s%N) / 1000000)); }
listed() { # SLOTS MACHINES...: a:2,b:2
    local slots=$1 list
    shift
    list=$(printf "%s:$slots," "$@")
    echo "${list%,}"
}
missing() { # PEER: why it is not here; nothing if it is
    case $1 in
    dprun) [ -x "$build/dprun" ] || echo "not built" ;;
    mpirun) [ -x "$work/loop_mpi" ] && command -v mpirun >/dev/null || echo "no Open MPI here" ;;
    torchrun) "$torch" -c 'import torch.distributed' 2>/dev/null || echo "no PyTorch here" ;;
    horovodrun) "$horovod" -c 'import horovod.torch' 2>/dev/null || echo "no Horovod here" ;;
    esac
}
version() { # PEER
    case $1 in
    dprun) "$build/dprun" --version | head -n 1 ;;
    mpirun) mpirun --version | head -n 1 ;;
    torchrun) "$torch" -c 'import torch; print("PyTorch", torch.__version__)' ;;
    horovodrun) "$horovod" -c 'import horovod, torch; print("Horovod", horovod.__version__, "on PyTorch", torch.__version__)' ;;
    esac
}
# run PEER SLOTS "MACHINES" PROGRAM...: the user's command line. PROGRAM is "true", or "loop STEPS".
# It leaves pids: of the processes whose end is the launcher's, of machine i the i-th if there are several.
run() {
    local peer=$1 slots=$2 machines=($3) program=("${@:4}") list i
    list=$(listed "$slots" "${machines[@]}")
    pids=()
    if [ "$4" = loop ]; then
        case $peer in
        dprun) program=("$build/tests/victim" "$5" "$HOSTS_DIR/job") ;;
        mpirun) program=("$work/loop_mpi" "$5" "$HOSTS_DIR/job") ;;
        torchrun) program=("$here/peers/loop.py" torch "$5" "$HOSTS_DIR/job") ;;
        horovodrun) program=("$horovod" "$here/peers/loop.py" horovod "$5" "$HOSTS_DIR/job") ;;
        esac
    fi
    case $peer in
    dprun) "$build/dprun" -H "$list" "${program[@]}" </dev/null >>said 2>&1 & pids=($!) ;;
    mpirun) # two cores for all ranks: they yield
        mpirun --allow-run-as-root -H "$list" --mca oob_tcp_if_include eth0 --mca btl_tcp_if_include eth0 \
            --mca mpi_yield_when_idle 1 "${program[@]}" </dev/null >>said 2>&1 & pids=($!) ;;
    torchrun)
        [ "$4" = loop ] || program=(--no-python "${program[@]}")
        for i in "${!machines[@]}"; do
            ssh "${machines[i]}" "exec $torch -m torch.distributed.run --nnodes ${#machines[@]} --node-rank $i \
                --nproc-per-node $slots --master-addr ${machines[0]} --master-port 29500 ${program[*]}" </dev/null >>said 2>&1 &
            pids+=($!)
        done ;;
    horovodrun)
        "$horovod" -m horovod.runner.launch --gloo -np $((slots * ${#machines[@]})) -H "$list" \
            --network-interface eth0 "${program[@]}" </dev/null >>said 2>&1 & pids=($!) ;;
    esac
}
row() { # PART PEER KIND TEXT
    printf '%s\t%s\t%s\t%s\n' "$@" | tee -a "$tsv"
}
middle() { sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }
seconds() { awk -v ms="$1" 'BEGIN { printf ms < 10000 ? "%.2f" : "%.0f", ms / 1000 }'; }

# ---- Starts --------------------------------------------------------------------------------------

start_row() { # PEER KIND SLOTS "MACHINES" PROGRAM...
    local peer=$1 kind=$2 times=() began end spent=0 code=0 pid
    while [ ${#times[@]} -lt "$tries" ] && [ $spent -lt 90000 ]; do
        : >said
        rm -rf job
        mkdir job
        began=$(now_ms)
        run "$peer" "${@:3}"
        for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
        end=$(now_ms)
        [ $code = 0 ] || { row start "$peer" "$kind" "failed with $code"; tail -n 5 said; return; }
        times+=($((end - began)))
        spent=$((spent + end - began))
    done
    row start "$peer" "$kind" "$(seconds "$(printf '%s\n' "${times[@]}" | middle)") s$([ ${#times[@]} = "$tries" ] || echo " (of ${#times[@]})")"
}

# ---- What is there -------------------------------------------------------------------------------

files_on() { "$hosts" --in "$1" find /tmp /dev/shm -xdev -mindepth 1 | sort; }
left_on() { # MACHINE: "3 processes, 1 file", or nothing
    local processes files
    # The system's sshd waits for its client across a cut link; what it started must not.
    processes=$("$hosts" --processes "$1" | grep -vcE 'sshd: |ssh-agent')
    files=$(files_on "$1" | comm -13 "before.$1" - | wc -l)
    [ "$processes" = 0 ] && [ "$files" = 0 ] || echo "$1: $processes processes, $files files"
}
left_now() { # MACHINES...
    local machine
    for machine in "$@"; do left_on "$machine"; done
}
await_nothing() { # sets left: what is there after ten seconds, which belong to the figure
    local i
    for ((i = 0; i < 20; i++)); do
        left=$(left_now "${names[@]}" 2>/dev/null)
        [ -n "$left" ] || return
        sleep 0.5
    done
}
clear_bed() { # as it was, whatever the peer left
    local name pid
    "$hosts" --heal "$harmed"
    if [ -e "/srv/.bed/$harmed.pid" ]; then "$hosts" --thaw "$harmed"; else "$hosts" --boot "$harmed"; fi
    for pid in "${pids[@]}" $(pgrep -x ssh); do kill -9 "$pid" 2>/dev/null; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null; done
    for name in "${names[@]}"; do
        "$hosts" --processes "$name" | awk '!/sshd: .*listener/ { print $1 }' |
            while read -r pid; do "$hosts" --in "$name" kill -9 "$pid" 2>/dev/null; done
        "$hosts" --in "$name" find /tmp /dev/shm -xdev -mindepth 1 -delete
    done
    find /tmp /dev/shm -xdev -mindepth 1 -delete 2>/dev/null
}

# ---- Harms ---------------------------------------------------------------------------------------

averages() { # all ranks have averaged five times: waits for it
    local i
    for ((i = 0; i < 1800; i++)); do
        [ "$(find job -name 'part.?' | wc -l)" = 8 ] && return 0
        kill -0 "${pids[0]}" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}
harm() { # KIND
    case $1 in
    rank) "$hosts" --in "$harmed" sh -c 'kill -9 "$(pgrep -f "(victim|loop_mpi|loop.py) .*[0-9]+ /srv/job" | tail -n 1)"' ;;
    machine) "$hosts" --kill "$harmed" ;;
    cut) "$hosts" --cut "$harmed" ;;
    freeze) "$hosts" --freeze "$harmed" ;;
    launcher) kill -9 "${pids[@]}" ;;
    esac
}
ends() { # KIND: within the limit, the launcher, or what of it is not on the harmed machine
    local until=$(($(now_ms) + limit * 1000)) i
    for i in "${!pids[@]}"; do
        [ ${#pids[@]} = 1 ] || [ "$1" = rank ] || [ "${names[i]}" != "$harmed" ] || continue
        while kill -0 "${pids[i]}" 2>/dev/null; do
            [ "$(now_ms)" -lt "$until" ] || return 1
            sleep 0.01
        done
    done
}
one_harm() { # PEER KIND: sets took (milliseconds, or empty: it went on), told, left
    local peer=$1 kind=$2 began name
    : >said
    rm -rf job
    mkdir job
    for name in "${names[@]}"; do files_on "$name" >"before.$name"; done
    run "$peer" 2 "${names[*]}" loop 100000000
    took='' told='' left='' problem=
    averages || { problem="did not start"; cp said "$work/../peers.said" 2>/dev/null; tail -n 5 said; clear_bed; return; }
    sleep 1
    cp said before.said
    began=$(now_ms)
    harm "$kind"
    if ends "$kind"; then took=$(($(now_ms) - began)); else kill -TERM "${pids[@]}" 2>/dev/null; fi
    await_nothing
    # A name, a number or an address of what was harmed.
    told=$(tail -c +$(($(wc -c <before.said) + 1)) said | grep -m 1 -E "\b$harmed\b|[Rr]ank[]: =]*[23]\b|[Pp]rocess \[?[23]\b|10\.99\.0\.2\b")
    if [ "$kind" = freeze ]; then # it answers only once it goes on
        "$hosts" --thaw "$harmed"
        await_nothing
    fi
    clear_bed
}
harm_row() { # PEER KIND
    local peer=$1 kind=$2 times=() hangs=0 tell=0 count=0 most_left='' text number
    while [ $count -lt "$tries" ] && [ $hangs -lt 2 ]; do
        one_harm "$peer" "$kind"
        [ -z "$problem" ] || { row harm "$peer" "$kind" "$problem"; return; }
        count=$((count + 1))
        if [ -n "$took" ]; then times+=("$took"); else hangs=$((hangs + 1)); fi
        [ -z "$told" ] || tell=$((tell + 1))
        [ "$(wc -c <<<"$left")" -le "$(wc -c <<<"$most_left")" ] || most_left=$left
        echo "    $peer $kind: ${took:-goes on} ms; says: ${told:0:150}; left: ${left//$'\n'/; }"
    done
    case $hangs in
    0) text= ;;
    "$count") text="goes on after $limit s" ;;
    *) text="goes on after $limit s in $hangs of $count" ;;
    esac
    [ ${#times[@]} = 0 ] || text+="${text:+; }$(seconds "$(printf '%s\n' "${times[@]}" | middle)") s"
    if [ "$kind" != launcher ]; then
        [ $tell = 0 ] && text+="; does not name it"
        [ $tell = $count ] && text+="; names it"
        [ $tell = 0 ] || [ $tell = $count ] || text+="; names it $tell of $count times"
    else
        text=
    fi
    number=$(awk '{ p += $2; f += $4 } END { print p + 0, f + 0 }' <<<"$most_left")
    case $number in
    "0 0") number="nothing" ;;
    "0 "*) number="${number#* } files" ;;
    *" 0") number="${number% *} processes" ;;
    *) number="${number% *} processes, ${number#* } files" ;;
    esac
    row harm "$peer" "$kind" "$text${text:+; }$number left"
}

cd "$HOSTS_DIR" || exit 1
harmed=green
for peer in $peers; do
    why=$(missing "$peer")
    [ -n "$why" ] || echo "# $peer: $(version "$peer")"
    case $inside in
    start4)
        for kind in 4x2 loop; do
            case " $starts " in *" $kind "*) ;; *) continue ;; esac
            if [ -n "$why" ]; then row start "$peer" $kind "$why"
            elif [ $kind = loop ]; then start_row "$peer" loop 2 "${names[*]}" loop 1
            else start_row "$peer" 4x2 2 "${names[*]}" true; fi
        done ;;
    start*)
        count=${inside#start}
        if [ -n "$why" ]; then row start "$peer" "$count" "$why"
        else start_row "$peer" "$count" 1 "$(seq -s ' ' -f 'm%g' "$count")" true; fi ;;
    harm)
        for kind in $harms; do
            if [ -n "$why" ]; then row harm "$peer" "$kind" "$why"; else harm_row "$peer" "$kind"; fi
        done ;;
    esac
done
