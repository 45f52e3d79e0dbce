/*
 * negotiator.c - the public functions of the state machine: inputs of this rank, outputs for it.
 *
 * A submission is checked here against what this rank has submitted before; whether the other ranks
 * agree is for agree.c. Every input is ignored after a fatal error, and once all ranks have
 * finalized.
 *
 * Called by coordinator/loop, on the thread that owns progress, and by the simulator; negotiator.h
 * is the contract.
 */
#include "coordinator/negotiator/negotiator.h"

#include "coordinator/negotiator/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A MISMATCH carries two signatures, and has to fit in a frame. */
#define SIGNATURE_BYTES_MAX (DP_MESSAGE_MAX / 4)

/* ---- Life ----------------------------------------------------------------------------------- */

static dp_status_t init_parts(dp_negotiator_t *n, const dp_negotiator_options_t *options)
{
    const dp_tree_links_t *links = options->links;
    size_t count = (size_t)links->child_count;
    dp_status_t status;

    n->rank = options->rank;
    n->size = options->size;
    n->topology = options->topology;
    n->parent = links->parent;
    n->child_count = links->child_count;
    dp_order_init(n, options->hold_ns, options->fusion_bytes);
    /* One element more, as an empty allocation may be NULL. */
    n->children = calloc(count + 1, sizeof(*n->children));
    n->child_position = calloc(count + 1, sizeof(*n->child_position));
    if (n->children == NULL || n->child_position == NULL) return DP_ERR_NO_MEMORY;
    if (count > 0) memcpy(n->children, links->children, count * sizeof(*n->children));
    status = dp_table_init(&n->table, links->child_count + 1, options->names_kept);
    if (status != DP_OK) return status;
    status = dp_group_views_init(n, links->arity);
    if (status != DP_OK) return status;
    status = dp_leave_init(n, options->stall_warn_ns, options->finalize_limit_ns);
    if (status != DP_OK) return status;
    status = dp_stall_init(n, options->stall_warn_ns, options->stall_limit_ns);
    return status == DP_OK ? dp_outbox_init(n) : status;
}

dp_status_t dp_negotiator_create(const dp_negotiator_options_t *options, dp_negotiator_t **out)
{
    dp_negotiator_t *n = calloc(1, sizeof(*n));
    dp_status_t status;

    if (n == NULL) return DP_ERR_NO_MEMORY;
    status = init_parts(n, options);
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
    dp_outbox_fini(n);
    dp_stall_fini(n);
    dp_table_fini(&n->table);
    dp_group_views_fini(n);
    dp_own_fini(n);
    dp_order_fini(n);
    dp_leave_fini(n);
    free(n->child_position);
    free(n->children);
    free(n);
}

/* Takes note of the time; 0 when nothing matters any more. */
static int is_alive(dp_negotiator_t *n, uint64_t now_ns)
{
    n->now_ns = dp_max(n->now_ns, now_ns);
    return !n->is_fatal && !n->is_finished;
}

/* ---- Inputs of this rank -------------------------------------------------------------------- */

/* The oldest occurrence that failed without this rank is the one it submits now. */
static void hand_refusal(dp_negotiator_t *n, dp_entry_t *entry, void *request)
{
    dp_refusal_t *refusal = dp_entry_take_refusal(entry);

    dp_outbox_fail(n, request, refusal->status, refusal->text);
    free(refusal);
}

/* Ranks of the world, ascending, this one among them. */
static int is_list_valid(const dp_negotiator_t *n, const dp_signature_t *signature)
{
    int has_own = 0;

    for (uint32_t i = 0; i < signature->member_count; i++) {
        int rank = signature->members[i];

        if (rank < 0 || rank >= n->size) return 0;
        if (i > 0 && rank <= signature->members[i - 1]) return 0;
        if (rank == n->rank) has_own = 1;
    }
    return has_own;
}

/* Is the signature one that this rank may bring to the group? view: NULL: a group to be made. */
static int is_possible(const dp_negotiator_t *n, const dp_group_view_t *view,
                       const dp_signature_t *signature)
{
    int is_create = signature->collective == DP_COLLECTIVE_GROUP_CREATE;

    if (is_create != (view == NULL)) return 0;
    if (dp_signature_bytes(signature) > SIGNATURE_BYTES_MAX) return 0;
    if (is_create) return is_list_valid(n, signature);
    if (view->own < 0 || signature->member_count > 0) return 0;
    if (signature->part_count > DP_GROUPED_MAX &&
        signature->collective != DP_COLLECTIVE_REDUCE_SCATTERV)
        return 0;
    if (signature->collective == DP_COLLECTIVE_GROUP_DESTROY) return view->uid != DP_GROUP_WORLD;
    if (signature->collective != DP_COLLECTIVE_SEND) return 1;
    return signature->root != signature->peer && dp_group_view_rank(view, signature->root) >= 0 &&
           dp_group_view_rank(view, signature->peer) >= 0 &&
           (signature->root == view->own || signature->peer == view->own);
}

static dp_status_t check_submission(const dp_negotiator_t *n, const dp_group_view_t *view,
                                    const dp_submission_t *submission)
{
    dp_collective_t collective = submission->signature->collective;
    size_t bytes =
        collective != DP_COLLECTIVE_JOIN ? strnlen(submission->name, DP_ENTRY_NAME_MAX + 1) : 1;

    if (view == NULL && submission->group != DP_GROUP_UNBORN) return DP_ERR_INVALID;
    if (bytes == 0 || bytes > DP_ENTRY_NAME_MAX) return DP_ERR_INVALID;
    if (!is_possible(n, view, submission->signature)) return DP_ERR_INVALID;
    if (n->leave.is_finalizing) return DP_ERR_ORDER;
    if (view == NULL) return DP_OK;
    if (view->ending != NULL) return DP_ERR_ORDER;
    return collective == DP_COLLECTIVE_GROUP_DESTROY && view->own_pending > 0 ? DP_ERR_ORDER
                                                                              : DP_OK;
}

static void submit_join(dp_negotiator_t *n, dp_group_view_t *view, void *request)
{
    if (view->is_closed) {
        dp_leave_refuse_join(n, view, request);
        dp_join_refused(n, view);
    } else {
        dp_join_own(n, view, request);
    }
}

/* The key of a submission's entry: a send's is its two ranks'. */
static dp_key_t key_of(const dp_submission_t *submission)
{
    const dp_signature_t *signature = submission->signature;
    int is_send = signature->collective == DP_COLLECTIVE_SEND;
    dp_key_t key = {submission->group, is_send ? signature->root : -1,
                    is_send ? signature->peer : -1, submission->name};

    return key;
}

/* Has this rank joined the group? Once another rank has left it, the join no longer counts, except
 * for sends: there the other ranks still count this one as absent. */
static int is_join_in_force(const dp_negotiator_t *n, const dp_group_view_t *view,
                            const dp_key_t *key)
{
    if (view == NULL || !dp_join_has_own(n, view)) return 0;
    return !view->is_closed || key->root >= 0;
}

/* 1: the occurrence has failed before this rank submitted it, or needs a rank that has left. The
 * request fails with the reason. */
static int is_refused(dp_negotiator_t *n, dp_entry_t *entry, void *request)
{
    const dp_group_view_t *view = entry->view;

    if (entry->ended.refusals != NULL) {
        hand_refusal(n, entry, request);
        return 1;
    }
    if (entry->own_expect == NULL && view->is_closed &&
        (!entry->leave.is_kept || dp_join_is_joined(view, n->rank))) {
        dp_leave_refuse(n, entry, request);
        return 1;
    }
    return 0;
}

dp_status_t dp_negotiator_submit(dp_negotiator_t *n, const dp_submission_t *submission,
                                 uint64_t now_ns)
{
    dp_group_view_t *view = dp_group_view_find(n, submission->group);
    dp_key_t key = key_of(submission);
    dp_status_t status;
    dp_entry_t *entry;

    if (!is_alive(n, now_ns)) return n->is_fatal ? n->fatal.status : DP_ERR_ORDER;
    status = check_submission(n, view, submission);
    if (status != DP_OK) return status;
    if (is_join_in_force(n, view, &key)) return DP_ERR_ORDER;
    if (submission->signature->collective == DP_COLLECTIVE_JOIN) {
        submit_join(n, view, submission->request);
        return n->is_fatal ? n->fatal.status : DP_OK;
    }
    entry = dp_entry_get(n, &key, view);
    if (entry == NULL) goto no_memory;
    if (entry->own.is_there) return DP_ERR_BUSY;
    if (!is_refused(n, entry, submission->request) && dp_own_submit(n, entry, submission) != DP_OK)
        goto no_memory;
    return n->is_fatal ? n->fatal.status : DP_OK;
no_memory:
    dp_fatal_memory(n);
    return DP_ERR_NO_MEMORY;
}

void dp_negotiator_urgent(dp_negotiator_t *n, uint32_t group, const char *name, uint64_t now_ns)
{
    dp_entry_t *entry;

    if (!is_alive(n, now_ns)) return;
    entry = dp_table_next(&n->table, group, name, NULL);
    for (; entry != NULL; entry = dp_table_next(&n->table, group, name, entry))
        dp_own_urgent(n, entry);
}

void dp_negotiator_launch_done(dp_negotiator_t *n, uint64_t sequence, uint64_t now_ns)
{
    if (is_alive(n, now_ns)) dp_order_finished(n, sequence);
}

void dp_negotiator_finalize(dp_negotiator_t *n, uint64_t now_ns)
{
    if (is_alive(n, now_ns)) dp_leave_begin(n);
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

void dp_negotiator_blame(dp_negotiator_t *n, dp_status_t status, int culprit, const char *text,
                         uint64_t now_ns)
{
    if (is_alive(n, now_ns)) dp_fatal(n, status, culprit, -1, text);
}

void dp_negotiator_tick(dp_negotiator_t *n, uint64_t now_ns)
{
    if (!is_alive(n, now_ns)) return;
    dp_own_tick(n);
    dp_stall_tick(n);
    dp_leave_tick(n);
}

void dp_negotiator_progress(dp_negotiator_t *n, const char *text)
{
    snprintf(n->progress, sizeof(n->progress), "%s", text != NULL ? text : "");
}

/* ---- Outputs -------------------------------------------------------------------------------- */

/* LEFT first: it closes groups, and a tensor of a closed group must not be launched. BYE last. */
static void order_due(dp_negotiator_t *n)
{
    if (n->leave.is_finalizing) dp_leave_flush(n);
    if (dp_is_root(n)) dp_order_flush(n);
    if (n->leave.has_left && dp_is_root(n)) dp_leave_finish(n);
}

/* Turns what is due into frames and outputs, in the one order; inputs only change state. Where
 * nothing is due a step does nothing, so a second call right after the first leaves everything as
 * it is. The order is part of the protocol's proof: if it is changed, the explorer finds a case
 * that breaks. */
static void flush_due(dp_negotiator_t *n)
{
    /* 1. A submission that outlived an occurrence is announced before any step that ends the next.
     */
    dp_own_flush(n);
    /* 2. JOIN follows what its rank has submitted before; joined ranks complete tensors. */
    if (n->join.is_due) dp_join_flush(n);
    /* 3. LEFT, then what is complete is ordered, then BYE. */
    order_due(n);
    /* 4. An occurrence that has just ended may have left a submission; what that completes is
     *    ordered in the same flush. */
    dp_own_flush(n);
    order_due(n);
    /* 5. Ordered items leave before questions about tensors that these items may end. */
    dp_outbox_close_down(n);
    dp_stall_flush(n);
    dp_outbox_close_down(n);
    /* 6. Last, as each step above may have news for the parent: one frame takes them all. FIN is
     *    the last that a subtree sends. */
    dp_outbox_up(n);
    if (n->leave.has_left && !dp_is_root(n)) dp_leave_finish(n);
    dp_outbox_close_up(n);
}

int dp_negotiator_output(dp_negotiator_t *n, dp_output_t *out)
{
    if (!n->is_fatal) flush_due(n);
    return dp_outbox_take(n, out);
}

uint64_t dp_negotiator_deadline(const dp_negotiator_t *n)
{
    if (n->is_fatal || n->is_finished) return UINT64_MAX;
    return dp_min(dp_min(dp_stall_deadline(n), dp_leave_deadline(n)),
                  dp_min(dp_order_deadline(n), dp_own_deadline(n)));
}

dp_status_t dp_negotiator_message(dp_negotiator_t *n, int from, const void *data, size_t bytes,
                                  uint64_t now_ns)
{
    return is_alive(n, now_ns) ? dp_receive(n, from, data, bytes) : DP_OK;
}
