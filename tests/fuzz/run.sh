#!/usr/bin/env bash
# run.sh - builds every fuzz target with clang's libFuzzer, address and undefined sanitizers, runs
# each for a while, one on each core, and prints a table. Ends with 1 when one of them found something.
#
#   run.sh [--keep] [--build DIR] [SECONDS [TARGET...]]     60 seconds each, all targets
#
# It begins with the corpus kept here, the seeds and what earlier runs left in the build folder.
# New inputs that reach new code stay there. Runs of 30 seconds and more end by choosing the fewest
# inputs that reach all of it; --keep makes those the corpus here. An input that crashes is in
# DIR/fuzz/crashes: run the target's program with it as its argument, and keep it as CMakeLists.txt says.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1
root=$(cd "$here/../.." && pwd) || exit 1
build=$root/build-fuzz
keep=0
while [ $# -gt 0 ]; do
    case $1 in
    --keep) keep=1 ;;
    --build) build=$2; shift ;;
    --help | -h) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) break ;;
    esac
    shift
done
seconds=${1:-60}
[ $# -gt 0 ] && shift

if ! cmake --preset fuzz -S "$root" -B "$build" >"$build.log" 2>&1 ||
    ! cmake --build "$build" --target fuzz_all >>"$build.log" 2>&1; then
    tail -n 20 "$build.log"
    exit 1
fi
rm -f "$build.log"
cd "$build/fuzz" || exit 1
mkdir -p crashes
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}
export UBSAN_OPTIONS=print_stacktrace=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}

limits=(-rss_limit_mb=2560 -malloc_limit_mb=2048 -max_len=16384)

status() { sed -n "s/^stat::$2: *//p" "$1" | tail -n 1; }

# Runs one target and prints its row. Ends with 1 when it found something.
run() { # PROGRAM
    local program=$1 name=${1#./fuzz_} found=0 kept edges runs=-1
    local corpus=$here/corpus/$name.txt ours=ours/$name
    # TCP keeps the port of each of their inputs for a minute, and a machine has 28,000.
    case $name in kv_client | kv_server) runs=8000 ;; esac
    rm -rf "$ours"
    mkdir -p "work/$name" "seeds/$name" "$ours"
    "$program" --seeds "seeds/$name" || found=1
    [ ! -f "$corpus" ] || "$program" --unpack "$corpus" "$ours" || found=1
    "$program" "work/$name" "seeds/$name" "$ours" -max_total_time="$seconds" -runs=$runs \
        "${limits[@]}" -timeout=20 -print_final_stats=1 -artifact_prefix="crashes/$name-" >"fuzz_$name.log" 2>&1 || {
        found=1
        echo "fuzz_$name: see $build/fuzz/fuzz_$name.log and crashes/$name-*" >&2
    }
    kept=work/$name
    if [ "$keep" = 1 ] || [ "$seconds" -ge 30 ]; then
        # Of equal inputs the smaller stays, and what is kept here before what is new.
        kept=merged/$name
        rm -rf "$kept"
        mkdir -p "$kept"
        "$program" -merge=1 -use_counters=0 "${limits[@]}" -artifact_prefix="crashes/$name-" \
            "$kept" "$ours" "seeds/$name" "work/$name" >"$kept.log" 2>&1 || found=1
    fi
    if [ "$keep" = 1 ] && [ -n "$(ls -A "$kept")" ]; then
        { # an input with a comment above it stays, whatever it reaches
            [ ! -f "$corpus" ] || awk '/^#/ { print; commented = 1; next } commented { print; commented = 0 }' "$corpus"
            "$program" --lines "$kept"/* | LC_ALL=C sort -u
        } >"$corpus.new" && mv "$corpus.new" "$corpus"
    fi
    edges=$(grep -oE 'cov: [0-9]+' "fuzz_$name.log" | tail -n 1)
    printf '%-12s %12s %9s %7s %7s %8s  %s\n' "$name" "$(status "fuzz_$name.log" number_of_executed_units)" \
        "$(status "fuzz_$name.log" average_exec_per_sec)" "${edges#cov: }" \
        "$(find "$kept" -type f | wc -l)" "$(find "$kept" -type f -exec cat {} + | wc -c)" \
        "$(find crashes -name "$name-*" | wc -l)"
    return $found
}

failed=0 running=0
printf '%-12s %12s %9s %7s %7s %8s  %s\n' target executions per_sec edges corpus bytes found
for program in ./fuzz_*; do
    [ -x "$program" ] || continue
    name=${program#./fuzz_}
    case $name in *.log) continue ;; esac
    [ $# -eq 0 ] || [[ " $* " == *" $name "* ]] || continue
    if [ "$running" -ge "$(nproc)" ]; then
        wait -n || failed=1
        running=$((running - 1))
    fi
    run "$program" &
    running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
    wait -n || failed=1
    running=$((running - 1))
done
exit $failed
