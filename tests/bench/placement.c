/*
 * placement.c - how far apart the machine's first two CPUs are now: half a cache-line round trip,
 * ns.
 *
 * A virtual machine's host moves its CPUs between core complexes without a sign inside; a 1 MiB
 * allreduce then takes four times as long. Figures are comparable only within one placement.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { ROUNDS = 20000 };
static _Alignas(64) _Atomic int ping;
static _Alignas(64) _Atomic int pong;

static void pin(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof(set), &set);
}

static void *answer(void *argument)
{
    (void)argument;
    pin(1);
    for (int i = 1; i <= ROUNDS; i++) {
        while (atomic_load_explicit(&ping, memory_order_acquire) != i) {
        }
        atomic_store_explicit(&pong, i, memory_order_release);
    }
    return NULL;
}

int main(void)
{
    pthread_t thread;
    struct timespec begin, end;

    pin(0);
    if (pthread_create(&thread, NULL, answer, NULL) != 0) return 1;
    for (int i = 1; i <= ROUNDS; i++) {
        if (i == ROUNDS / 4) clock_gettime(CLOCK_MONOTONIC, &begin);
        atomic_store_explicit(&ping, i, memory_order_release);
        while (atomic_load_explicit(&pong, memory_order_acquire) != i) {
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    pthread_join(thread, NULL);
    printf("%.0f\n",
           ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) /
               (ROUNDS - ROUNDS / 4) / 2.0);
    return 0;
}
