/*
 * test_transport_mailbox.c - a rank's memory for its neighbours: which files are taken for it, and
 * when its doorbell rings.
 */
#include "runtime/transport/mailbox.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"
#include "tests/unit/fail_call.h"

#define TAG 0x1234567812345678ull

enum { OWNER = 3, NEIGHBOUR = 5 };

static const int neighbours[] = {1, NEIGHBOUR, 9};

static dp_mailbox_t *make(void)
{
    dp_mailbox_t *mailbox = NULL;
    dp_error_t error = {0};

    if (dp_mailbox_create(OWNER, TAG, neighbours, 3, &mailbox, &error) != DP_OK)
        fail_msg("%s", error.text);
    return mailbox;
}

/* Opens it as a neighbour that was given these files. */
static dp_status_t visit(const int given[DP_MAILBOX_FILES], int rank, int from, uint64_t tag,
                         dp_mailbox_t **out, dp_error_t *error)
{
    const int files[] = {dup(given[0]), dup(given[1])};

    return dp_mailbox_open(files, rank, from, tag, out, error);
}

static dp_mailbox_t *open_or_fail(const dp_mailbox_t *own)
{
    dp_mailbox_t *mailbox = NULL;
    int files[DP_MAILBOX_FILES];
    dp_error_t error = {0};

    dp_mailbox_files(own, files);
    if (visit(files, OWNER, NEIGHBOUR, TAG, &mailbox, &error) != DP_OK) fail_msg("%s", error.text);
    return mailbox;
}

static void expect_refusal(const int files[DP_MAILBOX_FILES], int rank, int from, uint64_t tag,
                           const char *text)
{
    dp_mailbox_t *mailbox = NULL;
    dp_error_t error = {0};

    assert_int_equal(visit(files, rank, from, tag, &mailbox, &error), DP_ERR_SYSTEM);
    assert_null(mailbox);
    assert_string_equal(error.text, text);
}

static int rings(const dp_mailbox_t *mailbox)
{
    struct pollfd wait = {.fd = dp_mailbox_fd(mailbox), .events = POLLIN};

    return poll(&wait, 1, 0) == 1;
}

static void neighbour_writes_what_the_owner_reads(void **state)
{
    dp_mailbox_t *own = make();
    dp_mailbox_t *theirs = open_or_fail(own);
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
    dp_mailbox_t *own = make();
    dp_mailbox_t *theirs = open_or_fail(own);

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

static void other_files_are_refused(void **state)
{
    dp_mailbox_t *own = make();
    int files[DP_MAILBOX_FILES], wrong[DP_MAILBOX_FILES], ends[2];

    (void)state;
    dp_mailbox_files(own, files);
    expect_refusal(files, OWNER, NEIGHBOUR, TAG + 1, "its file is no mailbox of this job");
    expect_refusal(files, OWNER + 1, NEIGHBOUR, TAG, "its file is no mailbox of this job");
    expect_refusal(files, OWNER, 2, TAG, "it has no ring for this rank");
    assert_int_equal(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
    wrong[0] = files[0];
    wrong[1] = ends[1]; /* without a reader it would raise a signal */
    expect_refusal(wrong, OWNER, NEIGHBOUR, TAG, "it gave no doorbell");
    wrong[1] = files[1];
    wrong[0] = ends[0];
    expect_refusal(wrong, OWNER, NEIGHBOUR, TAG, "it gave another file");
    wrong[0] = memfd_create("short", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(wrong[0], 100000), 0);
    expect_refusal(wrong, OWNER, NEIGHBOUR, TAG, "it gave another file"); /* it could shrink */
    assert_int_equal(fcntl(wrong[0], F_ADD_SEALS, F_SEAL_SHRINK), 0);
    expect_refusal(wrong, OWNER, NEIGHBOUR, TAG, "its file is no mailbox of this job");
    close(wrong[0]);
    close(ends[0]);
    close(ends[1]);
    dp_mailbox_destroy(own);
}

/* It died while it slept: to ring for it is no signal. */
static void owner_may_be_gone(void **state)
{
    dp_mailbox_t *own = make();
    dp_mailbox_t *theirs = open_or_fail(own);

    (void)state;
    dp_mailbox_arm(own);
    dp_mailbox_destroy(own);
    dp_mailbox_wake(theirs);
    dp_mailbox_destroy(theirs);
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
            int files[DP_MAILBOX_FILES];
            dp_mailbox_t *own = NULL, *theirs = NULL;
            dp_error_t error = {0};
            dp_status_t status;
            int reached;

            if (kind == 0) fail_allocation(n);
            if (kind == 1) fail_call(n, 0);
            status = dp_mailbox_create(OWNER, TAG, neighbours, 3, &own, &error);
            if (status == DP_OK) {
                dp_mailbox_files(own, files);
                status = visit(files, OWNER, NEIGHBOUR, TAG, &theirs, &error);
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
        cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(owner_may_be_gone),
        cmocka_unit_test(every_failure_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
