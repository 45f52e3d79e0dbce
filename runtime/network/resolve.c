/*
 * resolve.c - asks the system's resolver in a thread, as getaddrinfo() has no deadline of its own.
 *
 * Called by bootstrap_elsewhere.c and by dprun. A thread that is not waited for any longer finishes
 * by itself: the caller and the thread share the question, and the last of the two to need it frees
 * it.
 */
#include "runtime/network/resolve.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "runtime/base/thread.h"

#define FOUND_MAX 16

typedef struct question {
    char name[256];
    pthread_mutex_t lock;
    pthread_cond_t answered;
    /* guarded by lock */
    int users; /* the asker, the thread */
    int is_answered;
    int code; /* of getaddrinfo() */
    char found[FOUND_MAX][DP_RESOLVE_ROOM];
    int count;
} question_t;

static void question_release(question_t *question)
{
    int users;

    pthread_mutex_lock(&question->lock);
    users = --question->users;
    pthread_mutex_unlock(&question->lock);
    if (users > 0) return;
    pthread_cond_destroy(&question->answered);
    pthread_mutex_destroy(&question->lock);
    free(question);
}

/* Adds the addresses of one version; called with the lock held. */
static void add_found(question_t *question, const struct addrinfo *all, int family)
{
    for (const struct addrinfo *one = all; one != NULL && question->count < FOUND_MAX;
         one = one->ai_next) {
        char *text = question->found[question->count];
        struct sockaddr_in four;
        struct sockaddr_in6 six;
        const void *ip = family == AF_INET ? (void *)&four.sin_addr : (void *)&six.sin6_addr;

        if (one->ai_family != family) continue;
        memcpy(family == AF_INET ? (void *)&four : (void *)&six, one->ai_addr,
               family == AF_INET ? sizeof(four) : sizeof(six));
        if (inet_ntop(family, ip, text, DP_RESOLVE_ROOM) != NULL) question->count++;
    }
}

static void *resolver_main(void *context)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    question_t *question = context;
    struct addrinfo *all = NULL;
    const int code = getaddrinfo(question->name, NULL, &hints, &all);

    pthread_mutex_lock(&question->lock);
    if (code == 0) {
        add_found(question, all, AF_INET);
        add_found(question, all, AF_INET6);
    }
    question->code = code;
    question->is_answered = 1;
    pthread_cond_signal(&question->answered);
    pthread_mutex_unlock(&question->lock);
    if (code == 0) freeaddrinfo(all);
    question_release(question);
    return NULL;
}

static question_t *question_create(const char *name)
{
    question_t *question = calloc(1, sizeof(*question));
    pthread_condattr_t attributes;

    if (question == NULL) return NULL;
    snprintf(question->name, sizeof(question->name), "%s", name);
    pthread_mutex_init(&question->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* deadlines are dp_now_ns() */
    pthread_cond_init(&question->answered, &attributes);
    pthread_condattr_destroy(&attributes);
    question->users = 2;
    return question;
}

static int start_lookup_thread(question_t *question)
{
    pthread_t thread;
    const int code = dp_thread_start(&thread, resolver_main, question);

    if (code == 0) pthread_detach(thread);
    return code;
}

dp_status_t dp_resolve(const char *name, char (*addresses)[DP_RESOLVE_ROOM], int max, int *count,
                       uint64_t deadline_ns, dp_error_t *error)
{
    const struct timespec until = {(time_t)(deadline_ns / 1000000000u),
                                   (long)(deadline_ns % 1000000000u)};
    question_t *question = question_create(name);
    dp_status_t status = DP_OK;
    int code;

    if (question == NULL)
        return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory to ask for a name");
    code = start_lookup_thread(question);
    if (code != 0) {
        question->users = 1;
        question_release(question);
        return dp_error_set(error, DP_ERR_SYSTEM, "no thread to ask for a name: %s",
                            strerror(code));
    }
    pthread_mutex_lock(&question->lock);
    while (!question->is_answered && code == 0)
        code = pthread_cond_timedwait(&question->answered, &question->lock, &until);
    if (!question->is_answered) {
        status = dp_error_set(error, DP_ERR_TIMEOUT, "%s: its address did not come in time", name);
    } else if (question->code != 0 || question->count == 0) {
        status = dp_error_set(error, DP_ERR_SYSTEM, "%s: %s", name,
                              question->code != 0 ? gai_strerror(question->code) : "no IP address");
    } else {
        *count = dp_min(question->count, max);
        memcpy(addresses, question->found, (size_t)*count * sizeof(*addresses));
    }
    pthread_mutex_unlock(&question->lock);
    question_release(question);
    return status;
}
