/*
 * group_view.h - a group as one rank of the tree sees it. group_view.c makes and ends views; the
 * fields from `is_closed` and from `joined` on, and own_pending and ending, are of the files named.
 *
 * A *branch* of a rank is a source of arrivals: branch i is child i with all ranks below it, branch
 * child_count is the rank itself. A rank keeps a view of the groups that have a member at or below
 * it, and of no others.
 */
#ifndef DP_COORDINATOR_GROUP_VIEW_H
#define DP_COORDINATOR_GROUP_VIEW_H

#include "coordinator/negotiator/negotiator.h"

struct dp_entry;

/* Bitmaps of 64-bit words: a bit for each branch, member or rank. */
static inline int dp_bit_get(const uint64_t *bits, int bit)
{
    return (int)(bits[bit / 64] >> (bit % 64) & 1u);
}

static inline void dp_bit_set(uint64_t *bits, int bit)
{
    bits[bit / 64] |= (uint64_t)1 << (bit % 64);
}

static inline size_t dp_bit_words(size_t bits)
{
    return (bits + 63) / 64;
}

typedef struct dp_group_view {
    uint32_t uid;
    uint32_t group_index;             /* the data plane's small number, 1 .. DP_GROUPS_MAX */
    char name[DP_GROUP_NAME_MAX + 1]; /* for texts; empty: the world */
    const int32_t *members;           /* [member_count] ascending; NULL: every rank */
    uint32_t member_count;
    int own;           /* this rank's number in the group, -1: not a member */
    uint64_t *expect;  /* a bit per branch: it has members */
    uint32_t expected; /* how many branches have */
    uint32_t *below;   /* [branches] members there */

    /* agree.c */
    size_t own_pending;            /* submissions of this rank not handed back */
    const struct dp_entry *ending; /* this rank's group_destroy that is pending */

    /* leave.c */
    int is_closed, closed_rank; /* CLOSED was ordered; the first member to leave */
    uint64_t closed_position;   /* of the last CLOSED */

    /* leave.c; what arrived since the last JOINED */
    uint64_t *joined; /* a bit per member */
    uint32_t joined_count;
    uint32_t *joined_below; /* [branches] */
    int *joined_rank;       /* [branches] one of them, -1 */
    int last_joined;        /* rank of the world */
    int has_join;           /* this rank's request is pending */
    int is_join_said;       /* it was counted here and announced to the parent */
    int is_join_due;        /* it was refused, but others must not wait for this rank */
    void *join_request;
} dp_group_view_t;

/* The views of one rank. */
typedef struct dp_group_views {
    dp_group_view_t **views; /* [count] by ascending uid; the world is not among them */
    size_t count, room;
    uint32_t last_uid; /* of the last group made */
} dp_group_views_t;

dp_status_t dp_group_views_init(dp_negotiator_t *n, int arity);
void dp_group_views_fini(dp_negotiator_t *n);
void dp_group_view_remove(dp_negotiator_t *n, dp_group_view_t *view); /* its entries are gone */
dp_group_view_t *dp_group_view_find(const dp_negotiator_t *n, uint32_t uid); /* NULL: unknown */
/* members: NULL: all. NULL: out of memory. */
dp_group_view_t *dp_group_view_make(dp_negotiator_t *n, uint32_t uid, uint32_t group_index,
                                    const char *name, const int32_t *members, uint32_t count);
int dp_group_view_index(const dp_group_view_t *view, int rank); /* in the group; -1: none */
int dp_group_view_rank(const dp_group_view_t *view, int index); /* of the world; -1: none */
int dp_branch_of(const dp_negotiator_t *n, int rank);           /* -1: not below this rank */
/* Sets the bits of the branches that a list of ranks lies in; returns how many. */
uint32_t dp_branches_of_list(const dp_negotiator_t *n, const int32_t *list, uint32_t count,
                             uint64_t *branches);

#endif
