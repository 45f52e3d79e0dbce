/*
 * agent.c - starts the ranks of one node and sees them to their end.
 *
 * Runs as a process of its own, below the guard and above the ranks, with one thread: the ranks'
 * parent-death signal is bound to the thread that forked them. It has its own session, so no Ctrl-C
 * reaches it, and is a child subreaper, so every process that a rank starts stays below it, daemons
 * included.
 *
 * It decides nothing: dprun says whom to signal and when to kill. But once the channel to dprun
 * closes, it kills everything, removes the run directory and exits. It must not know why a job
 * ends.
 */
#include "launcher/dprun/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/dprun/channel.h"
#include "launcher/dprun/foreign.h"
#include "launcher/dprun/run_dir.h"
#include "launcher/dprun/tree.h"

#define STRAY_GRACE_NS UINT64_C(200000000) /* from TERM to KILL for what ranks left behind */
#define GIVE_UP_NS UINT64_C(10000000000)   /* SIGKILL does not reach a process stuck in a driver */
#define RESCAN_MS 20
#define STRAYS_NAMED 8
#define LOOKS 5

/* When the agent looks what programs its ranks are (foreign.h): some end soon, some load slowly. */
static const uint64_t look_after_ns[LOOKS] = {UINT64_C(100000000), UINT64_C(400000000),
                                              UINT64_C(1500000000), UINT64_C(3000000000),
                                              UINT64_C(6000000000)};

typedef enum agent_phase {
    PHASE_RUNNING, /* ranks are there */
    PHASE_STRAYS,  /* all ranks ended; processes they left behind got SIGTERM */
    PHASE_KILLING, /* everything goes */
    PHASE_GONE     /* no descendant is left; waits for dprun's BYE */
} agent_phase_t;

typedef struct agent {
    const dp_agent_start_t *start;
    dp_job_t *job;
    agent_phase_t phase;
    uint64_t phase_ns;   /* when it began */
    pid_t guard;         /* the parent */
    int is_orphan;       /* dprun or the guard is gone: kill everything and exit */
    int is_done;         /* dprun said goodbye */
    int signals;         /* signalfd */
    int failures;        /* pipe of dp_spawn_failure_t */
    pid_t *pids;         /* [size]; 0: not started, or ended */
    uint8_t *is_stopped; /* [size] */
    int living;          /* ranks */
    int is_childless;    /* wait() said so: no descendant is left */
    uint64_t start_ns;   /* of the ranks */
    int looks;           /* so many of look_after_ns are over */
} agent_t;

static void send_to_dprun(agent_t *agent, dp_message_t *message)
{
    if (agent->is_orphan) return;
    message->time_ns = dp_now_ns();
    if (dp_channel_send(agent->start->channel, message) != 0) agent->is_orphan = 1;
}

static void enter_phase(agent_t *agent, agent_phase_t phase)
{
    agent->phase = phase;
    agent->phase_ns = dp_now_ns();
}

static int rank_of(const agent_t *agent, pid_t pid)
{
    for (int rank = 0; rank < agent->job->size; rank++) {
        if (agent->pids[rank] == pid) return rank;
    }
    return -1;
}

/* ---- Start ---------------------------------------------------------------------------------- */

static int make_ticket(const dp_kv_ticket_t *ticket)
{
    uint8_t data[512];
    size_t bytes = dp_kv_ticket_write(ticket, data, sizeof(data));
    int fd = memfd_create("dprun-ticket", MFD_CLOEXEC);

    if (fd >= 0 && (bytes == 0 || write(fd, data, bytes) != (ssize_t)bytes)) {
        close(fd);
        fd = -1;
    }
    explicit_bzero(data, sizeof(data));
    return fd;
}

static void not_started(agent_t *agent, int rank, int error)
{
    dp_message_t message;

    dp_message_init(&message, DP_MESSAGE_NOT_STARTED, rank);
    message.status = error;
    send_to_dprun(agent, &message);
}

static void start_ranks(agent_t *agent)
{
    const dp_agent_start_t *start = agent->start;
    dp_spawner_t spawner = {.job = agent->job,
                            .stdin_fd = start->stdin_fd,
                            .signals = start->signals,
                            .open_files = start->open_files};
    int failures[2] = {-1, -1};

    spawner.null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    spawner.ticket_fd = make_ticket(&agent->job->ticket);
    if (spawner.null_fd < 0 || spawner.ticket_fd < 0 ||
        pipe2(failures, O_CLOEXEC | O_NONBLOCK) != 0) {
        not_started(agent, 0, errno);
        enter_phase(agent, PHASE_KILLING);
    }
    spawner.failure_fd = failures[1];
    agent->failures = failures[0];
    for (int rank = 0;
         rank < agent->job->size && agent->phase == PHASE_RUNNING && !agent->is_orphan; rank++) {
        dp_message_t message;
        pid_t pid;

        dp_message_init(&message, DP_MESSAGE_STARTED, rank);
        pid = dp_spawn_rank(&spawner, rank, &message.fds[0], &message.fds[1]);
        if (pid < 0) {
            not_started(agent, rank, errno);
            enter_phase(agent, PHASE_KILLING);
            break;
        }
        agent->pids[rank] = pid;
        agent->living++;
        message.pid = pid;
        send_to_dprun(agent, &message);
        close(message.fds[0]);
        close(message.fds[1]);
        if (agent->is_orphan) break;
    }
    /* Only the reading rank may hold its standard input, so that a writer sees its end. */
    if (start->stdin_fd > 0) close(start->stdin_fd);
    dp_job_forget_secret(agent->job); /* the ranks have it */
    dup2(spawner.null_fd, STDIN_FILENO);
    dup2(spawner.null_fd, STDOUT_FILENO);
    close(spawner.null_fd);
    close(spawner.ticket_fd);
    if (failures[1] >= 0) close(failures[1]);
}

/* ---- Children ------------------------------------------------------------------------------- */

static void hear_failures(agent_t *agent)
{
    dp_spawn_failure_t failure;

    while (agent->failures >= 0) {
        ssize_t bytes = read(agent->failures, &failure, sizeof(failure));

        if (bytes == (ssize_t)sizeof(failure)) {
            not_started(agent, failure.rank, failure.error);
        } else if (bytes >= 0 || (errno != EINTR && errno != EAGAIN)) {
            close(agent->failures); /* all have passed their exec */
            agent->failures = -1;
        } else if (errno == EAGAIN) {
            return;
        }
    }
}

static void child_changed(agent_t *agent, pid_t pid, int status, const struct rusage *usage)
{
    int rank = rank_of(agent, pid);
    dp_message_t message;

    if (rank < 0) return; /* an orphan that fell to this subreaper: reaping it is all */
    dp_message_init(&message, DP_MESSAGE_ENDED, rank);
    message.pid = pid;
    message.status = status;
    message.peak_kib = (uint64_t)usage->ru_maxrss;
    if (WIFSTOPPED(status)) {
        message.type = DP_MESSAGE_STOPPED;
        message.status = WSTOPSIG(status);
        agent->is_stopped[rank] = 1;
    } else if (WIFCONTINUED(status)) {
        message.type = DP_MESSAGE_CONTINUED;
        agent->is_stopped[rank] = 0;
    } else {
        hear_failures(agent); /* a failed exec must reach dprun before the end it caused */
        agent->pids[rank] = 0;
        agent->living--;
    }
    send_to_dprun(agent, &message);
}

/* Children that stopped or go on, none that ended. */
static void note_stops(agent_t *agent)
{
    const struct rusage none = {0};
    siginfo_t info = {0};

    while (waitid(P_ALL, 0, &info, WSTOPPED | WCONTINUED | WNOHANG) == 0 && info.si_pid != 0) {
        child_changed(agent, info.si_pid,
                      info.si_code == CLD_CONTINUED ? __W_CONTINUED : W_STOPCODE(info.si_status),
                      &none);
        info.si_pid = 0;
    }
}

/* Of changes that wait together the kernel reports the oldest child's first. But a rank that ended
 * because another one was stopped must be reported after it, as dprun judges by that order: so all
 * stops go before the first end. */
static void reap_children(agent_t *agent)
{
    for (;;) {
        struct rusage usage;
        siginfo_t ended = {0};
        int status;
        const int code = waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT);

        if (code < 0 && errno == EINTR) continue;
        agent->is_childless = code < 0 && errno == ECHILD;
        if (code < 0) return;
        note_stops(agent);
        if (ended.si_pid == 0) return; /* one that ends now brings a SIGCHLD of its own */
        if (wait4(ended.si_pid, &status, WNOHANG, &usage) == ended.si_pid)
            child_changed(agent, ended.si_pid, status, &usage);
    }
}

static int starts_several(const agent_t *agent)
{
    return dp_max(agent->job->size, agent->job->command->place.size) > 1;
}

/* A rank, or what it started, may be a program that cannot join: dprun says so, if it does not. */
static void look_at_programs(agent_t *agent)
{
    size_t count;
    dp_tree_process_t *below;

    if (agent->phase != PHASE_RUNNING || agent->looks == LOOKS || !starts_several(agent)) return;
    if (dp_now_ns() - agent->start_ns < look_after_ns[agent->looks]) return;
    agent->looks++;
    below = dp_tree_list(getpid(), &count);
    for (size_t i = 0; i < count; i++) {
        dp_message_t message;

        dp_message_init(&message, DP_MESSAGE_FOREIGN, rank_of(agent, below[i].session));
        if (message.rank < 0) continue;
        if (!dp_foreign_look(below[i].pid, message.text, sizeof(message.text))) continue;
        message.status = agent->looks == LOOKS;
        send_to_dprun(agent, &message);
    }
    free(below);
}

/* All ranks have ended. Processes that are still there were left behind by them: each gets a moment
 * to end, and SIGCONT, as a stopped process would not see the SIGTERM. */
static void end_strays(agent_t *agent)
{
    size_t count;
    dp_tree_process_t *strays = dp_tree_list(getpid(), &count);

    for (size_t i = 0; i < count; i++) {
        dp_message_t message;

        dp_message_init(&message, DP_MESSAGE_STRAY, -1);
        message.pid = strays[i].pid;
        snprintf(message.text, sizeof(message.text), "%s", strays[i].name);
        if (i < STRAYS_NAMED) send_to_dprun(agent, &message);
        kill(strays[i].pid, SIGTERM);
        kill(strays[i].pid, SIGCONT);
    }
    free(strays);
    enter_phase(agent, PHASE_STRAYS);
}

static void end_agent(agent_t *agent, int left)
{
    dp_message_t message;

    dp_message_init(&message, DP_MESSAGE_ALL_GONE, -1);
    message.status = left;
    send_to_dprun(agent, &message);
    enter_phase(agent, PHASE_GONE);
}

/*
 * RUNNING --last rank ended--> STRAYS --200 ms--> KILLING --no child left, or 10 s--> GONE
 *    `------- dprun orders it, or is gone -----------^
 *
 * Killing is repeated in every round: a process may fork between the look into /proc and the kill.
 */
static void advance_phase(agent_t *agent)
{
    uint64_t in_phase_ns = dp_now_ns() - agent->phase_ns;
    size_t left;

    if (agent->phase == PHASE_GONE) return;
    if (agent->is_orphan && agent->phase != PHASE_KILLING) enter_phase(agent, PHASE_KILLING);
    if (agent->is_childless) {
        end_agent(agent, 0);
    } else if (agent->phase == PHASE_RUNNING && agent->living == 0) {
        end_strays(agent);
    } else if (agent->phase == PHASE_STRAYS && in_phase_ns >= STRAY_GRACE_NS) {
        enter_phase(agent, PHASE_KILLING);
    }
    if (agent->phase == PHASE_KILLING) {
        for (int rank = 0; rank < agent->job->size; rank++) { /* where /proc cannot be read */
            if (agent->pids[rank] != 0) kill(-agent->pids[rank], SIGKILL);
        }
        left = dp_tree_kill(getpid());
        if (in_phase_ns >= GIVE_UP_NS) end_agent(agent, (int)left);
    }
}

/* ---- Orders --------------------------------------------------------------------------------- */

/* Signals that a terminal sends to its foreground job go to a rank's whole process group; those
 * that one process sends another (SIGUSR1, SIGUSR2) go to the rank alone. */
static int is_for_group(int number)
{
    return number != SIGUSR1 && number != SIGUSR2;
}

static void signal_ranks(agent_t *agent, int number)
{
    int ends = number == SIGTERM || number == SIGINT || number == SIGHUP;

    for (int rank = 0; rank < agent->job->size; rank++) {
        pid_t pid = agent->pids[rank];

        if (pid == 0) continue;
        /* A rank forked a moment ago may have no group of its own yet. */
        if (!is_for_group(number) || kill(-pid, number) != 0) kill(pid, number);
        if (ends && agent->is_stopped[rank])
            kill(-pid, SIGCONT); /* a stopped process handles no signal */
    }
}

static void hear_dprun(agent_t *agent)
{
    dp_message_t message;
    int got = dp_channel_receive(agent->start->channel, &message);

    if (got == 0) return;
    if (got < 0) {
        agent->is_orphan = 1;
    } else if (message.type == DP_MESSAGE_SIGNAL) {
        signal_ranks(agent, message.status);
    } else if (message.type == DP_MESSAGE_KILL) {
        if (agent->phase != PHASE_GONE && agent->phase != PHASE_KILLING) {
            enter_phase(agent, PHASE_KILLING);
        }
    } else if (message.type == DP_MESSAGE_BYE) {
        agent->is_done = 1;
    }
}

/* SIGTERM says that the guard has died, or comes to every process of the job (a batch system, a
 * service manager): then dprun has it, too, and ends the ranks with their whole grace. */
static void hear_signals(agent_t *agent)
{
    struct signalfd_siginfo info;

    while (read(agent->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
    }
    if (getppid() != agent->guard) agent->is_orphan = 1;
}

/* ---- Life ----------------------------------------------------------------------------------- */

static int become_agent(agent_t *agent)
{
    sigset_t heard;
    sigset_t all;

    setsid();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_NAME, "dprun-agent");
    sigfillset(&all); /* no signal but SIGKILL ends it */
    sigprocmask(SIG_BLOCK, &all, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != agent->guard) agent->is_orphan = 1; /* it died before that line */
    sigemptyset(&heard);
    sigaddset(&heard, SIGCHLD);
    sigaddset(&heard, SIGTERM);
    agent->signals = signalfd(-1, &heard, SFD_CLOEXEC | SFD_NONBLOCK);
    agent->pids = calloc((size_t)agent->job->size, sizeof(*agent->pids));
    agent->is_stopped = calloc((size_t)agent->job->size, sizeof(*agent->is_stopped));
    return agent->signals < 0 || agent->pids == NULL || agent->is_stopped == NULL ? -1 : 0;
}

static int poll_timeout(const agent_t *agent)
{
    uint64_t in_phase_ns = dp_now_ns() - agent->phase_ns;

    if (agent->phase == PHASE_KILLING) return RESCAN_MS;
    if (agent->phase == PHASE_RUNNING && agent->looks < LOOKS && starts_several(agent)) {
        const uint64_t due_ns = agent->start_ns + look_after_ns[agent->looks];
        const uint64_t now_ns = dp_now_ns();

        return now_ns >= due_ns ? 0 : (int)((due_ns - now_ns) / 1000000) + 1;
    }
    if (agent->phase != PHASE_STRAYS) return -1;
    if (in_phase_ns >= STRAY_GRACE_NS) return 0;
    return (int)((STRAY_GRACE_NS - in_phase_ns) / 1000000) + 1;
}

int dp_agent_run(const dp_agent_start_t *start, pid_t guard)
{
    agent_t agent = {
        .start = start, .job = start->job, .guard = guard, .failures = -1, .signals = -1};

    if (become_agent(&agent) != 0) {
        not_started(&agent, 0, errno);
        free(agent.pids);
        free(agent.is_stopped);
        return 1;
    }
    agent.phase_ns = dp_now_ns();
    start_ranks(&agent);
    agent.start_ns = dp_now_ns();
    for (;;) {
        struct pollfd sources[] = {
            {agent.signals, POLLIN, 0}, {start->channel, POLLIN, 0}, {agent.failures, POLLIN, 0}};

        reap_children(&agent);
        advance_phase(&agent);
        look_at_programs(&agent);
        if (agent.phase == PHASE_GONE && (agent.is_orphan || agent.is_done)) break;
        if (agent.is_orphan) sources[1].fd = -1; /* a closed channel is readable for ever */
        if (poll(sources, 3, poll_timeout(&agent)) < 0) continue;
        if (sources[0].revents != 0) hear_signals(&agent);
        if (sources[1].revents != 0) hear_dprun(&agent);
        if (sources[2].revents != 0) hear_failures(&agent);
    }
    if (agent.is_orphan && !agent.is_done && agent.job->owns_run_dir) {
        dp_run_dir_remove(agent.job->run_dir);
    }
    free(agent.pids);
    free(agent.is_stopped);
    close(agent.signals);
    if (agent.failures >= 0) close(agent.failures);
    return 0;
}
