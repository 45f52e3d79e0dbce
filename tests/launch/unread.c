/*
 * unread.c - runs a command whose output nobody reads.
 *
 *   unread [-f] [-2] [-s SIGNAL] [-u UID] pty|pipe SECONDS COMMAND...
 *
 *   -f        the terminal or pipe is full before the command starts
 *   -2        standard error alone; else standard output and error
 *   -s        sends the signal once no more output comes
 *   -u        the command runs as that user, whom the terminal does not belong to
 *
 * Exits with the command's code (128 + signal); 99: it did not end within SECONDS and was killed;
 * 98: the command changed the flags of the open file, which a shell would share; 97: usage.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOOK_MS 20
#define STILL_LOOKS 25 /* without more output: nothing will come */

typedef struct options {
    int is_full;
    int is_stderr_alone;
    int signal;
    int user; /* -1: ours */
    int seconds;
} options_t;

static int fail(const char *what)
{
    fprintf(stderr, "unread: %s: %s\n", what, strerror(errno));
    return 97;
}

/* ends[0] is never read. */
static int open_ends(const char *kind, int ends[2])
{
    if (strcmp(kind, "pipe") == 0) return pipe2(ends, O_CLOEXEC);
    ends[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (ends[0] < 0 || grantpt(ends[0]) != 0 || unlockpt(ends[0]) != 0) return -1;
    ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY | O_CLOEXEC);
    return ends[1] < 0 ? -1 : 0;
}

static void fill(int fd)
{
    static const char bytes[4096];
    const int flags = fcntl(fd, F_GETFL);

    fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    while (write(fd, bytes, sizeof(bytes)) > 0) {
    }
    while (write(fd, bytes, 1) > 0) {
    }
    fcntl(fd, F_SETFL, flags);
}

static void run_child(const options_t *options, int end, char **command)
{
    setpgid(0, 0);
    if (!options->is_stderr_alone) dup2(end, STDOUT_FILENO);
    dup2(end, STDERR_FILENO);
    if (options->user >= 0 &&
        (setgid((gid_t)options->user) != 0 || setuid((uid_t)options->user) != 0)) {
        _exit(97);
    }
    execvp(command[0], command);
    _exit(97);
}

/* Waits for the end; sends the signal when the output stands still. */
static int watch(const options_t *options, pid_t pid, int read_end)
{
    int status = 0;
    int before = -1;
    int still = 0;
    int is_sent = options->signal == 0;

    for (int look = 0; look < options->seconds * 1000 / LOOK_MS; look++) {
        int queued = 0;

        if (waitpid(pid, &status, WNOHANG) == pid) {
            return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        }
        ioctl(read_end, FIONREAD, &queued);
        still = queued > 0 && queued == before ? still + 1 : 0;
        before = queued;
        if (!is_sent && still >= STILL_LOOKS) {
            kill(pid, options->signal);
            is_sent = 1;
        }
        poll(NULL, 0, LOOK_MS);
    }
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return 99;
}

int main(int argc, char **argv)
{
    options_t options = {.user = -1};
    int ends[2];
    int option;
    int flags;
    int code;
    pid_t pid;

    while ((option = getopt(argc, argv, "+f2s:u:")) != -1) {
        if (option == 'f') options.is_full = 1;
        if (option == '2') options.is_stderr_alone = 1;
        if (option == 's') options.signal = atoi(optarg);
        if (option == 'u') options.user = atoi(optarg);
        if (option == '?') return 97;
    }
    if (argc - optind < 3) return 97;
    options.seconds = atoi(argv[optind + 1]);
    if (open_ends(argv[optind], ends) != 0) return fail(argv[optind]);
    if (options.is_full) fill(ends[1]);
    flags = fcntl(ends[1], F_GETFL);
    pid = fork();
    if (pid < 0) return fail("fork");
    if (pid == 0) run_child(&options, ends[1], argv + optind + 2);
    code = watch(&options, pid, ends[0]);
    return fcntl(ends[1], F_GETFL) == flags ? code : 98;
}
