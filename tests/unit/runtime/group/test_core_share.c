/*
 * test_core_share.c - ranks have a core each exactly where they can be matched with the cores they
 * may use, within the quotas of their cgroups.
 */
#include "runtime/group/core_share.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/cases.h"

#define RANKS 8

/* A row of the table below: where each rank may run, and what its cgroups allow. */
typedef struct machine {
    const char *claim;
    const char *cores[RANKS];     /* "0-3,7"; NULL: no further rank */
    dp_core_quota_t quota[RANKS]; /* millicores 0: none */
    int each;                     /* of two at most */
} machine_t;

static const machine_t machines[] = {
    {"two free ranks on two cores have one each", {"0-1", "0-1"}, {{0, 0}}, 1},
    {"two free ranks on four cores have two each", {"0-3", "0-3"}, {{0, 0}}, 2},
    {"three free ranks on two cores take turns", {"0-1", "0-1", "0-1"}, {{0, 0}}, 0},
    {"ranks bound to a core each have one", {"0", "1", "2", "3"}, {{0, 0}}, 1},
    {"ranks bound to two cores each have two", {"0-1", "2-3"}, {{0, 0}}, 2},
    {"two ranks bound to one core take turns, however many are idle",
     {"0", "0", "1-7"},
     {{0, 0}},
     0},
    {"a free rank moves aside for a bound one", {"0-1", "0"}, {{0, 0}}, 1},
    {"ranks move aside in a chain", {"0-1", "1-2", "2-3", "0"}, {{0, 0}}, 1},
    {"a chain without an end does not fit", {"0-1", "1-2", "0-2", "0-2"}, {{0, 0}}, 0},
    {"one of two sockets is full", {"0-1", "0-1", "0-1", "8-15"}, {{0, 0}}, 0},
    {"cores beyond 1024 count", {"1024", "4095"}, {{0, 0}}, 1},
    {"a rank alone with one core", {"5"}, {{0, 0}}, 1},
    {"a rank that knows no core", {""}, {{0, 0}}, 0},
    {"a quota of one core for two", {"0-7", "0-7"}, {{7, 1000}, {7, 1000}}, 0},
    {"a quota of three cores for two", {"0-7", "0-7"}, {{7, 3000}, {7, 3000}}, 1},
    {"a quota of four cores for two", {"0-7", "0-7"}, {{7, 4000}, {7, 4000}}, 2},
    {"containers with a quota each", {"0-7", "0-7"}, {{7, 1000}, {8, 1500}}, 1},
    {"half a core is none", {"0-7", "0-7"}, {{0, 0}, {8, 500}}, 0},
};

/* Sets the bits of "0-3,7". */
static void set_cores(dp_core_share_t *share, const char *list)
{
    while (*list != '\0') {
        char *end;
        const long first = strtol(list, &end, 10);
        const long last = *end == '-' ? strtol(end + 1, &end, 10) : first;

        for (long i = first; i <= last; i++)
            share->cores[i / 8] |= (uint8_t)(1u << i % 8);
        list = *end == ',' ? end + 1 : end;
    }
}

static void core_share_matches_ranks_with_cores(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
        static dp_core_share_t shares[RANKS];
        const dp_core_share_t *list[RANKS];
        int count = 0;

        memset(shares, 0, sizeof(shares));
        for (; count < RANKS && machines[i].cores[count] != NULL; count++) {
            list[count] = &shares[count];
            set_cores(&shares[count], machines[i].cores[count]);
            if (machines[i].quota[count].millicores == 0) continue;
            shares[count].quotas[0] = machines[i].quota[count];
            shares[count].quota_count = 1;
        }
        if (dp_core_share_each(list, count, 2) != machines[i].each)
            fail_msg("%s: %d, expected %d", machines[i].claim, dp_core_share_each(list, count, 2),
                     machines[i].each);
    }
}

static void core_share_of_a_large_machine_is_found_at_once(void **state)
{
    static dp_core_share_t all;
    const dp_core_share_t *list[600];

    (void)state;
    set_cores(&all, "0-511");
    for (int i = 0; i < 600; i++)
        list[i] = &all;
    assert_int_equal(dp_core_share_each(list, 256, 2), 2);
    assert_int_equal(dp_core_share_each(list, 512, 2), 1);
    assert_int_equal(dp_core_share_each(list, 513, 2), 0);
}

static void core_share_survives_the_wire(void **state)
{
    static dp_core_share_t from, to;
    uint8_t data[1024];
    dp_writer_t writer;
    dp_reader_t reader;

    (void)state;
    set_cores(&from, "0,9,77");
    from.quotas[0] = (dp_core_quota_t){UINT64_C(0x123456789abcdef0), 1500};
    from.quotas[1] = (dp_core_quota_t){2, 64000};
    from.quota_count = 2;
    dp_writer_init(&writer, data, sizeof(data));
    dp_core_share_write(&from, &writer);
    assert_false(writer.failed);
    assert_true(writer.bytes < 64);
    dp_reader_init(&reader, data, writer.bytes);
    memset(&to, 0xff, sizeof(to));
    dp_core_share_from(&to, &reader);
    assert_false(reader.failed);
    assert_int_equal(dp_reader_left(&reader), 0);
    assert_memory_equal(&from, &to, sizeof(from));
    for (size_t bytes = 0; bytes < writer.bytes; bytes++) { /* cut off anywhere: refused */
        dp_reader_init(&reader, data, bytes);
        dp_core_share_from(&to, &reader);
        assert_true(reader.failed);
    }
}

/* ---- Files of the kernel -------------------------------------------------------------------- */

static char root[64];

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/dp-cores-XXXXXX");
    return mkdtemp(root) == NULL ? -1 : 0;
}

static int remove_root(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf '%s'", root);
    return system(command); /* NOLINT(bugprone-command-processor,cert-env33-c): a path of ours */
}

/* Writes a file below the root, with the folders above it. */
static void put(const char *path, const char *text)
{
    char whole[256];
    FILE *file;

    snprintf(whole, sizeof(whole), "%s/%s", root, path);
    for (char *at = whole + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        mkdir(whole, 0700);
        *at = '/';
    }
    file = fopen(whole, "we");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void read_quotas(dp_core_share_t *share)
{
    char cgroup_file[128];
    char mount[128];

    snprintf(cgroup_file, sizeof(cgroup_file), "%s/cgroup", root);
    snprintf(mount, sizeof(mount), "%s/sys", root);
    memset(share, 0, sizeof(*share));
    dp_core_quotas_read(share, cgroup_file, mount);
}

static void core_quota_is_that_of_every_group_above(void **state)
{
    static dp_core_share_t share, other;

    (void)state;
    put("cgroup", "0::/pods/a/inner\n");
    put("sys/pods/cpu.max", "800000 100000\n");
    put("sys/pods/a/cpu.max", "150000 100000\n");
    put("sys/pods/a/inner/cpu.max", "max 100000\n");
    put("sys/pods/b/cpu.max", "200000 100000\n");
    read_quotas(&share);
    assert_int_equal(share.quota_count, 2);
    assert_int_equal(share.quotas[0].millicores, 1500);
    assert_int_equal(share.quotas[1].millicores, 8000);
    put("cgroup", "0::/pods/b\n");
    read_quotas(&other);
    assert_int_equal(other.quota_count, 2);
    assert_int_equal(other.quotas[0].millicores, 2000);
    assert_true(other.quotas[0].group != share.quotas[0].group);
    assert_true(other.quotas[1].group == share.quotas[1].group); /* both are pods */
}

static void core_quota_of_version_1_is_read(void **state)
{
    static dp_core_share_t share;

    (void)state;
    put("cgroup", "5:memory:/job\n4:cpu,cpuacct:/job\n0::/\n");
    put("sys/cpu/cpu.cfs_quota_us", "-1\n");
    put("sys/cpu/cpu.cfs_period_us", "100000\n");
    put("sys/cpu/job/cpu.cfs_quota_us", "250000\n");
    put("sys/cpu/job/cpu.cfs_period_us", "100000\n");
    read_quotas(&share);
    assert_int_equal(share.quota_count, 1);
    assert_int_equal(share.quotas[0].millicores, 2500);
}

static void core_quota_of_a_container_stands_at_the_mount(void **state)
{
    static dp_core_share_t share;

    (void)state;
    put("cgroup", "0::/docker/0123\n"); /* as the host calls it; not below this mount */
    put("sys/cpu.max", "100000 100000\n");
    read_quotas(&share);
    assert_int_equal(share.quota_count, 1);
    assert_int_equal(share.quotas[0].millicores, 1000);
}

static void core_quota_that_cannot_be_read_is_none(void **state)
{
    static dp_core_share_t share;

    (void)state;
    read_quotas(&share); /* no file at all */
    assert_int_equal(share.quota_count, 0);
    put("cgroup", "nonsense\n::\n0::\n");
    put("sys/cpu.max", "lots\n");
    read_quotas(&share);
    assert_int_equal(share.quota_count, 0);
}

static void core_share_of_this_process_has_a_core(void **state)
{
    static dp_core_share_t share;
    const dp_core_share_t *list[1] = {&share};

    (void)state;
    dp_core_share_read(&share);
    share.quota_count = 0; /* whatever runs the tests may have half a core */
    assert_true(dp_core_share_each(list, 1, 1) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(core_share_matches_ranks_with_cores),
        cmocka_unit_test(core_share_of_a_large_machine_is_found_at_once),
        cmocka_unit_test(core_share_survives_the_wire),
        cmocka_unit_test_setup_teardown(core_quota_is_that_of_every_group_above, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(core_quota_of_version_1_is_read, make_root, remove_root),
        cmocka_unit_test_setup_teardown(core_quota_of_a_container_stands_at_the_mount, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(core_quota_that_cannot_be_read_is_none, make_root,
                                        remove_root),
        cmocka_unit_test(core_share_of_this_process_has_a_core),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
