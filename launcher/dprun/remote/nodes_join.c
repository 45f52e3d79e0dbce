/*
 * nodes_join.c - see nodes_join.h. Pure but for the secret's file and the environment.
 *
 * All nodes run the same command line; that of node 0 decides what is started.
 */
#include "launcher/dprun/remote/nodes_join.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/dprun/remote/station.h"
#include "runtime/base/config_value.h"

#define DEFAULT_PORT 29500
#define NODES_MAX 1024
#define SECRET_MIN 32

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

/* Kubeflow's trainer. A range of nodes ("2:4") is of elastic jobs: the first is what there must be.
 */
static int place_of_torch(place_t *place)
{
    const char *nodes = dp_environment("PET_NNODES");
    const char *port = dp_environment("PET_MASTER_PORT");
    const char *ranks = dp_environment("PET_NPROC_PER_NODE");
    char first[16];

    if (nodes == NULL) return 0;
    snprintf(first, sizeof(first), "%.*s", (int)strcspn(nodes, ":"), nodes);
    place->count = read_number(first, 1, NODES_MAX);
    place->node = read_number(dp_environment("PET_NODE_RANK"), 0, NODES_MAX - 1);
    place->port = port == NULL ? 0 : read_number(port, 1, 65535);
    place->ranks = dp_max(read_number(ranks, 1, DP_RANKS_MAX), 0);
    if (dp_environment("PET_MASTER_ADDR") != NULL) {
        snprintf(place->meet, sizeof(place->meet), "%s", dp_environment("PET_MASTER_ADDR"));
    }
    return 1;
}

/* Volcano: VC_WORKER_HOSTS=a,b,c of the task that is called worker, and the index in it. */
static int place_of_volcano(place_t *place)
{
    const char *index = dp_environment("VC_TASK_INDEX");

    if (index == NULL) return 0;
    for (char **at = environ; *at != NULL; at++) {
        const size_t bytes = strcspn(*at, "=");
        const char *hosts = *at + bytes + ((*at)[bytes] == '=');

        if (strncmp(*at, "VC_", 3) != 0 || bytes < 9 || strncmp(*at + bytes - 6, "_HOSTS", 6) != 0)
            continue;
        if (place->count > 0) return -1; /* several tasks: which one is not said */
        place->count = 1;
        snprintf(place->meet, sizeof(place->meet), "%.*s", (int)strcspn(hosts, ","), hosts);
        for (; *hosts != '\0'; hosts++) {
            place->count += *hosts == ',';
        }
    }
    place->node = read_number(index, 0, NODES_MAX - 1);
    return place->count > 0;
}

/* SageMaker: SM_HOSTS=["algo-1","algo-2"], SM_CURRENT_HOST=algo-2. */
static int place_of_sagemaker(place_t *place)
{
    const char *hosts = dp_environment("SM_HOSTS");
    const char *own = dp_environment("SM_CURRENT_HOST");

    if (hosts == NULL || own == NULL) return 0;
    place->node = -1;
    for (const char *at = strchr(hosts, '"'); at != NULL; at = strchr(at, '"')) {
        const size_t bytes = strcspn(at + 1, "\"");

        if (place->count == 0) {
            snprintf(place->meet, sizeof(place->meet), "%.*s", (int)bytes, at + 1);
        }
        if (strlen(own) == bytes && strncmp(own, at + 1, bytes) == 0) place->node = place->count;
        place->count++;
        at += bytes + 1;
        if (*at == '"') at++;
    }
    place->ranks = dp_max(read_number(dp_environment("SM_NUM_GPUS"), 1, DP_RANKS_MAX), 0);
    return place->count > 0;
}

static dp_status_t place_from_environment(place_t *place, dp_error_t *error)
{
    int found = place_of_torch(place);

    if (found == 0) found = place_of_volcano(place);
    if (found == 0) found = place_of_sagemaker(place);
    if (found > 0) return DP_OK;
    return dp_error_set(error, DP_ERR_CONFIG,
                        found < 0 ? "--node env: there are several VC_*_HOSTS: say --node R/N"
                                  : "--node env: neither PET_NNODES, VC_TASK_INDEX nor SM_HOSTS is "
                                    "set: say --node R/N --meet HOST:PORT");
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
    uint8_t data[4096];
    struct stat about;
    ssize_t bytes = -1;
    int fd;

    if (path[0] == '\0') {
        return dp_error_set(error, DP_ERR_CONFIG,
                            "--node: several machines need a secret: DP_SECRET_FILE names a file "
                            "of at least %d random bytes, the same on all, mode 0600",
                            SECRET_MIN);
    }
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &about) == 0 && (about.st_mode & 077) != 0 &&
        about.st_uid == geteuid()) {
        close(fd);
        return dp_error_set(error, DP_ERR_CONFIG,
                            "DP_SECRET_FILE %s: others may read it (mode %03o): chmod 600", path,
                            (unsigned)about.st_mode & 0777);
    }
    if (fd >= 0) bytes = read(fd, data, sizeof(data));
    if (fd >= 0) close(fd);
    if (bytes < SECRET_MIN) {
        return dp_error_set(error, DP_ERR_CONFIG, "DP_SECRET_FILE %s: %s", path,
                            fd < 0 || bytes < 0 ? strerror(errno) : "fewer than 32 bytes");
    }
    dp_auth_derive(NULL, "secret of nodes", data, (size_t)bytes, secret);
    explicit_bzero(data, sizeof(data));
    return DP_OK;
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
    if (place.node < 0 || place.count < 1 || place.node >= place.count || place.port < 0) {
        return dp_error_set(error, DP_ERR_CONFIG,
                            "--node %s: node %d of %d, port %d: that cannot be", command->node,
                            place.node, place.count, place.port);
    }
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

int dp_nodes_follow(const dp_nodes_t *nodes, const dp_command_t *command)
{
    dp_station_options_t options = {.start_timeout_ns = command->config.start_timeout_ns};
    int code;

    options.ticket.node = (uint32_t)nodes->node;
    options.ticket.port = nodes->port;
    options.ticket.secret = nodes->secret;
    options.ticket.address_count = 1;
    snprintf(options.ticket.addresses[0], sizeof(options.ticket.addresses[0]), "%s", nodes->meet);
    code = dp_station_run(&options);
    explicit_bzero(&options, sizeof(options));
    return code;
}
