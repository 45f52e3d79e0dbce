/*
 * bootstrap_server.c - the thread in rank 0 that serves the rendezvous of its job.
 *
 * Started and stopped by bootstrap_elsewhere.c. The thread has an event loop of its own, so the
 * program in rank 0 may be as slow as it likes. Once all ranks have come the port is closed, and
 * the beacon's file that gave its address is removed. It shares two things with the program's
 * thread: a descriptor that asks it to stop, and the file's path, under a lock.
 */
#include "runtime/group/bootstrap_server.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "runtime/base/limits.h"
#include "runtime/base/rendezvous.h"
#include "runtime/base/thread.h"
#include "runtime/group/beacon.h"

#define DRAIN_NS 2000000000ull /* longest that answers may take to leave */
#define DRAIN_TICK_US 2000

struct dp_bootstrap_server {
    struct event_base *base;
    struct event *stop; /* readable: rank 0 leaves */
    struct event *tick; /* while answers drain */
    dp_rendezvous_t *rendezvous;
    dp_log_t log;
    int size;
    int stop_fd;
    int has_thread;
    pthread_t thread;
    char *has_come; /* [size]; the server's thread only, likewise below */
    int come;
    uint64_t drain_end_ns;
    pthread_mutex_t lock;
    /* guarded by lock */
    int is_complete; /* all ranks have come */
    char *path;      /* owned; NULL: none, or removed */
};

/* Called with the lock held. */
static void remove_file(dp_bootstrap_server_t *server)
{
    if (server->path != NULL) dp_beacon_remove(server->path);
    free(server->path);
    server->path = NULL;
}

/* ---- Events of the rendezvous --------------------------------------------------------------- */

static void on_joined(void *context, int rank)
{
    dp_bootstrap_server_t *server = context;

    if (server->has_come[rank]) return;
    server->has_come[rank] = 1;
    if (++server->come < server->size) return;
    dp_rendezvous_close_door(server->rendezvous);
    pthread_mutex_lock(&server->lock);
    server->is_complete = 1;
    remove_file(server);
    pthread_mutex_unlock(&server->lock);
}

static void on_failed(void *context, int rank, const dp_failure_t *failure)
{
    (void)context;
    (void)rank;
    (void)failure; /* for a launcher's report: here is none, and the ranks themselves know */
}

static void on_refused(void *context, const char *text)
{
    dp_log_warn(&((dp_bootstrap_server_t *)context)->log, "%s", text);
}

/* ---- The thread ----------------------------------------------------------------------------- */

static void on_tick(evutil_socket_t fd, short what, void *context)
{
    dp_bootstrap_server_t *server = context;
    const struct timeval tick = {0, DRAIN_TICK_US};

    (void)fd;
    (void)what;
    if (dp_rendezvous_has_unsent(server->rendezvous) && dp_now_ns() < server->drain_end_ns &&
        event_add(server->tick, &tick) == 0) {
        return;
    }
    event_base_loopbreak(server->base);
}

static void on_stop(evutil_socket_t fd, short what, void *context)
{
    dp_bootstrap_server_t *server = context;

    event_del(server->stop);
    dp_rendezvous_rank_ended(server->rendezvous, 0, "left");
    server->drain_end_ns = dp_now_ns() + DRAIN_NS;
    on_tick(fd, what, server);
}

static void *serve(void *context)
{
    dp_bootstrap_server_t *server = context;

    event_base_dispatch(server->base);
    return NULL;
}

static dp_status_t start_thread(dp_bootstrap_server_t *server, dp_error_t *error)
{
    const int failed = dp_thread_start(&server->thread, serve, server);

    if (failed) {
        return dp_error_set(error, DP_ERR_SYSTEM, "no thread for the rendezvous: %s",
                            dp_limits_describe_start(failed));
    }
    server->has_thread = 1;
    (void)pthread_setname_np(server->thread, "dp-rendezvous");
    return DP_OK;
}

/* ---- Life ----------------------------------------------------------------------------------- */

static void close_from(const int *listeners, int first, int count)
{
    for (int i = first; i < count; i++)
        close(listeners[i]);
}

/* Takes the listeners, also on an error. */
static dp_status_t open_rendezvous(dp_bootstrap_server_t *server, const int *listeners, int count,
                                   const dp_secret_t *secret, dp_error_t *error)
{
    const dp_rendezvous_events_t events = {on_joined, on_failed, on_refused, NULL, server};
    dp_status_t status = dp_rendezvous_create(server->base, listeners[0], server->size, secret,
                                              &events, &server->rendezvous, error);
    int taken = 1;

    while (status == DP_OK && taken < count)
        status = dp_rendezvous_add_listener(server->rendezvous, listeners[taken++], error);
    close_from(listeners, taken, count);
    return status;
}

dp_status_t dp_bootstrap_server_start(const int *listeners, int count, int size,
                                      const dp_secret_t *secret, const dp_log_t *log,
                                      dp_bootstrap_server_t **out, dp_error_t *error)
{
    dp_bootstrap_server_t *server = calloc(1, sizeof(*server));
    dp_status_t status = DP_ERR_NO_MEMORY;

    if (server == NULL) {
        close_from(listeners, 0, count);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory for the rendezvous");
    }
    pthread_mutex_init(&server->lock, NULL);
    server->log = *log;
    server->size = size;
    server->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->has_come = calloc((size_t)size, 1);
    server->base = event_base_new();
    if (server->base != NULL && server->stop_fd >= 0) {
        server->stop =
            event_new(server->base, server->stop_fd, EV_READ | EV_PERSIST, on_stop, server);
        server->tick = event_new(server->base, -1, 0, on_tick, server);
    }
    if (server->has_come == NULL || server->stop == NULL || server->tick == NULL ||
        event_add(server->stop, NULL) != 0) {
        close_from(listeners, 0, count);
        dp_error_set(error, status, "no memory or no descriptor for the rendezvous");
    } else {
        status = open_rendezvous(server, listeners, count, secret, error);
        if (status == DP_OK) status = start_thread(server, error);
    }
    if (status != DP_OK) {
        dp_bootstrap_server_stop(server);
        return status;
    }
    *out = server;
    return DP_OK;
}

void dp_bootstrap_server_guard(dp_bootstrap_server_t *server, const char *path)
{
    pthread_mutex_lock(&server->lock);
    server->path = strdup(path);
    if (server->path == NULL || server->is_complete) {
        /* Without memory it is removed early: who has not read it says that it is missing. */
        dp_beacon_remove(path);
        free(server->path);
        server->path = NULL;
    }
    pthread_mutex_unlock(&server->lock);
}

void dp_bootstrap_server_stop(dp_bootstrap_server_t *server)
{
    const uint64_t one = 1;

    if (server == NULL) return;
    if (server->has_thread) {
        while (write(server->stop_fd, &one, sizeof(one)) < 0 && errno == EINTR) {
        }
        pthread_join(server->thread, NULL);
    }
    remove_file(server);
    dp_rendezvous_destroy(server->rendezvous);
    if (server->stop != NULL) event_free(server->stop);
    if (server->tick != NULL) event_free(server->tick);
    if (server->base != NULL) event_base_free(server->base);
    if (server->stop_fd >= 0) close(server->stop_fd);
    free(server->has_come);
    pthread_mutex_destroy(&server->lock);
    free(server);
}
