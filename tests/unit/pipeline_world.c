/*
 * pipeline_world.c - ranks in one process for the pipeline's tests: their life and their launches.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"
#include "tests/unit/pipeline_world.h"
#include "tests/threads/threads.h"

/* ---- Callbacks ------------------------------------------------------------------------------ */

static void on_done(void *user, const dp_pipeline_done_t *done)
{
    struct world_rank *at = user;
    world_t *world = at->world;
    world_op_t *op = done->request;
    int place = op_place(world, op, at->rank);

    if (world->on_done != NULL) world->on_done(world->user, done);
    pthread_mutex_lock(&world->lock);
    op->done_count[place]++;
    op->status[place] = done->status;
    snprintf(op->text[place], sizeof(op->text[0]), "%s", done->text);
    op->done[place] = *done;
    if (op->done_event[place] != NULL) {
        op->is_late[place] = !at->device->ops->event_done(op->done_event[place]);
    }
    pthread_mutex_unlock(&world->lock);
}

static void on_issued(void *user, void *request)
{
    struct world_rank *at = user;
    world_t *world = at->world;
    world_op_t *op = request;
    int place = op_place(world, op, at->rank);

    pthread_mutex_lock(&world->lock);
    op->issued_count[place] += op->done_count[place] == 0 ? 1 : 100;
    pthread_cond_broadcast(&world->change);
    pthread_mutex_unlock(&world->lock);
}

static void on_launch_done(void *user, uint64_t sequence)
{
    struct world_rank *at = user;

    (void)sequence;
    pthread_mutex_lock(&at->world->lock);
    at->launches_done++;
    pthread_cond_broadcast(&at->world->change);
    pthread_mutex_unlock(&at->world->lock);
}

/* ---- Life ----------------------------------------------------------------------------------- */

static void open_rank(world_t *world, int rank)
{
    struct world_rank *at = &world->rank[rank];
    dp_pipeline_callbacks_t callbacks = {at, on_done, on_launch_done, on_issued};

    at->world = world;
    at->rank = rank;
    assert_int_equal(dp_pipeline_create(&world->config, rank, world->ranks, at->device, at->engine,
                                        NULL, NULL, &callbacks, &at->pipeline),
                     DP_OK);
}

static void begin(world_t *world, int ranks, int compresses, size_t fusion_bytes, int buffers,
                  const world_maker_t *maker)
{
    *world = (world_t){.ranks = ranks, .compresses = compresses};
    dp_config_defaults(&world->config);
    world->config.spin_ns = 0;
    world->config.arena_bytes = 256 * DP_MIB;
    world->config.fusion_bytes = fusion_bytes;
    world->config.fusion_buffers = buffers;
    pthread_mutex_init(&world->lock, NULL);
    pthread_cond_init(&world->change, NULL);
    for (int r = 0; r < ranks; r++) {
        if (maker != NULL) {
            maker->make(r, &world->rank[r].device);
        } else {
            assert_int_equal(dp_device_host_create(0, NULL, &world->rank[r].device), DP_OK);
        }
    }
}

static void init(world_t *world, int ranks, int compresses, size_t fusion_bytes, int buffers,
                 const world_maker_t *maker)
{
    begin(world, ranks, compresses, fusion_bytes, buffers, maker);
    world->room = fake_room_create(ranks);
    for (int r = 0; r < ranks; r++) {
        struct world_rank *at = &world->rank[r];

        at->engine = fake_engine_create(world->room, at->device, r, compresses);
        if (maker != NULL) fake_engine_set_launch(at->engine, maker->launch);
        open_rank(world, r);
    }
}

void world_init(world_t *world, int ranks, int compresses, size_t fusion_bytes, int buffers)
{
    init(world, ranks, compresses, fusion_bytes, buffers, NULL);
}

void world_init_device(world_t *world, int ranks, size_t fusion_bytes, int buffers,
                       const world_maker_t *maker)
{
    init(world, ranks, 0, fusion_bytes, buffers, maker);
}

static void *create_engine(void *argument)
{
    struct world_rank *at = argument;
    dp_error_t error;

    if (dp_engine_cpu_create(at->bootstrap, &at->topology, at->device, &at->world->config, &at->log,
                             NULL, &at->engine, &error) != DP_OK) {
        fprintf(stderr, "%s\n", error.text);
    }
    return NULL;
}

void world_init_cpu(world_t *world, int ranks, int nodes, size_t fusion_bytes, int buffers)
{
    static const char *const names[] = {"here", "there"};
    const char *list[world_ranks_max];
    dp_bootstrap_t *bootstraps[world_ranks_max];
    pthread_t threads[world_ranks_max];

    begin(world, ranks, 1, fusion_bytes, buffers, NULL);
    for (int r = 0; r < ranks; r++)
        list[r] = names[r % nodes];
    assert_int_equal(threads_bootstrap(ranks, bootstraps), DP_OK);
    for (int r = 0; r < ranks; r++) {
        struct world_rank *at = &world->rank[r];

        at->world = world;
        at->bootstrap = bootstraps[r];
        dp_log_init(&at->log, DP_LOG_ERROR, r);
        assert_int_equal(dp_topology_init(&at->topology, list, ranks), DP_OK);
        assert_int_equal(pthread_create(&threads[r], NULL, create_engine, at), 0);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < ranks; r++) {
        assert_non_null(world->rank[r].engine);
        open_rank(world, r);
    }
}

static void *destroy_engine(void *argument)
{
    struct world_rank *at = argument;

    dp_engine_destroy(at->engine);
    return NULL;
}

void world_fini(world_t *world)
{
    pthread_t threads[world_ranks_max];

    for (int r = 0; r < world->ranks; r++)
        dp_pipeline_destroy(world->rank[r].pipeline);
    for (int r = 0; r < world->ranks; r++) {
        assert_int_equal(pthread_create(&threads[r], NULL, destroy_engine, &world->rank[r]), 0);
    }
    for (int r = 0; r < world->ranks; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < world->ranks; r++) {
        dp_device_destroy(world->rank[r].device);
        dp_topology_fini(&world->rank[r].topology);
        dp_bootstrap_destroy(world->rank[r].bootstrap);
    }
    if (world->room != NULL) fake_room_destroy(world->room);
    pthread_mutex_destroy(&world->lock);
    pthread_cond_destroy(&world->change);
}

/* ---- Launches ------------------------------------------------------------------------------- */

int op_size(const world_t *world, const world_op_t *op)
{
    return op->group != NULL ? op->group->size : world->ranks;
}

int op_place(const world_t *world, const world_op_t *op, int rank)
{
    int place = 0;

    (void)world;
    if (op->group != NULL) {
        while (place < op->group->size && op->group->ranks[place] != rank)
            place++;
        if (place == op->group->size) return -1;
    } else {
        place = rank;
    }
    if (op->collective == DP_COLLECTIVE_SEND && place != op->root && place != op->peer) return -1;
    return place;
}

static dp_pipeline_item_t make_item(const world_t *world, world_op_t *op, int rank)
{
    int place = op_place(world, op, rank), size = op_size(world, op);
    int is_absent = (op->absent >> place & 1u) != 0;
    dp_pipeline_item_t item = {.request = op,
                               .name = "wte",
                               .collective = op->collective,
                               .reduce = op->reduce,
                               .wire = op->wire,
                               .last_absmax = op->last_absmax,
                               .root = op->root,
                               .peer = op->peer,
                               .is_absent = is_absent,
                               .contributors = size - __builtin_popcount(op->absent),
                               .count_joined = op->count_joined,
                               .prescale = op->prescale,
                               .postscale = op->postscale,
                               .in_place = op->in_place,
                               .tensors = op->tensors[place],
                               .tensor_count = op->tensor_count,
                               .send_counts = is_absent ? NULL : op->send_counts[place],
                               .recv_counts = is_absent ? NULL : op->recv_counts[place],
                               .capacity = op->capacity[place],
                               .ready = op->ready[place],
                               .done = op->done_event[place]};

    if (op->group != NULL) {
        item.members = &op->group->members;
        item.group = &op->group->own[rank];
    }
    if (op->is_checked != 0) {
        item.input_hash = dp_pipeline_input_hash(&item, place, size);
        if (op->is_checked == 2) item.input_hash += 2;
    }
    return item;
}

void world_launch_rank(world_t *world, int rank, world_op_t *ops, size_t count, uint64_t sequence)
{
    dp_pipeline_launch_t *launch;

    assert_int_equal(dp_pipeline_launch_take(world->rank[rank].pipeline, count, &launch), DP_OK);
    for (size_t i = 0; i < count; i++)
        launch->items[i] = make_item(world, &ops[i], rank);
    launch->sequence = sequence;
    launch->is_awaited_soon = world->is_awaited_soon;
    if (count > 0 && ops->group != NULL && ops->collective != DP_COLLECTIVE_GROUP_CREATE) {
        launch->group = &ops->group->own[rank];
    }
    world->rank[rank].launched++;
    dp_pipeline_submit(world->rank[rank].pipeline, launch, DP_PIPELINE_NO_PROGRESS);
}

void world_launch(world_t *world, world_op_t *ops, size_t count)
{
    world->sequence++;
    for (int r = 0; r < world->ranks; r++) {
        if (count > 0 && op_place(world, ops, r) < 0) continue;
        world_launch_rank(world, r, ops, count, world->sequence);
    }
}

void world_wait(world_t *world)
{
    pthread_mutex_lock(&world->lock);
    for (int r = 0; r < world->ranks; r++) {
        while (world->rank[r].launches_done < world->rank[r].launched) {
            pthread_cond_wait(&world->change, &world->lock);
        }
    }
    pthread_mutex_unlock(&world->lock);
    for (int r = 0; r < world->ranks; r++) {
        assert_int_equal(dp_pipeline_pending(world->rank[r].pipeline), 0);
    }
}

void world_wait_issued(world_t *world, int rank, const world_op_t *op)
{
    int place = op_place(world, op, rank);

    pthread_mutex_lock(&world->lock);
    while (op->issued_count[place] == 0)
        pthread_cond_wait(&world->change, &world->lock);
    pthread_mutex_unlock(&world->lock);
}

/* ---- Groups --------------------------------------------------------------------------------- */

static void launch_group(world_t *world, world_group_t *group, dp_collective_t collective)
{
    world_op_t op = {.collective = collective, .group = group};

    world_launch(world, &op, 1);
    world_wait(world);
    for (int place = 0; place < group->size; place++) {
        assert_int_equal(op.done_count[place], 1);
        if (op.status[place] != DP_OK) fail_msg("rank %d of a group: %s", place, op.text[place]);
    }
}

void world_group_make(world_t *world, world_group_t *group, uint32_t uid, unsigned members)
{
    *group = (world_group_t){0};
    for (int r = 0; r < world->ranks; r++) {
        if ((members >> r & 1u) == 0) continue;
        group->own[r].rank = group->size;
        group->ranks[group->size++] = r;
    }
    for (int place = 0; place < group->size; place++)
        group->own[group->ranks[place]].size = group->size;
    group->members = (dp_engine_members_t){.uid = uid,
                                           .group_index = uid,
                                           .ranks = group->ranks,
                                           .count = group->size,
                                           .name = "some"};
    launch_group(world, group, DP_COLLECTIVE_GROUP_CREATE);
    for (int place = 0; place < group->size; place++)
        assert_non_null(group->own[group->ranks[place]].engine);
}

void world_group_end(world_t *world, world_group_t *group)
{
    launch_group(world, group, DP_COLLECTIVE_GROUP_DESTROY);
    for (int place = 0; place < group->size; place++)
        assert_null(group->own[group->ranks[place]].engine);
}
