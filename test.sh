#!/usr/bin/env bash
# test.sh - installs what the tests need, builds, and passes them: style, analysis, sanitizers, all
# of ctest. Ends with ctest's closing line. 12 to 17 minutes on two cores, with an empty compiler cache.
#
#   ./test.sh                what every change passes
#   ./test.sh --quick        the dev build and its tests, without those marked long; two to four minutes
#   ./test.sh --all          for the night: also what the above leave out for its time
#   ./test.sh --no-install   with what is there
#
# --quick leaves out style, analysis, sanitizers, code for a GPU, and the tests with the label long:
# valgrind over whole jobs, every case on threads of three ranks (processes have them too), worlds of two
# ranks and of eight, four hundred seeds of the simulator, the larger worlds of the explorer, the matrix
# of faults, killed saves, loss curves, jobs that shard, compress or compute in 16 bits, groups of the
# engine, engines in processes and over NCCL's double, PyTorch's ranks, the programs of tests/bench, the
# trainer's replica and whole runs of it on simulated GPUs, installation.
# Only --all runs what has found no error of its own so far, with the reason of each:
#   label repeat        the same cases on other numbers of ranks and nodes (engines on more than
#                       four ranks and three nodes, NCCL's on four; on one node alone the cases of ranks
#                       that do not differ there; Horovod's), with more seeds, in another order of
#                       threads; sharding with every stage and number of ranks, and loss curves of every
#                       type and level, where the others try each claim once; the rehearsal of a visit to
#                       a GPU and its planted errors, whose steps are tests of their own; jobs on bad links, which
#                       faults_machines has too, and its other harms, each like one that it has; the Python
#                       tests over the backend in C++, which is compiled for a minute first
#   label unsanitized   under the address sanitizer: tests that differ from others in ranks, nodes,
#                       launcher or order alone; cases of ranks in processes that do not differ from
#                       those on threads; whole jobs of whose code smaller tests run all, and looks at
#                       the sockets of such; the trainer's model on a simulated GPU in fp32, whose code
#                       the tests in 16 bits run
#   libFuzzer           30 seconds for each parser: ctest runs the same targets, with their corpus and
#                       thousands of mutations, under the address sanitizer
#   clang-tidy          follows a function seven times as far
#   Slurm, mpirun       jobs of real ones
# Tests of many sizes have fewer of them under a sanitizer (tests/unit/sanitizer.h).
# The builds with sanitizers and the analysis run beside the tests of the dev build, at the lowest
# priority; each says what it took. Their processors' seconds count in the last stage.
set -u -o pipefail
cd "$(dirname "$0")" || exit 1
. cmake/packages.sh

quick=0 install=1 all=0
for argument in "$@"; do
    case $argument in
    --quick) quick=1 ;;
    --all) all=1 ;;
    --no-install) install=0 ;;
    --help | -h) sed -n '2,39s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "test.sh: $argument: unknown; --quick, --all, --no-install or --help" >&2; exit 2 ;;
    esac
done
[ $quick = 0 ] || [ $all = 0 ] || { echo "test.sh: --quick and --all exclude each other" >&2; exit 2; }

jobs=$(nproc)
# Most tests wait for other processes most of the time, so more of them than cores run at once.
# Those that keep all cores busy say so in their PROCESSORS.
test_jobs=$((5 * jobs / 2))
if command -v ccache >/dev/null 2>&1; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
    export CMAKE_CUDA_COMPILER_LAUNCHER=ccache
fi

failed=() beside=
fail() { echo "FAILED: $*"; failed+=("$*"); }

# Stages, each with the time and the processors' seconds that it took.
name= began=$SECONDS stage_began=$SECONDS stage_cpu=0
clock() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }
children_cpu() { # whole seconds of this shell's children, into cpu
    times >build-times
    cpu=$(awk 'NR == 2 { split($1, user, /[ms]/); split($2, kernel, /[ms]/)
        printf "%d", user[1] * 60 + user[2] + kernel[1] * 60 + kernel[2] }' build-times)
    rm -f build-times
}
end_stage() {
    [ -z "$name" ] && return
    children_cpu
    echo "   took $(clock $((SECONDS - stage_began))), $((cpu - stage_cpu)) processor seconds"
    stage_cpu=$cpu
}
stage() {
    end_stage
    name=$* stage_began=$SECONDS
    printf '\n== %s  (+%s)\n' "$*" "$(clock $((SECONDS - began)))"
}

# A line now and then of what ninja and ctest say, so that a slow machine is seen to be working.
progress() {
    awk '/^\[[0-9]+\/[0-9]+\]/ && ++steps % 100 == 0 { print "   " $1; fflush() }
         /Test +#[0-9]+:/ && ++tests % 25 == 0 { print "   " $1 " tests"; fflush() }'
}

build() { # "preset settings..." targets...
    local preset=${1%% *} settings=${1#"${1%% *}"}
    shift
    # shellcheck disable=SC2086 # a list of words
    cmake --preset "$preset" $settings >"build-$preset.log" 2>&1 &&
        cmake --build --preset "$preset" -j "$jobs" -- "$@" 2>&1 | tee -a "build-$preset.log" | progress &&
        rm -f "build-$preset.log" && return 0
    tail -n 40 "build-$preset.log"
    return 1
}

# What needs a compiler only. It runs beside the tests, at the lowest priority: tests wait for each other and
# for clocks, and leave the processors idle for a part of their time.
format() {
    sources | xargs clang-format --dry-run -Werror 2>build-format.log && { rm -f build-format.log; return 0; }
    head -n 20 build-format.log
    rm -f build-format.log
    return 1
}
tidy() {
    local result=0
    # Each file once, as it is first compiled: not again per instruction set and double.
    mkdir -p build-tidy
    python3 -c 'import json, sys
commands = {}
for command in json.load(sys.stdin): commands.setdefault(command["file"], command)
json.dump(list(commands.values()), sys.stdout)' <build-dev/compile_commands.json >build-tidy/compile_commands.json
    # The file's own arguments come last, so the night's take their place.
    if [ $all = 1 ]; then sed "s/max-nodes=[0-9]*/max-nodes=75000/" .clang-tidy; else cat .clang-tidy; fi >build-tidy/config
    git ls-files 'kernels/*.c' 'runtime/*.c' 'fusion/*.c' 'coordinator/*.c' 'launcher/*.c' 'examples/*.c' |
        xargs -P "$jobs" -n 1 clang-tidy -p build-tidy --config-file=build-tidy/config --quiet >build-tidy.log 2>/dev/null ||
        { grep -E 'warning:|error:' build-tidy.log | sort -u | head -n 30; result=1; }
    rm -rf build-tidy.log build-tidy
    return $result
}
beside() { # NAME=COMMAND...: one after the other, into build-beside/NAME.log and NAME.code
    local what name
    renice -n 19 -p $BASHPID >/dev/null
    for what in "$@"; do # NAME alone is its own command
        name=${what%%=*}
        { TIMEFORMAT='   took %0lR beside the tests, %0U + %0S processor seconds'
          time ${what#*=}; echo $? >"build-beside/$name.now"; } >"build-beside/$name.log" 2>&1
        mv "build-beside/$name.now" "build-beside/$name.code"
    done
}
start_beside() {
    rm -rf build-beside
    mkdir build-beside
    set -m # a process group of its own, which goes where this script is interrupted
    beside "$@" &
    beside=$!
    set +m
    trap '[ -z "$beside" ] || kill -- -$beside 2>/dev/null' EXIT
    trap 'exit 130' INT TERM
}
await() { # NAME: waits for it, prints what it said, returns its code
    local code=1
    while [ ! -f "build-beside/$1.code" ] && kill -0 "$beside" 2>/dev/null; do sleep 0.5; done
    cat "build-beside/$1.log"
    [ ! -f "build-beside/$1.code" ] || code=$(cat "build-beside/$1.code")
    return "$code"
}

# What failed tests printed, 80 lines of each, and ctest's summary.
failures() {
    awk '/^ *[0-9]+\/[0-9]+ Test +#/ { shown = /\*\*\*/ ? 80 : 0 }
         /^ +Start +[0-9]+:/ { next }
         /tests passed, .* failed/ { shown = 1000 }
         shown-- > 0 { print }' "$1"
}

# Tests of a sanitizer's build: shown only where one fails.
sanitized() { # preset ctest's selection...
    local preset=$1 result=0
    shift
    ctest --test-dir "build-$preset" --output-on-failure "$@" 2>&1 |
        tee "build-$preset.log" | progress || result=1
    [ $result = 0 ] || failures "build-$preset.log"
    tail -n 3 "build-$preset.log"
    rm -f "build-$preset.log"
    return $result
}

# Files of ours, as git sees them.
sources() { git ls-files '*.c' '*.h' '*.cc' '*.cu' '*.cuh' 2>/dev/null; }

stage "packages"
if [ $install = 1 ]; then
    packages="$dp_build_packages
$dp_test_packages"
    [ $all = 0 ] || packages="$packages
$dp_night_packages"
    dp_install "$packages" || exit 1
fi

# Perfetto's own definitions, for one test that decodes our files with them; it skips without.
if [ $install = 1 ] && [ ! -x build-perfetto/bin/python ]; then
    python3 -m venv build-perfetto >/dev/null 2>&1 &&
        build-perfetto/bin/pip install -q perfetto >/dev/null 2>&1 ||
        { echo "no perfetto package to be had: its test will skip"; rm -rf build-perfetto; }
fi
[ -x build-perfetto/bin/python ] && export PERFETTO_PYTHON=$PWD/build-perfetto/bin/python

# A PyTorch whose backends may be written in Python, which Debian's is not, from where pip gets its
# packages: 200 MB where PIP_INDEX_URL names an index with wheels for CPUs, else 3 GB with CUDA. So only CI
# and the night fetch it, while the dev build runs.
torch=
if [ $install = 1 ] && [ $quick = 0 ] && { [ $all = 1 ] || [ "${CI:-}" = true ]; } && [ -z "${TORCH_PYTHON:-}" ] &&
    [ ! -x build-torch/bin/python ] && [ ! -x build-python/bin/python ]; then
    { python3 -m venv build-torch && timeout -k 5 900 build-torch/bin/pip install -q torch numpy expecttest ||
        rm -rf build-torch; } >/dev/null 2>&1 &
    torch=$!
fi

# Other people's frameworks, on top of that PyTorch, for tests that run them over libdp.
clients='accelerate transformers lightning ray[train] pandas torchvision'
start_clients() { # once build-torch is there
    [ $all = 1 ] && [ $install = 1 ] && [ -x build-torch/bin/python ] && [ -z "${CLIENTS_PYTHON:-}" ] &&
        [ ! -x build-clients/bin/python ] || return 0
    # shellcheck disable=SC2086 # a list of words
    { python3 -m venv build-clients &&
        (cd build-torch/lib/python3*/site-packages && pwd) >"$(echo build-clients/lib/python3*/site-packages)/torch.pth" &&
        timeout -k 5 900 build-clients/bin/pip install -q $clients &&
        DS_BUILD_OPS=0 timeout -k 5 300 build-clients/bin/pip install -q --no-build-isolation deepspeed ||
        { echo "no frameworks to be had: the test python_clients will skip"; rm -rf build-clients; }; } 2>&1 | tail -n 2
    for repository in karpathy/nanoGPT pytorch/examples; do
        timeout -k 5 120 git clone -q --depth 1 "https://github.com/$repository" "build-clients/${repository#*/}" 2>/dev/null ||
            echo "no $repository to be had: the test python_clients will skip it"
    done
}

stage "build: dev (warnings are errors, assertions on)"
# Code for a device, which only --quick leaves out, is no part of its tests.
targets= without=OFF
[ $quick = 0 ] || targets=quick without=ON
# shellcheck disable=SC2086 # none or one
build "dev -DDP_WITHOUT_DEVICE_CODE=$without" $targets || { echo "test.sh: the build failed; see build-dev.log"; exit 1; }

if [ $quick = 0 ]; then
    start_beside "asan=build asan" "tsan=build tsan threaded" format tidy
fi

stage "test: everything (its whole output is at the end)"
if [ -n "$torch" ]; then
    wait "$torch"
    [ -x build-torch/bin/python ] ||
        echo "no PyTorch to be had: the backend's tests will skip (TORCH_PYTHON names an interpreter that has one)"
fi
start_clients
left_out=(-LE repeat)
[ $quick = 0 ] || left_out=(-LE 'repeat|long|gpu')
[ $all = 0 ] || left_out=()
result=0
ctest --test-dir build-dev -j "$test_jobs" --output-on-failure ${left_out[@]+"${left_out[@]}"} 2>&1 |
    tee build-dev/everything.log | progress || result=1
[ $result = 0 ] || failures build-dev/everything.log

if [ $quick = 0 ]; then
    # The dev build, with its assertions on, passes all of it; see the head for what is left out here.
    selection=(-LE 'browser|slow|bench|style|docs|repeat|unsanitized')
    [ $all = 0 ] || selection=(-LE 'browser|slow|bench|style|docs')
    # Both at once: the address sanitizer's tests wait for each other and for clocks for a third of their time.
    # Whatever has threads has the label tsan. UCX is not instrumented, so tests that time its deaths
    # are left out, and its hooks on memory calls crash a sanitized thread that ends.
    stage "sanitizers: address + undefined, thread"
    address= thread=
    if await asan; then
        LSAN_OPTIONS="suppressions=$PWD/tests/lsan.supp:print_suppressions=0" \
            sanitized asan -j "$test_jobs" "${selection[@]}" &
        address=$!
    else
        fail "address+undefined build"
    fi
    if await tsan; then
        UCX_MEM_EVENTS=n UCX_MEM_MMAP_HOOK_MODE=none sanitized tsan -j "$jobs" -L tsan >build-tsan.told &
        thread=$!
    else
        fail "thread build"
    fi
    if [ -n "$address" ]; then wait "$address" || fail "address+undefined"; fi
    if [ -n "$thread" ]; then
        echo "   thread:"
        wait "$thread" || fail "thread"
        cat build-tsan.told
        rm -f build-tsan.told
    fi

    stage "style: clang-format"
    await format || fail "clang-format"
    stage "analysis: clang-tidy"
    await tidy || fail "clang-tidy"
    wait "$beside"
    beside=
    rm -rf build-beside

    if [ $all = 1 ]; then
        stage "fuzz: libFuzzer, 30 seconds for each parser"
        tests/fuzz/run.sh 30 || fail "fuzz"
    fi
fi

# One line: the tests that this run left out, why, and how to run them.
what_was_left_out() {
    local labels='' skipped name python='' others='' text=
    [ $all = 1 ] || labels='repeat'
    [ $quick = 0 ] || labels='repeat|long|gpu'
    [ -z "$labels" ] || text="$(ctest --test-dir build-dev -N -L "$labels" | sed -n 's/^Total Tests: //p') tests of the labels $labels (./test.sh --all runs all)"
    skipped=$(sed -n 's/^ *[0-9]*\/[0-9]* Test *#[0-9]*: \([^ ]*\) .*\*\*\*Skipped.*/\1/p' build-dev/everything.log | sort)
    for name in $skipped; do
        case $name in
        python_*) python="$python ${name#python_}" ;;
        *) others="$others $name" ;;
        esac
    done
    [ -z "$python" ] || text="$text${text:+; }of Python, which want PyTorch 2.14 or later (TORCH_PYTHON=ENVIRONMENT/bin/python ./test.sh, or CI=true ./test.sh, which fetches it):$python"
    [ -z "$others" ] || text="$text${text:+; }for want of what they name (ctest --test-dir build-dev -V -R NAME says it):$others"
    echo "left out: ${text:-nothing}"
}

stage "test: everything, as ctest told it"
sed '/tests passed, .* failed/,$d' build-dev/everything.log
what_was_left_out
sed -n '/tests passed, .* failed/,$p' build-dev/everything.log
rm -f build-dev/everything.log
for what in ${failed[@]+"${failed[@]}"}; do
    echo "FAILED before ctest: $what"
    result=1
done
exit $result
