/*
 * test_turns.c - lines in several pieces from several writers: each comes out whole, and no writer
 * can keep the others waiting for ever.
 */
#include "launcher/dprun/output/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/common.h"

#define WRITERS 4
#define LINES 200

typedef struct world {
    struct event_base *base;
    dp_sink_t *sink;
    dp_turns_t *turns;
    int fd;
    int broken[WRITERS];
} world_t;

static void on_drained(void *context)
{
    (void)context;
}

static void on_broken_sink(void *context, int fd, int error)
{
    (void)context;
    fail_msg("descriptor %d: %s", fd, strerror(error));
}

static void on_broken_turn(void *context, int writer)
{
    world_t *world = context;

    world->broken[writer]++;
    dp_turns_write(world->turns, writer, "\n", 1);
}

static void open_world(world_t *world)
{
    const dp_sink_events_t events = {on_drained, on_broken_sink, NULL};
    dp_error_t error;

    memset(world, 0, sizeof(*world));
    world->base = event_base_new();
    world->fd = memfd_create("turns", MFD_CLOEXEC);
    assert_int_equal(dp_sink_create(world->base, world->fd, &events, &world->sink, &error), DP_OK);
    assert_int_equal(dp_turns_create(world->base, world->sink, WRITERS, on_broken_turn, world,
                                     &world->turns, &error),
                     DP_OK);
}

/* Returns what was written, for free(). */
static char *close_world(world_t *world)
{
    off_t bytes;
    char *text;

    dp_sink_flush(world->sink);
    assert_int_equal(dp_turns_waiting(world->turns), 0);
    bytes = lseek(world->fd, 0, SEEK_END);
    text = calloc(1, (size_t)bytes + 1);
    assert_int_equal(pread(world->fd, text, (size_t)bytes, 0), bytes);
    dp_turns_destroy(world->turns);
    dp_sink_destroy(world->sink);
    event_base_free(world->base);
    close(world->fd);
    return text;
}

static void turns_keep_each_line_whole(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 20; seed++) {
        int line[WRITERS] = {0}, piece[WRITERS] = {0}, next[WRITERS] = {0};
        int ended = 0;
        world_t world;
        char *text, *rest, *at;

        open_world(&world);
        while (ended < WRITERS) {
            const int writer = rand_r(&seed) % WRITERS;
            const int goes_on = rand_r(&seed) % 4 != 0;
            char word[32];

            if (line[writer] == LINES) continue;
            snprintf(word, sizeof(word), "%d.%d.%d%s", writer, line[writer], piece[writer],
                     goes_on ? " " : "\n");
            dp_turns_write(world.turns, writer, word, strlen(word));
            dp_turns_end_piece(world.turns, writer, goes_on);
            piece[writer] = goes_on ? piece[writer] + 1 : 0;
            if (!goes_on && ++line[writer] == LINES) ended++;
        }
        assert_false(dp_turns_are_taken(world.turns));
        rest = text = close_world(&world);
        while ((at = strsep(&rest, "\n")) != NULL && *at != '\0') {
            int writer = -1, of = -1, number = -1, expected = 0;
            char *word;

            while ((word = strsep(&at, " ")) != NULL) {
                int same = writer;

                assert_int_equal(sscanf(word, "%d.%d.%d", &writer, &of, &number), 3);
                assert_true(expected == 0 || writer == same);
                assert_int_equal(of, next[writer]);
                assert_int_equal(number, expected++);
            }
            next[writer]++;
        }
        for (int i = 0; i < WRITERS; i++) {
            assert_int_equal(next[i], LINES);
            assert_int_equal(world.broken[i], 0);
        }
        free(text);
    }
}

/* A writer that never ends its line: what waits is bounded, by bytes and by time. */
static void turns_end_for_those_who_wait(void **state)
{
    char *block = malloc(1 << 20);
    world_t world;
    char *text;

    (void)state;
    memset(block, 'x', 1 << 20);
    block[(1 << 20) - 1] = '\n';
    open_world(&world);
    dp_turns_write(world.turns, 0, "begin", 5);
    dp_turns_end_piece(world.turns, 0, 1);
    for (int i = 0; i < 40; i++) {
        dp_turns_write(world.turns, 1, block, 1 << 20);
        dp_turns_end_piece(world.turns, 1, 0);
        assert_true(dp_turns_waiting(world.turns) <= 17u << 20);
    }
    assert_int_equal(world.broken[0], 1);
    assert_int_equal(world.broken[1], 0);
    dp_sink_flush(world.sink); /* a full sink would excuse the silence */
    dp_turns_write(world.turns, 2, "silent", 6);
    dp_turns_end_piece(world.turns, 2, 1);
    dp_turns_write(world.turns, 3, "waits\n", 6);
    dp_turns_end_piece(world.turns, 3, 0);
    while (world.broken[2] == 0)
        event_base_loop(world.base, EVLOOP_ONCE);
    text = close_world(&world);
    assert_int_equal(strncmp(text, "begin\nxxx", 9), 0);
    assert_non_null(strstr(text, "\nsilent\nwaits\n"));
    free(text);
    free(block);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_keep_each_line_whole),
        cmocka_unit_test(turns_end_for_those_who_wait),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
