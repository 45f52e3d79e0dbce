/*
 * pipeline_op.c - operations for the pipeline's tests: buffers made from a description, and what
 * must be in them afterwards.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fusion/plan.h"
#include "tests/unit/cases.h"
#include "tests/unit/naive.h"
#include "tests/unit/kernel_data.h"
#include "tests/unit/pipeline_world.h"

enum { untouched = 0xa5 }; /* what outputs are filled with */

static int is_exchange(const world_op_t *op)
{
    return dp_plan_is_alone(op->collective) && op->collective != DP_COLLECTIVE_GROUP_CREATE &&
           op->collective != DP_COLLECTIVE_GROUP_DESTROY;
}

static int is_reduction(const world_op_t *op)
{
    return op->collective == DP_COLLECTIVE_ALLREDUCE ||
           op->collective == DP_COLLECTIVE_REDUCE_SCATTER ||
           op->collective == DP_COLLECTIVE_REDUCE ||
           op->collective == DP_COLLECTIVE_REDUCE_SCATTERV;
}

static int is_absent(const world_op_t *op, int place)
{
    return (op->absent >> place & 1u) != 0;
}

static int rank_of(const world_op_t *op, int place)
{
    return op->group != NULL ? op->group->ranks[place] : place;
}

static size_t in_rows(const world_t *world, const world_op_t *op)
{
    return op->collective == DP_COLLECTIVE_REDUCE_SCATTER ? (size_t)op_size(world, op) : 1;
}

static size_t out_rows(const world_t *world, const world_op_t *op)
{
    return op->collective == DP_COLLECTIVE_ALLGATHER ? (size_t)op_size(world, op) : 1;
}

/* ---- Memory --------------------------------------------------------------------------------- */

static void *take(world_t *world, const world_op_t *op, int place, size_t bytes)
{
    dp_engine_t *engine = world->rank[rank_of(op, place)].engine;
    void *memory = NULL;

    if (op->in_place) {
        assert_int_equal(engine->ops->alloc(engine, bytes + 1, &memory), DP_OK);
    } else {
        memory = malloc(bytes + 1);
    }
    memset(memory, untouched, bytes + 1);
    return memory;
}

static void give(world_t *world, const world_op_t *op, int place, void *memory)
{
    dp_engine_t *engine = world->rank[rank_of(op, place)].engine;

    if (op->in_place && memory != NULL) {
        engine->ops->free(engine, memory);
    } else {
        free(memory);
    }
}

/* Elements of a tensor; of a reduce_scatterv part t goes to rank t, and some are empty. */
static size_t count_of(const world_op_t *op, size_t t)
{
    if (op->count == 0) return 0;
    if (op->collective == DP_COLLECTIVE_REDUCE_SCATTERV && t % 3 == 2) return 0;
    return op->count + t;
}

static void make_tensor(world_t *world, world_op_t *op, int place, size_t t, uint64_t *state)
{
    size_t count = count_of(op, t), elem_bytes = dp_dtype_bytes(op->dtype);
    size_t in_bytes = in_rows(world, op) * count * elem_bytes;
    size_t out_bytes = out_rows(world, op) * count * elem_bytes;
    int wants_out = op->collective != DP_COLLECTIVE_REDUCE_SCATTERV || t == (size_t)place;
    void **memory = op->memory[place][t];
    unsigned char *in = NULL, *out = NULL;

    if (op->is_same && op->collective == DP_COLLECTIVE_ALLGATHER) {
        out = memory[1] = take(world, op, place, out_bytes);
        in = out + (size_t)place * in_bytes;
    } else {
        in = memory[0] = take(world, op, place, in_bytes);
        if (op->is_same && wants_out) {
            out = in;
            if (in_rows(world, op) > 1) out += (size_t)place * out_bytes;
        } else if (wants_out) {
            out = memory[1] = take(world, op, place, out_bytes);
        }
    }
    kernel_fill(op->dtype, in, in_rows(world, op) * count, state, 1);
    op->saved[place][t] = malloc(in_bytes + 1);
    memcpy(op->saved[place][t], in, in_bytes);
    op->tensors[place][t] = (dp_pipeline_tensor_t){in, out, count, op->dtype};
}

/* ---- Exchanges ------------------------------------------------------------------------------ */

static int has_own_counts(const world_op_t *op)
{
    return op->collective == DP_COLLECTIVE_ALLGATHERV || op->collective == DP_COLLECTIVE_GATHERV ||
           op->collective == DP_COLLECTIVE_SCATTERV || op->collective == DP_COLLECTIVE_ALLTOALLV ||
           op->collective == DP_COLLECTIVE_SEND;
}

static int sends(const world_op_t *op, int from, int to)
{
    if (is_absent(op, from)) return 0;
    switch (op->collective) {
    case DP_COLLECTIVE_GATHER:
    case DP_COLLECTIVE_GATHERV:
        return to == op->root;
    case DP_COLLECTIVE_SCATTER:
    case DP_COLLECTIVE_SCATTERV:
        return from == op->root;
    case DP_COLLECTIVE_SEND:
        return from == op->root && to == op->peer;
    default:
        return 1;
    }
}

static void make_blocks(const world_t *world, world_op_t *op, uint64_t *state)
{
    int size = op_size(world, op);

    for (int from = 0; from < size; from++) {
        size_t one = has_own_counts(op) ? kernel_random(state) % (op->count + 1) : op->count;

        for (int to = 0; to < size; to++) {
            size_t count = one;

            if (op->collective == DP_COLLECTIVE_ALLTOALLV ||
                op->collective == DP_COLLECTIVE_SCATTERV) {
                count = kernel_random(state) % 4 == 0 ? 0 : kernel_random(state) % (op->count + 1);
            }
            if (sends(op, from, to)) op->blocks[from][to] = count;
        }
    }
}

static size_t received_by(const world_t *world, const world_op_t *op, int to)
{
    size_t sum = 0;

    for (int from = 0; from < op_size(world, op); from++)
        sum += op->blocks[from][to];
    return sum;
}

/* Some give one block, to one rank or to all; others one for each rank, packed. */
static int has_block_each(const world_op_t *op)
{
    return op->collective == DP_COLLECTIVE_SCATTER || op->collective == DP_COLLECTIVE_SCATTERV ||
           op->collective == DP_COLLECTIVE_ALLTOALL || op->collective == DP_COLLECTIVE_ALLTOALLV;
}

/* Where the block for `to` begins in the input of `from`. */
static size_t block_start(const world_op_t *op, int from, int to)
{
    size_t sum = 0;

    for (int before = 0; has_block_each(op) && before < to; before++)
        sum += op->blocks[from][before];
    return sum;
}

/* Fills in send_counts as an item carries them; returns the elements of the input. */
static size_t fill_send_counts(const world_t *world, world_op_t *op, int place)
{
    size_t sum = 0;
    int to = op->collective == DP_COLLECTIVE_SEND         ? op->peer
             : op->collective == DP_COLLECTIVE_ALLGATHERV ? 0
                                                          : op->root;

    if (!has_block_each(op)) return op->send_counts[place][0] = op->blocks[place][to];
    for (to = 0; to < op_size(world, op); to++)
        sum += op->send_counts[place][to] = op->blocks[place][to];
    return sum;
}

static void make_exchange(world_t *world, world_op_t *op, int place, uint64_t *state)
{
    size_t elem_bytes = dp_dtype_bytes(op->dtype);
    size_t sent = fill_send_counts(world, op, place);
    size_t received = received_by(world, op, place);
    void **memory = op->memory[place][0];

    memory[0] = take(world, op, place, sent * elem_bytes);
    memory[1] = take(world, op, place, (received + 1) * elem_bytes);
    kernel_fill(op->dtype, memory[0], sent, state, 1);
    op->saved[place][0] = malloc(sent * elem_bytes + 1);
    memcpy(op->saved[place][0], memory[0], sent * elem_bytes);
    op->tensors[place][0] = (dp_pipeline_tensor_t){memory[0], memory[1], 0, op->dtype};
    op->capacity[place] = received + (has_own_counts(op) ? state[0] % 2 : 0);
    if (op->is_short == place + 1 && received > 0) op->capacity[place] = received - 1;
    for (int from = 0; from < op_size(world, op); from++)
        op->recv_counts[place][from] = SIZE_MAX;
}

/* ---- Making --------------------------------------------------------------------------------- */

void op_make(world_t *world, world_op_t *op, uint64_t seed)
{
    int size = op_size(world, op);
    uint64_t state = seed + 1;

    if (op->tensor_count == 0 && op->collective != DP_COLLECTIVE_BARRIER) op->tensor_count = 1;
    if (op->collective == DP_COLLECTIVE_REDUCE_SCATTERV) op->tensor_count = (size_t)size;
    if (op->prescale == 0.0) op->prescale = 1.0;
    if (op->postscale == 0.0) op->postscale = 1.0;
    if (is_exchange(op)) make_blocks(world, op, &state);
    for (int place = 0; place < size; place++) {
        op->status[place] = DP_ERR_PENDING;
        for (size_t t = 0; t < op->tensor_count; t++) {
            if (is_absent(op, place)) {
                size_t count = is_exchange(op) ? 0 : count_of(op, t);

                op->tensors[place][t] = (dp_pipeline_tensor_t){NULL, NULL, count, op->dtype};
            } else if (is_exchange(op)) {
                make_exchange(world, op, place, &state);
            } else {
                make_tensor(world, op, place, t, &state);
            }
        }
    }
}

void op_free(world_t *world, world_op_t *op)
{
    for (int place = 0; place < op_size(world, op); place++) {
        for (size_t t = 0; t < op->tensor_count; t++) {
            give(world, op, place, op->memory[place][t][0]);
            give(world, op, place, op->memory[place][t][1]);
            free(op->saved[place][t]);
        }
    }
}

/* ---- Checking ------------------------------------------------------------------------------- */

static int is_float(const world_op_t *op)
{
    return op->dtype >= DP_F16 && op->dtype <= DP_F64;
}

static int contributors_of(const world_t *world, const world_op_t *op)
{
    return op_size(world, op) - __builtin_popcount(op->absent);
}

static int divisor_of(const world_t *world, const world_op_t *op)
{
    if (op->reduce != DP_AVERAGE) return 1;
    return op->count_joined ? op_size(world, op) : contributors_of(world, op);
}

/* Row `row` reduced over the saved inputs. */
static void expect_row(const world_t *world, const world_op_t *op, size_t t, size_t row,
                       void *result, dp_tally_t *tally)
{
    size_t count = count_of(op, t), bytes = count * dp_dtype_bytes(op->dtype);
    const void *in[world_ranks_max];
    void *out[1] = {result};
    dp_reduce_args_t args = {.dtype = op->dtype,
                             .reduce = op->reduce,
                             .in = in,
                             .out = out,
                             .out_count = 1,
                             .count = count,
                             .prescale = op->prescale,
                             .postscale = op->postscale / divisor_of(world, op),
                             .divisor = is_float(op) ? 0 : divisor_of(world, op),
                             .tally = is_float(op) ? tally : NULL};

    for (int place = 0; place < op_size(world, op); place++) {
        if (!is_absent(op, place)) {
            in[args.in_count++] = (char *)op->saved[place][t] + row * bytes;
        }
    }
    if (count > 0) dp_naive_reduce(&args);
}

static void compare(const world_op_t *op, int place, size_t t, const void *found,
                    const void *expected, size_t count, double tolerance)
{
    if (tolerance == 0.0 || op->dtype != DP_F32) {
        if (memcmp(found, expected, count * dp_dtype_bytes(op->dtype)) != 0) {
            fail_msg("rank %d tensor %zu: %s of %s, reduce %d, count %zu, in place %d", place, t,
                     dp_collective_name(op->collective), dp_dtype_name(op->dtype), (int)op->reduce,
                     count, op->in_place);
        }
        return;
    }
    for (size_t i = 0; i < count; i++) {
        double a = ((const float *)found)[i], b = ((const float *)expected)[i];

        if (!(fabs(a - b) <= tolerance)) fail_msg("rank %d [%zu]: %g, not %g", place, i, a, b);
    }
}

static void check_untouched(const world_op_t *op, int place, size_t t, size_t bytes)
{
    const unsigned char *out = op->memory[place][t][1];

    for (size_t i = 0; out != NULL && i < bytes; i++) {
        if (out[i] != untouched) fail_msg("rank %d tensor %zu was written at %zu", place, t, i);
    }
}

/* Elements that a rank should find in its output of a tensor. */
static size_t wanted(const world_t *world, const world_op_t *op, int place, size_t t)
{
    if (is_absent(op, place)) return 0;
    if (op->collective == DP_COLLECTIVE_REDUCE && op->root != place) return 0;
    if (op->collective == DP_COLLECTIVE_REDUCE_SCATTERV && t != (size_t)place) return 0;
    return out_rows(world, op) * count_of(op, t);
}

static void check_tensor(world_t *world, world_op_t *op, size_t t, double tolerance,
                         dp_tally_t *tally)
{
    size_t count = count_of(op, t), bytes = count * dp_dtype_bytes(op->dtype);
    size_t rows = (size_t)op_size(world, op);
    char *expected = calloc(rows * bytes + 1, 1);

    for (size_t row = 0; row < rows; row++) {
        char *at = expected + row * bytes;

        if (op->collective == DP_COLLECTIVE_REDUCE_SCATTER || (is_reduction(op) && row == 0)) {
            expect_row(world, op, t, row, at, tally);
        } else if (op->collective == DP_COLLECTIVE_ALLGATHER && !is_absent(op, (int)row)) {
            memcpy(at, op->saved[row][t], bytes);
        } else if (op->collective == DP_COLLECTIVE_BROADCAST && row == 0) {
            memcpy(at, op->saved[op->root][t], bytes);
        }
    }
    for (int place = 0; place < op_size(world, op); place++) {
        const char *own = expected;
        size_t elems = wanted(world, op, place, t);

        if (op->collective == DP_COLLECTIVE_REDUCE_SCATTER) own += (size_t)place * bytes;
        if (elems > 0) {
            compare(op, place, t, op->tensors[place][t].out, own, elems, tolerance);
        } else {
            check_untouched(op, place, t, bytes);
        }
    }
    free(expected);
}

static void check_exchange(const world_t *world, const world_op_t *op)
{
    size_t elem_bytes = dp_dtype_bytes(op->dtype);

    for (int to = 0; to < op_size(world, op); to++) {
        const unsigned char *found = op->memory[to][0][1];
        size_t received = received_by(world, op, to);

        if (op_place(world, op, rank_of(op, to)) < 0 || is_absent(op, to)) continue;
        for (int from = 0; from < op_size(world, op); from++) {
            const unsigned char *block = op->saved[from][0];
            size_t bytes = op->blocks[from][to] * elem_bytes;

            if (bytes == 0) continue;
            block += block_start(op, from, to) * elem_bytes;
            if (memcmp(found, block, bytes) != 0) {
                fail_msg("%s: what came from %d to %d is wrong", dp_collective_name(op->collective),
                         from, to);
            }
            found += bytes;
        }
        assert_int_equal(op->done[to].count, received);
        for (size_t i = 0; i < elem_bytes; i++)
            assert_int_equal(found[i], untouched);
    }
}

static void check_figures(const world_t *world, const world_op_t *op, int place,
                          const dp_tally_t *tally, double tolerance)
{
    const dp_pipeline_done_t *done = &op->done[place];
    double post = op->postscale / divisor_of(world, op);

    if (!is_reduction(op) || !is_float(op) || (op->reduce != DP_SUM && op->reduce != DP_AVERAGE)) {
        assert_true(done->raw_absmax < 0.0f);
    } else if (is_absent(op, place) ||
               (!world->compresses && op->collective != DP_COLLECTIVE_ALLREDUCE)) {
        return; /* it sees its own part at most */
    } else if (tolerance == 0.0) {
        assert_memory_equal(&done->tally, tally, sizeof(*tally));
        assert_true(done->raw_absmax == (float)(tally->absmax / fabs(post)));
    } else {
        assert_true(fabs(done->tally.absmax - tally->absmax) <= tolerance);
        assert_int_equal(done->tally.nonfinite, 0);
    }
}

static void check_calls(const world_t *world, const world_op_t *op, int place)
{
    if (op_place(world, op, rank_of(op, place)) < 0) return;
    assert_int_equal(op->done_count[place], 1);
    assert_int_equal(op->is_late[place], 0);
    if (op->status[place] == DP_OK || op->status[place] == DP_ERR_TRUNCATED) {
        assert_int_equal(op->issued_count[place], op->done_event[place] != NULL);
    }
}

void op_check(world_t *world, world_op_t *op, double tolerance)
{
    dp_tally_t tally;

    for (int place = 0; place < op_size(world, op); place++) {
        check_calls(world, op, place);
        if (op->status[place] != DP_OK && op->done_count[place] != 0) {
            fail_msg("rank %d: %s", place, op->text[place]);
        }
    }
    if (is_exchange(op)) {
        check_exchange(world, op);
        return;
    }
    dp_tally_init(&tally);
    for (size_t t = 0; t < op->tensor_count; t++)
        check_tensor(world, op, t, tolerance, &tally);
    for (int place = 0; place < op_size(world, op); place++) {
        size_t count = 0;

        for (size_t t = 0; t < op->tensor_count; t++)
            count += wanted(world, op, place, t);
        assert_int_equal(op->done[place].count, count);
        check_figures(world, op, place, &tally, tolerance);
    }
}

void op_check_failed(world_t *world, world_op_t *op, dp_status_t status, const char *text)
{
    for (int place = 0; place < op_size(world, op); place++) {
        if (op_place(world, op, rank_of(op, place)) < 0) continue;
        check_calls(world, op, place);
        assert_int_equal(op->status[place], status);
        assert_non_null(strstr(op->text[place], text));
        assert_int_equal(op->done[place].count, 0);
        if (is_exchange(op) && !is_absent(op, place)) {
            check_untouched(op, place, 0,
                            (received_by(world, op, place) + 1) * dp_dtype_bytes(op->dtype));
        }
    }
}

/* ---- At random ------------------------------------------------------------------------------ */

/* Any operation, anywhere, with whatever can go with it. */
static world_op_t random_op(world_t *world, world_group_t *group, uint64_t *state, int adds_floats)
{
    world_op_t op = {.group = group,
                     .collective = (dp_collective_t)(kernel_random(state) % DP_COLLECTIVE_JOIN),
                     .dtype = (dp_dtype_t)(kernel_random(state) % DP_DTYPE_COUNT),
                     .reduce = (dp_reduce_t)(kernel_random(state) % DP_REDUCE_COUNT),
                     .count = kernel_random(state) % (kernel_random(state) % 4 ? 400 : 40000)};
    unsigned size = (unsigned)op_size(world, &op);

    if (!adds_floats && is_float(&op)) op.reduce = DP_MIN + op.reduce % 2;
    op.root = (int)(kernel_random(state) % size);
    op.peer = (int)((unsigned)op.root + 1) % (int)size;
    op.is_same = kernel_random(state) % 2 == 0;
    op.is_checked = kernel_random(state) % 2 == 0;
    op.in_place = kernel_random(state) % 4 == 0;
    if (op.collective == DP_COLLECTIVE_SEND && size == 1) op.collective = DP_COLLECTIVE_ALLREDUCE;
    if (op.collective == DP_COLLECTIVE_GATHER || op.collective == DP_COLLECTIVE_SCATTER ||
        op.collective == DP_COLLECTIVE_ALLTOALL || op.collective >= DP_COLLECTIVE_GATHERV) {
        return op;
    }
    if (kernel_random(state) % 4 == 0) {
        op.absent = (unsigned)(kernel_random(state) % (1u << size)) & ~(1u << op.root);
        if (op.absent != 0) op.in_place = op.is_same = 0;
    }
    return op;
}

void world_run_random(world_t *world, size_t count, uint64_t seed, int adds_floats)
{
    enum { group_count = 6 };
    world_op_t *ops = calloc(count, sizeof(*ops));
    world_group_t groups[group_count];
    uint64_t state = seed;

    for (uint32_t g = 0; g < group_count; g++)
        world_group_make(world, &groups[g], g + 1, 1 + (g * 5 + 2) % ((1u << world->ranks) - 1));
    for (size_t i = 0; i < count; i++) {
        uint64_t g = kernel_random(&state) % (group_count + 2);

        ops[i] = random_op(world, g < group_count ? &groups[g] : NULL, &state, adds_floats);
        op_make(world, &ops[i], kernel_random(&state));
    }
    for (size_t i = 0; i < count;) { /* neighbours of one group in one launch, sends alone */
        size_t n = 1;

        while (ops[i].collective != DP_COLLECTIVE_SEND && i + n < count && n < 9 &&
               ops[i + n].group == ops[i].group && ops[i + n].collective != DP_COLLECTIVE_SEND)
            n++;
        world_launch(world, &ops[i], n);
        i += n;
    }
    world_wait(world);
    for (size_t i = 0; i < count; i++) {
        op_check(world, &ops[i], 0.0);
        op_free(world, &ops[i]);
    }
    for (uint32_t g = 0; g < group_count; g++)
        world_group_end(world, &groups[g]);
    free(ops);
}
