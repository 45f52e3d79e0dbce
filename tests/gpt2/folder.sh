#!/bin/sh
# folder.sh DPRUN GPT2 - a folder of --out holds one run: a second one is refused, or replaces it, and takes
# nothing else away; what a resume changes is said; a log has each step once; ranks with other data
# are found.
# shellcheck disable=SC2086 # flags is a list of words
set -eu

dprun=$1
gpt2=$2
work=$(mktemp -d "${TMPDIR:-/tmp}/gpt2-folder-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
export XDG_RUNTIME_DIR="$work" TMPDIR="$work"
yes "in the beginning god created" | head -c 20000 >text
yes "in the beginning god created" | head -c 19000 >other

die() {
    echo "folder.sh: $*" >&2
    cat out >&2
    exit 1
}
flags="--strategy single --preset tiny --device cpu --batch 4 --seq 16 --layers 1 --width 32 --heads 2 --context 32
    --eval-batches 1 --log-every 1 --data text"
train() { timeout 60 "$gpt2" $flags "$@" >out 2>&1; }
steps() { cut -d, -f1 "$1" | tr '\n' ' '; }
# says TEXT, refused TEXT FLAGS...
says() { grep -qF -e "$1" out || die "it does not say: $1"; }
refused() {
    text=$1
    shift
    if train "$@"; then die "accepted: $*"; fi
    says "$text"
}

train --out run --steps 12 --checkpoint-every 4 || die "the first run"
cp -a run kept
mkdir run/notes run/checkpoint/77
echo mine >run/notes/text

# A second run is refused and has changed nothing; so is one that begins at a checkpoint of another folder.
refused "--out run holds a run already (checkpoints 77 and older, log.csv): --resume auto goes on with it" \
    --out run --steps 4 --seed 7
rmdir run/checkpoint/77
refused "--out run holds a run already (checkpoints 12 and older, log.csv)" --out run --steps 4
refused "--overwrite removes it, or name another folder" --out run --steps 16 --resume kept/checkpoint/12
refused "holds checkpoint 12, which is newer than run/checkpoint/8" --out run --steps 9 --resume run/checkpoint/8
diff -r run kept | grep -v "notes" >out && die "a refused run changed the folder"
# A start that fails has removed nothing.
refused "missing: No such file" --out run --data missing --steps 4 --overwrite
cmp run/log.csv kept/log.csv || die "a failed start removed the log"
# What is no checkpoint is not removed.
mkdir run/checkpoint/77
refused "run/checkpoint/77: not a checkpoint" --out run --steps 4 --overwrite
rmdir run/checkpoint/77

train --out run --steps 4 --seed 7 --overwrite || die "--overwrite"
[ "$(ls run/checkpoint)" = 4 ] && [ "$(cat run/notes/text)" = mine ] || die "--overwrite left $(ls run/checkpoint)"
[ "$(steps run/log.csv)" = "step 1 2 3 4 " ] || die "the log has $(steps run/log.csv)"

# It goes on from the second run's step, and says what is not as it was.
train --out run --steps 6 --resume auto --seed 9 --batch 8 --seq 8 --data other || die "--resume auto"
says "resumed run/checkpoint/4: step 4"
says "warning: resumed with --seed 9, begun with 7: the data stay in the order of 7"
says "warning: resumed with --batch 8, saved with 4"
says "warning: resumed with --seq 8, saved with 16"
says "warning: resumed with other data: 17100 training tokens ("
says "--batch is given twice, 4 and 8: the last one counts"
train --out run --steps 7 --resume auto --batch 8 --seq 8 --data other || die "--resume auto, unchanged"
if grep -q "warning: resumed" out; then die "a warning about nothing"; fi

# Steps that a killed run had logged behind its checkpoint, and half a row, are there once.
printf '8,1.5,,1e-3\n9,1.25' >>run/log.csv
printf '{"step": 6, "loss": 1}\n{"step": 7, "loss": 1}\n{"step": 8, "loss": 1}\n{"ste' >run/log.jsonl
train --out run --steps 9 --resume auto --batch 8 --seq 8 --data other --log-jsonl run/log.jsonl || die "a longer log"
[ "$(steps run/log.csv)" = "step 1 2 3 4 5 6 7 8 9 " ] || die "the log has $(steps run/log.csv)"
[ "$(sed 's/{"step": \([0-9]*\), "loss".*}/\1/' run/log.jsonl | tr '\n' ' ')" = "6 7 8 9 " ] || die "it has $(cat run/log.jsonl)"
# From an earlier checkpoint: what is newer goes.
train --out run --steps 8 --resume run/checkpoint/7 --batch 8 --seq 8 --data other --overwrite || die "an older one"
[ "$(ls run/checkpoint | tr '\n' ' ')" = "7 8 " ] || die "it left $(ls run/checkpoint)"
[ "$(steps run/log.csv)" = "step 1 2 3 4 5 6 7 8 " ] || die "the log has $(steps run/log.csv)"

# A folder that holds a log alone: the run was killed before its first checkpoint.
rm -rf run/checkpoint
refused "--out run holds a run already (log.csv)" --out run --steps 4
train --out run --steps 2 --resume auto || die "a log alone"
[ "$(steps run/log.csv)" = "step 1 2 " ] || die "the log has $(steps run/log.csv)"

# The same pattern finds other files on another machine.
mkdir a b
cp text a/1.txt
cp other b/1.txt
cat >in_folder <<'END'
#!/bin/sh
if [ "$DP_LOCAL_RANK" = 1 ]; then cd b; else cd a; fi
exec "$@" --data '*.txt'
END
chmod +x in_folder
if timeout 60 "$dprun" -np 2 ./in_folder "$gpt2" ${flags#--strategy single} --strategy coordinator --steps 1 >out 2>&1; then
    die "ranks with other data were accepted"
fi
says "rank 1: its training data are not rank 0's: 1 file from 1.txt on with 17100 training tokens, rank 0 has 18000"
echo "folder.sh: all as expected"
