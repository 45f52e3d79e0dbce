/*
 * test_engine_pull.c - a collective of memory that the ranks of a node do not share gives the bits
 * of one that they do; an allreduce also where the system forbids to read it, the others are not
 * offered there; and it ends when the memory is not there.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/unit/cases.h"
#include "tests/unit/engine_reference.h"
#include "tests/unit/engine_world.h"
#include "tests/unit/sanitizer.h"
#include "runtime/engine/cpu/intra_node/method.h"

static const size_t counts[] = {5, 0, 4096, 4097, 100003, 1, 40000, 300001};
#define PIECES DP_ARRAY_LEN(counts)

/* Whom the system lets read another's memory. */
enum { PERMIT_ALL, PERMIT_NOBODY, PERMIT_ALL_BUT_THE_FIRST };
static atomic_int permit = PERMIT_ALL;

ssize_t __real_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals,
                                const struct iovec *remote, unsigned long remotes,
                                unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals,
                                const struct iovec *remote, unsigned long remotes,
                                unsigned long flags);

ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals,
                                const struct iovec *remote, unsigned long remotes,
                                unsigned long flags)
{
    int first = PERMIT_ALL_BUT_THE_FIRST;

    if (atomic_load(&permit) == PERMIT_NOBODY ||
        atomic_compare_exchange_strong(&permit, &first, PERMIT_ALL)) {
        errno = EPERM;
        return -1;
    }
    return __real_process_vm_readv(pid, local, locals, remote, remotes, flags);
}

static int may_pull(void)
{
    int from = 1, to = 0;
    struct iovec local = {&to, sizeof(to)}, remote = {&from, sizeof(from)};

    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)sizeof(to);
}

typedef struct kind {
    dp_collective_t collective;
    dp_dtype_t dtype;
    dp_reduce_t reduce;
    int in_place;
} kind_t;

/* Elements of a row of all pieces, each with an element before it. */
static size_t row_elems(void)
{
    size_t total = 1;

    for (size_t i = 0; i < PIECES; i++)
        total += counts[i] + 1;
    return total;
}

/* Elements of a rank's input and output. */
static size_t in_elems(const engine_rank_t *rank, kind_t kind)
{
    const size_t rows = kind.collective == DP_COLLECTIVE_REDUCE_SCATTER ? (size_t)rank->size : 1;

    return rows * row_elems();
}

static size_t out_elems(const engine_rank_t *rank, kind_t kind)
{
    return (kind.collective == DP_COLLECTIVE_ALLGATHER ? (size_t)rank->size : 1) * row_elems();
}

/* One operation of all pieces. */
static void run_pieces(engine_rank_t *rank, kind_t kind, const char *data, char *in, char *out,
                       dp_tally_t *tallies)
{
    const size_t bytes = dp_dtype_bytes(kind.dtype), total = row_elems();
    const int has_in = kind.collective != DP_COLLECTIVE_BROADCAST || rank->rank == 1;
    dp_engine_piece_t pieces[PIECES];
    dp_engine_op_t op = {.collective = kind.collective,
                         .dtype = kind.dtype,
                         .reduce = kind.reduce,
                         .root = 1,
                         .pieces = pieces,
                         .piece_count = PIECES};
    size_t at = 1;

    memcpy(in, data, in_elems(rank, kind) * bytes);
    for (size_t i = 0; i < PIECES; i++) {
        dp_tally_init(&tallies[i]);
        pieces[i] = (dp_engine_piece_t){.in = has_in ? in + at * bytes : NULL,
                                        .out = out + at * bytes,
                                        .count = counts[i],
                                        .stride = total,
                                        .prescale = 0.5,
                                        .postscale = 3.0,
                                        .tally = &tallies[i]};
        at += counts[i] + 1;
    }
    engine_run(rank, &op, DP_WORK_LARGE);
    engine_check(rank, op.status == DP_OK, "%s %s %s: %s", dp_collective_name(kind.collective),
                 dp_dtype_name(kind.dtype), dp_reduce_name(kind.reduce), op.text);
}

/* who: bit r is set where rank r has memory of its own. */
static void compare(engine_rank_t *rank, kind_t kind, unsigned who)
{
    const size_t bytes = dp_dtype_bytes(kind.dtype);
    const size_t in_bytes = in_elems(rank, kind) * bytes, out_bytes = out_elems(rank, kind) * bytes;
    const int is_own = (int)(who >> rank->rank & 1);
    dp_tally_t expected[PIECES], tallies[PIECES];
    char *data = malloc(in_bytes), *shared[2], *own[2];

    for (int i = 0; i < 2; i++) {
        const size_t most = dp_max(in_bytes, out_bytes);

        shared[i] = engine_memory(rank, most);
        own[i] = is_own ? calloc(most, 1) : engine_memory(rank, most);
        if (data == NULL || shared[i] == NULL || own[i] == NULL) abort();
    }
    reference_fill(kind.dtype, data, in_elems(rank, kind), rank->rank, (int)who,
                   kind.reduce != DP_PRODUCT);
    run_pieces(rank, kind, data, shared[0], shared[kind.in_place ? 0 : 1], expected);
    run_pieces(rank, kind, data, own[0], own[kind.in_place ? 0 : 1], tallies);
    engine_check(
        rank, memcmp(shared[0], own[0], in_bytes) == 0 && memcmp(shared[1], own[1], out_bytes) == 0,
        "%s %s %s, in place %d, private %x: results differ", dp_collective_name(kind.collective),
        dp_dtype_name(kind.dtype), dp_reduce_name(kind.reduce), kind.in_place, who);
    for (size_t i = 0; i < PIECES; i++) {
        engine_check(
            rank,
            tallies[i].nonfinite == expected[i].nonfinite &&
                tallies[i].absmax == expected[i].absmax &&
                memcmp(tallies[i].squares, expected[i].squares, sizeof(tallies[i].squares)) == 0,
            "%s %s %s, private %x: figures of piece %zu differ",
            dp_collective_name(kind.collective), dp_dtype_name(kind.dtype),
            dp_reduce_name(kind.reduce), who, i);
    }
    for (int i = 0; i < 2; i++) {
        rank->engine->ops->free(rank->engine, shared[i]);
        if (is_own) {
            free(own[i]);
        } else {
            rank->engine->ops->free(rank->engine, own[i]);
        }
    }
    free(data);
}

static void compare_all(engine_rank_t *rank, void *user)
{
    static const kind_t kinds[] = {{DP_COLLECTIVE_ALLREDUCE, DP_F32, DP_SUM, 1},
                                   {DP_COLLECTIVE_ALLREDUCE, DP_F32, DP_SUM, 0},
                                   {DP_COLLECTIVE_ALLREDUCE, DP_F16, DP_AVERAGE, 1},
                                   {DP_COLLECTIVE_ALLREDUCE, DP_I32, DP_AVERAGE, 0},
                                   {DP_COLLECTIVE_ALLREDUCE, DP_F64, DP_MAX, 1},
                                   {DP_COLLECTIVE_ALLREDUCE, DP_U8, DP_PRODUCT, 0},
                                   {DP_COLLECTIVE_REDUCE_SCATTER, DP_F32, DP_SUM, 0},
                                   {DP_COLLECTIVE_BROADCAST, DP_F32, DP_SUM, 0},
                                   {DP_COLLECTIVE_ALLGATHER, DP_F32, DP_SUM, 0},
                                   {DP_COLLECTIVE_REDUCE_SCATTER, DP_BF16, DP_AVERAGE, 0}};
    const unsigned everybody = (1u << rank->size) - 1;

    (void)user;
    for (size_t i = 0; i < DP_ARRAY_LEN(kinds); i += under_sanitizer && i < 5 ? 2 : 1) {
        if (!rank->engine->ops->pulls(rank->engine, kinds[i].collective, NULL, rank->size, DP_GIB))
            continue;
        compare(rank, kinds[i], everybody);
        compare(rank, kinds[i], 1);
        compare(rank, kinds[i], everybody & 0xau);
    }
}

enum { size_max = under_sanitizer ? 3 : 4 };

static void pull_gives_the_bits_of_shared_memory(void **state)
{
    (void)state;
    if (!may_pull()) skip();
    for (int size = under_sanitizer ? 3 : 2; size <= size_max; size++) {
        engine_world_t world = ENGINE_WORLD(size, 1);

        assert_int_equal(engine_world_threads(&world, compare_all, &world), 0);
    }
}

static void pull_works_between_processes(void **state)
{
    (void)state;
    if (!may_pull()) skip();
    for (int size = 2; size <= 3; size++) {
        engine_world_t world = ENGINE_WORLD(size, 1);

        assert_int_equal(engine_world_processes(&world, compare_all, &world), 0);
    }
}

/* ---- Where it does not ---------------------------------------------------------------------- */

static void ask_who_pulls(engine_rank_t *rank, void *user)
{
    static const dp_collective_t pulled[] = {DP_COLLECTIVE_ALLREDUCE, DP_COLLECTIVE_BROADCAST,
                                             DP_COLLECTIVE_ALLGATHER, DP_COLLECTIVE_REDUCE_SCATTER};
    const dp_engine_t *engine = rank->engine;
    const dp_engine_ops_t *ops = engine->ops;
    const int both[] = {0, 1}, across[] = {0, 2};
    const int is_far = rank->topology.node_count > 1;

    (void)user;
    for (size_t i = 0; i < DP_ARRAY_LEN(pulled); i++) {
        const size_t enough =
            rank->config.pull_bytes / (dp_lane_of(pulled[i]) == DP_LANE_GATHER ? 4 : 1);

        engine_check(rank, ops->pulls(engine, pulled[i], NULL, rank->size, enough) == !is_far,
                     "%s of the world", dp_collective_name(pulled[i]));
        engine_check(rank, !ops->pulls(engine, pulled[i], NULL, rank->size, enough - 1),
                     "%s, too small", dp_collective_name(pulled[i]));
        if (rank->rank >= 2) continue;
        engine_check(rank, ops->pulls(engine, pulled[i], both, 2, enough), "two of a node");
        engine_check(rank, ops->pulls(engine, pulled[i], across, 2, enough) == !is_far,
                     "two of the world");
    }
    engine_check(rank, !ops->pulls(engine, DP_COLLECTIVE_REDUCE, NULL, rank->size, DP_GIB),
                 "a reduce");
}

static void pull_is_for_ranks_of_one_node(void **state)
{
    (void)state;
    if (!may_pull()) skip();
    for (int nodes = 1; nodes <= 2; nodes++) {
        engine_world_t world = ENGINE_WORLD(4, nodes);

        assert_int_equal(engine_world_threads(&world, ask_who_pulls, &world), 0);
    }
}

static void use_own_memory(engine_rank_t *rank, void *user)
{
    float *data = calloc(100000, sizeof(*data));
    dp_engine_piece_t piece = {
        .in = data, .out = data, .count = 100000, .prescale = 1.0, .postscale = 1.0};
    dp_engine_op_t op = {
        .collective = DP_COLLECTIVE_ALLREDUCE, .dtype = DP_F32, .pieces = &piece, .piece_count = 1};

    (void)user;
    engine_check(
        rank,
        !rank->engine->ops->pulls(rank->engine, DP_COLLECTIVE_ALLREDUCE, NULL, rank->size, DP_GIB),
        "pulls");
    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_ERR_INVALID, "status is %s", dp_status_string(op.status));
    engine_check(rank, strstr(op.text, "not engine memory") != NULL, "text is '%s'", op.text);
    free(data);
}

static void pull_can_be_turned_off(void **state)
{
    engine_world_t world = ENGINE_WORLD(2, 1);

    (void)state;
    world.pulls_nothing = ~0u;
    assert_int_equal(engine_world_threads(&world, use_own_memory, &world), 0);
}

/* ---- In pieces instead ---------------------------------------------------------------------- */

static void pull_gives_the_same_bits_where_nobody_may_read(void **state)
{
    (void)state;
    for (int size = under_sanitizer ? 3 : 2; size <= size_max; size++) {
        engine_world_t world = ENGINE_WORLD(size, 1);

        atomic_store(&permit, PERMIT_NOBODY);
        assert_int_equal(engine_world_threads(&world, compare_all, &world), 0);
        atomic_store(&permit, PERMIT_ALL);
    }
}

static void pull_gives_the_same_bits_where_one_may_not_read(void **state)
{
    engine_world_t world = ENGINE_WORLD(3, 1);

    (void)state;
    if (!may_pull()) skip();
    atomic_store(&permit, PERMIT_ALL_BUT_THE_FIRST);
    assert_int_equal(engine_world_threads(&world, compare_all, &world), 0);
    assert_int_equal(atomic_load(&permit), PERMIT_ALL); /* somebody was refused */
}

static void stage_works_between_processes(void **state)
{
    engine_world_t world = ENGINE_WORLD(3, 1);

    (void)state;
    atomic_store(&permit, PERMIT_NOBODY);
    assert_int_equal(engine_world_processes(&world, compare_all, &world), 0);
    atomic_store(&permit, PERMIT_ALL);
}

/* Large enough that both ways are tried, one after the other. */
static void repeat_large(engine_rank_t *rank, void *user)
{
    const size_t count = DP_METHOD_LEAST_BYTES / sizeof(float) + 7;
    float *data = malloc(count * sizeof(*data));
    dp_engine_piece_t piece = {
        .in = data, .out = data, .count = count, .prescale = 1.0, .postscale = 1.0};
    dp_engine_op_t op = {
        .collective = DP_COLLECTIVE_ALLREDUCE, .dtype = DP_F32, .pieces = &piece, .piece_count = 1};

    (void)user;
    for (int turn = 0; turn < 6; turn++) {
        size_t wrong = 0;

        for (size_t i = 0; i < count; i++)
            data[i] = (float)(rank->rank + turn) + (float)(i % 13);
        engine_run(rank, &op, DP_WORK_LARGE);
        engine_check(rank, op.status == DP_OK, "turn %d: %s", turn, op.text);
        for (size_t i = 0; i < count; i++)
            wrong += data[i] != (float)(1 + 2 * turn) + 2.0f * (float)(i % 13);
        engine_check(rank, wrong == 0, "turn %d: %zu of %zu are wrong", turn, wrong, count);
    }
    free(data);
}

static void pull_and_stage_take_turns(void **state)
{
    engine_world_t world = ENGINE_WORLD(2, 1);

    (void)state;
    assert_int_equal(engine_world_threads(&world, repeat_large, &world), 0);
}

static void hide_rank_1(engine_rank_t *rank, void *user)
{
    (void)user;
    compare(rank, (kind_t){DP_COLLECTIVE_ALLREDUCE, DP_F32, DP_SUM, 1}, 1u << 1);
}

/* Rank 0 wants no tensor of its own to be taken so, but the other's is. */
static void stage_takes_part_where_own_memory_is_shared(void **state)
{
    engine_world_t world = ENGINE_WORLD(2, 1);

    (void)state;
    world.pulls_nothing = 1u << 0;
    assert_int_equal(engine_world_threads(&world, hide_rank_1, &world), 0);
}

static void find_no_room(engine_rank_t *rank, void *user)
{
    float *data = calloc(100000, sizeof(*data));
    dp_engine_piece_t piece = {
        .in = data, .out = data, .count = 100000, .prescale = 1.0, .postscale = 1.0};
    dp_engine_op_t op = {
        .collective = DP_COLLECTIVE_ALLREDUCE, .dtype = DP_F32, .pieces = &piece, .piece_count = 1};
    void *memory;

    (void)user;
    while (rank->engine->ops->alloc(rank->engine, 4096, &memory) == DP_OK)
        continue;
    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_ERR_NO_MEMORY, "status is %s", dp_status_string(op.status));
    engine_check(rank, strstr(op.text, "no shared memory to hand over tensors") != NULL,
                 "text is '%s'", op.text);
    free(data);
}

static void stage_says_that_there_is_no_room(void **state)
{
    engine_world_t world = ENGINE_WORLD(2, 1);

    (void)state;
    world.arena_bytes = 4 * DP_MIB;
    atomic_store(&permit, PERMIT_NOBODY);
    assert_int_equal(engine_world_threads(&world, find_no_room, &world), 0);
    atomic_store(&permit, PERMIT_ALL);
}

/* ---- Failing -------------------------------------------------------------------------------- */

#define CAUSE "rank 0 gave up, says the test"

static void *abort_later(void *argument)
{
    const engine_rank_t *rank = argument;

    usleep(600000);
    rank->engine->ops->abort(rank->engine, DP_ERR_PEER_LOST, CAUSE);
    return NULL;
}

/* Rank 1 shows memory of which the part that rank 0 reads cannot be read. It is not unmapped: the
 * next mapping might take its place. user: whether rank 0, too, hears of a cause meanwhile. */
static void show_a_hole(engine_rank_t *rank, void *user)
{
    const size_t bytes = (size_t)4 * DP_MIB;
    char *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    dp_engine_piece_t piece = {
        .in = data, .out = data, .count = bytes / 4, .prescale = 1.0, .postscale = 1.0};
    dp_engine_op_t op = {
        .collective = DP_COLLECTIVE_ALLREDUCE, .dtype = DP_F32, .pieces = &piece, .piece_count = 1};
    const int is_told = rank->rank == 1 || *(const int *)user;
    pthread_t thread = pthread_self();

    if (data == MAP_FAILED) abort();
    if (rank->rank == 1 && mprotect(data, bytes / 4, PROT_NONE) != 0) abort();
    if (is_told && pthread_create(&thread, NULL, abort_later, rank) != 0) abort();
    engine_run(rank, &op, DP_WORK_SMALL);
    if (is_told) {
        pthread_join(thread, NULL);
        engine_check(rank, op.status == DP_ERR_PEER_LOST, "status %s", dp_status_string(op.status));
        engine_check(rank, strcmp(op.text, CAUSE) == 0, "text is '%s'", op.text);
    } else {
        engine_check(rank, op.status == DP_ERR_SYSTEM, "status %s", dp_status_string(op.status));
        engine_check(rank, strstr(op.text, "rank 0 cannot read the memory of rank 1: ") != NULL,
                     "text is '%s'", op.text);
    }
    munmap(data, bytes);
}

static void pull_says_whose_memory_cannot_be_read(void **state)
{
    engine_world_t world = ENGINE_WORLD(2, 1);

    (void)state;
    if (!may_pull()) skip();
    assert_int_equal(engine_world_processes(&world, show_a_hole, &(int){0}), 0);
}

static void pull_waits_for_the_cause(void **state)
{
    engine_world_t world = ENGINE_WORLD(2, 1);

    (void)state;
    if (!may_pull()) skip();
    world.peer_timeout_ns = UINT64_C(20000000000);
    assert_int_equal(engine_world_processes(&world, show_a_hole, &(int){1}), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pull_gives_the_bits_of_shared_memory),
        cmocka_unit_test(pull_works_between_processes),
        cmocka_unit_test(pull_is_for_ranks_of_one_node),
        cmocka_unit_test(pull_can_be_turned_off),
        cmocka_unit_test(pull_gives_the_same_bits_where_nobody_may_read),
        cmocka_unit_test(pull_gives_the_same_bits_where_one_may_not_read),
        cmocka_unit_test(stage_works_between_processes),
        cmocka_unit_test(pull_and_stage_take_turns),
        cmocka_unit_test(stage_takes_part_where_own_memory_is_shared),
        cmocka_unit_test(stage_says_that_there_is_no_room),
        cmocka_unit_test(pull_says_whose_memory_cannot_be_read),
        cmocka_unit_test(pull_waits_for_the_cause),
    };

    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
