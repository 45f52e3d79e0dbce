/*
 * leave.c - ranks that submit nothing more, and the tensors that can never be launched for it.
 *
 * A rank that finalizes says LEFT, and before it KEEP for each operation it has pending: these it
 * has submitted, every other tensor of its groups lacks it for ever. The root orders CLOSED for
 * each of these groups, with the tensors that all leavers so far have kept. At that position every
 * rank draws the same conclusion: what is pending there and not kept fails here and now, and so
 * does every later submission. A leaver that changes nothing in a group is not told about: in a
 * program that waits for its operations before it finalizes CLOSED comes once.
 *
 * A send needs two ranks only, a group to be made its members. The node at which one of them is
 * ready and the other known to have left says LACKS, and the root lets it fail.
 */
#include "coordinator/negotiator/negotiator_internal.h"

#include <stdio.h>
#include <stdlib.h>

#define NAMED_MAX 4 /* ranks in a text */

/* ---- What requests fail with ------------------------------------------------------------ */

static void refusal_text(const dp_negotiator_t *n, const dp_row_t *row,
                         char text[DP_ERROR_TEXT_MAX])
{
    int leaver = row->closed_by >= 0 ? row->closed_by : row->scope->closed_rank;
    char left[DP_RANK_TEXT_MAX], own[DP_RANK_TEXT_MAX], what[DP_ROW_TEXT_MAX];

    snprintf(text, DP_ERROR_TEXT_MAX, "%s finalized before it submitted %s; %s had submitted it",
             dp_rank_text(n, leaver, left), dp_row_text(row, what), dp_rank_text(n, n->rank, own));
}

/* A request whose tensor needs a rank that has left. */
void dp_leave_refuse(dp_negotiator_t *n, const dp_row_t *row, void *request)
{
    char text[DP_ERROR_TEXT_MAX];

    refusal_text(n, row, text);
    dp_outbox_fail(n, request, DP_ERR_LEFT, text);
}

void dp_leave_end(dp_negotiator_t *n, dp_row_t *row)
{
    char text[DP_ERROR_TEXT_MAX];

    refusal_text(n, row, text);
    dp_agree_refuse_own(n, row, DP_ERR_LEFT, text);
}

void dp_leave_refuse_join(dp_negotiator_t *n, const dp_scope_t *scope, void *request)
{
    char left[DP_RANK_TEXT_MAX], own[DP_RANK_TEXT_MAX], text[DP_ERROR_TEXT_MAX];

    snprintf(text, sizeof(text), "%s finalized before all of %s%s had joined; %s had joined",
             dp_rank_text(n, scope->closed_rank, left),
             scope->uid == DP_GROUP_WORLD ? "the world" : "group ", scope->name,
             dp_rank_text(n, n->rank, own));
    dp_outbox_fail(n, request, DP_ERR_LEFT, text);
}

/* ---- Sends, and groups to be made ------------------------------------------------------- */

/* A leaver may have submitted its half of a send: then its slot is ready, as READY comes first. A
 * group is not made for members that have left. */
static int is_lacking(const dp_negotiator_t *n, const dp_row_t *row, int rank)
{
    if (!dp_bit_get(n->left, rank)) return 0;
    return row->scope == NULL || !dp_bit_get(row->heard, dp_slot_of(n, rank));
}

void dp_leave_check(dp_negotiator_t *n, dp_row_t *row)
{
    const int pair[2] = {row->root, row->peer};
    uint32_t count = row->scope != NULL ? 2 : row->list_count;

    if (n->left_count == 0 || !row->is_pending || row->first_rank < 0) return;
    for (uint32_t i = 0; i < count; i++) {
        int rank = row->scope != NULL ? dp_scope_rank(row->scope, pair[i]) : row->list[i];

        if (!is_lacking(n, row, rank)) continue;
        dp_agree_lacks(n, row, rank);
        return;
    }
}

static void check_all(dp_negotiator_t *n)
{
    for (size_t i = 0; i < n->table.row_count && !n->is_fatal; i++) {
        if (n->table.rows[i]->own_expect != NULL) dp_leave_check(n, n->table.rows[i]);
    }
}

/* ---- What leavers keep ------------------------------------------------------------------ */

static void remember(dp_negotiator_t *n, int rank, uint64_t position, dp_row_t *row)
{
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

/* position: of the last ordered item the leaver had seen when it said so. */
void dp_leave_keep(dp_negotiator_t *n, int rank, uint64_t position, dp_row_t *row)
{
    if (position < row->done_position) return; /* what it waits for is on its way there */
    if (row->own_expect != NULL) return;       /* that is decided where its READY is */
    if (dp_is_root(n)) {
        remember(n, rank, position, row);
    } else {
        dp_word_t word = {.kind = DP_ITEM_KEEP, .rank = rank, .row = row, .position = position};

        dp_outbox_say(n, &word);
    }
}

static void forget_leaver(dp_negotiator_t *n, int rank)
{
    size_t left = 0;

    for (size_t i = 0; i < n->kept_count; i++) {
        if (n->kept[i].rank != rank) n->kept[left++] = n->kept[i];
    }
    n->kept_count = left;
}

/* The row is going. */
void dp_leave_forget(dp_negotiator_t *n, const dp_row_t *row)
{
    size_t left = 0;

    for (size_t i = 0; i < n->kept_count; i++) {
        if (n->kept[i].row != row) n->kept[left++] = n->kept[i];
    }
    n->kept_count = left;
    left = 0;
    for (size_t i = 0; i < n->word_count; i++) {
        if (n->words[i].row != row) n->words[left++] = n->words[i];
    }
    n->word_count = left;
}

/* ---- The root closes groups ------------------------------------------------------------- */

/* How many tensors of a group its leavers keep. */
static uint32_t count_kept(const dp_negotiator_t *n, const dp_scope_t *scope)
{
    uint32_t kept = 0;

    for (size_t i = 0; scope->is_closed && i < n->table.row_count; i++) {
        if (n->table.rows[i]->scope == scope) kept += (uint32_t)n->table.rows[i]->is_kept;
    }
    return kept;
}

/* Marks with the position of the CLOSED to come what this leaver keeps and all before it kept;
 * returns how many. */
static uint32_t mark(dp_negotiator_t *n, const dp_scope_t *scope, int rank)
{
    uint32_t marked = 0;

    for (size_t i = 0; i < n->kept_count; i++) {
        dp_row_t *row = n->kept[i].row;

        if (n->kept[i].rank != rank || row->scope != scope) continue;
        if (row->keep_position == n->position + 1) continue; /* once is enough */
        if (scope->is_closed && !row->is_kept) continue;
        if (n->kept[i].position < row->done_position) continue; /* launched meanwhile */
        row->keep_position = n->position + 1;
        marked++;
    }
    return marked;
}

static void order_closed(dp_negotiator_t *n, dp_scope_t *scope, int rank)
{
    uint32_t marked = mark(n, scope, rank), written = 0;
    uint64_t position = n->position + 1;

    if (scope->is_closed && marked == count_kept(n, scope)) {
        /* Nothing changes. What was marked is not for a CLOSED that another leaver brings. */
        for (size_t i = 0; i < n->kept_count; i++) {
            dp_row_t *row = n->kept[i].row;

            if (row->keep_position == position) row->keep_position = 0;
        }
        return;
    }
    for (size_t i = 0; i < n->table.row_count && !n->is_fatal; i++) {
        dp_row_t *row = n->table.rows[i];

        if (row->scope != scope || row->keep_position != position) continue;
        dp_item_ref(&n->made, DP_ITEM_KEEP, row);
        n->made.rank = rank;
        n->made.position = 0;
        dp_outbox_down(n, scope->expect, &n->made, 0);
        written++;
    }
    n->made.kind = DP_ITEM_CLOSED;
    n->made.group = scope->uid;
    n->made.rank = rank;
    n->made.count = written;
    n->made.list_count = 0;
    dp_outbox_down(n, scope->expect, &n->made, 1);
    if (!n->is_fatal) dp_leave_close(n, scope, rank);
}

void dp_leave_left(dp_negotiator_t *n, int rank)
{
    if (!dp_bit_get(n->left, rank)) n->left_count++;
    if (!dp_is_root(n)) {
        dp_word_t word = {.kind = DP_ITEM_LEFT, .rank = rank};

        dp_bit_set(n->left, rank);
        dp_outbox_say(n, &word);
        check_all(n);
        return;
    }
    dp_order_release(n); /* complete, so the leaver had submitted them too */
    if (n->left_interval_ns == 0) {
        n->left_first_ns = n->now_ns;
        n->left_interval_ns = n->stall_warn_ns;
        n->left_report_ns = n->now_ns + n->stall_warn_ns;
    }
    dp_bit_set(n->left, rank);
    check_all(n);
    if (!n->is_fatal) order_closed(n, n->world, rank);
    for (size_t i = 0; i < n->group_count && !n->is_fatal; i++) {
        if (dp_scope_index(n->groups[i], rank) >= 0) order_closed(n, n->groups[i], rank);
    }
    forget_leaver(n, rank);
}

/* CLOSED, on every rank that it concerns. Rows that its KEEPs named carry its position. */
void dp_leave_close(dp_negotiator_t *n, dp_scope_t *scope, int rank)
{
    int is_first = !scope->is_closed;

    n->position++;
    scope->closed_position = n->position;
    n->keeps = 0;
    if (is_first) scope->closed_rank = rank;
    scope->is_closed = 1;
    for (size_t i = 0; i < n->table.row_count && !n->is_fatal; i++) {
        dp_row_t *row = n->table.rows[i];
        int was_possible = is_first || row->is_kept;

        if (row->scope != scope || row->own_expect != NULL) continue;
        row->is_kept = was_possible && row->keep_position == n->position;
        if (row->is_kept || !was_possible) continue;
        row->closed_by = rank;
        dp_leave_end(n, row);
        dp_agree_end(n, row, n->position, 1);
    }
    if (!scope->has_join || n->is_fatal) return;
    scope->has_join = 0;
    n->own_pending--;
    dp_leave_refuse_join(n, scope, scope->join_request);
}

/* ---- Who does not leave ----------------------------------------------------------------- */

/* Some ranks wait in dp_finalize() for others. No error, however long it takes: these may have work
 * of their own. But worth a word, as a rank that never comes looks like a job that hangs. */
static int waits_for_leavers(const dp_negotiator_t *n)
{
    return dp_is_root(n) && !n->is_fatal && n->left_interval_ns != 0 && n->left_count < n->size;
}

void dp_leave_tick(dp_negotiator_t *n)
{
    char text[DP_ERROR_TEXT_MAX], name[DP_RANK_TEXT_MAX];
    int length, named = 0;

    if (!waits_for_leavers(n) || n->now_ns < n->left_report_ns) return;
    length = snprintf(text, sizeof(text),
                      "%d of %d ranks have waited in dp_finalize() for %.1f s; not there yet:",
                      n->left_count, n->size, (double)(n->now_ns - n->left_first_ns) / 1e9);
    for (int rank = 0; rank < n->size && named <= NAMED_MAX; rank++) {
        if (dp_bit_get(n->left, rank)) continue;
        length +=
            snprintf(text + length, sizeof(text) - (size_t)length, "%s %s", named == 0 ? "" : ",",
                     named < NAMED_MAX ? dp_rank_text(n, rank, name) : "...");
        if ((size_t)length >= sizeof(text)) break;
        named++;
    }
    dp_outbox_warn(n, text);
    n->left_report_ns = n->now_ns + n->left_interval_ns;
    n->left_interval_ns *= 2;
}

uint64_t dp_leave_deadline(const dp_negotiator_t *n)
{
    return waits_for_leavers(n) ? n->left_report_ns : UINT64_MAX;
}

/* ---- This rank leaves ------------------------------------------------------------------- */

static void leave(dp_negotiator_t *n)
{
    n->has_left = 1;
    for (size_t i = 0; i < n->table.row_count && !n->is_fatal; i++) {
        dp_row_t *row = n->table.rows[i];

        if (row->is_own) dp_leave_keep(n, n->rank, n->position, row);
    }
    if (!n->is_fatal) dp_leave_left(n, n->rank);
}

void dp_leave_flush(dp_negotiator_t *n)
{
    /* Not while others would take what this rank has launched for something it lacks. */
    if (n->is_finalizing && !n->has_left && !n->lock.is_scheduled && n->lock.shadows == 0) leave(n);
}

int dp_leave_is_over(const dp_negotiator_t *n)
{
    return n->has_left && n->own_pending == 0 && n->lock.debts == 0 && n->lock.shadows == 0 &&
           n->deferred_count == 0 && n->fin_count == n->child_count && !n->fin_sent;
}
