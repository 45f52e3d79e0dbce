/*
 * test_completions.c - the list of operations that are over, in a world of one: its descriptor is
 * readable for as long as a cookie is left, however few are read at a time.
 */
#include <poll.h>
#include <stdio.h>

#include "dp.h"
#include "tests/unit/cases.h"

enum { OPERATIONS = 200 };

static int is_readable(int fd, int milliseconds)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};

    return poll(&ready, 1, milliseconds) == 1;
}

static void completions_stay_readable_until_all_are_read(void **state)
{
    float values[OPERATIONS] = {0};
    uint64_t cookies[7], sum = 0;
    dp_context_t *dp;
    int fd, read = 0;

    (void)state;
    assert_int_equal(dp_init(NULL, &dp), DP_OK);
    for (int i = 0; i < OPERATIONS; i++) {
        dp_options_t options = DP_OPTIONS_INIT;
        char name[16];

        snprintf(name, sizeof(name), "%d", i);
        options.cookie = UINT64_C(1) << 40 | (unsigned)i;
        assert_int_equal(
            dp_allreduce(dp_world(dp), name, &values[i], &values[i], 1, DP_F32, &options, NULL),
            DP_OK);
    }
    assert_int_equal(dp_completions_fd(dp, &fd), DP_OK);
    while (read < OPERATIONS) {
        size_t count;

        assert_true(is_readable(fd, 60000));
        count = dp_completions_read(dp, cookies, 7);
        assert_true(count >= 1 && count <= 7);
        for (size_t i = 0; i < count; i++)
            sum += cookies[i] - (UINT64_C(1) << 40);
        read += (int)count;
    }
    assert_int_equal(read, OPERATIONS);
    assert_int_equal(sum, OPERATIONS * (OPERATIONS - 1) / 2);
    assert_false(is_readable(fd, 0));
    assert_int_equal(dp_completions_read(dp, cookies, 7), 0);
    assert_int_equal(dp_completions_read(NULL, cookies, 7), 0);
    assert_int_equal(dp_completions_read(dp, NULL, 7), 0);
    assert_int_equal(dp_completions_fd(NULL, &fd), DP_ERR_INVALID);
    assert_int_equal(dp_finalize(dp), DP_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completions_stay_readable_until_all_are_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
