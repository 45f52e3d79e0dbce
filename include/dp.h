/**
 * dp.h - averages gradients across ranks while the backward pass is still running.
 *
 * The one header a program needs; it depends on the C library alone. A program submits tensors by
 * name, computes on, and waits for them. In the background a coordinator thread agrees with the
 * other ranks on which tensors are ready everywhere, fuses small ones and has them reduced. No
 * state is global: every object belongs to a dp_context_t, and a process may have several.
 *
 *     dp_context_t *dp;
 *     dp_gradients_t *gradients;
 *     dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
 *
 *     dp_init(NULL, &dp);                                        // under dprun, mpirun, or alone
 *     dp_gradients_create(dp, tensors, n, NULL, &gradients);     // all ranks get rank 0's weights
 *     for (each step) {
 *         for (each tensor i, as the backward pass finishes it)
 *             dp_gradients_ready(gradients, i, NULL);            // its average begins to travel
 *         dp_gradients_sync(gradients, &result);                 // all gradients are averages now
 *         if (!result.skip) optimizer_step(result.clip_coef);
 *     }
 *     dp_gradients_destroy(gradients);
 *     dp_finalize(dp);
 *
 * A call that can fail returns a dp_status_t; dp_error_text() says why it failed.
 */
#ifndef DP_H
#define DP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#pragma GCC system_header /* -Wextra would warn of each field that an _INIT leaves zero */
extern "C" {
#endif

#define DP_VERSION_MAJOR 0
#define DP_VERSION_MINOR 3
#define DP_VERSION_PATCH 0

#define DP_NAME_MAX 255 /* bytes of a tensor's name, without the terminator */
#define DP_GROUP_NAME_MAX 63
#define DP_GROUPED_MAX 4096 /* tensors of one grouped operation */
#define DP_GROUPS_MAX 1023  /* groups that a rank is in at one time, beside the world */

#if defined(__GNUC__)
#define DP_API __attribute__((visibility("default")))
#else
#define DP_API
#endif

typedef struct dp_context dp_context_t;     /* one rank of a world, which is all ranks of a job */
typedef struct dp_group dp_group_t;         /* ranks that work together: the world, or some of it */
typedef struct dp_handle dp_handle_t;       /* one operation in flight */
typedef struct dp_gradients dp_gradients_t; /* the gradients of one model */

/*
 * Rules of all calls, unless one says otherwise. Options are copied; NULL stands for the defaults.
 * Outputs are written on DP_OK only. Any thread may call, concurrently. Calls that free an object
 * take NULL and do nothing.
 *
 * dp_finalize() frees all that the program got from the context: groups, handles, gradients,
 * shards, memory. Afterwards only dp_gradients_destroy() and dp_shards_destroy() may still be
 * called on such an object; they do nothing.
 */

/*
 * Structs with a `size`. Initialise them with their _INIT macro, which stores sizeof the type as
 * this header has it; then program and library may be of different versions.
 *  - Options smaller than the library's type: missing fields have their defaults. Larger: accepted
 *    where all bytes that the library does not know are zero, else DP_ERR_INVALID.
 *  - Results and statistics are written up to the program's size. The rest stays as it was.
 * A later version adds fields at the end only, never into padding; a new field that is zero changes
 * nothing. A size that no version can have (below 8, not a multiple of 8, beyond 4096:
 * a struct that was not initialised) is DP_ERR_INVALID.
 * Structs that are passed as arrays have no size and never change: what a later version wants to
 * know of each element comes as one more array in the options of the call.
 */

#define DP_SIZED(type, ...)                                                                        \
    {                                                                                              \
        .size = sizeof(type), __VA_ARGS__                                                          \
    }

/* The result of a call. A code exists where a caller would act differently on it. */
typedef enum dp_status {
    DP_OK = 0,
    DP_ERR_INVALID,     /* an argument is wrong; nothing was done */
    DP_ERR_CONFIG,      /* a setting, or the environment that a launcher left, is wrong */
    DP_ERR_NO_MEMORY,   /* host memory ran out */
    DP_ERR_SYSTEM,      /* the operating system or a library below this one refused */
    DP_ERR_UNSUPPORTED, /* valid, but not on this machine or in this build */
    DP_ERR_FULL,        /* as many as are allowed are there: DP_QUEUE_DEPTH operations in flight, or
                           DP_GROUPS_MAX groups of a rank. Nothing was done; one has to end first */
    DP_ERR_PENDING,     /* dp_test(), or the wait ended: the operation is not over, and goes on */
    DP_ERR_BUSY,        /* this name was submitted before and has not been launched yet; dp_free():
                           an operation is using the memory */
    DP_ERR_TIMEOUT,     /* a time limit is over, an operation's or a setting's: it has failed */
    DP_ERR_MISMATCH,    /* ranks disagree: about this tensor alone, or (ordered groups) the end */
    DP_ERR_TRUNCATED,   /* more elements than a receiver's capacity; nothing was written */
    DP_ERR_LEFT,        /* a rank finalized before it submitted this tensor */
    DP_ERR_PEER_LOST,   /* a rank died: this context can only be finalized */
    DP_ERR_ABORTED,     /* dp_abort() on some rank, or an internal failure: finalize */
    DP_ERR_STALLED,     /* nothing happened to a tensor for DP_STALL_LIMIT: finalize */
    DP_ERR_ORDER,       /* calls in an order that cannot be right: sync twice, ready twice */
    DP_ERR_CHECK /* DP_CHECK_DATA=1 found a buffer written in flight, or replicas that differ */
} dp_status_t;

/* Element types. Values are part of the wire protocol. */
typedef enum dp_dtype {
    DP_U8 = 0,
    DP_I8 = 1,
    DP_U16 = 2,
    DP_I16 = 3,
    DP_I32 = 4,
    DP_U32 = 5,
    DP_I64 = 6,
    DP_U64 = 7,
    DP_F16 = 8,
    DP_BF16 = 9,
    DP_F32 = 10,
    DP_F64 = 11,
    DP_BOOL = 12, /* one byte, 0 or 1 */
    DP_DTYPE_COUNT = 13
} dp_dtype_t;

/*
 * How elements combine. 16-bit floats accumulate in fp32; integers wrap. The average of integers
 * divides after the sum, toward zero. In min and max a NaN wins. For DP_BOOL, sum and max are the
 * logical OR, product and min the logical AND; an average is refused.
 */
typedef enum dp_reduce {
    DP_SUM = 0,
    DP_AVERAGE = 1,
    DP_MIN = 2,
    DP_MAX = 3,
    DP_PRODUCT = 4,
    DP_REDUCE_COUNT = 5
} dp_reduce_t;

/*
 * The type in which fp32 elements travel between nodes (machines). Applies to sums and averages of
 * DP_F32; other operations travel as they are. fp16 carries a power-of-two scale per tensor that
 * follows the largest magnitude last seen; an overflow becomes Inf in the result of every rank.
 */
typedef enum dp_wire {
    DP_WIRE_DEFAULT = 0, /* the setting DP_WIRE, or none */
    DP_WIRE_NONE = 1,
    DP_WIRE_FP16 = 2,
    DP_WIRE_BF16 = 3
} dp_wire_t;

/*
 * Time limits. The `timeout` in options is in seconds; 0: none, and the world ends (all operations
 * fail on all ranks) after DP_STALL_LIMIT. If a rank has not submitted the operation when another
 * one's limit is over, it fails with DP_ERR_TIMEOUT on all ranks, also on those that submit it
 * later; the text names the missing ranks. The world goes on; the call may be repeated. A `seconds`
 * argument limits one thread's wait (DP_ERR_PENDING). dp_finalize() has DP_FINALIZE_LIMIT.
 */

/* ---- Life ----------------------------------------------------------------------------------- */

/*
 * fork(). A rank may fork, at any time and on any thread, as data loaders do. The child has copies
 * of the rank's objects, but none of its threads and connections, so the death of a rank is noticed
 * though its child lives on. In the child every call on these objects, and dp_init(), returns
 * DP_ERR_INVALID or, where it has no status, does nothing; dp_setting() is NULL, and numbers and
 * names (dp_rank(), dp_group_size(), ...) are as in the rank. Nothing has to be given back there.
 * Memory from dp_alloc() and dp_register() is shared with the child, which must not write it. A
 * child that calls exec() is a program of its own. vfork() and clone() are not noticed.
 */

/*
 * The order in which a group's operations are launched. The world's is chosen in dp_init(), a
 * group's when it is made; groups of both kinds may overlap.
 *
 * DP_ORDER_NEGOTIATED: the ranks agree on it. Each may submit in an order of its own.
 *
 * DP_ORDER_PROGRAM: each rank launches in the order in which it submits, without a message, as most
 * data-parallel libraries do. All ranks of the group must then submit the same operations with the
 * same memory (all from dp_alloc(), or none) in the same order, and wait for them at the same
 * places: submissions to the group are gathered into one launch until DP_FUSION_BYTES are there,
 * one has launch_now in its options, or the program waits for one of them (dp_wait, dp_test,
 * dp_stream_wait, dp_wait_all, dp_barrier of the group, dp_finalize). A wait in another group does
 * not launch them. A difference between ranks ends the world with DP_ERR_MISMATCH and a text that
 * says where, after a few DP_HEARTBEATs at the latest; a rank that finalizes early ends it with
 * DP_ERR_LEFT. dp_join is DP_ERR_UNSUPPORTED; barriers, and making and ending groups, are still
 * negotiated; sends are not part of the order. Submitting a tensor that travels as fp16 is
 * DP_ERR_BUSY until its last use is over. Names may be NULL: the next operation in the order.
 *
 * Operations of different groups do not wait for each other. Only where one rank is in more than
 * four ordered groups (an ordered world counts twice) do some share a queue; their ranks must then
 * all use these groups in one order.
 */
typedef enum dp_order {
    DP_ORDER_DEFAULT = 0, /* the setting DP_ORDER, or negotiated */
    DP_ORDER_NEGOTIATED = 1,
    DP_ORDER_PROGRAM = 2
} dp_order_t;

/*
 * A key-value store that the ranks of one world share, such as torch.distributed's: dp_init() finds
 * the other ranks through it. The secret of the world is among the values, so the store is for its
 * ranks alone. Worlds may use one store one after the other, with the same keys; for worlds at the
 * same time put and get add a prefix of each world's own. Both are called on the thread of
 * dp_init(), never after it. They return 0, or something else for a failure. A put replaces an
 * earlier value.
 */
typedef int (*dp_store_put_fn)(void *user, const char *key, const void *value, size_t bytes);

/* Waits until the key is there, for `seconds` at most, and copies its value: *bytes <= room. */
typedef int (*dp_store_get_fn)(void *user, const char *key, void *value, size_t room, size_t *bytes,
                               double seconds);

typedef struct dp_init_options {
    size_t size;          /* by DP_INIT_OPTIONS_INIT */
    char *error;          /* receives why dp_init() failed, terminated; NULL: standard error does */
    size_t error_bytes;   /* room in error */
    const char *settings; /* "FUSION_BYTES=64M;STALL_WARN=30s": as DP_ variables, which win over
                             these (docs/settings.md). NULL: none */
    /* Both: the world is joined through this store. Both NULL: as the environment says */
    dp_store_put_fn store_put;
    dp_store_get_fn store_get;
    void *store_user;     /* their first argument */
    int store_rank;       /* this rank, 0 .. store_ranks - 1 */
    int store_ranks;      /* ranks in the world */
    double store_seconds; /* for all ranks to come to the store; 0: DP_START_TIMEOUT */
    dp_order_t order;     /* rank 0's holds for all */
} dp_init_options_t;
#define DP_INIT_OPTIONS_INIT DP_SIZED(dp_init_options_t, )

/**
 * Joins the world that a launcher describes in the environment: dprun, plain DP_ variables,
 * torchrun, Open MPI's mpirun, PMI (srun, mpiexec) or a Slurm step, in this order of precedence
 * (docs/launch.md). Forms a world of one where none of them is present. Collective: returns when
 * every rank has come, after DP_START_TIMEOUT at the latest.
 *
 * With store_put and store_get in the options the world is that of the store instead, whatever the
 * environment says; a process may join one world after another, or several side by side.
 *
 * Outside dprun rank 0 serves the rendezvous in a thread until its dp_finalize().
 *
 * @param context give it back with dp_finalize()
 * @return DP_OK
 *         DP_ERR_INVALID   an argument is wrong, or this is a rank's forked child
 *         DP_ERR_CONFIG    a setting is unknown or out of range, a launcher's variables incomplete,
 *                          ranks know different secrets, or there are several nodes and no secret
 *         DP_ERR_MISMATCH  another rank runs another version of the library, or is of another job
 *         DP_ERR_TIMEOUT   a rank did not come within DP_START_TIMEOUT; the text names it
 *         DP_ERR_BUSY      another process is rank 0 of this job, and gathers its ranks
 *         DP_ERR_PEER_LOST a rank ended on the way
 *         DP_ERR_SYSTEM, DP_ERR_NO_MEMORY
 * Threads: not concurrently with itself under one launcher's environment.
 */
DP_API dp_status_t dp_init(const dp_init_options_t *options, dp_context_t **context);

/**
 * Leaves the world. Waits for this rank's own operations, then for every rank to finalize. Frees
 * the context, its memory from dp_alloc() and every handle not released, whatever it returns. Only
 * in a forked child it does nothing and returns DP_ERR_INVALID.
 *
 * @param context may be NULL
 * @return DP_OK, or why the world had already failed
 * Threads: no other call on this context may run or follow.
 */
DP_API dp_status_t dp_finalize(dp_context_t *context);

/**
 * Fails every operation on every rank with one reason, naming this rank. The context can then
 * only be finalized; the process lives on. Does not block. For a rank that cannot take part any
 * more, as after a call that failed on this rank alone (DP_ERR_INVALID, DP_ERR_NO_MEMORY): without
 * it the others wait until DP_STALL_LIMIT.
 *
 * @param reason a line for people; copied; NULL: none given
 */
DP_API void dp_abort(dp_context_t *context, const char *reason);

/* The name of a status, e.g. "DP_ERR_MISMATCH". Never NULL. */
DP_API const char *dp_status_string(dp_status_t status);

/* The last error of this context in words, with rank, node, tensor and both values. Empty while
 * there was none. Valid until dp_finalize(). */
DP_API const char *dp_error_text(const dp_context_t *context);

/* How the world has ended, or DP_OK while it stands; dp_error_text() says why. Never blocks. */
DP_API dp_status_t dp_async_error(const dp_context_t *context);

/* "0.3.0", and a line of features: "0.3.0 ucx 1.13.1 cuda no ...". Static. */
DP_API const char *dp_version(void);
DP_API const char *dp_build_info(void);

/* The value of a setting in force, by its name without DP_, e.g. "FUSION_BYTES"; NULL: no such
 * setting. "DEVICE" is what dp_init() has chosen: "host" or "cuda". Valid until dp_finalize(). */
DP_API const char *dp_setting(const dp_context_t *context, const char *name);

/* The group of all ranks; lives as long as the context. */
DP_API dp_group_t *dp_world(dp_context_t *context);

/* Ranks and nodes are numbered from 0. A node is what shares memory: one machine, or a container
 * on it. -1: the context is NULL. */
DP_API int dp_rank(const dp_context_t *context);       /* of this context in the world */
DP_API int dp_size(const dp_context_t *context);       /* ranks in the world */
DP_API int dp_local_rank(const dp_context_t *context); /* among the ranks of this node */
DP_API int dp_local_size(const dp_context_t *context); /* ranks on this node */
DP_API int dp_node_rank(const dp_context_t *context);  /* of this node in the world */
DP_API int dp_node_count(const dp_context_t *context);

/* ---- Gradients of a model ------------------------------------------------------------------- */

/*
 * dp_gradients_*() averages the gradients of a model that a program has in memory of its own, whole
 * on every rank: take it to make an existing training loop data-parallel. dp_shards_*() below owns
 * that memory and leaves the optimizer's state, and if asked more, to one rank each: take it where
 * a model does not fit otherwise, or where the optimizer takes long.
 */

/* One parameter tensor. Tied weights are one entry, ready when the last contribution is in. */
typedef struct dp_gradient {
    const char *name; /* unique in the list; copied */
    void *weight;     /* [count] of dtype; borrowed until destroy; NULL: not broadcast or checked */
    void *gradient;   /* [count] of dtype; borrowed until destroy; best from dp_alloc() */
    size_t count;
    dp_dtype_t dtype; /* a floating-point type */
} dp_gradient_t;

typedef struct dp_gradients_options {
    size_t size;               /* by DP_GRADIENTS_OPTIONS_INIT */
    dp_group_t *group;         /* NULL: the world; its rank 0 gives the weights */
    const char *prefix;        /* goes before the names, so that two models can share a context */
    dp_wire_t wire;            /* as in dp_options_t */
    int accumulation_steps;    /* backward passes per sync; the result is divided by it too */
    double clip_norm;          /* largest global norm; 0: no clipping */
    double initial_loss_scale; /* of dynamic loss scaling, a power of two; 0: no loss scaling */
    int growth_interval;       /* good steps in a row before the loss scale doubles */
    int hysteresis;   /* overflows in a row before it halves; each one after them halves it too */
    int zero_unready; /* 1: a tensor not ready at sync counts as zeros; 0: it is an error */
    double timeout;   /* of dp_gradients_create(), as in dp_options_t */
} dp_gradients_options_t;
#define DP_GRADIENTS_OPTIONS_INIT                                                                  \
    DP_SIZED(dp_gradients_options_t, .prefix = "", .accumulation_steps = 1,                        \
             .growth_interval = 2000, .hysteresis = 1)

/* The outcome of a sync; equal on all ranks. */
typedef struct dp_gradients_result {
    size_t size;        /* by DP_GRADIENTS_RESULT_INIT */
    double norm;        /* of all averaged gradients together, unscaled */
    double clip_coef;   /* the optimizer multiplies gradients by it: min(1, clip_norm / norm) */
    double loss_scale;  /* multiply the next step's loss by it; 1 without loss scaling */
    uint64_t nonfinite; /* Inf and NaN elements */
    int skip;           /* 1: an overflow; leave the weights alone this time */
} dp_gradients_result_t;
#define DP_GRADIENTS_RESULT_INIT                                                                   \
    DP_SIZED(dp_gradients_result_t, .clip_coef = 1.0, .loss_scale = 1.0)

/**
 * Registers the gradients of a model and makes every rank's weights equal to rank 0's. Collective.
 *
 * @param tensors   [count] in the order backward finishes them, the same list on every rank
 * @param gradients give it back with dp_gradients_destroy()
 * @return DP_OK, DP_ERR_INVALID, DP_ERR_MISMATCH (ranks list different tensors), ...
 */
DP_API dp_status_t dp_gradients_create(dp_context_t *context, const dp_gradient_t *tensors,
                                       size_t count, const dp_gradients_options_t *options,
                                       dp_gradients_t **gradients);

/**
 * Says that gradient `index` is complete; its average begins to travel. From here to the sync
 * the program must not write it. With accumulation_steps k, the first k-1 calls only count.
 *
 * @param stream the device stream that produces it; NULL for host memory
 * @return DP_OK, DP_ERR_INVALID, DP_ERR_ORDER (ready more often than accumulation_steps), ...
 * Threads: one at a time per object. Waits for other ranks only after dp_gradients_sync_on().
 */
DP_API dp_status_t dp_gradients_ready(dp_gradients_t *gradients, size_t index, void *stream);

/**
 * Waits until every gradient is averaged in place: sum over ranks / (ranks * accumulation_steps),
 * divided by the loss scale. Then clip and step.
 *
 * @param result may be NULL
 * @return DP_OK         averaged, also when result->skip is 1
 *         DP_ERR_ORDER  a tensor was never ready, or sync twice without ready; nothing is lost:
 *                       make it ready and sync again
 *         DP_ERR_CHECK  under DP_CHECK_DATA=1: written in flight, or weights differ between ranks
 *         or the failure of an operation
 */
DP_API dp_status_t dp_gradients_sync(dp_gradients_t *gradients, dp_gradients_result_t *result);

/*
 * The outcome of a sync on a stream, in memory that kernels of the stream can read: the same on all
 * ranks. The pointers stay the same until dp_gradients_destroy(). Each sync writes the values anew,
 * in the order of the stream; kernels that run behind it there read them.
 */
typedef struct dp_device_result {
    size_t size;            /* by DP_DEVICE_RESULT_INIT */
    const uint32_t *skip;   /* 1: leave the weights alone: overflow, a failure, or an abort */
    const float *clip_coef; /* the optimizer multiplies gradients by it: min(1, clip_norm / norm) */
    const float *norm; /* of all averaged gradients together, unscaled; Inf after an overflow */
} dp_device_result_t;
#define DP_DEVICE_RESULT_INIT DP_SIZED(dp_device_result_t, )

/**
 * dp_gradients_sync() without waiting for a GPU: makes the stream wait until every gradient is
 * averaged, and leaves what the optimizer has to know in the device's memory. Blocks the thread
 * only until the averages were issued to the device (the other ranks have submitted them too); an
 * optimizer enqueued on the stream behind this call reads the result there:
 *
 *     dp_gradients_sync_on(gradients, stream, &result);
 *     adamw<<<..., stream>>>(weights, gradient, result.skip, result.clip_coef);
 *                                                       // its kernel begins: if (*skip) return;
 *
 * Where a gradient is not the whole average (after an overflow, an abort or a rank's death), *skip
 * is 1 on every rank that is left, before the stream moves on. So a queued optimizer never uses a
 * half-reduced gradient. The next backward pass, and the stream that is given to its ready(), must
 * come behind the optimizer. With a loss scale, and with DP_WIRE_FP16 under DP_ORDER_PROGRAM,
 * the first ready() of the next step blocks until this sync is over on the device, as the scales
 * depend on what it found.
 *
 * Without a GPU it is dp_gradients_sync(), and the result lies in ordinary memory. Under
 * DP_CHECK_DATA it waits for the averages on a GPU too, to compare weights before the optimizer
 * writes them.
 *
 * @param stream where the optimizer runs; a GPU's own (the legacy default stream is
 *               cudaStreamLegacy); not used without a GPU
 * @param result written unless DP_ERR_INVALID; may be NULL
 * @return as dp_gradients_sync(), for what is known when it returns: a later failure sets *skip,
 *         and the next call on this context reports it. DP_ERR_UNSUPPORTED: no stream of
 *         this context's GPU. After a failure *skip is 1 as well
 */
DP_API dp_status_t dp_gradients_sync_on(dp_gradients_t *gradients, void *stream,
                                        dp_device_result_t *result);

/* The state of dynamic loss scaling, which a checkpoint keeps: a run that goes on from it makes the
 * same decisions. */
typedef struct dp_loss_scale {
    size_t size;         /* by DP_LOSS_SCALE_INIT */
    double scale;        /* of the next step; 1 without loss scaling */
    int good_steps;      /* in a row since the scale last moved */
    int hysteresis_left; /* overflows in a row that halve it, counted down; 0: all of the option */
} dp_loss_scale_t;
#define DP_LOSS_SCALE_INIT DP_SIZED(dp_loss_scale_t, .scale = 1.0)

/**
 * Reads and sets the loss scale's state, between a sync and the next ready(). Local: all ranks must
 * set the same. get waits for a dp_gradients_sync_on() that is not over on the device.
 *
 * @return DP_OK
 *         DP_ERR_INVALID a state that this object cannot have
 *         DP_ERR_ORDER   a gradient is in flight
 */
DP_API dp_status_t dp_gradients_loss_scale_get(dp_gradients_t *gradients, dp_loss_scale_t *state);
DP_API dp_status_t dp_gradients_loss_scale_set(dp_gradients_t *gradients,
                                               const dp_loss_scale_t *state);

/* Waits for what is in flight and frees the object, not the tensors. */
DP_API void dp_gradients_destroy(dp_gradients_t *gradients);

/* ---- Sharding ------------------------------------------------------------------------------- */

/*
 * dp_shards_*() trains a model of which no rank needs to keep all. Its parameters are a list of
 * units, as a rule one for each layer. A unit is divided into one row for each rank. A rank updates
 * its row's weights with the row's averaged gradients, and keeps the optimizer's state of this row
 * only. The stage says what else it keeps:
 *
 *     stage                weights           gradients         optimizer's state   also called
 *     DP_SHARD_NONE        all               all               all                 data parallel
 *     DP_SHARD_OPTIMIZER   all               all               rows                ZeRO-1
 *     DP_SHARD_GRADIENTS   all               rows and slots    rows                ZeRO-2
 *     DP_SHARD_WEIGHTS     rows and slots    rows and slots    rows                ZeRO-3, FSDP
 *
 * The object owns the memory of weights and gradients; the optimizer's state is the program's. A
 * slot is memory for the whole of one unit, in which units of equal size take turns. On CPUs, if
 * all ranks of the group are on one node, no rank copies another's weights: each reads the others'
 * rows where they lie, in all stages but DP_SHARD_NONE (DP_SHARED_WEIGHTS). Then a gather only says
 * that the row is new. One loop serves all stages:
 *
 *     for (each unit u, in forward's order) {
 *         dp_shards_gather(shards, u + 1, stream);              // ahead of use
 *         dp_shards_wait(shards, u, stream, &weights);          // of all of u
 *         forward(u, weights);
 *         dp_shards_release(shards, u);
 *     }
 *     for (each unit u, in backward's order) {
 *         dp_shards_gather(shards, u - 1, stream);
 *         dp_shards_wait(shards, u, stream, &weights);
 *         dp_shards_gradients(shards, u, stream, &gradients);   // of all of u
 *         backward(u, weights, gradients);
 *         dp_shards_release(shards, u);
 *         dp_shards_ready(shards, u, stream);                   // their average begins to travel
 *     }
 *     dp_shards_sync(shards, &result);
 *     for (each unit u, in forward's order) {
 *         if (!result.skip) optimizer_step(row[u], result.clip_coef);
 *         dp_shards_gather(shards, u, stream);                  // travels under the next forward
 *     }
 *
 * With DP_WIRE_NONE and the CPU engine all stages give the same bits as dp_gradients_*() and the
 * same update on as many ranks; the norm does too where the tensors in a unit begin at multiples
 * of 4096 elements. All ranks make the same calls, in the same order in DP_ORDER_PROGRAM. Elements
 * are DP_F32, but for weights of 16 bits (options.weights), whose fp32 masters the program keeps
 * for its rows beside the optimizer's state. Method: Rajbhandari et al. 2019, arXiv:1910.02054.
 */
typedef struct dp_shards dp_shards_t;

typedef enum dp_shard_stage {
    DP_SHARD_NONE = 0,
    DP_SHARD_OPTIMIZER = 1,
    DP_SHARD_GRADIENTS = 2,
    DP_SHARD_WEIGHTS = 3
} dp_shard_stage_t;

/* Parameters that are gathered and reduced together. */
typedef struct dp_shard_unit {
    const char *name; /* unique in the list; copied */
    size_t count;     /* elements, not 0 */
    int is_whole;     /* 1: too small to share out; every rank keeps and updates all of it */
} dp_shard_unit_t;

typedef struct dp_shards_options {
    size_t size;       /* by DP_SHARDS_OPTIONS_INIT */
    dp_group_t *group; /* the ranks that share out one copy of the state; NULL: the world */
    /* The ranks of other copies that have the same rows as this one; NULL: there is one copy. Each
     * copy lists its ranks in the same order. */
    dp_group_t *replicas;
    const char *prefix;     /* goes before the names, so that two models can share a context */
    dp_shard_stage_t stage; /* by default DP_SHARD_OPTIMIZER */
    /* DP_F32, DP_BF16 or DP_F16. Weights of 16 bits take half the memory and half the bytes of a
     * gather. Counts must then be even. */
    dp_dtype_t weights;
    dp_wire_t wire;         /* of gradients, as in dp_options_t; weights travel as they are */
    int accumulation_steps; /* passes per sync; the result is divided by it too. Above 1 full
                               gradients are kept in every stage, so that the bits stay the same */
    double clip_norm;       /* as in dp_gradients_options_t, likewise below */
    double initial_loss_scale;
    int growth_interval;
    int hysteresis;
    int prefetch;   /* DP_SHARD_WEIGHTS: gathers in flight at most, at least 1; units of equal size
                       have max(2, prefetch) slots of weights */
    double timeout; /* of dp_shards_create(), as in dp_options_t */
} dp_shards_options_t;
#define DP_SHARDS_OPTIONS_INIT                                                                     \
    DP_SIZED(dp_shards_options_t, .prefix = "", .stage = DP_SHARD_OPTIMIZER, .weights = DP_F32,    \
             .accumulation_steps = 1, .growth_interval = 2000, .hysteresis = 1, .prefetch = 2)

/* The part of a unit that a rank updates. Row r is the elements r * n .. of the unit, where n is
 * the count divided by the ranks, rounded up to a multiple of 4096. The pointers stay the same
 * until dp_shards_destroy(). */
typedef struct dp_shard_row {
    size_t size;      /* by DP_SHARD_ROW_INIT */
    void *weights;    /* [count] of options.weights' type; the program writes them */
    float *gradients; /* [count]: averages, from a sync to the unit's next dp_shards_gradients() */
    size_t first;     /* element of the unit */
    size_t count;     /* may be 0 */
} dp_shard_row_t;
#define DP_SHARD_ROW_INIT DP_SIZED(dp_shard_row_t, )

/* Bytes that the object has on this rank. */
typedef struct dp_shards_memory {
    size_t size;           /* by DP_SHARDS_MEMORY_INIT */
    size_t weights;        /* whole units and rows, without slots */
    size_t gradients;      /* likewise */
    size_t weight_slots;   /* of DP_SHARD_WEIGHTS, unless ranks see each other's rows */
    size_t gradient_slots; /* of DP_SHARD_GRADIENTS and DP_SHARD_WEIGHTS */
    size_t mapped_weights; /* rows of other ranks that this one sees where they lie; 0: it copies
                              them. Not memory of this rank */
} dp_shards_memory_t;
#define DP_SHARDS_MEMORY_INIT DP_SIZED(dp_shards_memory_t, )

/**
 * Makes the object and its memory, zeroed. Collective over options->group and options->replicas.
 * Give the rows their first weights by dp_shards_load(), or write each row.
 *
 * @param units   [count], the same list on every rank; copied
 * @param options the same on every rank but for the groups
 * @param shards  give it back with dp_shards_destroy()
 * @return DP_OK
 *         DP_ERR_INVALID   an argument is wrong; the text says which
 *         DP_ERR_MISMATCH  ranks list different units or options; every rank is told
 *         DP_ERR_NO_MEMORY there is no memory on some rank; every rank is told
 *         or the failure of an operation
 * Threads: one at a time per object, here and below.
 */
DP_API dp_status_t dp_shards_create(dp_context_t *context, const dp_shard_unit_t *units,
                                    size_t count, const dp_shards_options_t *options,
                                    dp_shards_t **shards);

/* Says where this rank's row of unit u is; all of the unit where it is whole, or the stage is
 * DP_SHARD_NONE. */
DP_API dp_status_t dp_shards_row(const dp_shards_t *shards, size_t u, dp_shard_row_t *row);

/**
 * Gives every rank its row of the weights of unit u. Collective; waits.
 *
 * @param full [count of u] of options.weights' type on rank 0 of the group (and rank 0 of the
 *             replicas); any memory. Not read and may be NULL elsewhere
 */
DP_API dp_status_t dp_shards_load(dp_shards_t *shards, size_t u, const void *full);

/**
 * Starts the gather of unit u's weights out of the ranks' rows: after the row was updated, or
 * ahead of use. A hint: without it dp_shards_wait() starts the gather. Does nothing if the weights
 * are there already (since the last gather every sync was skipped, and dp_shards_changed() was not
 * called) and, under DP_SHARD_WEIGHTS, if options->prefetch gathers are in flight or the slots are
 * in use. The row's weights must not be written until dp_shards_wait() has returned.
 *
 * @param stream on which the row was updated, and the last use of released weights is queued; NULL
 *               for host memory
 * Never blocks on another rank.
 */
DP_API dp_status_t dp_shards_gather(dp_shards_t *shards, size_t u, void *stream);

/**
 * Waits until all weights of unit u are there.
 *
 * @param stream  waits for them, as in dp_stream_wait(); NULL: this thread does
 * @param weights [count of u] of options.weights' type, to be read only (a write may end the
 * process); valid until dp_shards_release(), and no longer than to the next dp_shards_sync()
 * @return DP_OK
 *         DP_ERR_ORDER under DP_SHARD_WEIGHTS: the slots for units of this size are all in use
 *         or the failure of an operation
 */
DP_API dp_status_t dp_shards_wait(dp_shards_t *shards, size_t u, void *stream,
                                  const void **weights);

/* Says that the program does not use the weights that dp_shards_wait() gave. Under DP_SHARD_WEIGHTS
 * the memory may serve another unit. DP_ERR_ORDER: there was no wait. */
DP_API dp_status_t dp_shards_release(dp_shards_t *shards, size_t u);

/* Says that the program has written its row of unit u outside of a step: the next gather or wait
 * fetches all rows anew. Before the first gather this is not needed. All ranks call it. No rank may
 * write its row while another one uses the unit's weights: a barrier or a sync comes first. */
DP_API dp_status_t dp_shards_changed(dp_shards_t *shards, size_t u);

/**
 * Gives memory for the gradients of all of unit u. It is not zeroed: the first pass of a step
 * writes all of it, later ones add. (Gaps between tensors are zero at the start; they need not be
 * written where units of equal size have theirs at the same places.) The same memory in all passes
 * of a step.
 *
 * @param stream    where they will be written; NULL for host memory
 * @param gradients [count of u]; the program's until dp_shards_ready() of the last pass
 * @return DP_OK
 *         DP_ERR_ORDER u is ready already, or the slots for units of this size are all given out
 *         or the failure of an operation
 * Waits until an earlier unit's gradients have left the memory.
 */
DP_API dp_status_t dp_shards_gradients(dp_shards_t *shards, size_t u, void *stream,
                                       float **gradients);

/**
 * Says that the gradients of unit u are complete for this pass. The accumulation_steps-th call
 * starts their average; from then to the sync the program must not touch them.
 *
 * @param stream the device stream that produces them; NULL for host memory
 * @return DP_OK, DP_ERR_ORDER (ready more often than accumulation_steps, or without memory from
 *         dp_shards_gradients()), or a failure
 * In DP_ORDER_PROGRAM with replicas it waits for the unit that was ready two calls before; else it
 * never blocks on another rank.
 */
DP_API dp_status_t dp_shards_ready(dp_shards_t *shards, size_t u, void *stream);

/**
 * Waits until every row's gradients are averages: the sum over all ranks, divided by their number,
 * by accumulation_steps and by the loss scale. Otherwise as dp_gradients_sync().
 *
 * The result is that of the whole model, and equal on all ranks and in all stages.
 */
DP_API dp_status_t dp_shards_sync(dp_shards_t *shards, dp_gradients_result_t *result);

/* dp_shards_sync() without waiting for a GPU, as dp_gradients_sync_on(): the optimizer on the
 * stream reads the result, *skip first. The stream of the units' next gathers must come behind it.
 * The pointers stay the same until dp_shards_destroy(). */
DP_API dp_status_t dp_shards_sync_on(dp_shards_t *shards, void *stream, dp_device_result_t *result);

/* How much the object has taken from dp_alloc(). */
DP_API dp_status_t dp_shards_memory_get(const dp_shards_t *shards, dp_shards_memory_t *memory);

/* The loss scale's state, as in dp_gradients_loss_scale_get() and _set(). */
DP_API dp_status_t dp_shards_loss_scale_get(dp_shards_t *shards, dp_loss_scale_t *state);
DP_API dp_status_t dp_shards_loss_scale_set(dp_shards_t *shards, const dp_loss_scale_t *state);

/**
 * Computes a checksum of all weights, as the rows have them. Collective; waits. The same for every
 * stage and number of ranks; for DP_CHECK_DATA-like comparisons, not against an attacker. Rows that
 * a stream is still writing must be complete before the call.
 *
 * @return DP_OK, DP_ERR_CHECK: whole units, or replicas of a row, differ between ranks
 */
DP_API dp_status_t dp_shards_hash(dp_shards_t *shards, uint64_t *hash);

/* As dp_gradients_destroy(), and frees the object's memory. */
DP_API void dp_shards_destroy(dp_shards_t *shards);

/* ---- Collectives ---------------------------------------------------------------------------- */

/* The program's function that returns memory for an output of `count` elements, or NULL if count is
 * 0; the counts of the call are written by then. Called once, on a thread of the library, which
 * waits: it must not call this context. NULL for want of memory ends the world (_NO_MEMORY). */
typedef void *(*dp_output_fn)(void *user, size_t count);

/* Options of one operation; copied. */
typedef struct dp_options {
    size_t size;        /* by DP_OPTIONS_INIT */
    dp_reduce_t reduce; /* reductions only */
    dp_wire_t wire;     /* reductions of DP_F32 only */
    double prescale;    /* multiplies each element before the reduction; floats only, else 1 */
    double postscale;   /* multiplies the result; floats only, else 1 */
    int count_joined;   /* 1: an average divides by the group's size even where ranks have joined */
    int launch_now;     /* 1: does not wait for others to join it. Under DP_ORDER_PROGRAM it is
                           launched at once, with what was submitted to the group before it, and
                           all ranks of the group must give the same */
    void *stream;       /* the device stream that produces the data; NULL for host memory */
    uint64_t tag;       /* compared between ranks, as counts are: anything that must be equal, such
                           as a digest of the shape; 0: none */
    uint64_t cookie;    /* not 0: dp_completions_read() gives it out when the operation is over */
    dp_output_fn output; /* calls with a capacity, host memory: called for the memory of out when
                            the counts are known. The call's out is NULL then, its capacity 0 */
    void *user;          /* output's */
    int priority;        /* among operations that could be launched at the same moment, higher
                            first; equal ones keep their order. The largest that a rank gives
                            counts. DP_ORDER_PROGRAM keeps the order of submissions */
    double timeout;      /* seconds for all ranks to submit it; see "Time limits". dp_join(), and
                            what is not agreed on in DP_ORDER_PROGRAM, takes none */
    int more_follow;     /* 1: this thread submits another operation at once. The library's thread
                            wakes up for all of them together: for the first one without it, or
                            for a wait or dp_test(). DP_ORDER_PROGRAM wakes nobody anyway */
} dp_options_t;
#define DP_OPTIONS_INIT DP_SIZED(dp_options_t, .reduce = DP_SUM, .prescale = 1.0, .postscale = 1.0)

/**
 * Reduces a tensor over the ranks of a group. Returns once the request is queued.
 *
 * Every rank submits the same name, dtype, count and options, in any order; small tensors may
 * travel fused. A name may be used again once its last operation was launched, and is cheap from
 * its second use on. Results are bit-equal on all ranks and from run to run.
 * Method: Sergeev and Del Balso 2018, arXiv:1802.05799.
 *
 * @param group   from dp_world() or dp_group_create()
 * @param name    1 to DP_NAME_MAX bytes, unique among those that wait for their launch; copied; in
 *                an ordered group NULL is the next operation in its order
 * @param in      [count] elements; borrowed until the handle completes
 * @param out     [count] elements; may equal in, must not overlap it otherwise; borrowed likewise
 * @param count   elements of dtype, not bytes; may be 0
 * @param handle  give it back with dp_wait() or dp_release(); NULL if not needed (see
 *                dp_wait_all())
 * @return DP_OK              queued; a later failure arrives through dp_wait()
 *         DP_ERR_INVALID     NULL, a bad name, an unknown dtype or reduction, scales on integers,
 *                            a launch_now or more_follow other than 0 and 1
 *         DP_ERR_UNSUPPORTED a stream, on a context without a GPU
 *         DP_ERR_BUSY        this name was submitted before and has not been launched yet
 *         DP_ERR_FULL        DP_QUEUE_DEPTH operations of this rank are submitted and not over
 *         DP_ERR_PEER_LOST, DP_ERR_ABORTED, DP_ERR_STALLED  this context can only be finalized
 * Never blocks on another rank.
 */
DP_API dp_status_t dp_allreduce(dp_group_t *group, const char *name, const void *in, void *out,
                                size_t count, dp_dtype_t dtype, const dp_options_t *options,
                                dp_handle_t **handle);

/* One member of a grouped operation. */
typedef struct dp_tensor {
    const void *in; /* [count] */
    void *out;      /* [count]; may equal in */
    size_t count;
    dp_dtype_t dtype;
} dp_tensor_t;

/* All that follows is as dp_allreduce(), but for what it says. A root is a rank of the group, the
 * same on every rank. Memory that only the root reads or writes may be NULL elsewhere. */

/* Reduces several tensors as one operation: all complete, or all fail with one status. name: of the
 * whole operation. tensors: [count], 1 to DP_GROUPED_MAX, the same list on every rank; copied. The
 * result's figures cover all of them. */
DP_API dp_status_t dp_grouped_allreduce(dp_group_t *group, const char *name,
                                        const dp_tensor_t *tensors, size_t count,
                                        const dp_options_t *options, dp_handle_t **handle);

/* Copies the root's tensor to all ranks. in: [count], read on the root. out: [count], written on
 * every rank; on the root it may equal in. */
DP_API dp_status_t dp_broadcast(dp_group_t *group, const char *name, const void *in, void *out,
                                size_t count, dp_dtype_t dtype, int root,
                                const dp_options_t *options, dp_handle_t **handle);

/* Concatenates the ranks' tensors in rank order. in: [count], this rank's part, as large on every
 * rank. out: [size of the group][count]; in may be this rank's row of it. */
DP_API dp_status_t dp_allgather(dp_group_t *group, const char *name, const void *in, void *out,
                                size_t count, dp_dtype_t dtype, const dp_options_t *options,
                                dp_handle_t **handle);

/* Reduces and leaves row r of the result on rank r. in: [size of the group][count]. out: [count];
 * may be this rank's row of in. The result's figures cover all rows. */
DP_API dp_status_t dp_reduce_scatter(dp_group_t *group, const char *name, const void *in, void *out,
                                     size_t count, dp_dtype_t dtype, const dp_options_t *options,
                                     dp_handle_t **handle);

/* Reduces; only the root gets the result, and its figures are known on all ranks. out: [count] on
 * the root, where it may equal in. */
DP_API dp_status_t dp_reduce(dp_group_t *group, const char *name, const void *in, void *out,
                             size_t count, dp_dtype_t dtype, int root, const dp_options_t *options,
                             dp_handle_t **handle);

/* Concatenates the ranks' tensors in rank order on the root. in: [count], as large on every rank.
 * out: [size of the group][count] on the root; in may be the root's row of it. */
DP_API dp_status_t dp_gather(dp_group_t *group, const char *name, const void *in, void *out,
                             size_t count, dp_dtype_t dtype, int root, const dp_options_t *options,
                             dp_handle_t **handle);

/* Gives row r of the root's tensor to rank r. in: [size of the group][count], read on the root.
 * out: [count]; on the root it may be its row of in. */
DP_API dp_status_t dp_scatter(dp_group_t *group, const char *name, const void *in, void *out,
                              size_t count, dp_dtype_t dtype, int root, const dp_options_t *options,
                              dp_handle_t **handle);

/* Rank s gives its row r to rank r, which finds it in row s. in, out: [size of the group][count];
 * they must not overlap. count: elements of one row, the same on every rank. */
DP_API dp_status_t dp_alltoall(dp_group_t *group, const char *name, const void *in, void *out,
                               size_t count, dp_dtype_t dtype, const dp_options_t *options,
                               dp_handle_t **handle);

/* Completes once every rank has submitted it. Of the options only the cookie, the priority, the tag
 * and the timeout have a meaning. */
DP_API dp_status_t dp_barrier(dp_group_t *group, const char *name, const dp_options_t *options,
                              dp_handle_t **handle);

/*
 * Collectives whose parts differ in size. Counts may differ between ranks and from use to use and
 * are exchanged with the data: a rank says how much its output can hold, and gets the real counts
 * with the result. Parts may be empty and lie packed, in rank order. If a rank's capacity is too
 * small, the operation fails with DP_ERR_TRUNCATED on every rank, naming that rank and both
 * values; only the receivers' counts are written, so that they can make room. in must not overlap
 * out. Counts that are read, [size of the group], are copied; those that are written are borrowed
 * until the handle completes, and may be NULL.
 */

/* Concatenates the ranks' tensors in rank order. in: [count], this rank's part. out: [capacity].
 * counts: receives the ranks' counts. */
DP_API dp_status_t dp_allgatherv(dp_group_t *group, const char *name, const void *in, size_t count,
                                 void *out, size_t capacity, size_t *counts, dp_dtype_t dtype,
                                 const dp_options_t *options, dp_handle_t **handle);

/* The same on the root alone: out, capacity and counts are used there. */
DP_API dp_status_t dp_gatherv(dp_group_t *group, const char *name, const void *in, size_t count,
                              void *out, size_t capacity, size_t *counts, dp_dtype_t dtype,
                              int root, const dp_options_t *options, dp_handle_t **handle);

/* Gives part r of the root's tensor to rank r. in: [sum of counts], and counts: elements for each
 * rank, are read on the root. out: [capacity]; the result's count says how much came. */
DP_API dp_status_t dp_scatterv(dp_group_t *group, const char *name, const void *in,
                               const size_t *counts, void *out, size_t capacity, dp_dtype_t dtype,
                               int root, const dp_options_t *options, dp_handle_t **handle);

/* Rank s gives its part r to rank r. in: [sum of send_counts]. send_counts: elements for each rank.
 * out: [capacity]. recv_counts: receives what came from each rank. */
DP_API dp_status_t dp_alltoallv(dp_group_t *group, const char *name, const void *in,
                                const size_t *send_counts, void *out, size_t capacity,
                                size_t *recv_counts, dp_dtype_t dtype, const dp_options_t *options,
                                dp_handle_t **handle);

/* Reduces and leaves part r of the result on rank r. in: [sum of counts]. out: [counts of this
 * rank]; may be this rank's part of in. counts: the same on every rank (else DP_ERR_MISMATCH). */
DP_API dp_status_t dp_reduce_scatterv(dp_group_t *group, const char *name, const void *in,
                                      void *out, const size_t *counts, dp_dtype_t dtype,
                                      const dp_options_t *options, dp_handle_t **handle);

/* Several tensors as one operation, like dp_grouped_allreduce(): each as in the call without
 * "grouped". */
DP_API dp_status_t dp_grouped_reduce(dp_group_t *group, const char *name,
                                     const dp_tensor_t *tensors, size_t count, int root,
                                     const dp_options_t *options, dp_handle_t **handle);
DP_API dp_status_t dp_grouped_broadcast(dp_group_t *group, const char *name,
                                        const dp_tensor_t *tensors, size_t count, int root,
                                        const dp_options_t *options, dp_handle_t **handle);
DP_API dp_status_t dp_grouped_allgather(dp_group_t *group, const char *name,
                                        const dp_tensor_t *tensors, size_t count,
                                        const dp_options_t *options, dp_handle_t **handle);
DP_API dp_status_t dp_grouped_reduce_scatter(dp_group_t *group, const char *name,
                                             const dp_tensor_t *tensors, size_t count,
                                             const dp_options_t *options, dp_handle_t **handle);

/**
 * Sends a tensor to one rank of the group, which receives it under the same name with dp_recv().
 * Names are compared within a pair of ranks: other pairs may use the same one at the same time. In
 * an ordered group, on CPUs and within a node (else DP_ERR_UNSUPPORTED), the n-th message to a rank
 * is the n-th that it receives from this one. Above 8 KiB a send ends when the receiver has it, so
 * post receives before you wait for it. A message whose sides differ in name, type or tag (then
 * DP_ERR_MISMATCH), that does not fit, or whose rank finalized (DP_ERR_LEFT) fails alone; the world
 * goes on. One of up to 8 KiB fails on the receiver only.
 *
 * @param to a rank of the group other than this one
 * Otherwise as dp_allreduce(). The other ranks take no part.
 */
DP_API dp_status_t dp_send(dp_group_t *group, const char *name, const void *in, size_t count,
                           dp_dtype_t dtype, int to, const dp_options_t *options,
                           dp_handle_t **handle);

/* Receives; the result's count says how much. DP_ERR_TRUNCATED: it is more than capacity. */
DP_API dp_status_t dp_recv(dp_group_t *group, const char *name, void *out, size_t capacity,
                           dp_dtype_t dtype, int from, const dp_options_t *options,
                           dp_handle_t **handle);

/**
 * Says that this rank has no more data for the group's collectives, and completes when all its
 * ranks have said so; submitting to the group before that is DP_ERR_ORDER. Until then the others'
 * reductions go on without it: it counts as ready with the identity of the operation, an average
 * divides by the ranks that contributed, its row of an allgather is zero (its part of an
 * allgatherv empty). A joined root, and an operation that would move a joined rank's data
 * (gather, scatter, alltoall, send, recv), fail with DP_ERR_ORDER on every rank.
 *
 * Of the options only the cookie has a meaning. Result: last_rank, the rank that joined last.
 */
DP_API dp_status_t dp_join(dp_group_t *group, const dp_options_t *options, dp_handle_t **handle);

/* ---- Waiting -------------------------------------------------------------------------------- */

/* An operation's findings; the figures of reductions are equal on all ranks. */
typedef struct dp_result {
    size_t size;        /* by DP_RESULT_INIT */
    uint64_t nonfinite; /* Inf and NaN elements in the result of a floating-point sum or average */
    double sum_squares; /* of that result's finite elements; independent of fusion and rank count */
    double absmax;      /* its largest finite magnitude */
    const char *text;   /* why it failed, or ""; valid until dp_finalize() */
    size_t count;       /* elements written to out on this rank, of all tensors together */
    int contributors;   /* ranks of the group that had not joined */
    int last_rank;      /* dp_join(): the rank of the group that joined last; else -1 */
} dp_result_t;
#define DP_RESULT_INIT DP_SIZED(dp_result_t, .text = "", .last_rank = -1)

/**
 * Waits for an operation and, when it is over, releases the handle.
 *
 * Once dp_wait() or dp_release() has given a handle back, dp_wait(), dp_test() and dp_stream_wait()
 * return DP_ERR_INVALID for it and dp_release() does nothing, until a later submission returns the
 * same pointer. After dp_finalize() there are no handles.
 *
 * @param handle  from a submission; given back when this returns the operation's status
 * @param seconds at most; negative: for ever; 0: only look; not a number: DP_ERR_INVALID
 * @param result  may be NULL; written when the operation is over
 * @return the operation's status, or DP_ERR_PENDING: the wait ended, the operation goes on
 * Threads: one at a time per handle. A short adaptive spin, then sleeps.
 */
DP_API dp_status_t dp_wait(dp_handle_t *handle, double seconds, dp_result_t *result);

/**
 * Makes a device stream wait for an operation: what is enqueued on it afterwards sees the result.
 * Blocks the calling thread only until the operation was issued to the device, and keeps the
 * handle.
 *
 * @param stream  as in dp_options_t; NULL waits like dp_wait() without releasing the handle
 * @param seconds as in dp_wait(): how long the calling thread may be blocked
 * @return DP_OK: a later failure arrives through dp_wait(); DP_ERR_PENDING: the stream does not
 *         wait; DP_ERR_UNSUPPORTED without a device, or the operation's failure
 */
DP_API dp_status_t dp_stream_wait(dp_handle_t *handle, void *stream, double seconds);

/* DP_ERR_PENDING while the operation runs, then its status; DP_ERR_INVALID as in dp_wait(). Keeps
 * the handle. Never blocks. */
DP_API dp_status_t dp_test(const dp_handle_t *handle);

/* Gives a handle back without waiting; the operation goes on. NULL is fine. */
DP_API void dp_release(dp_handle_t *handle);

/**
 * Waits until every operation submitted before this call is over, with or without a handle.
 *
 * @param seconds as in dp_wait()
 * @return DP_OK, the first failure among those whose handle was NULL or released since the last
 *         call, or DP_ERR_PENDING. Handles stay valid.
 */
DP_API dp_status_t dp_wait_all(dp_context_t *context, double seconds);

/*
 * Waiting for many operations in one place, as event loops and futures want it. An operation that
 * was submitted with a cookie is on the context's list once it is over, whether it failed or not.
 * Under DP_ORDER_PROGRAM set launch_now too, as there is no wait that would launch it.
 */

/* Gives a descriptor that is readable (poll, epoll, asyncio) while the list is not empty. Do not
 * read or write it; dp_finalize() closes it. DP_ERR_SYSTEM: no descriptor is left. Threads: any. */
DP_API dp_status_t dp_completions_fd(dp_context_t *context, int *fd);

/* Takes up to `room` cookies off the list, in the order in which operations ended, and returns how
 * many. Never blocks. Threads: any. */
DP_API size_t dp_completions_read(dp_context_t *context, uint64_t *cookies, size_t room);

/* ---- Groups --------------------------------------------------------------------------------- */

typedef struct dp_group_options {
    size_t size;      /* by DP_GROUP_OPTIONS_INIT */
    dp_order_t order; /* of its operations; DP_ORDER_DEFAULT: the world's. The same on its ranks */
    double timeout;   /* of the call that makes it */
} dp_group_options_t;
#define DP_GROUP_OPTIONS_INIT DP_SIZED(dp_group_options_t, )

/**
 * Makes a group of some ranks of the world (Horovod calls it a process set). Collective over the
 * ranks listed, which must list the same set under the same name; others may call it too and get
 * NULL at once. A group's ranks are numbered 0 .. count-1 by ascending rank of the world.
 *
 * Groups may overlap in any way. Negotiated operations of all groups follow one order, and ordered
 * groups have queues of their own, so overlapping groups cannot deadlock (dp_order_t).
 * Tensor names belong to a group. Ranks outside take no part in its operations.
 *
 * @param name    1 to DP_GROUP_NAME_MAX bytes, for texts and the timeline; copied. Disjoint groups
 *                may share one
 * @param ranks   [count] ranks of the world, in any order, without repeats; copied
 * @param options NULL for the defaults; copied
 * @param group   set only on DP_OK; NULL where this rank is not listed. Give it back with
 *                dp_group_destroy(), at the latest dp_finalize() does
 * @return DP_OK, DP_ERR_INVALID, DP_ERR_MISMATCH (another list or order under this name),
 *         DP_ERR_FULL (a rank is in DP_GROUPS_MAX groups), DP_ERR_BUSY (another thread makes one of
 *         this name with the same lowest rank), DP_ERR_UNSUPPORTED (this order), DP_ERR_LEFT, ...
 * Threads: any. Waits for the other listed ranks.
 */
DP_API dp_status_t dp_group_create(dp_context_t *context, const char *name, const int *ranks,
                                   size_t count, const dp_group_options_t *options,
                                   dp_group_t **group);

/**
 * Divides a group: ranks that give the same color come together. Collective over the parent.
 *
 * @param color 0 or more; negative: this rank comes into no group, *group is NULL; nor does a rank
 *              that has joined the parent and does not call this
 * @param key   the group's ranks are numbered by ascending key, and where keys are equal by their
 *              rank in the parent
 * Otherwise as dp_group_create().
 */
DP_API dp_status_t dp_group_split(dp_group_t *parent, const char *name, int color, int key,
                                  const dp_group_options_t *options, dp_group_t **group);

/**
 * Makes the groups of a mesh: the ranks of the world fill a box of n axes as elements fill a C
 * array, the last axis fastest. groups[i] gets the ranks that differ from this one along axis i
 * alone, numbered by their place on it. Collective over the world.
 *
 * @param dims    [n] ranks along each axis, 1 or more; their product is dp_size()
 * @param names   [n] of the groups, as in dp_group_create(), each another
 * @param options as there, for all of them
 * @param groups  [n], written only on DP_OK
 * Otherwise as dp_group_create().
 */
DP_API dp_status_t dp_mesh_create(dp_context_t *context, const int *dims, size_t n,
                                  const char *const *names, const dp_group_options_t *options,
                                  dp_group_t **groups);

/**
 * Ends a group. Collective over its ranks; waits for its operations. The object stays until
 * dp_finalize(), so that a later use is an error. NULL is fine; the world is DP_ERR_INVALID.
 */
DP_API dp_status_t dp_group_destroy(dp_group_t *group);

DP_API int dp_group_rank(const dp_group_t *group); /* of this rank in the group */
DP_API int dp_group_size(const dp_group_t *group);
DP_API int dp_group_world_rank(const dp_group_t *group, int rank); /* -1: no such rank */
DP_API const char *dp_group_name(const dp_group_t *group);         /* "world" of dp_world() */
DP_API dp_order_t dp_group_order(const dp_group_t *group); /* in force; NULL: DP_ORDER_DEFAULT */

/* ---- Memory --------------------------------------------------------------------------------- */

/**
 * Allocates memory that the ranks of a node reduce where it lies, without a copy. Zeroed,
 * aligned to 4096 bytes. Ordinary memory works everywhere too, at the price of two copies.
 *
 * @param bytes  may be 0
 * @param memory set only on DP_OK; give it back with dp_free(), at the latest by dp_finalize()
 * Threads: any.
 */
DP_API dp_status_t dp_alloc(dp_context_t *context, size_t bytes, void **memory);

/* Gives memory back. NULL is fine; a foreign pointer is DP_ERR_INVALID. DP_ERR_BUSY: an operation
 * that this rank has submitted is not over and has a tensor in it; nothing was done. Threads: any.
 */
DP_API dp_status_t dp_free(dp_context_t *context, void *memory);

/**
 * Says that the program will use this memory of its own again and again, so that the ranks of a
 * node can reduce it where it lies, like that of dp_alloc(). Its contents and address stay.
 *
 * Without a GPU this works for whole pages of private anonymous memory (aligned_alloc, mmap, static
 * arrays that begin as zeros): they become shared pages. No other thread may touch them during the
 * call; a child made by fork() would share them; they must not be remapped, freed or otherwise
 * given back before dp_deregister(); advice about them (madvise, mbind) is lost. Memory that is
 * mapped from a file, locked (mlock), shared, read-only, or this thread's stack is
 * DP_ERR_UNSUPPORTED, and works unregistered.
 *
 * @param memory aligned to 4096 bytes; overlapping a registration or memory of dp_alloc() is
 *               DP_ERR_INVALID
 * @param bytes  a multiple of 4096, not 0; may be part of an allocation
 * @return DP_OK, DP_ERR_INVALID, DP_ERR_UNSUPPORTED, DP_ERR_NO_MEMORY, DP_ERR_SYSTEM; unless
 *         DP_OK the memory is as before
 * Threads: any.
 */
DP_API dp_status_t dp_register(dp_context_t *context, void *memory, size_t bytes);

/* Makes registered memory private again, contents kept; dp_finalize() does so too. No other thread
 * may be using it. NULL is fine; an address that begins no registration is DP_ERR_INVALID.
 * DP_ERR_BUSY: as in dp_free(), DP_ERR_NO_MEMORY: it stays registered. Threads: any. */
DP_API dp_status_t dp_deregister(dp_context_t *context, void *memory);

/* ---- Timeline ------------------------------------------------------------------------------- */

/*
 * Marks for the timeline. Spans nest per thread and cost well under a microsecond. The name is
 * copied, once per distinct text. Threads: any.
 */
DP_API void dp_step_begin(dp_context_t *context, uint64_t step);
DP_API void dp_step_end(dp_context_t *context);
DP_API void dp_span_begin(dp_context_t *context, const char *name);
DP_API void dp_span_end(dp_context_t *context);

/**
 * Marks the program's work on a device's stream for the timeline: from when the stream comes to the
 * first mark until it comes to the second. `dptrace report` counts such spans as compute time, and
 * shows which reductions run at the same time.
 *
 * Spans of a stream nest. Waits of the stream for operations inside a span (dp_stream_wait()) are
 * recorded by themselves and do not count as compute. No call waits for the device.
 *
 * @param name   copied, once per distinct text
 * @param stream as in dp_options_t; NULL, a stream that captures a graph, or a context without a
 *               GPU: nothing is recorded
 * Threads: any; those that mark one stream, one after the other.
 */
DP_API void dp_stream_span_begin(dp_context_t *context, const char *name, void *stream);
DP_API void dp_stream_span_end(dp_context_t *context, void *stream);

/* ---- Statistics ----------------------------------------------------------------------------- */

/* Counters since dp_init(). */
typedef struct dp_stats {
    size_t size;        /* by DP_STATS_INIT */
    uint64_t submitted; /* operations */
    uint64_t completed; /* of these, over, failed or not */
    uint64_t failed;
    uint64_t buckets;       /* fused transfers */
    uint64_t bytes_reduced; /* payload of completed operations, in the program's element types */
    uint64_t bytes_packed;  /* of these, copied through a fused buffer */
    uint64_t bytes_wire;    /* sent to other nodes by this rank's engine */
    uint64_t control_sent;  /* negotiation messages, without heartbeats */
    uint64_t control_received;
    uint64_t wait_ns;     /* this program's threads were blocked in dp_wait() and its kin */
    uint64_t skew_ns;     /* of that, until all ranks agreed, and while the engine awaited one */
    uint64_t transfer_ns; /* the data plane packed, reduced or unpacked, and awaited no rank */
    uint64_t coordinator_cpu_ns;
    uint64_t launch_cpu_ns; /* CPU time of the data plane's threads */
    uint64_t trace_dropped; /* timeline records that found no room */
} dp_stats_t;
#define DP_STATS_INIT DP_SIZED(dp_stats_t, )

/* Fills in the counters. Threads: any. */
DP_API dp_status_t dp_stats_get(dp_context_t *context, dp_stats_t *stats);

#ifdef __cplusplus
}
#endif
#endif /* DP_H */
