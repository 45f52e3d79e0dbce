/*
 * usage.c - reads /proc/self and getrusage(). Main thread, outside of what is timed.
 */
#include "examples/gpt2/train/usage.h"

#include <stdio.h>
#include <sys/resource.h>

static double seconds(struct timeval time)
{
    return (double)time.tv_sec + 1e-6 * (double)time.tv_usec;
}

/* Adds up the lines "Pss:   1234 kB" of the rollup. */
static void read_rollup(gpt2_usage_t *usage)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    char line[256];
    double kib;

    if (file == NULL) return;
    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "Pss: %lf kB", &kib) == 1) usage->pss += 1024.0 * kib;
        if (sscanf(line, "Private_Clean: %lf kB", &kib) == 1) usage->own += 1024.0 * kib;
        if (sscanf(line, "Private_Dirty: %lf kB", &kib) == 1) usage->own += 1024.0 * kib;
    }
    (void)fclose(file);
}

gpt2_usage_t gpt2_usage_now(void)
{
    gpt2_usage_t usage = {0.0, 0.0, 0.0, 0.0};
    struct rusage counted;

    read_rollup(&usage);
    if (getrusage(RUSAGE_SELF, &counted) != 0) return usage;
    usage.peak_rss = 1024.0 * (double)counted.ru_maxrss;
    usage.cpu_seconds = seconds(counted.ru_utime) + seconds(counted.ru_stime);
    return usage;
}
