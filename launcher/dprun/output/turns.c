/*
 * turns.c - one line at a time into a sink; see turns.h.
 *
 *     rank 0  [piece][piece][piece\n]           the turn is rank 0's: straight into the sink
 *     rank 1         [line\n]                   waits in rank 1's buffer, then goes behind it
 *     rank 2           [piece][piece\n]         waits, too
 *
 * If rank 2's line is not over by then, the next turn is rank 2's. Called by output.c, on the only
 * thread of dprun or of an agent.
 */
#include "launcher/dprun/output/turns.h"

#include <stdlib.h>

#include "runtime/base/common.h"

#define NOBODY (-1)
#define SILENCE_S 1
#define WAITING_MAX ((size_t)16 << 20)
#define TURN_MAX ((size_t)64 << 20)

typedef struct writer {
    struct evbuffer *waiting; /* NULL: nothing ever waited */
    int is_mid_line;
} writer_t;

struct dp_turns {
    dp_sink_t *sink; /* borrowed */
    int count;
    writer_t *writers; /* [count] */
    int turn;          /* whose it is; NOBODY: everybody's, and nothing waits */
    size_t waiting;    /* bytes of all */
    size_t written;    /* by the one whose turn it is, since others wait */
    size_t seen;       /* written, at the last tick */
    struct event *timer;
    dp_turn_broken_fn broken;
    void *context;
};

static void arm_timer(dp_turns_t *turns)
{
    const struct timeval delay = {SILENCE_S, 0};

    if (event_pending(turns->timer, EV_TIMEOUT, NULL)) return;
    turns->written = turns->seen = 0;
    event_add(turns->timer, &delay);
}

/* Ends the turn, and gives it to the next one who waits in the middle of a line. */
static void pass_turn(dp_turns_t *turns)
{
    const int first = turns->turn + 1;

    turns->turn = NOBODY;
    event_del(turns->timer);
    for (int i = 0; i < turns->count && turns->turn == NOBODY; i++) {
        const int next = (first + i) % turns->count;
        writer_t *writer = &turns->writers[next];

        if (writer->waiting != NULL) {
            turns->waiting -= evbuffer_get_length(writer->waiting);
            dp_sink_take(turns->sink, writer->waiting);
        }
        if (writer->is_mid_line) turns->turn = next;
    }
    if (turns->waiting > 0) arm_timer(turns);
}

static void break_turn(dp_turns_t *turns)
{
    const int writer = turns->turn;

    turns->writers[writer].is_mid_line = 0;
    turns->broken(turns->context, writer);
    pass_turn(turns);
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    dp_turns_t *turns = context;
    const struct timeval delay = {SILENCE_S, 0};

    (void)fd;
    (void)what;
    if (turns->turn == NOBODY || turns->waiting == 0) return;
    /* A sink that is full stops the writer; then it is not silent of its own accord. */
    if (turns->written != turns->seen || dp_sink_is_full(turns->sink)) {
        turns->seen = turns->written;
        event_add(turns->timer, &delay);
        return;
    }
    break_turn(turns);
    dp_sink_flush(turns->sink);
}

dp_status_t dp_turns_create(struct event_base *base, dp_sink_t *sink, int count,
                            dp_turn_broken_fn broken, void *context, dp_turns_t **out,
                            dp_error_t *error)
{
    dp_turns_t *turns = calloc(1, sizeof(*turns));

    if (turns != NULL) {
        *turns = (dp_turns_t){.sink = sink,
                              .count = count,
                              .writers = calloc((size_t)count, sizeof(*turns->writers)),
                              .turn = NOBODY,
                              .timer = event_new(base, -1, 0, on_timer, turns),
                              .broken = broken,
                              .context = context};
    }
    if (turns == NULL || turns->writers == NULL || turns->timer == NULL) {
        dp_turns_destroy(turns);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    *out = turns;
    return DP_OK;
}

void dp_turns_destroy(dp_turns_t *turns)
{
    if (turns == NULL) return;
    for (int i = 0; turns->writers != NULL && i < turns->count; i++) {
        if (turns->writers[i].waiting != NULL) evbuffer_free(turns->writers[i].waiting);
    }
    if (turns->timer != NULL) event_free(turns->timer);
    free(turns->writers);
    free(turns);
}

void dp_turns_write(dp_turns_t *turns, int number, const void *data, size_t bytes)
{
    writer_t *writer = &turns->writers[number];

    if (bytes == 0) return;
    if (turns->turn == NOBODY || turns->turn == number) {
        turns->written += bytes;
        dp_sink_write(turns->sink, data, bytes);
        return;
    }
    if (writer->waiting == NULL) writer->waiting = evbuffer_new();
    if (writer->waiting == NULL || evbuffer_add(writer->waiting, data, bytes) != 0) return;
    turns->waiting += bytes;
    arm_timer(turns);
}

void dp_turns_end_piece(dp_turns_t *turns, int number, int goes_on)
{
    turns->writers[number].is_mid_line = goes_on;
    if (turns->turn == NOBODY && goes_on) turns->turn = number;
    if (turns->turn == number && !goes_on) pass_turn(turns);
    while (turns->turn != NOBODY && turns->waiting > 0 &&
           (turns->waiting > WAITING_MAX || turns->written > TURN_MAX)) {
        turns->written = 0;
        break_turn(turns);
    }
}

int dp_turns_are_taken(const dp_turns_t *turns)
{
    return turns->turn != NOBODY;
}

size_t dp_turns_waiting(const dp_turns_t *turns)
{
    return turns->waiting;
}
