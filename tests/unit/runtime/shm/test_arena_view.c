/*
 * test_arena_view.c - views of parts of several arenas: what they show, that nobody writes through
 * them, and that nothing is left where one cannot be made.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/shm/arena.h"
#include "tests/threads/threads.h"
#include "tests/unit/cases.h"

#define PAGE ((size_t)4096)
#define RANKS 2

static int failing; /* this call of mremap, counted down; 0: none */

long __real_syscall(long number, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f);

long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f)
{
    if (number != SYS_mremap || failing == 0 || --failing > 0)
        return __real_syscall(number, a, b, c, d, e, f);
    errno = ENOMEM;
    return -1;
}

typedef struct member {
    dp_bootstrap_t *bootstrap;
    dp_topology_t topology;
    dp_log_t log;
    dp_arena_t *arena;
    dp_status_t status;
} member_t;

static member_t members[RANKS];

static void *open_member(void *argument)
{
    static const char *const names[RANKS] = {"a", "a"};
    member_t *member = argument;
    dp_error_t error;

    dp_log_init(&member->log, DP_LOG_ERROR, member->bootstrap->rank);
    member->status = dp_topology_init(&member->topology, names, RANKS);
    if (member->status != DP_OK) return NULL;
    member->status =
        dp_arena_create(member->bootstrap, &member->topology, 64 * DP_MIB,
                        dp_now_ns() + 30000000000ull, &member->log, &member->arena, &error);
    return NULL;
}

static int open_arenas(void **state)
{
    dp_bootstrap_t *bootstraps[RANKS];
    pthread_t threads[RANKS];

    (void)state;
    failing = 0;
    memset(members, 0, sizeof(members));
    assert_int_equal(threads_bootstrap(RANKS, bootstraps), DP_OK);
    for (int i = 0; i < RANKS; i++) {
        members[i].bootstrap = bootstraps[i];
        assert_int_equal(pthread_create(&threads[i], NULL, open_member, &members[i]), 0);
    }
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(members[i].status, DP_OK);
    }
    return 0;
}

static int close_arenas(void **state)
{
    (void)state;
    for (int i = 0; i < RANKS; i++) {
        dp_arena_destroy(members[i].arena);
        dp_topology_fini(&members[i].topology);
        dp_bootstrap_destroy(members[i].bootstrap);
    }
    return 0;
}

/* Pages of a rank with `mark` in all of them. */
static dp_arena_part_t make_part(int rank, size_t pages, int mark, char **memory)
{
    dp_arena_part_t part = {.local = rank, .bytes = pages * PAGE};
    void *own;

    assert_int_equal(dp_arena_alloc(members[rank].arena, part.bytes, &own), DP_OK);
    memset(own, mark, part.bytes);
    assert_true(dp_arena_find(members[rank].arena, own, part.bytes, &part.offset));
    *memory = own;
    return part;
}

static void a_view_shows_the_pages_of_all_arenas_in_order(void **state)
{
    char *memory[3];
    const dp_arena_part_t parts[3] = {make_part(1, 3, 'b', &memory[0]),
                                      make_part(0, 600, 'a', &memory[1]),
                                      make_part(1, 1, 'c', &memory[2])};
    dp_error_t error;

    (void)state;
    for (int rank = 0; rank < RANKS; rank++) {
        const void *view = NULL;
        const char *seen;

        assert_int_equal(dp_arena_view_create(members[rank].arena, parts, 3, &view, &error), DP_OK);
        seen = view;
        for (size_t i = 0; i < 604 * PAGE; i++)
            assert_int_equal(seen[i], i < 3 * PAGE ? 'b' : i < 603 * PAGE ? 'a' : 'c');
        memory[1][599 * PAGE] = 'x'; /* the same pages, not a copy */
        assert_int_equal(seen[602 * PAGE], 'x');
        memory[1][599 * PAGE] = 'a';
        dp_arena_view_destroy(view, 604 * PAGE);
    }
    assert_int_equal(memory[0][0], 'b'); /* what was shown is still there */
    dp_arena_view_destroy(NULL, PAGE);
}

static void a_write_through_a_view_ends_the_process(void **state)
{
    char *memory;
    const dp_arena_part_t part = make_part(0, 1, 'a', &memory);
    const void *view;
    dp_error_t error;
    int how;
    pid_t child;

    (void)state;
    assert_int_equal(dp_arena_view_create(members[0].arena, &part, 1, &view, &error), DP_OK);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)signal(SIGSEGV, SIG_DFL);
        *(volatile char *)(uintptr_t)view = 'z';
        _exit(0);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    /* A sanitizer makes an exit of the signal. */
    assert_true(WIFSIGNALED(how) || WEXITSTATUS(how) != 0);
    assert_int_equal(memory[0], 'a');
    dp_arena_view_destroy(view, PAGE);
}

static void what_is_not_pages_of_an_arena_is_refused(void **state)
{
    char *memory;
    const dp_arena_part_t good = make_part(1, 2, 'a', &memory);
    const dp_arena_part_t bad[] = {
        {RANKS, good.offset, PAGE},
        {-1, good.offset, PAGE},
        {1, good.offset + 64, PAGE},
        {1, good.offset, PAGE / 2},
        {1, good.offset, 0},
        {1, UINT64_MAX - PAGE + 1, PAGE},
        {1, good.offset, 64 * DP_MIB * 2},
        {1, UINT64_MAX, PAGE},
    };
    const void *view = NULL;
    dp_error_t error;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const dp_arena_part_t parts[2] = {good, bad[i]};

        assert_int_equal(dp_arena_view_create(members[0].arena, parts, 2, &view, &error),
                         DP_ERR_INVALID);
        assert_non_null(strstr(error.text, "local rank"));
    }
    assert_int_equal(dp_arena_view_create(members[0].arena, &good, 0, &view, &error),
                     DP_ERR_INVALID);
    assert_null(view);
}

/* Mappings of this process. */
static int count_mappings(void)
{
    FILE *file = fopen("/proc/self/maps", "re");
    int count = 0, letter;

    assert_non_null(file);
    while ((letter = fgetc(file)) != EOF)
        count += letter == '\n';
    (void)fclose(file);
    return count;
}

static void a_system_that_does_not_map_twice_is_told(void **state)
{
    char *memory[2];
    const dp_arena_part_t parts[2] = {make_part(0, 2, 'a', &memory[0]),
                                      make_part(1, 2, 'b', &memory[1])};
    const int before = count_mappings();
    const void *view = NULL;
    dp_error_t error;

    (void)state;
    for (int n = 1; n <= 2; n++) {
        failing = n;
        assert_int_equal(dp_arena_view_create(members[1].arena, parts, 2, &view, &error),
                         DP_ERR_UNSUPPORTED);
        assert_non_null(strstr(error.text, "cannot be mapped a second time"));
        assert_null(view);
    }
    /* The part where it failed stays reserved. */
    assert_in_range(count_mappings(), before, before + 2);
    assert_int_equal(memory[0][PAGE], 'a');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_view_shows_the_pages_of_all_arenas_in_order),
        cmocka_unit_test(a_write_through_a_view_ends_the_process),
        cmocka_unit_test(what_is_not_pages_of_an_arena_is_refused),
        cmocka_unit_test(a_system_that_does_not_map_twice_is_told),
    };

    return cmocka_run_group_tests(tests, open_arenas, close_arenas);
}
