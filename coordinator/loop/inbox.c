/*
 * inbox.c - what other threads hand to the coordinator thread, without a lock on the hot path.
 *
 * The handshake with sleep is Dekker's: the coordinator stores `sleep` and then looks at what came
 * in, a producer stores what it brings and then looks at `sleep`. All four are sequentially
 * consistent, so at least one of the two sees the other. Who wakes clears `sleep`, so that many
 * producers make one system call.
 */
#include "coordinator/loop/inbox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/futex.h"

void dp_inbox_init(dp_inbox_t *inbox, dp_transport_t *transport)
{
    memset(inbox, 0, sizeof(*inbox));
    inbox->transport = transport;
    atomic_init(&inbox->queue, NULL);
    atomic_init(&inbox->urgent, NULL);
    atomic_init(&inbox->flags, 0);
    atomic_init(&inbox->sleep, DP_INBOX_AWAKE);
    atomic_init(&inbox->launched, 0);
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

/* ---- Any thread --------------------------------------------------------------------------- */

void dp_inbox_wake(dp_inbox_t *inbox, dp_inbox_sleep_t depth)
{
    uint32_t slept;

    if (atomic_load(&inbox->sleep) < depth) return;
    slept = atomic_exchange(&inbox->sleep, DP_INBOX_AWAKE);
    if (slept == DP_INBOX_NAPPING) {
        dp_futex_wake(&inbox->sleep);
    } else if (slept != DP_INBOX_AWAKE) { /* else another thread does it */
        inbox->transport->ops->wake(inbox->transport);
    }
}

/* Something that may not wait for the end of a nap. */
static int is_pressing(const dp_inbox_t *inbox)
{
    const unsigned patient = DP_INBOX_LAUNCHED | DP_INBOX_PROGRESS;

    return atomic_load(&inbox->queue) != NULL || (atomic_load(&inbox->flags) & ~patient) != 0;
}

void dp_inbox_hand_over(dp_inbox_t *inbox, int must_wake)
{
    const int is_backing_off = atomic_load(&inbox->sleep) == DP_INBOX_NAPPING;

    if (must_wake || (is_backing_off && is_pressing(inbox))) dp_inbox_wake(inbox, DP_INBOX_NAPPING);
}

void dp_inbox_rouse(dp_inbox_t *inbox)
{
    if (atomic_load(&inbox->sleep) == DP_INBOX_NAPPING) dp_inbox_wake(inbox, DP_INBOX_NAPPING);
}

void dp_inbox_submit(dp_inbox_t *inbox, dp_loop_node_t *const *nodes, size_t count)
{
    dp_loop_node_t *old;

    if (count == 0) return;
    for (size_t i = 1; i < count; i++)
        nodes[i]->next = nodes[i - 1];
    old = atomic_load_explicit(&inbox->queue, memory_order_relaxed);
    do {
        nodes[0]->next = old;
    } while (!atomic_compare_exchange_weak(&inbox->queue, &old, nodes[count - 1]));
}

void dp_inbox_raise(dp_inbox_t *inbox, unsigned flag)
{
    atomic_fetch_or(&inbox->flags, flag);
    dp_inbox_wake(inbox, DP_INBOX_NAPPING);
}

void dp_inbox_urgent(dp_inbox_t *inbox, uint32_t group, const char *name)
{
    const size_t bytes = strnlen(name, DP_ROW_NAME_MAX);
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

void dp_inbox_launched(dp_inbox_t *inbox, uint64_t sequence)
{
    uint64_t known = atomic_load(&inbox->launched);

    while (known < sequence && !atomic_compare_exchange_weak(&inbox->launched, &known, sequence)) {
    }
    atomic_fetch_or(&inbox->flags, DP_INBOX_LAUNCHED);
    dp_inbox_wake(inbox, DP_INBOX_ASLEEP);
}

void dp_inbox_progress(dp_inbox_t *inbox, const char *text)
{
    pthread_mutex_lock(&inbox->lock);
    snprintf(inbox->progress, sizeof(inbox->progress), "%s", text);
    pthread_mutex_unlock(&inbox->lock);
    atomic_fetch_or(&inbox->flags, DP_INBOX_PROGRESS); /* time enough when it wakes for a reason */
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

void dp_inbox_explain(dp_inbox_t *inbox, dp_status_t status, const char *text)
{
    pthread_mutex_lock(&inbox->lock);
    if (inbox->explain_status == DP_OK) {
        inbox->explain_status = status;
        snprintf(inbox->explain_text, sizeof(inbox->explain_text), "%s", text);
    }
    pthread_mutex_unlock(&inbox->lock);
    dp_inbox_raise(inbox, DP_INBOX_EXPLAIN);
}

/* ---- The coordinator thread --------------------------------------------------------------- */

int dp_inbox_is_asleep(const dp_inbox_t *inbox)
{
    return atomic_load(&inbox->sleep) >= DP_INBOX_DOZING;
}

unsigned dp_inbox_take_flags(dp_inbox_t *inbox)
{
    /* A plain load first: the exchange would take the cache line from producers every round. */
    return atomic_load(&inbox->flags) == 0 ? 0 : atomic_exchange(&inbox->flags, 0);
}

unsigned dp_inbox_take_flag(dp_inbox_t *inbox, unsigned flag)
{
    return (atomic_load(&inbox->flags) & flag) == 0 ? 0
                                                    : atomic_fetch_and(&inbox->flags, ~flag) & flag;
}

dp_loop_node_t *dp_inbox_take(dp_inbox_t *inbox)
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

int dp_inbox_sleep(dp_inbox_t *inbox, int minds_launched)
{
    atomic_store(&inbox->sleep, minds_launched ? DP_INBOX_ASLEEP : DP_INBOX_DOZING);
    if (dp_inbox_is_empty(inbox)) return 1;
    dp_inbox_awake(inbox);
    return 0;
}

void dp_inbox_lie_down(dp_inbox_t *inbox)
{
    atomic_store(&inbox->sleep, DP_INBOX_NAPPING);
}

int dp_inbox_is_empty(const dp_inbox_t *inbox)
{
    return atomic_load(&inbox->queue) == NULL && atomic_load(&inbox->flags) == 0;
}

void dp_inbox_nap(dp_inbox_t *inbox, uint64_t ns)
{
    dp_futex_wait(&inbox->sleep, DP_INBOX_NAPPING, ns);
}

void dp_inbox_awake(dp_inbox_t *inbox)
{
    atomic_store(&inbox->sleep, DP_INBOX_AWAKE);
}
