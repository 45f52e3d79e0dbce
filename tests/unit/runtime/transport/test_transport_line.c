/*
 * test_transport_line.c - lines between ranks on different nodes: beats, ends, strangers, messages
 * that are forged. Two of them in one process, over 127.0.0.1, driven in turns by one thread.
 *
 * The transport below is a mailbox of this test, which notices no death by itself. Messages of
 * every size are test_transport.c's subject.
 */
#include "runtime/transport/line.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/network/interface.h"
#include "runtime/transport/line_hello.h"
#include "tests/unit/cases.h"

#define MS 1000000ull
#define PATIENCE_NS 20000000000ull
#define LINE_ADDRESS 40
#define BOX 16

/* ---- The transport below -------------------------------------------------------------------- */

typedef struct box {
    dp_transport_t base;
    struct box *other;
    int rank;
    uint8_t data[BOX][256];
    size_t bytes[BOX];
    int first, count;
    int lost; /* to be reported */
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

static void put(box_t *box, const void *data, size_t bytes)
{
    const int at = (box->first + box->count++) % BOX;

    assert_true(box->count <= BOX && bytes <= sizeof(box->data[at]));
    memcpy(box->data[at], data, bytes);
    box->bytes[at] = bytes;
}

static dp_status_t box_send(dp_transport_t *base, int rank, const void *data, size_t bytes)
{
    (void)rank;
    if (((box_t *)base)->other != NULL) put(((box_t *)base)->other, data, bytes);
    return DP_OK;
}

static dp_status_t box_poll(dp_transport_t *base, dp_transport_event_t *out)
{
    box_t *box = (box_t *)base;
    const int at = box->first;

    if (box->count > 0) {
        box->first = (at + 1) % BOX;
        box->count--;
        *out = (dp_transport_event_t){.kind = DP_TRANSPORT_MESSAGE,
                                      .rank = 1 - box->rank,
                                      .data = box->data[at],
                                      .bytes = box->bytes[at]};
        return DP_OK;
    }
    if (!box->lost) return DP_ERR_PENDING;
    box->lost = 0;
    *out = (dp_transport_event_t){
        .kind = DP_TRANSPORT_PEER_LOST, .rank = 1 - box->rank, .text = "lower says so"};
    return DP_OK;
}

static void box_close(dp_transport_t *base, uint64_t deadline_ns)
{
    (void)base;
    (void)deadline_ns;
}

static void box_destroy(dp_transport_t *base)
{
    box_t *box = (box_t *)base;

    if (box->other != NULL) box->other->other = NULL;
    free(box);
}

static const dp_transport_ops_t box_ops = {.name = "box",
                                           .address = box_address,
                                           .connect = box_connect,
                                           .send = box_send,
                                           .poll = box_poll,
                                           .close = box_close,
                                           .destroy = box_destroy};

/* ---- A pair --------------------------------------------------------------------------------- */

/* Rank 0 listens, rank 1 connects. */
typedef struct pair {
    dp_transport_t *rank[2];
    box_t *box[2];
    uint8_t address[2][DP_ADDRESS_MAX];
    size_t bytes[2];
} pair_t;

static const dp_secret_t secret = {{1, 2, 3}};
static const dp_secret_t old_secret = {{1, 2, 4}};

static void pair_make_at(pair_t *pair, const dp_ip_t *own_ip, uint64_t start_ns,
                         uint64_t timeout_ns, const dp_secret_t *of_rank_1)
{
    char lo[IF_NAMESIZE];
    dp_error_t error = {0};
    dp_log_t log;

    dp_interface_loopback(lo);
    for (int i = 0; i < 2; i++) {
        const int other = 1 - i;
        dp_line_options_t options = {.rank = i,
                                     .secret = i == 1 ? of_rank_1 : &secret,
                                     .ranks = &other,
                                     .count = 1,
                                     .own_ip = *own_ip,
                                     .network_interface = lo,
                                     .beat_ns = 5 * MS,
                                     .timeout_ns = timeout_ns,
                                     .start_ns = start_ns,
                                     .log = &log};

        dp_log_init(&log, DP_LOG_WARN, i);
        pair->box[i] = calloc(1, sizeof(box_t));
        assert_non_null(pair->box[i]);
        pair->box[i]->base.ops = &box_ops;
        pair->box[i]->rank = i;
        if (dp_transport_line_create(&options, &pair->box[i]->base, &pair->rank[i], &error) !=
            DP_OK)
            fail_msg("%s", error.text);
        assert_int_equal(pair->rank[i]->ops->address(pair->rank[i], pair->address[i],
                                                     DP_ADDRESS_MAX, &pair->bytes[i]),
                         DP_OK);
        assert_int_equal(pair->bytes[i], LINE_ADDRESS);
    }
    pair->box[0]->other = pair->box[1];
    pair->box[1]->other = pair->box[0];
}

static void pair_make_with(pair_t *pair, uint64_t start_ns, uint64_t timeout_ns,
                           const dp_secret_t *of_rank_1)
{
    const dp_ip_t first_of_loopback = {0};

    pair_make_at(pair, &first_of_loopback, start_ns, timeout_ns, of_rank_1);
}

static void pair_make(pair_t *pair, uint64_t start_ns, const dp_secret_t *of_rank_1)
{
    pair_make_with(pair, start_ns, 3000 * MS, of_rank_1);
}

static void pair_connect(pair_t *pair, int rank)
{
    const int other = 1 - rank;
    const void *address = pair->address[other];

    assert_int_equal(pair->rank[rank]->ops->connect(pair->rank[rank], &other, &address,
                                                    &pair->bytes[other], 1, NULL),
                     DP_OK);
}

static void pair_destroy(pair_t *pair)
{
    dp_transport_destroy(pair->rank[0]);
    dp_transport_destroy(pair->rank[1]);
}

static dp_status_t poll_once(pair_t *pair, int rank, dp_transport_event_t *event)
{
    if (pair->rank[rank] == NULL) return DP_ERR_PENDING;
    return pair->rank[rank]->ops->poll(pair->rank[rank], event);
}

/* The next event of a rank that is no sign of life, or that is one if `alive`. The other polls. */
static void expect(pair_t *pair, int rank, int alive, dp_transport_event_t *event)
{
    const uint64_t until = dp_now_ns() + PATIENCE_NS;
    dp_transport_event_t other;

    for (;;) {
        if (poll_once(pair, rank, event) == DP_OK && (event->kind != DP_TRANSPORT_ALIVE || alive))
            return;
        (void)poll_once(pair, 1 - rank, &other);
        assert_true(dp_now_ns() < until);
    }
}

static void expect_open(pair_t *pair)
{
    dp_transport_event_t event = {0};

    pair_connect(pair, 0);
    pair_connect(pair, 1);
    for (int rank = 0; rank < 2; rank++) {
        expect(pair, rank, 1, &event);
        assert_int_equal(event.kind, DP_TRANSPORT_ALIVE);
        assert_int_equal(event.rank, 1 - rank);
    }
}

static void pair_open(pair_t *pair)
{
    pair_make(pair, PATIENCE_NS, &secret);
    expect_open(pair);
}

static void expect_loss(pair_t *pair, int rank, const char *part)
{
    dp_transport_event_t event = {0};

    expect(pair, rank, 0, &event);
    assert_int_equal(event.kind, DP_TRANSPORT_PEER_LOST);
    assert_int_equal(event.rank, 1 - rank);
    if (strstr(event.text, part) == NULL) fail_msg("\"%s\" is not in \"%s\"", part, event.text);
}

static void expect_text(pair_t *pair, int rank, const char *text)
{
    dp_transport_event_t event = {0};

    expect(pair, rank, 0, &event);
    assert_int_equal(event.kind, DP_TRANSPORT_MESSAGE);
    assert_int_equal(event.bytes, strlen(text));
    assert_memory_equal(event.data, text, event.bytes);
}

static void send_text(pair_t *pair, int from, const char *text)
{
    assert_int_equal(pair->rank[from]->ops->send(pair->rank[from], 1 - from, text, strlen(text)),
                     DP_OK);
}

/* ---- Life and death ------------------------------------------------------------------------- */

static void line_beats_are_signs_of_life(void **state)
{
    pair_t pair;
    dp_transport_event_t event = {0};
    uint64_t last_ns = 0;

    (void)state;
    pair_open(&pair);
    for (int i = 0; i < 5; i++) {
        expect(&pair, 0, 1, &event);
        assert_int_equal(event.kind, DP_TRANSPORT_ALIVE);
        assert_true(event.seen_ns > last_ns && event.seen_ns <= dp_now_ns());
        last_ns = event.seen_ns;
    }
    pair_destroy(&pair);
}

static void line_that_ends_without_farewell_is_a_loss(void **state)
{
    (void)state;
    for (int dead = 0; dead < 2; dead++) {
        pair_t pair;

        pair_open(&pair);
        dp_transport_destroy(pair.rank[dead]);
        pair.rank[dead] = NULL;
        expect_loss(&pair, 1 - dead, "its connection broke");
        pair_destroy(&pair);
    }
}

static void line_loss_comes_behind_the_last_message(void **state)
{
    pair_t pair;

    (void)state;
    pair_open(&pair);
    send_text(&pair, 1, "the last words");
    dp_transport_destroy(pair.rank[1]);
    pair.rank[1] = NULL;
    expect_text(&pair, 0, "the last words");
    expect_loss(&pair, 0, "its connection broke");
    pair_destroy(&pair);
}

static void line_loss_is_reported_once_whoever_sees_it_first(void **state)
{
    const uint64_t until = dp_now_ns() + 100 * MS;
    dp_transport_event_t event;
    pair_t pair;

    (void)state;
    pair_open(&pair);
    pair.box[0]->lost = 1;
    dp_transport_destroy(pair.rank[1]);
    pair.rank[1] = NULL;
    expect_loss(&pair, 0, "lower says so");
    while (dp_now_ns() < until)
        assert_int_equal(poll_once(&pair, 0, &event), DP_ERR_PENDING);
    pair_destroy(&pair);
}

static void line_farewell_is_no_loss(void **state)
{
    const uint64_t until = dp_now_ns() + 200 * MS;
    dp_transport_event_t event = {0};
    pair_t pair;

    (void)state;
    pair_open(&pair);
    /* The other one does not answer: it waits as long as it may. */
    pair.rank[1]->ops->close(pair.rank[1], dp_now_ns() + 20 * MS);
    while (dp_now_ns() < until) {
        if (poll_once(&pair, 0, &event) == DP_OK) assert_int_equal(event.kind, DP_TRANSPORT_ALIVE);
    }
    pair_destroy(&pair);
}

static void line_given_up_is_reset_and_silent(void **state)
{
    const uint64_t until = dp_now_ns() + 100 * MS;
    dp_transport_event_t event;
    pair_t pair;

    (void)state;
    pair_open(&pair);
    pair.rank[0]->ops->give_up(pair.rank[0], 1);
    expect_loss(&pair, 1, "its connection broke");
    while (dp_now_ns() < until)
        assert_int_equal(poll_once(&pair, 0, &event), DP_ERR_PENDING);
    send_text(&pair, 0, "dropped");
    pair_destroy(&pair);
}

static void line_to_nobody_is_a_loss(void **state)
{
    pair_t pair;

    (void)state;
    pair_make(&pair, PATIENCE_NS, &secret);
    dp_transport_destroy(pair.rank[0]); /* its listener, too */
    pair.rank[0] = NULL;
    pair_connect(&pair, 1);
    expect_loss(&pair, 1, "its connection broke");
    pair_destroy(&pair);
}

static void line_that_does_not_open_is_a_loss_with_its_address(void **state)
{
    dp_transport_event_t event = {0};
    pair_t pair;

    (void)state;
    /* The only watch is off: there is no limit to silence. */
    pair_make_with(&pair, 50 * MS, 0, &secret);
    pair_connect(&pair, 0); /* and rank 1 never does */
    expect_loss(&pair, 0, "it did not connect to 127.0.0.1 port ");
    pair_destroy(&pair);
    /* It connects, the kernel accepts, and rank 0 never looks. */
    pair_make_with(&pair, 50 * MS, 0, &secret);
    pair_connect(&pair, 1);
    expect_loss(&pair, 1, "it did not answer at 127.0.0.1 port ");
    pair_destroy(&pair);
    /* The same where rank 0 is heard, though its line does not open. */
    pair_make(&pair, 50 * MS, &secret);
    pair_connect(&pair, 0);
    pair_connect(&pair, 1);
    send_text(&pair, 0, "here");
    while (event.kind != DP_TRANSPORT_PEER_LOST)
        (void)poll_once(&pair, 1, &event);
    assert_non_null(strstr(event.text, "it did not answer at 127.0.0.1 port "));
    pair_destroy(&pair);
}

/* The heartbeats of the loop say so, by one clock and in one text for all. */
static void line_that_does_not_open_to_a_silent_rank_is_no_loss_of_its_own(void **state)
{
    const uint64_t until_ns = dp_now_ns() + 300 * MS;
    dp_transport_event_t event;
    pair_t pair;

    (void)state;
    pair_make(&pair, 50 * MS, &secret);
    pair_connect(&pair, 1); /* accepted by the kernel; rank 0 never looks */
    while (dp_now_ns() < until_ns)
        assert_int_equal(poll_once(&pair, 1, &event), DP_ERR_PENDING);
    pair_destroy(&pair);
}

/* The search for the network may have found a second address of an interface, or its IPv6 address
 * where it has one of version 4, too: 127.0.0.1 is the first of loopback. */
static void line_is_at_the_address_that_it_was_given(void **state)
{
    static const uint8_t given[] = {4, 127, 0, 0, 2};
    dp_ip_t own_ip;
    pair_t pair;

    (void)state;
    assert_true(dp_ip_parse("127.0.0.2", &own_ip));
    pair_make_at(&pair, &own_ip, PATIENCE_NS, 3000 * MS, &secret);
    for (int rank = 0; rank < 2; rank++) {
        assert_memory_equal(pair.address[rank] + DP_LINE_NONCE_BYTES, given, sizeof(given));
    }
    expect_open(&pair);
    pair_destroy(&pair);
}

/* ---- Strangers ------------------------------------------------------------------------------ */

/* A connection to rank 0's listener that is no rank's. */
static int knock(const pair_t *pair)
{
    const uint8_t *at = pair->address[0] + DP_LINE_NONCE_BYTES + 1 + 16;
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)(at[0] | at[1] << 8)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

/* Reads so many bytes while rank 0 polls; fewer where the other end closes. */
static size_t listen_to(pair_t *pair, int fd, void *data, size_t bytes)
{
    const uint64_t until = dp_now_ns() + PATIENCE_NS;
    dp_transport_event_t event;
    size_t have = 0;

    while (have < bytes) {
        const ssize_t got = recv(fd, (uint8_t *)data + have, bytes - have, MSG_DONTWAIT);

        if (got > 0) have += (size_t)got;
        if (got == 0 || (got < 0 && errno != EAGAIN)) break;
        (void)poll_once(pair, 0, &event);
        assert_true(dp_now_ns() < until);
    }
    return have;
}

static void edge_of(const pair_t *pair, const dp_secret_t *world, dp_secret_t *edge)
{
    dp_line_edge_secret(world, 0, 1, pair->address[0], pair->address[1], edge);
}

/* Says hello as the rank `from` of the world with that secret; challenge NULL: as one who listened
 * to a hello on another connection. The answer. */
static dp_line_refusal_t say_hello(pair_t *pair, const dp_secret_t *world, uint32_t from,
                                   int is_replayed)
{
    const int fd = knock(pair);
    uint8_t greeting[DP_LINE_GREETING_BYTES], hello[DP_LINE_HELLO_BYTES];
    uint8_t welcome[DP_LINE_WELCOME_BYTES], own[DP_CHALLENGE_BYTES] = {7};
    const uint8_t *challenge = NULL;
    const uint8_t elsewhere[DP_CHALLENGE_BYTES] = {9};
    dp_secret_t edge;
    dp_line_refusal_t answer;

    edge_of(pair, world, &edge);
    assert_int_equal(listen_to(pair, fd, greeting, sizeof(greeting)), sizeof(greeting));
    assert_null(dp_line_greeting_read(greeting, &challenge));
    dp_line_hello_write(&edge, dp_auth_tag(world, "line world"), from,
                        is_replayed ? elsewhere : challenge, own, hello);
    assert_int_equal(send(fd, hello, sizeof(hello), MSG_NOSIGNAL), sizeof(hello));
    assert_int_equal(listen_to(pair, fd, welcome, sizeof(welcome)), sizeof(welcome));
    answer = dp_line_welcome_read(&edge, challenge, own, welcome);
    if (answer != DP_LINE_ACCEPTED) /* and nothing follows */
        assert_int_equal(listen_to(pair, fd, welcome, 1), 0);
    close(fd);
    return answer;
}

static void line_strangers_are_refused_by_name(void **state)
{
    static uint8_t garbage[4096];
    uint8_t greeting[DP_LINE_GREETING_BYTES];
    pair_t pair;
    int fd;

    (void)state;
    pair_make(&pair, PATIENCE_NS, &secret);
    pair_connect(&pair, 0);
    fd = knock(&pair);
    assert_int_equal(send(fd, garbage, sizeof(garbage), MSG_NOSIGNAL), sizeof(garbage));
    assert_int_equal(listen_to(&pair, fd, greeting, sizeof(greeting)), sizeof(greeting));
    assert_int_equal(listen_to(&pair, fd, greeting, 1), 0);
    close(fd);
    assert_int_equal(say_hello(&pair, &old_secret, 1, 0), DP_LINE_OTHER_WORLD);
    assert_int_equal(say_hello(&pair, &secret, 1, 1), DP_LINE_WRONG_PROOF);
    assert_int_equal(say_hello(&pair, &secret, 5, 0), DP_LINE_NO_NEIGHBOUR);
    assert_int_equal(say_hello(&pair, &secret, UINT32_MAX, 0), DP_LINE_NO_NEIGHBOUR);
    /* None of them keeps the rank itself out. */
    for (int i = 0; i < 40; i++)
        (void)knock(&pair); /* left open */
    pair_connect(&pair, 1);
    send_text(&pair, 1, "here");
    expect_text(&pair, 0, "here");
    {
        dp_transport_event_t event = {0};

        expect(&pair, 0, 1, &event);
        assert_int_equal(event.kind, DP_TRANSPORT_ALIVE);
    }
    pair_destroy(&pair);
}

static void line_of_a_rank_with_an_old_secret_is_refused(void **state)
{
    pair_t pair;

    (void)state;
    pair_make(&pair, PATIENCE_NS, &old_secret);
    pair_connect(&pair, 0);
    pair_connect(&pair, 1);
    expect_loss(&pair, 1, "refused: of another job, or of a run with another secret");
    pair_destroy(&pair);
}

static void line_beat_that_is_forged_ends_it(void **state)
{
    pair_t pair;
    uint8_t greeting[DP_LINE_GREETING_BYTES], hello[DP_LINE_HELLO_BYTES];
    uint8_t welcome[DP_LINE_WELCOME_BYTES], own[DP_CHALLENGE_BYTES] = {7};
    uint8_t beat[DP_LINE_BEAT_BYTES] = {1, 0, 0, 0, 1};
    const uint8_t *challenge = NULL;
    dp_secret_t edge;
    int fd;

    (void)state;
    pair_make(&pair, PATIENCE_NS, &secret);
    pair_connect(&pair, 0);
    edge_of(&pair, &secret, &edge);
    fd = knock(&pair);
    assert_int_equal(listen_to(&pair, fd, greeting, sizeof(greeting)), sizeof(greeting));
    assert_null(dp_line_greeting_read(greeting, &challenge));
    dp_line_hello_write(&edge, dp_auth_tag(&secret, "line world"), 1, challenge, own, hello);
    assert_int_equal(send(fd, hello, sizeof(hello), MSG_NOSIGNAL), sizeof(hello));
    assert_int_equal(listen_to(&pair, fd, welcome, sizeof(welcome)), sizeof(welcome));
    assert_int_equal(dp_line_welcome_read(&edge, challenge, own, welcome), DP_LINE_ACCEPTED);
    assert_int_equal(send(fd, beat, sizeof(beat), MSG_NOSIGNAL), sizeof(beat));
    dp_transport_destroy(pair.rank[1]);
    pair.rank[1] = NULL;
    expect_loss(&pair, 0, "what it sends makes no sense");
    close(fd);
    pair_destroy(&pair);
}

/* ---- Messages ------------------------------------------------------------------------------- */

static void line_messages_without_a_right_code_are_dropped(void **state)
{
    pair_t pair;
    uint8_t genuine[256];
    size_t bytes;

    (void)state;
    pair_open(&pair);
    send_text(&pair, 1, "one");
    bytes = pair.box[0]->bytes[pair.box[0]->first];
    memcpy(genuine, pair.box[0]->data[pair.box[0]->first], bytes);
    expect_text(&pair, 0, "one");
    put(pair.box[0], genuine, bytes); /* once more */
    put(pair.box[0], "short", 5);
    put(pair.box[0], "", 0);
    genuine[0]++; /* the number that is due, and a code that is not its */
    put(pair.box[0], genuine, bytes);
    send_text(&pair, 1, "two");
    expect_text(&pair, 0, "two");
    /* Rank 0's own message comes back to it: the code says from whom it is. */
    send_text(&pair, 0, "mine");
    put(pair.box[0], pair.box[1]->data[pair.box[1]->first], pair.box[1]->bytes[pair.box[1]->first]);
    send_text(&pair, 1, "three");
    expect_text(&pair, 0, "three");
    pair_destroy(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(line_beats_are_signs_of_life),
        cmocka_unit_test(line_that_ends_without_farewell_is_a_loss),
        cmocka_unit_test(line_loss_comes_behind_the_last_message),
        cmocka_unit_test(line_loss_is_reported_once_whoever_sees_it_first),
        cmocka_unit_test(line_farewell_is_no_loss),
        cmocka_unit_test(line_given_up_is_reset_and_silent),
        cmocka_unit_test(line_to_nobody_is_a_loss),
        cmocka_unit_test(line_that_does_not_open_to_a_silent_rank_is_no_loss_of_its_own),
        cmocka_unit_test(line_that_does_not_open_is_a_loss_with_its_address),
        cmocka_unit_test(line_is_at_the_address_that_it_was_given),
        cmocka_unit_test(line_strangers_are_refused_by_name),
        cmocka_unit_test(line_of_a_rank_with_an_old_secret_is_refused),
        cmocka_unit_test(line_beat_that_is_forged_ends_it),
        cmocka_unit_test(line_messages_without_a_right_code_are_dropped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
