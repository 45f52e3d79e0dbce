#!/usr/bin/env bash
# run.sh - a visit to a GPU: everything that only a GPU can show, most important first.
#
#   tests/gpu/run.sh [ROOT] [OPTION...]
#
# ROOT is an unpacked package of pack.sh or a build folder; the default is the package that run.sh
# lies in, else build.
#   --first           parts a to d: machine, kernels, NCCL, losses; less than 9 minutes
#   --second          part e: speed; less than 9 minutes
#   --third           parts g and h: sanitizer, profile; less than 5 minutes
#   --only WHAT,...   parts or steps: a letter, a part's name, a step's name (a, kernels, c.kill)
#   --results DIR     where results.json, the table and the files go [gpu-results]
#   --most SECONDS    no step may take longer than this
#   --list            what there is, with its limits, and what runs when
#   --rehearse [ARCHIVE] [--results DIR] [--only ...]
#                     the whole visit on this machine's CPUs: a package of doubles (made from
#                     build-dev where no archive is named) in an empty root. Nothing of it is a
#                     measurement, and the results say so.
#   --help            this text
#
# Without --first, --second, --third or --only all parts run. Each step has a limit and each part a budget;
# whatever does not end in time leaves the stacks of its processes in its log and is killed. A step
# of ours that fails, or cannot start, is "failed", with the last 200 lines of its log in
# results.json; the rest goes on. Only a tool that the machine lacks (PyTorch, compute-sanitizer,
# ncu) is "skipped". A second command adds to the results of the first.
#
# Exit code: 0; 1 where a step failed; 2 for a wrong command line; 77 where there is no GPU at all.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
parts=$here/parts
. "$parts/options.sh"
. "$parts/steps.sh"
. "$parts/facts.sh"
. "$parts/clock.sh"
. "$parts/sizes.sh"
for file in "$parts"/[a-h]_*.sh; do
    . "$file"
done

parse_options "$@"
case $mode in
help) sed -n '2,/^set -u/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
list) list_parts; exit 0 ;;
rehearse) . "$parts/rehearse.sh"; rehearse; exit ;;
esac
[ -x "$root/dprun" ] || usage "no package and no build in $root: tests/gpu/pack.sh makes one"

begin_visit
if ! find_facts; then
    echo "run.sh: no GPU: $(fact gpu_error)" >&2
    exit 77
fi
print_facts
record check || exit 2
for letter in $chosen_parts; do
    "part_$letter"
done
end_if_interrupted
end_visit
