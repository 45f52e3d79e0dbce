/*
 * fuzz_fleet.c - any frames of the stations of two nodes, at dprun: about the node, messages,
 * output, files, connections of ranks to the rendezvous; and any bytes in a station's tunnel, of
 * local connections on one side and of dprun on the other.
 *
 * The first byte of an input chooses; then it is a row of (u8 what, u8 size, bytes). Whatever a
 * node sends, dprun hears only of its own ranks, writes only files of recorders into the run
 * directory, and gives bytes of a connection to that connection alone. A rank that proves itself
 * through a tunnel joins.
 */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launcher/dprun/remote/fleet_internal.h"
#include "runtime/base/local_socket.h"
#include "runtime/base/rendezvous.h"
#include "tests/fuzz/scratch.h"

#define NODES 2
#define RANKS 2 /* of each node */
#define STEPS_MAX 48
#define CONNECTIONS 8 /* of a node, by their numbers */
#define CLIENTS 4
#define PROVE 0x7f /* a step: the right hello of a rank, in a connection */

static void turn(struct event_base *base)
{
    for (int i = 0; i < 4; i++)
        (void)event_base_loop(base, EVLOOP_NONBLOCK);
}

/* ---- dprun's end ---------------------------------------------------------------------------- */

typedef struct world {
    struct event_base *base;
    dp_fleet_t fleet;
    dp_fleet_node_t list[NODES];
    dp_host_t hosts[NODES];
    dp_nodes_t nodes;
    dp_command_t command;
    dp_rendezvous_t *rendezvous;
    dp_secret_t secret;
    uint8_t challenges[NODES][CONNECTIONS][DP_CHALLENGE_BYTES]; /* that came back in a tunnel */
    char has_challenge[NODES][CONNECTIONS];
    int wires[NODES]; /* the stations' ends, which are silent */
    int serving;      /* the node whose frame is being read */
    int has_proven, has_joined;
} world_t;

static void check_rank(const world_t *world, int rank)
{
    if (rank < world->serving * RANKS || rank >= (world->serving + 1) * RANKS) abort();
}

static void on_line(void *context, const char *line)
{
    (void)context;
    for (; *line != '\0'; line++)
        if ((unsigned char)*line < ' ') abort(); /* it goes to a terminal */
}

static void on_message(void *context, dp_message_t *message)
{
    if (message->rank >= 0) check_rank(context, message->rank);
    for (int i = 0; i < DP_MESSAGE_FDS; i++)
        if (message->fds[i] != -1) abort();
}

static void on_output(void *context, int rank, int stream, const char *data, size_t bytes)
{
    static volatile char last;

    check_rank(context, rank);
    if (stream < 1 || stream > 2) abort();
    if (bytes > 0) last = data[bytes - 1];
    (void)last;
}

static void on_lost(void *context, int node, const dp_fleet_loss_t *loss)
{
    if (node != ((world_t *)context)->serving) abort();
    on_line(context, loss->why);
}

static void on_number(void *context, int number)
{
    (void)context;
    (void)number;
}

static void on_signalled(void *context, const char *node, int number, int is_again)
{
    (void)number;
    (void)is_again;
    on_line(context, node);
}

static void on_memory(void *context, const dp_memory_sight_t *before,
                      const dp_memory_sight_t *after)
{
    (void)context;
    if (before == NULL || after == NULL) abort();
}

static int open_tunnel(void *context, int node)
{
    world_t *world = context;
    int ends[2];

    if (node != world->serving) abort();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) return -1;
    dp_rendezvous_adopt(world->rendezvous, ends[0], "a process of node x", node);
    return ends[1];
}

/* Takes dprun's bytes in the station's place: a challenge is kept. */
static void on_tunnel_frame(void *context, uint8_t type, const void *fields, size_t bytes)
{
    dp_fleet_node_t *node = context;
    world_t *world = (world_t *)(uintptr_t)node->fleet->events.context;
    dp_reader_t reader;
    uint32_t number;

    dp_reader_init(&reader, fields, bytes);
    number = dp_read_u32(&reader);
    if (reader.failed) abort();
    if (type != DP_REMOTE_TUNNEL_DATA || number >= CONNECTIONS ||
        dp_reader_left(&reader) != DP_KV_SERVER_HELLO_BYTES)
        return;
    memcpy(world->challenges[node->index][number],
           (const uint8_t *)fields + 4 + (DP_KV_SERVER_HELLO_BYTES - DP_CHALLENGE_BYTES),
           DP_CHALLENGE_BYTES);
    world->has_challenge[node->index][number] = 1;
}

static void on_joined(void *context, int rank)
{
    world_t *world = context;

    if (rank < 0 || rank >= NODES * RANKS || !world->has_proven) abort();
    world->has_joined = 1;
}

static void on_failed(void *context, int rank, const dp_failure_t *failure)
{
    (void)context;
    if (rank < 0 || rank >= NODES * RANKS || failure == NULL) abort();
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    (void)context;
}

static void frame(world_t *world, int index, uint8_t type, const uint8_t *data, size_t bytes)
{
    dp_fleet_node_t *node = &world->list[index];
    dp_reader_t fields;

    if (node->link == NULL) return; /* lost */
    world->serving = index;
    dp_reader_init(&fields, data, bytes);
    dp_fleet_link_events.frame(&world->fleet, node->link, type, &fields);
    turn(world->base);
}

/* bytes: connection, rank. The proof is right if the connection has had its challenge. */
static void prove(world_t *world, int index, const uint8_t *data, size_t bytes)
{
    const unsigned number = bytes > 0 ? data[0] % CONNECTIONS : 0;
    const unsigned rank = bytes > 1 ? data[1] : 0;
    uint8_t fields[4 + DP_KV_CLIENT_HELLO_BYTES] = {(uint8_t)number};

    if (!world->has_challenge[index][number]) return;
    dp_kv_client_hello_write(&world->secret, world->challenges[index][number],
                             world->challenges[index][number], (int)rank, fields + 4);
    world->has_proven = 1;
    frame(world, index, DP_REMOTE_TUNNEL_DATA, fields, sizeof(fields));
}

static void open_world(world_t *world)
{
    const dp_rendezvous_events_t events = {on_joined, on_failed, on_line, on_number, world};
    const dp_link_events_t none = {0};
    dp_error_t error;

    memset(world, 0, sizeof(*world));
    world->base = event_base_new();
    if (world->base == NULL || dp_rendezvous_create(world->base, -1, NODES * RANKS, &world->secret,
                                                    &events, &world->rendezvous, &error) != DP_OK)
        abort();
    world->command.size = NODES * RANKS;
    world->nodes.hosts = (dp_hosts_t){NODES, world->hosts};
    world->fleet = (dp_fleet_t){.base = world->base,
                                .nodes = &world->nodes,
                                .command = &world->command,
                                .events = {on_message, on_output, on_lost, on_number, on_number,
                                           on_signalled, on_memory, on_line, open_tunnel, world},
                                .list = world->list,
                                .count = NODES,
                                .input_fd = -1,
                                .run_dir = scratch_folder()};
    world->fleet.abort_timer = event_new(world->base, -1, 0, on_timer, NULL);
    for (int i = 0; i < NODES; i++) {
        dp_fleet_node_t *node = &world->list[i];
        int fds[2];

        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) abort();
        world->wires[i] = fds[1];
        snprintf(world->hosts[i].name, sizeof(world->hosts[i].name), "%c", 'a' + i);
        world->hosts[i].ranks = RANKS;
        world->hosts[i].first_rank = i * RANKS;
        node->fleet = &world->fleet;
        node->index = i;
        node->host = &world->hosts[i];
        node->stage = DP_FLEET_JOINED;
        snprintf(node->name, sizeof(node->name), "%c", 'a' + i);
        /* Before its handshake it sends no frame; it is closed where dprun closes it. */
        node->link = dp_link_create_station(world->base, fds[0], &world->secret, 0, 2500, &none);
        node->tunnel = dp_tunnel_create(world->base, on_tunnel_frame, node);
        if (node->link == NULL || node->tunnel == NULL) abort();
    }
}

static void close_world(world_t *world)
{
    DIR *folder = opendir(scratch_folder());

    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        if (strncmp(entry->d_name, "trace.", 6) != 0) abort();
        (void)unlinkat(dirfd(folder), entry->d_name, 0);
    }
    if (folder != NULL) closedir(folder);
    for (int i = 0; i < NODES; i++) {
        dp_link_close(world->list[i].link);
        close(world->wires[i]);
        dp_tunnel_destroy(world->list[i].tunnel);
        free(world->list[i].points);
    }
    dp_rendezvous_destroy(world->rendezvous);
    event_free(world->fleet.abort_timer);
    event_base_free(world->base);
}

static void run_fleet(fuzz_input_t *input)
{
    static world_t world;

    open_world(&world);
    for (int i = 0; i < STEPS_MAX && input->bytes > 0; i++) {
        const uint8_t what = (uint8_t)fuzz_number(input, 1);
        const int index = what >> 7;
        size_t got;
        const uint8_t *at = fuzz_take(input, (size_t)fuzz_number(input, 1), &got);

        if ((what & 0x7f) == PROVE) {
            prove(&world, index, at, got);
        } else {
            frame(&world, index, what & 0x7f, at, got);
        }
    }
    close_world(&world);
}

/* ---- A station's tunnel --------------------------------------------------------------------- */

typedef struct station {
    struct event_base *base;
    dp_tunnel_t *tunnel;
    char address[DP_LOCAL_ADDRESS_ROOM];
    int fds[CLIENTS]; /* ranks; -1: not there */
    uint32_t opened;
} station_t;

static void on_station_frame(void *context, uint8_t type, const void *fields, size_t bytes)
{
    station_t *station = context;
    dp_reader_t reader;
    uint32_t number;

    dp_reader_init(&reader, fields, bytes);
    number = dp_read_u32(&reader);
    if (reader.failed || bytes > DP_REMOTE_PIECE) abort();
    if (type == DP_REMOTE_TUNNEL_OPEN && number != ++station->opened) abort();
    if (number == 0 || number > station->opened) abort(); /* of nobody's */
}

static void come_or_go(station_t *station, int who)
{
    dp_error_t error;

    if (station->fds[who] < 0) {
        if (dp_local_connect(station->address, UINT64_MAX, &station->fds[who], &error) != DP_OK)
            station->fds[who] = -1; /* the door is closed */
    } else {
        close(station->fds[who]);
        station->fds[who] = -1;
    }
}

static void run_station(fuzz_input_t *input)
{
    station_t station = {.fds = {-1, -1, -1, -1}};
    dp_error_t error;
    int listener;

    station.base = event_base_new();
    if (station.base == NULL || dp_local_listen(station.address, &listener, &error) != DP_OK)
        abort();
    station.tunnel = dp_tunnel_create(station.base, on_station_frame, &station);
    if (station.tunnel == NULL || dp_tunnel_listen(station.tunnel, listener) != 0) abort();
    for (int i = 0; i < STEPS_MAX && input->bytes > 0; i++) {
        const unsigned what = (unsigned)fuzz_number(input, 1);
        const int who = (int)(what >> 3) % CLIENTS;
        size_t got;
        const uint8_t *at = fuzz_take(input, (size_t)fuzz_number(input, 1), &got);

        switch (what % 8) {
        case 0:
        case 1:
            come_or_go(&station, who);
            break;
        case 2:
            if (station.fds[who] >= 0) (void)send(station.fds[who], at, got, MSG_NOSIGNAL);
            break;
        case 3:
        case 4:
            dp_tunnel_receive(station.tunnel, what >> 3, at, got);
            break;
        case 5:
            dp_tunnel_closed(station.tunnel, what >> 3);
            break;
        default:
            if (what == 255) dp_tunnel_close_door(station.tunnel);
            break;
        }
        turn(station.base);
    }
    dp_tunnel_destroy(station.tunnel);
    for (int who = 0; who < CLIENTS; who++)
        if (station.fds[who] >= 0) close(station.fds[who]);
    event_base_free(station.base);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_input_t input = {data, bytes};

    if (fuzz_number(&input, 1) % 2 == 0) {
        run_fleet(&input);
    } else {
        run_station(&input);
    }
    return 0;
}

/* ---- Seeds ---------------------------------------------------------------------------------- */

static size_t put(uint8_t *data, uint8_t what, const void *part, size_t bytes)
{
    data[0] = what;
    data[1] = (uint8_t)bytes;
    if (bytes > 0) memcpy(data + 2, part, bytes);
    return bytes + 2;
}

/* A node that starts, prints, records and ends; a rank that joins through its tunnel. */
static size_t seed_node(uint8_t *data, uint8_t node)
{
    const dp_remote_about_t about = {.host = "a", .cores = 4, .free_port = 29500};
    static const uint8_t number[] = {1, 0, 0, 0};
    const uint8_t output[] = {(uint8_t)(node * RANKS), 0, 0, 0, 1, 'h', 'i', '\n'};
    static const uint8_t open[] = "\7\0trace.0", piece[] = "\7\0trace.0abc";
    dp_message_t message;
    uint8_t part[255];
    dp_writer_t writer;
    size_t used = 0;

    dp_writer_init(&writer, part, sizeof(part));
    dp_remote_about_write(&writer, &about);
    if (writer.failed) abort();
    node = (uint8_t)(node << 7);
    used += put(data + used, node | DP_REMOTE_ABOUT, part, writer.bytes);
    used += put(data + used, node | DP_REMOTE_TUNNEL_OPEN, number, sizeof(number));
    used += put(data + used, node | PROVE, "\1\1", 2);
    used += put(data + used, node | DP_REMOTE_OUTPUT, output, sizeof(output));
    used += put(data + used, node | DP_REMOTE_FILE, open, sizeof(open) - 1);
    used += put(data + used, node | DP_REMOTE_FILE, piece, sizeof(piece) - 1);
    dp_message_init(&message, DP_MESSAGE_ALL_GONE, -1);
    dp_writer_init(&writer, part, sizeof(part));
    dp_message_write(&writer, &message);
    used += put(data + used, node | DP_REMOTE_MESSAGE, part, writer.bytes);
    used += put(data + used, node | DP_REMOTE_TUNNEL_CLOSE, number, sizeof(number));
    return used + put(data + used, node | DP_REMOTE_REFUSED, "\1\0\0\0\3\0why", 9);
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const uint8_t play[] = {1,  0, 0,   8,  0, 2, 2, 'h', 'i', 11, 3, 'a', 'b', 'c',
                                   19, 1, 'd', 13, 0, 0, 0, 14,  0,   8,  0, 255, 0};
    size_t used = 1;

    if (room < 4096) return 0;
    data[0] = 0;
    if (which == 0) {
        used += seed_node(data + used, 0);
        return used + seed_node(data + used, 1);
    }
    if (which > 1) return 0;
    memcpy(data, play, sizeof(play));
    return sizeof(play);
}
