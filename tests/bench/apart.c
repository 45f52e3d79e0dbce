/*
 * apart.c - is the plain loop of the direct floor a floor, wherever its tensors lie?
 *
 * One core adds half of two tensors and stores the sums to both, as a rank of the direct floor does
 * (floor.c, peers/way_floor.c): by that loop and by libdp's kernel, with tensors a multiple of 256
 * MiB apart and moved by APART. Processor time, the least of some turns, so that other programs
 * count for little. See apart.h.
 *
 *     build/tests/apart [seconds per size]
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "kernels/variant.h"
#include "runtime/base/common.h"
#include "tests/bench/apart.h"
#include "tests/bench/direct_loop.h"

#define MOST ((size_t)64 * DP_MIB)
enum { LOOP, KERNEL, WAYS };

static void add_by_kernel(float *own, float *other, size_t count)
{
    const void *const in[2] = {own, other};
    void *const out[2] = {own, other};
    const dp_reduce_args_t args = {.dtype = DP_F32,
                                   .reduce = DP_SUM,
                                   .in = in,
                                   .in_count = 2,
                                   .out = out,
                                   .out_count = 2,
                                   .count = count,
                                   .prescale = 1.0,
                                   .postscale = 1.0};

    dp_kernels_table(0)->reduce(&args);
}

static double processor_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static double once(int way, float *own, float *other, size_t count)
{
    double us;

    for (size_t i = 0; i < 2 * count; i++)
        own[i] = 1.0f;
    for (size_t i = 0; i < 2 * count; i++)
        other[i] = 2.0f;
    us = processor_us();
    if (way == LOOP) {
        add_to_both(own, other, count);
    } else {
        add_by_kernel(own, other, count);
    }
    us = processor_us() - us;
    for (size_t i = 0; i < 2 * count; i++) {
        if (own[i] == (i < count ? 3.0f : 1.0f) && other[i] == (i < count ? 3.0f : 2.0f)) continue;
        fprintf(stderr, "apart: way %d, element %zu: %g and %g\n", way, i, (double)own[i],
                (double)other[i]);
        exit(1);
    }
    return us;
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {64 * DP_KIB, 256 * DP_KIB, DP_MIB, 16 * DP_MIB, MOST};
    const double seconds = argc > 1 ? atof(argv[1]) : 1.0;
    const size_t distances[2] = {2 * APART_HASHED, 2 * APART_HASHED + APART};
    char *memory = mmap(NULL, distances[1] + MOST, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED) {
        perror("apart: mmap");
        return 1;
    }
    printf("# us of a core for half of the tensors; kernel: %s\n", dp_kernels_table(0)->name);
    printf("#%11s %12s %12s %12s %12s %12s\n", "bytes", "loop, 512M", "kernel, 512M", "loop",
           "kernel", "kernel/loop");
    for (size_t s = 0; s < DP_ARRAY_LEN(sizes); s++) {
        const size_t count = sizes[s] / sizeof(float) / 2;
        const uint64_t begin_ns = dp_now_ns();
        double least[2][WAYS] = {{1e18, 1e18}, {1e18, 1e18}};

        for (int turn = 0; turn < 3 || (double)(dp_now_ns() - begin_ns) < seconds * 1e9; turn++) {
            for (int d = 0; d < 2; d++) {
                float *own = (float *)(void *)memory;
                float *other = (float *)(void *)(memory + distances[d]);

                for (int way = 0; way < WAYS; way++)
                    least[d][way] = dp_min(least[d][way], once(way, own, other, count));
            }
        }
        printf("%12zu %12.1f %12.1f %12.1f %12.1f %12.2f\n", sizes[s], least[0][LOOP],
               least[0][KERNEL], least[1][LOOP], least[1][KERNEL],
               least[1][KERNEL] / least[1][LOOP]);
        fflush(stdout);
    }
    return 0;
}
