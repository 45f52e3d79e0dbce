/*
 * test_inject.c - DP_INJECT is read as written, and each fault is what it says.
 */
#include "runtime/base/inject.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"

static dp_log_t quiet; /* what is announced is not this test's matter, but for one case */

static int setup(void **state)
{
    (void)state;
    dp_log_init(&quiet, DP_LOG_ERROR, 0);
    quiet.fd = -1;
    return 0;
}

static dp_inject_t *make(const char *text)
{
    dp_inject_t *inject = NULL;
    dp_error_t error = {DP_OK, ""};

    if (dp_inject_create(text, 0, 4, &quiet, &inject, &error) != DP_OK) fail_msg("%s", error.text);
    assert_non_null(inject);
    return inject;
}

/* ---- Reading -------------------------------------------------------------------------------- */

static void inject_reads_what_its_error_lists(void **state)
{
    static const char *const good[] = {"",
                                       "kill:0",
                                       "kill:1@30",
                                       "stop:1@rendezvous",
                                       "segv:2@first",
                                       "exit:3@negotiating",
                                       "exit:3@engine=255",
                                       "abort:0@between/7",
                                       "slow:1",
                                       "slow:1=10x",
                                       "slow:1@12=3x",
                                       "slow:1=5ms",
                                       "slow:1@finalize=1s",
                                       "drop:1",
                                       "drop:1=7",
                                       "refuse:2=1",
                                       "short:0@trace",
                                       "short:0@checkpoint/20=64K",
                                       "kill:1@30,kill:2@30,slow:0"};
    dp_error_t error;

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(good); i++) {
        error.text[0] = '\0';
        if (dp_inject_check(good[i], &error) != DP_OK) fail_msg("'%s': %s", good[i], error.text);
    }
}

static void inject_refuses_nonsense_and_shows_what_is_possible(void **state)
{
    static const char long_word[] =
        "kill:1@engine/11111111111111111111111111111111111111111111111111111111";
    static const char *const bad[] = {"kill",
                                      "kill:",
                                      "kill:one",
                                      "kill:-1",
                                      "kil:1",
                                      ":1",
                                      ",",
                                      "kill:1,",
                                      "kill:1,,stop:2",
                                      "kill:1@",
                                      "kill:1@nowhere",
                                      "kill:1@3x",
                                      "kill:1@engine/",
                                      "kill:1@engine/x",
                                      "kill:1@-4",
                                      "kill:1=9",
                                      "stop:1=",
                                      "exit:1=256",
                                      "exit:1=x",
                                      "slow:1=0x",
                                      "slow:1=10",
                                      "slow:1@engine=10x",
                                      "slow:1=99999999999x",
                                      "drop:1=0",
                                      "drop:1@engine",
                                      "refuse:1=-1",
                                      "short:1",
                                      "short:1@engine",
                                      "short:1@trace=much",
                                      "kill:99999999999",
                                      long_word};
    dp_error_t error;

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(bad); i++) {
        error.text[0] = '\0';
        if (dp_inject_check(bad[i], &error) != DP_ERR_CONFIG) fail_msg("'%s' passed", bad[i]);
        assert_non_null(strstr(error.text, "DP_INJECT"));
        assert_non_null(strstr(error.text, "or STAGE/STEP")); /* the list, whole */
    }
}

static void inject_is_nothing_for_ranks_without_a_fault(void **state)
{
    dp_inject_t *inject = (dp_inject_t *)&quiet;
    dp_error_t error;

    (void)state;
    assert_int_equal(dp_inject_create("", 0, 4, &quiet, &inject, &error), DP_OK);
    assert_null(inject);
    assert_int_equal(dp_inject_create("kill:1,slow:3", 0, 4, &quiet, &inject, &error), DP_OK);
    assert_null(inject);
    assert_int_equal(dp_inject_create("kill:4", 0, 4, &quiet, &inject, &error), DP_ERR_CONFIG);
    assert_non_null(strstr(error.text, "the job has 4 ranks"));
    dp_inject_enter(NULL, DP_INJECT_ENGINE);
    dp_inject_leave(NULL, DP_INJECT_TRACE);
    dp_inject_span(NULL, "checkpoint");
    dp_inject_span_end(NULL);
    assert_int_equal(dp_inject_drops(NULL), 0);
    assert_int_equal(dp_inject_refuses(NULL), 0);
    dp_inject_destroy(NULL);
}

static void inject_takes_so_many_faults_and_no_more(void **state)
{
    static const char seventeen[] =
        "slow:0,slow:0,slow:0,slow:0,slow:0,slow:0,slow:0,slow:0,slow:0,"
        "slow:0,slow:0,slow:0,slow:0,slow:0,slow:0,slow:0,slow:0";
    const char *sixteen = seventeen + strlen("slow:0,");
    dp_inject_t *inject = NULL;
    dp_error_t error;

    (void)state;
    assert_int_equal(dp_inject_create(sixteen, 0, 4, &quiet, &inject, &error), DP_OK);
    dp_inject_destroy(inject);
    assert_int_equal(dp_inject_create(seventeen, 0, 4, &quiet, &inject, &error), DP_ERR_CONFIG);
}

static void inject_without_memory_says_so(void **state)
{
    dp_inject_t *inject = NULL;
    dp_error_t error;
    dp_status_t status;

    (void)state;
    fail_allocation(1);
    status = dp_inject_create("kill:0", 0, 4, &quiet, &inject, &error);
    fail_allocation(0);
    assert_int_equal(status, DP_ERR_NO_MEMORY);
    assert_null(inject);
}

/* ---- Faults, in a child --------------------------------------------------------------------- */

typedef void (*life_fn)(dp_inject_t *inject);

/* How a child ends that lives with a fault: as from wait(); it exits with 42 if nothing happens. */
static int end_of(const char *text, life_fn life)
{
    dp_inject_t *inject = make(text);
    int status = -1;
    pid_t pid = fork();

    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL); /* the kernel's verdict, not a sanitizer's */
        life(inject);
        _exit(42);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    if (WIFSTOPPED(status)) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    dp_inject_destroy(inject);
    return status;
}

static void ten_steps(dp_inject_t *inject)
{
    static const _Atomic uint64_t never_blocked = 0;

    dp_inject_enter(inject, DP_INJECT_FIRST);
    for (uint64_t step = 0; step < 10; step++) {
        dp_inject_step(inject, step, &never_blocked);
        if (step == 7) dp_inject_enter(inject, DP_INJECT_ENGINE);
        dp_inject_step_end(inject, &never_blocked);
    }
    _exit(41); /* all steps done */
}

static void inject_kills_stops_faults_and_exits(void **state)
{
    int status;

    (void)state;
    status = end_of("kill:0", ten_steps);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    status = end_of("stop:0@3", ten_steps);
    assert_true(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    status = end_of("segv:0@engine", ten_steps);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    status = end_of("exit:0@between", ten_steps);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    status = end_of("exit:0@between/9=7", ten_steps);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void inject_waits_for_its_step_and_its_stage(void **state)
{
    (void)state;
    assert_int_equal(WEXITSTATUS(end_of("exit:0@10=7", ten_steps)), 41);
    assert_int_equal(WEXITSTATUS(end_of("exit:0@9=7", ten_steps)), 7);
    assert_int_equal(WEXITSTATUS(end_of("exit:0@engine/8=7", ten_steps)), 41);
    assert_int_equal(WEXITSTATUS(end_of("exit:0@engine/7=7", ten_steps)), 7);
    assert_int_equal(WEXITSTATUS(end_of("exit:0@checkpoint=7", ten_steps)), 41);
}

static void two_spans(dp_inject_t *inject)
{
    dp_inject_span(inject, "validation");
    dp_inject_span_end(inject);
    dp_inject_span(inject, "checkpoint");
    _exit(40);
}

static void inject_knows_a_checkpoint_by_its_span(void **state)
{
    (void)state;
    assert_int_equal(WEXITSTATUS(end_of("exit:0@checkpoint=7", two_spans)), 7);
    assert_int_equal(WEXITSTATUS(end_of("exit:0@checkpoint/1=7", two_spans)), 40);
}

/* Bytes that a file takes; -1 and errno where a write is refused outright. */
static long writable(long wanted)
{
    char path[] = "/tmp/dp-inject-XXXXXX";
    int fd = mkstemp(path);
    long done = 0;

    if (fd < 0) return -2;
    unlink(path);
    while (done < wanted) {
        ssize_t bytes = write(fd, "0123456789abcdef", 16);

        if (bytes <= 0) break;
        done += bytes;
    }
    close(fd);
    return done;
}

/* In a child, as limits are the process's. Its exit code counts the claims that hold. */
static void short_writes(dp_inject_t *inject)
{
    int holds = 0;

    holds += writable(4000) == 4000;
    dp_inject_span(inject, "checkpoint");
    holds += writable(4000) == 1000;
    dp_inject_span(inject, "tensor"); /* within it */
    dp_inject_span_end(inject);
    holds += writable(4000) == 1000 && errno == EFBIG;
    dp_inject_span_end(inject);
    holds += writable(4000) == 4000;
    dp_inject_span(inject, "checkpoint"); /* every one */
    holds += writable(4000) == 1000;
    dp_inject_destroy(inject); /* gives the limit back */
    holds += writable(4000) == 4000;
    _exit(holds);
}

static void inject_shortens_writes_while_a_checkpoint_lasts(void **state)
{
    int status = end_of("short:0@checkpoint=1000", short_writes);

    (void)state;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 6);
}

/* ---- Faults that leave the process alone ---------------------------------------------------- */

static void count_abort(void *user, const char *text)
{
    assert_non_null(strstr(text, "DP_INJECT"));
    ++*(int *)user;
}

static void inject_aborts_once_and_only_what_can_be_aborted(void **state)
{
    dp_inject_t *inject = make("abort:0@engine");
    int aborts = 0;

    (void)state;
    dp_inject_on_abort(inject, count_abort, &aborts);
    dp_inject_enter(inject, DP_INJECT_BETWEEN);
    assert_int_equal(aborts, 0);
    dp_inject_enter(inject, DP_INJECT_ENGINE);
    dp_inject_enter(inject, DP_INJECT_ENGINE);
    assert_int_equal(aborts, 1);
    dp_inject_destroy(inject);
    inject = make("abort:0@rendezvous");
    dp_inject_enter(inject, DP_INJECT_RENDEZVOUS); /* before there is a job: a line, no more */
    dp_inject_destroy(inject);
}

static void inject_counts_messages_and_allocations(void **state)
{
    dp_inject_t *inject = make("drop:0=3,drop:0=5,refuse:0=2");

    (void)state;
    for (int i = 1; i <= 6; i++) {
        assert_int_equal(dp_inject_drops(inject), i == 3 || i == 5);
        assert_int_equal(dp_inject_refuses(inject), i == 2);
    }
    dp_inject_destroy(inject);
}

static void inject_slows_every_step_by_what_it_took(void **state)
{
    static const _Atomic uint64_t never_blocked = 0;
    dp_inject_t *inject = make("slow:0@1=5x");
    const uint64_t work_ns = 4000000;
    uint64_t start_ns;

    (void)state;
    for (uint64_t step = 0; step < 3; step++) {
        start_ns = dp_now_ns();
        dp_inject_step(inject, step, &never_blocked);
        usleep((useconds_t)(work_ns / 1000));
        dp_inject_step_end(inject, &never_blocked);
        if (step > 0) assert_true(dp_now_ns() - start_ns >= 5 * work_ns);
    }
    dp_inject_destroy(inject);
}

static void inject_announces_what_it_does(void **state)
{
    static const _Atomic uint64_t never_blocked = 0;
    char line[256] = "";
    dp_log_t log;
    dp_inject_t *inject = NULL;
    int ends[2];

    (void)state;
    assert_int_equal(pipe(ends), 0);
    dp_log_init(&log, DP_LOG_ERROR, 2);
    log.fd = ends[1];
    assert_int_equal(dp_inject_create("slow:2@engine/4=1us", 2, 4, &log, &inject, NULL), DP_OK);
    dp_inject_step(inject, 4, &never_blocked);
    dp_inject_enter(inject, DP_INJECT_ENGINE);
    dp_inject_enter(inject, DP_INJECT_ENGINE); /* happens again, and is not told again */
    close(ends[1]);
    assert_true(read(ends[0], line, sizeof(line) - 1) > 0);
    assert_non_null(strstr(line, "rank 2: DP_INJECT: slow at engine, step 4, at "));
    assert_null(strstr(strchr(line, '\n') + 1, "DP_INJECT"));
    close(ends[0]);
    dp_inject_destroy(inject);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inject_reads_what_its_error_lists),
        cmocka_unit_test(inject_refuses_nonsense_and_shows_what_is_possible),
        cmocka_unit_test(inject_is_nothing_for_ranks_without_a_fault),
        cmocka_unit_test(inject_takes_so_many_faults_and_no_more),
        cmocka_unit_test(inject_without_memory_says_so),
        cmocka_unit_test(inject_kills_stops_faults_and_exits),
        cmocka_unit_test(inject_waits_for_its_step_and_its_stage),
        cmocka_unit_test(inject_knows_a_checkpoint_by_its_span),
        cmocka_unit_test(inject_shortens_writes_while_a_checkpoint_lasts),
        cmocka_unit_test(inject_aborts_once_and_only_what_can_be_aborted),
        cmocka_unit_test(inject_counts_messages_and_allocations),
        cmocka_unit_test(inject_slows_every_step_by_what_it_took),
        cmocka_unit_test(inject_announces_what_it_does),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
