#!/bin/bash
# test_checkpoints.sh DPRUN GPT2 - the trainer comes to harm while it saves, and goes on from what it
# had; full disks under its checkpoints, the recorder and the timeline cost what they must, no more.
#
# Where mounting is permitted (in a user namespace of our own) the disks are real and really full;
# elsewhere a limit on file sizes stands for them.
set -u
if [ -z "${DP_TEST_PRIVATE-}" ] && unshare -rm true 2>/dev/null; then
    DP_TEST_PRIVATE=1 exec unshare -rm "$0" "$@"
fi
can_mount=${DP_TEST_PRIVATE-}
unset DP_TEST_PRIVATE
dprun=$1 gpt2=$2
work=$(mktemp -d)
disks=
cleanup() {
    for disk in $disks; do umount "$disk"; done
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' TERM INT
mkdir -m 700 "$work/run"
export XDG_RUNTIME_DIR=$work/run TMPDIR=$work/run
export DP_FUSION_BYTES=1M # a job need not fill 96 MiB when it starts
cp "$gpt2" "$work/gpt2" # a path of its own, to look for what is left
cd "$work" || exit 1
awk 'BEGIN { srand(7); split("and the lord said unto them", w, " ");
     for (i = 0; i < 4000; i++) printf "%s%s", w[int(rand() * 6) + 1], i % 12 == 11 ? "\n" : " " }' >text
flags="--data text --preset tiny --layers 1 --width 32 --heads 2 --batch 8 --steps 24 --checkpoint-every 4 --log-every 1 --eval-batches 1"
failed=0

claim() { # claim NAME CONDITION...: a test(1) expression
    if [ "${@:2}" ]; then echo "ok      $1"; return; fi
    echo "FAILED  $1: not true: ${*:2}"
    sed 's/^/        /' out | tail -30
    failed=1
}
says() { # says NAME PATTERN
    claim "$1" "$(grep -cE -- "$2" out)" -gt 0
}
train() { # train FAULT ARGUMENTS..., with DP_ settings in the environment
    DP_INJECT=$1 timeout -k 5 120 "$dprun" -np 4 --pretend-nodes 2 "$work/gpt2" $flags "${@:2}" \
        >out 2>&1 </dev/null
    code=$?
}
newest() { ls "$1/checkpoint" 2>/dev/null | sort -n | tail -1; }
nothing_left() {
    claim "$1: no process is left" "$(pgrep -fc "$work/gpt2")" = 0
    sed -nE 's/.*run directory ([^ ]*) \(.*/\1/p' out | xargs -r rm -rf
    claim "$1: no run directory is left" "$(ls "$work/run" | wc -l)" = 0
}
# go_on NAME FOLDER FROM: the run is taken up again and ends as if nothing had happened
go_on() {
    claim "$1: the newest checkpoint is $3" "$(newest "$2")" = "$3"
    train "" --out "$2" --resume auto
    claim "$1: it goes on" $code = 0
    claim "$1: and ends with the same bits" "$(cmp "$2/checkpoint/24/weights.bin" whole/checkpoint/24/weights.bin 2>&1)" = ""
    claim "$1: no half checkpoint is left" "$(ls -A "$2/checkpoint" | grep -c writing)" = 0
}

train "" --out whole
claim "a whole run" $code = 0

# ---- Death while a checkpoint is written ----------------------------------------------------
train kill:0@checkpoint/11 --out killed
claim "the saving rank is killed" $code = 137
says "it is named" '^dprun: FAILED  rank 0 .*: SIGKILL'
says "and so is what it did" '^  last op  .*in checkpoint'
nothing_left "the saving rank is killed"
go_on "the saving rank is killed" killed 8
train stop:0@checkpoint/11 --out stopped
says "the saving rank is stopped: it is named" '^dprun: FAILED  rank 0 .*: stopped by SIGSTOP'
nothing_left "the saving rank is stopped"
go_on "the saving rank is stopped" stopped 8
train exit:3@13=1 --out left
claim "another rank fails" $code = 1
nothing_left "another rank fails"
go_on "another rank fails" left 12
train slow:0@checkpoint=300ms --out slow
claim "a slow checkpoint kills nobody" $code = 0

# ---- A damaged checkpoint -------------------------------------------------------------------
train exit:3@22=1 --out flipped
nothing_left "a damaged checkpoint"
printf '\377' | dd of=flipped/checkpoint/20/adam_m.bin bs=1 seek=4096 conv=notrunc 2>/dev/null
train "" --out flipped --resume auto
claim "a damaged checkpoint: the run goes on" $code = 0
says "and says which it passed over, and why" 'warning: checkpoint 20 is passed over: .*adam_m.bin: damaged: checksum of'
says "and goes on from the one before" ' step +17/24 '
claim "and ends with the same bits" "$(cmp flipped/checkpoint/24/weights.bin whole/checkpoint/24/weights.bin 2>&1)" = ""
: >flipped/checkpoint/20/manifest.txt
: >flipped/checkpoint/24/manifest.txt
train "" --out flipped --resume auto
claim "no checkpoint is whole: nobody starts from the beginning by mistake" $code -ne 0
says "and it is said" 'none of the 2 checkpoints in flipped/checkpoint can be used; the newest: .*24/manifest.txt'
nothing_left "no checkpoint is whole"
train "" --out fresh --resume auto
claim "no checkpoint at all: the run starts" $code = 0
says "and says so" 'there is no checkpoint in fresh/checkpoint; starts at step 0'

# ---- Full disks -----------------------------------------------------------------------------
# disk NAME KIB: an empty disk of that size in folder NAME
disk() {
    mkdir "$1"
    if [ -n "$can_mount" ]; then
        mount -t tmpfs -o size="$2k",mode=700 none "$1" && disks+=" $work/$1"
    fi
}
disk full 64
if [ -n "$can_mount" ]; then
    train "" --out full
else
    train short:0@checkpoint=4K --out full
fi
claim "no room for any checkpoint: the run fails" $code -ne 0
says "and says so" 'the last checkpoint was not saved'
says "each failure is told with its file" 'checkpoint/.*(No space left|File too large)'
says "all steps were done" 'rank 0 .* aborted: the last checkpoint|step +24'
nothing_left "no room for any checkpoint"
claim "no half checkpoint is left" "$(ls -A full/checkpoint 2>/dev/null | wc -l)" = 0

train short:0@checkpoint/20=4K --out late
claim "no room for the last checkpoint: the run fails" $code -ne 0
says "and names the one that is there" 'files +late/checkpoint/20 '
nothing_left "no room for the last checkpoint"
go_on "no room for the last checkpoint" late 20

if [ -n "$can_mount" ]; then
    disk tiny 512
    XDG_RUNTIME_DIR=$work/tiny train "" --out recorder
    claim "no room for the recorder: the run succeeds" $code = 0
    says "and says so" 'timeline: no room for [0-9]+ bytes in .*No space left'
    claim "its run directory is gone" "$(ls tiny | wc -l)" = 0
    disk shelf 8
    DP_TIMELINE=$work/shelf/line.json train "" --out timeline
    claim "no room for the timeline: the ranks succeed" "$(newest timeline)" = 24
    says "and it is told" '--timeline .*(No space left|exited with code)'
    says "the recorders stay for another try" 'saved run directory'
    claim "half a timeline is not left" "$(ls shelf | wc -l)" = 0
    nothing_left "no room for the timeline"
    dd if=/dev/zero of=shelf/filler bs=1k count=64 2>/dev/null
    DP_TIMELINE=$work/shelf/line.json train kill:1@3 --out both
    claim "no room for the timeline of a job that failed: its cause is what is told" $code = 137
    says "named" '^dprun: FAILED  rank 1 '
    nothing_left "no room for the timeline of a job that failed"
else
    train short:0@trace,short:3@trace --out recorder
    claim "no room for the recorder: the run succeeds" $code = 0
    says "and says so" 'timeline: no room for [0-9]+ bytes in .*File too large'
fi
[ $failed = 0 ] && echo "all claims hold"
exit $failed
