/*
 * contest.c - a group to be made whose name is used with two lists of ranks at once.
 *
 * Lists differ, so a node may have announced that all of one list are ready when it hears of
 * another one below it. It says CONTEST, which comes back as a FAILURE for both, unless the root
 * has launched the first meanwhile. Then the second list stands as the first word of the next
 * occurrence: whoever said it is not told of that launch and does not say it again. So what comes
 * behind READY is kept here until the occurrence is over. So is PARTIAL, which a child says once.
 */
#include "coordinator/negotiator/negotiator_internal.h"

#include <stdlib.h>
#include <string.h>

static void destroy(dp_contest_t *contest)
{
    if (contest == NULL) return;
    free(contest->signature[0]);
    free(contest->signature[1]);
    free(contest->list);
    free(contest);
}

static void append(dp_row_t *row, dp_contest_t *contest)
{
    dp_contest_t **end = &row->contests;

    while (*end != NULL)
        end = &(*end)->next;
    contest->next = NULL;
    *end = contest;
}

/* NULL: the world has ended. */
static dp_contest_t *keep(dp_negotiator_t *n, dp_row_t *row, dp_item_kind_t kind, int slot)
{
    dp_contest_t *contest = n->is_fatal ? NULL : calloc(1, sizeof(*contest));

    if (contest == NULL) {
        dp_fatal_memory(n);
        return NULL;
    }
    contest->kind = kind;
    contest->slot = slot;
    append(row, contest);
    return contest;
}

/* This node has announced one list, here is another. */
static void contest_list(dp_negotiator_t *n, dp_row_t *row, int slot, int rank,
                         const dp_signature_t *signature)
{
    const int ranks[2] = {row->first_rank, rank};
    const dp_signature_t *signatures[2] = {dp_row_signature(row), signature};

    dp_bit_set(row->heard, slot);
    if (!row->is_mismatched && !dp_signature_equal(signatures[0], signature))
        dp_agree_conflict(n, row, ranks, signatures);
}

void dp_contest_arrive(dp_negotiator_t *n, dp_row_t *row, const dp_arrival_t *arrival)
{
    dp_contest_t *contest = NULL;

    contest_list(n, row, arrival->slot, arrival->rank, arrival->signature);
    /* This rank's own request stays in the row. */
    if (arrival->slot != dp_own_slot(n)) contest = keep(n, row, DP_ITEM_READY, arrival->slot);
    if (contest == NULL) {
        free(arrival->signature);
        return;
    }
    contest->rank[0] = arrival->rank;
    contest->signature[0] = arrival->signature;
}

void dp_contest_mismatch(dp_negotiator_t *n, dp_row_t *row, int slot, const int rank[2],
                         const dp_signature_t *const signature[2])
{
    dp_contest_t *contest;

    contest_list(n, row, slot, rank[0], signature[0]);
    contest = keep(n, row, signature[1] != NULL ? DP_ITEM_MISMATCH : DP_ITEM_LACKS, slot);
    for (int i = 0; i < 2 && contest != NULL && !n->is_fatal; i++) {
        contest->rank[i] = rank[i];
        if (signature[i] == NULL) continue;
        contest->signature[i] = dp_signature_copy(signature[i]);
        if (contest->signature[i] == NULL) dp_fatal_memory(n);
    }
}

static void pend(dp_negotiator_t *n, dp_row_t *row, const int32_t *list, uint32_t count,
                 uint64_t first_ns)
{
    if (!row->is_pending && dp_row_set_list(n, row, list, count) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    dp_agree_pending(n, row, first_ns);
}

void dp_contest_partial(dp_negotiator_t *n, dp_row_t *row, int slot, const dp_item_t *item,
                        uint64_t first_ns)
{
    dp_contest_t *contest;

    dp_contest_heard(row, slot);
    contest = keep(n, row, DP_ITEM_PARTIAL, slot);
    if (contest == NULL) return;
    contest->list = malloc(item->list_count * sizeof(*contest->list));
    if (contest->list == NULL) {
        dp_fatal_memory(n);
        return;
    }
    memcpy(contest->list, item->list, item->list_count * sizeof(*contest->list));
    contest->list_count = item->list_count;
    contest->first_ns = first_ns;
    pend(n, row, item->list, item->list_count, first_ns);
}

void dp_contest_heard(dp_row_t *row, int slot)
{
    dp_contest_t **at = &row->contests;

    while (*at != NULL) {
        dp_contest_t *contest = *at;

        if (contest->slot == slot) {
            *at = contest->next;
            destroy(contest);
        } else {
            at = &contest->next;
        }
    }
}

/* As the first words of the next occurrence. */
static void say_again(dp_negotiator_t *n, dp_row_t *row, dp_contest_t *contest)
{
    const dp_signature_t *signatures[2] = {contest->signature[0], contest->signature[1]};
    dp_arrival_t arrival = {.slot = contest->slot,
                            .rank = contest->rank[0],
                            .signature = contest->signature[0],
                            .is_urgent = 1};

    if (contest->kind == DP_ITEM_READY) {
        contest->signature[0] = NULL; /* taken */
        dp_agree_arrive(n, row, &arrival);
    } else {
        dp_agree_mismatch(n, row, contest->slot, contest->rank, signatures);
    }
    destroy(contest);
}

void dp_contest_over(dp_negotiator_t *n, dp_row_t *row)
{
    dp_contest_t *contest = row->contests, *next;

    row->contests = NULL;
    for (; contest != NULL; contest = next) {
        next = contest->next;
        if (n->is_fatal || dp_bit_get(n->targets, contest->slot)) {
            destroy(contest);
        } else if (contest->kind == DP_ITEM_PARTIAL) {
            append(row, contest);
            pend(n, row, contest->list, contest->list_count, contest->first_ns);
        } else {
            say_again(n, row, contest);
        }
    }
}

void dp_contest_drop(dp_row_t *row)
{
    while (row->contests != NULL) {
        dp_contest_t *next = row->contests->next;

        destroy(row->contests);
        row->contests = next;
    }
}
