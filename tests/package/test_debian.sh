#!/usr/bin/env bash
# The Debian packages, installed by dpkg: lintian has no complaint, every program starts, a program of a user's is
# built against them and runs under dprun, gpt2 trains, and nothing stays behind when they are purged.
#
#   test_debian.sh BUILD_DIR
#   test_debian.sh BUILD_DIR image     by the steps of examples/cluster/Dockerfile's image instead: its user runs a job,
#                                      and its sshd starts. Skipped where apt-get reaches no server.
#
# They are installed into a copy of this machine's root that keeps its changes apart (overlayfs), so that dpkg's
# database and the packages they depend on are the real ones and the machine itself is left alone.
set -eu
build=$1
if [ "${2:-}" = image ]; then export DP_TEST_IMAGE=1; set -- "$build"; fi
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)

if [ -z "${2:-}" ]; then
    for program in dpkg-shlibdeps dpkg-deb cpack; do
        command -v $program >/dev/null || { echo "no $program here: skipped"; exit 77; }
    done
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cpack --config "$build/CPackConfig.cmake" -G DEB -B "$work/debs" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    rm -rf "$work/debs/_CPack_Packages"
    if [ -n "${DP_TEST_IMAGE:-}" ]; then
        ! command -v hadolint >/dev/null || hadolint --ignore DL3008 "$top/examples/cluster/Dockerfile" # no versions
    elif command -v lintian >/dev/null; then
        # A build for /usr/local has no folder of pkg-config's for each architecture.
        lintian --allow-root --fail-on warning --tag-display-limit 0 \
            --suppress-tags pkg-config-unavailable-for-cross-compilation "$work"/debs/*.deb
    else
        echo "no lintian here: not asked"
    fi
    mkdir "$work/changes"
    unshare --mount true 2>/dev/null && unshare --mount mount -t tmpfs none "$work/changes" 2>/dev/null ||
        { echo "no rights to mount: the packages are built, not installed"; exit 77; }
    unshare --mount --fork --kill-child "$0" "$build" "$work"
    exit
fi

# In a mount namespace of its own, which ends with this process.
work=$2
version=$(sed -n 's/^#define DP_VERSION_[MP][A-Z]* //p' "$top/include/dp.h" | paste -sd .)
mount -t tmpfs none "$work/changes"
mkdir "$work/changes/upper" "$work/changes/temporary" "$work/changes/root"
root=$work/changes/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/changes/upper,workdir=$work/changes/temporary" "$root" ||
    { echo "no overlayfs here: the packages are built, not installed"; exit 77; }
for folder in proc sys dev; do mount --rbind "/$folder" "$root/$folder"; done
mount -t tmpfs none "$root/tmp" # the packages' files do not hide there
cp -r "$work/debs" "$top/examples/hello.c" "$root/tmp"
cat >"$root/tmp/CMakeLists.txt" <<TXT
cmake_minimum_required(VERSION 3.22)
project(hello C)
find_package(dp ${version%.*} REQUIRED)
add_executable(hello hello.c)
target_link_libraries(hello PRIVATE dp::dp)
TXT
inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp TMPDIR=/tmp chroot "$root" "$@"; }
quiet() { "$@" >"$work/log" 2>&1 || { echo "failed: $*"; cat "$work/log"; exit 1; }; }

if [ -n "${DP_TEST_IMAGE:-}" ]; then
    dockerfile=$top/examples/cluster/Dockerfile
    [ "$(grep -c '^RUN .*libevent-dev' "$dockerfile")" = 1 ] || { echo "the image's first stage is not the one"; exit 1; }
    for package in $(. "$top/cmake/packages.sh"; printf '%s\n' "$dp_build_packages" | cut -d: -f1); do
        [ "$package" = bible-kjv ] || grep -qw -- "$package" "$dockerfile" || { echo "the image lacks $package"; exit 1; }
    done
    chmod 1777 "$root/tmp"
    inside getent passwd 1000 >/dev/null && quiet inside sh -c 'userdel "$(getent passwd 1000 | cut -d: -f1)"'
    inside timeout 60 apt-get update >"$work/log" 2>&1 || true
    ! grep -Eq '^(Err|E|W):' "$work/log" || { echo "apt-get reaches no server: skipped"; exit 77; }
    sed '1,/^FROM debian:12-slim$/d' "$dockerfile" | sed -n 's/^RUN //p' >"$root/tmp/steps"
    [ "$(wc -l <"$root/tmp/steps")" = 2 ] || { echo "the image's last stage has other steps"; exit 1; }
    while read -r step; do quiet inside env DEBIAN_FRONTEND=noninteractive sh -ec "$step" </dev/null; done <"$root/tmp/steps"
    as_user() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/home/dp chroot --userspec=1000:1000 "$root" "$@"; }
    quiet as_user sh -ec 'cd; mkdir -m 700 .ssh; ssh-keygen -q -t rsa -N "" -f .ssh/id_rsa; /usr/sbin/sshd -t -f /home/dp/.sshd_config'
    head -c 200000 "$top/docs/gpt2.md" >"$root/tmp/text"
    quiet as_user sh -ec 'cd; dprun -np 2 gpt2 --preset tiny --steps 3 --eval-batches 1 --data /tmp/text'
    grep -q 'replicas bit-equal' "$work/log" || { echo "gpt2 did not train"; cat "$work/log"; exit 1; }
    echo "image: ok"
    exit
fi
quiet inside sh -c 'dpkg -i /tmp/debs/*.deb'
packages=$(cd "$work/debs" && printf '%s\n' *.deb | sed 's/_.*//')
# shellcheck disable=SC2086
inside dpkg -L $packages | sort -u >"$work/files"
for program in dprun dptrace dpbench gpt2; do
    said=$(inside $program --version)
    [ "$said" = "$program $version" ] || { echo "$program --version: $said, not $version"; exit 1; }
done
# Out of the packages: a container's dpkg may be told to leave manual pages away.
for package in "$work"/debs/*.deb; do dpkg-deb -x "$package" "$work/unpacked"; done
manual=$work/unpacked/usr/share/man
for page in man1/{dprun,dptrace,dpbench,gpt2}.1 man3/{dp_init,dp_life,dp_allreduce}.3; do
    [ -s "$manual/$page.gz" ] || { echo "there is no manual page $page"; exit 1; }
    command -v man >/dev/null || continue
    said=$(cd "$manual" && man --warnings -E UTF-8 -l "$page.gz" 2>&1 >/dev/null)
    [ -z "$said" ] || { echo "$page: $said"; exit 1; }
done

# What this machine has of ours in /usr/local must not be found instead.
quiet inside sh -c 'cd /tmp && cmake -G Ninja -B b -DCMAKE_PREFIX_PATH=/usr && cmake --build b'
inside ldd /tmp/b/hello | grep -q "libdp.so.${version%.*} => /\(usr/\)\?lib/" || { inside ldd /tmp/b/hello; exit 1; }
inside dprun -np 2 /tmp/b/hello | grep -q 'rank 1 of 2: the sum is' || { echo "hello does not run under dprun"; exit 1; }
head -c 200000 "$top/docs/gpt2.md" >"$root/tmp/text"
quiet inside dprun -np 2 gpt2 --preset tiny --steps 3 --eval-batches 1 --data /tmp/text
grep -q 'replicas bit-equal' "$work/log" || { echo "gpt2 did not train"; cat "$work/log"; exit 1; }

# shellcheck disable=SC2086
quiet inside dpkg -P $packages
left=$(while read -r file; do if [ -f "$root$file" ] || [ -L "$root$file" ]; then echo "$file"; fi; done <"$work/files")
[ -z "$left" ] || { echo "left behind by dpkg -P: $left"; exit 1; }
echo "debian: ok"
