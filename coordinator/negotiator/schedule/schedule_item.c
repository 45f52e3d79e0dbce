/*
 * schedule_item.c - the item SCHEDULE: a whole schedule as bytes, written by the root, read and
 * checked by all other ranks.
 *
 * detect.c and resume.c send it, schedule_messages.c receives it, on the thread that drives the
 * negotiator. It must not know when a schedule begins (launch.c).
 */
#include "coordinator/negotiator/schedule/schedule_internal.h"

#include <inttypes.h>
#include <stdlib.h>

dp_status_t dp_schedule_reserve(dp_schedule_t *schedule, size_t buckets, size_t entries)
{
    if (buckets > schedule->bucket_room) {
        dp_schedule_bucket_t *grown = realloc(schedule->buckets, buckets * sizeof(*grown));

        if (grown == NULL) return DP_ERR_NO_MEMORY;
        schedule->buckets = grown;
        schedule->bucket_room = buckets;
    }
    if (entries > schedule->planned_room) {
        size_t room = dp_max(entries, schedule->planned_room * 2);
        dp_planned_t *grown = realloc(schedule->planned, room * sizeof(*grown));

        if (grown == NULL) return DP_ERR_NO_MEMORY;
        schedule->planned = grown;
        schedule->planned_room = room;
    }
    return DP_OK;
}

/* Appends one tensor to the schedule's newest bucket. 0: it cannot be part of a schedule, or of
 * this bucket: all tensors of a bucket are of one group. */
static int add_planned(dp_negotiator_t *n, dp_schedule_bucket_t *bucket, const dp_item_t *item)
{
    dp_schedule_t *schedule = n->schedule;
    dp_entry_t *entry = dp_table_by_id(&n->table, item->id);

    if (dp_schedule_reserve(schedule, 0, schedule->planned_count + 1) != DP_OK) {
        dp_fatal_memory(n);
        return 0;
    }
    if ((item->flags & ~DP_FLAG_IN_PLACE) != 0) return 0;
    if (entry != NULL && !dp_schedule_can_hold(entry, entry->signature)) return 0;
    if (bucket->count > 0) {
        const dp_entry_t *first = schedule->planned[bucket->begin].entry;

        if ((first == NULL) != (entry == NULL)) return 0;
        if (entry != NULL && first->view != entry->view) return 0;
    }
    schedule->planned[schedule->planned_count++] =
        (dp_planned_t){entry, (item->flags & DP_FLAG_IN_PLACE) != 0, item->absmax};
    bucket->count++;
    return 1;
}

/* Reads the buckets of SCHEDULE. */
static void read_schedule(dp_negotiator_t *n, int from, uint32_t count, dp_reader_t *reader)
{
    dp_schedule_t *schedule = n->schedule;
    dp_item_t *item = &n->made;

    schedule->bucket_count = count;
    schedule->planned_count = 0;
    for (uint32_t b = 0; b < count && !n->is_fatal; b++) {
        dp_schedule_bucket_t *bucket = &schedule->buckets[b];
        uint32_t entries;

        *bucket = (dp_schedule_bucket_t){schedule->planned_count, 0, 0};
        if (dp_item_read_bucket(reader, &entries) != DP_OK) {
            dp_fatal_protocol(n, from, "a malformed schedule");
            return;
        }
        for (uint32_t i = 0; i < entries && !n->is_fatal; i++) {
            int is_good = dp_item_read_entry(reader, item) == DP_OK;

            if (is_good) is_good = add_planned(n, bucket, item);
            dp_item_fini(item);
            if (!is_good && !n->is_fatal) dp_fatal_protocol(n, from, "a schedule that cannot be");
        }
    }
}

void dp_schedule_receive_whole(dp_negotiator_t *n, int from, const dp_item_t *item,
                               dp_reader_t *reader)
{
    dp_schedule_t *schedule = n->schedule;
    uint64_t sequence = item->sequence;

    dp_schedule_catch_up(n);
    if (n->is_fatal) return;
    if (dp_schedule_is_active(n) || schedule->catch_up.unsettled > 0 ||
        schedule->catch_up.late_count > 0 || sequence < n->sequence || sequence > DP_POSITION_MAX) {
        dp_fatal_protocol(n, from, "a schedule after launch %" PRIu64 ", this rank is at %" PRIu64,
                          sequence, n->sequence);
        return;
    }
    schedule->stride = item->stride;
    if (dp_schedule_reserve(schedule, item->count, 0) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    read_schedule(n, from, item->count, reader);
}

/* The last frame of its epoch: all ranks begin the schedule behind the same ordered items. */
void dp_schedule_send_whole(dp_negotiator_t *n)
{
    const dp_schedule_t *schedule = n->schedule;
    dp_item_t *item = &n->made;
    size_t bytes = 64 + schedule->bucket_count * DP_BUCKET_BYTES +
                   schedule->planned_count * DP_BUCKET_ENTRY_BYTES;
    dp_writer_t writer;

    item->kind = DP_ITEM_SCHEDULE;
    item->sequence = n->sequence;
    item->stride = schedule->stride;
    item->count = (uint32_t)schedule->bucket_count;
    if (!dp_outbox_down_begin(n, n->world->expect, n->position, bytes, &writer)) return;
    dp_item_write(&writer, item);
    for (size_t b = 0; b < schedule->bucket_count; b++) {
        const dp_schedule_bucket_t *bucket = &schedule->buckets[b];

        dp_write_u32(&writer, (uint32_t)bucket->count);
        for (size_t i = 0; i < bucket->count; i++) {
            const dp_planned_t *planned = &schedule->planned[bucket->begin + i];

            item->id = planned->entry->id;
            item->flags = planned->in_place ? DP_FLAG_IN_PLACE : 0;
            item->absmax = planned->absmax;
            dp_item_write_entry(&writer, item);
        }
    }
    dp_outbox_down_commit(n, &writer, 1);
    dp_outbox_close_down(n); /* what follows is of the next epoch */
}
