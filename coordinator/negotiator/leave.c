/*
 * leave.c - ranks that give nothing more: to any group, because they finalize (leave), or to one
 * group, because they have no more data for it (join).
 *
 * A rank that finalizes sends LEFT, and before it KEEP for each operation it has pending: these it
 * has submitted, every other tensor of its groups lacks it for ever. The root orders CLOSED for
 * each of these groups, with the tensors that all leavers so far have kept. At that position every
 * rank draws the same conclusion: each tensor that is pending there and not kept fails here and
 * now, and so does every later submission. If a leaver changes nothing in a group, no CLOSED is
 * sent: in a program that waits for its operations before it finalizes, CLOSED comes once.
 *
 * A send needs two ranks only, a group to be made its members. A rank at which one of them is
 * ready, and the other known to have left, sends LACKS, and the root orders a FAILURE.
 *
 * JOIN goes up to the root, which orders JOINED once every member has joined. Until then a branch
 * all of whose ranks have joined counts as ready for every tensor of the group that another rank
 * submits, unless it had announced that occurrence before: on an edge READY comes before the JOIN
 * that follows it. The ranks that are absent are counted on the way up, and LAUNCH carries their
 * number.
 *
 * Called on the thread that drives the negotiator: by negotiator.c for this rank's calls and to
 * send what is due, by receive.c for KEEP, LEFT, CLOSED, JOIN and JOINED, and by agree.c, order.c
 * and stall.c for single questions.
 */
#include "coordinator/negotiator/leave.h"

#include "coordinator/negotiator/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMED_MAX 4 /* ranks in a text */

/* ---- What requests fail with ---------------------------------------------------------------- */

static void refusal_text(const dp_negotiator_t *n, const dp_entry_t *entry,
                         char text[DP_ERROR_TEXT_MAX])
{
    int leaver = entry->leave.closed_by >= 0 ? entry->leave.closed_by : entry->view->closed_rank;
    char left[DP_RANK_TEXT_MAX], own[DP_RANK_TEXT_MAX], what[DP_ENTRY_TEXT_MAX];

    snprintf(text, DP_ERROR_TEXT_MAX, "%s finalized before it submitted %s; %s had submitted it",
             dp_rank_text(n, leaver, left), dp_entry_text(entry, what),
             dp_rank_text(n, n->rank, own));
}

/* A request whose tensor needs a rank that has left. */
void dp_leave_refuse(dp_negotiator_t *n, const dp_entry_t *entry, void *request)
{
    char text[DP_ERROR_TEXT_MAX];

    refusal_text(n, entry, text);
    dp_outbox_fail(n, request, DP_ERR_LEFT, text);
}

void dp_leave_end(dp_negotiator_t *n, dp_entry_t *entry)
{
    char text[DP_ERROR_TEXT_MAX];

    refusal_text(n, entry, text);
    dp_agree_refuse_own(n, entry, DP_ERR_LEFT, text);
}

void dp_leave_refuse_join(dp_negotiator_t *n, const dp_group_view_t *view, void *request)
{
    char left[DP_RANK_TEXT_MAX], own[DP_RANK_TEXT_MAX], text[DP_ERROR_TEXT_MAX];

    snprintf(text, sizeof(text), "%s finalized before all of %s%s had joined; %s had joined",
             dp_rank_text(n, view->closed_rank, left),
             view->uid == DP_GROUP_WORLD ? "the world" : "group ", view->name,
             dp_rank_text(n, n->rank, own));
    dp_outbox_fail(n, request, DP_ERR_LEFT, text);
}

/* Of sends, and of groups to be made. */
static void check_all_entries(dp_negotiator_t *n)
{
    for (size_t i = 0; i < n->table.entry_count && !n->is_fatal; i++) {
        if (n->table.entries[i]->own_expect != NULL) dp_agree_check_left(n, n->table.entries[i]);
    }
}

/* ---- What leavers keep ---------------------------------------------------------------------- */

static void remember_kept(dp_negotiator_t *n, int rank, uint64_t position, dp_entry_t *entry)
{
    if (n->leave.kept_count == n->leave.kept_room) {
        size_t room = n->leave.kept_room > 0 ? n->leave.kept_room * 2 : 64;
        dp_keep_t *grown = realloc(n->leave.kept, room * sizeof(*grown));

        if (grown == NULL) {
            dp_fatal_memory(n);
            return;
        }
        n->leave.kept = grown;
        n->leave.kept_room = room;
    }
    n->leave.kept[n->leave.kept_count++] = (dp_keep_t){rank, position, entry};
}

/* position: of the last ordered item the leaver had seen when it sent LEFT. */
void dp_leave_keep(dp_negotiator_t *n, int rank, uint64_t position, dp_entry_t *entry)
{
    if (position < entry->ended.position) return; /* what it waits for is on its way there */
    if (entry->own_expect != NULL) return;        /* that is decided where its READY is */
    if (dp_is_root(n)) {
        remember_kept(n, rank, position, entry);
    } else {
        dp_notice_t notice = {
            .kind = DP_ITEM_KEEP, .rank = rank, .entry = entry, .position = position};

        dp_outbox_notice(n, &notice);
    }
}

int dp_leave_told_kept(dp_negotiator_t *n, dp_entry_t *entry)
{
    if (entry->view == NULL || (n->leave.keeps > 0 && entry->view != n->leave.keep_view)) return 0;
    entry->leave.keep_position = n->position + 1;
    n->leave.keep_view = entry->view;
    n->leave.keeps++;
    return 1;
}

void dp_leave_occurrence_over(dp_entry_t *entry)
{
    entry->leave.is_kept = 0;
}

static void forget_leaver(dp_negotiator_t *n, int rank)
{
    size_t left = 0;

    for (size_t i = 0; i < n->leave.kept_count; i++) {
        if (n->leave.kept[i].rank != rank) n->leave.kept[left++] = n->leave.kept[i];
    }
    n->leave.kept_count = left;
}

/* ---- The root closes groups ----------------------------------------------------------------- */

/* How many tensors of a group its leavers keep. */
static uint32_t count_kept(const dp_negotiator_t *n, const dp_group_view_t *view)
{
    uint32_t kept = 0;

    for (size_t i = 0; view->is_closed && i < n->table.entry_count; i++) {
        if (n->table.entries[i]->view == view) kept += (uint32_t)n->table.entries[i]->leave.is_kept;
    }
    return kept;
}

/* Marks the tensors that this leaver and all before it keep with the position of the CLOSED to
 * come; returns how many. */
static uint32_t mark_kept(dp_negotiator_t *n, const dp_group_view_t *view, int rank)
{
    uint32_t marked = 0;

    for (size_t i = 0; i < n->leave.kept_count; i++) {
        dp_entry_t *entry = n->leave.kept[i].entry;

        if (n->leave.kept[i].rank != rank || entry->view != view) continue;
        if (entry->leave.keep_position == n->position + 1) continue; /* once is enough */
        if (view->is_closed && !entry->leave.is_kept) continue;
        if (n->leave.kept[i].position < entry->ended.position) continue; /* launched meanwhile */
        entry->leave.keep_position = n->position + 1;
        marked++;
    }
    return marked;
}

/* The root: KEEPs, then CLOSED, as one ordered step. */
static void order_closed(dp_negotiator_t *n, dp_group_view_t *view, int rank)
{
    uint32_t marked = mark_kept(n, view, rank), written = 0;
    uint64_t position = n->position + 1;

    if (view->is_closed && marked == count_kept(n, view)) {
        /* The group stays as it is. Marks made here do not hold for a CLOSED that another leaver
         * brings. */
        for (size_t i = 0; i < n->leave.kept_count; i++) {
            dp_entry_t *entry = n->leave.kept[i].entry;

            if (entry->leave.keep_position == position) entry->leave.keep_position = 0;
        }
        return;
    }
    for (size_t i = 0; i < n->table.entry_count && !n->is_fatal; i++) {
        dp_entry_t *entry = n->table.entries[i];

        if (entry->view != view || entry->leave.keep_position != position) continue;
        dp_item_ref(&n->made, DP_ITEM_KEEP, entry);
        n->made.rank = rank;
        n->made.position = 0;
        dp_outbox_down(n, view->expect, &n->made, 0);
        written++;
    }
    n->made.kind = DP_ITEM_CLOSED;
    n->made.group = view->uid;
    n->made.rank = rank;
    n->made.count = written;
    n->made.list_count = 0;
    dp_outbox_down(n, view->expect, &n->made, 1);
    if (!n->is_fatal) dp_leave_close(n, view, rank);
}

void dp_leave_left(dp_negotiator_t *n, int rank)
{
    if (!dp_bit_get(n->leave.left, rank)) n->leave.left_count++;
    if (!dp_is_root(n)) {
        dp_notice_t notice = {.kind = DP_ITEM_LEFT, .rank = rank};

        dp_bit_set(n->leave.left, rank);
        dp_outbox_notice(n, &notice);
        check_all_entries(n);
        return;
    }
    dp_order_launch_held(n); /* complete, so the leaver had submitted them too */
    if (n->leave.left_count == 1) {
        n->leave.first_ns = n->now_ns;
        n->leave.interval_ns = n->leave.warn_ns;
        if (n->leave.warn_ns > 0) n->leave.report_ns = n->now_ns + n->leave.warn_ns;
    }
    dp_bit_set(n->leave.left, rank);
    check_all_entries(n);
    if (!n->is_fatal) order_closed(n, n->world, rank);
    for (size_t i = 0; i < n->groups.count && !n->is_fatal; i++) {
        if (dp_group_view_index(n->groups.views[i], rank) >= 0)
            order_closed(n, n->groups.views[i], rank);
    }
    forget_leaver(n, rank);
}

/* CLOSED, on every rank that it concerns. Entries that its KEEPs named carry its position. */
void dp_leave_close(dp_negotiator_t *n, dp_group_view_t *view, int rank)
{
    int is_first = !view->is_closed;
    void *request;

    dp_order_advance(n);
    view->closed_position = n->position;
    n->leave.keeps = 0;
    if (is_first) view->closed_rank = rank;
    view->is_closed = 1;
    for (size_t i = 0; i < n->table.entry_count && !n->is_fatal; i++) {
        dp_entry_t *entry = n->table.entries[i];
        int was_possible = is_first || entry->leave.is_kept;

        if (entry->view != view || entry->own_expect != NULL) continue;
        entry->leave.is_kept = was_possible && entry->leave.keep_position == n->position;
        if (entry->leave.is_kept || !was_possible) continue;
        entry->leave.closed_by = rank;
        dp_leave_end(n, entry);
        dp_agree_end(n, entry, n->position, 1);
    }
    if (!n->is_fatal && dp_join_take(n, view, &request)) dp_leave_refuse_join(n, view, request);
}

/* ---- Ranks that do not leave ---------------------------------------------------------------- */

/* Some ranks wait in dp_finalize() for others. No error before DP_FINALIZE_LIMIT, if there is one:
 * these may have work of their own. But it is reported, as a rank that never comes looks like a job
 * that hangs. */
static int waits_for_leavers(const dp_negotiator_t *n)
{
    return dp_is_root(n) && !n->is_fatal && n->leave.left_count > 0 &&
           n->leave.left_count < n->size;
}

static uint64_t leave_limit(const dp_negotiator_t *n)
{
    return n->leave.limit_ns == 0 ? UINT64_MAX : n->leave.first_ns + n->leave.limit_ns;
}

void dp_leave_tick(dp_negotiator_t *n)
{
    char text[DP_ERROR_TEXT_MAX], name[DP_RANK_TEXT_MAX];
    int length, named = 0, first = -1;

    if (!waits_for_leavers(n) || n->now_ns < dp_min(n->leave.report_ns, leave_limit(n))) return;
    length = snprintf(text, sizeof(text),
                      "%d of %d ranks have waited in dp_finalize() for %.1f s; not there yet:",
                      n->leave.left_count, n->size, (double)(n->now_ns - n->leave.first_ns) / 1e9);
    for (int rank = 0; rank < n->size && named <= NAMED_MAX; rank++) {
        if (dp_bit_get(n->leave.left, rank)) continue;
        if (first < 0) first = rank;
        length +=
            snprintf(text + length, sizeof(text) - (size_t)length, "%s %s", named == 0 ? "" : ",",
                     named < NAMED_MAX ? dp_rank_text(n, rank, name) : "...");
        if ((size_t)length >= sizeof(text)) break;
        named++;
    }
    if (n->now_ns >= leave_limit(n)) {
        dp_fatal(n, DP_ERR_TIMEOUT, first, -1, text);
        return;
    }
    dp_outbox_warn(n, text);
    n->leave.report_ns = n->now_ns + n->leave.interval_ns;
    n->leave.interval_ns *= 2;
}

uint64_t dp_leave_deadline(const dp_negotiator_t *n)
{
    return waits_for_leavers(n) ? dp_min(n->leave.report_ns, leave_limit(n)) : UINT64_MAX;
}

/* ---- This rank leaves ----------------------------------------------------------------------- */

/* From here on this rank submits nothing: what it has pending is kept, LEFT comes last. */
static void announce_leave(dp_negotiator_t *n)
{
    n->leave.has_left = 1;
    for (size_t i = 0; i < n->table.entry_count && !n->is_fatal; i++) {
        dp_entry_t *entry = n->table.entries[i];

        if (entry->part.is_submitted) dp_leave_keep(n, n->rank, n->position, entry);
    }
    if (!n->is_fatal) dp_leave_left(n, n->rank);
}

void dp_leave_flush(dp_negotiator_t *n)
{
    if (n->leave.is_finalizing && !n->leave.has_left) announce_leave(n);
}

void dp_leave_begin(dp_negotiator_t *n)
{
    n->leave.is_finalizing = 1;
}

int dp_leave_fin(dp_negotiator_t *n, int child)
{
    if (dp_bit_get(n->leave.fins, child)) return 0;
    dp_bit_set(n->leave.fins, child);
    n->leave.fin_count++;
    return 1;
}

static int is_subtree_over(const dp_negotiator_t *n)
{
    return n->leave.has_left && n->own.pending == 0 && n->leave.fin_count == n->child_count &&
           !n->leave.fin_sent;
}

/* All of this subtree has left, and nothing is pending: FIN to the parent; from the root BYE, when
 * all that is complete has been ordered. */
void dp_leave_finish(dp_negotiator_t *n)
{
    if (!n->leave.has_left || n->is_fatal || n->is_finished) return;
    if (!is_subtree_over(n)) return;
    n->made.list_count = 0;
    if (dp_is_root(n)) {
        n->made.kind = DP_ITEM_BYE;
        dp_outbox_down(n, n->world->expect, &n->made, 1);
        if (!n->is_fatal) dp_agree_bye(n);
    } else {
        n->made.kind = DP_ITEM_FIN;
        n->leave.fin_sent = 1;
        dp_outbox_up_item(n, &n->made);
    }
}

/* ---- What is known of leavers ---------------------------------------------------------------- */

/* A leaver may have submitted its half of a send: then its branch is ready, as READY comes first. A
 * group is not made for members that have left. */
static int is_lacking(const dp_negotiator_t *n, const dp_entry_t *entry, int rank)
{
    if (!dp_bit_get(n->leave.left, rank)) return 0;
    return entry->view == NULL || !dp_bit_get(entry->heard, dp_branch_of(n, rank));
}

int dp_leave_lacking(const dp_negotiator_t *n, const dp_entry_t *entry)
{
    const int pair[2] = {entry->root, entry->peer};
    uint32_t count = entry->view != NULL ? 2 : entry->making.list_count;

    if (n->leave.left_count == 0 || !entry->is_pending || entry->arrived.first_rank < 0) return -1;
    for (uint32_t i = 0; i < count; i++) {
        int rank =
            entry->view != NULL ? dp_group_view_rank(entry->view, pair[i]) : entry->making.list[i];

        if (is_lacking(n, entry, rank)) return rank;
    }
    return -1;
}

int dp_leave_refers(const dp_negotiator_t *n, const dp_entry_t *entry)
{
    for (size_t i = 0; i < n->leave.kept_count; i++) {
        if (n->leave.kept[i].entry == entry) return 1;
    }
    return dp_outbox_refers(n, entry);
}

void dp_leave_forget_entry(dp_negotiator_t *n, const dp_entry_t *entry)
{
    size_t left = 0;

    for (size_t i = 0; i < n->leave.kept_count; i++) {
        if (n->leave.kept[i].entry != entry) n->leave.kept[left++] = n->leave.kept[i];
    }
    n->leave.kept_count = left;
    dp_outbox_forget_notices(n, entry);
}

void dp_leave_forget_view(dp_negotiator_t *n, const dp_group_view_t *view)
{
    if (n->leave.keep_view == view) n->leave.keep_view = NULL;
}

/* ---- Life ----------------------------------------------------------------------------------- */

dp_status_t dp_leave_init(dp_negotiator_t *n, uint64_t warn_ns, uint64_t limit_ns)
{
    n->leave.warn_ns = warn_ns;
    n->leave.limit_ns = limit_ns;
    n->leave.report_ns = UINT64_MAX;
    n->leave.fins = calloc(n->table.bit_words, sizeof(*n->leave.fins));
    n->leave.left = calloc(dp_bit_words((size_t)n->size), sizeof(*n->leave.left));
    return n->leave.fins != NULL && n->leave.left != NULL ? DP_OK : DP_ERR_NO_MEMORY;
}

void dp_leave_fini(dp_negotiator_t *n)
{
    free(n->leave.kept);
    free(n->leave.fins);
    free(n->leave.left);
}

/* ---- Ranks that join ------------------------------------------------------------------------- */

/* The rank counts as absent from here on, for occurrences that its branch has not announced before.
 * Tensors that waited for it alone become complete. */
void dp_join_arrive(dp_negotiator_t *n, dp_group_view_t *view, int rank)
{
    int branch = dp_branch_of(n, rank);

    dp_bit_set(view->joined, dp_group_view_index(view, rank));
    view->joined_count++;
    view->joined_below[branch]++;
    view->joined_rank[branch] = rank;
    view->last_joined = rank;
    if (!dp_is_root(n)) {
        dp_notice_t notice = {.kind = DP_ITEM_JOIN, .rank = rank, .group = view->uid};

        dp_outbox_notice(n, &notice);
    }
    for (size_t i = 0; i < n->table.entry_count && !n->is_fatal; i++) {
        if (n->table.entries[i]->view == view) dp_agree_absent(n, n->table.entries[i]);
    }
    if (!dp_is_root(n) || n->is_fatal || view->is_closed) return;
    if (view->joined_count < view->member_count) return;
    dp_order_launch_held(n); /* they went without ranks that are counted again after this */
    if (n->is_fatal) return;
    n->made.kind = DP_ITEM_JOINED;
    n->made.group = view->uid;
    n->made.rank = view->last_joined;
    n->made.list_count = 0;
    dp_outbox_down(n, view->expect, &n->made, 1);
    if (!n->is_fatal) dp_join_all(n, view, view->last_joined);
}

/* Drops the failures with which this rank's next submissions would end: that it has joined counts
 * as its part in them. */
static void forgive_refusals(dp_negotiator_t *n, const dp_group_view_t *view)
{
    for (size_t i = 0; i < n->table.entry_count; i++) {
        if (n->table.entries[i]->view == view) dp_entry_forgive(n->table.entries[i]);
    }
}

/* This rank has no more data. Tensors that a leaver has kept can still be launched, and go without
 * this rank, as they would have if CLOSED had come a moment later. */
void dp_join_refused(dp_negotiator_t *n, dp_group_view_t *view)
{
    forgive_refusals(n, view);
    if (!dp_join_is_joined(view, n->rank)) view->is_join_due = 1;
    n->join.is_due = 1;
    dp_join_flush(n);
}

void dp_join_own(dp_negotiator_t *n, dp_group_view_t *view, void *request)
{
    forgive_refusals(n, view);
    view->has_join = 1;
    view->is_join_said = 0;
    n->join.is_due = 1;
    view->join_request = request;
    dp_own_count(n, 1);
    dp_join_flush(n);
}

static dp_group_view_t *next_unsaid_join(const dp_negotiator_t *n)
{
    for (size_t i = 0; i <= n->groups.count; i++) {
        dp_group_view_t *view = i < n->groups.count ? n->groups.views[i] : n->world;

        if (view->is_join_due || (view->has_join && !view->is_join_said)) return view;
    }
    return NULL;
}

void dp_join_flush(dp_negotiator_t *n)
{
    dp_group_view_t *view;

    while (!n->is_fatal) {
        view = next_unsaid_join(n);
        n->join.is_due = view != NULL;
        if (view == NULL) return;
        view->is_join_said = 1;
        view->is_join_due = 0;
        dp_join_arrive(n, view, n->rank);
    }
}

static void clear_joined(const dp_negotiator_t *n, dp_group_view_t *view)
{
    memset(view->joined, 0, dp_bit_words(view->member_count) * sizeof(*view->joined));
    memset(view->joined_below, 0, (size_t)n->table.branches * sizeof(*view->joined_below));
    view->joined_count = 0;
    view->last_joined = -1;
}

int dp_join_take(dp_negotiator_t *n, dp_group_view_t *view, void **request)
{
    if (!view->has_join) return 0;
    view->has_join = 0;
    *request = view->join_request;
    dp_own_count(n, -1);
    return 1;
}

/* JOINED, on every rank that it concerns. */
void dp_join_all(dp_negotiator_t *n, dp_group_view_t *view, int last_rank)
{
    dp_own_output_t *output;
    void *request;

    dp_order_advance(n);
    clear_joined(n, view);
    if (!dp_join_take(n, view, &request)) return;
    output = dp_outbox_output(n, DP_OUTPUT_JOINED);
    if (output == NULL) return;
    output->group = view->uid;
    output->request = request;
    output->last_rank = dp_group_view_index(view, last_rank);
}

/* ---- What is known of joined ranks ----------------------------------------------------------- */

int dp_join_is_joined(const dp_group_view_t *view, int rank)
{
    int index = view->joined_count > 0 ? dp_group_view_index(view, rank) : -1;

    return index >= 0 && dp_bit_get(view->joined, index);
}

/* Have all ranks of this branch joined that take part in the tensor? */
int dp_join_covers(const dp_negotiator_t *n, const dp_entry_t *entry, int branch)
{
    const dp_group_view_t *view = entry->view;
    const int pair[2] = {entry->root, entry->peer};

    if (view == NULL) return 0;
    if (entry->root < 0) {
        return view->below[branch] > 0 && view->joined_below[branch] == view->below[branch];
    }
    for (int i = 0; i < 2; i++) {
        int rank = dp_group_view_rank(view, pair[i]);

        if (dp_branch_of(n, rank) == branch && !dp_join_is_joined(view, rank)) return 0;
    }
    return 1;
}

/* One of the ranks in a branch that have joined: the collective's root if it is among them. */
int dp_join_names(const dp_negotiator_t *n, const dp_entry_t *entry, int branch)
{
    const dp_group_view_t *view = entry->view;
    const dp_signature_t *signature = dp_entry_signature(entry);
    const int likely[2] = {dp_group_view_rank(view, signature->root),
                           dp_group_view_rank(view, signature->peer)};

    for (int i = 0; i < 2; i++) {
        if (dp_branch_of(n, likely[i]) == branch && dp_join_is_joined(view, likely[i])) {
            return likely[i];
        }
    }
    return view->joined_rank[branch];
}

/* May this tensor be launched without the ranks that have joined? */
int dp_join_allows(const dp_entry_t *entry)
{
    const dp_signature_t *signature = dp_entry_signature(entry);

    switch (signature->collective) {
    case DP_COLLECTIVE_ALLREDUCE:
    case DP_COLLECTIVE_REDUCE:
    case DP_COLLECTIVE_REDUCE_SCATTER:
    case DP_COLLECTIVE_REDUCE_SCATTERV:
    case DP_COLLECTIVE_ALLGATHER:
    case DP_COLLECTIVE_ALLGATHERV:
    case DP_COLLECTIVE_BROADCAST:
    case DP_COLLECTIVE_BARRIER:
        return signature->root < 0 ||
               dp_group_view_rank(entry->view, signature->root) != entry->arrived.absent_rank;
    default:
        return 0;
    }
}

int dp_join_has_own(const dp_negotiator_t *n, const dp_group_view_t *view)
{
    return view->has_join || dp_join_is_joined(view, n->rank);
}
