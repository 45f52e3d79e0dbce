/*
 * follow.c - what the parent says: the order that the root has made, and its questions.
 *
 * Each item is checked against what this node and its children have announced, applied, and passed
 * on, byte for byte, to those children below which it concerns somebody.
 */
#include "coordinator/negotiator/negotiator_internal.h"

#include <inttypes.h>
#include <string.h>

/* ---- LAUNCH and FAILURE ----------------------------------------------------------------- */

/* The row that a LAUNCH entry or FAILURE names, after a new id was given; NULL: the world ended. */
static dp_row_t *named_row(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_row_t *row;
    int has_id;

    if (!(item->flags & DP_FLAG_NAME)) {
        row = dp_table_by_id(&n->table, item->id);
        if (row == NULL) dp_fatal_protocol(n, from, "no tensor has id %" PRIu32, item->id);
        return row;
    }
    row = dp_receive_key(n, from, item);
    if (row == NULL) return NULL;
    has_id = row->scope != NULL; /* ids are for names that come again */
    if (row->id != DP_ID_NONE || has_id != (item->id != DP_ID_NONE) ||
        (has_id && item->id < n->table.next_id)) {
        dp_fatal_protocol(n, from, "tensor %s cannot have id %" PRIu32, item->name, item->id);
        return NULL;
    }
    if (has_id) dp_table_assign(&n->table, row, item->id);
    return row;
}

/* Has everybody at or below this node said that the tensor can go, or that it can go without? */
static int is_launchable(const dp_negotiator_t *n, const dp_row_t *row)
{
    if (row->said_ready) return 1; /* a CONTEST that came behind READY was too late */
    if (row->is_mismatched) return 0;
    for (int slot = 0; slot <= dp_own_slot(n); slot++) {
        if (dp_bit_get(row->expect, slot) && !dp_join_covers(n, row, slot)) return 0;
    }
    return row->scope != NULL;
}

/* Joined ranks learn the signature with the LAUNCH. 0: the world has ended. */
static int take_signature(dp_negotiator_t *n, int from, dp_row_t *row, dp_item_t *entry)
{
    char what[DP_ROW_TEXT_MAX];

    if (entry->signature != NULL &&
        (!dp_receive_fits(n, row, entry->signature) || entry->absent == 0 ||
         (row->proposed != NULL && !dp_signature_equal(row->proposed, entry->signature)))) {
        dp_fatal_protocol(n, from, "launch of %s with a signature that nobody proposed",
                          dp_row_text(row, what));
    } else if (entry->signature != NULL && row->proposed == NULL) {
        row->proposed = entry->signature;
        entry->signature = NULL;
    }
    if (!n->is_fatal && dp_row_signature(row) == NULL) {
        dp_fatal_protocol(n, from, "launch of %s without a signature", dp_row_text(row, what));
    }
    return !n->is_fatal;
}

/* What one entry may say by itself. 0: the world has ended. */
static int check_entry(dp_negotiator_t *n, int from, dp_row_t *row, dp_item_t *entry)
{
    int takes_part = dp_row_takes_part(n, row);
    int is_joined = row->scope != NULL && dp_join_is_joined(row->scope, n->rank);
    char what[DP_ROW_TEXT_MAX];

    dp_row_text(row, what);
    if (!is_launchable(n, row) || (takes_part && !row->is_own && !is_joined)) {
        dp_fatal_protocol(n, from, "launch of %s, which was not announced", what);
    } else if (entry->absent >= dp_row_ranks(row) ||
               (takes_part && !row->is_own && entry->absent == 0)) {
        dp_fatal_protocol(n, from, "launch of %s without %" PRIu32 " ranks of %" PRIu32, what,
                          entry->absent, dp_row_ranks(row));
    } else if (row->scope == NULL &&
               (!(entry->flags & DP_FLAG_BORN) || entry->slot < 1 || entry->slot > DP_GROUPS_MAX ||
                entry->born <= n->last_uid || entry->born == DP_GROUP_UNBORN)) {
        dp_fatal_protocol(n, from, "%s cannot be number %" PRIu32 " in place %" PRIu32, what,
                          entry->born, entry->slot);
    }
    return !n->is_fatal && take_signature(n, from, row, entry);
}

/* What a LAUNCH may hold beside its first tensor. 0: the world has ended. */
static int check_company(dp_negotiator_t *n, int from, const dp_launch_t *launch,
                         const dp_row_t *row, uint32_t count)
{
    dp_collective_t collective = dp_row_signature(row)->collective;
    char what[DP_ROW_TEXT_MAX];

    if (count > 1 && dp_launches_alone(collective)) {
        dp_fatal_protocol(n, from, "%s is not launched alone", dp_row_text(row, what));
    } else if (launch->row != NULL && launch->row->scope != row->scope) {
        dp_fatal_protocol(n, from, "one launch for two groups");
    } else if (collective == DP_COLLECTIVE_GROUP_DESTROY &&
               row->scope->own_pending > (size_t)(row->is_own != 0)) {
        dp_fatal_protocol(n, from, "group %s ends while its tensors are pending", row->scope->name);
    }
    return !n->is_fatal;
}

static void bear(dp_negotiator_t *n, const dp_row_t *row, const dp_item_t *entry,
                 dp_launch_t *launch)
{
    const dp_signature_t *signature = row->proposed;
    const char *name = signature->group_name;

    launch->born = entry->born;
    launch->slot = entry->slot;
    if (dp_scope_make(n, entry->born, entry->slot, name[0] != '\0' ? name : row->name,
                      signature->members, signature->member_count) == NULL)
        dp_fatal_memory(n);
}

static void launch_entry(dp_negotiator_t *n, int from, dp_launch_t *launch, uint32_t count,
                         dp_item_t *item)
{
    dp_launch_entry_t entry = {
        .absent = item->absent,
        .last_absmax = item->absmax,
        .in_place = (item->flags & DP_FLAG_IN_PLACE) != 0,
    };
    dp_row_t *row = named_row(n, from, item);

    if (row == NULL || !check_entry(n, from, row, item)) return;
    if (!check_company(n, from, launch, row, count)) return;
    if (row->scope == NULL) bear(n, row, item, launch);
    if (n->is_fatal) return;
    if (launch->row == NULL) dp_agree_launch_begin(n, launch, row);
    dp_agree_launch(n, row, &entry);
}

static void receive_launch(dp_negotiator_t *n, int from, dp_item_t *item, dp_reader_t *reader)
{
    dp_launch_t launch = {.sequence = item->sequence, .behind = item->ahead};
    uint32_t count = item->count;

    if (launch.sequence <= n->sequence) {
        dp_fatal_protocol(n, from, "launch %" PRIu64 " after %" PRIu64, launch.sequence,
                          n->sequence);
    }
    for (uint32_t i = 0; i < count && !n->is_fatal; i++) {
        dp_status_t status = dp_item_read_entry(reader, item);

        if (status == DP_OK) {
            launch_entry(n, from, &launch, count, item);
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
    dp_row_t *row = named_row(n, from, item);

    if (row == NULL) return;
    dp_agree_targets(n, row, item->list, item->list_count);
    dp_agree_fail(n, row, item->status, item->text);
}

/* ---- The rest --------------------------------------------------------------------------- */

/* Sets n->targets to the members of an item's group; NULL: the world has ended. */
static dp_scope_t *told_scope(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_scope_t *scope = dp_scope_find(n, item->group);

    if (scope == NULL) {
        dp_fatal_protocol(n, from, "no group has number %" PRIu32 " here", item->group);
        return NULL;
    }
    if (item->kind != DP_ITEM_WARN && dp_scope_index(scope, item->rank) < 0) {
        dp_fatal_protocol(n, from, "group %" PRIu32 " has no rank %d", item->group, item->rank);
        return NULL;
    }
    memcpy(n->targets, scope->expect, n->table.bit_words * sizeof(*n->targets));
    return scope;
}

static void receive_keep(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_row_t *row = dp_receive_row(n, from, item);

    if (row == NULL) return;
    if (row->scope == NULL || (n->keeps > 0 && row->scope != n->keep_scope)) {
        dp_fatal_protocol(n, from, "tensor %s is kept in the wrong group", row->name);
        return;
    }
    row->keep_position = n->position + 1;
    n->keep_scope = row->scope;
    n->keeps++;
    memcpy(n->targets, row->scope->expect, n->table.bit_words * sizeof(*n->targets));
}

static void receive_closed(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_scope_t *scope = told_scope(n, from, item);

    if (scope == NULL) return;
    if (item->count == n->keeps && (n->keeps == 0 || n->keep_scope == scope)) {
        dp_leave_close(n, scope, item->rank);
    } else {
        dp_fatal_protocol(n, from, "closed by rank %d, keeping %" PRIu32 " tensors of %" PRIu32,
                          item->rank, item->count, n->keeps);
    }
}

static void receive_joined(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_scope_t *scope = told_scope(n, from, item);

    for (int slot = 0; scope != NULL && slot <= dp_own_slot(n); slot++) {
        if (scope->joined_below[slot] == scope->below[slot]) continue;
        dp_fatal_protocol(n, from, "all have joined, and some here have not");
        return;
    }
    if (scope != NULL) dp_join_all(n, scope, item->rank);
}

static void receive_bye(dp_negotiator_t *n, int from)
{
    memcpy(n->targets, n->world->expect, n->table.bit_words * sizeof(*n->targets));
    if (n->fin_sent) {
        dp_agree_bye(n);
    } else {
        dp_fatal_protocol(n, from, "goodbye before this rank finalized");
    }
}

static void receive_who(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_row_t *row = dp_receive_row(n, from, item);

    if (row == NULL) return;
    if (row->scope == NULL && row->list == NULL &&
        dp_row_set_list(n, row, item->list, item->list_count) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    dp_stall_who(n, item, row);
}

static void receive_warn(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    if (item->group == DP_GROUP_UNBORN) {
        dp_slots_of_list(n, item->list, item->list_count, n->targets);
    } else if (told_scope(n, from, item) == NULL) {
        return;
    }
    if (dp_bit_get(n->targets, dp_own_slot(n))) dp_outbox_warn(n, item->text);
}

static void receive_seek(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    if (item->position >= n->position && item->position < DP_POSITION_MAX) {
        n->position = item->position;
    } else {
        dp_fatal_protocol(n, from, "position %" PRIu64 " after %" PRIu64, item->position,
                          n->position);
    }
}

/* The epoch ends with it: it is passed on as of this epoch, and all else is of the next. */
static void receive_turn(dp_negotiator_t *n, int from, const dp_item_t *item, dp_reader_t *reader,
                         size_t begin)
{
    uint64_t low = item->low, high = item->high, sequence = item->sequence;
    int is_lock = item->kind == DP_ITEM_SCHEDULE;

    if (is_lock) {
        dp_lock_receive(n, from, item, reader);
    } else {
        dp_lock_from_parent(n, from, item);
    }
    if (n->is_fatal) return;
    dp_outbox_down_bytes(n, n->world->expect, n->position, reader->data + begin, reader->at - begin,
                         1);
    dp_outbox_close_down(n);
    if (n->is_fatal) return;
    if (is_lock) {
        dp_lock_begin(n, sequence);
    } else {
        dp_lock_end(n, low, high);
    }
}

/* What only makes sense while every launch is negotiated. */
static int is_negotiation(dp_item_kind_t kind)
{
    return kind != DP_ITEM_SEEK && kind != DP_ITEM_WARN && kind != DP_ITEM_CONFIRM &&
           kind != DP_ITEM_PAUSE && kind != DP_ITEM_SCHEDULE_END;
}

void dp_follow(dp_negotiator_t *n, int from, dp_item_t *item, dp_reader_t *reader, size_t begin)
{
    uint64_t position = n->position; /* before this item counts */

    if (n->lock.is_scheduled && is_negotiation(item->kind)) {
        dp_fatal_protocol(n, from, "item %d while a schedule is locked", item->kind);
        return;
    }
    /* What goes up from here on was said knowing this item. */
    if (item->kind == DP_ITEM_FAILURE || item->kind == DP_ITEM_CLOSED) dp_outbox_close_up(n);
    switch (item->kind) {
    case DP_ITEM_SEEK:
        receive_seek(n, from, item);
        return;
    case DP_ITEM_SCHEDULE:
    case DP_ITEM_SCHEDULE_END:
        receive_turn(n, from, item, reader, begin);
        return;
    case DP_ITEM_CONFIRM:
    case DP_ITEM_PAUSE:
        dp_lock_from_parent(n, from, item);
        memcpy(n->targets, n->world->expect, n->table.bit_words * sizeof(*n->targets));
        break;
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
