# steps.sh - how parts and steps of a visit run, and how their results are kept.
#
# A part is a function of calls: `part LETTER NAME SECONDS TITLE`, then `step ...` for each step.
# Steps are written into results.json one by one, so what ended is kept whatever happens later.

tail_failed=200 tail_passed=25 # lines of a log in the results

# The time in ms, in `now`.
tick() {
    now=${EPOCHREALTIME/[.,]/}
    now=$((now / 1000))
}

begin_visit() {
    mkdir -p "$results" || exit 2
    results=$(cd "$results" && pwd)
    work=$(mktemp -d "${TMPDIR:-/tmp}/dp-visit-XXXXXX")
    mkdir -p "$work/logs" "$work/tuned" "$work/files"
    mkfifo "$work/never" && exec {never}<>"$work/never" # a read from it is a pause without a process
    tick
    began=$now planned_ms=0 passed=0 failed=0 skipped=0 group=
    trap 'stop_group; rm -rf "$work"' EXIT
    # No more than this: bash may abort where a trap that comes in a `read -t` exits.
    interrupted=0
    trap 'interrupted=1' INT TERM HUP
}

# results.json: a second command adds to the first one's steps. What another revision, GPU or driver found stays apart.
record() { # WHAT [FIELD...]
    local what=$1
    shift
    "$python" "$parts/record.py" "$what" "$results/results.json" "$work/facts" "$rehearsal" "$@"
}

# Ends whatever the present step has started.
stop_group() {
    [ -n "$group" ] || return 0
    kill -KILL -- "-$group" 2>/dev/null
    group=
}

# Keeps what there is, and ends the visit, after a signal.
end_if_interrupted() {
    [ "$interrupted" = 1 ] || return 0
    echo "run.sh: interrupted" >&2
    failed=$((failed + 1))
    stop_group
    end_visit
}

part() { # LETTER NAME SECONDS TITLE
    part_letter=$1 part_name=$2 part_seconds=$3 part_title=$4 part_end=0
    [ "$mode" != list ] || printf '\n%s  %-12s %4d s  %s\n' "$1" "$2" "$3" "$4"
}

# The first step that runs starts the part's budget. What earlier parts left of theirs comes on top.
start_part() {
    [ "$part_end" = 0 ] || return 0
    planned_ms=$((planned_ms + part_seconds * 1000))
    part_end=$((began + planned_ms))
    printf '\n%s. %s (at most %d s)\n' "$part_letter" "$part_title" "$part_seconds"
}

is_chosen() { # NAME
    local what
    [ -n "$only" ] || return 0
    for what in "$part_letter" "$part_name" "$1" "$part_letter.$1"; do
        case $only, in *",$what,"*) return 0 ;; esac
    done
    return 1
}

# step NAME SECONDS TITLE [OPTION...] -- COMMAND...
#   --wants CODE       the exit code that is a success [0]
#   --says PATTERN     what the log must hold, too
#   --never PATTERN    what it must not hold
#   --needs TOOL       a program of the machine; without it the step is skipped
#   --figures FUNCTION reads the log on stdin and prints NAME<TAB>VALUE<TAB>UNIT lines; there must be
#                      some where the step passed
#   --optional         exit code 77 is "skipped": a peer, not ours
# COMMAND may be a function. Arguments that lie in the package must be there: a missing program of
# ours is a failure.
step() {
    local name=$1 limit=$2 title=$3 wants=0 says='' never_says='' needs='' figures='' optional=0
    shift 3
    while [ "$1" != -- ]; do
        case $1 in
        --wants) wants=$2 && shift ;;
        --says) says=$2 && shift ;;
        --never) never_says=$2 && shift ;;
        --needs) needs=$2 && shift ;;
        --figures) figures=$2 && shift ;;
        --optional) optional=1 ;;
        esac
        shift
    done
    shift
    is_chosen "$name" || return 0
    if [ "$mode" = list ]; then
        printf '   %-18s %4d s  %s\n' "$part_letter.$name" "$limit" "$title"
        return 0
    fi
    end_if_interrupted
    start_part
    local id=$part_letter.$name log argument left verdict=failed note='' code=-1 seconds=0 hung=0
    log=$work/logs/$id.log
    : >"$log"
    printf '  %-14s %-41s ' "$id" "$title"
    tick
    left=$(((part_end - now) / 1000))
    [ "$left" -ge "$limit" ] || limit=$left
    [ "$most" = 0 ] || [ "$limit" -le "$most" ] || limit=$most
    if [ -n "$needs" ] && ! type -P "$needs" >/dev/null; then
        verdict=skipped note="this machine has no $needs"
    elif [ "$limit" -lt 1 ]; then
        note="not started: the $part_seconds s of part $part_letter are over"
    else
        for argument in "$@"; do
            case $argument in "$root"/*) [ -e "$argument" ] || note="not started: the package lacks ${argument#"$root"/}" ;; esac
        done
        if [ -z "$note" ]; then
            run_bounded "$limit" "$log" "$id" "$@"
            judge
        fi
    fi
    [ "$verdict" != failed ] || [ "$code" != -1 ] || echo "$note" >>"$log"
    keep_step
}

# What the exit code and the log say: sets verdict and note.
judge() {
    local last
    last=$(grep -v '^[[:space:]]*$' "$log" | tail -n 1 | cut -c 1-160)
    if [ "$hung" = 1 ]; then
        note="no end after $limit s: stacks in the log; it was killed"
    elif [ "$code" = 77 ] && [ "$optional" = 1 ]; then
        verdict=skipped note=$last
    elif [ "$code" != "$wants" ]; then
        note="exit code $code, wanted $wants: $last"
    elif [ -n "$says" ] && ! grep -qE -- "$says" "$log"; then
        note="exit code $code, but it does not say: $says"
    elif [ -n "$never_says" ] && grep -qE -- "$never_says" "$log"; then
        note="exit code $code, but it says: $(grep -E -- "$never_says" "$log" | head -n 1 | cut -c 1-120)"
    elif [ -n "$figures" ] && ! "$figures" <"$log" >"$work/step.figures"; then
        note="exit code $code, but its figures are not as they must be: $last"
    elif [ -n "$figures" ] && [ ! -s "$work/step.figures" ]; then
        note="exit code $code, but there are no figures in the log"
    else
        verdict=passed
        note=$last
        [ -z "$figures" ] || note=$(awk -F '\t' '{ printf "%s%s %s%s", (NR > 1 ? ", " : ""), $1, $2, ($3 == "" ? "" : " " $3) }' "$work/step.figures" | cut -c 1-160)
    fi
}

# Runs a command as a process group of its own; sets code, seconds, hung.
run_bounded() { # SECONDS LOG ID COMMAND...
    local limit=$1 log=$2 id=$3 start end pid
    shift 3
    tick
    start=$now end=$((start + limit * 1000)) hung=0
    set -m
    (
        trap - EXIT INT TERM HUP
        export VISIT_STEP=$id # for whoever stands in for a program
        "$@"
    ) >"$log" 2>&1 </dev/null {never}<&- &
    pid=$! group=$!
    set +m
    while kill -0 "$pid" 2>/dev/null; do
        end_if_interrupted
        tick
        if [ "$now" -ge "$end" ]; then
            hung=1
            break
        fi
        read -rt 0.05 -u "$never" _
    done
    [ $hung = 0 ] || end_hung_step "$pid" >>"$log" 2>&1
    if kill -0 "$pid" 2>/dev/null; then
        echo "process $pid cannot be killed: it hangs in the kernel or the driver" >>"$log"
        code=137
    else
        wait "$pid" 2>/dev/null
        code=$?
    fi
    stop_group # what it left behind
    tick
    seconds=$((now - start))
    seconds=$((seconds / 1000)).$(printf '%03d' $((seconds % 1000)))
}

# PID and all that descend from it, however they were started.
descendants() { # PID
    local file line
    for file in /proc/[0-9]*/stat; do # some end while we look
        { read -r line <"$file"; } 2>/dev/null && printf '%s %s\n' "${line%% *}" "${line##*) }"
    done | awk -v root="$1" '{ parent[$1] = $3 }
        END { for (pid in parent) { for (at = pid; at in parent && at != root && at > 1; at = parent[at]) ;
                                    if (at == root) print pid } }'
}

end_hung_step() { # PID
    local pids
    pids=$(descendants "$1")
    printf '\n== no end after %s s: every thread of its processes\n' "$limit"
    timeout -k 2 20 "$parts/stacks.sh" $pids
    printf '== it is ended\n'
    kill -TERM -- "-$1" 2>/dev/null
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        kill -0 -- "-$1" 2>/dev/null || break
        read -rt 0.25 -u "$never" _
    done
    kill -KILL -- "-$1" $pids 2>/dev/null
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        kill -0 "$1" 2>/dev/null || break
        read -rt 0.2 -u "$never" _
    done
}

# The step into results.json and onto the terminal.
keep_step() {
    local lines=$tail_passed figures=/dev/null
    [ "$verdict" != failed ] || lines=$tail_failed
    [ "$verdict" != passed ] || [ ! -s "$work/step.figures" ] || figures=$work/step.figures
    record step "$id" "$part_name" "$title" "$verdict" "$seconds" "$limit" "$code" "$note" "$log" "$lines" <"$figures"
    rm -f "$work/step.figures"
    case $verdict in
    passed) passed=$((passed + 1)) ;;
    skipped) skipped=$((skipped + 1)) ;;
    failed) failed=$((failed + 1)) ;;
    esac
    printf '%-8s %7.1f s  %s\n' "$verdict" "$seconds" "$note"
    [ "$verdict" != failed ] || tail -n 8 "$log" | cut -c 1-180 | sed 's/^/        | /'
}

list_parts() {
    local mode=list only='' letter
    for letter in a b c d e g h; do
        "part_$letter"
    done
}

# Logs and files into the results, few and small enough to be carried away; and the last word.
end_visit() {
    local file letters
    letters=$(ls "$work/logs" | cut -c 1 | sort -u | tr -d '\n')
    for file in "$work"/logs/*.log; do # the middle of a long one tells least
        [ "$(wc -c <"$file")" -le 1000000 ] ||
            { { head -c 200000 "$file"; printf '\n== cut ==\n'; tail -c 700000 "$file"; } >"$file.cut" && mv "$file.cut" "$file"; }
    done
    cp "$work"/tuned/* "$work/logs/" 2>/dev/null
    tar -C "$work" -czf "$results/logs-${letters:-none}.tar.gz" logs
    for file in "$work"/files/*; do
        [ -e "$file" ] && mv "$file" "$results/"
    done
    "$python" "$parts/record.py" table "$results/results.json" >"$results/table.txt"
    find "$results" -maxdepth 1 -type f -size +16000k | sed 's/^/warning: more than 16 MB: /'
    tick
    printf '\n%d passed, %d failed, %d skipped in %d s; results: %s\n' "$passed" "$failed" "$skipped" \
        $(((now - began) / 1000)) "$results"
    grep '^FAILED' "$results/table.txt"
    [ "$rehearsal" = 0 ] || echo "This was a REHEARSAL: doubles on a CPU; no figure means anything."
    [ "$failed" = 0 ]
    exit
}

# Our programs find the package's libraries, and the CUDA libraries that libraries.py found. Tools
# and peers of the machine keep their own: our libstdc++ under PyTorch would break it.
ours() {
    export LD_LIBRARY_PATH=$visit_library_path DP_DEVICE=cuda TMPDIR=$work
    unset DP_GPU_LIBRARY_PATH # libraries.py has read it; libdp warns of what is no setting
    [ -z "$visit_ucx" ] || export UCX_MODULE_DIR=$visit_ucx
    "$@"
}

# The same under a tool of the machine, which keeps its own libraries: wrapper=(TOOL OPTION...).
wrapper=()
by_tool() {
    [ ${#wrapper[@]} != 0 ] || { ours "$@"; return; }
    "${wrapper[@]}" env LD_LIBRARY_PATH="$visit_library_path" DP_DEVICE=cuda "$@"
}

# Ranks that share a GPU: more hardware queues, or one rank's wait holds up another's launch; and
# kernels loaded at once, as loading one behind a spinning NCCL kernel would wait for it.
sharing() {
    export CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_MODULE_LOADING=EAGER NCCL_DEBUG=${NCCL_DEBUG:-WARN}
    ours "$@"
}
