/*
 * supervise.c - dprun's event loop.
 *
 * dprun.c calls it once; all of it runs on dprun's only thread. Everything waits in one loop:
 * messages of the agent, signals of the user, output of the ranks, the rendezvous, three timers. A
 * job ends in stages (FAILING, TOLD, KILLED); each has a deadline, so no rank can keep a dead job
 * alive. Which rank is to blame is decided in failure/fate.c, not here.
 */
#include "launcher/dprun/supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/dprun/failure/report.h"
#include "launcher/dprun/supervise_internal.h"
#include "launcher/dprun/tree.h"

/* From one look to the next whether the others are to be told to end (dp_fate_is_pending()). */
#define FAILED_LOOK_NS UINT64_C(50000000)
/* From the first failure until those that were told are killed, where they had their time before.
 */
#define FAILED_END_NS UINT64_C(950000000)
#define FAILED_GRACE_MIN_NS UINT64_C(250000000)
#define DRAIN_NS UINT64_C(500000000) /* for pipes that somebody outside the job holds open */
#define FEED_NS UINT64_C(2000000000)
#define PATIENCE_NS                                                                                \
    UINT64_C(2000000000) /* with a reader that takes nothing, once a user wants out */
#define AGENT_LOST_ROUNDS 500
#define AGENT_LOST_WAIT_MS 10

static void arm_timer(struct event *timer, uint64_t ns)
{
    const struct timeval delay = {(time_t)(ns / 1000000000), (suseconds_t)(ns / 1000 % 1000000)};

    event_add(timer, &delay);
}

static void send_to_agent(dp_supervisor_t *supervisor, dp_message_type_t type, int number)
{
    dp_message_t message;

    if (supervisor->fleet != NULL) {
        dp_fleet_order(supervisor->fleet, type, number);
        return;
    }
    if (supervisor->channel < 0) return;
    dp_message_init(&message, type, -1);
    message.status = number;
    dp_channel_send(supervisor->channel, &message); /* its end is heard where messages are */
}

/* ---- Ending a job --------------------------------------------------------------------------- */

void dp_supervisor_kill(dp_supervisor_t *supervisor)
{
    if (supervisor->stage == DP_JOB_STAGE_KILLED) return;
    supervisor->stage = DP_JOB_STAGE_KILLED;
    supervisor->fate.kill_ns = dp_now_ns();
    if (supervisor->fate.stop_ns == 0) supervisor->fate.stop_ns = supervisor->fate.kill_ns;
    event_del(supervisor->stage_timer);
    send_to_agent(supervisor, DP_MESSAGE_KILL, 0);
}

static void tell_job(dp_supervisor_t *supervisor, int number, uint64_t grace_ns)
{
    if (supervisor->stage >= DP_JOB_STAGE_TOLD) return;
    supervisor->stage = DP_JOB_STAGE_TOLD;
    supervisor->fate.stop_ns = dp_now_ns();
    send_to_agent(supervisor, DP_MESSAGE_SIGNAL, number);
    arm_timer(supervisor->stage_timer, grace_ns);
}

static uint64_t failed_grace_ns(const dp_supervisor_t *supervisor, uint64_t since_ns)
{
    const uint64_t left_ns = since_ns < FAILED_END_NS ? FAILED_END_NS - since_ns : 0;

    return dp_min(supervisor->job->command->grace_ns, dp_max(left_ns, FAILED_GRACE_MIN_NS));
}

static void on_stage_timer(evutil_socket_t fd, short what, void *context)
{
    dp_supervisor_t *supervisor = context;
    const uint64_t since_ns = dp_now_ns() - supervisor->fail_ns;

    (void)fd;
    (void)what;
    if (supervisor->stage == DP_JOB_STAGE_FAILING &&
        dp_fate_is_pending(&supervisor->fate, since_ns)) {
        arm_timer(supervisor->stage_timer, FAILED_LOOK_NS);
    } else if (supervisor->stage == DP_JOB_STAGE_FAILING) {
        tell_job(supervisor, SIGTERM, failed_grace_ns(supervisor, since_ns));
    } else if (supervisor->stage == DP_JOB_STAGE_TOLD) {
        dp_supervisor_kill(supervisor);
    }
}

/* On several nodes theirs counts, which comes with the end of a rank (note_memory()). */
static void look_at_memory(dp_supervisor_t *supervisor)
{
    if (supervisor->fleet == NULL) dp_cgroup_memory(&supervisor->after);
}

static void on_job_timer(evutil_socket_t fd, short what, void *context)
{
    dp_supervisor_t *supervisor = context;

    (void)fd;
    (void)what;
    if (supervisor->outcome != DP_OUTCOME_NONE || supervisor->is_gone) return;
    supervisor->outcome = DP_OUTCOME_TIMEOUT;
    look_at_memory(supervisor);
    tell_job(supervisor, SIGTERM, supervisor->job->command->grace_ns);
}

void dp_supervisor_fail(dp_supervisor_t *supervisor)
{
    if (supervisor->outcome != DP_OUTCOME_NONE) return;
    supervisor->outcome = DP_OUTCOME_FAILED;
    look_at_memory(supervisor);
    supervisor->stage = DP_JOB_STAGE_FAILING;
    supervisor->fail_ns = dp_now_ns();
    arm_timer(supervisor->stage_timer, FAILED_LOOK_NS);
}

/* ---- The loop's end ------------------------------------------------------------------------- */

static void end_loop(dp_supervisor_t *supervisor)
{
    supervisor->is_over = 1;
    event_base_loopbreak(supervisor->base);
}

/* The loop ends when no process is left and all their streams have ended. */
static void check_over(dp_supervisor_t *supervisor)
{
    if (supervisor->is_gone && dp_job_output_open_streams(supervisor->output) == 0) {
        end_loop(supervisor);
    }
}

/* After Ctrl-C or --timeout a user waits for dprun: it waits for its own output's reader only as
 * long as that reader takes something. */
static int has_waited_enough(dp_supervisor_t *supervisor)
{
    const size_t queued = dp_job_output_queued(supervisor->output);

    if (supervisor->outcome != DP_OUTCOME_INTERRUPTED &&
        supervisor->outcome != DP_OUTCOME_TIMEOUT) {
        return 0;
    }
    if (supervisor->stuck_ns == 0 || queued != supervisor->stuck_bytes) {
        supervisor->stuck_ns = dp_now_ns();
        supervisor->stuck_bytes = queued;
    }
    return dp_now_ns() - supervisor->stuck_ns >= PATIENCE_NS;
}

/* Output of other machines may be on a slow network. */
static int is_under_way(const dp_supervisor_t *supervisor)
{
    return supervisor->fleet != NULL && dp_now_ns() - supervisor->fed_ns < FEED_NS;
}

static void on_drain_timer(evutil_socket_t fd, short what, void *context)
{
    dp_supervisor_t *supervisor = context;

    (void)fd;
    (void)what;
    if ((dp_job_output_is_held(supervisor->output) || is_under_way(supervisor)) &&
        !has_waited_enough(supervisor)) {
        arm_timer(supervisor->drain_timer, DRAIN_NS);
    } else {
        dp_job_output_close_streams(supervisor->output);
    }
}

void dp_supervisor_note_gone(dp_supervisor_t *supervisor, int left)
{
    supervisor->is_gone = 1;
    supervisor->fed_ns = dp_now_ns();
    supervisor->fate.left = left;
    event_del(supervisor->stage_timer);
    event_del(supervisor->job_timer);
    arm_timer(supervisor->drain_timer, DRAIN_NS);
    check_over(supervisor);
}

/* The agent was killed. The ranks die with it (parent-death signal), and the processes they had
 * started become children of dprun, the next subreaper above. */
static void agent_lost(dp_supervisor_t *supervisor)
{
    size_t left = 1;

    event_del(supervisor->on_channel);
    close(supervisor->channel);
    supervisor->channel = -1;
    if (supervisor->outcome == DP_OUTCOME_NONE) supervisor->outcome = DP_OUTCOME_AGENT_LOST;
    for (int round = 0; round < AGENT_LOST_ROUNDS; round++) {
        left = dp_tree_kill(getpid());
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
        if (waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD) {
            left = 0;
            break;
        }
        poll(NULL, 0, AGENT_LOST_WAIT_MS);
    }
    supervisor->agent_pid = 0;
    dp_supervisor_note_gone(supervisor, (int)left);
}

/* ---- Messages of the agent ------------------------------------------------------------------ */

static void rank_started(dp_supervisor_t *supervisor, dp_message_t *message)
{
    supervisor->fate.ranks[message->rank].pid = message->pid;
    for (int i = 0; i < DP_MESSAGE_FDS; i++) {
        dp_error_t error;

        if (message->fds[i] < 0) continue;
        if (dp_job_output_attach(supervisor->output, message->rank, i + 1, message->fds[i],
                                 &error) != DP_OK) {
            dp_job_output_say(supervisor->output, "rank %d: %s", message->rank, error.text);
            dp_supervisor_kill(supervisor);
        }
    }
}

static void rank_ended(dp_supervisor_t *supervisor, const dp_message_t *message)
{
    dp_rank_fate_t *rank = &supervisor->fate.ranks[message->rank];
    char how[160];

    if (message->type == DP_MESSAGE_NOT_STARTED) {
        rank->start_error = message->status == 0 ? EIO : message->status;
        if (rank->pid == 0) rank->status = 1 << 8; /* no process: as if it had exited with 1 */
    } else {
        rank->status = message->status;
        rank->peak_kib = message->peak_kib;
    }
    if (!rank->has_ended) rank->end_ns = message->time_ns;
    rank->has_ended = 1;
    dp_rank_describe(rank, how, sizeof(how));
    dp_rendezvous_rank_ended(supervisor->rendezvous, message->rank, how);
    if (dp_rank_failed(rank)) dp_supervisor_fail(supervisor);
}

void dp_supervisor_hear_agent(dp_supervisor_t *supervisor, dp_message_t *message)
{
    int has_rank = message->rank >= 0 && message->rank < supervisor->job->size;
    dp_rank_fate_t *rank = has_rank ? &supervisor->fate.ranks[message->rank] : NULL;

    switch (message->type) {
    case DP_MESSAGE_STARTED:
        if (has_rank) rank_started(supervisor, message);
        break;
    case DP_MESSAGE_NOT_STARTED:
    case DP_MESSAGE_ENDED:
        if (has_rank) rank_ended(supervisor, message);
        break;
    case DP_MESSAGE_STOPPED:
    case DP_MESSAGE_CONTINUED:
        if (!has_rank || supervisor->fate.stop_ns != 0) break; /* by our own signals */
        rank->stopped_by = message->type == DP_MESSAGE_STOPPED ? message->status : 0;
        rank->stopped_ns = message->time_ns;
        break;
    case DP_MESSAGE_STRAY:
        if (supervisor->outcome != DP_OUTCOME_NONE) break;
        dp_job_output_say(supervisor->output,
                          "process %d (%s) was still there after all ranks had ended; ended it too",
                          message->pid, message->text);
        break;
    case DP_MESSAGE_ALL_GONE:
        dp_supervisor_note_gone(supervisor, message->status);
        break;
    case DP_MESSAGE_SIGNAL:
    case DP_MESSAGE_KILL:
    case DP_MESSAGE_BYE:
        break; /* ours */
    }
}

static void on_channel(evutil_socket_t fd, short what, void *context)
{
    dp_supervisor_t *supervisor = context;
    dp_message_t message;
    int got = dp_channel_receive((int)fd, &message);

    (void)what;
    if (got > 0) {
        dp_supervisor_hear_agent(supervisor, &message);
    } else if (got < 0) {
        agent_lost(supervisor);
    }
}

/* ---- Signals of the user -------------------------------------------------------------------- */

void dp_supervisor_interrupt(dp_supervisor_t *supervisor, int number)
{
    if (supervisor->is_gone) { /* only output is left, and the user does not wait for it */
        if (supervisor->outcome == DP_OUTCOME_NONE) {
            supervisor->outcome = DP_OUTCOME_INTERRUPTED;
            supervisor->signal = number;
        }
        end_loop(supervisor);
        return;
    }
    if (supervisor->stage >= DP_JOB_STAGE_TOLD || number == SIGQUIT) {
        dp_supervisor_kill(supervisor);
    }
    if (supervisor->outcome != DP_OUTCOME_NONE) return;
    supervisor->outcome = DP_OUTCOME_INTERRUPTED;
    supervisor->signal = number;
    tell_job(supervisor, number, supervisor->job->command->grace_ns);
}

/* Ranks have sessions of their own, whose groups the kernel deems orphaned: it would ignore SIGTSTP
 * there, so it has to be SIGSTOP. */
static void suspend_job(dp_supervisor_t *supervisor)
{
    send_to_agent(supervisor, DP_MESSAGE_SIGNAL, SIGSTOP);
    if (supervisor->fleet != NULL) dp_fleet_pause(supervisor->fleet);
    raise(SIGSTOP);
}

static void on_signal(evutil_socket_t fd, short what, void *context)
{
    dp_supervisor_t *supervisor = context;
    struct signalfd_siginfo info;

    (void)what;
    if (read((int)fd, &info, sizeof(info)) != (ssize_t)sizeof(info)) return;
    switch (info.ssi_signo) {
    case SIGTSTP:
        suspend_job(supervisor);
        break;
    case SIGCONT:
        send_to_agent(supervisor, DP_MESSAGE_SIGNAL, SIGCONT);
        dp_input_resume(supervisor->input);
        break;
    case SIGUSR1:
    case SIGUSR2:
        send_to_agent(supervisor, DP_MESSAGE_SIGNAL, (int)info.ssi_signo);
        break;
    default:
        dp_supervisor_interrupt(supervisor, (int)info.ssi_signo);
        break;
    }
}

/* ---- Output and rendezvous ------------------------------------------------------------------ */

static void on_stream_ended(void *context)
{
    check_over(context);
}

static void on_broken(void *context, int error)
{
    dp_supervisor_t *supervisor = context;

    if (error != EPIPE) {
        dp_job_output_say(supervisor->output, "writing output: %s; the rest of it is lost",
                          strerror(error));
        return;
    }
    if (supervisor->outcome != DP_OUTCOME_NONE || supervisor->is_gone) return;
    supervisor->outcome = DP_OUTCOME_NO_READER;
    tell_job(supervisor, SIGTERM, supervisor->job->command->grace_ns);
}

static void on_joined(void *context, int rank)
{
    dp_supervisor_t *supervisor = context;

    if (supervisor->fate.ranks[rank].has_joined) return;
    supervisor->fate.ranks[rank].has_joined = 1;
    if (++supervisor->joined == supervisor->job->size) {
        dp_rendezvous_close_door(supervisor->rendezvous);
        if (supervisor->fleet != NULL) dp_fleet_met(supervisor->fleet);
    }
}

static void on_failed(void *context, int rank, const dp_failure_t *failure)
{
    dp_supervisor_t *supervisor = context;

    dp_fate_report(&supervisor->fate, rank, failure, dp_now_ns());
    if (supervisor->fleet != NULL) dp_fleet_suspect(supervisor->fleet, rank, failure->culprit);
}

static void on_refused(void *context, const char *text)
{
    dp_supervisor_t *supervisor = context;

    dp_job_output_say(supervisor->output, "%s", text);
}

static void on_running(void *context, int rank)
{
    ((dp_supervisor_t *)context)->fate.ranks[rank].is_running = 1;
}

/* ---- Life ----------------------------------------------------------------------------------- */

static dp_status_t make_events(dp_supervisor_t *supervisor)
{
    struct event_base *base = supervisor->base;

    if (supervisor->channel >= 0) {
        supervisor->on_channel =
            event_new(base, supervisor->channel, EV_READ | EV_PERSIST, on_channel, supervisor);
        if (supervisor->on_channel == NULL || event_add(supervisor->on_channel, NULL) != 0)
            return DP_ERR_NO_MEMORY;
    }
    supervisor->on_signal =
        event_new(base, supervisor->signals, EV_READ | EV_PERSIST, on_signal, supervisor);
    supervisor->stage_timer = event_new(base, -1, 0, on_stage_timer, supervisor);
    supervisor->job_timer = event_new(base, -1, 0, on_job_timer, supervisor);
    supervisor->drain_timer = event_new(base, -1, 0, on_drain_timer, supervisor);
    if (supervisor->on_signal == NULL || supervisor->stage_timer == NULL ||
        supervisor->job_timer == NULL || supervisor->drain_timer == NULL ||
        event_add(supervisor->on_signal, NULL) != 0) {
        return DP_ERR_NO_MEMORY;
    }
    return DP_OK;
}

dp_status_t dp_supervisor_init(dp_supervisor_t *supervisor, const dp_supervisor_start_t *start,
                               dp_error_t *error)
{
    const dp_command_t *command = start->job->command;
    dp_job_output_events_t output_events = {on_stream_ended, on_broken,
                                            dp_supervisor_output_drained, supervisor};
    dp_rendezvous_events_t rendezvous_events = {on_joined, on_failed, on_refused, on_running,
                                                supervisor};
    dp_status_t status;

    memset(supervisor, 0, sizeof(*supervisor));
    supervisor->job = start->job;
    supervisor->channel = start->channel;
    supervisor->signals = start->signals;
    supervisor->agent_pid = start->agent_pid;
    supervisor->before = start->before;
    supervisor->base = event_base_new();
    if (supervisor->base == NULL ||
        dp_fate_init(&supervisor->fate, start->job->size, start->start_ns) != 0 ||
        make_events(supervisor) != DP_OK) {
        close(start->listener);
        if (start->pump_fd >= 0) close(start->pump_fd);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    status = dp_rendezvous_create(supervisor->base, start->listener, start->job->size,
                                  &start->job->ticket.secret, &rendezvous_events,
                                  &supervisor->rendezvous, error);
    if (start->pump_fd >= 0) {
        if (status == DP_OK) {
            status = dp_input_create(supervisor->base, start->pump_fd, &supervisor->input, error);
        } else {
            close(start->pump_fd);
        }
    }
    if (status != DP_OK) return status;
    status = dp_job_output_create(supervisor->base, command, start->job->size, start->start_ns,
                                  &output_events, &supervisor->output, error);
    if (status == DP_OK && start->nodes != NULL)
        status = dp_supervisor_start_fleet(supervisor, start, error);
    if (status == DP_OK && command->timeout_ns > 0)
        arm_timer(supervisor->job_timer, command->timeout_ns);
    return status;
}

void dp_supervisor_run(dp_supervisor_t *supervisor)
{
    if (!supervisor->is_over) event_base_dispatch(supervisor->base);
    dp_supervisor_flush(supervisor);
}

void dp_supervisor_flush(dp_supervisor_t *supervisor)
{
    int stage = supervisor->outcome;

    /* A second signal, or a reader that left, ends the wait for a slow reader. */
    while (!dp_job_output_is_flushed(supervisor->output) && (int)supervisor->outcome == stage &&
           !has_waited_enough(supervisor)) {
        arm_timer(supervisor->drain_timer, DRAIN_NS); /* to look again */
        if (event_base_loop(supervisor->base, EVLOOP_ONCE) != 0) break;
        if (event_base_got_break(supervisor->base)) break;
    }
}

int dp_supervisor_exit_code(const dp_supervisor_t *supervisor)
{
    switch (supervisor->outcome) {
    case DP_OUTCOME_NONE:
        return dp_job_output_has_lost(supervisor->output) ? DP_EXIT_OUTPUT_LOST : 0;
    case DP_OUTCOME_FAILED:
        return dp_fate_exit_code(&supervisor->fate);
    case DP_OUTCOME_INTERRUPTED:
        return 128 + supervisor->signal;
    case DP_OUTCOME_TIMEOUT:
        return DP_EXIT_TIMEOUT;
    case DP_OUTCOME_NO_READER:
        return 128 + SIGPIPE;
    case DP_OUTCOME_AGENT_LOST:
        return 1;
    case DP_OUTCOME_NOT_STARTED:
        return supervisor->start_code;
    }
    return 1;
}

void dp_supervisor_dismiss_agent(dp_supervisor_t *supervisor)
{
    dp_fleet_dismiss(supervisor->fleet, dp_supervisor_exit_code(supervisor));
    if (supervisor->agent_pid <= 0) return;
    send_to_agent(supervisor, DP_MESSAGE_BYE, 0);
    while (waitpid(supervisor->agent_pid, NULL, 0) < 0 && errno == EINTR) {
    }
    supervisor->agent_pid = 0;
}

void dp_supervisor_fini(dp_supervisor_t *supervisor)
{
    dp_fleet_destroy(supervisor->fleet);
    free(supervisor->held);
    dp_job_output_destroy(supervisor->output);
    dp_rendezvous_destroy(supervisor->rendezvous);
    dp_input_destroy(supervisor->input);
    if (supervisor->on_channel != NULL) event_free(supervisor->on_channel);
    if (supervisor->on_signal != NULL) event_free(supervisor->on_signal);
    if (supervisor->stage_timer != NULL) event_free(supervisor->stage_timer);
    if (supervisor->job_timer != NULL) event_free(supervisor->job_timer);
    if (supervisor->drain_timer != NULL) event_free(supervisor->drain_timer);
    if (supervisor->base != NULL) event_base_free(supervisor->base);
    if (supervisor->channel >= 0) close(supervisor->channel);
    if (supervisor->signals >= 0) close(supervisor->signals);
    dp_fate_fini(&supervisor->fate);
}
