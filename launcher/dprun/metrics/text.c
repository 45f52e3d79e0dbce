/*
 * text.c - see text.h. A table of metrics: each has one line per rank, in the order of the table.
 */
#include "launcher/dprun/metrics/text.h"

#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/base/trace_format.h"

/* A rank as this moment finds it. */
typedef struct rank_sight {
    dp_trace_head_t head;
    uint64_t memory_bytes; /* resident; 0: unknown */
    int is_running, is_stopped;
} rank_sight_t;

typedef double value_t(const rank_sight_t *sight, uint64_t now_ns);

typedef struct metric {
    const char *name;
    const char *type;
    const char *help;
    const char *label; /* further labels, "" or ,name="value" */
    value_t *value;
} metric_t;

/* ---- Values --------------------------------------------------------------------------------- */

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

static double age(uint64_t since_ns, uint64_t now_ns)
{
    return now_ns > since_ns ? seconds(now_ns - since_ns) : 0;
}

static double is_up(const rank_sight_t *sight, uint64_t now_ns)
{
    (void)now_ns;
    return sight->is_running;
}

static double is_stopped(const rank_sight_t *sight, uint64_t now_ns)
{
    (void)now_ns;
    return sight->is_stopped;
}

static double memory_bytes(const rank_sight_t *sight, uint64_t now_ns)
{
    (void)now_ns;
    return (double)sight->memory_bytes;
}

static double steps(const rank_sight_t *sight, uint64_t now_ns)
{
    (void)now_ns;
    return (double)sight->head.steps;
}

static double step_number(const rank_sight_t *sight, uint64_t now_ns)
{
    (void)now_ns;
    return (double)sight->head.step;
}

static double step_seconds(const rank_sight_t *sight, uint64_t now_ns)
{
    (void)now_ns;
    return seconds(sight->head.step_ns);
}

/* Since the start, before the first one. */
static double step_age(const rank_sight_t *sight, uint64_t now_ns)
{
    return age(sight->head.steps > 0 ? sight->head.step_end_ns : sight->head.start_ns, now_ns);
}

static double waiting(const rank_sight_t *sight, uint64_t now_ns)
{
    return sight->head.waiting_ns == 0 ? 0 : age(sight->head.waiting_ns, now_ns);
}

static double wait_for_ranks(const rank_sight_t *sight, uint64_t now_ns)
{
    (void)now_ns;
    return seconds(sight->head.stats.skew_ns);
}

static double wait_for_data(const rank_sight_t *sight, uint64_t now_ns)
{
    const dp_stats_t *stats = &sight->head.stats;

    (void)now_ns;
    return seconds(stats->wait_ns - dp_min(stats->skew_ns, stats->wait_ns));
}

static double transfer(const rank_sight_t *sight, uint64_t now_ns)
{
    (void)now_ns;
    return seconds(sight->head.stats.transfer_ns);
}

static double cpu_coordinator(const rank_sight_t *sight, uint64_t now_ns)
{
    (void)now_ns;
    return seconds(sight->head.stats.coordinator_cpu_ns);
}

static double cpu_data_plane(const rank_sight_t *sight, uint64_t now_ns)
{
    (void)now_ns;
    return seconds(sight->head.stats.launch_cpu_ns);
}

#define COUNT_OF(field)                                                                            \
    static double count_##field(const rank_sight_t *sight, uint64_t now_ns)                        \
    {                                                                                              \
        (void)now_ns;                                                                              \
        return (double)sight->head.stats.field;                                                    \
    }

COUNT_OF(submitted)
COUNT_OF(completed)
COUNT_OF(failed)
COUNT_OF(buckets)
COUNT_OF(bytes_reduced)
COUNT_OF(bytes_packed)
COUNT_OF(bytes_wire)
COUNT_OF(control_sent)
COUNT_OF(trace_dropped)

/* ---- The table ------------------------------------------------------------------------------ */

/* Rows of one name stand together. docs/launch.md and examples/operations name them. */
static const metric_t metrics[] = {
    {"dp_up", "gauge", "1 while the rank's process runs.", "", is_up},
    {"dp_stopped", "gauge", "1 while a signal or a debugger holds the rank's process.", "",
     is_stopped},
    {"dp_memory_bytes", "gauge", "Resident memory of the rank's process.", "", memory_bytes},
    {"dp_steps_total", "counter", "Steps that have ended.", "", steps},
    {"dp_step", "gauge", "The program's number of the latest step.", "", step_number},
    {"dp_step_seconds_total", "counter", "Time inside of steps.", "", step_seconds},
    {"dp_step_age_seconds", "gauge", "Time since the latest step ended.", "", step_age},
    {"dp_waiting_seconds", "gauge", "For how long a thread has been waiting in libdp; 0: none is.",
     "", waiting},
    {"dp_wait_seconds_total", "counter", "Time that the program's threads were blocked in libdp.",
     ",for=\"ranks\"", wait_for_ranks},
    {"dp_wait_seconds_total", "counter", NULL, ",for=\"data\"", wait_for_data},
    {"dp_transfer_seconds_total", "counter", "Time of packing, reducing and unpacking.", "",
     transfer},
    {"dp_cpu_seconds_total", "counter", "CPU time of libdp's threads.", ",thread=\"coordinator\"",
     cpu_coordinator},
    {"dp_cpu_seconds_total", "counter", NULL, ",thread=\"data_plane\"", cpu_data_plane},
    {"dp_operations_submitted_total", "counter", "Operations submitted.", "", count_submitted},
    {"dp_operations_completed_total", "counter", "Of these, over, failed or not.", "",
     count_completed},
    {"dp_operations_failed_total", "counter", "Of these, failed.", "", count_failed},
    {"dp_buckets_total", "counter", "Transfers, each of one tensor or of several fused.", "",
     count_buckets},
    {"dp_reduced_bytes_total", "counter", "Payload of completed operations.", "",
     count_bytes_reduced},
    {"dp_packed_bytes_total", "counter", "Of these, copied through a fused buffer.", "",
     count_bytes_packed},
    {"dp_sent_bytes_total", "counter", "Bytes sent to other nodes.", "", count_bytes_wire},
    {"dp_control_messages_total", "counter", "Messages of the negotiation that were sent.", "",
     count_control_sent},
    {"dp_recorder_dropped_total", "counter", "Records of the timeline that were overwritten.", "",
     count_trace_dropped},
};

/* ---- Ranks ---------------------------------------------------------------------------------- */

static void look_at_process(rank_sight_t *sight)
{
    const int pid = sight->head.pid;
    unsigned long long pages = 0;
    char path[64], state = '?';
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    file = fopen(path, "re");
    if (file != NULL) {
        if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = '?';
        fclose(file);
    }
    sight->is_running = state != '?' && state != 'Z' && state != 'X';
    sight->is_stopped = state == 'T' || state == 't';
    snprintf(path, sizeof(path), "/proc/%d/statm", pid);
    file = fopen(path, "re");
    if (file == NULL) return;
    if (fscanf(file, "%*u %llu", &pages) == 1)
        sight->memory_bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    fclose(file);
}

/* As Prometheus wants it between quotes. */
static void write_label(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\n') {
            fputs("\\n", out);
        } else {
            if (*text == '"' || *text == '\\') fputc('\\', out);
            fputc(*text, out);
        }
    }
}

void dp_metrics_write(const dp_metrics_source_t *source, uint64_t now_ns, FILE *out)
{
    rank_sight_t *sights = calloc((size_t)source->count, sizeof(*sights));
    int *is_there = calloc((size_t)source->count, sizeof(*is_there));

    for (int i = 0; sights != NULL && is_there != NULL && i < source->count; i++) {
        char path[PATH_MAX + 32];

        snprintf(path, sizeof(path), "%s/trace.%d.dpt", source->run_dir, source->first_rank + i);
        is_there[i] = dp_trace_head_read(path, &sights[i].head, NULL) == DP_OK;
        if (is_there[i] && sights[i].head.end_ns == 0) look_at_process(&sights[i]);
    }
    for (size_t m = 0; is_there != NULL && sights != NULL && m < DP_ARRAY_LEN(metrics); m++) {
        const metric_t *metric = &metrics[m];

        if (metric->help != NULL) {
            fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", metric->name, metric->help, metric->name,
                    metric->type);
        }
        for (int i = 0; i < source->count; i++) {
            if (!is_there[i]) continue;
            fprintf(out, "%s{rank=\"%d\",node=\"", metric->name, source->first_rank + i);
            write_label(out, source->node);
            fprintf(out, "\"%s} %.15g\n", metric->label, metric->value(&sights[i], now_ns));
        }
    }
    free(sights);
    free(is_there);
}
