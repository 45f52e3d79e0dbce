/*
 * test_tune_file.c - the file of tuned settings: what was written is found under its key alone,
 * damage is told, and a write that fails leaves the old file.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "coordinator/tuner/tune_file.h"

typedef struct place {
    char folder[64];
    char path[128];
} place_t;

static int setup(void **state)
{
    place_t *place = calloc(1, sizeof(*place));

    if (place == NULL) return -1;
    snprintf(place->folder, sizeof(place->folder), "/tmp/dp-tune-XXXXXX");
    if (mkdtemp(place->folder) == NULL) return -1;
    snprintf(place->path, sizeof(place->path), "%s/tuned", place->folder);
    *state = place;
    return 0;
}

static int teardown(void **state)
{
    place_t *place = *state;

    char lock[sizeof(place->path) + 8];

    snprintf(lock, sizeof(lock), "%s.lock", place->path);
    (void)unlink(lock);
    (void)unlink(place->path);
    if (rmdir(place->folder) != 0) return -1; /* something was left behind */
    free(place);
    return 0;
}

static const dp_tune_key_t base = {.size = 2, .hosts = 1, .engine = "host", .program = 0x1234};

static void write_good(const char *path, const dp_tune_key_t *key, uint64_t first)
{
    const uint64_t values[DP_KNOBS] = {first, 3, 0, 200000};
    dp_error_t error = {DP_OK, ""};

    if (dp_tune_file_write(path, key, values, 0.1, 0.09, &error) != DP_OK)
        fail_msg("%s", error.text);
}

static dp_status_t read_first(const char *path, const dp_tune_key_t *key, uint64_t *first)
{
    uint64_t values[DP_KNOBS] = {0};
    dp_error_t error = {DP_OK, ""};
    dp_status_t status = dp_tune_file_read(path, key, values, &error);

    *first = values[0];
    if (status != DP_OK && status != DP_ERR_AGAIN) assert_non_null(strstr(error.text, path));
    return status;
}

static void file_gives_back_what_was_written(void **state)
{
    const place_t *place = *state;
    dp_tune_key_t other = base;
    uint64_t first;

    assert_int_equal(read_first(place->path, &base, &first), DP_ERR_AGAIN);
    write_good(place->path, &base, 1 << 20);
    assert_int_equal(read_first(place->path, &base, &first), DP_OK);
    assert_int_equal(first, 1 << 20);
    other.size = 3;
    assert_int_equal(read_first(place->path, &other, &first), DP_ERR_AGAIN);
    write_good(place->path, &other, 77);
    other = base;
    other.program = 0x1235;
    assert_int_equal(read_first(place->path, &other, &first), DP_ERR_AGAIN);
    write_good(place->path, &base, 5); /* in place of the first */
    assert_int_equal(read_first(place->path, &base, &first), DP_OK);
    assert_int_equal(first, 5);
    other = base;
    other.size = 3;
    assert_int_equal(read_first(place->path, &other, &first), DP_OK);
    assert_int_equal(first, 77);
}

static void file_keeps_the_latest_of_many(void **state)
{
    const place_t *place = *state;
    dp_tune_key_t key = base;
    uint64_t first;

    for (uint64_t i = 1; i <= 300; i++) {
        key.program = i;
        write_good(place->path, &key, i);
    }
    for (uint64_t i = 45; i <= 300; i++) {
        key.program = i;
        assert_int_equal(read_first(place->path, &key, &first), DP_OK);
        assert_int_equal(first, i);
    }
    key.program = 1;
    assert_int_equal(read_first(place->path, &key, &first), DP_ERR_AGAIN);
}

static void change_byte(const char *path, long at)
{
    FILE *file = fopen(path, "r+");
    int byte;

    assert_non_null(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    byte = fgetc(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    fputc(byte ^ 1, file);
    fclose(file);
}

/* No byte can change without being noticed, and the next write mends the file. */
static void file_damage_is_told(void **state)
{
    const place_t *place = *state;
    uint64_t first;
    long bytes;
    FILE *file;

    write_good(place->path, &base, 9);
    file = fopen(place->path, "r");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    bytes = ftell(file);
    fclose(file);
    for (long at = 0; at < bytes - 1; at++) {
        change_byte(place->path, at);
        assert_int_equal(read_first(place->path, &base, &first), DP_ERR_CONFIG);
        change_byte(place->path, at);
        assert_int_equal(read_first(place->path, &base, &first), DP_OK);
    }
    change_byte(place->path, 40);
    write_good(place->path, &base, 10);
    assert_int_equal(read_first(place->path, &base, &first), DP_OK);
    assert_int_equal(first, 10);
}

/* Jobs that end at one time: each keeps what the others write meanwhile. */
static void file_keeps_what_several_processes_write_at_once(void **state)
{
    enum { WRITERS = 6, LINES = 6 };
    const place_t *place = *state;
    dp_tune_key_t key = base;
    int gate[2];
    uint64_t first;

    assert_int_equal(pipe(gate), 0);
    for (int writer = 0; writer < WRITERS; writer++) {
        const pid_t child = fork();
        dp_error_t error = {DP_OK, ""};
        char byte;

        assert_true(child >= 0);
        if (child != 0) continue;
        close(gate[1]);
        if (read(gate[0], &byte, 1) != 0) _exit(1); /* all begin when the gate is closed */
        for (int line = 0; line < LINES; line++) {
            const uint64_t values[DP_KNOBS] = {(uint64_t)line + 1, 3, 0, 200000};

            key.program = (uint64_t)writer * LINES + (uint64_t)line;
            /* On a slow disk one of them may wait longer than it wants to. */
            while (dp_tune_file_write(place->path, &key, values, 0.1, 0.09, &error) != DP_OK)
                if (strstr(error.text, "held by another process") == NULL) _exit(2);
        }
        _exit(0);
    }
    close(gate[0]);
    close(gate[1]);
    for (int writer = 0; writer < WRITERS; writer++) {
        int status;

        assert_true(wait(&status) > 0);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    for (int i = 0; i < WRITERS * LINES; i++) {
        key.program = (uint64_t)i;
        assert_int_equal(read_first(place->path, &key, &first), DP_OK);
        assert_int_equal(first, i % LINES + 1);
    }
}

static void file_that_is_locked_for_good_is_told(void **state)
{
    const place_t *place = *state;
    const uint64_t values[DP_KNOBS] = {1, 2, 3, 4};
    dp_error_t error = {DP_OK, ""};
    char lock[sizeof(place->path) + 8];
    int fd;

    snprintf(lock, sizeof(lock), "%s.lock", place->path);
    fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(dp_tune_file_write(place->path, &base, values, 0.1, 0.1, &error),
                     DP_ERR_SYSTEM);
    assert_non_null(strstr(error.text, "tuned.lock: held by another process"));
    close(fd);
    write_good(place->path, &base, 1);
}

static void file_that_cannot_be_written_is_told(void **state)
{
    const uint64_t values[DP_KNOBS] = {1, 2, 3, 4};
    dp_error_t error = {DP_OK, ""};
    uint64_t first;

    (void)state;
    assert_int_equal(dp_tune_file_write("/nowhere/at/all", &base, values, 0.1, 0.1, &error),
                     DP_ERR_SYSTEM);
    assert_non_null(strstr(error.text, "/nowhere/at/all"));
    assert_int_equal(read_first("/tmp", &base, &first), DP_ERR_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(file_gives_back_what_was_written, setup, teardown),
        cmocka_unit_test_setup_teardown(file_keeps_the_latest_of_many, setup, teardown),
        cmocka_unit_test_setup_teardown(file_damage_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(file_keeps_what_several_processes_write_at_once, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(file_that_is_locked_for_good_is_told, setup, teardown),
        cmocka_unit_test(file_that_cannot_be_written_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
