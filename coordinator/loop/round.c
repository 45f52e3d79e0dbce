/*
 * round.c - one round of the coordinator.
 *
 * A round takes in everything that has arrived, from other threads, from neighbours and from the
 * clock, feeds it to the negotiator and only then asks for its outputs: what came together is
 * answered together. The thread that owns progress calls it: the coordinator thread (thread.c), or
 * a waiting thread (progress.c). It must not block and must not know which of the two it runs on.
 *
 * A control message between two ranks:
 *
 *     byte 0      1 negotiator, 2 heartbeat, 3 history (dp_loop_peer_check_t)
 *     bytes 1-4   its number on this edge; heartbeats and histories repeat the number of the last
 *                 message of the negotiator
 *     bytes 5-    the content
 *
 * A gap in the numbers ends the world: nothing else would notice that a message was lost.
 */
#include "coordinator/loop/round.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/loop/state.h"
#include "runtime/base/inject.h"
#include "runtime/base/wire.h"

#define MESSAGES_PER_ROUND 256              /* then outputs are given, however much more has come */
#define MISMATCH_END_NS (1000ull * 1000000) /* for a neighbour to find out what differs */
#define HISTORY_ROOM ((size_t)128 * DP_KIB)

enum { KIND_NEGOTIATOR = 1, KIND_HEARTBEAT = 2, KIND_HISTORY = 3 };
#define HEADER_BYTES ((size_t)5) /* kind, number */

static void increment(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* ---- Sending -------------------------------------------------------------------------------- */

void dp_loop_give_up(dp_loop_t *loop, dp_status_t status, const char *text)
{
    if (loop->end.has_given_up) return;
    loop->end.has_given_up = 1;
    dp_negotiator_abort(loop->negotiator, status, text, dp_now_ns());
}

static void write_header(uint8_t header[HEADER_BYTES], uint8_t kind, uint32_t number)
{
    dp_writer_t writer;

    dp_writer_init(&writer, header, HEADER_BYTES);
    dp_write_u8(&writer, kind);
    dp_write_u32(&writer, number);
}

static void send_message(dp_loop_t *loop, const dp_output_t *out, uint64_t now_ns)
{
    dp_transport_t *transport = loop->options.transport;
    const size_t bytes = out->bytes + HEADER_BYTES;
    char text[128];
    dp_status_t status = DP_OK;

    dp_inject_enter(loop->options.config->injector, DP_INJECT_NEGOTIATING);

    if (loop->message_room < bytes) {
        uint8_t *larger = realloc(loop->message, bytes * 2);

        if (larger != NULL) {
            loop->message = larger;
            loop->message_room = bytes * 2;
        } else {
            status = DP_ERR_NO_MEMORY;
        }
    }
    if (status == DP_OK) {
        write_header(loop->message, KIND_NEGOTIATOR,
                     dp_health_number(&loop->health, out->to, 0) + 1);
        if (out->bytes > 0) memcpy(loop->message + HEADER_BYTES, out->data, out->bytes);
        if (!dp_inject_drops(loop->options.config->injector))
            status = transport->ops->send(transport, out->to, loop->message, bytes);
    }
    if (status != DP_OK) {
        snprintf(text, sizeof(text),
                 "a control message of %zu bytes to rank %d could not be sent (%s)", out->bytes,
                 out->to, dp_status_string(status));
        dp_loop_give_up(loop, status, text);
        return;
    }
    /* Counted only now: the text of one that failed must not arrive behind a gap. */
    (void)dp_health_number(&loop->health, out->to, 1);
    increment(&loop->counters.sent);
    dp_trace_record(loop->trace.track,
                    (dp_trace_record_t){.kind = DP_TRACE_CONTROL,
                                        .start_ns = now_ns,
                                        .name = loop->trace.name_out,
                                        .aux = (uint32_t)out->to & DP_TRACE_AUX_MAX,
                                        .bytes = out->bytes});
}

static void send_heartbeat(dp_loop_t *loop, int rank, uint64_t now_ns)
{
    dp_transport_t *transport = loop->options.transport;
    const dp_loop_peer_check_t *peer_check = &loop->options.peer_check;
    uint8_t heartbeat[HEADER_BYTES + DP_LOOP_HEARTBEAT_DATA_MAX];
    size_t bytes = HEADER_BYTES;

    write_header(heartbeat, KIND_HEARTBEAT, dp_health_number(&loop->health, rank, 0));
    if (peer_check->write_heartbeat != NULL) {
        bytes += peer_check->write_heartbeat(peer_check->user, heartbeat + bytes,
                                             DP_LOOP_HEARTBEAT_DATA_MAX);
    }
    /* A heartbeat that could not be sent does no harm if the next one can be. */
    if (transport->ops->send(transport, rank, heartbeat, bytes) == DP_OK) {
        increment(&loop->counters.heartbeats);
    }
    dp_health_gave_heartbeat(&loop->health, rank, now_ns);
}

/* To one neighbour. If it cannot be sent, the next heartbeat that differs asks for it again. */
static void send_history(dp_loop_t *loop, int rank)
{
    const dp_loop_peer_check_t *peer_check = &loop->options.peer_check;
    dp_transport_t *transport = loop->options.transport;
    uint8_t *story = malloc(HISTORY_ROOM); /* rare: something has gone wrong */
    size_t bytes = HEADER_BYTES;

    if (story == NULL || peer_check->write_history == NULL) {
        free(story);
        return;
    }
    write_header(story, KIND_HISTORY, dp_health_number(&loop->health, rank, 0));
    bytes += peer_check->write_history(peer_check->user, story + bytes, HISTORY_ROOM - bytes);
    (void)transport->ops->send(transport, rank, story, bytes);
    free(story);
}

/* ---- Taking in ------------------------------------------------------------------------------ */

static void handle_urgent(dp_loop_t *loop, uint64_t now_ns)
{
    dp_inbox_name_t *name = dp_inbox_take_urgent(&loop->inbox);

    while (name != NULL) {
        dp_inbox_name_t *next = name->next;

        dp_negotiator_urgent(loop->negotiator, name->group, name->name, now_ns);
        free(name);
        name = next;
    }
}

static void submit_node(dp_loop_t *loop, const dp_loop_node_t *node, uint64_t now_ns)
{
    const dp_submission_t *submission = &node->submission;
    const dp_status_t status = dp_negotiator_submit(loop->negotiator, submission, now_ns);
    char text[DP_ENTRY_NAME_MAX + 128];

    if (status == DP_OK) return; /* an output of the negotiator hands the request back */
    snprintf(text, sizeof(text), "tensor %s: %s", submission->name,
             status == DP_ERR_BUSY ? "it was submitted before and has not been launched yet"
                                   : dp_status_string(status));
    loop->options.callbacks.fail(loop->options.callbacks.user, submission->request, status, text);
}

/* Copies a text of the inbox and the status beside it (NULL: none); the texts are guarded by its
 * lock. */
static void copy_inbox_text(dp_inbox_t *inbox, const char *from, const dp_status_t *from_status,
                            char text[DP_INBOX_TEXT_MAX], dp_status_t *status)
{
    pthread_mutex_lock(&inbox->lock);
    memcpy(text, from, DP_INBOX_TEXT_MAX);
    if (from_status != NULL) *status = *from_status;
    pthread_mutex_unlock(&inbox->lock);
}

/* Reports of the present state: they come before the submissions of this round. */
static void handle_state_flags(dp_loop_t *loop, unsigned flags, uint64_t now_ns)
{
    dp_inbox_t *inbox = &loop->inbox;
    char text[DP_INBOX_TEXT_MAX];

    if (flags & DP_INBOX_STOP) loop->end.must_stop = 1;
    if (flags & DP_INBOX_ACTIVITY) {
        copy_inbox_text(inbox, inbox->activity, NULL, text, NULL);
        dp_negotiator_progress(loop->negotiator, text);
    }
    if (flags & DP_INBOX_LAUNCH_DONE)
        dp_negotiator_launch_done(loop->negotiator, atomic_load(&inbox->launch_done), now_ns);
}

static void handle_abort(dp_loop_t *loop)
{
    dp_inbox_t *inbox = &loop->inbox;
    char text[DP_INBOX_TEXT_MAX];
    dp_status_t status;

    copy_inbox_text(inbox, inbox->abort_text, &inbox->abort_status, text, &status);
    dp_loop_give_up(loop, status, text);
}

/* The engine found that ranks brought different things: the neighbours get this rank's history. */
static void handle_mismatch(dp_loop_t *loop, uint64_t now_ns)
{
    loop->end.mismatch_end_ns = now_ns + MISMATCH_END_NS;
    if (loop->links.parent >= 0) send_history(loop, loop->links.parent);
    for (int i = 0; i < loop->links.child_count; i++)
        send_history(loop, loop->links.children[i]);
}

/* Inputs about earlier submissions, or the end of the world: they come after the submissions. */
static void handle_request_flags(dp_loop_t *loop, unsigned flags, uint64_t now_ns)
{
    if (flags & DP_INBOX_URGENT) handle_urgent(loop, now_ns);
    if (flags & DP_INBOX_ABORT) handle_abort(loop);
    if (flags & DP_INBOX_MISMATCH) handle_mismatch(loop, now_ns);
    if (flags & DP_INBOX_FINALIZE) dp_negotiator_finalize(loop->negotiator, now_ns);
}

/* Takes in the inbox of other threads. 1: there was something. */
static int handle_inbox(dp_loop_t *loop, uint64_t now_ns)
{
    dp_inbox_t *inbox = &loop->inbox;
    /* Flags before the queue: a rank that finalizes has submitted before it raised the flag, so
     * its submissions are in the queue that is taken next. */
    const unsigned flags = dp_inbox_take_flags(inbox);
    dp_loop_node_t *node = dp_inbox_take_submissions(inbox);
    const int did = flags != 0 || node != NULL;

    handle_state_flags(loop, flags, now_ns);
    while (node != NULL) {
        dp_loop_node_t *next = node->next; /* handing the request back ends the loan of its node */

        submit_node(loop, node, now_ns);
        node = next;
    }
    handle_request_flags(loop, flags, now_ns);
    return did;
}

/* Whether no message from this neighbour is missing. The content of a lost one cannot be known, and
 * ranks would wait for each other: the world ends. The neighbour is alive and is told like all
 * others. */
static int is_in_order(dp_loop_t *loop, int rank, int is_message, uint32_t number)
{
    char text[128];
    uint32_t due;

    if (dp_health_in_order(&loop->health, rank, is_message, number, &due)) return 1;
    snprintf(text, sizeof(text), "a control message from rank %d was lost: %s %u came, %u was due",
             rank, is_message ? "number" : "a sign of life after number", number, due);
    dp_loop_give_up(loop, DP_ERR_SYSTEM, text);
    return 0;
}

/* A heartbeat or a history: what neighbours compare beside the negotiation. */
static void handle_peer_check(dp_loop_t *loop, int rank, uint8_t kind, const void *data,
                              size_t bytes, uint64_t now_ns)
{
    const dp_loop_peer_check_t *peer_check = &loop->options.peer_check;
    char text[DP_INBOX_TEXT_MAX] = "";
    dp_status_t status = DP_OK;

    if (kind == KIND_HEARTBEAT && bytes > 0 && peer_check->check_heartbeat != NULL) {
        status =
            peer_check->check_heartbeat(peer_check->user, rank, data, bytes, text, sizeof(text));
        if (status == DP_ERR_MISMATCH) {
            send_history(loop, rank);
            return;
        }
    } else if (kind == KIND_HISTORY && peer_check->compare_history != NULL) {
        status =
            peer_check->compare_history(peer_check->user, rank, data, bytes, text, sizeof(text));
    }
    if (status == DP_OK || loop->end.has_given_up) return;
    loop->end.has_given_up = 1;
    dp_negotiator_blame(loop->negotiator, status, -1, text, now_ns);
}

static void handle_message(dp_loop_t *loop, const dp_transport_event_t *event, uint64_t now_ns)
{
    const uint8_t *data = event->data;
    dp_reader_t reader;
    uint8_t kind;
    uint32_t number;

    dp_health_heard(&loop->health, event->rank, now_ns);
    dp_reader_init(&reader, data, event->bytes);
    kind = dp_read_u8(&reader);
    number = dp_read_u32(&reader);
    if (reader.failed || (kind < KIND_NEGOTIATOR || kind > KIND_HISTORY)) {
        dp_log_warn(loop->options.log,
                    "dropped a message of an unknown kind from rank %d (%zu bytes)", event->rank,
                    event->bytes);
        return;
    }
    if (!is_in_order(loop, event->rank, kind == KIND_NEGOTIATOR, number)) return;
    if (kind != KIND_NEGOTIATOR) {
        handle_peer_check(loop, event->rank, kind, data + HEADER_BYTES, event->bytes - HEADER_BYTES,
                          now_ns);
        return;
    }
    increment(&loop->counters.received);
    dp_trace_record(loop->trace.track,
                    (dp_trace_record_t){.kind = DP_TRACE_CONTROL,
                                        .start_ns = now_ns,
                                        .name = loop->trace.name_in,
                                        .aux = (uint32_t)event->rank & DP_TRACE_AUX_MAX,
                                        .bytes = event->bytes - HEADER_BYTES});
    /* Malformed bytes and lack of memory come back as outputs of kind DP_OUTPUT_FATAL. */
    (void)dp_negotiator_message(loop->negotiator, event->rank, data + HEADER_BYTES,
                                event->bytes - HEADER_BYTES, now_ns);
}

/* A neighbour's connection broke (silent_ns: 0), or it has been silent for too long. */
static void lose_peer(dp_loop_t *loop, int rank, uint64_t silent_ns, const char *text,
                      uint64_t now_ns)
{
    const dp_loop_callbacks_t *callbacks = &loop->options.callbacks;

    if (callbacks->loss != NULL) callbacks->loss(callbacks->user, rank, silent_ns);
    dp_negotiator_peer_lost(loop->negotiator, rank, text, now_ns);
}

/* A neighbour that nothing more is expected of, and whose connections have not ended. */
static void give_up_peer(dp_loop_t *loop, const dp_health_action_t *action, const char *text,
                         uint64_t now_ns)
{
    dp_transport_t *transport = loop->options.transport;

    if (transport->ops->give_up != NULL) transport->ops->give_up(transport, action->rank);
    lose_peer(loop, action->rank, action->silent_ns, text, now_ns);
}

/* Takes in messages, signs of life and losses of neighbours. 1: something for the negotiator. */
static int handle_messages(dp_loop_t *loop, uint64_t now_ns)
{
    dp_transport_t *transport = loop->options.transport;
    dp_transport_event_t event;
    int taken = 0;
    int did = 0;

    for (; taken < MESSAGES_PER_ROUND && transport->ops->poll(transport, &event) == DP_OK;
         taken++) {
        did |= event.kind != DP_TRANSPORT_ALIVE; /* from which nothing follows here */
        switch (event.kind) {
        case DP_TRANSPORT_MESSAGE:
            handle_message(loop, &event, now_ns);
            break;
        case DP_TRANSPORT_ALIVE:
            dp_health_alive(&loop->health, event.rank, event.seen_ns);
            break;
        case DP_TRANSPORT_PEER_LOST:
            dp_health_gone(&loop->health, event.rank);
            lose_peer(loop, event.rank, 0, event.text, now_ns);
            break;
        }
    }
    return did;
}

/* The owner's own look at the data plane (dp_loop_callbacks_t.watch). 1: the world is to end. */
static int handle_watch(dp_loop_t *loop, uint64_t now_ns)
{
    const dp_loop_callbacks_t *callbacks = &loop->options.callbacks;
    char text[DP_ERROR_TEXT_MAX];
    int culprit = -1;
    dp_status_t status;

    if (callbacks->watch == NULL) return 0;
    status = callbacks->watch(callbacks->user, now_ns, &culprit, text, sizeof(text));
    if (status == DP_OK) return 0;
    dp_negotiator_blame(loop->negotiator, status, culprit, text, now_ns);
    return 1;
}

/* No neighbour found out in time what differs: the world ends with this rank's own text. */
static int handle_mismatch_end(dp_loop_t *loop, uint64_t now_ns)
{
    dp_inbox_t *inbox = &loop->inbox;
    char text[DP_INBOX_TEXT_MAX];
    dp_status_t status;

    if (now_ns < loop->end.mismatch_end_ns) return 0;
    loop->end.mismatch_end_ns = UINT64_MAX;
    copy_inbox_text(inbox, inbox->mismatch_text, &inbox->mismatch_status, text, &status);
    dp_loop_give_up(loop, status, text);
    return 1;
}

/* Heartbeats to send, and neighbours that have sent none. 1: one is lost. */
static int handle_health(dp_loop_t *loop, uint64_t now_ns)
{
    const dp_topology_t *topology = loop->options.topology;
    dp_health_action_t action;
    char text[DP_ERROR_TEXT_MAX];
    int did = 0;

    while (dp_health_next(&loop->health, now_ns, &action)) {
        const char *node = topology->host_name[topology->node[action.rank]];
        const double seconds = (double)action.silent_ns / 1e9;

        switch (action.kind) {
        case DP_HEALTH_SEND:
            send_heartbeat(loop, action.rank, now_ns);
            break;
        case DP_HEALTH_SUSPECT:
            dp_log_warn(loop->options.log, "rank %d (%s): no sign of life for %.1f s", action.rank,
                        node, seconds);
            break;
        case DP_HEALTH_BACK:
            dp_log_warn(loop->options.log, "rank %d (%s): alive again", action.rank, node);
            break;
        case DP_HEALTH_LOST:
            /* Without the seconds: a neighbour that never spoke has a longer limit, so they differ
             * between those that report it. They are in the report's age. */
            give_up_peer(loop, &action, "no sign of life (stopped or unreachable)", now_ns);
            did = 1;
            break;
        case DP_HEALTH_MUTE:
            snprintf(text, sizeof(text),
                     "no message for %.0f s, though its process lives: the connection over UCX "
                     "stands still",
                     seconds);
            give_up_peer(loop, &action, text, now_ns);
            did = 1;
            break;
        }
    }
    return did;
}

static void tell_running(dp_loop_t *loop)
{
    const dp_loop_callbacks_t *callbacks = &loop->options.callbacks;

    if (loop->has_told_running || !dp_health_have_all_spoken(&loop->health)) return;
    loop->has_told_running = 1;
    if (callbacks->running != NULL) callbacks->running(callbacks->user);
}

/* Feeds the time to the negotiator and the health watch. 1: something for the negotiator. A
 * heartbeat to be sent does not count, as nothing follows from it here. */
static int handle_time(dp_loop_t *loop, uint64_t now_ns)
{
    int did = handle_watch(loop, now_ns);

    if (dp_negotiator_deadline(loop->negotiator) <= now_ns) {
        dp_negotiator_tick(loop->negotiator, now_ns);
        did = 1;
    }
    did |= handle_mismatch_end(loop, now_ns);
    did |= handle_health(loop, now_ns);
    tell_running(loop);
    return did;
}

/* ---- Giving out ----------------------------------------------------------------------------- */

static void give_launch(dp_loop_t *loop, const dp_output_t *out)
{
    const dp_loop_callbacks_t *callbacks = &loop->options.callbacks;
    const uint64_t start_ns = dp_trace_now(loop->trace.track);
    const uint64_t sequence = out->sequence;
    const uint32_t tensors = (uint32_t)dp_min(out->entry_count, (size_t)DP_TRACE_AUX_MAX);

    callbacks->launch(callbacks->user, out);
    dp_trace_span(loop->trace.track, (dp_trace_record_t){.kind = DP_TRACE_LAUNCH,
                                                         .start_ns = start_ns,
                                                         .bucket = sequence,
                                                         .aux = tensors & DP_TRACE_AUX_MAX});
}

/* Gives out the negotiator's outputs, in its order. 1: there was one. */
static int handle_outputs(dp_loop_t *loop, uint64_t now_ns)
{
    const dp_loop_callbacks_t *callbacks = &loop->options.callbacks;
    dp_output_t out;
    int did = 0;

    while (!loop->end.is_over && dp_negotiator_output(loop->negotiator, &out)) {
        did = 1;
        switch (out.kind) {
        case DP_OUTPUT_JOINED:
            callbacks->joined(callbacks->user, out.request, out.last_rank);
            break;
        case DP_OUTPUT_SEND:
            send_message(loop, &out, now_ns);
            break;
        case DP_OUTPUT_LAUNCH:
            give_launch(loop, &out);
            break;
        case DP_OUTPUT_FAIL:
            callbacks->fail(callbacks->user, out.request, out.status, out.text);
            break;
        case DP_OUTPUT_WARN:
            dp_log_warn(loop->options.log, "%s", out.text);
            break;
        case DP_OUTPUT_FATAL:
            loop->end.is_over = 1;
            loop->end.status = out.status == DP_OK ? DP_ERR_ABORTED : out.status;
            callbacks->fatal(callbacks->user, loop->end.status, out.culprit, out.text);
            break;
        case DP_OUTPUT_FINISHED:
            loop->end.is_over = 1;
            loop->end.status = DP_OK;
            break;
        }
    }
    return did;
}

/* ---- A round -------------------------------------------------------------------------------- */

uint64_t dp_loop_due(const dp_loop_t *loop)
{
    const uint64_t tick_ns = dp_negotiator_deadline(loop->negotiator);

    return dp_min(dp_min(tick_ns, loop->end.mismatch_end_ns), dp_health_deadline(&loop->health));
}

int dp_loop_make_round(dp_loop_t *loop, uint64_t now_ns)
{
    int did;

    if (dp_health_resume(&loop->health, now_ns)) {
        dp_log_debug(loop->options.log, "the coordinator was away; no neighbour is blamed for it");
    }
    /* The inbox first: a message that completes a tensor then finds this rank's own submission. */
    did = handle_inbox(loop, now_ns);
    did |= handle_messages(loop, now_ns);
    did |= handle_time(loop, now_ns);
    did |= handle_outputs(loop, now_ns);
    if (!did) return 0;
    loop->active_ns = dp_now_ns();
    loop->empty_wakeups = 0;
    dp_trace_record(loop->trace.track, (dp_trace_record_t){.kind = DP_TRACE_CONTROL,
                                                           .start_ns = now_ns,
                                                           .duration_ns = loop->active_ns - now_ns,
                                                           .name = loop->trace.name_round});
    return 1;
}
