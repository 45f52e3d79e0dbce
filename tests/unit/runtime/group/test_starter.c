/*
 * test_starter.c - what follows from the variables that launchers leave.
 */
#include "runtime/group/starter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"

static dp_config_t config;
static dp_error_t error;
static dp_starter_t starter;

/* An environment: "NAME=value", ended by NULL. DP_ variables go where the settings are. */
static const char *look_up(void *context, const char *name)
{
    const size_t bytes = strlen(name);

    for (const char *const *at = context; *at != NULL; at++) {
        if (strncmp(*at, name, bytes) == 0 && (*at)[bytes] == '=') return *at + bytes + 1;
    }
    return NULL;
}

static dp_status_t find(const char *const *environment)
{
    memset(&error, 0, sizeof(error));
    dp_config_defaults(&config);
    for (const char *const *at = environment; *at != NULL; at++) {
        char name[64];

        if (strncmp(*at, "DP_", 3) != 0) continue;
        snprintf(name, sizeof(name), "%.*s", (int)(strchr(*at, '=') - *at - 3), *at + 3);
        assert_int_equal(
            dp_config_set(&config, name, strchr(*at, '=') + 1, DP_FROM_ENVIRONMENT, &error), DP_OK);
    }
    return dp_starter_find(&config, look_up, (void *)(uintptr_t)environment, &starter, &error);
}

#define FIND(...) find((const char *const[]){__VA_ARGS__, NULL})

static void expect_text(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("'%s' lacks '%s'", text, part);
}

#define TORCHRUN                                                                                   \
    "RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=node7",           \
        "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=abc", "TORCHELASTIC_RESTART_COUNT=2"
#define OPENMPI                                                                                    \
    "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1",            \
        "OMPI_COMM_WORLD_LOCAL_SIZE=4", "PMIX_NAMESPACE=1954611201"
#define SLURM                                                                                      \
    "SLURM_JOB_ID=77", "SLURM_STEP_ID=3", "SLURM_PROCID=5", "SLURM_STEP_NUM_TASKS=6",              \
        "SLURM_LOCALID=1", "SLURM_STEP_NUM_NODES=3"
#define DPRUN "DP_RANK=1", "DP_SIZE=3", "DP_LOCAL_RANK=0", "DP_LOCAL_SIZE=2", "DP_BOOTSTRAP_FD=4"

static void expect(dp_starter_kind_t kind, int rank, int size, int local_rank, int local_size)
{
    assert_string_equal(error.text, "");
    assert_int_equal(starter.kind, kind);
    assert_int_equal(starter.rank, rank);
    assert_int_equal(starter.size, size);
    assert_int_equal(starter.local_rank, local_rank);
    assert_int_equal(starter.local_size, local_size);
}

/* ---- One family ----------------------------------------------------------------------------- */

static void starter_nothing_set_is_a_world_of_one(void **state)
{
    (void)state;
    assert_int_equal(FIND("HOME=/root", "MASTER_ADDR=node7", "MASTER_PORT=1", "PMIX_NAMESPACE=1",
                          "SLURM_JOB_ID=77", "SLURM_NTASKS=6", "SLURM_PROCID=0",
                          "DP_RENDEZVOUS=a:1"),
                     DP_OK);
    expect(DP_STARTER_NONE, 0, 1, -1, -1);
    assert_string_equal(starter.warning, "");
}

static void starter_reads_every_family(void **state)
{
    (void)state;
    assert_int_equal(FIND(DPRUN), DP_OK);
    expect(DP_STARTER_DPRUN, 1, 3, 0, 2);

    assert_int_equal(FIND("DP_RANK=1", "DP_SIZE=3", "DP_RENDEZVOUS=node7:4711"), DP_OK);
    expect(DP_STARTER_PLAIN, 1, 3, -1, -1);
    assert_string_equal(starter.host, "node7");
    assert_int_equal(starter.port, 4711);
    assert_false(starter.is_one_node);
    assert_string_equal(starter.identity, "plain-node7:4711");

    assert_int_equal(FIND(TORCHRUN), DP_OK);
    expect(DP_STARTER_TORCHRUN, 3, 8, 1, 2);
    assert_string_equal(starter.host, "node7");
    assert_int_equal(starter.port, 29501);
    assert_false(starter.is_port_asked);
    assert_false(starter.is_one_node);
    assert_string_equal(starter.identity, "torchrun-abc-2-node7-29500");

    assert_int_equal(FIND(OPENMPI), DP_OK);
    expect(DP_STARTER_OPENMPI, 1, 4, 1, 4);
    assert_true(starter.is_one_node);
    assert_string_equal(starter.host, "");
    assert_string_equal(starter.identity, "openmpi-1954611201");

    assert_int_equal(FIND("PMI_RANK=1", "PMI_SIZE=4", "PMI_FD=6", "MPI_LOCALNRANKS=2",
                          "MPI_LOCALRANKID=1", "PMI_JOBID=77.3"),
                     DP_OK);
    expect(DP_STARTER_PMI, 1, 4, 1, 2);
    assert_int_equal(starter.pmi_fd, 6);
    assert_string_equal(starter.pmi_job, "77.3");

    assert_int_equal(FIND(SLURM), DP_OK);
    expect(DP_STARTER_SLURM, 5, 6, 1, -1);
    assert_false(starter.is_one_node);
    assert_string_equal(starter.identity, "slurm-77.3-0");
}

static void starter_reads_older_names(void **state)
{
    (void)state;
    assert_int_equal(FIND("SLURM_JOBID=77", "SLURM_STEPID=3", "SLURM_PROCID=1", "SLURM_NPROCS=2",
                          "SLURM_NNODES=1"),
                     DP_OK);
    expect(DP_STARTER_SLURM, 1, 2, -1, -1);
    assert_true(starter.is_one_node);
}

static void starter_one_rank_needs_no_rendezvous(void **state)
{
    (void)state;
    assert_int_equal(FIND("RANK=0", "WORLD_SIZE=1"), DP_OK);
    expect(DP_STARTER_TORCHRUN, 0, 1, -1, -1);
    assert_int_equal(FIND("DP_RANK=0", "DP_SIZE=1"), DP_OK);
    expect(DP_STARTER_PLAIN, 0, 1, -1, -1);
    assert_int_equal(FIND("PMI_RANK=0", "PMI_SIZE=1"), DP_OK);
    expect(DP_STARTER_PMI, 0, 1, -1, -1);
}

static void starter_shell_of_an_allocation_is_a_world_of_one(void **state)
{
    static const char *const steps[] = {"SLURM_STEP_ID=4294967290", "SLURM_STEP_ID=4294967291",
                                        "SLURM_STEP_ID=4294967292", "SLURM_STEP_ID=4294967293",
                                        "SLURM_STEP_ID="};

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(steps); i++) {
        assert_int_equal(FIND(steps[i], "SLURM_JOB_ID=77", "SLURM_PROCID=0", "SLURM_NTASKS=6"),
                         DP_OK);
        expect(DP_STARTER_NONE, 0, 1, -1, -1);
    }
}

/* ---- Where rank 0 is ------------------------------------------------------------------------ */

static void starter_port_is_the_one_behind_master_port(void **state)
{
    (void)state;
#define AT(port) "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=10.0.0.7", "MASTER_PORT=" port
    assert_int_equal(FIND(AT("65534")), DP_OK);
    assert_int_equal(starter.port, 65535);
    assert_int_equal(FIND(AT("65535")), DP_OK);
    assert_int_equal(starter.port, 1024); /* there is no other behind it */
    assert_int_equal(FIND(AT("29500"), "DP_RENDEZVOUS_PORT=7"), DP_OK);
    assert_int_equal(starter.port, 7);
    assert_string_equal(starter.host, "10.0.0.7");
    assert_true(starter.is_port_asked);
    assert_int_equal(FIND(AT("29500"), "DP_RENDEZVOUS=other:9", "DP_RENDEZVOUS_PORT=7"), DP_OK);
    assert_int_equal(starter.port, 9);
    assert_string_equal(starter.host, "other");
    assert_int_equal(FIND(AT("70000")), DP_ERR_CONFIG);
    expect_text(error.text, "MASTER_PORT='70000' of torchrun is not a number from 0 to 65535");
}

static void starter_knows_one_machine(void **state)
{
    (void)state;
    assert_int_equal(FIND("DP_RANK=0", "DP_SIZE=2", "DP_RENDEZVOUS=127.0.0.1:9"), DP_OK);
    assert_true(starter.is_one_node);
    assert_int_equal(FIND("DP_RANK=0", "DP_SIZE=2", "DP_RENDEZVOUS=localhost:9"), DP_OK);
    assert_true(starter.is_one_node);
    assert_int_equal(FIND("DP_RANK=0", "DP_SIZE=2", "DP_RENDEZVOUS=node7:9", "DP_LOCAL_RANK=0",
                          "DP_LOCAL_SIZE=2"),
                     DP_OK);
    assert_true(starter.is_one_node);
    assert_int_equal(FIND("DP_RANK=0", "DP_SIZE=2", "DP_RENDEZVOUS=localhost:9", "DP_LOCAL_RANK=0",
                          "DP_LOCAL_SIZE=1"),
                     DP_OK);
    assert_false(starter.is_one_node); /* it was said */
}

static void starter_takes_addresses_of_version_6(void **state)
{
    (void)state;
    assert_int_equal(FIND("DP_RANK=0", "DP_SIZE=2", "DP_RENDEZVOUS=[2001:db8::1]:29510"), DP_OK);
    assert_string_equal(starter.host, "2001:db8::1");
    assert_int_equal(starter.port, 29510);
    assert_false(starter.is_one_node);
    assert_int_equal(FIND("DP_RANK=0", "DP_SIZE=2", "DP_RENDEZVOUS=[::1]:9"), DP_OK);
    assert_true(starter.is_one_node);
    assert_int_equal(FIND("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=2001:db8::1", "MASTER_PORT=29500"),
                     DP_OK);
    assert_string_equal(starter.host, "2001:db8::1");
    assert_int_equal(FIND("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=[::1]", "MASTER_PORT=29500"),
                     DP_OK);
    assert_string_equal(starter.host, "::1");
}

static void starter_bad_address_is_an_error(void **state)
{
    static const char *const addresses[] = {"DP_RENDEZVOUS=node7",   "DP_RENDEZVOUS=:1",
                                            "DP_RENDEZVOUS=node7:",  "DP_RENDEZVOUS=node7:0",
                                            "DP_RENDEZVOUS=node7:x", "DP_RENDEZVOUS=node7:65536",
                                            "DP_RENDEZVOUS=[::1]",   "DP_RENDEZVOUS=fe80::1:80",
                                            "DP_RENDEZVOUS=[::1:12", "DP_RENDEZVOUS=::1]:12"};

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(addresses); i++) {
        assert_int_equal(FIND("DP_RANK=0", "DP_SIZE=2", addresses[i]), DP_ERR_CONFIG);
        expect_text(error.text, "is not HOST:PORT");
    }
}

/* ---- Half of a family ----------------------------------------------------------------------- */

/* Every proper subset of a family's needed variables that holds a marker is refused. */
static void expect_halves(const char *const *variables, int count, int markers, const char *name)
{
    for (unsigned set = 1; set < (1u << count) - 1; set++) {
        const char *environment[8] = {NULL};
        int used = 0;
        int has_marker = 0;

        for (int i = 0; i < count; i++) {
            if (!(set >> i & 1)) continue;
            environment[used++] = variables[i];
            if (i < markers) has_marker = 1;
        }
        if (!has_marker) continue;
        assert_int_equal(find(environment), DP_ERR_CONFIG);
        expect_text(error.text, name);
        for (int i = 0; i < count; i++) {
            char variable[64];

            snprintf(variable, sizeof(variable), "%.*s", (int)strcspn(variables[i], "="),
                     variables[i]);
            expect_text(error.text, variable); /* there or missing, it is named */
        }
    }
}

static void starter_half_of_a_family_is_an_error(void **state)
{
    static const char *const plain[] = {"DP_RANK=1", "DP_SIZE=3", "DP_RENDEZVOUS=node7:9"};
    static const char *const torchrun[] = {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=n",
                                           "MASTER_PORT=5"};
    static const char *const openmpi[] = {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2",
                                          "PMIX_NAMESPACE=x"};
    static const char *const pmi[] = {"PMI_RANK=1", "PMI_SIZE=2", "PMI_FD=5"};
    static const char *const slurm[] = {"SLURM_STEP_ID=0", "SLURM_PROCID=1",
                                        "SLURM_STEP_NUM_TASKS=2", "SLURM_JOB_ID=9"};

    (void)state;
    expect_halves(plain, 3, 2, "half of plain variables: ");
    expect_halves(torchrun, 4, 2, "half of torchrun: ");
    expect_halves(openmpi, 3, 2, "half of Open MPI: ");
    expect_halves(pmi, 3, 3, "half of PMI: ");
    expect_halves(slurm, 4, 1, "half of Slurm: ");
    assert_int_equal(FIND("LOCAL_RANK=1"), DP_ERR_CONFIG);
    expect_text(error.text, "half of torchrun: LOCAL_RANK=1 is set, but not RANK, WORLD_SIZE");
    assert_int_equal(FIND("DP_BOOTSTRAP_FD=3", TORCHRUN), DP_ERR_CONFIG); /* ours, all the same */
    expect_text(error.text, "half of dprun");
}

static void starter_pod_that_nothing_divided_is_an_error(void **state)
{
    (void)state;
    assert_int_equal(FIND("PET_NNODES=2", "PET_NPROC_PER_NODE=1"), DP_ERR_CONFIG);
    expect_text(error.text, "PET_NNODES=2 and PET_NPROC_PER_NODE=1 ask for several ranks");
    expect_text(error.text, "dprun --node env");
    assert_int_equal(FIND("PET_NNODES=1", "PET_NPROC_PER_NODE=8"), DP_ERR_CONFIG);
    assert_int_equal(FIND("PET_NNODES=1:4", "PET_NPROC_PER_NODE=auto"), DP_ERR_CONFIG);
    assert_int_equal(FIND("PET_NNODES=1", "PET_NPROC_PER_NODE=1"), DP_OK);
    assert_int_equal(starter.size, 1);
    assert_int_equal(FIND("PET_NNODES=2"), DP_OK); /* of something else */
    assert_int_equal(FIND("PET_NNODES=2", "PET_NPROC_PER_NODE=4", TORCHRUN), DP_OK);
    assert_int_equal(starter.kind, DP_STARTER_TORCHRUN);
    assert_string_equal(starter.warning, "");
}

static void starter_numbers_that_cannot_be_are_an_error(void **state)
{
    static const struct {
        const char *rank, *size, *local_rank, *local_size, *part;
    } rows[] = {
        {"RANK=2", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1",
         "RANK=2 is not below WORLD_SIZE=2"},
        {"RANK=0", "WORLD_SIZE=0", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1",
         "RANK=0 is not below WORLD_SIZE=0"},
        {"RANK=-1", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1",
         "RANK='-1' of torchrun is not a number from 0 to 1048576"},
        {"RANK=0", "WORLD_SIZE=2x", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1",
         "WORLD_SIZE='2x' of torchrun is not a number"},
        {"RANK=0", "WORLD_SIZE=99999999999999999999", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1",
         "of torchrun is not a number"},
        {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=3",
         "LOCAL_WORLD_SIZE=3 is above WORLD_SIZE=2"},
        {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2",
         "LOCAL_RANK=2 is not below LOCAL_WORLD_SIZE=2"},
    };

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(rows); i++) {
        assert_int_equal(FIND(rows[i].rank, rows[i].size, rows[i].local_rank, rows[i].local_size,
                              "MASTER_ADDR=n", "MASTER_PORT=5"),
                         DP_ERR_CONFIG);
        expect_text(error.text, rows[i].part);
    }
}

/* ---- Several families ----------------------------------------------------------------------- */

static void starter_precedence_is_fixed(void **state)
{
    (void)state;
    assert_int_equal(FIND(DPRUN, TORCHRUN, OPENMPI, SLURM), DP_OK);
    assert_int_equal(starter.kind, DP_STARTER_DPRUN);
    assert_int_equal(FIND("DP_RANK=1", "DP_SIZE=3", "DP_RENDEZVOUS=n:9", TORCHRUN, OPENMPI, SLURM),
                     DP_OK);
    assert_int_equal(starter.kind, DP_STARTER_PLAIN);
    assert_int_equal(FIND(SLURM, OPENMPI, TORCHRUN), DP_OK);
    assert_int_equal(starter.kind, DP_STARTER_TORCHRUN);
    assert_int_equal(FIND(SLURM, OPENMPI, "PMI_RANK=1", "PMI_SIZE=4", "PMI_FD=6"), DP_OK);
    assert_int_equal(starter.kind, DP_STARTER_OPENMPI);
    assert_int_equal(FIND(SLURM, "PMI_RANK=5", "PMI_SIZE=6", "PMI_FD=6"), DP_OK);
    assert_int_equal(starter.kind, DP_STARTER_PMI);
    assert_string_equal(starter.warning, ""); /* they agree */
}

static void starter_contradictions_are_warned_of_with_both_values(void **state)
{
    (void)state;
    assert_int_equal(FIND("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=n", "MASTER_PORT=5", SLURM),
                     DP_OK);
    assert_string_equal(starter.warning,
                        "torchrun says rank 0 of 2 (RANK, WORLD_SIZE), Slurm says rank 5 of 6 "
                        "(SLURM_PROCID, SLURM_STEP_NUM_TASKS): using torchrun");
    /* of a difference in size rank 0 speaks for all, of one in rank whom it concerns */
    assert_int_equal(FIND(TORCHRUN, SLURM), DP_OK);
    assert_string_equal(starter.warning, "");
    assert_int_equal(FIND("RANK=2", "WORLD_SIZE=4", "MASTER_ADDR=n", "MASTER_PORT=5", OPENMPI),
                     DP_OK);
    expect_text(starter.warning, "torchrun says rank 2 of 4 (RANK, WORLD_SIZE), Open MPI says rank "
                                 "1 of 4");
    /* a world of one beside a launcher's four: each of the four says so */
    assert_int_equal(FIND("RANK=0", "WORLD_SIZE=1", OPENMPI), DP_OK);
    expect_text(starter.warning, "torchrun says rank 0 of 1");
    /* one of one says nothing about a world */
    assert_int_equal(FIND(OPENMPI, "PMI_RANK=0", "PMI_SIZE=1"), DP_OK);
    assert_string_equal(starter.warning, "");
}

static void starter_half_beside_a_whole_is_a_warning(void **state)
{
    (void)state;
    assert_int_equal(FIND("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=4", "PMIX_NAMESPACE=7",
                          "LOCAL_RANK=0"),
                     DP_OK);
    assert_int_equal(starter.kind, DP_STARTER_OPENMPI);
    assert_string_equal(starter.warning, "half of torchrun is set too, without RANK, WORLD_SIZE, "
                                         "MASTER_ADDR, MASTER_PORT: using Open MPI");
}

static void starter_long_values_are_cut_the_same_everywhere(void **state)
{
    static char address[2000] = "MASTER_ADDR=";
    static char run[2000] = "TORCHELASTIC_RUN_ID=";

    (void)state;
    memset(address + strlen(address), 'a', 1900);
    memset(run + strlen(run), '/', 1900);
    assert_int_equal(FIND("RANK=0", "WORLD_SIZE=2", "MASTER_PORT=5", address, run), DP_OK);
    assert_true(strlen(starter.identity) < DP_IDENTITY_MAX - 1);
    assert_non_null(strstr(starter.identity, "-5")); /* not cut at its end */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starter_nothing_set_is_a_world_of_one),
        cmocka_unit_test(starter_reads_every_family),
        cmocka_unit_test(starter_reads_older_names),
        cmocka_unit_test(starter_one_rank_needs_no_rendezvous),
        cmocka_unit_test(starter_shell_of_an_allocation_is_a_world_of_one),
        cmocka_unit_test(starter_port_is_the_one_behind_master_port),
        cmocka_unit_test(starter_knows_one_machine),
        cmocka_unit_test(starter_takes_addresses_of_version_6),
        cmocka_unit_test(starter_bad_address_is_an_error),
        cmocka_unit_test(starter_half_of_a_family_is_an_error),
        cmocka_unit_test(starter_pod_that_nothing_divided_is_an_error),
        cmocka_unit_test(starter_numbers_that_cannot_be_are_an_error),
        cmocka_unit_test(starter_precedence_is_fixed),
        cmocka_unit_test(starter_contradictions_are_warned_of_with_both_values),
        cmocka_unit_test(starter_half_beside_a_whole_is_a_warning),
        cmocka_unit_test(starter_long_values_are_cut_the_same_everywhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
