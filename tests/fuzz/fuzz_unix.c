/*
 * fuzz_unix.c - any bytes over UNIX sockets to a rank that waits for its neighbours: strangers, and
 * connections that know the key.
 *
 * An input is a row of steps, a byte each and what it needs: a connection, bytes over the latest
 * one, its end, a look by the rank. What the rank reports must be of a neighbour, each of whom is
 * lost at most once, and nothing may come from it then.
 */
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/transport/frame.h"
#include "runtime/transport/peer_socket.h"

#define TAG 0x0123456789abcdefull
#define RANKS 3   /* this one is 0 */
#define CALLERS 8 /* connections of one input */

static volatile unsigned sum;

typedef struct world {
    dp_transport_t *rank;
    dp_peer_socket_address_t door;
    int callers[CALLERS];
    int caller_count;
    int is_lost[RANKS];
} world_t;

static void look(world_t *world)
{
    dp_transport_event_t event;

    for (int i = 0; i < 10000; i++) {
        if (world->rank->ops->poll(world->rank, &event) != DP_OK) return;
        if (event.rank < 1 || event.rank >= RANKS || world->is_lost[event.rank]) abort();
        if (event.kind == DP_TRANSPORT_PEER_LOST) {
            world->is_lost[event.rank] = 1;
            sum += (unsigned)strlen(event.text);
            continue;
        }
        if (event.bytes > DP_FRAME_TOTAL_MAX) abort();
        for (size_t k = 0; k < event.bytes; k++)
            sum += ((const uint8_t *)event.data)[k];
    }
    abort(); /* more events than an input has bytes */
}

static void say(world_t *world, const void *data, size_t bytes)
{
    if (world->caller_count == 0 || bytes == 0) return;
    (void)send(world->callers[world->caller_count - 1], data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void call(world_t *world, int rank)
{
    dp_peer_socket_hello_t hello;
    int fd;

    if (world->caller_count == CALLERS) return;
    fd = dp_peer_socket_connect(&world->door);
    if (fd < 0) return; /* all have come */
    world->callers[world->caller_count++] = fd;
    if (rank < 0) return;
    dp_peer_socket_hello_make(&hello, rank, TAG, &world->door);
    say(world, &hello, sizeof(hello));
}

static int world_open(world_t *world)
{
    static const int others[RANKS - 1] = {1, 2};
    static uint8_t own[DP_ADDRESS_MAX];
    const void *addresses[RANKS - 1] = {own, own}; /* they are threads of this process */
    size_t bytes[RANKS - 1];
    dp_log_t log;

    dp_log_init(&log, DP_LOG_ERROR, 0);
    memset(world, 0, sizeof(*world));
    if (dp_transport_unix_create(0, TAG, others, RANKS - 1, NULL, &log, &world->rank, NULL) !=
        DP_OK)
        return -1;
    if (world->rank->ops->address(world->rank, own, sizeof(own), &bytes[0]) != DP_OK) abort();
    bytes[1] = bytes[0];
    dp_peer_socket_address_read(&world->door, own + 1);
    if (world->rank->ops->connect(world->rank, others, addresses, bytes, RANKS - 1, NULL) != DP_OK)
        abort();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_input_t input = {data, bytes};
    world_t world;

    if (world_open(&world) != 0) return 0;
    while (input.bytes > 0) {
        const uint8_t step = (uint8_t)fuzz_number(&input, 1);
        const uint8_t *part;
        size_t got;

        switch (step % 5) {
        case 0:
            call(&world, -1);
            break;
        case 1:
            call(&world, step >> 4);
            break;
        case 2:
            part = fuzz_take(&input, fuzz_number(&input, 1), &got);
            say(&world, part, got);
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
    dp_transport_destroy(world.rank);
    return 0;
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const uint8_t messages[] = {0x11, 2, 10, 2, 0, 0, 0, 1, 0, 0, 0, 'h', 'i',
                                       4,    2, 8,  0, 0, 0, 0, 2, 0, 0, 0, 4,   3};
    static const uint8_t pieces[] = {0x21, 2, 3, 4, 0, 0, 4,   2,   5,   0,   1,
                                     0,    0, 0, 4, 2, 4, 'a', 'b', 'c', 'd', 4};
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
