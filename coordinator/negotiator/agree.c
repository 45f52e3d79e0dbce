/*
 * agree.c - the rules of one tensor: this rank submits it, it arrives from below, is complete, is
 * launched or fails.
 *
 * Called by negotiator.c for this rank's submissions, by receive.c, and by order.c for what the
 * root decides; by contest.c, leave.c and stall.c for single questions. On the thread that drives
 * the negotiator.
 *
 * A submission of this rank arrives at once, as its own branch's part of the occurrence. Only the
 * creation of a group can end while the submission stays: two lists of ranks have used one name,
 * and this rank's was not the one that was launched. Then queue_own() keeps the entry, and
 * dp_own_flush() has the submission arrive again.
 *
 * Items to the parent have no position in the one order; an edge delivers them as they were sent.
 * From the parent come the ordered items: LAUNCH, FAILURE, JOINED, CLOSED and BYE. The root writes
 * them as one list; every rank applies those that concern it or ranks below it, in the same order
 * and by the same functions.
 *
 * Why no message needs an occurrence number. A rank submits occurrence k+1 of a name after k ended
 * here, and it ended because a LAUNCH or FAILURE came down through every rank above. So when news
 * of k+1 goes up, each of those ranks has already ended k. The other direction needs care: LAUNCH
 * cannot cross a READY of its own tensor, as it exists only because all of them arrived; FAILURE
 * and CLOSED can. Each frame going up therefore says which ordered item its sender saw last; what
 * was sent before the failure of its tensor was seen speaks of the occurrence that failed.
 */
#include "coordinator/negotiator/agree.h"

#include "coordinator/negotiator/state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void dp_agree_hear(dp_entry_t *entry, int branch)
{
    dp_bit_set(entry->heard, branch);
}

void dp_agree_learn(dp_entry_t *entry, dp_signature_t *signature)
{
    entry->arrived.proposed = signature;
}

int dp_launches_alone(dp_collective_t collective)
{
    return collective == DP_COLLECTIVE_SEND || collective == DP_COLLECTIVE_GROUP_CREATE ||
           collective == DP_COLLECTIVE_GROUP_DESTROY;
}

/* ---- The end of what this rank has submitted ------------------------------------------------- */

/* Its time limit counts no more. The last one of the list takes its place. */
static void end_limit(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_entry_array_t *timed = &n->own.timed;
    dp_entry_t *last;

    if (entry->own.expires_ns == 0) return;
    last = timed->entries[--timed->count];
    timed->entries[entry->own.timed_at] = last;
    last->own.timed_at = entry->own.timed_at;
    entry->own.expires_ns = 0;
}

/* This rank's submission of the tensor was handed back. */
static void end_own(dp_negotiator_t *n, dp_entry_t *entry)
{
    end_limit(n, entry);
    entry->own.is_there = 0;
    free(entry->own.signature);
    entry->own.signature = NULL;
    n->own.pending--;
    if (entry->view == NULL) return;
    entry->view->own_pending--;
    if (entry->view->ending == entry) entry->view->ending = NULL;
}

/* It is to arrive once more, for the next occurrence. */
static void queue_own(dp_negotiator_t *n, dp_entry_t *entry)
{
    if (entry->is_queued || !entry->own.is_there) return;
    if (dp_entry_array_push(&n->own.queue, entry) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    entry->is_queued = 1;
}

static void forget_own(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_entry_array_remove(&n->own.queue, entry);
    end_limit(n, entry);
}

/* ---- Ordered items -------------------------------------------------------------------------- */

/* The branches that a FAILURE is for. Of a group to be made: those of the ranks in the list, and of
 * ranks that have announced it with another list. */
void dp_agree_targets(dp_negotiator_t *n, const dp_entry_t *entry, const int32_t *list,
                      uint32_t count)
{
    size_t words = n->table.bit_words;

    if (entry->view != NULL) {
        memcpy(n->targets, entry->expect, words * sizeof(*n->targets));
        return;
    }
    dp_branches_of_list(n, list, count, n->targets);
    for (size_t i = 0; i < words; i++)
        n->targets[i] |= entry->heard[i];
}

/* The pending occurrence is over. */
void dp_agree_end(dp_negotiator_t *n, dp_entry_t *entry, uint64_t position, int in_failure)
{
    /* If this rank submitted the name with another list, its submission stays pending. */
    if (entry->part.is_submitted && (in_failure || dp_entry_takes_part(n, entry)))
        end_own(n, entry);
    dp_stall_unwatch(n, entry, 0);
    dp_entry_clear(entry, n->table.bit_words);
    entry->ended.position = position;
    if (in_failure) entry->ended.in_failure = 1;
    if (!in_failure && entry->view != NULL) entry->ended.in_failure = 0;
    dp_leave_occurrence_over(entry);
    if (entry->view == NULL) dp_contest_ended(n, entry, position);
    queue_own(n, entry);
}

void dp_agree_launch_begin(dp_negotiator_t *n, dp_ordered_launch_t *launch, dp_entry_t *entry)
{
    launch->entry = entry;
    launch->collective = dp_entry_signature(entry)->collective;
    launch->entry_begin = n->out.launch_entry_count;
    /* The launch is not for ranks that have announced the name with another list. */
    memcpy(n->targets, entry->expect, n->table.bit_words * sizeof(*n->targets));
}

/* Every rank that takes part has proposed this signature, or has joined and learns it with the
 * LAUNCH. */
static void adopt_signature(dp_negotiator_t *n, dp_entry_t *entry)
{
    if (dp_table_retire(&n->table, entry->signature) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    entry->signature = entry->arrived.proposed;
    entry->arrived.proposed = NULL;
    entry->version++;
    if (entry->version == 0) entry->version = 1; /* 0 means: none agreed */
}

static void remove_entry(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_stall_forget(n, entry);
    dp_outbox_forget_news(n, entry);
    forget_own(n, entry);
    if (dp_table_remove(&n->table, entry) != DP_OK) dp_fatal_memory(n);
}

/* A KEEP is about an earlier occurrence where its leaver's position is before the end of that. So
 * an entry may only go when every child has been seen behind its last end: what a child had queued
 * before has come by then, and from then on it drops old KEEPs by the same rule (leave.c). Nor may
 * it go while a KEEP about it waits here: to be sent up, or at the root for its leaver's LEFT. */
static int is_forgettable(const dp_negotiator_t *n, const dp_entry_t *entry)
{
    if (entry->is_pending || entry->own.is_there || entry->is_queued || entry->sent.has_news ||
        entry->ended.in_failure || entry->ended.refusals != NULL || entry->view->is_closed ||
        entry->view->ending == entry || dp_leave_refers(n, entry))
        return 0;
    for (int child = 0; child < n->child_count; child++) {
        if (dp_bit_get(entry->expect, child) && n->child_position[child] < entry->ended.position)
            return 0;
    }
    return 1;
}

/* A name was launched without an id: it may never come again. Nothing of it is agreed on any more,
 * so each rank forgets it when it may, and its next use is like a first one. */
static void end_unnamed(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_entry_t *oldest;

    if (dp_table_retire(&n->table, entry->signature) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    entry->signature = NULL;
    entry->version = 0;
    if (dp_table_pass(&n->table, entry, &oldest) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    if (oldest == NULL || oldest == entry) return;
    if (is_forgettable(n, oldest)) remove_entry(n, oldest);
}

void dp_agree_launch(dp_negotiator_t *n, dp_entry_t *entry, const dp_launch_entry_t *agreed)
{
    dp_launch_entry_t launch_entry = *agreed;

    if (entry->arrived.proposed != NULL) adopt_signature(n, entry);
    launch_entry.request = entry->part.request;
    launch_entry.signature = entry->signature;
    launch_entry.name = entry->name;
    if (n->is_fatal) return;
    if (dp_entry_takes_part(n, entry) && dp_outbox_entry(n, &launch_entry) != DP_OK)
        dp_fatal_memory(n);
    if (!n->is_fatal) dp_agree_end(n, entry, n->position + 1, 0);
    if (!n->is_fatal && entry->id == DP_ID_NONE && entry->view != NULL) end_unnamed(n, entry);
}

/* A group was made: its name may be used again with another list. The entry is kept if a FAILURE
 * was sent for it, so that announcements older than that are recognised. */
static void end_create(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_status_t status = dp_table_retire(&n->table, entry->signature);

    entry->version = 0;
    if (status == DP_OK) entry->signature = NULL;
    dp_contest_over(n, entry);
    if (status == DP_OK && !entry->ended.in_failure && entry->ended.refusals == NULL &&
        !entry->is_pending && !entry->own.is_there)
        remove_entry(n, entry);
    if (status != DP_OK) dp_fatal_memory(n);
}

/* The group ends with the launch of its end, and its entries go. */
static void end_group(dp_negotiator_t *n, dp_group_view_t *view)
{
    /* From the last to the first: the last entry takes the place of one that goes. */
    for (size_t i = n->table.entry_count; i > 0; i--) {
        dp_entry_t *entry = n->table.entries[i - 1];

        if (entry->view != view) continue;
        dp_leave_forget_entry(n, entry);
        remove_entry(n, entry);
        if (n->is_fatal) return;
    }
    dp_leave_forget_view(n, view);
    dp_group_view_remove(n, view);
}

void dp_agree_launch_end(dp_negotiator_t *n, const dp_ordered_launch_t *launch)
{
    dp_entry_t *entry = launch->entry;
    dp_own_output_t *output = NULL;

    if (n->is_fatal) return;
    dp_order_launched(n, launch->sequence, n->out.launch_entry_count > launch->entry_begin);
    if (n->out.launch_entry_count > launch->entry_begin) {
        output = dp_outbox_output(n, DP_OUTPUT_LAUNCH);
        if (output == NULL) return;
        output->sequence = launch->sequence;
        output->group = entry->view != NULL ? entry->view->uid : launch->born;
        output->group_index = launch->group_index;
        output->entry_begin = launch->entry_begin;
        output->entry_count = n->out.launch_entry_count - launch->entry_begin;
    }
    if (launch->collective == DP_COLLECTIVE_GROUP_CREATE) end_create(n, entry);
    if (launch->collective == DP_COLLECTIVE_GROUP_DESTROY) end_group(n, entry->view);
}

void dp_agree_refuse_own(dp_negotiator_t *n, dp_entry_t *entry, dp_status_t status,
                         const char *text)
{
    if (entry->part.is_submitted) dp_outbox_fail(n, entry->part.request, status, text);
}

void dp_agree_fail(dp_negotiator_t *n, dp_entry_t *entry, dp_status_t status, const char *text)
{
    int takes_part = dp_bit_get(n->targets, dp_own_branch(n));

    dp_order_advance(n);
    dp_agree_refuse_own(n, entry, status, text);
    if (!entry->part.is_submitted && takes_part &&
        (entry->view == NULL || !dp_join_has_own(n, entry->view))) {
        if (dp_entry_refuse(entry, status, text) != DP_OK) dp_fatal_memory(n);
    }
    dp_agree_end(n, entry, n->position, 1);
    dp_contest_over(n, entry);
}

void dp_agree_bye(dp_negotiator_t *n)
{
    dp_order_advance(n);
    n->is_finished = 1;
}

/* ---- What arrives --------------------------------------------------------------------------- */

void dp_agree_pending(dp_negotiator_t *n, dp_entry_t *entry, uint64_t first_ns)
{
    if (entry->arrived.is_complete || entry->arrived.is_mismatched) return;
    if (entry->is_pending && first_ns >= entry->stall.first_ns) return;
    if (entry->is_pending) dp_stall_unwatch(n, entry, 0);
    entry->is_pending = 1;
    dp_stall_watch(n, entry, first_ns);
}

/* Once all branches that take part are ready, the root queues the tensor for launch, and any other
 * rank queues READY for its parent. */
static void check_complete(dp_negotiator_t *n, dp_entry_t *entry)
{
    if (!entry->is_pending || entry->arrived.is_mismatched || entry->arrived.is_complete ||
        n->is_fatal)
        return;
    if (entry->arrived.ready != entry->expected) return;
    entry->arrived.is_complete = 1;
    dp_stall_unwatch(n, entry, 1);
    if (dp_is_root(n)) {
        dp_order_complete(n, entry);
    } else {
        dp_outbox_news(n, entry);
    }
}

/* The root answers a conflict with a FAILURE. */
void dp_agree_conflict(dp_negotiator_t *n, dp_entry_t *entry, const int rank[2],
                       const dp_signature_t *const signature[2])
{
    dp_conflict_t *told;

    entry->arrived.is_mismatched = 1;
    dp_stall_unwatch(n, entry, 0);
    if (dp_is_root(n)) {
        if (entry->arrived.is_complete) dp_order_withdraw(n, entry);
        dp_order_conflict(n, entry, rank, signature);
        return;
    }
    told = calloc(1, sizeof(*told));
    entry->arrived.conflict = told;
    for (int i = 0; i < 2 && told != NULL; i++) {
        told->rank[i] = rank[i];
        if (signature[i] == NULL) continue;
        told->signature[i] = dp_signature_copy(signature[i]);
        if (told->signature[i] == NULL) dp_fatal_memory(n);
    }
    if (told == NULL) dp_fatal_memory(n);
    dp_outbox_news(n, entry);
}

void dp_agree_check_left(dp_negotiator_t *n, dp_entry_t *entry)
{
    const int ranks[2] = {dp_leave_lacking(n, entry), -1};
    const dp_signature_t *signatures[2] = {dp_entry_signature(entry), NULL};

    if (ranks[0] < 0 || entry->arrived.is_mismatched || entry->sent.is_announced) return;
    dp_agree_conflict(n, entry, ranks, signatures);
}

static void note_absent(dp_entry_t *entry, uint32_t count, int rank)
{
    const dp_signature_t *signature = dp_entry_signature(entry);
    int root = entry->view != NULL ? dp_group_view_rank(entry->view, signature->root) : -1;

    entry->arrived.absent += count;
    entry->arrived.in_place = 0;
    if (entry->arrived.absent_rank < 0 || rank == root) entry->arrived.absent_rank = rank;
}

/* Branches whose ranks have joined count as ready, once one rank has really submitted. */
void dp_agree_absent(dp_negotiator_t *n, dp_entry_t *entry)
{
    if (!entry->is_pending || entry->arrived.first_rank < 0 || entry->arrived.is_complete ||
        entry->arrived.is_mismatched)
        return;
    for (int branch = 0; entry->view->joined_count > 0 && branch <= dp_own_branch(n); branch++) {
        if (!dp_bit_get(entry->expect, branch) || dp_bit_get(entry->heard, branch)) continue;
        if (!dp_join_covers(n, entry, branch)) continue;
        dp_bit_set(entry->heard, branch);
        entry->arrived.ready++;
        note_absent(entry, dp_entry_below(n, entry, branch), dp_join_names(n, entry, branch));
    }
    check_complete(n, entry);
}

/* Merges an arrival into the occurrence, which keeps the signature of the first. 0: the signatures
 * differ, and the conflict was reported at once. */
static int merge_arrival(dp_negotiator_t *n, dp_entry_t *entry, const dp_arrival_t *arrival,
                         dp_signature_t *signature)
{
    const dp_signature_t *said = signature != NULL ? signature : entry->signature;
    const int ranks[2] = {entry->arrived.first_rank, arrival->rank};
    const dp_signature_t *signatures[2] = {dp_entry_signature(entry), said};

    dp_bit_set(entry->heard, arrival->branch);
    entry->arrived.ready++;
    entry->arrived.in_place = entry->arrived.in_place && arrival->in_place;
    entry->arrived.absmax = dp_absmax_merge(entry->arrived.absmax, arrival->absmax);
    if (arrival->is_urgent) entry->arrived.is_urgent = 1;
    if (entry->arrived.first_rank < 0 || arrival->priority > entry->arrived.priority)
        entry->arrived.priority = arrival->priority;
    if (entry->arrived.first_rank < 0) {
        entry->arrived.first_rank = arrival->rank;
        entry->arrived.proposed = signature;
    } else if (!entry->arrived.is_mismatched && !dp_signature_equal(signatures[0], said)) {
        dp_agree_conflict(n, entry, ranks, signatures);
        return 0;
    }
    if (arrival->absent > 0) note_absent(entry, arrival->absent, arrival->absent_rank);
    return 1;
}

void dp_agree_arrive(dp_negotiator_t *n, dp_entry_t *entry, const dp_arrival_t *arrival)
{
    dp_signature_t *signature = arrival->signature;
    int is_first = entry->arrived.first_rank < 0;

    DP_ASSERT(!dp_bit_get(entry->heard, arrival->branch));
    if (entry->sent.is_ready) { /* all ranks of one list were ready, so this is another list */
        dp_contest_arrive(n, entry, arrival);
        return;
    }
    dp_contest_heard(entry, arrival->branch);
    DP_ASSERT(entry->view != NULL || signature != NULL); /* a group to be made adopts none */
    if (entry->view == NULL && is_first &&
        dp_entry_set_list(n, entry, signature->members, signature->member_count) != DP_OK) {
        free(signature);
        dp_fatal_memory(n);
        return;
    }
    dp_agree_pending(n, entry, n->now_ns);
    if (signature != NULL && entry->signature != NULL &&
        dp_signature_equal(signature, entry->signature)) {
        free(signature);
        signature = NULL;
    }
    if (!merge_arrival(n, entry, arrival, signature) || !is_first) free(signature);
    if (n->is_fatal) return;
    if (entry->own_expect != NULL) dp_agree_check_left(n, entry);
    if (entry->view != NULL && entry->view->joined_count > 0) dp_agree_absent(n, entry);
    check_complete(n, entry);
}

void dp_agree_mismatch(dp_negotiator_t *n, dp_entry_t *entry, int branch, const int rank[2],
                       const dp_signature_t *const signature[2])
{
    if (entry->sent.is_ready) {
        dp_contest_mismatch(n, entry, branch, rank, signature);
        return;
    }
    dp_contest_heard(entry, branch);
    if (entry->view == NULL && entry->arrived.first_rank < 0 && entry->making.list == NULL &&
        dp_entry_set_list(n, entry, signature[0]->members, signature[0]->member_count) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    dp_agree_pending(n, entry, n->now_ns);
    dp_bit_set(entry->heard, branch);
    entry->arrived.ready++;
    if (entry->arrived.is_mismatched)
        return; /* two subtrees have found one each: the first will do */
    dp_agree_conflict(n, entry, rank, signature);
}

void dp_agree_urgent(dp_negotiator_t *n, dp_entry_t *entry)
{
    if (!entry->is_pending || entry->arrived.is_urgent) return;
    entry->arrived.is_urgent = 1;
    if (dp_is_root(n)) {
        if (entry->arrived.is_complete) dp_order_hurry(n);
    } else if (entry->sent.is_announced) {
        dp_outbox_news(n, entry);
    }
}

/* ---- This rank's submissions ----------------------------------------------------------------- */

static void arrive_own(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_arrival_t arrival = {.branch = dp_own_branch(n), .rank = n->rank};
    const dp_submitted_t *own = &entry->own;

    if (entry->part.is_submitted || !own->is_there) return;
    entry->part.is_submitted = 1;
    entry->part.request = own->request;
    arrival.in_place = own->in_place;
    arrival.absmax = own->absmax;
    arrival.priority = own->priority;
    arrival.is_urgent = own->is_urgent;
    if (own->signature != NULL) {
        arrival.signature = dp_signature_copy(own->signature);
        if (arrival.signature == NULL) {
            dp_fatal_memory(n);
            return;
        }
    }
    if (own->since_ns < n->now_ns) dp_agree_pending(n, entry, own->since_ns);
    dp_agree_arrive(n, entry, &arrival);
}

/* Without memory for the signature the submission is not taken. */
dp_status_t dp_own_submit(dp_negotiator_t *n, dp_entry_t *entry, const dp_submission_t *submission)
{
    const dp_signature_t *signature = submission->signature;
    dp_submitted_t own = {.is_there = 1,
                          .request = submission->request,
                          .in_place = submission->in_place != 0,
                          .is_urgent = submission->is_urgent != 0,
                          .absmax = dp_absmax_clean(submission->last_absmax),
                          .priority = submission->priority,
                          .since_ns = n->now_ns};
    uint64_t tick_ns;

    if (entry->signature == NULL || !dp_signature_equal(signature, entry->signature)) {
        own.signature = dp_signature_copy(signature);
        if (own.signature == NULL) return DP_ERR_NO_MEMORY;
    }
    if (submission->timeout_ns > 0) {
        own.expires_ns = n->now_ns + dp_min(submission->timeout_ns, UINT64_MAX - n->now_ns);
        own.timed_at = n->own.timed.count;
        tick_ns = dp_min(dp_own_deadline(n), own.expires_ns);
        if (dp_entry_array_push(&n->own.timed, entry) != DP_OK) {
            free(own.signature);
            return DP_ERR_NO_MEMORY;
        }
        n->own.tick_ns = tick_ns;
    }
    entry->own = own;
    n->own.pending++;
    if (entry->view != NULL) {
        entry->view->own_pending++;
        if (signature->collective == DP_COLLECTIVE_GROUP_DESTROY) entry->view->ending = entry;
    }
    arrive_own(n, entry);
    return DP_OK;
}

/* Entries that are queued meanwhile wait for the next call. */
void dp_own_flush(dp_negotiator_t *n)
{
    dp_entry_array_t *queue = &n->own.queue;
    size_t count = queue->count;

    if (count == 0) return;
    for (size_t i = 0; i < count && !n->is_fatal; i++) {
        dp_entry_t *entry = queue->entries[i];

        entry->is_queued = 0;
        arrive_own(n, entry);
    }
    if (n->is_fatal) return;
    memmove(queue->entries, queue->entries + count, (queue->count - count) * sizeof(dp_entry_t *));
    queue->count -= count;
}

void dp_own_tick(dp_negotiator_t *n)
{
    dp_entry_array_t *timed = &n->own.timed;
    uint64_t next_ns = UINT64_MAX;

    if (n->now_ns < dp_own_deadline(n)) return;
    for (size_t i = timed->count; i > 0 && !n->is_fatal; i--) {
        dp_entry_t *entry = timed->entries[i - 1];

        if (n->now_ns < entry->own.expires_ns) {
            next_ns = dp_min(next_ns, entry->own.expires_ns);
            continue;
        }
        end_limit(n, entry);
        if (entry->part.is_submitted) dp_stall_expire(n, entry);
    }
    n->own.tick_ns = next_ns;
}

uint64_t dp_own_deadline(const dp_negotiator_t *n)
{
    return n->own.timed.count == 0 ? UINT64_MAX : n->own.tick_ns;
}

void dp_own_urgent(dp_negotiator_t *n, dp_entry_t *entry)
{
    if (!entry->own.is_there) return;
    entry->own.is_urgent = 1;
    if (entry->part.is_submitted) dp_agree_urgent(n, entry);
}

void dp_own_count(dp_negotiator_t *n, int change)
{
    n->own.pending += (size_t)change;
}

void dp_own_fini(dp_negotiator_t *n)
{
    free(n->own.queue.entries);
    free(n->own.timed.entries);
}

/* ---- The entry that an item speaks of -------------------------------------------------------- */

/* The group of an item's key; *view stays NULL for those to be made. 0: there is none. */
static int view_of_item(dp_negotiator_t *n, int from, const dp_item_t *item, dp_group_view_t **view)
{
    *view = NULL;
    if (item->group == DP_GROUP_UNBORN && item->root < 0) return 1;
    *view = dp_group_view_find(n, item->group);
    if (*view == NULL) {
        dp_fatal_protocol(n, from, "no group has number %" PRIu32 " here", item->group);
    } else if (item->root >= 0 && (dp_group_view_rank(*view, item->root) < 0 ||
                                   dp_group_view_rank(*view, item->peer) < 0)) {
        dp_fatal_protocol(n, from, "a send from rank %d to %d in a group of %" PRIu32, item->root,
                          item->peer, (*view)->member_count);
    }
    return !n->is_fatal;
}

static dp_entry_t *entry_by_key(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_key_t key = {item->group, item->root, item->peer, item->name};
    dp_group_view_t *view;
    dp_entry_t *entry;

    if (!view_of_item(n, from, item, &view)) return NULL;
    entry = dp_entry_get(n, &key, view);
    if (entry == NULL) dp_fatal_memory(n);
    return entry;
}

dp_entry_t *dp_item_entry(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_entry_t *entry;

    if (item->id == DP_ID_NONE) return entry_by_key(n, from, item);
    entry = dp_table_by_id(&n->table, item->id);
    if (entry == NULL) dp_fatal_protocol(n, from, "no tensor has id %" PRIu32, item->id);
    return entry;
}

dp_entry_t *dp_item_named_entry(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_entry_t *entry;
    int has_id = item->id != DP_ID_NONE;

    if (!(item->flags & DP_FLAG_NAME)) {
        entry = dp_table_by_id(&n->table, item->id);
        if (entry == NULL) dp_fatal_protocol(n, from, "no tensor has id %" PRIu32, item->id);
        return entry;
    }
    entry = entry_by_key(n, from, item);
    if (entry == NULL) return NULL;
    /* Ids are for names that come again. */
    if (entry->id != DP_ID_NONE ||
        (has_id && (entry->view == NULL || item->id < n->table.next_id))) {
        dp_fatal_protocol(n, from, "tensor %s cannot have id %" PRIu32, item->name, item->id);
        return NULL;
    }
    if (has_id) dp_table_assign(&n->table, entry, item->id);
    return entry;
}
