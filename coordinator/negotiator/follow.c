/*
 * follow.c - items from the parent: the order that the root has made, and its questions.
 *
 * Each item is checked against what this rank and its children have announced, applied, and passed
 * on, byte for byte, to the children that it concerns, or that have such ranks below them. Called
 * by receive.c for each item of a frame, on the thread that drives the negotiator. It also finds
 * the entry that an item speaks of, for both; one that cannot be is a fatal error that names the
 * sender.
 */
#include "coordinator/negotiator/follow.h"

#include "coordinator/negotiator/state.h"

#include <inttypes.h>
#include <string.h>

/* ---- The entry that an item speaks of --------------------------------------------------------- */

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

int dp_entry_fits(const dp_negotiator_t *n, const dp_entry_t *entry,
                  const dp_signature_t *signature)
{
    if (entry->view == NULL) {
        return signature->collective == DP_COLLECTIVE_GROUP_CREATE &&
               signature->members[signature->member_count - 1] < n->size;
    }
    switch (signature->collective) {
    case DP_COLLECTIVE_GROUP_CREATE:
    case DP_COLLECTIVE_JOIN:
        return 0;
    case DP_COLLECTIVE_GROUP_DESTROY:
        return entry->view->uid != DP_GROUP_WORLD && entry->root < 0;
    case DP_COLLECTIVE_SEND:
        return entry->root >= 0 && signature->root == entry->root && signature->peer == entry->peer;
    default:
        return entry->root < 0;
    }
}

/* ---- LAUNCH and FAILURE --------------------------------------------------------------------- */

/* The entry that a LAUNCH entry or FAILURE names, after a new id was given; NULL: a fatal error was
 * raised.
 */
static dp_entry_t *named_entry(dp_negotiator_t *n, int from, const dp_item_t *item)
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
    dp_entry_t *entry = named_entry(n, from, item);

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
    dp_entry_t *entry = named_entry(n, from, item);

    if (entry == NULL) return;
    dp_agree_targets(n, entry, item->list, item->list_count);
    dp_agree_fail(n, entry, item->status, item->text);
}

/* ---- The rest ------------------------------------------------------------------------------- */

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
    if (item->position >= n->position && item->position < DP_POSITION_MAX) {
        dp_order_seek(n, item->position);
    } else {
        dp_fatal_protocol(n, from, "position %" PRIu64 " after %" PRIu64, item->position,
                          n->position);
    }
}

void dp_follow(dp_negotiator_t *n, int from, dp_item_t *item, dp_reader_t *reader, size_t begin)
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
