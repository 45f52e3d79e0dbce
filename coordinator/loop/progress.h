/*
 * progress.h - threads of the program that submit and wait, and make rounds meanwhile. Any thread
 * but the coordinator's. loop.h has the picture.
 */
#ifndef DP_COORDINATOR_LOOP_PROGRESS_H
#define DP_COORDINATOR_LOOP_PROGRESS_H

#include "coordinator/loop/loop.h"

/* Queues a submission and wakes the coordinator. waits_at_once: this thread means to call
 * dp_loop_progress_until() next, so a coordinator that backs off is not woken. If the thread does
 * something else, the coordinator finds the submission at the end of its back-off, a millisecond or
 * two later, or when the thread calls dp_loop_look(). Without may_back_off, and on a rank with a
 * parent whose coordinator sleeps in its event loop, the calling thread makes one round itself:
 * that costs no more than to wake the thread that would make it. Any thread. */
void dp_loop_submit(dp_loop_t *loop, dp_loop_node_t *node, int waits_at_once);

/* Queues it without waking the coordinator, as another submission of this thread follows at once. A
 * thread that makes rounds in its wait finds it too. Any thread. */
void dp_loop_queue(dp_loop_t *loop, dp_loop_node_t *node);

/* Wakes the coordinator for submissions that woke nobody. Any thread. */
void dp_loop_look(dp_loop_t *loop);

/* Makes rounds on the calling thread until *state >= reached, no round has found anything for
 * spin_ns, or the deadline has come. Returns early where the world is over. Any thread but the
 * coordinator's; only one at a time makes rounds, the others wait here for their turn. */
void dp_loop_progress_until(dp_loop_t *loop, const _Atomic uint32_t *state, uint32_t reached,
                            uint64_t spin_ns, uint64_t deadline_ns);

/* A thread falls asleep until something is launched (change 1), or does so no longer (-1). While
 * there is one, the coordinator thread never backs off: nobody else makes rounds for it. Any
 * thread. */
void dp_loop_count_sleeping_waiter(dp_loop_t *loop, int change);

/* A thread in a wait is awake (change 1), or no longer (-1). It makes rounds, or will when the
 * operation that it carries out is done; the coordinator thread backs off meanwhile. Any thread. */
void dp_loop_count_awake_waiter(dp_loop_t *loop, int change);

#endif
