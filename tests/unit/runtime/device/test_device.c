/*
 * test_device.c - streams and events of the host device: order, inline work, waits, idleness.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"
#include "runtime/device/device.h"

typedef struct fixture {
    dp_log_t log;
    dp_device_t *device;
    const dp_device_ops_t *ops;
    dp_stream_t *stream[2];
    dp_event_t *event[2];
} fixture_t;

static void open_fixture(fixture_t *f, uint64_t spin_ns)
{
    dp_log_init(&f->log, DP_LOG_WARN, 0);
    assert_int_equal(dp_device_host_create(spin_ns, &f->log, &f->device), DP_OK);
    f->ops = f->device->ops;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(f->ops->stream_create(f->device, "test", &f->stream[i]), DP_OK);
        assert_int_equal(f->ops->event_create(f->device, &f->event[i]), DP_OK);
    }
}

static void close_fixture(fixture_t *f)
{
    for (int i = 0; i < 2; i++)
        f->ops->stream_destroy(f->stream[i]);
    for (int i = 0; i < 2; i++)
        f->ops->event_destroy(f->event[i]);
    dp_device_destroy(f->device);
}

/* ---- Work ----------------------------------------------------------------------------------- */

typedef struct log_entry {
    int *list;
    _Atomic int *count;
    int value;
    unsigned sleep_us;
    pthread_t thread;
} log_entry_t;

static void note(void *argument)
{
    log_entry_t *entry = argument;

    if (entry->sleep_us != 0) usleep(entry->sleep_us);
    entry->thread = pthread_self();
    entry->list[atomic_fetch_add(entry->count, 1)] = entry->value;
}

static void stream_runs_in_order(void **state)
{
    enum { COUNT = 1000 };
    static log_entry_t entries[COUNT];
    static int list[COUNT];
    _Atomic int count = 0;
    fixture_t f;

    (void)state;
    for (int spin = 0; spin < 2; spin++) {
        atomic_store(&count, 0);
        open_fixture(&f, spin ? 20000 : 0);
        for (int i = 0; i < COUNT; i++) {
            entries[i] = (log_entry_t){list, &count, i, 0, 0};
            assert_int_equal(
                f.ops->call(f.stream[0], i % 3 ? DP_WORK_SMALL : DP_WORK_LARGE, note, &entries[i]),
                DP_OK);
        }
        assert_int_equal(f.ops->event_record(f.event[0], f.stream[0]), DP_OK);
        assert_int_equal(f.ops->event_wait(f.event[0]), DP_OK);
        assert_int_equal(f.ops->event_done(f.event[0]), 1);
        for (int i = 0; i < COUNT; i++)
            assert_int_equal(list[i], i);
        close_fixture(&f);
    }
}

static void stream_runs_small_work_inline_when_idle(void **state)
{
    int list[4];
    _Atomic int count = 0;
    log_entry_t small = {list, &count, 1, 0, 0};
    log_entry_t large = {list, &count, 2, 20000, 0};
    log_entry_t behind = {list, &count, 3, 0, 0};
    fixture_t f;

    (void)state;
    open_fixture(&f, 0);
    assert_int_equal(f.ops->call(f.stream[0], DP_WORK_SMALL, note, &small), DP_OK);
    assert_int_equal(atomic_load(&count), 1);
    assert_true(pthread_equal(small.thread, pthread_self()));
    assert_int_equal(f.ops->call(f.stream[0], DP_WORK_LARGE, note, &large), DP_OK);
    assert_int_equal(f.ops->call(f.stream[0], DP_WORK_SMALL, note, &behind), DP_OK);
    assert_int_equal(f.ops->event_record(f.event[0], f.stream[0]), DP_OK);
    assert_int_equal(f.ops->event_done(f.event[0]), 0);
    assert_int_equal(f.ops->event_wait(f.event[0]), DP_OK);
    assert_int_equal(list[1], 2);
    assert_int_equal(list[2], 3);
    assert_false(pthread_equal(large.thread, pthread_self()));
    assert_false(pthread_equal(behind.thread, pthread_self()));
    close_fixture(&f);
}

static void stream_wait_orders_two_streams(void **state)
{
    int list[200];
    log_entry_t entries[200];
    _Atomic int count = 0;
    fixture_t f;

    (void)state;
    open_fixture(&f, 20000);
    for (int i = 0; i < 100; i++) {
        entries[2 * i] = (log_entry_t){list, &count, 2 * i, i % 10 ? 0 : 300, 0};
        entries[2 * i + 1] = (log_entry_t){list, &count, 2 * i + 1, 0, 0};
        f.ops->call(f.stream[0], DP_WORK_LARGE, note, &entries[2 * i]);
        f.ops->event_record(f.event[0], f.stream[0]);
        f.ops->stream_wait(f.stream[1], f.event[0]);
        /* Small, but behind an unmet wait: must not run inline. */
        f.ops->call(f.stream[1], DP_WORK_SMALL, note, &entries[2 * i + 1]);
        f.ops->event_record(f.event[1], f.stream[1]);
        f.ops->stream_wait(f.stream[0], f.event[1]);
        f.ops->event_wait(f.event[1]);
    }
    for (int i = 0; i < 200; i++)
        assert_int_equal(list[i], i);
    close_fixture(&f);
}

static void event_never_recorded_is_done(void **state)
{
    fixture_t f;

    (void)state;
    open_fixture(&f, 0);
    assert_int_equal(f.ops->event_done(f.event[0]), 1);
    assert_int_equal(f.ops->event_wait(f.event[0]), DP_OK);
    assert_int_equal(f.ops->stream_wait(f.stream[0], f.event[0]), DP_OK);
    assert_int_equal(f.ops->event_record(f.event[0], f.stream[0]), DP_OK); /* idle: at once */
    assert_int_equal(f.ops->event_done(f.event[0]), 1);
    close_fixture(&f);
}

/* A waiter may destroy the event as soon as it wakes. */
static void event_may_die_with_its_wait(void **state)
{
    int list[1];
    _Atomic int count = 0;
    fixture_t f;

    (void)state;
    open_fixture(&f, 0);
    for (int i = 0; i < 200; i++) {
        log_entry_t entry = {list, &count, 0, i % 2 ? 20 : 0, 0};
        dp_event_t *event;

        atomic_store(&count, 0);
        assert_int_equal(f.ops->event_create(f.device, &event), DP_OK);
        f.ops->call(f.stream[0], DP_WORK_LARGE, note, &entry);
        f.ops->event_record(event, f.stream[0]);
        f.ops->event_wait(event);
        f.ops->event_destroy(event);
    }
    close_fixture(&f);
}

static void stream_destroy_finishes_its_work(void **state)
{
    int list[50];
    log_entry_t entries[50];
    _Atomic int count = 0;
    fixture_t f;

    (void)state;
    open_fixture(&f, 20000);
    for (int i = 0; i < 50; i++) {
        entries[i] = (log_entry_t){list, &count, i, 100, 0};
        f.ops->call(f.stream[0], DP_WORK_LARGE, note, &entries[i]);
    }
    close_fixture(&f);
    assert_int_equal(atomic_load(&count), 50);
}

static int64_t cpu_time_ns(clockid_t clock)
{
    struct timespec now = {0, 0};

    (void)clock_gettime(clock, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* 20 ms of its thread's own, however long that takes on a busy machine. */
static void burn(void *argument)
{
    const int64_t until_ns = cpu_time_ns(CLOCK_THREAD_CPUTIME_ID) + 20000000;

    (void)argument;
    while (cpu_time_ns(CLOCK_THREAD_CPUTIME_ID) < until_ns) {
    }
}

static void see_signals(void *argument)
{
    pthread_sigmask(SIG_BLOCK, NULL, argument);
}

/* Its worker is started by whatever thread gives it work, here the program's. */
static void stream_worker_takes_no_signals(void **state)
{
    fixture_t f;
    sigset_t seen;

    (void)state;
    open_fixture(&f, 0);
    sigemptyset(&seen);
    assert_int_equal(f.ops->call(f.stream[0], DP_WORK_LARGE, see_signals, &seen), DP_OK);
    assert_int_equal(f.ops->event_record(f.event[0], f.stream[0]), DP_OK);
    assert_int_equal(f.ops->event_wait(f.event[0]), DP_OK);
    assert_true(sigismember(&seen, SIGINT) && sigismember(&seen, SIGTERM));
    close_fixture(&f);
}

static void device_counts_cpu_and_idles(void **state)
{
    int64_t before_ns;
    fixture_t f;

    (void)state;
    open_fixture(&f, 20000);
    f.ops->call(f.stream[0], DP_WORK_LARGE, burn, NULL);
    f.ops->event_record(f.event[0], f.stream[0]);
    f.ops->event_wait(f.event[0]);
    assert_true(f.ops->cpu_ns(f.device) > 1000000);
    before_ns = cpu_time_ns(CLOCK_PROCESS_CPUTIME_ID);
    usleep(200000);
    assert_in_range(cpu_time_ns(CLOCK_PROCESS_CPUTIME_ID) - before_ns, 0, 100000000);
    f.ops->stream_destroy(f.stream[0]);
    assert_true(f.ops->cpu_ns(f.device) > 1000000); /* also after the thread is gone */
    assert_int_equal(f.ops->stream_create(f.device, "again", &f.stream[0]), DP_OK);
    close_fixture(&f);
}

static void device_memory_is_zeroed_and_aligned(void **state)
{
    static const char zeros[10000];
    void *memory;
    fixture_t f;

    (void)state;
    open_fixture(&f, 0);
    for (size_t bytes = 0; bytes <= sizeof(zeros); bytes += 2500) {
        assert_int_equal(f.ops->alloc(f.device, bytes, &memory), DP_OK);
        assert_int_equal((uintptr_t)memory % 4096, 0);
        assert_memory_equal(memory, zeros, bytes);
        f.ops->free(f.device, memory);
    }
    close_fixture(&f);
}

static void device_survives_failed_allocations(void **state)
{
    (void)state;
    for (long nth = 1; nth < 10; nth++) {
        int list[1];
        _Atomic int count = 0;
        log_entry_t entry = {list, &count, 0, 0, 0};
        dp_device_t *device = NULL;
        dp_stream_t *stream = NULL;
        dp_event_t *event = NULL;
        dp_status_t status;

        fail_allocation(nth);
        status = dp_device_host_create(0, NULL, &device);
        if (status == DP_OK) status = device->ops->stream_create(device, "test", &stream);
        if (status == DP_OK) status = device->ops->event_create(device, &event);
        if (status == DP_OK) status = device->ops->call(stream, DP_WORK_LARGE, note, &entry);
        if (fail_allocation_reached()) {
            assert_int_equal(status, DP_ERR_NO_MEMORY);
        } else {
            assert_int_equal(status, DP_OK);
            nth = 10;
        }
        if (stream != NULL) device->ops->stream_destroy(stream);
        if (event != NULL) device->ops->event_destroy(event);
        dp_device_destroy(device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stream_runs_in_order),
        cmocka_unit_test(stream_runs_small_work_inline_when_idle),
        cmocka_unit_test(stream_worker_takes_no_signals),
        cmocka_unit_test(stream_wait_orders_two_streams),
        cmocka_unit_test(event_never_recorded_is_done),
        cmocka_unit_test(event_may_die_with_its_wait),
        cmocka_unit_test(stream_destroy_finishes_its_work),
        cmocka_unit_test(device_counts_cpu_and_idles),
        cmocka_unit_test(device_memory_is_zeroed_and_aligned),
        cmocka_unit_test(device_survives_failed_allocations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
