/*
 * receive.c - frames from neighbours: each item is checked against its sender and against what this
 * rank knows, then applied.
 *
 * From a child come announcements. From the parent come the order that the root has made and its
 * questions; they are passed on, byte for byte, to the children that they concern or that have such
 * ranks below them. agree.c and the other files rely on these checks: an item that fails one is a
 * fatal error, whose text names the sender and the item.
 *
 * negotiator.c calls dp_receive() for each message of a neighbour, on the thread that drives the
 * negotiator.
 */
#include "coordinator/negotiator/receive.h"

#include "coordinator/negotiator/state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define POSITION_MAX (UINT64_MAX / 2) /* so that counting on from any position cannot wrap */

/* ---- From a child --------------------------------------------------------------------------- */

/* Members exist, one of them below this child. */
static int is_list_of(const dp_negotiator_t *n, const int32_t *list, uint32_t count, int child)
{
    int is_below = 0;

    if (count == 0 || list[count - 1] >= n->size) return 0; /* ascending, so none is larger */
    for (uint32_t i = 0; i < count && !is_below; i++)
        is_below = dp_branch_of(n, list[i]) == child;
    return is_below;
}

static int child_index(const dp_negotiator_t *n, int rank)
{
    int low = 0, high = n->child_count - 1;

    while (low <= high) {
        int middle = low + (high - low) / 2;

        if (n->children[middle] == rank) return middle;
        if (n->children[middle] < rank) low = middle + 1;
        if (n->children[middle] > rank) high = middle - 1;
    }
    return -1;
}

/* No rank may announce the next occurrence: it needs one that has left. */
static int is_closed_for(const dp_entry_t *entry)
{
    return entry->own_expect == NULL && entry->view->is_closed && !entry->leave.is_kept;
}

/* Was this sent before its sender knew that the occurrence had ended? */
static int is_stale(const dp_entry_t *entry, int child, uint64_t position)
{
    if (entry->view == NULL) return position < entry->making.ended_for[child];
    return position < entry->ended.position ||
           (is_closed_for(entry) && position < entry->view->closed_position);
}

/* READY, MISMATCH and LACKS: a child sends one of them once per occurrence. 0: ignore it.
 */
static int is_new_announcement(dp_negotiator_t *n, int from, int child, const dp_entry_t *entry,
                               uint64_t position)
{
    char what[DP_ENTRY_TEXT_MAX];
    int is_old = is_stale(entry, child, position);

    if (is_old && (entry->view == NULL || entry->view->is_closed || entry->ended.in_failure))
        return 0;
    if (entry->view != NULL && !dp_bit_get(entry->expect, child)) {
        dp_fatal_protocol(n, from, "%s announced, nobody there takes part in it",
                          dp_entry_text(entry, what));
        return 0;
    }
    if (is_old || is_closed_for(entry) || dp_bit_get(entry->heard, child) ||
        dp_bit_get(n->leave.fins, child)) {
        dp_fatal_protocol(n, from, "%s announced out of turn", dp_entry_text(entry, what));
        return 0;
    }
    return 1;
}

/* The end of a group is the last that its ranks announce there. */
static int has_nothing_pending(const dp_negotiator_t *n, const dp_group_view_t *view, int child)
{
    for (size_t i = 0; i < n->table.entry_count; i++) {
        const dp_entry_t *entry = n->table.entries[i];

        if (entry->view == view && entry->is_pending && dp_bit_get(entry->heard, child)) return 0;
    }
    return 1;
}

/* 0: a fatal error was raised. */
static int check_ready(dp_negotiator_t *n, int from, int child, const dp_entry_t *entry,
                       const dp_item_t *item)
{
    const dp_signature_t *signature = item->signature != NULL ? item->signature : entry->signature;
    char what[DP_ENTRY_TEXT_MAX];

    dp_entry_text(entry, what);
    if (item->version != entry->version) {
        dp_fatal_protocol(n, from, "%s announced in version %u, it is in %u here", what,
                          item->version, entry->version);
    } else if (signature == NULL) {
        dp_fatal_protocol(n, from, "%s announced without a signature", what);
    } else if (!dp_entry_fits(n, entry, signature)) {
        dp_fatal_protocol(n, from, "%s announced as %s", what,
                          dp_collective_name(signature->collective));
    } else if (entry->view == NULL &&
               !is_list_of(n, signature->members, signature->member_count, child)) {
        dp_fatal_protocol(n, from, "%s announced, nobody there is a member", what);
    } else if (item->absent > 0 &&
               (entry->view == NULL || dp_group_view_index(entry->view, item->rank) < 0 ||
                dp_branch_of(n, item->rank) != child ||
                item->absent >= dp_entry_below(n, entry, child))) {
        dp_fatal_protocol(n, from, "%s announced without %" PRIu32 " ranks, one of them rank %d",
                          what, item->absent, item->rank);
    } else if (signature->collective == DP_COLLECTIVE_GROUP_DESTROY &&
               !has_nothing_pending(n, entry->view, child)) {
        dp_fatal_protocol(n, from, "the end of group %s announced before that of its tensors",
                          entry->view->name);
    }
    return !n->is_fatal;
}

/* All of the child's branch has submitted the tensor, or has joined. */
static void receive_ready(dp_negotiator_t *n, int from, int child, dp_item_t *item,
                          uint64_t position)
{
    dp_entry_t *entry = dp_item_entry(n, from, item);
    dp_arrival_t arrival = {.branch = child,
                            .rank = from,
                            .in_place = (item->flags & DP_FLAG_IN_PLACE) != 0,
                            .is_urgent = (item->flags & DP_FLAG_URGENT) != 0,
                            .absmax = item->absmax,
                            .priority = item->priority,
                            .absent = item->absent,
                            .absent_rank = item->rank};

    if (entry == NULL || !is_new_announcement(n, from, child, entry, position)) return;
    if (!check_ready(n, from, child, entry, item)) return;
    arrival.signature = item->signature;
    item->signature = NULL;
    dp_agree_arrive(n, entry, &arrival);
}

/* MISMATCH, LACKS */
static void receive_conflict(dp_negotiator_t *n, int from, int child, dp_item_t *item,
                             uint64_t position)
{
    dp_entry_t *entry = dp_item_entry(n, from, item);
    int lacks = item->kind == DP_ITEM_LACKS;
    const int ranks[2] = {item->rank, item->other_rank};
    const dp_signature_t *signatures[2] = {item->signature, item->other};

    if (entry == NULL || !is_new_announcement(n, from, child, entry, position)) return;
    if (lacks ? entry->own_expect == NULL : dp_signature_equal(item->signature, item->other)) {
        dp_fatal_protocol(n, from, "a conflict about tensor %s that is none", entry->name);
    } else if (entry->view == NULL && (!dp_entry_fits(n, entry, item->signature) ||
                                       (!lacks && !dp_entry_fits(n, entry, item->other)))) {
        dp_fatal_protocol(n, from, "a group without members");
    } else {
        dp_agree_mismatch(n, entry, child, ranks, signatures);
    }
}

/* A child has sent READY, and then received another list of ranks. Once that occurrence is over the
 * item is old: the child announces the other list by itself. */
static void receive_contest(dp_negotiator_t *n, int from, int child, const dp_item_t *item)
{
    dp_key_t key = {item->group, item->root, item->peer, item->name};
    const int ranks[2] = {item->rank, item->other_rank};
    const dp_signature_t *signatures[2] = {item->signature, item->other};
    dp_entry_t *entry;

    if (item->id != DP_ID_NONE || item->group != DP_GROUP_UNBORN || item->root >= 0) {
        dp_fatal_protocol(n, from, "a contest about what is no group to be made");
        return;
    }
    entry = dp_table_find(&n->table, &key);
    if (entry == NULL || !dp_bit_get(entry->heard, child)) return;
    if (dp_signature_equal(item->signature, item->other) ||
        !dp_entry_fits(n, entry, item->signature) || !dp_entry_fits(n, entry, item->other)) {
        dp_fatal_protocol(n, from, "a contest about group %s that is none", entry->name);
    } else if (!entry->arrived.is_mismatched) {
        dp_agree_conflict(n, entry, ranks, signatures);
    }
}

/* The tensor has waited too long below the child: some have submitted it, some not. Once per
 * occurrence; it makes the tensor pending here too, so that stall.c watches it. */
static void receive_partial(dp_negotiator_t *n, int from, int child, const dp_item_t *item,
                            uint64_t position)
{
    dp_entry_t *entry = dp_item_entry(n, from, item);
    uint64_t age_ns = dp_min(item->age_ns, n->now_ns);

    if (entry == NULL || is_closed_for(entry) || is_stale(entry, child, position)) return;
    if (entry->view == NULL && !is_list_of(n, item->list, item->list_count, child)) {
        dp_fatal_protocol(n, from, "group %s is waited for, nobody there is a member", entry->name);
        return;
    }
    if (dp_bit_get(entry->heard, child) ||
        (entry->view != NULL && !dp_bit_get(entry->expect, child))) {
        dp_fatal_protocol(n, from, "tensor %s is ready there and yet waited for", entry->name);
        return;
    }
    if (entry->view == NULL) {
        dp_contest_partial(n, entry, child, item, n->now_ns - age_ns);
    } else {
        dp_agree_pending(n, entry, n->now_ns - age_ns);
    }
}

/* A thread waits for a tensor that was announced before. */
static void receive_urgent(dp_negotiator_t *n, int from, int child, const dp_item_t *item,
                           uint64_t position)
{
    dp_entry_t *entry;

    if (dp_item_is_of_the_past(n, item)) return;
    entry = dp_item_entry(n, from, item);
    if (entry != NULL && !is_stale(entry, child, position)) dp_agree_urgent(n, entry);
}

/* A rank's time limit for a tensor is over. Its READY or PARTIAL came before, so an entry that is
 * not there, or knows nothing of this child, has ended since. */
static void receive_expired(dp_negotiator_t *n, int child, const dp_item_t *item, uint64_t position)
{
    const dp_key_t key = {item->group, item->root, item->peer, item->name};
    dp_entry_t *entry = item->id != DP_ID_NONE ? dp_table_by_id(&n->table, item->id)
                                               : dp_table_find(&n->table, &key);

    if (entry == NULL || is_stale(entry, child, position)) return;
    if (entry->view == NULL && !dp_bit_get(entry->heard, child) &&
        !dp_contest_is_partial(entry, child))
        return;
    dp_stall_expire(n, entry);
}

static void receive_fin(dp_negotiator_t *n, int from, int child)
{
    if (!dp_leave_fin(n, child)) dp_fatal_protocol(n, from, "it finalized twice");
}

/* KEEP and LEFT of a rank that submits nothing more. */
static void receive_leaver(dp_negotiator_t *n, int from, int child, const dp_item_t *item)
{
    dp_entry_t *entry;

    if (dp_branch_of(n, item->rank) != child || dp_bit_get(n->leave.left, item->rank)) {
        dp_fatal_protocol(n, from, "there is no rank %d to leave", item->rank);
    } else if (item->kind == DP_ITEM_LEFT) {
        dp_leave_left(n, item->rank);
    } else if (!dp_item_is_of_the_past(n, item)) {
        entry = dp_item_entry(n, from, item);
        if (entry != NULL) dp_leave_keep(n, item->rank, item->position, entry);
    }
}

static void receive_join(dp_negotiator_t *n, int from, int child, const dp_item_t *item)
{
    dp_group_view_t *view = dp_group_view_find(n, item->group);

    if (view == NULL || dp_branch_of(n, item->rank) != child ||
        dp_group_view_index(view, item->rank) < 0 || dp_join_is_joined(view, item->rank) ||
        dp_bit_get(n->leave.fins, child)) {
        dp_fatal_protocol(n, from, "there is no rank %d to join group %" PRIu32, item->rank,
                          item->group);
    } else {
        dp_join_arrive(n, view, item->rank);
    }
}

static void receive_from_child(dp_negotiator_t *n, int from, int child, dp_item_t *item,
                               uint64_t position)
{
    switch (item->kind) {
    case DP_ITEM_READY:
        receive_ready(n, from, child, item, position);
        break;
    case DP_ITEM_MISMATCH:
    case DP_ITEM_LACKS:
        receive_conflict(n, from, child, item, position);
        break;
    case DP_ITEM_CONTEST:
        receive_contest(n, from, child, item);
        break;
    case DP_ITEM_URGENT:
        receive_urgent(n, from, child, item, position);
        break;
    case DP_ITEM_PARTIAL:
        receive_partial(n, from, child, item, position);
        break;
    case DP_ITEM_EXPIRED:
        receive_expired(n, child, item, position);
        break;
    case DP_ITEM_JOIN:
        receive_join(n, from, child, item);
        break;
    case DP_ITEM_KEEP:
    case DP_ITEM_LEFT:
        receive_leaver(n, from, child, item);
        break;
    case DP_ITEM_FIN:
        receive_fin(n, from, child);
        break;
    case DP_ITEM_MISSING:
        dp_stall_missing(n, child, item);
        break;
    default:
        dp_fatal_protocol(n, from, "item %d comes from a parent only", item->kind);
        break;
    }
}

/* ---- From the parent: LAUNCH and FAILURE ---------------------------------------------------- */

/* Has every rank at or below this one submitted the tensor, or joined instead? */
static int is_launchable(const dp_negotiator_t *n, const dp_entry_t *entry)
{
    if (entry->sent.is_ready) return 1; /* a CONTEST that came behind READY was too late */
    if (entry->arrived.is_mismatched) return 0;
    for (int branch = 0; branch <= dp_own_branch(n); branch++) {
        if (dp_bit_get(entry->expect, branch) && !dp_join_covers(n, entry, branch)) return 0;
    }
    return entry->view != NULL;
}

/* Joined ranks learn the signature with the LAUNCH. 0: a fatal error was raised. */
static int learn_signature(dp_negotiator_t *n, int from, dp_entry_t *entry, dp_item_t *item)
{
    char what[DP_ENTRY_TEXT_MAX];

    if (item->signature != NULL &&
        (!dp_entry_fits(n, entry, item->signature) || item->absent == 0 ||
         (entry->arrived.proposed != NULL &&
          !dp_signature_equal(entry->arrived.proposed, item->signature)))) {
        dp_fatal_protocol(n, from, "launch of %s with a signature that nobody proposed",
                          dp_entry_text(entry, what));
    } else if (item->signature != NULL && entry->arrived.proposed == NULL) {
        dp_agree_learn(entry, item->signature);
        item->signature = NULL;
    }
    if (!n->is_fatal && dp_entry_signature(entry) == NULL) {
        dp_fatal_protocol(n, from, "launch of %s without a signature", dp_entry_text(entry, what));
    }
    return !n->is_fatal;
}

/* Checks one entry of a LAUNCH by itself. 0: a fatal error was raised. */
static int check_entry(dp_negotiator_t *n, int from, dp_entry_t *entry, dp_item_t *item)
{
    int takes_part = dp_entry_takes_part(n, entry);
    int is_joined = entry->view != NULL && dp_join_is_joined(entry->view, n->rank);
    char what[DP_ENTRY_TEXT_MAX];

    dp_entry_text(entry, what);
    if (!is_launchable(n, entry) || (takes_part && !entry->part.is_submitted && !is_joined)) {
        dp_fatal_protocol(n, from, "launch of %s, which was not announced", what);
    } else if (item->absent >= dp_entry_ranks(entry) ||
               (takes_part && !entry->part.is_submitted && item->absent == 0)) {
        dp_fatal_protocol(n, from, "launch of %s without %" PRIu32 " ranks of %" PRIu32, what,
                          item->absent, dp_entry_ranks(entry));
    } else if (entry->view == NULL &&
               (!(item->flags & DP_FLAG_BORN) || item->group_index < 1 ||
                item->group_index > DP_GROUPS_MAX || item->born <= n->groups.last_uid ||
                item->born == DP_GROUP_UNBORN)) {
        dp_fatal_protocol(n, from, "%s cannot be number %" PRIu32 " in place %" PRIu32, what,
                          item->born, item->group_index);
    }
    return !n->is_fatal && learn_signature(n, from, entry, item);
}

/* Checks what a LAUNCH holds beside its first tensor. 0: a fatal error was raised. */
static int check_companions(dp_negotiator_t *n, int from, const dp_ordered_launch_t *launch,
                            const dp_entry_t *entry, uint32_t count)
{
    dp_collective_t collective = dp_entry_signature(entry)->collective;
    char what[DP_ENTRY_TEXT_MAX];

    if (count > 1 && dp_launches_alone(collective)) {
        dp_fatal_protocol(n, from, "%s is not launched alone", dp_entry_text(entry, what));
    } else if (launch->entry != NULL && launch->entry->view != entry->view) {
        dp_fatal_protocol(n, from, "one launch for two groups");
    } else if (collective == DP_COLLECTIVE_GROUP_DESTROY &&
               entry->view->own_pending > (size_t)(entry->part.is_submitted != 0)) {
        dp_fatal_protocol(n, from, "group %s ends while its tensors are pending",
                          entry->view->name);
    }
    return !n->is_fatal;
}

/* The entry's signature lists the members; the item brings the uid and index that the root chose.
 */
static void make_group(dp_negotiator_t *n, const dp_entry_t *entry, const dp_item_t *item,
                       dp_ordered_launch_t *launch)
{
    const dp_signature_t *signature = entry->arrived.proposed;
    const char *name = signature->group_name;

    launch->born = item->born;
    launch->group_index = item->group_index;
    if (dp_group_view_make(n, item->born, item->group_index, name[0] != '\0' ? name : entry->name,
                           signature->members, signature->member_count) == NULL)
        dp_fatal_memory(n);
}

static void receive_launched(dp_negotiator_t *n, int from, dp_ordered_launch_t *launch,
                             uint32_t count, dp_item_t *item)
{
    dp_launch_entry_t launch_entry = {
        .absent = item->absent,
        .last_absmax = item->absmax,
        .in_place = (item->flags & DP_FLAG_IN_PLACE) != 0,
    };
    dp_entry_t *entry = dp_item_named_entry(n, from, item);

    if (entry == NULL || !check_entry(n, from, entry, item)) return;
    if (!check_companions(n, from, launch, entry, count)) return;
    if (entry->view == NULL) make_group(n, entry, item, launch);
    if (n->is_fatal) return;
    if (launch->entry == NULL) dp_agree_launch_begin(n, launch, entry);
    dp_agree_launch(n, entry, &launch_entry);
}

/* The whole LAUNCH is checked and applied entry by entry: a fatal error in the middle of it ends
 * the job, so nothing has to be undone. */
static void receive_launch(dp_negotiator_t *n, int from, dp_item_t *item, dp_reader_t *reader)
{
    dp_ordered_launch_t launch = {.sequence = item->sequence};
    uint32_t count = item->count;

    if (launch.sequence <= n->sequence) {
        dp_fatal_protocol(n, from, "launch %" PRIu64 " after %" PRIu64, launch.sequence,
                          n->sequence);
    }
    for (uint32_t i = 0; i < count && !n->is_fatal; i++) {
        dp_status_t status = dp_item_read_entry(reader, item);

        if (status == DP_OK) {
            receive_launched(n, from, &launch, count, item);
            dp_item_fini(item);
        } else if (status == DP_ERR_NO_MEMORY) {
            dp_fatal_memory(n);
        } else {
            dp_fatal_protocol(n, from, "malformed launch");
        }
    }
    if (!n->is_fatal) dp_agree_launch_end(n, &launch);
}

static void receive_failure(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_entry_t *entry = dp_item_named_entry(n, from, item);

    if (entry == NULL) return;
    dp_agree_targets(n, entry, item->list, item->list_count);
    dp_agree_fail(n, entry, item->status, item->text);
}

/* ---- From the parent: the rest -------------------------------------------------------------- */

/* Sets n->targets to the members of an item's group; NULL: a fatal error was raised. */
static dp_group_view_t *told_view(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_group_view_t *view = dp_group_view_find(n, item->group);

    if (view == NULL) {
        dp_fatal_protocol(n, from, "no group has number %" PRIu32 " here", item->group);
        return NULL;
    }
    if (item->kind != DP_ITEM_WARN && dp_group_view_index(view, item->rank) < 0) {
        dp_fatal_protocol(n, from, "group %" PRIu32 " has no rank %d", item->group, item->rank);
        return NULL;
    }
    memcpy(n->targets, view->expect, n->table.bit_words * sizeof(*n->targets));
    return view;
}

/* KEEPs come right before the CLOSED that they belong to, and are counted by it. */
static void receive_keep(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_entry_t *entry = dp_item_entry(n, from, item);

    if (entry == NULL) return;
    if (!dp_leave_told_kept(n, entry)) {
        dp_fatal_protocol(n, from, "tensor %s is kept in the wrong group", entry->name);
        return;
    }
    memcpy(n->targets, entry->view->expect, n->table.bit_words * sizeof(*n->targets));
}

static void receive_closed(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_group_view_t *view = told_view(n, from, item);

    if (view == NULL) return;
    if (item->count == n->leave.keeps && (n->leave.keeps == 0 || n->leave.keep_view == view)) {
        dp_leave_close(n, view, item->rank);
    } else {
        dp_fatal_protocol(n, from, "closed by rank %d, keeping %" PRIu32 " tensors of %" PRIu32,
                          item->rank, item->count, n->leave.keeps);
    }
}

static void receive_joined(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_group_view_t *view = told_view(n, from, item);

    for (int branch = 0; view != NULL && branch <= dp_own_branch(n); branch++) {
        if (view->joined_below[branch] == view->below[branch]) continue;
        dp_fatal_protocol(n, from, "all have joined, and some here have not");
        return;
    }
    if (view != NULL) dp_join_all(n, view, item->rank);
}

static void receive_bye(dp_negotiator_t *n, int from)
{
    memcpy(n->targets, n->world->expect, n->table.bit_words * sizeof(*n->targets));
    if (n->leave.fin_sent) {
        dp_agree_bye(n);
    } else {
        dp_fatal_protocol(n, from, "goodbye before this rank finalized");
    }
}

static void receive_who(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_entry_t *entry = dp_item_entry(n, from, item);

    if (entry == NULL) return;
    if (entry->view == NULL && entry->making.list == NULL &&
        dp_entry_set_list(n, entry, item->list, item->list_count) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    dp_stall_who(n, item, entry);
}

static void receive_warn(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    if (item->group == DP_GROUP_UNBORN) {
        dp_branches_of_list(n, item->list, item->list_count, n->targets);
    } else if (told_view(n, from, item) == NULL) {
        return;
    }
    if (dp_bit_get(n->targets, dp_own_branch(n))) dp_outbox_warn(n, item->text);
}

static void receive_seek(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    if (item->position >= n->position && item->position < POSITION_MAX) {
        dp_order_seek(n, item->position);
    } else {
        dp_fatal_protocol(n, from, "position %" PRIu64 " after %" PRIu64, item->position,
                          n->position);
    }
}

/* The item was read from the bytes of the reader from begin on. */
static void receive_from_parent(dp_negotiator_t *n, int from, dp_item_t *item, dp_reader_t *reader,
                                size_t begin)
{
    uint64_t position = n->position; /* before this item counts */

    /* Messages that go up from here on are sent by a rank that knows this item. */
    if (item->kind == DP_ITEM_FAILURE || item->kind == DP_ITEM_CLOSED) dp_outbox_close_up(n);
    switch (item->kind) {
    case DP_ITEM_SEEK:
        receive_seek(n, from, item);
        return;
    case DP_ITEM_LAUNCH:
        receive_launch(n, from, item, reader);
        break;
    case DP_ITEM_FAILURE:
        receive_failure(n, from, item);
        break;
    case DP_ITEM_KEEP:
        receive_keep(n, from, item);
        break;
    case DP_ITEM_CLOSED:
        receive_closed(n, from, item);
        break;
    case DP_ITEM_JOINED:
        receive_joined(n, from, item);
        break;
    case DP_ITEM_BYE:
        receive_bye(n, from);
        break;
    case DP_ITEM_WHO:
        receive_who(n, from, item);
        return;
    case DP_ITEM_WARN:
        receive_warn(n, from, item);
        break;
    default:
        dp_fatal_protocol(n, from, "item %d comes from a child only", item->kind);
        break;
    }
    if (n->is_fatal) return;
    dp_outbox_down_bytes(n, n->targets, position, reader->data + begin, reader->at - begin,
                         n->position != position);
}

/* ---- Frames --------------------------------------------------------------------------------- */

/*
 * A child's frame carries the last ordered item that the child had seen: not later than ours, and
 * not earlier than in its frame before. A parent's frame carries the position before its first
 * ordered item: everything up to there that was meant for this rank has arrived, as an edge keeps
 * the order.
 */
static int check_frame_header(dp_negotiator_t *n, int from, int child, dp_reader_t *reader,
                              dp_frame_header_t *header)
{
    int version;
    dp_status_t status = dp_frame_read_header(reader, header, &version);

    if (status == DP_ERR_UNSUPPORTED) {
        dp_fatal_protocol(n, from, "it speaks version %d, this rank %d", version, DP_FRAME_VERSION);
    } else if (status != DP_OK) {
        dp_fatal_protocol(n, from, "malformed header");
    } else if (header->position == DP_POSITION_NONE) {
        return 1; /* the loop lets nothing but FATAL pass */
    } else if (child < 0 && (header->position < n->position || header->position >= POSITION_MAX)) {
        dp_fatal_protocol(n, from, "frame for position %" PRIu64 ", this rank is at %" PRIu64,
                          header->position, n->position);
    } else if (child >= 0 &&
               (header->position > n->position || header->position < n->child_position[child])) {
        dp_fatal_protocol(n, from,
                          "frame from position %" PRIu64 ", not in %" PRIu64 " to %" PRIu64,
                          header->position, n->child_position[child], n->position);
    }
    if (n->is_fatal) return 0;
    if (child >= 0) n->child_position[child] = header->position;
    /* All that came before and was meant for this rank has been seen. */
    if (child < 0) dp_order_seek(n, header->position);
    return 1;
}

dp_status_t dp_receive(dp_negotiator_t *n, int from, const void *data, size_t bytes)
{
    int child = child_index(n, from);
    dp_item_t *item = &n->item;
    dp_frame_header_t header = {0};
    dp_reader_t reader;

    dp_reader_init(&reader, data, bytes);
    if (child < 0 && (from != n->parent || from < 0)) {
        dp_fatal_protocol(n, from, "it is no neighbour of rank %d", n->rank);
    } else if (bytes > DP_MESSAGE_MAX) {
        dp_fatal_protocol(n, from, "a message of %zu bytes, the limit is %zu", bytes,
                          DP_MESSAGE_MAX);
    } else {
        check_frame_header(n, from, child, &reader, &header);
    }
    while (!n->is_fatal && !n->is_finished && dp_reader_left(&reader) > 0) {
        size_t begin = reader.at;
        dp_status_t status;

        /* This rank announces its part of an occurrence before an item ends it. */
        dp_own_flush(n);
        if (n->is_fatal) break;
        status = dp_item_read(&reader, item);
        if (status == DP_ERR_NO_MEMORY) {
            dp_fatal_memory(n);
        } else if (status != DP_OK) {
            dp_fatal_protocol(n, from, "malformed item at byte %zu of %zu", begin, bytes);
        } else if (item->kind == DP_ITEM_FATAL) {
            dp_fatal(n, item->status, item->rank, from, item->text);
        } else if (header.position == DP_POSITION_NONE) {
            dp_fatal_protocol(n, from, "item %d outside of the order", item->kind);
        } else if (child >= 0) {
            receive_from_child(n, from, child, item, header.position);
        } else {
            receive_from_parent(n, from, item, &reader, begin);
        }
        if (status == DP_OK) dp_item_fini(item);
    }
    return n->is_fatal && n->fatal.status == DP_ERR_NO_MEMORY && n->fatal.culprit == n->rank
               ? DP_ERR_NO_MEMORY
               : DP_OK;
}
