/*
 * test_arena_adopt.c - memory of the program as pages of an arena: what is taken and what is not,
 * who sees it, and that it survives whatever fails.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"
#include "tests/unit/fail_call.h"
#include "runtime/shm/arena.h"
#include "runtime/shm/maps.h"
#include "tests/threads/threads.h"

#define PAGE ((size_t)4096)
#define RANKS 2

typedef struct member {
    dp_bootstrap_t *bootstrap;
    dp_topology_t topology;
    dp_log_t log;
    size_t arena_bytes;
    dp_arena_t *arena;
    dp_status_t status;
} member_t;

static void *open_member(void *argument)
{
    static const char *const names[RANKS] = {"a", "a"};
    member_t *member = argument;
    dp_error_t error;

    dp_log_init(&member->log, DP_LOG_ERROR, member->bootstrap->rank);
    member->status = dp_topology_init(&member->topology, names, member->bootstrap->size);
    if (member->status != DP_OK) return NULL;
    member->status =
        dp_arena_create(member->bootstrap, &member->topology, member->arena_bytes,
                        dp_now_ns() + 30000000000ull, &member->log, &member->arena, &error);
    return NULL;
}

static void open_all(member_t *members, int size, size_t arena_bytes)
{
    dp_bootstrap_t *bootstraps[RANKS];
    pthread_t threads[RANKS];

    memset(members, 0, (size_t)size * sizeof(*members));
    assert_int_equal(threads_bootstrap(size, bootstraps), DP_OK);
    for (int i = 0; i < size; i++) {
        members[i].bootstrap = bootstraps[i];
        members[i].arena_bytes = arena_bytes;
        assert_int_equal(pthread_create(&threads[i], NULL, open_member, &members[i]), 0);
    }
    for (int i = 0; i < size; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(members[i].status, DP_OK);
    }
}

static void close_all(member_t *members, int size)
{
    for (int i = 0; i < size; i++) {
        dp_arena_destroy(members[i].arena);
        dp_topology_fini(&members[i].topology);
        dp_bootstrap_destroy(members[i].bootstrap);
    }
}

static void *map_pages(size_t pages)
{
    void *memory =
        mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(memory, MAP_FAILED);
    return memory;
}

static void fill(void *memory, size_t bytes, uint64_t seed)
{
    uint64_t *words = memory;

    for (size_t i = 0; i < bytes / sizeof(*words); i++)
        words[i] = (i + seed) * 0x9e3779b97f4a7c15u;
}

/* The first byte that differs from fill(); SIZE_MAX: none. */
static size_t differs(const void *memory, size_t bytes, uint64_t seed)
{
    const uint64_t *words = memory;

    for (size_t i = 0; i < bytes / sizeof(*words); i++)
        if (words[i] != (i + seed) * 0x9e3779b97f4a7c15u) return i * sizeof(*words);
    return SIZE_MAX;
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

static char static_pages[8 * 4096] __attribute__((aligned(4096)));

static void adopted_memory_is_seen_by_peers_and_keeps_its_contents(void **state)
{
    const size_t bytes[] = {PAGE, 8 * PAGE, 5 * DP_MIB + 3 * PAGE, 8 * PAGE};
    char *memory[4];
    char *mapped = map_pages(10);
    member_t members[RANKS];

    (void)state;
    memory[0] = aligned_alloc(PAGE, PAGE); /* of the heap */
    memory[1] = mapped + PAGE;             /* a part of a mapping */
    memory[2] = aligned_alloc(PAGE, bytes[2]);
    memory[3] = static_pages;
    open_all(members, RANKS, 64 * DP_MIB);
    fill(mapped, 10 * PAGE, 77);
    for (size_t i = 0; i < 4; i++) {
        dp_error_t error = {DP_OK, ""};
        uint64_t offset = 0;
        char *theirs;

        fill(memory[i], bytes[i], i);
        assert_int_equal(dp_arena_adopt(members[0].arena, memory[i], bytes[i], &error), DP_OK);
        assert_string_equal(error.text, "");
        assert_int_equal(differs(memory[i], bytes[i], i), SIZE_MAX);
        assert_int_equal(dp_arena_find(members[0].arena, memory[i], bytes[i], &offset), 1);
        assert_int_equal(offset, dp_arena_offset(members[0].arena, memory[i], bytes[i]));
        theirs = dp_arena_at(members[1].arena, 0, offset, bytes[i]);
        assert_ptr_not_equal(theirs, memory[i]);
        assert_int_equal(differs(theirs, bytes[i], i), SIZE_MAX);
        fill(theirs, bytes[i], 100 + i);
        assert_int_equal(differs(memory[i], bytes[i], 100 + i), SIZE_MAX);
        fill(memory[i], bytes[i], 200 + i);
        assert_int_equal(differs(theirs, bytes[i], 200 + i), SIZE_MAX);
        /* huge pages are possible on both sides */
        if (bytes[i] >= 2 * DP_MIB) {
            assert_int_equal(offset % (2 * DP_MIB), (uintptr_t)memory[i] % (2 * DP_MIB));
        }
    }
    for (size_t i = 0; i < 4; i++) {
        const uint64_t offset = dp_arena_offset(members[0].arena, memory[i], bytes[i]);
        char *theirs = dp_arena_at(members[1].arena, 0, offset, bytes[i]);

        assert_int_equal(dp_arena_disown(members[0].arena, memory[i]), DP_OK);
        assert_int_equal(differs(memory[i], bytes[i], 200 + i), SIZE_MAX);
        memset(theirs, 0xff, bytes[i]); /* is no longer ours */
        assert_int_equal(differs(memory[i], bytes[i], 200 + i), SIZE_MAX);
        assert_int_equal(dp_arena_find(members[0].arena, memory[i], 1, NULL), 0);
        assert_int_equal(dp_maps_check(memory[i], bytes[i], NULL), DP_OK);
    }
    /* what lay beside it */
    assert_int_equal(differs(mapped, PAGE, 77), SIZE_MAX);
    assert_int_equal(differs(mapped + 9 * PAGE, PAGE, 77 + 9 * PAGE / 8), SIZE_MAX);
    close_all(members, RANKS);
    free(memory[0]);
    free(memory[2]);
    munmap(mapped, 10 * PAGE);
}

static void adopted_memory_is_found_to_the_byte(void **state)
{
    char *memory = map_pages(6);
    uint64_t offset = 0;
    member_t member;

    (void)state;
    open_all(&member, 1, 64 * DP_MIB);
    assert_int_equal(dp_arena_adopt(member.arena, memory + PAGE, 2 * PAGE, NULL), DP_OK);
    assert_int_equal(dp_arena_adopt(member.arena, memory + 3 * PAGE, PAGE, NULL), DP_OK);
    assert_int_equal(dp_arena_find(member.arena, memory + PAGE, 2 * PAGE, &offset), 1);
    assert_int_equal(dp_arena_offset(member.arena, memory + PAGE + 5, 3), offset + 5);
    assert_int_equal(dp_arena_find(member.arena, memory + PAGE + 1, 2 * PAGE - 1, NULL), 1);
    assert_int_equal(dp_arena_find(member.arena, memory + PAGE - 1, 2, NULL), 0);
    assert_int_equal(dp_arena_find(member.arena, memory, 1, NULL), 0);
    /* two registrations side by side are two, and lie anywhere in the arena */
    assert_int_equal(dp_arena_find(member.arena, memory + PAGE, 2 * PAGE + 1, NULL), 0);
    assert_int_equal(dp_arena_offset(member.arena, memory + PAGE, 2 * PAGE + 1), UINT64_MAX);
    assert_int_equal(dp_arena_find(member.arena, memory + 3 * PAGE, PAGE, NULL), 1);
    assert_int_equal(dp_arena_find(member.arena, memory + 4 * PAGE, 1, NULL), 0);
    /* giving back takes the start of a registration, and dp_free() none at all */
    assert_int_equal(dp_arena_disown(member.arena, memory + 2 * PAGE), DP_ERR_INVALID);
    assert_int_equal(dp_arena_disown(member.arena, &member), DP_ERR_INVALID);
    assert_int_equal(dp_arena_free(member.arena, memory + PAGE), DP_ERR_INVALID);
    assert_int_equal(dp_arena_disown(member.arena, memory + PAGE), DP_OK);
    assert_int_equal(dp_arena_disown(member.arena, memory + PAGE), DP_ERR_INVALID);
    close_all(&member, 1); /* with one still adopted */
    assert_int_equal(dp_maps_check(memory, 6 * PAGE, NULL), DP_OK);
    munmap(memory, 6 * PAGE);
}

/* Adopting it is refused with this status and words, and changes nothing. */
static void refused(dp_arena_t *arena, void *memory, size_t bytes, dp_status_t status,
                    const char *words)
{
    dp_error_t error = {DP_OK, ""};

    assert_int_equal(dp_arena_adopt(arena, memory, bytes, &error), status);
    if (strstr(error.text, words) == NULL) fail_msg("\"%s\" lacks \"%s\"", error.text, words);
}

static void *adopt_own_stack(void *argument)
{
    char here[8 * 4096];
    char *page = here + (PAGE - (uintptr_t)here % PAGE);

    memset(here, 1, sizeof(here));
    refused(argument, page, 4 * PAGE, DP_ERR_UNSUPPORTED, "stack");
    return here[8] == 1 ? argument : NULL;
}

static void what_cannot_be_adopted_is_refused_with_words(void **state)
{
    FILE *file = tmpfile();
    char *memory = map_pages(8);
    member_t member;
    pthread_t thread;
    void *ours, *answer = NULL;
    char *other;

    (void)state;
    open_all(&member, 1, 64 * DP_MIB);
    fill(memory, 8 * PAGE, 3);
    refused(member.arena, NULL, PAGE, DP_ERR_INVALID, "whole pages");
    refused(member.arena, memory, 0, DP_ERR_INVALID, "whole pages");
    refused(member.arena, memory, PAGE + 1, DP_ERR_INVALID, "whole pages");
    refused(member.arena, memory + 8, PAGE, DP_ERR_INVALID, "whole pages");
    refused(member.arena, memory, SIZE_MAX - PAGE + 1, DP_ERR_INVALID, "whole pages");
    refused(member.arena, memory, (size_t)1 << 46, DP_ERR_UNSUPPORTED, "");

    assert_int_equal(dp_arena_alloc(member.arena, 4 * PAGE, &ours), DP_OK);
    refused(member.arena, ours, PAGE, DP_ERR_INVALID, "already");
    assert_int_equal(dp_arena_adopt(member.arena, memory + 2 * PAGE, 2 * PAGE, NULL), DP_OK);
    refused(member.arena, memory + 2 * PAGE, 2 * PAGE, DP_ERR_INVALID, "overlaps the 8192 bytes");
    refused(member.arena, memory + 3 * PAGE, 2 * PAGE, DP_ERR_INVALID, "overlaps");
    refused(member.arena, memory + PAGE, 2 * PAGE, DP_ERR_INVALID, "overlaps");
    refused(member.arena, memory, 8 * PAGE, DP_ERR_INVALID, "overlaps");

    assert_int_equal(mprotect(memory + 5 * PAGE, PAGE, PROT_READ), 0);
    refused(member.arena, memory + 4 * PAGE, 2 * PAGE, DP_ERR_UNSUPPORTED, "not simply readable");
    assert_int_equal(munmap(memory + 5 * PAGE, PAGE), 0);
    refused(member.arena, memory + 4 * PAGE, 3 * PAGE, DP_ERR_UNSUPPORTED, "no memory at");
    if (syscall(SYS_mlock, memory + 6 * PAGE, PAGE) == 0) { /* sanitizers make mlock() a no-op */
        refused(member.arena, memory + 6 * PAGE, PAGE, DP_ERR_UNSUPPORTED, "mlock");
        assert_int_equal(syscall(SYS_munlock, memory + 6 * PAGE, PAGE), 0);
        assert_int_equal(dp_arena_adopt(member.arena, memory + 6 * PAGE, PAGE, NULL), DP_OK);
    }
    other = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    refused(member.arena, other, PAGE, DP_ERR_UNSUPPORTED, "shared memory");
    munmap(other, PAGE);
    assert_non_null(file);
    assert_int_equal(ftruncate(fileno(file), (off_t)PAGE), 0);
    other = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file), 0);
    refused(member.arena, other, PAGE, DP_ERR_UNSUPPORTED, "from a file");
    munmap(other, PAGE);
    fclose(file);
    assert_int_equal(pthread_create(&thread, NULL, adopt_own_stack, member.arena), 0);
    assert_int_equal(pthread_join(thread, &answer), 0);
    assert_ptr_equal(answer, member.arena);
    adopt_own_stack(member.arena);
    assert_int_equal(differs(memory, 5 * PAGE, 3), SIZE_MAX);
    close_all(&member, 1);
    munmap(memory, 8 * PAGE);
}

static void adopted_and_allocated_memory_never_meet(void **state)
{
    enum { COUNT = 60 };
    char *mapped = map_pages((size_t)COUNT * 9);
    void *allocated[COUNT];
    member_t member;

    (void)state;
    open_all(&member, 1, 64 * DP_MIB);
    for (int turn = 0; turn < 3; turn++) {
        for (size_t i = 0; i < COUNT; i++) {
            const size_t k = i * 7 % COUNT; /* not in ascending order */
            char *mine = mapped + k * 9 * PAGE;

            fill(mine, (k % 9 + 1) * PAGE, k);
            assert_int_equal(dp_arena_adopt(member.arena, mine, (k % 9 + 1) * PAGE, NULL), DP_OK);
            assert_int_equal(dp_arena_alloc(member.arena, (i % 5 + 1) * PAGE, &allocated[i]),
                             DP_OK);
            fill(allocated[i], (i % 5 + 1) * PAGE, 1000 + i);
        }
        for (size_t i = 0; i < COUNT; i++) {
            const size_t k = i * 11 % COUNT;
            char *mine = mapped + k * 9 * PAGE;
            const uint64_t offset = dp_arena_offset(member.arena, mine, (k % 9 + 1) * PAGE);

            assert_int_equal(differs(mine, (k % 9 + 1) * PAGE, k), SIZE_MAX);
            assert_int_equal(
                differs(dp_arena_at(member.arena, 0, offset, 1), (k % 9 + 1) * PAGE, k), SIZE_MAX);
            assert_int_equal(differs(allocated[i], (i % 5 + 1) * PAGE, 1000 + i), SIZE_MAX);
            if ((i + (size_t)turn) % 2 == 0) {
                assert_int_equal(dp_arena_disown(member.arena, mine), DP_OK);
                assert_int_equal(dp_arena_free(member.arena, allocated[i]), DP_OK);
                allocated[i] = NULL;
            }
        }
        for (size_t i = 0; i < COUNT; i++) {
            char *mine = mapped + i * 9 * PAGE;

            assert_int_equal(differs(mine, (i % 9 + 1) * PAGE, i), SIZE_MAX);
            if (dp_arena_find(member.arena, mine, PAGE, NULL)) {
                assert_int_equal(dp_arena_disown(member.arena, mine), DP_OK);
            }
            assert_int_equal(dp_arena_free(member.arena, allocated[i]), DP_OK);
        }
    }
    close_all(&member, 1);
    munmap(mapped, (size_t)COUNT * 9 * PAGE);
}

static void shared_pages_come_back(void **state)
{
    const size_t bytes = 12 * DP_MIB;
    char *memory = map_pages(bytes / PAGE);
    member_t member;
    uint64_t before;

    (void)state;
    open_all(&member, 1, 16 * DP_MIB); /* room for one of them, not for two */
    memset(memory, 1, bytes);
    before = shared_kib();
    for (int i = 0; i < 20; i++) {
        assert_int_equal(dp_arena_adopt(member.arena, memory, bytes, NULL), DP_OK);
        assert_true(shared_kib() >= before + bytes / 1024);
        assert_int_equal(dp_arena_disown(member.arena, memory), DP_OK);
        assert_in_range(shared_kib(), 0, before + 64);
    }
    assert_int_equal(dp_arena_adopt(member.arena, memory, bytes, NULL), DP_OK);
    close_all(&member, 1);
    assert_in_range(shared_kib(), 0, before + 64);
    munmap(memory, bytes);
}

/* A program that frees registered memory too early may have other data there by now. */
static void what_the_program_put_there_since_is_left_alone(void **state)
{
    char *memory = map_pages(8);
    member_t member;

    (void)state;
    open_all(&member, 1, 64 * DP_MIB);
    member.log.fd = -1; /* the warnings */
    assert_int_equal(dp_arena_adopt(member.arena, memory, 2 * PAGE, NULL), DP_OK);
    assert_int_equal(dp_arena_adopt(member.arena, memory + 4 * PAGE, 2 * PAGE, NULL), DP_OK);
    assert_ptr_equal(mmap(memory + PAGE, PAGE, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
                     memory + PAGE);
    assert_int_equal(munmap(memory + 4 * PAGE, 2 * PAGE), 0);
    memset(memory + PAGE, 5, PAGE);
    assert_int_equal(dp_arena_disown(member.arena, memory), DP_ERR_INVALID);
    assert_int_equal(memory[2 * PAGE - 1], 5);
    assert_int_equal(dp_arena_disown(member.arena, memory), DP_ERR_INVALID);
    close_all(&member, 1);
    assert_int_equal(memory[2 * PAGE - 1], 5);
    assert_int_equal(dp_maps_check(memory + 4 * PAGE, PAGE, NULL), DP_ERR_UNSUPPORTED);
    munmap(memory, 8 * PAGE);
}

/* ---- Threads -------------------------------------------------------------------------------- */

typedef struct searcher {
    dp_arena_t *arena;
    char *memory; /* adopted throughout */
    uint64_t offset;
    _Atomic int *stops;
    long lost;
    pthread_t thread;
} searcher_t;

static void *search(void *argument)
{
    searcher_t *self = argument;

    do {
        for (size_t i = 0; i < 3 * PAGE; i += 512) {
            self->lost += dp_arena_offset(self->arena, self->memory + i, 1) != self->offset + i ||
                          !dp_arena_find(self->arena, self->memory + i, 1, NULL);
        }
    } while (!atomic_load(self->stops));
    return NULL;
}

static void searching_never_misses_while_others_register(void **state)
{
    enum { COUNT = 80 };
    char *mapped = map_pages((size_t)COUNT * 4);
    _Atomic int stops = 0;
    searcher_t searchers[2];
    member_t member;

    (void)state;
    open_all(&member, 1, 64 * DP_MIB);
    for (size_t i = 0; i < 2; i++) {
        char *memory = mapped + (size_t)(i == 0 ? 3 : 41) * 4 * PAGE;

        assert_int_equal(dp_arena_adopt(member.arena, memory, 3 * PAGE, NULL), DP_OK);
        searchers[i] = (searcher_t){.arena = member.arena, .memory = memory, .stops = &stops};
        searchers[i].offset = dp_arena_offset(member.arena, memory, 1);
        assert_int_equal(pthread_create(&searchers[i].thread, NULL, search, &searchers[i]), 0);
    }
    for (int turn = 0; turn < 5; turn++) {
        for (size_t i = 0; i < COUNT; i++) {
            const size_t k = i * 13 % COUNT;

            if (k == 3 || k == 41) continue;
            assert_int_equal(dp_arena_adopt(member.arena, mapped + k * 4 * PAGE, PAGE, NULL),
                             DP_OK);
        }
        for (size_t i = 0; i < COUNT; i++) {
            const size_t k = i * 29 % COUNT;

            if (k == 3 || k == 41) continue;
            assert_int_equal(dp_arena_disown(member.arena, mapped + k * 4 * PAGE), DP_OK);
        }
    }
    atomic_store(&stops, 1);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(searchers[i].thread, NULL), 0);
        assert_int_equal(searchers[i].lost, 0);
    }
    close_all(&member, 1);
    munmap(mapped, (size_t)COUNT * 4 * PAGE);
}

/* ---- Failing -------------------------------------------------------------------------------- */

/* Whatever call fails, adopting answers with an error and the memory is as it was; or it did not
 * matter, and the memory is adopted. Then the same for disowning. */
static void survive(int leaves_hole)
{
    const size_t bytes = 70 * DP_MIB; /* more than two chunks */
    char *memory = map_pages(bytes / PAGE);
    member_t member;
    int reached = 1, failures = 0;

    open_all(&member, 1, 128 * DP_MIB);
    member.log.fd = -1;
    for (long nth = 1; reached; nth++) {
        dp_error_t error = {DP_OK, ""};
        dp_status_t status;

        assert_true(nth < 100);
        fill(memory, bytes, (uint64_t)nth);
        fail_call(nth, leaves_hole);
        status = dp_arena_adopt(member.arena, memory, bytes, &error);
        reached = fail_call_reached();
        if (differs(memory, bytes, (uint64_t)nth) != SIZE_MAX) {
            fail_msg("call %ld, %s: byte %zu differs", nth, fail_call_name(),
                     differs(memory, bytes, (uint64_t)nth));
        }
        if (status != DP_OK) {
            assert_true(reached);
            assert_string_not_equal(error.text, "");
            assert_int_equal(dp_maps_check(memory, bytes, NULL), DP_OK);
            assert_int_equal(dp_arena_find(member.arena, memory, 1, NULL), 0);
            failures++;
            continue;
        }
        assert_int_equal(dp_arena_find(member.arena, memory, bytes, NULL), 1);
        assert_int_equal(dp_arena_disown(member.arena, memory), DP_OK);
    }
    assert_true(failures >= 6); /* open, read, three times pages, the mapping */
    failures = 0;
    reached = 1;
    for (long nth = 1; reached; nth++) {
        dp_status_t status;

        assert_true(nth < 100);
        fill(memory, bytes, (uint64_t)nth);
        if (!dp_arena_find(member.arena, memory, 1, NULL)) {
            assert_int_equal(dp_arena_adopt(member.arena, memory, bytes, NULL), DP_OK);
        }
        fail_call(nth, leaves_hole);
        status = dp_arena_disown(member.arena, memory);
        reached = fail_call_reached();
        if (differs(memory, bytes, (uint64_t)nth) != SIZE_MAX) {
            fail_msg("call %ld, %s: byte %zu differs", nth, fail_call_name(),
                     differs(memory, bytes, (uint64_t)nth));
        }
        assert_int_equal(dp_arena_find(member.arena, memory, 1, NULL), status != DP_OK);
        failures += status != DP_OK;
    }
    assert_true(failures >= 1);
    close_all(&member, 1);
    assert_int_equal(dp_maps_check(memory, bytes, NULL), DP_OK);
    munmap(memory, bytes);
}

static void memory_survives_failed_calls(void **state)
{
    (void)state;
    survive(0);
}

static void memory_survives_a_mapping_that_left_a_hole(void **state)
{
    (void)state;
    survive(1);
}

static void memory_survives_failed_allocations(void **state)
{
    char *memory = map_pages(2);
    int reached = 1;

    (void)state;
    for (long nth = 1; reached; nth++) {
        dp_status_t status;
        member_t member;

        open_all(&member, 1, 64 * DP_MIB);
        fill(memory, 2 * PAGE, 9);
        fail_allocation(nth);
        status = dp_arena_adopt(member.arena, memory, 2 * PAGE, NULL);
        reached = fail_allocation_reached();
        assert_int_equal(status, reached ? DP_ERR_NO_MEMORY : DP_OK);
        assert_int_equal(differs(memory, 2 * PAGE, 9), SIZE_MAX);
        close_all(&member, 1);
        assert_int_equal(dp_maps_check(memory, 2 * PAGE, NULL), DP_OK);
    }
    munmap(memory, 2 * PAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adopted_memory_is_seen_by_peers_and_keeps_its_contents),
        cmocka_unit_test(adopted_memory_is_found_to_the_byte),
        cmocka_unit_test(what_cannot_be_adopted_is_refused_with_words),
        cmocka_unit_test(adopted_and_allocated_memory_never_meet),
        cmocka_unit_test(shared_pages_come_back),
        cmocka_unit_test(what_the_program_put_there_since_is_left_alone),
        cmocka_unit_test(searching_never_misses_while_others_register),
        cmocka_unit_test(memory_survives_failed_calls),
        cmocka_unit_test(memory_survives_a_mapping_that_left_a_hole),
        cmocka_unit_test(memory_survives_failed_allocations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
