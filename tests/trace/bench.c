/*
 * bench.c - what does one record cost its thread? dp_trace_bench [DIR]: into a file there, else
 * into memory. Several rounds over the ring, so that chunk changes and page faults are in it.
 */
#include "runtime/trace/trace.h"

#include <stdio.h>
#include <stdlib.h>

#define ROUNDS 7
#define RECORDS 1000000

static int compare_doubles(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

/* Processor time of this thread: a busy machine does not make records dearer. */
static uint64_t cpu_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void print(const char *what, double *ns)
{
    qsort(ns, ROUNDS, sizeof(*ns), compare_doubles);
    printf("%-34s median %6.1f ns  worst round %6.1f ns\n", what, ns[ROUNDS / 2], ns[ROUNDS - 1]);
}

int main(int argc, char **argv)
{
    dp_trace_t *trace = NULL;
    dp_trace_track_t *track;
    dp_error_t error;
    uint32_t name;
    double bare[ROUNDS], clocked[ROUNDS], nested[ROUNDS], named[ROUNDS];
    uint64_t start, sum = 0;

    if (dp_trace_create(argc > 1 ? argv[1] : "", 0, 1, "bench", (size_t)16 << 20, &trace, &error) !=
        DP_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    track = dp_trace_thread_track(trace);
    name = dp_trace_name(trace, "tensor");
    for (int round = 0; round < ROUNDS; round++) {
        start = cpu_ns();
        for (uint64_t i = 1; i <= RECORDS; i++) {
            dp_trace_record(
                track,
                (dp_trace_record_t){.kind = DP_TRACE_SPAN, .start_ns = i, .id = i, .name = name});
        }
        bare[round] = (double)(cpu_ns() - start) / RECORDS;
        start = cpu_ns();
        for (uint64_t i = 1; i <= RECORDS; i++) {
            dp_trace_span(track, (dp_trace_record_t){.kind = DP_TRACE_SPAN,
                                                     .start_ns = dp_trace_now(track),
                                                     .id = i});
        }
        clocked[round] = (double)(cpu_ns() - start) / RECORDS;
        start = cpu_ns();
        for (uint64_t i = 1; i <= RECORDS; i++) {
            dp_trace_begin(dp_trace_thread_track(trace),
                           (dp_trace_record_t){.kind = DP_TRACE_SPAN, .id = i, .name = name});
            dp_trace_end(dp_trace_thread_track(trace));
        }
        nested[round] = (double)(cpu_ns() - start) / RECORDS;
        start = cpu_ns();
        for (uint64_t i = 1; i <= RECORDS; i++)
            sum += dp_trace_name(trace, "h.11.attn.c_proj.weight");
        named[round] = (double)(cpu_ns() - start) / RECORDS;
    }
    print("record, times at hand", bare);
    print("span with its two clock readings", clocked);
    print("begin and end, track looked up", nested);
    print("name looked up", named);
    printf("dropped %llu (the ring went round), check %llu\n",
           (unsigned long long)dp_trace_dropped(trace), (unsigned long long)(sum % 7));
    dp_trace_destroy(trace, 0);
    return 0;
}
