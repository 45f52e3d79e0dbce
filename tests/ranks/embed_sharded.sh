#!/usr/bin/env bash
# embed_sharded.sh DPRUN PROGRAM - examples/embed_sharded.c ends with the same bits in every stage of
# sharding, on 1 to 3 ranks and in both orders, and has learned something.
set -u
dprun=$1 program=$2
export DP_FUSION_BYTES=1M # a job need not fill 96 MiB when it starts
failed=0
for ranks in 1 2 3; do
    wanted=
    for stage in 0 1 2 3; do
        for order in negotiated program; do
            lines=$(DP_ORDER=$order timeout -k 5 60 "$dprun" -np $ranks "$program" $stage | grep -o 'norm.*' | sort -u)
            [ -n "$wanted" ] || wanted=$lines
            if [ -z "$lines" ] || [ "$(wc -l <<<"$lines")" != 1 ] || [ "$lines" != "$wanted" ]; then
                echo "$ranks ranks, stage $stage, order $order: \"$lines\", wanted \"$wanted\""
                failed=1
            fi
        done
    done
    error=$("$dprun" -np $ranks "$program" 3 | sed -n 's/.*rank 0 .*error -*\([0-9.]*\),.*/\1/p')
    awk -v e="$error" 'BEGIN { exit !(e != "" && e < 0.1) }' || { echo "$ranks ranks: the error is $error"; failed=1; }
done
exit $failed
