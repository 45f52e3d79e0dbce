/*
 * test_beacon.c - the bytes that tell where rank 0 is, and the file that holds them: believed only
 * when it is whole, ours alone, of this job and of a living process.
 */
#include "runtime/group/beacon.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/cases.h"

#define SOON (dp_now_ns() + 20000000000u) /* never reached unless something is wrong */

static dp_error_t error;
static char directory[256]; /* XDG_RUNTIME_DIR */
static char path[DP_BEACON_PATH_MAX];

static dp_beacon_t example(const char *identity)
{
    dp_beacon_t beacon = {.port = 4711, .address_count = 2};

    snprintf(beacon.addresses[0], sizeof(beacon.addresses[0]), "10.11.12.13");
    snprintf(beacon.addresses[1], sizeof(beacon.addresses[1]), "127.0.0.1");
    snprintf(beacon.identity, sizeof(beacon.identity), "%s", identity);
    memset(beacon.secret.bytes, 0x5a, sizeof(beacon.secret.bytes));
    dp_process_self(&beacon.server);
    return beacon;
}

static void expect_text(const char *part)
{
    if (strstr(error.text, part) == NULL) fail_msg("'%s' lacks '%s'", error.text, part);
}

static int enter(void **state)
{
    (void)state;
    memset(&error, 0, sizeof(error));
    snprintf(directory, sizeof(directory), "/tmp/test_beacon-XXXXXX");
    if (mkdtemp(directory) == NULL) return -1;
    setenv("XDG_RUNTIME_DIR", directory, 1);
    dp_beacon_path("job", path);
    return 0;
}

static int leave(void **state)
{
    char text[300];

    (void)state;
    dp_beacon_remove(path);
    snprintf(text, sizeof(text), "%s/dp", directory);
    rmdir(text);
    if (rmdir(directory) == 0) return 0;
    fprintf(stderr, "%s: %s\n", directory, strerror(errno));
    return -1;
}

/* ---- Bytes ---------------------------------------------------------------------------------- */

static void beacon_survives_its_bytes(void **state)
{
    const dp_beacon_t beacon = example("job");
    dp_beacon_t copy;
    uint8_t data[DP_BEACON_MAX];
    char text[2 * DP_BEACON_MAX + 1];
    size_t bytes;

    (void)state;
    bytes = dp_beacon_write(&beacon, data, sizeof(data));
    assert_true(bytes > 0);
    assert_int_equal(dp_beacon_read(data, bytes, &copy, &error), DP_OK);
    assert_memory_equal(&copy, &beacon, sizeof(copy));
    assert_int_equal(dp_beacon_to_text(&beacon, text, sizeof(text)), 2 * bytes);
    memset(&copy, 0, sizeof(copy));
    assert_int_equal(dp_beacon_from_text(text, &copy, &error), DP_OK);
    assert_memory_equal(&copy, &beacon, sizeof(copy));
    assert_int_equal(dp_beacon_write(&beacon, data, bytes - 1), 0);
    assert_int_equal(dp_beacon_to_text(&beacon, text, 2 * bytes), 0);
    assert_true(bytes < 512); /* as text it must fit a value of PMI, 1024 characters */
}

static void beacon_largest_fits_everywhere(void **state)
{
    dp_beacon_t beacon = example("job");
    uint8_t data[DP_BEACON_MAX];

    (void)state;
    memset(beacon.identity, 'i', sizeof(beacon.identity) - 1);
    memset(beacon.server.boot, 'b', sizeof(beacon.server.boot) - 1);
    beacon.address_count = DP_BEACON_ADDRESSES;
    for (int i = 0; i < DP_BEACON_ADDRESSES; i++)
        snprintf(beacon.addresses[i], sizeof(beacon.addresses[i]), "255.255.255.255");
    assert_true(dp_beacon_write(&beacon, data, sizeof(data)) > 0);
}

static void beacon_malformed_bytes_are_refused(void **state)
{
    dp_beacon_t beacon = example("job");
    dp_beacon_t copy = {.port = 7};
    uint8_t data[DP_BEACON_MAX + 1];
    size_t bytes = dp_beacon_write(&beacon, data, sizeof(data));

    (void)state;
    for (size_t cut = 0; cut < bytes; cut++) {
        assert_int_equal(dp_beacon_read(data, cut, &copy, &error), DP_ERR_SYSTEM);
    }
    data[bytes] = 0;
    assert_int_equal(dp_beacon_read(data, bytes + 1, &copy, &error), DP_ERR_SYSTEM);
    data[0] ^= 1;
    assert_int_equal(dp_beacon_read(data, bytes, &copy, &error), DP_ERR_SYSTEM);
    expect_text("not a rendezvous' beacon");
    data[0] ^= 1;
    data[4] = 9;
    assert_int_equal(dp_beacon_read(data, bytes, &copy, &error), DP_ERR_SYSTEM);
    expect_text("a beacon of version 9, this library reads 2");
    for (int row = 0; row < 4; row++) {
        beacon = example("job");
        if (row == 0) beacon.port = 0;
        if (row == 1) beacon.address_count = 0;
        if (row == 2) snprintf(beacon.addresses[1], sizeof(beacon.addresses[1]), "node7");
        if (row == 3) beacon.addresses[0][0] = '\0';
        bytes = dp_beacon_write(&beacon, data, sizeof(data));
        assert_int_equal(dp_beacon_read(data, bytes, &copy, &error), DP_ERR_SYSTEM);
        expect_text("malformed");
    }
    assert_int_equal(copy.port, 7); /* untouched */
    assert_int_equal(dp_beacon_from_text("0", &copy, &error), DP_ERR_SYSTEM);
    assert_int_equal(dp_beacon_from_text("", &copy, &error), DP_ERR_SYSTEM);
    assert_int_equal(dp_beacon_from_text("0g", &copy, &error), DP_ERR_SYSTEM);
    expect_text("characters 0 and 1 are no hexadecimal digits");
}

/* ---- The file ------------------------------------------------------------------------------- */

static void beacon_file_is_found_by_its_job_alone(void **state)
{
    const dp_beacon_t beacon = example("job");
    char other[DP_BEACON_PATH_MAX];
    struct stat about;
    dp_beacon_t copy;

    (void)state;
    assert_int_equal(dp_beacon_look(path, "job", &copy, &error), DP_ERR_PENDING);
    expect_text("there is no");
    assert_int_equal(dp_beacon_publish(path, &beacon, SOON, &error), DP_OK);
    assert_int_equal(dp_beacon_look(path, "job", &copy, &error), DP_OK);
    assert_memory_equal(&copy, &beacon, sizeof(copy));
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    dp_beacon_path("job2", other);
    assert_string_not_equal(path, other);
    assert_int_equal(dp_beacon_look(other, "job2", &copy, &error), DP_ERR_PENDING);
    assert_int_equal(dp_beacon_look(path, "job2", &copy, &error), DP_ERR_PENDING);
    expect_text("is of another job, 'job'");
    dp_beacon_path("a/b", path);
    dp_beacon_path("a_b", other);
    assert_string_not_equal(path, other); /* alike once made fit for a file's name */
    dp_beacon_path("job", path);
    dp_beacon_remove(path);
    assert_int_equal(stat(path, &about), -1);
}

static void beacon_of_a_living_process_is_not_replaced(void **state)
{
    const dp_beacon_t beacon = example("job");
    dp_beacon_t other = example("job");
    dp_beacon_t copy;

    (void)state;
    other.port = 1;
    assert_int_equal(dp_beacon_publish(path, &beacon, SOON, &error), DP_OK);
    assert_int_equal(dp_beacon_publish(path, &other, SOON, &error), DP_ERR_BUSY);
    expect_text("is rank 0 of the same job 'job'");
    assert_int_equal(dp_beacon_look(path, "job", &copy, &error), DP_OK);
    assert_int_equal(copy.port, 4711);
}

/* A process that has ended: its number may be another's by now. */
static dp_process_t ended_process(void)
{
    dp_process_t process;
    const pid_t child = fork();

    if (child == 0) _exit(0);
    dp_process_self(&process);
    process.pid = (uint32_t)child;
    process.start = 1; /* nothing that runs now began with the machine's first tick */
    assert_int_equal(waitpid(child, NULL, 0), child);
    return process;
}

static void beacon_of_an_ended_process_is_stale_and_replaced(void **state)
{
    dp_beacon_t beacon = example("job");
    dp_beacon_t copy;
    char third[DP_BEACON_PATH_MAX];

    (void)state;
    beacon.server = ended_process();
    assert_int_equal(dp_beacon_publish(path, &beacon, SOON, &error), DP_OK);
    assert_int_equal(dp_beacon_look(path, "job", &copy, &error), DP_ERR_PENDING);
    expect_text("is stale: its process");
    /* a new one of another job sweeps it away */
    beacon = example("third");
    dp_beacon_path("third", third);
    assert_int_equal(dp_beacon_publish(third, &beacon, SOON, &error), DP_OK);
    assert_int_equal(dp_beacon_look(path, "job", &copy, &error), DP_ERR_PENDING);
    expect_text("there is no");
    dp_beacon_remove(third);
    /* and one of its own takes its place */
    beacon = example("job");
    beacon.server = ended_process();
    assert_int_equal(dp_beacon_publish(path, &beacon, SOON, &error), DP_OK);
    beacon = example("job");
    assert_int_equal(dp_beacon_publish(path, &beacon, SOON, &error), DP_OK);
    assert_int_equal(dp_beacon_look(path, "job", &copy, &error), DP_OK);
}

static void process_is_told_from_others(void **state)
{
    dp_process_t process;

    (void)state;
    dp_process_self(&process);
    assert_int_equal(process.pid, (uint32_t)getpid());
    assert_true(process.start > 0);
    assert_true(process.boot[0] != '\0');
    assert_false(dp_process_has_ended(&process));
    process.start++; /* the number was used before */
    assert_true(dp_process_has_ended(&process));
    dp_process_self(&process);
    process.boot[0] ^= 1; /* before the machine was started again */
    assert_true(dp_process_has_ended(&process));
    process = ended_process();
    assert_true(dp_process_has_ended(&process));
    process.pid_space++; /* of a container: from here nobody can say */
    assert_false(dp_process_has_ended(&process));
}

static void beacon_that_others_could_write_is_not_believed(void **state)
{
    const dp_beacon_t beacon = example("job");
    char target[512];
    char place[512];
    dp_beacon_t copy;
    int fd;

    (void)state;
    assert_int_equal(dp_beacon_publish(path, &beacon, SOON, &error), DP_OK);
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(dp_beacon_look(path, "job", &copy, &error), DP_ERR_CONFIG);
    expect_text("is not a file of user");
    assert_int_equal(dp_beacon_publish(path, &beacon, SOON, &error), DP_ERR_CONFIG);
    assert_int_equal(chmod(path, 0600), 0);
    snprintf(place, sizeof(place), "%s/dp", directory);
    assert_int_equal(chmod(place, 0711), 0);
    assert_int_equal(dp_beacon_look(path, "job", &copy, &error), DP_ERR_CONFIG);
    expect_text("with mode 711");
    assert_int_equal(dp_beacon_publish(path, &beacon, SOON, &error), DP_ERR_CONFIG);
    assert_int_equal(chmod(place, 0700), 0);
    /* links lead elsewhere */
    snprintf(target, sizeof(target), "%s/elsewhere", directory);
    assert_int_equal(rename(path, target), 0);
    assert_int_equal(symlink(target, path), 0);
    assert_int_equal(dp_beacon_look(path, "job", &copy, &error), DP_ERR_CONFIG);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(place), 0);
    assert_int_equal(symlink(directory, place), 0);
    assert_int_equal(dp_beacon_look(path, "job", &copy, &error), DP_ERR_CONFIG);
    expect_text("not a directory of ours");
    assert_int_equal(dp_beacon_publish(path, &beacon, SOON, &error), DP_ERR_CONFIG);
    assert_int_equal(unlink(place), 0);
    assert_int_equal(unlink(target), 0);
    /* neither is what is no beacon, or too long for one */
    assert_int_equal(mkdir(place, 0700), 0);
    for (int round = 0; round < 2; round++) {
        static const char data[2 * DP_BEACON_MAX];

        fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
        assert_true(fd >= 0);
        if (round == 1) assert_int_equal(write(fd, data, sizeof(data)), (ssize_t)sizeof(data));
        close(fd);
        assert_int_equal(dp_beacon_look(path, "job", &copy, &error), DP_ERR_CONFIG);
        expect_text("remove it");
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(mkfifo(path, 0600), 0); /* opening it must not wait for a writer */
    assert_int_equal(dp_beacon_look(path, "job", &copy, &error), DP_ERR_CONFIG);
}

static void beacon_lock_that_is_held_ends_at_the_deadline(void **state)
{
    const dp_beacon_t beacon = example("job");
    char place[512];
    int fd;

    (void)state;
    snprintf(place, sizeof(place), "%s/dp", directory);
    assert_int_equal(mkdir(place, 0700), 0);
    fd = open(place, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(dp_beacon_publish(path, &beacon, dp_now_ns() + 20000000u, &error),
                     DP_ERR_TIMEOUT);
    expect_text("its lock");
    close(fd);
    assert_int_equal(dp_beacon_publish(path, &beacon, SOON, &error), DP_OK);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, enter, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(beacon_survives_its_bytes),
        CASE(beacon_largest_fits_everywhere),
        CASE(beacon_malformed_bytes_are_refused),
        CASE(beacon_file_is_found_by_its_job_alone),
        CASE(beacon_of_a_living_process_is_not_replaced),
        CASE(beacon_of_an_ended_process_is_stale_and_replaced),
        CASE(process_is_told_from_others),
        CASE(beacon_that_others_could_write_is_not_believed),
        CASE(beacon_lock_that_is_held_ends_at_the_deadline),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
