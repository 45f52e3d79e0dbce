#!/usr/bin/env bash
# test.sh - installs what the tests need, builds, and passes them: style, analysis, sanitizers, all
# of ctest. Ends with ctest's closing line. About fifteen minutes on two cores.
#
#   ./test.sh                everything
#   ./test.sh --quick        the dev build and its tests only
#   ./test.sh --repeats      also the same cases on other numbers of ranks and hosts
#   ./test.sh --no-install   with what is there
set -u
cd "$(dirname "$0")" || exit 1
. cmake/packages.sh

quick=0 install=1 left_out=(-LE repeat)
for argument in "$@"; do
    case $argument in
    --quick) quick=1 ;;
    --repeats) left_out=() ;;
    --no-install) install=0 ;;
    --help | -h) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "test.sh: $argument: unknown; --quick, --repeats, --no-install or --help" >&2; exit 2 ;;
    esac
done

jobs=$(nproc)
started=$SECONDS
failed=()
stage() { printf '\n== %s  (+%d:%02d)\n' "$*" $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)); }
fail() { echo "FAILED: $*"; failed+=("$*"); }

stage "packages"
if [ $install = 1 ]; then
    dp_install "$dp_build_packages
$dp_test_packages" || exit 1
fi

# Perfetto's own definitions, for one test that decodes our files with them; it skips without.
if [ $install = 1 ] && [ ! -x build-perfetto/bin/python ]; then
    python3 -m venv build-perfetto >/dev/null 2>&1 &&
        build-perfetto/bin/pip install -q perfetto >/dev/null 2>&1 ||
        { echo "no perfetto package to be had: its test will skip"; rm -rf build-perfetto; }
fi
[ -x build-perfetto/bin/python ] && export PERFETTO_PYTHON=$PWD/build-perfetto/bin/python

build() { # preset targets...
    local preset=$1
    shift
    cmake --preset "$preset" >"build-$preset.log" 2>&1 &&
        cmake --build --preset "$preset" -j "$jobs" -- "$@" >>"build-$preset.log" 2>&1 && rm -f "build-$preset.log" && return 0
    tail -n 40 "build-$preset.log"
    return 1
}

stage "build: dev (warnings are errors, assertions on)"
build dev || { echo "test.sh: the build failed; see build-dev.log"; exit 1; }

# Files of ours, as git sees them.
sources() { git ls-files '*.c' '*.h' '*.cc' '*.cu' '*.cuh' 2>/dev/null; }

if [ $quick = 0 ]; then
    stage "style: clang-format"
    sources | xargs clang-format --dry-run -Werror 2>build-format.log ||
        { head -n 20 build-format.log; fail "clang-format"; }
    rm -f build-format.log

    stage "analysis: clang-tidy"
    # Each file once, as it is first compiled: not again per instruction set and double.
    mkdir -p build-tidy
    python3 -c 'import json, sys
commands = {}
for command in json.load(sys.stdin): commands.setdefault(command["file"], command)
json.dump(list(commands.values()), sys.stdout)' <build-dev/compile_commands.json >build-tidy/compile_commands.json
    git ls-files 'kernels/*.c' 'runtime/*.c' 'fusion/*.c' 'coordinator/*.c' 'launcher/*.c' 'examples/*.c' |
        xargs -P "$jobs" -n 1 clang-tidy -p build-tidy --quiet >build-tidy.log 2>/dev/null ||
        { grep -E 'warning:|error:' build-tidy.log | sort -u | head -n 30; fail "clang-tidy"; }
    rm -rf build-tidy.log build-tidy

    # The dev build, with its assertions on, passes all of it. What differs in ranks, hosts or order
    # alone has found nothing of its own here: each case under dprun stays on three ranks, of which
    # two share a host; nor have all the worlds that the explorer visits, nor whole jobs where a
    # smaller test runs the same code (test_gpt2_cuda_trainer, gpt2_ranks, faults_dprun).
    repeats='^(ranks_threads_([58]_on_.|3_on_3)|ranks_process_.*_(2_on_1|8_on_2)|explore_.*'
    repeats+='|parity_(threads|process)_(2_on_1|4_on_1|5_on_3)|(cuda|gpt2)_.*_[17]'
    repeats+='|test_gpt2_cuda|gpt2_ranks_double|faults_(matrix|checkpoints)|trace_browser)$'
    stage "build and test: address + undefined sanitizers"
    if build asan; then
        LSAN_OPTIONS="suppressions=$PWD/tests/lsan.supp:print_suppressions=0" \
            ctest --test-dir build-asan -j "$jobs" --output-on-failure -LE 'browser|slow|bench|repeat' -E "$repeats" \
            >build-asan.log 2>&1 || { tail -n 60 build-asan.log; fail "address+undefined"; }
        tail -n 3 build-asan.log
    else
        fail "address+undefined build"
    fi

    # Whatever has threads: loopback ranks, the loop, both ends of the rendezvous, the trainer; and
    # processes under dprun; tests/CMakeLists.txt lists their programs. UCX is not instrumented, so
    # tests that time its deaths are left out.
    stage "build and test: thread sanitizer"
    threaded='^(ranks_threads_2_on_1|ranks_process_(collectives|gradients)_3_on_2'
    threaded+='|test_(device|engine_one_host|loop|loop_drive|transport(_ring|_dock|_near)?|pipeline|trace|bootstrap|health|kv|rendezvous|arena'
    threaded+='|context_memory|gpt2_trainer|cuda_(device|pipeline|stage)|nccl_engine)|ranks_cuda_double|fuzz_kv_client)$'
    if build tsan threaded; then
        # UCX's hooks on memory calls crash a sanitized thread that ends.
        UCX_MEM_EVENTS=n UCX_MEM_MMAP_HOOK_MODE=none ctest --test-dir build-tsan -j "$jobs" --output-on-failure -R "$threaded" >build-tsan.log 2>&1 ||
            { tail -n 60 build-tsan.log; fail "thread"; }
        tail -n 3 build-tsan.log
    else
        fail "thread build"
    fi
    rm -f build-asan.log build-tsan.log

    stage "fuzz: libFuzzer, 2 seconds for each parser"
    tests/fuzz/run.sh 2 || fail "fuzz"
fi

stage "test: everything"
ctest --test-dir build-dev -j "$jobs" --output-on-failure ${left_out[@]+"${left_out[@]}"}
result=$?
for what in ${failed[@]+"${failed[@]}"}; do
    echo "FAILED before ctest: $what"
    result=1
done
exit $result
