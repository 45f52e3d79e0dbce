/*
 * test_negotiator_memory.c - the nth allocation of a rank fails: its world ends with that cause on
 * all ranks, and nothing leaks or crashes.
 */
#include <stdlib.h>
#include <string.h>

#include "coordinator/negotiator/negotiator.h"
#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"

#define RANKS 3 /* a chain: root, inner node, leaf */
#define MESSAGES_MAX 160
#define MESSAGE_ROOM 2048

typedef struct message {
    int from, to;
    size_t bytes;
    uint8_t data[MESSAGE_ROOM];
} message_t;

typedef struct chain {
    dp_topology_t topology;
    dp_tree_links_t nodes[RANKS];
    dp_negotiator_t *ranks[RANKS];
    size_t names_kept;                /* 0: the default */
    message_t messages[MESSAGES_MAX]; /* in the order they were sent */
    size_t sent, delivered;
    dp_status_t fatal[RANKS];
    int culprit[RANKS];
    int handed_back[RANKS], finished;
    uint32_t group; /* the last one made */
} chain_t;

static void begin(chain_t *chain)
{
    static const char *const hosts[RANKS] = {"a", "b", "c"};

    memset(chain, 0, sizeof(*chain));
    assert_int_equal(dp_topology_init(&chain->topology, hosts, RANKS), DP_OK);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(dp_tree_links_init(&chain->nodes[r], &chain->topology, 1, r), DP_OK);
}

static dp_status_t create(chain_t *chain, int rank)
{
    dp_negotiator_options_t options = {
        rank, RANKS, &chain->topology, &chain->nodes[rank], 0, 1 << 20, 1000000000,
        0,    0,     chain->names_kept};

    return dp_negotiator_create(&options, &chain->ranks[rank]);
}

static void end(chain_t *chain)
{
    for (int r = 0; r < RANKS; r++) {
        dp_negotiator_destroy(chain->ranks[r]);
        dp_tree_links_fini(&chain->nodes[r]);
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
    if (out->kind == DP_OUTPUT_JOINED) chain->handed_back[rank]++;
    if (out->kind == DP_OUTPUT_LAUNCH) {
        for (size_t i = 0; i < out->entry_count; i++)
            chain->handed_back[rank] += out->entries[i].request != NULL;
        if (out->group_index > 0) chain->group = out->group;
    }
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

static void submit_to(chain_t *chain, int rank, uint32_t group, dp_collective_t collective)
{
    static const int32_t members[] = {0, 2};
    int is_create = collective == DP_COLLECTIVE_GROUP_CREATE;
    int is_send = collective == DP_COLLECTIVE_SEND;
    dp_signature_t signature = {.collective = collective,
                                .wire = DP_WIRE_NONE,
                                .root = is_send ? 1 : -1,
                                .peer = is_send ? 0 : -1,
                                .member_count = is_create ? 2 : 0,
                                .members = members,
                                .group_name = "tp"};
    dp_submission_t submission = {
        .group = group, .name = "g", .signature = &signature, .request = chain};

    dp_negotiator_submit(chain->ranks[rank], &submission, 0);
}

static void both(chain_t *chain, uint32_t group, dp_collective_t collective)
{
    submit_to(chain, 2, group, collective);
    submit_to(chain, 0, group, collective);
    settle(chain);
}

/* A group of the two ends: made, used, joined, mismatched, ended, made again, and its leaver. */
static void live_in_groups(chain_t *chain)
{
    for (int turn = 0; turn < 2; turn++) {
        both(chain, DP_GROUP_UNBORN, DP_COLLECTIVE_GROUP_CREATE);
        both(chain, chain->group, DP_COLLECTIVE_ALLREDUCE);
        both(chain, chain->group, DP_COLLECTIVE_SEND);
        submit_to(chain, 0, chain->group, DP_COLLECTIVE_JOIN);
        submit_to(chain, 2, chain->group, DP_COLLECTIVE_BARRIER);
        submit_to(chain, 2, chain->group, DP_COLLECTIVE_JOIN);
        settle(chain);
        if (turn == 0) both(chain, chain->group, DP_COLLECTIVE_GROUP_DESTROY);
    }
    submit_to(chain, 2, DP_GROUP_UNBORN, DP_COLLECTIVE_GROUP_CREATE);
    submit_to(chain, 2, chain->group, DP_COLLECTIVE_JOIN);
    settle(chain);
    for (int r = RANKS - 1; r >= 0; r--)
        dp_negotiator_finalize(chain->ranks[r], 0);
    settle(chain);
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

/* Every allocation fails once, or with all that follow; each world ends alike on all ranks, or
 * well. */
static void fail_each(void (*starve)(long), void (*play)(chain_t *), const int handed_back[RANKS],
                      long least)
{
    static chain_t chain; /* its messages take no memory of their own */
    int is_reached = 1;
    long nth;

    for (nth = 0; is_reached; nth++) {
        dp_status_t status = DP_OK;

        begin(&chain);
        chain.names_kept = 2;
        starve(nth + 1);
        for (int r = 0; r < RANKS && status == DP_OK; r++)
            status = create(&chain, r);
        if (status == DP_OK) play(&chain);
        is_reached = fail_allocation_reached();
        if (status != DP_OK) {
            assert_int_equal(status, DP_ERR_NO_MEMORY);
        } else if (is_reached) {
            for (int r = 0; r < RANKS; r++) {
                assert_int_equal(chain.fatal[r], DP_ERR_NO_MEMORY);
                if (starve == fail_allocation) assert_int_equal(chain.culprit[r], chain.culprit[0]);
            }
        } else {
            assert_int_equal(chain.finished, RANKS);
            for (int r = 0; r < RANKS; r++)
                assert_int_equal(chain.handed_back[r], handed_back[r]);
        }
        end(&chain);
    }
    assert_true(nth > least);
}

static void negotiator_without_memory_ends_the_world_in_order(void **state)
{
    static const int handed_back[RANKS] = {3, 3, 4};

    (void)state;
    fail_each(fail_allocation, live, handed_back, 60);
    fail_each(fail_allocations_from, live, handed_back, 60);
}

static void negotiator_groups_without_memory_end_likewise(void **state)
{
    static const int handed_back[RANKS] = {9, 0, 13};

    (void)state;
    fail_each(fail_allocation, live_in_groups, handed_back, 100);
    fail_each(fail_allocations_from, live_in_groups, handed_back, 100);
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

static void negotiator_steady_state_in_a_group_allocates_nothing(void **state)
{
    static chain_t chain;

    (void)state;
    begin(&chain);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(create(&chain, r), DP_OK);
    both(&chain, DP_GROUP_UNBORN, DP_COLLECTIVE_GROUP_CREATE);
    for (int step = 0; step < 6; step++) {
        if (step == 2) fail_allocation(1);
        both(&chain, chain.group, DP_COLLECTIVE_ALLREDUCE);
        both(&chain, chain.group, DP_COLLECTIVE_SEND);
    }
    assert_false(fail_allocation_reached());
    assert_int_equal(chain.handed_back[0], 1 + 6 * 2);
    end(&chain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(negotiator_without_memory_ends_the_world_in_order),
        cmocka_unit_test(negotiator_groups_without_memory_end_likewise),
        cmocka_unit_test(negotiator_steady_state_allocates_nothing),
        cmocka_unit_test(negotiator_steady_state_in_a_group_allocates_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
