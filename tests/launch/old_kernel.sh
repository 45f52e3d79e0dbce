#!/usr/bin/env bash
# Jobs where one of the newer system calls is refused, as by an older kernel (ENOSYS) or a sandbox (EPERM):
# the job runs, or one sentence says which call it needs.
#
#   old_kernel.sh DPRUN MEMBER REFUSE ENOSYS|EPERM one|nodes
set -u
dprun=$1 member=$2 refuse=$3 error=$4 way=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -m 700 "$work/run"
cd "$work" || exit 1
export XDG_RUNTIME_DIR=$work/run TMPDIR=$work DP_FUSION_BYTES=1M
while read -r name; do unset "$name"; done < <(env | grep -Eo '^(DP_[^F]|SLURM_|PMI_|PMIX_|OMPI_)[A-Z0-9_]*')
[ "$way" = one ] && flags="-np 2" || flags="-H localhost:1,127.0.0.1:1"
bad() { echo "FAILED: $call: $error: $*"; tail -n 20 out err; exit 1; }

# needs CALL: a job cannot do without it, and says so in one sentence
needs() {
    case $1 in
    memfd_create) echo 'memfd_create: .*: ranks need it \(Linux 3.17 or newer, and a sandbox that permits it\)' ;;
    F_ADD_SEALS) echo 'its size cannot be sealed, F_ADD_SEALS: .* \(it takes Linux 3.17 or newer, and a sandbox that' ;;
    clone3) [ $error = ENOSYS ] || echo 'no thread: Operation not permitted \(a sandbox that answers clone3' ;;
    esac
}
"$refuse" $error pidfd_open true || { code=$?; [ $code = 77 ] && exit 77; call=pidfd_open bad "refuse: code $code"; }
for call in $("$refuse" --list); do
    # shellcheck disable=SC2086
    timeout -k 5 60 "$refuse" $error "$call" "$dprun" $flags "$member" >out 2>err
    code=$?
    sentence=$(needs "$call")
    if [ -n "$sentence" ]; then
        [ $code = 0 ] && bad "code 0"
        grep -qE "$sentence" err || bad "no line says: $sentence"
    else
        [ $code = 0 ] || bad "code $code"
        [ "$(grep -c 'of 2, .* sum 3' out)" = 2 ] || bad "the ranks did not meet"
    fi
    [ $code = 0 ] || rm -rf run/dprun-* # a failed job's stays
    [ -z "$(ls run)" ] || bad "left: $(ls run)"
done
echo "ok: $error, $way"
