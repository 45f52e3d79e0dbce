/*
 * shell_command.c - the command lines of shell.h, and what the words of a failed one mean. Pure.
 * Called by fleet_start.c, and by dry_run.c to print them.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "launcher/dprun/remote/shell.h"

#define OWN_WORDS "dprun: " /* begins what a station says */
_Static_assert(sizeof(OWN_WORDS) <= sizeof(DP_REMOTE_UNREACHED), "takes the place of a token");

/* Collects words into command->text. */
typedef struct builder {
    dp_shell_command_t *command;
    size_t bytes;
    int count;
    int failed;
} builder_t;

static void add_word(builder_t *builder, const char *word, size_t bytes)
{
    dp_shell_command_t *command = builder->command;

    if (builder->count + 1 >= DP_SHELL_ARGUMENTS ||
        builder->bytes + bytes + 1 > sizeof(command->text)) {
        builder->failed = 1;
        return;
    }
    command->argv[builder->count++] = command->text + builder->bytes;
    memcpy(command->text + builder->bytes, word, bytes);
    command->text[builder->bytes + bytes] = '\0';
    builder->bytes += bytes + 1;
    command->argv[builder->count] = NULL;
}

static void add(builder_t *builder, const char *word)
{
    add_word(builder, word, strlen(word));
}

static dp_status_t finish(const builder_t *builder, dp_error_t *error)
{
    if (!builder->failed) return DP_OK;
    return dp_error_set(error, DP_ERR_CONFIG,
                        "the command that starts a node's station is too long");
}

/* Quotes for the remote user's shell, whichever it is: "exec '/opt/dp/bin/dprun' --station". */
static void add_remote_command(builder_t *builder, const char *program)
{
    char text[4608];
    size_t used = (size_t)snprintf(text, sizeof(text), "exec '");

    for (const char *c = program; *c != '\0' && used + 8 < sizeof(text) - 12; c++) {
        if (*c == '\'') {
            used += (size_t)snprintf(text + used, sizeof(text) - used, "'\\''");
        } else {
            text[used++] = *c;
        }
    }
    used += (size_t)snprintf(text + used, sizeof(text) - used, "' --station");
    add_word(builder, text, used);
}

static void add_option(builder_t *builder, const char *option)
{
    add(builder, "-o");
    add(builder, option);
}

/* Of OpenSSH. */
static void add_options(builder_t *builder, int is_plain)
{
    add(builder, "-T");
    add(builder, "-x");
    add(builder, "-a");
    add_option(builder, "BatchMode=yes");
    add_option(builder, "ConnectTimeout=10");
    add_option(builder, "ServerAliveInterval=30"); /* or a firewall forgets the idle connection */
    add_option(builder, "ClearAllForwardings=yes");
    /* Its default exchange takes 100 ms of a core for each host, this one 16. */
    if (!is_plain) add_option(builder, "KexAlgorithms=^curve25519-sha256");
    add(builder, "--");
}

dp_status_t dp_shell_command_ssh(dp_shell_command_t *command, const char *ssh, const char *host,
                                 const char *program, int is_plain, dp_error_t *error)
{
    builder_t builder = {.command = command};
    const char *base;

    for (const char *word = ssh; *word != '\0';) {
        const size_t bytes = strcspn(word, " \t");

        if (bytes > 0) add_word(&builder, word, bytes);
        word += bytes + strspn(word + bytes, " \t");
    }
    if (builder.count == 0) add(&builder, "ssh");
    base = strrchr(command->argv[0], '/');
    base = base == NULL ? command->argv[0] : base + 1;
    if (strcmp(base, "ssh") == 0) add_options(&builder, is_plain);
    add(&builder, host);
    add_remote_command(&builder, program);
    return finish(&builder, error);
}

dp_status_t dp_shell_command_srun(dp_shell_command_t *command, const char *names, int nodes,
                                  const char *program, dp_error_t *error)
{
    builder_t builder = {.command = command};
    char number[64];

    add(&builder, "srun");
    snprintf(number, sizeof(number), "--nodes=%d", nodes);
    add(&builder, number);
    snprintf(number, sizeof(number), "--ntasks=%d", nodes);
    add(&builder, number);
    add(&builder, "--ntasks-per-node=1");
    if (names != NULL) {
        add(&builder, "--nodelist");
        add(&builder, names);
    }
    add(&builder, "--mpi=none");
    add(&builder, "--kill-on-bad-exit=0"); /* dprun decides about the others */
    add(&builder, "--no-kill");
    add(&builder, "--wait=0");
    add(&builder, "--input=all");
    add(&builder, "--cpu-bind=none"); /* the station's ranks take the whole node */
    add(&builder, program);
    add(&builder, "--station");
    return finish(&builder, error);
}

dp_status_t dp_shell_command_here(dp_shell_command_t *command, const char *program,
                                  dp_error_t *error)
{
    builder_t builder = {.command = command};

    add(&builder, program);
    add(&builder, "--station");
    return finish(&builder, error);
}

/* ---- Errors --------------------------------------------------------------------------------- */

typedef struct known_error {
    const char *words; /* in what ssh says */
    const char *text;
    dp_shell_cause_t cause;
} known_error_t;

static const known_error_t known_errors[] = {
    {"Could not resolve hostname", "no host of this name is known here", DP_SHELL_OTHER},
    {"Name or service not known", "no host of this name is known here", DP_SHELL_OTHER},
    {"Host key verification failed",
     "ssh does not know its host key: ssh-keyscan HOST >> ~/.ssh/known_hosts, once you trust it",
     DP_SHELL_OTHER},
    {"REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key is not the one that ssh knows",
     DP_SHELL_OTHER},
    {"Permission denied", "it refuses your key: try ssh -o BatchMode=yes HOST true; ssh-copy-id",
     DP_SHELL_OTHER},
    {"Too many authentication failures", "it refuses your keys: name one in ~/.ssh/config",
     DP_SHELL_OTHER},
    {"No route to host", "there is no route to it", DP_SHELL_OTHER},
    {"Network is unreachable", "there is no route to it", DP_SHELL_OTHER},
    {"Connection refused", "it refuses the connection: does sshd run there, at this port?",
     DP_SHELL_TRY_AGAIN},
    {"Connection timed out", "it does not answer: is it up? a firewall?", DP_SHELL_OTHER},
    {"Operation timed out", "it does not answer: is it up? a firewall?", DP_SHELL_OTHER},
    {" timed out",
     "its login takes longer than ssh waits: is it slow? --ssh \"ssh -o ConnectTimeout=60\"",
     DP_SHELL_OTHER},
    {"Timeout, server", "it answers ssh no more: is it slow, or does the network lose packets?",
     DP_SHELL_OTHER},
    {"kex_exchange_identification", "its sshd hung up: too many logins at once (MaxStartups)?",
     DP_SHELL_TRY_AGAIN},
    {"Connection reset", "its sshd hung up: too many logins at once (MaxStartups)?",
     DP_SHELL_TRY_AGAIN},
    {"Bad SSH2 KexAlgorithms", "its ssh does not know curve25519", DP_SHELL_TRY_PLAIN},
    {"Bad SSH2 kexalgorithms", "its ssh does not know curve25519", DP_SHELL_TRY_PLAIN},
};

/* A token is for dprun alone; behind it are a station's words. */
static void drop_token(char *line)
{
    const char *text = strncmp(line, DP_REMOTE_UNREACHED, strlen(DP_REMOTE_UNREACHED)) == 0
                           ? strstr(line, ": ")
                           : NULL;

    if (text == NULL) return;
    memmove(line + strlen(OWN_WORDS), text + 2, strlen(text + 2) + 1);
    memcpy(line, OWN_WORDS, strlen(OWN_WORDS));
}

/* The last line that says something. */
static void last_line(const char *words, char *line, size_t room)
{
    const char *best = "";
    size_t bytes = 0;

    for (const char *at = words; *at != '\0';) {
        const size_t length = strcspn(at, "\n");

        if (length > 0) {
            best = at;
            bytes = length;
        }
        at += length + (at[length] == '\n');
    }
    snprintf(line, room, "%.*s", (int)bytes, best);
    drop_token(line);
}

dp_shell_cause_t dp_shell_explain(const char *shell, const char *host, const char *program,
                                  int status, const char *words, char *text, size_t room)
{
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    /* srun ends with the number of the error that its node met. */
    const int is_missing =
        code == 127 || code == 126 ||
        (strstr(words, "execve()") != NULL && (code == ENOENT || code == EACCES));
    char where[300] = "";
    char line[400];

    last_line(words, line, sizeof(line));
    if (host != NULL) snprintf(where, sizeof(where), "node %.255s: ", host);
    for (size_t i = 0; i < DP_ARRAY_LEN(known_errors) && (code == 255 || code == -1); i++) {
        if (strstr(words, known_errors[i].words) == NULL) continue;
        snprintf(text, room, "%s%s (%s)", where, known_errors[i].text, line);
        return known_errors[i].cause;
    }
    if (is_missing) {
        snprintf(text, room,
                 "%sthere is no %s to run: install dp at the same path on every node (%s)", where,
                 program, line);
    } else if (strncmp(line, OWN_WORDS, strlen(OWN_WORDS)) == 0) {
        snprintf(text, room, "%s%s", where, line + strlen(OWN_WORDS));
    } else if (WIFSIGNALED(status)) {
        snprintf(text, room, "%sits %s was killed by signal %d", where, shell, WTERMSIG(status));
    } else {
        snprintf(text, room, "%sits %s ended with code %d%s%s", where, shell, code,
                 line[0] != '\0' ? ": " : "", line);
    }
    return DP_SHELL_OTHER;
}
