#!/usr/bin/env bash
# quickstart.sh - from a fresh Debian 12 to GPT-2 learning on two ranks: packages, a release build,
# hello, and a training run of two to three minutes with its sample, report and timeline.
#
#   ./quickstart.sh                     installs what is missing with apt-get (sudo only if not root)
#   ./quickstart.sh --no-install        uses what is there
#   ./quickstart.sh --prefix DIR        unpacks Debian's packages below DIR instead; needs no root
#   ./quickstart.sh --text FILE         trains on this text instead of the King James Bible
#   ./quickstart.sh --build-only        stops after the build
#   ./quickstart.sh --python            instead of training: a virtual environment, build-python/, with
#                                       PyTorch, NumPy and libdp, and the examples of python/examples
#   ./quickstart.sh --out DIR           where the run goes (default run/)
set -u
cd "$(dirname "$0")" || exit 1
. cmake/packages.sh

install=1 prefix= text= out=run build_only=0 python=0
usage() { sed -n '2,13s/^# \{0,1\}//p' "$0"; }
need_value() { [ $# -ge 2 ] && [ -n "$2" ] || { echo "quickstart.sh: $1 needs a value" >&2; exit 2; }; }
while [ $# -gt 0 ]; do
    case $1 in
    --no-install) install=0 ;;
    --prefix) need_value "$@"; prefix=$2; shift ;;
    --text) need_value "$@"; text=$2; shift ;;
    --out) need_value "$@"; out=$2; shift ;;
    --build-only) build_only=1 ;;
    --python) python=1 ;;
    --help | -h) usage; exit 0 ;;
    *) echo "quickstart.sh: $1: unknown option" >&2; usage >&2; exit 2 ;;
    esac
    shift
done
[ -z "$text" ] || [ -r "$text" ] || { echo "quickstart.sh: cannot read $text" >&2; exit 2; }

step() { printf '[%s/4] %-9s %s\n' "$1" "$2" "$3"; }
die() { echo "quickstart.sh: $*" >&2; exit 1; }

step 1 packages "Debian's own: ucx, libevent, libsodium, hwloc, OpenBLAS, oneDNN, cmake, a text"
if [ -n "$prefix" ]; then
    mkdir -p "$prefix" || die "cannot make $prefix"
    prefix=$(cd "$prefix" && pwd)
    command -v gcc >/dev/null 2>&1 || die "--prefix needs a C compiler (gcc and libc6-dev) on this machine"
    dp_unpack "$prefix" "$dp_build_packages" || die "the packages could not be unpacked below $prefix"
elif [ $install = 1 ]; then
    [ $python = 0 ] || dp_build_packages="$dp_build_packages
$dp_python_packages"
    dp_install "$dp_build_packages" || die "packages are missing; --prefix DIR needs no root, --no-install skips this step"
fi

began=$SECONDS
generator=()
command -v ninja >/dev/null 2>&1 && generator=(-G Ninja)
cuda="CPU only (no CUDA toolkit found)"
{ command -v nvcc || ls /usr/local/cuda/bin/nvcc; } >/dev/null 2>&1 && cuda="with the CUDA plug-in"
step 2 build "release, $cuda"
{
    cmake -S . -B build "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DDP_TESTS=OFF &&
        cmake --build build -j "$(nproc)"
} >build.log 2>&1 || { tail -n 30 build.log; die "the build failed; all of it is in build.log"; }
rm -f build.log
printf '            %d s\n' $((SECONDS - began))
[ $build_only = 1 ] && exit 0

# PyTorch from where pip gets its packages: PIP_INDEX_URL and pip's other variables choose another place,
# such as one with wheels for CPUs alone, which are a tenth of the size.
make_environment() {
    local began=$SECONDS
    python3 -m venv build-python || die "python3 -m venv does not work (Debian: python3-venv)"
    build-python/bin/pip install --progress-bar off torch numpy 2>&1 |
        grep --line-buffered -E '^(Collecting|  Downloading|ERROR|Successfully)' | cut -c1-100 | sed -u 's/^ */            /'
    [ "${PIPESTATUS[0]}" = 0 ] || die "pip could not install torch and numpy into build-python/"
    build-python/bin/pip install --no-deps --force-reinstall --config-settings=build="$PWD/build" ./python >build.log 2>&1 ||
        { tail -n 20 build.log; die "libdp's wheel could not be made"; }
    rm -f build.log
    printf '            %d s\n' $((SECONDS - began))
}
if [ $python = 1 ]; then
    step 3 python "build-python/: a virtual environment with torch, numpy and libdp's wheel"
    make_environment
    examples=python/examples
    for example in mnist_like "gpt2_hvd --steps 50" "gpt2_ddp --steps 50" "gpt2_fsdp --steps 50"; do
        # shellcheck disable=SC2086
        set -- $example
        command="build-python/bin/dprun -np 2 --no-prefix build-python/bin/python $examples/$1.py ${*:2}"
        step 4 train "$command"
        $command 2>&1 | sed 's/^/            /'
        [ "${PIPESTATUS[0]}" = 0 ] || die "$1.py failed; the lines above say who and why"
    done
    echo "next    . build-python/bin/activate | dprun -np 2 python yours.py | read docs/pytorch.md"
    exit 0
fi

step 3 hello "dprun -np 2 build/hello"
build/dprun -np 2 build/hello | sed 's/^/            /'
[ "${PIPESTATUS[0]}" = 0 ] || die "two ranks cannot talk to each other; try build/dprun --check"

mkdir -p "$out" || die "cannot make $out"
prompt="The "
if [ -z "$text" ]; then
    prompt="And the LORD said"
    text=$out/kjv.txt
    [ -s "$text" ] || examples/gpt2/data/kjv.sh "$text" || die "no text: give one with --text FILE"
fi
command=(build/dprun -np 2 --no-prefix --pretend-nodes 2 --timeline "$out/timeline.pftrace:steps=100-120"
    build/gpt2 --preset quick --data "$text" --wire fp16 --out "$out" --overwrite --sample "$prompt")
step 4 train "${command[*]}"
"${command[@]}" || die "training failed; the lines above say who and why"
# The same global batch on one rank, for a few seconds.
rate() { awk -F, 'NR > 2 {print $7}' "$1" | sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }
build/gpt2 --preset quick --data "$text" --steps 100 --log-every 20 --eval-batches 1 --csv "$out/one.csv" >/dev/null &&
    awk -v two="$(rate "$out/log.csv")" -v one="$(rate "$out/one.csv")" \
        'BEGIN {if (one > 0) printf "speed   %.1fk tok/s on 2 ranks, %.1fk on 1 (one core each): %.2fx\n", two / 1e3, one / 1e3, two / one}'
rm -f "$out/one.csv"
echo "report  build/dptrace report $out/timeline.pftrace"
build/dptrace report "$out/timeline.pftrace" || die "the timeline could not be read"
build/dptrace view "$out/timeline.pftrace" -o "$out/timeline.html" >/dev/null || die "no page was made"
echo "files   $out/checkpoint  $out/log.csv  $out/timeline.pftrace  $out/timeline.html"
echo "next    open $out/timeline.html in a browser | read README.md, then include/dp.h | examples/embed.c"
