/*
 * isolated.h - runs each case of a cmocka program in a process of its own.
 *
 * For programs whose cases start threads that work on the case's stack: a failed check leaves the
 * case at once, so in one process its threads would go on, and what they hold would fail all cases
 * after it. main() calls this instead of cmocka_run_group_tests(), before any thread is there.
 */
#ifndef DP_TESTS_ISOLATED_H
#define DP_TESTS_ISOLATED_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/cases.h"

static inline int run_isolated_case(const struct CMUnitTest *test)
{
    int status = -1;
    pid_t child;

    (void)fflush(NULL); /* or the child writes it as well */
    child = fork();
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a timeout kills the parent alone */
        exit(_cmocka_run_group_tests(test->name, test, 1, NULL, NULL) == 0 ? 0 : 1);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        (void)fprintf(stderr, "FAILED: %s (status %d)\n", test->name, status);
        return 0;
    }
    return 1;
}

/* 0: all passed. */
static inline int run_isolated_cases(const struct CMUnitTest *tests, size_t count)
{
    size_t passed = 0;

    for (size_t i = 0; i < count; i++)
        passed += (size_t)run_isolated_case(&tests[i]);
    return passed == count ? 0 : 1;
}

#endif
