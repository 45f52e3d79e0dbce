# facts.sh - what machine this is: kept beside every figure. Steps a.* judge it.

fact() { sed -n "s/^$1"$'\t'"//p" "$work/facts" | head -n 1; }
add_fact() { printf '%s\t%s\n' "$1" "$2" >>"$work/facts"; }

# What the package was made of, or the checkout that a build folder lies in.
revision() {
    if [ -f "$root/VERSION" ]; then
        sed -n 's/^revision //p' "$root/VERSION"
    else
        git -C "$here" describe --always --dirty --abbrev=12 2>/dev/null || echo unknown
    fi
}

# Fails where there is no GPU at all. Sets visit_library_path and visit_ucx for ours().
find_facts() {
    local found gpu
    visit_library_path='' visit_ucx=''
    : >"$work/facts"
    add_fact date "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
    add_fact revision "$(revision)"
    add_fact host "$(uname -srm), $(nproc) cores"
    timeout -k 2 60 "$python" "$(visit_file libraries.py)" "$root" >"$work/libraries" 2>&1
    echo $? >"$work/libraries.code"
    visit_library_path=$(sed -n 's/^LD_LIBRARY_PATH=//p' "$work/libraries")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    [ ! -d "$root/lib/ucx" ] || visit_ucx=$root/lib/ucx
    for found in libcuda libcudart libcublasLt libnccl; do
        add_fact "$found" "$(sed -n "s/^$found  *//p" "$work/libraries" 2>/dev/null | head -n 1 | tr -s ' ')"
    done
    # The driver's own folder is not always on the path.
    type -P nvidia-smi >/dev/null || PATH=$PATH:/usr/local/nvidia/bin
    if ! gpu=$(timeout -k 2 20 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit \
        --format=csv,noheader 2>&1); then
        add_fact gpu_error "${gpu:-nvidia-smi does not end}"
        [ -e /dev/nvidiactl ] # there is one, whatever is wrong with nvidia-smi
        return
    fi
    gpu=$(head -n 1 <<<"$gpu")
    add_fact gpu "$(cut -d , -f 1 <<<"$gpu")"
    add_fact driver "$(cut -d , -f 2 <<<"$gpu" | tr -d ' ')"
    add_fact gpu_memory "$(cut -d , -f 3 <<<"$gpu" | sed 's/^ //')"
    add_fact gpu_clock "$(cut -d , -f 4 <<<"$gpu" | sed 's/^ //')"
    add_fact gpu_power "$(cut -d , -f 5 <<<"$gpu" | sed 's/^ //')"
}

print_facts() {
    awk -F '\t' '{ printf "%-14s %s\n", $1, $2 }' "$work/facts"
    [ "$rehearsal" = 0 ] || echo "REHEARSAL: doubles of CUDA, NCCL, cuBLASLt, nvidia-smi, compute-sanitizer, ncu and PyTorch"
}
