/*
 * config.h - every knob there is. One row of the table in config.c makes the DP_ variable, dprun's
 * flag, its --help line, the line of a --config file, the reference page and the range check.
 *
 * The only file that calls getenv. Callers read plain fields.
 */
#ifndef DP_BASE_CONFIG_H
#define DP_BASE_CONFIG_H

#include "runtime/base/error.h"
#include "runtime/base/log.h"

#define DP_CONFIG_TEXT_MAX 1024

/* Where a value came from; later ones win over earlier ones. */
typedef enum dp_config_source {
    DP_FROM_DEFAULT,
    DP_FROM_FILE,
    DP_FROM_ENVIRONMENT,
    DP_FROM_FLAG
} dp_config_source_t;

/* auto: cuda for a program that has loaded CUDA, on a machine with a driver; else host. */
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
 * Values in force. Fields marked "plan" decide what every rank launches: rank 0's rule, the
 * handshake copies them.
 */
typedef struct dp_config {
    /* plan */
    size_t fusion_bytes; /* FUSION_BYTES 32M: largest fused buffer, and a slot's size */
    int fusion_slots;    /* FUSION_SLOTS 3: slots in flight */
    uint64_t hold_ns;    /* FUSION_HOLD 200us: longest the root holds a launch back to fuse more */
    dp_wire_t wire;      /* WIRE none|fp16|bf16: what fp32 reductions become between machines */
    int order;           /* ORDER negotiated|program: dp_config_order_t */
    int tree_arity;      /* TREE_ARITY 8: children of a node of the negotiation tree */
    int schedule; /* SCHEDULE off|auto: 1: rounds that repeat are launched by a cached schedule */
    int check;    /* CHECK 0|1: checksum buffers in flight, compare parameters */
    uint64_t stall_warn_ns;  /* STALL_WARN 10s: when missing ranks are named */
    uint64_t stall_limit_ns; /* STALL_LIMIT 10min: when the job fails with that text; 0 never */
    uint64_t heartbeat_ns;   /* HEARTBEAT 100ms: between signs of life on an edge */
    uint64_t
        peer_timeout_ns; /* PEER_TIMEOUT 3s: silence after which a neighbour is dead; 0 never */
    /* this rank's own */
    uint64_t start_timeout_ns; /* START_TIMEOUT 30s: for all ranks to come */
    uint64_t spin_ns;   /* SPIN 20us: longest a waiter polls before it sleeps, where cores allow */
    size_t pull_bytes;  /* PULL_BYTES 128K: least tensor that needs no slot on its host; 0: none */
    size_t arena_bytes; /* ARENA_BYTES 64G: address space for dp_alloc and slots per rank */
    size_t queue_depth; /* QUEUE_DEPTH 8192: operations submitted and not yet launched */
    int device;         /* DEVICE auto|host|cuda: dp_config_device_t */
    int log_level;      /* LOG error|warn|info|debug|trace: default warn */
    int pretend_nodes;  /* PRETEND_NODES 0: local ranks behave as on this many machines */
    char ucx_tls[64];   /* UCX_TLS tcp: transports of the data plane between machines */
    char ucx_devices[64];          /* UCX_DEVICES "": network devices for UCX; empty: the next */
    char net_interface[16];        /* NET_INTERFACE "": to other machines; dp_init() fills it in */
    int node_transport;            /* NODE_TRANSPORT memory|ucx: dp_config_node_t */
    int nccl_ring;                 /* NCCL_RING 1: rings; 0: NCCL chooses; NCCL_ALGO wins */
    int nccl_ctas;                 /* NCCL_CTAS 0: most blocks a collective may take */
    uint64_t nccl_limit_ns;        /* NCCL_LIMIT 10min: of an operation on the device */
    uint64_t nccl_abort_ns;        /* NCCL_ABORT 10s: of an abort, then the process ends */
    int emulate_ranks;             /* EMULATE_RANKS 0: pretended ranks of the wire; 0: a real one */
    size_t emulate_bandwidth;      /* EMULATE_BANDWIDTH 12500M: its bytes a second */
    uint64_t emulate_latency_ns;   /* EMULATE_LATENCY 5us: of a step of its ring */
    char tune[DP_CONFIG_TEXT_MAX]; /* TUNE off|on|FILE: rank 0's holds for all */
    char timeline[DP_CONFIG_TEXT_MAX]; /* TIMELINE FILE[:steps=A-B]: merged by dprun at the end */
    int trace;                         /* TRACE 1: 0 turns the recorder off */
    size_t trace_bytes;                /* TRACE_BYTES 16M: room of the recorder per rank */
    int keep_runs;                     /* KEEP_RUNS 3: failed runs that dprun keeps */
    char run_dir[DP_CONFIG_TEXT_MAX];  /* RUN_DIR: where a job keeps its recorders; set by dprun */
    char inject[256];                  /* INJECT "": faults on purpose, see inject.h */
    struct dp_inject
        *injector; /* borrowed: its faults in force, set where a context begins; NULL */
    /* given by the launcher, not knobs */
    int rank;             /* RANK -1 */
    int world_size;       /* SIZE -1 */
    int local_rank;       /* LOCAL_RANK -1 */
    int local_size;       /* LOCAL_SIZE -1 */
    int bootstrap_fd;     /* BOOTSTRAP_FD -1: address, job id and secret of the rendezvous */
    char rendezvous[256]; /* RENDEZVOUS HOST:PORT: in a job not started by dprun */
    int rendezvous_port;  /* RENDEZVOUS_PORT 0: likewise */
    char secret_file[DP_CONFIG_TEXT_MAX]; /* SECRET_FILE: likewise, for several machines */
    uint8_t source[64];                   /* dp_config_source_t of each row */
} dp_config_t;

/* A row of the table, as dprun and the reference page see it. */
typedef struct dp_config_row {
    const char *name;  /* "FUSION_BYTES": DP_FUSION_BYTES, --fusion-bytes, fusion-bytes = */
    const char *value; /* the default, as text: "32M" */
    const char *kind;  /* "bytes", "time", "integer", "yes/no", "text", or the choices "a|b|c" */
    const char *help;  /* a line */
    int is_internal;   /* set by the launcher: no flag, not in --help */
} dp_config_row_t;

size_t dp_config_count(void);
const dp_config_row_t *dp_config_row(size_t index);

void dp_config_defaults(dp_config_t *config);

/* Sets one value by name (any case, - or _), checked. A lower source never overrides a higher one.
 * Unknown names: DP_ERR_CONFIG, with the nearest name in the text. */
dp_status_t dp_config_set(dp_config_t *config, const char *name, const char *value,
                          dp_config_source_t source, dp_error_t *error);

/* Takes over every DP_ variable. A bad value fails by name; an unknown DP_ variable is warned of
 * with the nearest real one. */
dp_status_t dp_config_from_environment(dp_config_t *config, const dp_log_t *log, dp_error_t *error);

/* Whether the values fit together; asked once, when all sources are read. DP_ERR_CONFIG. */
dp_status_t dp_config_check(const dp_config_t *config, dp_error_t *error);

/* Reads "name = value" lines, # comments. Errors name file and line. */
dp_status_t dp_config_from_file(dp_config_t *config, const char *path, dp_error_t *error);

/* Writes the value in force of row `index` as dp_config_set() would read it. */
void dp_config_format(const dp_config_t *config, size_t index, char *text, size_t room);

/* The row of a name, or SIZE_MAX; then *nearest (may be NULL) is the closest name or NULL. */
size_t dp_config_find(const char *name, const char **nearest);

/* Copies the rows marked "plan" as bytes and back, for the handshake. */
struct dp_writer;
struct dp_reader;
void dp_config_write_plan(const dp_config_t *config, struct dp_writer *writer);
void dp_config_read_plan(dp_config_t *config, struct dp_reader *reader);

/* Nearest of count names to a misspelt one by edit distance, or NULL when none is close. */
const char *dp_nearest_name(const char *name, const char *const *names, size_t count);

/* An environment variable that is not ours (TERM, XDG_RUNTIME_DIR, ...); NULL when unset or empty.
 */
const char *dp_environment(const char *name);

#endif
