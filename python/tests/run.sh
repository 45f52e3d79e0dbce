#!/usr/bin/env bash
# run.sh - the tests of the Python package with the library and the launcher of a build folder.
#
#   python/tests/run.sh BUILD contract | life | turns | stream_wait | backend | backend_life | failures | examples | programs | types  alone; they start ranks themselves
#   python/tests/run.sh BUILD clients                            frameworks beside gloo, those of $CLIENTS_PYTHON or build-clients/
#   python/tests/run.sh BUILD front                              gpu.py by tests/gpu/python.sh, on tensors in host memory
#   python/tests/run.sh BUILD suite RANKS TESTS                  these of PyTorch's own tests, by name
#   python/tests/run.sh BUILD collectives | torch | optimizer | optimizer_table RANKS [NODES | gpu]
#                                                              every rank runs them; gpu: on contexts with a simulated GPU,
#                                                              with a PyTorch without CUDA, which has a runtime of its own
#
# Each test gets the first interpreter that has what it needs: of $TORCH_PYTHON, the environments build-torch/
# (./test.sh) and build-python/ (./quickstart.sh --python), python3 and Debian's. Exits with 77 where none
# has, and says what is missing.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:?a build folder}" && pwd) || exit 2
what=${2:?contract, life, turns, stream_wait, backend, backend_life, failures, examples, programs, types, suite, collectives, torch, optimizer or optimizer_table}
top=${here%/python/tests}

python=
choose() { # statement-that-must-pass what-it-wants
    for python in ${TORCH_PYTHON:+"$TORCH_PYTHON"} "$top/build-torch/bin/python" "$top/build-python/bin/python" \
        python3 /usr/bin/python3; do
        "$python" -c "$1" >/dev/null 2>&1 && return
    done
    echo "run.sh: $what: no Python here has $2"
    exit 77
}
of_torch() { # the lowest version, as major, minor; read and not imported, which takes seconds of a processor
    printf 'import numpy, sys\nsys.path.insert(0, "%s")\nfrom torch_ranks import VERSION\nassert VERSION >= (%s)' "$here" "$1"
}
case $what:${4:-} in
torch:gpu | optimizer:gpu) choose "import numpy, torch
assert torch.version.cuda is None" "PyTorch without CUDA (Debian: python3-torch)" ;;
torch:* | optimizer:* | optimizer_table:* | programs:*) choose "$(of_torch 1,0)" "PyTorch (Debian: python3-torch)" ;;
turns:* | stream_wait:* | backend:* | backend_life:* | failures:* | suite:*) choose "$(of_torch 2,4)" "PyTorch 2.4 or later (pip install torch, TORCH_PYTHON)" ;;
examples:* | front:*) choose "$(of_torch 2,14)" "PyTorch 2.14 or later (pip install torch, TORCH_PYTHON)" ;; # FSDP2 on CPUs
clients:*)
    for python in ${CLIENTS_PYTHON:+"$CLIENTS_PYTHON"} "$top/build-clients/bin/python"; do [ ! -x "$python" ] || break; done
    "$python" -c "$(of_torch 2,14)" >/dev/null 2>&1 || { echo "run.sh: clients: no Python here has the frameworks (CLIENTS_PYTHON)"; exit 77; } ;;
contract:*) choose "" "anything" ;;
types:*) command -v mypy >/dev/null || choose "import mypy" "mypy (pip install mypy)" ;;
*) choose "import numpy" "NumPy (Debian: python3-numpy)" ;;
esac
export PYTHONPATH=${here%/tests} LIBDP_PATH=$build/libdp.so DPRUN=$build/dprun PYTHONDONTWRITEBYTECODE=1
export DP_FUSION_BYTES=1M # a job need not fill 96 MiB when it starts
export DP_CHECK_REPLICAS=1 # DistributedOptimizers compare their ranks' parameters behind each step
# A cache of this build's, so that nothing of the user's is used or written.
export XDG_CACHE_HOME=$build/python-cache
mkdir -p "$XDG_CACHE_HOME"
# The first of them that wants the backend compiles it. Those behind it find a mark that is newer than its
# sources, and need not import torch to ask.
compile() {
    local mark=$XDG_CACHE_HOME/compiled reason
    [ "$(cat "$mark" 2>/dev/null)" = "$python" ] &&
        [ -z "$(find "${here%/tests}/dp/torch" "$top/include/dp.h" -type f ! -name '*.pyc' -newer "$mark")" ] && return
    if reason=$("$python" -m dp.torch.native 2>&1); then
        echo "$python" >"$mark"
        return
    fi
    [ $what != programs ] || return 0 # some of it does without
    echo "run.sh: $what: $reason"
    case $reason in *"there is no"*) exit 77 ;; esac
    exit 1
}
case $what in turns | stream_wait | backend | backend_life | failures | suite | examples | front | programs | clients) compile ;; esac
case $what in
collectives | torch | optimizer | optimizer_table)
    export OMP_NUM_THREADS=1 # ranks share the cores already
    if [ "${4:-}" = gpu ]; then # libdp with the plug-in, the driver and the runtime of the doubles
        export LD_LIBRARY_PATH=$build/tests/double LIBDP_PATH=$build/tests/double/libdp.so DP_DEVICE=cuda DP_TEST_GPUS=1
        export UCX_MEM_EVENTS=n UCX_MEM_MMAP_HOOK_MODE=none # as for all tests over simulated memory
        exec "$DPRUN" -np "${3:-2}" --share-gpu "$python" "$here/test_$what.py" --failfast
    fi
    exec "$DPRUN" -np "${3:-2}" --pretend-nodes "${4:-1}" "$python" "$here/test_$what.py" --failfast ;;
suite) exec "$python" "$here/torch_suite.py" --build "$build" --ranks "${3:-2}" -k "${4:-}" ;;
contract | life | turns | stream_wait | backend | backend_life | failures | examples | programs | clients)
    exec "$python" "$here/test_$what.py" "${@:3}" ;; # all, or the tests that are named
front)
    logs=$(mktemp -d) && PYTHON=$python "$top/tests/gpu/python.sh" "$build" --device cpu --jobs 1 --limit 150 \
        --seconds 850 --results "$logs"
    code=$?
    [ $code = 0 ] || tail -n 40 "$logs"/*.log
    rm -rf "$logs"
    exit $code ;;
types) # of the package's hints
    checker=mypy
    command -v mypy >/dev/null || checker="$python -m mypy"
    cd "${here%/tests}" && exec $checker --config-file pyproject.toml --cache-dir /dev/null ;;
*) echo "run.sh: $what: unknown" >&2; exit 2 ;;
esac
