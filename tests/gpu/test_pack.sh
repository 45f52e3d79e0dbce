#!/usr/bin/env bash
# test_pack.sh - the archive of a build passes pack.sh --check, and one that lacks something does not.
#
#   test_pack.sh BUILD     exits with 77 where no empty root can be made
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$1
. "$here/root.sh"
for tool in patchelf objdump cc; do
    type -P $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }
done
visit_way >/dev/null || { echo "skipped: neither root nor a user namespace is to be had"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "test_pack.sh: $*"
    cat "$work/log"
    exit 1
}

"$here/pack.sh" "$build" "$work/whole.tar.gz" >"$work/log" 2>&1 || fail "pack.sh fails"
"$here/pack.sh" --check "$work/whole.tar.gz" >"$work/log" 2>&1 || fail "the archive fails its check"
tail -n 1 "$work/log"
grep -q '^ok *tests/gpt2_matmul_device *exit code 77' "$work/log" || fail "not every program was started"

# A build without everything is not packed.
mkdir "$work/build" && cp "$build/dprun" "$work/build/"
"$here/pack.sh" "$work/build" "$work/none.tar.gz" >"$work/log" 2>&1 && fail "pack.sh packs a build of dprun alone"
grep -q "missing: .*/libgpt2-cuda.so" "$work/log" || fail "pack.sh does not say what is missing"

# First aid: a kernel's program and a plug-in are made again from the package's sources.
tar -C "$work" -xzf "$work/whole.tar.gz"
if [ -d "$work/dp-gpu/relink" ]; then
    "$work/dp-gpu/rebuild.sh" tests/gpu/gpt2/mma.cu kernels/cuda_tally.c >"$work/log" 2>&1 || fail "rebuild.sh fails"
    for name in tests/cuda_mma libdp-cuda.so; do
        grep -qx "links $name" "$work/log" || fail "rebuild.sh does not link $name"
    done
    echo "rebuilt: $(grep -c ^links "$work/log") of the package's files"
    "$work/dp-gpu/rebuild.sh" kernels/no_such.cu >"$work/log" 2>&1 && fail "rebuild.sh compiles what is not there"
fi

# One library, one plug-in, one program and one script fewer, a symbol that nobody has, a path of this
# machine: each is a row of its own.
rm "$work"/dp-gpu/{lib/libucs.so.0,libgpt2-cuda.so,dptrace,ranks_cuda.sh} || fail "the archive lacks what is to be removed"
patchelf --set-rpath '$ORIGIN:/usr/local/cuda/lib' "$work/dp-gpu/embed_cuda"
echo 'int nobody_needs_this(void) { return 0; }' >"$work/empty.c"
cc -shared -fPIC -Wl,-soname,libsodium.so.23 -o "$work/dp-gpu/lib/libsodium.so.23" "$work/empty.c"
tar -C "$work" -cf "$work/planted.tar" dp-gpu
"$here/pack.sh" --check "$work/planted.tar" >"$work/log" 2>&1 && fail "an archive with six faults passes"
while IFS='|' read -r what row; do
    grep -qE "^FAILED +$row" "$work/log" || fail "$what is not found"
    echo "found: $what"
done <<'ROWS'
a library that is missing|libdp.so.0.3 +lacks .*libucs.so.0
a plug-in that is missing|libgpt2-cuda.so +is not in the archive
a program that is missing|dptrace +is not in the archive
a script that is missing|ranks_cuda.sh +is not in the archive
a path of the machine that built it|embed_cuda +looks for libraries in /usr/local/cuda/lib
a symbol that nobody has|dprun +exit code 127.*symbol lookup error
ROWS
[ "$(grep -c '^FAILED *hello' "$work/log")" -ge 1 ] || fail "hello starts without libucs"
# What was made again starts as before.
for row in 'libdp-cuda.so opens +exit code 0' 'tests/cuda_mma +exit code 77'; do
    grep -qE "^ok +$row" "$work/log" || fail "not as wanted: $row"
done
