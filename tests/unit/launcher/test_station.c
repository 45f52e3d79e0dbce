/*
 * test_station.c - a station that looks for dprun by a name while the name service does not answer.
 * Each station is a process of its own, as it is for dprun.
 */
#include "launcher/dprun/remote/station.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/dprun/remote/look.h"
#include "tests/unit/cases.h"

#define PATIENCE_S 20 /* then SIGALRM ends the station: it waits for the name service */
#define MS 1000000ull

/* Written to by the name service when it is asked. */
static int asked = -1;

int __real_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found);
int __wrap_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found);

/* Answers for numbers, and never for a name. */
int __wrap_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found)
{
    const int code = strcmp(name, "hangs.test") != 0 || (hints->ai_flags & AI_NUMERICHOST) != 0
                         ? __real_getaddrinfo(name, service, hints, found)
                         : EAI_AGAIN;

    if (code != EAI_AGAIN) return code;
    (void)!write(asked, "?", 1);
    for (;;)
        pause();
}

typedef struct station {
    pid_t pid;
    int asked; /* readable once a name is looked up */
    int said;  /* its standard error */
} station_t;

static void start_station(station_t *station, dp_station_options_t *options)
{
    int asked_pipe[2];
    int said_pipe[2];

    assert_int_equal(pipe2(asked_pipe, O_CLOEXEC), 0);
    assert_int_equal(pipe2(said_pipe, O_CLOEXEC), 0);
    station->pid = fork();
    assert_true(station->pid >= 0);
    if (station->pid == 0) {
        alarm(PATIENCE_S);
        asked = asked_pipe[1];
        if (dup2(said_pipe[1], STDERR_FILENO) < 0) _exit(99);
        _exit(dp_station_run(options));
    }
    close(asked_pipe[1]);
    close(said_pipe[1]);
    station->asked = asked_pipe[0];
    station->said = said_pipe[0];
}

/* Its exit code; 128 + N: signal N killed it. text: what it said. */
static int end_station(station_t *station, char *text, size_t room)
{
    size_t used = 0;
    ssize_t got;
    int status = 0;

    while (used + 1 < room && (got = read(station->said, text + used, room - 1 - used)) > 0)
        used += (size_t)got;
    text[used] = '\0';
    assert_int_equal(waitpid(station->pid, &status, 0), station->pid);
    close(station->said);
    close(station->asked);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void await_question(const station_t *station)
{
    char byte;

    assert_int_equal(read(station->asked, &byte, 1), 1);
}

static void station_ends_in_time_where_the_name_service_does_not_answer(void **state)
{
    dp_station_options_t options = {
        .ticket = {.port = 1, .address_count = 1, .addresses = {"hangs.test"}},
        .start_timeout_ns = 300 * MS};
    station_t station;
    char text[512];

    (void)state;
    start_station(&station, &options);
    await_question(&station);
    assert_int_equal(end_station(&station, text, sizeof(text)), 1);
    assert_string_equal(text, "dprun: cannot reach dprun at hangs.test, port 1: the name service "
                              "does not answer\n");
}

static void station_serves_a_signal_while_the_name_service_does_not_answer(void **state)
{
    dp_station_options_t options = {
        .ticket = {.port = 1, .address_count = 1, .addresses = {"hangs.test"}},
        .start_timeout_ns = 2 * PATIENCE_S * 1000 * MS};
    station_t station;
    char text[512];

    (void)state;
    start_station(&station, &options);
    await_question(&station);
    kill(station.pid, SIGTERM);
    assert_int_equal(end_station(&station, text, sizeof(text)), 128 + SIGTERM);
}

static void station_tries_numbers_while_the_name_service_does_not_answer(void **state)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    dp_station_options_t options = {
        .ticket = {.address_count = 2, .addresses = {"hangs.test", "127.0.0.1"}},
        .start_timeout_ns = 2 * PATIENCE_S * 1000 * MS};
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct pollfd dialled = {.fd = listener, .events = POLLIN};
    socklen_t bytes = sizeof(here);
    station_t station;
    char text[512];
    int fd;

    (void)state;
    assert_int_equal(bind(listener, (const struct sockaddr *)&here, sizeof(here)), 0);
    assert_int_equal(listen(listener, 4), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&here, &bytes), 0);
    options.ticket.port = ntohs(here.sin_port);
    start_station(&station, &options);
    await_question(&station);
    assert_int_equal(poll(&dialled, 1, PATIENCE_S * 1000), 1);
    fd = accept(listener, NULL, NULL);
    assert_true(fd >= 0);
    kill(station.pid, SIGTERM);
    assert_int_equal(end_station(&station, text, sizeof(text)), 128 + SIGTERM);
    close(fd);
    close(listener);
}

static void port_for_a_rank_is_given_to_no_connection(void **state)
{
    FILE *range = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
    unsigned low, high, differing = 0;
    uint16_t last = 0;

    (void)state;
    assert_non_null(range);
    assert_int_equal(fscanf(range, "%u %u", &low, &high), 2);
    fclose(range);
    for (int i = 0; i < 100; i++) {
        const uint16_t port = dp_look_for_port();

        assert_true(port != 0 && (port < low || port > high));
        differing += port != last;
        last = port;
    }
    assert_true(differing > 90); /* two jobs that start together seldom get the same one */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(station_ends_in_time_where_the_name_service_does_not_answer),
        cmocka_unit_test(station_serves_a_signal_while_the_name_service_does_not_answer),
        cmocka_unit_test(station_tries_numbers_while_the_name_service_does_not_answer),
        cmocka_unit_test(port_for_a_rank_is_given_to_no_connection),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
