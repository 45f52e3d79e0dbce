/*
 * receive.c - frames from neighbours, and what children say: checked against who sent it and what
 * this node knows.
 *
 * agree.c and its kin may rely on what passed here. Anything else ends the world with a text that
 * names the sender and what it said. What the parent says is for follow.c.
 */
#include "coordinator/negotiator/negotiator_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Rows and signatures ---------------------------------------------------------------- */

/* The group of an item's key; *scope stays NULL for those to be made. 0: there is none. */
static int scope_of(dp_negotiator_t *n, int from, const dp_item_t *item, dp_scope_t **scope)
{
    *scope = NULL;
    if (item->group == DP_GROUP_UNBORN && item->root < 0) return 1;
    *scope = dp_scope_find(n, item->group);
    if (*scope == NULL) {
        dp_fatal_protocol(n, from, "no group has number %" PRIu32 " here", item->group);
    } else if (item->root >= 0 &&
               (dp_scope_rank(*scope, item->root) < 0 || dp_scope_rank(*scope, item->peer) < 0)) {
        dp_fatal_protocol(n, from, "a send from rank %d to %d in a group of %" PRIu32, item->root,
                          item->peer, (*scope)->member_count);
    }
    return !n->is_fatal;
}

dp_row_t *dp_receive_key(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_key_t key = {item->group, item->root, item->peer, item->name};
    dp_scope_t *scope;
    dp_row_t *row;

    if (!scope_of(n, from, item, &scope)) return NULL;
    row = dp_row_get(n, &key, scope);
    if (row == NULL) dp_fatal_memory(n);
    return row;
}

dp_row_t *dp_receive_row(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_row_t *row;

    if (item->id == DP_ID_NONE) return dp_receive_key(n, from, item);
    row = dp_table_by_id(&n->table, item->id);
    if (row == NULL) dp_fatal_protocol(n, from, "no tensor has id %" PRIu32, item->id);
    return row;
}

/* Does the item speak of a group that has ended? It may, where its sender did not know yet. */
static int is_of_the_past(const dp_negotiator_t *n, const dp_item_t *item)
{
    if (item->id != DP_ID_NONE) {
        return item->id < n->table.next_id && dp_table_by_id(&n->table, item->id) == NULL;
    }
    return item->group <= n->last_uid && dp_scope_find(n, item->group) == NULL;
}

/* Members exist, one of them below this child. */
static int is_list_of(const dp_negotiator_t *n, const int32_t *list, uint32_t count, int child)
{
    int is_below = 0;

    if (count == 0 || list[count - 1] >= n->size) return 0; /* ascending, so none is larger */
    for (uint32_t i = 0; i < count && !is_below; i++)
        is_below = dp_slot_of(n, list[i]) == child;
    return is_below;
}

int dp_receive_fits(const dp_negotiator_t *n, const dp_row_t *row, const dp_signature_t *signature)
{
    if (row->scope == NULL) {
        return signature->collective == DP_COLLECTIVE_GROUP_CREATE &&
               signature->members[signature->member_count - 1] < n->size;
    }
    switch (signature->collective) {
    case DP_COLLECTIVE_GROUP_CREATE:
    case DP_COLLECTIVE_JOIN:
        return 0;
    case DP_COLLECTIVE_GROUP_DESTROY:
        return row->scope->uid != DP_GROUP_WORLD && row->root < 0;
    case DP_COLLECTIVE_SEND:
        return row->root >= 0 && signature->root == row->root && signature->peer == row->peer;
    default:
        return row->root < 0;
    }
}

/* ---- Frames from a child ---------------------------------------------------------------- */

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
static int is_closed_for(const dp_row_t *row)
{
    return row->own_expect == NULL && row->scope->is_closed && !row->is_kept;
}

/* Was this said before its sender knew how the occurrence ended that it speaks of? */
static int is_stale(const dp_row_t *row, int child, uint64_t position)
{
    if (row->scope == NULL) return position < row->ended[child];
    return position < row->done_position ||
           (is_closed_for(row) && position < row->scope->closed_position);
}

/* READY, MISMATCH and LACKS: a child says one of them once per occurrence. 0: not to be looked at.
 */
static int is_new_word(dp_negotiator_t *n, int from, int child, const dp_row_t *row,
                       uint64_t position)
{
    char what[DP_ROW_TEXT_MAX];
    int is_old = is_stale(row, child, position);

    if (is_old && (row->scope == NULL || row->scope->is_closed || row->ended_in_failure)) return 0;
    if (row->scope != NULL && !dp_bit_get(row->expect, child)) {
        dp_fatal_protocol(n, from, "%s announced, nobody there takes part in it",
                          dp_row_text(row, what));
        return 0;
    }
    if (is_old || is_closed_for(row) || dp_bit_get(row->heard, child) ||
        dp_bit_get(n->fins, child)) {
        dp_fatal_protocol(n, from, "%s announced out of turn", dp_row_text(row, what));
        return 0;
    }
    return 1;
}

/* The end of a group is the last that its ranks announce there. */
static int is_over(const dp_negotiator_t *n, const dp_scope_t *scope, int child)
{
    for (size_t i = 0; i < n->table.row_count; i++) {
        const dp_row_t *row = n->table.rows[i];

        if (row->scope == scope && row->is_pending && dp_bit_get(row->heard, child)) return 0;
    }
    return 1;
}

/* 0: the world has ended. */
static int check_ready(dp_negotiator_t *n, int from, int child, const dp_row_t *row,
                       const dp_item_t *item)
{
    const dp_signature_t *signature = item->signature != NULL ? item->signature : row->signature;
    char what[DP_ROW_TEXT_MAX];

    dp_row_text(row, what);
    if (item->version != row->version) {
        dp_fatal_protocol(n, from, "%s announced in version %u, it is in %u here", what,
                          item->version, row->version);
    } else if (signature == NULL) {
        dp_fatal_protocol(n, from, "%s announced without a signature", what);
    } else if (!dp_receive_fits(n, row, signature)) {
        dp_fatal_protocol(n, from, "%s announced as %s", what,
                          dp_collective_name(signature->collective));
    } else if (row->scope == NULL &&
               !is_list_of(n, signature->members, signature->member_count, child)) {
        dp_fatal_protocol(n, from, "%s announced, nobody there is a member", what);
    } else if (item->ahead >= DP_POSITION_MAX ||
               (dp_is_root(n) && item->ahead > n->lock.owed_end)) {
        dp_fatal_protocol(n, from, "%s announced ahead of all", what);
    } else if (item->absent > 0 &&
               (row->scope == NULL || dp_scope_index(row->scope, item->rank) < 0 ||
                dp_slot_of(n, item->rank) != child ||
                item->absent >= dp_row_below(n, row, child))) {
        dp_fatal_protocol(n, from, "%s announced without %" PRIu32 " ranks, one of them rank %d",
                          what, item->absent, item->rank);
    } else if (signature->collective == DP_COLLECTIVE_GROUP_DESTROY &&
               !is_over(n, row->scope, child)) {
        dp_fatal_protocol(n, from, "the end of group %s announced before that of its tensors",
                          row->scope->name);
    }
    return !n->is_fatal;
}

static void receive_ready(dp_negotiator_t *n, int from, int child, dp_item_t *item,
                          uint64_t position)
{
    dp_row_t *row = dp_receive_row(n, from, item);
    dp_arrival_t arrival = {.slot = child,
                            .rank = from,
                            .in_place = (item->flags & DP_FLAG_IN_PLACE) != 0,
                            .is_urgent = (item->flags & DP_FLAG_URGENT) != 0,
                            .absmax = item->absmax,
                            .absent = item->absent,
                            .absent_rank = item->rank,
                            .ahead = item->ahead};

    if (row == NULL || !is_new_word(n, from, child, row, position)) return;
    if (!check_ready(n, from, child, row, item)) return;
    arrival.signature = item->signature;
    item->signature = NULL;
    dp_agree_arrive(n, row, &arrival);
}

/* MISMATCH, LACKS */
static void receive_conflict(dp_negotiator_t *n, int from, int child, dp_item_t *item,
                             uint64_t position)
{
    dp_row_t *row = dp_receive_row(n, from, item);
    int lacks = item->kind == DP_ITEM_LACKS;
    const int ranks[2] = {item->rank, item->other_rank};
    const dp_signature_t *signatures[2] = {item->signature, item->other};

    if (row == NULL || !is_new_word(n, from, child, row, position)) return;
    if (lacks ? row->own_expect == NULL : dp_signature_equal(item->signature, item->other)) {
        dp_fatal_protocol(n, from, "a conflict about tensor %s that is none", row->name);
    } else if (row->scope == NULL && (!dp_receive_fits(n, row, item->signature) ||
                                      (!lacks && !dp_receive_fits(n, row, item->other)))) {
        dp_fatal_protocol(n, from, "a group without members");
    } else {
        dp_agree_mismatch(n, row, child, ranks, signatures);
    }
}

/* A child has said READY, and then heard of another list of ranks. Once that occurrence is over
 * this is old: the child says itself what it heard since. */
static void receive_contest(dp_negotiator_t *n, int from, int child, const dp_item_t *item)
{
    dp_key_t key = {item->group, item->root, item->peer, item->name};
    const int ranks[2] = {item->rank, item->other_rank};
    const dp_signature_t *signatures[2] = {item->signature, item->other};
    dp_row_t *row;

    if (item->id != DP_ID_NONE || item->group != DP_GROUP_UNBORN || item->root >= 0) {
        dp_fatal_protocol(n, from, "a contest about what is no group to be made");
        return;
    }
    row = dp_table_find(&n->table, &key);
    if (row == NULL || !dp_bit_get(row->heard, child)) return;
    if (dp_signature_equal(item->signature, item->other) ||
        !dp_receive_fits(n, row, item->signature) || !dp_receive_fits(n, row, item->other)) {
        dp_fatal_protocol(n, from, "a contest about group %s that is none", row->name);
    } else if (!row->is_mismatched) {
        dp_agree_conflict(n, row, ranks, signatures);
    }
}

static void receive_partial(dp_negotiator_t *n, int from, int child, const dp_item_t *item,
                            uint64_t position)
{
    dp_row_t *row = dp_receive_row(n, from, item);
    uint64_t age_ns = dp_min(item->age_ns, n->now_ns);

    if (row == NULL || is_closed_for(row) || is_stale(row, child, position)) return;
    if (row->scope == NULL && !is_list_of(n, item->list, item->list_count, child)) {
        dp_fatal_protocol(n, from, "group %s is waited for, nobody there is a member", row->name);
        return;
    }
    if (dp_bit_get(row->heard, child) || (row->scope != NULL && !dp_bit_get(row->expect, child))) {
        dp_fatal_protocol(n, from, "tensor %s is ready there and yet waited for", row->name);
        return;
    }
    if (row->scope == NULL) {
        dp_contest_partial(n, row, child, item, n->now_ns - age_ns);
    } else {
        dp_agree_pending(n, row, n->now_ns - age_ns);
    }
}

static void receive_urgent(dp_negotiator_t *n, int from, int child, const dp_item_t *item,
                           uint64_t position)
{
    dp_row_t *row;

    if (is_of_the_past(n, item)) return;
    row = dp_receive_row(n, from, item);
    if (row != NULL && !is_stale(row, child, position)) dp_agree_urgent(n, row);
}

static void receive_fin(dp_negotiator_t *n, int from, int child)
{
    if (dp_bit_get(n->fins, child)) {
        dp_fatal_protocol(n, from, "it finalized twice");
        return;
    }
    dp_bit_set(n->fins, child);
    n->fin_count++;
}

static void receive_leaver(dp_negotiator_t *n, int from, int child, const dp_item_t *item)
{
    dp_row_t *row;

    if (dp_slot_of(n, item->rank) != child || dp_bit_get(n->left, item->rank)) {
        dp_fatal_protocol(n, from, "there is no rank %d to leave", item->rank);
    } else if (item->kind == DP_ITEM_LEFT) {
        dp_leave_left(n, item->rank);
    } else if (!is_of_the_past(n, item)) {
        row = dp_receive_row(n, from, item);
        if (row != NULL && item->kind == DP_ITEM_GIVE_UP)
            dp_debt_void(n, item->rank, item->position, row);
        if (row != NULL && item->kind == DP_ITEM_KEEP)
            dp_leave_keep(n, item->rank, item->position, row);
    }
}

static void receive_join(dp_negotiator_t *n, int from, int child, const dp_item_t *item)
{
    dp_scope_t *scope = dp_scope_find(n, item->group);

    if (scope == NULL || dp_slot_of(n, item->rank) != child ||
        dp_scope_index(scope, item->rank) < 0 || dp_join_is_joined(scope, item->rank) ||
        dp_bit_get(n->fins, child)) {
        dp_fatal_protocol(n, from, "there is no rank %d to join group %" PRIu32, item->rank,
                          item->group);
    } else {
        dp_join_arrive(n, scope, item->rank);
    }
}

static void receive_from_child(dp_negotiator_t *n, int from, int child, dp_item_t *item,
                               uint64_t position)
{
    int is_of_lock = item->kind == DP_ITEM_DIVERGE || item->kind == DP_ITEM_COUNT ||
                     item->kind == DP_ITEM_REACHED;

    if (is_of_lock != n->lock.is_scheduled) {
        dp_fatal_protocol(n, from, "item %d %s", item->kind,
                          is_of_lock ? "and nothing is locked" : "while a schedule is locked");
        return;
    }
    switch (item->kind) {
    case DP_ITEM_DIVERGE:
    case DP_ITEM_COUNT:
    case DP_ITEM_REACHED:
        dp_lock_from_child(n, from, child, item);
        break;
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
    case DP_ITEM_JOIN:
        receive_join(n, from, child, item);
        break;
    case DP_ITEM_KEEP:
    case DP_ITEM_LEFT:
    case DP_ITEM_GIVE_UP:
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

/* ---- Frames ----------------------------------------------------------------------------- */

static int check_header(dp_negotiator_t *n, int from, int child, dp_reader_t *reader,
                        dp_frame_header_t *header)
{
    int version;
    dp_status_t status = dp_frame_read_header(reader, header, &version);

    if (status == DP_ERR_UNSUPPORTED) {
        dp_fatal_protocol(n, from, "it speaks version %d, this rank %d", version, DP_FRAME_VERSION);
    } else if (status != DP_OK || header->generation != 0) {
        dp_fatal_protocol(n, from, "malformed header");
    } else if (header->position == DP_POSITION_NONE) {
        return 1; /* the loop lets nothing but FATAL pass */
    } else if (child < 0 ? header->epoch != n->epoch : header->epoch > n->epoch) {
        dp_fatal_protocol(n, from, "frame of epoch %" PRIu32 ", this rank is in %" PRIu32,
                          header->epoch, n->epoch);
    } else if (child < 0 &&
               (header->position < n->position || header->position >= DP_POSITION_MAX)) {
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
    if (child < 0) n->position = header->position;
    return 1;
}

dp_status_t dp_receive(dp_negotiator_t *n, int from, const void *data, size_t bytes)
{
    int child = child_index(n, from);
    dp_item_t *item = &n->item;
    dp_frame_header_t header = {0, 0, 0};
    dp_reader_t reader;

    dp_reader_init(&reader, data, bytes);
    if (child < 0 && (from != n->parent || from < 0)) {
        dp_fatal_protocol(n, from, "it is no neighbour of rank %d", n->rank);
    } else if (bytes > DP_MESSAGE_MAX) {
        dp_fatal_protocol(n, from, "a message of %zu bytes, the limit is %zu", bytes,
                          DP_MESSAGE_MAX);
    } else {
        check_header(n, from, child, &reader, &header);
    }
    /* Said before the sender knew that the epoch had ended: it says again what still holds. */
    if (child >= 0 && header.position != DP_POSITION_NONE && header.epoch != n->epoch) return DP_OK;
    while (!n->is_fatal && !n->is_finished && dp_reader_left(&reader) > 0) {
        size_t begin = reader.at;
        dp_status_t status;

        /* What this rank has to say of an occurrence, before others end it. */
        if (n->restarts.count > 0) dp_debt_flush(n);
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
            dp_follow(n, from, item, &reader, begin);
        }
        if (status == DP_OK) dp_item_fini(item);
    }
    return n->is_fatal && n->fatal_status == DP_ERR_NO_MEMORY && n->fatal_culprit == n->rank
               ? DP_ERR_NO_MEMORY
               : DP_OK;
}
