/*
 * tune.c - the tuner at work: rank 0 measures its steps and decides, all ranks change at one place
 * of the global order.
 *
 * At the end of each step every rank submits a small broadcast from rank 0 that says which settings
 * hold from there on, and whether they are the last. It is an operation like any other, with its
 * place in the order; the launch thread waits for it before it plans what comes behind. So all
 * ranks plan each launch with the same settings, however the order came about. Nobody waits for it
 * but at the end of the next step, when it is long over.
 */
#include "coordinator/tuner/tune.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/api/submit.h"
#include "coordinator/tuner/tune_file.h"
#include "runtime/base/futex.h"

enum { WORD_IS_LAST = DP_KNOBS, WORDS };

struct dp_tune {
    dp_context_t *context;
    /* the program's thread that ends steps */
    pthread_mutex_t lock;
    int is_over;
    dp_handle_t *handle;      /* of the last broadcast */
    uint64_t words[2][WORDS]; /* of this one and the last, which the launch thread may still read */
    uint64_t sent;            /* broadcasts submitted */
    /* on rank 0, likewise */
    dp_tuner_t tuner;
    dp_tune_key_t key;
    int is_known;           /* the key is complete */
    uint64_t end_ns, bytes; /* at the end of the last step */
    /* guarded by the context's lock */
    uint64_t digest, last_digest; /* of what was launched in this step, and the last */
    _Atomic uint32_t arrived;     /* broadcasts that are over; a futex */
    _Atomic uint32_t has_failed;  /* what was in force last stays */
    uint32_t awaited;             /* launch thread only */
};

/* ---- The data plane ------------------------------------------------------------------------- */

void dp_tune_stop(dp_tune_t *tune)
{
    atomic_store(&tune->has_failed, 1);
}

void dp_tune_arrived(dp_tune_t *tune, int is_good)
{
    if (!is_good) atomic_store(&tune->has_failed, 1);
    atomic_fetch_add(&tune->arrived, 1);
    dp_futex_wake(&tune->arrived);
}

int dp_tune_await(dp_tune_t *tune, dp_pipeline_settings_t *out)
{
    const uint32_t wanted = ++tune->awaited;
    const uint64_t *words = tune->words[(wanted - 1) % 2];

    for (;;) {
        uint32_t seen = atomic_load(&tune->arrived);

        if ((int32_t)(seen - wanted) >= 0) break;
        dp_futex_wait(&tune->arrived, seen, UINT64_MAX);
    }
    if (atomic_load(&tune->has_failed)) return 0;
    *out = (dp_pipeline_settings_t){.buffer_bytes = (size_t)words[DP_KNOB_BUCKET],
                                    .slots = (size_t)words[DP_KNOB_BUFFERS],
                                    .in_place_least = (size_t)words[DP_KNOB_IN_PLACE]};
    return 1;
}

void dp_tune_count(dp_tune_t *tune, const char *label, uint64_t bytes)
{
    /* a sum: the order of launches differs from step to step */
    tune->digest += dp_kernel_hash(label, strlen(label), bytes);
}

/* ---- Rank 0 --------------------------------------------------------------------------------- */

static int is_file(const dp_context_t *context)
{
    return strcmp(context->config.tune, "on") != 0;
}

/* What earlier runs found. 1: words are filled in, nothing is left to do. */
static int recall(dp_tune_t *tune, uint64_t words[WORDS])
{
    dp_context_t *context = tune->context;
    dp_error_t error = {DP_OK, ""};
    uint64_t values[DP_KNOBS];
    dp_status_t status;

    if (!is_file(context)) return 0;
    status = dp_tune_file_read(context->config.tune, &tune->key, values, &error);
    if (status == DP_ERR_AGAIN) return 0;
    for (int knob = 0; status == DP_OK && knob < DP_KNOBS; knob++) {
        const dp_ladder_t *ladder = &tune->tuner.ladders[knob];

        if (values[knob] >= ladder->values[0] && values[knob] <= ladder->values[ladder->count - 1])
            continue;
        status = dp_error_set(&error, DP_ERR_CONFIG, "DP_TUNE=%.200s: %s %llu is out of range",
                              context->config.tune, dp_knob_name((dp_knob_t)knob),
                              (unsigned long long)values[knob]);
    }
    if (status != DP_OK) {
        dp_log_warn(&context->log, "%s; it is not used", error.text);
        return 0;
    }
    memcpy(words, values, sizeof(values));
    dp_log_info(&context->log, "settings as tuned before, from %s", context->config.tune);
    return 1;
}

static void tell(dp_tune_t *tune)
{
    dp_context_t *context = tune->context;
    uint64_t values[DP_KNOBS];
    dp_error_t error;
    char text[384];

    dp_tuner_report(&tune->tuner, text, sizeof(text));
    dp_log_info(&context->log, "%s", text);
    if (!is_file(context)) return;
    for (int knob = 0; knob < DP_KNOBS; knob++)
        values[knob] = dp_tuner_value(&tune->tuner, (dp_knob_t)knob);
    if (dp_tune_file_write(context->config.tune, &tune->key, values, tune->tuner.home_s,
                           tune->tuner.best_s, &error) != DP_OK)
        dp_log_warn(&context->log, "%s", error.text);
}

/* 1: two steps in a row launched the same, so it is known what the program is. */
static int know(dp_tune_t *tune)
{
    dp_context_t *context = tune->context;
    int is_known;

    pthread_mutex_lock(&context->lock);
    is_known = tune->digest != 0 && tune->digest == tune->last_digest;
    tune->key.program = tune->digest;
    tune->last_digest = tune->digest;
    tune->digest = 0;
    pthread_mutex_unlock(&context->lock);
    return is_known;
}

/* Decides what holds from here on. */
static void decide(dp_tune_t *tune, uint64_t words[WORDS])
{
    dp_context_t *context = tune->context;
    const uint64_t now = dp_now_ns();
    const uint64_t bytes = atomic_load(&context->bytes_reduced);
    const double seconds = (double)(now - tune->end_ns) / 1e9;
    const uint64_t moved = bytes - tune->bytes;
    const int is_first = tune->end_ns == 0;

    tune->end_ns = now;
    tune->bytes = bytes;
    words[WORD_IS_LAST] = 0;
    for (int knob = 0; knob < DP_KNOBS; knob++)
        words[knob] = dp_tuner_value(&tune->tuner, (dp_knob_t)knob);
    if (is_first) return;
    if (!tune->is_known) {
        tune->is_known = know(tune);
        if (tune->is_known && recall(tune, words)) words[WORD_IS_LAST] = 1;
    } else if (dp_tuner_step(&tune->tuner, seconds, moved)) {
        for (int knob = 0; knob < DP_KNOBS; knob++)
            words[knob] = dp_tuner_value(&tune->tuner, (dp_knob_t)knob);
    }
    if (tune->tuner.phase == DP_TUNER_SETTLED) {
        words[WORD_IS_LAST] = 1;
        tell(tune);
    }
    dp_loop_pace(context->loop, words[DP_KNOB_HOLD], (size_t)words[DP_KNOB_BUCKET]);
}

/* ---- Every rank ----------------------------------------------------------------------------- */

/* 1: there are more settings to come. */
static int await_last(dp_tune_t *tune)
{
    const uint64_t *words = tune->words[(tune->sent - 1) % 2];

    if (tune->handle == NULL) return tune->sent == 0;
    if (dp_wait(tune->handle, -1.0, NULL) != DP_OK) return 0;
    tune->handle = NULL;
    return words[WORD_IS_LAST] == 0 && !atomic_load(&tune->has_failed);
}

static void announce(dp_tune_t *tune)
{
    uint64_t *words = tune->words[tune->sent % 2];
    const dp_tensor_t tensor = {words, words, WORDS, DP_U64};
    dp_status_t status;

    if (tune->context->rank == 0) decide(tune, words);
    status = dp_submit(&tune->context->world,
                       &(dp_submit_t){.collective = DP_COLLECTIVE_BROADCAST,
                                      .name = "dp.tune",
                                      .tensors = &tensor,
                                      .count = 1,
                                      .root = 0,
                                      .peer = -1,
                                      .is_setting = 1},
                       &tune->handle);
    tune->sent++;
    if (status != DP_OK) tune->is_over = 1;
}

void dp_tune_step(dp_tune_t *tune)
{
    pthread_mutex_lock(&tune->lock);
    if (!tune->is_over && !await_last(tune)) tune->is_over = 1;
    if (!tune->is_over) announce(tune);
    pthread_mutex_unlock(&tune->lock);
}

/* ---- Life ----------------------------------------------------------------------------------- */

static void make_ladders(const dp_context_t *context, dp_ladder_t ladders[DP_KNOBS])
{
    static const dp_ladder_t in_place = {{0, 16 * DP_KIB, 64 * DP_KIB, 256 * DP_KIB}, 4, 0};
    const dp_config_t *config = &context->config;
    const size_t least = dp_max((size_t)dp_min(DP_MIB, config->fusion_bytes),
                                dp_plan_least_buffer_bytes(context->size));
    const dp_pipeline_settings_t most = dp_pipeline_most(context->pipeline);

    dp_ladder_around(&ladders[DP_KNOB_BUCKET], config->fusion_bytes, least, most.buffer_bytes, 5,
                     1);
    dp_ladder_around(&ladders[DP_KNOB_BUFFERS], (uint64_t)config->fusion_buffers, 1, most.slots, 2,
                     1);
    ladders[DP_KNOB_IN_PLACE] = in_place;
    dp_ladder_around(&ladders[DP_KNOB_HOLD], config->hold_ns, 25000, 1600000, 2, 2);
}

dp_status_t dp_tune_create(dp_context_t *context, dp_tune_t **out)
{
    dp_tune_t *tune = calloc(1, sizeof(*tune));
    dp_ladder_t ladders[DP_KNOBS];

    if (tune == NULL) return DP_ERR_NO_MEMORY;
    tune->context = context;
    pthread_mutex_init(&tune->lock, NULL);
    make_ladders(context, ladders);
    dp_tuner_init(&tune->tuner, ladders);
    tune->key = (dp_tune_key_t){.size = context->size, .hosts = context->topology.node_count};
    snprintf(tune->key.engine, sizeof(tune->key.engine), "%s", context->engine->ops->name);
    *out = tune;
    return DP_OK;
}

void dp_tune_destroy(dp_tune_t *tune)
{
    if (tune == NULL) return;
    pthread_mutex_destroy(&tune->lock);
    free(tune);
}
