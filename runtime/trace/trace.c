/*
 * trace.c - the recorder's memory: the mapped file, its tracks, chunks and names. The layout is
 * drawn in trace_format.h.
 *
 * Recording itself is inline in trace.h and takes no lock. The mutex guards what is rare: a new
 * track, a new name, the next chunk (once per 341 records). The room on disk is allocated before
 * the first record, because a write to a mapped file on a full disk is a SIGBUS.
 *
 * coordinator/api makes and ends the recorder; any thread may ask for its track and then records
 * there alone.
 */
#include "runtime/trace/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/input_file.h"
#include "runtime/base/limits.h"

#define NAME_TABLE_SIZE 32768u /* a power of two; names of 8 bytes and more fill the heap first */
#define NAME_COUNT_MAX (NAME_TABLE_SIZE / 4 * 3)
#define CHUNKS_MIN 8u

struct dp_trace {
    uint8_t *memory; /* the mapped file, or anonymous */
    size_t bytes;
    char *path; /* NULL: anonymous */
    dp_trace_file_header_t *header;
    dp_trace_file_track_t *file_tracks;
    uint8_t *names;
    pthread_key_t thread_key; /* the calling thread's track */
    int has_key;
    uint32_t full_name;           /* stands for every text that found no room */
    _Atomic uint32_t *name_table; /* [NAME_TABLE_SIZE] ids by hash; 0: empty */
    dp_trace_track_t tracks[DP_TRACE_TRACKS];
    pthread_mutex_t lock;
    /* guarded by lock */
    uint32_t track_count;
    uint32_t name_count;
    uint32_t chunks_used; /* chunks that ever held records */
    uint32_t next_chunk;  /* where the search for the oldest one starts */
    uint64_t next_ordinal;
    uint8_t *chunk_is_open; /* [chunk_count] a track is filling it */
    uint8_t *chunk_is_kept; /* [chunk_count] of the window that dp_trace_keep() marks */
    uint8_t *chunk_is_lost; /* [chunk_count] likewise, but there was no room to keep it */
    uint32_t kept_count;
    int is_keeping;
};

/* ---- Making and mapping the file ------------------------------------------------------------ */

static void read_boot_id(uint8_t boot[16])
{
    char text[64] = "";
    int digits = 0;

    dp_input_file_read_line(DP_BOOT_ID_FILE, text, sizeof(text));
    memset(boot, 0, 16);
    for (size_t i = 0; text[i] != '\0' && digits < 32; i++) {
        char c = text[i];
        int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;

        if (value < 0) continue;
        boot[digits / 2] = (uint8_t)(boot[digits / 2] << 4 | value);
        digits++;
    }
}

/* Maps the recorder's file; on any trouble nothing is left and error says why. */
static dp_status_t map_file(dp_trace_t *trace, const char *run_dir, int rank, dp_error_t *error)
{
    dp_status_t status;
    void *memory;
    int fd = -1;
    int code;

    if (asprintf(&trace->path, "%s/trace.%d.dpt", run_dir, rank) < 0) {
        trace->path = NULL;
        return dp_error_set(error, DP_ERR_NO_MEMORY, "timeline: no memory");
    }
    unlink(trace->path); /* of an earlier job; a reader that still has it open keeps it */
    if (dp_limits_file_bytes() < trace->bytes) { /* or SIGXFSZ ends the program */
        status = dp_error_set(error, DP_ERR_SYSTEM,
                              "timeline: no room for %zu bytes in %s: the limit on files is %zu "
                              "(ulimit -f); nothing is saved, but --trace-bytes (DP_TRACE_BYTES) "
                              "makes it smaller",
                              trace->bytes, trace->path, dp_limits_file_bytes());
        goto fail;
    }
    fd = open(trace->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        status = dp_error_set(error, DP_ERR_SYSTEM, "timeline: cannot make %s: %s", trace->path,
                              strerror(errno));
        goto fail;
    }
    do {
        code = posix_fallocate(fd, 0, (off_t)trace->bytes);
    } while (code == EINTR);
    if (code != 0) {
        status = dp_error_set(error, DP_ERR_SYSTEM, "timeline: no room for %zu bytes in %s: %s",
                              trace->bytes, trace->path, strerror(code));
        goto fail;
    }
    memory = mmap(NULL, trace->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        status = dp_error_set(error, DP_ERR_SYSTEM, "timeline: cannot map %s: %s", trace->path,
                              strerror(errno));
        goto fail;
    }
    trace->memory = memory;
    close(fd);
    return DP_OK;
fail:
    if (fd >= 0) {
        close(fd);
        unlink(trace->path);
    }
    free(trace->path);
    trace->path = NULL;
    return status;
}

static dp_status_t map_memory(dp_trace_t *trace)
{
    void *memory = mmap(NULL, trace->bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED) return DP_ERR_NO_MEMORY;
    trace->memory = memory;
    return DP_OK;
}

static void fill_header(dp_trace_t *trace, int rank, int size, const char *host,
                        uint32_t chunk_count)
{
    dp_trace_file_header_t *header = (void *)trace->memory;
    struct timespec real;

    header->version = DP_TRACE_VERSION;
    header->record_bytes = sizeof(dp_trace_record_t);
    header->file_bytes = trace->bytes;
    header->track_offset = DP_TRACE_HEADER_BYTES;
    header->track_max = DP_TRACE_TRACKS;
    header->name_offset =
        dp_align_up(header->track_offset + DP_TRACE_TRACKS * sizeof(dp_trace_file_track_t), 4096);
    header->name_room = DP_TRACE_NAME_ROOM;
    header->chunk_offset = header->name_offset + DP_TRACE_NAME_ROOM;
    header->chunk_bytes = DP_TRACE_CHUNK_BYTES;
    header->chunk_count = chunk_count;
    header->rank = rank;
    header->size = size;
    header->pid = (int32_t)getpid();
    header->start_ns = dp_now_ns();
    clock_gettime(CLOCK_REALTIME, &real);
    header->start_real_ns = (uint64_t)real.tv_sec * 1000000000u + (uint64_t)real.tv_nsec;
    read_boot_id(header->boot);
    snprintf(header->host, sizeof(header->host), "%s", host != NULL ? host : "");
    atomic_store(&header->name_bytes, 4); /* so that no name has the id 0 */
    header->magic = DP_TRACE_MAGIC;
    trace->header = header;
    trace->file_tracks = (void *)(trace->memory + header->track_offset);
    trace->names = trace->memory + header->name_offset;
}

/* A thread of the program ended: its track waits for the next one. */
static void release_thread_track(void *track)
{
    atomic_store_explicit(&((dp_trace_track_t *)track)->is_idle, 1, memory_order_release);
}

dp_status_t dp_trace_create(const char *run_dir, int rank, int size, const char *host, size_t bytes,
                            dp_trace_t **out, dp_error_t *error)
{
    size_t fixed =
        dp_align_up(DP_TRACE_HEADER_BYTES + DP_TRACE_TRACKS * sizeof(dp_trace_file_track_t), 4096) +
        DP_TRACE_NAME_ROOM;
    size_t chunk_count = dp_min(dp_max(bytes / DP_TRACE_CHUNK_BYTES, (size_t)CHUNKS_MIN),
                                (size_t)UINT32_MAX / DP_TRACE_CHUNK_BYTES);
    dp_trace_t *trace = calloc(1, sizeof(*trace));

    if (error != NULL) *error = (dp_error_t){.status = DP_OK};
    if (trace == NULL) goto no_memory;
    pthread_mutex_init(&trace->lock, NULL);
    trace->bytes = fixed + chunk_count * DP_TRACE_CHUNK_BYTES;
    trace->name_table = calloc(NAME_TABLE_SIZE, sizeof(*trace->name_table));
    trace->chunk_is_open = calloc(chunk_count, 1);
    trace->chunk_is_kept = calloc(chunk_count, 1);
    trace->chunk_is_lost = calloc(chunk_count, 1);
    if (trace->name_table == NULL || trace->chunk_is_open == NULL || trace->chunk_is_kept == NULL ||
        trace->chunk_is_lost == NULL) {
        goto no_memory;
    }
    /* keys are few per process; without one the program's threads go unseen, ours do not */
    trace->has_key = pthread_key_create(&trace->thread_key, release_thread_track) == 0;
    if ((run_dir == NULL || run_dir[0] == '\0' || map_file(trace, run_dir, rank, error) != DP_OK) &&
        map_memory(trace) != DP_OK)
        goto no_memory;
    fill_header(trace, rank, size, host, (uint32_t)chunk_count);
    trace->full_name = dp_trace_name(trace, "(name table full)");
    *out = trace;
    return DP_OK;
no_memory:
    dp_trace_destroy(trace, 0);
    return dp_error_set(error, DP_ERR_NO_MEMORY, "timeline: no memory for %zu bytes", bytes);
}

void dp_trace_destroy(dp_trace_t *trace, int keep)
{
    if (trace == NULL) return;
    if (trace->has_key) pthread_key_delete(trace->thread_key);
    if (trace->memory != NULL) {
        atomic_store(&trace->header->end_ns, dp_now_ns());
        munmap(trace->memory, trace->bytes);
    }
    if (trace->path != NULL && !keep) unlink(trace->path);
    pthread_mutex_destroy(&trace->lock);
    free(trace->path);
    free(trace->chunk_is_kept);
    free(trace->chunk_is_lost);
    free(trace->chunk_is_open);
    free(trace->name_table);
    free(trace);
}

/* ---- Lanes and chunks ----------------------------------------------------------------------- */

dp_trace_track_t *dp_trace_track(dp_trace_t *trace, const char *name, dp_trace_track_kind_t kind)
{
    dp_trace_track_t *track = NULL;
    uint32_t id;

    if (trace == NULL) return NULL;
    id = dp_trace_name(trace, name);
    pthread_mutex_lock(&trace->lock);
    if (trace->track_count < DP_TRACE_TRACKS) {
        track = &trace->tracks[trace->track_count];
        track->trace = trace;
        track->index = trace->track_count;
        track->file = &trace->file_tracks[track->index];
        track->file->name = id;
        track->file->tid = (uint32_t)syscall(SYS_gettid);
        atomic_store_explicit(&track->file->kind, (uint32_t)kind + 1, memory_order_release);
        trace->track_count++;
        atomic_store(&trace->header->track_count, trace->track_count);
    } else {
        atomic_fetch_add(&trace->header->refused_tracks, 1);
    }
    pthread_mutex_unlock(&trace->lock);
    return track;
}

/* A track whose thread is gone, or NULL. Spans it left open are forgotten. */
static dp_trace_track_t *take_idle_track(dp_trace_t *trace)
{
    dp_trace_track_t *track = NULL;

    pthread_mutex_lock(&trace->lock);
    for (uint32_t i = 0; i < trace->track_count && track == NULL; i++) {
        /* pairs with release_thread_track(): what the old thread wrote is ours now */
        if (atomic_exchange_explicit(&trace->tracks[i].is_idle, 0, memory_order_acquire))
            track = &trace->tracks[i];
    }
    pthread_mutex_unlock(&trace->lock);
    if (track != NULL) {
        atomic_store(&track->file->depth, 0);
        track->file->tid = (uint32_t)syscall(SYS_gettid);
    }
    return track;
}

dp_trace_track_t *dp_trace_thread_track(dp_trace_t *trace)
{
    dp_trace_track_t *track;

    if (trace == NULL || !trace->has_key) return NULL;
    track = pthread_getspecific(trace->thread_key);
    if (track != NULL) return track;
    track = take_idle_track(trace);
    if (track == NULL) track = dp_trace_track(trace, "thread", DP_TRACE_TRACK_THREAD);
    if (track != NULL && pthread_setspecific(trace->thread_key, track) != 0) {
        release_thread_track(track);
        return NULL;
    }
    return track;
}

/* The oldest chunk that no track is filling, or UINT32_MAX. Under the lock. */
static uint32_t find_chunk(dp_trace_t *trace)
{
    uint32_t count = trace->header->chunk_count;

    if (trace->chunks_used < count) return trace->chunks_used++;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t chunk = (trace->next_chunk + i) % count;

        if (trace->chunk_is_open[chunk] || trace->chunk_is_kept[chunk]) continue;
        trace->next_chunk = (chunk + 1) % count;
        return chunk;
    }
    return UINT32_MAX;
}

static uint32_t chunk_index(const dp_trace_t *trace, const dp_trace_file_chunk_t *chunk)
{
    size_t at = (size_t)((const uint8_t *)chunk - trace->memory) - trace->header->chunk_offset;

    return (uint32_t)(at / DP_TRACE_CHUNK_BYTES);
}

/* Under the lock. At most three quarters of the chunks are kept: the latest records always find
 * room, and a window that is too long loses its end. */
static void keep_chunk(dp_trace_t *trace, uint32_t chunk)
{
    if (trace->chunk_is_kept[chunk]) return;
    if (trace->kept_count >= trace->header->chunk_count / 4 * 3) {
        trace->chunk_is_lost[chunk] = 1;
        return;
    }
    trace->chunk_is_kept[chunk] = 1;
    trace->kept_count++;
}

void dp_trace_keep(dp_trace_t *trace, int begins)
{
    if (trace == NULL) return;
    pthread_mutex_lock(&trace->lock);
    trace->is_keeping = begins;
    atomic_store(begins ? &trace->header->window_start_ns : &trace->header->window_end_ns,
                 dp_now_ns());
    for (uint32_t i = 0; begins && i < trace->header->chunk_count; i++) {
        if (trace->chunk_is_open[i]) keep_chunk(trace, i);
    }
    pthread_mutex_unlock(&trace->lock);
}

/* Under the lock. window_dropped lets a reader distinguish a whole window from one with holes. */
static void count_dropped(dp_trace_t *trace, uint64_t records, int is_of_window)
{
    atomic_fetch_add_explicit(&trace->header->dropped, records, memory_order_relaxed);
    if (is_of_window)
        atomic_fetch_add_explicit(&trace->header->window_dropped, records, memory_order_relaxed);
}

int dp_trace_next_chunk(dp_trace_track_t *track)
{
    dp_trace_t *trace = track->trace;
    dp_trace_file_chunk_t *chunk;
    uint32_t index;

    pthread_mutex_lock(&trace->lock);
    index = find_chunk(trace);
    if (index == UINT32_MAX) {
        count_dropped(trace, 1, trace->is_keeping);
        pthread_mutex_unlock(&trace->lock);
        return 0;
    }
    if (track->chunk != NULL) trace->chunk_is_open[chunk_index(trace, track->chunk)] = 0;
    trace->chunk_is_open[index] = 1;
    chunk = (void *)(trace->memory + trace->header->chunk_offset +
                     (size_t)index * DP_TRACE_CHUNK_BYTES);
    count_dropped(trace, atomic_load_explicit(&chunk->count, memory_order_relaxed),
                  trace->chunk_is_lost[index]);
    trace->chunk_is_lost[index] = 0;
    if (trace->is_keeping) keep_chunk(trace, index);
    /* emptied before it gets its new owner: a reader never takes old records for new ones */
    atomic_store(&chunk->count, 0);
    chunk->track = track->index;
    chunk->ordinal = ++trace->next_ordinal;
    pthread_mutex_unlock(&trace->lock);
    track->chunk = chunk;
    track->count = 0;
    track->room = DP_TRACE_CHUNK_RECORDS;
    return 1;
}

void dp_trace_step(dp_trace_t *trace, uint64_t step, uint64_t step_ns, uint64_t end_ns,
                   const dp_stats_t *stats)
{
    uint64_t words[DP_TRACE_STATS];

    if (trace == NULL) return;
    atomic_fetch_add_explicit(&trace->header->step_ns, step_ns, memory_order_relaxed);
    atomic_store_explicit(&trace->header->step, step, memory_order_relaxed);
    atomic_store_explicit(&trace->header->step_end_ns, end_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&trace->header->steps, 1, memory_order_relaxed);
    if (stats == NULL) return;
    memcpy(words, stats, sizeof(words));
    for (size_t i = 0; i < DP_TRACE_STATS; i++)
        atomic_store_explicit(&trace->header->stats[i], words[i], memory_order_relaxed);
}

uint64_t dp_trace_dropped(const dp_trace_t *trace)
{
    if (trace == NULL) return 0;
    return atomic_load_explicit(&trace->header->dropped, memory_order_relaxed);
}

/* ---- Names ---------------------------------------------------------------------------------- */

static uint32_t hash_text(const char *text, size_t length)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (uint8_t)text[i]) * 16777619u;
    return hash;
}

/* The place in the table that holds the text, or the empty one where it belongs. A place never
 * changes once it is set. */
static uint32_t find_name(const dp_trace_t *trace, const char *text, size_t length, uint32_t *place)
{
    uint32_t at = hash_text(text, length) % NAME_TABLE_SIZE;

    for (;;) {
        /* pairs with the release store in dp_trace_name(): the heap entry is complete */
        uint32_t id = atomic_load_explicit(&trace->name_table[at], memory_order_acquire);
        uint16_t size;

        *place = at;
        if (id == 0) return 0;
        memcpy(&size, trace->names + id, sizeof(size));
        if (size == length && memcmp(trace->names + id + sizeof(size), text, length) == 0)
            return id;
        at = (at + 1) % NAME_TABLE_SIZE;
    }
}

uint32_t dp_trace_name(dp_trace_t *trace, const char *text)
{
    uint32_t id, place, used;
    uint16_t length;

    /* Looked up without the lock first; under it once more, as another thread may have added it. */
    if (trace == NULL || text == NULL || text[0] == '\0') return 0;
    length = (uint16_t)strnlen(text, DP_TRACE_NAME_MAX);
    id = find_name(trace, text, length, &place);
    if (id != 0) return id;
    pthread_mutex_lock(&trace->lock);
    id = find_name(trace, text, length, &place);
    used = atomic_load_explicit(&trace->header->name_bytes, memory_order_relaxed);
    if (id == 0 && trace->name_count < NAME_COUNT_MAX &&
        used + sizeof(length) + length <= DP_TRACE_NAME_ROOM) {
        memcpy(trace->names + used, &length, sizeof(length));
        memcpy(trace->names + used + sizeof(length), text, length);
        id = used;
        trace->name_count++;
        used += (uint32_t)(sizeof(length) + length);
        atomic_store_explicit(&trace->header->name_bytes, used, memory_order_release);
        atomic_store_explicit(&trace->name_table[place], id, memory_order_release);
    } else if (id == 0) {
        id = trace->full_name;
    }
    pthread_mutex_unlock(&trace->lock);
    return id;
}
