# rehearse.sh - the whole visit without a GPU: a package of doubles, in an empty root where this
# machine lets us make one, else in place. Stand-ins for the machine's tools are in
# tests/gpu/double/tools and nowhere else.

rehearse() {
    local temporary dir code tools=$here/double/tools variables
    [ -d "$tools" ] || usage "--rehearse wants the checkout: the stand-ins do not travel"
    temporary=$(mktemp -d "${TMPDIR:-/tmp}/dp-rehearsal-XXXXXX")
    trap 'rm -rf "$temporary"' EXIT
    mkdir -p "$results" && results=$(cd "$results" && pwd) || exit 2
    if [ -z "$archive" ]; then
        archive=$temporary/dp-gpu.tar.gz
        "$here/pack.sh" --rehearsal "$root" "$archive" || { echo "run.sh: no package for a rehearsal" >&2; exit 1; }
    fi
    . "$here/root.sh"
    # One simulated GPU. UCX's hooks on memory calls do not go with simulated memory.
    variables=(DP_TEST_GPUS=1 UCX_MEM_EVENTS=n UCX_MEM_MMAP_HOOK_MODE=none)
    dir=$temporary/root
    if visit_way >/dev/null; then
        visit_root "$dir" "$archive" $visit_script_tools || { echo "run.sh: no empty root" >&2; exit 1; }
        mkdir -p "$dir/usr/local/rehearsal" "$dir/results"
        cp "$tools"/* "$dir/usr/local/rehearsal/"
        [ ! -f "$results/results.json" ] || cp "$results/results.json" "$dir/results/"
        visit_enter "$dir" PATH=/usr/local/rehearsal:/bin:/usr/bin VISIT_PYTHON=/bin/python3 "${variables[@]}" \
            bash /dp-gpu/run.sh /dp-gpu --in-rehearsal --results /results "${inner[@]}"
        code=$?
        cp "$dir"/results/* "$results/"
    else
        echo "run.sh: no empty root is to be had here (neither root nor user namespaces): in place"
        mkdir -p "$dir" && tar -C "$dir" -xf "$archive" || exit 1
        env PATH="$tools:$PATH" VISIT_PYTHON="$(type -P python3)" DP_GPU_LIBRARY_PATH="$dir/dp-gpu/doubles" "${variables[@]}" \
            "$dir/dp-gpu/run.sh" "$dir/dp-gpu" --in-rehearsal --results "$results" "${inner[@]}"
        code=$?
    fi
    # What only shows in the facts: libraries that a step of its own did find.
    if [ $code = 0 ] && ! grep -qE '"libnccl": "[0-9]+\.[0-9]+' "$results/results.json"; then
        echo "run.sh: the machine's facts do not name NCCL" >&2
        code=1
    fi
    exit $code
}
