/*
 * output.c - pipes of the ranks in, prefixed lines out.
 *
 * Callbacks of dprun's event loop; supervise.c makes it and asks when all is written. At a
 * terminal a line that is not finished yet (a prompt, a progress line redrawn by "\r") is shown as
 * a draft: drawn without newline, wiped before the next line, so that it never mixes with others.
 * A line of more than DP_LINE_BYTES_MAX goes out in pieces; where another line comes between them,
 * the next piece says whose line goes on.
 */
#include "launcher/dprun/output/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/dprun/output/lines.h"
#include "launcher/dprun/output/sink.h"

#define READ_BYTES ((size_t)64 << 10)
#define DRAFT_DELAY_US 50000 /* most lines are finished by then */
#define WIPE "\r\x1b[K"

typedef struct stream {
    dp_job_output_t *output;
    int rank;
    int number; /* 1: standard output, 2: standard error */
    int is_open;
    int fd;           /* -1: ended, or its bytes are fed */
    const char *node; /* its machine, where there are several; borrowed */
    int file;         /* of --output-dir, -1: none */
    struct event *readable;
    dp_lines_t lines;
    int is_mid_line; /* the last piece was cut, and the next one follows it */
    int goes_on;     /* likewise, but lines of others came between */
    int is_drafted;  /* the unfinished line in `lines` is on the screen */
} stream_t;

struct dp_job_output {
    const dp_command_t *command; /* borrowed */
    struct event_base *base;     /* borrowed */
    int size;
    uint64_t start_ns;
    dp_job_output_events_t events;
    dp_sink_t *sinks[2];   /* one and the same where both outputs are one file */
    stream_t *mid_line[2]; /* in whose long line it is, by number as sinks; NULL: in none */
    int is_cut[2];         /* the last byte that ranks wrote to it ends no line */
    int is_terminal[2];    /* drafts can be drawn and wiped */
    int has_color[2];
    stream_t *streams; /* [size][2] */
    dp_tail_t *tails;  /* [size] */
    int open_streams;
    int is_held;     /* a sink is full: nothing is read */
    int is_broken;   /* dprun's own output is closed; reported once */
    int file_failed; /* of --output-dir; reported once */
    int has_lost;    /* some output of a rank is neither shown nor saved */
    stream_t *draft; /* whose draft is shown; NULL: none */
    struct event *draft_timer;
    char *buffer; /* [READ_BYTES] */
};

void dp_format_elapsed(uint64_t ns, char *text, size_t room)
{
    unsigned long long ms = ns / 1000000;
    unsigned long long seconds = ms / 1000;

    if (seconds >= 3600) {
        snprintf(text, room, "+%llu:%02llu:%02llu.%03llu", seconds / 3600, seconds / 60 % 60,
                 seconds % 60, ms % 1000);
    } else {
        snprintf(text, room, "+%02llu:%02llu.%03llu", seconds / 60, seconds % 60, ms % 1000);
    }
}

/* ---- Lines out ------------------------------------------------------------------------------ */

static int columns_of(int fd)
{
    struct winsize window;

    return ioctl(fd, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 ? window.ws_col : 80;
}

static void arm_draft_timer(stream_t *stream)
{
    const struct timeval delay = {0, DRAFT_DELAY_US};
    dp_job_output_t *output = stream->output;

    if (stream->lines.bytes == 0 || !stream->is_open || output->command->is_quiet) return;
    if (!output->is_terminal[stream->number - 1] || stream->is_mid_line) return;
    if (!event_pending(output->draft_timer, EV_TIMEOUT, NULL)) {
        event_add(output->draft_timer, &delay);
    }
}

static void wipe_draft(dp_job_output_t *output)
{
    stream_t *stream = output->draft;

    if (stream == NULL) return;
    dp_sink_write(output->sinks[stream->number - 1], WIPE, sizeof(WIPE) - 1);
    output->draft = NULL;
    stream->is_drafted = 0;
    arm_draft_timer(stream); /* the half line that was wiped is to be drawn again */
}

static void put(stream_t *stream, const void *data, size_t bytes)
{
    dp_sink_write(stream->output->sinks[stream->number - 1], data, bytes);
}

/* Returns the columns it takes. */
static int write_prefix(stream_t *stream, const char *mark)
{
    static const int colors[] = {36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91};
    dp_job_output_t *output = stream->output;
    int sink = stream->number - 1;
    char text[160];
    char who[96];
    char elapsed[32] = "";
    int columns = 0;

    if (output->command->has_timestamps) {
        dp_format_elapsed(dp_now_ns() - output->start_ns, elapsed, sizeof(elapsed));
        columns = snprintf(text, sizeof(text), "%s ", elapsed);
        put(stream, text, (size_t)columns);
    }
    if (!output->command->has_prefix) {
        if (mark[0] != '\0') put(stream, "+ ", 2);
        return columns;
    }
    if (stream->node != NULL) {
        snprintf(who, sizeof(who), "[%d@%.60s]%s", stream->rank, stream->node, mark);
    } else {
        snprintf(who, sizeof(who), "[%d]%s", stream->rank, mark);
    }
    columns += snprintf(text, sizeof(text), "%s ", who);
    if (output->has_color[sink]) {
        snprintf(text, sizeof(text), "\x1b[%dm%s\x1b[0m ",
                 colors[stream->rank % (int)DP_ARRAY_LEN(colors)], who);
    }
    put(stream, text, strlen(text));
    return columns;
}

/* Shows an unfinished line; it is cut to the screen's width, or it could not be wiped. */
static void draw_draft(stream_t *stream, const char *text, size_t bytes)
{
    dp_job_output_t *output = stream->output;
    int sink = stream->number - 1;
    int room;

    wipe_draft(output);
    room = columns_of(stream->number) - 1 - write_prefix(stream, "");
    if (room > 0) {
        size_t shown = dp_min(bytes, (size_t)room);

        dp_sink_write(output->sinks[sink], text,
                      shown == bytes ? bytes : dp_lines_cut(text, shown));
    }
    output->draft = stream;
    stream->is_drafted = 1;
}

/* Ranks' bytes pass without a prefix. A terminal gets whole lines in any case. */
static int is_exact(const dp_job_output_t *output, int sink)
{
    return !output->command->has_prefix && !output->command->has_timestamps &&
           !output->is_terminal[sink];
}

/* Standard output and error may be one sink. */
static stream_t **find_mid_line(dp_job_output_t *output, int number)
{
    return &output->mid_line[output->sinks[0] == output->sinks[1] ? 0 : number - 1];
}

/* A line of `next` (NULL: of dprun) comes into the long line of another stream. */
static void break_long_line(dp_job_output_t *output, int number, const stream_t *next)
{
    stream_t **at = find_mid_line(output, number);
    stream_t *stream = *at;

    if (stream == NULL || stream == next) return;
    *at = NULL;
    stream->is_mid_line = 0;
    if (is_exact(output, stream->number - 1)) return;
    stream->goes_on = 1;
    put(stream, "\n", 1);
}

/* A dp_line_fn. */
static void print_line(void *context, const char *text, size_t bytes, dp_line_end_t end)
{
    stream_t *stream = context;
    dp_job_output_t *output = stream->output;
    static const char *const ends[] = {[DP_LINE_NEWLINE] = "\n",
                                       [DP_LINE_RETURN_NEWLINE] = "\r\n",
                                       [DP_LINE_RETURN] = "\r",
                                       [DP_LINE_CUT] = "",
                                       [DP_LINE_OPEN] = ""};
    int sink = stream->number - 1;
    stream_t **mid_line = find_mid_line(output, stream->number);
    int is_raw = is_exact(output, sink);

    /* "\r" first, then the text */
    if (end == DP_LINE_RETURN && bytes == 0 && !is_raw && !stream->is_mid_line) return;
    dp_tail_add(&output->tails[stream->rank], text, bytes);
    if (output->command->is_quiet) return;
    if (end == DP_LINE_RETURN && output->is_terminal[sink] && *mid_line == NULL) {
        draw_draft(stream, text, bytes);
        return;
    }
    wipe_draft(output);
    break_long_line(output, stream->number, stream);
    if (!is_raw && !stream->is_mid_line) write_prefix(stream, stream->goes_on ? "+" : "");
    put(stream, text, bytes);
    if (is_raw) {
        put(stream, ends[end], strlen(ends[end]));
        output->is_cut[sink] = end != DP_LINE_NEWLINE && end != DP_LINE_RETURN_NEWLINE;
        if (output->sinks[0] == output->sinks[1]) output->is_cut[1] = output->is_cut[sink];
    } else if (end != DP_LINE_CUT) {
        put(stream, "\n", 1); /* in a file each state of a progress line counts */
    }
    stream->goes_on = 0;
    stream->is_mid_line = end == DP_LINE_CUT;
    *mid_line = stream->is_mid_line ? stream : NULL;
}

static void on_draft_timer(evutil_socket_t fd, short what, void *context)
{
    dp_job_output_t *output = context;

    (void)fd;
    (void)what;
    for (int i = 0; i < output->size * 2; i++) {
        stream_t *stream = &output->streams[i];

        if (!stream->is_open || stream->is_drafted || stream->lines.bytes == 0 ||
            !output->is_terminal[stream->number - 1] || stream->is_mid_line) {
            continue;
        }
        if (*find_mid_line(output, stream->number) != NULL) {
            arm_draft_timer(stream); /* once the long line is over */
            continue;
        }
        draw_draft(stream, stream->lines.data, stream->lines.bytes);
        dp_sink_flush(output->sinks[stream->number - 1]);
    }
}

/* ---- Bytes in ------------------------------------------------------------------------------- */

/* A sink is full: until it has drained, no rank is read, so ranks block in write() as they would at
 * a slow pipe, and memory stays bounded. */
static void pause_streams(dp_job_output_t *output)
{
    output->is_held = 1;
    for (int i = 0; i < output->size * 2; i++) {
        if (output->streams[i].readable != NULL) event_del(output->streams[i].readable);
    }
}

static void on_drained(void *context)
{
    dp_job_output_t *output = context;

    if (dp_sink_is_full(output->sinks[0]) || dp_sink_is_full(output->sinks[1])) return;
    output->is_held = 0;
    for (int i = 0; i < output->size * 2; i++) {
        if (output->streams[i].readable != NULL) event_add(output->streams[i].readable, NULL);
    }
    if (output->events.drained != NULL) output->events.drained(output->events.context);
}

static void on_broken(void *context, int fd, int error)
{
    dp_job_output_t *output = context;

    (void)fd;
    if (error != EPIPE) output->has_lost = 1;
    if (output->is_broken) return;
    output->is_broken = 1;
    output->events.broken(output->events.context, error);
}

/* The rank closed its end, or dprun gives up on it. Its last line is printed even without a
 * newline. */
static void close_stream(stream_t *stream)
{
    dp_job_output_t *output = stream->output;

    if (!stream->is_open) return;
    stream->is_open = 0;
    dp_lines_end(&stream->lines, print_line, stream);
    if (stream->is_mid_line) print_line(stream, "", 0, DP_LINE_OPEN);
    if (output->draft == stream) { /* the last state of a progress line stays */
        dp_sink_write(output->sinks[stream->number - 1], "\n", 1);
        output->draft = NULL;
    }
    if (stream->readable != NULL) event_free(stream->readable);
    stream->readable = NULL;
    if (stream->fd >= 0) close(stream->fd);
    stream->fd = -1;
    if (stream->file >= 0) close(stream->file);
    stream->file = -1;
    output->open_streams--;
    dp_sink_flush(output->sinks[stream->number - 1]);
    output->events.ended(output->events.context);
}

static void save_to_file(stream_t *stream, const char *data, size_t bytes)
{
    dp_job_output_t *output = stream->output;

    while (bytes > 0) {
        ssize_t written = write(stream->file, data, bytes);

        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            output->has_lost = 1;
            if (!output->file_failed) {
                output->file_failed = 1;
                dp_job_output_say(output, "%s/rank.%d.%s: %s; not all output is saved",
                                  output->command->output_dir, stream->rank,
                                  stream->number == 1 ? "out" : "err", strerror(errno));
            }
            return;
        }
        data += written;
        bytes -= (size_t)written;
    }
}

static void take_bytes(stream_t *stream, const char *data, size_t bytes)
{
    dp_job_output_t *output = stream->output;
    dp_sink_t *sink = output->sinks[stream->number - 1];

    if (stream->file >= 0) save_to_file(stream, data, bytes);
    stream->is_drafted = 0;
    dp_lines_feed(&stream->lines, data, bytes, print_line, stream);
    arm_draft_timer(stream);
    dp_sink_flush(sink);
    if (dp_sink_is_full(sink)) pause_streams(output);
}

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    stream_t *stream = context;
    dp_job_output_t *output = stream->output;
    ssize_t bytes = read((int)fd, output->buffer, READ_BYTES);

    (void)what;
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (bytes <= 0) {
        close_stream(stream);
        return;
    }
    take_bytes(stream, output->buffer, (size_t)bytes);
}

void dp_job_output_feed(dp_job_output_t *output, int rank, int stream_number, const char *data,
                        size_t bytes)
{
    stream_t *stream = &output->streams[rank * 2 + stream_number - 1];

    if (!stream->is_open) return;
    if (bytes > 0) {
        take_bytes(stream, data, bytes);
    } else {
        close_stream(stream);
    }
}

/* ---- Life ----------------------------------------------------------------------------------- */

static int open_file(const dp_job_output_t *output, int rank, int stream, dp_error_t *error)
{
    char path[4096];
    int fd;

    snprintf(path, sizeof(path), "%s/rank.%d.%s", output->command->output_dir, rank,
             stream == 1 ? "out" : "err");
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) dp_error_set(error, DP_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    return fd;
}

dp_status_t dp_job_output_open(dp_job_output_t *output, int rank, int stream_number,
                               const char *node, dp_error_t *error)
{
    stream_t *stream = &output->streams[rank * 2 + stream_number - 1];

    if (output->command->output_dir != NULL) {
        stream->file = open_file(output, rank, stream_number, error);
        if (stream->file < 0) return DP_ERR_SYSTEM;
    }
    stream->node = node;
    stream->is_open = 1;
    output->open_streams++;
    return DP_OK;
}

dp_status_t dp_job_output_attach(dp_job_output_t *output, int rank, int stream_number, int fd,
                                 dp_error_t *error)
{
    stream_t *stream = &output->streams[rank * 2 + stream_number - 1];

    if (dp_job_output_open(output, rank, stream_number, NULL, error) != DP_OK) {
        close(fd);
        return DP_ERR_SYSTEM;
    }
    fcntl(fd, F_SETFL, O_NONBLOCK); /* the read end is ours alone */
    stream->readable = event_new(output->base, fd, EV_READ | EV_PERSIST, on_readable, stream);
    if (stream->readable == NULL) {
        close(fd);
        stream->is_open = 0;
        output->open_streams--;
        return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    stream->fd = fd;
    if (!output->is_held) event_add(stream->readable, NULL);
    return DP_OK;
}

/* "2>&1": with two queues for it, a line of one could come into the middle of the other's. */
static int are_one_file(int a, int b)
{
    struct stat first, second;

    return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

static void look_at_terminal(dp_job_output_t *output)
{
    const char *kind = dp_environment("TERM");
    int is_dumb = kind == NULL || strcmp(kind, "dumb") == 0;

    for (int i = 0; i < 2; i++) {
        int is_terminal = isatty(i + 1) && !is_dumb;

        output->is_terminal[i] = is_terminal;
        output->has_color[i] = output->command->color == DP_COLOR_ALWAYS ||
                               (output->command->color == DP_COLOR_AUTO && is_terminal &&
                                dp_environment("NO_COLOR") == NULL);
    }
}

dp_status_t dp_job_output_make_dir(const dp_command_t *command, dp_error_t *error)
{
    const char *path = command->output_dir;

    if (path == NULL) return DP_OK;
    if ((mkdir(path, 0777) == 0 || errno == EEXIST) && access(path, W_OK | X_OK) == 0) {
        return DP_OK;
    }
    return dp_error_set(error, DP_ERR_CONFIG, "--output-dir %s: %s", path, strerror(errno));
}

dp_status_t dp_job_output_create(struct event_base *base, const dp_command_t *command, int size,
                                 uint64_t start_ns, const dp_job_output_events_t *events,
                                 dp_job_output_t **out, dp_error_t *error)
{
    dp_job_output_t *output = calloc(1, sizeof(*output));
    dp_sink_events_t sink_events = {on_drained, on_broken, output};
    dp_status_t status = DP_OK;

    if (output == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    output->command = command;
    output->base = base;
    output->size = size;
    output->start_ns = start_ns;
    output->events = *events;
    output->streams = calloc((size_t)size * 2, sizeof(*output->streams));
    output->tails = calloc((size_t)size, sizeof(*output->tails));
    output->buffer = malloc(READ_BYTES);
    output->draft_timer = event_new(base, -1, 0, on_draft_timer, output);
    if (output->streams == NULL || output->tails == NULL || output->buffer == NULL ||
        output->draft_timer == NULL) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
        goto fail;
    }
    for (int i = 0; i < size * 2; i++) {
        output->streams[i] =
            (stream_t){.output = output, .rank = i / 2, .number = i % 2 + 1, .fd = -1, .file = -1};
        dp_lines_init(&output->streams[i].lines);
    }
    look_at_terminal(output);
    for (int i = 0; i < 2; i++) {
        if (i == 1 && are_one_file(STDOUT_FILENO, STDERR_FILENO)) {
            output->sinks[1] = output->sinks[0];
            break;
        }
        status = dp_sink_create(base, i + 1, &sink_events, &output->sinks[i], error);
        if (status != DP_OK) goto fail;
    }
    *out = output;
    return DP_OK;
fail:
    dp_job_output_destroy(output);
    return status;
}

void dp_job_output_destroy(dp_job_output_t *output)
{
    if (output == NULL) return;
    for (int i = 0; output->streams != NULL && i < output->size * 2; i++) {
        stream_t *stream = &output->streams[i];

        if (stream->readable != NULL) event_free(stream->readable);
        if (stream->fd >= 0) close(stream->fd);
        if (stream->file >= 0) close(stream->file);
        dp_lines_fini(&stream->lines);
    }
    for (int rank = 0; output->tails != NULL && rank < output->size; rank++) {
        dp_tail_fini(&output->tails[rank]);
    }
    for (int i = 0; i < 2; i++) {
        if (i == 1 && output->sinks[1] == output->sinks[0]) break;
        dp_sink_destroy(output->sinks[i]);
    }
    if (output->draft_timer != NULL) event_free(output->draft_timer);
    free(output->streams);
    free(output->tails);
    free(output->buffer);
    free(output);
}

void dp_job_output_print(dp_job_output_t *output, const char *text)
{
    wipe_draft(output);
    break_long_line(output, STDERR_FILENO, NULL);
    if (output->is_cut[1]) dp_sink_write(output->sinks[1], "\n", 1);
    output->is_cut[1] = 0;
    dp_sink_write(output->sinks[1], text, strlen(text));
    dp_sink_flush(output->sinks[1]);
}

void dp_job_output_say(dp_job_output_t *output, const char *format, ...)
{
    char text[1024] = "dprun: ";
    size_t used = strlen(text);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text + used, sizeof(text) - used - 1, format, arguments);
    va_end(arguments);
    dp_text_mask(text); /* names of processes and of nodes are others' bytes */
    used = strlen(text);
    text[used] = '\n';
    text[used + 1] = '\0';
    dp_job_output_print(output, text);
}

int dp_job_output_open_streams(const dp_job_output_t *output)
{
    return output->open_streams;
}

int dp_job_output_is_held(const dp_job_output_t *output)
{
    return output->is_held;
}

int dp_job_output_is_flushed(const dp_job_output_t *output)
{
    return dp_job_output_queued(output) == 0;
}

void dp_job_output_close_streams(dp_job_output_t *output)
{
    for (int i = 0; i < output->size * 2; i++) {
        close_stream(&output->streams[i]);
    }
}

size_t dp_job_output_queued(const dp_job_output_t *output)
{
    const size_t bytes = dp_sink_queued(output->sinks[0]);

    return output->sinks[1] == output->sinks[0] ? bytes : bytes + dp_sink_queued(output->sinks[1]);
}

int dp_job_output_has_lost(const dp_job_output_t *output)
{
    return output->has_lost;
}

const dp_tail_t *dp_job_output_tail(const dp_job_output_t *output, int rank)
{
    return &output->tails[rank];
}
