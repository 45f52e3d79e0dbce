/*
 * config.h - every setting there is. One line of the table in config.c makes the DP_ variable,
 * dprun's flag, its --help line, the line of a --config file, the reference page and the range
 * check.
 *
 * dp_init() and dprun fill in a dp_config_t; everybody else reads plain fields and must not ask the
 * environment.
 */
#ifndef DP_BASE_CONFIG_H
#define DP_BASE_CONFIG_H

#include "runtime/base/error.h"
#include "runtime/base/log.h"

#define DP_CONFIG_TEXT_MAX 1024

/* Where a value came from; later ones win over earlier ones. */
typedef enum dp_config_source {
    DP_FROM_DEFAULT,
    DP_FROM_PROGRAM,
    DP_FROM_FILE,
    DP_FROM_ENVIRONMENT,
    DP_FROM_FLAG
} dp_config_source_t;

/* auto: cuda for a program that has loaded CUDA, on a node with a driver; else host. */
typedef enum dp_config_device {
    DP_CONFIG_DEVICE_AUTO,
    DP_CONFIG_DEVICE_HOST,
    DP_CONFIG_DEVICE_CUDA
} dp_config_device_t;

typedef enum dp_config_order {
    DP_CONFIG_ORDER_NEGOTIATED,
    DP_CONFIG_ORDER_PROGRAM
} dp_config_order_t;

typedef enum dp_config_node { DP_CONFIG_NODE_MEMORY, DP_CONFIG_NODE_UCX } dp_config_node_t;

/*
 * Values in force, by the setting that gives them. Defaults and ranges stand in config.c's table
 * alone. Written while a program or a job starts, read by every thread after that.
 */
typedef struct dp_config {
    /* PLAN in the table: they decide what every rank launches, so rank 0's values hold for all.
     * The handshake copies them (dp_config_write_plan()). */
    size_t fusion_bytes;        /* FUSION_BYTES: largest fused buffer */
    int fusion_buffers;         /* FUSION_BUFFERS: fused buffers in flight */
    uint64_t hold_ns;           /* FUSION_HOLD: longest the root holds a launch back to fuse more */
    dp_wire_t wire;             /* WIRE: what fp32 reductions become between nodes */
    int order;                  /* ORDER: dp_config_order_t */
    int tree_arity;             /* TREE_ARITY: children of a rank in the negotiation tree */
    int check;                  /* CHECK_DATA: checksum buffers in flight, compare parameters */
    int check_replicas;         /* CHECK_REPLICAS: read by the front end for PyTorch */
    int shared_weights;         /* SHARED_WEIGHTS: one copy of sharded weights for a node's ranks */
    uint64_t stall_warn_ns;     /* STALL_WARN: when missing ranks are named; 0: never */
    uint64_t stall_limit_ns;    /* STALL_LIMIT: when the job fails with that text; 0: never */
    uint64_t finalize_limit_ns; /* FINALIZE_LIMIT: likewise of a rank that does not finalize */
    uint64_t heartbeat_ns;      /* HEARTBEAT: between signs of life on an edge of the tree */
    uint64_t peer_timeout_ns; /* PEER_TIMEOUT: silence after which a neighbour is dead; 0: never */
    int node_transport;       /* NODE_TRANSPORT: dp_config_node_t */
    /* This rank's own. */
    uint64_t start_timeout_ns; /* START_TIMEOUT: for all ranks to come */
    uint64_t spin_ns;          /* SPIN: longest a waiter polls before it sleeps */
    size_t pull_bytes;         /* PULL_BYTES: tensors from this size on are read in place by the
                                  other ranks of the node, without a fused buffer; 0: none */
    size_t arena_bytes;        /* ARENA_BYTES: address space for dp_alloc() and fused buffers */
    size_t queue_depth;        /* QUEUE_DEPTH: operations in flight, launched ones included */
    int device;                /* DEVICE: dp_config_device_t */
    int log_level;             /* LOG: dp_log_level_t */
    int pretend_nodes;         /* PRETEND_NODES: local ranks behave as on this many; 0: off */
    char ucx_tls[64];          /* UCX_TLS: of the data plane between nodes; "": UCX chooses */
    char ucx_devices[64];      /* UCX_DEVICES: of the data plane; "": by NET_INTERFACE */
    char net_interface[16];    /* NET_INTERFACE: to other nodes; dp_init() fills in "" */
    int net_version;           /* of IP there, 4 or 6; dp_init() finds it; 0: either */
    int takes_turns;           /* dp_init() finds out: ranks share cores, so a thread that polls
                                  offers its core to another one at each look */
    int nccl_ctas;             /* NCCL_CTAS: most blocks a collective may take; 0: NCCL's */
    uint64_t nccl_limit_ns;    /* NCCL_LIMIT: of an operation on the device; 0: none */
    uint64_t nccl_abort_ns;    /* NCCL_ABORT: of an abort, then the process ends */
    char timeline[DP_CONFIG_TEXT_MAX]; /* TIMELINE FILE[:steps=A-B]: merged by dprun at the end */
    int trace;                         /* TRACE: 0 turns the recorder off */
    size_t trace_bytes;                /* TRACE_BYTES: room of the recorder */
    int keep_runs;                     /* KEEP_RUNS: failed runs that dprun keeps */
    char ssh[256];                     /* SSH: how dprun logs in to other machines */
    char run_dir[DP_CONFIG_TEXT_MAX];  /* RUN_DIR: where a job keeps its recorders; set by dprun */
    char inject[256];                  /* INJECT: faults on purpose, see inject.h */
    struct dp_inject *injector;        /* borrowed: the faults in force, made from `inject` when a
                                          context begins; NULL: none */
    /* Given by the launcher of the ranks, not settings of a user. */
    int rank;             /* RANK, -1: not given; likewise below */
    int world_size;       /* SIZE */
    int local_rank;       /* LOCAL_RANK */
    int local_size;       /* LOCAL_SIZE */
    int bootstrap_fd;     /* BOOTSTRAP_FD: address, job id and secret of dprun's rendezvous */
    char rendezvous[256]; /* RENDEZVOUS HOST:PORT: in a job not started by dprun */
    int rendezvous_port;  /* RENDEZVOUS_PORT: likewise; 0: derived */
    char secret_file[DP_CONFIG_TEXT_MAX]; /* SECRET_FILE: likewise, for several nodes */
    uint8_t source[64];                   /* dp_config_source_t of each setting, as in the table */
} dp_config_t;

/* How long a thread polls that only expects work: where ranks share cores it leaves its core to
 * those that have some. */
static inline uint64_t dp_config_idle_spin_ns(const dp_config_t *config)
{
    return config->takes_turns ? 0 : config->spin_ns;
}

/* A setting, as dprun and the reference page see it. */
typedef struct dp_setting {
    const char *name;  /* "FUSION_BYTES": DP_FUSION_BYTES, --fusion-bytes, fusion-bytes = */
    const char *value; /* the default, as text: "32M" */
    const char *kind;  /* "bytes", "time", "integer", "yes/no", "text", or the choices "a|b|c" */
    const char *help;  /* a line */
    int is_internal;   /* set by the launcher: no flag, not in --help */
} dp_setting_t;

size_t dp_config_count(void);
const dp_setting_t *dp_config_setting(size_t index);

void dp_config_defaults(dp_config_t *config);

/* Sets one value by name (any case, - or _), checked. A lower source never overrides a higher one.
 * Unknown names: DP_ERR_CONFIG, with the nearest name in the text. */
dp_status_t dp_config_set(dp_config_t *config, const char *name, const char *value,
                          dp_config_source_t source, dp_error_t *error);

/* Takes over what a program has set: "NAME=value;NAME=value". DP_ERR_CONFIG: as dp_config_set(). */
dp_status_t dp_config_from_program(dp_config_t *config, const char *settings, dp_error_t *error);

/* Takes over every DP_ variable. A bad value fails by name; an unknown DP_ variable is warned of
 * with the nearest real one. */
dp_status_t dp_config_from_environment(dp_config_t *config, const dp_log_t *log, dp_error_t *error);

/* Whether the values fit together; asked once, when all sources are read. DP_ERR_CONFIG. */
dp_status_t dp_config_check(const dp_config_t *config, dp_error_t *error);

/* Reads "name = value" lines, # comments. Errors name file and line. */
dp_status_t dp_config_from_file(dp_config_t *config, const char *path, dp_error_t *error);

/* Writes the value in force of setting `index` as dp_config_set() would read it. */
void dp_config_format(const dp_config_t *config, size_t index, char *text, size_t room);

/* The index of a setting, or SIZE_MAX; then *nearest (may be NULL) is the closest name or NULL. */
size_t dp_config_find(const char *name, const char **nearest);

/* Copies the settings marked "plan" as bytes and back, for the handshake. */
struct dp_writer;
struct dp_reader;
void dp_config_write_plan(const dp_config_t *config, struct dp_writer *writer);
void dp_config_read_plan(dp_config_t *config, struct dp_reader *reader);

/* An environment variable that is not ours (TERM, XDG_RUNTIME_DIR, ...); NULL when unset or empty.
 */
const char *dp_environment(const char *name);

#endif
