/*
 * test_resolve.c - names that are looked up in a thread: the answer, no answer in time, and an
 * asker that does not wait for one.
 */
#include "runtime/network/resolve.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <semaphore.h>
#include <string.h>

#include "tests/unit/cases.h"

#define PATIENCE_NS 20000000000ull
#define MS 1000000ull

/* A name service that answers when it is told to, each time. */
static sem_t may_answer;
static sem_t has_answered;

int __real_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found);
int __wrap_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found);

int __wrap_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found)
{
    int code;

    while (sem_wait(&may_answer) != 0 && errno == EINTR)
        continue;
    code = strcmp(name, "unknown") == 0 ? EAI_NONAME
                                        : __real_getaddrinfo("127.0.0.1", service, hints, found);
    sem_post(&has_answered);
    return code;
}

static int set_up(void **state)
{
    (void)state;
    return sem_init(&may_answer, 0, 0) != 0 || sem_init(&has_answered, 0, 0) != 0;
}

static void resolve_gives_the_addresses_of_a_name(void **state)
{
    char found[2][DP_RESOLVE_ROOM];
    dp_error_t error = {0};
    int count = 0;
    const uint64_t until_ns = dp_now_ns() + PATIENCE_NS;

    (void)state;
    sem_post(&may_answer);
    errno = EINTR; /* of an earlier call: it says nothing of this wait */
    assert_int_equal(dp_resolve("name", found, 2, &count, until_ns, &error), DP_OK);
    assert_true(dp_now_ns() < until_ns);
    assert_int_equal(count, 1);
    assert_string_equal(found[0], "127.0.0.1");
    sem_wait(&has_answered);
}

static void resolve_says_which_name_is_unknown(void **state)
{
    char found[2][DP_RESOLVE_ROOM];
    dp_error_t error = {0};
    int count = 0;

    (void)state;
    sem_post(&may_answer);
    assert_int_equal(dp_resolve("unknown", found, 2, &count, dp_now_ns() + PATIENCE_NS, &error),
                     DP_ERR_SYSTEM);
    assert_non_null(strstr(error.text, "unknown: "));
    sem_wait(&has_answered);
}

static void resolve_waits_no_longer_than_its_deadline(void **state)
{
    char found[2][DP_RESOLVE_ROOM];
    dp_error_t error = {0};
    int count = 0;
    const uint64_t until_ns = dp_now_ns() + 20 * MS;

    (void)state;
    assert_int_equal(dp_resolve("name", found, 2, &count, until_ns, &error), DP_ERR_TIMEOUT);
    assert_true(dp_now_ns() >= until_ns);
    sem_post(&may_answer); /* the thread frees what it shares with nobody any more */
    sem_wait(&has_answered);
}

static void lookup_is_readable_once_it_is_answered(void **state)
{
    char found[2][DP_RESOLVE_ROOM];
    dp_error_t error = {0};
    dp_resolution_t *lookup = NULL;
    struct pollfd answer = {.events = POLLIN};
    int count = 0;

    (void)state;
    assert_int_equal(dp_resolution_start("name", &lookup, &error), DP_OK);
    answer.fd = dp_resolution_fd(lookup);
    assert_int_equal(poll(&answer, 1, 0), 0);
    assert_int_equal(dp_resolution_read(lookup, found, 2, &count, &error), DP_ERR_TIMEOUT);
    sem_post(&may_answer);
    assert_int_equal(poll(&answer, 1, 20000), 1);
    assert_int_equal(dp_resolution_read(lookup, found, 2, &count, &error), DP_OK);
    assert_int_equal(count, 1);
    assert_string_equal(found[0], "127.0.0.1");
    dp_resolution_free(lookup);
    sem_wait(&has_answered);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resolve_gives_the_addresses_of_a_name),
        cmocka_unit_test(resolve_says_which_name_is_unknown),
        cmocka_unit_test(resolve_waits_no_longer_than_its_deadline),
        cmocka_unit_test(lookup_is_readable_once_it_is_answered),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
