/*
 * supervise_stages.c - how a job ends: the stages FAILING, TOLD and KILLED, each with a deadline,
 * so that no rank can keep a dead job alive; then the output that is still to come.
 *
 * The events that begin them are here too: a message of the agent that a rank has ended, and a
 * signal of the user. Called by supervise.c and supervise_nodes.c, on dprun's only thread. It must
 * not know which rank is to blame (failure/fate.c).
 */
#include "launcher/dprun/supervise_internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/dprun/failure/report.h"
#include "launcher/dprun/tree.h"

/* From one look to the next whether the others are to be told to end (dp_fate_is_pending()). */
#define FAILED_LOOK_NS UINT64_C(50000000)
/* From the first failure until those that were told are killed, where they had their time before.
 */
#define FAILED_END_NS UINT64_C(950000000)
#define FAILED_GRACE_MIN_NS UINT64_C(250000000)
/* From SIGKILL until an agent or a node that has not ended its ranks is given up: an agent itself
 * waits 10 s for a process that is stuck in the kernel. */
#define KILLED_NS UINT64_C(12000000000)
#define AGENT_LOST_ROUNDS 500
#define AGENT_LOST_WAIT_MS 10
#define FEED_NS UINT64_C(2000000000)
#define PATIENCE_NS                                                                                \
    UINT64_C(2000000000) /* with a reader that takes nothing, once a user wants out */

void dp_supervisor_arm_timer(struct event *timer, uint64_t ns)
{
    const struct timeval delay = {(time_t)(ns / 1000000000), (suseconds_t)(ns / 1000 % 1000000)};

    event_add(timer, &delay);
}

void dp_supervisor_order(dp_supervisor_t *supervisor, dp_message_type_t type, int number)
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
    dp_supervisor_order(supervisor, DP_MESSAGE_KILL, 0);
    if (!supervisor->is_gone) dp_supervisor_arm_timer(supervisor->stage_timer, KILLED_NS);
}

/* The ranks die with their agent (parent-death signal), and the processes they had started become
 * children of dprun, the next subreaper above. */
void dp_supervisor_lose_agent(dp_supervisor_t *supervisor)
{
    size_t left = 1;

    event_del(supervisor->on_channel);
    close(supervisor->channel);
    supervisor->channel = -1;
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
    supervisor->guard_pid = 0;
    dp_supervisor_note_gone(supervisor, (int)left);
}

void dp_supervisor_tell(dp_supervisor_t *supervisor, int number, uint64_t grace_ns)
{
    if (supervisor->stage >= DP_JOB_STAGE_TOLD) return;
    supervisor->stage = DP_JOB_STAGE_TOLD;
    supervisor->fate.stop_ns = dp_now_ns();
    dp_supervisor_order(supervisor, DP_MESSAGE_SIGNAL, number);
    dp_supervisor_arm_timer(supervisor->stage_timer, grace_ns);
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
        dp_supervisor_arm_timer(supervisor->stage_timer, FAILED_LOOK_NS);
    } else if (supervisor->stage == DP_JOB_STAGE_FAILING) {
        dp_supervisor_tell(supervisor, SIGTERM, failed_grace_ns(supervisor, since_ns));
    } else if (supervisor->stage == DP_JOB_STAGE_TOLD) {
        dp_supervisor_kill(supervisor);
    } else if (supervisor->stage == DP_JOB_STAGE_KILLED && supervisor->fleet != NULL) {
        dp_fleet_abandon(supervisor->fleet);
    } else if (supervisor->stage == DP_JOB_STAGE_KILLED && supervisor->channel >= 0) {
        dp_supervisor_lose_agent(supervisor); /* it is stopped */
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
    dp_supervisor_tell(supervisor, SIGTERM, supervisor->job->command->grace_ns);
}

void dp_supervisor_fail(dp_supervisor_t *supervisor)
{
    if (supervisor->outcome != DP_OUTCOME_NONE) return;
    supervisor->outcome = DP_OUTCOME_FAILED;
    look_at_memory(supervisor);
    supervisor->stage = DP_JOB_STAGE_FAILING;
    supervisor->fail_ns = dp_now_ns();
    dp_supervisor_arm_timer(supervisor->stage_timer, FAILED_LOOK_NS);
}

/* ---- The loop's end ------------------------------------------------------------------------- */

static void end_loop(dp_supervisor_t *supervisor)
{
    supervisor->is_over = 1;
    event_base_loopbreak(supervisor->base);
}

/* The loop ends when no process is left and all their streams have ended. */
void dp_supervisor_check_over(dp_supervisor_t *supervisor)
{
    if (supervisor->is_gone && dp_job_output_open_streams(supervisor->output) == 0) {
        end_loop(supervisor);
    }
}

int dp_supervisor_has_waited_enough(dp_supervisor_t *supervisor)
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
        !dp_supervisor_has_waited_enough(supervisor)) {
        dp_supervisor_arm_timer(supervisor->drain_timer, DP_SUPERVISE_DRAIN_NS);
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
    dp_supervisor_arm_timer(supervisor->drain_timer, DP_SUPERVISE_DRAIN_NS);
    dp_supervisor_check_over(supervisor);
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

/* An MPI program makes N worlds of one here, without an error: each computes, and prints, the same.
 */
static void name_foreign(dp_supervisor_t *supervisor, int rank)
{
    const char *library = supervisor->fate.ranks[rank].foreign;
    const dp_job_t *job = supervisor->job;
    char words[256] = "";
    size_t used = 0;

    if (library[0] == '\0' || supervisor->joined > 0 || supervisor->has_named_foreign) return;
    supervisor->has_named_foreign = 1;
    for (char **word = job->command->argv; *word != NULL && used < sizeof(words) - 1; word++) {
        used += (size_t)snprintf(words + used, sizeof(words) - used,
                                 strpbrk(*word, " \t\n$;") == NULL ? " %s" : " '%s'", *word);
    }
    dp_job_output_say(
        supervisor->output,
        "rank %d has loaded %s, an MPI that finds no launcher here, and no rank has "
        "joined libdp's world: each is a world of one. Start an MPI program with MPI's "
        "launcher: %s %d%s",
        rank, library, strncmp(library, "libmpi.so.40", 12) == 0 ? "mpirun -np" : "mpiexec -n",
        job->size, words);
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
    if (supervisor->outcome == DP_OUTCOME_NONE) name_foreign(supervisor, message->rank);
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
    case DP_MESSAGE_FOREIGN:
        if (!has_rank) break;
        snprintf(rank->foreign, sizeof(rank->foreign), "%s", message->text);
        if (message->status != 0) name_foreign(supervisor, message->rank);
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

/* ---- Signals of the user -------------------------------------------------------------------- */

static int is_request_to_end(int number)
{
    return number == SIGTERM || number == SIGINT || number == SIGHUP || number == SIGQUIT;
}

/* A signal to every process of the job ends ranks as well, and such an end may be heard before
 * dprun reads its own signal: then it is no failure that cuts the others' grace. */
static int is_failure_by_signal(const dp_supervisor_t *supervisor)
{
    if (supervisor->outcome != DP_OUTCOME_FAILED || supervisor->stage == DP_JOB_STAGE_KILLED ||
        dp_now_ns() >= supervisor->fail_ns + DP_WISH_NS) {
        return 0;
    }
    for (int i = 0; i < supervisor->job->size; i++) {
        const dp_rank_fate_t *rank = &supervisor->fate.ranks[i];

        if (rank->lost != NULL || rank->start_error != 0) return 0;
        if (rank->has_ended && WIFSIGNALED(rank->status) &&
            !is_request_to_end(WTERMSIG(rank->status)))
            return 0;
    }
    return 1;
}

void dp_supervisor_interrupt(dp_supervisor_t *supervisor, int number, int is_again)
{
    if (supervisor->is_gone) { /* only output is left, and the user does not wait for it */
        if (supervisor->outcome == DP_OUTCOME_INTERRUPTED && !is_again) return;
        if (supervisor->outcome == DP_OUTCOME_NONE) {
            supervisor->outcome = DP_OUTCOME_INTERRUPTED;
            supervisor->signal = number;
        }
        end_loop(supervisor);
        return;
    }
    if (is_failure_by_signal(supervisor)) {
        supervisor->outcome = DP_OUTCOME_NONE;
        supervisor->stage = DP_JOB_STAGE_RUNNING;
    }
    if (number == SIGQUIT || is_again ||
        (supervisor->stage >= DP_JOB_STAGE_TOLD && supervisor->outcome != DP_OUTCOME_INTERRUPTED)) {
        supervisor->is_cut = 1;
        dp_supervisor_kill(supervisor);
    }
    if (supervisor->outcome != DP_OUTCOME_NONE) return;
    supervisor->outcome = DP_OUTCOME_INTERRUPTED;
    supervisor->signal = number;
    dp_supervisor_tell(supervisor, number, supervisor->job->command->grace_ns);
}

/* ---- Timers --------------------------------------------------------------------------------- */

dp_status_t dp_supervisor_make_timers(dp_supervisor_t *supervisor)
{
    struct event_base *base = supervisor->base;

    supervisor->stage_timer = event_new(base, -1, 0, on_stage_timer, supervisor);
    supervisor->job_timer = event_new(base, -1, 0, on_job_timer, supervisor);
    supervisor->drain_timer = event_new(base, -1, 0, on_drain_timer, supervisor);
    return supervisor->stage_timer == NULL || supervisor->job_timer == NULL ||
                   supervisor->drain_timer == NULL
               ? DP_ERR_NO_MEMORY
               : DP_OK;
}
