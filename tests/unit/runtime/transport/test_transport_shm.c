/*
 * test_transport_shm.c - shared memory between ranks that are threads here: no message is slept
 * through, whoever sleeps, polls or leaves; long ones, ends and damage.
 *
 * The cases of test_transport.c, for every transport, are not repeated here.
 */
#include "runtime/transport/transport.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/transport/mailbox.h"
#include "runtime/transport/near.h"
#include "tests/unit/cases.h"
#include "tests/unit/sanitizer.h"

#define TAG 0xabcdef0123456789ull
#define RANKS 4
#define PATIENCE_MS 20000 /* a message that was slept through fails here, and only it */
#define MS 1000000ull

typedef struct world {
    dp_transport_t *rank[RANKS];
    uint8_t address[RANKS][DP_ADDRESS_MAX];
    size_t bytes[RANKS];
    int size;
} world_t;

/* ---- Worlds --------------------------------------------------------------------------------- */

static dp_transport_t *create(int rank, int size)
{
    dp_transport_t *shm = NULL;
    int others[RANKS];
    int count = 0;
    dp_error_t error = {0};

    for (int i = 0; i < size; i++) {
        if (i != rank) others[count++] = i;
    }
    if (dp_transport_shm_create(rank, TAG, others, count, NULL, NULL, &shm, &error) != DP_OK)
        fail_msg("%s", error.text);
    return shm;
}

static void world_make(world_t *world, int size)
{
    memset(world, 0, sizeof(*world));
    world->size = size;
    for (int i = 0; i < size; i++) {
        world->rank[i] = create(i, size);
        assert_int_equal(world->rank[i]->ops->address(world->rank[i], world->address[i],
                                                      DP_ADDRESS_MAX, &world->bytes[i]),
                         DP_OK);
    }
}

static void world_greet(world_t *world)
{
    for (int i = 0; i < world->size; i++) {
        const void *addresses[RANKS];
        size_t bytes[RANKS];
        int ranks[RANKS];
        int count = 0;
        dp_error_t error = {0};

        for (int j = 0; j < world->size; j++) {
            if (j == i) continue;
            ranks[count] = j;
            addresses[count] = world->address[j];
            bytes[count++] = world->bytes[j];
        }
        if (world->rank[i]->ops->connect(world->rank[i], ranks, addresses, bytes, count, &error) !=
            DP_OK)
            fail_msg("%s", error.text);
    }
}

/* All have each other's mailboxes then. */
static void world_connect(world_t *world)
{
    dp_transport_event_t event;

    world_greet(world);
    for (int i = 0; i < world->size; i++)
        assert_int_equal(world->rank[i]->ops->poll(world->rank[i], &event), DP_ERR_PENDING);
}

static void world_open(world_t *world, int size)
{
    world_make(world, size);
    world_connect(world);
}

static void world_destroy(world_t *world)
{
    for (int i = 0; i < world->size; i++)
        dp_transport_destroy(world->rank[i]);
}

static void send_to(world_t *world, int from, int to, const void *data, size_t bytes)
{
    assert_int_equal(world->rank[from]->ops->send(world->rank[from], to, data, bytes), DP_OK);
}

static dp_status_t poll_once(dp_transport_t *transport, dp_transport_event_t *out)
{
    return transport->ops->poll(transport, out);
}

/* Sleeps as the loop does, until an event comes. 0: none did. */
static int next_event(dp_transport_t *transport, dp_transport_event_t *out)
{
    const uint64_t until = dp_now_ns() + PATIENCE_MS * MS;

    while (dp_now_ns() < until) {
        struct pollfd wait = {.fd = transport->ops->fd(transport), .events = POLLIN};

        if (poll_once(transport, out) == DP_OK) return 1;
        if (transport->ops->arm(transport) == DP_OK) (void)poll(&wait, 1, PATIENCE_MS);
    }
    return 0;
}

static void expect_message(world_t *world, int rank, int from, const void *data, size_t bytes)
{
    dp_transport_event_t event = {0};

    assert_true(next_event(world->rank[rank], &event));
    assert_int_equal(event.kind, DP_TRANSPORT_MESSAGE);
    assert_int_equal(event.rank, from);
    assert_int_equal(event.bytes, bytes);
    if (bytes > 0) assert_memory_equal(event.data, data, bytes);
}

static void expect_loss(world_t *world, int rank, int of, const char *text)
{
    dp_transport_event_t event = {0};

    assert_true(next_event(world->rank[rank], &event));
    assert_int_equal(event.kind, DP_TRANSPORT_PEER_LOST);
    assert_int_equal(event.rank, of);
    assert_non_null(strstr(event.text, text));
}

static void expect_nothing(world_t *world, int rank, int polls)
{
    dp_transport_event_t event = {0};

    for (int i = 0; i < polls; i++)
        assert_int_equal(poll_once(world->rank[rank], &event), DP_ERR_PENDING);
}

static void fill(uint8_t *data, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 131 + seed + (i >> 8));
}

/* ---- Tokens: nobody sleeps through a message ------------------------------------------------
 *
 * Tokens are passed on at random until each has made its hops. Ranks sleep without a limit worth
 * the name, so one message that wakes nobody ends the test. */

enum {
    HOPS = 3000,
    LONG_HOPS = under_thread_sanitizer ? 600 : HOPS,
    TOKENS = 3,
    DRIVEN_HOPS = 3000
};

typedef struct token {
    uint32_t hops;
    uint32_t bytes; /* of the message, this included */
} token_t;

typedef struct member {
    world_t *world;
    int rank;
    unsigned seed;
    atomic_int *left; /* tokens under way, of all */
    size_t largest;
    int was_stuck;
    /* of a rank that another thread drives at times */
    pthread_mutex_t progress_lock;
    int sleeps; /* guarded by progress_lock */
    atomic_int ends;
} member_t;

static void pause_for(unsigned *seed)
{
    const int what = rand_r(seed) % 8;

    if (what == 0) usleep((unsigned)rand_r(seed) % 200);
    for (int i = what == 1 ? rand_r(seed) % 3000 : 0; i > 0; i--)
        atomic_signal_fence(memory_order_seq_cst);
    if (what == 2) sched_yield();
}

static void wake_all(world_t *world)
{
    for (int i = 0; i < world->size; i++)
        world->rank[i]->ops->wake(world->rank[i]);
}

static void pass_on(member_t *member, const dp_transport_event_t *event)
{
    dp_transport_t *transport = member->world->rank[member->rank];
    static _Thread_local uint8_t data[DP_MESSAGE_MAX];
    token_t token;
    int to;

    assert_int_equal(event->kind, DP_TRANSPORT_MESSAGE);
    assert_true(event->bytes >= sizeof(token));
    memcpy(&token, event->data, sizeof(token));
    assert_int_equal(token.bytes, event->bytes);
    if (token.hops == 0) {
        if (atomic_fetch_sub(member->left, 1) == 1) wake_all(member->world);
        return;
    }
    token.hops--;
    token.bytes = (uint32_t)(sizeof(token) + (size_t)rand_r(&member->seed) % member->largest);
    memcpy(data, &token, sizeof(token));
    do {
        to = rand_r(&member->seed) % member->world->size;
    } while (to == member->rank);
    assert_int_equal(transport->ops->send(transport, to, data, token.bytes), DP_OK);
}

static void *sleep_and_pass(void *arg)
{
    member_t *member = arg;
    dp_transport_t *transport = member->world->rank[member->rank];

    while (atomic_load(member->left) > 0 && !member->was_stuck) {
        struct pollfd wait = {.fd = transport->ops->fd(transport), .events = POLLIN};
        dp_transport_event_t event = {0};

        while (poll_once(transport, &event) == DP_OK)
            pass_on(member, &event);
        pause_for(&member->seed);
        if (transport->ops->arm(transport) != DP_OK || atomic_load(member->left) == 0) continue;
        pause_for(&member->seed);
        member->was_stuck = poll(&wait, 1, PATIENCE_MS) == 0;
    }
    wake_all(member->world);
    return NULL;
}

static void start_tokens(world_t *world, uint32_t hops)
{
    for (uint32_t i = 0; i < TOKENS; i++) {
        const token_t token = {hops, sizeof(token)};

        send_to(world, (int)i % world->size, (int)(i + 1) % world->size, &token, sizeof(token));
    }
}

static void pass_tokens(int size, size_t largest, int hops)
{
    member_t members[RANKS] = {0};
    pthread_t threads[RANKS];
    atomic_int left = TOKENS;
    world_t world;

    world_open(&world, size);
    for (int i = 0; i < size; i++) {
        members[i] = (member_t){
            .world = &world, .rank = i, .seed = (unsigned)i + 1, .left = &left, .largest = largest};
    }
    start_tokens(&world, hops);
    for (int i = 0; i < size; i++)
        pthread_create(&threads[i], NULL, sleep_and_pass, &members[i]);
    for (int i = 0; i < size; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < size; i++)
        assert_int_equal(members[i].was_stuck, 0);
    world_destroy(&world);
}

static void no_message_is_slept_through(void **state)
{
    (void)state;
    for (int size = 2; size <= RANKS; size++)
        pass_tokens(size, 50, HOPS);
}

static void nor_is_room_for_a_long_one(void **state)
{
    (void)state;
    pass_tokens(3, (size_t)150 * DP_KIB, LONG_HOPS);
}

/* The thread that holds progress_lock polls. It gives it back before it sleeps, as the coordinator
 * thread does. */
static void *sleep_for_drivers(void *arg)
{
    member_t *member = arg;
    dp_transport_t *transport = member->world->rank[member->rank];

    pthread_mutex_lock(&member->progress_lock);
    while (atomic_load(member->left) > 0 && !member->was_stuck) {
        struct pollfd wait = {.fd = transport->ops->fd(transport), .events = POLLIN};
        dp_transport_event_t event = {0};

        while (poll_once(transport, &event) == DP_OK)
            pass_on(member, &event);
        if (transport->ops->arm(transport) != DP_OK || atomic_load(member->left) == 0) continue;
        member->sleeps = 1;
        pthread_mutex_unlock(&member->progress_lock);
        pause_for(&member->seed);
        member->was_stuck = poll(&wait, 1, PATIENCE_MS) == 0;
        pthread_mutex_lock(&member->progress_lock);
        member->sleeps = 0;
    }
    pthread_mutex_unlock(&member->progress_lock);
    wake_all(member->world);
    return NULL;
}

static void *drive(void *arg)
{
    member_t *member = arg;
    dp_transport_t *transport = member->world->rank[member->rank];
    unsigned seed = (unsigned)member->rank + 77;

    while (atomic_load(member->left) > 0 && !atomic_load(&member->ends)) {
        dp_transport_event_t event = {0};

        pause_for(&seed);
        if (pthread_mutex_trylock(&member->progress_lock) != 0) continue;
        for (int i = rand_r(&seed) % 20; i > 0; i--) {
            if (poll_once(transport, &event) == DP_OK) pass_on(member, &event);
        }
        while (member->sleeps && transport->ops->rearm(transport) == DP_ERR_PENDING) {
            if (poll_once(transport, &event) == DP_OK) pass_on(member, &event);
        }
        pthread_mutex_unlock(&member->progress_lock);
    }
    return NULL;
}

static void driver_leaves_nothing_behind(void **state)
{
    member_t members[RANKS] = {0};
    pthread_t sleepers[RANKS], drivers[RANKS];
    atomic_int left = TOKENS;
    world_t world;

    (void)state;
    world_open(&world, 3);
    for (int i = 0; i < world.size; i++) {
        members[i] = (member_t){
            .world = &world, .rank = i, .seed = (unsigned)i + 1, .left = &left, .largest = 3000};
        pthread_mutex_init(&members[i].progress_lock, NULL);
    }
    start_tokens(&world, DRIVEN_HOPS);
    for (int i = 0; i < world.size; i++) {
        pthread_create(&sleepers[i], NULL, sleep_for_drivers, &members[i]);
        pthread_create(&drivers[i], NULL, drive, &members[i]);
    }
    for (int i = 0; i < world.size; i++) {
        pthread_join(sleepers[i], NULL);
        atomic_store(&members[i].ends, 1);
        pthread_join(drivers[i], NULL);
    }
    for (int i = 0; i < world.size; i++) {
        assert_int_equal(members[i].was_stuck, 0);
        pthread_mutex_destroy(&members[i].progress_lock);
    }
    world_destroy(&world);
}

/* A rank that polls gets no wake-up, and one that has gone to sleep gets one. */
static void doorbell_is_left_alone_while_somebody_polls(void **state)
{
    struct pollfd wait = {.events = POLLIN};
    world_t world;

    (void)state;
    world_open(&world, 2);
    send_to(&world, 0, 1, "a", 1);
    expect_message(&world, 1, 0, "a", 1);
    expect_nothing(&world, 0, 100);
    wait.fd = world.rank[1]->ops->fd(world.rank[1]);
    while (world.rank[1]->ops->arm(world.rank[1]) == DP_ERR_PENDING)
        expect_nothing(&world, 1, 1);
    expect_nothing(&world, 1, 1); /* a driver's */
    send_to(&world, 0, 1, "b", 1);
    assert_int_equal(poll(&wait, 1, 0), 0);
    assert_int_equal(world.rank[1]->ops->rearm(world.rank[1]), DP_ERR_PENDING); /* it must look */
    expect_message(&world, 1, 0, "b", 1);
    assert_int_equal(world.rank[1]->ops->rearm(world.rank[1]), DP_OK);
    send_to(&world, 0, 1, "c", 1);
    assert_int_equal(poll(&wait, 1, 0), 1);
    expect_message(&world, 1, 0, "c", 1);
    world_destroy(&world);
}

/* ---- Long messages -------------------------------------------------------------------------- */

enum { LONG_ONES = 6 };

typedef struct giver {
    world_t *world;
    int rank;
    int ok;
} giver_t;

static void run_both(world_t *world, void *(*give)(void *))
{
    giver_t givers[] = {{world, 0, 0}, {world, 1, 0}};
    pthread_t threads[2];

    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, give, &givers[i]);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(givers[i].ok, 1);
    }
}

static size_t long_size(int i)
{
    return DP_MESSAGE_MAX - (size_t)i * 77777;
}

/* Sends all before it looks, then sleeps for what comes. */
static void *give_and_take(void *arg)
{
    giver_t *giver = arg;
    dp_transport_t *transport = giver->world->rank[giver->rank];
    uint8_t *data = malloc(DP_MESSAGE_MAX);
    dp_transport_event_t event = {0};

    for (int i = 0; i < LONG_ONES; i++) {
        fill(data, long_size(i), (unsigned)i);
        if (transport->ops->send(transport, 1 - giver->rank, data, long_size(i)) != DP_OK)
            goto done;
    }
    for (int i = 0; i < LONG_ONES; i++) {
        fill(data, long_size(i), (unsigned)i);
        if (!next_event(transport, &event) || event.bytes != long_size(i) ||
            memcmp(event.data, data, event.bytes) != 0)
            goto done;
    }
    giver->ok = 1;
done:
    free(data);
    transport->ops->close(transport,
                          dp_now_ns() + PATIENCE_MS * MS); /* what the other still needs */
    return NULL;
}

static void long_messages_pass_each_other(void **state)
{
    world_t world;

    (void)state;
    world_open(&world, 2);
    run_both(&world, give_and_take);
    world_destroy(&world);
}

/* ---- Ends ----------------------------------------------------------------------------------- */

static void *send_and_close(void *arg)
{
    giver_t *giver = arg;
    dp_transport_t *transport = giver->world->rank[giver->rank];
    uint8_t *data = malloc(DP_MESSAGE_MAX);

    for (int i = 0; i < LONG_ONES; i++) {
        fill(data, long_size(i), (unsigned)i);
        if (transport->ops->send(transport, 1 - giver->rank, data, long_size(i)) != DP_OK)
            goto done;
    }
    /* Ends once all is sent: a wait for this deadline would outlast the test's own limit. */
    transport->ops->close(transport, dp_now_ns() + 3600000 * MS);
    giver->ok = 1;
done:
    free(data);
    return NULL;
}

static void what_was_sent_before_a_close_arrives(void **state)
{
    uint8_t *data = malloc(DP_MESSAGE_MAX);
    pthread_t thread;
    giver_t giver;
    world_t world;

    (void)state;
    world_open(&world, 2);
    giver = (giver_t){&world, 0, 0};
    pthread_create(&thread, NULL, send_and_close, &giver);
    for (int i = 0; i < LONG_ONES; i++) {
        fill(data, long_size(i), (unsigned)i);
        expect_message(&world, 1, 0, data, long_size(i));
    }
    pthread_join(thread, NULL);
    assert_int_equal(giver.ok, 1);
    dp_transport_destroy(world.rank[0]);
    world.rank[0] = NULL;
    expect_nothing(&world, 1, 100); /* it left in order */
    for (int i = 0; i < LONG_ONES; i++)
        send_to(&world, 1, 0, data, DP_MESSAGE_MAX); /* dropped */
    expect_nothing(&world, 1, 100);
    giver.world->rank[1]->ops->close(world.rank[1], dp_now_ns() + PATIENCE_MS * MS);
    world_destroy(&world);
    free(data);
}

static void two_that_close_with_full_rings_do_not_wait(void **state)
{
    world_t world;

    (void)state;
    world_open(&world, 2);
    run_both(&world, send_and_close);
    world_destroy(&world);
}

static void last_words_come_before_the_loss(void **state)
{
    world_t world;

    (void)state;
    world_open(&world, 3);
    for (uint8_t i = 0; i < 100; i++)
        send_to(&world, 0, 1, &i, 1);
    dp_transport_destroy(world.rank[0]);
    world.rank[0] = NULL;
    for (uint8_t i = 0; i < 100; i++)
        expect_message(&world, 1, 0, &i, 1);
    expect_loss(&world, 1, 0, "its connection broke");
    expect_nothing(&world, 1, 100); /* once */
    send_to(&world, 1, 0, "x", 1);  /* dropped, and no signal */
    send_to(&world, 2, 1, "y", 1);
    expect_message(&world, 1, 2, "y", 1);
    world_destroy(&world);
}

static void exchange_all_ways(world_t *world)
{
    uint8_t *data = malloc(DP_MESSAGE_MAX);

    for (int round = 0; round < 3; round++) {
        for (int from = 0; from < world->size; from++) {
            for (int to = 0; to < world->size; to++) {
                if (from == to) continue;
                fill(data, 100, (unsigned)(from + round));
                send_to(world, from, to, data, (size_t)round * 40);
            }
        }
        for (int to = 0; to < world->size; to++) {
            for (int i = 0; i < world->size - 1; i++) {
                dp_transport_event_t event = {0};

                assert_true(next_event(world->rank[to], &event));
                assert_int_equal(event.kind, DP_TRANSPORT_MESSAGE);
                assert_int_equal(event.bytes, (size_t)round * 40);
                fill(data, 100, (unsigned)(event.rank + round));
                if (event.bytes > 0) assert_memory_equal(event.data, data, event.bytes);
            }
        }
    }
    free(data);
}

/* Messages that are sent before the neighbours have each other's mailboxes wait for them. */
static void what_was_sent_before_the_mailbox_came_arrives(void **state)
{
    world_t world;

    (void)state;
    world_make(&world, 2);
    world_greet(&world);
    run_both(&world, give_and_take);
    world_destroy(&world);
}

static void rank_without_descriptors_is_told(void **state)
{
    struct rlimit before, none;
    dp_transport_t *shm = NULL;
    dp_error_t error = {0};
    const int other = 1;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(dp_transport_shm_create(0, TAG, &other, 1, NULL, NULL, &shm, &error),
                     DP_ERR_SYSTEM);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_non_null(strstr(error.text, "Too many open files"));
}

static void cut_addresses_are_refused(void **state)
{
    const int other = 1;
    world_t world;

    (void)state;
    for (size_t cut = 0; cut <= DP_PEER_SOCKET_ADDRESS; cut++) {
        uint8_t *address = malloc(cut + 1); /* of its size, for the sanitizer */
        const void *addresses[] = {address};
        dp_error_t error = {0};

        world_make(&world, 2);
        memcpy(address, world.address[1], cut);
        assert_int_not_equal(
            world.rank[0]->ops->connect(world.rank[0], &other, addresses, &cut, 1, &error), DP_OK);
        assert_non_null(strstr(error.text, "rank 1"));
        free(address);
        world_destroy(&world);
    }
}

/* ---- Damage --------------------------------------------------------------------------------- */

/* The ring in which `from` writes to `to`, as a stray pointer sees it. The owner, which is in this
 * process, has the mailbox's file open. */
static dp_ring_t *find_ring(int to, int from, dp_mailbox_t **mailbox)
{
    for (int fd = 3; fd < 256; fd++) {
        const int files[] = {fcntl(fd, F_DUPFD_CLOEXEC, 0), eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};

        if (files[0] < 0) {
            close(files[1]);
        } else if (dp_mailbox_open(files, to, from, TAG, mailbox, NULL) == DP_OK) {
            return dp_mailbox_ring(*mailbox, from);
        }
    }
    fail_msg("rank %d has no mailbox", to);
    return NULL;
}

static void damaged_ring_is_a_lost_neighbour(void **state)
{
    dp_mailbox_t *mailbox = NULL;
    dp_ring_t *ring;
    world_t world;

    (void)state;
    world_open(&world, 3);
    exchange_all_ways(&world);
    send_to(&world, 0, 1, "fine", 4);
    expect_message(&world, 1, 0, "fine", 4);
    ring = find_ring(1, 0, &mailbox);
    memset(ring->data, 0x5a, sizeof(ring->data));
    send_to(&world, 0, 1, "what follows a stray write", 26);
    atomic_fetch_add(&ring->head, 3);
    expect_loss(&world, 1, 0, "its control ring is damaged");
    expect_nothing(&world, 1, 100); /* once, and it does not keep this rank awake */
    assert_int_equal(world.rank[1]->ops->arm(world.rank[1]), DP_OK);
    send_to(&world, 1, 0, "why", 3); /* the other way is whole */
    expect_message(&world, 0, 1, "why", 3);
    send_to(&world, 2, 1, "still here", 10);
    expect_message(&world, 1, 2, "still here", 10);
    dp_mailbox_destroy(mailbox);
    world_destroy(&world);
}

static void reader_that_lies_is_a_lost_neighbour(void **state)
{
    uint8_t *data = calloc(1, DP_MESSAGE_MAX);
    dp_mailbox_t *mailbox = NULL;
    dp_ring_t *ring;
    world_t world;

    (void)state;
    world_open(&world, 2);
    exchange_all_ways(&world);
    ring = find_ring(1, 0, &mailbox);
    send_to(&world, 0, 1, data, DP_MESSAGE_MAX); /* more than fits */
    atomic_store(&ring->tail, UINT64_MAX - 7);
    expect_loss(&world, 0, 1, "its control ring is damaged");
    send_to(&world, 0, 1, data, DP_MESSAGE_MAX); /* dropped */
    expect_nothing(&world, 0, 100);
    assert_int_equal(world.rank[0]->ops->arm(world.rank[0]), DP_OK);
    dp_mailbox_destroy(mailbox);
    world_destroy(&world);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_message_is_slept_through),
        cmocka_unit_test(nor_is_room_for_a_long_one),
        cmocka_unit_test(driver_leaves_nothing_behind),
        cmocka_unit_test(doorbell_is_left_alone_while_somebody_polls),
        cmocka_unit_test(long_messages_pass_each_other),
        cmocka_unit_test(what_was_sent_before_a_close_arrives),
        cmocka_unit_test(two_that_close_with_full_rings_do_not_wait),
        cmocka_unit_test(last_words_come_before_the_loss),
        cmocka_unit_test(what_was_sent_before_the_mailbox_came_arrives),
        cmocka_unit_test(rank_without_descriptors_is_told),
        cmocka_unit_test(cut_addresses_are_refused),
        cmocka_unit_test(damaged_ring_is_a_lost_neighbour),
        cmocka_unit_test(reader_that_lies_is_a_lost_neighbour),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
