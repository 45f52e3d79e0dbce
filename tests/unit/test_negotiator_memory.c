/*
 * test_negotiator_memory.c - the nth allocation of a rank fails: its world ends with that cause on
 * all ranks, and nothing leaks or crashes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "coordinator/negotiator.h"
#include "tests/unit/fail_allocation.h"

#define RANKS 3 /* a chain: root, inner node, leaf */
#define MESSAGES_MAX 64
#define MESSAGE_ROOM 2048

typedef struct message {
    int from, to;
    size_t bytes;
    uint8_t data[MESSAGE_ROOM];
} message_t;

typedef struct chain {
    dp_topology_t topology;
    dp_tree_node_t nodes[RANKS];
    dp_negotiator_t *ranks[RANKS];
    message_t messages[MESSAGES_MAX]; /* in the order they were sent */
    size_t sent, delivered;
    dp_status_t fatal[RANKS];
    int culprit[RANKS];
    int handed_back[RANKS], finished;
} chain_t;

static void begin(chain_t *chain)
{
    static const char *const hosts[RANKS] = {"a", "b", "c"};

    memset(chain, 0, sizeof(*chain));
    assert_int_equal(dp_topology_init(&chain->topology, hosts, RANKS), DP_OK);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(dp_tree_node_init(&chain->nodes[r], &chain->topology, 1, r), DP_OK);
}

static dp_status_t create(chain_t *chain, int rank)
{
    dp_negotiator_options_t options = {rank, RANKS,   &chain->topology, &chain->nodes[rank],
                                       0,    1 << 20, 1000000000,       0};

    return dp_negotiator_create(&options, &chain->ranks[rank]);
}

static void end(chain_t *chain)
{
    for (int r = 0; r < RANKS; r++) {
        dp_negotiator_destroy(chain->ranks[r]);
        dp_tree_node_fini(&chain->nodes[r]);
    }
    dp_topology_fini(&chain->topology);
}

static void take_one(chain_t *chain, int rank, const dp_output_t *out)
{
    if (out->kind == DP_OUTPUT_FATAL) {
        chain->fatal[rank] = out->status;
        chain->culprit[rank] = out->culprit;
    }
    if (out->kind == DP_OUTPUT_FAIL) chain->handed_back[rank]++;
    if (out->kind == DP_OUTPUT_LAUNCH) chain->handed_back[rank] += (int)out->entry_count;
    if (out->kind == DP_OUTPUT_FINISHED) chain->finished++;
    if (out->kind == DP_OUTPUT_SEND) {
        message_t *message = &chain->messages[chain->sent++];

        assert_true(chain->sent < MESSAGES_MAX && out->bytes <= MESSAGE_ROOM);
        message->from = rank;
        message->to = out->to;
        message->bytes = out->bytes;
        memcpy(message->data, out->data, out->bytes);
    }
}

static void drain(chain_t *chain, int rank)
{
    dp_output_t out;

    while (dp_negotiator_output(chain->ranks[rank], &out))
        take_one(chain, rank, &out);
}

static void settle(chain_t *chain)
{
    for (int r = 0; r < RANKS; r++)
        drain(chain, r);
    while (chain->delivered < chain->sent) {
        const message_t *message = &chain->messages[chain->delivered++];

        dp_negotiator_message(chain->ranks[message->to], message->from, message->data,
                              message->bytes, 0);
        drain(chain, message->to);
    }
}

static void submit(chain_t *chain, int rank, const char *name, uint64_t count)
{
    dp_signature_part_t part = {count, DP_F32};
    dp_signature_t signature = {.collective = DP_COLLECTIVE_ALLREDUCE,
                                .reduce = DP_SUM,
                                .wire = DP_WIRE_NONE,
                                .root = -1,
                                .peer = -1,
                                .is_grouped = 0,
                                .prescale = 1.0,
                                .postscale = 1.0,
                                .part_count = 1,
                                .parts = &part};
    dp_submission_t submission = {.name = name,
                                  .signature = &signature,
                                  .in_place = 1,
                                  .last_absmax = 1.0f,
                                  .is_urgent = 0,
                                  .request = chain};

    dp_negotiator_submit(chain->ranks[rank], &submission, 0);
}

/* Launches, a mismatch for ranks early and late, a stall, a leaver, goodbye. */
static void live(chain_t *chain)
{
    for (int r = 0; r < RANKS; r++)
        submit(chain, r, "a", 4);
    settle(chain);
    for (int r = 0; r < RANKS; r++)
        submit(chain, r, "a", 5);
    submit(chain, 2, "b", 8);
    submit(chain, 1, "b", 9);
    settle(chain);
    submit(chain, 0, "b", 8);
    submit(chain, 2, "c", 8);
    settle(chain);
    for (int r = RANKS - 1; r >= 0; r--) {
        dp_negotiator_tick(chain->ranks[r], 2000000000);
        settle(chain);
    }
    for (int r = RANKS - 1; r >= 0; r--)
        dp_negotiator_finalize(chain->ranks[r], 2000000000);
    settle(chain);
}

static void negotiator_without_memory_ends_the_world_in_order(void **state)
{
    static chain_t chain; /* its messages take no memory of their own */
    int is_reached = 1;
    long nth;

    (void)state;
    for (nth = 0; is_reached; nth++) {
        dp_status_t status = DP_OK;

        begin(&chain);
        fail_allocation(nth + 1);
        for (int r = 0; r < RANKS && status == DP_OK; r++)
            status = create(&chain, r);
        if (status == DP_OK) live(&chain);
        is_reached = fail_allocation_reached();
        if (status != DP_OK) {
            assert_int_equal(status, DP_ERR_NO_MEMORY);
        } else if (is_reached) {
            for (int r = 0; r < RANKS; r++) {
                assert_int_equal(chain.fatal[r], DP_ERR_NO_MEMORY);
                assert_int_equal(chain.culprit[r], chain.culprit[0]);
            }
        } else {
            assert_int_equal(chain.finished, RANKS);
            for (int r = 0; r < RANKS; r++)
                assert_int_equal(chain.handed_back[r], r == 2 ? 4 : 3);
        }
        end(&chain);
    }
    assert_true(nth > 60);
}

static void negotiator_steady_state_allocates_nothing(void **state)
{
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    static chain_t chain;

    (void)state;
    begin(&chain);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(create(&chain, r), DP_OK);
    for (int step = 0; step < 6; step++) {
        if (step == 2) fail_allocation(1);
        for (int r = 0; r < RANKS; r++) {
            for (int t = 0; t < 5; t++)
                submit(&chain, r, names[(t + r + step) % 5], 768);
        }
        settle(&chain);
    }
    assert_false(fail_allocation_reached());
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(chain.handed_back[r], 6 * 5);
    end(&chain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(negotiator_without_memory_ends_the_world_in_order),
        cmocka_unit_test(negotiator_steady_state_allocates_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
