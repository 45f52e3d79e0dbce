/*
 * test_rendezvous.c - the server's end of the rendezvous against the real client and against
 * strangers.
 *
 * The server runs in the test's thread; clients are threads that stop its loop when they are done.
 */
#include "runtime/base/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"

#define RANKS_MAX 8

typedef struct world {
    struct event_base *base;
    dp_rendezvous_t *rendezvous;
    dp_kv_ticket_t ticket;
    int size;
    atomic_int running; /* clients */
    int joined;
    int running_ranks; /* have said RUNNING */
    int refused;
    char first_refusal[1024];
    char refusal[1024]; /* the last one */
    char reports[RANKS_MAX][DP_FAILURE_TEXT_MAX + 1];
    int culprits[RANKS_MAX]; /* 0: none; no test blames rank 0 */
} world_t;

typedef struct client {
    world_t *world;
    int rank;
    void (*run)(struct client *client);
    dp_status_t status;
    dp_error_t error;
    pthread_t thread;
} client_t;

static void on_joined(void *context, int rank)
{
    world_t *world = context;

    (void)rank;
    world->joined++;
}

static void on_failed(void *context, int rank, const dp_failure_t *failure)
{
    world_t *world = context;

    if (failure->kind == DP_FAILURE_ENDED || failure->kind == DP_FAILURE_LATE) {
        world->culprits[rank] = failure->culprit;
    } else {
        snprintf(world->reports[rank], sizeof(world->reports[rank]), "%s", failure->text);
    }
}

static void on_running(void *context, int rank)
{
    world_t *world = context;

    (void)rank;
    world->running_ranks++;
}

static void on_refused(void *context, const char *text)
{
    world_t *world = context;

    if (world->refused++ == 0) {
        snprintf(world->first_refusal, sizeof(world->first_refusal), "%s", text);
    }
    snprintf(world->refusal, sizeof(world->refusal), "%s", text);
}

static void world_create(world_t *world, int size, int is_local)
{
    dp_rendezvous_events_t events = {on_joined, on_failed, on_refused, on_running, world};
    int listener;

    memset(world, 0, sizeof(*world));
    world->size = size;
    world->base = event_base_new();
    assert_int_equal(dp_rendezvous_listen(&world->ticket, &listener, NULL), DP_OK);
    if (!is_local) {
        close(listener);
        assert_int_equal(dp_rendezvous_bind(0, &listener, &world->ticket.port, NULL), DP_OK);
        snprintf(world->ticket.address, sizeof(world->ticket.address), "127.0.0.1");
    }
    assert_int_equal(dp_rendezvous_create(world->base, listener, size, &world->ticket.secret,
                                          &events, &world->rendezvous, NULL),
                     DP_OK);
}

/* At a port, as between machines. */
static void world_init(world_t *world, int size)
{
    world_create(world, size, 0);
}

static void world_fini(world_t *world)
{
    dp_rendezvous_destroy(world->rendezvous);
    event_base_free(world->base);
}

static void *client_thread(void *argument)
{
    client_t *client = argument;

    client->run(client);
    atomic_fetch_sub(&client->world->running, 1);
    return NULL;
}

static void client_start(client_t *client, world_t *world, int rank, void (*run)(client_t *))
{
    memset(client, 0, sizeof(*client));
    client->world = world;
    client->rank = rank;
    client->run = run;
    atomic_fetch_add(&world->running, 1);
    assert_int_equal(pthread_create(&client->thread, NULL, client_thread, client), 0);
}

/* Serves until all clients are done and their last words are heard. */
static void serve(world_t *world)
{
    const struct timeval slice = {0, 2000};

    for (int rest = 50; rest > 0;) {
        event_base_loopexit(world->base, &slice);
        event_base_dispatch(world->base);
        if (atomic_load(&world->running) == 0) rest -= 10;
    }
}

static uint64_t soon(void)
{
    return dp_now_ns() + UINT64_C(20000000000);
}

/* Gives "value R" twice, under two names, and checks all. */
static void meet(client_t *client)
{
    static const char *const names[] = {"first", "second"};
    void *values[RANKS_MAX];
    size_t bytes[RANKS_MAX];
    int size = client->world->size;
    dp_failure_t failure;
    dp_kv_t *kv;

    client->status =
        dp_kv_connect(&client->world->ticket, client->rank, soon(), &kv, &client->error);
    if (client->status != DP_OK) return;
    dp_failure_init(&failure, DP_FAILURE_OTHER, -1, "meeting");
    dp_kv_report(kv, &failure);
    for (int round = 0; round < 2 && client->status == DP_OK; round++) {
        char mine[32];

        snprintf(mine, sizeof(mine), "value %d", client->rank);
        client->status = dp_kv_exchange(kv, names[round], size, mine, strlen(mine), values, bytes,
                                        soon(), &client->error);
        for (int i = 0; i < size && client->status == DP_OK; i++) {
            char expected[32];

            snprintf(expected, sizeof(expected), "value %d", i);
            if (bytes[i] != strlen(expected) || memcmp(values[i], expected, bytes[i]) != 0) {
                client->status = DP_ERR_CHECK;
            }
        }
        for (int i = 0; i < size && client->error.status == DP_OK; i++) {
            free(values[i]);
        }
        if (round == 0) dp_kv_running(kv);
    }
    dp_kv_close(kv);
}

static void rendezvous_ranks_meet(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS_MAX; size++) {
        client_t clients[RANKS_MAX];
        world_t world;

        world_init(&world, size);
        for (int i = 0; i < size; i++) {
            client_start(&clients[i], &world, i, meet);
        }
        serve(&world);
        for (int i = 0; i < size; i++) {
            pthread_join(clients[i].thread, NULL);
            assert_string_equal(clients[i].error.text, "");
            assert_int_equal(clients[i].status, DP_OK);
            assert_string_equal(world.reports[i], "meeting");
        }
        assert_int_equal(world.joined, size);
        assert_int_equal(world.running_ranks, size);
        assert_int_equal(world.refused, 0);
        world_fini(&world);
    }
}

/* ---- Ranks that leave ----------------------------------------------------------------------- */

static void rendezvous_death_of_a_rank_is_told_by_name(void **state)
{
    client_t clients[2];
    world_t world;

    (void)state;
    world_init(&world, 3);
    client_start(&clients[0], &world, 0, meet);
    client_start(&clients[1], &world, 2, meet);
    dp_rendezvous_rank_ended(world.rendezvous, 1, "was killed by SIGKILL");
    serve(&world);
    for (int i = 0; i < 2; i++) {
        pthread_join(clients[i].thread, NULL);
        assert_int_equal(clients[i].status, DP_ERR_PEER_LOST);
        assert_non_null(strstr(clients[i].error.text, "rank 1 was killed by SIGKILL"));
        assert_non_null(strstr(clients[i].error.text, "first"));
        assert_int_equal(world.culprits[clients[i].rank], 1);
    }
    world_fini(&world);
}

static void leave(client_t *client)
{
    dp_kv_t *kv;

    client->status =
        dp_kv_connect(&client->world->ticket, client->rank, soon(), &kv, &client->error);
    if (client->status == DP_OK) dp_kv_close(kv);
}

static void rendezvous_closed_connection_ends_the_wait(void **state)
{
    client_t clients[2];
    world_t world;

    (void)state;
    world_init(&world, 2);
    client_start(&clients[0], &world, 0, meet);
    client_start(&clients[1], &world, 1, leave);
    serve(&world);
    for (int i = 0; i < 2; i++) {
        pthread_join(clients[i].thread, NULL);
    }
    assert_int_equal(clients[0].status, DP_ERR_PEER_LOST);
    assert_non_null(strstr(clients[0].error.text, "rank 1 closed its connection"));
    world_fini(&world);
}

static void rendezvous_closed_door_keeps_who_is_in(void **state)
{
    client_t clients[2];
    world_t world;

    (void)state;
    world_init(&world, 2);
    client_start(&clients[0], &world, 0, meet);
    client_start(&clients[1], &world, 1, meet);
    while (world.joined < 2) {
        event_base_loop(world.base, EVLOOP_ONCE);
    }
    dp_rendezvous_close_door(world.rendezvous);
    serve(&world);
    for (int i = 0; i < 2; i++) {
        pthread_join(clients[i].thread, NULL);
        assert_int_equal(clients[i].status, DP_OK);
    }
    assert_false(dp_rendezvous_has_unsent(world.rendezvous));
    client_start(&clients[0], &world, 0, meet);
    serve(&world);
    pthread_join(clients[0].thread, NULL);
    assert_int_equal(clients[0].status, DP_ERR_SYSTEM);
    assert_non_null(strstr(clients[0].error.text, "Connection refused"));
    world_fini(&world);
}

static void rendezvous_taken_port_is_an_error(void **state)
{
    dp_error_t error = {DP_OK, ""};
    uint16_t port = 0;
    uint16_t again = 0;
    int listener = -1;
    int other = -1;

    (void)state;
    assert_int_equal(dp_rendezvous_bind(0, &listener, &port, &error), DP_OK);
    assert_true(port > 0);
    assert_int_equal(dp_rendezvous_bind(port, &other, &again, &error), DP_ERR_SYSTEM);
    assert_non_null(strstr(error.text, "Address already in use"));
    close(listener);
    assert_int_equal(dp_rendezvous_bind(port, &other, &again, &error), DP_OK);
    assert_int_equal(again, port);
    close(other);
}

/* ---- Strangers ------------------------------------------------------------------------------ */

static int connect_to(const world_t *world)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(world->ticket.port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) abort();
    return fd;
}

static void read_to_end(int fd)
{
    char data[4096];

    while (read(fd, data, sizeof(data)) > 0) {
    }
    close(fd);
}

static void send_garbage(client_t *client)
{
    char data[100000];
    int fd = connect_to(client->world);

    memset(data, 0x5a, sizeof(data));
    (void)!send(fd, data, sizeof(data), MSG_NOSIGNAL);
    read_to_end(fd);
}

static void wrong_secret(client_t *client)
{
    dp_kv_ticket_t ticket = client->world->ticket;
    dp_kv_t *kv;

    ticket.secret.bytes[3] ^= 1;
    client->status = dp_kv_connect(&ticket, client->rank, soon(), &kv, &client->error);
}

/* A hello recorded from one connection, or made up, proves nothing on another. */
static void replay(client_t *client)
{
    uint8_t hello[DP_KV_SERVER_HELLO_BYTES];
    uint8_t answer[DP_KV_CLIENT_HELLO_BYTES];
    const uint8_t *challenge;
    uint8_t mine[DP_CHALLENGE_BYTES] = {1};
    int first = connect_to(client->world);
    int second = connect_to(client->world);

    if (recv(first, hello, sizeof(hello), MSG_WAITALL) != sizeof(hello)) abort();
    if (dp_kv_server_hello_read(hello, &challenge, NULL) != DP_OK) abort();
    dp_kv_client_hello_write(&client->world->ticket.secret, challenge, mine, 0, answer);
    (void)!send(second, answer, sizeof(answer), MSG_NOSIGNAL);
    read_to_end(second);
    close(first);
}

static void rendezvous_strangers_cost_a_line_not_the_job(void **state)
{
    void (*const strangers[])(client_t *) = {send_garbage, wrong_secret, replay};

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(strangers); i++) {
        client_t clients[3];
        world_t world;

        world_init(&world, 2);
        client_start(&clients[0], &world, 0, strangers[i]);
        serve(&world);
        pthread_join(clients[0].thread, NULL);
        assert_true(world.refused >= 1);
        assert_int_equal(world.joined, 0);
        assert_non_null(strstr(world.refusal, "127.0.0.1:"));
        client_start(&clients[1], &world, 0, meet);
        client_start(&clients[2], &world, 1, meet);
        serve(&world);
        for (int k = 1; k < 3; k++) {
            pthread_join(clients[k].thread, NULL);
            assert_int_equal(clients[k].status, DP_OK);
        }
        world_fini(&world);
    }
}

/* The oldest of too many connections of one address is told that it may come again. */
static void be_the_oldest(client_t *client)
{
    uint8_t words[DP_KV_SERVER_HELLO_BYTES + DP_PROOF_BYTES];
    int fds[100];
    int fd = connect_to(client->world);

    for (int i = 0; i < 100; i++)
        fds[i] = connect_to(client->world);
    client->status =
        recv(fd, words, sizeof(words), MSG_WAITALL) == sizeof(words) &&
                memcmp(words + DP_KV_SERVER_HELLO_BYTES, DP_KV_BUSY, DP_PROOF_BYTES) == 0
            ? DP_OK
            : DP_ERR_PEER_LOST;
    for (int i = 0; i < 100; i++)
        close(fds[i]);
    close(fd);
}

static void rendezvous_tells_whom_it_drops(void **state)
{
    client_t client;
    world_t world;

    (void)state;
    world_init(&world, 2);
    client_start(&client, &world, 0, be_the_oldest);
    serve(&world);
    pthread_join(client.thread, NULL);
    assert_int_equal(client.status, DP_OK);
    assert_non_null(strstr(world.first_refusal, "a flood? "));
    world_fini(&world);
}

static void come_late(client_t *client)
{
    dp_kv_t *kv = NULL;

    client->status =
        dp_kv_connect(&client->world->ticket, client->rank, soon(), &kv, &client->error);
    dp_kv_close(kv);
}

static void rendezvous_on_one_machine_needs_no_port(void **state)
{
    client_t clients[3];
    world_t world;

    (void)state;
    world_create(&world, 2, 1);
    assert_int_equal(world.ticket.port, 0);
    for (int i = 0; i < 2; i++)
        client_start(&clients[i], &world, i, meet);
    serve(&world);
    for (int i = 0; i < 2; i++) {
        pthread_join(clients[i].thread, NULL);
        assert_int_equal(clients[i].status, DP_OK);
    }
    assert_int_equal(world.refused, 0);
    dp_rendezvous_close_door(world.rendezvous);
    client_start(&clients[2], &world, 0, come_late);
    pthread_join(clients[2].thread, NULL);
    assert_int_equal(clients[2].status, DP_ERR_PEER_LOST);
    assert_non_null(strstr(clients[2].error.text, "Connection refused"));
    world_fini(&world);
}

static void rendezvous_of_another_user_is_not_believed(void **state)
{
    uid_t user = geteuid();
    dp_kv_ticket_t ticket;
    dp_error_t error = {DP_OK, ""};
    dp_kv_t *kv = NULL;
    int listener = -1;

    (void)state;
    if (user != 0) skip(); /* only root can be two users */
    assert_int_equal(seteuid(65534), 0);
    assert_int_equal(dp_rendezvous_listen(&ticket, &listener, &error), DP_OK);
    assert_int_equal(seteuid(user), 0);
    assert_int_equal(dp_kv_connect(&ticket, 0, soon(), &kv, &error), DP_ERR_CONFIG);
    assert_non_null(strstr(error.text, "it is not a process of user 0"));
    close(listener);
}

/* ---- Ranks that misbehave ------------------------------------------------------------------- */

/* Proves itself as the client's rank; returns the connection. */
static int prove(client_t *client)
{
    uint8_t hello[DP_KV_SERVER_HELLO_BYTES];
    uint8_t answer[DP_KV_CLIENT_HELLO_BYTES];
    uint8_t welcome[DP_PROOF_BYTES];
    const uint8_t *challenge;
    uint8_t mine[DP_CHALLENGE_BYTES] = {1};
    int fd = connect_to(client->world);

    if (recv(fd, hello, sizeof(hello), MSG_WAITALL) != sizeof(hello)) abort();
    if (dp_kv_server_hello_read(hello, &challenge, NULL) != DP_OK) abort();
    dp_kv_client_hello_write(&client->world->ticket.secret, challenge, mine, client->rank, answer);
    (void)!send(fd, answer, sizeof(answer), MSG_NOSIGNAL);
    if (recv(fd, welcome, sizeof(welcome), MSG_WAITALL) != sizeof(welcome)) abort();
    return fd;
}

static void send_bytes(client_t *client, const void *data, size_t bytes)
{
    int fd = prove(client);

    (void)!send(fd, data, bytes, MSG_NOSIGNAL);
    read_to_end(fd);
}

static void oversized_frame(client_t *client)
{
    send_bytes(client, "\xff\xff\xff\x7f\x01", 5);
}

static void empty_frame(client_t *client)
{
    send_bytes(client, "\0\0\0\0", 4);
}

static void unknown_frame(client_t *client)
{
    send_bytes(client, "\x01\0\0\0\x63", 5);
}

static void servers_frame(client_t *client)
{
    send_bytes(client, "\x01\0\0\0\x02", 5);
}

static void cut_exchange(client_t *client)
{
    send_bytes(client, "\x05\0\0\0\x01\xff\xffxx", 9);
}

static void rendezvous_malformed_frames_cost_the_connection(void **state)
{
    void (*const ranks[])(client_t *) = {oversized_frame, empty_frame, unknown_frame, servers_frame,
                                         cut_exchange};

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(ranks); i++) {
        client_t client;
        world_t world;

        world_init(&world, 2);
        client_start(&client, &world, 1, ranks[i]);
        serve(&world);
        pthread_join(client.thread, NULL);
        assert_int_equal(world.refused, 1);
        assert_non_null(strstr(world.refusal, "rank 1 (127.0.0.1:"));
        world_fini(&world);
    }
}

static void rendezvous_second_claim_to_a_rank_is_refused(void **state)
{
    client_t clients[2];
    world_t world;
    int fd;

    (void)state;
    world_init(&world, 2);
    client_start(&clients[0], &world, 0, leave);
    serve(&world);
    pthread_join(clients[0].thread, NULL);
    assert_int_equal(world.joined, 1);
    /* Out of range: refused after the welcome, with a reason. */
    client_start(&clients[1], &world, 5, meet);
    serve(&world);
    pthread_join(clients[1].thread, NULL);
    assert_int_not_equal(clients[1].status, DP_OK);
    assert_non_null(strstr(world.refusal, "there is no rank 5, the job has 2"));
    world_fini(&world);

    /* Taken: while one connection of rank 1 lives, another is refused. It lives as it waits for
     * rank 0, which has never been there; one that had left would end the wait. */
    world_init(&world, 2);
    client_start(&clients[0], &world, 1, meet);
    while (world.joined < 1) {
        event_base_loop(world.base, EVLOOP_ONCE);
    }
    client_start(&clients[1], &world, 1, meet);
    while (strstr(world.refusal, "rank 1 is here already") == NULL) {
        event_base_loop(world.base, EVLOOP_ONCE);
    }
    dp_rendezvous_rank_ended(world.rendezvous, 0, "exited with code 0");
    serve(&world);
    for (int i = 0; i < 2; i++) {
        pthread_join(clients[i].thread, NULL);
        assert_int_not_equal(clients[i].status, DP_OK);
    }
    assert_non_null(strstr(clients[1].error.text, "rank 1 is here already"));
    fd = connect_to(&world);
    close(fd);
    world_fini(&world);
}

/* ---- Patience ------------------------------------------------------------------------------- */

/* Gives its value, says so by a report behind it, and takes down the answer. */
static void wait_long(client_t *client)
{
    uint8_t data[2048];
    dp_failure_t failure;
    dp_writer_t writer;
    dp_reader_t fields;
    size_t have = 0;
    size_t need = 4;
    uint8_t type = 0;
    int fd = prove(client);

    dp_writer_init(&writer, data, sizeof(data));
    dp_kv_frame_begin(&writer, DP_KV_EXCHANGE);
    dp_write_text(&writer, "first");
    dp_write_u32(&writer, 4);
    dp_write_u32(&writer, 0);
    dp_kv_frame_end(&writer, 0);
    dp_failure_init(&failure, DP_FAILURE_OTHER, -1, "waits");
    dp_kv_failure_write(&writer, &failure);
    if (send(fd, data, writer.bytes, MSG_NOSIGNAL) != (ssize_t)writer.bytes) abort();
    client->status = DP_ERR_PENDING;
    while (client->status == DP_ERR_PENDING) {
        if (recv(fd, data + have, need - have, MSG_WAITALL) != (ssize_t)(need - have)) abort();
        have = need;
        client->status = dp_kv_frame_parse(data, have, &type, &fields, &need, &client->error);
    }
    if (type == DP_KV_LATE) client->status = DP_ERR_TIMEOUT;
    (void)dp_kv_text_read(&fields, client->error.text, sizeof(client->error.text));
    close(fd);
}

static void give_up_soon(client_t *client)
{
    void *values[RANKS_MAX];
    size_t bytes[RANKS_MAX];
    dp_kv_t *kv;

    client->status =
        dp_kv_connect(&client->world->ticket, client->rank, soon(), &kv, &client->error);
    if (client->status != DP_OK) return;
    client->status = dp_kv_exchange(kv, "first", 4, "v", 1, values, bytes, dp_now_ns() + 10000000,
                                    &client->error);
    dp_kv_close(kv);
}

static void rendezvous_end_of_patience_tells_all_who_is_missing(void **state)
{
    client_t clients[2];
    world_t world;

    (void)state;
    world_init(&world, 4);
    client_start(&clients[0], &world, 2, wait_long);
    while (world.reports[2][0] == '\0') {
        event_base_loop(world.base, EVLOOP_ONCE);
    }
    client_start(&clients[1], &world, 0, give_up_soon);
    serve(&world);
    for (int i = 0; i < 2; i++) {
        pthread_join(clients[i].thread, NULL);
        assert_int_equal(clients[i].status, DP_ERR_TIMEOUT);
        assert_string_equal(clients[i].error.text, "2 of 4 ranks did not come in time: 1, 3; "
                                                   "there were 0, 2 (first)");
    }
    assert_int_equal(world.culprits[2], 1);
    world_fini(&world);
}

static void wrong_size(client_t *client)
{
    void *values[RANKS_MAX];
    size_t bytes[RANKS_MAX];
    dp_kv_t *kv;

    client->status =
        dp_kv_connect(&client->world->ticket, client->rank, soon(), &kv, &client->error);
    if (client->status != DP_OK) return;
    client->status = dp_kv_exchange(kv, "n", 7, "v", 1, values, bytes, soon(), &client->error);
    dp_kv_close(kv);
}

static void rendezvous_wrong_size_is_told_with_both_values(void **state)
{
    client_t client;
    world_t world;

    (void)state;
    world_init(&world, 2);
    client_start(&client, &world, 1, wrong_size);
    serve(&world);
    pthread_join(client.thread, NULL);
    assert_int_equal(client.status, DP_ERR_PEER_LOST);
    assert_non_null(strstr(client.error.text, "rank 1 counts 7 ranks, the job has 2"));
    world_fini(&world);
}

static void rendezvous_survives_any_failed_allocation(void **state)
{
    dp_status_t status = DP_ERR_NO_MEMORY;

    (void)state;
    for (long nth = 1; status != DP_OK; nth++) {
        dp_rendezvous_events_t events = {on_joined, on_failed, on_refused, NULL, NULL};
        struct event_base *base = event_base_new();
        dp_rendezvous_t *rendezvous = NULL;
        dp_kv_ticket_t ticket;
        int listener;

        assert_true(nth < 50);
        assert_int_equal(dp_rendezvous_listen(&ticket, &listener, NULL), DP_OK);
        fail_allocation(nth);
        status =
            dp_rendezvous_create(base, listener, 4, &ticket.secret, &events, &rendezvous, NULL);
        fail_allocation(0);
        if (status == DP_OK) {
            dp_rendezvous_destroy(rendezvous);
        } else {
            assert_int_equal(status, DP_ERR_NO_MEMORY);
        }
        event_base_free(base);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rendezvous_ranks_meet),
        cmocka_unit_test(rendezvous_death_of_a_rank_is_told_by_name),
        cmocka_unit_test(rendezvous_closed_connection_ends_the_wait),
        cmocka_unit_test(rendezvous_end_of_patience_tells_all_who_is_missing),
        cmocka_unit_test(rendezvous_closed_door_keeps_who_is_in),
        cmocka_unit_test(rendezvous_taken_port_is_an_error),
        cmocka_unit_test(rendezvous_strangers_cost_a_line_not_the_job),
        cmocka_unit_test(rendezvous_tells_whom_it_drops),
        cmocka_unit_test(rendezvous_on_one_machine_needs_no_port),
        cmocka_unit_test(rendezvous_of_another_user_is_not_believed),
        cmocka_unit_test(rendezvous_malformed_frames_cost_the_connection),
        cmocka_unit_test(rendezvous_second_claim_to_a_rank_is_refused),
        cmocka_unit_test(rendezvous_wrong_size_is_told_with_both_values),
        cmocka_unit_test(rendezvous_survives_any_failed_allocation),
    };

    /* dprun ignores it, and the server's thread in libdp blocks it: libevent's writes to a
     * connection that the client has closed must end with EPIPE. */
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
