/*
 * test_transport_mailbox.c - a rank's memory for its neighbours: who finds it, who does not, and
 * when its doorbell rings.
 */
#include "runtime/transport/mailbox.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/fail_allocation.h"
#include "tests/unit/fail_call.h"

#define TAG 0x1234567812345678ull

enum { OWNER = 3, NEIGHBOUR = 5 };

static const int neighbours[] = {1, NEIGHBOUR, 9};

static dp_mailbox_t *make(uint8_t address[DP_MAILBOX_ADDRESS])
{
    dp_mailbox_t *mailbox = NULL;
    dp_error_t error = {0};

    if (dp_mailbox_create(OWNER, TAG, neighbours, 3, &mailbox, &error) != DP_OK)
        fail_msg("%s", error.text);
    dp_mailbox_address(mailbox, address);
    return mailbox;
}

static dp_mailbox_t *open_or_fail(const uint8_t *address)
{
    dp_mailbox_t *mailbox = NULL;
    dp_error_t error = {0};

    if (dp_mailbox_open(address, OWNER, NEIGHBOUR, TAG, &mailbox, &error) != DP_OK)
        fail_msg("%s", error.text);
    return mailbox;
}

static void expect_refusal(const uint8_t *address, int rank, int from, uint64_t tag,
                           const char *word)
{
    dp_mailbox_t *mailbox = NULL;
    dp_error_t error = {0};

    assert_int_not_equal(dp_mailbox_open(address, rank, from, tag, &mailbox, &error), DP_OK);
    assert_null(mailbox);
    if (strstr(error.text, word) == NULL) fail_msg("\"%s\" in \"%s\"", word, error.text);
}

static int rings(const dp_mailbox_t *mailbox)
{
    struct pollfd wait = {.fd = dp_mailbox_fd(mailbox), .events = POLLIN};

    return poll(&wait, 1, 0) == 1;
}

static void neighbour_writes_what_the_owner_reads(void **state)
{
    uint8_t address[DP_MAILBOX_ADDRESS];
    dp_mailbox_t *own = make(address);
    dp_mailbox_t *theirs = open_or_fail(address);
    dp_ring_writer_t writer;
    dp_ring_reader_t reader;
    size_t done = 0;
    int frees = 0;

    (void)state;
    assert_null(dp_mailbox_ring(own, 2));
    assert_ptr_not_equal(dp_mailbox_ring(own, 1), dp_mailbox_ring(own, NEIGHBOUR));
    dp_ring_writer_init(&writer, dp_mailbox_ring(theirs, NEIGHBOUR));
    assert_int_equal(dp_ring_reader_init(&reader, dp_mailbox_ring(own, NEIGHBOUR)), DP_OK);
    assert_int_equal(dp_ring_write(&writer, "hello", 5, &done), DP_OK);
    assert_int_equal(dp_ring_read(&reader, &frees), DP_OK);
    assert_memory_equal(reader.data, "hello", 5);
    assert_int_equal(dp_mailbox_is_closed(theirs), 0);
    dp_mailbox_close(own);
    dp_ring_reader_fini(&reader);
    dp_mailbox_destroy(own);
    assert_int_equal(dp_mailbox_is_closed(theirs), 1); /* its last state stays readable */
    dp_mailbox_destroy(theirs);
}

static void doorbell_rings_once_for_an_owner_that_sleeps(void **state)
{
    uint8_t address[DP_MAILBOX_ADDRESS];
    dp_mailbox_t *own = make(address);
    dp_mailbox_t *theirs = open_or_fail(address);

    (void)state;
    for (int i = 0; i < 3; i++) {
        dp_mailbox_wake(theirs);
        assert_false(rings(own)); /* it is awake */
        dp_mailbox_arm(own);
        assert_false(rings(own));
        dp_mailbox_wake(theirs);
        dp_mailbox_wake(theirs);
        assert_true(rings(own));
        dp_mailbox_clear_doorbell(own);
        assert_false(rings(own));
        dp_mailbox_arm(own);
        dp_mailbox_disarm(own);
        dp_mailbox_wake(theirs);
        assert_false(rings(own));
    }
    dp_mailbox_destroy(theirs);
    assert_false(rings(own)); /* nor does one who leaves ring */
    dp_mailbox_destroy(own);
}

static void only_the_right_one_is_let_in(void **state)
{
    uint8_t address[DP_MAILBOX_ADDRESS], changed[DP_MAILBOX_ADDRESS];
    dp_mailbox_t *own = make(address);
    dp_mailbox_t *other;

    (void)state;
    expect_refusal(address, OWNER, NEIGHBOUR, TAG + 1, "not its mailbox");
    expect_refusal(address, OWNER + 1, NEIGHBOUR, TAG, "not its mailbox");
    expect_refusal(address, OWNER, 2, TAG, "no ring");
    for (size_t i = 0; i < DP_MAILBOX_ADDRESS; i++) { /* whatever is wrong in it */
        memcpy(changed, address, sizeof(changed));
        changed[i] ^= 0x41;
        expect_refusal(changed, OWNER, NEIGHBOUR, TAG, "process");
    }
    memset(changed, 0, sizeof(changed));
    expect_refusal(changed, OWNER, NEIGHBOUR, TAG, "process");
    memset(changed, 0xff, sizeof(changed));
    expect_refusal(changed, OWNER, NEIGHBOUR, TAG, "process");
    dp_mailbox_destroy(own);
    expect_refusal(address, OWNER, NEIGHBOUR, TAG, "process"); /* it is gone */
    other = make(changed);                                     /* with the same descriptors */
    expect_refusal(address, OWNER, NEIGHBOUR, TAG, "not its mailbox");
    dp_mailbox_destroy(other);
}

/* The neighbour is another process; the owner dies, and to ring for it is no signal. */
static void owner_may_die(void **state)
{
    uint8_t address[DP_MAILBOX_ADDRESS];
    dp_mailbox_t *theirs;
    int ends[2];
    pid_t child;
    int status;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dp_mailbox_t *own = make(address);

        dp_mailbox_arm(own);
        if (write(ends[1], address, sizeof(address)) != sizeof(address)) _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(read(ends[0], address, sizeof(address)), sizeof(address));
    theirs = open_or_fail(address);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    dp_mailbox_wake(theirs); /* it said that it sleeps */
    expect_refusal(address, OWNER, NEIGHBOUR, TAG, "process");
    dp_mailbox_destroy(theirs);
    close(ends[0]);
    close(ends[1]);
}

static int descriptors(void)
{
    int count = 0;

    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* Whatever fails: a status with words, nothing left open. */
static void every_failure_is_told(void **state)
{
    const int before = descriptors();
    int is_done[2] = {0, 0};

    (void)state;
    for (long n = 1; !is_done[0] || !is_done[1]; n++) {
        for (int kind = 0; kind < 2; kind++) {
            uint8_t address[DP_MAILBOX_ADDRESS];
            dp_mailbox_t *own = NULL, *theirs = NULL;
            dp_error_t error = {0};
            dp_status_t status;
            int reached;

            if (kind == 0) fail_allocation(n);
            if (kind == 1) fail_call(n, 0);
            status = dp_mailbox_create(OWNER, TAG, neighbours, 3, &own, &error);
            if (status == DP_OK) {
                dp_mailbox_address(own, address);
                status = dp_mailbox_open(address, OWNER, NEIGHBOUR, TAG, &theirs, &error);
            }
            reached = kind == 0 ? fail_allocation_reached() : fail_call_reached();
            assert_int_equal(status == DP_OK, !reached);
            if (reached) assert_true(strlen(error.text) > 0);
            is_done[kind] = !reached;
            dp_mailbox_destroy(theirs);
            dp_mailbox_destroy(own);
            assert_int_equal(descriptors(), before);
        }
        assert_true(n < 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbour_writes_what_the_owner_reads),
        cmocka_unit_test(doorbell_rings_once_for_an_owner_that_sleeps),
        cmocka_unit_test(only_the_right_one_is_let_in),
        cmocka_unit_test(owner_may_die),
        cmocka_unit_test(every_failure_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
