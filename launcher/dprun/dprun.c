/*
 * dprun.c - main of the launcher: command line in, job run, exit code out.
 *
 * It holds the order of the steps: errors are found before a process is started; guard and agent
 * are forked before there are threads or an event loop; the report comes last. docs/design.md, "The
 * path of one start", follows them.
 *
 *     dprun ---- guard ---- agent ---- rank 0, rank 1, ...      processes, each below the other
 *       |                     |
 *       |<--- channel.h ----->|          ranks that ended; signals to ranks
 *       |<--- pipes of the ranks' output: output/
 *       |<--- rendezvous (runtime/base/rendezvous.h): the ranks meet, and report failures
 *
 * Before the job: options (the command line), job (what each rank is started with), cores, cgroup,
 * env, run_dir, check, dry_run. During it: supervise (the event loop), agent, guard, spawn, tree.
 * output/ has everything between a rank's pipe and dprun's own output, and the terminal's input.
 * failure/ decides which rank is the cause (fate), reads its flight recorder and prints the block
 * (report).
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "launcher/dprun/channel.h"
#include "launcher/dprun/check.h"
#include "launcher/dprun/dry_run.h"
#include "launcher/dprun/guard.h"
#include "launcher/dprun/help.h"
#include "launcher/dprun/failure/recorder.h"
#include "launcher/dprun/failure/report_file.h"
#include "launcher/dprun/remote/check_nodes.h"
#include "launcher/dprun/remote/look.h"
#include "launcher/dprun/remote/nodes.h"
#include "launcher/dprun/remote/probe.h"
#include "launcher/dprun/remote/station.h"
#include "launcher/dprun/run_dir.h"
#include "launcher/dprun/supervise.h"
#include "launcher/dprun/timeline.h"
#include "launcher/dprun/tree.h"

#define SPARE_FILES 64
#define FILES_PER_NODE 6                    /* a link, and an ssh with its pipes */
#define AGENT_ENDS_NS UINT64_C(12000000000) /* agents give a stuck process 10 s */
#define SAVED_MAX ((size_t)2 * PATH_MAX)

/* Limits and signals that dprun changes for itself; the ranks get the old values back. */
typedef struct surroundings {
    sigset_t old_mask;
    sigset_t heard;
    struct rlimit old_files;
} surroundings_t;

static int print_error(int code, const char *text)
{
    fprintf(stderr, "dprun: %s\n", text);
    return code;
}

/* A closed 0, 1 or 2 would be the number of the next file opened. */
static void fill_standard_files(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) return;
    }
}

static int is_ignored(int number)
{
    struct sigaction old;

    return sigaction(number, NULL, &old) == 0 && old.sa_handler == SIG_IGN;
}

static void set_signals(surroundings_t *around)
{
    static const int numbers[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                  SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

    sigemptyset(&around->heard);
    for (size_t i = 0; i < DP_ARRAY_LEN(numbers); i++) {
        /* nohup and "&" in scripts ask to be left alone by ignoring these. */
        if (!is_ignored(numbers[i])) sigaddset(&around->heard, numbers[i]);
    }
    sigprocmask(SIG_BLOCK, &around->heard, &around->old_mask);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file past ulimit -f: write() then says EFBIG */
    signal(SIGTTIN, SIG_IGN);
}

static dp_status_t raise_file_limit(const dp_job_t *job, const dp_nodes_t *nodes,
                                    surroundings_t *around, dp_error_t *error)
{
    rlim_t per_rank = job->command->output_dir == NULL ? 3 : 5;
    rlim_t per_node = nodes == NULL ? 0 : FILES_PER_NODE * (rlim_t)nodes->hosts.count;
    rlim_t need = per_rank * (rlim_t)job->size + per_node + SPARE_FILES;
    struct rlimit limit;

    getrlimit(RLIMIT_NOFILE, &limit);
    around->old_files = limit;
    if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < need) {
        limit.rlim_cur = limit.rlim_max == RLIM_INFINITY ? need : dp_min(need, limit.rlim_max);
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= need) return DP_OK;
    return dp_error_set(error, DP_ERR_SYSTEM,
                        "%d ranks need %llu open files, the hard limit is %llu (ulimit -Hn)",
                        job->size, (unsigned long long)need, (unsigned long long)limit.rlim_max);
}

/* ---- Start ---------------------------------------------------------------------------------- */

/* Opens what must exist before the fork. *run_dir is made last, so that errors leave nothing. */
static dp_status_t open_parts(dp_job_t *job, dp_supervisor_start_t *start, dp_agent_start_t *agent,
                              dp_error_t *error)
{
    char path[PATH_MAX];
    int channel[2];
    dp_status_t status;

    if (start->nodes != NULL) {
        dp_rendezvous_make_ticket(&job->ticket); /* its connections come through the stations */
        status = DP_OK;
    } else {
        status = dp_rendezvous_listen(&job->ticket, &start->listener, error);
        if (status == DP_OK) status = dp_channel_open(channel, error);
        if (status != DP_OK) return status;
        start->channel = channel[0];
        agent->channel = channel[1];
    }
    if (start->nodes == NULL || job->command->stdin_rank >= 0) {
        status = dp_input_open(&agent->stdin_fd, &start->pump_fd, error);
    }
    /* On several nodes each has one; here there is one at the end, if at all. */
    if (status != DP_OK || start->nodes != NULL) return status;
    dp_run_dir_prune(job->command->config.keep_runs);
    status = dp_job_set_master(job, "127.0.0.1", dp_look_for_port(), error);
    if (status == DP_OK) status = dp_run_dir_create(path, sizeof(path), error);
    if (status != DP_OK) return status;
    (void)dp_run_dir_lock(path); /* for as long as dprun or its agent is there */
    return dp_job_set_run_dir(job, path, 1, error);
}

static void close_fd(int fd)
{
    if (fd >= 0) close(fd);
}

/* Forks the guard, which forks the agent; in them, never returns. */
static pid_t fork_guard(const dp_supervisor_start_t *start, const dp_agent_start_t *agent)
{
    pid_t pid = fork();

    if (pid != 0) return pid;
    close_fd(start->channel);
    close_fd(start->signals);
    close_fd(start->listener);
    close_fd(start->pump_fd);
    dp_metrics_forget(start->job->metrics);
    _exit(dp_guard_run(agent));
}

/* The agent of this machine; on several nodes the supervisor starts their stations. */
static dp_status_t start_agent(dp_supervisor_start_t *start, dp_agent_start_t *agent,
                               dp_error_t *error)
{
    if (start->nodes != NULL) {
        start->input_fd = agent->stdin_fd;
        agent->stdin_fd = -1;
        return DP_OK;
    }
    start->guard_pid = fork_guard(start, agent);
    if (start->guard_pid >= 0) return DP_OK;
    return dp_error_set(error, DP_ERR_SYSTEM, "starting the agent: %s", strerror(errno));
}

static dp_status_t start_job(dp_job_t *job, dp_nodes_t *nodes, uint64_t start_ns,
                             dp_supervisor_t *supervisor, dp_error_t *error)
{
    surroundings_t around;
    dp_supervisor_start_t start = {.job = job,
                                   .nodes = nodes,
                                   .input_fd = -1,
                                   .channel = -1,
                                   .signals = -1,
                                   .listener = -1,
                                   .pump_fd = -1,
                                   .start_ns = start_ns};
    dp_agent_start_t agent = {.job = job, .channel = -1, .stdin_fd = -1};
    dp_status_t status;
    int null_fd;

    status = raise_file_limit(job, nodes, &around, error);
    if (status != DP_OK) return status;
    set_signals(&around);
    prctl(PR_SET_CHILD_SUBREAPER,
          1); /* the ranks' processes fall to dprun if the agent is killed */
    dp_cgroup_memory(&start.before);
    agent.signals = around.old_mask;
    agent.open_files = around.old_files;
    status = open_parts(job, &start, &agent, error);
    if (status == DP_OK) {
        fflush(NULL);
        start.mask = around.old_mask;
        start.signals = signalfd(-1, &around.heard, SFD_CLOEXEC | SFD_NONBLOCK);
        status = start.signals >= 0
                     ? start_agent(&start, &agent, error)
                     : dp_error_set(error, DP_ERR_SYSTEM, "signalfd: %s", strerror(errno));
    }
    close_fd(agent.channel);
    close_fd(agent.stdin_fd);
    if (status != DP_OK) {
        close_fd(start.channel);
        close_fd(start.listener);
        close_fd(start.pump_fd);
        close_fd(start.signals);
        if (start.guard_pid > 0) {
            dp_tree_await(start.guard_pid, AGENT_ENDS_NS);
        } else if (job->owns_run_dir) {
            dp_run_dir_remove(job->run_dir);
        }
        return status;
    }
    /* Only the rank keeps standard input, so that the program that writes to it notices its end. */
    if (start.pump_fd < 0 && start.nodes == NULL) {
        null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (null_fd >= 0) dup2(null_fd, STDIN_FILENO);
        close_fd(null_fd);
    }
    status = dp_supervisor_init(supervisor, &start, error);
    dp_job_forget_secret(job); /* rendezvous and fleet have copies until all have come */
    if (nodes != NULL) explicit_bzero(&nodes->secret, sizeof(nodes->secret));
    dp_auth_wipe_stack();
    if (status == DP_OK) return DP_OK;
    dp_supervisor_fini(supervisor); /* closes the channel: the agent ends all and cleans up */
    if (start.guard_pid > 0) dp_tree_await(start.guard_pid, AGENT_ENDS_NS);
    return status;
}

/* ---- End ------------------------------------------------------------------------------------ */

static const dp_tail_t *tail_of(const void *context, int rank)
{
    return dp_job_output_tail(context, rank);
}

static int has_failed(const dp_supervisor_t *supervisor)
{
    return supervisor->outcome != DP_OUTCOME_NONE &&
           supervisor->outcome != DP_OUTCOME_INTERRUPTED &&
           supervisor->outcome != DP_OUTCOME_NO_READER &&
           supervisor->outcome != DP_OUTCOME_NOT_STARTED;
}

/* Makes a run directory fit to be kept, and says what is kept. */
static void keep_run_dir(const dp_supervisor_t *supervisor, char *text, size_t room)
{
    const dp_job_t *job = supervisor->job;
    uint64_t bytes = 0;
    size_t files;
    char size[32];

    for (int rank = 0; rank < job->size && supervisor->fate.left == 0; rank++)
        dp_recorder_trim(job->run_dir, rank);
    files = dp_run_dir_files(job->run_dir, &bytes);
    if (job->command->keeps_run_dir) dp_run_dir_ask_for(job->run_dir);
    if (bytes < 1000000) {
        snprintf(size, sizeof(size), "%.0f kB", (double)bytes / 1e3);
    } else {
        snprintf(size, sizeof(size), "%.1f MB", (double)bytes / 1e6);
    }
    snprintf(text, room, "run directory %s (%zu file%s, %s)", job->run_dir, files,
             files == 1 ? "" : "s", size);
}

/* Merges the timeline, and tells whether the run directory is to be kept. saved is "" when nothing
 * was. */
static int settle_files(const dp_supervisor_t *supervisor, const dp_timeline_request_t *timeline,
                        char saved[SAVED_MAX])
{
    const dp_job_t *job = supervisor->job;
    char clocks[64];
    size_t files = job->run_dir[0] == '\0' ? 0 : dp_run_dir_files(job->run_dir, NULL);
    int keep = (job->command->keeps_run_dir && job->run_dir[0] != '\0') ||
               (files > 0 && has_failed(supervisor) && job->command->config.keep_runs > 0);
    size_t used = 0;
    dp_error_t error;

    saved[0] = '\0';
    if (timeline != NULL && files == 0) {
        dp_job_output_say(supervisor->output, "--timeline %s: no rank recorded anything",
                          timeline->file);
    } else if (timeline != NULL &&
               dp_timeline_request_merge(timeline, job->run_dir, &error) == DP_OK) {
        dp_supervisor_describe_clocks(supervisor, clocks, sizeof(clocks));
        used = (size_t)snprintf(saved, SAVED_MAX, "timeline %s%s%s%s%s", timeline->file,
                                clocks[0] != '\0' ? " (" : "", clocks, clocks[0] != '\0' ? ")" : "",
                                keep ? "; " : "");
    } else if (timeline != NULL) {
        dp_job_output_say(supervisor->output, "--timeline %s: %s", timeline->file, error.text);
        keep = 1; /* so that the merge can be repeated */
    }
    if (keep && used < SAVED_MAX) keep_run_dir(supervisor, saved + used, SAVED_MAX - used);
    return keep;
}

/* How ranks that were told to end did so. */
static void write_interruption(const dp_supervisor_t *supervisor, const char *what, FILE *out)
{
    const dp_fate_t *fate = &supervisor->fate;
    char elapsed[32];
    char killed[128];
    const int count = dp_report_killed(fate, killed, sizeof(killed));

    dp_format_elapsed((fate->stop_ns == 0 ? dp_now_ns() : fate->stop_ns) - fate->start_ns, elapsed,
                      sizeof(elapsed));
    fprintf(out, "dprun: %s at %s: ended %d rank%s", what, elapsed, fate->size,
            fate->size == 1 ? "" : "s");
    if (count > 0) fprintf(out, ", killed %d of them (rank %s)", count, killed);
    if (count > 0 && supervisor->is_cut) {
        fprintf(out, " at once, as asked");
    } else if (count > 0 && fate->kill_ns != 0) {
        fprintf(out, " after the grace time of %.6g s (--grace gives more)",
                (double)supervisor->job->command->grace_ns / 1e9);
    }
    fprintf(out, "%s, %d processes left\n", count == 0 ? " within the grace time" : "", fate->left);
}

static dp_report_t make_report(const dp_supervisor_t *supervisor, const char *saved)
{
    const dp_job_t *job = supervisor->job;

    return (dp_report_t){.fate = &supervisor->fate,
                         .node = job->host,
                         .tail = tail_of,
                         .context = supervisor->output,
                         .before = supervisor->before,
                         .after = supervisor->after,
                         .saved = saved[0] == '\0' ? NULL : saved,
                         .run_dir = job->run_dir[0] == '\0' ? NULL : job->run_dir,
                         .grace_ns = job->command->grace_ns,
                         .exit_code = dp_supervisor_exit_code(supervisor)};
}

static void write_report(const dp_supervisor_t *supervisor, const dp_report_t *report, FILE *out)
{
    char name[32];
    char what[64];

    switch (supervisor->outcome) {
    case DP_OUTCOME_FAILED:
        dp_report_failure(report, out);
        return;
    case DP_OUTCOME_TIMEOUT:
        dp_report_timeout(report, supervisor->job->command->timeout_ns, out);
        return;
    case DP_OUTCOME_INTERRUPTED:
        dp_signal_name(supervisor->signal, name, sizeof(name));
        snprintf(what, sizeof(what), "interrupted by %s", name);
        write_interruption(supervisor, what, out);
        break;
    case DP_OUTCOME_NO_READER:
        write_interruption(supervisor, "nobody reads the output any more", out);
        break;
    case DP_OUTCOME_AGENT_LOST:
        write_interruption(supervisor, "FAILED  its agent (a helper process of dprun) was killed",
                           out);
        break;
    case DP_OUTCOME_NOT_STARTED:
        fprintf(out, "dprun: nothing was started\n");
        break;
    case DP_OUTCOME_NONE:
        break;
    }
    if (report->saved != NULL) fprintf(out, "dprun: saved %s\n", report->saved);
}

/* For --report: as write_report() tells people. */
static void write_report_file(const dp_supervisor_t *supervisor, const dp_report_t *report,
                              const char *text, int fd)
{
    static const char *const outcomes[] = {
        [DP_OUTCOME_NONE] = "succeeded",          [DP_OUTCOME_FAILED] = "failed",
        [DP_OUTCOME_INTERRUPTED] = "interrupted", [DP_OUTCOME_TIMEOUT] = "timeout",
        [DP_OUTCOME_NO_READER] = "no_reader",     [DP_OUTCOME_AGENT_LOST] = "helper_lost",
        [DP_OUTCOME_NOT_STARTED] = "not_started"};
    const dp_command_t *command = supervisor->job->command;
    char name[32];
    dp_ending_t ending = {.outcome = outcomes[supervisor->outcome],
                          .argv = command->argv,
                          .size = supervisor->fate.size,
                          .elapsed_ns = dp_now_ns() - supervisor->fate.start_ns,
                          .text = text,
                          .exit_code = report->exit_code};
    dp_error_t error;

    if (supervisor->outcome == DP_OUTCOME_INTERRUPTED) {
        dp_signal_name(supervisor->signal, name, sizeof(name));
        ending.signal = name;
    }
    if (dp_report_file_end(command->report_file, fd, &ending, report, &error) != DP_OK)
        dp_job_output_say(supervisor->output, "%s", error.text);
    dp_report_file_for_torchrun(&ending, report);
}

static void end_job(dp_supervisor_t *supervisor, const dp_timeline_request_t *timeline,
                    int report_fd)
{
    char saved[SAVED_MAX];
    char *text = NULL;
    size_t bytes = 0;
    dp_report_t report;
    FILE *out;
    int keep;

    if (timeline != NULL || has_failed(supervisor) || supervisor->job->command->keeps_run_dir) {
        dp_supervisor_fetch(supervisor);
    }
    keep = settle_files(supervisor, timeline, saved);
    dp_supervisor_dismiss_agent(supervisor);
    report = make_report(supervisor, saved);
    out = open_memstream(&text, &bytes);
    if (out != NULL) {
        write_report(supervisor, &report, out); /* reads the recorders */
        if (fclose(out) == 0 && bytes > 0) dp_job_output_print(supervisor->output, text);
    }
    write_report_file(supervisor, &report, text != NULL ? text : "", report_fd);
    free(text);
    if (!keep && supervisor->job->run_dir[0] != '\0') {
        dp_run_dir_remove(supervisor->job->run_dir);
    }
    dp_supervisor_flush(supervisor);
}

/* Nothing was started: says why, to --report as well. */
static int refuse(const dp_command_t *command, int report_fd, uint64_t start_ns, int code,
                  const char *text)
{
    const dp_ending_t ending = {.outcome = "not_started",
                                .error = text,
                                .argv = command->argv,
                                .size = command->size,
                                .elapsed_ns = dp_now_ns() - start_ns,
                                .text = "",
                                .exit_code = code};
    dp_error_t error;

    if (dp_report_file_end(command->report_file, report_fd, &ending, NULL, &error) != DP_OK)
        (void)print_error(code, error.text);
    dp_report_file_for_torchrun(&ending, NULL);
    return print_error(code, text);
}

/* The last words of --check. Returns its exit code. */
static int end_check(dp_supervisor_t *supervisor)
{
    const int code = dp_supervisor_exit_code(supervisor);
    int wrong = supervisor->unfit;
    dp_report_t report;

    if (wrong < 0) {
        wrong = dp_check_nodes_print(supervisor->fleet, stdout);
        if (supervisor->fate.size > 1)
            printf("        network: not tried, for not all nodes are there\n");
    } else {
        wrong += code != 0;
    }
    dp_supervisor_dismiss_agent(supervisor);
    report = make_report(supervisor, "");
    /* A rank of it ends with 1 where it has said why. */
    if (code > 1) write_report(supervisor, &report, stderr);
    if (wrong == 0) {
        printf("these machines can run jobs\n");
    } else {
        printf("%d of these must be put right first\n", wrong);
    }
    fflush(stdout);
    return code == 0 && wrong > 0 ? 1 : code;
}

static int run_job(dp_job_t *job, dp_nodes_t *nodes, const dp_timeline_request_t *timeline,
                   int report_fd, uint64_t start_ns)
{
    dp_supervisor_t supervisor;
    dp_error_t error;
    int code;

    if (start_job(job, nodes, start_ns, &supervisor, &error) != DP_OK)
        return refuse(job->command, report_fd, start_ns, 1, error.text);
    dp_supervisor_run(&supervisor);
    if (job->command->action == DP_ACTION_CHECK) {
        code = end_check(&supervisor);
    } else {
        end_job(&supervisor, timeline, report_fd);
        code = dp_supervisor_exit_code(&supervisor);
    }
    dp_supervisor_fini(&supervisor);
    return code;
}

static int prepare_and_run(const dp_command_t *command, dp_nodes_t *nodes, uint64_t start_ns)
{
    const char *wanted = command->config.timeline;
    dp_timeline_request_t timeline;
    dp_error_t error;
    dp_job_t job;
    int report_fd = -1;
    int code;

    /* First, so that a report of another run does not stay where this one fails. */
    if (command->action == DP_ACTION_RUN &&
        dp_report_file_open(command->report_file, &report_fd, &error) != DP_OK) {
        return print_error(DP_EXIT_USAGE, error.text);
    }
    if (wanted[0] != '\0' && (dp_timeline_request_parse(wanted, &timeline, &error) != DP_OK ||
                              dp_timeline_request_check(&timeline, &error) != DP_OK)) {
        return refuse(command, report_fd, start_ns, DP_EXIT_USAGE, error.text);
    }
    if (nodes != NULL && command->action == DP_ACTION_DRY_RUN) {
        dp_dry_run_nodes(nodes, command, stdout);
        return 0;
    }
    if (nodes != NULL) {
        dp_job_init_remote(&job, command);
        code = 0;
    } else if (dp_job_init(&job, command, &code, &error) != DP_OK) {
        return refuse(command, report_fd, start_ns, code, error.text);
    }
    if (command->action == DP_ACTION_RUN && dp_job_output_make_dir(command, &error) != DP_OK) {
        dp_job_fini(&job);
        return refuse(command, report_fd, start_ns, DP_EXIT_USAGE, error.text);
    }
    if (command->action == DP_ACTION_DRY_RUN) {
        dp_dry_run_job(&job, stdout);
    } else {
        if (command->shares_gpu) {
            fprintf(stderr, "dprun: %d ranks share one GPU: functional test, not a benchmark\n",
                    job.size);
        }
        code = run_job(&job, nodes, wanted[0] == '\0' ? NULL : &timeline, report_fd, start_ns);
    }
    dp_job_fini(&job);
    return code;
}

static int check_nodes(dp_command_t *command, dp_nodes_t *nodes, uint64_t start_ns)
{
    char **words = calloc((size_t)nodes->hosts.count + 3, sizeof(*words));
    int code;

    if (words == NULL) return print_error(1, "out of memory");
    dp_check_nodes_prepare(nodes, command, words);
    code = prepare_and_run(command, nodes, start_ns);
    free(words);
    return code;
}

/* A job, wherever it runs. */
static int run_command(dp_command_t *command, uint64_t start_ns)
{
    dp_error_t error;
    dp_nodes_t nodes;
    int code;

    if (dp_nodes_plan(&nodes, command, &error) != DP_OK) {
        return print_error(DP_EXIT_USAGE, error.text);
    }
    dp_auth_wipe_stack();
    if (nodes.way == DP_NODES_JOIN && nodes.node > 0 && command->action != DP_ACTION_DRY_RUN) {
        code = dp_nodes_follow(&nodes, command);
    } else if (command->action == DP_ACTION_CHECK) {
        code = check_nodes(command, &nodes, start_ns);
    } else {
        code = prepare_and_run(command, nodes.way == DP_NODES_NONE ? NULL : &nodes, start_ns);
    }
    dp_nodes_fini(&nodes);
    return code;
}

int main(int argc, char **argv)
{
    uint64_t start_ns = dp_now_ns();
    dp_command_t command;
    dp_error_t error;
    dp_log_t log;
    int code = 0;

    fill_standard_files();
    dp_log_init(&log, DP_LOG_WARN, -1);
    if (dp_command_parse(argc, argv, &log, &command, &error) != DP_OK) {
        return print_error(DP_EXIT_USAGE, error.text);
    }
    switch (command.action) {
    case DP_ACTION_HELP:
        dp_help_print(argc > 1 ? stdout : stderr);
        code = argc > 1 ? 0 : DP_EXIT_USAGE;
        break;
    case DP_ACTION_VERSION:
        printf("dprun %d.%d.%d\n", DP_VERSION_MAJOR, DP_VERSION_MINOR, DP_VERSION_PATCH);
        break;
    case DP_ACTION_STATION:
        code = dp_station_main();
        break;
    case DP_ACTION_PROBE:
        code = dp_probe_run(command.argv);
        break;
    case DP_ACTION_CHECK:
        code = dp_nodes_are_asked(&command) ? run_command(&command, start_ns)
                                            : dp_check_run(command.size, stdout);
        break;
    case DP_ACTION_RUN:
    case DP_ACTION_DRY_RUN:
        code = run_command(&command, start_ns);
        break;
    }
    dp_command_fini(&command);
    return code;
}
