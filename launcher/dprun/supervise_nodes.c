/*
 * supervise_nodes.c - the supervisor of a job on several nodes: what its fleet of stations reports.
 *
 * Callbacks of remote/fleet.c, on dprun's only thread. They come down to what supervise.c does for
 * one agent; a lost node is the one thing more.
 */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launcher/dprun/failure/report.h"
#include "launcher/dprun/run_dir.h"
#include "launcher/dprun/supervise_internal.h"

static void on_node_message(void *context, dp_message_t *message)
{
    dp_supervisor_t *supervisor = context;
    dp_error_t error;

    if (message->type == DP_MESSAGE_STARTED) {
        const char *node = supervisor->fate.ranks[message->rank].node;

        for (int stream = 1; stream <= 2; stream++) {
            if (dp_job_output_open(supervisor->output, message->rank, stream, node, &error) ==
                DP_OK) {
                continue;
            }
            dp_job_output_say(supervisor->output, "rank %d: %s", message->rank, error.text);
            dp_supervisor_kill(supervisor);
        }
    }
    dp_supervisor_hear_agent(supervisor, message);
}

static void on_node_output(void *context, int rank, int stream, const char *data, size_t bytes)
{
    dp_supervisor_t *supervisor = context;
    size_t *held = &supervisor->held[rank * 2 + stream - 1];

    supervisor->fed_ns = dp_now_ns();
    dp_job_output_feed(supervisor->output, rank, stream, data, bytes);
    *held += bytes;
    if (dp_job_output_is_held(supervisor->output)) return; /* the rank has to wait */
    dp_fleet_credit(supervisor->fleet, rank, stream, *held);
    *held = 0;
}

void dp_supervisor_output_drained(void *context)
{
    dp_supervisor_t *supervisor = context;

    for (int i = 0; supervisor->fleet != NULL && i < supervisor->job->size * 2; i++) {
        if (supervisor->held[i] == 0) continue;
        dp_fleet_credit(supervisor->fleet, i / 2, i % 2 + 1, supervisor->held[i]);
        supervisor->held[i] = 0;
    }
}

/* A rank of it may live on for a moment: its node ends it. */
static void on_node_lost(void *context, int node, const dp_fleet_loss_t *loss)
{
    dp_supervisor_t *supervisor = context;
    dp_fleet_node_view_t view;
    char how[160];

    dp_fleet_node(supervisor->fleet, node, &view);
    for (int i = view.first_rank; i < view.first_rank + view.ranks; i++) {
        dp_rank_fate_t *rank = &supervisor->fate.ranks[i];

        dp_job_output_feed(supervisor->output, i, 1, NULL, 0);
        dp_job_output_feed(supervisor->output, i, 2, NULL, 0);
        if (rank->has_ended) continue;
        rank->has_ended = 1;
        rank->lost = loss->why;
        rank->lost_ns = dp_now_ns();
        rank->has_only_stalled = loss->kernel_answered;
        rank->status = SIGKILL;
        rank->end_ns = loss->at_ns;
        dp_rank_describe(rank, how, sizeof(how));
        dp_rendezvous_rank_ended(supervisor->rendezvous, i, how);
    }
    if (supervisor->outcome == DP_OUTCOME_NONE || supervisor->outcome == DP_OUTCOME_FAILED) {
        dp_job_output_say(supervisor->output, "lost node %s: %s", view.name, loss->why);
    }
    dp_supervisor_fail(supervisor);
}

static void on_start_refused(void *context, int exit_code)
{
    dp_supervisor_t *supervisor = context;

    if (supervisor->outcome == DP_OUTCOME_NONE) {
        supervisor->outcome = DP_OUTCOME_NOT_STARTED;
        supervisor->start_code = exit_code;
    }
    dp_supervisor_note_gone(supervisor, 0);
}

static void on_nodes_gone(void *context, int left)
{
    dp_supervisor_t *supervisor = context;

    for (int i = 0; i < supervisor->job->size; i++) {
        dp_fleet_node_view_t view;

        /* Clocks are known best at the end. */
        for (int node = 0; node < dp_fleet_node_count(supervisor->fleet); node++) {
            dp_fleet_node(supervisor->fleet, node, &view);
            if (i >= view.first_rank && i < view.first_rank + view.ranks)
                supervisor->fate.ranks[i].clock_ns = view.clock_ns;
        }
    }
    dp_supervisor_note_gone(supervisor, left);
}

static void on_node_signalled(void *context, const char *node, int number, int is_again)
{
    dp_supervisor_t *supervisor = context;
    char name[32];

    /* Else the signal went to dprun, too, or to other nodes before. */
    if (supervisor->outcome == DP_OUTCOME_NONE) {
        dp_signal_name(number, name, sizeof(name));
        dp_job_output_say(supervisor->output, "node %s was told to end by %s", node, name);
    }
    dp_supervisor_interrupt(supervisor, number, is_again);
}

static void on_line(void *context, const char *text)
{
    dp_job_output_say(((dp_supervisor_t *)context)->output, "%s", text);
}

static void note_memory(void *context, const dp_memory_sight_t *before,
                        const dp_memory_sight_t *after)
{
    dp_supervisor_t *supervisor = context;

    if (supervisor->outcome != DP_OUTCOME_NONE)
        return; /* the first to fail is the one to explain */
    supervisor->before = *before;
    supervisor->after = *after;
}

/* A rank's connection to the rendezvous, which is served by this very thread: connecting to its
 * socket could wait for ever, so it gets one end of a pair. */
static int open_tunnel(void *context, int node)
{
    dp_supervisor_t *supervisor = context;
    dp_fleet_node_view_t view;
    char origin[64];
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) return -1;
    dp_fleet_node(supervisor->fleet, node, &view);
    snprintf(origin, sizeof(origin), "a process of node %.40s", view.name);
    dp_rendezvous_adopt(supervisor->rendezvous, ends[0], origin, node % DP_DOOR_SOURCES);
    return ends[1];
}

dp_status_t dp_supervisor_start_fleet(dp_supervisor_t *supervisor,
                                      const dp_supervisor_start_t *start, dp_error_t *error)
{
    const dp_fleet_start_t fleet = {.nodes = start->nodes,
                                    .command = start->job->command,
                                    .ticket = &start->job->ticket,
                                    .input_fd = start->input_fd,
                                    .signals = start->mask,
                                    .events = {on_node_message, on_node_output, on_node_lost,
                                               on_start_refused, on_nodes_gone, on_node_signalled,
                                               note_memory, on_line, open_tunnel, supervisor}};
    dp_status_t status;

    supervisor->held = calloc((size_t)start->job->size * 2, sizeof(*supervisor->held));
    if (supervisor->held == NULL) {
        if (start->input_fd >= 0) close(start->input_fd);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    status = dp_fleet_create(supervisor->base, &fleet, &supervisor->fleet, error);
    for (int node = 0; status == DP_OK && node < dp_fleet_node_count(supervisor->fleet); node++) {
        dp_fleet_node_view_t view;

        dp_fleet_node(supervisor->fleet, node, &view);
        for (int i = 0; i < view.ranks; i++) {
            supervisor->fate.ranks[view.first_rank + i].node = view.name;
            supervisor->fate.ranks[view.first_rank + i].local = i;
        }
    }
    return status;
}

void dp_supervisor_fetch(dp_supervisor_t *supervisor)
{
    dp_job_t *job = supervisor->job;
    char path[PATH_MAX];
    dp_error_t error;

    if (supervisor->fleet == NULL || supervisor->outcome == DP_OUTCOME_NOT_STARTED) return;
    dp_run_dir_prune(job->command->config.keep_runs);
    if (dp_run_dir_create(path, sizeof(path), &error) != DP_OK) {
        dp_job_output_say(supervisor->output, "%s", error.text);
        return;
    }
    (void)dp_run_dir_lock(path);
    snprintf(job->run_dir, sizeof(job->run_dir), "%s", path);
    job->owns_run_dir = 1;
    dp_fleet_fetch(supervisor->fleet, job->run_dir);
}

/* Each clock was measured against dprun's, so two nodes may be apart by what both are off. */
void dp_supervisor_describe_clocks(const dp_supervisor_t *supervisor, char *text, size_t room)
{
    uint64_t worst_ns = 0;
    uint64_t second_ns = 0;

    text[0] = '\0';
    if (supervisor->fleet == NULL || dp_fleet_node_count(supervisor->fleet) < 2) return;
    for (int node = 0; node < dp_fleet_node_count(supervisor->fleet); node++) {
        dp_fleet_node_view_t view;

        dp_fleet_node(supervisor->fleet, node, &view);
        second_ns = dp_max(second_ns, dp_min(worst_ns, view.clock_error_ns));
        worst_ns = dp_max(worst_ns, view.clock_error_ns);
    }
    if (worst_ns == UINT64_MAX) {
        snprintf(text, room, "clocks of the nodes not known");
    } else {
        snprintf(text, room, "clocks within %.0f us of each other",
                 (double)(worst_ns + second_ns) / 1e3);
    }
}
