/*
 * nodes.c - see nodes.h. Reads the command line, a hostfile, Slurm's variables and those of other
 * systems that start one process per machine (nodes_join.c).
 */
#include "launcher/dprun/remote/nodes.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/dprun/remote/nodes_join.h"
#include "launcher/dprun/remote/shell.h"
#include "launcher/dprun/remote/station.h"
#include "runtime/base/config_value.h"

extern char **environ;

/* ---- Slurm ---------------------------------------------------------------------------------- */

/* Inside an allocation of several nodes, and not one of its tasks. Shells that Slurm starts itself
 * are steps with ids from the end of the range. */
static const char *slurm_nodes(void)
{
    const char *names = dp_environment("SLURM_JOB_NODELIST");
    const char *count = dp_environment("SLURM_JOB_NUM_NODES");
    const char *step = dp_environment("SLURM_STEP_ID");
    int64_t nodes = 0;
    int64_t id = 0;

    if (names == NULL) names = dp_environment("SLURM_NODELIST");
    if (count == NULL) count = dp_environment("SLURM_NNODES");
    if (dp_environment("SLURM_JOB_ID") == NULL || names == NULL || count == NULL) return NULL;
    if (dp_parse_integer(count, &nodes) != NULL || nodes < 2) return NULL;
    if (step != NULL && dp_parse_integer(step, &id) == NULL && id >= 0 && id < 0xfffffff0) {
        return NULL;
    }
    return names;
}

static dp_status_t plan_slurm(dp_nodes_t *nodes, const char *names, dp_error_t *error)
{
    const char *tasks = dp_environment("SLURM_TASKS_PER_NODE");

    if (tasks == NULL) tasks = dp_environment("SLURM_JOB_CPUS_PER_NODE");
    nodes->way = DP_NODES_SRUN;
    return dp_hosts_from_slurm(&nodes->hosts, names, tasks, error);
}

/* Ranks may need a part of the allocation only. Slurm would choose any of its nodes. */
static dp_status_t name_used_nodes(dp_nodes_t *nodes, dp_error_t *error)
{
    const size_t room = (size_t)nodes->hosts.count * (DP_HOST_NAME_MAX + 1);
    size_t used = 0;

    nodes->names = malloc(room);
    if (nodes->names == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    for (int i = 0; i < nodes->hosts.count; i++) {
        used += (size_t)snprintf(nodes->names + used, room - used, "%s%s", i > 0 ? "," : "",
                                 nodes->hosts.list[i].name);
    }
    return DP_OK;
}

/* ---- Variables ------------------------------------------------------------------------------ */

static int add_variable(dp_nodes_t *nodes, char *entry) /* taken */
{
    char **list = realloc(nodes->variables, (nodes->variable_count + 1) * sizeof(*list));

    if (list != NULL) nodes->variables = list;
    if (list == NULL || entry == NULL) {
        free(entry);
        return -1;
    }
    list[nodes->variable_count++] = entry;
    return 0;
}

/* Settings, from wherever they come: a rank elsewhere inherits nothing of this process. */
static int pass_settings(dp_nodes_t *nodes, const dp_config_t *config)
{
    for (size_t i = 0; i < dp_config_count(); i++) {
        char value[DP_CONFIG_TEXT_MAX + 64];
        char *entry = NULL;

        if (dp_config_setting(i)->is_internal || config->source[i] == DP_FROM_DEFAULT) continue;
        dp_config_format(config, i, value, sizeof(value));
        if (asprintf(&entry, "DP_%s=%s", dp_config_setting(i)->name, value) < 0) return -1;
        if (add_variable(nodes, entry) != 0) return -1;
    }
    return 0;
}

/* -x NAME and -x 'NCCL_*': as they are set here. */
static int pass_named(dp_nodes_t *nodes, const dp_command_t *command)
{
    for (size_t i = 0; i < command->passed_count; i++) {
        for (char **at = environ; *at != NULL; at++) {
            const size_t bytes = strcspn(*at, "=");
            char name[256];

            if (bytes >= sizeof(name)) continue;
            memcpy(name, *at, bytes);
            name[bytes] = '\0';
            if (fnmatch(command->passed[i], name, 0) != 0) continue;
            if (add_variable(nodes, strdup(*at)) != 0) return -1;
        }
    }
    for (size_t i = 0; i < command->variable_count; i++) {
        if (add_variable(nodes, strdup(command->variables[i])) != 0) return -1;
    }
    return 0;
}

/* ---- Plan ----------------------------------------------------------------------------------- */

int dp_nodes_are_asked(const dp_command_t *command)
{
    return command->hosts != NULL || command->hostfile != NULL || command->node != NULL ||
           slurm_nodes() != NULL;
}

static dp_status_t find_paths(dp_nodes_t *nodes, const dp_command_t *command, dp_error_t *error)
{
    size_t used;
    const ssize_t bytes = readlink("/proc/self/exe", nodes->program, sizeof(nodes->program) - 1);

    if (bytes <= 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "/proc/self/exe: %s", strerror(errno));
    }
    nodes->program[bytes] = '\0';
    if (command->directory != NULL && command->directory[0] == '/') {
        snprintf(nodes->directory, sizeof(nodes->directory), "%s", command->directory);
        return DP_OK;
    }
    if (getcwd(nodes->directory, sizeof(nodes->directory)) == NULL) {
        return dp_error_set(error, DP_ERR_SYSTEM, "the working folder: %s", strerror(errno));
    }
    used = strlen(nodes->directory);
    if (command->directory != NULL) { /* as on one machine: below this folder, not a login's */
        snprintf(nodes->directory + used, sizeof(nodes->directory) - used, "/%s",
                 command->directory);
    }
    if (strlen(nodes->directory) > DP_DIRECTORY_MAX) {
        return dp_error_set(error, DP_ERR_CONFIG, "the working folder has more than %d bytes: %s",
                            DP_DIRECTORY_MAX, nodes->directory);
    }
    return DP_OK;
}

static dp_status_t check_together(const dp_command_t *command, dp_error_t *error)
{
    const int ways =
        (command->hosts != NULL) + (command->hostfile != NULL) + (command->node != NULL);

    if (ways > 1) {
        return dp_error_set(error, DP_ERR_CONFIG, "-H, --hostfile and --node: give one of them");
    }
    return DP_OK;
}

dp_status_t dp_nodes_plan(dp_nodes_t *nodes, dp_command_t *command, dp_error_t *error)
{
    const char *slurm = slurm_nodes();
    int known;
    dp_status_t status;

    memset(nodes, 0, sizeof(*nodes));
    if (!dp_nodes_are_asked(command)) return DP_OK;
    status = check_together(command, error);
    if (status == DP_OK) status = find_paths(nodes, command, error);
    if (status != DP_OK) return status;
    if (command->hosts != NULL || command->hostfile != NULL) {
        nodes->way = DP_NODES_SSH;
        status = command->hosts != NULL ? dp_hosts_parse(&nodes->hosts, command->hosts, error)
                                        : dp_hosts_read(&nodes->hosts, command->hostfile, error);
    } else if (command->node != NULL) {
        nodes->way = DP_NODES_JOIN;
        status = dp_nodes_plan_join(nodes, command, error);
    } else {
        status = plan_slurm(nodes, slurm, error);
    }
    known = nodes->hosts.count;
    if (status == DP_OK) status = dp_hosts_place(&nodes->hosts, &command->size, error);
    if (status == DP_OK && nodes->way == DP_NODES_SRUN && nodes->hosts.count < known)
        status = name_used_nodes(nodes, error);
    if (status == DP_OK && command->size > DP_RANKS_MAX) {
        status =
            dp_error_set(error, DP_ERR_CONFIG, "%d ranks: at most %d", command->size, DP_RANKS_MAX);
    }
    if (status == DP_OK && command->stdin_rank >= command->size) {
        status = dp_error_set(error, DP_ERR_CONFIG, "--stdin %d: the job has ranks 0 to %d",
                              command->stdin_rank, command->size - 1);
    }
    if (status == DP_OK &&
        (pass_settings(nodes, &command->config) != 0 || pass_named(nodes, command) != 0)) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    if (status != DP_OK) dp_nodes_fini(nodes);
    return status;
}

void dp_nodes_fini(dp_nodes_t *nodes)
{
    for (size_t i = 0; i < nodes->variable_count; i++) {
        free(nodes->variables[i]);
    }
    free(nodes->variables);
    free(nodes->names);
    nodes->names = NULL;
    nodes->variables = NULL;
    nodes->variable_count = 0;
    dp_hosts_fini(&nodes->hosts);
    explicit_bzero(&nodes->secret, sizeof(nodes->secret));
}
