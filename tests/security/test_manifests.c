/*
 * test_manifests.c - a process that rewrites what it shows of an exchange, while others read it,
 * makes them write nowhere: what was checked against the room for it is what is copied.
 *
 * Ranks are threads here. Rank 0 gathers into a page that cannot be written: when the first block
 * is copied there, all has been checked, and the handler of the signal is the process that lies.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "runtime/engine/cpu/exchange/exchange.h"
#include "tests/unit/cases.h"
#include "tests/unit/engine_world.h"

#define RANKS 3
#define FITS 16  /* elements from each of ranks 1 and 2; rank 0 has room for both */
#define LIES 100 /* what rank 1 says then */
#define UNTOUCHED 0x5a5a5a5aull
#define PAGE 4096

/* The handler works on these. */
static void *page;
static dp_cpu_publication_t *publications_of_liar;
static volatile sig_atomic_t lies;
static pthread_barrier_t all_are_done; /* no engine ends before */

static void lie(int number)
{
    (void)number;
    if (mprotect(page, PAGE, PROT_READ | PROT_WRITE) != 0) abort();
    for (int i = 0; i < 2; i++)
        ((dp_exchange_manifest_t *)(void *)publications_of_liar[i].manifest)->counts[0] = LIES;
    lies++;
}

static void gather_from_a_liar(engine_rank_t *rank, void *user)
{
    dp_cpu_engine_t *engine = (dp_cpu_engine_t *)(void *)rank->engine;
    const uint64_t in[FITS] = {0};
    const size_t counts[] = {rank->rank == 0 ? 0 : (size_t)FITS};
    uint64_t *out = page;
    dp_engine_exchange_t exchange = {.in = in, .send_counts = counts};
    dp_engine_op_t op = {
        .collective = DP_COLLECTIVE_GATHERV, .dtype = DP_U64, .exchange = &exchange};

    (void)user;
    if (rank->rank == 1)
        publications_of_liar = engine->world->publications; /* rank 0 reads after it came */
    if (rank->rank == 0) {
        for (size_t i = 0; i < PAGE / sizeof(*out); i++)
            out[i] = UNTOUCHED;
        exchange.out = out;
        exchange.capacity = (RANKS - 1) * (size_t)FITS;
        if (mprotect(page, PAGE, PROT_NONE) != 0) abort();
    }
    engine_run(rank, &op, DP_WORK_SMALL);
    pthread_barrier_wait(&all_are_done);
    if (rank->rank != 0) return; /* rank 2 may be late, and believe the lie */
    engine_check(rank, op.status == DP_OK, "%s: %s", dp_status_string(op.status), op.text);
    engine_check(rank, lies == 1, "the signal came %d times", (int)lies);
    engine_check(rank, out[0] == 0 && out[exchange.capacity - 1] == 0, "blocks are missing");
    for (size_t i = exchange.capacity; i < PAGE / sizeof(*out); i++) {
        if (!engine_check(rank, out[i] == UNTOUCHED,
                          "element %zu was written, there is room for %zu", i, exchange.capacity))
            return;
    }
}

static void manifests_are_read_once(void **state)
{
    const engine_world_t world = ENGINE_WORLD(RANKS, 1);
    const struct sigaction action = {.sa_handler = lie};
    struct sigaction before;

    (void)state;
    page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(page, MAP_FAILED);
    assert_int_equal(pthread_barrier_init(&all_are_done, NULL, RANKS), 0);
    assert_int_equal(sigaction(SIGSEGV, &action, &before), 0);
    assert_int_equal(engine_world_threads(&world, gather_from_a_liar, NULL), 0);
    sigaction(SIGSEGV, &before, NULL);
    pthread_barrier_destroy(&all_are_done);
    munmap(page, PAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(manifests_are_read_once)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
