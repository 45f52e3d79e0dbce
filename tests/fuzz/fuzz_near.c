/*
 * fuzz_near.c - any bytes and descriptors over UNIX sockets to a rank that waits for its
 * neighbours: strangers, and connections that know the key.
 *
 * An input is a row of steps, a byte each and what it needs: a connection, bytes over the latest
 * one, its end, a look by the rank. What the rank reports must be of a neighbour, whose files come
 * once at most and who is lost at most once, behind them; no descriptor is left open.
 */
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/transport/near.h"

#define TAG 0x0123456789abcdefull
#define RANKS 3   /* this one is 0 */
#define CALLERS 8 /* connections of one input */

static volatile unsigned sum;

typedef struct world {
    dp_near_t *rank;
    dp_peer_socket_address_t door;
    int callers[CALLERS];
    int caller_count;
    int has_given[RANKS];
    int is_lost[RANKS];
} world_t;

static void look(world_t *world)
{
    dp_near_event_t event;

    while (dp_near_poll(world->rank, &event)) {
        if (event.rank < 1 || event.rank >= RANKS || world->is_lost[event.rank]) abort();
        if (event.lost != NULL) {
            world->is_lost[event.rank] = 1;
            sum += (unsigned)strlen(event.lost);
            continue;
        }
        if (world->has_given[event.rank]) abort();
        world->has_given[event.rank] = 1;
        for (int i = 0; i < DP_NEAR_FILES; i++)
            if (close(event.files[i]) != 0) abort();
    }
}

static void say(world_t *world, const void *data, size_t bytes, int files)
{
    static const int given[] = {0, 1, 2, 0};

    if (world->caller_count == 0 || bytes == 0) return;
    (void)dp_local_send(world->callers[world->caller_count - 1], data, bytes, given, files);
}

static void call(world_t *world, int rank, int files)
{
    dp_peer_socket_hello_t hello;
    int fd;

    if (world->caller_count == CALLERS) return;
    fd = dp_local_try_connect(world->door.name);
    if (fd < 0) return; /* all have come */
    world->callers[world->caller_count++] = fd;
    if (rank < 0) return;
    dp_peer_socket_hello_make(&hello, rank, TAG, &world->door);
    say(world, &hello, sizeof(hello), files);
}

static int world_open(world_t *world)
{
    static const int others[RANKS - 1] = {1, 2}, files[DP_NEAR_FILES] = {0, 1};
    uint8_t own[DP_PEER_SOCKET_ADDRESS];
    dp_log_t log;

    dp_log_init(&log, DP_LOG_ERROR, 0);
    memset(world, 0, sizeof(*world));
    if (dp_near_create(0, TAG, others, RANKS - 1, files, &log, &world->rank, NULL) != DP_OK)
        return -1;
    dp_near_address(world->rank, own);
    dp_peer_socket_address_read(&world->door, own);
    for (int i = 0; i < RANKS - 1; i++) /* they are threads of this process */
        dp_near_connect(world->rank, others[i], own);
    return 0;
}

/* The next descriptor: the same before and after, if none was left open. */
static int next_fd(void)
{
    const int fd = dup(STDIN_FILENO);

    close(fd);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_input_t input = {data, bytes};
    const int fd = next_fd();
    world_t world;

    if (world_open(&world) != 0) return 0;
    while (input.bytes > 0) {
        const uint8_t step = (uint8_t)fuzz_number(&input, 1);
        const uint8_t *part;
        size_t got;

        switch (step % 5) {
        case 0:
            call(&world, -1, 0);
            break;
        case 1: /* mostly as it should be */
            call(&world, step >> 4 & 3, step >> 6 == 0 ? DP_NEAR_FILES : step >> 6);
            break;
        case 2:
            part = fuzz_take(&input, fuzz_number(&input, 1), &got);
            say(&world, part, got, (step >> 4) % 4);
            break;
        case 3:
            if (world.caller_count > 0) close(world.callers[--world.caller_count]);
            break;
        default:
            look(&world);
            break;
        }
    }
    look(&world);
    while (world.caller_count > 0)
        close(world.callers[--world.caller_count]);
    look(&world);
    dp_near_destroy(world.rank);
    if (next_fd() != fd) abort();
    return 0;
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const uint8_t messages[] = {0x11, 2, 1, 'B', 4, 0x15 + 11, 2, 1, 'F', 4, 3, 4};
    static const uint8_t pieces[] = {0x1a, 4, 2, 2, 'F', 'B', 4, 0x5b, 2, 1, 'x', 4};
    static const uint8_t strangers[] = {0, 2, 4, 'G', 'E', 'T', ' ', 4, 0, 0x31, 4, 0x11, 0x11, 3};
    static const struct {
        const uint8_t *data;
        size_t bytes;
    } seeds[] = {
        {messages, sizeof(messages)}, {pieces, sizeof(pieces)}, {strangers, sizeof(strangers)}};

    if (which >= DP_ARRAY_LEN(seeds) || seeds[which].bytes > room) return 0;
    memcpy(data, seeds[which].data, seeds[which].bytes);
    return seeds[which].bytes;
}
