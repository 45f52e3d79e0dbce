/*
 * leave.c - ranks that submit nothing more, and the tensors that can never be launched for it.
 *
 * A rank that finalizes says LEFT at once, and before it KEEP for each operation it has pending:
 * these it has submitted, every other tensor lacks it for ever. The root orders CLOSED with the
 * tensors that all leavers so far have kept. At that position every rank draws the same conclusion:
 * what is pending and not kept fails here and now, and so does every later submission.
 *
 * A node passes a leaver on only if it keeps less than all leavers before it. In a program that
 * waits for its operations before it finalizes nothing is kept, and the first LEFT says it all.
 */
#include "coordinator/negotiator_internal.h"

#include <stdio.h>
#include <stdlib.h>

/* What a request fails with whose tensor needs a rank that has left. */
void dp_agree_refuse_closed(dp_negotiator_t *n, const dp_row_t *row, void *request)
{
    int leaver = row->closed_by >= 0 ? row->closed_by : n->closed_rank;
    char left[DP_RANK_TEXT_MAX], own[DP_RANK_TEXT_MAX], text[DP_ERROR_TEXT_MAX];

    snprintf(text, sizeof(text), "%s finalized before it submitted tensor %s; %s had submitted it",
             dp_rank_text(n, leaver, left), row->name, dp_rank_text(n, n->rank, own));
    dp_outbox_fail(n, request, DP_ERR_LEFT, text);
}

/* ---- What leavers keep ------------------------------------------------------------------ */

/* position: ordered items the leaver had seen when it said so. */
void dp_agree_keep(dp_negotiator_t *n, int rank, uint64_t position, dp_row_t *row)
{
    if (position < row->done_position) return; /* what it waits for is on its way there */
    if (n->kept_count == n->kept_room) {
        size_t room = n->kept_room > 0 ? n->kept_room * 2 : 64;
        dp_keep_t *grown = realloc(n->kept, room * sizeof(*grown));

        if (grown == NULL) {
            dp_fatal_memory(n);
            return;
        }
        n->kept = grown;
        n->kept_room = room;
    }
    n->kept[n->kept_count++] = (dp_keep_t){rank, position, row};
}

/* Marks what this leaver keeps and all before it kept; returns how many. */
static uint32_t mark(dp_negotiator_t *n, int rank)
{
    uint32_t marked = 0;

    for (size_t i = 0; i < n->kept_count; i++) {
        dp_row_t *row = n->kept[i].row;

        if (n->kept[i].rank != rank || row->is_marked) continue;
        if (n->has_leaver && !row->is_offered) continue;
        if (n->kept[i].position < row->done_position) continue; /* launched meanwhile */
        row->is_marked = 1;
        marked++;
    }
    return marked;
}

/* Towards the root, or from it. */
static void send(dp_negotiator_t *n, const dp_item_t *item)
{
    if (dp_is_root(n)) {
        dp_outbox_down(n, item);
    } else {
        dp_outbox_up_item(n, item);
    }
}

static void write_keep(dp_negotiator_t *n, int rank, uint64_t position, const dp_row_t *row)
{
    dp_item_t *item = &n->made;

    dp_item_ref(item, DP_ITEM_KEEP, row);
    item->rank = rank;
    item->position = position;
    send(n, item);
}

/* Towards the root, and from there, as CLOSED, to everybody. */
static void pass_on(dp_negotiator_t *n, int rank, uint32_t marked)
{
    dp_item_t *item = &n->made;

    for (size_t i = 0; i < n->kept_count && !n->is_fatal; i++) {
        const dp_keep_t *keep = &n->kept[i];

        if (keep->rank != rank || keep->row->is_marked != 1) continue;
        keep->row->is_marked = 2; /* once is enough, whatever a child said */
        keep->row->keep_position = dp_is_root(n) ? n->position + 1 : keep->row->keep_position;
        write_keep(n, rank, dp_is_root(n) ? 0 : keep->position, keep->row);
    }
    item->kind = dp_is_root(n) ? DP_ITEM_CLOSED : DP_ITEM_LEFT;
    item->rank = rank;
    item->count = marked;
    send(n, item);
}

/* Takes over the marks, and forgets the leaver's keeps. */
static void accept(dp_negotiator_t *n, int rank, int is_news)
{
    size_t left = 0;

    for (size_t i = 0; i < n->table.row_count; i++) {
        dp_row_t *row = n->table.rows[i];

        if (is_news) row->is_offered = row->is_marked != 0;
        row->is_marked = 0;
    }
    for (size_t i = 0; i < n->kept_count; i++) {
        if (n->kept[i].rank != rank) n->kept[left++] = n->kept[i];
    }
    n->kept_count = left;
    n->has_leaver = 1;
}

void dp_agree_left(dp_negotiator_t *n, int rank)
{
    uint32_t marked, offered = 0;
    int is_news;

    if (dp_is_root(n)) dp_agree_release(n); /* complete, so the leaver had submitted them too */
    if (n->is_fatal) return;
    marked = mark(n, rank);
    for (size_t i = 0; i < n->table.row_count; i++) {
        offered += (uint32_t)n->table.rows[i]->is_offered;
    }
    is_news = !n->has_leaver || marked < offered;
    if (is_news) pass_on(n, rank, marked);
    accept(n, rank, is_news);
    if (is_news && dp_is_root(n) && !n->is_fatal) dp_agree_close(n, rank);
}

/* CLOSED, on every rank. Rows that its KEEPs named carry its position. */
void dp_agree_close(dp_negotiator_t *n, int rank)
{
    int is_first = !n->is_closed;

    n->position++;
    n->closed_position = n->position;
    n->keeps = 0;
    if (is_first) n->closed_rank = rank;
    n->is_closed = 1;
    for (size_t i = 0; i < n->table.row_count && !n->is_fatal; i++) {
        dp_row_t *row = n->table.rows[i];
        int was_possible = is_first || row->is_kept;

        row->is_kept = was_possible && row->keep_position == n->position;
        row->is_offered = row->is_kept && (row->is_offered || !n->has_leaver);
        if (row->is_kept || !was_possible) continue;
        row->closed_by = rank;
        if (row->is_own) dp_agree_refuse_closed(n, row, row->request);
        dp_agree_end(n, row, n->position, 1);
    }
    n->has_leaver = 1;
}

/* This rank leaves. */
static void leave(dp_negotiator_t *n)
{
    n->has_left = 1;
    for (size_t i = 0; i < n->table.row_count && !n->is_fatal; i++) {
        dp_row_t *row = n->table.rows[i];

        if (row->is_own) dp_agree_keep(n, n->rank, n->position, row);
    }
    if (!n->is_fatal) dp_agree_left(n, n->rank);
}

void dp_leave_flush(dp_negotiator_t *n)
{
    if (n->is_finalizing && !n->has_left) leave(n);
    if (dp_is_root(n) || n->is_fatal || n->fin_sent) return;
    if (!n->has_left || n->own_pending > 0 || n->fin_count < n->child_count) return;
    n->fin_sent = 1;
    n->made.kind = DP_ITEM_FIN;
    dp_outbox_up_item(n, &n->made);
}
