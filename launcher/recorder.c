/*
 * recorder.c - reads the last moments of a rank out of its flight recorder.
 *
 * The program's own thread tells most: the step it was in, the spans and the wait it had not left,
 * and the last thing it finished.
 */
#include "launcher/recorder.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/trace_format.h"

static int is_of_program(const dp_trace_file_t *file, const dp_trace_event_t *event)
{
    return event->lane < file->lane_count && file->lanes[event->lane].kind == DP_TRACE_LANE_THREAD;
}

static void add(dp_last_words_t *last, const char *separator, const char *text)
{
    size_t used = strlen(last->text);

    snprintf(last->text + used, sizeof(last->text) - used, "%s%s", used > 0 ? separator : "", text);
}

/* "submit h.3.mlp 1.2 MB" */
static void describe(const dp_trace_file_t *file, const dp_trace_record_t *record, char *text,
                     size_t room)
{
    char name[96];
    char size[32] = "";

    dp_trace_file_name(file, record->name, name, sizeof(name));
    if (record->bytes >= 100000) {
        snprintf(size, sizeof(size), " %.1f MB", (double)record->bytes / 1e6);
    } else if (record->bytes > 0) {
        snprintf(size, sizeof(size), " %llu B", (unsigned long long)record->bytes);
    }
    switch ((dp_trace_kind_t)record->kind) {
    case DP_TRACE_WAIT:
        snprintf(text, room, "waiting for %s%s", name[0] == '\0' ? "all" : name, size);
        break;
    case DP_TRACE_SPAN:
        snprintf(text, room, "in %s", name);
        break;
    default:
        snprintf(text, room, "%s %s%s", dp_trace_kind_name((dp_trace_kind_t)record->kind), name,
                 size);
        break;
    }
}

void dp_recorder_last(const char *run_dir, int rank, uint64_t end_ns, dp_last_words_t *last)
{
    char path[1200];
    char text[192];
    dp_trace_file_t file;
    const dp_trace_event_t *latest = NULL;
    uint64_t latest_ns = 0;

    memset(last, 0, sizeof(*last));
    snprintf(path, sizeof(path), "%s/trace.%d.dpt", run_dir, rank);
    if (dp_trace_file_open(path, &file, NULL) != DP_OK) return;
    for (size_t i = 0; i < file.event_count; i++) {
        const dp_trace_event_t *event = &file.events[i];
        uint64_t over_ns = event->record.start_ns + event->record.duration_ns;

        if (!is_of_program(&file, event)) continue;
        if (event->record.kind == DP_TRACE_STEP &&
            (event->is_open || !last->has_step || event->record.id >= last->step)) {
            last->has_step = 1;
            last->step = event->record.id;
        }
        if (event->record.kind == DP_TRACE_STEP) continue;
        if (event->is_open) {
            describe(&file, &event->record, text, sizeof(text));
            add(last, ", ", text);
        } else if (over_ns >= latest_ns) {
            latest = event;
            latest_ns = over_ns;
        }
    }
    if (latest != NULL) {
        char ago[64] = "";

        describe(&file, &latest->record, text, sizeof(text));
        if (end_ns > latest_ns)
            snprintf(ago, sizeof(ago), " (over %.3f s before)", (double)(end_ns - latest_ns) / 1e9);
        add(last, "; before that: ", text);
        add(last, "", ago);
    }
    dp_trace_file_close(&file);
}
