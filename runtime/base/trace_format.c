/*
 * trace_format.c - reads what a recorder left, believing nothing it finds there.
 *
 * The file may be foreign, truncated, of a killed rank or of one still writing: each offset is
 * checked against the bytes at hand, each record against what a record can be.
 *
 * dptrace calls it for the files of a job, and dprun for the last moments of a failed rank; the
 * recorder itself (runtime/trace) does not. Each program has one thread.
 */
#include "runtime/base/trace_format.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int range_fits(uint64_t offset, uint64_t length, uint64_t bytes)
{
    return offset <= bytes && length <= bytes - offset;
}

/* The header of a file of so many bytes; of one that was cut: of those that it had. */
static dp_status_t check_file_header(const dp_trace_file_header_t *header, uint64_t bytes,
                                     const char *what, dp_error_t *error)
{
    uint64_t tracks_bytes;

    if (header->magic != DP_TRACE_MAGIC)
        return dp_error_set(error, DP_ERR_INVALID, "%s: not a trace of dp (no magic number)", what);
    if (header->version != DP_TRACE_VERSION) {
        return dp_error_set(error, DP_ERR_INVALID, "%s: trace version %u, this program reads %d",
                            what, header->version, DP_TRACE_VERSION);
    }
    tracks_bytes = (uint64_t)header->track_max * sizeof(dp_trace_file_track_t);
    if (header->record_bytes != sizeof(dp_trace_record_t) || header->track_max > DP_TRACE_TRACKS ||
        header->chunk_bytes != DP_TRACE_CHUNK_BYTES || header->track_offset % 8 != 0 ||
        header->chunk_offset % 8 != 0 || header->rank < 0 || header->size <= header->rank ||
        header->size > 1 << 24 || header->start_ns > DP_TRACE_LATEST_NS ||
        header->start_real_ns > DP_TRACE_LATEST_NS ||
        !range_fits(header->track_offset, tracks_bytes, bytes) ||
        !range_fits(header->name_offset, header->name_room, bytes) ||
        header->name_room > UINT32_MAX ||
        !range_fits(header->chunk_offset, (uint64_t)header->chunk_count * header->chunk_bytes,
                    bytes))
        return dp_error_set(error, DP_ERR_INVALID, "%s: damaged header", what);
    return DP_OK;
}

static const char *const kind_names[DP_TRACE_KIND_COUNT + 1] = {
    [DP_TRACE_STEP] = "step",       [DP_TRACE_SPAN] = "span",
    [DP_TRACE_SUBMIT] = "submit",   [DP_TRACE_WAIT] = "wait",
    [DP_TRACE_AGREE] = "agree",     [DP_TRACE_LAUNCH] = "launch",
    [DP_TRACE_PACK] = "pack",       [DP_TRACE_WIRE] = "wire",
    [DP_TRACE_UNPACK] = "unpack",   [DP_TRACE_WAIT_RANK] = "wait rank",
    [DP_TRACE_COMPUTE] = "compute", [DP_TRACE_COUNTER] = "counter",
    [DP_TRACE_FAULT] = "fault",     [DP_TRACE_CONTROL] = "control"};

const char *dp_trace_kind_name(dp_trace_kind_t kind)
{
    const char *name = kind_names[dp_min((unsigned)kind, (unsigned)DP_TRACE_KIND_COUNT)];

    return name == NULL ? "unknown" : name;
}

static int record_is_sane(const dp_trace_record_t *record)
{
    if (kind_names[dp_min(record->kind, DP_TRACE_KIND_COUNT)] == NULL) return 0;
    if (record->start_ns == 0 || record->start_ns >= DP_TRACE_LATEST_NS) return 0;
    return record->duration_ns < DP_TRACE_LATEST_NS;
}

static void add_event(dp_trace_file_t *file, const dp_trace_record_t *record, uint32_t track,
                      uint32_t is_open)
{
    dp_trace_event_t *event = &file->events[file->event_count];
    uint64_t end = record->start_ns + record->duration_ns;

    if (!record_is_sane(record) || track >= file->track_count) {
        file->bad++;
        return;
    }
    event->record = *record;
    event->track = track;
    event->is_open = is_open;
    file->event_count++;
    if (file->first_ns == 0 || record->start_ns < file->first_ns) file->first_ns = record->start_ns;
    if (end > file->last_ns) file->last_ns = end;
}

static int compare_events(const void *a, const void *b)
{
    const dp_trace_record_t *left = &((const dp_trace_event_t *)a)->record;
    const dp_trace_record_t *right = &((const dp_trace_event_t *)b)->record;

    if (left->start_ns != right->start_ns) return left->start_ns < right->start_ns ? -1 : 1;
    if (left->duration_ns != right->duration_ns)
        return left->duration_ns > right->duration_ns ? -1 : 1;
    return (left->kind > right->kind) - (left->kind < right->kind);
}

/* How much of [offset, offset + length) of the file is here. */
static size_t bytes_here(const dp_trace_file_t *file, uint64_t offset, uint64_t length)
{
    return offset < file->bytes ? (size_t)dp_min(length, file->bytes - offset) : 0;
}

/* A chunk, and how many whole records of it are here; NULL: it is not. */
static const dp_trace_file_chunk_t *chunk_at(const uint8_t *data,
                                             const dp_trace_file_header_t *header,
                                             const dp_trace_file_t *file, uint32_t index,
                                             size_t *count)
{
    const uint64_t offset = header->chunk_offset + (uint64_t)index * header->chunk_bytes;
    const size_t bytes = bytes_here(file, offset, header->chunk_bytes);
    const dp_trace_file_chunk_t *chunk = (const void *)(data + offset);

    if (bytes < sizeof(*chunk)) return NULL;
    *count = dp_min((size_t)atomic_load_explicit(&chunk->count, memory_order_acquire),
                    (bytes - sizeof(*chunk)) / sizeof(dp_trace_record_t));
    return chunk;
}

/* How many events the chunks and the open spans can give. */
static size_t count_room(const uint8_t *data, const dp_trace_file_header_t *header,
                         const dp_trace_file_t *file)
{
    size_t room = (size_t)header->track_max * DP_TRACE_OPEN, count;

    for (uint32_t i = 0; i < header->chunk_count; i++) {
        if (chunk_at(data, header, file, i, &count) == NULL) break;
        room += count;
    }
    return room;
}

static void read_tracks(const uint8_t *data, const dp_trace_file_header_t *header,
                        dp_trace_file_t *file)
{
    const dp_trace_file_track_t *tracks = (const void *)(data + header->track_offset);
    const size_t here = bytes_here(file, header->track_offset, header->track_max * sizeof(*tracks));

    for (uint32_t i = 0; i < here / sizeof(*tracks); i++) {
        uint32_t kind = atomic_load_explicit(&tracks[i].kind, memory_order_acquire);

        if (kind == 0) break;
        file->tracks[i].kind = (dp_trace_track_kind_t)dp_min(kind - 1, DP_TRACE_TRACK_STREAM);
        file->tracks[i].name = tracks[i].name;
        file->tracks[i].tid = tracks[i].tid;
        file->track_count = i + 1;
    }
}

static void read_chunks(const uint8_t *data, const dp_trace_file_header_t *header, size_t room,
                        dp_trace_file_t *file)
{
    for (uint32_t i = 0; i < header->chunk_count; i++) {
        size_t count;
        const dp_trace_file_chunk_t *chunk = chunk_at(data, header, file, i, &count);

        if (chunk == NULL) break;
        /* the file may still grow under us: never past the room counted before */
        for (size_t k = 0; k < count && file->event_count + file->bad < room; k++)
            add_event(file, &chunk->records[k], chunk->track, 0);
    }
}

static void read_open_spans(const uint8_t *data, const dp_trace_file_header_t *header, size_t room,
                            dp_trace_file_t *file)
{
    const dp_trace_file_track_t *tracks = (const void *)(data + header->track_offset);
    size_t first = file->event_count;

    for (uint32_t i = 0; i < file->track_count; i++) {
        uint32_t depth = atomic_load_explicit(&tracks[i].depth, memory_order_acquire);

        depth = dp_min(depth, (uint32_t)DP_TRACE_OPEN);
        for (uint32_t k = 0; k < depth && file->event_count + file->bad < room; k++)
            add_event(file, &tracks[i].open[k], i, 1);
    }
    for (size_t i = first; i < file->event_count; i++)
        file->events[i].record.duration_ns = file->last_ns - file->events[i].record.start_ns;
}

dp_status_t dp_trace_file_parse(const void *data, size_t bytes, const char *what,
                                dp_trace_file_t *file, dp_error_t *error)
{
    const dp_trace_file_header_t *header = data;
    dp_status_t status;
    size_t room;

    memset(file, 0, sizeof(*file));
    if (bytes < DP_TRACE_HEADER_BYTES) {
        return dp_error_set(error, DP_ERR_INVALID, "%s: %zu bytes, too short for a trace", what,
                            bytes);
    }
    status = check_file_header(header, dp_max((uint64_t)bytes, header->file_bytes), what, error);
    if (status != DP_OK) return status;
    file->bytes = bytes;
    file->whole_bytes = dp_max((uint64_t)bytes, header->file_bytes);
    file->rank = header->rank;
    file->size = header->size;
    file->pid = header->pid;
    memcpy(file->host, header->host, sizeof(file->host));
    file->host[sizeof(file->host) - 1] = '\0';
    memcpy(file->boot, header->boot, sizeof(file->boot));
    file->start_ns = header->start_ns;
    file->start_real_ns = header->start_real_ns;
    /* of a file that was cut, the end is missing, however the rank left it */
    file->end_ns = file->bytes == file->whole_bytes ? atomic_load(&header->end_ns) : 0;
    file->dropped = atomic_load(&header->dropped);
    file->window_start_ns = atomic_load(&header->window_start_ns);
    file->window_end_ns = atomic_load(&header->window_end_ns);
    file->window_dropped = atomic_load(&header->window_dropped);
    file->refused_tracks = atomic_load(&header->refused_tracks);
    file->name_bytes = dp_min((size_t)atomic_load(&header->name_bytes),
                              bytes_here(file, header->name_offset, header->name_room));
    room = count_room(data, header, file);
    file->names = malloc(file->name_bytes + 1);
    file->events = malloc(dp_max(room, (size_t)1) * sizeof(*file->events));
    if (file->names == NULL || file->events == NULL) {
        dp_trace_file_close(file);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "%s: no memory for %zu events", what, room);
    }
    if (file->name_bytes > 0)
        memcpy(file->names, (const uint8_t *)data + header->name_offset, file->name_bytes);
    read_tracks(data, header, file);
    read_chunks(data, header, room, file);
    read_open_spans(data, header, room, file);
    qsort(file->events, file->event_count, sizeof(*file->events), compare_events);
    return DP_OK;
}

dp_status_t dp_trace_head_parse(const void *data, size_t bytes, uint64_t file_bytes,
                                const char *what, dp_trace_head_t *head, dp_error_t *error)
{
    const dp_trace_file_header_t *header = data;
    const dp_trace_file_track_t *tracks;
    uint64_t words[DP_TRACE_STATS];
    dp_status_t status;

    memset(head, 0, sizeof(*head));
    if (bytes < DP_TRACE_HEADER_BYTES) {
        return dp_error_set(error, DP_ERR_INVALID, "%s: %zu bytes, too short for a trace", what,
                            bytes);
    }
    status = check_file_header(header, dp_max(file_bytes, header->file_bytes), what, error);
    if (status != DP_OK) return status;
    head->rank = header->rank;
    head->size = header->size;
    head->pid = header->pid;
    snprintf(head->host, sizeof(head->host), "%.255s", header->host);
    head->start_ns = header->start_ns;
    head->end_ns = atomic_load(&header->end_ns);
    head->steps = atomic_load(&header->steps);
    head->step_ns = atomic_load(&header->step_ns);
    head->step = atomic_load(&header->step);
    head->step_end_ns = atomic_load(&header->step_end_ns);
    for (size_t i = 0; i < DP_TRACE_STATS; i++)
        words[i] = atomic_load(&header->stats[i]);
    memcpy(&head->stats, words, sizeof(head->stats));
    tracks = (const void *)((const uint8_t *)data + header->track_offset);
    for (uint32_t i = 0; i < header->track_max; i++) {
        uint32_t depth;

        if (!range_fits(header->track_offset, (i + 1) * sizeof(*tracks), bytes)) break;
        depth = dp_min(atomic_load(&tracks[i].depth), (uint32_t)DP_TRACE_OPEN);
        for (uint32_t k = 0; k < depth; k++) {
            const dp_trace_record_t *open = &tracks[i].open[k];

            if (open->kind != DP_TRACE_WAIT || !record_is_sane(open)) continue;
            if (head->waiting_ns == 0 || open->start_ns < head->waiting_ns)
                head->waiting_ns = open->start_ns;
        }
    }
    return DP_OK;
}

dp_status_t dp_trace_head_read(const char *path, dp_trace_head_t *head, dp_error_t *error)
{
    _Alignas(64)
        uint8_t data[DP_TRACE_HEADER_BYTES + DP_TRACE_TRACKS * sizeof(dp_trace_file_track_t)];
    struct stat info;
    ssize_t bytes = -1;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

    if (fd >= 0 && fstat(fd, &info) == 0) bytes = pread(fd, data, sizeof(data), 0);
    if (bytes < 0) dp_error_set(error, DP_ERR_SYSTEM, "%s: cannot read: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    if (bytes < 0) return DP_ERR_SYSTEM;
    return dp_trace_head_parse(data, (size_t)bytes, (uint64_t)info.st_size, path, head, error);
}

dp_status_t dp_trace_file_open(const char *path, dp_trace_file_t *file, dp_error_t *error)
{
    dp_status_t status = DP_OK;
    uint8_t *data = NULL;
    struct stat info;
    size_t bytes = 0;
    int fd;

    memset(file, 0, sizeof(*file));
    fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* waits for no FIFO */
    if (fd < 0)
        return dp_error_set(error, DP_ERR_SYSTEM, "%s: cannot open: %s", path, strerror(errno));
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        status = dp_error_set(error, DP_ERR_INVALID, "%s: not a regular file", path);
        goto done;
    }
    data = malloc(dp_max((size_t)info.st_size, (size_t)DP_TRACE_HEADER_BYTES));
    if (data == NULL) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "%s: no memory for %lld bytes", path,
                              (long long)info.st_size);
        goto done;
    }
    while (bytes < (size_t)info.st_size) {
        ssize_t got = read(fd, data + bytes, (size_t)info.st_size - bytes);

        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            status = dp_error_set(error, DP_ERR_SYSTEM, "%s: read: %s", path, strerror(errno));
            goto done;
        }
        if (got == 0) break;
        bytes += (size_t)got;
    }
    status = dp_trace_file_parse(data, bytes, path, file, error);
done:
    free(data);
    close(fd);
    return status;
}

void dp_trace_file_close(dp_trace_file_t *file)
{
    free(file->names);
    free(file->events);
    memset(file, 0, sizeof(*file));
}

const char *dp_trace_file_name(const dp_trace_file_t *file, uint32_t name, char *text, size_t room)
{
    uint16_t length = 0;

    text[0] = '\0';
    if (name == 0 || file->name_bytes < sizeof(length) || name > file->name_bytes - sizeof(length))
        return text;
    memcpy(&length, file->names + name, sizeof(length));
    if (length > file->name_bytes - sizeof(length) - name) return text;
    length = (uint16_t)dp_min((size_t)length, room - 1);
    memcpy(text, file->names + name + sizeof(length), length);
    text[length] = '\0';
    return text;
}

/* Part of the file's format, so the names are here as well as in the engine, which dptrace does not
 * link. A test compares the two. */
const char *dp_trace_collective_name(uint64_t id)
{
    static const char *const names[DP_TRACE_COLLECTIVES] = {
        "unknown",  "allreduce", "broadcast",       "allgather", "reduce_scatter", "barrier",
        "reduce",   "gather",    "scatter",         "alltoall",  "allgatherv",     "gatherv",
        "scatterv", "alltoallv", "reduce_scatterv", "send"};

    return names[id < DP_TRACE_COLLECTIVES ? id : 0];
}
