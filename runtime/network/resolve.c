/*
 * resolve.c - asks the system's resolver in a thread, as getaddrinfo() has no deadline of its own.
 *
 * Called by bootstrap_*.c and by dprun. A thread that is not waited for any longer finishes by
 * itself: the caller and the thread share the lookup, and the last of the two to need it frees it.
 */
#include "runtime/network/resolve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/thread.h"

#define FOUND_MAX 16

struct dp_resolution {
    char name[256];
    int answered; /* an eventfd */
    pthread_mutex_t lock;
    /* guarded by lock */
    int users; /* the asker, the thread */
    int is_answered;
    int code; /* of getaddrinfo() */
    char found[FOUND_MAX][DP_RESOLVE_ROOM];
    int count;
};

static void release_lookup(dp_resolution_t *lookup)
{
    int users;

    pthread_mutex_lock(&lookup->lock);
    users = --lookup->users;
    pthread_mutex_unlock(&lookup->lock);
    if (users > 0) return;
    close(lookup->answered);
    pthread_mutex_destroy(&lookup->lock);
    free(lookup);
}

/* Adds the addresses of one version; called with the lock held. */
static void add_found(dp_resolution_t *lookup, const struct addrinfo *all, int family)
{
    for (const struct addrinfo *one = all; one != NULL && lookup->count < FOUND_MAX;
         one = one->ai_next) {
        char *text = lookup->found[lookup->count];
        struct sockaddr_in four;
        struct sockaddr_in6 six;
        const void *ip = family == AF_INET ? (void *)&four.sin_addr : (void *)&six.sin6_addr;

        if (one->ai_family != family) continue;
        memcpy(family == AF_INET ? (void *)&four : (void *)&six, one->ai_addr,
               family == AF_INET ? sizeof(four) : sizeof(six));
        if (inet_ntop(family, ip, text, DP_RESOLVE_ROOM) != NULL) lookup->count++;
    }
}

static void *resolver_main(void *context)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    dp_resolution_t *lookup = context;
    struct addrinfo *all = NULL;
    const int code = getaddrinfo(lookup->name, NULL, &hints, &all);

    pthread_mutex_lock(&lookup->lock);
    if (code == 0) {
        add_found(lookup, all, AF_INET);
        add_found(lookup, all, AF_INET6);
    }
    lookup->code = code;
    lookup->is_answered = 1;
    pthread_mutex_unlock(&lookup->lock);
    (void)eventfd_write(lookup->answered, 1);
    if (code == 0) freeaddrinfo(all);
    release_lookup(lookup);
    return NULL;
}

static dp_resolution_t *create_lookup(const char *name)
{
    dp_resolution_t *lookup = calloc(1, sizeof(*lookup));

    if (lookup == NULL) return NULL;
    snprintf(lookup->name, sizeof(lookup->name), "%s", name);
    lookup->answered = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&lookup->lock, NULL);
    lookup->users = 1;
    return lookup;
}

/* 0, or an error number. */
static int start_lookup_thread(dp_resolution_t *lookup)
{
    pthread_t thread;
    int code;

    lookup->users = 2;
    code = dp_thread_start(&thread, resolver_main, lookup);
    if (code == 0) {
        pthread_detach(thread);
    } else {
        lookup->users = 1;
    }
    return code;
}

dp_status_t dp_resolution_start(const char *name, dp_resolution_t **out, dp_error_t *error)
{
    dp_resolution_t *lookup = create_lookup(name);
    int code;

    if (lookup == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory to ask for a name");
    code = lookup->answered < 0 ? errno : start_lookup_thread(lookup);
    if (code != 0) {
        release_lookup(lookup);
        return dp_error_set(error, DP_ERR_SYSTEM, "no thread to ask for a name: %s",
                            strerror(code));
    }
    *out = lookup;
    return DP_OK;
}

int dp_resolution_fd(const dp_resolution_t *lookup)
{
    return lookup->answered;
}

dp_status_t dp_resolution_read(dp_resolution_t *lookup, char (*addresses)[DP_RESOLVE_ROOM], int max,
                               int *count, dp_error_t *error)
{
    dp_status_t status = DP_OK;

    pthread_mutex_lock(&lookup->lock);
    if (!lookup->is_answered) {
        status = dp_error_set(error, DP_ERR_TIMEOUT, "%s: its address did not come in time",
                              lookup->name);
    } else if (lookup->code != 0 || lookup->count == 0) {
        status = dp_error_set(error, DP_ERR_SYSTEM, "%s: %s", lookup->name,
                              lookup->code != 0 ? gai_strerror(lookup->code) : "no IP address");
    } else {
        *count = dp_min(lookup->count, max);
        memcpy(addresses, lookup->found, (size_t)*count * sizeof(*addresses));
    }
    pthread_mutex_unlock(&lookup->lock);
    return status;
}

void dp_resolution_free(dp_resolution_t *lookup)
{
    if (lookup != NULL) release_lookup(lookup);
}

static void await_answer(const dp_resolution_t *lookup, uint64_t deadline_ns)
{
    struct pollfd answer = {.fd = lookup->answered, .events = POLLIN};
    uint64_t now_ns;

    while ((now_ns = dp_now_ns()) < deadline_ns) {
        const uint64_t left_ns = deadline_ns - now_ns;
        const struct timespec left = {(time_t)(left_ns / 1000000000u),
                                      (long)(left_ns % 1000000000u)};
        const int ready = ppoll(&answer, 1, &left, NULL);

        if (ready > 0 || (ready < 0 && errno != EINTR)) return;
    }
}

dp_status_t dp_resolve(const char *name, char (*addresses)[DP_RESOLVE_ROOM], int max, int *count,
                       uint64_t deadline_ns, dp_error_t *error)
{
    dp_resolution_t *lookup = NULL;
    dp_status_t status = dp_resolution_start(name, &lookup, error);

    if (lookup == NULL) return status;
    await_answer(lookup, deadline_ns);
    status = dp_resolution_read(lookup, addresses, max, count, error);
    dp_resolution_free(lookup);
    return status;
}
