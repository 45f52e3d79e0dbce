/*
 * test_secret_file.c - which files may hold a job's secret, and whose.
 */
#include "runtime/base/auth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/cases.h"

#define STRANGER 1234
#define READER 65534

static char folder[] = "/tmp/test-secret-file-XXXXXX";
static char path[sizeof(folder) + 8];

static int make_folder(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL || chmod(folder, 0755) != 0) return -1;
    snprintf(path, sizeof(path), "%s/secret", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static void make_file(size_t bytes, mode_t mode, uid_t user)
{
    FILE *file;

    unlink(path);
    file = fopen(path, "we");
    assert_non_null(file);
    for (size_t i = 0; i < bytes; i++)
        fputc('a' + (int)(i % 26), file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, mode), 0);
    if (geteuid() == 0) assert_int_equal(chown(path, user, READER), 0);
}

static void check(const char *words) /* NULL: it is read */
{
    dp_error_t error = {DP_OK, ""};
    dp_secret_t secret;
    const dp_status_t status = dp_secret_file_read(path, "test", &secret, &error);

    if (words == NULL) {
        if (status != DP_OK) fail_msg("refused: %s", error.text);
        return;
    }
    assert_int_equal(status, DP_ERR_CONFIG);
    if (strstr(error.text, words) == NULL || strstr(error.text, path) == NULL)
        fail_msg("says '%s', not '%s'", error.text, words);
}

static void secret_file_of_this_user_alone_is_read(void **state)
{
    (void)state;
    make_file(32, 0600, geteuid());
    check(NULL);
    make_file(32, 0400, geteuid());
    check(NULL);
    for (mode_t bit = 01; bit <= 040; bit <<= 1) {
        make_file(32, 0600 | bit, geteuid());
        check("chmod 600");
    }
}

static void secret_file_is_whole_or_refused(void **state)
{
    (void)state;
    make_file(DP_SECRET_FILE_MAX, 0600, geteuid());
    check(NULL);
    make_file(DP_SECRET_FILE_MAX + 1, 0600, geteuid());
    check("at least 4097 bytes, expected 32 to 4096");
    make_file(31, 0600, geteuid());
    check(": 31 bytes, expected 32 to 4096");
    make_file(0, 0600, geteuid());
    check(": 0 bytes");
}

static void secret_file_that_is_none_does_not_hang(void **state)
{
    (void)state;
    unlink(path);
    check("No such file");
    assert_int_equal(mkfifo(path, 0600), 0);
    check("not a regular file");
    unlink(path);
    assert_int_equal(symlink("/dev/zero", path), 0);
    check("not a regular file");
    unlink(path);
    assert_int_equal(symlink("/", path), 0);
    check("not a regular file");
    unlink(path);
}

/* As Kubernetes mounts it: a file of root's that a group of the user may read. */
static void secret_file_of_others_is_roots_or_refused(void **state)
{
    static const struct {
        uid_t user;
        mode_t mode;
        const char *words;
    } rows[] = {{0, 0440, NULL},
                {0, 0444, "mode 444 of user 0"},
                {0, 0460, "mode 460 of user 0"},
                {STRANGER, 0440, "mode 440 of user 1234, expected a file of user 65534"},
                {STRANGER, 0666, "mode 666 of user 1234"},
                {READER, 0440, "mode 440 of user 65534"},
                {READER, 0400, NULL}};

    (void)state;
    if (geteuid() != 0) skip();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        make_file(32, rows[i].mode, rows[i].user);
        assert_int_equal(setegid(READER), 0);
        assert_int_equal(seteuid(READER), 0);
        check(rows[i].words);
        assert_int_equal(seteuid(0), 0);
        assert_int_equal(setegid(0), 0);
    }
    make_file(32, 0600, STRANGER); /* which root could read, too */
    check("mode 600 of user 1234, expected a file of user 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(secret_file_of_this_user_alone_is_read),
        cmocka_unit_test(secret_file_is_whole_or_refused),
        cmocka_unit_test(secret_file_that_is_none_does_not_hang),
        cmocka_unit_test(secret_file_of_others_is_roots_or_refused),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
