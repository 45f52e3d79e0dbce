/*
 * top.c - see top.h.
 *
 * A rank's recorder tells what its program has begun and not ended, and when it last ended
 * something; the analysis of the last steps tells where their time went. Both are read anew for
 * each frame: the job is never asked, and cannot notice.
 */
#include "launcher/dptrace/top.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/dptrace/analysis.h"

#define STEPS 20            /* the last so many are averaged */
#define QUIET_NS 1000000000 /* a rank that ends nothing for so long is told */
#define RANKS_SHOWN 64

typedef struct rank_now {
    int rank;
    char host[64];
    int has_step; /* has ended one */
    uint64_t step;
    uint64_t since_ns; /* the innermost thing that is open began; the last thing ended */
    int is_open;       /* that it is in something */
    int is_over;       /* its recorder is closed: it has left */
    int is_stopped;
    char doing[160];
} rank_now_t;

typedef struct sight {
    rank_now_t *ranks;
    size_t count, room;
    int size; /* of the job */
    uint64_t start_ns;
} sight_t;

/* ---- Each rank ------------------------------------------------------------------------------ */

static int is_of_program(const dp_trace_file_t *file, const dp_trace_event_t *event)
{
    return event->track < file->track_count &&
           file->tracks[event->track].kind == DP_TRACE_TRACK_THREAD;
}

static void describe(const dp_trace_file_t *file, const dp_trace_record_t *record, char *text,
                     size_t room)
{
    char name[96];

    dp_trace_file_name(file, record->name, name, sizeof(name));
    dp_text_mask(name);
    if (record->kind == DP_TRACE_SPAN) {
        snprintf(text, room, "%s", name);
    } else if (record->kind == DP_TRACE_WAIT) {
        snprintf(text, room, "waiting for %s", name[0] == '\0' ? "all it has submitted" : name);
    } else {
        snprintf(text, room, "%s %s", dp_trace_kind_name((dp_trace_kind_t)record->kind), name);
    }
}

/* By a signal or a debugger. */
static int is_stopped(int pid)
{
    char path[64], state = '?';
    FILE *stat;

    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    stat = fopen(path, "re");
    if (stat == NULL) return 0;
    if (fscanf(stat, "%*d (%*[^)]) %c", &state) != 1) state = '?';
    fclose(stat);
    return state == 'T' || state == 't';
}

/* The innermost event that is open, or else the last that ended. */
static void look_at_file(const dp_trace_file_t *file, rank_now_t *now)
{
    const dp_trace_event_t *open = NULL, *last = NULL;
    char text[128];

    *now = (rank_now_t){.rank = file->rank,
                        .is_over = file->end_ns != 0,
                        .is_stopped = file->end_ns == 0 && is_stopped(file->pid)};
    snprintf(now->host, sizeof(now->host), "%.63s", file->host);
    dp_text_mask(now->host);
    for (size_t i = 0; i < file->event_count; i++) {
        const dp_trace_event_t *event = &file->events[i];
        const uint64_t end_ns = event->record.start_ns + event->record.duration_ns;

        if (!is_of_program(file, event)) continue;
        if (event->record.kind == DP_TRACE_STEP) {
            if (event->is_open || (now->has_step && event->record.id < now->step)) continue;
            now->has_step = 1;
            now->step = event->record.id;
        } else if (event->is_open) {
            if (open == NULL || event->record.start_ns >= open->record.start_ns) open = event;
        } else if (last == NULL || end_ns >= last->record.start_ns + last->record.duration_ns) {
            last = event;
        }
    }
    now->since_ns = file->start_ns;
    if (now->is_over) {
        snprintf(now->doing, sizeof(now->doing), "has left");
    } else if (open != NULL) {
        describe(file, &open->record, text, sizeof(text));
        snprintf(now->doing, sizeof(now->doing), "%s%s",
                 open->record.kind == DP_TRACE_SPAN ? "in " : "", text);
        now->since_ns = open->record.start_ns;
        now->is_open = 1;
    } else if (last != NULL) {
        describe(file, &last->record, text, sizeof(text));
        snprintf(now->doing, sizeof(now->doing), "after %s", text);
        now->since_ns = last->record.start_ns + last->record.duration_ns;
    } else {
        snprintf(now->doing, sizeof(now->doing), "nothing recorded yet");
    }
}

static int compare_ranks(const void *a, const void *b)
{
    const rank_now_t *left = a, *right = b;

    return (left->rank > right->rank) - (left->rank < right->rank);
}

static int is_recorder(const char *name)
{
    int rank, length = 0;

    return sscanf(name, "trace.%d.dpt%n", &rank, &length) == 1 && name[length] == '\0' &&
           length > 0;
}

static dp_status_t look(const char *run_dir, sight_t *sight, dp_error_t *error)
{
    DIR *list = opendir(run_dir);
    dp_status_t status = DP_OK;
    struct dirent *entry;

    if (list == NULL) return dp_error_set(error, DP_ERR_SYSTEM, "%s: %s", run_dir, strerror(errno));
    while (status == DP_OK && (entry = readdir(list)) != NULL) {
        char path[PATH_MAX];
        dp_trace_file_t file;

        if (!is_recorder(entry->d_name)) continue;
        snprintf(path, sizeof(path), "%.3800s/%.200s", run_dir, entry->d_name);
        /* It may have been made at this moment, and not be one yet. */
        if (dp_trace_file_open(path, &file, NULL) != DP_OK) continue;
        if (dp_grow(&sight->ranks, sight->count, &sight->room, sizeof(*sight->ranks))) {
            look_at_file(&file, &sight->ranks[sight->count++]);
            sight->size = file.size;
            if (sight->start_ns == 0 || file.start_ns < sight->start_ns)
                sight->start_ns = file.start_ns;
        } else {
            status = dp_error_set(error, DP_ERR_NO_MEMORY, "no memory");
        }
        dp_trace_file_close(&file);
    }
    closedir(list);
    if (sight->count > 0) qsort(sight->ranks, sight->count, sizeof(*sight->ranks), compare_ranks);
    if (status == DP_OK && sight->count == 0)
        return dp_error_set(error, DP_ERR_BUSY, "%s: no rank has recorded anything yet", run_dir);
    return status;
}

/* ---- The last steps ------------------------------------------------------------------------- */

/* Loads the steps that every rank has ended. 0: there is none yet, or they cannot be read now. */
static int load_steps(const char *run_dir, const sight_t *sight, dp_timeline_t *timeline,
                      dp_analysis_t *analysis)
{
    uint64_t last = UINT64_MAX;
    dp_step_window_t window = {.is_set = 1};
    dp_error_t error;

    for (size_t i = 0; i < sight->count; i++) {
        if (!sight->ranks[i].has_step) return 0;
        last = dp_min(last, sight->ranks[i].step);
    }
    window.last = last;
    window.first = last >= STEPS - 1 ? last - (STEPS - 1) : 0;
    if (dp_timeline_load(run_dir, &window, timeline, &error) != DP_OK) return 0;
    if (dp_analyse(timeline, analysis) == DP_OK && analysis->has_steps) return 1;
    dp_timeline_fini(timeline);
    return 0;
}

static void write_steps(const dp_analysis_t *analysis, FILE *file)
{
    const double whole = analysis->step_ns > 0 ? analysis->step_ns : 1;
    const char *separator = ":";

    fprintf(file, "step %" PRIu64 "  %.2f ms, the median of the last %zu (p99 %.2f)",
            analysis->steps[analysis->step_count - 1], analysis->p50_ns / 1e6, analysis->step_count,
            analysis->p99_ns / 1e6);
    for (int p = 0; p < DP_PART_COUNT; p++) {
        const double percent = 100 * analysis->part[p] / whole;

        if (percent < 0.5) continue;
        fprintf(file, "%s %s %.0f %%", separator, dp_part_name((dp_step_part_t)p), percent);
        separator = ",";
    }
    fputc('\n', file);
}

/* Of the time that ranks lost by others that were late, the share by this one; -1: none was. */
static double late_share(const dp_timeline_t *timeline, const dp_analysis_t *analysis, int rank)
{
    for (size_t i = 0; i < analysis->rank_count; i++) {
        const dp_straggler_t *straggler = &analysis->stragglers[i];

        if (timeline->ranks[straggler->rank].rank == rank && straggler->bucket_count > 0)
            return 100 * straggler->share;
    }
    return -1;
}

static void write_rank(const rank_now_t *now, uint64_t now_ns, double late, FILE *file)
{
    const double age = now_ns > now->since_ns ? (double)(now_ns - now->since_ns) / 1e9 : 0;

    fprintf(file, "%4d  %-16.16s", now->rank, now->host);
    if (now->has_step) {
        fprintf(file, "%9" PRIu64, now->step);
    } else {
        fprintf(file, "%9s", "-");
    }
    if (late >= 0) {
        fprintf(file, "%7.0f  ", late);
    } else {
        fprintf(file, "%7s  ", "-");
    }
    fputs(now->is_stopped ? "stopped, " : "", file);
    fputs(now->doing, file);
    if (!now->is_over && age * 1e9 >= QUIET_NS)
        fprintf(file, now->is_open ? " for %.1f s" : ", %.1f s ago", age);
    fputc('\n', file);
}

dp_status_t dp_top_write(const char *run_dir, uint64_t now_ns, FILE *file, dp_error_t *error)
{
    sight_t sight = {.ranks = NULL};
    dp_timeline_t timeline;
    dp_analysis_t analysis;
    char elapsed[32];
    dp_status_t status = look(run_dir, &sight, error);
    int has_steps;

    if (status != DP_OK) {
        free(sight.ranks);
        return status;
    }
    has_steps = load_steps(run_dir, &sight, &timeline, &analysis);
    snprintf(elapsed, sizeof(elapsed), "%.0f s",
             now_ns > sight.start_ns ? (double)(now_ns - sight.start_ns) / 1e9 : 0.0);
    fprintf(file, "%s: %zu rank%s", run_dir, sight.count, sight.count == 1 ? "" : "s");
    if ((size_t)sight.size > sight.count)
        fprintf(file, " of %d (no recorders of the others here)", sight.size);
    fprintf(file, ", for %s\n", elapsed);
    if (has_steps) {
        write_steps(&analysis, file);
    } else {
        fputs("no step has ended on every rank yet\n", file);
    }
    fprintf(file, "rank  node                  step  late %%  now\n");
    for (size_t i = 0; i < sight.count && i < RANKS_SHOWN; i++) {
        write_rank(&sight.ranks[i], now_ns,
                   has_steps ? late_share(&timeline, &analysis, sight.ranks[i].rank) : -1, file);
    }
    if (sight.count > RANKS_SHOWN)
        fprintf(file, "      ... and %zu more\n", sight.count - RANKS_SHOWN);
    if (has_steps) {
        dp_analysis_fini(&analysis);
        dp_timeline_fini(&timeline);
    }
    free(sight.ranks);
    return DP_OK;
}
