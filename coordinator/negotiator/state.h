/*
 * state.h - the state of one negotiator: the parts, and what all of them read.
 *
 * Each part belongs to the file that it is named after. That file alone writes it, and its header
 * says what it owns; the others call its functions, or read. tests/style/doors.py holds that.
 *
 *   negotiator.c    the public inputs and outputs
 *   receive.c       frames from neighbours, and the items in them
 *   agree.c         one tensor: it is submitted, arrives, is complete, is launched or fails
 *   contest.c       two lists of ranks for one group to be made
 *   order.c         the one order, and on the root what is appended, and when
 *   leave.c         ranks that submit nothing more, or have no more data
 *   stall.c         reports the ranks missing for a tensor that waits too long
 *   outbox.c        frames and outputs on their way out, fatal errors
 *   table.c         names, ids, and what is known of each tensor's pending occurrence
 *   group_view.c    groups, and which subtrees take part in what
 *   messages.c      frames and items as bytes; it knows no state
 *   signature.c     what ranks must agree on; likewise
 *
 * Only the files of this folder and the simulator's digest may include this.
 */
#ifndef DP_COORDINATOR_NEGOTIATOR_STATE_H
#define DP_COORDINATOR_NEGOTIATOR_STATE_H

#include "coordinator/negotiator/agree.h"
#include "coordinator/negotiator/contest.h"
#include "coordinator/negotiator/leave.h"
#include "coordinator/negotiator/order.h"
#include "coordinator/negotiator/outbox.h"
#include "coordinator/negotiator/receive.h"
#include "coordinator/negotiator/stall.h"
#include "runtime/transport/transport.h"

struct dp_negotiator {
    int rank, size;
    const dp_topology_t *topology; /* borrowed */
    int parent;                    /* -1: this is the root */
    int child_count;
    int *children;            /* [child_count] ascending */
    int16_t *child_of;        /* [size] branch of a rank, -1: not below; NULL: no children */
    uint64_t *child_position; /* [child_count] the last position in a frame of that child */

    uint64_t now_ns;
    uint64_t position; /* of the last ordered item made (root) or seen */
    uint64_t sequence; /* of the last launch made or seen */
    int is_fatal, is_finished;

    dp_table_t table;
    dp_group_view_t *world;
    dp_group_views_t groups;
    dp_own_t own;
    dp_ordering_t order;
    dp_leave_t leave;
    dp_join_t join;
    dp_stall_t stall;
    dp_outbox_t out;
    dp_fatal_error_t fatal;
    char progress[DP_PROGRESS_MAX]; /* what this rank is doing, for stall reports */

    uint64_t *targets; /* [bit_words] scratch: the branches an ordered item is for */
    dp_item_t item;    /* scratch of the one message being read */
    dp_item_t made;    /* scratch of the one item being written */
};

static inline int dp_is_root(const dp_negotiator_t *n)
{
    return n->parent < 0;
}

/* The branch of this rank itself. */
static inline int dp_own_branch(const dp_negotiator_t *n)
{
    return n->child_count;
}

#endif
