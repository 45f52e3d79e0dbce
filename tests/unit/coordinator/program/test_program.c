/*
 * test_program.c - order=program against the negotiated order: the same bits, with any size of
 * bucket; and the rules that cut buckets.
 */
#include <stdlib.h>
#include <string.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>

#include "coordinator/api/world/init.h"
#include "coordinator/api/context/context.h"
#include "tests/threads/threads.h"
#include "tests/unit/cases.h"

#define RANKS 3
#define TENSORS 12
#define COUNT 20011
#define STEPS 3

typedef struct rank {
    dp_config_t config;
    dp_bootstrap_t *bootstrap;
    pthread_t thread;
    float *values[TENSORS];
    dp_status_t status;
    char text[256];
} rank_t;

static dp_status_t average_all(dp_context_t *dp, float *const *values)
{
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *handles[TENSORS] = {NULL};
    dp_status_t status = DP_OK;

    options.reduce = DP_AVERAGE;
    for (int i = 0; i < TENSORS && status == DP_OK; i++) {
        char name[16];

        snprintf(name, sizeof(name), "t.%d", i);
        status = dp_allreduce(dp_world(dp), name, values[i], values[i], COUNT - (size_t)i * 1000,
                              DP_F32, &options, &handles[i]);
    }
    for (int i = 0; i < TENSORS; i++) {
        dp_status_t end = handles[i] == NULL ? DP_OK : dp_wait(handles[i], 60.0, NULL);

        if (status == DP_OK) status = end;
    }
    return status;
}

static void *run(void *argument)
{
    rank_t *rank = argument;
    dp_error_t error = {DP_OK, ""};
    unsigned seed;
    dp_context_t *dp;

    rank->status = threads_context(&rank->config, rank->bootstrap, &dp, &error);
    snprintf(rank->text, sizeof(rank->text), "%.255s", error.text);
    if (rank->status != DP_OK) return NULL;
    seed = (unsigned)dp_rank(dp) + 3;
    for (int i = 0; i < TENSORS; i++) {
        for (int e = 0; e < COUNT; e++)
            rank->values[i][e] = ldexpf((float)rand_r(&seed) / (float)RAND_MAX - 0.5f, e % 24 - 12);
    }
    for (int step = 0; step < STEPS && rank->status == DP_OK; step++) {
        rank->status = average_all(dp, rank->values);
        for (int i = 0; i < TENSORS; i++)
            rank->values[i][step] += (float)dp_rank(dp);
    }
    if (rank->status != DP_OK)
        snprintf(rank->text, sizeof(rank->text), "%.255s", dp_error_text(dp));
    (void)dp_finalize(dp);
    return NULL;
}

/* out[TENSORS * COUNT]: what rank 0 ends with. */
static void run_world(dp_config_order_t order, size_t fusion_bytes, int nodes, float *out)
{
    dp_bootstrap_t *bootstraps[RANKS];
    rank_t ranks[RANKS];

    assert_int_equal(threads_bootstrap(RANKS, bootstraps), DP_OK);
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (rank_t){.bootstrap = bootstraps[r]};
        dp_config_defaults(&ranks[r].config);
        ranks[r].config.order = (int)order;
        ranks[r].config.fusion_bytes = fusion_bytes;
        ranks[r].config.pretend_nodes = nodes;
        ranks[r].config.peer_timeout_ns = 30000000000ull;
        for (int i = 0; i < TENSORS; i++) {
            ranks[r].values[i] = calloc(COUNT, sizeof(float));
            assert_non_null(ranks[r].values[i]);
        }
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run, &ranks[r]), 0);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < RANKS; r++) {
        if (ranks[r].status != DP_OK) fail_msg("rank %d: %s", r, ranks[r].text);
        for (int i = 0; i < TENSORS; i++) {
            if (r == 0) memcpy(out + (size_t)i * COUNT, ranks[r].values[i], COUNT * sizeof(float));
            free(ranks[r].values[i]);
        }
    }
}

static void program_order_gives_the_same_bits(void **state)
{
    const size_t bytes = (size_t)TENSORS * COUNT * sizeof(float);
    float *negotiated = malloc(bytes), *program = malloc(bytes);

    (void)state;
    assert_non_null(negotiated);
    assert_non_null(program);
    for (int nodes = 1; nodes <= 2; nodes++) {
        run_world(DP_CONFIG_ORDER_NEGOTIATED, 4 * DP_MIB, nodes, negotiated);
        run_world(DP_CONFIG_ORDER_PROGRAM, 4 * DP_MIB, nodes, program);
        assert_memory_equal(negotiated, program, bytes);
        run_world(DP_CONFIG_ORDER_PROGRAM, 128 * DP_KIB, nodes, program);
        assert_memory_equal(negotiated, program, bytes);
    }
    free(negotiated);
    free(program);
}

static void program_kinds(void **state)
{
    (void)state;
    for (int i = 0; i < DP_COLLECTIVE_COUNT; i++) {
        dp_program_kind_t kind = dp_program_kind((dp_collective_t)i);

        if (i == DP_COLLECTIVE_SEND) {
            assert_int_equal(kind, DP_PROGRAM_DIRECT);
        } else if (i == DP_COLLECTIVE_JOIN) {
            assert_int_equal(kind, DP_PROGRAM_REFUSED);
        } else if (i == DP_COLLECTIVE_BARRIER || i == DP_COLLECTIVE_GROUP_CREATE ||
                   i == DP_COLLECTIVE_GROUP_DESTROY) {
            assert_int_equal(kind, DP_PROGRAM_AGREED);
        } else {
            assert_int_equal(kind, DP_PROGRAM_ORDERED);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(program_order_gives_the_same_bits),
        cmocka_unit_test(program_kinds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
