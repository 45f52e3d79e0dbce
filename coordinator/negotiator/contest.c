/*
 * contest.c - a group to be made whose name is used with two lists of ranks at once.
 *
 * Lists differ, so a rank may have announced that all of one list are ready when it hears of
 * another one below it. It sends CONTEST, which the root answers with a FAILURE for both, unless it
 * has launched the first list meanwhile. In that case the second list is the first announcement of
 * the next occurrence: its ranks are not told of the launch and do not announce it again. So what
 * arrives after READY went up is kept here until the occurrence is over, and so is PARTIAL, which a
 * child sends once. Called by agree.c and receive.c, on the thread that drives the negotiator.
 */
#include "coordinator/negotiator/contest.h"

#include "coordinator/negotiator/state.h"

#include <stdlib.h>
#include <string.h>

static void append_contest(dp_entry_t *entry, dp_contest_t *contest)
{
    dp_contest_t **end = &entry->making.contests;

    while (*end != NULL)
        end = &(*end)->next;
    contest->next = NULL;
    *end = contest;
}

/* NULL: a fatal error was raised. */
static dp_contest_t *keep_contest(dp_negotiator_t *n, dp_entry_t *entry, dp_item_kind_t kind,
                                  int branch)
{
    dp_contest_t *contest = n->is_fatal ? NULL : calloc(1, sizeof(*contest));

    if (contest == NULL) {
        dp_fatal_memory(n);
        return NULL;
    }
    contest->kind = kind;
    contest->branch = branch;
    append_contest(entry, contest);
    return contest;
}

/* This rank has announced one list, and another one has arrived. */
static void note_other_list(dp_negotiator_t *n, dp_entry_t *entry, int branch, int rank,
                            const dp_signature_t *signature)
{
    const int ranks[2] = {entry->arrived.first_rank, rank};
    const dp_signature_t *signatures[2] = {dp_entry_signature(entry), signature};

    dp_agree_hear(entry, branch);
    if (!entry->arrived.is_mismatched && !dp_signature_equal(signatures[0], signature))
        dp_agree_conflict(n, entry, ranks, signatures);
}

void dp_contest_arrive(dp_negotiator_t *n, dp_entry_t *entry, const dp_arrival_t *arrival)
{
    dp_contest_t *contest = NULL;

    note_other_list(n, entry, arrival->branch, arrival->rank, arrival->signature);
    /* This rank's own request stays in the entry. */
    if (arrival->branch != dp_own_branch(n))
        contest = keep_contest(n, entry, DP_ITEM_READY, arrival->branch);
    if (contest == NULL) {
        free(arrival->signature);
        return;
    }
    contest->rank[0] = arrival->rank;
    contest->signature[0] = arrival->signature;
}

void dp_contest_mismatch(dp_negotiator_t *n, dp_entry_t *entry, int branch, const int rank[2],
                         const dp_signature_t *const signature[2])
{
    dp_contest_t *contest;

    note_other_list(n, entry, branch, rank[0], signature[0]);
    contest =
        keep_contest(n, entry, signature[1] != NULL ? DP_ITEM_MISMATCH : DP_ITEM_LACKS, branch);
    for (int i = 0; i < 2 && contest != NULL && !n->is_fatal; i++) {
        contest->rank[i] = rank[i];
        if (signature[i] == NULL) continue;
        contest->signature[i] = dp_signature_copy(signature[i]);
        if (contest->signature[i] == NULL) dp_fatal_memory(n);
    }
}

static void mark_pending(dp_negotiator_t *n, dp_entry_t *entry, const int32_t *list, uint32_t count,
                         uint64_t first_ns)
{
    if (!entry->is_pending && dp_entry_set_list(n, entry, list, count) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    dp_agree_pending(n, entry, first_ns);
}

void dp_contest_partial(dp_negotiator_t *n, dp_entry_t *entry, int branch, const dp_item_t *item,
                        uint64_t first_ns)
{
    dp_contest_t *contest;

    dp_contest_heard(entry, branch);
    contest = keep_contest(n, entry, DP_ITEM_PARTIAL, branch);
    if (contest == NULL) return;
    contest->list = malloc(item->list_count * sizeof(*contest->list));
    if (contest->list == NULL) {
        dp_fatal_memory(n);
        return;
    }
    memcpy(contest->list, item->list, item->list_count * sizeof(*contest->list));
    contest->list_count = item->list_count;
    contest->first_ns = first_ns;
    mark_pending(n, entry, item->list, item->list_count, first_ns);
}

int dp_contest_is_partial(const dp_entry_t *entry, int branch)
{
    const dp_contest_t *contest = entry->making.contests;

    while (contest != NULL && (contest->branch != branch || contest->kind != DP_ITEM_PARTIAL))
        contest = contest->next;
    return contest != NULL;
}

void dp_contest_heard(dp_entry_t *entry, int branch)
{
    dp_contest_t **at = &entry->making.contests;

    while (*at != NULL) {
        dp_contest_t *contest = *at;

        if (contest->branch == branch) {
            *at = contest->next;
            dp_contest_destroy(contest);
        } else {
            at = &contest->next;
        }
    }
}

/* As the first announcement of the next occurrence. */
static void replay_contest(dp_negotiator_t *n, dp_entry_t *entry, dp_contest_t *contest)
{
    const dp_signature_t *signatures[2] = {contest->signature[0], contest->signature[1]};
    dp_arrival_t arrival = {.branch = contest->branch,
                            .rank = contest->rank[0],
                            .signature = contest->signature[0],
                            .is_urgent = 1};

    if (contest->kind == DP_ITEM_READY) {
        contest->signature[0] = NULL; /* taken */
        dp_agree_arrive(n, entry, &arrival);
    } else {
        dp_agree_mismatch(n, entry, contest->branch, contest->rank, signatures);
    }
    dp_contest_destroy(contest);
}

void dp_contest_over(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_contest_t *contest = entry->making.contests, *next;

    entry->making.contests = NULL;
    for (; contest != NULL; contest = next) {
        next = contest->next;
        if (n->is_fatal || dp_bit_get(n->targets, contest->branch)) {
            dp_contest_destroy(contest);
        } else if (contest->kind == DP_ITEM_PARTIAL) {
            append_contest(entry, contest);
            mark_pending(n, entry, contest->list, contest->list_count, contest->first_ns);
        } else {
            replay_contest(n, entry, contest);
        }
    }
}

void dp_contest_ended(dp_negotiator_t *n, dp_entry_t *entry, uint64_t position)
{
    for (int i = 0; i < n->child_count; i++) {
        if (dp_bit_get(n->targets, i)) entry->making.ended_for[i] = position;
    }
}
