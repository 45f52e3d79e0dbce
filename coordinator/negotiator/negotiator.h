/*
 * negotiator.h - how ranks agree on what is ready everywhere, and in which one order it is
 * launched.
 *
 * A pure state machine: no sockets, no threads, no clock. Inputs are submissions, messages, lost
 * peers and ticks; outputs are messages, launches, failures. The loop drives it over a transport,
 * the simulator over a virtual network.
 *
 * READY goes up the tree once a subtree is ready; the root appends to the order and sends LAUNCH
 * down. No message is repeated, and an idle negotiator sends nothing. docs/protocol.md has the
 * rules.
 *
 * All functions are called on one thread, or by threads that take turns (coordinator/loop). None of
 * them blocks.
 */
#ifndef DP_COORDINATOR_NEGOTIATOR_H
#define DP_COORDINATOR_NEGOTIATOR_H

#include "coordinator/negotiator/signature.h"
#include "runtime/group/topology.h"

typedef struct dp_negotiator dp_negotiator_t;

typedef struct dp_negotiator_options {
    int rank;
    int size;
    const dp_topology_t *topology; /* borrowed; names of nodes for texts */
    const dp_tree_links_t *links;  /* borrowed; this rank's parent and children */
    uint64_t hold_ns;       /* root: longest a complete tensor waits while launches are in flight */
    size_t fusion_bytes;    /* root: enough is gathered to launch at once */
    uint64_t stall_warn_ns; /* 0: never */
    uint64_t stall_limit_ns;    /* 0: never */
    uint64_t finalize_limit_ns; /* 0: never */
    size_t names_kept;          /* names that may come once and be kept; 0: the default */
} dp_negotiator_options_t;

#define DP_GROUP_WORLD 0u          /* uid of the group of all ranks */
#define DP_GROUP_UNBORN UINT32_MAX /* where the names of groups to be made live */

/* Bytes of a submission's name: a tensor's, and what coordinator/api adds to it. */
#define DP_ENTRY_NAME_MAX (DP_NAME_MAX + 64)

typedef enum dp_output_kind {
    DP_OUTPUT_SEND,    /* a message to rank `to` */
    DP_OUTPUT_LAUNCH,  /* entries of one group to launch, in order, planned together. A send, a
                          group_create, a group_destroy come alone */
    DP_OUTPUT_JOINED,  /* every rank of the group has joined: request, last_rank */
    DP_OUTPUT_FAIL,    /* one request fails: status, text; others are untouched */
    DP_OUTPUT_FATAL,   /* a fatal error: status, text, culprit; every request fails with it.
                          Messages to spread it were put out before */
    DP_OUTPUT_WARN,    /* text for the log: a stall report and its end */
    DP_OUTPUT_FINISHED /* every rank has finalized: close the transport */
} dp_output_kind_t;

typedef struct dp_launch_entry {
    void *request; /* as given to submit; NULL: this rank has joined and gives the identity */
    const dp_signature_t *signature; /* what all agreed on; valid until the next call */
    const char *name;                /* likewise */
    uint32_t absent;                 /* ranks of the group that have joined instead */
    float last_absmax;               /* maximum over the ranks of what submit was given */
    int in_place;                    /* AND over the ranks */
} dp_launch_entry_t;

/* Valid until the next call on the negotiator. */
typedef struct dp_output {
    dp_output_kind_t kind;
    int to;
    const void *data;
    size_t bytes;
    uint64_t sequence;                /* LAUNCH: ascending, with gaps for other groups */
    uint32_t group;                   /* LAUNCH: uid; of a group_create the new group's */
    uint32_t group_index;             /* LAUNCH of a group_create: 1 .. DP_GROUPS_MAX */
    int last_rank;                    /* JOINED: a rank of the group */
    const dp_launch_entry_t *entries; /* [entry_count] */
    size_t entry_count;
    void *request; /* FAIL */
    dp_status_t status;
    int culprit; /* FATAL: the rank that caused it, -1 unknown */
    const char *text;
} dp_output_t;

/* One operation of this rank. */
typedef struct dp_submission {
    uint32_t group;                  /* uid; DP_GROUP_UNBORN for a group_create */
    const char *name;                /* copied; unique in its group, of sends: for its pair of
                                        ranks. Of a join: any */
    const dp_signature_t *signature; /* copied */
    int in_place;
    float last_absmax; /* negative: unknown */
    int32_t priority;  /* the root orders complete tensors by the largest that a rank gives */
    int is_urgent;     /* a thread already waits for it, or the program wants it launched at once */
    uint64_t timeout_ns; /* it fails on all ranks where it is not complete then; 0: never */
    void *request;       /* handed back in LAUNCH or FAIL, exactly once, unless FATAL comes */
} dp_submission_t;

dp_status_t dp_negotiator_create(const dp_negotiator_options_t *options, dp_negotiator_t **out);
void dp_negotiator_destroy(dp_negotiator_t *negotiator); /* NULL is fine */

/*
 * Inputs. now_ns never goes back. DP_ERR_NO_MEMORY leaves the state machine fatal.
 *
 * dp_negotiator_submit() takes the request only on DP_OK. DP_ERR_BUSY: the name is pending;
 * DP_ERR_INVALID: a bad name, too many parts, no such group, a list of members that is not
 * ascending or lacks this rank; DP_ERR_ORDER: this rank has finalized, has joined this group, or
 * ends it: a group_destroy is the last submission to its group, when nothing else of this rank is
 * pending there; after FATAL: its status.
 */
dp_status_t dp_negotiator_submit(dp_negotiator_t *negotiator, const dp_submission_t *submission,
                                 uint64_t now_ns);
dp_status_t dp_negotiator_message(dp_negotiator_t *negotiator, int from, const void *data,
                                  size_t bytes, uint64_t now_ns); /* hostile bytes: FATAL output */
void dp_negotiator_peer_lost(dp_negotiator_t *negotiator, int rank, const char *text,
                             uint64_t now_ns);
/* A thread waits for this pending request: the root must not hold it back. */
void dp_negotiator_urgent(dp_negotiator_t *negotiator, uint32_t group, const char *name,
                          uint64_t now_ns);
/* The data plane has finished this launch. Launches of other lanes with lower numbers may finish
 * later: the greatest number counts, so the data plane may be taken for idle while they run, and a
 * tensor is launched that could have been held back. */
void dp_negotiator_launch_done(dp_negotiator_t *negotiator, uint64_t sequence, uint64_t now_ns);
/* This rank will submit nothing more. Call it at once, also while requests are pending: these are
 * still launched, or fail with DP_ERR_LEFT where another rank left too. Waiting for them first
 * would leave two ranks waiting for each other. FINISHED comes when every rank is that far. */
void dp_negotiator_finalize(dp_negotiator_t *negotiator, uint64_t now_ns);
/* Ends the job on all ranks, on behalf of this one. */
void dp_negotiator_abort(dp_negotiator_t *negotiator, dp_status_t status, const char *text,
                         uint64_t now_ns);
/* Ends the job on all ranks, and names the rank whose fault it is. */
void dp_negotiator_blame(dp_negotiator_t *negotiator, dp_status_t status, int culprit,
                         const char *text, uint64_t now_ns);
void dp_negotiator_tick(dp_negotiator_t *negotiator, uint64_t now_ns);

/* Keeps a description of what this rank does, for stall reports: "step 12, after h.3.attn.weight".
 */
void dp_negotiator_progress(dp_negotiator_t *negotiator, const char *text);

/* Takes the next output; 0 when there is none. */
int dp_negotiator_output(dp_negotiator_t *negotiator, dp_output_t *out);

/* When tick() wants to be called next, UINT64_MAX: not before the next input. */
uint64_t dp_negotiator_deadline(const dp_negotiator_t *negotiator);

#endif
