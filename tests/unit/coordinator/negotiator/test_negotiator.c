/*
 * test_negotiator.c - the rules of the negotiator one by one, in worlds of a few ranks.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/negotiator/messages.h"
#include "coordinator/negotiator/state.h"
#include "runtime/transport/transport.h"
#include "tests/sim/world.h"
#include "tests/unit/cases.h"

#define MS UINT64_C(1000000)

static void violated(void *user, const char *text)
{
    (void)user;
    fail_msg("%s", text);
}

static world_options_t options_of(int size)
{
    world_options_t options = {0};

    options.size = size;
    options.tensors = 8;
    options.occurrences = 8;
    options.arity = 2;
    options.nodes = size > 2 ? 2 : 1;
    options.fusion_bytes = 1 << 20;
    options.violated = violated;
    return options;
}

static void begin(world_t *world, int size)
{
    world_options_t options = options_of(size);

    world_init(world, &options);
}

static void submit(world_t *world, int rank, int tensor)
{
    world_submit(world, rank, tensor, 768, 0, 1.0f, 0);
}

static void submit_all(world_t *world, int tensor)
{
    for (int r = 0; r < world->options.size; r++)
        submit(world, r, tensor);
}

static const world_outcome_t *outcome(const world_t *world, int tensor, int occurrence)
{
    return &world->outcomes[tensor * world->options.occurrences + occurrence];
}

static int pending(const world_t *world)
{
    int count = 0;

    for (int r = 0; r < world->options.size; r++)
        count += world->ranks[r].pending;
    return count;
}

/* ---- Names ---------------------------------------------------------------------------------- */

/* The first three names get ids; of the others four without one are kept, and one that comes again
 * while it is kept gets an id, too. */
static void negotiator_names_that_come_once_are_forgotten(void **state)
{
    world_options_t options = options_of(5);
    world_t world;

    (void)state;
    options.tensors = 60;
    options.names_kept = 4;
    world_init(&world, &options);
    for (int again = 0; again < 2; again++)
        for (int tensor = 0; tensor < options.tensors; tensor++) {
            submit_all(&world, tensor);
            world_settle(&world, 0);
            assert_int_equal(world.ranks[0].launches, 60 * again + tensor + 1);
        }
    for (int r = 0; r < 5; r++) {
        assert_int_equal(world.ranks[r].launches, 120);
        assert_in_range(world.ranks[r].negotiator->table.entry_count, 4, 3 + 4 + 1);
        assert_int_equal(world.ranks[r].negotiator->table.id_count, 3);
    }
    submit_all(&world, 59);
    world_settle(&world, 0);
    for (int r = 0; r < 5; r++)
        assert_int_equal(world.ranks[r].negotiator->table.id_count, 4);
    assert_int_equal(pending(&world), 0);
    world_fini(&world);
}

/* ---- Launching ------------------------------------------------------------------------------ */

static void negotiator_alone_launches_at_once(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 1);
    submit(&world, 0, 0);
    submit(&world, 0, 1);
    world_drain(&world, 0);
    assert_int_equal(world.ranks[0].launches, 1); /* one input batch, one launch */
    assert_int_equal(pending(&world), 0);
    dp_negotiator_finalize(world.ranks[0].negotiator, 0);
    world_drain(&world, 0);
    assert_true(world.ranks[0].is_finished);
    world_fini(&world);
}

static void negotiator_nobody_launches_before_all_submitted(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 5);
    for (int r = 0; r < 5; r++) {
        world_settle(&world, 0);
        assert_int_equal(world.ranks[0].launches, 0);
        submit(&world, r, 0);
    }
    world_settle(&world, 0);
    for (int r = 0; r < 5; r++)
        assert_int_equal(world.ranks[r].launches, 1);
    world_fini(&world);
}

static void negotiator_batch_costs_one_message_each_way_per_edge(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 13);
    for (int step = 0; step < 4; step++) {
        uint64_t before = world.messages, bytes = world.bytes;

        for (int t = 0; t < 8; t++)
            submit_all(&world, (t * 3 + step) % 8);
        /* Leaves first: each inner node then hears all children before it speaks. */
        for (int r = 12; r >= 0; r--) {
            for (int e = 0; e < world.edge_count; e += 2) {
                if (world.edges[e].to == r) world_deliver(&world, e, 0);
            }
            world_drain(&world, r);
        }
        world_settle(&world, 0);
        assert_int_equal(pending(&world), 0);
        assert_int_equal(world.messages - before, 2 * 12);
        /* Names and signatures travel once: afterwards 8 READYs and a LAUNCH of 8 per edge. */
        if (step > 0) assert_int_equal(world.bytes - bytes, 12 * (16 + 8 * 12 + 16 + 13 + 8 * 9));
    }
    world_fini(&world);
}

static void negotiator_flags_and_absmax_are_merged(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 3);
    for (int r = 0; r < 3; r++) {
        world_submit(&world, r, 0, 8, 0, (float)(r == 1 ? 9 : 1), 0);
        world_submit(&world, r, 1, 8, 0, r == 2 ? -1.0f : 5.0f, 0);
        world_submit(&world, r, 2, 8, 0, r == 1 ? NAN : 5.0f, 0);
    }
    world_settle(&world, 0);
    assert_float_equal(outcome(&world, 0, 0)->absmax, 9.0f, 0);
    assert_true(outcome(&world, 1, 0)->absmax < 0); /* unknown on one rank */
    assert_true(isinf(outcome(&world, 2, 0)->absmax));
    assert_int_equal(outcome(&world, 0, 0)->in_place, 0); /* odd ranks cannot */
    world_fini(&world);
}

static void negotiator_second_submission_while_pending_is_busy(void **state)
{
    dp_signature_part_t part;
    dp_signature_t signature;
    dp_submission_t submission = {.name = "h.0.weight",
                                  .signature = &signature,
                                  .in_place = 0,
                                  .last_absmax = 0.0f,
                                  .is_urgent = 0,
                                  .request = NULL};
    char long_name[DP_ENTRY_NAME_MAX + 2];
    world_t world;

    (void)state;
    begin(&world, 2);
    world_signature(&signature, &part, 768);
    submit(&world, 1, 0);
    assert_int_equal(dp_negotiator_submit(world.ranks[1].negotiator, &submission, 0), DP_ERR_BUSY);
    submission.name = "";
    assert_int_equal(dp_negotiator_submit(world.ranks[1].negotiator, &submission, 0),
                     DP_ERR_INVALID);
    memset(long_name, 'x', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    submission.name = long_name;
    assert_int_equal(dp_negotiator_submit(world.ranks[1].negotiator, &submission, 0),
                     DP_ERR_INVALID);
    world_settle(&world, 0);
    submit(&world, 0, 0);
    world_settle(&world, 0);
    submit_all(&world, 0); /* free again right after the launch */
    world_settle(&world, 0);
    assert_int_equal(world.ranks[1].launches, 2);
    world_fini(&world);
}

static void negotiator_changed_shape_is_adopted_when_all_change(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 4);
    for (uint64_t step = 0; step < 4; step++) {
        for (int r = 0; r < 4; r++)
            world_submit(&world, r, 0, 100 + step / 2, 0, 1.0f, 0);
        world_settle(&world, 0);
        assert_int_equal(world.ranks[3].launches, step + 1);
    }
    world_fini(&world);
}

/* ---- Holding back --------------------------------------------------------------------------- */

static void begin_holding(world_t *world, const world_tensor_t *kinds)
{
    world_options_t options = options_of(2);

    options.hold_ns = 10 * MS;
    options.fusion_bytes = 3 * 768 * 4;
    options.kinds = kinds;
    world_init(world, &options);
    submit_all(world, 0);
    world_settle(world, 0);
    assert_int_equal(world->ranks[1].launches, 1); /* never when idle */
    submit_all(world, 1);
    world_settle(world, 0);
    assert_int_equal(world->ranks[1].launches, 1);
    assert_int_equal(dp_negotiator_deadline(world->ranks[0].negotiator), 10 * MS);
    assert_int_equal(dp_negotiator_deadline(world->ranks[1].negotiator), UINT64_MAX);
}

static void negotiator_holds_until_the_data_plane_is_idle(void **state)
{
    world_t world;

    (void)state;
    begin_holding(&world, NULL);
    submit_all(&world, 2);
    world_settle(&world, 0);
    dp_negotiator_launch_done(world.ranks[0].negotiator, 1, 0);
    world_settle(&world, 0);
    assert_int_equal(world.ranks[1].launches, 2); /* both in one */
    assert_int_equal(pending(&world), 0);
    world_fini(&world);
}

static void negotiator_holds_no_longer_than_told(void **state)
{
    world_t world;

    (void)state;
    begin_holding(&world, NULL);
    dp_negotiator_tick(world.ranks[0].negotiator, 10 * MS - 1);
    world_settle(&world, 10 * MS - 1);
    assert_int_equal(pending(&world), 2);
    dp_negotiator_tick(world.ranks[0].negotiator, 10 * MS);
    world_settle(&world, 10 * MS);
    assert_int_equal(pending(&world), 0);
    world_fini(&world);
}

/* Two of three tensors fill a buffer, as each has a row for both ranks. */
static void negotiator_counts_all_rows_of_a_reduce_scatter(void **state)
{
    world_tensor_t kinds[8];
    world_t world;

    (void)state;
    for (int i = 0; i < 8; i++) {
        kinds[i] = (world_tensor_t){
            .collective = DP_COLLECTIVE_REDUCE_SCATTER, .root = -1, .peer = -1, .name = i};
    }
    begin_holding(&world, kinds);
    submit_all(&world, 2);
    world_settle(&world, 0);
    assert_int_equal(pending(&world), 0);
    assert_int_equal(world.ranks[1].launches, 2);
    world_fini(&world);
}

static void negotiator_holds_no_more_than_a_full_buffer(void **state)
{
    world_t world;

    (void)state;
    begin_holding(&world, NULL);
    submit_all(&world, 2);
    world_settle(&world, 0);
    assert_int_equal(pending(&world), 4);
    submit_all(&world, 3);
    world_settle(&world, 0);
    assert_int_equal(pending(&world), 0);
    assert_int_equal(world.ranks[1].launches, 2);
    world_fini(&world);
}

static void negotiator_waiter_ends_the_hold(void **state)
{
    world_t world;
    uint64_t messages;

    (void)state;
    begin_holding(&world, NULL);
    messages = world.messages;
    dp_negotiator_urgent(world.ranks[1].negotiator, DP_GROUP_WORLD, "h.1.weight", 0);
    dp_negotiator_urgent(world.ranks[1].negotiator, DP_GROUP_WORLD, "h.1.weight", 0);
    world_settle(&world, 0);
    assert_int_equal(pending(&world), 0);
    assert_int_equal(world.messages - messages, 2); /* URGENT up, LAUNCH down */
    world_submit(&world, 0, 4, 768, 0, 1.0f, 0);    /* and told with the submission */
    world_submit(&world, 1, 4, 768, 1, 1.0f, 0);
    world_settle(&world, 0);
    assert_int_equal(pending(&world), 0);
    messages = world.messages;
    dp_negotiator_urgent(world.ranks[1].negotiator, DP_GROUP_WORLD, "h.1.weight",
                         0); /* not pending */
    dp_negotiator_urgent(world.ranks[1].negotiator, DP_GROUP_WORLD, "no such tensor", 0);
    world_settle(&world, 0);
    assert_int_equal(world.messages, messages);
    world_fini(&world);
}

static void negotiator_huge_launch_is_split(void **state)
{
    enum { COUNT = 9000 };
    world_options_t options = options_of(2);
    dp_signature_part_t part;
    dp_signature_t signature;
    dp_output_t out;
    world_t world;
    char name[DP_NAME_MAX + 1];
    size_t entries[2] = {0, 0}, sends = 0;
    static char requests[COUNT];

    (void)state;
    options.tensors = 1;
    world_init(&world, &options);
    world_signature(&signature, &part, 1);
    memset(name, 'n', DP_NAME_MAX);
    name[DP_NAME_MAX] = '\0';
    for (int i = 0; i < COUNT; i++) {
        dp_submission_t submission = {.name = name,
                                      .signature = &signature,
                                      .in_place = 0,
                                      .last_absmax = 0.0f,
                                      .is_urgent = 0,
                                      .request = &requests[i]};

        name[DP_NAME_MAX - 2] = (char)(1 + i / 100);
        name[DP_NAME_MAX - 1] = (char)(1 + i % 100);
        for (int r = 0; r < 2; r++)
            assert_int_equal(dp_negotiator_submit(world.ranks[r].negotiator, &submission, 0),
                             DP_OK);
    }
    for (int round = 0; round < 2; round++) {
        for (int r = 1; r >= 0; r--) {
            while (dp_negotiator_output(world.ranks[r].negotiator, &out)) {
                if (out.kind == DP_OUTPUT_LAUNCH) entries[r] += out.entry_count;
                if (out.kind != DP_OUTPUT_SEND) continue;
                assert_true(out.bytes <= DP_MESSAGE_MAX);
                sends++;
                assert_int_equal(dp_negotiator_message(world.ranks[out.to].negotiator, r, out.data,
                                                       out.bytes, 0),
                                 DP_OK);
            }
        }
    }
    assert_int_equal(entries[0], COUNT);
    assert_int_equal(entries[1], COUNT);
    assert_true(sends >= 6 && sends < 20);
    world_fini(&world);
}

/* ---- Mismatch ------------------------------------------------------------------------------- */

static void mismatch_between(int size, int odd, const char *const *texts)
{
    world_t world;

    begin(&world, size);
    for (int r = 0; r < size; r++) {
        world_submit(&world, r, 0, r == odd ? 1024 : 768, 0, 1.0f, 0);
        submit(&world, r, 1);
    }
    world_settle(&world, 0);
    for (int r = 0; r < size; r++) {
        const world_rank_t *self = &world.ranks[r];
        int is_known = 0;

        assert_int_equal(self->failures, 1);
        assert_int_equal(self->last_failure_status, DP_ERR_MISMATCH);
        assert_string_equal(self->last_failure, world.ranks[0].last_failure);
        for (int i = 0; texts[i] != NULL; i++)
            is_known |= !strcmp(self->last_failure, texts[i]);
        if (!is_known) fail_msg("unexpected text: %s", self->last_failure);
        assert_int_equal(self->launches, 1); /* tensor 1 was not disturbed */
    }
    for (int step = 0; step < 2; step++) {
        submit_all(&world, 0); /* the name works again */
        world_settle(&world, 0);
        assert_int_equal(pending(&world), 0);
        assert_int_equal(world.ranks[0].failures, 1);
    }
    world_fini(&world);
}

static void negotiator_mismatch_names_ranks_hosts_and_values(void **state)
{
    static const char *const pair[] = {
        "tensor h.0.weight: count 768 on rank 0 (host0), 1024 on rank 1 (host0)",
        "tensor h.0.weight: count 1024 on rank 1 (host0), 768 on rank 0 (host0)", NULL};
    /* Five ranks on two nodes: 0 <- 1, 2 (host0), 3 (host1) <- 4. Found by the node above. */
    static const char *const deep[] = {
        "tensor h.0.weight: count 768 on rank 3 (host1), 1024 on rank 4 (host1)",
        "tensor h.0.weight: count 1024 on rank 4 (host1), 768 on rank 3 (host1)", NULL};

    (void)state;
    mismatch_between(2, 1, pair);
    mismatch_between(5, 4, deep);
}

static void negotiator_mismatch_fails_who_submits_later_too(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 3);
    for (int twice = 0; twice < 2; twice++) {
        world_submit(&world, 0, 0, 768 + (uint64_t)twice, 0, 1.0f, 0);
        world_submit(&world, 1, 0, 1024, 0, 1.0f, 0);
        world_settle(&world, 0);
        assert_int_equal(world.ranks[0].failures, twice + 1);
        assert_int_equal(world.ranks[2].failures, 0);
    }
    for (int twice = 0; twice < 2; twice++) {
        submit(&world, 2, 0);
        world_settle(&world, 0);
        assert_int_equal(world.ranks[2].failures, twice + 1);
        assert_non_null(
            strstr(world.ranks[2].last_failure, twice == 0 ? "count 768 on" : "count 769 on"));
    }
    submit_all(&world, 0);
    world_settle(&world, 0);
    assert_int_equal(pending(&world), 0);
    assert_int_equal(world.ranks[2].launches, 1);
    world_fini(&world);
}

/* READY and FAILURE cross: what was sent before the failure was seen speaks of the failed one. */
static void negotiator_late_ready_of_a_failed_occurrence_is_dropped(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 3);
    world_submit(&world, 0, 0, 768, 0, 1.0f, 0);
    world_submit(&world, 1, 0, 1024, 0, 1.0f, 0);
    world_submit(&world, 2, 0, 768, 0, 1.0f, 0);
    for (int r = 0; r < 3; r++)
        world_drain(&world, r);
    world_deliver(&world, 0, 0); /* rank 1's: the root fails the tensor */
    world_drain(&world, 0);
    submit(&world, 0, 0);        /* the root's next occurrence */
    world_deliver(&world, 2, 0); /* rank 2's READY of the failed one */
    world_drain(&world, 0);
    world_settle(&world, 0);
    assert_int_equal(world.ranks[0].launches, 0);
    assert_int_equal(world.ranks[2].failures, 1);
    submit(&world, 1, 0);
    submit(&world, 2, 0);
    world_settle(&world, 0);
    assert_int_equal(world.ranks[0].launches, 1);
    world_fini(&world);
}

/* ---- Leaving -------------------------------------------------------------------------------- */

static void finalize(world_t *world, int rank)
{
    dp_negotiator_finalize(world->ranks[rank].negotiator, 0);
}

static void negotiator_goodbye_comes_when_all_finalized(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 7);
    submit_all(&world, 0);
    world_settle(&world, 0);
    for (int r = 0; r < 7; r++) {
        assert_false(world.ranks[6].is_finished);
        finalize(&world, r);
        world_settle(&world, 0);
    }
    for (int r = 0; r < 7; r++) {
        assert_true(world.ranks[r].is_finished);
        assert_int_equal(world.ranks[r].failures, 0);
    }
    /* LEFT once, FIN, CLOSED, BYE. */
    for (int e = 0; e < world.edge_count; e++)
        assert_true(world.edges[e].sent <= 2 + 2);
    dp_negotiator_peer_lost(world.ranks[0].negotiator, 1, "connection closed", 0);
    world_drain(&world, 0);
    assert_false(world.ranks[0].is_fatal); /* a closing connection is no loss any more */
    world_fini(&world);
}

static void negotiator_leaver_fails_what_needs_it(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 5);
    for (int r = 0; r < 5; r++) {
        if (r != 4) submit(&world, r, 0);
        if (r != 0) submit(&world, r, 1); /* rank 4 waits for this one, and leaves */
    }
    finalize(&world, 4);
    world_settle(&world, 0);
    for (int r = 0; r < 4; r++) {
        char text[WORLD_TEXT_MAX];

        assert_int_equal(world.ranks[r].failures, 1);
        assert_int_equal(world.ranks[r].last_failure_status, DP_ERR_LEFT);
        snprintf(text, sizeof(text),
                 "rank 4 (host1) finalized before it submitted tensor h.0.weight; rank %d (host%d) "
                 "had submitted it",
                 r, r < 3 ? 0 : 1);
        assert_string_equal(world.ranks[r].last_failure, text);
    }
    assert_int_equal(world.ranks[4].failures, 0);
    submit(&world, 0, 1); /* which the leaver had submitted: it is launched */
    submit(&world, 0, 2); /* which it had not */
    world_settle(&world, 0);
    assert_int_equal(world.ranks[4].launches, 1);
    assert_int_equal(world.ranks[0].failures, 2);
    assert_int_equal(pending(&world), 0);
    submit(&world, 0, 1); /* once */
    world_settle(&world, 0);
    assert_int_equal(world.ranks[0].failures, 3);
    for (int r = 0; r < 4; r++)
        finalize(&world, r);
    world_settle(&world, 0);
    for (int r = 0; r < 5; r++)
        assert_true(world.ranks[r].is_finished);
    world_fini(&world);
}

/* ---- The end of the world ------------------------------------------------------------------- */

static void negotiator_loss_reaches_all_with_one_cause(void **state)
{
    world_t world;
    uint64_t messages;

    (void)state;
    begin(&world, 9);
    submit(&world, 2, 0);
    world_settle(&world, 0);
    messages = world.messages;
    world_kill(&world, 5, 0);
    world_settle(&world, 0);
    for (int r = 0; r < 9; r++) {
        if (r == 5) continue;
        assert_true(world.ranks[r].is_fatal);
        assert_int_equal(world.ranks[r].fatal_status, DP_ERR_PEER_LOST);
        assert_int_equal(world.ranks[r].fatal_culprit, 5);
        assert_string_equal(world.ranks[r].fatal_text, "rank 5 (host1): connection lost");
    }
    assert_true(world.messages - messages <= 2 * 8);
    messages = world.messages;
    dp_negotiator_peer_lost(world.ranks[0].negotiator, 1, "gone", 0);
    world_settle(&world, 0);
    assert_int_equal(world.messages, messages); /* it can only end once */
    world_fini(&world);
}

static void negotiator_abort_gives_the_reason_to_all(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 4);
    dp_negotiator_abort(world.ranks[1].negotiator, DP_ERR_ABORTED, "loss is NaN", 0);
    world_settle(&world, 0);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(world.ranks[r].fatal_status, DP_ERR_ABORTED);
        assert_int_equal(world.ranks[r].fatal_culprit, 1);
        assert_string_equal(world.ranks[r].fatal_text, "rank 1 (host0) aborted: loss is NaN");
    }
    world_fini(&world);
}

/* ---- Hostile neighbours --------------------------------------------------------------------- */

/* One frame from rank 1 to the root, of items written by the caller. */
static void expect_refusal(const dp_item_t *item, uint64_t position, const char *text)
{
    uint8_t data[2048];
    dp_frame_header_t header = {position};
    dp_writer_t writer;
    world_t world;

    begin(&world, 2);
    dp_writer_init(&writer, data, sizeof(data));
    dp_frame_write_header(&writer, &header);
    dp_item_write(&writer, item);
    assert_int_equal(dp_negotiator_message(world.ranks[0].negotiator, 1, data, writer.bytes, 0),
                     DP_OK);
    world_settle(&world, 0);
    for (int r = 0; r < 2; r++) {
        assert_true(world.ranks[r].is_fatal);
        assert_int_equal(world.ranks[r].fatal_culprit, 1);
        if (strstr(world.ranks[r].fatal_text, text) == NULL)
            fail_msg("expected \"%s\" in \"%s\"", text, world.ranks[r].fatal_text);
    }
    world_fini(&world);
}

static void negotiator_refuses_what_breaks_the_protocol(void **state)
{
    dp_item_t item = {.root = -1, .peer = -1};

    (void)state;
    item.kind = DP_ITEM_READY;
    item.id = 7;
    expect_refusal(&item, 0, "rank 1 (host0) broke the protocol: no tensor has id 7");
    item.id = DP_ID_NONE;
    item.name = "x";
    expect_refusal(&item, 0, "tensor x announced without a signature");
    item.version = 3;
    expect_refusal(&item, 0, "tensor x announced in version 3, it is in 0 here");
    expect_refusal(&item, 5, "frame from position 5");
    item.kind = DP_ITEM_BYE;
    expect_refusal(&item, 0, "comes from a parent only");
    item.kind = DP_ITEM_LEFT;
    item.rank = 2;
    expect_refusal(&item, 0, "there is no rank 2 to leave");
    item.kind = DP_ITEM_FIN;
    expect_refusal(&item, DP_POSITION_NONE, "outside of the order");
}

static void negotiator_refuses_bytes_that_are_no_frame(void **state)
{
    static const struct {
        const char *bytes;
        size_t count;
        const char *text;
    } cases[] = {
        {"", 0, "malformed header"},
        {"\x09", 1, "it speaks version 9, this rank 5"},
        {"\x05\0\0\0", 4, "malformed header"},
        {"\x05\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0", 16, "malformed header"},
        {"\x05\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x63", 17, "malformed item at byte 16 of 17"},
        {"\x05\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\xff", 18, "malformed item"},
    };

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(cases); i++) {
        world_t world;

        begin(&world, 2);
        dp_negotiator_message(world.ranks[0].negotiator, 1, cases[i].bytes, cases[i].count, 0);
        world_drain(&world, 0);
        assert_true(world.ranks[0].is_fatal);
        if (strstr(world.ranks[0].fatal_text, cases[i].text) == NULL)
            fail_msg("expected \"%s\" in \"%s\"", cases[i].text, world.ranks[0].fatal_text);
        world_fini(&world);
    }
}

static void negotiator_refuses_strangers(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 5);
    dp_negotiator_message(world.ranks[0].negotiator, 4, "", 0, 0); /* rank 3's child */
    world_drain(&world, 0);
    assert_non_null(strstr(world.ranks[0].fatal_text, "it is no neighbour of rank 0"));
    world_fini(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(negotiator_names_that_come_once_are_forgotten),
        cmocka_unit_test(negotiator_alone_launches_at_once),
        cmocka_unit_test(negotiator_nobody_launches_before_all_submitted),
        cmocka_unit_test(negotiator_batch_costs_one_message_each_way_per_edge),
        cmocka_unit_test(negotiator_flags_and_absmax_are_merged),
        cmocka_unit_test(negotiator_second_submission_while_pending_is_busy),
        cmocka_unit_test(negotiator_changed_shape_is_adopted_when_all_change),
        cmocka_unit_test(negotiator_holds_until_the_data_plane_is_idle),
        cmocka_unit_test(negotiator_holds_no_longer_than_told),
        cmocka_unit_test(negotiator_holds_no_more_than_a_full_buffer),
        cmocka_unit_test(negotiator_counts_all_rows_of_a_reduce_scatter),
        cmocka_unit_test(negotiator_waiter_ends_the_hold),
        cmocka_unit_test(negotiator_huge_launch_is_split),
        cmocka_unit_test(negotiator_mismatch_names_ranks_hosts_and_values),
        cmocka_unit_test(negotiator_mismatch_fails_who_submits_later_too),
        cmocka_unit_test(negotiator_late_ready_of_a_failed_occurrence_is_dropped),
        cmocka_unit_test(negotiator_goodbye_comes_when_all_finalized),
        cmocka_unit_test(negotiator_leaver_fails_what_needs_it),
        cmocka_unit_test(negotiator_loss_reaches_all_with_one_cause),
        cmocka_unit_test(negotiator_abort_gives_the_reason_to_all),
        cmocka_unit_test(negotiator_refuses_what_breaks_the_protocol),
        cmocka_unit_test(negotiator_refuses_bytes_that_are_no_frame),
        cmocka_unit_test(negotiator_refuses_strangers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
