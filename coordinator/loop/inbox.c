/*
 * inbox.c - what other threads hand to the thread that makes the coordinator's rounds.
 *
 * The handshake with sleep is Dekker's. The coordinator thread stores that it sleeps, then looks at
 * what came in; a producer stores what it brings, then looks whether the coordinator sleeps:
 *
 *     coordinator thread                       any producer
 *     S1  sleep = ASLEEP                       S2  push on queue, or flags |= flag
 *     L1  queue empty and flags 0?             L2  sleep >= depth?
 *         yes: sleep in the event loop             yes: sleep = AWAKE, wake
 *
 * All four are sequentially consistent, so in their one total order either S2 comes before L1, and
 * the coordinator stays awake, or S1 comes before L2, and the producer wakes it. With release and
 * acquire both could miss each other, as a load may overtake an earlier store to another address.
 * The exchange that clears `sleep` lets one of many producers make the system call.
 *
 * The values beside a flag (launched, the texts) are stored before it is raised; the
 * read-modify-write of `flags` releases them, dp_inbox_take_flags() acquires them. The same holds
 * for the nodes behind `queue` and `urgent`.
 */
#include "coordinator/loop/inbox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/thread.h"

void dp_inbox_init(dp_inbox_t *inbox, dp_transport_t *transport)
{
    memset(inbox, 0, sizeof(*inbox));
    inbox->transport = transport;
    atomic_init(&inbox->queue, NULL);
    atomic_init(&inbox->urgent, NULL);
    atomic_init(&inbox->flags, 0);
    atomic_init(&inbox->sleep, DP_INBOX_AWAKE);
    atomic_init(&inbox->launch_done, 0);
    pthread_mutex_init(&inbox->lock, NULL);
}

void dp_inbox_fini(dp_inbox_t *inbox)
{
    dp_inbox_name_t *name = dp_inbox_take_urgent(inbox);

    while (name != NULL) {
        dp_inbox_name_t *next = name->next;

        free(name);
        name = next;
    }
    pthread_mutex_destroy(&inbox->lock);
}

/* ---- Any thread ----------------------------------------------------------------------------- */

void dp_inbox_wake(dp_inbox_t *inbox, dp_inbox_sleep_t depth)
{
    uint32_t slept;

    if (atomic_load(&inbox->sleep) < depth) return; /* L2 */
    slept = atomic_exchange(&inbox->sleep, DP_INBOX_AWAKE);
    if (slept == DP_INBOX_BACKING_OFF) {
        dp_futex_wake(&inbox->sleep);
    } else if (slept != DP_INBOX_AWAKE) { /* AWAKE: another producer came first and wakes it */
        inbox->transport->ops->wake(inbox->transport);
    }
}

/* Something that cannot wait for the end of a back-off. */
static int has_urgent_input(const dp_inbox_t *inbox)
{
    const unsigned patient = DP_INBOX_LAUNCH_DONE | DP_INBOX_ACTIVITY;

    return dp_inbox_has_submissions(inbox) || (atomic_load(&inbox->flags) & ~patient) != 0;
}

void dp_inbox_return_progress(dp_inbox_t *inbox, int must_wake)
{
    /* Behind the caller's unlock of progress_lock, which pairs with the trylock that follows
     * dp_inbox_announce_backoff(): one of the two sees the other. Were it missed all the same, the
     * back-off would end by itself. */
    const int is_backing_off = atomic_load(&inbox->sleep) == DP_INBOX_BACKING_OFF;

    if (must_wake || (is_backing_off && has_urgent_input(inbox)))
        dp_inbox_wake(inbox, DP_INBOX_BACKING_OFF);
}

void dp_inbox_end_backoff(dp_inbox_t *inbox)
{
    if (atomic_load(&inbox->sleep) == DP_INBOX_BACKING_OFF)
        dp_inbox_wake(inbox, DP_INBOX_BACKING_OFF);
}

void dp_inbox_submit(dp_inbox_t *inbox, dp_loop_node_t *node)
{
    node->next = atomic_load_explicit(&inbox->queue, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&inbox->queue, &node->next, node)) { /* S2 */
    }
}

void dp_inbox_raise(dp_inbox_t *inbox, unsigned flag)
{
    atomic_fetch_or(&inbox->flags, flag); /* S2 */
    dp_inbox_wake(inbox, DP_INBOX_BACKING_OFF);
}

void dp_inbox_urgent(dp_inbox_t *inbox, uint32_t group, const char *name)
{
    const size_t bytes = strnlen(name, DP_ENTRY_NAME_MAX);
    dp_inbox_name_t *node = malloc(sizeof(*node) + bytes + 1);

    if (node == NULL) return;
    memcpy(node->name, name, bytes);
    node->name[bytes] = '\0';
    node->group = group;
    node->next = atomic_load_explicit(&inbox->urgent, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&inbox->urgent, &node->next, node)) {
    }
    dp_inbox_raise(inbox, DP_INBOX_URGENT);
}

void dp_inbox_launch_done(dp_inbox_t *inbox, uint64_t sequence)
{
    uint64_t known = atomic_load(&inbox->launch_done);

    /* Launches may end out of order: the value only grows. */
    while (known < sequence &&
           !atomic_compare_exchange_weak(&inbox->launch_done, &known, sequence)) {
    }
    atomic_fetch_or(&inbox->flags, DP_INBOX_LAUNCH_DONE);
    dp_inbox_wake(inbox, DP_INBOX_ASLEEP_HOLDING);
}

void dp_inbox_set_activity(dp_inbox_t *inbox, const char *text)
{
    pthread_mutex_lock(&inbox->lock);
    snprintf(inbox->activity, sizeof(inbox->activity), "%s", text);
    pthread_mutex_unlock(&inbox->lock);
    atomic_fetch_or(&inbox->flags, DP_INBOX_ACTIVITY); /* read when something else wakes it */
}

void dp_inbox_abort(dp_inbox_t *inbox, dp_status_t status, const char *text)
{
    pthread_mutex_lock(&inbox->lock);
    if (inbox->abort_status == DP_OK) {
        inbox->abort_status = status == DP_OK ? DP_ERR_ABORTED : status;
        snprintf(inbox->abort_text, sizeof(inbox->abort_text), "%s", text);
    }
    pthread_mutex_unlock(&inbox->lock);
    dp_inbox_raise(inbox, DP_INBOX_ABORT);
}

int dp_inbox_is_aborted(dp_inbox_t *inbox)
{
    int is_aborted;

    pthread_mutex_lock(&inbox->lock);
    is_aborted = inbox->abort_status != DP_OK;
    pthread_mutex_unlock(&inbox->lock);
    return is_aborted;
}

void dp_inbox_report_mismatch(dp_inbox_t *inbox, dp_status_t status, const char *text)
{
    pthread_mutex_lock(&inbox->lock);
    if (inbox->mismatch_status == DP_OK) {
        inbox->mismatch_status = status;
        snprintf(inbox->mismatch_text, sizeof(inbox->mismatch_text), "%s", text);
    }
    pthread_mutex_unlock(&inbox->lock);
    dp_inbox_raise(inbox, DP_INBOX_MISMATCH);
}

/* ---- The owner of progress ------------------------------------------------------------------ */

int dp_inbox_is_asleep(const dp_inbox_t *inbox)
{
    return atomic_load(&inbox->sleep) >= DP_INBOX_ASLEEP;
}

unsigned dp_inbox_take_flags(dp_inbox_t *inbox)
{
    /* A load first: an exchange would take the cache line from the producers in every round. */
    return atomic_load(&inbox->flags) == 0 ? 0 : atomic_exchange(&inbox->flags, 0);
}

dp_loop_node_t *dp_inbox_take_submissions(dp_inbox_t *inbox)
{
    dp_loop_node_t *newest;
    dp_loop_node_t *oldest = NULL;

    if (atomic_load(&inbox->queue) == NULL) return NULL;
    newest = atomic_exchange(&inbox->queue, NULL);
    while (newest != NULL) {
        dp_loop_node_t *older = newest->next;

        newest->next = oldest;
        oldest = newest;
        newest = older;
    }
    return oldest;
}

dp_inbox_name_t *dp_inbox_take_urgent(dp_inbox_t *inbox)
{
    return atomic_exchange(&inbox->urgent, NULL);
}

int dp_inbox_has_submissions(const dp_inbox_t *inbox)
{
    return atomic_load(&inbox->queue) != NULL;
}

int dp_inbox_is_empty(const dp_inbox_t *inbox)
{
    return !dp_inbox_has_submissions(inbox) && atomic_load(&inbox->flags) == 0;
}

/* ---- The coordinator thread ----------------------------------------------------------------- */

int dp_inbox_announce_sleep(dp_inbox_t *inbox, int is_holding)
{
    atomic_store(&inbox->sleep, is_holding ? DP_INBOX_ASLEEP_HOLDING : DP_INBOX_ASLEEP); /* S1 */
    if (dp_inbox_is_empty(inbox)) return 1;                                              /* L1 */
    dp_inbox_announce_awake(inbox);
    return 0;
}

void dp_inbox_announce_backoff(dp_inbox_t *inbox)
{
    atomic_store(&inbox->sleep, DP_INBOX_BACKING_OFF);
}

void dp_inbox_back_off(dp_inbox_t *inbox, uint64_t ns)
{
    dp_futex_wait(&inbox->sleep, DP_INBOX_BACKING_OFF, ns); /* returns at once if ended by now */
}

void dp_inbox_announce_awake(dp_inbox_t *inbox)
{
    atomic_store(&inbox->sleep, DP_INBOX_AWAKE);
}
