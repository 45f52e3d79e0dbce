/*
 * test_kv.c - the rendezvous' client against servers that are right, wrong, hostile or silent.
 */
#include "runtime/base/kv.h"

#include <stdio.h>
#include <unistd.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"
#include "tests/unit/kv_server.h"

#define SOON (dp_now_ns() + 10000000000u) /* never reached unless something is wrong */
#define VERY_SOON_NS 300000000u           /* but a busy machine connects within it */
#define VERY_SOON (dp_now_ns() + VERY_SOON_NS)

static dp_error_t error;

static void start(kv_server_t *server, void (*script)(kv_server_t *, int), const void *data,
                  size_t bytes)
{
    memset(server, 0, sizeof(*server));
    server->script = script;
    server->data = data;
    server->bytes = bytes;
    server->clients = 1;
    kv_server_start(server);
    memset(&error, 0, sizeof(error));
}

/* That the error has this status and names the server and the cause. */
static void expect_error(const kv_server_t *server, dp_status_t got, dp_status_t expected,
                         const char *cause)
{
    char peer[64];

    snprintf(peer, sizeof(peer), "rendezvous 127.0.0.1:%u: ", server->ticket.port);
    if (got != expected || strncmp(error.text, peer, strlen(peer)) != 0 ||
        strstr(error.text, cause) == NULL) {
        fail_msg("status %s, expected %s; '%s' lacks '%s' or '%s'", dp_status_string(got),
                 dp_status_string(expected), error.text, peer, cause);
    }
}

static void report(dp_kv_t *kv, const char *text)
{
    dp_failure_t failure;

    dp_failure_init(&failure, DP_FAILURE_LOST, 1, text);
    dp_kv_report(kv, &failure);
}

static dp_kv_t *connect_to(const kv_server_t *server)
{
    dp_kv_t *kv = NULL;
    dp_status_t status = dp_kv_connect(&server->ticket, 3, SOON, &kv, &error);

    if (status != DP_OK) fail_msg("%s: %s", dp_status_string(status), error.text);
    return kv;
}

/* ---- Right servers -------------------------------------------------------------------------- */

static void serve_three(kv_server_t *server, int fd)
{
    uint8_t frame[256];
    char name[DP_KV_NAME_MAX + 1];
    const void *value;
    dp_reader_t fields;
    dp_writer_t writer;
    size_t bytes;
    uint32_t size;
    uint8_t type;

    if (!kv_server_welcome(server, fd)) return;
    if (!kv_server_frame(fd, frame, sizeof(frame), &type, &fields)) return;
    if (type != DP_KV_EXCHANGE) return;
    if (dp_kv_exchange_read(&fields, name, &size, &value, &bytes) != 0) return;
    if (strcmp(name, "hosts") != 0 || size != 3 || bytes != 5) return;
    if (memcmp(value, "mine!", 5) != 0) return;
    dp_writer_init(&writer, frame, sizeof(frame));
    dp_kv_frame_begin(&writer, DP_KV_VALUES);
    dp_write_u32(&writer, 3);
    dp_write_u32(&writer, 5);
    dp_write_bytes(&writer, "first", 5);
    dp_write_u32(&writer, 0);
    dp_write_u32(&writer, 6);
    dp_write_bytes(&writer, "la\0st!", 6);
    dp_kv_frame_end(&writer, 0);
    for (size_t i = 0; i < writer.bytes; i++) { /* a byte at a time: the client must piece it */
        if (!kv_server_send(fd, frame + i, 1)) return;
    }
}

static void kv_exchange_returns_all_values(void **state)
{
    kv_server_t server;
    void *values[3];
    size_t bytes[3];
    dp_kv_t *kv;

    (void)state;
    start(&server, serve_three, NULL, 0);
    kv = connect_to(&server);
    assert_int_equal(dp_kv_exchange(kv, "hosts", 3, "mine!", 5, values, bytes, SOON, &error),
                     DP_OK);
    assert_int_equal(server.rank, 3);
    assert_int_equal(bytes[0], 5);
    assert_string_equal(values[0], "first"); /* the NUL is a present */
    assert_int_equal(bytes[1], 0);
    assert_string_equal(values[1], "");
    assert_int_equal(bytes[2], 6);
    assert_memory_equal(values[2], "la\0st!", 6);
    for (int i = 0; i < 3; i++)
        free(values[i]);
    dp_kv_close(kv);
    kv_server_stop(&server);
}

static void kv_many_and_large_exchanges_work(void **state)
{
    enum { LARGE = 1 << 20 };
    kv_server_t server;
    uint8_t *value = malloc(LARGE);
    void *values[2];
    size_t bytes[2];
    dp_kv_t *kv;

    (void)state;
    assert_non_null(value);
    for (size_t i = 0; i < LARGE; i++)
        value[i] = (uint8_t)(i * 7 >> 3);
    start(&server, kv_server_echo, NULL, 0);
    kv = connect_to(&server);
    for (size_t size = 0; size <= LARGE; size = size * 4 + 1) {
        report(kv, "exchanging");
        assert_int_equal(dp_kv_exchange(kv, "x", 2, value, size, values, bytes, SOON, &error),
                         DP_OK);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(bytes[i], size);
            assert_memory_equal(values[i], value, size);
            free(values[i]);
        }
    }
    dp_kv_close(kv);
    kv_server_stop(&server);
    free(value);
}

static void kv_wrong_arguments_leave_the_connection_usable(void **state)
{
    kv_server_t server;
    char name[DP_KV_NAME_MAX + 2];
    void *values[1];
    size_t bytes[1];
    dp_kv_t *kv;

    (void)state;
    memset(name, 'n', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    start(&server, kv_server_echo, NULL, 0);
    kv = connect_to(&server);
    assert_int_equal(dp_kv_exchange(kv, name, 1, "", 0, values, bytes, SOON, &error),
                     DP_ERR_INVALID);
    assert_int_equal(dp_kv_exchange(kv, "", 1, "", 0, values, bytes, SOON, &error), DP_ERR_INVALID);
    assert_int_equal(dp_kv_exchange(kv, "x", 0, "", 0, values, bytes, SOON, &error),
                     DP_ERR_INVALID);
    assert_int_equal(dp_kv_exchange(kv, "x", 1, "", (size_t)1 << 40, values, bytes, SOON, &error),
                     DP_ERR_INVALID);
    name[DP_KV_NAME_MAX] = '\0';
    assert_int_equal(dp_kv_exchange(kv, name, 1, "v", 1, values, bytes, SOON, &error), DP_OK);
    free(values[0]);
    dp_kv_close(kv);
    kv_server_stop(&server);
}

/* ---- Wrong ends ----------------------------------------------------------------------------- */

static void expect_no_connection(kv_server_t *server, const dp_kv_ticket_t *ticket,
                                 uint64_t deadline, dp_status_t expected, const char *cause)
{
    dp_kv_t *kv = NULL;

    expect_error(server, dp_kv_connect(ticket, 3, deadline, &kv, &error), expected, cause);
    assert_null(kv);
    kv_server_stop(server);
}

static void kv_client_with_another_secret_is_refused(void **state)
{
    kv_server_t server;
    dp_kv_ticket_t ticket;

    (void)state;
    start(&server, kv_server_echo, NULL, 0);
    ticket = server.ticket;
    ticket.secret.bytes[7] ^= 4;
    expect_no_connection(&server, &ticket, SOON, DP_ERR_CONFIG,
                         "refused our proof: the job's secrets differ");
    assert_int_equal(server.rank, -1);
}

static void impostor(kv_server_t *server, int fd)
{
    kv_server_t other = *server; /* knows no secret, accepts anyone */
    uint8_t hello[DP_KV_SERVER_HELLO_BYTES];
    uint8_t answer[DP_KV_CLIENT_HELLO_BYTES];
    uint8_t welcome[DP_PROOF_BYTES];

    dp_kv_server_hello_write(other.ticket.secret.bytes, hello);
    if (!kv_server_send(fd, hello, sizeof(hello))) return;
    if (!kv_server_receive(fd, answer, sizeof(answer))) return;
    memcpy(welcome, answer + 8 + DP_CHALLENGE_BYTES, sizeof(welcome)); /* reflects our own proof */
    kv_server_send(fd, welcome, sizeof(welcome));
}

static void kv_server_that_reflects_our_proof_is_refused(void **state)
{
    kv_server_t server;

    (void)state;
    start(&server, impostor, NULL, 0);
    expect_no_connection(&server, &server.ticket, SOON, DP_ERR_CONFIG,
                         "does not know the job's secret");
}

static void send_data(kv_server_t *server, int fd)
{
    char byte;

    kv_server_send(fd, server->data, server->bytes);
    if (server->bytes == 0) (void)kv_server_receive(fd, &byte, 1); /* silent until it leaves */
}

static void kv_foreign_server_is_named(void **state)
{
    static const char web[] = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
    kv_server_t server;

    (void)state;
    start(&server, send_data, web, sizeof(web) - 1);
    expect_no_connection(&server, &server.ticket, SOON, DP_ERR_SYSTEM,
                         "not a rendezvous: it began with 0x50545448, expected 0x564b5044");
}

static void kv_server_of_another_version_is_a_mismatch(void **state)
{
    const uint8_t challenge[DP_CHALLENGE_BYTES] = {0};
    uint8_t hello[DP_KV_SERVER_HELLO_BYTES];
    kv_server_t server;

    (void)state;
    dp_kv_server_hello_write(challenge, hello);
    hello[4] = 9;
    start(&server, send_data, hello, sizeof(hello));
    expect_no_connection(&server, &server.ticket, SOON, DP_ERR_MISMATCH,
                         "it speaks rendezvous version 9, this library 5");
}

static void kv_server_that_closes_early_is_an_error(void **state)
{
    static const uint8_t part[] = {0x44, 0x50, 0x4b, 0x56, 1, 0, 0};
    kv_server_t server;

    (void)state;
    start(&server, send_data, part, sizeof(part));
    expect_no_connection(&server, &server.ticket, SOON, DP_ERR_SYSTEM,
                         "closed, expected its hello");
}

static void kv_silent_server_times_out(void **state)
{
    kv_server_t server;
    dp_kv_t *kv = NULL;
    const uint64_t begin = dp_now_ns();
    dp_status_t status;

    (void)state;
    start(&server, send_data, NULL, 0);
    status = dp_kv_connect(&server.ticket, 3, VERY_SOON, &kv, &error);
    expect_error(&server, status, DP_ERR_TIMEOUT, "its hello did not come in time");
    assert_true(dp_now_ns() - begin >= VERY_SOON_NS);
    kv_server_stop(&server);
}

static void kv_nobody_there_is_an_error(void **state)
{
    kv_server_t server;
    dp_kv_t *kv = NULL;
    dp_status_t status;

    (void)state;
    start(&server, send_data, NULL, 0);
    kv_server_stop(&server); /* the port is free again */
    status = dp_kv_connect(&server.ticket, 3, SOON, &kv, &error);
    expect_error(&server, status, DP_ERR_SYSTEM, "connecting: Connection refused");
    snprintf(server.ticket.address, sizeof(server.ticket.address), "no-address");
    assert_int_equal(dp_kv_connect(&server.ticket, 3, SOON, &kv, &error), DP_ERR_CONFIG);
    assert_non_null(strstr(error.text, "rendezvous no-address:"));
    dp_kv_close(NULL);
}

/* ---- Hostile answers ------------------------------------------------------------------------ */

static void answer_data(kv_server_t *server, int fd)
{
    uint8_t frame[256];
    dp_reader_t fields;
    uint8_t type;

    if (!kv_server_welcome(server, fd)) return;
    if (!kv_server_frame(fd, frame, sizeof(frame), &type, &fields)) return;
    send_data(server, fd);
}

/* Two ranks exchange; the server answers with these bytes and closes. */
static dp_status_t exchange_with(kv_server_t *server, const void *data, size_t bytes,
                                 uint64_t deadline)
{
    void *values[2] = {NULL, NULL};
    size_t value_bytes[2];
    dp_status_t status;
    dp_kv_t *kv;

    start(server, answer_data, data, bytes);
    kv = connect_to(server);
    status = dp_kv_exchange(kv, "x", 2, "v", 1, values, value_bytes,
                            deadline != 0 ? deadline : SOON, &error);
    if (status == DP_OK) {
        free(values[0]);
        free(values[1]);
    } else { /* it stays failed, with the same text */
        dp_error_t again = {DP_OK, ""};

        assert_int_equal(dp_kv_exchange(kv, "y", 2, "v", 1, values, value_bytes, SOON, &again),
                         status);
        assert_string_equal(again.text, error.text);
    }
    report(kv, "still alive"); /* a dead connection does not kill by SIGPIPE */
    report(kv, "still alive");
    dp_kv_close(kv);
    kv_server_stop(server);
    return status;
}

static void expect_bad_answer(const void *data, size_t bytes, const char *cause)
{
    kv_server_t server;
    dp_status_t status = exchange_with(&server, data, bytes, 0);

    expect_error(&server, status, DP_ERR_SYSTEM, cause);
}

static void kv_hostile_answers_are_refused(void **state)
{
    static const uint8_t oversized[] = {0xff, 0xff, 0xff, 0xff, 2};
    static const uint8_t above[] = {1, 0, 0x40, 0, 2};
    static const uint8_t empty[] = {0, 0, 0, 0};
    static const uint8_t type[] = {1, 0, 0, 0, 77};
    static const uint8_t request[] = {1, 0, 0, 0, 1};
    static const uint8_t no_count[] = {2, 0, 0, 0, 2, 2};
    static const uint8_t count[] = {5, 0, 0, 0, 2, 3, 0, 0, 0};
    static const uint8_t huge[] = {9, 0, 0, 0, 2, 2, 0, 0, 0, 0xff, 0xff, 0xff, 0xff};
    static const uint8_t extra[] = {14, 0, 0, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9};
    static const uint8_t text[] = {3, 0, 0, 0, 4, 9, 9};

    (void)state;
    expect_bad_answer(
        oversized, sizeof(oversized),
        "a frame of 4294967295 bytes, expected 1 to 4194304, expected the values of all 2 "
        "ranks for exchange 'x'");
    expect_bad_answer(above, sizeof(above), "a frame of 4194305 bytes");
    expect_bad_answer(empty, sizeof(empty), "a frame of 0 bytes");
    expect_bad_answer(type, sizeof(type), "a frame of type 77, expected 1 to 7");
    expect_bad_answer(request, sizeof(request), "a frame of type 1, expected the values");
    expect_bad_answer(no_count, sizeof(no_count), "values in exchange 'x', expected 2");
    expect_bad_answer(count, sizeof(count), "3 values in exchange 'x', expected 2");
    expect_bad_answer(huge, sizeof(huge), "malformed values");
    expect_bad_answer(extra, sizeof(extra), "malformed values");
    expect_bad_answer(text, sizeof(text), "a frame of type 4");
}

static size_t good_answer(uint8_t *data, size_t room)
{
    dp_writer_t writer;

    dp_writer_init(&writer, data, room);
    dp_kv_frame_begin(&writer, DP_KV_VALUES);
    dp_write_u32(&writer, 2);
    dp_write_u32(&writer, 1);
    dp_write_u8(&writer, 'a');
    dp_write_u32(&writer, 3);
    dp_write_bytes(&writer, "bcd", 3);
    dp_kv_frame_end(&writer, 0);
    return writer.bytes;
}

static void kv_answer_cut_anywhere_is_an_error(void **state)
{
    uint8_t data[64];
    const size_t bytes = good_answer(data, sizeof(data));
    kv_server_t server;

    (void)state;
    for (size_t cut = 1; cut < bytes; cut++) {
        dp_status_t status = exchange_with(&server, data, cut, 0);

        expect_error(&server, status, DP_ERR_SYSTEM, "closed, expected the values of all 2 ranks");
    }
    assert_int_equal(exchange_with(&server, data, bytes, 0), DP_OK);
}

static void kv_answer_with_any_bit_flipped_is_survived(void **state)
{
    uint8_t data[64];
    const size_t bytes = good_answer(data, sizeof(data));
    kv_server_t server;

    (void)state;
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        uint8_t flipped[64];

        memcpy(flipped, data, sizeof(flipped));
        flipped[bit / 8] ^= (uint8_t)(1u << bit % 8);
        (void)exchange_with(&server, flipped, bytes, 0);
    }
}

static void kv_error_frame_becomes_the_error(void **state)
{
    uint8_t data[256];
    dp_writer_t writer;
    kv_server_t server;

    (void)state;
    dp_writer_init(&writer, data, sizeof(data));
    dp_kv_text_write(&writer, DP_KV_ERROR, "rank 1 exited with code 3\n\033[31m before it came");
    assert_int_equal(exchange_with(&server, data, writer.bytes, 0), DP_ERR_PEER_LOST);
    assert_string_equal(error.text, "rank 1 exited with code 3??[31m before it came");
}

static void kv_late_frame_is_a_timeout_that_names_ranks(void **state)
{
    uint8_t data[256];
    dp_writer_t writer;
    kv_server_t server;

    (void)state;
    dp_writer_init(&writer, data, sizeof(data));
    dp_kv_text_write(&writer, DP_KV_LATE, "1 of 2 ranks did not come in time: 1");
    assert_int_equal(exchange_with(&server, data, writer.bytes, 0), DP_ERR_TIMEOUT);
    assert_string_equal(error.text, "1 of 2 ranks did not come in time: 1");
}

/* A rank that gives up asks first, so that all that wait hear which ranks are missing. */
static void answer_to_give_up(kv_server_t *server, int fd)
{
    uint8_t frame[256];
    uint8_t answer[256];
    char name[DP_KV_TEXT_MAX + 1];
    dp_reader_t fields;
    dp_writer_t writer;
    uint8_t type = 0;

    if (!kv_server_welcome(server, fd)) return;
    while (kv_server_frame(fd, frame, sizeof(frame), &type, &fields)) {
        if (type != DP_KV_GIVE_UP || dp_kv_text_read(&fields, name, sizeof(name)) != 0) continue;
        dp_writer_init(&writer, answer, sizeof(answer));
        dp_kv_text_write(&writer, DP_KV_LATE, name);
        kv_server_send(fd, answer, writer.bytes);
    }
}

static void kv_client_that_gives_up_hears_who_is_missing(void **state)
{
    kv_server_t server;
    dp_kv_t *kv = NULL;
    void *values[2];
    size_t bytes[2];

    (void)state;
    start(&server, answer_to_give_up, NULL, 0);
    assert_int_equal(dp_kv_connect(&server.ticket, 0, SOON, &kv, &error), DP_OK);
    assert_int_equal(dp_kv_exchange(kv, "x", 2, "v", 1, values, bytes, VERY_SOON, &error),
                     DP_ERR_TIMEOUT);
    assert_string_equal(error.text, "x"); /* the server's words */
    dp_kv_close(kv);
    kv_server_stop(&server);
}

static void kv_answer_that_never_comes_times_out(void **state)
{
    kv_server_t server;
    dp_status_t status = exchange_with(&server, NULL, 0, VERY_SOON);

    (void)state;
    expect_error(&server, status, DP_ERR_TIMEOUT, "exchange 'x'");
}

/* ---- Reports -------------------------------------------------------------------------------- */

enum { REPORTS = 20000 };

/* Reads nothing until told (data: a pipe), then checks that no frame was garbled. */
static void late_reader(kv_server_t *server, int fd)
{
    const int *go = server->data;
    uint8_t frame[2048];
    uint8_t answer[64];
    dp_failure_t failure;
    dp_reader_t fields;
    uint8_t type;
    char byte;

    server->bytes = 0;
    if (!kv_server_welcome(server, fd)) return;
    if (read(go[0], &byte, 1) != 1) return;
    while (kv_server_frame(fd, frame, sizeof(frame), &type, &fields)) {
        if (type == DP_KV_EXCHANGE) {
            kv_server_send(fd, answer, good_answer(answer, sizeof(answer)));
            return;
        }
        if (type != DP_KV_FAILURE || dp_failure_read(&fields, &failure) != DP_OK ||
            strlen(failure.text) != DP_FAILURE_TEXT_MAX) {
            return;
        }
        server->bytes++;
    }
}

static void kv_reports_never_block_and_never_garble(void **state)
{
    static char text[2000];
    kv_server_t server;
    void *values[2];
    size_t bytes[2];
    int go[2];
    dp_kv_t *kv;

    (void)state;
    assert_int_equal(pipe(go), 0);
    memset(text, 'n', sizeof(text) - 1);
    start(&server, late_reader, go, 0);
    kv = connect_to(&server);
    for (int i = 0; i < REPORTS; i++)
        report(kv, text); /* far more than a socket holds */
    assert_int_equal(write(go[1], "g", 1), 1);
    assert_int_equal(dp_kv_exchange(kv, "x", 2, "v", 1, values, bytes, SOON, &error), DP_OK);
    free(values[0]);
    free(values[1]);
    dp_kv_close(kv);
    kv_server_stop(&server);
    assert_in_range(server.bytes, 10, REPORTS - 1);
    close(go[0]);
    close(go[1]);
}

/* ---- Memory --------------------------------------------------------------------------------- */

static dp_status_t whole_conversation(kv_server_t *server)
{
    void *values[3] = {NULL, NULL, NULL};
    size_t bytes[3];
    dp_kv_t *kv = NULL;
    dp_status_t status = dp_kv_connect(&server->ticket, 0, SOON, &kv, &error);

    if (status == DP_OK) {
        status = dp_kv_exchange(kv, "x", 3, "abc", 3, values, bytes, SOON, &error);
        for (int i = 0; i < 3; i++) {
            assert_true(status == DP_OK || values[i] == NULL);
            free(values[i]);
        }
    }
    dp_kv_close(kv);
    return status;
}

static void kv_nth_allocation_fails_without_a_leak(void **state)
{
    int failed = 0;

    (void)state;
    for (int is_reached = 1; is_reached; failed += is_reached) {
        kv_server_t server;
        dp_status_t status;

        start(&server, kv_server_echo, NULL, 0);
        fail_allocation(failed + 1);
        status = whole_conversation(&server);
        is_reached = fail_allocation_reached();
        assert_int_equal(status, is_reached ? DP_ERR_NO_MEMORY : DP_OK);
        kv_server_stop(&server);
    }
    assert_true(failed >= 6); /* the client, a request, a frame, three values */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_exchange_returns_all_values),
        cmocka_unit_test(kv_many_and_large_exchanges_work),
        cmocka_unit_test(kv_wrong_arguments_leave_the_connection_usable),
        cmocka_unit_test(kv_client_with_another_secret_is_refused),
        cmocka_unit_test(kv_server_that_reflects_our_proof_is_refused),
        cmocka_unit_test(kv_foreign_server_is_named),
        cmocka_unit_test(kv_server_of_another_version_is_a_mismatch),
        cmocka_unit_test(kv_server_that_closes_early_is_an_error),
        cmocka_unit_test(kv_silent_server_times_out),
        cmocka_unit_test(kv_nobody_there_is_an_error),
        cmocka_unit_test(kv_hostile_answers_are_refused),
        cmocka_unit_test(kv_answer_cut_anywhere_is_an_error),
        cmocka_unit_test(kv_answer_with_any_bit_flipped_is_survived),
        cmocka_unit_test(kv_error_frame_becomes_the_error),
        cmocka_unit_test(kv_late_frame_is_a_timeout_that_names_ranks),
        cmocka_unit_test(kv_client_that_gives_up_hears_who_is_missing),
        cmocka_unit_test(kv_answer_that_never_comes_times_out),
        cmocka_unit_test(kv_reports_never_block_and_never_garble),
        cmocka_unit_test(kv_nth_allocation_fails_without_a_leak),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
