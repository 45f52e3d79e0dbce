#!/bin/sh
# header.sh - the manual pages of dp.h.
#
#   header.sh HEADER VERSION FOLDER
set -eu
here=$(dirname "$0")
rm -rf "$3"
mkdir -p "$3"
awk -v folder="$3" -v version="$2" -f "$here/header.awk" "$1"
gzip -9n "$3"/*.3
