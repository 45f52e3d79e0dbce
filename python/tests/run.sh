#!/usr/bin/env bash
# run.sh - the tests of the Python package with the library and the launcher of a build folder.
#
#   python/tests/run.sh BUILD contract | life | backend | examples | types  alone; they start ranks themselves
#   python/tests/run.sh BUILD suite RANKS TESTS                  these of PyTorch's own tests, by name
#   python/tests/run.sh BUILD native                             backend in its form of C++, compiled first
#   python/tests/run.sh BUILD collectives | torch | optimizer RANKS [NODES]
#                                                              every rank runs them
#
# Takes the first interpreter that has NumPy; exits with 77 where none has.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:?a build folder}" && pwd) || exit 2
what=${2:?contract, life, backend, examples, types, suite, collectives, torch or optimizer}
for python in python3 /usr/bin/python3 none; do
    "$python" -c 'import numpy' 2>/dev/null && break
done
[ "$python" != none ] || { echo "no Python with NumPy is here (Debian: python3-numpy)"; exit 77; }
export PYTHONPATH=${here%/tests} LIBDP_PATH=$build/libdp.so.0 DPRUN=$build/dprun PYTHONDONTWRITEBYTECODE=1
export DP_FUSION_BYTES=1M # a job need not fill 96 MiB when it starts
case $what in
collectives | torch | optimizer)
    export OMP_NUM_THREADS=1 # ranks share the cores already
    exec "$DPRUN" -np "${3:-2}" --pretend-nodes "${4:-1}" "$python" "$here/test_$what.py" --failfast ;;
suite) exec "$python" "$here/torch_suite.py" --build "$build" --ranks "${3:-2}" -k "${4:-}" ;;
contract | life | backend | examples) exec "$python" "$here/test_$what.py" ;;
native)
    # A cache of this build's, so that nothing of the user's is used or written.
    export XDG_CACHE_HOME=$build/python-cache LIBDP_TORCH=native
    mkdir -p "$XDG_CACHE_HOME"
    "$python" -c 'import torch; assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4)' 2>/dev/null ||
        { echo "no PyTorch of 2.4 or later is here"; exit 77; }
    "$python" -m dp.torch.native && exec "$python" "$here/test_backend.py" ;;
types) # of the package's hints, by mypy
    for checker in mypy "$python -m mypy" none; do
        $checker --version >/dev/null 2>&1 && break
    done
    [ "$checker" != none ] || { echo "mypy is not here (pip install mypy)"; exit 77; }
    cd "${here%/tests}" && exec $checker --config-file pyproject.toml --cache-dir /dev/null ;;
*) echo "run.sh: $what: unknown" >&2; exit 2 ;;
esac
