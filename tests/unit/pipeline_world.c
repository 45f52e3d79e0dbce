/*
 * pipeline_world.c - ranks in one process for the pipeline's tests.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/naive.h"
#include "tests/unit/kernel_data.h"
#include "tests/unit/pipeline_world.h"

/* ---- The world ------------------------------------------------------------------------------ */

static void on_done(void *user, const dp_pipeline_done_t *done)
{
    struct world_rank *at = user;
    world_t *world = at->world;
    world_op_t *op = done->request;

    if (world->on_done != NULL) world->on_done(world->user, done);
    pthread_mutex_lock(&world->lock);
    op->done_count[at->rank]++;
    op->status[at->rank] = done->status;
    snprintf(op->text[at->rank], sizeof(op->text[0]), "%s", done->text);
    op->done[at->rank] = *done;
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

void world_init(world_t *world, int ranks, int compresses, size_t fusion_bytes, int slots)
{
    *world = (world_t){.ranks = ranks, .room = fake_room_create(ranks)};
    world->config.fusion_bytes = fusion_bytes;
    world->config.fusion_slots = slots;
    pthread_mutex_init(&world->lock, NULL);
    pthread_cond_init(&world->change, NULL);
    for (int r = 0; r < ranks; r++) {
        struct world_rank *at = &world->rank[r];
        dp_pipeline_callbacks_t callbacks = {at, on_done, on_launch_done, NULL};

        at->world = world;
        at->rank = r;
        assert_int_equal(dp_device_host_create(0, NULL, &at->device), DP_OK);
        at->engine = fake_engine_create(world->room, at->device, r, compresses);
        assert_int_equal(dp_pipeline_create(&world->config, r, ranks, at->device, at->engine, NULL,
                                            NULL, &callbacks, &at->pipeline),
                         DP_OK);
    }
}

void world_fini(world_t *world)
{
    for (int r = 0; r < world->ranks; r++)
        dp_pipeline_destroy(world->rank[r].pipeline);
    for (int r = 0; r < world->ranks; r++) {
        world->rank[r].engine->ops->destroy(world->rank[r].engine);
        dp_device_destroy(world->rank[r].device);
    }
    fake_room_destroy(world->room);
    pthread_mutex_destroy(&world->lock);
    pthread_cond_destroy(&world->change);
}

void world_launch_rank(world_t *world, int rank, world_op_t *ops, size_t count, uint64_t sequence)
{
    dp_pipeline_launch_t *launch = malloc(sizeof(*launch));
    dp_pipeline_item_t *items = calloc(count + 1, sizeof(*items));

    for (size_t i = 0; i < count; i++) {
        world_op_t *op = &ops[i];
        uint64_t hash = 0;

        for (size_t t = 0; t < op->tensor_count; t++) {
            const dp_pipeline_tensor_t *tensor = &op->tensors[rank][t];
            size_t rows = op->collective == DP_COLLECTIVE_REDUCE_SCATTER ? (size_t)world->ranks : 1;

            if (tensor->in == NULL) continue;
            hash = dp_kernel_hash(tensor->in, rows * tensor->count * dp_dtype_bytes(tensor->dtype),
                                  hash);
        }
        items[i] = (dp_pipeline_item_t){.request = op,
                                        .name = "wte",
                                        .collective = op->collective,
                                        .reduce = op->reduce,
                                        .wire = op->wire,
                                        .last_absmax = op->last_absmax,
                                        .root = op->root,
                                        .prescale = op->prescale,
                                        .postscale = op->postscale,
                                        .in_place = op->in_place,
                                        .tensors = op->tensors[rank],
                                        .tensor_count = op->tensor_count,
                                        .input_hash = op->is_checked == 0   ? 0
                                                      : op->is_checked == 1 ? hash
                                                                            : hash + 2};
    }
    *launch = (dp_pipeline_launch_t){.sequence = sequence, .items = items, .item_count = count};
    dp_pipeline_submit(world->rank[rank].pipeline, launch);
}

void world_launch(world_t *world, world_op_t *ops, size_t count)
{
    world->sequence++;
    for (int r = 0; r < world->ranks; r++) {
        world_launch_rank(world, r, ops, count, world->sequence);
    }
}

void world_wait(world_t *world, uint64_t launches)
{
    pthread_mutex_lock(&world->lock);
    for (int r = 0; r < world->ranks; r++) {
        while (world->rank[r].launches_done < launches) {
            pthread_cond_wait(&world->change, &world->lock);
        }
    }
    pthread_mutex_unlock(&world->lock);
    for (int r = 0; r < world->ranks; r++) {
        assert_int_equal(dp_pipeline_pending(world->rank[r].pipeline), 0);
    }
}

/* ---- Operations ----------------------------------------------------------------------------- */

static size_t in_rows(const world_t *world, const world_op_t *op)
{
    return op->collective == DP_COLLECTIVE_REDUCE_SCATTER ? (size_t)world->ranks : 1;
}

static size_t out_rows(const world_t *world, const world_op_t *op)
{
    return op->collective == DP_COLLECTIVE_ALLGATHER ? (size_t)world->ranks : 1;
}

void op_make(world_t *world, world_op_t *op, uint64_t seed)
{
    uint64_t state = seed + 1;

    if (op->tensor_count == 0 && op->collective != DP_COLLECTIVE_BARRIER) op->tensor_count = 1;
    if (op->prescale == 0.0) op->prescale = 1.0;
    if (op->postscale == 0.0) op->postscale = 1.0;
    for (int r = 0; r < world->ranks; r++) {
        op->status[r] = DP_ERR_AGAIN;
        for (size_t t = 0; t < op->tensor_count; t++) {
            size_t count = op->count == 0 ? 0 : op->count + t;
            size_t in_bytes = in_rows(world, op) * count * dp_dtype_bytes(op->dtype);
            size_t out_bytes = out_rows(world, op) * count * dp_dtype_bytes(op->dtype);
            void *in = malloc(in_bytes + 1), *out = op->is_same ? in : malloc(out_bytes + 1);

            kernel_fill(op->dtype, in, in_rows(world, op) * count, &state, 1);
            op->saved[r][t] = malloc(in_bytes + 1);
            memcpy(op->saved[r][t], in, in_bytes);
            op->tensors[r][t] = (dp_pipeline_tensor_t){in, out, count, op->dtype};
        }
    }
}

void op_free(world_t *world, world_op_t *op)
{
    for (int r = 0; r < world->ranks; r++) {
        for (size_t t = 0; t < op->tensor_count; t++) {
            if (op->tensors[r][t].out != op->tensors[r][t].in) free(op->tensors[r][t].out);
            free((void *)(uintptr_t)op->tensors[r][t].in);
            free(op->saved[r][t]);
        }
    }
}

/* Row `row` reduced over the saved inputs. */
static void expect_row(const world_t *world, const world_op_t *op, size_t t, size_t row,
                       void *result, dp_tally_t *tally)
{
    size_t count = op->tensors[0][t].count, bytes = count * dp_dtype_bytes(op->dtype);
    int is_float = op->dtype >= DP_F16 && op->dtype <= DP_F64;
    int is_average = op->reduce == DP_AVERAGE;
    const void *in[world_ranks_max];
    void *out[1] = {result};
    dp_reduce_args_t args = {.dtype = op->dtype,
                             .reduce = op->reduce,
                             .in = in,
                             .in_count = world->ranks,
                             .out = out,
                             .out_count = 1,
                             .count = count,
                             .prescale = op->prescale,
                             .postscale = op->postscale / (is_average ? world->ranks : 1),
                             .divisor = is_average && !is_float ? world->ranks : 0,
                             .tally = is_float ? tally : NULL};

    for (int r = 0; r < world->ranks; r++)
        in[r] = (char *)op->saved[r][t] + row * bytes;
    dp_naive_reduce(&args);
}

static void compare(const world_op_t *op, int rank, size_t t, const void *found,
                    const void *expected, size_t count, double tolerance)
{
    if (tolerance == 0.0) {
        if (memcmp(found, expected, count * dp_dtype_bytes(op->dtype)) != 0) {
            fail_msg("rank %d tensor %zu: collective %d dtype %d reduce %d count %zu in place %d",
                     rank, t, (int)op->collective, (int)op->dtype, (int)op->reduce, count,
                     op->in_place);
        }
        return;
    }
    for (size_t i = 0; i < count; i++) {
        double a = ((const float *)found)[i], b = ((const float *)expected)[i];

        if (fabs(a - b) > tolerance) fail_msg("rank %d [%zu]: %g, expected %g", rank, i, a, b);
    }
}

static void check_tensor(world_t *world, world_op_t *op, size_t t, double tolerance,
                         dp_tally_t *tally)
{
    size_t count = op->tensors[0][t].count, bytes = count * dp_dtype_bytes(op->dtype);
    char *expected = malloc((size_t)world->ranks * bytes + 1);

    for (size_t row = 0; row < (size_t)world->ranks; row++) {
        char *at = expected + row * bytes;

        if (op->collective == DP_COLLECTIVE_REDUCE_SCATTER) {
            expect_row(world, op, t, row, at, tally);
        } else if (op->collective == DP_COLLECTIVE_ALLREDUCE && row == 0) {
            expect_row(world, op, t, 0, at, tally);
        } else if (op->collective == DP_COLLECTIVE_ALLGATHER) {
            memcpy(at, op->saved[row][t], bytes);
        } else if (op->collective == DP_COLLECTIVE_BROADCAST && row == 0) {
            memcpy(at, op->saved[op->root][t], bytes);
        }
    }
    for (int r = 0; r < world->ranks; r++) {
        const char *own = expected;

        if (op->collective == DP_COLLECTIVE_REDUCE_SCATTER) own += (size_t)r * bytes;
        compare(op, r, t, op->tensors[r][t].out, own, out_rows(world, op) * count, tolerance);
    }
    free(expected);
}

void op_check(world_t *world, world_op_t *op, double tolerance)
{
    int is_reduction =
        op->collective == DP_COLLECTIVE_ALLREDUCE || op->collective == DP_COLLECTIVE_REDUCE_SCATTER;
    int has_figures = is_reduction && op->dtype >= DP_F16 && op->dtype <= DP_F64 &&
                      (op->reduce == DP_SUM || op->reduce == DP_AVERAGE);
    double post = op->postscale / (op->reduce == DP_AVERAGE ? world->ranks : 1);
    dp_tally_t tally;

    for (int r = 0; r < world->ranks; r++) {
        assert_int_equal(op->done_count[r], 1);
        if (op->status[r] != DP_OK) fail_msg("rank %d: %s", r, op->text[r]);
    }
    dp_tally_init(&tally);
    for (size_t t = 0; t < op->tensor_count; t++)
        check_tensor(world, op, t, tolerance, &tally);
    for (int r = 0; r < world->ranks; r++) {
        const dp_pipeline_done_t *done = &op->done[r];

        if (!has_figures) {
            assert_true(done->raw_absmax < 0.0f);
        } else if (tolerance == 0.0) {
            assert_memory_equal(&done->tally, &tally, sizeof(tally));
            assert_true(done->raw_absmax == (float)(tally.absmax / fabs(post)));
        } else {
            assert_true(fabs(done->tally.absmax - tally.absmax) <= tolerance);
            assert_int_equal(done->tally.nonfinite, 0);
        }
    }
}
