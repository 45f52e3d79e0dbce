/*
 * recorder.c - reads the last moments of a rank out of its flight recorder, and trims its file.
 *
 * Called once the ranks have ended, by report.c to read and by dprun.c to trim: nobody writes the
 * file any more. The program's own thread tells most: the step it was in, the spans and the wait
 * it had not left, and the last thing it finished. The text is for people; no decision follows
 * from it.
 */
#include "launcher/dprun/failure/recorder.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/trace_format.h"

static int is_of_program(const dp_trace_file_t *file, const dp_trace_event_t *event)
{
    return event->track < file->track_count &&
           file->tracks[event->track].kind == DP_TRACE_TRACK_THREAD;
}

static void append_text(dp_last_moments_t *last, const char *separator, const char *text)
{
    size_t used = strlen(last->text);

    snprintf(last->text + used, sizeof(last->text) - used, "%s%s", used > 0 ? separator : "", text);
}

/* "submit h.3.mlp 1.2 MB" */
static void describe_record(const dp_trace_file_t *file, const dp_trace_record_t *record,
                            char *text, size_t room)
{
    char name[96];
    char size[32] = "";

    dp_trace_file_name(file, record->name, name, sizeof(name));
    dp_text_mask(name);
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

void dp_recorder_last(const char *run_dir, int rank, uint64_t end_ns, dp_last_moments_t *last)
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
            describe_record(&file, &event->record, text, sizeof(text));
            append_text(last, ", ", text);
        } else if (over_ns >= latest_ns) {
            latest = event;
            latest_ns = over_ns;
        }
    }
    if (latest != NULL) {
        char ago[64] = "";

        describe_record(&file, &latest->record, text, sizeof(text));
        if (end_ns > latest_ns)
            snprintf(ago, sizeof(ago), " (over %.3f s before)", (double)(end_ns - latest_ns) / 1e9);
        append_text(last, "; before that: ", text);
        append_text(last, "", ago);
    }
    dp_trace_file_close(&file);
}

/* ---- The file's size ------------------------------------------------------------------------ */

static int is_sane(const dp_trace_file_header_t *header, uint64_t bytes)
{
    return header->magic == DP_TRACE_MAGIC && header->version == DP_TRACE_VERSION &&
           header->chunk_bytes == DP_TRACE_CHUNK_BYTES && header->chunk_offset <= bytes &&
           header->chunk_count <= (bytes - header->chunk_offset) / header->chunk_bytes &&
           header->name_offset <= header->chunk_offset &&
           header->name_room <= header->chunk_offset - header->name_offset &&
           atomic_load(&header->name_bytes) <= header->name_room;
}

/* Chunks are taken into use in order; one that never was has no ordinal. */
static uint32_t used_chunks(int fd, const dp_trace_file_header_t *header)
{
    uint32_t used = 0;

    while (used < header->chunk_count) {
        dp_trace_file_chunk_t chunk;
        const off_t at = (off_t)(header->chunk_offset + (uint64_t)used * header->chunk_bytes);

        if (pread(fd, &chunk, sizeof(chunk), at) != (ssize_t)sizeof(chunk)) break;
        if (chunk.ordinal == 0) break;
        used++;
    }
    return used;
}

static void trim_file(int fd, dp_trace_file_header_t *header)
{
    const uint32_t used = used_chunks(fd, header);
    const uint64_t names_end = header->name_offset + atomic_load(&header->name_bytes);
    const uint64_t hole = dp_align_up(names_end, 4096);

    /* The header first: a reader takes a file that is longer than it says. */
    header->chunk_count = used;
    header->file_bytes = header->chunk_offset + (uint64_t)used * header->chunk_bytes;
    if (ftruncate(fd, (off_t)header->file_bytes) != 0) return; /* then it stays large */
    if (hole < header->chunk_offset) {
        (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)hole,
                        (off_t)(header->chunk_offset - hole));
    }
}

void dp_recorder_trim(const char *run_dir, int rank)
{
    char path[1200];
    struct stat info;
    void *header = MAP_FAILED;
    int fd;

    snprintf(path, sizeof(path), "%s/trace.%d.dpt", run_dir, rank);
    fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
        info.st_size >= DP_TRACE_HEADER_BYTES) {
        header = mmap(NULL, DP_TRACE_HEADER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (header != MAP_FAILED) {
        if (is_sane(header, (uint64_t)info.st_size)) trim_file(fd, header);
        munmap(header, DP_TRACE_HEADER_BYTES);
    }
    if (fd >= 0) close(fd);
}
