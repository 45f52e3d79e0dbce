/*
 * log.c - formats log lines and gets them out without ever making the thread that logs wait for a
 * reader, because the coordinator logs, too.
 *
 * Called from any thread, but not from a signal handler. A line is written at once where the
 * descriptor takes it. The rest of it waits in a bounded queue that a thread empties; lines that
 * find no room are dropped, counted and told about later.
 *
 * O_NONBLOCK belongs to the open file, which standard error shares with the program, other ranks
 * and a shell, so it is never set there. A pipe or a terminal is opened once more through
 * /proc/self/fd instead: that open file is ours alone. Where the system does not permit that (a
 * terminal of another user), only the queue's thread writes, and may block.
 *
 *     dp_log_write() -> queue empty? -> write() what the descriptor takes
 *                    -> the rest      -> ring [QUEUE_BYTES] -> thread: poll(), write()
 */
#include "runtime/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/thread.h"

#define QUEUE_BYTES ((size_t)64 << 10)
#define ERROR_BYTES ((size_t)16 << 10) /* of these: kept for lines that say why a job ends */
#define CHUNK_BYTES ((size_t)256)      /* of one write that may block */
#define FLUSH_NS UINT64_C(500000000)
#define LINE_NS UINT64_C(100000000)
#define POLL_MS 20 /* how soon the thread notices that it shall end */

typedef enum target_kind {
    TARGET_NONE,    /* closed */
    TARGET_PLAIN,   /* a file, /dev/null: a write ends by itself */
    TARGET_SOCKET,  /* send() can be told not to block */
    TARGET_OWN,     /* a pipe or terminal that was opened once more, non-blocking */
    TARGET_BLOCKING /* one that could not be */
} target_kind_t;

/* Where lines go. */
typedef struct log_target {
    target_kind_t kind;
    int fd; /* to write to: the log's, or our own */
    dev_t device;
    ino_t inode;
} log_target_t;

struct dp_log_queue {
    pid_t pid; /* a forked child has the queue, but not the thread */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    /* guarded by lock */
    log_target_t target;
    char *data; /* [QUEUE_BYTES] ring; NULL until it is needed */
    size_t begin;
    size_t bytes;
    unsigned long dropped; /* lines, since the last time that was told */
    int has_thread;
    int stops;
    uint64_t stop_ns;
    int is_over; /* the thread has ended */
    int is_left; /* the owner waits no more: the thread frees the queue */
};

/* ---- Where lines go ------------------------------------------------------------------------- */

static void target_close(log_target_t *target)
{
    if (target->kind == TARGET_OWN) close(target->fd);
    target->kind = TARGET_NONE;
}

static void target_open(log_target_t *target, int fd, const struct stat *info)
{
    char path[32];

    *target = (log_target_t){TARGET_PLAIN, fd, info->st_dev, info->st_ino};
    if (S_ISSOCK(info->st_mode)) {
        target->kind = TARGET_SOCKET;
    } else if (S_ISFIFO(info->st_mode) || (S_ISCHR(info->st_mode) && isatty(fd))) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        target->fd = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        target->kind = target->fd >= 0 ? TARGET_OWN : TARGET_BLOCKING;
        if (target->fd < 0) target->fd = fd;
    }
}

/* Looks whether the program has pointed its standard error elsewhere since. */
static void target_update(log_target_t *target, int fd)
{
    struct stat info;

    if (fstat(fd, &info) != 0) {
        target_close(target);
        return;
    }
    if (target->kind != TARGET_NONE && target->device == info.st_dev &&
        target->inode == info.st_ino) {
        return;
    }
    target_close(target);
    target_open(target, fd, &info);
}

/* Bytes written; -1 with errno, EAGAIN where it would have had to wait. */
static ssize_t target_write(const log_target_t *target, const char *data, size_t bytes)
{
    ssize_t wrote;

    do {
        if (target->kind == TARGET_SOCKET) {
            wrote = send(target->fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        } else {
            wrote = write(target->fd, data, bytes);
        }
    } while (wrote < 0 && errno == EINTR);
    if (wrote == 0) errno = EAGAIN; /* a terminal that is held */
    return wrote > 0 ? wrote : -1;
}

/* Bytes of a line that need no more care: written, or lost for good. */
static size_t write_at_once(const log_target_t *target, const char *line, size_t bytes)
{
    size_t sent = 0;

    if (target->kind == TARGET_BLOCKING) return 0;
    while (sent < bytes && target->kind != TARGET_NONE) {
        ssize_t wrote = target_write(target, line + sent, bytes - sent);

        if (wrote < 0 && errno == EAGAIN) return sent;
        if (wrote < 0) break; /* nowhere left to complain */
        sent += (size_t)wrote;
    }
    return bytes;
}

/* Writes a line without a queue: the rest after a tenth of a second is dropped. */
static void write_unqueued(int fd, const char *line, size_t bytes)
{
    const uint64_t end_ns = dp_now_ns() + LINE_NS;
    log_target_t target = {TARGET_NONE, -1, 0, 0};
    size_t sent;

    target_update(&target, fd);
    sent = write_at_once(&target, line, bytes);
    while (sent < bytes && dp_now_ns() < end_ns) {
        struct pollfd room = {target.fd, POLLOUT, 0};

        if (poll(&room, 1, POLL_MS) <= 0) continue;
        /* Where it may block, poll() has just seen room for a line in the pipe. */
        if (target.kind == TARGET_BLOCKING) target.kind = TARGET_PLAIN;
        sent += write_at_once(&target, line + sent, bytes - sent);
        if (sent < bytes) poll(NULL, 0, 1);
    }
    target_close(&target);
}

/* ---- The ring ------------------------------------------------------------------------------- */

/* Called with the lock held, likewise below. */
static void ring_put(dp_log_queue_t *queue, const char *data, size_t bytes)
{
    const size_t end = (queue->begin + queue->bytes) % QUEUE_BYTES;
    const size_t first = dp_min(bytes, QUEUE_BYTES - end);

    memcpy(queue->data + end, data, first);
    memcpy(queue->data, data + first, bytes - first);
    queue->bytes += bytes;
}

/* The bytes in front that lie in one piece. */
static size_t ring_piece(const dp_log_queue_t *queue)
{
    return dp_min(queue->bytes, QUEUE_BYTES - queue->begin);
}

static void ring_drop(dp_log_queue_t *queue, size_t bytes)
{
    queue->begin = (queue->begin + bytes) % QUEUE_BYTES;
    queue->bytes -= bytes;
}

static void tell_dropped(dp_log_queue_t *queue)
{
    char text[128];
    int bytes = snprintf(text, sizeof(text),
                         "dp warn: %lu log line%s dropped: standard error was not read\n",
                         queue->dropped, queue->dropped == 1 ? " was" : "s were");

    ring_put(queue, text, (size_t)bytes);
    queue->dropped = 0;
}

/* ---- The thread ----------------------------------------------------------------------------- */

static void queue_free(dp_log_queue_t *queue)
{
    target_close(&queue->target);
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->lock);
    free(queue->data);
    free(queue);
}

/* Blocks without the lock; the piece in front stays where it is meanwhile. */
static void write_blocking(dp_log_queue_t *queue)
{
    const log_target_t target = queue->target;
    char piece[CHUNK_BYTES];
    const size_t bytes = dp_min(ring_piece(queue), sizeof(piece));
    ssize_t wrote;

    memcpy(piece, queue->data + queue->begin, bytes);
    pthread_mutex_unlock(&queue->lock);
    wrote = target_write(&target, piece, bytes);
    pthread_mutex_lock(&queue->lock);
    ring_drop(queue, wrote > 0 ? (size_t)wrote : bytes);
}

/* Writes until the descriptor takes no more. */
static void ring_write(dp_log_queue_t *queue)
{
    while (queue->bytes > 0) {
        const size_t piece = ring_piece(queue);
        const size_t sent = write_at_once(&queue->target, queue->data + queue->begin, piece);

        ring_drop(queue, sent);
        if (sent < piece) return;
    }
}

static void wait_for_room(dp_log_queue_t *queue)
{
    struct pollfd room = {queue->target.fd, POLLOUT, 0};

    pthread_mutex_unlock(&queue->lock);
    /* A terminal may call itself writable and take nothing. */
    if (poll(&room, 1, POLL_MS) > 0) poll(NULL, 0, 1);
    pthread_mutex_lock(&queue->lock);
}

static void *empty_queue(void *context)
{
    dp_log_queue_t *queue = context;
    int is_left;

    pthread_mutex_lock(&queue->lock);
    for (;;) {
        if (queue->bytes == 0 && queue->dropped > 0) tell_dropped(queue);
        while (queue->bytes == 0 && !queue->stops) {
            pthread_cond_wait(&queue->changed, &queue->lock);
        }
        if (queue->bytes == 0 || (queue->stops && dp_now_ns() >= queue->stop_ns)) break;
        if (queue->target.kind == TARGET_BLOCKING) {
            write_blocking(queue);
        } else {
            ring_write(queue);
            if (queue->bytes > 0) wait_for_room(queue);
        }
    }
    queue->is_over = 1;
    is_left = queue->is_left;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    if (is_left) queue_free(queue);
    return NULL;
}

static void start_thread(dp_log_queue_t *queue)
{
    queue->has_thread = dp_thread_start(&queue->thread, empty_queue, queue) == 0;
    if (queue->has_thread) (void)pthread_setname_np(queue->thread, "dp-log");
}

/* ---- Lines in ------------------------------------------------------------------------------- */

/* The rest of a line whose beginning was written always finds room, because the queue is empty
 * then. */
static void queue_line(dp_log_queue_t *queue, const char *line, size_t bytes, int is_error)
{
    const size_t room = QUEUE_BYTES - (is_error ? (size_t)0 : ERROR_BYTES);

    if (queue->data == NULL) queue->data = malloc(QUEUE_BYTES);
    if (queue->data == NULL || queue->bytes + bytes > room) {
        queue->dropped++;
        return;
    }
    ring_put(queue, line, bytes);
    if (!queue->has_thread) start_thread(queue);
    pthread_cond_signal(&queue->changed);
}

/* Writes or queues one whole line. is_error: it may use room that is kept for such lines. */
static void write_or_queue(dp_log_queue_t *queue, int fd, const char *line, size_t bytes,
                           int is_error)
{
    size_t sent = 0;

    if (queue->pid != getpid()) { /* the lock may have been held when the process forked */
        write_unqueued(fd, line, bytes);
        return;
    }
    pthread_mutex_lock(&queue->lock);
    target_update(&queue->target, fd);
    if (!queue->has_thread) ring_write(queue); /* it could not be started */
    if (queue->bytes == 0 && (queue->dropped == 0 || !queue->has_thread)) {
        sent = write_at_once(&queue->target, line, bytes);
    }
    if (sent < bytes) queue_line(queue, line + sent, bytes - sent, is_error);
    pthread_mutex_unlock(&queue->lock);
}

/* ---- Life ----------------------------------------------------------------------------------- */

dp_log_queue_t *dp_log_queue_create(void)
{
    dp_log_queue_t *queue = calloc(1, sizeof(*queue));
    pthread_condattr_t clock;

    if (queue == NULL) return NULL;
    queue->pid = getpid();
    pthread_mutex_init(&queue->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&queue->changed, &clock);
    pthread_condattr_destroy(&clock);
    return queue;
}

void dp_log_queue_destroy(dp_log_queue_t *queue)
{
    uint64_t end_ns;
    int is_over;

    if (queue == NULL || queue->pid != getpid()) return;
    pthread_mutex_lock(&queue->lock);
    queue->stops = 1;
    queue->stop_ns = dp_now_ns() + FLUSH_NS;
    pthread_cond_broadcast(&queue->changed);
    /* A thread that does not block ends by itself; one that does is left behind. */
    end_ns = queue->stop_ns + (queue->target.kind == TARGET_BLOCKING ? 0 : 60 * FLUSH_NS);
    while (queue->has_thread && !queue->is_over && dp_now_ns() < end_ns) {
        const struct timespec end = {(time_t)(end_ns / 1000000000u), (long)(end_ns % 1000000000u)};

        pthread_cond_timedwait(&queue->changed, &queue->lock, &end);
    }
    is_over = !queue->has_thread || queue->is_over;
    queue->is_left = !is_over;
    pthread_mutex_unlock(&queue->lock);
    if (!is_over) {
        pthread_detach(queue->thread);
        return;
    }
    if (queue->has_thread) pthread_join(queue->thread, NULL);
    queue_free(queue);
}

/* ---- Lines ----------------------------------------------------------------------------------- */

/* Below PIPE_BUF, up to which the kernel never mixes two writers of one pipe. */
#define LINE_MAX_BYTES 2048

static const char *level_name(dp_log_level_t level)
{
    switch (level) {
    case DP_LOG_ERROR:
        return "error";
    case DP_LOG_WARN:
        return "warn";
    case DP_LOG_INFO:
        return "info";
    case DP_LOG_DEBUG:
        return "debug";
    case DP_LOG_TRACE:
        return "trace";
    }
    return "?";
}

void dp_log_init(dp_log_t *log, dp_log_level_t level, int rank)
{
    log->level = level;
    log->rank = rank;
    log->fd = STDERR_FILENO;
    log->queue = NULL;
}

void dp_log_write(const dp_log_t *log, dp_log_level_t level, const char *format, ...)
{
    char line[LINE_MAX_BYTES];
    const size_t room = sizeof(line) - 1; /* the newline's */
    va_list arguments;
    size_t bytes;
    int printed;
    int saved = errno; /* a caller may log before it looks at errno */

    if (log == NULL || level > log->level) return;
    if (log->rank >= 0) {
        printed = snprintf(line, room, "dp %s rank %d: ", level_name(level), log->rank);
    } else {
        printed = snprintf(line, room, "dp %s: ", level_name(level));
    }
    bytes = printed > 0 ? (size_t)printed : 0;
    va_start(arguments, format);
    printed = vsnprintf(line + bytes, room - bytes, format, arguments);
    va_end(arguments);
    if (printed > 0) bytes += dp_min((size_t)printed, room - bytes - 1);
    for (size_t i = 0; i < bytes; i++) { /* a name from outside cannot forge a second line */
        if (line[i] == '\n' || line[i] == '\r') line[i] = ' ';
    }
    line[bytes] = '\0';
    dp_text_mask(line);
    while (bytes > 0 && line[bytes - 1] == ' ')
        bytes--;
    line[bytes++] = '\n';
    if (log->queue != NULL) {
        write_or_queue(log->queue, log->fd, line, bytes, level == DP_LOG_ERROR);
    } else {
        write_unqueued(log->fd, line, bytes);
    }
    errno = saved;
}
