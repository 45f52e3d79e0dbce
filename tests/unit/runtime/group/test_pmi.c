/*
 * test_pmi.c - PMI messages taken apart, and the conversation with launchers that misbehave. Those
 * that behave are tests/launch.
 */
#include "runtime/group/pmi.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/cases.h"

#define SOON (dp_now_ns() + 20000000000u) /* never reached unless something is wrong */

static dp_error_t error;

static void expect_text(const char *part)
{
    if (strstr(error.text, part) == NULL) fail_msg("'%s' lacks '%s'", error.text, part);
}

/* ---- Words ---------------------------------------------------------------------------------- */

static void expect_word(int version, const char *message, const char *key, int found,
                        const char *expected)
{
    char value[16] = "untouched";

    assert_int_equal(dp_pmi_find(version, message, strlen(message), key, value, sizeof(value)),
                     found);
    if (found == 1) assert_string_equal(value, expected);
}

static void pmi_1_words(void **state)
{
    (void)state;
    expect_word(1, "cmd=get_result rc=0 value=abc=d", "value", 1, "abc=d");
    expect_word(1, "cmd=get_result rc=0 value=abc", "cmd", 1, "get_result");
    expect_word(1, "  cmd=x   rc=0  ", "rc", 1, "0");
    expect_word(1, "cmd=x msg=not found here rc=-1", "rc", 1, "-1"); /* words without values */
    expect_word(1, "cmd=x value=", "value", 1, "");
    expect_word(1, "cmd=x", "c", 0, "");
    expect_word(1, "cmd=x", "cmdx", 0, "");
    expect_word(1, "", "cmd", 0, "");
    expect_word(1, "value=0123456789abcdef", "value", -1, ""); /* no room for its end */
    expect_word(1, "value=0123456789abcde", "value", 1, "0123456789abcde");
}

static void pmi_2_words(void **state)
{
    (void)state;
    expect_word(2, "cmd=x;value=a b=c;rc=0;", "value", 1, "a b=c");
    expect_word(2, "cmd=x;value=a;;b;;;;c;rc=7;", "value", 1, "a;b;;c");
    expect_word(2, "cmd=x;value=a;;b;;;;c;rc=7;", "rc", 1, "7");
    expect_word(2, "cmd=x;rc=0", "rc", 1, "0"); /* without the last end */
    expect_word(2, "cmd=x;nonsense;rc=0;", "rc", -1, "");
    expect_word(2, "cmd=x;nonsense", "cmd", 1, "x");
    expect_word(2, ";;;;", "cmd", -1, "");
}

static void pmi_lengths(void **state)
{
    (void)state;
    assert_int_equal(dp_pmi_length("    12"), 12);
    assert_int_equal(dp_pmi_length("12    "), 12);
    assert_int_equal(dp_pmi_length("000012"), 12);
    assert_int_equal(dp_pmi_length("  4096"), 4096);
    assert_int_equal(dp_pmi_length("  4097"), 0);
    assert_int_equal(dp_pmi_length("999999"), 0);
    assert_int_equal(dp_pmi_length("      "), 0);
    assert_int_equal(dp_pmi_length("1 2   "), 0);
    assert_int_equal(dp_pmi_length("   -12"), 0);
    assert_int_equal(dp_pmi_length("cmd=ab"), 0);
}

static dp_status_t check(int version, const char *message, const char *command)
{
    return dp_pmi_check(version, message, strlen(message), command, &error);
}

static void pmi_answers_are_checked(void **state)
{
    (void)state;
    assert_int_equal(check(1, "cmd=maxes rc=0", "maxes"), DP_OK);
    assert_int_equal(check(1, "cmd=barrier_out", "barrier_out"), DP_OK); /* without a code */
    assert_int_equal(check(1, "cmd=maxes rc=-1 msg=no\tway", "maxes"), DP_ERR_SYSTEM);
    expect_text("refused: 'cmd=maxes rc=-1 msg=no?way'");
    assert_int_equal(check(2, "cmd=abort;rc=0;", "maxes"), DP_ERR_SYSTEM);
    expect_text("said 'cmd=abort;rc=0;', expected maxes");
    assert_int_equal(check(2, "cmd=maxes;nonsense;rc=0;", "maxes"), DP_ERR_SYSTEM);
    assert_int_equal(check(1, "", "maxes"), DP_ERR_SYSTEM);
}

/* ---- Conversations -------------------------------------------------------------------------- */

typedef struct script {
    int fd;
    const char *const *answers; /* one for each message that comes; NULL: hang up */
    int version;                /* of the messages after the hello */
} script_t;

/* Reads one message, whatever it says, and answers; a byte at a time, as sockets may deliver. */
static void *play(void *argument)
{
    script_t *script = argument;
    char data[8192];

    for (int i = 0; script->answers[i] != NULL; i++) {
        const size_t length = strlen(script->answers[i]);
        char header[24] = "";

        if (recv(script->fd, data, sizeof(data), 0) <= 0) break;
        if (i > 0 && script->version == 2) snprintf(header, sizeof(header), "%6zu", length);
        (void)!send(script->fd, header, strlen(header), MSG_NOSIGNAL);
        for (size_t k = 0; k < length; k++)
            (void)!send(script->fd, script->answers[i] + k, 1, MSG_NOSIGNAL);
        if (i == 0 || script->version == 1) (void)!send(script->fd, "\n", 1, MSG_NOSIGNAL);
    }
    close(script->fd);
    return NULL;
}

/* Opens, fences, gets; the first failure is returned. */
static dp_status_t converse(int version, const char *job, const char *const *answers, char *value,
                            size_t room)
{
    script_t script = {.answers = answers, .version = version};
    pthread_t thread;
    dp_pmi_t pmi;
    dp_status_t status;
    int fds[2];

    memset(&error, 0, sizeof(error));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    script.fd = fds[1];
    pthread_create(&thread, NULL, play, &script);
    status = dp_pmi_open(&pmi, fds[0], job, 1, 3, SOON, &error);
    if (status == DP_OK) status = dp_pmi_fence(&pmi, &error);
    if (status == DP_OK) status = dp_pmi_get(&pmi, "key", value, room, &error);
    if (status == DP_OK) status = dp_pmi_close(&pmi, &error);
    close(fds[0]);
    pthread_join(thread, NULL);
    return status;
}

#define CONVERSE(version, job, ...)                                                                \
    converse(version, job, (const char *const[]){__VA_ARGS__, NULL}, value, sizeof(value))
#define HELLO_1 "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
#define HELLO_2 "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0"
#define SPACE_1 "cmd=maxes rc=0", "cmd=my_kvsname rc=0 kvsname=k"
#define FULL_2 "cmd=fullinit-response;rc=0;rank=1;size=3;"

static void pmi_conversations_go_well(void **state)
{
    char value[64];

    (void)state;
    assert_int_equal(CONVERSE(1, NULL, HELLO_1, SPACE_1, "cmd=barrier_out rc=0",
                              "cmd=get_result rc=0 value=v1", "cmd=finalize_ack"),
                     DP_OK);
    assert_string_equal(value, "v1");
    assert_int_equal(CONVERSE(2, "7", HELLO_2, FULL_2, "cmd=kvs-fence-response;rc=0;",
                              "cmd=kvs-get-response;flag=TRUE;value=v;;2;rc=0;",
                              "cmd=finalize-response;rc=0;"),
                     DP_OK);
    assert_string_equal(value, "v;2");
}

static void pmi_launchers_that_misbehave_are_told(void **state)
{
    static char flood[2 * DP_PMI_MESSAGE_MAX];
    char value[64];

    (void)state;
    memset(flood, 'x', sizeof(flood) - 1);
    assert_int_equal(CONVERSE(1, NULL, flood), DP_ERR_SYSTEM);
    assert_int_equal(CONVERSE(1, NULL, HELLO_1, "cmd=maxes rc=0", "cmd=my_kvsname rc=0"),
                     DP_ERR_SYSTEM);
    expect_text("names no key-value space");
    assert_int_equal(CONVERSE(1, NULL, HELLO_1, SPACE_1), DP_ERR_SYSTEM);
    expect_text("the launcher closed");
    assert_int_equal(
        CONVERSE(1, NULL, HELLO_1, SPACE_1, "cmd=barrier_out rc=0", "cmd=get_result rc=1"),
        DP_ERR_SYSTEM);
    expect_text("the launcher refused: 'cmd=get_result rc=1'");
    assert_int_equal(CONVERSE(2, "7", HELLO_2, "cmd=fullinit-response;rc=0;rank=2;size=3;"),
                     DP_ERR_CONFIG);
    expect_text("PMI says rank 2, the environment 1");
    assert_int_equal(CONVERSE(2, "7", HELLO_2, "cmd=fullinit-response;rc=0;rank=1;size=4;"),
                     DP_ERR_CONFIG);
    expect_text("PMI says size 4, the environment 3");
    assert_int_equal(CONVERSE(2, "7", HELLO_2, FULL_2, "cmd=kvs-fence-response;rc=0;",
                              "cmd=kvs-get-response;flag=FALSE;rc=0;"),
                     DP_ERR_SYSTEM);
    expect_text("no value for the key key");
    assert_int_equal(CONVERSE(1, "7", HELLO_2, "no digits here"), DP_ERR_SYSTEM);
    expect_text("a message begins with 'no dig'");
}

static void pmi_value_without_room_is_refused(void **state)
{
    char value[4];

    (void)state;
    assert_int_equal(CONVERSE(1, NULL, HELLO_1, SPACE_1, "cmd=barrier_out rc=0",
                              "cmd=get_result rc=0 value=12345"),
                     DP_ERR_SYSTEM);
}

static void pmi_launcher_that_is_silent_times_out(void **state)
{
    dp_pmi_t pmi;
    int fds[2];

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    assert_int_equal(dp_pmi_open(&pmi, fds[0], NULL, 0, 2, dp_now_ns() + 20000000u, &error),
                     DP_ERR_TIMEOUT);
    expect_text("response_to_init did not come in time");
    close(fds[0]);
    close(fds[1]);
}

static void pmi_descriptor_that_is_no_socket_is_told(void **state)
{
    dp_pmi_t pmi;
    int fds[2];

    (void)state;
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(dp_pmi_open(&pmi, fds[1], NULL, 0, 2, SOON, &error), DP_ERR_CONFIG);
    expect_text("no launcher listens there");
    close(fds[0]);
    close(fds[1]);
    assert_int_equal(dp_pmi_open(&pmi, fds[0], NULL, 0, 2, SOON, &error), DP_ERR_CONFIG);
    expect_text("Bad file descriptor");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pmi_1_words),
        cmocka_unit_test(pmi_2_words),
        cmocka_unit_test(pmi_lengths),
        cmocka_unit_test(pmi_answers_are_checked),
        cmocka_unit_test(pmi_conversations_go_well),
        cmocka_unit_test(pmi_launchers_that_misbehave_are_told),
        cmocka_unit_test(pmi_value_without_room_is_refused),
        cmocka_unit_test(pmi_launcher_that_is_silent_times_out),
        cmocka_unit_test(pmi_descriptor_that_is_no_socket_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
