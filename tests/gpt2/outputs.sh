#!/bin/bash
# outputs.sh GPT2 DPTRACE SYNTH - what the programs write, and what they read.
#
# A result is whole, or the older file stays; a device, a pipe and a link stay what they are; no
# byte is lost without a word and a code; nothing is written onto what is read. What is read is a
# regular file, or refused: a pipe without a writer or an endless device holds nobody up.
# shellcheck disable=SC2086 # $flags is a list of words
#
# Devices are bound into the scratch folder, in a mount namespace of our own: a program that replaced
# one, as root, would take the machine's. Where mounting is not permitted, that part is left out.
set -u
if [ -z "${DP_TEST_PRIVATE-}" ] && unshare -rm true 2>/dev/null; then
    DP_TEST_PRIVATE=1 exec unshare -rm "$0" "$@"
fi
can_mount=${DP_TEST_PRIVATE-}
gpt2=$(realpath "$1") dptrace=$(realpath "$2") synth=$(realpath "$3")
work=$(mktemp -d "${TMPDIR:-/tmp}/gpt2-outputs-XXXXXX")
cleanup() {
    [ -z "$can_mount" ] || umount "$work/null" "$work/full" 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT
cd "$work" || exit 1
failed=0
awk 'BEGIN { for (i = 0; i < 800; i++) print "and the lord said unto them" }' >text
flags="--device cpu --strategy single --layers 1 --width 16 --heads 2 --context 16 --batch 2 --threads 1 --eval-batches 1"

run() { # run COMMAND...: its code in $code, what it says in out
    timeout -k 5 60 "$@" >out 2>&1 </dev/null
    code=$?
}
# limited BLOCKS COMMAND...: with files of at most so many KiB; what it says goes through a pipe
limited() {
    (ulimit -f "$1" && exec timeout -k 5 60 "${@:2}") 2>&1 </dev/null | cat >out
    code=${PIPESTATUS[0]}
}
train() { run "$gpt2" $flags --data text --steps 2 "$@"; }
claim() { # claim NAME CONDITION...: a test(1) expression
    if [ "${@:2}" ]; then return; fi
    echo "FAILED  $1: not true: ${*:2}"
    sed 's/^/        /' out | tail -5
    failed=1
}
# fails NAME PATTERN: the last command failed by itself, and said why
fails() {
    claim "$1: it fails by itself" "$code" = 1 -o "$code" = 2
    claim "$1: it says why" "$(grep -cE -- "$2" out)" -gt 0
}

# ---- Devices, pipes and links stay what they are ---------------------------------------------
if [ "$can_mount" ]; then
    touch null full
    mount --bind /dev/null null && mount --bind /dev/full full || exit 1
else
    echo "outputs.sh: mounting is not permitted: nothing is written into devices"
fi
for flag in --summary --csv --export --samples; do
    if [ "$can_mount" ]; then
        train $flag null
        claim "$flag into a device" "$code" = 0
        train $flag full
        fails "$flag onto a full device" "full: .*No space left on device"
        claim "$flag: the device stays" -c null -a -c full
    fi
    mkfifo pipe
    timeout 60 cat pipe >copy &
    train $flag pipe
    wait $!
    claim "$flag into a pipe" "$code" = 0 -a -p pipe -a -s copy
    rm -f pipe copy
    [ $flag = --csv ] && continue # a log is written row by row
    mkdir -p there && echo older >there/file
    ln -sf there/file link
    train $flag link
    claim "$flag through a link" "$code" = 0 -a -L link -a "$(grep -c '^older' there/file)" = 0
    echo older >older && chmod 640 older
    limited 0 "$gpt2" $flags --data text --steps 2 $flag older
    fails "$flag beyond a limit of file sizes" "older.*: .*File too large"
    claim "$flag: the older file stays" "$(cat older)" = older
    train $flag older
    claim "$flag replaces it, and its mode stays" "$(stat -c %a older)" = 640 -a "$(grep -c '^older' older)" = 0
done
limited 1 "$gpt2" $flags --data text --csv log.csv --log-every 1 --steps 40
fails "a log beyond a limit" "log.csv: rows after step [0-9]+ are lost: File too large"
claim "and it is told once at once, once at the end" "$(grep -c "rows after step" out)" = 2
claim "a row is whole or the last" "$(tail -n +2 log.csv | head -n -1 | awk -F, 'NF != 19' | wc -l)" = 0
limited 1 "$gpt2" $flags --data text --log-jsonl log.jsonl --log-every 1 --steps 40
fails "JSON lines beyond a limit" "log.jsonl: rows after step [0-9]+ are lost: File too large"
# The two logs say the same, and MFU is there where a peak is given.
train --steps 3 --log-every 1 --csv both.csv --log-jsonl both.jsonl --peak 0.01
claim "a run with both logs" "$code" = 0 -a "$(wc -l <both.jsonl)" = 3 -a "$(wc -l <both.csv)" = 4
claim "they say the same" "$(sed -n 's/.*"step": \([^,]*\), "loss": \([^,]*\),.*/\1,\2/p' both.jsonl)" = "$(tail -n +2 both.csv | cut -d, -f1,2)"
claim "the third has a validation, the first none" "$(grep -c val_loss both.jsonl)" = 1
claim "MFU is in all" "$(grep -c '"mfu": [0-9.]*}' both.jsonl)" = 3 -a "$(grep -c 'tok/s  mfu [0-9.]* %' out)" = 3
claim "and the head says of what" "$(grep -c 'mfu     of the 0.01 TFLOP/s that --peak gives' out)" = 1
claim "norm and rate are in the lines" "$(grep -c 'norm [0-9.]*  lr [0-9.e-]*  ' out)" = 3
# mfu = tokens/s x (6 x 7664 weights + 6 x 1 layer x 16 channels x 16 tokens) / peak
claim "MFU is what llm.c's count gives" "$(sed -n 's/.*"tokens_per_s": \([^,]*\),.*"mfu": \([^}]*\)}/\1 \2/p' both.jsonl |
    awk '{ off = $1 * (6 * 7664 + 6 * 16 * 16) / 1e10 - $2; bad += off > 0.0002 || off < -0.0002 } END { print NR, bad + 0 }')" = "3 0"
ln -s /dev/stdout stream
"$gpt2" $flags --data text --steps 2 --summary stream >mixed 2>out
claim "the file of standard output stays" "$(grep -c '"step_ms"' mixed)" = 1 -a "$(grep -c '^learned' mixed)" = 1
"$gpt2" $flags --data text --steps 2 >/dev/full 2>out
code=$?
fails "standard output on a full disk" "standard output: .*No space left"
claim "no half file is left" "$(find . -name '*.part' | wc -l)" = 0

# ---- Nothing onto what is read --------------------------------------------------------------
train --export model.safetensors
cp model.safetensors kept
ln -f model.safetensors same.safetensors
train --init model.safetensors --export same.safetensors
fails "an export onto --init's file" "--export same.safetensors is the file of --init"
train --summary ./text
fails "a summary onto the data" "--summary ./text is a file of the data"
train --csv log --summary log
fails "two results in one file" "--csv log is the file of --summary"
claim "nothing was written" "$(cmp model.safetensors kept 2>&1)" = ""
"$synth" trace >out 2>&1 || exit 1
run "$dptrace" merge trace -o t.pftrace
cp t.pftrace kept
run "$dptrace" view t.pftrace -o ./t.pftrace
fails "a page onto its trace" "t.pftrace: is read for this"
run "$dptrace" merge trace -o trace/trace.1.dpt
fails "a merged file onto a recorder" "trace.1.dpt: is read for this"
claim "the trace stays" "$(cmp t.pftrace kept 2>&1)" = ""
ln -sf t.pftrace link
run "$dptrace" merge trace -o link
claim "dptrace writes through a link" "$code" = 0 -a -L link
if [ "$can_mount" ]; then
    run "$dptrace" report trace -o full
    fails "dptrace onto a full device" "full: cannot write: No space left"
fi
limited 0 "$dptrace" view trace -o t.pftrace
fails "dptrace beyond a limit" "t.pftrace: cannot write: File too large"
claim "the older file stays" "$(cmp t.pftrace kept 2>&1)" = "" -a "$(find . -name '*.part' | wc -l)" = 0

# ---- What is read is a regular file ----------------------------------------------------------
train --out o
mkfifo fifo.safetensors fifo.bin fifo fifo.pftrace
ln -sf /dev/zero zero.safetensors
ln -sf /dev/zero zero.bin
for file in fifo.safetensors fifo.bin zero.safetensors zero.bin; do
    train --init $file
    fails "--init $file" "$file: not a regular file"
    run "$gpt2" $flags --steps 2 --data $file
    fails "--data $file" "$file: not a regular file"
done
mkdir model && cp model.safetensors model/ && mkfifo model/config.json
train --init model/model.safetensors
claim "a pipe as a model's config.json holds nobody up" "$code" -lt 3
for file in manifest.txt weights.bin adam_v.bin; do
    rm -rf copy && cp -r o copy && rm "copy/checkpoint/2/$file" && mkfifo "copy/checkpoint/2/$file"
    train --resume copy/checkpoint/2 --steps 3
    fails "--resume with a pipe as $file" "$file: not a regular file"
done
run "$dptrace" report fifo.pftrace
claim "dptrace reads a pipe without a writer" "$code" = 1
run "$dptrace" report /dev/zero
fails "dptrace reads a device" "/dev/zero: .*not a regular file"
run "$dptrace" info /dev/fd/0 <t.pftrace
run bash -c "'$dptrace' info <(cat t.pftrace)"
claim "dptrace reads a pipe with a writer" "$code" = 0
rm trace/trace.1.dpt && mkfifo trace/trace.1.dpt
run "$dptrace" report trace
claim "a pipe as a recorder holds nobody up" "$code" -lt 3
[ $failed = 0 ] && echo "outputs.sh: all as expected"
exit $failed
