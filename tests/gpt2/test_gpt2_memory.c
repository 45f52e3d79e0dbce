/*
 * test_gpt2_memory.c - the trainer when memory runs out: every allocation of its main thread fails
 * once, from the command line to the last checkpoint, and each time it ends with a reason.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/gpt2/train/run.h"
#include "tests/gpt2/scratch.h"
#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"

enum { LIMIT = 3000 }; /* far more allocations than a run makes */

/* One run with the flags, its output thrown away. */
static int run(char **argv, int argc, gpt2_error_t *error)
{
    const int out = dup(STDOUT_FILENO);
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    const gpt2_strategy_ops_t *ops;
    gpt2_strategy_t *strategy = NULL;
    gpt2_options_t options;
    int code;

    assert_true(out >= 0 && null >= 0);
    fflush(stdout);
    dup2(null, STDOUT_FILENO);
    code = gpt2_options_parse(argc, argv, &options, error);
    if (code == 0) {
        ops = gpt2_strategy_find(options.strategy, error);
        code = ops == NULL ? -1 : ops->create(&strategy, error);
    }
    if (code == 0) {
        code = gpt2_run(&options, strategy, error);
        (void)strategy->ops->destroy(strategy, error);
    }
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    close(out);
    close(null);
    return code;
}

static int open_files(void)
{
    int count = 0;

    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* more: flags besides the usual ones, [count]. */
static void fails_with_a_reason(char **more, int count)
{
    char *argv[48] = {
        (char[]){"gpt2"}, (char[]){"--strategy"}, (char[]){"single"}, (char[]){"--layers"},
        (char[]){"1"},    (char[]){"--heads"},    (char[]){"1"},      (char[]){"--width"},
        (char[]){"8"},    (char[]){"--context"},  (char[]){"8"},      (char[]){"--batch"},
        (char[]){"1"},    (char[]){"--threads"},  (char[]){"2"},      (char[]){"--eval-batches"},
        (char[]){"1"},    (char[]){"--data"}};
    char data[512];
    char folder[512];
    int argc = 18;
    int failed = 0;
    int files;
    int n;

    snprintf(data, sizeof(data), "%s", scratch_path("text"));
    snprintf(folder, sizeof(folder), "%s", scratch_path("run"));
    argv[argc++] = data;
    argv[argc++] = (char[]){"--out"};
    argv[argc++] = folder;
    for (int i = 0; i < count; i++)
        argv[argc++] = more[i];
    files = open_files();
    for (n = 1; n < LIMIT; n++) {
        gpt2_error_t error = {""};
        int code;

        fail_allocation(n);
        code = run(argv, argc, &error);
        if (fail_allocation_reached() == 0) {
            if (code != 0) fail_msg("%s", error.text);
            break;
        }
        if (code != 0) {
            if (strstr(error.text, "memory") == NULL && strstr(error.text, "not saved") == NULL)
                fail_msg("allocation %d: \"%s\"", n, error.text);
            failed++;
        }
        if (open_files() != files) fail_msg("allocation %d: a descriptor is left open", n);
    }
    assert_true(n < LIMIT && failed > 10);
}

static void a_fresh_run_fails_with_a_reason(void **state)
{
    char *more[] = {(char[]){"--steps"}, (char[]){"1"}, (char[]){"--overwrite"}};

    (void)state;
    fails_with_a_reason(more, 3);
}

static void a_run_with_lamb_fails_with_a_reason(void **state)
{
    char *more[] = {(char[]){"--steps"}, (char[]){"1"}, (char[]){"--optimizer"}, (char[]){"lamb"},
                    (char[]){"--overwrite"}};

    (void)state;
    fails_with_a_reason(more, 5);
}

static void a_resumed_run_that_samples_fails_with_a_reason(void **state)
{
    char *first[] = {(char[]){"--steps"}, (char[]){"1"}, (char[]){"--overwrite"}};
    char *more[] = {
        (char[]){"--steps"},  (char[]){"1"},   (char[]){"--resume"},        (char[]){"auto"},
        (char[]){"--sample"}, (char[]){"and"}, (char[]){"--sample-tokens"}, (char[]){"4"}};

    (void)state;
    fails_with_a_reason(first, 3); /* leaves a checkpoint */
    fails_with_a_reason(more, 8);
}

static int setup(void **state)
{
    char text[2000];

    (void)state;
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = "and the lord said\n"[i % 18];
    (void)scratch_make();
    (void)scratch_write("text", text, sizeof(text));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_fresh_run_fails_with_a_reason, setup, teardown),
        cmocka_unit_test_setup_teardown(a_run_with_lamb_fails_with_a_reason, setup, teardown),
        cmocka_unit_test_setup_teardown(a_resumed_run_that_samples_fails_with_a_reason, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
