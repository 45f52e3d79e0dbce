/*
 * fuzz_line.c - any bytes over the lines between ranks: from strangers, from neighbours that know
 * the keys, and from a lower transport that anybody may reach.
 *
 * An input is a row of steps. The first byte says which end this target plays: even, it calls rank
 * 0, which waits for ranks 1 and 2; odd, it is rank 0, which rank 1 calls. What the rank reports
 * must be of a neighbour. Signs of life come only from one that proved itself, losses once and with
 * a printable sentence, messages never: this target makes none with a right code.
 */
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/wire.h"
#include "runtime/network/interface.h"
#include "runtime/transport/line_internal.h"

#define RANKS 3
#define CALLERS 8
#define STEPS_MAX 48
#define MS 1000000ull

static const dp_secret_t secret = {{1, 2, 3}};

/* ---- The transport below: one message at a time, of anybody --------------------------------- */

typedef struct box {
    dp_transport_t base;
    uint8_t data[256];
    size_t bytes; /* 0: none waits */
    int from;
} box_t;

static dp_status_t box_address(dp_transport_t *base, void *data, size_t room, size_t *bytes)
{
    (void)base;
    (void)data;
    (void)room;
    *bytes = 0;
    return DP_OK;
}

static dp_status_t box_connect(dp_transport_t *base, const int *ranks, const void *const *addresses,
                               const size_t *bytes, int count, dp_error_t *error)
{
    (void)base;
    (void)ranks;
    (void)addresses;
    (void)bytes;
    (void)count;
    (void)error;
    return DP_OK;
}

static dp_status_t box_poll(dp_transport_t *base, dp_transport_event_t *out)
{
    box_t *box = (box_t *)base;
    const size_t bytes = box->bytes;

    if (bytes == 0) return DP_ERR_PENDING;
    box->bytes = 0;
    *out = (dp_transport_event_t){
        .kind = DP_TRANSPORT_MESSAGE, .rank = box->from, .data = box->data, .bytes = bytes};
    return DP_OK;
}

static dp_status_t box_arm(dp_transport_t *base)
{
    (void)base;
    return DP_OK;
}

static void box_close(dp_transport_t *base, uint64_t deadline_ns)
{
    (void)base;
    (void)deadline_ns;
}

static void box_destroy(dp_transport_t *base)
{
    free(base);
}

static const dp_transport_ops_t box_ops = {.name = "box",
                                           .address = box_address,
                                           .connect = box_connect,
                                           .poll = box_poll,
                                           .arm = box_arm,
                                           .rearm = box_arm,
                                           .close = box_close,
                                           .destroy = box_destroy};

/* ---- The world ------------------------------------------------------------------------------ */

/* This target's end of a connection. */
typedef struct caller {
    int fd;
    int rank; /* as which it proved itself; -1: a stranger */
    dp_code_key_t beat;
    uint32_t beats;
} caller_t;

typedef struct world {
    dp_transport_t *rank;
    box_t *box;
    int own;      /* the rank's number */
    int listener; /* this target's; -1 */
    uint8_t address[DP_ADDRESS_MAX];
    uint8_t nonces[RANKS][DP_LINE_NONCE_BYTES];
    caller_t callers[CALLERS];
    int caller_count;
    int is_proven[RANKS], is_lost[RANKS];
} world_t;

static dp_line_t *line_of_world(world_t *world)
{
    return (dp_line_t *)world->rank;
}

static void check_event(world_t *world, const dp_transport_event_t *event)
{
    if (event->kind == DP_TRANSPORT_MESSAGE) abort();
    if (event->rank < 0 || event->rank >= RANKS || event->rank == world->own) abort();
    if (world->is_lost[event->rank]) abort();
    if (event->kind == DP_TRANSPORT_ALIVE) {
        if (!world->is_proven[event->rank]) abort();
        return;
    }
    world->is_lost[event->rank] = 1;
    if (event->text[0] == '\0') abort();
    for (const char *at = event->text; *at != '\0'; at++)
        if ((unsigned char)*at < 0x20) abort();
}

static void look(world_t *world)
{
    dp_transport_event_t event;

    for (int round = 0; round < 4; round++) {
        (void)world->rank->ops->arm(world->rank); /* the next poll looks at the lines */
        for (int i = 0; i < 1000 && world->rank->ops->poll(world->rank, &event) == DP_OK; i++)
            check_event(world, &event);
    }
}

static void edge_to(world_t *world, int other, dp_secret_t *edge)
{
    const int lower = world->own < other ? world->own : other;
    const int higher = world->own < other ? other : world->own;

    dp_line_edge_secret(&secret, (uint32_t)lower, (uint32_t)higher, world->nonces[lower],
                        world->nonces[higher], edge);
}

/* The address of a rank that this target plays: its nonce, 127.0.0.1, its listener's port. */
static void write_address(world_t *world, int rank, uint8_t address[DP_LINE_ADDRESS])
{
    static const uint8_t ip[16] = {127, 0, 0, 1};
    struct sockaddr_in name = {0};
    socklen_t bytes = sizeof(name);
    dp_writer_t writer;

    if (world->listener >= 0 && getsockname(world->listener, (struct sockaddr *)&name, &bytes) != 0)
        abort();
    memset(address, 0, DP_LINE_ADDRESS);
    dp_writer_init(&writer, address, DP_LINE_ADDRESS);
    dp_write_bytes(&writer, world->nonces[rank], DP_LINE_NONCE_BYTES);
    dp_write_u8(&writer, 4);
    dp_write_bytes(&writer, ip, sizeof(ip));
    dp_write_u16(&writer, ntohs(name.sin_port));
}

static void open_listener(world_t *world)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    world->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (world->listener < 0 || bind(world->listener, (struct sockaddr *)&name, sizeof(name)) != 0 ||
        listen(world->listener, CALLERS) != 0)
        abort();
}

static void connect_world(world_t *world, const int *ranks, int count)
{
    uint8_t addresses[RANKS][DP_LINE_ADDRESS];
    const void *list[RANKS];
    size_t bytes[RANKS];

    if (world->rank->ops->address(world->rank, world->address, sizeof(world->address), bytes) !=
        DP_OK)
        abort();
    memcpy(world->nonces[world->own], line_of_world(world)->nonce, DP_LINE_NONCE_BYTES);
    for (int i = 0; i < count; i++) {
        write_address(world, ranks[i], addresses[i]);
        list[i] = addresses[i];
        bytes[i] = DP_LINE_ADDRESS;
    }
    if (world->rank->ops->connect(world->rank, ranks, list, bytes, count, NULL) != DP_OK) abort();
}

/* 0: the line could not be made, and has freed the box below it. */
static int open_line(world_t *world, const dp_line_options_t *options)
{
    dp_error_t error;

    world->box = calloc(1, sizeof(*world->box));
    if (world->box == NULL) abort();
    world->box->base.ops = &box_ops;
    return dp_transport_line_create(options, &world->box->base, &world->rank, &error) == DP_OK;
}

static void open_world(world_t *world, int own)
{
    static const int others[2][2] = {{1, 2}, {0, -1}};
    char lo[IF_NAMESIZE];
    dp_log_t log;
    dp_line_options_t options = {.rank = own,
                                 .secret = &secret,
                                 .ranks = others[own],
                                 .count = 2 - own,
                                 .network_interface = lo,
                                 .beat_ns = 100 * MS,
                                 .timeout_ns = 60000 * MS,
                                 .start_ns = 60000 * MS,
                                 .log = &log};
    int tries = 0;

    dp_interface_loopback(lo);
    dp_log_init(&log, DP_LOG_ERROR, own);
    memset(world, 0, sizeof(*world));
    world->own = own;
    world->listener = -1;
    for (int i = 0; i < RANKS; i++)
        memset(world->nonces[i], 7 + i, DP_LINE_NONCE_BYTES);
    while (!open_line(world, &options))
        fuzz_await_port(&tries);
    if (own == 1) open_listener(world);
    connect_world(world, options.ranks, options.count);
}

/* ---- Steps ---------------------------------------------------------------------------------- */

static void say(world_t *world, const void *data, size_t bytes)
{
    if (world->caller_count == 0 || bytes == 0) return;
    (void)send(world->callers[world->caller_count - 1].fd, data, bytes,
               MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Receives bytes, which are there at once on the loopback device. 0: they are not. */
static int hear(world_t *world, caller_t *caller, void *data, size_t bytes)
{
    look(world);
    return recv(caller->fd, data, bytes, MSG_DONTWAIT) == (ssize_t)bytes;
}

static caller_t *call(world_t *world)
{
    const dp_line_t *line = line_of_world(world);
    caller_t *caller = &world->callers[world->caller_count];
    int fd;

    if (world->caller_count == CALLERS) return NULL;
    if (world->listener >= 0) {
        look(world);
        fd = accept4(world->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) return NULL; /* the rank does not call now */
    } else {
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) abort();
        if (line->expected == 0 ||
            connect(fd, (const struct sockaddr *)&line->own, line->own_bytes) != 0) {
            close(fd); /* all have come */
            return NULL;
        }
    }
    *caller = (caller_t){.fd = fd, .rank = -1};
    world->caller_count++;
    look(world);
    return caller;
}

static void make_beat_key(caller_t *caller, const dp_secret_t *edge, const uint8_t *listeners,
                          const uint8_t *connectors)
{
    uint8_t both[2 * DP_CHALLENGE_BYTES];

    memcpy(both, listeners, DP_CHALLENGE_BYTES);
    memcpy(both + DP_CHALLENGE_BYTES, connectors, DP_CHALLENGE_BYTES);
    dp_line_code_key(edge, "beat", (uint32_t)caller->rank, both, sizeof(both), &caller->beat);
}

/* Calls as a neighbour; flip: a byte of the hello is another one, 0: none. */
static void call_as(world_t *world, int rank, unsigned flip)
{
    static const uint8_t own_challenge[DP_CHALLENGE_BYTES] = {9};
    uint8_t greeting[DP_LINE_GREETING_BYTES];
    uint8_t hello[DP_LINE_HELLO_BYTES];
    uint8_t welcome[DP_LINE_WELCOME_BYTES];
    const uint8_t *challenge;
    caller_t *caller = call(world);
    dp_secret_t edge;

    if (caller == NULL || !hear(world, caller, greeting, sizeof(greeting))) return;
    if (dp_line_greeting_read(greeting, &challenge) != NULL) abort();
    edge_to(world, rank, &edge);
    dp_line_hello_write(&edge, line_of_world(world)->world, (uint32_t)rank, challenge,
                        own_challenge, hello);
    if (flip != 0) hello[flip % sizeof(hello)] ^= (uint8_t)flip;
    if (flip == 0 && !world->is_lost[rank]) world->is_proven[rank] = 1;
    say(world, hello, sizeof(hello));
    if (!hear(world, caller, welcome, sizeof(welcome))) return;
    if (dp_line_welcome_read(&edge, challenge, own_challenge, welcome) != DP_LINE_ACCEPTED) return;
    if (flip != 0) abort();
    caller->rank = rank;
    make_beat_key(caller, &edge, challenge, own_challenge);
}

/* Answers the rank's call as rank 0; flip: likewise, of the welcome. */
static void answer_as(world_t *world, unsigned flip)
{
    static const uint8_t challenge[DP_CHALLENGE_BYTES] = {5};
    uint8_t greeting[DP_LINE_GREETING_BYTES];
    uint8_t data[DP_LINE_HELLO_BYTES];
    uint8_t welcome[DP_LINE_WELCOME_BYTES];
    caller_t *caller = call(world);
    dp_line_hello_t hello;
    dp_secret_t edge;

    if (caller == NULL) return;
    dp_line_greeting_write(challenge, greeting);
    say(world, greeting, sizeof(greeting));
    if (!hear(world, caller, data, sizeof(data))) return;
    edge_to(world, 0, &edge);
    if (dp_line_hello_read(data, &hello) != NULL ||
        !dp_line_hello_is_proven(&edge, challenge, &hello))
        abort();
    dp_line_welcome_write(&edge, challenge, hello.challenge, welcome);
    if (flip != 0) welcome[flip % sizeof(welcome)] ^= (uint8_t)flip;
    if (flip == 0) world->is_proven[0] = 1;
    say(world, welcome, sizeof(welcome));
    look(world);
    if (flip != 0) return;
    caller->rank = 0;
    make_beat_key(caller, &edge, challenge, hello.challenge);
}

static void beat(world_t *world, dp_line_beat_kind_t kind, unsigned flip)
{
    uint8_t data[DP_LINE_BEAT_BYTES];
    caller_t *caller;

    if (world->caller_count == 0) return;
    caller = &world->callers[world->caller_count - 1];
    if (caller->rank < 0) return;
    dp_line_beat_write(&caller->beat, kind, ++caller->beats, data);
    if (flip != 0) data[flip % sizeof(data)] ^= (uint8_t)flip;
    say(world, data, sizeof(data));
    look(world);
}

static void step(world_t *world, uint8_t what, fuzz_input_t *input)
{
    const unsigned flip = (unsigned)fuzz_number(input, 1);
    const uint8_t *part;
    size_t got;

    switch (what % 7) {
    case 0:
        (void)call(world);
        break;
    case 1:
        if (world->own == 0) call_as(world, 1 + (what >> 4) % 2, flip);
        if (world->own == 1) answer_as(world, flip);
        break;
    case 2:
        part = fuzz_take(input, flip, &got);
        say(world, part, got);
        break;
    case 3:
        if (world->caller_count > 0) close(world->callers[--world->caller_count].fd);
        break;
    case 4:
        beat(world, (what >> 4) % 4 == 3 ? DP_LINE_FAREWELL : DP_LINE_BEAT, flip);
        break;
    case 5: /* a message of anybody */
        part = fuzz_take(input, flip, &world->box->bytes);
        memcpy(world->box->data, part, world->box->bytes);
        world->box->from = world->own == 0 ? 1 + (what >> 4) % 2 : 0;
        break;
    default:
        world->rank->ops->give_up(world->rank, world->own == 0 ? 1 + (what >> 4) % 2 : 0);
        world->is_lost[world->own == 0 ? 1 + (what >> 4) % 2 : 0] = 1; /* no loss is told */
        break;
    }
    look(world);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_input_t input = {data, bytes};
    world_t world;

    open_world(&world, (int)(fuzz_number(&input, 1) % 2));
    for (int i = 0; i < STEPS_MAX && input.bytes > 0; i++)
        step(&world, (uint8_t)fuzz_number(&input, 1), &input);
    for (int i = 0; i < world.caller_count; i++) {
        const struct linger at_once = {1, 0}; /* no port is left waiting */

        (void)setsockopt(world.callers[i].fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        close(world.callers[i].fd);
    }
    if (world.listener >= 0) close(world.listener);
    look(&world);
    dp_transport_destroy(world.rank);
    return 0;
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const struct {
        uint8_t bytes[32];
        size_t count;
    } plays[] = {
        /* both neighbours come, beat, one says farewell and one just ends */
        {{0, 1, 0, 4, 0, 4, 0, 0x16, 0, 0x11, 0, 4, 0, 0x34, 0, 3, 0, 3, 0}, 19},
        /* a stranger, a wrong proof, the right one, one that is here already, a forged message */
        {{0, 0, 0, 2, 4, 'G', 'E', 'T', ' ', 1, 9, 1, 0, 1, 0, 5, 8, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0},
         27},
        /* the rank calls: answered with a wrong welcome, or rightly, then a wrong beat */
        {{1, 1, 7, 0, 0}, 5},
        {{1, 1, 0, 4, 0, 4, 3, 3, 0}, 9},
        {{1, 0, 0, 2, 5, 'D', 'P', 'L', 'N', 9, 3, 0}, 12},
    };

    if (which >= sizeof(plays) / sizeof(plays[0]) || room < sizeof(plays[0].bytes)) return 0;
    memcpy(data, plays[which].bytes, plays[which].count);
    return plays[which].count;
}
