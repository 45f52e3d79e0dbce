/*
 * init.c - dp_init() and dp_finalize(): builds a context from the wire up, and takes it down.
 *
 *     bootstrap -> hello (topology, rank 0's settings) -> network -> trace -> transport
 *               -> device, engine -> pipeline -> program order
 *               -> loop: the coordinator thread runs
 *
 * Construction runs in the order of the fields in context.h; destruction runs backwards and accepts
 * whatever exists. Called on one thread of the program, before the context is handed out and after
 * all other calls; dp_abort() on any thread. No other file here calls it. It must not know what
 * operations do.
 */
#include "coordinator/api/world/init.h"

#include <stdio.h>
#include <stdlib.h>

#include "coordinator/api/context/completions.h"
#include "coordinator/api/context/device.h"
#include "coordinator/api/context/fork.h"
#include "coordinator/api/context/owned.h"
#include "coordinator/api/operation/report.h"
#include "coordinator/api/context/sized.h"
#include "coordinator/api/context/values.h"
#include "coordinator/api/operation/launch.h"
#include "coordinator/api/operation/request.h"
#include "coordinator/api/operation/stage.h"
#include "coordinator/api/operation/stream.h"
#include "coordinator/api/operation/stream_span.h"
#include "coordinator/api/world/group.h"
#include "coordinator/api/world/hello.h"
#include "coordinator/api/world/network.h"
#include "coordinator/api/world/order.h"
#include "coordinator/api/world/watch.h"
#include "coordinator/loop/post.h"
#include "runtime/base/inject.h"
#include "runtime/base/limits.h"
#include "runtime/transport/line.h"
#include "runtime/transport/ucx_process.h"

#define GOODBYE_NS 2000000000ull /* longest a rank stays for others to finish */

/* ---- What the ranks tell each other at the start -------------------------------------------- */

/* Version, device, settings and where each rank is. */
static dp_status_t swap_hellos(dp_context_t *context, dp_hello_t *hello, uint64_t deadline_ns,
                               dp_error_t *error)
{
    uint8_t own[DP_HELLO_ROOM];
    const size_t own_bytes = dp_hello_write(hello, own);
    void **values = NULL;
    size_t *bytes = NULL;
    dp_status_t status;

    status =
        dp_context_exchange(context, "hello", own, own_bytes, &values, &bytes, deadline_ns, error);
    if (status == DP_OK) status = dp_hello_read(hello, values, bytes, error);
    dp_context_free_values(context, values, bytes);
    return status;
}

/* Whether ranks that seem to be on one node really reach each other; all learn the answers. */
static dp_status_t try_nodes(dp_context_t *context, dp_hello_t *hello, uint64_t deadline_ns,
                             dp_error_t *error)
{
    const uint8_t reached = (uint8_t)dp_hello_try(hello);
    void **values = NULL;
    size_t *bytes = NULL;
    dp_status_t status;

    status =
        dp_context_exchange(context, "reach", &reached, 1, &values, &bytes, deadline_ns, error);
    if (status == DP_OK) status = dp_hello_settle(hello, values, bytes, error);
    dp_context_free_values(context, values, bytes);
    return status;
}

static dp_status_t say_hello(dp_context_t *context, uint64_t deadline_ns, dp_error_t *error)
{
    dp_hello_t *hello = NULL;
    dp_status_t status = dp_hello_create(context, &hello, error);

    if (status == DP_OK) status = swap_hellos(context, hello, deadline_ns, error);
    if (status == DP_OK) {
        status = dp_hello_must_try(hello) ? try_nodes(context, hello, deadline_ns, error)
                                          : dp_hello_settle(hello, NULL, NULL, error);
    }
    dp_hello_destroy(hello);
    return status;
}

/* ---- The control plane ---------------------------------------------------------------------- */

/* Messages to neighbours on other nodes go over UCX, news of their deaths come by lines. Both
 * listen on the network. */
static dp_status_t make_far_transport(dp_context_t *context, const int *ranks, int count,
                                      dp_transport_t **far, dp_error_t *error)
{
    const dp_config_t *config = &context->config;
    const dp_line_options_t options = {.rank = context->rank,
                                       .secret = &context->bootstrap->secret,
                                       .ranks = ranks,
                                       .count = count,
                                       .own_ip = context->network_ip,
                                       .network_interface = config->net_interface,
                                       .beat_ns = config->heartbeat_ns,
                                       .timeout_ns = config->peer_timeout_ns,
                                       .start_ns = config->start_timeout_ns,
                                       .log = &context->log};
    dp_status_t status = dp_transport_ucx_create(context->rank, context->bootstrap->tag, config,
                                                 &context->log, far, error);

    if (status != DP_OK) return status;
    return dp_transport_line_create(&options, *far, far, error);
}

/* Shared memory between neighbours in the tree that are on one node, UCX and lines to those on
 * others. Where there are no others, neither of these is made. */
static dp_status_t make_transport(dp_context_t *context, dp_error_t *error)
{
    const dp_topology_t *topology = &context->topology;
    const uint64_t tag = context->bootstrap->tag;
    const int uses_memory = context->config.node_transport == DP_CONFIG_NODE_MEMORY;
    int ranks[DP_LOOP_NEIGHBOURS_MAX(1024)], others[DP_LOOP_NEIGHBOURS_MAX(1024)];
    dp_transport_t *far = NULL;
    int count = 0, near = 0, other_count = 0;
    dp_status_t status;

    status = dp_loop_neighbours(topology, context->config.tree_arity, context->rank, ranks, &count);
    if (status != DP_OK) return dp_error_set(error, status, "no memory for the tree");
    for (int i = 0; i < count; i++) {
        const int is_near =
            uses_memory && topology->node[ranks[i]] == topology->node[context->rank];

        if (!is_near) others[other_count++] = ranks[i];
        if (is_near) ranks[near++] = ranks[i];
    }
    if (other_count > 0) {
        status = make_far_transport(context, others, other_count, &far, error);
        if (status != DP_OK) return status;
    }
    return dp_transport_shm_create(context->rank, tag, ranks, near, far, &context->log,
                                   &context->transport, error);
}

/* Every rank publishes its address, and connects to those of its neighbours in the tree. */
static dp_status_t connect_neighbours(dp_context_t *context, uint64_t deadline_ns,
                                      dp_error_t *error)
{
    int ranks[DP_LOOP_NEIGHBOURS_MAX(1024)];
    const void *addresses[DP_LOOP_NEIGHBOURS_MAX(1024)];
    size_t address_bytes[DP_LOOP_NEIGHBOURS_MAX(1024)];
    uint8_t address[DP_ADDRESS_MAX];
    size_t own_bytes = 0;
    void **values = NULL;
    size_t *bytes = NULL;
    int count = 0;
    dp_status_t status;

    DP_ASSERT(context->transport != NULL);
    status =
        context->transport->ops->address(context->transport, address, sizeof(address), &own_bytes);
    if (status != DP_OK) {
        return dp_error_set(error, status, "the %s transport has no address",
                            context->transport->ops->name);
    }
    status = dp_context_exchange(context, "control", address, own_bytes, &values, &bytes,
                                 deadline_ns, error);
    if (status == DP_OK) {
        status = dp_loop_neighbours(&context->topology, context->config.tree_arity, context->rank,
                                    ranks, &count);
        if (status != DP_OK) dp_error_set(error, status, "no memory for the tree");
    }
    if (status == DP_OK) {
        for (int i = 0; i < count; i++) {
            addresses[i] = values[ranks[i]];
            address_bytes[i] = bytes[ranks[i]];
        }
        status = context->transport->ops->connect(context->transport, ranks, addresses,
                                                  address_bytes, count, error);
    }
    dp_context_free_values(context, values, bytes);
    return status;
}

/* Where ranks share cores, a thread that waits for another rank polls, but offers its core to that
 * rank at each look; threads that only expect work do not poll, as nobody waits for them yet. Every
 * other part of libdp takes its time to poll from here. */
static void choose_spin_times(dp_context_t *context)
{
    /* Two polling threads a rank: its program's and its coordinator's, or the data plane's. */
    context->waiting.spin_ns = context->cores_each >= 2 ? context->config.spin_ns : 0;
    context->config.takes_turns = context->cores_each == 0;
    context->waiting.progress_ns = context->config.spin_ns;
}

static dp_status_t start_loop(dp_context_t *context, dp_error_t *error)
{
    dp_loop_options_t options = {.config = &context->loop_config,
                                 .topology = &context->topology,
                                 .rank = context->rank,
                                 .size = context->size,
                                 .transport = context->transport,
                                 .log = &context->log,
                                 .trace = context->trace,
                                 .may_back_off = context->waiting.progress_ns > 0,
                                 .callbacks = {.user = context,
                                               .launch = dp_on_launch,
                                               .joined = dp_on_joined,
                                               .fail = dp_on_fail,
                                               .fatal = dp_on_fatal,
                                               .loss = dp_on_loss,
                                               .running = dp_on_running,
                                               .watch = dp_on_watch},
                                 .peer_check = dp_program_peer_check(context->program)};
    dp_status_t status;

    context->loop_config = context->config;
    /* The coordinator thread polls beside the program's threads, the engine's instead of them. */
    context->loop_config.spin_ns = context->waiting.spin_ns;
    status = dp_loop_start(&options, &context->loop, error);
    if (status == DP_OK) dp_program_set_loop(context->program, context->loop);
    return status;
}

/* ---- Life ----------------------------------------------------------------------------------- */

static void context_destroy(dp_context_t *context, int failed)
{
    dp_context_fork_end(context);
    if (failed && context->device != NULL && context->device->ops->is_async)
        context->device->ops->abort(context->device); /* before streams move on */
    if (failed && context->engine != NULL)
        context->engine->ops->abort(context->engine, DP_ERR_ABORTED, "the context is destroyed");
    /* The pipeline first: it reports to the loop until its threads have ended, and the loop
     * launches nothing more once the world has finished or failed. */
    dp_pipeline_destroy(context->pipeline);
    dp_context_free_owned(context);
    dp_streams_free(context);
    dp_stream_spans_free(&context->streams.spans);
    if (context->loop != NULL) dp_loop_stop(context->loop);
    dp_engine_destroy(context->engine);
    dp_stagings_free(context);
    dp_device_destroy(context->device);
    dp_transport_destroy(context->transport);
    /* dprun merges or removes the recorders in its run directory; other runs keep none. */
    dp_trace_destroy(context->trace, context->config.run_dir[0] != '\0');
    if (context->has_topology) dp_topology_fini(&context->topology);
    dp_bootstrap_destroy(context->bootstrap);
    dp_requests_free(context);
    dp_program_destroy(context->program);
    dp_groups_free(context);
    for (size_t i = 0; i < context->texts.count; i++)
        free(context->texts.kept[i]);
    free(context->texts.settings);
    dp_inject_destroy(context->config.injector);
    dp_log_queue_destroy(context->log.queue);
    dp_completions_fini(&context->completions);
    pthread_mutex_destroy(&context->lock);
    free(context);
}

static void abort_on_purpose(void *user, const char *text)
{
    dp_abort(user, text);
}

static dp_status_t make_pipeline(dp_context_t *context, const dp_pipeline_callbacks_t *callbacks,
                                 dp_error_t *error)
{
    const dp_config_t *config = &context->config;
    const dp_status_t status =
        dp_pipeline_create(config, context->rank, context->size, context->device, context->engine,
                           &context->log, context->trace, callbacks, &context->pipeline);
    char limits[160];

    if (status == DP_OK) return DP_OK;
    dp_limits_describe_memory(limits, sizeof(limits));
    if (status != DP_ERR_NO_MEMORY) {
        return dp_error_set(error, status, "a line above says why no fused buffers were made%s",
                            limits);
    }
    return dp_error_set(error, status,
                        "no memory for %d fused buffers of %zu bytes%s; --fusion-bytes 1M "
                        "(DP_FUSION_BYTES) needs less",
                        config->fusion_buffers, config->fusion_bytes, limits);
}

static void launch_in_program_order(void *user, const dp_output_t *launch, uint64_t digest,
                                    dp_trace_track_t *track)
{
    dp_launch(user, launch, digest, track);
}

static void fail_in_program_order(void *user, void *request, dp_status_t status, const char *text)
{
    (void)user;
    dp_request_fail(request, status, text);
}

static int is_pending_in_program_order(const void *request)
{
    const dp_handle_t *handle = request;

    return atomic_load(&handle->state) == DP_REQUEST_PENDING;
}

static dp_status_t make_program(dp_context_t *context)
{
    const dp_program_options_t options = {.fusion_bytes = context->config.fusion_bytes,
                                          .rank = context->rank,
                                          .topology = &context->topology,
                                          .trace = context->trace,
                                          .callbacks = {.user = context,
                                                        .launch = launch_in_program_order,
                                                        .fail = fail_in_program_order,
                                                        .is_pending = is_pending_in_program_order}};

    return dp_program_create(&options, &context->program);
}

/* Whichever step fails, context_destroy() takes down the parts that exist. The ranks exchange
 * values on the way, in the same order on all: hello, perhaps reach, those of network.c, control,
 * and the engine's. */
static dp_status_t build_context(dp_context_t *context, dp_error_t *error)
{
    dp_config_t *config = &context->config;
    uint64_t deadline_ns = context->bootstrap->deadline_ns;
    dp_pipeline_callbacks_t callbacks = {context, dp_on_done, dp_on_launch_done, dp_on_issued};
    dp_status_t status;

    if (deadline_ns == 0) deadline_ns = dp_now_ns() + config->start_timeout_ns;
    if (config->timeline[0] != '\0') {
        status = dp_window_parse(config->timeline, &context->steps.window, error);
        if (status != DP_OK) return status;
    }
    status = dp_inject_create(config->inject, context->rank, context->size, &context->log,
                              &config->injector, error);
    if (status != DP_OK) return status;
    status = dp_context_choose_device(context, error);
    if (status != DP_OK) return status;
    dp_inject_enter(config->injector, DP_INJECT_RENDEZVOUS);
    status = say_hello(context, deadline_ns, error);
    if (status != DP_OK) return status;
    choose_spin_times(context);
    status = dp_context_find_network(context, deadline_ns, error);
    if (status != DP_OK) return status;
    if (config->trace) {
        dp_error_t warning = {DP_OK, ""};

        dp_inject_enter(config->injector, DP_INJECT_TRACE);
        status = dp_trace_create(config->run_dir, context->rank, context->size,
                                 context->topology.host_name[context->topology.node[context->rank]],
                                 config->trace_bytes, &context->trace, &warning);
        dp_inject_leave(config->injector, DP_INJECT_TRACE);
        if (status != DP_OK || warning.text[0] != '\0')
            dp_log_warn(&context->log, "%s", warning.text);
        context->agree_track =
            dp_trace_track(context->trace, "negotiation", DP_TRACE_TRACK_COORDINATOR);
    }
    status = context->transport != NULL ? DP_OK : make_transport(context, error);
    if (status != DP_OK) return status;
    status = connect_neighbours(context, deadline_ns, error);
    if (status != DP_OK) return status;
    dp_context_fork_watch(context); /* a child must close what was connected just now */
    status = dp_context_make_device(context, error);
    if (status != DP_OK) return status;
    status = make_pipeline(context, &callbacks, error);
    if (status != DP_OK) return status;
    status = make_program(context);
    if (status != DP_OK) return dp_error_set(error, status, "no memory for a context");
    if (config->order == DP_CONFIG_ORDER_PROGRAM) status = dp_order_world(context, error);
    if (status != DP_OK) return status;
    dp_inject_enter(config->injector, DP_INJECT_WIREUP);
    status = start_loop(context, error);
    dp_inject_on_abort(config->injector, abort_on_purpose, context);
    return status;
}

dp_status_t dp_context_create(const dp_config_t *config, dp_bootstrap_t *bootstrap,
                              dp_transport_t *transport, dp_context_t **out, dp_error_t *error)
{
    dp_context_t *context = calloc(1, sizeof(*context));
    dp_status_t status;

    if (context == NULL) {
        dp_transport_destroy(transport);
        dp_bootstrap_destroy(bootstrap);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory for a context");
    }
    dp_context_fork_begin(context);
    context->config = *config;
    context->bootstrap = bootstrap;
    context->transport = transport;
    context->rank = bootstrap->rank;
    context->size = bootstrap->size;
    dp_group_init_world(context);
    context->texts.last = "";
    dp_log_init(&context->log, (dp_log_level_t)config->log_level, context->rank);
    context->log.queue = dp_log_queue_create();
    pthread_mutex_init(&context->lock, NULL);
    dp_completions_init(&context->completions);
    status = build_context(context, error);
    if (status != DP_OK) {
        context_destroy(context, 1);
        return status;
    }
    dp_log_debug(&context->log, "ready: size %d, nodes %d, kernels %s, engine %s", context->size,
                 context->topology.node_count, dp_kernels_name(), context->engine->ops->name);
    *out = context;
    return DP_OK;
}

static void copy_error(const dp_init_options_t *options, const char *text)
{
    if (options->error != NULL && options->error_bytes > 0)
        snprintf(options->error, options->error_bytes, "%s", text);
}

/* The program's choice wins over the setting. */
static dp_status_t choose_order(const dp_init_options_t *options, dp_config_t *config,
                                dp_error_t *error)
{
    switch (options->order) {
    case DP_ORDER_DEFAULT:
        return DP_OK;
    case DP_ORDER_NEGOTIATED:
        config->order = DP_CONFIG_ORDER_NEGOTIATED;
        return DP_OK;
    case DP_ORDER_PROGRAM:
        config->order = DP_CONFIG_ORDER_PROGRAM;
        return DP_OK;
    }
    return dp_error_set(error, DP_ERR_INVALID, "dp_init: there is no order %d",
                        (int)options->order);
}

static dp_status_t make_bootstrap(const dp_init_options_t *options, const dp_config_t *config,
                                  dp_bootstrap_t **bootstrap, dp_error_t *error)
{
    const dp_bootstrap_store_t store = {.put = options->store_put,
                                        .get = options->store_get,
                                        .user = options->store_user,
                                        .rank = options->store_rank,
                                        .size = options->store_ranks,
                                        .seconds = options->store_seconds};

    if (store.put == NULL && store.get == NULL)
        return dp_bootstrap_create(config, bootstrap, error);
    return dp_bootstrap_create_by_store(config, &store, bootstrap, error);
}

dp_status_t dp_init(const dp_init_options_t *given, dp_context_t **context)
{
    dp_init_options_t options = DP_INIT_OPTIONS_INIT;
    dp_error_t error = {DP_OK, ""};
    dp_bootstrap_t *bootstrap = NULL;
    dp_config_t config;
    dp_log_t log;
    dp_status_t status = DP_OK;

    if (given != NULL)
        status = dp_sized_read("dp_init_options_t", given, &options, sizeof(options), &error);
    copy_error(&options, "");
    if (status == DP_OK && context == NULL) {
        status = DP_ERR_INVALID;
        dp_error_set(&error, status, "context is NULL");
    }
    dp_log_init(&log, DP_LOG_WARN, -1);
    dp_config_defaults(&config);
    if (status == DP_OK) status = dp_fork_check_init(&error);
    if (status == DP_OK && options.settings != NULL)
        status = dp_config_from_program(&config, options.settings, &error);
    if (status == DP_OK) status = dp_config_from_environment(&config, &log, &error);
    if (status == DP_OK) status = choose_order(&options, &config, &error);
    if (status == DP_OK) status = dp_config_check(&config, &error);
    if (status == DP_OK) {
        log.level = (dp_log_level_t)config.log_level;
        status = make_bootstrap(&options, &config, &bootstrap, &error);
    }
    /* Here, because the engine opens UCX on ranks that have no transport over it. */
    if (status == DP_OK) dp_ucx_process_prepare();
    if (status == DP_OK) status = dp_context_create(&config, bootstrap, NULL, context, &error);
    if (status != DP_OK) {
        log.rank = config.rank;
        copy_error(&options, error.text);
        /* A caller that takes the text reports it itself. */
        if (options.error == NULL || options.error_bytes == 0) {
            dp_log_error(&log, "dp_init: %s", error.text);
        }
    }
    return status;
}

/* Waits until the data plane of every rank is done with this rank's memory and connections. The
 * answer does not matter: a rank that cannot be reached needs them no more. */
static void meet_last(dp_context_t *context)
{
    void **values = NULL;
    size_t *bytes = NULL;

    dp_context_exchange(context, "bye", "", 0, &values, &bytes, dp_now_ns() + GOODBYE_NS, NULL);
    dp_context_free_values(context, values, bytes);
}

dp_status_t dp_finalize(dp_context_t *context)
{
    dp_status_t status, fatal;

    if (context == NULL) return DP_OK;
    if (dp_context_is_forked(context)) return DP_ERR_INVALID;
    dp_inject_enter(context->config.injector, DP_INJECT_FINALIZE); /* tests end ranks here */
    /* The others are told before this rank waits: two ranks that finalize, each with an operation
     * that the other has not submitted, would otherwise wait for each other for ever. */
    dp_program_leave(context->program);
    pthread_mutex_lock(&context->lock);
    fatal = context->fatal;
    pthread_mutex_unlock(&context->lock);
    /* Behind an abort, even one that no round has come to, the others learn its cause. */
    if (fatal == DP_OK && !dp_loop_is_aborting(context->loop) &&
        context->engine->ops->direct != NULL)
        context->engine->ops->direct->leave(context->engine);
    dp_loop_leave(context->loop);
    dp_wait_all(context, -1.0);
    status = dp_loop_finalize(context->loop);
    pthread_mutex_lock(&context->lock);
    fatal = context->fatal;
    pthread_mutex_unlock(&context->lock);
    if (fatal != DP_OK) status = fatal;
    if (status == DP_OK) meet_last(context);
    context_destroy(context, status != DP_OK);
    return status;
}

void dp_abort(dp_context_t *context, const char *reason)
{
    if (context == NULL || dp_context_is_forked(context)) return;
    dp_loop_abort(context->loop, DP_ERR_ABORTED, reason == NULL ? "no reason given" : reason);
}
