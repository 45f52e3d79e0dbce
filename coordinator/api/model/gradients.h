/*
 * gradients.h - what the three files of dp_gradients_*() share: the object, and the way of one
 * average.
 *
 *     gradients.c         create (compares lists, broadcasts weights) and destroy
 *     gradients_sync.c    ready, and the sync that waits
 *     gradients_stream.c  the sync that leaves its result on a GPU
 *
 * Only the program's threads come here, one at a time per object, so nothing is locked.
 */
#ifndef DP_COORDINATOR_GRADIENTS_H
#define DP_COORDINATOR_GRADIENTS_H

#include "coordinator/api/context/owned.h"
#include "coordinator/api/model/decision.h"
#include "coordinator/api/operation/submit.h"

/* One parameter tensor and how far it has come in this step. */
typedef struct dp_parameter {
    dp_gradient_t tensor;
    char *name;          /* prefix + the program's name; freed with the object */
    int readies;         /* since the last sync */
    dp_handle_t *handle; /* of its average in flight; NULL: none */
} dp_parameter_t;

struct dp_gradients {
    dp_owned_t owned; /* the context's, from a create that succeeded on */
    dp_context_t *context;
    dp_group_t *group;
    dp_gradients_options_t options; /* prefix is NULL: it is part of the names */
    dp_parameter_t *parameters;
    size_t count;
    char *list_name;               /* the tensor name under which the ranks compare lists */
    uint64_t *hashes, *all_hashes; /* [count], [size of the group][count] */
    dp_decision_t decision;
    uint64_t syncs;
    int check; /* DP_CHECK_DATA */
    /* The figures that dp_gradients_sync_on() leaves for the optimizer: in the device's memory, or
     * &on_host. */
    dp_figures_t *figures;
    dp_figures_t on_host;
    dp_event_t *decided; /* recorded behind the last decision on a device */
    /* 1: dp_gradients_sync_on() returned with the averages under way, and kept their handles. The
     * next ready() or sync waits for them first: the scales of a step depend on the one before. */
    int is_deferred;
};

/* 1: the figures are in a device's memory. */
static inline int dp_gradients_on_device(const dp_gradients_t *gradients)
{
    return gradients->figures != &gradients->on_host;
}

/* gradients_sync.c: the end of a sync that was deferred, if there is one. */
dp_status_t dp_gradients_finish_deferred(dp_gradients_t *gradients);
/* gradients_sync.c: DP_OK: every tensor's average is in flight. Else an error that names one that
 * was not ready. */
dp_status_t dp_gradients_all_submitted(dp_gradients_t *gradients);
/* gradients_sync.c: waits for all averages and says what they came to. */
dp_status_t dp_gradients_collect(dp_gradients_t *gradients, dp_gradients_result_t *found);
/* gradients_sync.c: the device's sums begin anew. Nothing may be in flight. */
dp_status_t dp_gradients_clear_sums(dp_gradients_t *gradients);

#endif
