/*
 * tune.c - tunes DP_FUSION_HOLD of a running job: how long the root holds a ready tensor back,
 * while earlier launches are in the data plane, so that others can join it in one operation.
 *
 * A longer hold makes fewer operations, each of which costs the wire's latency once; a shorter one
 * keeps more of them in flight. Which is better depends on the network and on how fast the program
 * submits, so it is tried (tuner.h). Only rank 0 tunes, and only its coordinator holds back: the
 * other ranks learn nothing, every rank still launches in the one agreed order, and results do not
 * depend on what travels together.
 *
 * Called at the end of each step, on the program's threads, under `lock`. It must not know how the
 * coordinator uses the value.
 */
#include "coordinator/tuner/tune.h"

#include <pthread.h>
#include <stdlib.h>

#include "runtime/base/config_value.h"

/* Around the configured hold. Up to the latency of an operation between hundreds of ranks. */
#define HOLD_LEAST_NS 25000
#define HOLD_MOST_NS 12800000
#define HALVINGS 2
#define DOUBLINGS 6

struct dp_tune {
    dp_tune_options_t options;
    pthread_mutex_t lock;
    dp_tuner_t tuner;       /* guarded by lock, likewise below */
    uint64_t end_ns, bytes; /* at the end of the last step; 0: there was none */
};

/* The setting that a later run can have from the start. */
static void log_result(const dp_tune_t *tune)
{
    const dp_tuner_t *tuner = &tune->tuner;
    const dp_ladder_t *ladder = &tuner->ladder;
    char now[32], before[32];

    dp_format_time((int64_t)ladder->values[ladder->initial], before, sizeof(before));
    if (tuner->current == ladder->initial) {
        dp_log_info(tune->options.log, "DP_TUNE: after %d steps nothing beats DP_FUSION_HOLD=%s",
                    tuner->steps, before);
        return;
    }
    dp_format_time((int64_t)dp_tuner_value(tuner), now, sizeof(now));
    dp_log_info(tune->options.log,
                "DP_TUNE: after %d steps DP_FUSION_HOLD=%s (was %s): a step takes %.3f ms instead "
                "of %.3f ms (%.1f %% less)",
                tuner->steps, now, before, tuner->best_s * 1e3, tuner->initial_s * 1e3,
                100.0 * (1.0 - tuner->best_s / tuner->initial_s));
}

void dp_tune_step(dp_tune_t *tune, uint64_t bytes_reduced)
{
    uint64_t now_ns;

    pthread_mutex_lock(&tune->lock);
    now_ns = dp_now_ns();
    /* The first step has no beginning that is known here. */
    if (tune->end_ns != 0 && tune->tuner.phase != DP_TUNER_FINISHED) {
        if (dp_tuner_step(&tune->tuner, (double)(now_ns - tune->end_ns) / 1e9,
                          bytes_reduced - tune->bytes))
            tune->options.set_hold(tune->options.user, dp_tuner_value(&tune->tuner));
        if (tune->tuner.phase == DP_TUNER_FINISHED) log_result(tune);
    }
    tune->end_ns = now_ns;
    tune->bytes = bytes_reduced;
    pthread_mutex_unlock(&tune->lock);
}

int dp_tune_is_finished(dp_tune_t *tune, uint64_t *hold_ns)
{
    int is_finished;

    pthread_mutex_lock(&tune->lock);
    is_finished = tune->tuner.phase == DP_TUNER_FINISHED;
    *hold_ns = dp_tuner_value(&tune->tuner);
    pthread_mutex_unlock(&tune->lock);
    return is_finished;
}

dp_status_t dp_tune_create(const dp_tune_options_t *options, dp_tune_t **out)
{
    dp_tune_t *tune = calloc(1, sizeof(*tune));
    dp_ladder_t ladder;

    if (tune == NULL) return DP_ERR_NO_MEMORY;
    tune->options = *options;
    pthread_mutex_init(&tune->lock, NULL);
    dp_ladder_around(&ladder, options->hold_ns, HOLD_LEAST_NS, HOLD_MOST_NS, HALVINGS, DOUBLINGS);
    dp_tuner_init(&tune->tuner, &ladder);
    *out = tune;
    return DP_OK;
}

void dp_tune_destroy(dp_tune_t *tune)
{
    if (tune == NULL) return;
    pthread_mutex_destroy(&tune->lock);
    free(tune);
}
