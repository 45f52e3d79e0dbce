#!/bin/sh
# tokens.sh GPT2 DOCUMENTS FIXTURES - from texts to a sample in words: documents.py, gpt2 tokenize, training
# on shards, and what each says of bad input. FIXTURES/tokens is a vocabulary of 512 tokens.
set -eu

gpt2=$1
documents=$2
vocabulary=$3/tokens
work=$(mktemp -d "${TMPDIR:-/tmp}/gpt2-tokens-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

die() {
    echo "tokens.sh: $*" >&2
    cat out >&2
    exit 1
}
says() { grep -qF -e "$1" out || die "it does not say: $1"; }
# refused TEXT COMMAND...
refused() {
    text=$1
    shift
    if "$@" >out 2>&1; then die "accepted: $*"; fi
    says "$text"
}
train() {
    timeout 60 "$gpt2" --strategy single --device cpu --preset tiny --layers 1 --width 32 --heads 2 --context 32 --seq 16 \
        --batch 4 --steps 3 --eval-batches 1 "$@"
}
document() { python3 "$documents" "$@" >piped 2>out; }

# Two documents of JSON lines are those of a text file of its own each.
cat >docs.jsonl <<'END'
{"id": 1, "text": "the rank waits\nfor \"the\" tensor"}

{"text": "na\u00efve \ud83d\ude00 text\u0000"}
END
printf 'the rank waits\nfor "the" tensor' >1.txt
printf 'na\303\257ve \360\237\230\200 text' >2.txt
document docs.jsonl || die "documents.py"
says "2 documents"
timeout 60 "$gpt2" tokenize - --null --tokenizer "$vocabulary" -o json.bin <piped >out 2>&1 || die "tokenize"
says "of 2 documents"
says "train with --tokenizer $vocabulary: it has 512 tokens, GPT-2 has 50257"
timeout 60 "$gpt2" tokenize 1.txt 2.txt --tokenizer "$vocabulary" -o text.bin >out 2>&1 || die "tokenize"
cmp json.bin text.bin || die "JSON lines and texts differ"
gzip -k docs.jsonl
document docs.jsonl.gz || die "documents.py, compressed"
timeout 60 "$gpt2" tokenize - --null --tokenizer "$vocabulary" -o gz.bin <piped >out 2>&1 || die "tokenize"
cmp gz.bin text.bin || die "compressed JSON lines differ"
if python3 -c 'import pyarrow' 2>/dev/null; then
    python3 -c 'import json, pyarrow, pyarrow.parquet
rows = [json.loads(line)["text"] for line in open("docs.jsonl") if line.strip()]
pyarrow.parquet.write_table(pyarrow.table({"text": rows}), "docs.parquet")'
    document docs.parquet || die "documents.py, parquet"
    timeout 60 "$gpt2" tokenize - --null --tokenizer "$vocabulary" -o parquet.bin <piped >out 2>&1 || die "tokenize"
    cmp parquet.bin text.bin || die "parquet differs"
else
    echo "tokens.sh: no pyarrow, parquet is not tried"
    : >docs.parquet
    refused "docs.parquet: reading .parquet needs pyarrow" python3 "$documents" docs.parquet
fi

# Bad input: one sentence each.
echo '{"body": "x"}' >other.jsonl
echo '{"text": ' >cut.jsonl
printf 'not gzip' >bad.jsonl.gz
refused "other.jsonl: line 1: no text in the field 'text'; there is: body" python3 "$documents" other.jsonl
refused "cut.jsonl: line 1 is not JSON" python3 "$documents" cut.jsonl
refused "bad.jsonl.gz: cannot be read" python3 "$documents" bad.jsonl.gz
refused "absent.jsonl: cannot be read: [Errno 2]" python3 "$documents" absent.jsonl
refused "1.txt: expected .jsonl, .jsonl.gz or .parquet" python3 "$documents" 1.txt
refused "--tokenizer is missing" "$gpt2" tokenize 1.txt -o x.bin
refused "-o is missing" "$gpt2" tokenize 1.txt --tokenizer "$vocabulary"
refused "no text is named" "$gpt2" tokenize -o x.bin
refused "absent: No such file or directory" "$gpt2" tokenize absent --tokenizer "$vocabulary" -o x.bin
refused "absent: expected a folder with vocab.json and merges.txt" "$gpt2" tokenize 1.txt --tokenizer absent -o x.bin
refused "did you mean --null?" "$gpt2" tokenize 1.txt --nul
timeout 60 "$gpt2" tokenize --help >out 2>&1 || die "--help"
says "usage: gpt2 tokenize FILE ... --tokenizer DIR -o OUT.bin"
[ ! -e x.bin ] || die "a refused command left a file"

# A run on shards, sampled in words; a bad prompt is refused before the run.
yes "the rank waits for the tensor and then it goes on." | head -c 40000 >long.txt
timeout 60 "$gpt2" tokenize long.txt --tokenizer "$vocabulary" -o run/train.bin --shard-tokens 5000 >out 2>&1 && die "no folder"
mkdir run
timeout 60 "$gpt2" tokenize long.txt --tokenizer "$vocabulary" -o run/train.bin --shard-tokens 5000 >out 2>&1 || die "shards"
says "run/train_000002.bin and those before it"
train --data run --tokenizer "$vocabulary" --sample "the rank" --sample-tokens 20 --temperature 0 --export model.safetensors \
    >out 2>&1 || die "a run"
says "vocabulary 512"
grep -q "^sample  the rank." out || die "no sample in words"
refused 'expected token numbers, e.g. "464 1", or words and --tokenizer' train --data run --vocab 512 --sample "the rank"
grep -q "^step" out && die "the prompt was read behind the run"
refused 'token 600 is outside the vocabulary of 512' train --data run --vocab 512 --sample 600
refused "--vocab 500, but --tokenizer $vocabulary has 512 tokens" train --data run --vocab 500 --tokenizer "$vocabulary"
refused "gpt2 tokenize FILE -o FILE.bin makes a file of tokens" train --data long.txt --tokenizer "$vocabulary"
# A shard of another vocabulary, one that was cut, and one that is missing.
refused "run/train_000000.bin: token " train --data run --vocab 100
head -c 3000 run/train_000001.bin >short.bin
refused "short.bin: 3000 bytes long, but its header says 5000 tokens" train --data run/train_000000.bin short.bin --vocab 512
refused "run/train_000009.bin: No such file" train --data run/train_000000.bin run/train_000009.bin --vocab 512

# Questions: eval_reference.py has the right answers, here is what is no question.
ask() { "$gpt2" eval --strategy single --init model.safetensors --tokenizer "$vocabulary" "$@"; }
echo '{"ctx": "the rank", "endings": ["waits", "goes on"], "label": "1"}' >swag.jsonl
echo '{"text": "the rank waits for the tensor"}' >last.jsonl
ask --hellaswag swag.jsonl --lambada last.jsonl >out 2>&1 || die "eval"
says "of 1 examples"
echo '{"ctx": "the rank", "endings": ["waits"], "label": 1}' >>swag.jsonl
echo '{"text": "one"}' >>last.jsonl
: >empty.jsonl
refused 'swag.jsonl: line 2 is no example: expected an object with "ctx", "endings" and their "label"' ask --hellaswag swag.jsonl
ask --hellaswag swag.jsonl --limit 1 >out 2>&1 || die "eval --limit"
refused 'last.jsonl: line 2 is no example: expected an object with "text", two words at least' ask --lambada last.jsonl
refused "empty.jsonl: no example in it" ask --lambada empty.jsonl
refused "nothing to ask: --hellaswag FILE, --lambada FILE" ask
refused "--init is missing" "$gpt2" eval --tokenizer "$vocabulary" --lambada last.jsonl
seq -s ' ' 40 >long.words
printf '{"ctx": "a", "endings": ["%s"], "label": 0}\n' "$(cat long.words)" >long.jsonl
refused "an ending of " ask --hellaswag long.jsonl
says "does not fit the model's 32 positions"
mkdir small # config.json lies beside a model
train --data long.txt --export small/model.safetensors >out 2>&1 || die "a run on bytes"
refused "small/model.safetensors has a vocabulary of 256, but --tokenizer $vocabulary has 512 tokens" \
    "$gpt2" eval --strategy single --init small/model.safetensors --tokenizer "$vocabulary" --lambada last.jsonl
echo "tokens.sh: all as expected"
