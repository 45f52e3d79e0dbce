/*
 * fake_pmi.c - an MPI launcher for tests: starts N processes and speaks PMI-1, or PMI-1 and PMI-2,
 * with them on the sockets it leaves in PMI_FD. It reads PMI by its own means, not by ours.
 *
 *     fake_pmi VERSION N [-m RANK] PROGRAM [ARGUMENT...]
 *
 * -m: that rank is never started. At the end it says which version was spoken, and how many said
 * farewell. Exits with the largest of their codes.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS_MAX 16
#define ROOM 8192

typedef struct rank {
    int fd; /* -1: closed */
    int pid;
    int speaks; /* version, after the hello */
    int is_in_fence;
    int is_done;
    char input[ROOM];
    size_t bytes;
} rank_t;

typedef struct launcher {
    int version;
    int size;
    rank_t ranks[RANKS_MAX];
    char key[128]; /* one pair is all that is ever put */
    char value[4096];
    int fenced;
    int spoken;
} launcher_t;

static void answer(const rank_t *rank, int version, const char *text)
{
    char framed[ROOM];
    int bytes = version == 1 ? snprintf(framed, sizeof(framed), "%s\n", text)
                             : snprintf(framed, sizeof(framed), "%-6zu%s", strlen(text), text);

    if (send(rank->fd, framed, (size_t)bytes, MSG_NOSIGNAL) != bytes) perror("fake_pmi: send");
}

/* The value behind "key=" up to a blank or a semicolon; "" when it is not there. */
static const char *value_of(const char *text, const char *key, char *value, size_t room)
{
    const char *at = strstr(text, key);
    size_t bytes = 0;

    if (at != NULL) {
        at += strlen(key);
        bytes = strcspn(at, " ;\n");
        if (bytes >= room) bytes = room - 1;
        memcpy(value, at, bytes);
    }
    value[bytes] = '\0';
    return value;
}

static void fence(launcher_t *launcher, rank_t *rank)
{
    rank->is_in_fence = 1;
    if (++launcher->fenced < launcher->size) return;
    launcher->fenced = 0;
    for (int i = 0; i < launcher->size; i++) {
        if (!launcher->ranks[i].is_in_fence) continue;
        launcher->ranks[i].is_in_fence = 0;
        answer(&launcher->ranks[i], launcher->ranks[i].speaks,
               launcher->ranks[i].speaks == 1 ? "cmd=barrier_out rc=0"
                                              : "cmd=kvs-fence-response;rc=0;");
    }
}

static void put(launcher_t *launcher, const char *text)
{
    value_of(text, "key=", launcher->key, sizeof(launcher->key));
    value_of(text, "value=", launcher->value, sizeof(launcher->value));
}

static int is_key(const launcher_t *launcher, const char *text)
{
    char key[128];

    return launcher->key[0] != '\0' && !launcher->fenced &&
           strcmp(value_of(text, "key=", key, sizeof(key)), launcher->key) == 0;
}

static void serve_1(launcher_t *launcher, rank_t *rank, const char *text)
{
    char command[64];
    char reply[ROOM];

    value_of(text, "cmd=", command, sizeof(command));
    if (strcmp(command, "init") == 0) {
        if (strstr(text, "pmi_version=2") != NULL && launcher->version == 2) {
            rank->speaks = launcher->spoken = 2;
            answer(rank, 1, "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0");
        } else if (strstr(text, "pmi_version=1") != NULL) {
            rank->speaks = launcher->spoken = 1;
            answer(rank, 1, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0");
        } else {
            answer(rank, 1, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1");
        }
    } else if (strcmp(command, "get_maxes") == 0) {
        answer(rank, 1, "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024");
    } else if (strcmp(command, "get_my_kvsname") == 0) {
        answer(rank, 1, "cmd=my_kvsname rc=0 kvsname=kvs_fake");
    } else if (strcmp(command, "put") == 0 && strstr(text, "kvsname=kvs_fake") != NULL) {
        put(launcher, text);
        answer(rank, 1, "cmd=put_result rc=0 msg=success");
    } else if (strcmp(command, "barrier_in") == 0) {
        fence(launcher, rank);
    } else if (strcmp(command, "get") == 0 && is_key(launcher, text)) {
        snprintf(reply, sizeof(reply), "cmd=get_result rc=0 msg=success value=%s", launcher->value);
        answer(rank, 1, reply);
    } else if (strcmp(command, "finalize") == 0) {
        answer(rank, 1, "cmd=finalize_ack rc=0");
        rank->is_done = 1;
    } else {
        fprintf(stderr, "fake_pmi: what is '%s'?\n", text);
        exit(99);
    }
}

static void serve_2(launcher_t *launcher, rank_t *rank, const char *text)
{
    char command[64];
    char reply[ROOM];

    value_of(text, "cmd=", command, sizeof(command));
    if (strcmp(command, "fullinit") == 0) {
        snprintf(reply, sizeof(reply),
                 "cmd=fullinit-response;rc=0;pmi-version=2;pmi-subversion=0;rank=%td;size=%d;"
                 "appnum=-1;debugged=FALSE;pmiverbose=FALSE;",
                 rank - launcher->ranks, launcher->size);
        answer(rank, 2, reply);
    } else if (strcmp(command, "kvs-put") == 0) {
        put(launcher, text);
        answer(rank, 2, "cmd=kvs-put-response;rc=0;");
    } else if (strcmp(command, "kvs-fence") == 0) {
        fence(launcher, rank);
    } else if (strcmp(command, "kvs-get") == 0 && is_key(launcher, text)) {
        snprintf(reply, sizeof(reply), "cmd=kvs-get-response;rc=0;found=TRUE;value=%s;",
                 launcher->value);
        answer(rank, 2, reply);
    } else if (strcmp(command, "finalize") == 0) {
        answer(rank, 2, "cmd=finalize-response;rc=0;");
        rank->is_done = 1;
    } else {
        fprintf(stderr, "fake_pmi: what is '%s'?\n", text);
        exit(99);
    }
}

/* Takes whole messages off the front of what has come. */
static void serve(launcher_t *launcher, rank_t *rank)
{
    for (;;) {
        char text[ROOM];
        size_t skip = rank->speaks == 2 ? 6 : 0;
        size_t bytes;

        if (rank->speaks == 2) {
            if (rank->bytes < 6) return;
            memcpy(text, rank->input, 6);
            text[6] = '\0';
            bytes = (size_t)strtoul(text, NULL, 10);
            if (rank->bytes < 6 + bytes) return;
        } else {
            const char *end = memchr(rank->input, '\n', rank->bytes);

            if (end == NULL) return;
            bytes = (size_t)(end - rank->input);
        }
        memcpy(text, rank->input + skip, bytes);
        text[bytes] = '\0';
        if (rank->speaks == 2) {
            bytes += 6;
            serve_2(launcher, rank, text);
        } else {
            bytes += 1;
            serve_1(launcher, rank, text);
        }
        rank->bytes -= bytes;
        memmove(rank->input, rank->input + bytes, rank->bytes);
    }
}

static void start(launcher_t *launcher, int rank, char **command)
{
    char text[16];
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) exit(99);
    launcher->ranks[rank].fd = fds[0];
    launcher->ranks[rank].pid = fork();
    if (launcher->ranks[rank].pid == 0) {
        for (int i = 0; i <= rank; i++)
            if (launcher->ranks[i].fd >= 0) close(launcher->ranks[i].fd);
        snprintf(text, sizeof(text), "%d", fds[1]);
        setenv("PMI_FD", text, 1);
        snprintf(text, sizeof(text), "%d", rank);
        setenv("PMI_RANK", text, 1);
        snprintf(text, sizeof(text), "%d", launcher->size);
        setenv("PMI_SIZE", text, 1);
        if (launcher->version == 2) setenv("PMI_JOBID", "7.0", 1);
        execvp(command[0], command);
        _exit(127);
    }
    close(fds[1]);
}

int main(int argc, char **argv)
{
    static launcher_t launcher;
    int missing = -1;
    int open_count = 0;
    int done = 0;
    int worst = 0;

    if (argc < 4) return 99;
    launcher.version = (int)strtol(argv[1], NULL, 10);
    launcher.size = (int)strtol(argv[2], NULL, 10);
    argv += 3;
    if (argc > 5 && strcmp(argv[0], "-m") == 0) {
        missing = (int)strtol(argv[1], NULL, 10);
        argv += 2;
    }
    if (launcher.size < 1 || launcher.size > RANKS_MAX) return 99;
    for (int i = 0; i < launcher.size; i++)
        launcher.ranks[i].fd = -1;
    for (int i = 0; i < launcher.size; i++) {
        if (i == missing) continue;
        start(&launcher, i, argv);
        open_count++;
    }
    while (open_count > 0) {
        struct pollfd waits[RANKS_MAX];

        for (int i = 0; i < launcher.size; i++)
            waits[i] = (struct pollfd){launcher.ranks[i].fd, POLLIN, 0};
        poll(waits, (nfds_t)launcher.size, -1);
        for (int i = 0; i < launcher.size; i++) {
            rank_t *rank = &launcher.ranks[i];
            ssize_t got;

            if (rank->fd < 0 || waits[i].revents == 0) continue;
            got = recv(rank->fd, rank->input + rank->bytes, sizeof(rank->input) - rank->bytes, 0);
            if (got > 0) {
                rank->bytes += (size_t)got;
                serve(&launcher, rank);
            }
            if (got > 0 && !rank->is_done) continue;
            close(rank->fd); /* as launchers do after a farewell */
            rank->fd = -1;
            open_count--;
        }
    }
    for (int i = 0; i < launcher.size; i++) {
        int status = 0;

        done += launcher.ranks[i].is_done;
        if (i == missing || waitpid(launcher.ranks[i].pid, &status, 0) < 0) continue;
        if (WIFSIGNALED(status)) status = (128 + WTERMSIG(status)) << 8;
        if (WEXITSTATUS(status) > worst) worst = WEXITSTATUS(status);
    }
    printf("PMI-%d, %d of %d said farewell\n", launcher.spoken, done, launcher.size);
    return worst;
}
