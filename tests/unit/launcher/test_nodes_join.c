/*
 * test_nodes_join.c - where this node stands in a job that others start, from their variables
 * (Kubeflow's trainer, Volcano, SageMaker) or from flags, and one sentence for each that is wrong.
 */
#include "launcher/dprun/remote/nodes_join.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/cases.h"

static char secret_path[] = "/tmp/test-nodes-join-XXXXXX";
static dp_nodes_t nodes;
static dp_command_t command;
static dp_error_t error;

static int make_secret(void **state)
{
    const int fd = mkstemp(secret_path);

    (void)state;
    if (fd < 0 || write(fd, "0123456789abcdef0123456789abcdef", 32) != 32) return -1;
    close(fd);
    return 0;
}

static int remove_secret(void **state)
{
    (void)state;
    return unlink(secret_path);
}

/* "A=1 B=two": no value has a space in it but where it is written as '|'. */
static void set_variables(const char *text)
{
    char copy[1024];
    char *rest = copy;

    clearenv();
    snprintf(copy, sizeof(copy), "%s", text);
    for (char *word; (word = strsep(&rest, " ")) != NULL;) {
        char *value = strchr(word, '=');

        if (value == NULL) continue;
        *value++ = '\0';
        for (char *at = value; *at != '\0'; at++)
            if (*at == '|') *at = ' ';
        assert_int_equal(setenv(word, value, 1), 0);
    }
}

static dp_status_t plan(const char *node, const char *meet)
{
    dp_status_t status;

    memset(&nodes, 0, sizeof(nodes));
    memset(&command, 0, sizeof(command));
    dp_config_defaults(&command.config);
    snprintf(command.config.secret_file, sizeof(command.config.secret_file), "%s", secret_path);
    command.node = node;
    command.meet = meet;
    error = (dp_error_t){DP_OK, ""};
    status = dp_nodes_plan_join(&nodes, &command, &error);
    dp_hosts_fini(&nodes.hosts);
    return status;
}

typedef struct right {
    const char *variables;
    int node, count;
    const char *meet;
    int port, size;
} right_t;

static void assert_right(const right_t *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const right_t *one = &cases[i];

        set_variables(one->variables);
        if (plan("env", NULL) != DP_OK) fail_msg("%s: %s", one->variables, error.text);
        assert_int_equal(nodes.node, one->node);
        assert_int_equal(nodes.port, one->port);
        assert_string_equal(nodes.meet, one->meet);
        assert_int_equal(command.size, one->size);
    }
}

typedef struct wrong {
    const char *variables;
    const char *text;
} wrong_t;

/* One line, without a control character, that says which variable is wrong. */
static void assert_wrong(const wrong_t *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        set_variables(cases[i].variables);
        assert_int_equal(plan("env", NULL), DP_ERR_CONFIG);
        if (strstr(error.text, cases[i].text) == NULL)
            fail_msg("%s: \"%s\" lacks \"%s\"", cases[i].variables, error.text, cases[i].text);
        for (const char *at = error.text; *at != '\0'; at++)
            assert_true((unsigned char)*at >= 0x20);
    }
}

/* ---- Kubeflow's trainer --------------------------------------------------------------------- */

#define PET "PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=job-node-0-0.job "

static void join_kubeflow_gives_node_meeting_and_ranks(void **state)
{
    static const right_t cases[] = {
        {PET "PET_MASTER_PORT=29501 PET_NPROC_PER_NODE=4", 1, 2, "job-node-0-0.job", 29501, 8},
        {PET, 1, 2, "job-node-0-0.job", 29500, 2},
        {PET "PET_NPROC_PER_NODE=auto", 1, 2, "job-node-0-0.job", 29500, 2},
        {"PET_NNODES=2:4 PET_NODE_RANK=0 PET_MASTER_ADDR=2001:db8::1 PET_NPROC_PER_NODE=gpu", 0, 2,
         "2001:db8::1", 29500, 2},
    };

    (void)state;
    assert_right(cases, sizeof(cases) / sizeof(cases[0]));
}

static void join_kubeflow_garbage_is_told_by_variable(void **state)
{
    static const wrong_t cases[] = {
        {"PET_NNODES=|", "PET_NNODES= : must be a number of nodes"},
        {"PET_NNODES=two PET_NODE_RANK=0", "PET_NNODES=two: must be"},
        {"PET_NNODES=-2 PET_NODE_RANK=0", "PET_NNODES=-2: must be"},
        {"PET_NNODES=0 PET_NODE_RANK=0", "PET_NNODES=0: must be"},
        {"PET_NNODES=4:2 PET_NODE_RANK=0", "PET_NNODES=4:2: must be"},
        {"PET_NNODES=2:x PET_NODE_RANK=0", "PET_NNODES=2:x: must be"},
        {"PET_NNODES=99999999999999999999 PET_NODE_RANK=0", "PET_NNODES=9999"},
        {"PET_NNODES=2\n3 PET_NODE_RANK=0", "PET_NNODES=2?3: must be"},
        {"PET_NNODES=2 PET_MASTER_ADDR=a", "PET_NODE_RANK is not set"},
        {"PET_NNODES=2 PET_NODE_RANK=2 PET_MASTER_ADDR=a",
         "PET_NODE_RANK=2: must be a whole number from 0 to 1"},
        {"PET_NNODES=2 PET_NODE_RANK=0x1 PET_MASTER_ADDR=a", "PET_NODE_RANK=0x1: must be"},
        {PET "PET_MASTER_PORT=0", "PET_MASTER_PORT=0: must be a whole number from 1 to 65535"},
        {PET "PET_MASTER_PORT=tcp://10.0.0.1:80", "PET_MASTER_PORT=tcp://10.0.0.1:80: must be"},
        {PET "PET_NPROC_PER_NODE=many", "PET_NPROC_PER_NODE=many: must be"},
        {"PET_NNODES=2 PET_NODE_RANK=0", "--meet HOST:PORT is missing"},
        {"PET_NNODES=2 PET_NODE_RANK=0 PET_MASTER_ADDR=", "--meet HOST:PORT is missing"},
        {"PET_NNODES=2 PET_NODE_RANK=0 PET_MASTER_ADDR=|", "PET_MASTER_ADDR= : must be the name"},
        {"PET_NNODES=2 PET_NODE_RANK=0 PET_MASTER_ADDR=$(touch|x)", "PET_MASTER_ADDR=$(touch x)"},
    };

    (void)state;
    assert_wrong(cases, sizeof(cases) / sizeof(cases[0]));
}

/* ---- Volcano -------------------------------------------------------------------------------- */

static void join_volcano_gives_the_index_in_its_task(void **state)
{
    static const right_t cases[] = {
        {"VC_TASK_INDEX=2 VC_WORKER_HOSTS=a.j,b.j,c.j VC_WORKER_NUM=3", 2, 3, "a.j", 29500, 3},
        {"VC_TASK_INDEX=0 VC_WORKER_HOSTS=a", 0, 1, "a", 29500, 1},
    };

    (void)state;
    assert_right(cases, sizeof(cases) / sizeof(cases[0]));
}

static void join_volcano_garbage_is_told_by_variable(void **state)
{
    static const wrong_t cases[] = {
        {"VC_TASK_INDEX=0", "VC_..._HOSTS is not set"},
        {"VC_TASK_INDEX=x VC_WORKER_HOSTS=a,b", "VC_TASK_INDEX=x: must be"},
        {"VC_TASK_INDEX=| VC_WORKER_HOSTS=a,b", "VC_TASK_INDEX= : must be"},
        {"VC_TASK_INDEX=2 VC_WORKER_HOSTS=a,b",
         "VC_TASK_INDEX=2: must be a whole number from 0 to 1"},
        {"VC_TASK_INDEX=0 VC_WORKER_HOSTS=",
         "VC_WORKER_HOSTS is not set: it must be names of machines"},
        {"VC_TASK_INDEX=0 VC_WORKER_HOSTS=a,,b", "VC_WORKER_HOSTS=a,,b: must be"},
        {"VC_TASK_INDEX=0 VC_WORKER_HOSTS=a,", "VC_WORKER_HOSTS=a,: must be"},
        {"VC_TASK_INDEX=0 VC_WORKER_HOSTS=a|b", "VC_WORKER_HOSTS=a b: must be"},
        {"VC_TASK_INDEX=0 VC_WORKER_HOSTS=\x1b[2J", "VC_WORKER_HOSTS=?[2J: must be"},
        {"VC_TASK_INDEX=0 VC_A_HOSTS=a VC_B_HOSTS=b", "several VC_*_HOSTS"},
    };

    (void)state;
    assert_wrong(cases, sizeof(cases) / sizeof(cases[0]));
}

/* ---- SageMaker ------------------------------------------------------------------------------ */

static void join_sagemaker_finds_its_own_name_in_the_list(void **state)
{
    static const right_t cases[] = {
        {"SM_HOSTS=[\"algo-1\",\"algo-2\"] SM_CURRENT_HOST=algo-2 SM_NUM_GPUS=8", 1, 2, "algo-1",
         29500, 16},
        {"SM_HOSTS=[|\"algo-1\",|\"algo-2\"|] SM_CURRENT_HOST=algo-1 SM_NUM_GPUS=0", 0, 2, "algo-1",
         29500, 2},
    };

    (void)state;
    assert_right(cases, sizeof(cases) / sizeof(cases[0]));
}

static void join_sagemaker_garbage_is_told_by_variable(void **state)
{
    static const wrong_t cases[] = {
        {"SM_HOSTS=| SM_CURRENT_HOST=a", "SM_HOSTS= : must be a list of names"},
        {"SM_HOSTS=[] SM_CURRENT_HOST=a", "SM_HOSTS=[]: must be"},
        {"SM_HOSTS=a,b SM_CURRENT_HOST=a", "SM_HOSTS=a,b: must be"},
        {"SM_HOSTS=[\"a\" SM_CURRENT_HOST=a", "SM_HOSTS=[\"a\": must be"},
        {"SM_HOSTS=[\"a\",] SM_CURRENT_HOST=a", "SM_HOSTS=[\"a\",]: must be"},
        {"SM_HOSTS=[\"a\",\"] SM_CURRENT_HOST=a", "SM_HOSTS=[\"a\",\"]: must be"},
        {"SM_HOSTS=[\"a\"]x SM_CURRENT_HOST=a", "SM_HOSTS=[\"a\"]x: must be"},
        {"SM_HOSTS=[\"\"] SM_CURRENT_HOST=a", "SM_HOSTS=[\"\"]: must be"},
        {"SM_HOSTS=[\"a\",\"b\"]", "SM_CURRENT_HOST is not set: it must be one of SM_HOSTS"},
        {"SM_HOSTS=[\"a\",\"b\"] SM_CURRENT_HOST=c", "SM_CURRENT_HOST=c: must be one of SM_HOSTS"},
        {"SM_HOSTS=[\"a\"] SM_CURRENT_HOST=a SM_NUM_GPUS=all", "SM_NUM_GPUS=all: must be"},
    };

    (void)state;
    assert_wrong(cases, sizeof(cases) / sizeof(cases[0]));
}

/* ---- Flags, and nothing at all -------------------------------------------------------------- */

static void join_without_any_of_them_says_what_to_say(void **state)
{
    static const wrong_t cases[] = {
        {"PET_NNODES= VC_TASK_INDEX= SM_HOSTS=",
         "neither PET_NNODES, VC_TASK_INDEX nor SM_HOSTS is set"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", "say --node R/N --meet HOST:PORT"},
    };

    (void)state;
    assert_wrong(cases, sizeof(cases) / sizeof(cases[0]));
}

static void join_flags_are_checked_likewise(void **state)
{
    static const char *const wrong[][3] = {
        {"2/2", "a", "--node 2/2: must be R/N"},    {"x", "a", "--node x: must be R/N"},
        {"0/", "a", "--node 0/: must be R/N"},      {"-1/2", "a", "--node -1/2: must be R/N"},
        {"0/2", "a:x", "--meet a:x: must be HOST"}, {"0/2", NULL, "--meet HOST:PORT is missing"},
        {"0/2", "a:0", "--meet a:0: must be HOST"}, {"0/9999999999", "a", "must be R/N"},
    };

    (void)state;
    set_variables("");
    assert_int_equal(plan("1/2", "[2001:db8::1]:4711"), DP_OK);
    assert_string_equal(nodes.meet, "2001:db8::1");
    assert_int_equal(nodes.port, 4711);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(plan(wrong[i][0], wrong[i][1]), DP_ERR_CONFIG);
        if (strstr(error.text, wrong[i][2]) == NULL) fail_msg("%s", error.text);
    }
}

/* The rules are those of runtime/base/auth.c. */
static void join_refuses_a_secret_of_all(void **state)
{
    (void)state;
    set_variables("");
    assert_int_equal(chmod(secret_path, 0606), 0);
    assert_int_equal(plan("1/2", "a"), DP_ERR_CONFIG);
    if (strstr(error.text, "mode 606") == NULL) fail_msg("%s", error.text);
    assert_int_equal(chmod(secret_path, 0600), 0);
    assert_int_equal(plan("1/2", "a"), DP_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(join_kubeflow_gives_node_meeting_and_ranks),
        cmocka_unit_test(join_kubeflow_garbage_is_told_by_variable),
        cmocka_unit_test(join_volcano_gives_the_index_in_its_task),
        cmocka_unit_test(join_volcano_garbage_is_told_by_variable),
        cmocka_unit_test(join_sagemaker_finds_its_own_name_in_the_list),
        cmocka_unit_test(join_sagemaker_garbage_is_told_by_variable),
        cmocka_unit_test(join_without_any_of_them_says_what_to_say),
        cmocka_unit_test(join_flags_are_checked_likewise),
        cmocka_unit_test(join_refuses_a_secret_of_all),
    };

    return cmocka_run_group_tests(tests, make_secret, remove_secret);
}
