/*
 * report.c - the failure block, for a reader who has five seconds.
 *
 * dprun.c calls it when no rank is left. It prints the verdict of fate.c and what is known around
 * it; a hint is worded as one, and where two ranks could be the cause, the block says so. It
 * decides nothing.
 */
#include "launcher/dprun/failure/report.h"

#include <inttypes.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "launcher/dprun/job.h"
#include "launcher/dprun/output/output.h"
#include "runtime/base/limits.h"

#define OUTPUT_LINES 8
#define TEXT_MAX 256

void dp_signal_name(int number, char *text, size_t room)
{
    const char *name = sigabbrev_np(number);

    if (name != NULL) {
        snprintf(text, room, "SIG%s", name);
    } else {
        snprintf(text, room, "signal %d", number);
    }
}

void dp_rank_describe(const dp_rank_fate_t *rank, char *text, size_t room)
{
    char name[32];

    if (rank->lost != NULL) {
        snprintf(text, room, "was lost with node %s", rank->node);
    } else if (rank->start_error != 0) {
        snprintf(text, room, "could not be started: %s%s",
                 dp_limits_describe_start(rank->start_error),
                 rank->start_error == ENOEXEC  ? " (a script without #! line?)"
                 : rank->start_error == ENOENT ? " (the program is there, but not its loader or "
                                                 "interpreter)"
                                               : "");
    } else if (WIFSIGNALED(rank->status)) {
        dp_signal_name(WTERMSIG(rank->status), name, sizeof(name));
        snprintf(text, room, "was killed by %s", name);
    } else {
        snprintf(text, room, "exited with code %d", WEXITSTATUS(rank->status));
    }
}

void dp_format_ranks(const unsigned char *is_member, int size, char *text, size_t room)
{
    size_t used = 0;

    text[0] = '\0';
    for (int first = 0; first < size; first++) {
        char part[32];
        int last = first;

        if (!is_member[first]) continue;
        while (last + 1 < size && is_member[last + 1]) {
            last++;
        }
        if (last == first) {
            snprintf(part, sizeof(part), "%d", first);
        } else {
            snprintf(part, sizeof(part), last == first + 1 ? "%d,%d" : "%d-%d", first, last);
        }
        if (used + strlen(part) + 6 > room) { /* a comma before, ",..." after */
            snprintf(text + used, room - used, ",...");
            return;
        }
        used += (size_t)snprintf(text + used, room - used, "%s%s", used == 0 ? "" : ",", part);
        first = last;
    }
}

static void format_memory(int64_t bytes, char *text, size_t room)
{
    double value = (double)bytes / (1 << 20);

    if (value >= 1024) {
        snprintf(text, room, "%.1f GiB", value / 1024);
    } else {
        snprintf(text, room, "%.0f MiB", value);
    }
}

/* ---- Cause ---------------------------------------------------------------------------------- */

int dp_report_saw_oom(const dp_report_t *report, char *text, size_t room)
{
    const dp_memory_sight_t *before = &report->before;
    const dp_memory_sight_t *after = &report->after;

    if (before->cgroup_kills >= 0 && after->cgroup_kills > before->cgroup_kills) {
        snprintf(text, room, "out of memory: cgroup oom_kill %lld -> %lld",
                 (long long)before->cgroup_kills, (long long)after->cgroup_kills);
        return 1;
    }
    if (before->system_kills >= 0 && after->system_kills > before->system_kills) {
        snprintf(text, room, "probably out of memory: the machine's oom_kill %lld -> %lld",
                 (long long)before->system_kills, (long long)after->system_kills);
        return 1;
    }
    return 0;
}

/* The meaning that an exit code has by convention, or NULL. */
static const char *hint_of_code(int code)
{
    if (code == DP_EXIT_NOT_FOUND) return "a shell's code for: command not found";
    if (code == DP_EXIT_NOT_EXECUTABLE) return "a shell's code for: command not executable";
    return NULL;
}

static const char *hint_of_signal(int number)
{
    switch (number) {
    case SIGSEGV:
        return "invalid memory access";
    case SIGBUS:
        return "memory that its file cannot back: a full or truncated file?";
    case SIGABRT:
        return "abort(), often after an assertion; see output";
    case SIGFPE:
        return "integer division by zero or overflow";
    case SIGILL:
        return "illegal instruction: built for another CPU?";
    case SIGXCPU:
        return "CPU time limit (ulimit -t)";
    case SIGXFSZ:
        return "file size limit (ulimit -f)";
    case SIGPIPE:
        return "wrote to a pipe or socket nobody reads";
    default:
        return NULL;
    }
}

static void write_cause(const dp_report_t *report, const dp_rank_fate_t *rank, FILE *out)
{
    int is_signal = WIFSIGNALED(rank->status) && rank->start_error == 0;
    const char *hint = is_signal ? hint_of_signal(WTERMSIG(rank->status))
                                 : hint_of_code(WEXITSTATUS(rank->status));
    char what[TEXT_MAX];
    char peak[32];
    char limit[32];

    fprintf(out, "  cause    ");
    dp_rank_describe(rank, what, sizeof(what));
    if (is_signal && WTERMSIG(rank->status) == SIGKILL) {
        int64_t bound =
            report->after.limit_bytes > 0 ? report->after.limit_bytes : report->after.total_bytes;

        if (!dp_report_saw_oom(report, what, sizeof(what))) {
            snprintf(what, sizeof(what),
                     "killed from outside, not by dprun; no out-of-memory kill seen");
        }
        format_memory((int64_t)rank->peak_kib * 1024, peak, sizeof(peak));
        format_memory(bound, limit, sizeof(limit));
        fprintf(out, "%s; peak RSS %s", what, peak);
        if (bound > 0) fprintf(out, " of %s", limit);
    } else if (!is_signal && rank->start_error == 0 && WEXITSTATUS(rank->status) > 128 &&
               sigabbrev_np(WEXITSTATUS(rank->status) - 128) != NULL) {
        fprintf(out, "%s: a shell's way to say SIG%s", what,
                sigabbrev_np(WEXITSTATUS(rank->status) - 128));
    } else {
        fputs(what, out);
        if (hint != NULL) fprintf(out, ": %s", hint);
    }
    if (is_signal && WCOREDUMP(rank->status)) fputs("; core dumped", out);
    fputc('\n', out);
}

/* All ranks of a node went with it: the node is what failed. */
static void write_lost_node(const dp_report_t *report, const dp_rank_fate_t *rank, FILE *out)
{
    const dp_fate_t *fate = report->fate;
    unsigned char *is_member = calloc((size_t)fate->size, 1);
    char ranks[128] = "?";
    char elapsed[32];

    for (int i = 0; is_member != NULL && i < fate->size; i++) {
        is_member[i] = fate->ranks[i].lost == rank->lost;
    }
    if (is_member != NULL) dp_format_ranks(is_member, fate->size, ranks, sizeof(ranks));
    free(is_member);
    dp_format_elapsed(rank->end_ns - fate->start_ns, elapsed, sizeof(elapsed));
    fprintf(out, "dprun: FAILED  node %s (rank %s): lost after %s\n", rank->node, ranks, elapsed);
    fprintf(out, "  cause    %s\n", rank->lost);
}

static void write_heading(const dp_report_t *report, const dp_verdict_t *verdict,
                          const dp_last_moments_t *last, FILE *out)
{
    const dp_fate_t *fate = report->fate;
    const dp_rank_fate_t *rank = &fate->ranks[verdict->cause];
    const dp_cause_kind_t kind = dp_fate_cause_kind(fate, verdict);
    int has_step = last->has_step || rank->failure.has_step;
    uint64_t step = last->has_step ? last->step : rank->failure.step;
    char what[TEXT_MAX];
    char name[32];
    char elapsed[32];

    if (kind == DP_CAUSE_NODE_LOST) {
        write_lost_node(report, rank, out);
        return;
    }
    dp_format_elapsed(dp_fate_cause_ns(fate, verdict) - fate->start_ns, elapsed, sizeof(elapsed));
    switch (kind) {
    case DP_CAUSE_LATE:
        snprintf(what, sizeof(what), "waited for in vain");
        break;
    case DP_CAUSE_STOPPED:
        dp_signal_name(rank->stopped_by, name, sizeof(name));
        snprintf(what, sizeof(what), "stopped by %s", name);
        break;
    case DP_CAUSE_NOT_STARTED:
        snprintf(what, sizeof(what), "not started");
        break;
    case DP_CAUSE_KILLED:
        dp_signal_name(WTERMSIG(rank->status), what, sizeof(what));
        break;
    default:
        snprintf(what, sizeof(what), "exit code %d", WEXITSTATUS(rank->status));
        break;
    }
    fprintf(out, "dprun: FAILED  rank %d (%s, local %d", verdict->cause,
            rank->node != NULL ? rank->node : report->node, rank->local);
    if (rank->pid > 0) fprintf(out, ", pid %d", rank->pid);
    if (has_step) {
        fprintf(out, "): %s at step %" PRIu64 ", %s\n", what, step, elapsed);
    } else {
        fprintf(out, "): %s after %s\n", what, elapsed);
    }
    switch (kind) {
    case DP_CAUSE_LATE:
        fprintf(out,
                "  cause    it was running, but did not do what the others waited for: does it "
                "hang,\n           or take another path?\n");
        break;
    case DP_CAUSE_STOPPED:
        fprintf(out, "  cause    it stands still (SIGSTOP, a debugger?); the others gave it up\n");
        break;
    case DP_CAUSE_LEFT:
        fprintf(out,
                "  cause    it left with exit code 0 while others still needed it: fewer steps "
                "than theirs,\n           or no dp_finalize()?\n");
        break;
    default:
        write_cause(report, rank, out);
        break;
    }
}

/* ---- The others ----------------------------------------------------------------------------- */

/* Where no recorder tells more: what the rank itself said as its world ended. */
static void write_last_report(const dp_rank_fate_t *rank, FILE *out)
{
    const dp_failure_t *failure = &rank->failure;
    uint64_t ago_ns = rank->end_ns > rank->failure_ns ? rank->end_ns - rank->failure_ns : 0;

    if (rank->blames < 0) { /* its own end: the text says it best */
        fprintf(out, "  last op  %s (%.3f s before)\n", failure->text, (double)ago_ns / 1e9);
    } else if (failure->operation[0] != '\0') {
        fprintf(out, "  last op  waiting for %s, submitted %.3f s before\n", failure->operation,
                (double)(ago_ns + failure->operation_ns) / 1e9);
    }
}

static void write_last_op(const dp_report_t *report, int cause, const dp_last_moments_t *last,
                          FILE *out)
{
    const dp_rank_fate_t *rank = &report->fate->ranks[cause];
    int joined = 0;

    if (last->text[0] != '\0') {
        fprintf(out, "  last op  %s\n", last->text);
        return;
    }
    if (rank->has_reported) {
        write_last_report(rank, out);
        return;
    }
    for (int i = 0; i < report->fate->size; i++) {
        const dp_rank_fate_t *other = &report->fate->ranks[i];

        joined += other->has_joined;
        /* All had met, in the program's own store: some came here only to report. */
        if (other->has_reported && other->failure.kind != DP_FAILURE_LATE &&
            other->failure.kind != DP_FAILURE_ENDED)
            return;
    }
    if (joined > 0 && !rank->has_joined) {
        fprintf(out, "  last op  it never came to the rendezvous; %d of %d ranks did\n", joined,
                report->fate->size);
    }
}

static void write_output(const dp_report_t *report, int cause, FILE *out)
{
    const dp_tail_t *tail = report->tail(report->context, cause);
    size_t count = 0;

    while (count < OUTPUT_LINES && dp_tail_get(tail, count) != NULL) {
        count++;
    }
    if (count == 0) fprintf(out, "  output   none\n");
    for (size_t i = count; i > 0; i--) {
        fprintf(out, "  %-8s [%d] %s\n", i == count ? "output" : "", cause,
                dp_tail_get(tail, i - 1));
    }
}

static void write_doubt(const dp_report_t *report, const dp_verdict_t *verdict, FILE *out)
{
    const dp_fate_t *fate = report->fate;
    const dp_rank_fate_t *rank = &fate->ranks[verdict->cause];
    const dp_rank_fate_t *failed = &fate->ranks[verdict->failed];
    const char *label = "doubt";
    char what[TEXT_MAX];
    char elapsed[32];

    if (verdict->failed != verdict->cause) { /* the verdict rests on a report: show it */
        char after[32] = "";

        if (failed->failure.kind == DP_FAILURE_SILENT && failed->failure.age_ns > 0)
            snprintf(after, sizeof(after), " after %.1f s", (double)failed->failure.age_ns / 1e9);
        fprintf(out, "  told by  rank %d%s: %s\n", verdict->failed, after, failed->failure.text);
        return;
    }
    if (verdict->doubt >= 0) {
        const dp_rank_fate_t *other = &fate->ranks[verdict->doubt];
        double apart = ((double)other->end_ns - (double)rank->end_ns) / 1e6;

        dp_rank_describe(other, what, sizeof(what));
        fprintf(out, "  %-8s rank %d %s %.1f ms %s: it may be the cause as well\n", label,
                verdict->doubt, what, apart < 0 ? -apart : apart, apart < 0 ? "before" : "after");
        label = "";
    }
    if (rank->blames >= 0 && !WIFSIGNALED(rank->status)) { /* but that one was alive */
        fprintf(out, "  %-8s it says: %s\n", label, rank->failure.text);
        label = "";
    }
    for (int i = 0; i < fate->size; i++) {
        const dp_rank_fate_t *other = &fate->ranks[i];

        if (i != verdict->cause && dp_rank_is_stopped(other, rank->end_ns)) {
            dp_signal_name(other->stopped_by, what, sizeof(what));
            dp_format_elapsed(other->stopped_ns - fate->start_ns, elapsed, sizeof(elapsed));
            fprintf(out,
                    "  %-8s rank %d (pid %d) stood stopped by %s since %s: ranks that waited "
                    "for it may have given up\n",
                    label, i, other->pid, what, elapsed);
            label = "";
        } else if (i != verdict->cause && other->has_ended && !dp_rank_failed(other) &&
                   other->end_ns < rank->end_ns) {
            dp_format_elapsed(other->end_ns - fate->start_ns, elapsed, sizeof(elapsed));
            fprintf(out,
                    "  %-8s rank %d had exited with code 0 at %s: the others may have missed it\n",
                    label, i, elapsed);
            label = "";
            if (fate->size > 16) break; /* one is hint enough */
        }
    }
}

/* How a rank that is not the cause ended. */
static void describe_victim(const dp_fate_t *fate, const dp_rank_fate_t *rank, char *text,
                            size_t room)
{
    int is_signal = WIFSIGNALED(rank->status);
    int is_told = fate->stop_ns != 0 && rank->end_ns >= fate->stop_ns;
    char name[32];

    if (!rank->has_ended) {
        snprintf(text, room, rank->pid == 0 ? "not started" : "end not seen");
    } else if (!is_told) {
        dp_rank_describe(rank, text, room);
    } else if (is_signal && WTERMSIG(rank->status) == SIGKILL && fate->kill_ns != 0 &&
               rank->end_ns >= fate->kill_ns) {
        snprintf(text, room, "killed by dprun: SIGTERM was not enough");
    } else if (is_signal && WTERMSIG(rank->status) == SIGTERM) {
        snprintf(text, room, "stopped by dprun");
    } else if (is_signal) {
        dp_signal_name(WTERMSIG(rank->status), name, sizeof(name));
        snprintf(text, room, "told to stop, ended by %s", name);
    } else {
        snprintf(text, room, "told to stop, exit code %d", WEXITSTATUS(rank->status));
    }
}

/* One line per way to end, with the ranks that share it. except: not among them; -1: all. */
static void
write_groups(const dp_fate_t *fate, const char *label, int except,
             void (*describe)(const dp_fate_t *, const dp_rank_fate_t *, char *, size_t), FILE *out)
{
    unsigned char *is_done = calloc((size_t)fate->size, 1);
    unsigned char *is_member = calloc((size_t)fate->size, 1);

    for (int i = 0; is_done != NULL && is_member != NULL && i < fate->size; i++) {
        char text[TEXT_MAX + 32];
        char other[TEXT_MAX + 32];
        char ranks[128];
        int has_ended = fate->ranks[i].has_ended;

        if (is_done[i] || i == except) continue;
        describe(fate, &fate->ranks[i], text, sizeof(text));
        memset(is_member, 0, (size_t)fate->size);
        for (int k = i; k < fate->size; k++) {
            if (is_done[k] || k == except || fate->ranks[k].has_ended != has_ended) continue;
            describe(fate, &fate->ranks[k], other, sizeof(other));
            if (strcmp(text, other) != 0) continue;
            is_done[k] = is_member[k] = 1;
        }
        dp_format_ranks(is_member, fate->size, ranks, sizeof(ranks));
        fprintf(out, "  %-8s %s: %s\n", label, ranks, text);
        label = "";
    }
    free(is_member);
    free(is_done);
}

static void write_left_and_exit(const dp_report_t *report, FILE *out)
{
    if (report->saved != NULL) fprintf(out, "  saved    %s\n", report->saved);
    fprintf(out, "  left     %d processes%s\n", report->fate->left,
            report->fate->left > 0 ? ": they do not die (stuck in a driver?)" : "");
    fprintf(out, "  exit     %d\n", report->exit_code);
}

void dp_report_last_moments(const dp_report_t *report, int rank, dp_last_moments_t *last)
{
    const dp_rank_fate_t *fate = &report->fate->ranks[rank];

    *last = (dp_last_moments_t){.text = ""};
    if (report->run_dir == NULL) return;
    dp_recorder_last(
        report->run_dir, rank,
        (fate->stopped_by != 0 ? fate->stopped_ns : fate->end_ns) + (uint64_t)fate->clock_ns, last);
}

void dp_report_failure(const dp_report_t *report, FILE *out)
{
    const dp_verdict_t verdict = dp_fate_cause(report->fate);
    dp_last_moments_t last;

    if (verdict.cause < 0) return;
    dp_report_last_moments(report, verdict.cause, &last);
    write_heading(report, &verdict, &last, out);
    write_last_op(report, verdict.cause, &last, out);
    write_doubt(report, &verdict, out);
    write_output(report, verdict.cause, out);
    write_groups(report->fate, "victims", verdict.cause, describe_victim, out);
    write_left_and_exit(report, out);
}

/* The state of a rank when time ran out. */
static void describe_last(const dp_fate_t *fate, const dp_rank_fate_t *rank, char *text,
                          size_t room)
{
    char name[32];

    if (rank->has_ended && (fate->stop_ns == 0 || rank->end_ns < fate->stop_ns)) {
        dp_rank_describe(rank, text, room);
    } else if (rank->stopped_by != 0) {
        dp_signal_name(rank->stopped_by, name, sizeof(name));
        snprintf(text, room, "stands stopped by %s", name);
    } else if (rank->has_reported) {
        snprintf(text, room, "last op: %s", rank->failure.text);
    } else {
        snprintf(text, room, "running");
    }
}

int dp_report_killed(const dp_fate_t *fate, char *ranks, size_t room)
{
    unsigned char *is_killed = calloc((size_t)fate->size, 1);
    int count = 0;

    snprintf(ranks, room, "?");
    for (int i = 0; is_killed != NULL && i < fate->size; i++) {
        const dp_rank_fate_t *rank = &fate->ranks[i];
        const int is_ours = fate->kill_ns != 0 && WIFSIGNALED(rank->status) &&
                            WTERMSIG(rank->status) == SIGKILL && rank->end_ns >= fate->kill_ns;

        is_killed[i] = rank->pid != 0 && (!rank->has_ended || is_ours);
        count += is_killed[i];
    }
    if (is_killed != NULL) dp_format_ranks(is_killed, fate->size, ranks, room);
    free(is_killed);
    return count;
}

void dp_report_timeout(const dp_report_t *report, uint64_t limit_ns, FILE *out)
{
    char ranks[128];

    fprintf(out, "dprun: TIMEOUT  the job ran longer than %.6g s\n", (double)limit_ns / 1e9);
    write_groups(report->fate, "ranks", -1, describe_last, out);
    if (dp_report_killed(report->fate, ranks, sizeof(ranks)) > 0) {
        fprintf(out,
                "  killed   %s: still there after the grace time of %.6g s (--grace gives more)\n",
                ranks, (double)report->grace_ns / 1e9);
    }
    write_left_and_exit(report, out);
}
