# a_start.sh - driver, libraries, the package itself, and a copy: whatever fails here explains the
# rest. See docs/gpu-visit.md.

part_a() {
    part a start 50 "Driver, libraries, a copy"
    step gpu 8 "the GPU, as the driver shows it" -- "$parts/gpu.sh"
    step machine 5 "loopback, memory, cores" -- "$parts/machine.sh"
    step libraries 5 "the four CUDA libraries" --figures libraries_figures -- found_libraries
    step package 15 "every program starts" -- ours "$parts/package.sh" "$root" "$(visit_file visit.list)"
    step copy 25 "copies: right, and how fast" --figures copy_figures -- \
        ours "$root/tests/gpu_copy" "$(size copy)"
}

# A file of the package; in a checkout it lies beside run.sh.
visit_file() { # NAME
    if [ -e "$root/$1" ] || [ ! -e "$here/$1" ]; then echo "$root/$1"; else echo "$here/$1"; fi
}

# What libraries.py found for our programs when the visit began.
found_libraries() {
    cat "$work/libraries" || return
    [ "$(<"$work/libraries.code")" != 124 ] || { echo "libraries.py did not end in 60 s"; return 1; }
    [ "$(<"$work/libraries.code")" = 0 ] || { echo "a library is missing, or of a version that is refused"; return 1; }
}

libraries_figures() {
    awk '$1 ~ /^lib(cuda|cudart|cublasLt|nccl)$/ { split($2, part, "."); printf "%s\t%d.%d\t\n", $1, part[1], part[2] }'
}

copy_figures() {
    sed -n 's/^copy \(.*[^ ]\)  *\([0-9]*\) MiB  *\([0-9.]*\) GB\/s$/copy, \1\t\3\tGB\/s/p'
}
