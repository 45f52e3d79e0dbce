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
grep -q '^ok *gpt2 --device cuda' "$work/log" || fail "gpt2 was not started"

# A build without everything is not packed.
mkdir "$work/build" && cp "$build/dprun" "$work/build/"
"$here/pack.sh" "$work/build" "$work/none.tar.gz" >"$work/log" 2>&1 && fail "pack.sh packs a build of dprun alone"
grep -q "missing: .*/libgpt2-cuda.so" "$work/log" || fail "pack.sh does not say what is missing"

# One library, one plug-in and one program fewer, and a symbol that nobody has: each is a line of its own.
tar -C "$work" -xzf "$work/whole.tar.gz"
rm "$work"/dp-gpu/{lib/libucs.so.0,libgpt2-cuda.so,dptrace} || fail "the archive lacks what is to be removed"
echo 'int nobody_needs_this(void) { return 0; }' >"$work/empty.c"
cc -shared -fPIC -Wl,-soname,libsodium.so.23 -o "$work/dp-gpu/lib/libsodium.so.23" "$work/empty.c"
tar -C "$work" -cf "$work/planted.tar" dp-gpu
"$here/pack.sh" --check "$work/planted.tar" >"$work/log" 2>&1 && fail "an archive with four faults passes"
while IFS='|' read -r what row; do
    grep -qE "^$row" "$work/log" || fail "$what is not found"
    echo "found: $what"
done <<'ROWS'
a library that is missing|[[:space:]]+libucs.so.0 => not found
a plug-in that is missing|libgpt2-cuda.so: not there
a program that is missing|dptrace: not there
a symbol that nobody has|dprun: does not start
ROWS
grep -q "^FAILED *dprun -np 2 hello" "$work/log" || fail "hello starts without libucs"
