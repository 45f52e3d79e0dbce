/*
 * outbox.c - what leaves the negotiator: frames for neighbours, outputs for this rank, fatal
 * errors.
 *
 *   ordered items, questions -> down (open frame) -+
 *   news, notices            -> up (open frame)   -+-> frames (closed, in order) -> OUTPUT_SEND
 *   launches, failures, ...  -> outputs ------------------------------> OUTPUT_LAUNCH, _FAIL, ...
 *
 * Frames are made when outputs are taken, not when inputs come, so that whatever many inputs caused
 * travels as one message per edge. Frames and arrays are reused: steady state allocates nothing.
 * Called by all files of the negotiator, on the thread that drives it; it knows no rules.
 */
#include "coordinator/negotiator/outbox.h"

#include "coordinator/negotiator/state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRAME_ROOM_MIN 1024 /* fits a FATAL: the frame kept for it never grows */
#define FIRST_OUTPUTS 64
#define SEEK_BYTES 9

/* ---- Frames --------------------------------------------------------------------------------- */

static dp_status_t frame_reserve(dp_out_frame_t *frame, size_t bytes)
{
    size_t room = dp_max(frame->room, FRAME_ROOM_MIN);
    uint8_t *grown;

    if (frame->bytes + bytes <= frame->room) return DP_OK;
    while (room < frame->bytes + bytes)
        room *= 2;
    grown = realloc(frame->data, room);
    if (grown == NULL) return DP_ERR_NO_MEMORY;
    frame->data = grown;
    frame->room = room;
    return DP_OK;
}

static void frame_destroy(dp_out_frame_t *frame)
{
    if (frame == NULL) return;
    free(frame->data);
    free(frame);
}

static void destroy_all(dp_out_frame_t *frame)
{
    while (frame != NULL) {
        dp_out_frame_t *next = frame->next;

        frame_destroy(frame);
        frame = next;
    }
}

static void frame_begin(dp_out_frame_t *frame, int target, uint64_t position)
{
    const dp_frame_header_t header = {position};
    dp_writer_t writer;

    frame->next = NULL;
    frame->target = target;
    frame->except = -1;
    frame->cursor = 0;
    dp_writer_init(&writer, frame->data, frame->room);
    dp_frame_write_header(&writer, &header);
    frame->bytes = writer.bytes;
}

/* A frame with a header and nothing else. */
static dp_out_frame_t *frame_open(dp_negotiator_t *n, int target, uint64_t position)
{
    dp_out_frame_t *frame = n->out.spare;

    if (frame != NULL) {
        n->out.spare = frame->next;
    } else {
        frame = calloc(1, sizeof(*frame) + n->table.bit_words * sizeof(*frame->children));
    }
    if (frame == NULL) return NULL;
    frame->bytes = 0;
    if (frame_reserve(frame, DP_FRAME_HEADER_BYTES) != DP_OK) {
        frame_destroy(frame);
        return NULL;
    }
    frame_begin(frame, target, position);
    return frame;
}

static void frame_queue(dp_negotiator_t *n, dp_out_frame_t *frame)
{
    frame->next = NULL;
    *n->out.frames_end = frame;
    n->out.frames_end = &frame->next;
}

static void close_open(dp_negotiator_t *n, dp_out_frame_t **open)
{
    if (*open == NULL) return;
    frame_queue(n, *open);
    *open = NULL;
}

/* Makes *open a frame with room for bytes more, at its end the writer. */
static int open_writer(dp_negotiator_t *n, dp_out_frame_t **open, int target, uint64_t position,
                       size_t bytes, dp_writer_t *writer)
{
    if (n->is_fatal) return 0;
    DP_ASSERT(bytes + DP_FRAME_HEADER_BYTES <= DP_MESSAGE_MAX);
    if (*open != NULL && (*open)->bytes + bytes > DP_MESSAGE_MAX) close_open(n, open);
    if (*open == NULL) *open = frame_open(n, target, position);
    if (*open == NULL || frame_reserve(*open, bytes) != DP_OK) {
        dp_fatal_memory(n);
        return 0;
    }
    dp_writer_init(writer, (*open)->data, (*open)->room);
    writer->bytes = (*open)->bytes;
    return 1;
}

/* Children among the branches, in n->out.mask; 0: none. */
static int select_children(dp_negotiator_t *n, const uint64_t *branches)
{
    int own = dp_own_branch(n), found = 0;

    for (size_t i = 0; i < n->table.bit_words; i++) {
        n->out.mask[i] = branches[i];
        if (own / 64 == (int)i) n->out.mask[i] &= ~((uint64_t)1 << (own % 64));
        found |= n->out.mask[i] != 0;
    }
    return found;
}

/* Ranks outside of an item's group must not get it, and each child must get its items in order:
 * items for other children than the last ones begin a new frame. */
int dp_outbox_down_begin(dp_negotiator_t *n, const uint64_t *branches, uint64_t position,
                         size_t bytes, dp_writer_t *writer)
{
    size_t mask_bytes = n->table.bit_words * sizeof(*n->out.mask);
    dp_out_frame_t *open = n->out.down;

    if (!select_children(n, branches)) return 0;
    if (open != NULL && (memcmp(open->children, n->out.mask, mask_bytes) != 0 ||
                         open->bytes + bytes + SEEK_BYTES > DP_MESSAGE_MAX))
        dp_outbox_close_down(n);
    if (n->out.down == NULL) { /* the header says the position */
        if (!open_writer(n, &n->out.down, DP_TO_CHILDREN, position, bytes, writer)) return 0;
        memcpy(n->out.down->children, n->out.mask, mask_bytes);
        n->out.down_position = position;
        return 1;
    }
    if (!open_writer(n, &n->out.down, DP_TO_CHILDREN, position, bytes + SEEK_BYTES, writer))
        return 0;
    if (n->out.down_position == position) return 1;
    dp_write_u8(writer, DP_ITEM_SEEK);
    dp_write_u64(writer, position);
    n->out.down_position = position;
    return 1;
}

void dp_outbox_down_commit(dp_negotiator_t *n, const dp_writer_t *writer, int is_ordered)
{
    DP_ASSERT(!writer->failed);
    n->out.down->bytes = writer->bytes;
    n->out.down_position += (uint64_t)is_ordered;
}

void dp_outbox_down_bytes(dp_negotiator_t *n, const uint64_t *branches, uint64_t position,
                          const void *data, size_t bytes, int is_ordered)
{
    dp_writer_t writer;

    if (!dp_outbox_down_begin(n, branches, position, bytes, &writer)) return;
    dp_write_bytes(&writer, data, bytes);
    dp_outbox_down_commit(n, &writer, is_ordered);
}

void dp_outbox_down(dp_negotiator_t *n, const uint64_t *branches, const dp_item_t *item,
                    int is_ordered)
{
    dp_writer_t writer;

    if (!dp_outbox_down_begin(n, branches, n->position, dp_item_bound(item), &writer)) return;
    dp_item_write(&writer, item);
    dp_outbox_down_commit(n, &writer, is_ordered);
}

void dp_outbox_close_down(dp_negotiator_t *n)
{
    close_open(n, &n->out.down);
}

void dp_outbox_ask(dp_negotiator_t *n, int child, const dp_item_t *item)
{
    dp_out_frame_t *frame = NULL;
    dp_writer_t writer;

    dp_outbox_close_down(n); /* the position in the question's header counts the frame before it */
    if (!open_writer(n, &frame, child, n->position, dp_item_bound(item), &writer)) {
        frame_destroy(frame);
        return;
    }
    dp_item_write(&writer, item);
    frame->bytes = writer.bytes;
    frame_queue(n, frame);
}

/* ---- News for the parent -------------------------------------------------------------------- */

void dp_outbox_close_up(dp_negotiator_t *n)
{
    if (!n->is_fatal) close_open(n, &n->out.up);
}

void dp_outbox_up_item(dp_negotiator_t *n, const dp_item_t *item)
{
    dp_writer_t writer;

    if (!open_writer(n, &n->out.up, DP_TO_PARENT, n->position, dp_item_bound(item), &writer))
        return;
    dp_item_write(&writer, item);
    n->out.up->bytes = writer.bytes;
}

void dp_outbox_news(dp_negotiator_t *n, dp_entry_t *entry)
{
    if (entry->sent.has_news || dp_is_root(n) || n->is_fatal) return;
    if (dp_entry_array_push(&n->out.news, entry) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    entry->sent.has_news = 1;
}

/* READY: what all branches of this rank have brought, merged. The signature travels only if it is
 * not the one that was agreed on last. */
static void announce_ready(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_item_t *item = &n->made;
    unsigned flags = 0;

    if (entry->arrived.in_place) flags |= DP_FLAG_IN_PLACE;
    if (entry->arrived.is_urgent) flags |= DP_FLAG_URGENT;
    if (entry->arrived.proposed != NULL) flags |= DP_FLAG_SIGNATURE;
    if (entry->arrived.absent > 0) flags |= DP_FLAG_ABSENT;
    if (entry->arrived.priority != 0) flags |= DP_FLAG_PRIORITY;
    dp_item_ref(item, DP_ITEM_READY, entry);
    item->absent = entry->arrived.absent;
    item->rank = entry->arrived.absent_rank;
    item->version = entry->version;
    item->flags = (uint8_t)flags;
    item->absmax = entry->arrived.absmax;
    item->priority = entry->arrived.priority;
    item->signature = entry->arrived.proposed;
    entry->sent.is_announced = entry->sent.is_ready = 1;
    entry->sent.is_urgent = entry->arrived.is_urgent;
    dp_outbox_up_item(n, item);
}

/* Behind READY the parent counts this branch as ready already, so what is found then has a message
 * of its own. */
static void announce_conflict(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_item_kind_t first =
        entry->arrived.conflict->signature[1] != NULL ? DP_ITEM_MISMATCH : DP_ITEM_LACKS;
    dp_item_t *item = &n->made;

    dp_item_ref(item, entry->sent.is_ready ? DP_ITEM_CONTEST : first, entry);
    item->rank = entry->arrived.conflict->rank[0];
    item->other_rank = entry->arrived.conflict->rank[1];
    item->signature = entry->arrived.conflict->signature[0];
    item->other = entry->arrived.conflict->signature[1];
    entry->sent.is_announced = entry->sent.is_conflict = 1;
    entry->sent.is_urgent = 1;
    dp_outbox_up_item(n, item);
}

/* Writes the news of an entry that the parent does not have yet. Its state may have moved on since
 * it got news. */
static void announce_news(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_item_t *item = &n->made;

    if (!entry->is_pending) return;
    if (entry->arrived.is_mismatched && !entry->sent.is_conflict) {
        announce_conflict(n, entry);
    } else if (!entry->sent.is_announced && entry->arrived.is_complete) {
        announce_ready(n, entry);
    } else if (entry->sent.is_announced && entry->arrived.is_urgent && !entry->sent.is_urgent) {
        entry->sent.is_urgent = 1;
        dp_item_ref(item, DP_ITEM_URGENT, entry);
        dp_outbox_up_item(n, item);
    } else if (!entry->sent.is_announced && entry->sent.wants_partial && !entry->sent.is_partial) {
        entry->sent.is_partial = 1;
        dp_item_ref(item, DP_ITEM_PARTIAL, entry);
        item->list = entry->making.list;
        item->list_count = entry->making.list_count;
        item->age_ns = n->now_ns - entry->stall.first_ns;
        dp_outbox_up_item(n, item);
    }
    if (entry->sent.wants_expired && !entry->sent.is_expired && !entry->sent.is_conflict) {
        entry->sent.is_expired = 1;
        dp_item_ref(item, DP_ITEM_EXPIRED, entry);
        dp_outbox_up_item(n, item);
    }
}

void dp_outbox_notice(dp_negotiator_t *n, const dp_notice_t *notice)
{
    if (n->is_fatal) return;
    if (n->out.notice_count == n->out.notice_room) {
        size_t room = n->out.notice_room > 0 ? n->out.notice_room * 2 : 16;
        dp_notice_t *grown = realloc(n->out.notices, room * sizeof(*grown));

        if (grown == NULL) {
            dp_fatal_memory(n);
            return;
        }
        n->out.notices = grown;
        n->out.notice_room = room;
    }
    n->out.notices[n->out.notice_count++] = *notice;
}

void dp_outbox_partial(dp_negotiator_t *n, dp_entry_t *entry)
{
    if (entry->sent.wants_partial) return;
    entry->sent.wants_partial = 1;
    dp_outbox_news(n, entry);
}

void dp_outbox_expired(dp_negotiator_t *n, dp_entry_t *entry)
{
    if (!entry->sent.is_announced) dp_outbox_partial(n, entry);
    if (entry->sent.wants_expired) return;
    entry->sent.wants_expired = 1;
    dp_outbox_news(n, entry);
}

int dp_outbox_refers(const dp_negotiator_t *n, const dp_entry_t *entry)
{
    for (size_t i = 0; i < n->out.notice_count; i++) {
        if (n->out.notices[i].entry == entry) return 1;
    }
    return 0;
}

void dp_outbox_forget_notices(dp_negotiator_t *n, const dp_entry_t *entry)
{
    size_t left = 0;

    for (size_t i = 0; i < n->out.notice_count; i++) {
        if (n->out.notices[i].entry != entry) n->out.notices[left++] = n->out.notices[i];
    }
    n->out.notice_count = left;
}

void dp_outbox_forget_news(dp_negotiator_t *n, const dp_entry_t *entry)
{
    dp_entry_array_remove(&n->out.news, entry);
}

static void announce_notices(dp_negotiator_t *n)
{
    dp_item_t *item = &n->made;

    for (size_t i = 0; i < n->out.notice_count && !n->is_fatal; i++) {
        const dp_notice_t *notice = &n->out.notices[i];

        item->list_count = 0;
        DP_ASSERT(notice->entry == NULL || dp_table_has(&n->table, notice->entry));
        if (notice->entry != NULL) dp_item_ref(item, notice->kind, notice->entry);
        item->kind = notice->kind;
        item->rank = notice->rank;
        item->position = notice->position;
        if (notice->kind == DP_ITEM_JOIN) item->group = notice->group;
        dp_outbox_up_item(n, item);
    }
    n->out.notice_count = 0;
}

void dp_outbox_up(dp_negotiator_t *n)
{
    if (dp_is_root(n)) return;
    for (size_t i = 0; i < n->out.news.count && !n->is_fatal; i++) {
        n->out.news.entries[i]->sent.has_news = 0;
        announce_news(n, n->out.news.entries[i]);
    }
    n->out.news.count = 0;
    announce_notices(n);
}

void dp_item_ref(dp_item_t *item, dp_item_kind_t kind, const dp_entry_t *entry)
{
    item->kind = kind;
    item->id = entry->id;
    item->group = dp_entry_group(entry);
    item->root = entry->root;
    item->peer = entry->peer;
    item->name = entry->name;
    item->list = NULL;
    item->list_count = 0;
}

/* ---- Outputs for this rank ------------------------------------------------------------------ */

dp_own_output_t *dp_outbox_output(dp_negotiator_t *n, dp_output_kind_t kind)
{
    dp_own_output_t *output;

    if (n->is_fatal) return NULL;
    if (n->out.output_count == n->out.output_room) {
        size_t room = n->out.output_room > 0 ? n->out.output_room * 2 : FIRST_OUTPUTS;
        dp_own_output_t *grown = realloc(n->out.outputs, room * sizeof(*grown));

        if (grown == NULL) {
            dp_fatal_memory(n);
            return NULL;
        }
        n->out.outputs = grown;
        n->out.output_room = room;
    }
    output = &n->out.outputs[n->out.output_count++];
    memset(output, 0, sizeof(*output));
    output->kind = kind;
    return output;
}

/* Entries of all launches lie in one array until the last output was taken: an output refers to
 * them by index, as the array may move. */
dp_status_t dp_outbox_entry(dp_negotiator_t *n, const dp_launch_entry_t *launch_entry)
{
    if (n->out.launch_entry_count == n->out.launch_entry_room) {
        size_t room = n->out.launch_entry_room > 0 ? n->out.launch_entry_room * 2 : FIRST_OUTPUTS;
        dp_launch_entry_t *grown = realloc(n->out.launch_entries, room * sizeof(*grown));

        if (grown == NULL) return DP_ERR_NO_MEMORY;
        n->out.launch_entries = grown;
        n->out.launch_entry_room = room;
    }
    n->out.launch_entries[n->out.launch_entry_count++] = *launch_entry;
    return DP_OK;
}

dp_own_output_t *dp_outbox_text_output(dp_negotiator_t *n, dp_output_kind_t kind, const char *text)
{
    char *copy = n->is_fatal ? NULL : strdup(text);
    dp_own_output_t *output;

    if (copy == NULL) {
        dp_fatal_memory(n);
        return NULL;
    }
    output = dp_outbox_output(n, kind);
    if (output == NULL) {
        free(copy);
        return NULL;
    }
    output->text = copy;
    return output;
}

void dp_outbox_fail(dp_negotiator_t *n, void *request, dp_status_t status, const char *text)
{
    dp_own_output_t *output = dp_outbox_text_output(n, DP_OUTPUT_FAIL, text);

    if (output == NULL) return;
    output->request = request;
    output->status = status;
}

void dp_outbox_warn(dp_negotiator_t *n, const char *text)
{
    dp_outbox_text_output(n, DP_OUTPUT_WARN, text);
}

static void drop_outputs(dp_negotiator_t *n)
{
    while (n->out.output_next < n->out.output_count)
        free(n->out.outputs[n->out.output_next++].text);
    n->out.output_next = n->out.output_count = n->out.launch_entry_count = 0;
}

/* ---- Taking --------------------------------------------------------------------------------- */

/* The next rank a frame goes to, -1: it has gone everywhere. */
static int next_recipient(const dp_negotiator_t *n, dp_out_frame_t *frame)
{
    int begin = frame->target == DP_TO_CHILDREN ? 0 : -1; /* -1 stands for the parent */
    int end = frame->target == DP_TO_PARENT ? 0 : n->child_count;

    if (frame->target >= 0) return frame->cursor++ == 0 ? frame->target : -1;
    while (begin + frame->cursor < end) {
        int index = begin + frame->cursor++;
        int rank = index < 0 ? n->parent : n->children[index];

        if (rank < 0 || rank == frame->except) continue;
        if (frame->target == DP_TO_CHILDREN && !dp_bit_get(frame->children, index)) continue;
        return rank;
    }
    return -1;
}

static void recycle_frame(dp_negotiator_t *n, dp_out_frame_t *frame)
{
    frame->next = n->out.spare;
    n->out.spare = frame;
}

/* The oldest closed frame, once for each of its recipients. Its memory is reused after the last
 * one. */
static int next_frame(dp_negotiator_t *n, dp_output_t *out)
{
    while (n->out.frames != NULL) {
        dp_out_frame_t *frame = n->out.frames;
        int rank = next_recipient(n, frame);

        if (rank >= 0) {
            out->kind = DP_OUTPUT_SEND;
            out->to = rank;
            out->data = frame->data;
            out->bytes = frame->bytes;
            return 1;
        }
        n->out.frames = frame->next;
        if (n->out.frames == NULL) n->out.frames_end = &n->out.frames;
        recycle_frame(n, frame);
    }
    return 0;
}

static int next_own_output(dp_negotiator_t *n, dp_output_t *out)
{
    dp_own_output_t *output;

    if (n->out.output_next == n->out.output_count) {
        n->out.output_next = n->out.output_count = n->out.launch_entry_count = 0;
        dp_table_free_retired(&n->table);
        return 0;
    }
    output = &n->out.outputs[n->out.output_next++];
    n->out.output_text = output->text;
    out->kind = output->kind;
    out->sequence = output->sequence;
    out->group = output->group;
    out->group_index = output->group_index;
    out->last_rank = output->last_rank;
    if (output->entry_count > 0) out->entries = n->out.launch_entries + output->entry_begin;
    out->entry_count = output->entry_count;
    out->request = output->request;
    out->status = output->status;
    out->text = output->text;
    return 1;
}

/* Frames first: neighbours are further away than the caller, and a fatal error must be on its way
 * to them before the caller is told. */
int dp_outbox_take(dp_negotiator_t *n, dp_output_t *out)
{
    memset(out, 0, sizeof(*out));
    free(n->out.output_text);
    n->out.output_text = NULL;
    if (next_frame(n, out) || next_own_output(n, out)) return 1;
    if (n->is_fatal && !n->fatal.is_told) {
        n->fatal.is_told = 1;
        out->kind = DP_OUTPUT_FATAL;
        out->status = n->fatal.status;
        out->culprit = n->fatal.culprit;
        out->text = n->fatal.text;
        return 1;
    }
    if (n->is_finished && !n->out.finished_told) {
        n->out.finished_told = 1;
        out->kind = DP_OUTPUT_FINISHED;
        return 1;
    }
    return 0;
}

/* ---- Fatal errors --------------------------------------------------------------------------- */

const char *dp_rank_text(const dp_negotiator_t *n, int rank, char text[DP_RANK_TEXT_MAX])
{
    if (rank >= 0 && rank < n->size) {
        snprintf(text, DP_RANK_TEXT_MAX, "rank %d (%s)", rank,
                 n->topology->host_name[n->topology->node[rank]]);
    } else {
        snprintf(text, DP_RANK_TEXT_MAX, "rank %d", rank);
    }
    return text;
}

void dp_fatal(dp_negotiator_t *n, dp_status_t status, int culprit, int except, const char *text)
{
    dp_out_frame_t *frame = n->fatal.frame;
    dp_item_t *item = &n->made;
    dp_writer_t writer;

    if (n->is_fatal || n->is_finished) return;
    n->is_fatal = 1;
    n->fatal.status = status;
    n->fatal.culprit = culprit >= 0 && culprit < n->size ? culprit : -1;
    snprintf(n->fatal.text, sizeof(n->fatal.text), "%s",
             text[0] != '\0' ? text : "no reason given");
    /* The rank sends no more after this, and each request fails with this error. */
    close_open(n, &n->out.up);
    close_open(n, &n->out.down);
    while (n->out.frames != NULL) {
        dp_out_frame_t *next = n->out.frames->next;

        recycle_frame(n, n->out.frames);
        n->out.frames = next;
    }
    n->out.frames_end = &n->out.frames;
    drop_outputs(n);
    item->kind = DP_ITEM_FATAL;
    item->status = status;
    item->rank = n->fatal.culprit;
    item->text = n->fatal.text;
    item->list_count = 0;
    frame_begin(frame, DP_TO_NEIGHBOURS, DP_POSITION_NONE); /* ordered items were dropped */
    frame->except = except;
    dp_writer_init(&writer, frame->data, frame->room);
    writer.bytes = frame->bytes;
    dp_item_write(&writer, item);
    DP_ASSERT(!writer.failed);
    frame->bytes = writer.bytes;
    n->fatal.frame = NULL; /* the queue's now */
    frame_queue(n, frame);
}

void dp_fatal_memory(dp_negotiator_t *n)
{
    char rank[DP_RANK_TEXT_MAX], text[DP_RANK_TEXT_MAX + 32];

    snprintf(text, sizeof(text), "%s: out of memory", dp_rank_text(n, n->rank, rank));
    dp_fatal(n, DP_ERR_NO_MEMORY, n->rank, -1, text);
}

void dp_fatal_protocol(dp_negotiator_t *n, int from, const char *format, ...)
{
    char rank[DP_RANK_TEXT_MAX], text[DP_ERROR_TEXT_MAX];
    va_list arguments;
    size_t bytes;

    snprintf(text, sizeof(text), "%s broke the protocol: ", dp_rank_text(n, from, rank));
    bytes = strlen(text);
    va_start(arguments, format);
    vsnprintf(text + bytes, sizeof(text) - bytes, format, arguments);
    va_end(arguments);
    dp_fatal(n, DP_ERR_ABORTED, from, -1, text);
}

/* ---- Life ----------------------------------------------------------------------------------- */

dp_status_t dp_outbox_init(dp_negotiator_t *n)
{
    n->out.frames_end = &n->out.frames;
    n->out.mask = calloc(n->table.bit_words, sizeof(*n->out.mask));
    n->fatal.frame =
        calloc(1, sizeof(*n->fatal.frame) + n->table.bit_words * sizeof(*n->fatal.frame->children));
    if (n->out.mask == NULL || n->fatal.frame == NULL) return DP_ERR_NO_MEMORY;
    return frame_reserve(n->fatal.frame, FRAME_ROOM_MIN);
}

void dp_outbox_fini(dp_negotiator_t *n)
{
    drop_outputs(n);
    destroy_all(n->out.frames);
    destroy_all(n->out.spare);
    frame_destroy(n->out.up);
    frame_destroy(n->out.down);
    frame_destroy(n->fatal.frame);
    free(n->out.outputs);
    free(n->out.output_text);
    free(n->out.launch_entries);
    free(n->out.news.entries);
    free(n->out.notices);
    free(n->out.mask);
}
