/*
 * test_transport.c - the contract of transport.h, held against every transport: two or three of
 * them in one process, driven in turns by one thread.
 */
#include "runtime/transport/transport.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/network/interface.h"
#include "runtime/transport/line.h"
#include "runtime/transport/ucx_process.h"
#include "tests/threads/threads.h"
#include "tests/unit/cases.h"

#define MS 1000000ull
#define TAG 0xfeedfacecafebeefull
#define PATIENCE_NS (20ull * 1000000000)
#define WORLD_MAX 4

/* LINE_...: the same behind line.c, each rank on a node of its own. SHM: all ranks are on one node.
 * MIXED: even ranks on one node, odd ones on another, and between the two
 * loopback. */
typedef enum which { LOOPBACK, UCX, LINE_LOOPBACK, LINE_UCX, SHM, MIXED } which_t;

static dp_status_t add_lines(int rank, const int *others, int count, const dp_log_t *log,
                             dp_transport_t **transport, dp_error_t *error)
{
    static const dp_secret_t secret = {{1, 2, 3}};
    char lo[IF_NAMESIZE];
    const dp_line_options_t options = {.rank = rank,
                                       .secret = &secret,
                                       .ranks = others,
                                       .count = count,
                                       .network_interface = lo,
                                       .beat_ns = 3600000 * MS,
                                       .timeout_ns = 3000 * MS,
                                       .start_ns = 3600000 * MS,
                                       .log = log};

    dp_interface_loopback(lo);
    return dp_transport_line_create(&options, *transport, transport, error);
}

static dp_transport_t *create(which_t which, int rank, uint64_t tag)
{
    dp_transport_t *transport = NULL;
    int others[WORLD_MAX];
    int count = 0;
    dp_config_t config;
    dp_error_t error = {0};
    dp_log_t log;
    dp_status_t status = DP_OK;

    dp_config_defaults(&config);
    dp_log_init(&log, DP_LOG_WARN, rank);
    for (int i = 0; i < WORLD_MAX; i++) {
        if (i != rank && (which != MIXED || i % 2 == rank % 2)) others[count++] = i;
    }
    if (which == UCX || which == LINE_UCX) {
        status = dp_transport_ucx_create(rank, tag, &config, &log, &transport, &error);
    } else if (which != SHM) {
        status = threads_transport(rank, tag, &log, &transport, &error);
    }
    if (status == DP_OK && (which == LINE_LOOPBACK || which == LINE_UCX))
        status = add_lines(rank, others, count, &log, &transport, &error);
    if (status == DP_OK && which >= SHM)
        status =
            dp_transport_shm_create(rank, tag, others, count, transport, &log, &transport, &error);
    if (status != DP_OK) fail_msg("%s", error.text);
    return transport;
}

/* Signs of life come at any time and answer nothing. */
static dp_status_t next_event(dp_transport_t *transport, dp_transport_event_t *out)
{
    dp_status_t status;

    do {
        status = transport->ops->poll(transport, out);
    } while (status == DP_OK && out->kind == DP_TRANSPORT_ALIVE);
    return status;
}

/* A world in which everybody is everybody's neighbour. */
typedef struct world {
    dp_transport_t *rank[WORLD_MAX];
    int size;
} world_t;

static void world_open(world_t *world, which_t which, int size, const uint64_t *tags)
{
    static uint8_t address[WORLD_MAX][DP_ADDRESS_MAX];
    size_t bytes[WORLD_MAX];

    world->size = size;
    for (int i = 0; i < size; i++) {
        world->rank[i] = create(which, i, tags == NULL ? TAG : tags[i]);
        assert_int_equal(
            world->rank[i]->ops->address(world->rank[i], address[i], DP_ADDRESS_MAX, &bytes[i]),
            DP_OK);
    }
    for (int i = 0; i < size; i++) {
        const void *others[WORLD_MAX];
        size_t lengths[WORLD_MAX];
        int ranks[WORLD_MAX];
        int count = 0;
        dp_error_t error = {0};

        for (int j = 0; j < size; j++) {
            if (j == i) continue;
            ranks[count] = j;
            others[count] = address[j];
            lengths[count++] = bytes[j];
        }
        if (world->rank[i]->ops->connect(world->rank[i], ranks, others, lengths, count, &error) !=
            DP_OK) {
            fail_msg("%s", error.text);
        }
    }
}

static void world_destroy(world_t *world)
{
    for (int i = 0; i < world->size; i++)
        dp_transport_destroy(world->rank[i]);
}

static dp_status_t send_to(world_t *world, int from, int to, const void *data, size_t bytes)
{
    return world->rank[from]->ops->send(world->rank[from], to, data, bytes);
}

/* The next event of a rank, while the others make progress but must not have any. */
static void expect_event(world_t *world, int rank, dp_transport_event_t *out)
{
    const uint64_t give_up = dp_now_ns() + PATIENCE_NS;

    while (dp_now_ns() < give_up) {
        dp_transport_event_t other;
        dp_status_t status = next_event(world->rank[rank], out);

        if (status == DP_OK) return;
        assert_int_equal(status, DP_ERR_PENDING);
        for (int i = 0; i < world->size; i++) {
            if (i == rank || world->rank[i] == NULL) continue;
            assert_int_equal(next_event(world->rank[i], &other), DP_ERR_PENDING);
        }
    }
    fail_msg("rank %d: no event", rank);
}

static void expect_nothing(world_t *world, int rank, int ms)
{
    const uint64_t until = dp_now_ns() + (uint64_t)ms * MS;
    dp_transport_event_t event;

    do {
        for (int i = 0; i < world->size; i++) {
            if (world->rank[i] == NULL) continue;
            if (next_event(world->rank[i], &event) == DP_OK && i == rank) {
                fail_msg("rank %d: an event of kind %d from rank %d", rank, (int)event.kind,
                         event.rank);
            }
        }
    } while (dp_now_ns() < until);
}

static void fill(uint8_t *data, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 131 + seed + (i >> 8));
}

/* ---- Cases ---------------------------------------------------------------------------------- */

static void messages_arrive_whole(void **state)
{
    static const size_t sizes[] = {0,    1,    24,   4095,  4096,           4097,
                                   8191, 8192, 8193, 65536, DP_MESSAGE_MAX, 3};
    uint8_t *data = malloc(DP_MESSAGE_MAX);
    world_t world;

    world_open(&world, *(which_t *)*state, 2, NULL);
    for (size_t i = 0; i < DP_ARRAY_LEN(sizes); i++) {
        dp_transport_event_t event;

        fill(data, sizes[i], (unsigned)i);
        assert_int_equal(send_to(&world, (int)(i % 2), (int)(1 - i % 2), data, sizes[i]), DP_OK);
        expect_event(&world, (int)(1 - i % 2), &event);
        assert_int_equal(event.kind, DP_TRANSPORT_MESSAGE);
        assert_int_equal(event.rank, (int)(i % 2));
        assert_int_equal(event.bytes, sizes[i]);
        if (sizes[i] > 0) assert_memory_equal(event.data, data, sizes[i]);
    }
    assert_int_equal(send_to(&world, 0, 1, data, DP_MESSAGE_MAX * 2), DP_ERR_INVALID);
    assert_int_equal(send_to(&world, 0, 7, data, 1), DP_ERR_INVALID);
    world_destroy(&world);
    free(data);
}

static void order_is_kept_under_load(void **state)
{
    enum { COUNT = 3000 };
    uint8_t *data = malloc(32768);
    unsigned sizes_seed = 5;
    unsigned check_seed[2] = {5, 5};
    uint32_t next[2] = {0, 0};
    world_t world;

    world_open(&world, *(which_t *)*state, 3, NULL);
    /* ranks 1 and 2 flood rank 0 with messages of mixed sizes, all before it looks */
    for (uint32_t i = 0; i < COUNT; i++) {
        const size_t bytes = 8 + (size_t)rand_r(&sizes_seed) % (i % 50 == 0 ? 30000 : 200);

        fill(data, bytes, i);
        memcpy(data, &i, sizeof(i));
        for (int from = 1; from <= 2; from++)
            assert_int_equal(send_to(&world, from, 0, data, bytes), DP_OK);
    }
    while (next[0] < COUNT || next[1] < COUNT) {
        dp_transport_event_t event;
        uint32_t number;
        uint32_t *expected;
        size_t bytes;

        expect_event(&world, 0, &event);
        assert_int_equal(event.kind, DP_TRANSPORT_MESSAGE);
        assert_true(event.rank == 1 || event.rank == 2);
        expected = &next[event.rank - 1];
        bytes =
            8 + (size_t)rand_r(&check_seed[event.rank - 1]) % (*expected % 50 == 0 ? 30000 : 200);
        memcpy(&number, event.data, sizeof(number));
        assert_int_equal(number, *expected);
        assert_int_equal(event.bytes, bytes);
        fill(data, bytes, number);
        assert_memory_equal((const uint8_t *)event.data + 4, data + 4, bytes - 4);
        (*expected)++;
    }
    world_destroy(&world);
    free(data);
}

static void frames_of_another_job_are_dropped(void **state)
{
    const uint64_t tags[] = {TAG, TAG + 1};
    world_t world;

    world_open(&world, *(which_t *)*state, 2, tags);
    assert_int_equal(send_to(&world, 1, 0, "hello", 5), DP_OK);
    expect_nothing(&world, 0, 50);
    world_destroy(&world);
}

static void orderly_end_is_no_loss(void **state)
{
    dp_transport_event_t event;
    world_t world;

    world_open(&world, *(which_t *)*state, 2, NULL);
    assert_int_equal(send_to(&world, 0, 1, "first", 5), DP_OK);
    expect_event(&world, 1, &event);
    assert_int_equal(send_to(&world, 0, 1, "last", 4), DP_OK);
    world.rank[0]->ops->close(world.rank[0], dp_now_ns() + 30 * MS);
    dp_transport_destroy(world.rank[0]);
    world.rank[0] = NULL;
    expect_event(&world, 1, &event); /* what was sent before the close still arrives */
    assert_int_equal(event.kind, DP_TRANSPORT_MESSAGE);
    assert_memory_equal(event.data, "last", 4);
    expect_nothing(&world, 1, 50);
    assert_int_equal(send_to(&world, 1, 0, "x", 1), DP_OK); /* dropped */
    expect_nothing(&world, 1, 20);
    world.rank[1]->ops->close(world.rank[1], dp_now_ns() + 1000000000);
    world_destroy(&world);
}

static void destroyed_peer_is_lost_once(void **state)
{
    dp_transport_event_t event;
    world_t world;

    world_open(&world, *(which_t *)*state, 3, NULL);
    for (int from = 0; from < 3; from += 2) {
        assert_int_equal(send_to(&world, from, 1, "up", 2), DP_OK);
        expect_event(&world, 1, &event);
    }
    assert_int_equal(send_to(&world, 1, 0, "hi", 2), DP_OK);
    expect_event(&world, 0, &event);
    dp_transport_destroy(world.rank[0]);
    world.rank[0] = NULL;
    for (uint64_t until = dp_now_ns() + PATIENCE_NS;;) {
        assert_true(dp_now_ns() < until);
        if (next_event(world.rank[1], &event) == DP_OK) break;
    }
    assert_int_equal(event.kind, DP_TRANSPORT_PEER_LOST);
    assert_int_equal(event.rank, 0);
    assert_true(strlen(event.text) > 0);
    assert_int_equal(send_to(&world, 1, 0, "x", 1), DP_OK); /* dropped */
    expect_nothing(&world, 1, 50);
    assert_int_equal(send_to(&world, 2, 1, "still here", 10), DP_OK);
    for (uint64_t until = dp_now_ns() + PATIENCE_NS;;) {
        assert_true(dp_now_ns() < until);
        if (next_event(world.rank[1], &event) == DP_OK) break;
        (void)next_event(world.rank[2], &event);
    }
    assert_int_equal(event.rank, 2);
    world_destroy(&world);
}

static void close_is_bounded(void **state)
{
    world_t world;

    world_open(&world, *(which_t *)*state, 2, NULL);
    assert_int_equal(send_to(&world, 0, 1, "nobody listens", 14), DP_OK);
    /* rank 1 does nothing: without its bound this would never return */
    world.rank[0]->ops->close(world.rank[0], dp_now_ns() + 100 * MS);
    world_destroy(&world);
}

typedef struct waker {
    dp_transport_t *transport;
    int delay_ms;
} waker_t;

static void *wake_later(void *arg)
{
    waker_t *waker = arg;

    usleep((unsigned)waker->delay_ms * 1000);
    waker->transport->ops->wake(waker->transport);
    return NULL;
}

/* Drains and arms, as the loop does before it sleeps. */
static void arm(dp_transport_t *transport)
{
    dp_transport_event_t event;
    dp_status_t status;

    do {
        while (next_event(transport, &event) == DP_OK) {
        }
        status = transport->ops->arm(transport);
    } while (status == DP_ERR_PENDING);
    assert_int_equal(status, DP_OK);
}

static int sleep_on(dp_transport_t *transport, int ms)
{
    struct pollfd wait = {.fd = transport->ops->fd(transport), .events = POLLIN};

    return poll(&wait, 1, ms);
}

static void another_thread_wakes(void **state)
{
    world_t world;
    pthread_t thread;
    waker_t waker;

    world_open(&world, *(which_t *)*state, 2, NULL);
    waker = (waker_t){world.rank[0], 0};
    for (int i = 0; i < 200; i++) { /* before, while and after it goes to sleep */
        waker.delay_ms = i % 20 == 0 ? i % 3 : 0;
        pthread_create(&thread, NULL, wake_later, &waker);
        arm(world.rank[0]);
        if (sleep_on(world.rank[0], 0) == 0) (void)sleep_on(world.rank[0], 3);
        pthread_join(thread, NULL);
    }
    arm(world.rank[0]);
    waker.delay_ms = 20;
    pthread_create(&thread, NULL, wake_later, &waker);
    while (sleep_on(world.rank[0], 10000) == 1) { /* connection set-up may ring too */
        dp_transport_event_t event;
        (void)next_event(world.rank[0], &event);
        if (world.rank[0]->ops->arm(world.rank[0]) == DP_ERR_PENDING) break;
    }
    pthread_join(thread, NULL);
    arm(world.rank[0]);
    waker.transport->ops->wake(waker.transport);
    assert_int_equal(sleep_on(world.rank[0], 10000), 1);
    world_destroy(&world);
}

static void message_rings_the_sleeper(void **state)
{
    dp_transport_event_t event;
    world_t world;

    world_open(&world, *(which_t *)*state, 2, NULL);
    assert_int_equal(send_to(&world, 1, 0, "a", 1), DP_OK); /* connects */
    expect_event(&world, 0, &event);
    expect_nothing(&world, 0, 20);
    for (int i = 0; i < 100; i++) {
        arm(world.rank[0]);
        assert_int_equal(send_to(&world, 1, 0, "b", 1), DP_OK);
        while (next_event(world.rank[0], &event) != DP_OK) {
            dp_transport_event_t other;

            (void)next_event(world.rank[1], &other);
            if (world.rank[0]->ops->arm(world.rank[0]) == DP_OK) {
                assert_int_equal(sleep_on(world.rank[0], 10000), 1);
            }
        }
    }
    world_destroy(&world);
}

static void garbage_address_is_refused(void **state)
{
    const which_t which = *(which_t *)*state;
    dp_transport_t *transport = create(which, 0, TAG);
    const uint8_t garbage[24] = {1, 2, 3};
    const void *addresses[] = {garbage};
    const size_t bytes[] = {which == UCX ? 0 : sizeof(garbage)};
    const int ranks[] = {1};
    dp_error_t error = {0};

    assert_int_not_equal(transport->ops->connect(transport, ranks, addresses, bytes, 1, &error),
                         DP_OK);
    assert_true(strstr(error.text, "rank 1") != NULL);
    dp_transport_destroy(transport);
}

#if !defined(__SANITIZE_THREAD__) /* UCX is not instrumented */
static void unknown_device_is_named(void **state)
{
    dp_transport_t *transport = NULL;
    dp_config_t config;
    dp_error_t error = {0};

    (void)state;
    dp_config_defaults(&config);
    snprintf(config.ucx_devices, sizeof(config.ucx_devices), "nosuch7");
    assert_int_not_equal(dp_transport_ucx_create(3, TAG, &config, NULL, &transport, &error), DP_OK);
    assert_non_null(strstr(error.text, "nosuch7"));
    assert_non_null(strstr(error.text, "no usable UCX device"));
    assert_non_null(strstr(error.text, "UCX_TLS"));
    assert_null(transport);
}

#endif

/* How signals stood when main() began, after ours and before cmocka's handlers. */
static int signals_default;

static void look_at_signals(void)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGHUP};

    (void)dp_ucx_signals_restore();
    for (size_t i = 0; i < DP_ARRAY_LEN(signals); i++) {
        struct sigaction action;

        if (sigaction(signals[i], NULL, &action) != 0) continue;
        signals_default += action.sa_handler == SIG_DFL;
    }
}

#if !defined(__SANITIZE_THREAD__)
static void signals_are_as_before_ucx(void **state)
{
    struct sigaction action;

    (void)state;
#if !defined(__SANITIZE_ADDRESS__) /* which has handlers of its own */
    assert_int_equal(signals_default, 5);
#endif
    signal(SIGHUP, SIG_IGN);
    assert_int_equal(dp_ucx_signals_restore(), 0);
    assert_int_equal(sigaction(SIGHUP, NULL, &action), 0);
    assert_ptr_equal(action.sa_handler, SIG_IGN); /* the program's own choice stays */
}

static which_t ucx_kind = UCX;
static which_t line_ucx_kind = LINE_UCX;
#endif
static which_t loopback_kind = LOOPBACK;
static which_t line_kind = LINE_LOOPBACK;
static which_t shm_kind = SHM;
static which_t mixed_kind = MIXED;

#define OVER(kind, name, test)                                                                     \
    {                                                                                              \
        name " over " #kind, test, NULL, NULL, &kind##_kind                                        \
    }
#define CONTRACT(kind)                                                                             \
    OVER(kind, "messages_arrive_whole", messages_arrive_whole),                                    \
        OVER(kind, "order_is_kept_under_load", order_is_kept_under_load),                          \
        OVER(kind, "frames_of_another_job_are_dropped", frames_of_another_job_are_dropped),        \
        OVER(kind, "orderly_end_is_no_loss", orderly_end_is_no_loss),                              \
        OVER(kind, "destroyed_peer_is_lost_once", destroyed_peer_is_lost_once),                    \
        OVER(kind, "close_is_bounded", close_is_bounded),                                          \
        OVER(kind, "another_thread_wakes", another_thread_wakes),                                  \
        OVER(kind, "message_rings_the_sleeper", message_rings_the_sleeper),                        \
        OVER(kind, "garbage_address_is_refused", garbage_address_is_refused)

int main(void)
{
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        CONTRACT(loopback),
        CONTRACT(line),
        CONTRACT(shm),
        CONTRACT(mixed),
#if !defined(__SANITIZE_THREAD__) /* UCX is not instrumented */
        CONTRACT(ucx),
        CONTRACT(line_ucx),
        cmocka_unit_test(unknown_device_is_named),
        cmocka_unit_test(signals_are_as_before_ucx),
#endif
    };
    /* clang-format on */

    look_at_signals();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
