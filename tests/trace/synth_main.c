/*
 * synth_main.c - the command line of synth.c: dp_synth DIR [ranks steps spans trace_mb late_ms].
 */
#include "tests/trace/synth.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int main(int argc, char **argv)
{
    dp_synth_t synth = DP_SYNTH_INIT;
    dp_error_t error;

    if (argc < 2) {
        fputs("usage: dp_synth DIR [ranks steps spans trace_mb late_ms]\n", stderr);
        return 2;
    }
    if (argc > 2) synth.ranks = atoi(argv[2]);
    if (argc > 3) synth.steps = atoi(argv[3]);
    if (argc > 4) synth.spans = atoi(argv[4]);
    if (argc > 5) synth.trace_bytes = (size_t)atoi(argv[5]) << 20;
    if (argc > 6) {
        synth.late_rank = synth.ranks - 1;
        synth.late_ns = (uint64_t)(atof(argv[6]) * 1e6);
    }
    if (synth.ranks < 1 || synth.steps < 1) return 2;
    mkdir(argv[1], 0777);
    if (dp_synth_write(&synth, argv[1], &error) != DP_OK) {
        fprintf(stderr, "dp_synth: %s\n", error.text);
        return 1;
    }
    return 0;
}
