/*
 * guard.c - waits for the agent, and kills what outlives it.
 *
 *     dprun (subreaper) - guard (subreaper) - agent (subreaper) - ranks - what they start
 *
 * A rank dies with the agent, by its parent-death signal; a process that a rank started (the
 * program of a wrapper script) does not: it falls to the next subreaper above. That is dprun, and
 * where dprun was killed at the same time, the guard. It has a name and a session of its own, so
 * that a signal to dprun by name, terminal or process group does not hit it, and does nothing until
 * then.
 */
#include "launcher/dprun/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "launcher/dprun/run_dir.h"
#include "launcher/dprun/tree.h"

#define RESCAN_NS 20000000L
#define DPRUN_ENDS_NS UINT64_C(10000000000) /* a killed process on a crowded machine */
#define GIVE_UP_NS UINT64_C(10000000000)    /* SIGKILL does not reach a process stuck in a driver */
#define AGENT_ENDS_NS UINT64_C(2000000000)  /* once dprun is dead: then the agent is stopped */

typedef struct guard {
    pid_t dprun;
    pid_t agent;      /* 0: it has ended */
    int code;         /* its exit code */
    int is_lost;      /* it was killed */
    uint64_t lost_ns; /* when it ended before its descendants */
} guard_t;

/* The guard closes the job's input, output and channel: while it held them, their other ends would
 * not see that the ranks are gone. */
static void let_go(const dp_agent_start_t *start)
{
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    close(start->channel);
    if (start->stdin_fd > STDERR_FILENO) close(start->stdin_fd);
    for (int fd = 0; fd <= STDERR_FILENO && null_fd >= 0; fd++)
        dup2(null_fd, fd);
    if (null_fd > STDERR_FILENO) close(null_fd);
}

/* 0: no child is left. */
static int reap_orphans(guard_t *guard)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid != guard->agent) continue;
        guard->agent = 0;
        guard->code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        guard->is_lost = !WIFEXITED(status);
        guard->lost_ns = dp_now_ns();
    }
    return pid == 0 || errno != ECHILD;
}

/* A SIGTERM may say that dprun has died, or may have been sent to every process of the job: then
 * dprun has it, too, and ends the ranks with their whole grace. The agent knows dprun's death by
 * its channel. One that does not act on it is killed, and what it does is done here. */
static void watch_agent(guard_t *guard, const sigset_t *heard)
{
    const struct timespec rescan = {0, RESCAN_NS};
    uint64_t dead_ns = 0; /* since when dprun is */

    while (reap_orphans(guard)) {
        if (guard->agent == 0) {
            dp_tree_kill(getpid());
            if (dp_now_ns() - guard->lost_ns >= GIVE_UP_NS) return;
        } else if (getppid() == guard->dprun) {
            sigwaitinfo(heard, NULL);
            continue;
        } else if (dead_ns == 0) {
            dead_ns = dp_now_ns();
        } else if (dp_now_ns() - dead_ns >= AGENT_ENDS_NS) {
            kill(guard->agent, SIGKILL);
        }
        sigtimedwait(heard, NULL, &rescan);
    }
}

/* The agent was killed, perhaps together with dprun, whose death may be seen later than the
 * agent's: a killed process ends when it is next scheduled. A dprun that lives kills this process
 * in a moment (supervise.c), so waiting here delays nothing. */
static void await_end_of_dprun(const guard_t *guard, const sigset_t *heard)
{
    const struct timespec rescan = {0, RESCAN_NS};

    while (getppid() == guard->dprun && dp_now_ns() - guard->lost_ns < DPRUN_ENDS_NS)
        sigtimedwait(heard, NULL, &rescan);
}

int dp_guard_run(const dp_agent_start_t *start)
{
    guard_t guard = {.dprun = getppid()};
    const pid_t guard_pid = getpid();
    sigset_t heard;
    sigset_t all;

    setsid();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_NAME, "dp-guard");
    sigfillset(&all); /* no signal but SIGKILL ends it */
    sigprocmask(SIG_BLOCK, &all, NULL);
    sigemptyset(&heard);
    sigaddset(&heard, SIGCHLD);
    sigaddset(&heard, SIGTERM);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    guard.agent = fork();
    if (guard.agent == 0) _exit(dp_agent_run(start, guard_pid));
    dp_job_forget_secret(start->job);
    let_go(start);
    if (guard.agent < 0) return 1; /* dprun sees the channel close */
    watch_agent(&guard, &heard);
    if (guard.is_lost) await_end_of_dprun(&guard, &heard);
    /* dprun looks after the directory, and in its place the agent. */
    if (getppid() != guard.dprun && start->job->owns_run_dir) {
        dp_run_dir_remove(start->job->run_dir);
    }
    return guard.code;
}
