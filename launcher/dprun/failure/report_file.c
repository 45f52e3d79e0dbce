/*
 * report_file.c - see report_file.h. Called by dprun.c before the job and behind its end, on
 * dprun's only thread.
 */
#include "launcher/dprun/failure/report_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/config.h"
#include "runtime/base/json.h"

#define FORMAT 1
#define TEXT_MAX 256

static const char *const cause_names[] = {[DP_CAUSE_NODE_LOST] = "node_lost",
                                          [DP_CAUSE_LATE] = "late",
                                          [DP_CAUSE_STOPPED] = "stopped",
                                          [DP_CAUSE_NOT_STARTED] = "not_started",
                                          [DP_CAUSE_KILLED] = "killed",
                                          [DP_CAUSE_EXITED] = "exited",
                                          [DP_CAUSE_LEFT] = "left"};
static const char *const failure_names[DP_FAILURE_KINDS] = {
    [DP_FAILURE_OTHER] = "other",     [DP_FAILURE_LOST] = "lost",
    [DP_FAILURE_SILENT] = "silent",   [DP_FAILURE_STALLED] = "stalled",
    [DP_FAILURE_LATE] = "late",       [DP_FAILURE_ENDED] = "ended",
    [DP_FAILURE_ABORTED] = "aborted", [DP_FAILURE_MISMATCH] = "mismatch"};

/* ---- Fields --------------------------------------------------------------------------------- */

static void write_text(FILE *out, const char *name, const char *text)
{
    fprintf(out, ", \"%s\": ", name);
    if (text == NULL || text[0] == '\0') {
        fputs("null", out);
    } else {
        dp_json_string(out, text);
    }
}

/* On a clock that begins with dprun. */
static void write_time(FILE *out, const char *name, const dp_fate_t *fate, uint64_t at_ns)
{
    const double seconds = at_ns > fate->start_ns ? (double)(at_ns - fate->start_ns) / 1e9 : 0.0;

    fprintf(out, ", \"%s\": %.6f", name, seconds);
}

static const char *node_of(const dp_report_t *report, const dp_rank_fate_t *rank)
{
    return rank->node != NULL ? rank->node : report->node;
}

static void write_rank(FILE *out, const dp_report_t *report, int index)
{
    const dp_fate_t *fate = report->fate;
    const dp_rank_fate_t *rank = &fate->ranks[index];
    const int has_status = rank->has_ended && rank->start_error == 0 && rank->lost == NULL;
    char signal[32] = "";

    if (has_status && WIFSIGNALED(rank->status)) {
        dp_signal_name(WTERMSIG(rank->status), signal, sizeof(signal));
    }
    fprintf(out, "    {\"rank\": %d", index);
    write_text(out, "node", node_of(report, rank));
    fprintf(out, ", \"local_rank\": %d, \"pid\": %d", rank->local, rank->pid);
    if (has_status && WIFEXITED(rank->status)) {
        fprintf(out, ", \"exit_code\": %d", WEXITSTATUS(rank->status));
    } else {
        fputs(", \"exit_code\": null", out);
    }
    write_text(out, "signal", signal);
    if (rank->has_ended) {
        write_time(out, "ended_s", fate, rank->end_ns);
    } else {
        fputs(", \"ended_s\": null", out);
    }
    fprintf(out, ", \"told_to_end\": %s, \"peak_rss_bytes\": %" PRIu64,
            fate->stop_ns != 0 && (!rank->has_ended || rank->end_ns >= fate->stop_ns) ? "true"
                                                                                      : "false",
            rank->peak_kib * 1024);
    if (rank->has_reported) {
        fprintf(out, ", \"report\": {\"kind\": \"%s\", \"culprit\": ",
                failure_names[rank->failure.kind]);
        fprintf(out, rank->failure.culprit >= 0 ? "%d" : "null", rank->failure.culprit);
        write_text(out, "operation", rank->failure.operation);
        write_text(out, "text", rank->failure.text);
        fputc('}', out);
    }
    fputc('}', out);
}

static void write_cause(FILE *out, const dp_report_t *report)
{
    const dp_fate_t *fate = report->fate;
    const dp_verdict_t verdict = dp_fate_cause(fate);
    const dp_rank_fate_t *rank;
    const dp_tail_t *tail;
    dp_last_moments_t last;
    char what[TEXT_MAX];
    size_t lines = 0;

    if (verdict.cause < 0) return;
    rank = &fate->ranks[verdict.cause];
    dp_report_last_moments(report, verdict.cause, &last);
    dp_rank_describe(rank, what, sizeof(what));
    fprintf(out, "  \"cause\": {\"rank\": %d, \"kind\": \"%s\"", verdict.cause,
            cause_names[dp_fate_cause_kind(fate, &verdict)]);
    write_text(out, "node", node_of(report, rank));
    write_text(out, "text", rank->lost != NULL ? rank->lost : what);
    write_time(out, "at_s", fate, dp_fate_cause_ns(fate, &verdict));
    if (last.has_step || rank->failure.has_step) {
        fprintf(out, ", \"step\": %" PRIu64, last.has_step ? last.step : rank->failure.step);
    } else {
        fputs(", \"step\": null", out);
    }
    write_text(out, "last_operation", last.text);
    fprintf(out, ", \"out_of_memory\": %s",
            dp_report_saw_oom(report, what, sizeof(what)) ? "true" : "false");
    fprintf(out, ", \"first_failed\": %d, \"doubt\": ", verdict.failed);
    fprintf(out, verdict.doubt >= 0 ? "%d" : "null", verdict.doubt);
    fputs(", \"output\": [", out);
    tail = report->tail(report->context, verdict.cause);
    while (dp_tail_get(tail, lines) != NULL)
        lines++;
    for (size_t i = lines; i > 0; i--) {
        fputs(i == lines ? "" : ", ", out);
        dp_json_string(out, dp_tail_get(tail, i - 1));
    }
    fputs("]},\n", out);
}

static void write_json(FILE *out, const dp_ending_t *ending, const dp_report_t *report)
{
    fprintf(out, "{\"format\": %d, \"dprun\": \"%d.%d.%d\"", FORMAT, DP_VERSION_MAJOR,
            DP_VERSION_MINOR, DP_VERSION_PATCH);
    write_text(out, "outcome", ending->outcome);
    fprintf(out, ", \"exit_code\": %d", ending->exit_code);
    write_text(out, "signal", ending->signal);
    write_text(out, "error", ending->error);
    fprintf(out, ",\n  \"started\": %.3f, \"seconds\": %.6f, \"ranks\": %d, \"command\": [",
            (double)time(NULL) - (double)ending->elapsed_ns / 1e9, (double)ending->elapsed_ns / 1e9,
            ending->size);
    for (size_t i = 0; ending->argv[i] != NULL; i++) {
        fputs(i == 0 ? "" : ", ", out);
        dp_json_string(out, ending->argv[i]);
    }
    fputs("],\n", out);
    if (report != NULL) {
        if (strcmp(ending->outcome, "failed") == 0) write_cause(out, report);
        fprintf(out, "  \"processes_left\": %d", report->fate->left);
        write_text(out, "saved", report->saved);
        write_text(out, "run_dir", report->saved != NULL ? report->run_dir : NULL);
        fputs(",\n  \"ends\": [\n", out);
        for (int i = 0; i < report->fate->size; i++) {
            write_rank(out, report, i);
            fputs(i + 1 < report->fate->size ? ",\n" : "],\n", out);
        }
    }
    /* message and timestamp: torchrun's. */
    fprintf(out, "  \"timestamp\": %lld, \"message\": ", (long long)time(NULL));
    dp_json_string(out, ending->error != NULL ? ending->error : ending->text);
    fputs(",\n  \"text\": ", out);
    dp_json_string(out, ending->text);
    fputs("}\n", out);
}

/* ---- The file ------------------------------------------------------------------------------- */

static int is_json(const char *path)
{
    const size_t length = strlen(path);

    return length >= 5 && strcmp(path + length - 5, ".json") == 0;
}

dp_status_t dp_report_file_open(const char *path, int *fd, dp_error_t *error)
{
    *fd = -1;
    if (path == NULL) return DP_OK;
    /* NONBLOCK: a pipe that nobody reads is refused, instead of waited for. */
    *fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
    if (*fd >= 0) return DP_OK;
    return dp_error_set(error, DP_ERR_CONFIG, "--report %s: %s", path, strerror(errno));
}

dp_status_t dp_report_file_end(const char *path, int fd, const dp_ending_t *ending,
                               const dp_report_t *report, dp_error_t *error)
{
    FILE *out;
    int code;

    if (fd < 0) return DP_OK;
    out = fdopen(fd, "w");
    if (out == NULL) {
        code = errno;
        (void)close(fd);
        return dp_error_set(error, DP_ERR_SYSTEM, "--report %s: %s", path, strerror(code));
    }
    if (is_json(path)) {
        write_json(out, ending, report);
    } else {
        fputs(ending->error != NULL ? ending->error : ending->text, out);
        if (ending->error != NULL) fputc('\n', out);
    }
    code = fflush(out) != 0 || ferror(out) ? errno : 0;
    if (fclose(out) != 0 && code == 0) code = errno;
    if (code == 0) return DP_OK;
    return dp_error_set(error, DP_ERR_SYSTEM, "--report %s: cannot be written: %s", path,
                        strerror(code));
}

void dp_report_file_for_torchrun(const dp_ending_t *ending, const dp_report_t *report)
{
    const char *path = dp_environment("TORCHELASTIC_ERROR_FILE");
    dp_error_t error;
    int fd;

    if (path == NULL || ending->exit_code == 0 || !is_json(path)) return;
    /* Where it cannot be written, torchrun makes up a message from the exit code. */
    if (dp_report_file_open(path, &fd, &error) == DP_OK)
        (void)dp_report_file_end(path, fd, ending, report, &error);
}
