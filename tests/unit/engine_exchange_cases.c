/*
 * engine_exchange_cases.c - blocks from rank to rank, against what each rank can work out alone.
 *
 * All ranks draw the same numbers from one seed: who sends how much to whom, from what memory, and
 * who cannot take it. So each knows what must come, and what everybody must hear of a truncation.
 */
#include "engine_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_reference.h"

#define RANKS 16
#define MARGIN 64 /* bytes behind an output that must stay */
#define UNTOUCHED 0x5a

typedef struct shape {
    dp_collective_t collective;
    dp_dtype_t dtype;
    int count; /* ranks */
    int root, peer;
    size_t counts[RANKS][RANKS]; /* [from][to] */
    size_t capacity[RANKS];
    int drops[RANKS];
    int is_engine_in[RANKS], is_engine_out[RANKS];
    int short_rank; /* the lowest that cannot take it; -1 */
} shape_t;

uint64_t draw(uint64_t *seed, uint64_t limit)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return limit == 0 ? 0 : (*seed * 0x9e3779b97f4a7c15ull >> 16) % limit;
}

static size_t draw_count(uint64_t *seed, int scale)
{
    static const uint64_t limits[] = {3, 40, 3000, 90000};

    return draw(seed, 4) == 0 ? 0 : (size_t)draw(seed, limits[scale]);
}

/* Draws how much each rank sends to each. */
static void draw_counts(shape_t *shape, uint64_t *seed)
{
    const int scale = (int)draw(seed, 4);
    const size_t alike = draw_count(seed, scale);

    for (int from = 0; from < shape->count; from++) {
        const size_t own = draw_count(seed, scale);

        for (int to = 0; to < shape->count; to++) {
            const size_t single = draw_count(seed, scale);

            switch (shape->collective) {
            case DP_COLLECTIVE_GATHER:
                shape->counts[from][to] = to == shape->root ? alike : 0;
                break;
            case DP_COLLECTIVE_SCATTER:
                shape->counts[from][to] = from == shape->root ? alike : 0;
                break;
            case DP_COLLECTIVE_ALLTOALL:
                shape->counts[from][to] = alike;
                break;
            case DP_COLLECTIVE_GATHERV:
                shape->counts[from][to] = to == shape->root ? own : 0;
                break;
            case DP_COLLECTIVE_ALLGATHERV:
                shape->counts[from][to] = own;
                break;
            case DP_COLLECTIVE_SCATTERV:
                shape->counts[from][to] = from == shape->root ? single : 0;
                break;
            case DP_COLLECTIVE_ALLTOALLV:
                shape->counts[from][to] = single;
                break;
            default:
                shape->counts[from][to] = from == shape->root && to == shape->peer ? own : 0;
                break;
            }
        }
    }
}

static size_t total_to(const shape_t *shape, int to)
{
    size_t total = 0;

    for (int from = 0; from < shape->count; from++)
        total += shape->counts[from][to];
    return total;
}

static void draw_shape(shape_t *shape, dp_collective_t collective, int count, uint64_t *seed)
{
    static const dp_dtype_t dtypes[] = {DP_U8, DP_F32, DP_F64, DP_F16, DP_I32};

    memset(shape, 0, sizeof(*shape));
    shape->collective = collective;
    shape->dtype = dtypes[draw(seed, DP_ARRAY_LEN(dtypes))];
    shape->count = count;
    shape->root = (int)draw(seed, (uint64_t)count);
    shape->peer = (shape->root + 1 + (int)draw(seed, (uint64_t)dp_max(count - 1, 1))) % count;
    shape->short_rank = -1;
    draw_counts(shape, seed);
    for (int i = count - 1; i >= 0; i--) {
        const size_t total = total_to(shape, i);
        const int takes_part = collective != DP_COLLECTIVE_SEND || i == shape->peer;

        shape->is_engine_in[i] = (int)draw(seed, 2);
        shape->is_engine_out[i] = (int)draw(seed, 2);
        shape->drops[i] = draw(seed, 8) == 0;
        shape->capacity[i] = total + draw(seed, 3);
        if (draw(seed, 6 * (uint64_t)count) == 0 && total > 0 && takes_part) {
            shape->capacity[i] = total - 1 - draw(seed, total);
        }
        if (!shape->drops[i] && shape->capacity[i] < total) shape->short_rank = i;
    }
}

/* The block between two ranks. */
static void fill_block(char *block, size_t bytes, int from, int to)
{
    enum { RUN = 251 };
    unsigned char first = (unsigned char)(from * 31 + to * 7 + 1);

    for (size_t at = 0; at < bytes; at += RUN, first = (unsigned char)(first + RUN + 1)) {
        for (size_t i = 0; i < dp_min(bytes - at, (size_t)RUN); i++)
            block[at + i] = (char)(first + i);
    }
}

static void *get_memory(engine_rank_t *rank, int is_engine, size_t bytes)
{
    void *memory = is_engine ? engine_memory(rank, bytes) : malloc(bytes);

    if (memory == NULL) abort();
    return memory;
}

static void drop_memory(engine_rank_t *rank, int is_engine, void *memory)
{
    if (is_engine) {
        rank->engine->ops->free(rank->engine, memory);
    } else {
        free(memory);
    }
}

/* 1: all receivers read one block. */
static int is_shared(const shape_t *shape)
{
    return shape->collective != DP_COLLECTIVE_SCATTER &&
           shape->collective != DP_COLLECTIVE_SCATTERV &&
           shape->collective != DP_COLLECTIVE_ALLTOALL &&
           shape->collective != DP_COLLECTIVE_ALLTOALLV;
}

/* The receiver that a shared block is written for. */
static int named_receiver(const shape_t *shape)
{
    if (shape->collective == DP_COLLECTIVE_ALLGATHERV) return 0;
    return shape->collective == DP_COLLECTIVE_SEND ? shape->peer : shape->root;
}

/* This rank's blocks, and their counts as the engine wants them. */
static char *make_input(engine_rank_t *rank, const shape_t *shape, int self, size_t *counts)
{
    const size_t elem_bytes = dp_dtype_bytes(shape->dtype);
    const int first = is_shared(shape) ? named_receiver(shape) : 0;
    const int last = is_shared(shape) ? first + 1 : shape->count;
    size_t bytes = 0;
    char *in;

    for (int to = first; to < last; to++) {
        counts[to - first] = shape->counts[self][to];
        bytes += counts[to - first] * elem_bytes;
    }
    in = get_memory(rank, shape->is_engine_in[self], bytes + 1);
    bytes = 0;
    for (int to = first; to < last; to++) {
        fill_block(in + bytes, shape->counts[self][to] * elem_bytes, self, to);
        bytes += shape->counts[self][to] * elem_bytes;
    }
    return in;
}

static void check_output(engine_rank_t *rank, const shape_t *shape, int self, const char *out,
                         size_t room, int is_written)
{
    const size_t elem_bytes = dp_dtype_bytes(shape->dtype);
    const int named = is_shared(shape) ? named_receiver(shape) : self;
    size_t at = 0;

    for (int from = 0; is_written && from < shape->count; from++) {
        const size_t bytes = shape->counts[from][self] * elem_bytes;
        char *expected = get_memory(rank, 0, bytes + 1);
        size_t wrong;

        fill_block(expected, bytes, from, named);
        wrong = reference_differs(DP_U8, expected, out + at, bytes);
        free(expected);
        if (!engine_check(rank, wrong == bytes, "%s: byte %zu of %zu from %d is wrong",
                          dp_collective_name(shape->collective), wrong, bytes, from)) {
            return;
        }
        at += bytes;
    }
    for (; at < room; at++) {
        if (!engine_check(rank, (unsigned char)out[at] == UNTOUCHED, "%s: byte %zu was written",
                          dp_collective_name(shape->collective), at)) {
            return;
        }
    }
}

static void check_told(engine_rank_t *rank, const shape_t *shape, const int *ranks, int self,
                       const dp_engine_op_t *op)
{
    const dp_engine_exchange_t *exchange = op->exchange;
    const size_t total = total_to(shape, self);
    char text[200] = "";

    if (shape->short_rank >= 0) {
        const int world_rank = ranks[shape->short_rank];

        snprintf(text, sizeof(text), "rank %d (%s) can take %zu elements, %zu come", world_rank,
                 rank->topology.host_name[rank->topology.node[world_rank]],
                 shape->capacity[shape->short_rank], total_to(shape, shape->short_rank));
    }
    engine_check(rank, op->status == (shape->short_rank >= 0 ? DP_ERR_TRUNCATED : DP_OK),
                 "%s: %s: %s, expected '%s'", dp_collective_name(shape->collective),
                 dp_status_string(op->status), op->text, text);
    engine_check(rank, strncmp(op->text, text, strlen(text)) == 0, "text '%s', expected '%s'",
                 op->text, text);
    engine_check(rank, exchange->received == total, "%s: received %zu, expected %zu",
                 dp_collective_name(shape->collective), exchange->received, total);
    for (int from = 0; exchange->recv_counts != NULL && from < shape->count; from++) {
        engine_check(rank, exchange->recv_counts[from] == shape->counts[from][self],
                     "%s: %zu from %d, expected %zu", dp_collective_name(shape->collective),
                     exchange->recv_counts[from], from, shape->counts[from][self]);
    }
}

void check_exchange(engine_rank_t *rank, dp_engine_group_t *group, const int *ranks, int count,
                    dp_collective_t collective, uint64_t seed)
{
    size_t send_counts[RANKS] = {0};
    size_t recv_counts[RANKS] = {0};
    shape_t shape;
    int self = 0; /* this rank's place: it is there */
    size_t room;
    char *in;
    char *out;
    dp_engine_exchange_t exchange;
    dp_engine_op_t op;

    draw_shape(&shape, collective, count, &seed);
    while (self + 1 < count && ranks[self] != rank->rank)
        self++;
    if (collective == DP_COLLECTIVE_SEND && self != shape.root && self != shape.peer) return;
    if (collective == DP_COLLECTIVE_SEND && count == 1) return;
    in = make_input(rank, &shape, self, send_counts);
    room =
        dp_min(shape.capacity[self], total_to(&shape, self)) * dp_dtype_bytes(shape.dtype) + MARGIN;
    out = get_memory(rank, shape.is_engine_out[self], room);
    memset(out, UNTOUCHED, room);
    exchange = (dp_engine_exchange_t){.in = in,
                                      .send_counts = send_counts,
                                      .out = shape.drops[self] ? NULL : out,
                                      .capacity = shape.capacity[self],
                                      .drops = shape.drops[self],
                                      .recv_counts = seed % 3 == 0 ? NULL : recv_counts};
    op = (dp_engine_op_t){.group = group,
                          .collective = collective,
                          .dtype = shape.dtype,
                          .root = shape.root,
                          .peer = shape.peer,
                          .exchange = &exchange};
    engine_run(rank, &op, seed % 2 == 0 ? DP_WORK_SMALL : DP_WORK_LARGE);
    check_told(rank, &shape, ranks, self, &op);
    check_output(rank, &shape, self, out, room, op.status == DP_OK && !shape.drops[self]);
    drop_memory(rank, shape.is_engine_in[self], in);
    drop_memory(rank, shape.is_engine_out[self], out);
}

static const dp_collective_t exchanges[] = {DP_COLLECTIVE_GATHER,    DP_COLLECTIVE_SCATTER,
                                            DP_COLLECTIVE_ALLTOALL,  DP_COLLECTIVE_ALLGATHERV,
                                            DP_COLLECTIVE_GATHERV,   DP_COLLECTIVE_SCATTERV,
                                            DP_COLLECTIVE_ALLTOALLV, DP_COLLECTIVE_SEND};

static void world_ranks(const engine_rank_t *rank, int *ranks)
{
    for (int i = 0; i < rank->size; i++)
        ranks[i] = i;
}

void case_exchanges(engine_rank_t *rank, void *user)
{
    int ranks[RANKS] = {0};

    (void)user;
    world_ranks(rank, ranks);
    for (int i = 0; i < 160; i++) {
        check_exchange(rank, NULL, ranks, rank->size, exchanges[i % DP_ARRAY_LEN(exchanges)],
                       (uint64_t)i * 7919 + (uint64_t)rank->size);
    }
}

/* Several chunks of every flow, and blocks that are copied in slices. */
static void check_large(engine_rank_t *rank, dp_collective_t collective, size_t count)
{
    const size_t size = (size_t)rank->size;
    const int is_spread = collective == DP_COLLECTIVE_ALLTOALLV;
    size_t send_counts[RANKS];
    uint32_t *in = malloc((is_spread ? size : 1) * (count + size) * sizeof(*in));
    uint32_t *out = malloc(size * (count + size) * sizeof(*out));
    dp_engine_exchange_t exchange = {
        .in = in, .send_counts = send_counts, .out = out, .capacity = size * (count + size)};
    dp_engine_op_t op = {.collective = collective, .dtype = DP_U32, .exchange = &exchange};
    size_t at = 0;

    if (in == NULL || out == NULL) abort();
    for (size_t to = 0; to < (is_spread ? size : 1); to++) {
        send_counts[to] = count + (size_t)rank->rank; /* not a multiple of anything */
        for (size_t i = 0; i < send_counts[to]; i++)
            in[at++] = (uint32_t)(i * 16 + (size_t)rank->rank + to * 1000003);
    }
    engine_run(rank, &op, DP_WORK_LARGE);
    engine_check(rank, op.status == DP_OK, "%s: %s", dp_collective_name(collective), op.text);
    at = 0;
    for (size_t from = 0; op.status == DP_OK && from < size; from++) {
        const size_t to = is_spread ? (size_t)rank->rank : 0;

        for (size_t i = 0; i < count + from; i++, at++) {
            if (!engine_check(rank, out[at] == (uint32_t)(i * 16 + from + to * 1000003),
                              "%s: element %zu of %zu is wrong", dp_collective_name(collective), i,
                              from)) {
                break;
            }
        }
    }
    free(in);
    free(out);
}

void case_large_blocks(engine_rank_t *rank, void *user)
{
    (void)user;
    check_large(rank, DP_COLLECTIVE_ALLTOALLV, 700001);
    check_large(rank, DP_COLLECTIVE_ALLGATHERV, 1300001);
}
