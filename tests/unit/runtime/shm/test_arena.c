/*
 * test_arena.c - shared memory of the ranks of a node: seeing each other, giving back, running out,
 * strangers.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"
#include "runtime/base/local_socket.h"
#include "runtime/shm/arena.h"
#include "runtime/shm/arena_internal.h"
#include "tests/threads/threads.h"

#define RANKS 5

typedef struct member {
    int rank;
    int nodes;
    dp_bootstrap_t *bootstrap;
    size_t arena_bytes;
    long fail_nth; /* allocation of this rank that fails */
    uint64_t patience_ns;
    int reached;
    dp_topology_t topology;
    dp_arena_t *arena;
    void *memory;
    dp_status_t status;
    dp_error_t error;
} member_t;

static void *open_member(void *argument)
{
    static const char *const names[] = {"a", "b", "c"};
    member_t *member = argument;
    const char *list[RANKS];
    dp_log_t log;

    dp_log_init(&log, DP_LOG_ERROR, member->rank);
    for (int i = 0; i < member->bootstrap->size; i++)
        list[i] = names[i % member->nodes];
    member->status = dp_topology_init(&member->topology, list, member->bootstrap->size);
    if (member->status != DP_OK) return NULL;
    fail_allocation(member->fail_nth);
    member->status =
        dp_arena_create(member->bootstrap, &member->topology, member->arena_bytes,
                        dp_now_ns() + member->patience_ns, &log, &member->arena, &member->error);
    member->reached = fail_allocation_reached();
    fail_allocation(0);
    return NULL;
}

/* Opens all ranks in threads of their own. On rank 0 the nth allocation fails; 0: none. */
static void open_all(member_t *members, int size, int nodes, size_t arena_bytes, long fail_nth)
{
    dp_bootstrap_t *bootstraps[RANKS];
    pthread_t threads[RANKS];

    assert_int_equal(threads_bootstrap(size, bootstraps), DP_OK);
    memset(members, 0, (size_t)size * sizeof(*members));
    for (int i = 0; i < size; i++) {
        members[i].rank = i;
        members[i].nodes = nodes;
        members[i].bootstrap = bootstraps[i];
        members[i].arena_bytes = arena_bytes;
        members[i].fail_nth = i == 0 ? fail_nth : 0;
        members[i].patience_ns = fail_nth != 0 ? 100000000 : 10000000000;
        assert_int_equal(pthread_create(&threads[i], NULL, open_member, &members[i]), 0);
    }
    for (int i = 0; i < size; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
}

static void close_all(member_t *members, int size)
{
    for (int i = 0; i < size; i++) {
        dp_arena_destroy(members[i].arena);
        dp_topology_fini(&members[i].topology);
        dp_bootstrap_destroy(members[i].bootstrap);
    }
}

static void arena_is_seen_by_all_of_the_node(void **state)
{
    member_t members[RANKS];

    (void)state;
    for (int nodes = 1; nodes <= 3; nodes++) {
        open_all(members, RANKS, nodes, 64 * DP_MIB, 0);
        for (int i = 0; i < RANKS; i++) {
            assert_string_equal(members[i].error.text, "");
            assert_int_equal(members[i].status, DP_OK);
            assert_int_equal(dp_arena_alloc(members[i].arena, 10000, &members[i].memory), DP_OK);
            snprintf(members[i].memory, 100, "from rank %d", i);
        }
        for (int i = 0; i < RANKS; i++) {
            for (int k = i % nodes; k < RANKS; k += nodes) {
                const int local = members[k].topology.local_rank[k];
                const uint64_t offset = dp_arena_offset(members[k].arena, members[k].memory, 100);
                char text[100];

                snprintf(text, sizeof(text), "from rank %d", k);
                assert_string_equal(dp_arena_at(members[i].arena, local, offset, 100), text);
            }
            assert_null(dp_arena_at(members[i].arena, 0, 64 * DP_MIB - 1, 2));
            assert_null(dp_arena_at(members[i].arena, 0, UINT64_MAX, 1));
            assert_null(dp_arena_at(members[i].arena, RANKS, 0, 1));
        }
        strcpy(dp_arena_control(members[0].arena, 100), "control");
        assert_string_equal(dp_arena_control(members[nodes == 1 ? 1 : nodes].arena, 100),
                            "control");
        assert_null(dp_arena_control(members[0].arena, dp_arena_control_room(RANKS) + 1));
        close_all(members, RANKS);
    }
}

static void arena_memory_is_zeroed_again(void **state)
{
    member_t member;
    unsigned char *blocks[50];

    (void)state;
    open_all(&member, 1, 1, 64 * DP_MIB, 0);
    for (int turn = 0; turn < 3; turn++) {
        for (size_t i = 0; i < DP_ARRAY_LEN(blocks); i++) {
            const size_t bytes = i * 3000;
            void *memory;

            assert_int_equal(dp_arena_alloc(member.arena, bytes, &memory), DP_OK);
            assert_int_equal((uintptr_t)memory % 4096, 0);
            blocks[i] = memory;
            for (size_t k = 0; k < bytes; k++)
                assert_int_equal(blocks[i][k], 0);
            memset(blocks[i], 0xff, bytes);
        }
        for (size_t i = 0; i < DP_ARRAY_LEN(blocks); i++) { /* nobody wrote into another's */
            const size_t k = (i * 7 + (size_t)turn) % DP_ARRAY_LEN(blocks);

            if (k != 0) assert_int_equal(blocks[k][k * 3000 - 1], 0xff);
            assert_int_equal(dp_arena_free(member.arena, blocks[k]), DP_OK);
        }
    }
    close_all(&member, 1);
}

static void arena_finds_only_what_is_allocated(void **state)
{
    member_t member;
    void *memory;
    char *text;
    uint64_t offset = 1;

    (void)state;
    open_all(&member, 1, 1, 64 * DP_MIB, 0);
    assert_int_equal(dp_arena_alloc(member.arena, 8192, &memory), DP_OK);
    text = memory;
    assert_int_equal(dp_arena_find(member.arena, text, 8192, &offset), 1);
    assert_int_equal(offset, dp_arena_offset(member.arena, text, 1));
    assert_int_equal(dp_arena_find(member.arena, text + 100, 8092, NULL), 1);
    assert_int_equal(dp_arena_find(member.arena, text + 100, 8093, NULL), 0);
    assert_int_equal(dp_arena_find(member.arena, text - 1, 1, NULL) &&
                         dp_arena_find(member.arena, text - 1, 2, NULL),
                     0);
    assert_int_equal(dp_arena_find(member.arena, &member, 1, NULL), 0);
    assert_int_equal(dp_arena_find(member.arena, NULL, 0, NULL), 0);
    assert_int_equal(dp_arena_free(member.arena, text + 4096), DP_ERR_INVALID);
    assert_int_equal(dp_arena_free(member.arena, &member), DP_ERR_INVALID);
    assert_int_equal(dp_arena_free(member.arena, NULL), DP_OK);
    assert_int_equal(dp_arena_free(member.arena, text), DP_OK);
    assert_int_equal(dp_arena_free(member.arena, text), DP_ERR_INVALID);
    assert_int_equal(dp_arena_find(member.arena, text, 1, NULL), 0);
    close_all(&member, 1);
}

static void arena_runs_out_with_an_error(void **state)
{
    member_t member;
    void *first;
    void *memory = NULL;

    (void)state;
    open_all(&member, 1, 1, 16 * DP_MIB, 0);
    assert_int_equal(dp_arena_alloc(member.arena, 17 * DP_MIB, &memory), DP_ERR_NO_MEMORY);
    assert_int_equal(dp_arena_alloc(member.arena, SIZE_MAX, &memory), DP_ERR_NO_MEMORY);
    assert_int_equal(dp_arena_alloc(member.arena, 12 * DP_MIB, &first), DP_OK);
    assert_int_equal(dp_arena_alloc(member.arena, 12 * DP_MIB, &memory), DP_ERR_NO_MEMORY);
    assert_null(memory);
    assert_int_equal(dp_arena_free(member.arena, first), DP_OK);
    assert_int_equal(dp_arena_alloc(member.arena, 12 * DP_MIB, &memory), DP_OK);
    close_all(&member, 1);
}

static uint64_t shared_kib(void)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[200];
    unsigned long long kib = 0;

    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "RssShmem: %llu", &kib) == 1) break;
    }
    fclose(file);
    return kib;
}

static void arena_gives_freed_memory_back(void **state)
{
    member_t member;
    uint64_t before;
    void *memory;

    (void)state;
    open_all(&member, 1, 1, 256 * DP_MIB, 0);
    before = shared_kib();
    assert_int_equal(dp_arena_alloc(member.arena, 64 * DP_MIB, &memory), DP_OK);
    memset(memory, 1, 64 * DP_MIB);
    assert_true(shared_kib() >= before + 60 * 1024);
    assert_int_equal(dp_arena_free(member.arena, memory), DP_OK);
    assert_true(shared_kib() <= before + 4 * 1024);
    close_all(&member, 1);
}

/* ---- Strangers ------------------------------------------------------------------------------ */

/* A bootstrap that tells a stranger where the leader listens. */
typedef struct spy {
    dp_bootstrap_t base;
    dp_bootstrap_t *real;
    int sockets[4];
} spy_t;

static dp_status_t spy_exchange(dp_bootstrap_t *self, const char *name, const void *value,
                                size_t value_bytes, void **values, size_t *bytes,
                                uint64_t deadline_ns, dp_error_t *error)
{
    static const char garbage[300] = "GET / HTTP/1.0";
    spy_t *spy = (spy_t *)(void *)self;
    const dp_status_t status = spy->real->ops->exchange(spy->real, name, value, value_bytes, values,
                                                        bytes, deadline_ns, error);

    if (status != DP_OK || self->rank != 1) return status;
    for (int i = 0; i < 4; i++)
        spy->sockets[i] = dp_local_try_connect(values[0]);
    /* [0] says nothing; the others say something wrong. */
    assert_int_equal(send(spy->sockets[1], garbage, 14, 0), 14);
    assert_int_equal(send(spy->sockets[2], garbage, 24, 0), 24);
    assert_int_equal(send(spy->sockets[3], garbage, sizeof(garbage), 0), sizeof(garbage));
    return DP_OK;
}

static void arena_ignores_strangers(void **state)
{
    static const dp_bootstrap_ops_t spy_ops = {.name = "spy", .exchange = spy_exchange};
    dp_bootstrap_t *bootstraps[3];
    member_t members[3] = {0};
    spy_t spies[3] = {0};
    pthread_t threads[3];

    (void)state;
    assert_int_equal(threads_bootstrap(3, bootstraps), DP_OK);
    for (int i = 0; i < 3; i++) {
        spies[i] = (spy_t){.base = *bootstraps[i], .real = bootstraps[i]};
        spies[i].base.ops = &spy_ops;
        members[i] = (member_t){.rank = i, .nodes = 1, .bootstrap = &spies[i].base};
        members[i].arena_bytes = 16 * DP_MIB;
        members[i].patience_ns = 10000000000;
        assert_int_equal(pthread_create(&threads[i], NULL, open_member, &members[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_string_equal(members[i].error.text, "");
        assert_int_equal(members[i].status, DP_OK);
        dp_arena_destroy(members[i].arena);
        dp_topology_fini(&members[i].topology);
        dp_bootstrap_destroy(bootstraps[i]);
    }
    for (int i = 0; i < 4; i++)
        close(spies[1].sockets[i]);
}

/* A descriptor that is no arena, sent by a rank of the job. */
typedef struct forger {
    dp_bootstrap_t *bootstrap;
    int fd;
} forger_t;

static void *share_forgery(void *argument)
{
    static const char *const names[] = {"a", "a"};
    const forger_t *forger = argument;
    dp_error_t error = {0};
    dp_topology_t topology;
    int fds[2];
    dp_log_t log;

    dp_log_init(&log, DP_LOG_ERROR, 1);
    if (dp_topology_init(&topology, names, 2) != DP_OK) return NULL;
    if (dp_arena_share(forger->bootstrap, &topology, forger->fd, dp_now_ns() + 10000000000ull, &log,
                       fds, &error) == DP_OK)
        close(fds[0]);
    dp_topology_fini(&topology);
    return NULL;
}

static int make_forgery(int which)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    const off_t bytes[] = {16 * (off_t)DP_MIB, 4096, 16 * (off_t)DP_MIB + 5};
    int ends[2];
    int fd;

    if (which == 3) {
        assert_int_equal(pipe(ends), 0);
        close(ends[1]);
        return ends[0];
    }
    fd = memfd_create("forgery", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, bytes[which]), 0);
    if (which > 0) assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0); /* 0 can be made shorter */
    return fd;
}

static void arena_that_could_shrink_is_refused(void **state)
{
    (void)state;
    for (int which = 0; which < 4; which++) {
        dp_bootstrap_t *bootstraps[2];
        member_t member = {.nodes = 1, .arena_bytes = 16 * DP_MIB, .patience_ns = 10000000000};
        forger_t forger;
        pthread_t thread;

        assert_int_equal(threads_bootstrap(2, bootstraps), DP_OK);
        member.bootstrap = bootstraps[0];
        forger = (forger_t){bootstraps[1], make_forgery(which)};
        assert_int_equal(pthread_create(&thread, NULL, share_forgery, &forger), 0);
        (void)open_member(&member);
        pthread_join(thread, NULL);
        assert_int_equal(member.status, DP_ERR_SYSTEM);
        assert_string_equal(member.error.text,
                            "shared memory: what local rank 1 sent is not its arena");
        close(forger.fd);
        dp_topology_fini(&member.topology);
        dp_bootstrap_destroy(bootstraps[0]);
        dp_bootstrap_destroy(bootstraps[1]);
    }
}

/* ---- Failing -------------------------------------------------------------------------------- */

static int count_descriptors(void)
{
    struct stat about;
    int count = 0;

    for (int fd = 0; fd < 256; fd++)
        count += fstat(fd, &about) == 0;
    return count;
}

static void arena_survives_failed_allocations(void **state)
{
    member_t members[2];
    const int descriptors = count_descriptors();

    (void)state;
    for (long nth = 1; nth < 100; nth++) {
        int reached;

        open_all(members, 2, 1, 16 * DP_MIB, nth);
        reached = members[0].reached;
        if (members[0].status == DP_OK) {
            assert_int_equal(members[1].status, DP_OK);
        } else {
            assert_true(reached);
            assert_int_not_equal(members[1].status, DP_OK); /* it hears, or its time is up */
            assert_string_not_equal(members[0].error.text, "");
            assert_string_not_equal(members[1].error.text, "");
        }
        close_all(members, 2);
        assert_int_equal(count_descriptors(), descriptors);
        if (!reached) return;
    }
    fail_msg("no end of allocations");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arena_is_seen_by_all_of_the_node),
        cmocka_unit_test(arena_memory_is_zeroed_again),
        cmocka_unit_test(arena_finds_only_what_is_allocated),
        cmocka_unit_test(arena_runs_out_with_an_error),
        cmocka_unit_test(arena_gives_freed_memory_back),
        cmocka_unit_test(arena_ignores_strangers),
        cmocka_unit_test(arena_that_could_shrink_is_refused),
        cmocka_unit_test(arena_survives_failed_allocations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
