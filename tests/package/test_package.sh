#!/usr/bin/env bash
# An installed prefix serves C and C++ programs through pkg-config and find_package, and the library
# shows nothing but dp_*.
#
#   test_package.sh BUILD_DIR
set -eu
build=$1
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
prefix=$work/prefix
library=$(find "$prefix" -name 'libdp.so')
libdir=$(dirname "$library")

foreign=$(nm -D --defined-only "$library" | awk '$2 ~ /[B-Z]/ {print $3}' | grep -v '^dp_' || true)
[ -z "$foreign" ] || { echo "symbols of ours outside dp_*: $foreign"; exit 1; }
for name in $(grep -E '^DP_API' -A2 "$root/include/dp.h" | grep -oE '\bdp_[a-z_]+\(' | tr -d '(' | sort -u); do
    nm -D --defined-only "$library" | grep -qE " $name(@|$)" ||
        { echo "dp.h declares $name, the library has it not"; exit 1; }
done

# One version: the header's. The names that programs are linked to have its first two numbers.
version=$(sed -n 's/^#define DP_VERSION_[MP][A-Z]* //p' "$root/include/dp.h" | paste -sd .)
abi=${version%.*}
[ "$(readelf -d "$library" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')" = "libdp.so.$abi" ]
nm -D --defined-only "$library" | grep -q " dp_init@@DP_$abi$"
grep -qx "NAME = \"libdp.so.$abi\"" "$root/python/dp/_c.py" || { echo "python/dp/_c.py loads another ABI than $abi"; exit 1; }
grep -qx "version: $version" "$root/CITATION.cff" || { echo "CITATION.cff: another version than $version"; exit 1; }
grep -qx "library libdp.so.$abi" "$root/tests/gpu/visit.list" || { echo "tests/gpu/visit.list packs another ABI than $abi"; exit 1; }

export PKG_CONFIG_PATH="$libdir/pkgconfig"
# shellcheck disable=SC2046
g++ -Wall -Wextra -Werror "$here/program.cpp" -o "$work/program" $(pkg-config --cflags --libs dp) \
    -Wl,-rpath,"$libdir"
[ "$("$work/program")" = "$(pkg-config --modversion dp) 1" ]

# With a NaN on one rank at one step: no rank's weights may keep it.
sed 's|^        draw(&seed, &x, &y);|&\n        if (step == 50 \&\& dp_rank(dp) == 0) x = 0.0f / 0.0f;|' "$root/examples/embed.c" >"$work/embed.c"
grep -q 'step == 50' "$work/embed.c" || { echo "embed.c draws its points in another way"; exit 1; }
cat >"$work/CMakeLists.txt" <<TXT
cmake_minimum_required(VERSION 3.22)
project(embed C)
find_package(dp $abi REQUIRED)
add_executable(embed embed.c)
target_compile_definitions(embed PRIVATE _GNU_SOURCE)
target_link_libraries(embed PRIVATE dp::dp m)
TXT
generator=$(sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' "$build/CMakeCache.txt")
cmake -S "$work" -B "$work/b" -G "$generator" -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake --build "$work/b" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$prefix/bin/dprun" -np 2 "$work/b/embed" | grep 'rank 1 of 2: y = [23]' >/dev/null
echo "package: ok"
