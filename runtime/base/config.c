/*
 * config.c - the table of every setting, and what reads and writes values through it.
 *
 * One line of the table below is all that a new setting needs: its variable, its flag, its --help
 * line, its range check and its place in the handshake follow from it. Called by dp_init() and by
 * dprun, before either has other threads. The only file that calls getenv(). It must not know what
 * a setting does.
 */
#include "runtime/base/config.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/config_value.h"
#include "runtime/base/inject.h"
#include "runtime/base/wire.h"

extern char **environ;

typedef enum setting_kind {
    KIND_BYTES,   /* size_t */
    KIND_COUNT,   /* size_t */
    KIND_TIME,    /* uint64_t, ns */
    KIND_INTEGER, /* int */
    KIND_YES_NO,  /* int */
    KIND_CHOICE,  /* int or enum; min is the value of the first choice */
    KIND_TEXT     /* char [], max is its room */
} setting_kind_t;

enum { OWN, PLAN, LAUNCHER }; /* whose: this rank's, rank 0's rule for all, the launcher's */

typedef struct setting {
    dp_setting_t shown;
    size_t offset; /* into dp_config_t */
    setting_kind_t kind;
    int is_plan;
    int64_t min;
    int64_t max;
} setting_t;

#define MS ((int64_t)1000000)
#define SECOND ((int64_t)1000000000)
#define HOUR (3600 * SECOND)
#define RANK_MAX ((1 << 20) - 1)

#define SETTING(name, value, field, kind, text, whose, min, max, help)                             \
    {                                                                                              \
        {name, value, text, help, (whose) == LAUNCHER}, offsetof(dp_config_t, field), kind,        \
            (whose) == PLAN, min, max                                                              \
    }
#define BYTES(name, value, field, whose, min, max, help)                                           \
    SETTING(name, value, field, KIND_BYTES, "bytes", whose, (int64_t)(min), (int64_t)(max), help)
#define COUNT(name, value, field, whose, min, max, help)                                           \
    SETTING(name, value, field, KIND_COUNT, "integer", whose, min, max, help)
#define TIME(name, value, field, whose, min, max, help)                                            \
    SETTING(name, value, field, KIND_TIME, "time", whose, min, max, help)
#define INTEGER(name, value, field, whose, min, max, help)                                         \
    SETTING(name, value, field, KIND_INTEGER, "integer", whose, min, max, help)
#define YES_NO(name, value, field, whose, help)                                                    \
    SETTING(name, value, field, KIND_YES_NO, "yes/no", whose, 0, 1, help)
#define CHOICE(name, value, field, whose, choices, first, help)                                    \
    SETTING(name, value, field, KIND_CHOICE, choices, whose, first, 0, help)
#define TEXT(name, value, field, whose, help)                                                      \
    SETTING(name, value, field, KIND_TEXT, "text", whose, 0, sizeof(((dp_config_t *)0)->field),    \
            help)

/* clang-format off */
static const setting_t table[] = {
    BYTES("FUSION_BYTES", "32M", fusion_bytes, PLAN, 4 * DP_KIB, 4 * DP_GIB,
          "Largest fused buffer; larger tensors travel alone."),
    INTEGER("FUSION_BUFFERS", "3", fusion_buffers, PLAN, 1, 64,
            "Fused buffers in flight at a time."),
    TIME("FUSION_HOLD", "200us", hold_ns, PLAN, 0, SECOND,
         "Longest a ready tensor waits for others to join it while earlier ones are in flight."),
    CHOICE("WIRE", "none", wire, PLAN, "none|fp16|bf16", DP_WIRE_NONE,
           "What sums and averages of fp32 become between nodes."),
    CHOICE("ORDER", "negotiated", order, PLAN, "negotiated|program", DP_CONFIG_ORDER_NEGOTIATED,
           "How launches are ordered; program: as each rank submits them, without agreement."),
    INTEGER("TREE_ARITY", "8", tree_arity, PLAN, 1, 64,
            "Children of a node in the negotiation tree."),
    YES_NO("CHECK_DATA", "0", check, PLAN,
           "Checksum buffers in flight and compare weights between ranks; slow."),
    INTEGER("CHECK_REPLICAS", "0", check_replicas, PLAN, 0, 1 << 30,
            "Steps after which the ranks of a DistributedOptimizer (Python) compare their parameters; 0: never."),
    YES_NO("SHARED_WEIGHTS", "1", shared_weights, PLAN,
           "Ranks of a node keep one copy of weights that dp_shards_*() shares out; 0: each copies the others' rows."),
    TIME("STALL_WARN", "10s", stall_warn_ns, PLAN, 0, 24 * HOUR,
         "When the ranks a tensor waits for are named; 0: never."),
    TIME("STALL_LIMIT", "10min", stall_limit_ns, PLAN, 0, 168 * HOUR,
         "When the job fails because a tensor waits for a rank; 0: never."),
    TIME("FINALIZE_LIMIT", "0", finalize_limit_ns, PLAN, 0, 168 * HOUR,
         "When the job fails because a rank does not come to dp_finalize(), as others have; 0: never."),
    TIME("HEARTBEAT", "100ms", heartbeat_ns, PLAN, MS, 60 * SECOND,
         "Between signs of life of neighbours in the tree."),
    TIME("PEER_TIMEOUT", "2500ms", peer_timeout_ns, PLAN, 0, HOUR,
         "Silence after which a neighbour counts as dead; 0: never."),
    TIME("START_TIMEOUT", "30s", start_timeout_ns, OWN, MS, 24 * HOUR,
         "Longest dp_init() waits for all ranks."),
    TIME("SPIN", "50us", spin_ns, OWN, 0, SECOND,
         "Longest a waiting thread polls before it sleeps."),
    BYTES("PULL_BYTES", "128K", pull_bytes, OWN, 0, 4 * DP_GIB,
          "Tensors of ordinary memory from this size on (of broadcasts and allgathers: a quarter of it) "
          "are read by the other ranks of their node where they lie, or go through shared memory where the system forbids that; 0: none."),
    BYTES("ARENA_BYTES", "64G", arena_bytes, OWN, 16 * DP_MIB, 16384 * DP_GIB,
          "Address space per rank for dp_alloc() and fused buffers; used only as needed, and less of it "
          "where a limit (ulimit -v) leaves no room for that of all local ranks."),
    COUNT("QUEUE_DEPTH", "8192", queue_depth, OWN, 2, 1 << 20,
          "Operations a rank may have in flight; past it a submission fails at once with DP_ERR_FULL."),
    CHOICE("DEVICE", "auto", device, OWN, "auto|host|cuda", DP_CONFIG_DEVICE_AUTO,
           "Where tensors are; auto: cuda for a program that has loaded CUDA, else host."),
    CHOICE("LOG", "warn", log_level, OWN, "error|warn|info|debug|trace", DP_LOG_ERROR,
           "How much is told on standard error."),
    INTEGER("PRETEND_NODES", "0", pretend_nodes, OWN, 0, 4096,
            "Treat the ranks of this node as if they were on this many nodes; 0: off."),
    TEXT("UCX_TLS", "", ucx_tls, OWN,
         "UCX transports of the data plane between nodes; empty: UCX's choice, RDMA where there is any."),
    TEXT("UCX_DEVICES", "", ucx_devices, OWN,
         "Network devices of the data plane, e.g. eth0 or mlx5_0:1; empty: those of DP_NET_INTERFACE, and InfiniBand."),
    TEXT("NET_INTERFACE", "", net_interface, OWN,
         "Network interface to other nodes, e.g. eth0; empty: one on which all nodes reach each other, found by trying."),
    CHOICE("NODE_TRANSPORT", "memory", node_transport, PLAN, "memory|ucx", DP_CONFIG_NODE_MEMORY,
           "Control messages inside a node; ucx is for tests, over the loopback interface."),
    INTEGER("NCCL_CTAS", "0", nccl_ctas, OWN, 0, 64,
            "Most blocks of the GPU that a collective of NCCL may take; 0: NCCL's choice."),
    TIME("NCCL_LIMIT", "10min", nccl_limit_ns, OWN, 0, 168 * HOUR,
         "Longest an operation of NCCL may run before the job fails; 0: no limit."),
    TIME("NCCL_ABORT", "10s", nccl_abort_ns, OWN, 100 * MS, HOUR,
         "Longest an abort of NCCL may take before the process ends."),
    TEXT("TIMELINE", "", timeline, OWN,
         "FILE[:steps=A-B]: write the merged timeline of the job there; empty: none."),
    YES_NO("TRACE", "1", trace, OWN,
           "Record what each rank does; 0 turns the recorder off."),
    BYTES("TRACE_BYTES", "16M", trace_bytes, OWN, 64 * DP_KIB, 64 * DP_GIB,
          "Room of the recorder per rank; what finds none is counted."),
    INTEGER("KEEP_RUNS", "3", keep_runs, OWN, 0, 10000,
            "Failed runs of this user whose run directories dprun keeps; older ones go when it starts."),
    TEXT("INJECT", "", inject, OWN,
         "Faults on purpose, for tests: WHAT:RANK[@WHERE][=VALUE],...; empty: none."),
    TEXT("SSH", "ssh", ssh, OWN,
         "Command by which dprun logs in to other machines, e.g. \"ssh -p 2222\"."),
    TEXT("RUN_DIR", "", run_dir, LAUNCHER,
         "Where the job keeps its recorders."),
    INTEGER("RANK", "-1", rank, LAUNCHER, -1, RANK_MAX,
            "This process among the job's, 0 .. SIZE-1."),
    INTEGER("SIZE", "-1", world_size, LAUNCHER, -1, RANK_MAX + 1,
            "Processes of the job."),
    INTEGER("LOCAL_RANK", "-1", local_rank, LAUNCHER, -1, RANK_MAX,
            "This process among those of this node."),
    INTEGER("LOCAL_SIZE", "-1", local_size, LAUNCHER, -1, RANK_MAX + 1,
            "Processes of the job on this node."),
    TEXT("RENDEZVOUS", "", rendezvous, LAUNCHER,
         "HOST:PORT where rank 0 serves the rendezvous of a job not started by dprun."),
    INTEGER("RENDEZVOUS_PORT", "0", rendezvous_port, LAUNCHER, 0, 65535,
            "Port of that rendezvous alone; 0: MASTER_PORT + 1."),
    TEXT("SECRET_FILE", "", secret_file, LAUNCHER,
         "File of the job's secret, mode 0600, at least 32 bytes, the same on all nodes."),
    INTEGER("BOOTSTRAP_FD", "-1", bootstrap_fd, LAUNCHER, -1, INT_MAX,
            "Open descriptor with the address, job and secret of the rendezvous."),
};
/* clang-format on */

_Static_assert(DP_ARRAY_LEN(table) <= sizeof(((dp_config_t *)0)->source),
               "dp_config_t.source has a byte per setting");
_Static_assert(sizeof(dp_wire_t) == sizeof(int), "choices are stored as int");

size_t dp_config_count(void)
{
    return DP_ARRAY_LEN(table);
}

const dp_setting_t *dp_config_setting(size_t index)
{
    return index < DP_ARRAY_LEN(table) ? &table[index].shown : NULL;
}

/* ---- Values in their fields ----------------------------------------------------------------- */

static const void *field_of(const dp_config_t *config, const setting_t *setting)
{
    return (const char *)config + setting->offset;
}

static void *field_to(dp_config_t *config, const setting_t *setting)
{
    return (char *)config + setting->offset;
}

static int64_t load_number(const dp_config_t *config, const setting_t *setting)
{
    const void *field = field_of(config, setting);
    uint64_t wide;
    size_t bytes;
    int narrow;

    switch (setting->kind) {
    case KIND_BYTES:
    case KIND_COUNT:
        memcpy(&bytes, field, sizeof(bytes));
        return (int64_t)bytes;
    case KIND_TIME:
        memcpy(&wide, field, sizeof(wide));
        return (int64_t)wide;
    case KIND_INTEGER:
    case KIND_YES_NO:
    case KIND_CHOICE:
        memcpy(&narrow, field, sizeof(narrow));
        return narrow;
    case KIND_TEXT:
        break;
    }
    return 0;
}

static void store_number(dp_config_t *config, const setting_t *setting, int64_t value)
{
    void *field = field_to(config, setting);
    const uint64_t wide = (uint64_t)value;
    const size_t bytes = (size_t)value;
    const int narrow = (int)value;

    switch (setting->kind) {
    case KIND_BYTES:
    case KIND_COUNT:
        memcpy(field, &bytes, sizeof(bytes));
        break;
    case KIND_TIME:
        memcpy(field, &wide, sizeof(wide));
        break;
    case KIND_INTEGER:
    case KIND_YES_NO:
    case KIND_CHOICE:
        memcpy(field, &narrow, sizeof(narrow));
        break;
    case KIND_TEXT:
        break;
    }
}

static void format_number(const setting_t *setting, int64_t value, char *text, size_t room)
{
    switch (setting->kind) {
    case KIND_BYTES:
        dp_format_bytes(value, text, room);
        break;
    case KIND_TIME:
        dp_format_time(value, text, room);
        break;
    case KIND_COUNT:
    case KIND_INTEGER:
    case KIND_YES_NO:
        snprintf(text, room, "%lld", (long long)value);
        break;
    case KIND_CHOICE:
        dp_format_choice((int)(value - setting->min), setting->shown.kind, text, room);
        break;
    case KIND_TEXT:
        break;
    }
}

void dp_config_format(const dp_config_t *config, size_t index, char *text, size_t room)
{
    const setting_t *setting;

    if (room == 0) return;
    text[0] = '\0';
    if (index >= DP_ARRAY_LEN(table)) return;
    setting = &table[index];
    if (setting->kind == KIND_TEXT) {
        snprintf(text, room, "%s", (const char *)field_of(config, setting));
    } else {
        format_number(setting, load_number(config, setting), text, room);
    }
}

/* ---- Names ---------------------------------------------------------------------------------- */

size_t dp_config_find(const char *name, const char **nearest)
{
    const char *names[DP_ARRAY_LEN(table)];
    char folded[DP_CONFIG_NAME_ROOM];
    size_t count = 0;

    if (nearest != NULL) *nearest = NULL;
    if (!dp_config_fold_name(name, folded)) return SIZE_MAX;
    for (size_t i = 0; i < DP_ARRAY_LEN(table); i++) {
        if (strcmp(folded, table[i].shown.name) == 0) return i;
        if (!table[i].shown.is_internal) names[count++] = table[i].shown.name;
    }
    if (nearest != NULL) *nearest = dp_nearest_name(name, names, count);
    return SIZE_MAX;
}

/* A name as the person wrote it: DP_FUSION_BYTES, --fusion-bytes, or as in a file. */
static void spell_name(const char *name, dp_config_source_t source, char *text, size_t room)
{
    switch (source) {
    case DP_FROM_ENVIRONMENT:
        snprintf(text, room, "DP_%s", name);
        return;
    case DP_FROM_FLAG:
    case DP_FROM_FILE:
        snprintf(text, room, "%s%s", source == DP_FROM_FLAG ? "--" : "", name);
        for (char *at = text; *at != '\0'; at++) {
            *at = (char)(*at == '_' ? '-' : tolower((unsigned char)*at));
        }
        return;
    case DP_FROM_PROGRAM:
    case DP_FROM_DEFAULT:
        break;
    }
    snprintf(text, room, "%s", name);
}

/* ---- Setting -------------------------------------------------------------------------------- */

/* Reads a number and checks its range. */
static dp_status_t parse_number(const setting_t *setting, const char *spelt, const char *value,
                                int64_t *number, dp_error_t *error)
{
    const char *wrong = NULL;
    char low[32];
    char high[32];
    int position;

    switch (setting->kind) {
    case KIND_BYTES:
        wrong = dp_parse_bytes(value, number);
        break;
    case KIND_TIME:
        wrong = dp_parse_time(value, number);
        break;
    case KIND_COUNT:
    case KIND_INTEGER:
        wrong = dp_parse_integer(value, number);
        break;
    case KIND_YES_NO:
        wrong = dp_parse_yes_no(value, number);
        break;
    case KIND_CHOICE:
        position = dp_parse_choice(value, setting->shown.kind);
        if (position < 0) {
            return dp_error_set(error, DP_ERR_CONFIG, "%s: '%.100s' is none of %s", spelt, value,
                                setting->shown.kind);
        }
        *number = setting->min + position;
        return DP_OK;
    case KIND_TEXT:
        return DP_OK;
    }
    if (wrong != NULL && setting->kind == KIND_TIME && value[0] != '\0' &&
        value[strspn(value, "0123456789")] == '\0') {
        return dp_error_set(error, DP_ERR_CONFIG, "%s: '%.100s' %s; write %.100ss for seconds",
                            spelt, value, wrong, value);
    }
    if (wrong != NULL) {
        return dp_error_set(error, DP_ERR_CONFIG, "%s: '%.100s' %s", spelt, value, wrong);
    }
    if (*number < setting->min || *number > setting->max) {
        format_number(setting, setting->min, low, sizeof(low));
        format_number(setting, setting->max, high, sizeof(high));
        return dp_error_set(error, DP_ERR_CONFIG, "%s: '%.100s' is out of range: %s to %s", spelt,
                            value, low, high);
    }
    return DP_OK;
}

dp_status_t dp_config_set(dp_config_t *config, const char *name, const char *value,
                          dp_config_source_t source, dp_error_t *error)
{
    const char *nearest;
    const size_t index = dp_config_find(name, &nearest);
    const setting_t *setting;
    char spelt[DP_CONFIG_NAME_ROOM + 8];
    char meant[DP_CONFIG_NAME_ROOM + 8];
    int64_t number = 0;
    dp_status_t status;

    if (index == SIZE_MAX) {
        snprintf(spelt, sizeof(spelt), "%s", name);
        if (nearest == NULL) {
            return dp_error_set(error, DP_ERR_CONFIG, "no setting is called '%s'", spelt);
        }
        spell_name(nearest, source, meant, sizeof(meant));
        return dp_error_set(error, DP_ERR_CONFIG, "no setting is called '%s', the nearest is %s",
                            spelt, meant);
    }
    setting = &table[index];
    spell_name(setting->shown.name, source, spelt, sizeof(spelt));
    if (value == NULL) return dp_error_set(error, DP_ERR_CONFIG, "%s needs a value", spelt);
    if (setting->shown.is_internal && (source == DP_FROM_FILE || source == DP_FROM_PROGRAM)) {
        return dp_error_set(error, DP_ERR_CONFIG, "%s is set by the launcher, not in a %s", spelt,
                            source == DP_FROM_FILE ? "file" : "program");
    }
    if (setting->kind == KIND_TEXT) {
        if (strlen(value) >= (size_t)setting->max) {
            return dp_error_set(error, DP_ERR_CONFIG, "%s: %zu bytes are too many, at most %lld",
                                spelt, strlen(value), (long long)setting->max - 1);
        }
    } else {
        status = parse_number(setting, spelt, value, &number, error);
        if (status != DP_OK) return status;
    }
    if ((uint8_t)source < config->source[index]) return DP_OK;
    config->source[index] = (uint8_t)source;
    if (setting->kind == KIND_TEXT) {
        memcpy(field_to(config, setting), value, strlen(value) + 1);
    } else {
        store_number(config, setting, number);
    }
    return DP_OK;
}

dp_status_t dp_config_from_program(dp_config_t *config, const char *settings, dp_error_t *error)
{
    dp_status_t status = DP_OK;

    while (status == DP_OK && *settings != '\0') {
        const size_t bytes = strcspn(settings, ";");
        char text[DP_CONFIG_NAME_ROOM + DP_CONFIG_TEXT_MAX];
        char *equals;

        if (bytes >= sizeof(text)) {
            return dp_error_set(error, DP_ERR_CONFIG, "settings: '%.60s...' is too long", settings);
        }
        memcpy(text, settings, bytes);
        text[bytes] = '\0';
        equals = strchr(text, '=');
        if (equals != NULL) *equals++ = '\0';
        if (bytes > 0) status = dp_config_set(config, text, equals, DP_FROM_PROGRAM, error);
        settings += bytes + (settings[bytes] == ';');
    }
    return status;
}

dp_status_t dp_config_check(const dp_config_t *config, dp_error_t *error)
{
    char beat[32];
    char timeout[32];
    dp_status_t status = dp_inject_check(config->inject, error);

    if (status != DP_OK) return status;
    if (config->peer_timeout_ns == 0 || config->peer_timeout_ns / 2 >= config->heartbeat_ns) {
        return DP_OK;
    }
    dp_format_time((int64_t)config->heartbeat_ns, beat, sizeof(beat));
    dp_format_time((int64_t)config->peer_timeout_ns, timeout, sizeof(timeout));
    return dp_error_set(error, DP_ERR_CONFIG,
                        "DP_PEER_TIMEOUT=%s is less than twice DP_HEARTBEAT=%s: one late sign of "
                        "life would count as a death",
                        timeout, beat);
}

void dp_config_defaults(dp_config_t *config)
{
    memset(config, 0, sizeof(*config));
    for (size_t i = 0; i < DP_ARRAY_LEN(table); i++) {
        dp_status_t status =
            dp_config_set(config, table[i].shown.name, table[i].shown.value, DP_FROM_DEFAULT, NULL);

        DP_ASSERT(status == DP_OK);
        (void)status;
    }
}

/* ---- Environment ---------------------------------------------------------------------------- */

const char *dp_environment(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* Splits "DP_NAME=value" of the environment; NULL for variables that are not meant for us. */
static const char *split_variable(const char *entry, char name[DP_CONFIG_NAME_ROOM])
{
    const char *equals = strchr(entry, '=');
    size_t bytes;

    if (equals == NULL || strncmp(entry, "DP_", 3) != 0) return NULL;
    if (strncmp(entry, "DP_TEST_", 8) == 0) return NULL; /* our own tests talk to themselves */
    bytes = dp_min((size_t)(equals - entry) - 3, (size_t)DP_CONFIG_NAME_ROOM - 1);
    memcpy(name, entry + 3, bytes);
    name[bytes] = '\0';
    return equals + 1;
}

static int is_known_variable(const char *name)
{
    const size_t index = dp_config_find(name, NULL);

    return index != SIZE_MAX && strcmp(name, table[index].shown.name) == 0; /* case counts here */
}

dp_status_t dp_config_from_environment(dp_config_t *config, const dp_log_t *log, dp_error_t *error)
{
    char name[DP_CONFIG_NAME_ROOM];
    const char *nearest;
    const char *value;
    dp_status_t status;

    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        value = split_variable(*entry, name);
        if (value == NULL || !is_known_variable(name)) continue;
        status = dp_config_set(config, name, value, DP_FROM_ENVIRONMENT, error);
        if (status != DP_OK) return status;
    }
    if (config->rank > 0) return DP_OK; /* the same warning from every rank would tell no more */
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        size_t index;

        value = split_variable(*entry, name);
        if (value == NULL || is_known_variable(name)) continue;
        index = dp_config_find(name, &nearest);
        if (index != SIZE_MAX) nearest = table[index].shown.name;
        if (nearest != NULL) {
            dp_log_warn(log, "DP_%s is no setting, the nearest is DP_%s", name, nearest);
        } else {
            dp_log_warn(log, "DP_%s is no setting", name);
        }
    }
    return DP_OK;
}

/* ---- Handshake ------------------------------------------------------------------------------ */

void dp_config_write_plan(const dp_config_t *config, struct dp_writer *writer)
{
    for (size_t i = 0; i < DP_ARRAY_LEN(table); i++) {
        if (table[i].is_plan) dp_write_u64(writer, (uint64_t)load_number(config, &table[i]));
    }
}

void dp_config_read_plan(dp_config_t *config, struct dp_reader *reader)
{
    dp_config_t plan = *config;

    for (size_t i = 0; i < DP_ARRAY_LEN(table); i++) {
        const setting_t *setting = &table[i];
        int64_t value;
        int64_t max = setting->max;

        if (!setting->is_plan) continue;
        value = (int64_t)dp_read_u64(reader);
        if (setting->kind == KIND_CHOICE) {
            max = setting->min;
            for (const char *at = setting->shown.kind; *at != '\0'; at++)
                max += *at == '|';
        }
        if (value < setting->min || value > max) reader->failed = 1; /* not from a rank of ours */
        store_number(&plan, setting, value);
    }
    if (!reader->failed) *config = plan;
}
