#!/usr/bin/env bash
# run.sh - are the tests a proof? Puts one programming error at a time into a copy of the sources,
# runs the tests that should find it, the quick ones first, and prints which did and how fast.
# Ends with 1 when an error survives, or is found by fewer programs than it asks for.
#
#   run.sh [--only PATTERN]... [--jobs J] [--all] [--unchecked] [--list] [--fits]
#
#   --only PATTERN  errors whose name contains it, as in 07 or agree; may be given several times
#   --jobs J        so many errors at the same time (one for each core)
#   --all           run every program, also after enough have found the error
#   --unchecked     do not run the unchanged sources first
#   --list          print the errors and what a user would see of each
#   --fits          print the errors that do not apply to the sources any more, and run nothing
#
# errors/PART.patches has the errors of one part of the tree. An error begins with `### NAME`, where
# NAME begins with a number of its own, then comes `# ` and the symptom, then more lines that begin
# with #: `finders: N`, programs that must find it (1); `tests: NAME...`, of the cmake build, for
# errors outside of the protocol (TARGET,TARGET:NAME where the test's programs have other names);
# `harmless: WHY`, it need not be found. The patch follows.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1
root=$(cd "$here/../.." && pwd) || exit 1
jobs=$(nproc)
run_all=0 list=0 unchecked=0 fits=0
only=()
while [ $# -gt 0 ]; do
    case $1 in
    --only) only+=("$2"); shift ;;
    --jobs) jobs=$2; shift ;;
    --all) run_all=1 ;;
    --unchecked) unchecked=1 ;;
    --list) list=1 ;;
    --fits) fits=1 ;;
    --help | -h) sed -n '2,19s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "run.sh: unknown: $1, see --help" >&2; exit 2 ;;
    esac
    shift
done

# The protocol, what it needs, and the programs that check it, without the rest of libdp.
sources="$(cd "$root" && printf '%s\n' coordinator/negotiator/*.c)
    runtime/group/topology.c runtime/base/wire.c runtime/base/status.c runtime/engine/engine.c"
folders="coordinator include kernels fusion runtime tests/sim tests/unit"
wrap=-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup
flags="-std=c17 -O1 -g -D_GNU_SOURCE -DDP_ASSERTS=1 -w -I. -Iinclude"
# Name, how it is compiled, what it is made of. Quick ones first.
programs=(
    "sim_scenarios checked tests/sim/scenarios.c,tests/sim/scenario_world.c,tests/sim/world.c,tests/sim/world_end.c,tests/unit/fail_allocation.c"
    "test_signature checked tests/unit/coordinator/negotiator/test_signature.c"
    "test_negotiator checked tests/unit/coordinator/negotiator/test_negotiator.c,tests/sim/world.c,tests/sim/world_end.c"
    "test_negotiator_groups checked tests/unit/coordinator/negotiator/test_negotiator_groups.c,tests/sim/world.c,tests/sim/world_end.c"
    "test_negotiator_priority checked tests/unit/coordinator/negotiator/test_negotiator_priority.c,tests/sim/world.c,tests/sim/world_end.c"
    "test_stall checked tests/unit/coordinator/negotiator/test_stall.c,tests/sim/world.c,tests/sim/world_end.c"
    "test_negotiator_memory plain tests/unit/coordinator/negotiator/test_negotiator_memory.c,tests/unit/fail_allocation.c"
    "sim_negotiator plain tests/sim/sim_negotiator.c,tests/sim/script.c,tests/sim/world.c,tests/sim/world_end.c"
    "explore plain tests/sim/explore.c,tests/sim/digest.c,tests/sim/moments.c,tests/sim/plans.c,tests/sim/world.c,tests/sim/world_end.c"
)
# How the programs are run: one may have several runs.
runs=(
    "sim_scenarios" "test_signature" "test_negotiator" "test_negotiator_groups"
    "test_negotiator_priority" "test_stall" "test_negotiator_memory" "sim_negotiator --seed 4825"
    "sim_negotiator --seeds 1 150"
    "explore --size pair" "explore --size pair --names 1" "explore --size groups" "explore --size groups --names 1" "explore --size contest"
    "sim_negotiator --seeds 151 1200" "explore --size trio"
)
# A program that takes longer hangs.
seconds_for() { # PROGRAM
    case $1 in explore | sim_negotiator) echo 600 ;; *) echo 60 ;; esac
}
export ASAN_OPTIONS=detect_leaks=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}

of() { # FILE FIELD: what an error says of itself
    sed -n "s/^# $2: //p" "$1" | head -n 1
}

mode_flags() {
    case $1 in
    checked) echo "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer" ;;
    *) echo "" ;;
    esac
}

# Compiles one file of the folder we are in, where its object is older or missing.
compile() { # MODE FILE
    local object=objects/$1/${2%.c}.o
    [ -e "$object" ] && return 0
    mkdir -p "$(dirname "$object")"
    # shellcheck disable=SC2046,SC2086
    ${CC:-cc} $flags $(mode_flags "$1") -c "$2" -o "$object"
}

# Makes one program of the folder we are in.
make_program() { # NAME
    local row name mode parts file
    local objects=() more=()
    for row in "${programs[@]}"; do
        read -r name mode parts <<<"$row"
        [ "$name" = "$1" ] && break
    done
    for file in $sources ${parts//,/ }; do
        compile "$mode" "$file" || return 1
        objects+=("objects/$mode/${file%.c}.o")
    done
    [ "$name" = explore ] && more=("$wrap,--wrap=free")
    case $parts in *fail_allocation*) more=("$wrap") ;; esac
    # shellcheck disable=SC2046
    ${CC:-cc} $(mode_flags "$mode") "${objects[@]}" "${more[@]}" -o "$name" -lcmocka -lm
}

# Copies what the protocol's tests are made of.
copy_sources() { # FOLDER
    mkdir -p "$1"
    # shellcheck disable=SC2086
    (cd "$root" && find $folders \( -name '*.c' -o -name '*.h' \) -print0) |
        (cd "$root" && tar --null -cf - -T -) | tar -xf - -C "$1"
}

# What a patch changes must be compiled again: of a header, everything.
forget_objects() { # PATCH
    local file
    for file in $(sed -n 's,^+++ b/,,p' "$1"); do
        case $file in
        *.c) rm -f objects/*/"${file%.c}".o ;;
        *) rm -rf objects ;;
        esac
    done
}

now() { date +%s.%N; }

# Prints "PROGRAM SECONDS" for each that finds the error in the folder we are in, until enough have.
find_error() { # ENOUGH
    local run name begin code found=" " count=0
    for run in "${runs[@]}"; do
        name=${run%% *}
        case $found in *" $name "*) continue ;; esac
        if [ ! -e "$name" ] && ! make_program "$name" >log.build 2>&1; then
            echo "does not compile"
            return
        fi
        begin=$(now)
        # shellcheck disable=SC2086
        (timeout "$(seconds_for "$name")" ./$run; exit $?) >"log.$name" 2>&1 # no word of an abort here
        code=$?
        [ $code = 0 ] && continue
        found="$found$name "
        count=$((count + 1))
        echo "$name $(echo "$(now) - $begin" | bc)$([ $code = 124 ] && echo ' hangs')"
        [ $run_all = 0 ] && [ $count -ge "$1" ] && return
    done
}

# The same for tests of the cmake build, which lies beside the copy and is made again for each.
find_error_in_build() { # [TARGET:]NAME...
    local each targets name begin
    for each in "$@"; do
        name=${each##*:}
        targets=${each%%:*}
        # shellcheck disable=SC2086 # a list of words
        if ! cmake --build build --parallel "$jobs" --target ${targets//,/ } >log.build 2>&1; then
            echo "does not compile"
            return
        fi
        begin=$(now)
        ctest --test-dir build -R "^$name\$" --timeout 300 >"log.$name" 2>&1 && continue
        echo "$name $(echo "$(now) - $begin" | bc)"
        [ $run_all = 0 ] && return
    done
}

# One error in a copy of its own; its row in the table goes to the folder's file `row`.
try_protocol() { # PATCH
    local name folder finders
    name=$(basename "$1" .patch)
    folder=$work/$name
    finders=$(of "$1" finders)
    cp -al "$work/base" "$folder" # what is written later takes the place of a link
    (
        cd "$folder" || exit 1
        rm -f log.* finders "${programs[@]%% *}"
        if ! patch -p1 -s <"$1" >log.patch 2>&1; then
            echo "does not apply" >finders
        else
            forget_objects "$1"
            find_error "${finders:-1}" >finders
        fi
    )
    report "$1" "$folder/finders"
    rm -rf "$folder"
}

# One copy for all errors outside of the protocol: each makes again what it touches, no more.
prepare_build() {
    mkdir -p "$work/build"
    (cd "$root" && git ls-files -z | tar --null -cf - -T -) | tar -xf - -C "$work/build"
    (cd "$work/build" && cmake --preset dev -B build >log.configure 2>&1) && return
    echo "run.sh: the build cannot be configured" >&2
    tail -n 5 "$work/build/log.configure" >&2
    return 1
}

try_build() { # PATCH TEST...
    local patch=$1
    shift
    (
        cd "$work/build" || exit 1
        if patch -p1 -s <"$patch" >log.patch 2>&1; then
            find_error_in_build "$@" >finders
            patch -R -p1 -s <"$patch"
        else
            echo "does not apply" >finders
        fi
    )
    report "$patch" "$work/build/finders"
}

# A row of the table, and what kind of end it was.
report() { # PATCH FINDERS
    local name finders count verdict=found wanted why
    name=$(basename "$1" .patch)
    wanted=$(of "$1" finders)
    why=$(of "$1" harmless)
    finders=$(paste -s -d, "$2" | sed 's/,/, /g')
    count=$(wc -l <"$2")
    case $finders in
    "does not "*) verdict=broken ;;
    *)
        if [ "$count" -lt "${wanted:-1}" ]; then verdict=SURVIVES; fi
        if [ $verdict = SURVIVES ] && [ -n "$why" ]; then verdict=harmless; fi
        ;;
    esac
    printf '%-9s %-44s %s\n' "$verdict" "$name" "${finders:-${why:-nobody}}" | tee -a "$work/table"
}

work=$(mktemp -d "${TMPDIR:-/tmp}/mutation.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
mkdir "$work/errors"
awk -v folder="$work/errors" '/^### / { file = folder "/" $2 ".patch"; next } { print > file }' "$here"/errors/*.patches

chosen=()
for patch in "$work"/errors/*.patch; do
    name=$(basename "$patch" .patch)
    match=0
    [ ${#only[@]} = 0 ] && match=1
    for pattern in "${only[@]}"; do
        case $name in *"$pattern"*) match=1 ;; esac
    done
    [ $match = 1 ] && chosen+=("$patch")
done
if [ ${#chosen[@]} = 0 ]; then
    echo "run.sh: no error is named like that" >&2
    exit 2
fi
if [ $list = 1 ]; then
    for patch in "${chosen[@]}"; do
        printf '%-44s %s\n' "$(basename "$patch" .patch)" "$(sed -n '1s/^# //p' "$patch")"
    done
    exit 0
fi
if [ $fits = 1 ]; then
    type -P git >/dev/null || { echo "skipped: no git"; exit 77; }
    cd "$root" || exit 1
    bad=0
    for patch in "${chosen[@]}"; do
        git apply --check "$patch" 2>/dev/null && continue
        echo "tests/mutation/errors: $(basename "$patch" .patch) does not apply"
        bad=1
    done
    exit $bad
fi
: >"$work/table"

# Nothing can be said where the unchanged sources fail.
check_unchanged() { # FINDERS
    [ -s "$1" ] || return 0
    echo "run.sh: the unchanged sources fail: $(paste -s -d, "$1")" >&2
    tail -n 5 "$(dirname "$1")"/log.* >&2
    return 1
}

all_tests="" has_protocol=0
for patch in "${chosen[@]}"; do
    tests=$(of "$patch" tests)
    if [ -n "$tests" ]; then all_tests="$all_tests $tests"; else has_protocol=1; fi
done
if [ $has_protocol = 1 ]; then
    copy_sources "$work/base"
    (
        cd "$work/base" || exit 1
        for program in "${programs[@]}"; do
            make_program "${program%% *}" || exit 1
        done
        : >finders
        [ $unchecked = 1 ] || (run_all=1 && find_error 99 >finders)
    ) || exit 1
    check_unchanged "$work/base/finders" || exit 1
fi
if [ -n "$all_tests" ]; then
    prepare_build || exit 1
    (
        cd "$work/build" || exit 1
        : >finders
        # shellcheck disable=SC2046,SC2086
        [ $unchecked = 1 ] || (run_all=1 && find_error_in_build $(printf '%s\n' $all_tests | sort -u) >finders)
    ) || exit 1
    check_unchanged "$work/build/finders" || exit 1
fi

for patch in "${chosen[@]}"; do
    tests=$(of "$patch" tests)
    # shellcheck disable=SC2086
    if [ -n "$tests" ]; then try_build "$patch" $tests; continue; fi
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    try_protocol "$patch" &
done
wait
echo
sort -k2 "$work/table" | awk '{ n[$1]++ } END { for (v in n) printf "%d %s\n", n[v], v }'
! grep -q '^SURVIVES\|^broken' "$work/table"
