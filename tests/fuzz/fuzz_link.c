/*
 * fuzz_link.c - any bytes as what dprun and the stations of its nodes tell each other.
 *
 * The first byte of an input chooses. Even: a row of (u8 what, u16 size, bytes), each the fields of
 * a frame or a ticket; what is read can be written again with the same bytes. Odd: a server and a
 * station on two socket pairs, and this target in the middle. It relays what they send each other,
 * has them send frames, and changes, adds, withholds and ends. Each end may be given only what the
 * other one sent, in that order, and says why it closed in one printable sentence, once.
 */
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launcher/dprun/remote/link.h"
#include "launcher/dprun/remote/protocol.h"

#define STEPS_MAX 48
#define FRAMES 64 /* sent by one end */
#define NODE 3

/* ---- Fields --------------------------------------------------------------------------------- */

static void read_start(const uint8_t *data, size_t bytes)
{
    dp_remote_start_t start;
    dp_reader_t fields;
    uint8_t *again;
    size_t again_bytes = 0;

    dp_reader_init(&fields, data, bytes);
    if (dp_remote_start_read(&fields, &start) != 0) return;
    if (start.argv == NULL || start.argv[start.argc] != NULL) abort();
    again = dp_remote_start_write(&start, &again_bytes);
    if (again == NULL || again_bytes != bytes - dp_reader_left(&fields) ||
        memcmp(again, data, again_bytes) != 0)
        abort();
    free(again);
    dp_remote_start_fini(&start);
}

static void read_about(const uint8_t *data, size_t bytes)
{
    dp_remote_about_t about;
    uint8_t again[2048];
    dp_reader_t fields;
    dp_writer_t writer;

    dp_reader_init(&fields, data, bytes);
    if (dp_remote_about_read(&fields, &about) != 0) return;
    dp_writer_init(&writer, again, sizeof(again));
    dp_remote_about_write(&writer, &about);
    if (writer.failed || writer.bytes != bytes - dp_reader_left(&fields)) abort();
    for (size_t i = 0; i < writer.bytes; i++) /* control characters of its texts are gone */
        if (again[i] != data[i] && again[i] != '?') abort();
}

static void read_message(const uint8_t *data, size_t bytes)
{
    dp_message_t message;
    uint8_t again[256];
    dp_reader_t fields;
    dp_writer_t writer;

    dp_reader_init(&fields, data, bytes);
    if (dp_message_read(&fields, &message) != 0) return;
    dp_writer_init(&writer, again, sizeof(again));
    dp_message_write(&writer, &message);
    if (writer.failed || memcmp(again, data, writer.bytes) != 0) abort();
}

static void read_ticket(const uint8_t *data, size_t bytes)
{
    const int fd = memfd_create("ticket", MFD_CLOEXEC);
    dp_remote_ticket_t ticket;
    uint8_t again[DP_REMOTE_TICKET_MAX + 64];
    dp_error_t error = {DP_OK, ""};

    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes || lseek(fd, 0, SEEK_SET) != 0) abort();
    if (dp_remote_ticket_read(fd, UINT64_MAX, &ticket, &error) != DP_OK) {
        if (error.text[0] == '\0') abort();
    } else if (ticket.address_count > DP_REMOTE_ADDRESSES ||
               dp_remote_ticket_write(&ticket, again, sizeof(again)) == 0) {
        abort();
    }
    close(fd);
}

static void read_fields(fuzz_input_t *input)
{
    while (input->bytes > 0) {
        const unsigned what = (unsigned)fuzz_number(input, 1) % 4;
        size_t got;
        const uint8_t *at = fuzz_take(input, (size_t)fuzz_number(input, 2), &got);

        if (what == 0) read_start(at, got);
        if (what == 1) read_about(at, got);
        if (what == 2) read_message(at, got);
        if (what == 3) read_ticket(at, got);
    }
}

/* ---- Two ends, and who stands between ------------------------------------------------------- */

static const dp_secret_t secret = {{1, 2, 3}};

typedef struct end {
    struct event_base *base;
    dp_door_t *door; /* the server's */
    struct event *on_door;
    dp_link_t *link; /* NULL: closed, or not proven yet */
    int wire;        /* this target's end of its socket pair; -1: ended */
    int is_proven, is_closed;
    uint8_t sent[FRAMES][32]; /* type, bytes, fields */
    int sent_count, got_count;
    struct end *other;
    int is_server;
} end_t;

static int on_proven(void *context, dp_link_t *link, uint32_t node)
{
    end_t *end = context;

    if (end->is_server) end->link = link;
    if (link != end->link || end->is_proven || node != NODE) abort();
    end->is_proven = 1;
    return 0;
}

static void on_frame(void *context, dp_link_t *link, uint8_t type, dp_reader_t *fields)
{
    end_t *end = context;
    const uint8_t *sent = end->other->sent[end->got_count];
    const size_t bytes = dp_reader_left(fields);

    if (link != end->link || !end->is_proven || end->got_count >= end->other->sent_count) abort();
    if (type != sent[0] || bytes != sent[1]) abort();
    if (bytes > 0 && memcmp(dp_read_bytes(fields, bytes), sent + 2, bytes) != 0) abort();
    end->got_count++;
}

static void on_closed(void *context, dp_link_t *link, const char *why)
{
    end_t *end = context;

    if (link != end->link || end->is_closed || why[0] == '\0') abort();
    for (const char *at = why; *at != '\0'; at++)
        if ((unsigned char)*at < 0x20) abort();
    end->is_closed = 1;
    end->link = NULL;
}

static void turn(struct event_base *base)
{
    for (int i = 0; i < 4; i++)
        (void)event_base_loop(base, EVLOOP_NONBLOCK);
}

static void end_wire(end_t *end)
{
    if (end->wire >= 0) close(end->wire);
    end->wire = -1;
}

/* Passes on what came from one end. change: 0 as it is; else a byte of it is another one, or the
 * rest is withheld. */
static void relay(end_t *from, unsigned change, unsigned place)
{
    uint8_t data[4096];
    ssize_t bytes;

    if (from->wire < 0) return;
    bytes = recv(from->wire, data, sizeof(data), MSG_DONTWAIT);
    if (bytes <= 0) return;
    if (change % 4 == 1) data[place % (size_t)bytes] ^= (uint8_t)(1u << place % 8);
    if (change % 4 == 2) bytes = (ssize_t)(place % (size_t)bytes);
    if (bytes > 0 && from->other->wire >= 0)
        (void)send(from->other->wire, data, (size_t)bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void send_frame(end_t *end, const uint8_t *data, size_t bytes)
{
    uint8_t *sent = end->sent[end->sent_count];

    if (end->link == NULL || !end->is_proven || end->sent_count == FRAMES) return;
    bytes = bytes < 30 ? bytes : 30;
    sent[0] = (uint8_t)(bytes * 7);
    sent[1] = (uint8_t)bytes;
    if (bytes > 0) memcpy(sent + 2, data, bytes);
    end->sent_count++;
    dp_link_send(end->link, sent[0], sent + 2, bytes);
}

static int judge_visitor(void *context, dp_door_visitor_t *visitor, char *why)
{
    const dp_link_events_t events = {on_proven, on_frame, on_closed, context};
    end_t *end = context;

    return dp_link_create_server(end->base, visitor, &secret, 2500, &events, why);
}

static void on_door(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    dp_door_turn(((end_t *)context)->door);
}

static void open_end(struct event_base *base, end_t *end)
{
    const dp_link_events_t events = {on_proven, on_frame, on_closed, end};
    const dp_door_owner_t owner = {.hello_bytes = DP_KV_CLIENT_HELLO_BYTES,
                                   .greet = dp_kv_server_hello_write,
                                   .greeting_bytes = DP_KV_SERVER_HELLO_BYTES,
                                   .judge = judge_visitor,
                                   .context = end};
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) abort();
    end->base = base;
    end->wire = fds[1];
    if (!end->is_server) {
        end->link = dp_link_create_station(base, fds[0], &secret, NODE, 2500, &events);
        if (end->link == NULL) abort();
        return;
    }
    if (dp_door_create(&owner, 1, &end->door, NULL) != DP_OK) abort();
    end->on_door = event_new(base, dp_door_fd(end->door), EV_READ | EV_PERSIST, on_door, end);
    if (end->on_door == NULL || event_add(end->on_door, NULL) != 0) abort();
    dp_door_adopt(end->door, fds[0], "a stranger", 0);
}

static void close_end(end_t *end)
{
    dp_link_close(end->link);
    if (end->on_door != NULL) event_free(end->on_door);
    dp_door_destroy(end->door);
    end_wire(end);
}

static void step(struct event_base *base, end_t *end, unsigned what, const uint8_t *data,
                 size_t bytes)
{
    switch (what) {
    case 0: /* all that is under way, both ways */
        for (int i = 0; i < 6; i++) {
            relay(end, 0, 0);
            relay(end->other, 0, 0);
            turn(base);
        }
        break;
    case 1:
        send_frame(end, data, bytes);
        break;
    case 2:
        relay(end, bytes > 0 ? data[0] : 1, bytes > 1 ? data[1] : 0);
        break;
    case 3: /* nobody's bytes */
        if (end->wire >= 0 && bytes > 0)
            (void)send(end->wire, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        break;
    case 4:
        end_wire(end);
        break;
    default: /* the owner has had enough */
        dp_link_close(end->link);
        end->link = NULL;
        break;
    }
    turn(base);
}

static void run_links(fuzz_input_t *input)
{
    struct event_base *base = event_base_new();
    end_t ends[2] = {{.is_server = 1}, {.is_server = 0}};

    if (base == NULL) abort();
    for (int i = 0; i < 2; i++) {
        ends[i].other = &ends[1 - i];
        open_end(base, &ends[i]);
    }
    turn(base);
    for (int i = 0; i < STEPS_MAX && input->bytes > 0; i++) {
        const unsigned what = (unsigned)fuzz_number(input, 1);
        size_t got;
        const uint8_t *at = fuzz_take(input, (size_t)fuzz_number(input, 1), &got);

        step(base, &ends[what & 1], (what >> 1) % 6, at, got);
    }
    for (int i = 0; i < 2; i++) {
        close_end(&ends[i]);
    }
    turn(base);
    event_base_free(base);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_input_t input = {data, bytes};

    if (fuzz_number(&input, 1) % 2 == 0) {
        read_fields(&input);
    } else {
        run_links(&input);
    }
    return 0;
}

/* ---- Seeds ---------------------------------------------------------------------------------- */

static size_t put(uint8_t *data, uint8_t what, const uint8_t *part, size_t bytes)
{
    data[0] = what;
    data[1] = (uint8_t)bytes;
    data[2] = (uint8_t)(bytes >> 8);
    memcpy(data + 3, part, bytes);
    return bytes + 3;
}

static size_t seed_fields(uint8_t *data)
{
    static char *argv[] = {(char *)(uintptr_t) "train", (char *)(uintptr_t) "-x", NULL};
    const dp_remote_start_t start = {
        .local_size = 2, .size = 4, .stdin_rank = -1, .argv = argv, .argc = 2};
    const dp_remote_about_t about = {.host = "a", .cores = 4, .free_port = 29500};
    dp_remote_ticket_t ticket = {.node = 1, .port = 4711, .address_count = 1};
    dp_message_t message;
    uint8_t part[4096];
    size_t bytes = 0;
    dp_writer_t writer;
    uint8_t *written = dp_remote_start_write(&start, &bytes);
    size_t used = 1;

    if (written == NULL) abort();
    data[0] = 0;
    used += put(data + used, 0, written, bytes);
    free(written);
    dp_writer_init(&writer, part, sizeof(part));
    dp_remote_about_write(&writer, &about);
    used += put(data + used, 1, part, writer.bytes);
    dp_message_init(&message, DP_MESSAGE_ENDED, 1);
    dp_writer_init(&writer, part, sizeof(part));
    dp_message_write(&writer, &message);
    used += put(data + used, 2, part, writer.bytes);
    snprintf(ticket.addresses[0], sizeof(ticket.addresses[0]), "10.0.0.1");
    return used + put(data + used, 3, part, dp_remote_ticket_write(&ticket, part, sizeof(part)));
}

/* Steps of two bytes and what they say: who | what << 1, size. */
size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const struct {
        uint8_t bytes[40];
        size_t count;
    } plays[] = {
        /* a talk as it should be: frames both ways */
        {{1, 0, 0, 2, 3, 'a', 'b', 'c', 3, 1, 'x', 2, 0, 0, 0, 3, 0, 0, 0}, 19},
        /* one that is changed on the way, then another one */
        {{1, 0, 0, 2, 3, 'a', 'b', 'c', 4, 2, 1, 9, 2, 1, 'd', 0, 0}, 17},
        /* one that is withheld; a stranger's bytes in the handshake; ends */
        {{1, 0, 0, 3, 3, 'a', 'b', 'c', 5, 2, 2, 0, 3, 1, 'd', 0, 0, 8, 0}, 19},
        {{1, 6, 4, 'G', 'E', 'T', ' ', 0, 0, 9, 0, 0, 0}, 13},
        {{1, 0, 0, 3, 1, 'q', 10, 0, 0, 0}, 10},
    };

    if (room < 8192) return 0;
    if (which == 0) return seed_fields(data);
    if (which > sizeof(plays) / sizeof(plays[0])) return 0;
    memcpy(data, plays[which - 1].bytes, plays[which - 1].count);
    return plays[which - 1].count;
}
