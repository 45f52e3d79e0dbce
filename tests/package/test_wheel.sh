#!/usr/bin/env bash
# The wheel of the Python package, built by pip from this build, works in a fresh environment that cannot
# see the checkout: two ranks start by the installed dprun, on one node and on two, and each has mapped
# the wheel's own libraries and no UCX, libevent, libsodium or hwloc of the machine. Beside a PyTorch
# ($TORCH_PYTHON, or what ./test.sh and ./quickstart.sh install) the wheel has the backend of
# torch.distributed, which works where there is no compiler.
#
#   test_wheel.sh BUILD_DIR
set -u
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
die() { echo "wheel: $*" >&2; exit 1; }
for program in python3 patchelf readelf; do
    command -v $program >/dev/null || { echo "wheel: skipped, $program is not here"; exit 77; }
done
torch=
for python in ${TORCH_PYTHON:+"$TORCH_PYTHON"} "$root/build-torch/bin/python" "$root/build-python/bin/python" python3; do
    torch=$("$python" -c 'import importlib.util, os, sys
sys.path.insert(0, sys.argv[1])
from torch_ranks import VERSION
assert VERSION >= (2, 4)
print(os.path.dirname(os.path.dirname(importlib.util.find_spec("torch").origin)))' "$root/python/tests" 2>/dev/null) && break
done
"$python" -m venv "$work/env" >"$work/log" 2>&1 ||
    { echo "wheel: skipped, $python -m venv does not work (Debian: python3-venv)"; exit 77; }
[ -z "$torch" ] || echo "$torch" >"$(echo "$work"/env/lib/python3*/site-packages)/torch.pth"

# Without an index: everything that pip needs must be here.
(cd / && "$work/env/bin/pip" wheel --no-index --no-cache-dir "--config-settings=build=$build" -w "$work" "$root/python") \
    >"$work/log" 2>&1 || { cat "$work/log"; die "no wheel was built"; }
wheel=$(echo "$work"/libdp-*.whl)
case $wheel in
*-py3-none-manylinux_*_"$(uname -m)".whl) ;;
*) die "its name is $wheel" ;;
esac
"$work/env/bin/pip" install --no-index --no-cache-dir "$wheel" >"$work/log" 2>&1 ||
    { cat "$work/log"; die "it does not install"; }
"$work/env/bin/python" -c 'from importlib.metadata import distribution
assert "dp.torch.backend:register" in [one.value for one in distribution("libdp").entry_points if one.name == "dp"]' ||
    die "torch.distributed would not find the backend"

# Ubuntu 22.04 and RHEL 9 have glibc 2.35 and 2.34, and a compiler is all that it takes to serve them.
if command -v cc >/dev/null; then
    echo "$wheel" | grep -qE 'manylinux_2_([0-9]|[12][0-9]|3[0-4])_' || die "$(basename "$wheel") wants a newer C library"
    # What stands in for it loads where the newer version does not exist: here one that exists nowhere.
    cp -r "$(cd / && env -u PYTHONPATH "$work/env/bin/python" -c 'import dp, os; print(os.path.dirname(dp.__file__))')/lib" "$work/forged"
    sed -i 's/GLIBC_2\.36/GLIBC_2.96/' "$work/forged"/libevent_core-*
    python3 -c 'import ctypes, glob, sys; ctypes.CDLL(glob.glob(sys.argv[1])[0]).evutil_secure_rng_get_bytes(ctypes.create_string_buffer(8), 8)' \
        "$work/forged/libevent_core-*" || die "libevent does not load with an older C library"
fi
# Each library of others has its licence.
"$work/env/bin/python" - <<'TXT' || die "licences are missing"
import os, sys
from importlib.metadata import distribution
files = distribution("libdp").files
lines = next(one for one in files if one.name == "LIBRARIES").read_text().splitlines()[1:]
named = dict(line.split(": ") for line in lines)
carried = {"/".join(one.parts[2:]) for one in files if one.parts[:2] == ("dp", "lib") and not one.name.startswith("libdp")}
texts = {one.parts[-2] for one in files if "licenses" in one.parts and one.locate().stat().st_size > 500}
bare = {name for name in carried if named.get(name) not in texts}
sys.exit(f"no licence of {sorted(bare)}" if bare or not carried else 0)
TXT
"$work/env/bin/python" -c 'import importlib.metadata as m, re, sys
sys.exit(bool(re.search(r"\]\((?!https?:|#)", m.metadata("libdp").get_payload())))' || die "its description has links into the repository"

cat >"$work/program.py" <<'TXT'
import array, sys
import dp

world = dp.init()
own = array.array("f", [world.rank + 1.0] * 1000)
world.allreduce(own, name="values").wait()
with open("/proc/self/maps") as file:
    mapped = {line.split()[5] for line in file if len(line.split()) > 5}
ours = ("libdp", "libuc", "libevent", "libsodium", "libhwloc")
foreign = [path for path in mapped if path.split("/")[-1].startswith(ours)
           and not path.startswith(sys.prefix + "/")]
print(f"rank {world.rank} of {world.size} on {world.node_count} nodes: {own[999]}, foreign {foreign}")
world.finalize()
TXT
run() { # NODES: a job as a user starts it, without a variable that names the checkout
    (cd "$work" && env -u LIBDP_PATH -u PYTHONPATH -u LD_LIBRARY_PATH PATH="$work/env/bin:/usr/bin:/bin" \
        dprun -np 2 --pretend-nodes "$1" python program.py) >"$work/out.$1" 2>&1 ||
        { cat "$work/out.$1"; die "a job on $1 nodes failed"; }
    for rank in 0 1; do
        grep -qF "rank $rank of 2 on $1 nodes: 3.0, foreign []" "$work/out.$1" ||
            { cat "$work/out.$1"; die "rank $rank on $1 nodes said something else"; }
    done
}
run 1
run 2
if [ -n "$torch" ] && command -v c++ >/dev/null; then
    cat >"$work/torch_program.py" <<'TXT'
import os
import torch
import torch.distributed as dist

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15):  # later ones find the installed backend by themselves
    import dp.torch.backend
dist.init_process_group("dp")
x = torch.ones(2)
dist.all_reduce(x)
import dp.torch.native
compiled = os.path.basename(os.path.dirname(dp.torch.native.load().__file__))
print(f"rank {dist.get_rank()}: {x[1].item()} by a file of {compiled}", flush=True)
dist.destroy_process_group()
TXT
    (cd "$work" && env -i PATH="$work/env/bin" HOME="$work" dprun -np 2 python torch_program.py) >"$work/out.torch" 2>&1 ||
        { cat "$work/out.torch"; die "a job of torch.distributed failed without a compiler"; }
    for rank in 0 1; do
        grep -qF "rank $rank: 2.0 by a file of compiled" "$work/out.torch" ||
            { cat "$work/out.torch"; die "rank $rank of torch.distributed said something else"; }
    done
fi
(cd / && "$work/env/bin/dptrace" --help) | grep -q report || die "the installed dptrace does not start"
echo "wheel: $(basename "$wheel") works${torch:+, with the backend for the PyTorch of $torch}"
