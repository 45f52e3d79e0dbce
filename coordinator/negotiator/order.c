/*
 * order.c - the root: appends to the one order that all ranks follow, and decides when.
 *
 * Called by agree.c when a tensor is complete and by negotiator.c to launch what is due; also by
 * leave.c. On the thread that drives the root's negotiator.
 *
 * Complete tensors are launched at once while the data plane is idle; while it is busy they are
 * held back for a while, so that more join them. Tensors that this rank takes no part in are never
 * held: it knows nothing of the data planes they run on. Those that are launched at one moment go
 * by priority. A LAUNCH holds tensors of one group and one priority, so that an urgent one never
 * waits in a bucket for others; the creation and the end of a group, and a send, come alone.
 */
#include "coordinator/negotiator/order.h"

#include "coordinator/negotiator/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Half a message, so that a LAUNCH always fits in a frame beside other items. */
#define LAUNCH_BYTES_MAX (DP_MESSAGE_MAX / 2)
#define VALUE_TEXT_MAX 64
#define WHAT_IN_TEXT 320 /* bytes of a tensor's name where a text needs room behind it */

/* Names the tensor of an entry or a FAILURE: its id, and its key if the id is new or there is none.
 */
static unsigned name_entry(dp_negotiator_t *n, dp_item_t *item, dp_entry_t *entry, int gets_id)
{
    unsigned flags = 0;

    dp_item_ref(item, item->kind, entry);
    if (entry->id == DP_ID_NONE) flags = DP_FLAG_NAME;
    if (entry->id == DP_ID_NONE && entry->view != NULL && gets_id) {
        dp_table_assign(&n->table, entry, n->table.next_id);
        item->id = entry->id;
    }
    return flags;
}

/* ---- Failures ------------------------------------------------------------------------------- */

static void order_failure(dp_negotiator_t *n, dp_entry_t *entry, dp_status_t status,
                          const char *text, const int32_t *list, uint32_t list_count)
{
    dp_item_t *item = &n->made;

    dp_agree_targets(n, entry, list, list_count);
    item->kind = DP_ITEM_FAILURE;
    item->flags = (uint8_t)name_entry(n, item, entry, 1);
    item->status = status;
    item->text = text;
    item->list = list;
    item->list_count = list_count;
    dp_outbox_down(n, n->targets, item, 1);
    item->list_count = 0;
    if (!n->is_fatal) dp_agree_fail(n, entry, status, text);
}

/* The union of both lists: each of their ranks waits for the group, or will. */
static int32_t *unite_members(const dp_signature_t *a, const dp_signature_t *b, uint32_t *count)
{
    int32_t *list = malloc(((size_t)a->member_count + b->member_count + 1) * sizeof(*list));
    uint32_t i = 0, k = 0, found = 0;

    while (list != NULL && (i < a->member_count || k < b->member_count)) {
        int32_t from_a = i < a->member_count ? a->members[i] : INT32_MAX;
        int32_t from_b = k < b->member_count ? b->members[k] : INT32_MAX;

        list[found++] = dp_min(from_a, from_b);
        if (from_a <= from_b) i++;
        if (from_b <= from_a) k++;
    }
    *count = found;
    return list;
}

static void order_mismatch(dp_negotiator_t *n, dp_entry_t *entry, const int rank[2],
                           const dp_signature_t *const signature[2])
{
    char field[VALUE_TEXT_MAX], a[VALUE_TEXT_MAX], b[VALUE_TEXT_MAX], what[DP_ENTRY_TEXT_MAX];
    char rank_a[DP_RANK_TEXT_MAX], rank_b[DP_RANK_TEXT_MAX], text[DP_ERROR_TEXT_MAX];
    int32_t *list = NULL;
    uint32_t count = 0;

    dp_signature_difference(signature[0], signature[1], field, a, b, VALUE_TEXT_MAX);
    snprintf(text, sizeof(text), "%s: %s %s on %s, %s on %s",
             dp_entry_text_of(entry, signature[0], what), field, a,
             dp_rank_text(n, rank[0], rank_a), b, dp_rank_text(n, rank[1], rank_b));
    if (entry->view == NULL) {
        list = unite_members(signature[0], signature[1], &count);
        if (list == NULL) {
            dp_fatal_memory(n);
            return;
        }
    }
    order_failure(n, entry, DP_ERR_MISMATCH, text, list, count);
    free(list);
}

static void order_lacks(dp_negotiator_t *n, dp_entry_t *entry, int leaver,
                        const dp_signature_t *signature)
{
    char what[DP_ENTRY_TEXT_MAX], rank[DP_RANK_TEXT_MAX], text[DP_ERROR_TEXT_MAX];

    dp_entry_text_of(entry, signature, what);
    dp_rank_text(n, leaver, rank);
    if (entry->view == NULL) {
        snprintf(text, sizeof(text), "%s finalized before %.*s, of which it is a member, was made",
                 rank, WHAT_IN_TEXT, what);
    } else {
        snprintf(text, sizeof(text), "%s finalized before it submitted %.*s", rank, WHAT_IN_TEXT,
                 what);
    }
    order_failure(n, entry, DP_ERR_LEFT, text, signature->members, signature->member_count);
}

void dp_order_conflict(dp_negotiator_t *n, dp_entry_t *entry, const int rank[2],
                       const dp_signature_t *const signature[2])
{
    if (signature[1] == NULL) {
        order_lacks(n, entry, rank[0], signature[0]);
    } else {
        order_mismatch(n, entry, rank, signature);
    }
}

void dp_order_expired(dp_negotiator_t *n, dp_entry_t *entry, const char *text)
{
    order_failure(n, entry, DP_ERR_TIMEOUT, text, entry->making.list, entry->making.list_count);
}

static void refuse_absent(dp_negotiator_t *n, dp_entry_t *entry)
{
    char what[DP_ENTRY_TEXT_MAX], rank[DP_RANK_TEXT_MAX], text[DP_ERROR_TEXT_MAX];

    snprintf(text, sizeof(text), "%s: %s needs %s, which has joined", dp_entry_text(entry, what),
             dp_collective_name(dp_entry_signature(entry)->collective),
             dp_rank_text(n, entry->arrived.absent_rank, rank));
    order_failure(n, entry, DP_ERR_ORDER, text, NULL, 0);
}

/* ---- Launches ------------------------------------------------------------------------------- */

/* The lowest index that none of these ranks uses for another group; 0: there is none. Groups
 * without a common rank may have the same one: an index is a small number that only members use, in
 * memory and messages. So it bounds the groups of one rank, not those of the world. */
static uint32_t free_group_index(const dp_negotiator_t *n, const int32_t *members, uint32_t count)
{
    uint64_t taken[DP_GROUP_INDEX_WORDS] = {1}; /* 0 is the world's */

    for (uint32_t i = 0; i < count; i++) {
        for (int word = 0; word < DP_GROUP_INDEX_WORDS; word++)
            taken[word] |= n->order.indices[members[i]][word];
    }
    for (uint32_t index = 1; index <= DP_GROUPS_MAX; index++)
        if (!dp_bit_get(taken, (int)index)) return index;
    return 0;
}

/* The group is made, or ends. */
static void flip_group_index(dp_negotiator_t *n, const int32_t *members, uint32_t count,
                             uint32_t index)
{
    for (uint32_t i = 0; i < count; i++)
        n->order.indices[members[i]][index / 64] ^= UINT64_C(1) << index % 64;
}

/* Gives a group to be made its uid and index. 0: no index is free on its ranks, and the creation
 * fails on all of them. */
static int number_group(dp_negotiator_t *n, dp_entry_t *entry, dp_ordered_launch_t *launch)
{
    const dp_signature_t *signature = entry->arrived.proposed;
    char what[DP_ENTRY_TEXT_MAX], text[DP_ERROR_TEXT_MAX];
    const char *name = signature->group_name;

    if (n->order.indices == NULL)
        n->order.indices = calloc((size_t)n->size, sizeof(*n->order.indices));
    if (n->order.indices == NULL) {
        dp_fatal_memory(n);
        return 0;
    }
    launch->group_index = free_group_index(n, signature->members, signature->member_count);
    launch->born = n->groups.last_uid + 1;
    if (launch->group_index == 0 || launch->born == DP_GROUP_UNBORN) {
        snprintf(text, sizeof(text),
                 "%s: a rank can be in %d groups, and its ranks have none left in common",
                 dp_entry_text(entry, what), DP_GROUPS_MAX);
        order_failure(n, entry, DP_ERR_FULL, text, signature->members, signature->member_count);
        return 0;
    }
    if (dp_group_view_make(n, launch->born, launch->group_index,
                           name != NULL && name[0] != '\0' ? name : entry->name, signature->members,
                           signature->member_count) == NULL) {
        dp_fatal_memory(n);
        return 0;
    }
    flip_group_index(n, signature->members, signature->member_count, launch->group_index);
    return 1;
}

static const dp_signature_t *signature_for_absent(const dp_entry_t *entry)
{
    return entry->arrived.absent > 0 ? entry->arrived.proposed : NULL;
}

/* An entry of a LAUNCH. Ranks that have joined have not seen a new signature, so it travels for
 * them. */
static void write_launched(dp_negotiator_t *n, dp_writer_t *writer, dp_entry_t *entry,
                           const dp_ordered_launch_t *launch, int has_children)
{
    dp_item_t *item = &n->made;
    unsigned flags = name_entry(n, item, entry, dp_table_earns_id(&n->table, entry));

    if (entry->arrived.in_place) flags |= DP_FLAG_IN_PLACE;
    if (entry->arrived.absent > 0) flags |= DP_FLAG_ABSENT;
    if (signature_for_absent(entry) != NULL) flags |= DP_FLAG_SIGNATURE;
    if (launch->born != 0) flags |= DP_FLAG_BORN;
    item->flags = (uint8_t)flags;
    item->absmax = entry->arrived.absmax;
    item->absent = entry->arrived.absent;
    item->signature = entry->arrived.proposed;
    item->born = launch->born;
    item->group_index = launch->group_index;
    if (has_children) dp_item_write_entry(writer, item);
}

/* 1: an entry goes into one LAUNCH with the first of a list, which is none that travels alone. The
 * priority of the first is given, because the end of its occurrence clears it. */
static int goes_with(const dp_entry_t *first, const dp_entry_t *entry, int32_t priority)
{
    if (entry == NULL || entry->view != first->view) return 0;
    if (entry == first) return 1;
    return entry->arrived.priority == priority &&
           !dp_launches_alone(dp_entry_signature(entry)->collective);
}

/* How many entries from first on go into one LAUNCH, and the bytes they need at most. */
static uint32_t pick_companions(dp_entry_t *const *entries, size_t begin, size_t count,
                                size_t *bytes, size_t *end)
{
    uint32_t found = 0;

    if (dp_launches_alone(dp_entry_signature(entries[begin])->collective)) count = begin + 1;
    *bytes = 16;
    for (*end = begin; *end < count && *bytes < LAUNCH_BYTES_MAX; (*end)++) {
        const dp_entry_t *entry = entries[*end];

        if (!goes_with(entries[begin], entry, entries[begin]->arrived.priority)) continue;
        *bytes += dp_item_entry_bound(entry->name, signature_for_absent(entry));
        found++;
    }
    return found;
}

/* Sends one LAUNCH of entries[begin] and what goes with it, and takes them out of the list. */
static void order_launch(dp_negotiator_t *n, dp_entry_t **entries, size_t begin, size_t count)
{
    dp_entry_t *first = entries[begin];
    dp_ordered_launch_t launch = {.sequence = n->sequence + 1};
    const int32_t priority = first->arrived.priority;
    dp_group_view_t *view = first->view;
    size_t bytes, end;
    uint32_t found = pick_companions(entries, begin, count, &bytes, &end);
    int has_children;
    dp_writer_t writer;

    entries[begin] = NULL;
    if (view == NULL && !number_group(n, first, &launch)) return;
    dp_agree_launch_begin(n, &launch, first);
    n->made.kind = DP_ITEM_LAUNCH;
    n->made.sequence = launch.sequence;
    n->made.count = found;
    has_children = dp_outbox_down_begin(n, n->targets, n->position, bytes, &writer);
    if (has_children) dp_item_write(&writer, &n->made);
    for (size_t i = begin; i < end && !n->is_fatal; i++) {
        dp_entry_t *entry = i == begin ? first : entries[i];
        dp_launch_entry_t launch_entry;

        if (i != begin && !goes_with(first, entry, priority)) continue;
        entries[i] = NULL;
        memset(&launch_entry, 0, sizeof(launch_entry));
        launch_entry.absent = entry->arrived.absent;
        launch_entry.last_absmax = entry->arrived.absmax;
        launch_entry.in_place = entry->arrived.in_place;
        write_launched(n, &writer, entry, &launch, has_children);
        dp_agree_launch(n, entry, &launch_entry);
    }
    if (n->is_fatal) return;
    if (has_children) dp_outbox_down_commit(n, &writer, 1);
    if (launch.collective == DP_COLLECTIVE_GROUP_DESTROY)
        flip_group_index(n, view->members, view->member_count, view->group_index);
    dp_agree_launch_end(n, &launch);
}

/* By priority; where it is equal group by group, in the order in which the first tensor of each
 * became complete. */
static void launch_list(dp_negotiator_t *n, dp_entry_array_t *list)
{
    size_t count = list->count;

    list->count = 0;
    for (size_t begin = 0; begin < count && !n->is_fatal; begin++) {
        if (list->entries[begin] != NULL) order_launch(n, list->entries, begin, count);
    }
}

/* Behind those of its priority, in front of lower ones. */
static dp_status_t insert_by_priority(dp_entry_array_t *list, dp_entry_t *entry)
{
    const dp_status_t status = dp_entry_array_push(list, entry);
    size_t at;

    if (status != DP_OK) return status;
    at = list->count - 1;
    for (; at > 0 && list->entries[at - 1]->arrived.priority < entry->arrived.priority; at--)
        list->entries[at] = list->entries[at - 1];
    list->entries[at] = entry;
    return DP_OK;
}

/* Launches all complete tensors by priority: merges the list of those that this rank takes part in
 * into the other list, if that has any. At equal priority those of the other list go first. */
void dp_order_launch_held(dp_negotiator_t *n)
{
    dp_entry_array_t *complete = &n->order.complete, *foreign = &n->order.foreign;

    n->order.bytes = 0;
    n->order.is_urgent = 0;
    for (size_t i = 0; i < complete->count && foreign->count > 0; i++) {
        if (insert_by_priority(foreign, complete->entries[i]) == DP_OK) continue;
        dp_fatal_memory(n);
        return;
    }
    if (foreign->count > 0) {
        complete->count = 0;
        launch_list(n, foreign);
    } else {
        launch_list(n, complete);
    }
}

/* A program that submits one of these waits for it at once. */
static int is_impatient(dp_collective_t collective)
{
    return collective == DP_COLLECTIVE_BARRIER || collective == DP_COLLECTIVE_GROUP_CREATE ||
           collective == DP_COLLECTIVE_GROUP_DESTROY;
}

static void hold_back(dp_negotiator_t *n, dp_entry_t *entry)
{
    const dp_signature_t *signature = dp_entry_signature(entry);
    const int ranks = entry->view != NULL ? (int)entry->view->member_count : n->size;
    const uint64_t bytes = dp_signature_payload(signature, ranks);
    int takes_part = dp_entry_takes_part(n, entry);

    if (insert_by_priority(takes_part ? &n->order.complete : &n->order.foreign, entry) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    if (!takes_part) return;
    if (n->order.complete.count == 1) n->order.since_ns = n->now_ns;
    n->order.bytes = bytes > SIZE_MAX - n->order.bytes ? SIZE_MAX : n->order.bytes + bytes;
    if (entry->arrived.is_urgent || is_impatient(signature->collective)) n->order.is_urgent = 1;
}

void dp_order_complete(dp_negotiator_t *n, dp_entry_t *entry)
{
    if (entry->arrived.absent > 0 && !dp_join_allows(entry)) {
        refuse_absent(n, entry);
    } else {
        hold_back(n, entry);
    }
}

/* Another list of ranks came under the name of a group that waits to be launched. */
void dp_order_withdraw(dp_negotiator_t *n, const dp_entry_t *entry)
{
    dp_entry_array_remove(&n->order.foreign, entry);
    dp_entry_array_remove(&n->order.complete, entry);
    if (n->order.complete.count == 0) n->order.is_urgent = 0;
}

/* Holding back pays only while the data plane is busy: a tensor that joins the launch meanwhile
 * costs no time. */
static int is_launch_due(const dp_negotiator_t *n)
{
    if (n->order.complete.count == 0) return 0;
    return n->order.done >= n->order.launching || n->order.is_urgent ||
           n->order.bytes >= n->order.fusion_bytes ||
           n->now_ns - n->order.since_ns >= n->order.hold_ns;
}

void dp_order_flush(dp_negotiator_t *n)
{
    if (n->is_fatal) return;
    if (is_launch_due(n)) {
        dp_order_launch_held(n);
    } else if (n->order.foreign.count > 0) {
        launch_list(n, &n->order.foreign);
    }
}

uint64_t dp_order_deadline(const dp_negotiator_t *n)
{
    const dp_ordering_t *order = &n->order;

    if (order->complete.count == 0) return UINT64_MAX;
    return order->since_ns > UINT64_MAX - order->hold_ns ? UINT64_MAX
                                                         : order->since_ns + order->hold_ns;
}

/* ---- This rank's place in the order --------------------------------------------------------- */

void dp_order_advance(dp_negotiator_t *n)
{
    n->position++;
}

void dp_order_seek(dp_negotiator_t *n, uint64_t position)
{
    n->position = position;
}

void dp_order_launched(dp_negotiator_t *n, uint64_t sequence, int takes_part)
{
    n->position++;
    n->sequence = sequence;
    if (takes_part) n->order.launching = sequence;
}

void dp_order_finished(dp_negotiator_t *n, uint64_t sequence)
{
    n->order.done = dp_max(n->order.done, sequence);
}

void dp_order_hurry(dp_negotiator_t *n)
{
    n->order.is_urgent = 1;
}

void dp_order_init(dp_negotiator_t *n, uint64_t hold_ns, size_t fusion_bytes)
{
    n->order.hold_ns = hold_ns;
    n->order.fusion_bytes = fusion_bytes;
}

void dp_order_fini(dp_negotiator_t *n)
{
    free(n->order.complete.entries);
    free(n->order.foreign.entries);
    free(n->order.indices);
}
