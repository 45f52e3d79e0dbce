# f_links.sh - what 8 GPUs would wait for: computing is real, the wire is a pause. Every figure is
# EMULATED.

part_f() {
    part f links 50 "Emulated links: 8 ranks whose wire is a pause"
    step nvlink 25 "EMULATED, 400 GB/s, 2 us" --says EMULATED --figures rate_figures -- emulated nvlink 400G 2us
    step ib400 25 "EMULATED, 400 Gbit/s, 5 us" --says EMULATED --figures rate_figures -- emulated ib400 50G 5us
    step ib100 25 "EMULATED, 100 Gbit/s, 10 us" --says EMULATED --figures rate_figures -- emulated ib100 12500M 10us
    step eth25 25 "EMULATED, 25 Gbit/s, 20 us" --says EMULATED --figures rate_figures -- emulated eth25 3125M 20us
}

emulated() { # NAME BANDWIDTH LATENCY
    export DP_EMULATE_RANKS=8 DP_EMULATE_BANDWIDTH=$2 DP_EMULATE_LATENCY=$3
    steps=$(size link_steps) train_large coordinator "link-$1"
}
