/*
 * completions.c - one place to wait for many operations: a list of the cookies of those that are
 * over, and a descriptor that is readable while the list is not empty.
 *
 *     submission   dp_completions_reserve()   program's thread, context's lock held; may fail
 *     completion   dp_completions_push()      owner of progress or data plane; never fails
 *     waiting      dp_completions_fd(), dp_completions_read()   the program's threads
 *
 * Room for a cookie is made when its operation is submitted, which may fail, so that its completion
 * cannot. It must not know what the operations do.
 */
#include "coordinator/api/context/completions.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "coordinator/api/context/context.h"
#include "coordinator/api/context/fork.h"
#include "coordinator/api/context/texts.h"

#define ROOM_FIRST 64

void dp_completions_init(dp_completions_t *completions)
{
    *completions = (dp_completions_t){.fd = -1};
    pthread_mutex_init(&completions->lock, NULL);
}

void dp_completions_fini(dp_completions_t *completions)
{
    dp_fork_forget(&completions->fork_watch);
    if (completions->fd >= 0) close(completions->fd);
    free(completions->ring);
    pthread_mutex_destroy(&completions->lock);
}

/* Twice the room; what is in the ring comes to its beginning. Lock held. */
static dp_status_t grow_ring(dp_completions_t *completions)
{
    const size_t room = completions->room == 0 ? ROOM_FIRST : 2 * completions->room;
    uint64_t *ring = malloc(room * sizeof(*ring));

    if (ring == NULL) return DP_ERR_NO_MEMORY;
    for (size_t i = 0, at = completions->first; i < completions->count; i++, at++)
        ring[i] = completions->ring[at < completions->room ? at : at - completions->room];
    free(completions->ring);
    completions->ring = ring;
    completions->room = room;
    completions->first = 0;
    return DP_OK;
}

dp_status_t dp_completions_reserve(dp_completions_t *completions)
{
    dp_status_t status = DP_OK;

    pthread_mutex_lock(&completions->lock);
    if (completions->count + completions->expected == completions->room)
        status = grow_ring(completions);
    if (status == DP_OK) completions->expected++;
    pthread_mutex_unlock(&completions->lock);
    return status;
}

/* An eventfd's counter: 1 while the list is not empty. Neither call can block or fail for want of
 * anything, as the counter is 0 before a write and 1 before a read. Lock held. */
static void set_readable(const dp_completions_t *completions)
{
    const uint64_t one = 1;

    while (write(completions->fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

static void clear_readable(const dp_completions_t *completions)
{
    uint64_t counter;

    while (read(completions->fd, &counter, sizeof(counter)) < 0 && errno == EINTR)
        ;
}

void dp_completions_push(dp_completions_t *completions, uint64_t cookie)
{
    pthread_mutex_lock(&completions->lock);
    completions->expected--;
    completions->ring[(completions->first + completions->count) % completions->room] = cookie;
    if (completions->count++ == 0 && completions->fd >= 0) set_readable(completions);
    pthread_mutex_unlock(&completions->lock);
}

/* ---- The program ---------------------------------------------------------------------------- */

dp_status_t dp_completions_fd(dp_context_t *context, int *fd)
{
    dp_completions_t *completions;
    dp_status_t status = DP_OK;

    if (context == NULL || dp_context_is_forked(context)) return DP_ERR_INVALID;
    if (fd == NULL)
        return dp_context_error(context, DP_ERR_INVALID, "dp_completions_fd: fd is NULL");
    completions = &context->completions;
    pthread_mutex_lock(&completions->lock);
    if (completions->fd < 0) {
        completions->fd = eventfd(completions->count > 0, EFD_CLOEXEC | EFD_NONBLOCK);
        /* A child that read the counter would take the rank's wake-up. */
        if (completions->fd >= 0) dp_fork_watch(&completions->fork_watch, completions->fd);
    }
    if (completions->fd < 0) status = DP_ERR_SYSTEM;
    *fd = completions->fd;
    pthread_mutex_unlock(&completions->lock);
    if (status == DP_OK) return DP_OK;
    return dp_context_error(context, status, "dp_completions_fd: %s", strerror(errno));
}

size_t dp_completions_read(dp_context_t *context, uint64_t *cookies, size_t room)
{
    dp_completions_t *completions;
    size_t count;

    if (context == NULL || cookies == NULL || dp_context_is_forked(context)) return 0;
    completions = &context->completions;
    pthread_mutex_lock(&completions->lock);
    count = room < completions->count ? room : completions->count;
    for (size_t i = 0; i < count; i++) {
        cookies[i] = completions->ring[completions->first];
        completions->first = (completions->first + 1) % completions->room;
    }
    completions->count -= count;
    if (count > 0 && completions->count == 0 && completions->fd >= 0) clear_readable(completions);
    pthread_mutex_unlock(&completions->lock);
    return count;
}
