# h_profile.sh - to take home: a timeline of three steps, and ncu's report of the five kernels that
# take the longest.

part_h() {
    part h profile 130 "Timeline and profile, to take home"
    step timeline 35 "a timeline of three steps" --figures timeline_figures -- take_timeline
    step largest 75 "which kernels take the longest" --needs ncu --figures largest_figures -- find_largest
    step ncu 75 "ncu of the five largest" --needs ncu --figures ncu_figures -- profile_largest
}

take_timeline() {
    steps=$(size profile_steps) log_every=$(size profile_steps) \
        train_large coordinator timeline --timeline "$work/timeline.pftrace:steps=$(size profile_window)" || return
    ours "$root/dptrace" report "$work/timeline.pftrace" || return
    ours "$root/dptrace" view "$work/timeline.pftrace" -o "$work/timeline.html" || return
    gzip -c "$work/timeline.pftrace" >"$work/files/timeline.pftrace.gz" &&
        gzip -c "$work/timeline.html" >"$work/files/timeline.html.gz" &&
        echo "timeline: $(wc -c <"$work/files/timeline.pftrace.gz") bytes, page: $(wc -c <"$work/files/timeline.html.gz") bytes"
}

timeline_figures() {
    sed -n 's/^timeline: \([0-9]*\) bytes, page: \([0-9]*\) bytes$/timeline\t\1\tbytes\npage\t\2\tbytes/p'
}

# A step's kernels with one metric, which needs no replay; their time by name. Products were timed
# before (--tuned), or their candidates would be the largest. On a GPU ncu needs tens of ms for a
# launch, and as long again to print it: so one step, of some 370 launches behind those that set the
# model up, and no more of the evaluation than fits the count. ncu's own file is kept before it is
# read: if printing does not end in time, it can be read at home.
find_largest() {
    [ -n "$(ls "$work/tuned")" ] || profiled 1 >/dev/null || return
    profiled 1 ncu --clock-control none --target-processes all --metrics gpu__time_duration.sum \
        --launch-count "$(size launches)" -f -o "$work/kernels" || return
    cp "$work/kernels.ncu-rep" "$work/files/"
    ncu --import "$work/kernels.ncu-rep" --csv --print-units base --print-kernel-base function \
        >"$work/kernels.csv" </dev/null || { cat "$work/kernels.csv"; return 1; }
    largest_kernels "$work/kernels.csv" >"$work/largest"
    head -n 30 "$work/largest"
    [ -s "$work/largest" ] || { head -n 100 "$work/kernels.csv"; return 1; }
}

# Steps of the model under a tool, or without.
profiled() { # STEPS [TOOL...]
    steps=$1
    shift
    wrapper=("$@")
    log_every=$steps batch=$(size profile_batch) train_large single profiled
}

largest_kernels() { # CSV
    awk -F '","' '/^"ID"/ { for (i = 1; i <= NF; i++) { name = $i; gsub(/"/, "", name); at[name] = i } next }
        /^"[0-9]+"/ && ("Kernel Name" in at) && $at["Metric Name"] == "gpu__time_duration.sum" {
            value = $at["Metric Value"]; gsub(/[",]/, "", value); kernel = $at["Kernel Name"]
            time[kernel] += value; calls[kernel]++; all += value }
        END { for (kernel in time) printf "largest %.1f us %.1f %% %d calls %s\n", time[kernel] / 1000, 100 * time[kernel] / all, calls[kernel], kernel }' "$1" |
        sort -k 2,2 -nr
}

largest_figures() {
    sed -n 's/^largest \([0-9.]*\) us \([0-9.]*\) % \([0-9]*\) calls \(.*\)$/\4\t\1\tus/p' | head -n 8
}

# One launch of each; the first of a name is often the odd one.
profile_largest() {
    local kernel number=0 found=0
    [ -s "$work/largest" ] || { echo "no list of kernels: the step before failed"; return 1; }
    mkdir -p "$work/ncu"
    while read -r _ _ _ _ _ _ _ kernel; do
        number=$((number + 1))
        echo "== $number: $kernel"
        profiled 2 timeout -k 2 25 ncu --clock-control none --target-processes all --set full --kernel-name "$kernel" \
            --launch-skip 1 --launch-count 1 -f -o "$work/ncu/$number" </dev/null || echo "ncu of $kernel: exit code $?"
        [ -s "$work/ncu/$number.ncu-rep" ] || continue
        ncu --import "$work/ncu/$number.ncu-rep" --page details >"$work/ncu/$number.txt" </dev/null
        grep -E 'Duration|Throughput|Registers Per|Achieved Occupancy' "$work/ncu/$number.txt"
        found=$((found + 1))
    done < <(head -n 5 "$work/largest")
    cp "$work/kernels.csv" "$work/largest" "$work/ncu/"
    mv "$work/files/kernels.ncu-rep" "$work/ncu/"
    tar -C "$work" -czf "$work/files/ncu.tar.gz" ncu
    echo "ncu: $(wc -c <"$work/files/ncu.tar.gz") bytes, $found kernels"
    [ "$found" = "$number" ]
}

ncu_figures() { sed -n 's/^ncu: \([0-9]*\) bytes, \([0-9]*\) kernels$/report\t\1\tbytes\nkernels\t\2\t/p'; }
