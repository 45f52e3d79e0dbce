/*
 * shell.c - the processes of shell.h. Called by fleet_start.c, on dprun's only thread.
 *
 * A shell has a session of its own, so no Ctrl-C of the terminal reaches it: dprun ends a job
 * through its stations. It leads its process group, so what --ssh starts without exec is reached
 * through the group.
 */
#include "launcher/dprun/remote/shell.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define END_NS UINT64_C(1000000000)    /* from SIGTERM to SIGKILL */
#define KILLED_NS UINT64_C(1000000000) /* for SIGKILL to work; not on one stuck in the kernel */
#define EXIT_LOOK_US 50000
#define END_LOOK_NS 1000000L
#define TICKET_ROOM (DP_REMOTE_TICKET_MAX + 64)

struct dp_shell {
    dp_shell_start_t start;
    pid_t pid;
    int input;  /* its standard input; -1: closed */
    int output; /* its standard output and error; -1: ended */
    int pidfd;
    struct event *readable;
    struct event *exited;
    int has_ended;
    int status;
    char words[DP_SHELL_WORDS_MAX];
    size_t word_bytes;
};

/* The latest bytes stay: an error is at the end. */
static void keep_words(dp_shell_t *shell, const char *data, size_t bytes)
{
    const size_t room = sizeof(shell->words) - 1;

    if (bytes > room) {
        data += bytes - room;
        bytes = room;
    }
    if (shell->word_bytes + bytes > room) {
        const size_t drop = shell->word_bytes + bytes - room;

        memmove(shell->words, shell->words + drop, shell->word_bytes - drop);
        shell->word_bytes -= drop;
    }
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char c = (unsigned char)data[i];

        if (c == '\r') continue;
        shell->words[shell->word_bytes++] = (char)((c < ' ' && c != '\n') || c == 127 ? '?' : c);
    }
    shell->words[shell->word_bytes] = '\0';
}

static void read_output(dp_shell_t *shell)
{
    char data[4096];
    ssize_t bytes;

    while (shell->output >= 0 && (bytes = read(shell->output, data, sizeof(data))) != 0) {
        if (bytes < 0 && errno == EINTR) continue;
        if (bytes < 0) return;
        keep_words(shell, data, (size_t)bytes);
    }
    if (shell->output < 0) return;
    event_del(shell->readable);
    close(shell->output);
    shell->output = -1;
}

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    read_output(context);
}

static void on_exited(evutil_socket_t fd, short what, void *context)
{
    dp_shell_t *shell = context;

    (void)fd;
    (void)what;
    if (waitpid(shell->pid, &shell->status, WNOHANG) != shell->pid) return;
    event_del(shell->exited);
    shell->has_ended = 1;
    read_output(shell); /* what it said last */
    shell->start.ended(shell->start.context, shell);
}

static void exec_shell(const dp_shell_start_t *start, pid_t parent, int in, int out)
{
    static const int shielded[] = DP_SHELL_SHIELDED;

    setsid();
    for (size_t i = 0; start->is_shielded && i < DP_ARRAY_LEN(shielded); i++)
        signal(shielded[i], SIG_IGN); /* which ssh leaves so */
    if (start->dies_with_dprun) {
        prctl(PR_SET_PDEATHSIG, start->is_shielded ? SIGKILL : SIGTERM);
        if (getppid() != parent) _exit(1); /* dprun died before that line: no signal would come */
    }
    signal(SIGPIPE, SIG_DFL);
    signal(SIGTTIN, SIG_DFL);
    sigprocmask(SIG_SETMASK, &start->signals, NULL);
    if (dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 || dup2(out, STDERR_FILENO) < 0)
        _exit(127);
    execvp(start->argv[0], start->argv);
    dprintf(STDERR_FILENO, "%s: %s\n", start->argv[0], strerror(errno));
    _exit(127);
}

static dp_status_t fork_shell(dp_shell_t *shell, dp_error_t *error)
{
    const pid_t parent = getpid();
    int in[2] = {-1, -1};
    int out[2] = {-1, -1};
    uint8_t ticket[TICKET_ROOM];
    size_t bytes;

    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) {
        if (in[0] >= 0) close(in[0]);
        if (in[1] >= 0) close(in[1]);
        return dp_error_set(error, DP_ERR_SYSTEM, "pipe: %s", strerror(errno));
    }
    shell->input = in[1];
    shell->output = out[0];
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    shell->pid = fork();
    if (shell->pid == 0) exec_shell(&shell->start, parent, in[0], out[1]);
    close(in[0]);
    close(out[1]);
    if (shell->pid < 0) return dp_error_set(error, DP_ERR_SYSTEM, "fork: %s", strerror(errno));
    bytes = dp_remote_ticket_write(shell->start.ticket, ticket, sizeof(ticket));
    /* It fits a pipe's buffer, so this does not wait. A process that has ended already shows by its
     * end, not here. */
    if (bytes > 0) (void)!write(shell->input, ticket, bytes);
    explicit_bzero(ticket, sizeof(ticket));
    return DP_OK;
}

dp_status_t dp_shell_create(struct event_base *base, const dp_shell_start_t *start,
                            dp_shell_t **out, dp_error_t *error)
{
    const struct timeval look = {0, EXIT_LOOK_US};
    dp_shell_t *shell = calloc(1, sizeof(*shell));
    dp_status_t status;

    if (shell == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    shell->start = *start;
    shell->input = shell->output = shell->pidfd = -1;
    status = fork_shell(shell, error);
    if (status == DP_OK) {
        /* Linux before 5.3, and some sandboxes, have no pidfd: there its end is looked for. */
        shell->pidfd = (int)syscall(SYS_pidfd_open, shell->pid, 0);
        shell->readable = event_new(base, shell->output, EV_READ | EV_PERSIST, on_readable, shell);
        shell->exited =
            event_new(base, shell->pidfd, (short)((shell->pidfd >= 0 ? EV_READ : 0) | EV_PERSIST),
                      on_exited, shell);
        if (shell->readable == NULL || shell->exited == NULL ||
            event_add(shell->readable, NULL) != 0 ||
            event_add(shell->exited, shell->pidfd >= 0 ? NULL : &look) != 0) {
            status = dp_error_set(error, DP_ERR_SYSTEM, "watching %s: %s", start->argv[0],
                                  strerror(errno));
        }
    }
    shell->start.argv = NULL; /* the caller's */
    shell->start.ticket = NULL;
    if (status == DP_OK) {
        *out = shell;
    } else {
        dp_shell_destroy(shell);
    }
    return status;
}

/* Without reaping it: as long as it is a zombie, no other process group can have its number. */
static int has_exited(pid_t pid)
{
    siginfo_t info = {.si_pid = 0};

    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == pid;
}

static void await_exit(pid_t pid, uint64_t limit_ns)
{
    const uint64_t deadline_ns = dp_now_ns() + limit_ns;
    const struct timespec look = {0, END_LOOK_NS};

    while (!has_exited(pid) && dp_now_ns() < deadline_ns)
        nanosleep(&look, NULL);
}

/* The shell may ignore SIGTERM, or be stopped; it must not hold up the end of dprun. */
static void end_group(pid_t leader, int is_shielded)
{
    if (!is_shielded) {
        kill(-leader, SIGTERM);
        kill(leader, SIGTERM); /* it may not lead its group yet */
        kill(-leader, SIGCONT);
        await_exit(leader, END_NS);
    }
    kill(-leader, SIGKILL);
    kill(leader, SIGKILL);
    await_exit(leader, KILLED_NS);
    waitpid(leader, NULL, WNOHANG);
}

void dp_shell_destroy(dp_shell_t *shell)
{
    if (shell == NULL) return;
    if (shell->readable != NULL) event_free(shell->readable);
    if (shell->exited != NULL) event_free(shell->exited);
    if (shell->input >= 0) close(shell->input);
    if (shell->output >= 0) close(shell->output);
    if (shell->pidfd >= 0) close(shell->pidfd);
    if (!shell->has_ended && shell->pid > 0 && shell->start.dies_with_dprun)
        end_group(shell->pid, shell->start.is_shielded);
    free(shell);
}

void dp_shell_end_with_dprun(dp_shell_t *shell)
{
    shell->start.dies_with_dprun = 1;
}

int dp_shell_has_ended(const dp_shell_t *shell)
{
    return shell->has_ended;
}

int dp_shell_status(const dp_shell_t *shell)
{
    return shell->status;
}

const char *dp_shell_words(const dp_shell_t *shell)
{
    return shell->words;
}
