#!/usr/bin/env bash
# The wheel of the Python package, built by pip from this build, works in a fresh environment that cannot
# see the checkout: two ranks start by the installed dprun, on one node and on two, and each has mapped
# the wheel's own libraries and no UCX, libevent, libsodium or hwloc of the machine.
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
python3 -m venv "$work/env" >"$work/log" 2>&1 ||
    { echo "wheel: skipped, python3 -m venv does not work (Debian: python3-venv)"; exit 77; }

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
(cd / && "$work/env/bin/dptrace" --help) | grep -q report || die "the installed dptrace does not start"
echo "wheel: $(basename "$wheel") works"
