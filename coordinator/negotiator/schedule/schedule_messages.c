/*
 * schedule_messages.c - what ranks send each other about a schedule, and how it is read and
 * checked.
 *
 * Up go COUNT, DIVERGE and REACHED; down come SCHEDULE (schedule_item.c), CONFIRM, PAUSE and
 * SCHEDULE_END (the diagram is in launch.c). Each item is checked against what its sender can have
 * launched before it counts. Called by receive.c, follow.c and flush.c through the hooks of
 * schedule.h.
 */
#include "coordinator/negotiator/schedule/schedule_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void note_confirmed(dp_negotiator_t *n, uint64_t rounds)
{
    dp_schedule_t *schedule = n->schedule;
    int is_ahead =
        schedule->own_bucket_count > 0 && schedule->run.step > rounds * schedule->own_bucket_count;

    schedule->run.confirmed = rounds;
    schedule->run.unconfirmed_ns = is_ahead ? dp_max(n->now_ns, 1) : 0;
}

/* ---- From neighbours ------------------------------------------------------------------------ */

/* Nothing is launched here any more. REACHED goes up when all children have sent theirs. */
static void pause_launching(dp_negotiator_t *n)
{
    dp_schedule_t *schedule = n->schedule;

    n->out.must_pause_first = dp_outbox_output(n, DP_OUTPUT_SCHEDULE_PAUSED) != NULL;
    schedule->is_paused = 1;
    schedule->stop.children_awaited = n->child_count;
    schedule->stop.low = dp_schedule_next(schedule);
    schedule->stop.high = schedule->run.launched;
    for (size_t i = 0; i < schedule->bucket_count; i++)
        schedule->buckets[i].rounds = 0;
    for (size_t i = 0; i < schedule->own_bucket_count; i++) {
        schedule->buckets[schedule->own_buckets[i]].rounds =
            schedule->run.step / schedule->own_bucket_count +
            (i < schedule->run.step % schedule->own_bucket_count);
    }
}

/* Merges what a subtree has launched of each bucket. 0: it cannot have. */
static int merge_rounds(dp_negotiator_t *n, const dp_item_t *item)
{
    dp_schedule_t *schedule = n->schedule;

    if (item->round_count != schedule->bucket_count) return 0;
    for (size_t i = 0; i < schedule->bucket_count; i++) {
        if (item->rounds[i] > schedule->run.confirmed + schedule->stride + 1) return 0;
        schedule->buckets[i].rounds = dp_max(schedule->buckets[i].rounds, item->rounds[i]);
    }
    return 1;
}

/* Puts the rounds of each bucket, as merged from this subtree, into an item. 0: no memory. */
static int fill_rounds(dp_negotiator_t *n, dp_item_t *item)
{
    dp_schedule_t *schedule = n->schedule;

    if (schedule->stop.rounds_room < schedule->bucket_count) {
        uint64_t *grown = realloc(schedule->stop.rounds, schedule->bucket_count * sizeof(*grown));

        if (grown == NULL) {
            dp_fatal_memory(n);
            return 0;
        }
        schedule->stop.rounds = grown;
        schedule->stop.rounds_room = schedule->bucket_count;
    }
    for (size_t i = 0; i < schedule->bucket_count; i++)
        schedule->stop.rounds[i] = schedule->buckets[i].rounds;
    item->rounds = schedule->stop.rounds;
    item->round_count = (uint32_t)schedule->bucket_count;
    return 1;
}

static void receive_count(dp_negotiator_t *n, int from, int child, const dp_item_t *item)
{
    dp_schedule_t *schedule = n->schedule;
    uint64_t before = dp_schedule_rounds(n);

    if (schedule->run.child_rounds[child] == DP_SCHEDULE_NOBODY ||
        item->low < schedule->run.child_rounds[child] ||
        item->low > schedule->run.confirmed + schedule->stride + 1) {
        dp_fatal_protocol(n, from, "%" PRIu64 " rounds launched, %" PRIu64 " before", item->low,
                          schedule->run.child_rounds[child]);
        return;
    }
    schedule->run.child_rounds[child] = item->low;
    if (dp_schedule_rounds(n) > before) schedule->run.slowest = item->rank;
    if (item->low % schedule->stride != 0)
        schedule->run.wants_exact_counts = 1; /* a rank below wants to know exactly */
}

void dp_schedule_from_child(dp_negotiator_t *n, int from, int child, const dp_item_t *item)
{
    dp_schedule_t *schedule = n->schedule;

    if (!dp_schedule_is_active(n)) {
        dp_fatal_protocol(n, from, "item %d, and no schedule is active", item->kind);
    } else if (item->kind == DP_ITEM_DIVERGE) {
        dp_schedule_leave(n, item->reason, item->rank, item->text);
    } else if (item->kind == DP_ITEM_COUNT) {
        receive_count(n, from, child, item);
    } else if (!schedule->is_paused || schedule->stop.children_awaited == 0 ||
               item->high > dp_schedule_horizon(n) || !merge_rounds(n, item)) {
        dp_fatal_protocol(n, from, "it stands at buckets %" PRIu64 " to %" PRIu64, item->low,
                          item->high);
    } else {
        schedule->stop.children_awaited--;
        schedule->stop.low = dp_min(schedule->stop.low, item->low);
        schedule->stop.high = dp_max(schedule->stop.high, item->high);
    }
}

void dp_schedule_from_parent(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_schedule_t *schedule = n->schedule;

    if (!dp_schedule_is_active(n) ||
        (item->kind != DP_ITEM_CONFIRM && item->kind != DP_ITEM_PAUSE &&
         (!schedule->stop.is_reached_sent || item->low > item->high ||
          item->high > dp_schedule_horizon(n) || item->high < schedule->stop.high ||
          item->low > schedule->stop.low || !merge_rounds(n, item)))) {
        dp_fatal_protocol(n, from, "item %d out of turn", item->kind);
    } else if (item->kind == DP_ITEM_CONFIRM) {
        uint64_t own = dp_schedule_rounds(n);

        if (item->low < schedule->run.confirmed || item->low > own) {
            dp_fatal_protocol(n, from, "%" PRIu64 " rounds confirmed, %" PRIu64 " launched",
                              item->low, own);
            return;
        }
        note_confirmed(n, item->low);
    } else if (item->kind == DP_ITEM_PAUSE) {
        if (schedule->is_paused) {
            dp_fatal_protocol(n, from, "paused twice");
            return;
        }
        schedule->stop.has_reason = schedule->stop.is_reason_sent = 1;
        schedule->stop.reason = item->reason;
        schedule->stop.rank = item->rank;
        snprintf(schedule->stop.text, sizeof(schedule->stop.text), "%s", item->text);
        pause_launching(n);
    }
}

/* The item is the last of its epoch, also for this rank's children: it is passed on, and its frame
 * closed, before the next epoch begins here. */
void dp_schedule_turn(dp_negotiator_t *n, int from, const dp_item_t *item, dp_reader_t *reader,
                      size_t begin)
{
    uint64_t low = item->low, high = item->high, sequence = item->sequence;
    int begins = item->kind == DP_ITEM_SCHEDULE;

    if (begins) {
        dp_schedule_receive_whole(n, from, item, reader);
    } else {
        dp_schedule_from_parent(n, from, item);
    }
    if (n->is_fatal) return;
    dp_outbox_down_bytes(n, n->world->expect, n->position, reader->data + begin, reader->at - begin,
                         1);
    dp_outbox_close_down(n);
    if (n->is_fatal) return;
    if (begins) {
        dp_schedule_begin(n, sequence);
    } else {
        dp_schedule_end(n, low, high);
    }
}

/* ---- To neighbours -------------------------------------------------------------------------- */

/* DIVERGE, or from the root PAUSE: the first reason wins. */
static void send_reason(dp_negotiator_t *n)
{
    dp_schedule_t *schedule = n->schedule;
    dp_item_t *item = &n->made;

    if (!schedule->stop.has_reason || schedule->stop.is_reason_sent) return;
    schedule->stop.is_reason_sent = 1;
    item->kind = dp_is_root(n) ? DP_ITEM_PAUSE : DP_ITEM_DIVERGE;
    item->reason = schedule->stop.reason;
    item->rank = schedule->stop.rank;
    item->text = schedule->stop.text;
    item->list_count = 0;
    if (dp_is_root(n)) {
        dp_outbox_down(n, n->world->expect, item, 0);
        pause_launching(n);
    } else {
        dp_outbox_up_item(n, item);
    }
}

/* COUNT, or from the root CONFIRM: whole strides only, unless a rank waits and wants to know
 * exactly. */
static void send_counts(dp_negotiator_t *n)
{
    dp_schedule_t *schedule = n->schedule;
    dp_item_t *item = &n->made;
    uint64_t rounds = dp_schedule_rounds(n);

    if (rounds == DP_SCHEDULE_NOBODY || schedule->is_paused) return;
    if (!schedule->run.wants_exact_counts) rounds -= rounds % schedule->stride;
    schedule->run.wants_exact_counts = 0;
    if (rounds <= schedule->run.counts_sent) return;
    schedule->run.counts_sent = rounds;
    item->kind = dp_is_root(n) ? DP_ITEM_CONFIRM : DP_ITEM_COUNT;
    item->low = rounds;
    item->rank = schedule->run.slowest >= 0 ? schedule->run.slowest : n->rank;
    item->list_count = 0;
    if (!dp_is_root(n)) {
        dp_outbox_up_item(n, item);
        return;
    }
    dp_outbox_down(n, n->world->expect, item, 0);
    note_confirmed(n, rounds);
}

/* REACHED, or from the root SCHEDULE_END, which begins the next epoch here too. */
static void send_reached(dp_negotiator_t *n)
{
    dp_schedule_t *schedule = n->schedule;
    dp_item_t *item = &n->made;

    if (!schedule->is_paused || schedule->stop.children_awaited > 0 ||
        schedule->stop.is_reached_sent || n->is_fatal)
        return;
    schedule->stop.is_reached_sent = 1;
    item->kind = dp_is_root(n) ? DP_ITEM_SCHEDULE_END : DP_ITEM_REACHED;
    item->low = schedule->stop.low;
    item->high = schedule->stop.high;
    item->list_count = 0;
    if (!fill_rounds(n, item)) return;
    if (dp_is_root(n)) {
        item->low = dp_min(item->low, item->high);
        dp_outbox_down(n, n->world->expect, item, 1);
        dp_outbox_close_down(n);
    } else {
        dp_outbox_up_item(n, item);
    }
    item->rounds = NULL; /* the scratch stays ours */
    item->round_count = 0;
    if (!dp_is_root(n)) return;
    if (!n->is_fatal)
        dp_schedule_end(n, dp_min(schedule->stop.low, schedule->stop.high), schedule->stop.high);
    if (!n->is_fatal) dp_detect_ended(n, schedule->stop.high / schedule->bucket_count);
}

void dp_schedule_send_due(dp_negotiator_t *n)
{
    if (!n->is_fatal) send_counts(n);
    if (!n->is_fatal) send_reason(n);
    send_reached(n);
}
