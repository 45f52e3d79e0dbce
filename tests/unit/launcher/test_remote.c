/*
 * test_remote.c - the pure parts of a job on several machines: who runs where, which command brings
 * a station up, what a failed one means, what crosses the wire.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/dprun/remote/hosts.h"
#include "launcher/dprun/remote/protocol.h"
#include "launcher/dprun/remote/seal.h"
#include "launcher/dprun/remote/shell.h"
#include "launcher/dprun/remote/station_internal.h"
#include "tests/unit/cases.h"

/* ---- Hosts ---------------------------------------------------------------------------------- */

/* "a:2@0 b:2@2": names, ranks and first ranks. */
static void describe(const dp_hosts_t *hosts, char *text, size_t room)
{
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < hosts->count; i++) {
        used +=
            (size_t)snprintf(text + used, room - used, "%s%s:%d@%d", i > 0 ? " " : "",
                             hosts->list[i].name, hosts->list[i].ranks, hosts->list[i].first_rank);
    }
}

static void assert_placed(const char *text, int size, const char *expected)
{
    dp_hosts_t hosts;
    dp_error_t error = {DP_OK, ""};
    char found[512];

    if (dp_hosts_parse(&hosts, text, &error) == DP_OK) dp_hosts_place(&hosts, &size, &error);
    assert_string_equal(error.text, "");
    describe(&hosts, found, sizeof(found));
    assert_string_equal(found, expected);
    dp_hosts_fini(&hosts);
}

static void hosts_ranks_fill_the_nodes_in_order(void **state)
{
    (void)state;
    assert_placed("a:2,b:2", 0, "a:2@0 b:2@2");
    assert_placed("a:2,b:2", 3, "a:2@0 b:1@2");
    assert_placed("a:2,b:2", 2, "a:2@0");
    assert_placed("a,b", 0, "a:1@0 b:1@1");
    assert_placed("a,b", 5, "a:3@0 b:2@3"); /* names alone: dealt evenly */
    assert_placed("a,b,a", 0, "a:2@0 b:1@2");
    assert_placed("me@a:1,[fe80::1]:2", 0, "me@a:1@0 fe80::1:2@1");
}

static void hosts_wrong_lists_are_refused_by_name(void **state)
{
    static const char *const wrong[][2] = {{"a:0", "\"a:0\""},
                                           {"a:x", "\"a:x\""},
                                           {"", "-H : \"\""},
                                           {"a,,b", "\"\""},
                                           {"-oProxyCommand=x", "no name of a host"},
                                           {"fe80::1", "in brackets"},
                                           {"a:9999", "1 to 1024"}};
    dp_hosts_t hosts;
    dp_error_t error;
    int size = 5;

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(wrong); i++) {
        assert_int_equal(dp_hosts_parse(&hosts, wrong[i][0], &error), DP_ERR_CONFIG);
        if (strstr(error.text, wrong[i][1]) == NULL) fail_msg("%s: %s", wrong[i][0], error.text);
    }
    assert_int_equal(dp_hosts_parse(&hosts, "a:2,b:2", &error), DP_OK);
    assert_int_equal(dp_hosts_place(&hosts, &size, &error), DP_ERR_CONFIG);
    assert_non_null(strstr(error.text, "-np 5: 2 hosts, 4 slots"));
    dp_hosts_fini(&hosts);
}

static void assert_file(const char *content, const char *expected)
{
    char path[] = "/tmp/test-hostfile-XXXXXX";
    int fd = mkstemp(path);
    dp_hosts_t hosts;
    dp_error_t error = {DP_OK, ""};
    char found[512] = "";
    int size = 0;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, content, strlen(content)), (ssize_t)strlen(content));
    close(fd);
    if (dp_hosts_read(&hosts, path, &error) == DP_OK) {
        assert_int_equal(dp_hosts_place(&hosts, &size, &error), DP_OK);
        describe(&hosts, found, sizeof(found));
        dp_hosts_fini(&hosts);
    }
    unlink(path);
    if (strstr(error.text[0] != '\0' ? error.text : found, expected) == NULL)
        fail_msg("\"%s%s\" lacks \"%s\"", found, error.text, expected);
}

static void hosts_files_of_both_forms_are_read(void **state)
{
    (void)state;
    assert_file("# a comment\na slots=2 max-slots=4\n\n b:3 # another\nc\n", "a:2@0 b:3@2 c:1@5");
    assert_file("a slots=2\na slots=1\n", "a:3@0");
    assert_file("a slots=x\n", "line 1: \"slots=x\"");
    assert_file("a\nb cores=2\n", "line 2: \"cores=2\"");
    assert_file("# nothing\n", "no host in it");
}

static void hosts_of_slurm_are_expanded(void **state)
{
    dp_hosts_t hosts;
    dp_error_t error = {DP_OK, ""};
    char found[512];
    int size = 0;

    (void)state;
    assert_int_equal(dp_hosts_from_slurm(&hosts, "a,n[1-2,07],m[9-10]x", "2(x3),1,4(x2)", &error),
                     DP_OK);
    assert_int_equal(dp_hosts_place(&hosts, &size, &error), DP_OK);
    describe(&hosts, found, sizeof(found));
    assert_string_equal(found, "a:2@0 n1:2@2 n2:2@4 n07:1@6 m9x:4@7 m10x:4@11");
    dp_hosts_fini(&hosts);
    assert_int_equal(dp_hosts_from_slurm(&hosts, "n[1-", NULL, &error), DP_ERR_CONFIG);
    assert_int_equal(dp_hosts_from_slurm(&hosts, "n[3-1]", NULL, &error), DP_ERR_CONFIG);
}

/* ---- Shells --------------------------------------------------------------------------------- */

static int has_argument(const dp_shell_command_t *command, const char *word)
{
    for (int i = 0; command->argv[i] != NULL; i++) {
        if (strcmp(command->argv[i], word) == 0) return 1;
    }
    return 0;
}

static void shell_program_is_quoted_and_the_host_is_no_option(void **state)
{
    dp_shell_command_t command;
    dp_error_t error;
    int last = 0;

    (void)state;
    assert_int_equal(dp_shell_command_ssh(&command, "ssh -p 2222", "a", "/o'pt/dprun", 0, &error),
                     DP_OK);
    while (command.argv[last + 1] != NULL)
        last++;
    assert_string_equal(command.argv[0], "ssh");
    assert_string_equal(command.argv[1], "-p");
    assert_string_equal(command.argv[2], "2222");
    assert_string_equal(command.argv[last], "exec '/o'\\''pt/dprun' --station");
    assert_string_equal(command.argv[last - 1], "a");
    assert_string_equal(command.argv[last - 2], "--");
    /* Another program may not know OpenSSH's options. */
    assert_int_equal(dp_shell_command_ssh(&command, "rsh", "a", "/d", 0, &error), DP_OK);
    assert_string_equal(command.argv[1], "a");
    assert_null(command.argv[3]);
    /* Of two options that contradict each other OpenSSH takes the first: the user's. */
    assert_int_equal(
        dp_shell_command_ssh(&command, "ssh -o ConnectTimeout=60", "a", "/d", 0, &error), DP_OK);
    assert_string_equal(command.argv[2], "ConnectTimeout=60");
    assert_true(has_argument(&command, "ConnectTimeout=10"));
    assert_true(has_argument(&command, "BatchMode=yes"));
}

static void shell_failures_are_explained(void **state)
{
    static const struct {
        int code;
        const char *words;
        const char *text;
        dp_shell_cause_t cause;
    } cases[] = {
        {255, "ssh: Could not resolve hostname a: Name or service not known\n", "no host of this",
         DP_SHELL_OTHER},
        {255, "ssh: connect to host a port 22: Connection refused\n", "does sshd run there",
         DP_SHELL_TRY_AGAIN},
        {255, "Host key verification failed.\n", "ssh-keyscan", DP_SHELL_OTHER},
        {255, "me@a: Permission denied (publickey).\n", "refuses your key", DP_SHELL_OTHER},
        {255, "kex_exchange_identification: Connection closed by remote host\n", "MaxStartups",
         DP_SHELL_TRY_AGAIN},
        {255, "ssh: connect to host a port 22: Connection timed out\n", "is it up?",
         DP_SHELL_OTHER},
        {255, "Connection to 10.0.0.1 port 22 timed out\n", "longer than ssh waits",
         DP_SHELL_OTHER},
        {255, "Timeout, server a not responding.\n", "answers ssh no more", DP_SHELL_OTHER},
        {255, "command-line line 0: Bad SSH2 KexAlgorithms '^x'.\n", "curve25519",
         DP_SHELL_TRY_PLAIN},
        {127, "bash: line 1: /x/dprun: No such file or directory\n", "there is no /x/dprun",
         DP_SHELL_OTHER},
        {1, "welcome\ndprun: cannot reach dprun at 10.0.0.1, port 7: no answer\n",
         "node a: cannot reach dprun at 10.0.0.1", DP_SHELL_OTHER},
    };
    char text[900];

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(cases); i++) {
        assert_int_equal(dp_shell_explain("ssh", "a", "/x/dprun", cases[i].code << 8,
                                          cases[i].words, text, sizeof(text)),
                         cases[i].cause);
        assert_int_equal(strncmp(text, "node a: ", 8), 0);
        if (strstr(text, cases[i].text) == NULL) fail_msg("%s", text);
    }
}

/* A station's token is for dprun alone; a person sees the text behind it. */
static void shell_token_of_a_station_is_not_shown(void **state)
{
    char text[900];

    (void)state;
    (void)dp_shell_explain("ssh", "a", "/x/dprun", 1 << 8,
                           "welcome\n" DP_REMOTE_UNREACHED ": no way to 10.0.0.1: no answer\n",
                           text, sizeof(text));
    assert_string_equal(text, "node a: no way to 10.0.0.1: no answer");
    (void)dp_shell_explain("ssh", "a", "/x/dprun", 255 << 8,
                           "No route to host\n" DP_REMOTE_UNREACHED ": nothing answers\n", text,
                           sizeof(text));
    assert_string_equal(text, "node a: there is no route to it (dprun: nothing answers)");
}

/* One srun brings up all nodes: no text names a node, or an ssh that nobody started. */
static void srun_failures_are_explained(void **state)
{
    static const struct {
        int code;
        const char *words;
        const char *text;
    } cases[] = {
        {2, "slurmstepd-a: error: execve(): /x/dprun: No such file or directory\n",
         "there is no /x/dprun to run: install dp at the same path on every node (slurmstepd-a: "
         "error: execve(): /x/dprun: No such file or directory)"},
        {13, "slurmstepd-a: error: execve(): /x/dprun: Permission denied\n",
         "there is no /x/dprun to run: install dp at the same path on every node (slurmstepd-a: "
         "error: execve(): /x/dprun: Permission denied)"},
        {1, "srun: error: Unable to confirm allocation for job 7: Invalid job id specified\n",
         "its srun ended with code 1: srun: error: Unable to confirm allocation for job 7: Invalid "
         "job id specified"},
        {2, "", "its srun ended with code 2"},
    };
    char text[900];

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(cases); i++) {
        assert_int_equal(dp_shell_explain("srun", NULL, "/x/dprun", cases[i].code << 8,
                                          cases[i].words, text, sizeof(text)),
                         DP_SHELL_OTHER);
        assert_string_equal(text, cases[i].text);
    }
}

/* ---- Wire ----------------------------------------------------------------------------------- */

static void remote_start_survives_the_wire_and_every_cut(void **state)
{
    char *argv[] = {"program", "with 'quotes'", "", NULL};
    char *variables[] = {"A=1", "B=two words"};
    dp_remote_start_t start = {.first_rank = 2,
                               .local_size = 2,
                               .size = 4,
                               .stdin_rank = -1,
                               .argv = argv,
                               .argc = 3,
                               .variables = variables,
                               .variable_count = 2};
    dp_remote_start_t read;
    dp_reader_t reader;
    size_t bytes;
    uint8_t *data;

    (void)state;
    snprintf(start.node_name, sizeof(start.node_name), "b");
    data = dp_remote_start_write(&start, &bytes);
    assert_non_null(data);
    dp_reader_init(&reader, data, bytes);
    assert_int_equal(dp_remote_start_read(&reader, &read), 0);
    assert_int_equal(read.first_rank, 2);
    assert_int_equal(read.stdin_rank, -1);
    assert_string_equal(read.argv[1], "with 'quotes'");
    assert_string_equal(read.argv[2], "");
    assert_null(read.argv[3]);
    assert_string_equal(read.variables[1], "B=two words");
    assert_string_equal(read.node_name, "b");
    dp_remote_start_fini(&read);
    for (size_t cut = 0; cut < bytes; cut++) {
        dp_reader_init(&reader, data, cut);
        assert_int_equal(dp_remote_start_read(&reader, &read), -1);
    }
    free(data);
}

/* Readers use the rank as an index. */
static void remote_message_about_a_rank_names_one(void **state)
{
    static const dp_message_type_t about_ranks[] = {DP_MESSAGE_STARTED, DP_MESSAGE_NOT_STARTED,
                                                    DP_MESSAGE_ENDED, DP_MESSAGE_STOPPED,
                                                    DP_MESSAGE_CONTINUED};
    dp_message_t message;
    dp_message_t read;
    uint8_t data[256];
    dp_writer_t writer;
    dp_reader_t reader;

    (void)state;
    for (dp_message_type_t type = DP_MESSAGE_STARTED; type <= DP_MESSAGE_BYE; type++) {
        int is_about_rank = 0;

        for (size_t i = 0; i < DP_ARRAY_LEN(about_ranks); i++)
            is_about_rank |= type == about_ranks[i];
        for (int rank = -1; rank <= 0; rank++) {
            dp_message_init(&message, type, rank);
            dp_writer_init(&writer, data, sizeof(data));
            dp_message_write(&writer, &message);
            dp_reader_init(&reader, data, writer.bytes);
            assert_int_equal(dp_message_read(&reader, &read), rank < 0 && is_about_rank ? -1 : 0);
        }
    }
}

static void remote_ticket_comes_through_a_pipe(void **state)
{
    dp_remote_ticket_t ticket = {.node = 3, .port = 4711, .address_count = 2};
    dp_remote_ticket_t read;
    uint8_t data[DP_REMOTE_TICKET_MAX];
    dp_error_t error = {DP_OK, ""};
    size_t bytes;
    int fds[2];

    (void)state;
    snprintf(ticket.addresses[1], sizeof(ticket.addresses[1]), "10.0.0.2");
    memset(&ticket.secret, 7, sizeof(ticket.secret));
    bytes = dp_remote_ticket_write(&ticket, data, sizeof(data));
    assert_true(bytes > 0);
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], data, bytes), (ssize_t)bytes);
    assert_int_equal(dp_remote_ticket_read(fds[0], dp_now_ns() + 60000000000u, &read, &error),
                     DP_OK);
    assert_int_equal(read.node, 3);
    assert_int_equal(read.port, 4711);
    assert_string_equal(read.addresses[1], "10.0.0.2");
    assert_memory_equal(&read.secret, &ticket.secret, sizeof(read.secret));
    assert_int_equal(write(fds[1], "something else, and long enough", 31), 31);
    assert_int_equal(dp_remote_ticket_read(fds[0], dp_now_ns() + 60000000000u, &read, &error),
                     DP_ERR_MISMATCH);
    close(fds[1]);
    close(fds[0]);
}

static void station_of_another_version_refuses_the_job(void **state)
{
    dp_station_t station = {.start = {.version = "9.8.7"}};
    dp_error_t error = {DP_OK, ""};
    char own[32];
    char expected[128];
    int code = 0;

    (void)state;
    snprintf(own, sizeof(own), "%d.%d.%d", DP_VERSION_MAJOR, DP_VERSION_MINOR, DP_VERSION_PATCH);
    snprintf(expected, sizeof(expected), "dprun %s is there, 9.8.7 started the job", own);
    assert_int_equal(dp_station_prepare(&station, &code, &error), DP_ERR_MISMATCH);
    assert_string_equal(error.text, expected);
    assert_int_equal(code, 1);
}

static void seal_refuses_what_was_changed_repeated_or_left_out(void **state)
{
    const uint8_t challenges[2 * DP_CHALLENGE_BYTES] = {1};
    const uint8_t others[2 * DP_CHALLENGE_BYTES] = {2};
    const dp_secret_t secret = {{3}};
    uint8_t header[DP_SEAL_HEADER_BYTES];
    uint8_t sealed[3][5 + DP_SEAL_EXTRA_BYTES];
    uint8_t plain[5];
    dp_seal_t *seal = dp_seal_create(&secret, "there", challenges, header);
    dp_seal_t *opener = dp_seal_create_opener(&secret, "there", challenges, header);
    dp_seal_t *wrong = dp_seal_create_opener(&secret, "back", challenges, header);
    dp_seal_t *older = dp_seal_create_opener(&secret, "there", others, header);

    (void)state;
    for (int i = 0; i < 3; i++) {
        dp_seal_close(seal, "hello", 5, sealed[i]);
    }
    assert_int_equal(dp_seal_open(wrong, sealed[0], sizeof(sealed[0]), plain), -1);
    assert_int_equal(dp_seal_open(older, sealed[0], sizeof(sealed[0]), plain), -1);
    assert_int_equal(dp_seal_open(opener, sealed[0], sizeof(sealed[0]), plain), 0);
    assert_memory_equal(plain, "hello", 5);
    assert_int_equal(dp_seal_open(opener, sealed[0], sizeof(sealed[0]), plain), -1); /* again */
    assert_int_equal(dp_seal_open(opener, sealed[2], sizeof(sealed[2]), plain),
                     -1); /* one left out */
    sealed[1][7] ^= 1;
    assert_int_equal(dp_seal_open(opener, sealed[1], sizeof(sealed[1]), plain), -1);
    assert_int_equal(dp_seal_open(opener, sealed[1], 3, plain), -1);
    dp_seal_destroy(seal);
    dp_seal_destroy(opener);
    dp_seal_destroy(wrong);
    dp_seal_destroy(older);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_ranks_fill_the_nodes_in_order),
        cmocka_unit_test(hosts_wrong_lists_are_refused_by_name),
        cmocka_unit_test(hosts_files_of_both_forms_are_read),
        cmocka_unit_test(hosts_of_slurm_are_expanded),
        cmocka_unit_test(shell_program_is_quoted_and_the_host_is_no_option),
        cmocka_unit_test(shell_failures_are_explained),
        cmocka_unit_test(shell_token_of_a_station_is_not_shown),
        cmocka_unit_test(srun_failures_are_explained),
        cmocka_unit_test(remote_start_survives_the_wire_and_every_cut),
        cmocka_unit_test(remote_message_about_a_rank_names_one),
        cmocka_unit_test(remote_ticket_comes_through_a_pipe),
        cmocka_unit_test(station_of_another_version_refuses_the_job),
        cmocka_unit_test(seal_refuses_what_was_changed_repeated_or_left_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
