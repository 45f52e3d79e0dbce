# g_sanitizer.sh - compute-sanitizer over the kernels: addresses, then races in shared memory.

part_g() {
    part g sanitizer 100 "compute-sanitizer"
    sanitized casts 45 memcheck "addresses: pack, cast, reduce" cuda_kernels
    sanitized gpt2 45 memcheck "addresses: the trainer's kernels" gpt2_cuda_kernels_device
    sanitized attention 60 memcheck "addresses: attention" gpt2_attention
    sanitized races 60 racecheck "races: attention" gpt2_attention
    sanitized races-gpt2 45 racecheck "races: the trainer's kernels" gpt2_cuda_kernels_device
}

sanitized() { # NAME SECONDS TOOL TITLE PROGRAM
    step "$1" "$2" "$4" --needs compute-sanitizer --figures sanitizer_figures -- \
        sanitizer "$3" "$root/tests/$5"
}

sanitizer() { # TOOL PROGRAM
    wrapper=(compute-sanitizer --tool "$1" --target-processes all --error-exitcode 9)
    # A test asks for a GPU that is not there; what CUDA's functions return the programs check themselves.
    [ "$1" != memcheck ] || wrapper+=(--report-api-errors no)
    by_tool "$2" checks
}

# "ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
sanitizer_figures() {
    sed -n 's/^=* *ERROR SUMMARY: \([0-9]*\) error.*/errors\t\1\t/p; s/^=* *RACECHECK SUMMARY: \([0-9]*\) hazard.*/hazards\t\1\t/p'
}
