/*
 * pipeline.h - the data plane: wait for tensors, pack, reduce, unpack, complete.
 *
 * The coordinator submits launches in the global order, the program those of ordered groups in its
 * own. In each lane one thread at a time runs them in that order: the launch thread, or a thread in
 * dp_wait() that does it in its place. It plans which tensors travel together (plan.h) and queues
 * each bucket on three streams (pack, engine, unpack) over a ring of fused buffers
 * (fused_buffers.h), so that packing bucket k+1 overlaps reducing k and unpacking k-1. Buckets in
 * place go straight to the engine. It must not know how the ranks agreed on a launch.
 *
 * Broadcasts and allgathers travel in a lane of their own (dp_lane_t), which overtakes reductions
 * and is overtaken by them:
 *
 *   submit --+--> main lane:     launch thread, buffers, pack, reduce, unpack
 *            |
 *            +--> gather lane:   launch thread, buffers, pack, reduce
 *            |
 *            +--> ordered lanes: launch thread, buffers, pack, reduce, unpack; each
 *
 * A group's first allgather opens its gather lane, but travels in the main lane like all before it;
 * so a program that gathers nothing pays nothing, and the ranks make what they share at one place
 * of the order. Which launches come later follows from the global order: equal on all ranks. The
 * gather lane's threads, streams and buffers are made with the first such lane. On an asynchronous
 * device one launch thread and one ring of buffers serve both lanes: its collectives must be
 * enqueued in one order on all ranks, and enqueuing waits for none of them.
 *
 * An ordered group has all its operations in one ordered lane, which dp_pipeline_order() opens. Its
 * launches come in the program's order, which the other lanes know nothing of, so nothing in it
 * waits for them, and it shares neither a thread nor a buffer with them on any device.
 */
#ifndef DP_FUSION_PIPELINE_H
#define DP_FUSION_PIPELINE_H

#include "fusion/plan.h"

typedef struct dp_pipeline dp_pipeline_t;

/* One tensor of a launched operation. Embedded in the caller's request; borrowed until
 * callbacks.done(). */
typedef struct dp_pipeline_tensor {
    const void *in;
    void *out;
    size_t count;
    dp_dtype_t dtype;
} dp_pipeline_tensor_t;

/* A group as the data plane knows it. */
typedef struct dp_pipeline_group {
    dp_engine_group_t *engine; /* NULL: the world */
    int rank, size;            /* this rank in it */
    /* the pipeline's; zero at the start */
    dp_lane_t own_lane;    /* of an ordered group, by dp_pipeline_order(); else the main one */
    dp_lane_t gather_lane; /* likewise; the main one: its gathers travel in its own lane */
    _Atomic int has_gather_lane; /* stored by the thread that submits */
    _Atomic int beside; /* launches in another lane than the main one that are not over; not of the
                           world */
} dp_pipeline_group_t;

/* One operation: a tensor, or the tensors of one grouped operation, which complete together. */
typedef struct dp_pipeline_item {
    void *request;    /* the caller's, handed back */
    const char *name; /* for errors and the timeline; borrowed */
    dp_collective_t collective;
    dp_reduce_t reduce;
    dp_wire_t wire;    /* resolved */
    float last_absmax; /* what the ranks agreed on, for dp_compress_choose() */
    int root, peer;    /* ranks of the group; peer: destination of a send */
    int is_absent; /* this rank has joined: it gives the identity, its tensors' in and out are NULL
                    */
    int contributors;                    /* ranks of the group that have not joined; 0: all */
    int count_joined;                    /* averages divide by the group's size all the same */
    double prescale, postscale;          /* the caller's; the pipeline divides averages */
    int in_place;                        /* agreed by all ranks */
    const dp_pipeline_tensor_t *tensors; /* [tensor_count], borrowed until callbacks.done() */
    size_t tensor_count;
    /* gather(v), scatter(v), alltoall(v), allgatherv, send: as in dp_engine_exchange_t, borrowed
     * until on_done. The tensor's count is not used. */
    const size_t *send_counts;
    size_t *recv_counts;
    size_t capacity;
    dp_output_fn output;
    void *user;
    /* group_create and group_destroy, which come alone in a launch */
    const dp_engine_members_t *members; /* create; borrowed until callbacks.done() */
    dp_pipeline_group_t *group;         /* both; create fills in its engine */
    dp_event_t *ready; /* the work starts after it; NULL: at once. Borrowed until on_done */
    dp_event_t *done;  /* recorded behind the last stage before issued() is called; NULL: neither.
                          Reached and no longer used when done() is called. Borrowed likewise */
    dp_figures_t *figures; /* on an asynchronous device, in its memory: gets what the tally gets,
                              before the done event is reached; NULL: none. Borrowed likewise */
    uint64_t input_hash;   /* DP_CHECK_DATA: of the inputs at submission; 0: not checked */
    uint64_t submit_ns;
} dp_pipeline_item_t;

/* One LAUNCH of the coordinator: all of it is planned together. */
typedef struct dp_pipeline_launch {
    uint64_t sequence;          /* of the launch, ascending */
    uint64_t digest;            /* for the engine to compare; 0: the ranks have agreed */
    dp_pipeline_group_t *group; /* NULL: the world; lives until its group_destroy is done */
    dp_pipeline_item_t *items;  /* [item_count] */
    size_t item_count;
    dp_lane_t lane; /* an ordered one: the group's own; else the pipeline chooses it */
    struct dp_pipeline_launch *next; /* the pipeline's, likewise below */
    size_t item_room;
    int opens_gather_lane; /* it has its group's first allgather */
    int is_awaited_soon; /* the thread that submits it will probably wait for it at once, and so run
                            it: the launch thread need not wake before it would by itself */
    struct dp_pipeline_launch *whole; /* this is a part of that one, cut off for the gather lane */
    _Atomic int parts_left;           /* of a launch that was cut: not over; else 0 */
} dp_pipeline_launch_t;

typedef struct dp_pipeline_done {
    void *request;
    dp_status_t status;
    const char *text; /* why it failed; valid during the call */
    dp_tally_t tally; /* float sums and averages: of the whole result, as dp_result_t wants it; from
                         an engine that does not compress, of what came to this rank */
    float raw_absmax; /* of the sum before postscale, Inf after an overflow, negative: no figure;
                         goes into the next READY; equal on all ranks */
    size_t count;     /* elements written to this rank's out */
} dp_pipeline_done_t;

typedef struct dp_pipeline_callbacks {
    void *user;
    /* A request is over. From a data-plane thread; must not block. */
    void (*done)(void *user, const dp_pipeline_done_t *done);
    /* Every bucket of a launch that the ranks agreed on has finished: the coordinator may stop
     * holding back. Likewise. */
    void (*launch_done)(void *user, uint64_t sequence);
    /* The done event of a request is on its stream: others may be made to wait for it. Before
     * done(), from the launch thread; not for what needs no work (barriers, empty tensors) or fails
     * before it is queued: there done() comes alone. Likewise. */
    void (*issued)(void *user, void *request);
} dp_pipeline_callbacks_t;

typedef struct dp_pipeline_stats {
    uint64_t buckets, bytes_packed, bytes_wire, transfer_ns, cpu_ns;
} dp_pipeline_stats_t;

dp_status_t dp_pipeline_create(const dp_config_t *config, int rank, int ranks, dp_device_t *device,
                               dp_engine_t *engine, const dp_log_t *log, dp_trace_t *trace,
                               const dp_pipeline_callbacks_t *callbacks, dp_pipeline_t **out);

/* A launch to be filled in, zeroed, with room for so many items; used again once it is over, so
 * that nothing is allocated in steady state. DP_ERR_NO_MEMORY. Any thread. */
dp_status_t dp_pipeline_launch_take(dp_pipeline_t *pipeline, size_t item_count,
                                    dp_pipeline_launch_t **out);
/* One that is not submitted after all. Any thread. */
void dp_pipeline_launch_give(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch);

/* Opens an ordered lane, unless it is open. The launches of this group (NULL: the world) that say
 * so travel there; gather_lane: another one, for its gathers behind the first allgather, or
 * DP_LANE_MAIN. Before the first of them; any thread. On failure the group has none. */
dp_status_t dp_pipeline_order(dp_pipeline_t *pipeline, dp_pipeline_group_t *group, dp_lane_t lane,
                              dp_lane_t gather_lane);

/* The lane in which an operation of this group (NULL: the world) would travel if it were submitted
 * next. is_ordered: it is one of an ordered group's. For the thread that submits exact; for others
 * a guess. */
dp_lane_t dp_pipeline_lane(const dp_pipeline_t *pipeline, const dp_pipeline_group_t *group,
                           int is_ordered, dp_collective_t collective);

#define DP_PIPELINE_NO_PROGRESS (-1)

/*
 * Queues a launch, which is the pipeline's from here on. One thread at a time for each ordered
 * lane, and one for the others; never blocks, never fails.
 *
 * progress_lane: a thread is about to call dp_pipeline_progress() for this lane, whose launch
 * thread is not woken; or DP_PIPELINE_NO_PROGRESS.
 *
 * A ready event may depend on the done events of launches submitted before: everything is queued in
 * the order of the launches, and the launch thread waits only for work that was queued earlier.
 */
void dp_pipeline_submit(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch, int progress_lane);

/*
 * A thread that waits for a launch may run it itself, which saves waking the lane's launch thread
 * and being woken by it. Between begin and end, new launches do not wake the lane's launch thread.
 *
 * dp_pipeline_progress() runs queued launches of a lane until *state has reached `reached`. Without
 * a deadline (give_up_ns UINT64_MAX) it may block for as long as any operation of the engine. With
 * one it runs brief launches only, and returns by then: an operation that still waits for a rank is
 * finished by the stream's thread. Returns 1 when it ran one; 0: the queue was empty, its first
 * launch is not brief, or another thread is running launches. Not for asynchronous devices, which
 * work by themselves. Any thread but the data plane's own.
 */
void dp_pipeline_progress_begin(dp_pipeline_t *pipeline, dp_lane_t lane);
int dp_pipeline_progress(dp_pipeline_t *pipeline, dp_lane_t lane, const _Atomic uint32_t *state,
                         uint32_t reached, uint64_t give_up_ns);
void dp_pipeline_progress_end(dp_pipeline_t *pipeline, dp_lane_t lane);
/* A launch was submitted with this progress_lane, and the thread that was to run it has gone. */
void dp_pipeline_wake(dp_pipeline_t *pipeline, dp_lane_t lane);
/* 1: a launch of one such operation is brief, of so many bytes of input on this rank. Any thread.
 */
int dp_pipeline_is_brief(const dp_pipeline_t *pipeline, const dp_pipeline_group_t *group,
                         dp_collective_t collective, size_t bytes);

/* Fails what is queued and running with this status and text, through done(). Any thread. */
void dp_pipeline_abort(dp_pipeline_t *pipeline, dp_status_t status, const char *text);

/*
 * The checksum for input_hash, of what this rank (a rank of the group) gives. 0: there is nothing
 * to check, because it gives nothing or a stream has yet to produce it.
 */
uint64_t dp_pipeline_input_hash(const dp_pipeline_item_t *item, int rank, int ranks);

/* Launches that the ranks agreed on, submitted and not finished; of a launch for both lanes, its
 * two parts. */
size_t dp_pipeline_pending(const dp_pipeline_t *pipeline);
/* 1: some of a lane are. */
int dp_pipeline_is_busy(const dp_pipeline_t *pipeline, dp_lane_t lane);

void dp_pipeline_stats(const dp_pipeline_t *pipeline, dp_pipeline_stats_t *out);

/* Waits for what is queued (abort first to make that soon), joins the threads. NULL is fine. */
void dp_pipeline_destroy(dp_pipeline_t *pipeline);

#endif
