/*
 * nodes_join.c - see nodes_join.h. Pure but for the secret's file and the environment. Called by
 * nodes.c, and by dprun.c on all nodes but the first.
 *
 * All nodes run the same command line; that of node 0 decides what is started.
 */
#include "launcher/dprun/remote/nodes_join.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/dprun/remote/station.h"
#include "runtime/base/config_value.h"
#include "runtime/base/auth.h"

#define DEFAULT_PORT 29500
#define NODES_MAX 1024

extern char **environ;

/* A whole number in [min, max], or -1. */
static int read_number(const char *text, int min, int max)
{
    int64_t value = 0;

    if (text == NULL || dp_parse_integer(text, &value) != NULL) return -1;
    return value < min || value > max ? -1 : (int)value;
}

typedef struct place {
    int node;
    int count;
    char meet[256]; /* "": not said */
    int port;       /* 0: likewise */
    int ranks;      /* of each node; 0: likewise */
} place_t;

/* ---- Environments --------------------------------------------------------------------------- */

/* A variable may contain anything; an error repeats the beginning of it. */
static dp_status_t refuse_variable(const char *name, const char *wants, dp_error_t *error)
{
    const char *value = dp_environment(name);
    char shown[64];

    if (value == NULL) {
        return dp_error_set(error, DP_ERR_CONFIG,
                            "--node env: %s is not set: it must be %s (or say --node R/N)", name,
                            wants);
    }
    snprintf(shown, sizeof(shown), "%s", value);
    return dp_error_set(error, DP_ERR_CONFIG, "--node env: %s=%s: must be %s", name, shown, wants);
}

static dp_status_t read_variable(const char *name, int min, int max, int *value, dp_error_t *error)
{
    char wants[64];

    *value = read_number(dp_environment(name), min, max);
    if (*value >= 0) return DP_OK;
    snprintf(wants, sizeof(wants), "a whole number from %d to %d", min, max);
    return refuse_variable(name, wants, error);
}

/* The number of this node among place->count of them. */
static dp_status_t read_node(const char *name, place_t *place, dp_error_t *error)
{
    return read_variable(name, 0, place->count - 1, &place->node, error);
}

/* 0: these bytes are no name or address of a machine. */
static int copy_host(const char *text, size_t bytes, place_t *place)
{
    if (bytes < 1 || bytes >= sizeof(place->meet)) return 0;
    for (size_t i = 0; i < bytes; i++) {
        if (!isalnum((unsigned char)text[i]) && strchr(".-_:[]%", text[i]) == NULL) return 0;
    }
    memcpy(place->meet, text, bytes);
    place->meet[bytes] = '\0';
    return 1;
}

/* Kubeflow's trainer. A range of nodes ("2:4") is of elastic jobs: the first is what there must be.
 */
static dp_status_t place_of_torch(place_t *place, dp_error_t *error)
{
    const char *nodes = dp_environment("PET_NNODES");
    const char *ranks = dp_environment("PET_NPROC_PER_NODE");
    const char *host = dp_environment("PET_MASTER_ADDR");
    const size_t bytes = strcspn(nodes, ":");
    char first[16] = "";
    dp_status_t status;

    if (bytes < sizeof(first)) memcpy(first, nodes, bytes);
    place->count = read_number(first, 1, NODES_MAX);
    if (place->count < 0 ||
        (nodes[bytes] == ':' && read_number(nodes + bytes + 1, place->count, INT_MAX) < 0)) {
        return refuse_variable("PET_NNODES", "a number of nodes (2), or a range of them (2:4)",
                               error);
    }
    status = read_node("PET_NODE_RANK", place, error);
    if (status == DP_OK && dp_environment("PET_MASTER_PORT") != NULL)
        status = read_variable("PET_MASTER_PORT", 1, 65535, &place->port, error);
    /* torchrun counts devices for these words; dprun has -np. */
    if (status == DP_OK && ranks != NULL && dp_parse_choice(ranks, "auto|cpu|gpu") < 0)
        status = read_variable("PET_NPROC_PER_NODE", 1, DP_RANKS_MAX, &place->ranks, error);
    if (status == DP_OK && host != NULL && !copy_host(host, strlen(host), place))
        status = refuse_variable("PET_MASTER_ADDR", "the name or address of node 0", error);
    return status;
}

/* Counts the names of "a,b,c"; the first is where node 0 is. -1: malformed. */
static int read_name_list(const char *names, place_t *place)
{
    place_t other;
    int count = 0;

    for (const char *at = names;; at++) {
        const size_t bytes = strcspn(at, ",");

        if (!copy_host(at, bytes, count == 0 ? place : &other)) return -1;
        count++;
        at += bytes;
        if (*at == '\0') return count <= NODES_MAX ? count : -1;
    }
}

/* Volcano: VC_WORKER_HOSTS=a,b,c of the task that is called worker, and the index in it. */
static dp_status_t place_of_volcano(place_t *place, dp_error_t *error)
{
    for (char **at = environ; *at != NULL; at++) {
        const size_t bytes = strcspn(*at, "=");
        char name[128] = "";

        if (strncmp(*at, "VC_", 3) != 0 || bytes < 9 || strncmp(*at + bytes - 6, "_HOSTS", 6) != 0)
            continue;
        if (place->count > 0) {
            return dp_error_set(error, DP_ERR_CONFIG,
                                "--node env: there are several VC_*_HOSTS: say --node R/N");
        }
        memcpy(name, *at, dp_min(bytes, sizeof(name) - 1));
        place->count = read_name_list(*at + bytes + ((*at)[bytes] == '='), place);
        if (place->count < 0) return refuse_variable(name, "names of machines (a,b,c)", error);
    }
    if (place->count > 0) return read_node("VC_TASK_INDEX", place, error);
    return refuse_variable("VC_..._HOSTS", "names of machines (a,b,c)", error);
}

/* SageMaker: SM_HOSTS=["algo-1","algo-2"], SM_CURRENT_HOST=algo-2. -1: malformed. */
static int read_json_names(const char *text, const char *own, place_t *place)
{
    place_t other;
    int count = 0;

    text += strspn(text, " ");
    if (*text++ != '[') return -1;
    do {
        size_t bytes;

        text += strspn(text, " ");
        if (*text++ != '"') return -1;
        bytes = strcspn(text, "\"");
        if (text[bytes] != '"' || !copy_host(text, bytes, count == 0 ? place : &other)) return -1;
        if (strlen(own) == bytes && strncmp(own, text, bytes) == 0) place->node = count;
        count++;
        text += bytes + 1;
        text += strspn(text, " ");
    } while (*text++ == ',');
    return text[-1] == ']' && text[strspn(text, " ")] == '\0' && count <= NODES_MAX ? count : -1;
}

static dp_status_t place_of_sagemaker(place_t *place, dp_error_t *error)
{
    const char *own = dp_environment("SM_CURRENT_HOST");
    const char *ranks = dp_environment("SM_NUM_GPUS");

    place->count = read_json_names(dp_environment("SM_HOSTS"), own == NULL ? "" : own, place);
    if (place->count < 0)
        return refuse_variable("SM_HOSTS", "a list of names ([\"a\",\"b\"])", error);
    if (place->node < 0) return refuse_variable("SM_CURRENT_HOST", "one of SM_HOSTS", error);
    if (ranks == NULL || strcmp(ranks, "0") == 0) return DP_OK;
    return read_variable("SM_NUM_GPUS", 0, DP_RANKS_MAX, &place->ranks, error);
}

static dp_status_t place_from_environment(place_t *place, dp_error_t *error)
{
    if (dp_environment("PET_NNODES") != NULL) return place_of_torch(place, error);
    if (dp_environment("VC_TASK_INDEX") != NULL) return place_of_volcano(place, error);
    if (dp_environment("SM_HOSTS") != NULL) return place_of_sagemaker(place, error);
    return dp_error_set(error, DP_ERR_CONFIG,
                        "--node env: neither PET_NNODES, VC_TASK_INDEX nor SM_HOSTS is set: say "
                        "--node R/N --meet HOST:PORT");
}

/* ---- Flags ---------------------------------------------------------------------------------- */

static dp_status_t place_from_flag(const char *text, place_t *place, dp_error_t *error)
{
    const char *slash = strchr(text, '/');
    char node[16] = "";

    if (slash != NULL) snprintf(node, sizeof(node), "%.*s", (int)(slash - text), text);
    place->node = read_number(node, 0, NODES_MAX - 1);
    place->count = slash == NULL ? -1 : read_number(slash + 1, 1, NODES_MAX);
    if (place->node >= 0 && place->count > place->node) return DP_OK;
    return dp_error_set(error, DP_ERR_CONFIG,
                        "--node %s: must be R/N, node R of N (0/2 and 1/2), or env", text);
}

/* "host", "host:29500", "[::1]:29500". */
static dp_status_t split_meet(const char *text, place_t *place, dp_error_t *error)
{
    const char *close = text[0] == '[' ? strchr(text, ']') : NULL;
    const char *colon = strrchr(close != NULL ? close : text, ':');
    const char *end = colon != NULL ? colon : text + strlen(text);

    if (close == NULL && colon != NULL && strchr(text, ':') != colon) end = text + strlen(text);
    if (*end == ':') {
        place->port = read_number(end + 1, 1, 65535);
        if (place->port < 0) {
            return dp_error_set(error, DP_ERR_CONFIG, "--meet %s: must be HOST:PORT", text);
        }
    }
    if (close != NULL) {
        snprintf(place->meet, sizeof(place->meet), "%.*s", (int)(close - text - 1), text + 1);
    } else {
        snprintf(place->meet, sizeof(place->meet), "%.*s", (int)(end - text), text);
    }
    return DP_OK;
}

/* ---- Secret --------------------------------------------------------------------------------- */

static dp_status_t read_secret(const char *path, dp_secret_t *secret, dp_error_t *error)
{
    if (path[0] != '\0') return dp_secret_file_read(path, "secret of nodes", secret, error);
    return dp_error_set(error, DP_ERR_CONFIG,
                        "--node: several machines need a secret: DP_SECRET_FILE names a file of at "
                        "least %d random bytes, the same on all, mode 0600",
                        DP_SECRET_FILE_MIN);
}

dp_status_t dp_nodes_plan_join(dp_nodes_t *nodes, dp_command_t *command, dp_error_t *error)
{
    place_t place = {.node = -1};
    dp_status_t status = strcmp(command->node, "env") == 0
                             ? place_from_environment(&place, error)
                             : place_from_flag(command->node, &place, error);

    if (status == DP_OK && command->meet != NULL) status = split_meet(command->meet, &place, error);
    if (status == DP_OK) status = read_secret(command->config.secret_file, &nodes->secret, error);
    if (status != DP_OK) return status;
    if (place.meet[0] == '\0') {
        return dp_error_set(error, DP_ERR_CONFIG,
                            "--node %s: --meet HOST:PORT is missing: where node 0 is",
                            command->node);
    }
    nodes->node = place.node;
    nodes->port = (uint16_t)(place.port > 0 ? place.port : DEFAULT_PORT);
    snprintf(nodes->meet, sizeof(nodes->meet), "%s", place.meet);
    if (command->size == 0) command->size = place.ranks > 0 ? place.ranks : 1;
    nodes->hosts.list = calloc((size_t)place.count, sizeof(*nodes->hosts.list));
    if (nodes->hosts.list == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    nodes->hosts.count = place.count;
    for (int i = 0; i < place.count; i++) { /* their names come with them */
        snprintf(nodes->hosts.list[i].name, sizeof(nodes->hosts.list[i].name), "node%d", i);
        nodes->hosts.list[i].slots = command->size;
        nodes->hosts.list[i].has_slots = 1;
    }
    command->size *= place.count; /* -np is a node's */
    return DP_OK;
}

int dp_nodes_follow(dp_nodes_t *nodes, const dp_command_t *command)
{
    dp_station_options_t options = {.start_timeout_ns = command->config.start_timeout_ns};
    int code;

    options.ticket.node = (uint32_t)nodes->node;
    options.ticket.port = nodes->port;
    options.ticket.secret = nodes->secret;
    explicit_bzero(&nodes->secret, sizeof(nodes->secret));
    options.ticket.address_count = 1;
    snprintf(options.ticket.addresses[0], sizeof(options.ticket.addresses[0]), "%s", nodes->meet);
    code = dp_station_run(&options);
    explicit_bzero(&options, sizeof(options));
    return code;
}
