/*
 * supervise.c - dprun's event loop.
 *
 * dprun.c calls it once; all of it runs on dprun's only thread. Everything waits in one loop:
 * messages of the agent, signals of the user, output of the ranks, the rendezvous, three timers.
 * How a job ends is in supervise_stages.c; which rank is to blame is decided in failure/fate.c.
 */
#include "launcher/dprun/supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "launcher/dprun/failure/report.h"
#include "launcher/dprun/remote/check_nodes.h"
#include "launcher/dprun/supervise_internal.h"
#include "launcher/dprun/tree.h"

#define GUARD_ENDS_NS UINT64_C(2000000000) /* once nothing is below it; else it is stopped */

/* ---- Events --------------------------------------------------------------------------------- */

static void on_channel(evutil_socket_t fd, short what, void *context)
{
    dp_supervisor_t *supervisor = context;
    dp_message_t message;
    int got = dp_channel_receive((int)fd, &message);

    (void)what;
    if (got > 0) {
        dp_supervisor_hear_agent(supervisor, &message);
    } else if (got < 0) {
        if (supervisor->outcome == DP_OUTCOME_NONE) supervisor->outcome = DP_OUTCOME_AGENT_LOST;
        dp_supervisor_lose_agent(supervisor);
    }
}

/* Ranks have sessions of their own, whose groups the kernel deems orphaned: it would ignore SIGTSTP
 * there, so it has to be SIGSTOP. */
static void suspend_job(dp_supervisor_t *supervisor)
{
    dp_supervisor_order(supervisor, DP_MESSAGE_SIGNAL, SIGSTOP);
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
        dp_supervisor_order(supervisor, DP_MESSAGE_SIGNAL, SIGCONT);
        dp_input_resume(supervisor->input);
        break;
    case SIGUSR1:
    case SIGUSR2:
        dp_supervisor_order(supervisor, DP_MESSAGE_SIGNAL, (int)info.ssi_signo);
        break;
    default:
        dp_supervisor_interrupt(supervisor, (int)info.ssi_signo,
                                dp_wish_hear(&supervisor->wish, (int)info.ssi_signo, dp_now_ns()) ==
                                    DP_WISH_AGAIN);
        break;
    }
}

/* ---- Output and rendezvous ------------------------------------------------------------------ */

static void on_stream_ended(void *context)
{
    dp_supervisor_check_over(context);
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
    dp_supervisor_tell(supervisor, SIGTERM, supervisor->job->command->grace_ns);
}

static void on_joined(void *context, int rank)
{
    dp_supervisor_t *supervisor = context;

    if (supervisor->fate.ranks[rank].has_joined) return;
    supervisor->fate.ranks[rank].has_joined = 1;
    if (++supervisor->joined == supervisor->job->size) {
        dp_rendezvous_close_door(supervisor->rendezvous);
        if (supervisor->fleet != NULL) dp_fleet_met(supervisor->fleet);
        /* Ahead of what the ranks find: they know of each other behind this. */
        if (supervisor->job->command->action == DP_ACTION_CHECK)
            supervisor->unfit = dp_check_nodes_print(supervisor->fleet, stdout);
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
    if (supervisor->on_signal == NULL || event_add(supervisor->on_signal, NULL) != 0)
        return DP_ERR_NO_MEMORY;
    return dp_supervisor_make_timers(supervisor);
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
    supervisor->guard_pid = start->guard_pid;
    supervisor->before = start->before;
    supervisor->unfit = -1;
    supervisor->base = event_base_new();
    if (supervisor->base == NULL ||
        dp_fate_init(&supervisor->fate, start->job->size, start->start_ns) != 0 ||
        make_events(supervisor) != DP_OK) {
        if (start->listener >= 0) close(start->listener);
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
    if (status == DP_OK && dp_job_start_metrics(start->job, supervisor->base) != DP_OK)
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    if (status == DP_OK && start->nodes != NULL)
        status = dp_supervisor_start_fleet(supervisor, start, error);
    if (status == DP_OK && command->timeout_ns > 0)
        dp_supervisor_arm_timer(supervisor->job_timer, command->timeout_ns);
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
           !dp_supervisor_has_waited_enough(supervisor)) {
        dp_supervisor_arm_timer(supervisor->drain_timer, DP_SUPERVISE_DRAIN_NS); /* to look again */
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
    if (supervisor->guard_pid <= 0) return;
    dp_supervisor_order(supervisor, DP_MESSAGE_BYE, 0);
    dp_tree_await(supervisor->guard_pid, GUARD_ENDS_NS);
    supervisor->guard_pid = 0;
}

void dp_supervisor_fini(dp_supervisor_t *supervisor)
{
    dp_fleet_destroy(supervisor->fleet);
    free(supervisor->held);
    dp_job_stop_metrics(supervisor->job);
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
