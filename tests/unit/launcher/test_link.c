/*
 * test_link.c - the handshake between dprun and the station of a node: who is refused, what each
 * side says about it. Over 127.0.0.1, as the server names a stranger by its address.
 */
#include "launcher/dprun/remote/link.h"

#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launcher/dprun/remote/seal.h"
#include "runtime/base/kv.h"
#include "tests/unit/cases.h"

#define NODE 1
#define TURNS 10000 /* of a millisecond */

static const dp_secret_t job_secret = {{1, 2, 3}};
static const dp_secret_t old_secret = {{4, 5, 6}};

/* One end of a link, and what became of it. */
typedef struct end {
    struct event_base *base;
    dp_door_t *door; /* the server's */
    struct event *on_door;
    dp_link_t *link;
    int is_proven, is_refused, is_turned_away;
    int frames;    /* that have come */
    char why[256]; /* "": open */
} end_t;

static int on_proven(void *context, dp_link_t *link, uint32_t node)
{
    end_t *end = context;

    if (end->door != NULL) end->link = link;
    assert_ptr_equal(link, end->link);
    assert_int_equal(node, NODE);
    end->is_proven = 1;
    return 0;
}

static void on_frame(void *context, dp_link_t *link, uint8_t type, dp_reader_t *fields)
{
    (void)link;
    (void)type;
    (void)fields;
    ((end_t *)context)->frames++;
}

static void on_closed(void *context, dp_link_t *link, const char *why)
{
    end_t *end = context;

    end->is_turned_away = dp_link_is_turned_away(link);
    snprintf(end->why, sizeof(end->why), "%s", why);
    end->link = NULL;
}

/* Two ends of a connection: [0] accepted it. */
static void connect_pair(int fds[2])
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(here);
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(listener >= 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&here, sizeof(here)), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&here, &bytes), 0);
    fds[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fds[1], (struct sockaddr *)&here, sizeof(here)), 0);
    fds[0] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(fds[0] >= 0);
    close(listener);
}

static int judge_visitor(void *context, dp_door_visitor_t *visitor, char *why)
{
    const dp_link_events_t events = {on_proven, on_frame, on_closed, context};
    end_t *end = context;

    return dp_link_create_server(end->base, visitor, &job_secret, 2500, &events, why);
}

static void on_refused(void *context, const char *from, const char *why)
{
    end_t *end = context;

    (void)from;
    end->is_refused = 1;
    snprintf(end->why, sizeof(end->why), "%s", why);
}

static void on_door(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    dp_door_turn(((end_t *)context)->door);
}

static void open_server(end_t *end, struct event_base *base, int fd)
{
    const dp_door_owner_t owner = {.hello_bytes = DP_KV_CLIENT_HELLO_BYTES,
                                   .greet = dp_kv_server_hello_write,
                                   .greeting_bytes = DP_KV_SERVER_HELLO_BYTES,
                                   .judge = judge_visitor,
                                   .refused = on_refused,
                                   .context = end};

    *end = (end_t){.base = base};
    evutil_make_socket_nonblocking(fd);
    assert_int_equal(dp_door_create(&owner, 1, &end->door, NULL), DP_OK);
    end->on_door = event_new(base, dp_door_fd(end->door), EV_READ | EV_PERSIST, on_door, end);
    assert_int_equal(event_add(end->on_door, NULL), 0);
    dp_door_adopt(end->door, fd, "127.0.0.1", 0);
}

static void close_server(end_t *end)
{
    dp_link_close(end->link);
    event_free(end->on_door);
    dp_door_destroy(end->door);
}

static void open_station(end_t *end, struct event_base *base, int fd, const dp_secret_t *secret)
{
    const dp_link_events_t events = {on_proven, on_frame, on_closed, end};

    *end = (end_t){.base = base};
    evutil_make_socket_nonblocking(fd);
    end->link = dp_link_create_station(base, fd, secret, NODE, 2500, &events);
    assert_non_null(end->link);
}

/* A server of the job, and a station that has this secret. */
static void open_both(end_t *server, end_t *station, struct event_base *base,
                      const dp_secret_t *secret)
{
    int fds[2];

    connect_pair(fds);
    open_server(server, base, fds[0]);
    open_station(station, base, fds[1], secret);
}

static void turn(struct event_base *base)
{
    (void)event_base_loop(base, EVLOOP_NONBLOCK);
    (void)poll(NULL, 0, 1);
}

static void await_end(const end_t *end)
{
    for (int i = 0; i < TURNS && end->why[0] == '\0'; i++)
        turn(end->base);
}

/* So many bytes, while the links go on. */
static void receive(struct event_base *base, int fd, void *data, size_t bytes)
{
    size_t have = 0;

    for (int i = 0; i < TURNS && have < bytes; i++) {
        const ssize_t got = recv(fd, (char *)data + have, bytes - have, MSG_DONTWAIT);

        if (got > 0) have += (size_t)got;
        if (have < bytes) turn(base);
    }
    assert_int_equal(have, bytes);
}

/* A station's hello, as somebody on the way reads it. */
static void record_hello(struct event_base *base, uint8_t hello[DP_KV_CLIENT_HELLO_BYTES])
{
    uint8_t greeting[DP_KV_SERVER_HELLO_BYTES];
    int to_server[2];
    int to_station[2];
    end_t server;
    end_t station;

    connect_pair(to_server);
    connect_pair(to_station);
    open_server(&server, base, to_server[0]);
    open_station(&station, base, to_station[0], &job_secret);
    receive(base, to_server[1], greeting, sizeof(greeting));
    assert_int_equal(send(to_station[1], greeting, sizeof(greeting), 0), sizeof(greeting));
    receive(base, to_station[1], hello, DP_KV_CLIENT_HELLO_BYTES);
    assert_int_equal(send(to_server[1], hello, DP_KV_CLIENT_HELLO_BYTES, 0),
                     DP_KV_CLIENT_HELLO_BYTES);
    receive(base, to_server[1], greeting, DP_PROOF_BYTES); /* it was right */
    assert_memory_not_equal(greeting, DP_KV_WRONG_PROOF, DP_PROOF_BYTES);
    close_server(&server);
    dp_link_close(station.link);
    close(to_server[1]);
    close(to_station[1]);
}

static void link_both_ends_with_one_secret_are_proven(void **state)
{
    const uint64_t began_ns = dp_now_ns();
    struct event_base *base = event_base_new();
    end_t server;
    end_t station;

    (void)state;
    open_both(&server, &station, base, &job_secret);
    for (int i = 0; i < TURNS && !(server.is_proven && station.is_proven); i++)
        turn(base);
    assert_true(server.is_proven && station.is_proven);
    assert_string_equal(dp_link_peer(station.link), "127.0.0.1");
    /* Before its owner first looks: else the other end seems to have confirmed nothing for ever. */
    assert_true(dp_link_confirmed_ns(server.link) >= began_ns);
    assert_true(dp_link_confirmed_ns(station.link) >= began_ns);
    close_server(&server);
    dp_link_close(station.link);
    event_base_free(base);
}

/* Each connection has a challenge of its own. */
static void link_a_recorded_hello_is_refused_by_name(void **state)
{
    struct event_base *base = event_base_new();
    uint8_t hello[DP_KV_CLIENT_HELLO_BYTES];
    uint8_t answer[DP_KV_SERVER_HELLO_BYTES];
    end_t server;
    int fds[2];

    (void)state;
    record_hello(base, hello);
    connect_pair(fds);
    open_server(&server, base, fds[0]);
    receive(base, fds[1], answer, DP_KV_SERVER_HELLO_BYTES);
    assert_int_equal(send(fds[1], hello, sizeof(hello), 0), sizeof(hello));
    await_end(&server);
    assert_string_equal(server.why, "as node 1: its proof is wrong (another job, an old secret, or "
                                    "recorded)");
    assert_true(server.is_refused);
    assert_false(server.is_proven);
    receive(base, fds[1], answer, DP_PROOF_BYTES);
    assert_memory_equal(answer, DP_KV_WRONG_PROOF, DP_PROOF_BYTES);
    close(fds[1]);
    close_server(&server);
    event_base_free(base);
}

static void link_bytes_of_another_program_name_no_node(void **state)
{
    static const char request[] =
        "GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: a scanner of ports that asks everybody\r\n\r\n";
    struct event_base *base = event_base_new();
    end_t server;
    int fds[2];

    (void)state;
    connect_pair(fds);
    open_server(&server, base, fds[0]);
    assert_int_equal(send(fds[1], request, DP_KV_CLIENT_HELLO_BYTES, 0), DP_KV_CLIENT_HELLO_BYTES);
    await_end(&server);
    assert_string_equal(server.why, "no node of dprun: its first bytes are no hello");
    assert_true(server.is_refused);
    close(fds[1]);
    close_server(&server);
    event_base_free(base);
}

static void link_a_station_learns_that_the_secrets_differ(void **state)
{
    struct event_base *base = event_base_new();
    end_t server;
    end_t station;

    (void)state;
    open_both(&server, &station, base, &old_secret);
    await_end(&station);
    await_end(&server);
    assert_string_equal(station.why, "it refused our proof: the secrets differ");
    assert_true(station.is_turned_away);
    assert_true(server.is_refused);
    assert_false(server.is_turned_away);
    close_server(&server);
    event_base_free(base);
}

/* Somebody on the way hands on the handshake, and then sends dprun its own stream. */
static void link_frames_that_are_sent_back_are_not_delivered(void **state)
{
    struct event_base *base = event_base_new();
    uint8_t bytes[DP_KV_CLIENT_HELLO_BYTES];
    uint8_t frame[4 + 1 + 3 + DP_SEAL_EXTRA_BYTES];
    int to_server[2];
    int to_station[2];
    end_t server;
    end_t station;

    (void)state;
    connect_pair(to_server);
    connect_pair(to_station);
    open_server(&server, base, to_server[0]);
    open_station(&station, base, to_station[0], &job_secret);
    receive(base, to_server[1], bytes, DP_KV_SERVER_HELLO_BYTES);
    assert_int_equal(send(to_station[1], bytes, DP_KV_SERVER_HELLO_BYTES, 0),
                     DP_KV_SERVER_HELLO_BYTES);
    receive(base, to_station[1], bytes, DP_KV_CLIENT_HELLO_BYTES);
    assert_int_equal(send(to_server[1], bytes, DP_KV_CLIENT_HELLO_BYTES, 0),
                     DP_KV_CLIENT_HELLO_BYTES);
    receive(base, to_server[1], bytes, DP_PROOF_BYTES);
    receive(base, to_server[1], bytes, DP_SEAL_HEADER_BYTES);
    assert_int_equal(send(to_server[1], bytes, DP_SEAL_HEADER_BYTES, 0), DP_SEAL_HEADER_BYTES);
    for (int i = 0; i < TURNS && !server.is_proven; i++)
        turn(base);
    dp_link_send(server.link, 1, "abc", 3);
    receive(base, to_server[1], frame, sizeof(frame));
    assert_int_equal(send(to_server[1], frame, sizeof(frame), 0), sizeof(frame));
    for (int i = 0; i < TURNS && server.why[0] == '\0' && server.frames == 0; i++)
        turn(base);
    assert_int_equal(server.frames, 0);
    assert_string_equal(server.why, "a frame that was tampered with");
    close_server(&server);
    dp_link_close(station.link);
    close(to_server[1]);
    close(to_station[1]);
    event_base_free(base);
}

/* It begins rightly, reads the station's hello, and cannot prove that it knows the secret. */
static void link_a_station_refuses_a_dprun_without_proof(void **state)
{
    const uint8_t challenge[DP_CHALLENGE_BYTES] = {7};
    uint8_t greeting[DP_KV_SERVER_HELLO_BYTES];
    uint8_t hello[DP_KV_CLIENT_HELLO_BYTES];
    struct event_base *base = event_base_new();
    end_t station;
    int fds[2];

    (void)state;
    connect_pair(fds);
    open_station(&station, base, fds[0], &job_secret);
    dp_kv_server_hello_write(challenge, greeting);
    assert_int_equal(send(fds[1], greeting, sizeof(greeting), 0), sizeof(greeting));
    receive(base, fds[1], hello, sizeof(hello));
    /* Its own proof would do, if the two were alike. */
    assert_int_equal(send(fds[1], hello + 8 + DP_CHALLENGE_BYTES, DP_PROOF_BYTES, 0),
                     DP_PROOF_BYTES);
    assert_int_equal(send(fds[1], hello, DP_SEAL_HEADER_BYTES, 0), DP_SEAL_HEADER_BYTES);
    for (int i = 0; i < TURNS && station.why[0] == '\0' && !station.is_proven; i++)
        turn(base);
    assert_false(station.is_proven);
    assert_string_equal(station.why,
                        "dprun's proof is wrong: another job's dprun at this address?");
    close(fds[1]);
    event_base_free(base);
}

/* 1: what was sealed under the first purpose and challenges opens under the second ones. */
static int opens(const char *purpose, const uint8_t *challenges, const char *as,
                 const uint8_t *with)
{
    uint8_t header[DP_SEAL_HEADER_BYTES];
    uint8_t sealed[3 + DP_SEAL_EXTRA_BYTES];
    char plain[3];
    dp_seal_t *seal = dp_seal_create(&job_secret, purpose, challenges, header);
    dp_seal_t *opener = dp_seal_create_opener(&job_secret, as, with, header);
    int code;

    assert_non_null(seal);
    assert_non_null(opener);
    dp_seal_close(seal, "abc", 3, sealed);
    code = dp_seal_open(opener, sealed, sizeof(sealed), plain);
    if (code == 0) {
        assert_memory_equal(plain, "abc", 3);
        assert_true(dp_seal_open(opener, sealed, sizeof(sealed), plain) != 0); /* once */
    }
    dp_seal_destroy(seal);
    dp_seal_destroy(opener);
    return code == 0;
}

static void link_a_seal_is_of_one_connection_and_direction(void **state)
{
    const uint8_t challenges[2 * DP_CHALLENGE_BYTES] = {1};
    uint8_t other[2 * DP_CHALLENGE_BYTES] = {1};

    (void)state;
    assert_true(opens("to", challenges, "to", other));
    assert_false(opens("to", challenges, "from", other));
    for (int i = 0; i < 2; i++) { /* dprun's challenge, the station's */
        other[(i + 1) * DP_CHALLENGE_BYTES - 1] ^= 1;
        assert_false(opens("to", challenges, "to", other));
        other[(i + 1) * DP_CHALLENGE_BYTES - 1] ^= 1;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(link_both_ends_with_one_secret_are_proven),
        cmocka_unit_test(link_a_recorded_hello_is_refused_by_name),
        cmocka_unit_test(link_bytes_of_another_program_name_no_node),
        cmocka_unit_test(link_a_station_learns_that_the_secrets_differ),
        cmocka_unit_test(link_frames_that_are_sent_back_are_not_delivered),
        cmocka_unit_test(link_a_station_refuses_a_dprun_without_proof),
        cmocka_unit_test(link_a_seal_is_of_one_connection_and_direction),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
