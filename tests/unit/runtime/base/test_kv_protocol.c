/*
 * test_kv_protocol.c - hellos, texts and tickets of the rendezvous, right, cut and foreign.
 */
#include "runtime/base/kv.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"

static dp_error_t error;

/* ---- Handshake and frames ------------------------------------------------------------------- */

static void kv_hello_with_any_bit_flipped_is_a_stranger(void **state)
{
    dp_secret_t secret;
    uint8_t server_challenge[DP_CHALLENGE_BYTES];
    uint8_t client_challenge[DP_CHALLENGE_BYTES];
    uint8_t hello[DP_KV_CLIENT_HELLO_BYTES];
    uint8_t welcome[DP_PROOF_BYTES];
    uint32_t rank = 99;

    (void)state;
    dp_random(&secret, sizeof(secret));
    dp_random(server_challenge, sizeof(server_challenge));
    dp_random(client_challenge, sizeof(client_challenge));
    dp_kv_client_hello_write(&secret, server_challenge, client_challenge, 5, hello);
    for (size_t bit = 0; bit < 8 * sizeof(hello); bit++) {
        if (bit / 8 == 6 || bit / 8 == 7) continue; /* reserved */
        hello[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(
            dp_kv_client_hello_check(&secret, server_challenge, hello, &rank, welcome, &error),
            DP_ERR_SYSTEM);
        hello[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(rank, 99);
    assert_int_equal(
        dp_kv_client_hello_check(&secret, server_challenge, hello, &rank, welcome, &error), DP_OK);
    assert_int_equal(rank, 5);
    assert_true(dp_kv_welcome_check(&secret, server_challenge, client_challenge, 5, welcome));
    assert_false(dp_kv_welcome_check(&secret, server_challenge, client_challenge, 6, welcome));
    server_challenge[0] ^= 1; /* a hello recorded from another connection */
    assert_int_equal(
        dp_kv_client_hello_check(&secret, server_challenge, hello, &rank, welcome, &error),
        DP_ERR_SYSTEM);
}

static void kv_texts_are_cut_to_the_room(void **state)
{
    static char longest[3000];
    uint8_t data[2048];
    char text[8];
    dp_writer_t writer;
    dp_reader_t fields;
    size_t frame;
    uint8_t type;

    (void)state;
    memset(longest, 'z', sizeof(longest) - 1);
    dp_writer_init(&writer, data, sizeof(data));
    dp_kv_text_write(&writer, DP_KV_LATE, longest);
    assert_false(writer.failed);
    assert_int_equal(dp_kv_frame_parse(data, writer.bytes, &type, &fields, &frame, NULL), DP_OK);
    assert_int_equal(frame, writer.bytes);
    assert_int_equal(type, DP_KV_LATE);
    assert_int_equal(dp_kv_text_read(&fields, text, sizeof(text)), 0);
    assert_string_equal(text, "zzzzzzz");
}

/* ---- Ticket --------------------------------------------------------------------------------- */

static size_t make_ticket(dp_kv_ticket_t *ticket, uint8_t *data, size_t room)
{
    memset(ticket, 0, sizeof(*ticket));
    snprintf(ticket->address, sizeof(ticket->address), "10.1.2.3");
    snprintf(ticket->job, sizeof(ticket->job), "job-8");
    ticket->port = 4711;
    dp_random(&ticket->secret, sizeof(ticket->secret));
    return dp_kv_ticket_write(ticket, data, room);
}

static int pipe_with(const void *data, size_t bytes)
{
    int fds[2];

    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], data, bytes), (ssize_t)bytes);
    close(fds[1]);
    return fds[0];
}

static void ticket_comes_through_a_pipe_and_closes_it(void **state)
{
    dp_kv_ticket_t ticket;
    dp_kv_ticket_t copy;
    uint8_t data[256];
    const size_t bytes = make_ticket(&ticket, data, sizeof(data));
    const int fd = pipe_with(data, bytes);

    (void)state;
    assert_true(bytes > 0);
    assert_int_equal(dp_kv_ticket_read(fd, &copy, &error), DP_OK);
    assert_string_equal(copy.address, "10.1.2.3");
    assert_string_equal(copy.job, "job-8");
    assert_int_equal(copy.port, 4711);
    assert_memory_equal(&copy.secret, &ticket.secret, sizeof(copy.secret));
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    assert_int_equal(dp_kv_ticket_read(fd, &copy, &error), DP_ERR_CONFIG);
    assert_non_null(strstr(error.text, "is not open"));
}

static void ticket_file_serves_ranks_that_share_its_position(void **state)
{
    dp_kv_ticket_t ticket;
    dp_kv_ticket_t copy;
    uint8_t data[256];
    const size_t bytes = make_ticket(&ticket, data, sizeof(data));
    const int fd = memfd_create("ticket", MFD_CLOEXEC);
    const int other = dup(fd);

    (void)state;
    assert_int_equal(write(fd, data, bytes), (ssize_t)bytes); /* the position is at the end */
    assert_int_equal(dp_kv_ticket_read(fd, &copy, &error), DP_OK);
    assert_int_equal(dp_kv_ticket_read(other, &copy, &error), DP_OK);
    assert_memory_equal(&copy.secret, &ticket.secret, sizeof(copy.secret));
}

static void expect_bad_ticket(const void *data, size_t bytes, dp_status_t expected,
                              const char *cause)
{
    const int fd = pipe_with(data, bytes);
    dp_kv_ticket_t before;
    dp_kv_ticket_t copy;

    memset(&copy, 0x5a, sizeof(copy));
    before = copy;
    assert_int_equal(dp_kv_ticket_read(fd, &copy, &error), expected);
    assert_memory_equal(&copy, &before, sizeof(copy));
    if (strstr(error.text, cause) == NULL) fail_msg("'%s' lacks '%s'", error.text, cause);
    assert_int_equal(close(fd), 0); /* it was not ours to close */
}

static void ticket_cut_or_foreign_is_refused(void **state)
{
    dp_kv_ticket_t ticket;
    uint8_t data[512] = {0};
    const size_t bytes = make_ticket(&ticket, data, sizeof(data));
    int fd;

    (void)state;
    for (size_t cut = 6; cut < bytes; cut++) {
        expect_bad_ticket(data, cut, DP_ERR_CONFIG, "malformed");
    }
    expect_bad_ticket(data, 0, DP_ERR_CONFIG, "holds no ticket of dprun (0 bytes");
    expect_bad_ticket(data, 5, DP_ERR_CONFIG, "holds no ticket of dprun (5 bytes");
    expect_bad_ticket(data, bytes + 1, DP_ERR_CONFIG, "malformed");
    expect_bad_ticket(data, sizeof(data), DP_ERR_CONFIG, "malformed");
    expect_bad_ticket("some other file's words", 23, DP_ERR_CONFIG, "holds no ticket");
    data[4] = 9;
    expect_bad_ticket(data, bytes, DP_ERR_MISMATCH, "version 9, this library 5");
    fd = open("/dev/null", O_RDONLY);
    assert_int_equal(dp_kv_ticket_read(fd, &ticket, &error), DP_ERR_CONFIG);
    assert_non_null(strstr(error.text, "neither a pipe nor a file"));
    close(fd);
    assert_int_equal(dp_kv_ticket_read(-1, &ticket, &error), DP_ERR_CONFIG);
}

static void ticket_without_room_is_not_written(void **state)
{
    dp_kv_ticket_t ticket;
    uint8_t data[256];
    const size_t bytes = make_ticket(&ticket, data, sizeof(data));

    (void)state;
    for (size_t room = 0; room < bytes; room++) {
        assert_int_equal(dp_kv_ticket_write(&ticket, data, room), 0);
    }
    memset(ticket.address, 'a', sizeof(ticket.address) - 1); /* the largest there can be */
    memset(ticket.job, 'j', sizeof(ticket.job) - 1);
    assert_in_range(dp_kv_ticket_write(&ticket, data, sizeof(data)), 1, 255);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_hello_with_any_bit_flipped_is_a_stranger),
        cmocka_unit_test(kv_texts_are_cut_to_the_room),
        cmocka_unit_test(ticket_comes_through_a_pipe_and_closes_it),
        cmocka_unit_test(ticket_file_serves_ranks_that_share_its_position),
        cmocka_unit_test(ticket_cut_or_foreign_is_refused),
        cmocka_unit_test(ticket_without_room_is_not_written),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
