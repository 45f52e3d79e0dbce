/*
 * test_gpt2_save_killed.c - a process is killed at every system call of a save, and of what cleans
 * up behind it: whatever is left, the newest checkpoint is the new one or the one before, whole.
 *
 * The process is traced, and ends instead of its nth system call, for n = 1, 2, ... until it gets
 * to its end.
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "examples/gpt2/data/checkpoint.h"
#include "tests/gpt2/scratch.h"
#include "tests/unit/cases.h"

#define CANNOT_TRACE 77
#define SYSTEM_CALL (SIGTRAP | 0x80) /* PTRACE_O_TRACESYSGOOD */
#define CALLS_MAX 2000

static const gpt2_shape_t SHAPE = {10, 16, 4, 1, 1, 8};
static gpt2_error_t error;
static gpt2_model_t *model;
static gpt2_optimizer_t *optimizer;
static int lacks_exchange; /* 1: this file system cannot exchange two names */

int __real_renameat2(int from, const char *old, int to, const char *new, unsigned flags);
int __wrap_renameat2(int from, const char *old, int to, const char *new, unsigned flags);

int __wrap_renameat2(int from, const char *old, int to, const char *new, unsigned flags)
{
    if (lacks_exchange) {
        errno = EINVAL;
        return -1;
    }
    return __real_renameat2(from, old, to, new, flags);
}

/* ---- A process that is killed at its nth system call ---------------------------------------- */

/* Lets the stopped process go on until then; 1: it was killed, 0: it came to its end first. */
static int follow(pid_t child, int wanted, int *status)
{
    int calls = 0;
    int is_inside = 0;

    for (;;) {
        assert_int_equal(ptrace(PTRACE_SYSCALL, child, NULL, NULL), 0);
        assert_int_equal(waitpid(child, status, 0), child);
        if (!WIFSTOPPED(*status)) return 0;
        if (WSTOPSIG(*status) != SYSTEM_CALL) continue;
        is_inside = !is_inside;
        if (!is_inside || ++calls < wanted) continue;
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, status, 0), child);
        return 1;
    }
}

static int is_killed(int wanted, int (*action)(void))
{
    int status;
    int killed;
    const pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(CANNOT_TRACE);
        (void)raise(SIGSTOP);
        _exit(action() == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == CANNOT_TRACE) {
        print_message("this machine does not let a process trace its child\n");
        scratch_remove();
        _exit(CANNOT_TRACE);
    }
    assert_true(WIFSTOPPED(status));
    assert_int_equal(ptrace(PTRACE_SETOPTIONS, child, NULL,
                            (void *)(uintptr_t)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)),
                     0);
    killed = follow(child, wanted, &status);
    if (!killed && (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
        fail_msg("the save ended with status %#x", (unsigned)status);
    return killed;
}

/* ---- What is saved and found ---------------------------------------------------------------- */

/* Marks the state, so that it is known again. */
static void become(float mark)
{
    model->weights[3] = mark;
    optimizer->v[5] = mark;
}

static int save(uint64_t step)
{
    const gpt2_progress_t progress = {step, step * 8, step, 0, 7, {0}};

    return gpt2_checkpoint_save(scratch_path("out/checkpoint"), model, optimizer, &progress,
                                &error);
}

static int save_8(void)
{
    return save(8);
}

static int save_12(void)
{
    return save(12);
}

/* Finds the checkpoint as a run with --resume auto does first. */
static int find(char *path)
{
    if (gpt2_folder_sweep(scratch_path("out/checkpoint"), NULL, &error) != 0) return -1;
    return gpt2_checkpoint_latest(scratch_path("out/checkpoint"), NULL, path, &error);
}

static int find_any(void)
{
    char path[GPT2_PATH_MAX];

    return find(path);
}

/* The newest checkpoint is loaded; its step, or 0: there is none. Its mark must be its own. */
static uint64_t resume(int calls, float *mark)
{
    char path[GPT2_PATH_MAX] = "";
    gpt2_progress_t progress = {0};
    struct dirent *entry;
    DIR *listing;

    if (find(path) != 0) fail_msg("after %d system calls: %s", calls, error.text);
    listing = opendir(scratch_path("out/checkpoint"));
    while (listing != NULL && (entry = readdir(listing)) != NULL) {
        if (entry->d_name[0] == '.' && entry->d_name[strspn(entry->d_name, ".")] != '\0')
            fail_msg("after %d system calls: %s is left", calls, entry->d_name);
    }
    if (listing != NULL) (void)closedir(listing);
    if (path[0] == '\0') return 0;
    become(0.0f);
    if (gpt2_checkpoint_load(path, model, optimizer, &progress, &error) != 0)
        fail_msg("after %d system calls: %s", calls, error.text);
    *mark = model->weights[3];
    if (optimizer->v[5] != *mark) fail_msg("after %d system calls: half of a checkpoint", calls);
    return progress.step;
}

static void save_as(uint64_t step, float mark)
{
    become(mark);
    if (save(step) != 0) fail_msg("%s", error.text);
}

/* ---- Cases ---------------------------------------------------------------------------------- */

static void a_first_save(void **state)
{
    float mark = 0.0f;
    int calls = 1;

    (void)state;
    for (;; calls++) {
        uint64_t step;

        assert_true(calls < CALLS_MAX);
        scratch_remove();
        (void)scratch_make();
        become(1.0f);
        if (!is_killed(calls, save_8)) break;
        step = resume(calls, &mark);
        if (step != 0 && (step != 8 || mark != 1.0f))
            fail_msg("after %d system calls: step %d", calls, (int)step);
    }
    assert_int_equal(resume(calls, &mark), 8);
    assert_true(calls > 20);
}

static void a_save_beside_an_older_one(void **state)
{
    float mark = 0.0f;
    int olds = 0;
    int calls = 1;

    (void)state;
    save_as(4, 1.0f);
    for (;; calls++) {
        uint64_t step;

        assert_true(calls < CALLS_MAX);
        save_as(8, 2.0f);
        become(3.0f);
        if (!is_killed(calls, save_12)) break;
        step = resume(calls, &mark);
        if (!(step == 8 && mark == 2.0f) && !(step == 12 && mark == 3.0f))
            fail_msg("after %d system calls: step %d with mark %g", calls, (int)step, (double)mark);
        olds += step == 8;
        if (step != 12) continue;
        (void)gpt2_remove_folder(scratch_path("out/checkpoint/12"), &error);
    }
    assert_int_equal(resume(calls, &mark), 12);
    assert_true(olds > 20 && calls > olds + 1); /* killed before, and after */
}

/* The step that is saved again has its checkpoint throughout. */
static void save_again(void)
{
    float mark = 0.0f;
    int olds = 0;
    int calls = 1;

    for (;; calls++) {
        uint64_t step;

        assert_true(calls < CALLS_MAX);
        save_as(8, 2.0f);
        become(3.0f);
        if (!is_killed(calls, save_8)) break;
        step = resume(calls, &mark);
        if (step != 8 || (mark != 2.0f && mark != 3.0f))
            fail_msg("after %d system calls: step %d with mark %g", calls, (int)step, (double)mark);
        olds += mark == 2.0f;
    }
    assert_int_equal(resume(calls, &mark), 8);
    assert_true(mark == 3.0f && olds > 20 && calls > olds + 1);
}

static void a_save_of_the_same_step(void **state)
{
    (void)state;
    save_again();
}

static void a_save_of_the_same_step_without_exchange(void **state)
{
    (void)state;
    lacks_exchange = 1;
    save_again();
    lacks_exchange = 0;
}

/* Puts a checkpoint with this mark under a name of the folder that the others are in. */
static void leave(const char *name, float mark)
{
    const gpt2_progress_t progress = {8, 64, 8, 0, 7, {0}};
    char path[64];

    become(mark);
    if (gpt2_checkpoint_save(scratch_path("aside"), model, optimizer, &progress, &error) != 0)
        fail_msg("%s", error.text);
    (void)snprintf(path, sizeof(path), "out/checkpoint/%s", name);
    assert_int_equal(rename(scratch_path("aside/8"), scratch_path(path)), 0);
}

/* Killed again while it cleans up behind a save that was killed between two names. */
static void a_clean_up(void **state)
{
    static const char *const leftovers[] = {".replaced-8", ".writing-8", ".removing-2"};
    float mark = 0.0f;

    (void)state;
    for (size_t i = 0; i < 2 * sizeof(leftovers) / sizeof(leftovers[0]); i++) {
        const char *name = leftovers[i / 2];
        const int has_new = i % 2 == 0;
        /* Of what is cleaned up only a replaced checkpoint may be the last of its step. */
        const int is_old = !has_new && name == leftovers[0];
        int calls = 1;
        uint64_t step;

        do {
            assert_true(calls < CALLS_MAX);
            scratch_remove();
            (void)scratch_make();
            save_as(4, 1.0f);
            if (has_new) leave("8", 3.0f);
            leave(name, 2.0f);
            if (!is_killed(calls, find_any)) calls = 0;
            step = resume(calls, &mark);
            if (step != (has_new || is_old ? 8u : 4u) || mark != (has_new  ? 3.0f
                                                                  : is_old ? 2.0f
                                                                           : 1.0f)) {
                fail_msg("%s, after %d system calls: step %d with mark %g", name, calls, (int)step,
                         (double)mark);
            }
        } while (calls++ != 0);
    }
}

static int setup(void **state)
{
    (void)state;
    (void)scratch_make();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove();
    return 0;
}

#define SCRATCH_TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(a_first_save),
        SCRATCH_TEST(a_save_beside_an_older_one),
        SCRATCH_TEST(a_save_of_the_same_step),
        SCRATCH_TEST(a_save_of_the_same_step_without_exchange),
        SCRATCH_TEST(a_clean_up),
    };
    const gpt2_model_options_t options = {
        .shape = SHAPE, .batch = 1, .length = SHAPE.context, .threads = 1, .training = 1};
    const gpt2_optimizer_settings_t settings = {.learning_rate = 1e-3,
                                                .final_rate = 0.1,
                                                .steps = 100,
                                                .beta1 = 0.9,
                                                .beta2 = 0.95,
                                                .epsilon = 1e-8,
                                                .decay = 0.1};
    int code;

    /* Some thousand fsync() that a busy disk would take minutes for; a kill is none of its
     * business. */
    if (access("/dev/shm", W_OK | X_OK) == 0) (void)setenv("TMPDIR", "/dev/shm", 1);
    if (gpt2_model_create(&options, &model, &error) != 0 ||
        gpt2_optimizer_create(model, &settings, &optimizer, &error) != 0) {
        (void)fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    gpt2_model_init_weights(model, 1);
    code = cmocka_run_group_tests(tests, NULL, NULL);
    gpt2_optimizer_destroy(optimizer);
    gpt2_model_destroy(model);
    return code;
}
