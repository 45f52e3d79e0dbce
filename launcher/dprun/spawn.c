/*
 * spawn.c - fork and exec of one rank.
 *
 * Called by agent.c in the agent, which has one thread; exec_rank() runs in the new process.
 * fork() and not posix_spawn(): session, parent-death signal, core binding and limits have to be
 * set between the two. Everything dprun opens is close-on-exec, so the child passes on exactly
 * 0, 1, 2, the ticket and what dprun itself was given.
 */
#include "launcher/dprun/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* A signal that is ignored stays ignored over exec(): those that dprun ignores for itself are
 * reset. */
static void restore_signals(const dp_spawner_t *spawner)
{
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    signal(SIGTTIN, SIG_DFL);
    signal(SIGTTOU, SIG_DFL);
    sigprocmask(SIG_SETMASK, &spawner->signals, NULL);
}

/* dup2() onto itself would leave close-on-exec set. */
static int move_descriptor(int fd, int target)
{
    if (fd != target) return dup2(fd, target);
    return fcntl(fd, F_SETFD, 0);
}

/* Its number may be above the soft limit of the user: a descriptor that is open stays so. */
static int move_ticket(const dp_spawner_t *spawner)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    return move_descriptor(spawner->ticket_fd, dp_job_ticket_fd());
}

static void exec_rank(const dp_spawner_t *spawner, pid_t parent, int rank, int out, int err)
{
    const dp_job_t *job = spawner->job;
    dp_spawn_failure_t failure = {rank, 0};
    int in = rank == job->command->stdin_rank ? spawner->stdin_fd : -1;
    cpu_set_t set;

    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1); /* the parent died before the line above, so no signal would come */
    if (job->command->binds_cores) {
        dp_cores_of_rank(&job->cores, rank, job->size, &set);
        if (CPU_COUNT(&set) > 0) sched_setaffinity(0, sizeof(set), &set);
    }
    if ((job->directory[0] == '\0' || chdir(job->directory) == 0) &&
        move_descriptor(in >= 0 ? in : spawner->null_fd, 0) >= 0 && move_descriptor(out, 1) >= 0 &&
        move_descriptor(err, 2) >= 0 && move_ticket(spawner) >= 0) {
        setrlimit(RLIMIT_NOFILE, &spawner->open_files);
        restore_signals(spawner);
        execve(job->program, job->command->argv, job->env.entries);
    }
    failure.error = errno;
    if (write(spawner->failure_fd, &failure, sizeof(failure)) < 0) _exit(DP_EXIT_NOT_EXECUTABLE);
    _exit(failure.error == ENOENT ? DP_EXIT_NOT_FOUND : DP_EXIT_NOT_EXECUTABLE);
}

pid_t dp_spawn_rank(dp_spawner_t *spawner, int rank, int *out, int *err)
{
    int out_pipe[2];
    int err_pipe[2];
    pid_t parent = getpid();
    pid_t pid;
    int saved;

    if (dp_job_set_rank(spawner->job, rank) != 0) {
        errno = ENOMEM;
        return -1;
    }
    if (pipe2(out_pipe, O_CLOEXEC) != 0) return -1;
    if (pipe2(err_pipe, O_CLOEXEC) != 0) {
        saved = errno;
        close(out_pipe[0]);
        close(out_pipe[1]);
        errno = saved;
        return -1;
    }
    pid = fork();
    if (pid == 0) exec_rank(spawner, parent, rank, out_pipe[1], err_pipe[1]);
    saved = errno;
    close(out_pipe[1]);
    close(err_pipe[1]);
    if (pid < 0) {
        close(out_pipe[0]);
        close(err_pipe[0]);
        errno = saved;
        return -1;
    }
    *out = out_pipe[0];
    *err = err_pipe[0];
    return pid;
}
