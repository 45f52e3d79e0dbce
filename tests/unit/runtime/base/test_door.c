/*
 * test_door.c - who is let in at a door, and what becomes of all others: silent ones, floods, other
 * programs, and a process without a free descriptor.
 */
#include "runtime/base/door.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/base/local_socket.h"
#include "tests/unit/cases.h"

#define TURNS 10000 /* of a millisecond */
#define EXPECTED 2
#define ROOM (EXPECTED + DP_DOOR_EXTRA)
#define HELLO "let me in"
#define BUSY "come again, there are too many..." /* DP_PROOF_BYTES and a NUL */

typedef struct world {
    dp_door_t *door;
    uint16_t port;
    char name[DP_LOCAL_ADDRESS_ROOM]; /* where the door is local */
    int closes;                       /* judge() closes the door */
    int taken, lines;
    int fd; /* the one that was taken last, and what came with it */
    int files[DP_DOOR_FILES_MAX];
    int file_count, lacks_files;
    char from[64];
    char why[DP_DOOR_TEXT + 32]; /* of the last line */
} world_t;

static int judge(void *context, dp_door_visitor_t *visitor, char *why)
{
    world_t *world = context;

    if (memcmp(visitor->hello, HELLO, sizeof(HELLO)) != 0) {
        snprintf(why, DP_DOOR_TEXT, "a wrong hello");
        (void)dp_door_answer(visitor, "no", 2);
        return 0;
    }
    world->taken++;
    world->fd = visitor->fd;
    world->file_count = visitor->file_count;
    world->lacks_files = visitor->lacks_files;
    memcpy(world->files, visitor->files, sizeof(world->files));
    snprintf(world->from, sizeof(world->from), "%s", visitor->from);
    if (world->closes) dp_door_close(world->door);
    return 1;
}

static void refused(void *context, const char *from, const char *why)
{
    world_t *world = context;

    (void)from;
    world->lines++;
    snprintf(world->why, sizeof(world->why), "%s", why);
}

static void greet(const uint8_t *challenge, uint8_t *greeting)
{
    memcpy(greeting, challenge, 4);
}

static void world_open(world_t *world, int is_local)
{
    const dp_door_owner_t owner = {.hello_bytes = sizeof(HELLO),
                                   .files = is_local ? 2 : 0,
                                   .greet = is_local ? NULL : greet,
                                   .greeting_bytes = is_local ? 0 : 4,
                                   .judge = judge,
                                   .refused = refused,
                                   .busy = BUSY,
                                   .context = world};
    int listener;

    memset(world, 0, sizeof(*world));
    assert_int_equal(dp_door_create(&owner, EXPECTED, &world->door, NULL), DP_OK);
    if (is_local) {
        assert_int_equal(dp_local_listen(world->name, &listener, NULL), DP_OK);
    } else {
        listener = dp_door_bind_everywhere(0, &world->port);
    }
    assert_true(listener >= 0);
    assert_int_equal(dp_door_listen(world->door, listener), 0);
}

/* From 127.0.0.LAST. */
static int call(const world_t *world, int last)
{
    const in_addr_t address = INADDR_LOOPBACK - 1 + (in_addr_t)last;
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)};
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(world->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

/* Receives until the other end closes, or until `bytes` have come. */
static size_t hear(const world_t *world, int fd, char *data, size_t bytes)
{
    size_t have = 0;

    for (int i = 0; i < TURNS && have < bytes; i++) {
        const ssize_t got = recv(fd, data + have, bytes - have, MSG_DONTWAIT);

        if (got == 0 || (got < 0 && errno == ECONNRESET)) break;
        if (got > 0) have += (size_t)got;
        dp_door_turn(world->door);
        (void)poll(NULL, 0, got > 0 ? 0 : 1);
    }
    return have;
}

static void await(const world_t *world, const int *number, int is)
{
    for (int i = 0; i < TURNS && *number < is; i++) {
        dp_door_turn(world->door);
        (void)poll(NULL, 0, 1);
    }
    assert_int_equal(*number, is);
}

static void door_hands_over_a_connection_behind_its_hello(void **state)
{
    struct pollfd look;
    char data[64];
    world_t world;
    int fd, other;

    (void)state;
    world_open(&world, 0);
    look = (struct pollfd){.fd = dp_door_fd(world.door), .events = POLLIN};
    assert_int_equal(poll(&look, 1, 0), 0);
    fd = call(&world, 1);
    assert_int_equal(poll(&look, 1, -1), 1); /* the owner is woken */
    assert_int_equal(hear(&world, fd, data, 4), 4);
    assert_int_equal(send(fd, HELLO, 4, 0), 4); /* in pieces, and more behind it */
    for (int i = 0; i < 20; i++)
        dp_door_turn(world.door);
    assert_int_equal(world.taken, 0);
    assert_int_equal(send(fd, "then nonsense", 13, 0), 13);
    other = call(&world, 1);
    assert_int_equal(hear(&world, other, data, 4), 4);
    assert_int_equal(send(other, HELLO "\0and more", sizeof(HELLO) + 8, 0), sizeof(HELLO) + 8);
    await(&world, &world.taken, 1);
    assert_int_equal(strncmp(world.from, "127.0.0.1:", 10), 0);
    assert_int_equal(recv(world.fd, data, sizeof(data), 0), 8);
    assert_memory_equal(data, "and more", 8);
    assert_int_equal(world.lines, 1);
    assert_string_equal(world.why, "a wrong hello");
    close(world.fd);
    close(other);
    close(fd);
    dp_door_destroy(world.door);
}

static void door_takes_descriptors_of_a_hello_and_no_more(void **state)
{
    const int files[] = {0, 1, 2};
    world_t world;

    (void)state;
    world_open(&world, 1);
    for (int count = 0; count <= 3; count++) {
        int fd = -1;
        dp_error_t error;

        assert_int_equal(dp_local_connect(world.name, UINT64_MAX, &fd, &error), DP_OK);
        assert_int_equal(dp_local_send(fd, HELLO, sizeof(HELLO), files, count), 0);
        await(&world, &world.taken, count + 1);
        assert_int_equal(world.file_count, count <= 2 ? count : 0);
        assert_int_equal(world.lacks_files, count > 2);
        for (int i = 0; i < world.file_count; i++) {
            assert_int_equal(fcntl(world.files[i], F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
            close(world.files[i]);
        }
        close(world.fd);
        close(fd);
    }
    dp_door_destroy(world.door);
}

/* A flood drops its own: one that takes its time at another address stays. */
static void door_flood_costs_the_address_that_makes_it(void **state)
{
    char data[64];
    world_t world;
    int flood[3 * ROOM];
    int fd;

    (void)state;
    world_open(&world, 0);
    fd = call(&world, 1);
    assert_int_equal(hear(&world, fd, data, 4), 4);
    for (size_t i = 0; i < DP_ARRAY_LEN(flood); i++) {
        flood[i] = call(&world, 9);
        dp_door_turn(world.door);
    }
    assert_int_equal(hear(&world, flood[0], data, sizeof(data)), 4 + DP_PROOF_BYTES);
    assert_memory_equal(data + 4, BUSY, DP_PROOF_BYTES);
    assert_true(dp_door_had_flood(world.door));
    assert_int_equal(send(fd, HELLO, sizeof(HELLO), 0), sizeof(HELLO));
    await(&world, &world.taken, 1);
    assert_true(dp_door_refused(world.door) > DP_DOOR_LINES);
    assert_int_equal(world.lines, DP_DOOR_LINES);
    assert_non_null(strstr(world.why, "(no more such lines)"));
    for (size_t i = 0; i < DP_ARRAY_LEN(flood); i++)
        close(flood[i]);
    close(world.fd);
    close(fd);
    dp_door_destroy(world.door);
}

/* Where the process stood still meanwhile, a hello that lies there counts. */
static void door_gives_up_who_says_nothing_in_time(void **state)
{
    char data[4];
    world_t world;
    int silent, fd;

    (void)state;
    world_open(&world, 0);
    silent = call(&world, 1);
    assert_int_equal(hear(&world, silent, data, 4), 4);
    fd = call(&world, 1);
    assert_int_equal(hear(&world, fd, data, 4), 4);
    dp_door_turn(world.door);
    assert_int_equal(world.lines, 0);
    assert_int_equal(send(fd, HELLO, sizeof(HELLO), 0), sizeof(HELLO));
    (void)poll(NULL, 0, DP_DOOR_PATIENCE_S * 1000 + 50);
    await(&world, &world.taken, 1);
    await(&world, &world.lines, 1);
    assert_string_equal(world.why, "no proof within 5 s");
    close(world.fd);
    close(silent);
    close(fd);
    dp_door_destroy(world.door);
}

/* It rests, else its owner would find it readable for ever, and goes on once one is free. */
static void door_waits_out_a_lack_of_descriptors(void **state)
{
    struct rlimit limit, none;
    struct pollfd look;
    char data[4];
    world_t world;
    int fd;

    (void)state;
    world_open(&world, 0);
    look = (struct pollfd){.fd = dp_door_fd(world.door), .events = POLLIN};
    fd = call(&world, 1);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){.rlim_cur = 3, .rlim_max = limit.rlim_max};
    assert_int_equal(poll(&look, 1, -1), 1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    dp_door_turn(world.door);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(world.lines, 1);
    assert_non_null(strstr(world.why, "accept: "));
    assert_int_equal(poll(&look, 1, 0), 0);
    assert_int_equal(hear(&world, fd, data, 4), 4);
    close(fd);
    dp_door_destroy(world.door);
}

static void door_may_be_closed_by_its_judge(void **state)
{
    world_t world;
    int fds[3];

    (void)state;
    world_open(&world, 0);
    world.closes = 1;
    for (int i = 0; i < 3; i++) {
        fds[i] = call(&world, 1);
        assert_int_equal(send(fds[i], HELLO, sizeof(HELLO), 0), sizeof(HELLO));
    }
    await(&world, &world.taken, 1);
    for (int i = 0; i < 5; i++)
        dp_door_turn(world.door);
    assert_int_equal(world.taken, 1);
    dp_door_adopt(world.door, dup(fds[0]), "late", 0);
    assert_int_equal(dp_door_listen(world.door, dup(0)), -1);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    close(world.fd);
    dp_door_destroy(world.door);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(door_hands_over_a_connection_behind_its_hello),
        cmocka_unit_test(door_takes_descriptors_of_a_hello_and_no_more),
        cmocka_unit_test(door_flood_costs_the_address_that_makes_it),
        cmocka_unit_test(door_gives_up_who_says_nothing_in_time),
        cmocka_unit_test(door_waits_out_a_lack_of_descriptors),
        cmocka_unit_test(door_may_be_closed_by_its_judge),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
