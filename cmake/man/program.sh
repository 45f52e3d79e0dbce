#!/bin/sh
# program.sh - the manual page of a program, from its --help.
#
#   program.sh FILE NAME VERSION ABOUT FOLDER
set -eu
here=$(dirname "$0")
mkdir -p "$5"
"$1" --help | awk -v name="$2" -v version="$3" -v about="$4" -f "$here/program.awk" >"$5/$2.1"
gzip -9nf "$5/$2.1"
