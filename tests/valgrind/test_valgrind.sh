#!/usr/bin/env bash
# test_valgrind.sh FOLDER CANARY - memcheck over what a user runs, with the programs of FOLDER: hello
# on two machines, two steps of the trainer on one, the launcher itself, and dptrace over
# what the trainer left. Ends with 77 where there is no valgrind.
set -u
bin=$1
canary=$2
command -v valgrind >/dev/null || { echo "no valgrind here"; exit 77; }
work=$(mktemp -d "${TMPDIR:-/tmp}/dp-valgrind-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

# One finding per process is one too many: definite and indirect leaks, and any invalid access.
check=(valgrind -q --error-exitcode=99 --leak-check=full --show-leak-kinds=definite,indirect
    --errors-for-leak-kinds=definite,indirect)
# Valgrind runs one thread at a time, 30 times slower: nobody is to be given up for that.
patient=(--peer-timeout=120s --stall-warn=120s --start-timeout=120s)
failed=0
clean() { # name command...
    local name=$1
    shift
    if "$@" >"$name.out" 2>&1; then
        echo "clean: $name"
    else
        echo "not clean (exit $?): $name"
        cat "$name.out"
        failed=1
    fi
}

"${check[@]}" "$canary" >canary.out 2>&1
[ $? = 99 ] || { echo "valgrind does not see what it should:"; cat canary.out; exit 1; }

clean hello_on_two_hosts "$bin/dprun" -np 2 --pretend-nodes=2 "${patient[@]}" "${check[@]}" "$bin/hello"
# The agent is a fork of dprun and checked with it, the ranks are not.
clean launcher "${check[@]}" "$bin/dprun" -np 2 "${patient[@]}" "$bin/hello"
clean launcher_of_a_failure bash -c '"$@" 2>&1 | tee launcher.log; [ "${PIPESTATUS[0]}" = 3 ]' - \
    "${check[@]}" "$bin/dprun" -np 2 "${patient[@]}" sh -c 'exit 3'
if [ -x "$bin/gpt2" ]; then
    for _ in {1..400}; do echo "and the lord said unto them"; done >text
    small=(--layers 2 --heads 2 --width 32 --seq 16 --batch 2) # as much code as a larger model's
    clean trainer "$bin/dprun" -np 2 "${patient[@]}" --timeline job.pftrace "${check[@]}" "$bin/gpt2" --gemm own \
        --data text "${small[@]}" --steps 2 --check 1 --out run
    clean trainer_resumed "$bin/dprun" -np 2 "${patient[@]}" "${check[@]}" "$bin/gpt2" --gemm own \
        --data text "${small[@]}" --steps 3 --out run --resume auto
    clean report "${check[@]}" "$bin/dptrace" report job.pftrace
    clean view "${check[@]}" "$bin/dptrace" view job.pftrace -o page.html
fi
exit $failed
