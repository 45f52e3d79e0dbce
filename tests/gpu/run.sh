#!/usr/bin/env bash
# run.sh - what only a GPU can show, in one command: kernels against their host twins and their
# speed, libdp over NCCL on one rank, several ranks on one GPU, a rank that is killed, GPT-2's
# losses and its speed beside PyTorch's, and compute-sanitizer. Prints a table, writes a line of
# JSON per step.
#
#   tests/gpu/run.sh [BUILD] [RESULTS]    default: build, gpu-results.jsonl
#
# GPT2_PRESET (124M) and GPT2_BATCH (64) choose the model. Every step is bounded; one that this
# machine lacks something for is skipped with the reason. Exits with 0, with 1 where a step failed,
# with 77 where there is no GPU at all.
# A GPU machine without a network: see tests/gpu/pack.sh.
set -u
build=${1:-build}
results=${2:-gpu-results.jsonl}
case $build in --help | -h) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
[ -x "$build/dprun" ] || { echo "run.sh: no build in $build: cmake --preset release -B $build && cmake --build $build" >&2; exit 2; }
export DP_DEVICE=cuda
: >"$results"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0 passed=0

report() { # NAME VERDICT SECONDS NOTE
    printf '%-34s %-8s %6s s  %s\n' "$1" "$2" "$3" "$4"
    printf '{"step":"%s","verdict":"%s","seconds":%s,"note":"%s"}\n' "$1" "$2" "$3" "$(sed 's/["\\]/ /g' <<<"$4")" >>"$results"
    case $2 in failed) failed=$((failed + 1)) ;; passed) passed=$((passed + 1)) ;; esac
}

# step NAME LIMIT WANTED COMMAND...: passes when the exit code is the wanted one
step() {
    local name=$1 limit=$2 wanted=$3 began=$SECONDS code
    shift 3
    if [ ! -x "$1" ] && ! command -v "$1" >/dev/null; then
        report "$name" skipped 0 "$1 is not there"
        return
    fi
    timeout -k 5 "$limit" "$@" >"$log" 2>&1
    code=$?
    if [ $code = "$wanted" ]; then
        report "$name" passed $((SECONDS - began)) "$(tail -1 "$log")"
    elif [ $code = 77 ]; then
        report "$name" skipped $((SECONDS - began)) "$(tail -1 "$log")"
    else
        report "$name" failed $((SECONDS - began)) "exit code $code, wanted $wanted"
        sed 's/^/    /' "$log" | tail -25
    fi
}

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >"$log" 2>&1; then
    report gpu skipped 0 "nvidia-smi finds none: $(head -1 "$log")"
    exit 77
fi
report gpu passed 0 "$(head -1 "$log")"
nvidia-smi --query-gpu=driver_version,memory.total,clocks.max.sm --format=csv,noheader | sed 's/^/    driver, memory, clock: /'

step "kernels and their speed" 120 0 "$build/tests/cuda_kernels"
grep -E '^ +(MiB|[0-9])' "$log" | sed 's/^/    /'
step "tensor core instructions" 60 0 "$build/tests/cuda_mma"
step "attention and its speed" 240 0 "$build/tests/gpt2_attention"
grep -E '^ *(bf16|shape|\[)' "$log" | sed 's/^/    /'
step "one rank over NCCL" 60 0 "$build/dprun" -np 1 "$build/embed_cuda"
for ranks in 2 3; do
    step "$ranks ranks on one GPU" 120 0 "$build/dprun" -np $ranks --share-gpu "$build/embed_cuda"
done
step "2 ranks, fp16 on the wire" 120 0 "$build/dprun" -np 2 --share-gpu --wire fp16 "$build/embed_cuda"
step "a killed rank ends the job" 60 137 "$build/dprun" -np 2 --share-gpu --inject kill:1@30 "$build/embed_cuda"
grep -E 'FAILED|cause|victims' "$log" | sed 's/^/    /'
step "a stopped rank ends the job" 60 3 "$build/dprun" -np 2 --share-gpu --inject stop:1@30 "$build/embed_cuda"
step "whole contexts, 2 on one GPU" 240 0 "$(dirname "$0")/ranks_cuda.sh" "$build/dprun" "$build/tests/ranks_cuda" --share-gpu
sed 's/^/    /' "$log"

# ---- GPT-2 ----
for program in gpt2_cuda_kernels_device gpt2_matmul_device; do
    step "$program" 240 0 "$build/tests/$program"
    grep -E 'TFLOP|GB/s|us' "$log" | sed 's/^/    /' | head -20
done

# Losses of the same steps on the processor and on the GPU, in fp32; the second column of the log.
parity() { # PRECISION TOLERANCE
    local common=(--preset tiny --data "$work/tokens.bin" --steps 20 --strategy single --seed 1 --log-every 1)
    "$build/gpt2" "${common[@]}" --device cpu --csv "$work/cpu.csv" &&
        "$build/gpt2" "${common[@]}" --device cuda --precision "$1" --csv "$work/cuda.csv" &&
        paste -d, <(grep -v '^#' "$work/cpu.csv" | cut -d, -f1,2) <(grep -v '^#' "$work/cuda.csv" | cut -d, -f1,2) |
        awk -F, -v most="$2" 'NR > 1 { off = $2 > $4 ? $2 - $4 : $4 - $2; if (off > worst) worst = off; n++ }
            END { printf "%d losses, off by %g at most, %g allowed\n", n, worst, most; exit !(n > 0 && worst <= most) }'
}

# The runtime off (one process alone), on in a world of one, and beside wires that are not there:
# what 8 GPUs would wait for. Every figure of the last is EMULATED.
gpt2() { # NAME STRATEGY COMMAND...
    local name=$1 strategy=$2
    shift 2
    step "$name" 400 0 "$@" "$build/gpt2" --preset "$size" --data "$work/tokens.bin" --device cuda \
        --strategy "$strategy" --batch "$batch" --steps 60 --log-every 20 --check 0
    grep 'tok/s' "$log" | tail -1 | sed 's/^/    /'
}
export -f parity
work=$(mktemp -d)
export build work
trap 'rm -rf "$log" "$work"' EXIT
size=${GPT2_PRESET:-124M} batch=${GPT2_BATCH:-64}
peer=$(dirname "$0")/peers/gpt2_torch.py
if [ -x "$build/gpt2" ] && "$build/gpt2" --help 2>&1 | grep -q -- --device && python3 "$peer" --tokens "$work/tokens.bin" 4000000; then
    step "GPT-2: losses as on a CPU, fp32" 240 0 bash -c 'parity fp32 0.001'
    step "GPT-2: losses as on a CPU, bf16" 240 0 bash -c 'parity bf16 0.02'
    gpt2 "GPT-2 $size, runtime off" single env
    gpt2 "GPT-2 $size, one rank" coordinator "$build/dprun" -np 1
    for link in "400 Gbit/s:50G:5us" "100 Gbit/s:12500M:10us" "25 Gbit/s:3125M:20us"; do
        IFS=: read -r name bandwidth latency <<<"$link"
        gpt2 "GPT-2 $size, 8 EMULATED, $name" coordinator "$build/dprun" -np 1 env DP_EMULATE_RANKS=8 DP_EMULATE_BANDWIDTH="$bandwidth" DP_EMULATE_LATENCY="$latency"
    done
    step "PyTorch $size, the peer" 400 0 python3 "$peer" --preset "$size" --batch "$batch" --steps 60
    step "PyTorch $size, not compiled" 400 0 python3 "$peer" --preset "$size" --batch "$batch" --steps 60 --no-compile
else
    report "GPT-2" skipped 0 "no $build/gpt2 with --device, or no python3"
fi

step "memcheck of the kernels" 240 0 compute-sanitizer --error-exitcode 1 "$build/tests/cuda_kernels"
step "racecheck of the kernels" 240 0 compute-sanitizer --tool racecheck --error-exitcode 1 "$build/tests/cuda_kernels"

echo "$passed passed, $failed failed; $results"
[ $failed = 0 ]
