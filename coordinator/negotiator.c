/*
 * negotiator.c - the door of the state machine: inputs of this rank, frames of its neighbours.
 *
 * Here a frame is believed only after it was checked against who sent it and what this node knows;
 * agree.c and stall.c may then rely on it. Every input but the last word of a lost world is ignored
 * once the world has ended or everybody has said goodbye.
 */
#include "coordinator/negotiator_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Life ------------------------------------------------------------------------------- */

static dp_status_t init(dp_negotiator_t *n, const dp_negotiator_options_t *options)
{
    const dp_tree_node_t *node = options->node;
    size_t count = (size_t)node->child_count;
    dp_status_t status;

    n->rank = options->rank;
    n->size = options->size;
    n->topology = options->topology;
    n->parent = node->parent;
    n->child_count = node->child_count;
    n->hold_ns = options->hold_ns;
    n->fusion_bytes = options->fusion_bytes;
    n->stall_warn_ns = options->stall_warn_ns;
    n->stall_limit_ns = options->stall_limit_ns;
    /* One element more, as an empty allocation may be NULL. */
    n->children = calloc(count + 1, sizeof(*n->children));
    n->child_position = calloc(count + 1, sizeof(*n->child_position));
    if (n->children == NULL || n->child_position == NULL) return DP_ERR_NO_MEMORY;
    if (count > 0) memcpy(n->children, node->children, count * sizeof(*n->children));
    status = dp_table_init(&n->table, node->child_count + 1);
    if (status != DP_OK) return status;
    n->fins = calloc(n->table.bit_words, sizeof(*n->fins));
    if (n->fins == NULL) return DP_ERR_NO_MEMORY;
    status = dp_stall_init(n);
    return status == DP_OK ? dp_outbox_init(n) : status;
}

dp_status_t dp_negotiator_create(const dp_negotiator_options_t *options, dp_negotiator_t **out)
{
    dp_negotiator_t *n = calloc(1, sizeof(*n));
    dp_status_t status;

    if (n == NULL) return DP_ERR_NO_MEMORY;
    status = init(n, options);
    if (status != DP_OK) {
        dp_negotiator_destroy(n);
        return status;
    }
    *out = n;
    return DP_OK;
}

void dp_negotiator_destroy(dp_negotiator_t *n)
{
    if (n == NULL) return;
    /* Rows go as they are: whatever list they are in goes with them. */
    for (size_t i = 0; i < n->table.row_count; i++)
        n->table.rows[i]->list = DP_ROW_UNLISTED;
    dp_outbox_fini(n);
    dp_stall_fini(n);
    dp_table_fini(&n->table);
    free(n->complete.rows);
    free(n->kept);
    free(n->fins);
    free(n->child_position);
    free(n->children);
    free(n);
}

/* Takes note of the time; 0 when nothing matters any more. */
static int is_alive(dp_negotiator_t *n, uint64_t now_ns)
{
    n->now_ns = DP_MAX(n->now_ns, now_ns);
    return !n->is_fatal && !n->is_finished;
}

/* ---- Inputs of this rank ---------------------------------------------------------------- */

/* The oldest occurrence that failed without this rank is the one it submits now. */
static void hand_refusal(dp_negotiator_t *n, dp_row_t *row, void *request)
{
    dp_refusal_t *refusal = row->refusals;

    dp_outbox_fail(n, request, refusal->status, refusal->text);
    row->refusals = refusal->next;
    if (row->refusals == NULL) row->refusals_end = &row->refusals;
    free(refusal);
}

static dp_status_t check_submission(const dp_submission_t *submission)
{
    size_t bytes = strnlen(submission->name, DP_NAME_MAX + 1);

    if (bytes == 0 || bytes > DP_NAME_MAX) return DP_ERR_INVALID;
    return submission->signature->part_count <= DP_GROUPED_MAX ? DP_OK : DP_ERR_INVALID;
}

dp_status_t dp_negotiator_submit(dp_negotiator_t *n, const dp_submission_t *submission,
                                 uint64_t now_ns)
{
    const dp_signature_t *signature = submission->signature;
    dp_arrival_t arrival = {n->child_count,
                            n->rank,
                            NULL,
                            submission->in_place != 0,
                            submission->is_urgent != 0,
                            dp_absmax_clean(submission->last_absmax)};
    dp_status_t status = check_submission(submission);
    dp_row_t *row;

    if (!is_alive(n, now_ns)) return n->is_fatal ? n->fatal_status : DP_ERR_ORDER;
    if (status != DP_OK) return status;
    if (n->is_finalizing) return DP_ERR_ORDER;
    row = dp_table_get(&n->table, submission->name);
    if (row == NULL) goto no_memory;
    if (row->is_own) return DP_ERR_BUSY;
    if (row->refusals != NULL) {
        hand_refusal(n, row, submission->request);
        return n->is_fatal ? n->fatal_status : DP_OK;
    }
    if (n->is_closed && !row->is_kept) {
        dp_agree_refuse_closed(n, row, submission->request);
        return n->is_fatal ? n->fatal_status : DP_OK;
    }
    if (row->signature == NULL || !dp_signature_equal(signature, row->signature)) {
        arrival.signature = dp_signature_copy(signature);
        if (arrival.signature == NULL) goto no_memory;
    }
    row->is_own = 1;
    row->request = submission->request;
    n->own_pending++;
    dp_agree_arrive(n, row, &arrival);
    return n->is_fatal ? n->fatal_status : DP_OK;
no_memory:
    dp_fatal_memory(n);
    return DP_ERR_NO_MEMORY;
}

void dp_negotiator_urgent(dp_negotiator_t *n, uint32_t group, const char *name, uint64_t now_ns)
{
    dp_row_t *row;

    if (!is_alive(n, now_ns) || group != DP_GROUP_WORLD) return;
    row = dp_table_find(&n->table, name);
    if (row != NULL && row->is_own) dp_agree_urgent(n, row);
}

void dp_negotiator_launched(dp_negotiator_t *n, uint64_t sequence, uint64_t now_ns)
{
    if (!is_alive(n, now_ns)) return;
    n->launched = DP_MAX(n->launched, sequence);
}

void dp_negotiator_finalize(dp_negotiator_t *n, uint64_t now_ns)
{
    if (is_alive(n, now_ns)) n->is_finalizing = 1;
}

void dp_negotiator_peer_lost(dp_negotiator_t *n, int rank, const char *text, uint64_t now_ns)
{
    char name[DP_RANK_TEXT_MAX], line[DP_ERROR_TEXT_MAX];

    if (!is_alive(n, now_ns)) return;
    if (text == NULL || text[0] == '\0') text = "connection lost";
    snprintf(line, sizeof(line), "%s: %s", dp_rank_text(n, rank, name), text);
    dp_fatal(n, DP_ERR_PEER_LOST, rank, rank, line);
}

void dp_negotiator_abort(dp_negotiator_t *n, dp_status_t status, const char *text, uint64_t now_ns)
{
    char name[DP_RANK_TEXT_MAX], line[DP_ERROR_TEXT_MAX];

    if (!is_alive(n, now_ns)) return;
    if (status == DP_OK) status = DP_ERR_ABORTED;
    if (text == NULL || text[0] == '\0') text = "no reason given";
    snprintf(line, sizeof(line), "%s%s: %s", dp_rank_text(n, n->rank, name),
             status == DP_ERR_ABORTED ? " aborted" : "", text);
    dp_fatal(n, status, n->rank, -1, line);
}

void dp_negotiator_tick(dp_negotiator_t *n, uint64_t now_ns)
{
    if (is_alive(n, now_ns)) dp_stall_tick(n);
}

void dp_negotiator_progress(dp_negotiator_t *n, const char *text)
{
    snprintf(n->progress, sizeof(n->progress), "%s", text != NULL ? text : "");
}

/* ---- Outputs ---------------------------------------------------------------------------- */

int dp_negotiator_output(dp_negotiator_t *n, dp_output_t *out)
{
    if (!n->is_fatal) {
        dp_agree_flush(n);
        dp_outbox_close_down(n);
        dp_stall_flush(n);
        dp_outbox_close_down(n);
        dp_outbox_up(n);
    }
    return dp_outbox_take(n, out);
}

uint64_t dp_negotiator_deadline(const dp_negotiator_t *n)
{
    uint64_t deadline, release;

    if (n->is_fatal || n->is_finished) return UINT64_MAX;
    deadline = dp_stall_deadline(n);
    if (n->complete.count == 0) return deadline;
    release = n->complete_since_ns > UINT64_MAX - n->hold_ns ? UINT64_MAX
                                                             : n->complete_since_ns + n->hold_ns;
    return DP_MIN(deadline, release);
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

/* The row an item speaks of; NULL: the world has ended. */
static dp_row_t *row_of(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_row_t *row;

    if (item->id != DP_ID_NONE) {
        row = dp_table_by_id(&n->table, item->id);
        if (row == NULL) dp_fatal_protocol(n, from, "no tensor has id %" PRIu32, item->id);
        return row;
    }
    row = dp_table_get(&n->table, item->name);
    if (row == NULL) dp_fatal_memory(n);
    return row;
}

/* No rank may announce the next occurrence: it needs one that has left. */
static int is_closed_for(const dp_negotiator_t *n, const dp_row_t *row)
{
    return n->is_closed && !row->is_kept;
}

/* Was this said before its sender knew how the occurrence ended that it speaks of? */
static int is_stale(const dp_negotiator_t *n, const dp_row_t *row, uint64_t position)
{
    return position < row->done_position ||
           (is_closed_for(n, row) && position < n->closed_position);
}

/* READY and MISMATCH: a child says each once per occurrence. 0: not to be looked at. */
static int is_new_word(dp_negotiator_t *n, int from, int child, const dp_row_t *row,
                       uint64_t position)
{
    int is_old = is_stale(n, row, position);

    if (is_old && (n->is_closed || row->ended_in_failure)) return 0;
    if (is_old || is_closed_for(n, row) || dp_bit_get(row->heard, child) ||
        dp_bit_get(n->fins, child)) {
        dp_fatal_protocol(n, from, "tensor %s announced out of turn", row->name);
        return 0;
    }
    return 1;
}

static void receive_ready(dp_negotiator_t *n, int from, int child, dp_item_t *item,
                          uint64_t position)
{
    dp_row_t *row = row_of(n, from, item);
    dp_arrival_t arrival = {child,
                            from,
                            NULL,
                            (item->flags & DP_FLAG_IN_PLACE) != 0,
                            (item->flags & DP_FLAG_URGENT) != 0,
                            item->absmax};

    if (row == NULL || !is_new_word(n, from, child, row, position)) return;
    if (item->version != row->version) {
        dp_fatal_protocol(n, from, "tensor %s announced in version %u, it is in %u here", row->name,
                          item->version, row->version);
        return;
    }
    if (item->signature == NULL && row->signature == NULL) {
        dp_fatal_protocol(n, from, "tensor %s announced without a signature", row->name);
        return;
    }
    arrival.signature = item->signature;
    item->signature = NULL;
    dp_agree_arrive(n, row, &arrival);
}

static void receive_mismatch(dp_negotiator_t *n, int from, int child, dp_item_t *item,
                             uint64_t position)
{
    dp_row_t *row = row_of(n, from, item);

    if (row == NULL || !is_new_word(n, from, child, row, position)) return;
    dp_agree_mismatch(n, row, child, item);
}

static void receive_partial(dp_negotiator_t *n, int from, int child, const dp_item_t *item,
                            uint64_t position)
{
    dp_row_t *row = row_of(n, from, item);
    uint64_t age_ns = DP_MIN(item->age_ns, n->now_ns);

    if (row == NULL || is_closed_for(n, row) || is_stale(n, row, position)) return;
    if (dp_bit_get(row->heard, child)) {
        dp_fatal_protocol(n, from, "tensor %s is ready there and yet waited for", row->name);
        return;
    }
    dp_agree_pending(n, row, n->now_ns - age_ns);
}

static void receive_urgent(dp_negotiator_t *n, int from, const dp_item_t *item, uint64_t position)
{
    dp_row_t *row = row_of(n, from, item);

    if (row != NULL && !is_stale(n, row, position)) dp_agree_urgent(n, row);
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

static void receive_leaver(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_row_t *row;

    if (item->rank < 0 || item->rank >= n->size) {
        dp_fatal_protocol(n, from, "there is no rank %d to leave", item->rank);
    } else if (item->kind == DP_ITEM_LEFT) {
        dp_agree_left(n, item->rank);
    } else {
        row = row_of(n, from, item);
        if (row != NULL) dp_agree_keep(n, item->rank, item->position, row);
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
        receive_mismatch(n, from, child, item, position);
        break;
    case DP_ITEM_URGENT:
        receive_urgent(n, from, item, position);
        break;
    case DP_ITEM_PARTIAL:
        receive_partial(n, from, child, item, position);
        break;
    case DP_ITEM_KEEP:
    case DP_ITEM_LEFT:
        receive_leaver(n, from, item);
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

/* ---- Frames from the parent ------------------------------------------------------------- */

/* The row that a LAUNCH entry or FAILURE names, after a new id was given; NULL: the world ended. */
static dp_row_t *named_row(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_row_t *row;

    if (!(item->flags & DP_FLAG_NAME)) {
        row = dp_table_by_id(&n->table, item->id);
        if (row == NULL) dp_fatal_protocol(n, from, "no tensor has id %" PRIu32, item->id);
        return row;
    }
    row = dp_table_get(&n->table, item->name);
    if (row == NULL) {
        dp_fatal_memory(n);
        return NULL;
    }
    if (row->id != DP_ID_NONE || item->id != n->table.id_count) {
        dp_fatal_protocol(n, from, "tensor %s cannot have id %" PRIu32, item->name, item->id);
        return NULL;
    }
    if (dp_table_assign(&n->table, row) != DP_OK) {
        dp_fatal_memory(n);
        return NULL;
    }
    return row;
}

static void receive_launch(dp_negotiator_t *n, int from, dp_item_t *item, dp_reader_t *reader)
{
    uint64_t sequence = item->sequence;
    uint32_t count = item->count;
    size_t entry_begin = n->entry_count;

    if (sequence != n->sequence + 1) {
        dp_fatal_protocol(n, from, "launch %" PRIu64 " after %" PRIu64, sequence, n->sequence);
        return;
    }
    for (uint32_t i = 0; i < count && !n->is_fatal; i++) {
        dp_row_t *row;

        if (dp_item_read_entry(reader, item) != DP_OK) {
            dp_fatal_protocol(n, from, "malformed launch");
            return;
        }
        row = named_row(n, from, item);
        if (row == NULL) return;
        if (!row->is_own || !row->is_announced || row->is_mismatched) {
            dp_fatal_protocol(n, from, "launch of tensor %s, which was not announced", row->name);
            return;
        }
        dp_agree_launch(n, row, (item->flags & DP_FLAG_IN_PLACE) != 0, item->absmax);
    }
    dp_agree_launched(n, sequence, entry_begin);
}

static void receive_failure(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_row_t *row = named_row(n, from, item);

    if (row != NULL) dp_agree_fail(n, row, item->status, item->text);
}

static void receive_keep(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_row_t *row = row_of(n, from, item);

    if (row == NULL) return;
    row->keep_position = n->position + 1;
    n->keeps++;
}

static void receive_closed(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    if (item->rank >= 0 && item->rank < n->size && item->count == n->keeps) {
        dp_agree_close(n, item->rank);
    } else {
        dp_fatal_protocol(n, from, "closed by rank %d, keeping %" PRIu32 " tensors of %" PRIu32,
                          item->rank, item->count, n->keeps);
    }
}

static void receive_bye(dp_negotiator_t *n, int from)
{
    if (n->fin_sent) {
        dp_agree_bye(n);
    } else {
        dp_fatal_protocol(n, from, "goodbye before this rank finalized");
    }
}

static void receive_who(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_row_t *row = row_of(n, from, item);

    if (row != NULL) dp_stall_who(n, item, row);
}

/* item was read from bytes at `begin` of the reader on; what all ranks must see goes on down. */
static void receive_from_parent(dp_negotiator_t *n, int from, dp_item_t *item, dp_reader_t *reader,
                                size_t begin)
{
    uint64_t position = n->position; /* before this item counts */

    /* What goes up from here on was said knowing this item. */
    if (item->kind == DP_ITEM_FAILURE || item->kind == DP_ITEM_CLOSED) dp_outbox_close_up(n);
    switch (item->kind) {
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
    case DP_ITEM_BYE:
        receive_bye(n, from);
        break;
    case DP_ITEM_WHO:
        receive_who(n, from, item);
        return;
    case DP_ITEM_WARN:
        dp_outbox_warn(n, item->text);
        break;
    default:
        dp_fatal_protocol(n, from, "item %d comes from a child only", item->kind);
        break;
    }
    if (!n->is_fatal) dp_outbox_down_bytes(n, position, reader->data + begin, reader->at - begin);
}

/* ---- Frames ----------------------------------------------------------------------------- */

static int check_header(dp_negotiator_t *n, int from, int child, dp_reader_t *reader,
                        dp_frame_header_t *header)
{
    int version;
    dp_status_t status = dp_frame_read_header(reader, header, &version);

    if (status == DP_ERR_UNSUPPORTED) {
        dp_fatal_protocol(n, from, "it speaks version %d, this rank %d", version, DP_FRAME_VERSION);
    } else if (status != DP_OK || header->generation != 0 || header->epoch != 0) {
        dp_fatal_protocol(n, from, "malformed header");
    } else if (header->position == DP_POSITION_NONE) {
        return 1; /* the loop lets nothing but FATAL pass */
    } else if (child < 0 && header->position != n->position) {
        dp_fatal_protocol(n, from, "frame for position %" PRIu64 ", this rank is at %" PRIu64,
                          header->position, n->position);
    } else if (child >= 0 &&
               (header->position > n->position || header->position < n->child_position[child])) {
        dp_fatal_protocol(n, from,
                          "frame from position %" PRIu64 ", not in %" PRIu64 " to %" PRIu64,
                          header->position, n->child_position[child], n->position);
    }
    if (!n->is_fatal && child >= 0) n->child_position[child] = header->position;
    return !n->is_fatal;
}

dp_status_t dp_negotiator_message(dp_negotiator_t *n, int from, const void *data, size_t bytes,
                                  uint64_t now_ns)
{
    int child = child_index(n, from);
    dp_item_t *item = &n->item;
    dp_frame_header_t header = {0, 0, 0};
    dp_reader_t reader;

    if (!is_alive(n, now_ns)) return DP_OK;
    dp_reader_init(&reader, data, bytes);
    if (child < 0 && (from != n->parent || from < 0)) {
        dp_fatal_protocol(n, from, "it is no neighbour of rank %d", n->rank);
    } else if (bytes > DP_MESSAGE_MAX) {
        dp_fatal_protocol(n, from, "a message of %zu bytes, the limit is %zu", bytes,
                          DP_MESSAGE_MAX);
    } else {
        check_header(n, from, child, &reader, &header);
    }
    while (!n->is_fatal && !n->is_finished && dp_reader_left(&reader) > 0) {
        size_t begin = reader.at;
        dp_status_t status = dp_item_read(&reader, item);

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
    return n->is_fatal && n->fatal_status == DP_ERR_NO_MEMORY && n->fatal_culprit == n->rank
               ? DP_ERR_NO_MEMORY
               : DP_OK;
}
