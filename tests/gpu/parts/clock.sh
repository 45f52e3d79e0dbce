# clock.sh - the GPU's clock, power and reasons to slow down while a command runs.

# sed's command for the figures of clocked()'s line.
clock_figures='s/^clock: \([0-9]*\) MHz, \([0-9]*\) W.*/clock\t\1\tMHz\npower\t\2\tW/p'

# Runs a command, then, where it did not fail, prints one line of medians over the time in which the GPU was busy: where it
# drew more than half of the most. Reasons are a mask of NVML's nvmlClocksEventReasons, with the share of
# the time of each. The exit code is the command's.
clocked() { # COMMAND...
    local sampler code=0
    : >"$work/clock.csv" # the command may end before the sampler begins
    nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu,clocks_event_reasons.active \
        --format=csv,noheader,nounits -lms 200 >"$work/clock.csv" 2>/dev/null &
    sampler=$!
    "$@" || code=$?
    kill -KILL "$sampler" 2>/dev/null # bash may lose another signal between fork and exec
    wait "$sampler" 2>/dev/null
    [ "$code" = 0 ] || return "$code" # the last line is then the reason
    awk -F ', *' '
        function middle(list, count,    i, j, at) {
            for (i = 2; i <= count; i++) {
                at = list[i]
                for (j = i - 1; j > 0 && list[j] > at; j--) list[j + 1] = list[j]
                list[j + 1] = at
            }
            return list[int((count + 1) / 2)]
        }
        NF == 4 && $2 ~ /^[0-9.]+$/ { n++; clock[n] = $1 + 0; power[n] = $2 + 0; heat[n] = $3 + 0; why[n] = $4; if (power[n] > most) most = power[n] }
        END {
            for (i = 1; i <= n; i++) if (2 * power[i] >= most) { k++; c[k] = clock[i]; p[k] = power[i]; t[k] = heat[i]; reasons[why[i]]++ }
            if (k == 0) { print "no clock: nvidia-smi tells none"; exit }
            for (mask in reasons) text = text sprintf(", reasons %s %d %%", mask, 100 * reasons[mask] / k)
            printf "clock: %d MHz, %d W, %d C%s, %d samples\n", middle(c, k), middle(p, k), middle(t, k), text, k
        }' "$work/clock.csv"
}
