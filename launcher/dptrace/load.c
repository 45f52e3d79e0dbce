/*
 * load.c - from the files of a job to one timeline: finds them, brings their clocks together and
 * joins requests with the buckets they travelled in.
 *
 * dp_timeline_load() is the entry of every subcommand. It must not know how events are arranged
 * (timeline.c) or shown. main.c calls it, on dptrace's only thread.
 */
#include "launcher/dptrace/formats.h"
#include "launcher/dptrace/clocks.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/input_file.h"

/* ---- Clocks --------------------------------------------------------------------------------- */

/* One measurement of the offset to the first recorder's clock. */
typedef struct clock_point {
    uint64_t at_ns;
    int64_t offset_ns;
} clock_point_t;

/* How to get from a rank's clock to that of the first recorder. */
typedef struct clock_map {
    clock_point_t *points;
    size_t count, room;
    int64_t constant_ns; /* where there are no points */
    uint64_t error_ns;
} clock_map_t;

/* Offsets that dprun measured. Both clocks are known against its own, at about the same moments. */
static dp_status_t map_measured(const dp_clocks_t *clocks, int rank, int first_rank,
                                clock_map_t *map)
{
    for (size_t i = 0;; i++) {
        const dp_clock_entry_t *own = dp_clocks_find(clocks, rank, i);
        const dp_clock_entry_t *first = dp_clocks_find(clocks, first_rank, i);

        if (own == NULL || first == NULL) return DP_OK;
        if (map->count > 0 && map->points[map->count - 1].at_ns >= own->at_ns) return DP_OK;
        if (!dp_grow(&map->points, map->count, &map->room, sizeof(*map->points)))
            return DP_ERR_NO_MEMORY;
        map->points[map->count++] =
            (clock_point_t){.at_ns = own->at_ns, .offset_ns = own->offset_ns - first->offset_ns};
        map->error_ns = dp_max(map->error_ns, own->error_ns + first->error_ns);
    }
}

/* Ranks that share a kernel share CLOCK_MONOTONIC, so their times are comparable as they are.
 * Between nodes dprun's measurements give offsets; where there are none, the wall clocks'
 * difference is used. */
static dp_status_t map_clock(const dp_trace_file_t *file, const dp_trace_file_t *first,
                             const dp_clocks_t *clocks, clock_map_t *map)
{
    dp_status_t status;

    memset(map, 0, sizeof(*map));
    if (memcmp(file->boot, first->boot, sizeof(file->boot)) == 0) return DP_OK; /* one machine */
    status = map_measured(clocks, file->rank, first->rank, map);
    if (status != DP_OK || map->count > 0) return status;
    /* nothing measured: only wall clocks are left, whose error is unknown */
    map->error_ns = UINT64_MAX;
    map->constant_ns = (int64_t)(file->start_real_ns - file->start_ns) -
                       (int64_t)(first->start_real_ns - first->start_ns);
    return DP_OK;
}

/* Between two measurements the offset drifts evenly; outside them the nearest one holds. */
static uint64_t apply_clock(const clock_map_t *map, uint64_t time_ns)
{
    const clock_point_t *points = map->points;
    int64_t offset = map->constant_ns;
    size_t after = 0;

    if (map->count > 0) {
        while (after < map->count && points[after].at_ns <= time_ns)
            after++;
        if (after == 0) {
            offset = points[0].offset_ns;
        } else if (after == map->count) {
            offset = points[after - 1].offset_ns;
        } else {
            double span = (double)(points[after].at_ns - points[after - 1].at_ns);
            double part = span > 0 ? (double)(time_ns - points[after - 1].at_ns) / span : 0;
            double step = (double)points[after].offset_ns - (double)points[after - 1].offset_ns;

            offset = points[after - 1].offset_ns + (int64_t)(part * step);
        }
    }
    if (offset < 0) return time_ns > (uint64_t)-offset ? time_ns - (uint64_t)-offset : 0;
    return dp_min(time_ns + (uint64_t)offset, DP_TRACE_LATEST_NS);
}

/* ---- Requests and buckets ------------------------------------------------------------------- */

/* A tensor's way into a bucket, from its AGREE record. */
typedef struct agreed {
    uint64_t id;
    uint64_t bucket;
    int has_submit;
} agreed_t;

static int compare_agreed(const void *a, const void *b)
{
    const agreed_t *left = a, *right = b;

    return (left->id > right->id) - (left->id < right->id);
}

static agreed_t *find_agreed(agreed_t *list, size_t count, uint64_t id)
{
    agreed_t key = {.id = id};

    if (id == 0 || count == 0) return NULL;
    return bsearch(&key, list, count, sizeof(*list), compare_agreed);
}

/* Sorted by request, so that SUBMIT and WAIT, which know only their request, find its bucket. */
static dp_status_t list_agreed(const dp_trace_file_t *file, agreed_t **list, size_t *count)
{
    size_t room = 0;

    for (size_t i = 0; i < file->event_count; i++) {
        const dp_trace_record_t *record = &file->events[i].record;

        if (record->kind != DP_TRACE_AGREE) continue;
        if (!dp_grow(list, *count, &room, sizeof(**list))) return DP_ERR_NO_MEMORY;
        (*list)[(*count)++] = (agreed_t){.id = record->id, .bucket = record->bucket};
    }
    if (*count > 0) qsort(*list, *count, sizeof(**list), compare_agreed);
    for (size_t i = 0; i < file->event_count; i++) {
        const dp_trace_record_t *record = &file->events[i].record;
        agreed_t *agreed = find_agreed(*list, *count, record->id);

        if (record->kind == DP_TRACE_SUBMIT && agreed != NULL) agreed->has_submit = 1;
    }
    return DP_OK;
}

static int compare_bucket_then_start(const void *a, const void *b)
{
    const dp_timeline_event_t *left = a, *right = b;

    if (left->bucket != right->bucket) return left->bucket < right->bucket ? -1 : 1;
    return (left->start_ns > right->start_ns) - (left->start_ns < right->start_ns);
}

/* The tensors' AGREE events of a rank, from `first` on, become one per bucket. */
static void fuse_agreed(dp_timeline_t *timeline, size_t first)
{
    size_t count = timeline->event_count - first, kept = 0;
    dp_timeline_event_t *events;

    if (count == 0) return;
    events = timeline->events + first;
    qsort(events, count, sizeof(*events), compare_bucket_then_start);
    for (size_t i = 0; i < count; i++) {
        dp_timeline_event_t *bucket = kept > 0 ? &events[kept - 1] : NULL;
        uint64_t end = events[i].start_ns + events[i].duration_ns;

        if (bucket == NULL || bucket->bucket != events[i].bucket || events[i].bucket == 0) {
            events[kept] = events[i];
            events[kept].id = 0;
            events[kept++].aux = 1;
            continue;
        }
        bucket->bytes += events[i].bytes;
        bucket->aux++;
        bucket->is_open |= events[i].is_open;
        if (end > bucket->start_ns + bucket->duration_ns)
            bucket->duration_ns = end - bucket->start_ns;
    }
    timeline->event_count = first + kept;
}

/* ---- One recorder --------------------------------------------------------------------------- */

typedef struct loader {
    dp_timeline_t *timeline;
    const dp_trace_file_t *file;
    uint32_t *names; /* by offset in the file's heap: index of the string + 1 */
    agreed_t *agreed;
    size_t agreed_count;
    clock_map_t clock;
    int32_t rank;
} loader_t;

/* Each recorder has a heap of names of its own; the timeline has one for all ranks. A name is
 * looked up once per recorder. 0: no memory. */
static int convert_name(loader_t *loader, uint32_t name, uint32_t *out)
{
    char text[DP_TRACE_NAME_MAX + 1];
    size_t index;

    *out = 0;
    if (name == 0 || name >= loader->file->name_bytes) return 1;
    if (loader->names[name] == 0) {
        index = dp_timeline_string(loader->timeline,
                                   dp_trace_file_name(loader->file, name, text, sizeof(text)));
        if (index == SIZE_MAX) return 0;
        loader->names[name] = (uint32_t)index + 1;
    }
    *out = loader->names[name] - 1;
    return 1;
}

/* Both ends are converted, not the duration: the clocks may drift within a long event, and the row
 * below must not overlap the one that follows it. */
static dp_status_t add_record(loader_t *loader, const dp_trace_event_t *from, uint8_t kind)
{
    dp_timeline_event_t *event = dp_timeline_add_event(loader->timeline);
    const dp_trace_record_t *record = &from->record;
    uint64_t end;

    if (event == NULL) return DP_ERR_NO_MEMORY;
    event->start_ns = apply_clock(&loader->clock, record->start_ns);
    end = apply_clock(&loader->clock, record->start_ns + record->duration_ns);
    event->duration_ns = end > event->start_ns ? end - event->start_ns : 0;
    event->bucket = record->bucket;
    event->id = record->id;
    event->bytes = record->bytes;
    event->aux = record->aux;
    event->rank = loader->rank;
    event->track = from->track;
    event->kind = kind;
    event->is_open = (uint8_t)from->is_open;
    return convert_name(loader, record->name, &event->name) ? DP_OK : DP_ERR_NO_MEMORY;
}

/* All but AGREE, with the bucket filled in where a request knows its own. */
static dp_status_t add_records(loader_t *loader)
{
    for (size_t i = 0; i < loader->file->event_count; i++) {
        const dp_trace_event_t *from = &loader->file->events[i];
        const agreed_t *agreed;
        dp_timeline_event_t *event;
        dp_status_t status;

        if (from->record.kind == DP_TRACE_AGREE) continue;
        status = add_record(loader, from, (uint8_t)from->record.kind);
        if (status != DP_OK) return status;
        event = &loader->timeline->events[loader->timeline->event_count - 1];
        if (event->kind != DP_TRACE_SUBMIT && event->kind != DP_TRACE_WAIT) continue;
        agreed = find_agreed(loader->agreed, loader->agreed_count, event->id);
        if (agreed != NULL && event->bucket == 0) event->bucket = agreed->bucket;
    }
    return DP_OK;
}

/* AGREE: first those submissions that left no record of their own, then one event per bucket. */
static dp_status_t add_agreed(loader_t *loader)
{
    const dp_trace_file_t *file = loader->file;
    dp_status_t status;
    size_t first;

    for (size_t i = 0; i < file->event_count; i++) {
        const dp_trace_event_t *from = &file->events[i];
        const agreed_t *agreed;

        if (from->record.kind != DP_TRACE_AGREE) continue;
        agreed = find_agreed(loader->agreed, loader->agreed_count, from->record.id);
        if (agreed != NULL && agreed->has_submit) continue;
        status = add_record(loader, from, DP_TRACE_SUBMIT);
        if (status != DP_OK) return status;
        loader->timeline->events[loader->timeline->event_count - 1].duration_ns = 0;
        for (uint32_t k = 0; k < file->track_count; k++) {
            if (file->tracks[k].kind != DP_TRACE_TRACK_THREAD) continue;
            loader->timeline->events[loader->timeline->event_count - 1].track = k;
            break;
        }
    }
    first = loader->timeline->event_count;
    for (size_t i = 0; i < file->event_count; i++) {
        if (file->events[i].record.kind != DP_TRACE_AGREE) continue;
        status = add_record(loader, &file->events[i], DP_TRACE_AGREE);
        if (status != DP_OK) return status;
    }
    fuse_agreed(loader->timeline, first);
    return DP_OK;
}

static dp_status_t add_file(dp_timeline_t *timeline, const dp_trace_file_t *file,
                            const dp_trace_file_t *first, const dp_clocks_t *clocks)
{
    loader_t loader = {.timeline = timeline, .file = file};
    dp_timeline_rank_t *rank = dp_timeline_add_rank(timeline);
    dp_status_t status = DP_ERR_NO_MEMORY;

    if (rank == NULL) return status;
    loader.rank = (int32_t)timeline->rank_count - 1;
    loader.names = calloc(file->name_bytes + 1, sizeof(*loader.names));
    if (loader.names == NULL || dp_timeline_string(timeline, "") == SIZE_MAX) goto done;
    status = map_clock(file, first, clocks, &loader.clock);
    if (status == DP_OK) status = list_agreed(file, &loader.agreed, &loader.agreed_count);
    if (status == DP_OK) status = add_records(&loader);
    if (status == DP_OK) status = add_agreed(&loader);
    rank->rank = file->rank;
    rank->size = file->size;
    rank->pid = file->pid;
    memcpy(rank->host, file->host, sizeof(rank->host));
    rank->is_closed = file->end_ns != 0;
    rank->dropped = file->dropped;
    if (file->window_start_ns != 0) {
        rank->window_start_ns = apply_clock(&loader.clock, file->window_start_ns);
        rank->window_end_ns =
            file->window_end_ns == 0 ? UINT64_MAX : apply_clock(&loader.clock, file->window_end_ns);
        rank->window_dropped = file->window_dropped;
    }
    rank->bad = file->bad;
    rank->clock_error_ns = loader.clock.error_ns;
done:
    free(loader.names);
    free(loader.agreed);
    free(loader.clock.points);
    return status;
}

/* ---- A job's recorders ---------------------------------------------------------------------- */

static int is_recorder(const char *name)
{
    size_t digits;

    if (strncmp(name, "trace.", 6) != 0) return 0;
    digits = strspn(name + 6, "0123456789");
    return digits > 0 && strcmp(name + 6 + digits, ".dpt") == 0;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Paths of the recorders in a directory, sorted; the caller frees them all. */
static dp_status_t list_recorders(const char *path, char ***paths, size_t *count, dp_error_t *error)
{
    DIR *directory = opendir(path);
    struct dirent *entry;
    size_t room = 0;

    if (directory == NULL)
        return dp_error_set(error, DP_ERR_SYSTEM, "%s: cannot read: %s", path, strerror(errno));
    while ((entry = readdir(directory)) != NULL) {
        if (!is_recorder(entry->d_name)) continue;
        if (!dp_grow(paths, *count, &room, sizeof(**paths)) ||
            asprintf(&(*paths)[*count], "%s/%s", path, entry->d_name) < 0) {
            closedir(directory);
            return dp_error_set(error, DP_ERR_NO_MEMORY, "%s: no memory", path);
        }
        (*count)++;
    }
    closedir(directory);
    if (*count == 0) {
        return dp_error_set(error, DP_ERR_INVALID,
                            "%s: no recorders (trace.RANK.dpt); they are removed after a "
                            "successful job unless --timeline was given",
                            path);
    }
    qsort(*paths, *count, sizeof(**paths), compare_paths);
    return DP_OK;
}

/* For people: what is not here. DP_OK, or DP_ERR_NO_MEMORY with an error. */
static dp_status_t note_missing(dp_timeline_t *timeline, dp_error_t *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static dp_status_t note_missing(dp_timeline_t *timeline, dp_error_t *error, const char *format, ...)
{
    va_list arguments;
    int length = -1;

    if (dp_grow(&timeline->missing, timeline->missing_count, &timeline->missing_room,
                sizeof(*timeline->missing))) {
        va_start(arguments, format);
        length = vasprintf(&timeline->missing[timeline->missing_count], format, arguments);
        va_end(arguments);
    }
    if (length < 0) return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory");
    dp_text_mask(timeline->missing[timeline->missing_count]);
    timeline->missing_count++;
    return DP_OK;
}

/* The rank that a recorder's name tells; -1: none. */
static int rank_of_path(const char *path)
{
    const char *name = strrchr(path, '/');

    name = name == NULL ? path : name + 1;
    return is_recorder(name) ? (int)strtol(name + 6, NULL, 10) : -1;
}

/* Two files of one rank cannot be of one job, nor can two different sizes. */
static dp_status_t check_job(const dp_timeline_t *timeline, const char *path,
                             const dp_trace_file_t *file, dp_error_t *error)
{
    for (size_t i = 0; i < timeline->rank_count; i++) {
        if (timeline->ranks[i].rank == file->rank) {
            return dp_error_set(error, DP_ERR_INVALID, "%s: rank %d is in another file too", path,
                                file->rank);
        }
        if (timeline->ranks[i].size != file->size) {
            return dp_error_set(error, DP_ERR_INVALID,
                                "%s: rank %d of %d, but rank %d is of %d; recorders of two jobs",
                                path, file->rank, file->size, timeline->ranks[i].rank,
                                timeline->ranks[i].size);
        }
    }
    return DP_OK;
}

/* Opens a recorder. *is_read 0: with DP_OK, one of several that tells nothing; a line says so. */
static dp_status_t open_recorder(dp_timeline_t *timeline, const char *path, int is_directory,
                                 dp_trace_file_t *file, int *is_read, dp_error_t *error)
{
    const int rank = rank_of_path(path);
    dp_status_t status = dp_trace_file_open(path, file, error);

    if (status == DP_OK && is_directory && file->rank != rank) {
        status =
            dp_error_set(error, DP_ERR_INVALID, "%s: damaged: it says rank %d", path, file->rank);
        dp_trace_file_close(file);
    }
    *is_read = status == DP_OK;
    if (status == DP_OK && file->bytes < file->whole_bytes) {
        return note_missing(timeline, error,
                            "rank %d: %s: cut short: %llu bytes of %llu are here; the rest of what "
                            "this rank recorded is missing",
                            file->rank, path, (unsigned long long)file->bytes,
                            (unsigned long long)file->whole_bytes);
    }
    if (status == DP_OK || status == DP_ERR_NO_MEMORY || !is_directory) return status;
    return note_missing(timeline, error, "rank %d is missing: %s", rank, error->text);
}

/* Reads recorders: all trace.*.dpt of a directory, or one file. The first one stays open until the
 * end: every other rank's clock is mapped to its clock. */
static dp_status_t read_recorders(const char *path, int is_directory, dp_timeline_t *timeline,
                                  dp_error_t *error)
{
    dp_trace_file_t first = {.rank = 0}, file = {.rank = 0};
    char **paths = NULL;
    size_t count = 0;
    dp_clocks_t clocks = {NULL, 0};
    dp_status_t status;

    if (is_directory) {
        status = list_recorders(path, &paths, &count, error);
        if (status == DP_OK && dp_clocks_read(path, &clocks) != 0)
            status = dp_error_set(error, DP_ERR_NO_MEMORY, "no memory");
    } else {
        paths = malloc(sizeof(*paths));
        if (paths != NULL) paths[0] = strdup(path);
        count = paths != NULL && paths[0] != NULL;
        status = count == 1 ? DP_OK : dp_error_set(error, DP_ERR_NO_MEMORY, "no memory");
    }
    if (paths == NULL) count = 0;
    for (size_t i = 0; i < count && status == DP_OK; i++) {
        const int is_first = timeline->rank_count == 0;
        dp_trace_file_t *current = is_first ? &first : &file;
        int is_read;

        status = open_recorder(timeline, paths[i], is_directory, current, &is_read, error);
        if (status == DP_OK && !is_read) continue;
        if (status == DP_OK) status = check_job(timeline, paths[i], current, error);
        if (status == DP_OK) {
            status = add_file(timeline, current, &first, &clocks);
            if (status != DP_OK) dp_error_set(error, status, "%s: no memory", paths[i]);
        }
        if (!is_first) dp_trace_file_close(&file);
    }
    if (status == DP_OK && timeline->rank_count == 0) {
        status = dp_error_set(error, DP_ERR_INVALID, "%s: no recorder can be read; %s", path,
                              timeline->missing[0]);
    }
    dp_trace_file_close(&first);
    dp_clocks_fini(&clocks);
    for (size_t i = 0; i < count; i++)
        free(paths[i]);
    free(paths);
    return status;
}

/* ---- Either kind of input ------------------------------------------------------------------- */

/* Reads on until fread() gives less than asked for: the path may be a pipe, which has no size. */
static dp_status_t read_whole(const char *path, uint8_t **data, size_t *bytes, dp_error_t *error)
{
    const char *why = "";
    FILE *file = dp_input_file_open(path, &why);
    size_t room = 0;
    int is_short_of_memory = 0;

    *data = NULL;
    *bytes = 0;
    if (file == NULL) return dp_error_set(error, DP_ERR_SYSTEM, "%s: cannot open: %s", path, why);
    do {
        if (*bytes == room) {
            uint8_t *grown = realloc(*data, room * 2 + 65536);

            is_short_of_memory = grown == NULL;
            if (is_short_of_memory) break;
            *data = grown;
            room = room * 2 + 65536;
        }
        *bytes += fread(*data + *bytes, 1, room - *bytes, file);
    } while (*bytes == room);
    if (is_short_of_memory || ferror(file)) {
        fclose(file);
        free(*data);
        *data = NULL;
        return dp_error_set(error, is_short_of_memory ? DP_ERR_NO_MEMORY : DP_ERR_SYSTEM,
                            "%s: cannot read: %s", path,
                            is_short_of_memory ? "no memory" : strerror(errno));
    }
    fclose(file);
    return DP_OK;
}

/* The first bytes tell what the file is, not its name. */
static dp_status_t load_file(const char *path, dp_timeline_t *timeline, dp_error_t *error)
{
    uint64_t magic = 0;
    dp_status_t status;
    uint8_t *data;
    size_t bytes, start;

    status = read_whole(path, &data, &bytes, error);
    if (status != DP_OK || data == NULL) return status;
    if (bytes >= sizeof(magic)) memcpy(&magic, data, sizeof(magic));
    for (start = 0; start < bytes && strchr(" \t\r\n", data[start]) != NULL; start++)
        continue;
    if (magic == DP_TRACE_MAGIC) {
        status = read_recorders(path, 0, timeline, error);
    } else if (start < bytes && (data[start] == '{' || data[start] == '[')) {
        status = dp_error_set(error, DP_ERR_INVALID,
                              "%s: JSON is for other viewers; give dptrace the run directory or a "
                              "merged .pftrace file",
                              path);
    } else {
        status = dp_perfetto_parse(data, bytes, path, timeline, error);
    }
    free(data);
    return status;
}

dp_status_t dp_timeline_load(const char *path, const dp_step_window_t *window,
                             dp_timeline_t *timeline, dp_error_t *error)
{
    struct stat info;
    dp_status_t status;

    dp_timeline_init(timeline);
    if (stat(path, &info) != 0)
        return dp_error_set(error, DP_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode)) {
        status = read_recorders(path, 1, timeline, error);
    } else {
        status = load_file(path, timeline, error);
    }
    if (status == DP_OK) status = dp_timeline_finish(timeline, window, error);
    if (status != DP_OK) dp_timeline_fini(timeline);
    return status;
}
