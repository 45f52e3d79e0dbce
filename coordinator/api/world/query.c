/*
 * query.c - questions and marks: ranks of the world and of groups, settings, marks for the
 * timeline, statistics.
 *
 * Called on any of the program's threads; nothing here waits for another rank.
 */
#include "coordinator/api/context/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/api/context/fork.h"
#include "coordinator/api/context/sized.h"
#include "coordinator/api/context/texts.h"
#include "coordinator/loop/post.h"
#include "runtime/base/build_info.h"
#include "runtime/base/inject.h"

#define TELL_STATS_NS UINT64_C(50000000)

const char *dp_version(void)
{
    return DP_VERSION_TEXT;
}

const char *dp_build_info(void)
{
    return DP_BUILD_INFO;
}

const char *dp_error_text(const dp_context_t *context)
{
    if (context == NULL) return "the context is NULL";
    if (dp_context_is_forked(context)) return dp_fork_text();
    /* Texts are only ever added, so the pointer stays good. Acquire pairs with the release stores
     * in dp_context_text() and dp_on_fatal(): the bytes are there. */
    return __atomic_load_n(&context->texts.last, __ATOMIC_ACQUIRE);
}

dp_group_t *dp_world(dp_context_t *context)
{
    return context == NULL ? NULL : &context->world;
}

int dp_rank(const dp_context_t *context)
{
    return context == NULL ? -1 : context->rank;
}

int dp_size(const dp_context_t *context)
{
    return context == NULL ? -1 : context->size;
}

int dp_local_rank(const dp_context_t *context)
{
    return context == NULL ? -1 : context->topology.local_rank[context->rank];
}

int dp_local_size(const dp_context_t *context)
{
    return context == NULL ? -1
                           : context->topology.node_size[context->topology.node[context->rank]];
}

int dp_node_rank(const dp_context_t *context)
{
    return context == NULL ? -1 : context->topology.node[context->rank];
}

int dp_node_count(const dp_context_t *context)
{
    return context == NULL ? -1 : context->topology.node_count;
}

int dp_group_rank(const dp_group_t *group)
{
    return group == NULL ? -1 : group->rank;
}

int dp_group_size(const dp_group_t *group)
{
    return group == NULL ? -1 : group->size;
}

int dp_group_world_rank(const dp_group_t *group, int rank)
{
    if (group == NULL || rank < 0 || rank >= group->size) return -1;
    return group->members == NULL ? rank : group->members[rank];
}

const char *dp_group_name(const dp_group_t *group)
{
    return group == NULL ? "" : group->name;
}

dp_order_t dp_group_order(const dp_group_t *group)
{
    return group == NULL ? DP_ORDER_DEFAULT : group->order;
}

const char *dp_setting(const dp_context_t *context, const char *name)
{
    dp_context_t *owner = (dp_context_t *)(uintptr_t)context;
    char text[DP_CONFIG_TEXT_MAX];
    size_t setting;

    if (context == NULL || name == NULL || dp_context_is_forked(context)) return NULL;
    setting = dp_config_find(name, NULL);
    if (setting == SIZE_MAX || dp_config_setting(setting)->is_internal) return NULL;
    /* The answer is valid until dp_finalize(), so it is kept in the context. */
    dp_config_format(&context->config, setting, text, sizeof(text));
    pthread_mutex_lock(&owner->lock);
    if (owner->texts.settings == NULL)
        owner->texts.settings = calloc(dp_config_count(), DP_CONFIG_TEXT_MAX);
    if (owner->texts.settings != NULL)
        memcpy(owner->texts.settings + setting * DP_CONFIG_TEXT_MAX, text, sizeof(text));
    pthread_mutex_unlock(&owner->lock);
    return owner->texts.settings == NULL ? NULL
                                         : owner->texts.settings + setting * DP_CONFIG_TEXT_MAX;
}

/* ---- Timeline ------------------------------------------------------------------------------- */

/* The step is kept for stall reports, the timeline and injected faults. */
void dp_step_begin(dp_context_t *context, uint64_t step)
{
    char text[64];

    if (context == NULL || dp_context_is_forked(context)) return;
    atomic_store_explicit(&context->steps.are_declared, 1, memory_order_relaxed);
    atomic_store_explicit(&context->steps.current, step, memory_order_relaxed);
    atomic_store_explicit(&context->steps.is_open, 1, memory_order_relaxed);
    snprintf(text, sizeof(text), "step %llu", (unsigned long long)step);
    atomic_store_explicit(&context->steps.began_ns, dp_now_ns(), memory_order_relaxed);
    dp_loop_set_activity(context->loop, text);
    /* dprun --timeline of a range of steps: records are kept from the first of them on. */
    if (context->steps.window.has_steps && step == context->steps.window.first) {
        dp_trace_keep(context->trace, 1);
    }
    dp_trace_begin(dp_trace_thread_track(context->trace),
                   (dp_trace_record_t){.kind = DP_TRACE_STEP, .id = step});
    dp_inject_step(context->config.injector, step, &context->counts.wait_ns);
}

/* For dprun --metrics. The statistics ask threads for their CPU time, so not every step has them.
 */
static void tell_step(dp_context_t *context)
{
    const uint64_t now_ns = dp_now_ns();
    const uint64_t began_ns = atomic_load_explicit(&context->steps.began_ns, memory_order_relaxed);
    const uint64_t told_ns = atomic_load_explicit(&context->steps.told_ns, memory_order_relaxed);
    dp_stats_t stats = DP_STATS_INIT;
    int tells = now_ns - told_ns >= TELL_STATS_NS;

    if (tells) {
        atomic_store_explicit(&context->steps.told_ns, now_ns, memory_order_relaxed);
        tells = dp_stats_get(context, &stats) == DP_OK;
    }
    dp_trace_step(context->trace,
                  atomic_load_explicit(&context->steps.current, memory_order_relaxed),
                  now_ns - dp_min(began_ns, now_ns), now_ns, tells ? &stats : NULL);
}

void dp_step_end(dp_context_t *context)
{
    if (context == NULL || dp_context_is_forked(context)) return;
    dp_trace_end(dp_trace_thread_track(context->trace));
    if (atomic_exchange_explicit(&context->steps.is_open, 0, memory_order_relaxed))
        tell_step(context);
    if (context->steps.window.has_steps &&
        atomic_load_explicit(&context->steps.current, memory_order_relaxed) ==
            context->steps.window.last) {
        dp_trace_keep(context->trace, 0);
    }
    dp_inject_step_end(context->config.injector, &context->counts.wait_ns);
}

void dp_span_begin(dp_context_t *context, const char *name)
{
    if (context == NULL || dp_context_is_forked(context)) return;
    dp_trace_begin(
        dp_trace_thread_track(context->trace),
        (dp_trace_record_t){.kind = DP_TRACE_SPAN, .name = dp_trace_name(context->trace, name)});
    dp_inject_span(context->config.injector, name);
}

void dp_span_end(dp_context_t *context)
{
    if (context == NULL || dp_context_is_forked(context)) return;
    dp_inject_span_end(context->config.injector);
    dp_trace_end(dp_trace_thread_track(context->trace));
}

/* ---- Statistics ----------------------------------------------------------------------------- */

dp_status_t dp_stats_get(dp_context_t *context, dp_stats_t *stats)
{
    dp_error_t error;
    dp_pipeline_stats_t pipeline;
    dp_loop_stats_t loop;
    dp_stats_t now;
    dp_status_t status;

    if (context == NULL || stats == NULL || dp_context_is_forked(context)) return DP_ERR_INVALID;
    status = dp_sized_check("dp_stats_t", stats->size, &error);
    if (status != DP_OK) return dp_context_error(context, status, "dp_stats_get: %s", error.text);
    dp_pipeline_stats(context->pipeline, &pipeline);
    dp_loop_stats(context->loop, &loop);
    now = (dp_stats_t){.submitted = atomic_load(&context->counts.submitted),
                       .completed = atomic_load(&context->counts.completed),
                       .failed = atomic_load(&context->counts.failed),
                       .buckets = pipeline.buckets,
                       .bytes_reduced = atomic_load(&context->counts.bytes_reduced),
                       .bytes_packed = pipeline.bytes_packed,
                       .bytes_wire = pipeline.bytes_wire,
                       .control_sent = loop.control_sent,
                       .control_received = loop.control_received,
                       .wait_ns = atomic_load(&context->counts.wait_ns),
                       .skew_ns = atomic_load(&context->counts.skew_ns),
                       .transfer_ns = pipeline.transfer_ns,
                       .coordinator_cpu_ns = loop.cpu_ns,
                       .launch_cpu_ns = pipeline.cpu_ns,
                       .trace_dropped = dp_trace_dropped(context->trace)};
    dp_sized_write(stats, &now, sizeof(now));
    return DP_OK;
}
