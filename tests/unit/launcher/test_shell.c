/*
 * test_shell.c - the end of a process that brings up a station: none can hold dprun up, and nothing
 * that it has started stays.
 */
#include "launcher/dprun/remote/shell.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/cases.h"

#define TURNS 20000 /* of a millisecond */

static void on_ended(void *context, dp_shell_t *shell)
{
    (void)context;
    (void)shell;
}

/* Runs a script; returns when it has said a line. */
static dp_shell_t *start_script(struct event_base *base, const char *script)
{
    char *argv[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c", (char *)(uintptr_t)script,
                    NULL};
    const dp_remote_ticket_t ticket = {.node = 1};
    dp_shell_start_t start = {
        .argv = argv, .ticket = &ticket, .dies_with_dprun = 1, .ended = on_ended};
    dp_error_t error = {DP_OK, ""};
    dp_shell_t *shell = NULL;

    sigemptyset(&start.signals);
    assert_int_equal(dp_shell_create(base, &start, &shell, &error), DP_OK);
    for (int i = 0; i < TURNS && strchr(dp_shell_words(shell), '\n') == NULL; i++) {
        (void)event_base_loop(base, EVLOOP_NONBLOCK);
        (void)poll(NULL, 0, 1);
    }
    assert_non_null(strchr(dp_shell_words(shell), '\n'));
    assert_false(dp_shell_has_ended(shell));
    return shell;
}

static void assert_reaped(pid_t pid)
{
    assert_int_equal(waitpid(pid, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static void shell_that_ignores_sigterm_is_killed(void **state)
{
    struct event_base *base = event_base_new();
    dp_shell_t *shell = start_script(base, "trap '' TERM; echo $$; while :; do sleep 777; done");
    const pid_t pid = (pid_t)strtol(dp_shell_words(shell), NULL, 10);

    (void)state;
    dp_shell_destroy(shell);
    assert_reaped(pid);
    event_base_free(base);
}

static void shell_that_is_stopped_is_ended(void **state)
{
    struct event_base *base = event_base_new();
    dp_shell_t *shell = start_script(base, "echo $$; exec sleep 777");
    const pid_t pid = (pid_t)strtol(dp_shell_words(shell), NULL, 10);
    siginfo_t info;

    (void)state;
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WSTOPPED | WNOWAIT), 0);
    dp_shell_destroy(shell);
    assert_reaped(pid);
    event_base_free(base);
}

/* As --ssh may name a script that starts ssh without exec. */
static void shell_takes_its_child_along(void **state)
{
    static const char *const scripts[] = {"sleep 777 & echo $!; wait",
                                          "sh -c 'trap \"\" TERM; echo $$; exec sleep 777' & wait"};

    (void)state;
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0); /* it becomes this process's child */
    for (size_t i = 0; i < DP_ARRAY_LEN(scripts); i++) {
        struct event_base *base = event_base_new();
        dp_shell_t *shell = start_script(base, scripts[i]);
        const char *words = dp_shell_words(shell);
        const pid_t child = (pid_t)strtol(words, NULL, 10);
        pid_t ended = 0;

        assert_true(child > 0);
        dp_shell_destroy(shell);
        for (int turn = 0; turn < TURNS && ended == 0; turn++) {
            ended = waitpid(child, NULL, WNOHANG);
            (void)poll(NULL, 0, 1);
        }
        if (ended == 0) kill(child, SIGKILL);
        assert_int_equal(ended, child);
        event_base_free(base);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shell_that_ignores_sigterm_is_killed),
        cmocka_unit_test(shell_that_is_stopped_is_ended),
        cmocka_unit_test(shell_takes_its_child_along),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
