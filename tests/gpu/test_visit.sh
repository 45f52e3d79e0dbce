#!/usr/bin/env bash
# test_visit.sh - run.sh itself: every step fails once, by a program that prints 300 lines and ends
# with 3, by one that hangs, by one that is missing. The step must be "failed" with the last 200
# lines of its log in results.json, all others must run, the exit code must be 1.
#
#   tests/gpu/test_visit.sh RUN.SH
#
# The package is of stand-ins: scripts that print what the real programs print, as far as run.sh
# reads it, and do nothing. What they are to do wrong is in a file beside them.
set -u
here=$(cd "$(dirname "${1:?run.sh}")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/dp-visit-test-XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/dp-gpu
failures=0

complain() {
    echo "test_visit: $*"
    failures=$((failures + 1))
}

# ---- The package -----------------------------------------------------------------------------

# First of all a stand-in looks whether its step is planted: "STEP exit", "STEP hang".
planted='case $(sed -n "s/^$VISIT_STEP //p" "'$work'/planted") in
exit) for i in $(seq 1 300); do echo "planted line $i \"quoted\" \\ $VISIT_STEP"; done; exit 3 ;;
hang) for i in $(seq 1 300); do echo "planted line $i"; done; trap "" TERM; sleep 1000 & echo $! $$ >"'$work'/pids"; sleep 1000 ;;
esac'

stand_in() { # NAME (the rest of it on stdin)
    mkdir -p "$(dirname "$root/$1")"
    { printf '#!/bin/bash\n%s\n' "$planted"; cat; } >"$root/$1"
    chmod +x "$root/$1"
}

make_package() {
    mkdir -p "$root/tools"
    cp -r "$here/run.sh" "$here/parts" "$here/peers" "$root/"
    echo "revision 0123456789ab" >"$root/VERSION"
    printf 'program dprun\n' >"$root/visit.list"
    echo 'print("libnccl 2.28.9 /somewhere (toolkit)\nLD_LIBRARY_PATH=/nowhere")' >"$root/libraries.py"
    # Whatever dprun is asked to start prints what embed_cuda, ranks_cuda and gpt2 would.
    stand_in dprun <<'END'
case "$*" in
*gpt2*) while [ "$1" != "" ] && [ "${1##*/}" != gpt2 ]; do
            [ "$1" != --timeline ] || echo pftrace >"${2%:steps=*}"
            shift
        done
        exec "$@" ;;
*kill:*) echo "dprun: FAILED  rank 1 (vm, local 1)"; exit 137 ;;
*stop:*) echo "dprun: FAILED  rank 1 (vm, local 1): stopped by SIGSTOP"; exit 1 ;;
esac
for rank in 0 1 2; do for size in 1 2 3; do echo "[$rank] rank $rank of $size: off by 0"; done; done
END
    stand_in gpt2 <<'END'
csv='' tuned='' export=''
while [ $# != 0 ]; do
    case $1 in --csv) csv=$2 ;; --tuned) tuned=$2 ;; --export) export=$2 ;; esac
    shift
done
{ echo "step,loss,val_loss,lr,norm,skipped,tokens_per_s,step_ms,comm_ms,exposed_ms,skew_ms"
  for i in $(seq 1 20); do echo "$i,4.5,,0.001,1,0,500000.5,131.07,1.5,0.5,0"; done; } >"$csv"
[ -z "$tuned" ] || echo "1 2 3" >"$tuned/matmul.txt"
[ -z "$export" ] || echo weights >"$export"
echo "step     20/20  loss 4.5000"
END
    stand_in dptrace <<'END'
while [ $# != 0 ]; do [ "$1" != -o ] || echo page >"$2"; shift; done
END
    stand_in ranks_cuda.sh <<'END'
echo "$4: ok"
END
    stand_in tests/gpu_copy <<'END'
echo "copy device to device         1024 MiB     4300.0 GB/s"
END
    stand_in tests/cuda_kernels <<'END'
cat <<'TABLE'
MiB fp32  copy GB/s      f32>f16      f16>f32        f32>f32  f16>f32 tally same, misaligned
       4       2000     1500  75%     1400  70%     1600  80%     1300  65%     1200  60%
     512       4300     3900  91%     3800  88%     4000  93%     3700  86%     3000  70%
TABLE
echo "0 failures"
END
    stand_in tests/gpt2_attention <<'END'
echo "bf16 peak 1071 TFLOP/s"
echo "[64][1024][12][ 64]          1.000        250  23%      3.000        200  19%"
echo "0 failures"
END
    stand_in tests/gpt2_cuda_kernels_device <<<'echo "0 failures"'
    stand_in tests/cuda_mma <<<'echo "0 failures"'
    stand_in tests/gpt2_matmul_device <<<'echo "forward 768 x 2304, 300.0 us, 600 TFLOP/s"'
    stand_in tests/ranks_cuda <<<'echo "rank"'
    stand_in embed_cuda <<<'exit 1'
    stand_in llmc/train_gpt2cu <<<'echo "step   60/60 | loss 4.5 | 139.00 ms | 40.0% bf16 MFU | 471000 tok/s"'
    for name in make nvcc; do printf '#!/bin/sh\n' >"$root/tools/$name" && chmod +x "$root/tools/$name"; done
    export LLMC=$root/llmc VISIT_PYTHON=$(type -P python3)
    for name in gpu machine package; do
        stand_in "parts/$name.sh" <<<"echo 'GPU 0: $name (UUID: GPU-01234567-89ab-cdef-0123-456789abcdef)'"
    done
    for tool in nvidia-smi ncu compute-sanitizer python3; do
        { printf '#!/bin/bash\n[ -n "${VISIT_STEP:-}" ] || VISIT_STEP=none\n%s\n' "$planted"
          sed 1d "$here/double/tools/$tool"; } >"$root/tools/$tool"
        chmod +x "$root/tools/$tool"
    done
    # Some steps are functions that look at what others left: a broken awk or cat is what can fail.
    for tool in awk cat; do
        { printf '#!/bin/bash\ncase ${VISIT_STEP:-none} in a.libraries | e.choices | e.ratio) ;; *) exec %s "$@" ;; esac\n%s\n' "$(type -P $tool)" "${planted//sed/$(type -P sed)}"
          printf 'exec %s "$@"\n' "$(type -P $tool)"; } >"$root/tools/$tool"
        chmod +x "$root/tools/$tool"
    done
}

# ---- A visit, and what it must have left -----------------------------------------------------

visit() { # WANTED-CODE OPTION...
    local wanted=$1 code
    shift
    PATH=$root/tools:$PATH TMPDIR=$work "$root/run.sh" "$root" --results "$work/results" "$@" >"$work/output" 2>&1
    code=$?
    [ $code = "$wanted" ] || { complain "exit code $code, wanted $wanted: run.sh $*"; tail -n 40 "$work/output"; }
}

# The page has what failed in it, too.
check_page() {
    "$here/results.py" "$work/results/results.json" | grep -q 'planted line 300' || complain "the page does not say what failed"
}

# Python reads it: the file must be JSON whatever a log has in it.
check_results() { # against what is planted
    python3 - "$work" <<'END' || complain "the visit with these planted: $(tr '\n' ',' <"$work/planted")"
import json, sys
work = sys.argv[1]
planted = dict(line.split() for line in open(work + "/planted"))
results = json.load(open(work + "/results/results.json"))
wanted = open(work + "/steps").read().split()
wrong = []
if [step["step"] for step in results["steps"]] != wanted:
    wrong.append(f"{len(results['steps'])} steps, not these {len(wanted)} in this order")
for step in results["steps"]:
    name, note, tail = step["step"], step["note"], step["tail"]
    how = planted.get(name, "none")
    lines = tail.split("\n")
    if step["verdict"] != ("passed" if how == "none" else "failed"):
        wrong.append(f"{name} is {step['verdict']}: {note}: {lines[-5:]}")
    elif how == "exit":
        last = [f'planted line {i} "quoted" \\ {name}' for i in range(101, 301)]
        if name == "h.ncu": # one kernel's failure leaves the other four: lines of its own in between
            last = lines if last[-1] in lines else []
        if lines != last or len(lines) != 200:
            wrong.append(f"{name}: not its last 200 lines, but {len(lines)} from {lines[0]!r} to {lines[-1]!r}")
    elif how == "hang" and not ("no end after" in note and "planted line 300" in lines and "== it is ended" in lines
                                and any(line.startswith("-- ") and "sleep 1000" in line for line in lines)):
        wrong.append(f"{name}: no stacks, or no word of it: {note}: {lines[-20:]}")
    elif how == "unfound" and "libnccl MISSING not found" not in tail:
        wrong.append(f"{name}: does not say what is missing: {note}")
    elif how == "late" and "not started" not in note:
        wrong.append(f"{name}: {note}")
    elif how == "missing" and "package lacks" not in note and "No such file" not in tail:
        wrong.append(f"{name}: does not say what is missing: {note}")
print("\n".join(wrong), end="\n" if wrong else "")
sys.exit(bool(wrong))
END
}

make_package
"$root/run.sh" --list | awk '$1 ~ /^[a-h]\./ { print $1 }' >"$work/steps"
[ "$(wc -l <"$work/steps")" -gt 40 ] || complain "only $(wc -l <"$work/steps") steps in the list"
# Each command ends in 9 minutes: budgets, and what a step that hangs at the very end takes longer.
"$root/run.sh" --list | awk '$1 ~ /^[a-d]$/ { first += $3 } $1 == "e" { second += $3 } $1 ~ /^[f-h]$/ { third += $3 }
    $1 ~ /^[a-h]$/ { budget = $3 } $1 ~ /^[a-h]\./ && $2 > budget { print $1 " may take longer than its part"; bad = 1 }
    END { if (first > 500 || second > 500 || third > 500) { print first, second, third, "s of budgets"; bad = 1 } exit bad }' ||
    complain "limits and budgets"

# The stand-ins' tables are those that the programs print on a GPU, where no rehearsal sees them.
prints() { # FILE FORMAT
    grep -qF -- "$2" "$here/$1" || complain "$1 has no format $2: look at what reads it in parts/, and at the stand-in here"
}
prints cuda_kernels.cu 'printf("%8zu %10.0f", bytes >> 20, copy)'
prints cuda_kernels.cu 'printf(" %8.0f %3.0f%%"'
prints gpt2/attention.cu '[%2d][%4d][%2d][%3d]     %10.3f %10.0f %4.0f%% %10.3f %10.0f %4.0f%%'
prints gpt2/attention.cu 'bf16 peak %.0f TFLOP/s'
prints gpt2/matmul_device.c '%.0f TFLOP/s\n'
prints copy.cu 'copy %-20s %8zu MiB %10.1f GB/s'

: >"$work/planted"
visit 0
check_results

# The page is made of it, of one file or of the three commands'; and the one in docs/ is up to date.
cp "$work/results/results.json" "$work/all.json"
for share in first second third; do visit 0 --$share --results "$work/$share"; done
"$here/results.py" "$work"/{first,second,third}/results.json >"$work/page" || complain "no page of three commands"
"$here/results.py" "$work/all.json" >"$work/page-of-one" || complain "no page"
for pattern in '| e.ours-1 .* passed .*tokens 500000 tok/s' '| b.casts .*pack f32>f16 91 % of copy' '| NCCL | 2.28.9' '^| h.ncu ' \
    '| e.ours-1 .*norm of gradients 0.5 ms; clock 1000 MHz; power 100 W' '| e.sdpa .*flash \[64\]\[1024\]\[12\]\[64\] forward 1 TFLOP/s' \
    '| e.llmc .*tokens 471000 tok/s; step 139 ms' 'attention \[64\]\[1024\]\[12\]\[64\] backward 200 TFLOP/s' 'fastest product 600 TFLOP/s' 'copy, device to device 4300 GB/s'; do
    for page in page page-of-one; do grep -q -- "$pattern" "$work/$page" || complain "the page does not say: $pattern"; done
done
[ "$(sed '1,/^## Open/d' "$work/page" | grep -c '^- ')" = 4 ] || complain "all steps passed, and more is open than what has no step"
for name in gpu driver; do
    sed "s/\"$name\": \"[^\"]*\"/\"$name\": \"another\"/" "$work/second/results.json" >"$work/other.json"
    ! "$here/results.py" "$work/first/results.json" "$work/other.json" >/dev/null 2>&1 || complain "one page of two: $name"
done

# A step that ran again after a mend: each step says which revision it is of, merged twice, too.
! grep -q '| 0123456789ab | ' "$work/page" || complain "a page of one revision names it with each step"
visit 0 --only b.casts --results "$work/mended"
sed -i 's/"revision": "[^"]*"/"revision": "mended"/; s/pack f32>f16","value":91/pack f32>f16","value":92/' "$work/mended/results.json"
"$here/results.py" --merge "$work/first/results.json" "$work/mended/results.json" >"$work/merged.json" || complain "no merge of two revisions"
"$here/results.py" "$work/merged.json" "$work"/{second,third}/results.json >"$work/page" || complain "no page of two revisions"
for pattern in '^| revision | 0123456789ab; mended |' '^| b.casts .* passed .*| mended | .*pack f32>f16 92 % of copy' \
    '^| b.attention .* passed .*| 0123456789ab | ' '^| e.ours-1 .*| 0123456789ab | '; do
    grep -q -- "$pattern" "$work/page" || complain "the page of two revisions does not say: $pattern"
done

grep -q 'GPU-0123' "$work/first/results.json" && ! grep -q 'GPU-0123' "$work/merged.json" || complain "the merged file names the very GPU"

# The ratio is of all speeds in the results, whichever command they are of.
visit 0 --only e.mode-default,e.ours-1,e.torch-1 --results "$work/ratio"
visit 0 --only e.rank-1,e.ratio --results "$work/ratio"
for pattern in '"name":"the runtime, of the speed without","value":1.0,' '"name":"ours beside PyTorch","value":500000.0,'; do
    grep -q -- "$pattern" "$work/ratio/results.json" || complain "e.ratio of two commands lacks $pattern"
done
docs=$here/../../docs
committed=("$docs"/gpu-results.json)
[ -f "${committed[0]}" ] || committed=()
"$here/results.py" "${committed[@]}" | diff - "$docs/gpu-results.md" >&2 || complain "docs/gpu-results.md is not what results.py makes"

# Every second step, then the others: so each fails once beside neighbours that pass.
for turn in 0 1; do
    awk -v turn=$turn 'NR % 2 == turn { print $1, "exit" }' "$work/steps" >"$work/planted"
    rm -rf "$work/results"
    visit 1
    # h.ncu profiles what h.largest found.
    grep -q '^h.largest ' "$work/planted" && echo "h.ncu follows" >>"$work/planted"
    check_results
    check_page
done

# One that hangs, deaf to SIGTERM, with a child: its stacks are kept, it is ended, the rest goes on.
# Its part has no time left, and the others of the part are failures, too.
sed -i 's/part b kernels [0-9]*/part b kernels 3/' "$root/parts/b_kernels.sh"
sed -i 's/part a start [0-9]*/part a start 60/' "$root/parts/a_start.sh"
rm -rf "$work/results" "$root/tests/cuda_mma"
echo "b.casts hang" >"$work/planted"
visit 1 --only b,c.one,d.fp32
for step in attention gpt2 products mma; do echo "b.$step late"; done >>"$work/planted"
printf '%s\n' b.casts b.attention b.gpt2 b.products b.mma c.one d.fp32 >"$work/steps"
check_results
is_over() { # PID; a corpse is no process
    case $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) in '' | Z*) ;; *) return 1 ;; esac
}
no_planted_process_is_left() { # killed ones take a moment to go
    local pid
    for pid in $(cat "$work/pids" 2>/dev/null); do
        for _ in $(seq 300); do is_over "$pid" && break; sleep 0.1; done
        is_over "$pid" || { complain "process $pid is left"; kill -KILL "$pid"; }
    done
}
no_planted_process_is_left

# Programs and libraries that are not there. A second command adds to the first one's results.
echo "b.mma missing" >"$work/planted"
rm -f "$root/gpt2"
echo 'import sys; print("libnccl MISSING not found"); sys.exit(1)' >"$root/libraries.py"
sed -i 's/part b kernels [0-9]*/part b kernels 120/' "$root/parts/b_kernels.sh"
visit 1 --only a.libraries,b,d.fp32
printf '%s\n' "a.libraries unfound" "b.mma missing" "d.fp32 missing" >"$work/planted"
sed -i '1i a.libraries' "$work/steps"
check_results
grep -q '^b.mma .*package lacks tests/cuda_mma' "$work/results/table.txt" || complain "the table does not say what is missing"

# Interrupted in a step, as by the end of the visit: what there is, is kept, and says so.
echo "b.casts hang" >"$work/planted"
# The output of the visit before names the step, too. A signal between bash's fork and run.sh would
# end in this script's own trap, which removes $work.
rm -rf "$work/results" "$work/output" "$work/pids"
PATH=$root/tools:$PATH TMPDIR=$work "$root/run.sh" "$root" --results "$work/results" --only a.gpu,b.casts >"$work/output" 2>&1 &
for _ in $(seq 1 600); do
    grep -qs 'b.casts' "$work/output" && break
    sleep 0.1
done
kill -TERM $!
wait $!
[ $? = 1 ] || complain "interrupted, and the exit code is not 1"
no_planted_process_is_left
ls "$work"/results/logs-*.tar.gz "$work/results/table.txt" >/dev/null || complain "interrupted, and there are no logs"
grep -q '"step":"a.gpu"' "$work/results/results.json" || complain "interrupted, and the results are lost"

# Another GPU, driver or revision than the results', no GPU at all.
visit 0 --only a.gpu --results "$work/gpu"
for name in gpu driver; do
    sed "s/\"$name\": \"[^\"]*\"/\"$name\": \"another\"/" "$work/gpu/results.json" >"$work/other.json"
    mkdir -p "$work/other" && cp "$work/other.json" "$work/other/results.json"
    visit 2 --only a.machine --results "$work/other"
    cmp -s "$work/other.json" "$work/other/results.json" || complain "results of another $name have changed"
done
echo "revision another" >"$root/VERSION"
visit 2 --only a
printf '#!/bin/sh\necho no devices; exit 9\n' >"$root/tools/nvidia-smi"
visit 77 --only a
exit $((failures != 0))
