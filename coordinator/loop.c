/*
 * loop.c - the coordinator thread: libevent around a transport in event mode.
 *
 * A round takes everything that has come in, from other threads, from neighbours, from the clock,
 * feeds it to the negotiator and only then asks for its outputs: what came together is answered
 * together. When a round brings nothing the thread arms the transport and sleeps until something
 * rings or the next deadline is due; while threads that wait make the rounds themselves
 * (loop_drive.c), which takes the baton, it only naps.
 *
 * Between ranks, a message's first byte says what it is, and the next four number the messages of
 * this edge: a gap ends the world, as nothing else would notice.
 */
#include "coordinator/loop_internal.h"

#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/inject.h"
#include "runtime/base/wire.h"

#define MESSAGES_PER_ROUND 256         /* then outputs are given, however much more has come */
#define FINISH_NS (2000ull * 1000000)  /* for goodbyes after an orderly end */
#define EXPLAIN_NS (1000ull * 1000000) /* for a neighbour to find out what differs */
#define STORY_ROOM ((size_t)128 * DP_KIB)
#define FATAL_NS (500ull * 1000000) /* and after a failure: who is stopped will not answer */

/* While a slow peer has not accepted a connection yet, UCX's descriptor is readable without end and
 * for nothing. So many rings in a row that bring nothing are believed, then each costs a nap. */
#define BARREN_RINGS 16
#define BARREN_NAP_NS (200L * 1000)

/* How long the thread leaves the rounds to waiting threads before it looks again itself. */
#define NAP_NS ((uint64_t)200 * 1000)

enum { KIND_NEGOTIATOR = 1, KIND_HEARTBEAT = 2, KIND_STORY = 3 };
#define HEADER_BYTES ((size_t)5) /* kind, number */

static void count(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* ---- Sending ------------------------------------------------------------------------------ */

/* This rank cannot go on; the negotiator tells the others. */
static void give_up(dp_loop_t *loop, dp_status_t status, const char *text)
{
    if (loop->has_given_up) return;
    loop->has_given_up = 1;
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
        write_header(loop->message, KIND_NEGOTIATOR, dp_health_number(&loop->health, out->to, 1));
        if (out->bytes > 0) memcpy(loop->message + HEADER_BYTES, out->data, out->bytes);
        if (!dp_inject_drops(loop->options.config->injector))
            status = transport->ops->send(transport, out->to, loop->message, bytes);
    }
    if (status != DP_OK) {
        snprintf(text, sizeof(text),
                 "a control message of %zu bytes to rank %d could not be sent (%s)", out->bytes,
                 out->to, dp_status_string(status));
        give_up(loop, status, text);
        return;
    }
    count(&loop->sent);
    dp_health_sent(&loop->health, out->to, now_ns);
    dp_trace_record(loop->lane, (dp_trace_record_t){.kind = DP_TRACE_CONTROL,
                                                    .start_ns = now_ns,
                                                    .name = loop->name_out,
                                                    .aux = (uint32_t)out->to & DP_TRACE_AUX_MAX,
                                                    .bytes = out->bytes});
}

static void send_heartbeat(dp_loop_t *loop, int rank, uint64_t now_ns)
{
    dp_transport_t *transport = loop->options.transport;
    const dp_loop_gossip_t *gossip = &loop->options.gossip;
    uint8_t heartbeat[HEADER_BYTES + DP_LOOP_BEAT_MAX];
    size_t bytes = HEADER_BYTES;

    write_header(heartbeat, KIND_HEARTBEAT, dp_health_number(&loop->health, rank, 0));
    if (gossip->say_beat != NULL)
        bytes += gossip->say_beat(gossip->user, heartbeat + bytes, DP_LOOP_BEAT_MAX);
    /* One that could not be sent is missed by nobody if the next one can. */
    if (transport->ops->send(transport, rank, heartbeat, bytes) == DP_OK) {
        count(&loop->heartbeats);
    }
    dp_health_sent(&loop->health, rank, now_ns);
}

/* To one neighbour. One that cannot be sent is told again with the next beat that differs. */
static void tell_story(dp_loop_t *loop, int rank, uint64_t now_ns)
{
    const dp_loop_gossip_t *gossip = &loop->options.gossip;
    dp_transport_t *transport = loop->options.transport;
    uint8_t *story = malloc(STORY_ROOM); /* it is told when something has gone wrong */
    size_t bytes = HEADER_BYTES;

    if (story == NULL || gossip->tell_story == NULL) {
        free(story);
        return;
    }
    write_header(story, KIND_STORY, dp_health_number(&loop->health, rank, 0));
    bytes += gossip->tell_story(gossip->user, story + bytes, STORY_ROOM - bytes);
    if (transport->ops->send(transport, rank, story, bytes) == DP_OK)
        dp_health_sent(&loop->health, rank, now_ns);
    free(story);
}

/* ---- Taking in ---------------------------------------------------------------------------- */

static void take_urgent(dp_loop_t *loop, uint64_t now_ns)
{
    dp_inbox_name_t *name = dp_inbox_take_urgent(&loop->inbox);

    while (name != NULL) {
        dp_inbox_name_t *next = name->next;

        dp_negotiator_urgent(loop->negotiator, name->group, name->name, now_ns);
        free(name);
        name = next;
    }
}

static void submit(dp_loop_t *loop, dp_loop_node_t *node, uint64_t now_ns)
{
    /* The node may be gone once its request was handed back. */
    void *request = node->submission.request;
    char text[DP_ROW_NAME_MAX + 128];
    dp_status_t status;

    snprintf(text, sizeof(text), "tensor %s: ", node->submission.name);
    status = dp_negotiator_submit(loop->negotiator, &node->submission, now_ns);
    if (status == DP_OK) return;
    snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s",
             status == DP_ERR_BUSY ? "it was submitted before and has not been launched yet"
                                   : dp_status_string(status));
    loop->options.callbacks.fail(loop->options.callbacks.user, request, status, text);
}

/* What other threads brought. 1: something. */
static int take_inbox(dp_loop_t *loop, uint64_t now_ns)
{
    dp_inbox_t *inbox = &loop->inbox;
    /* Flags before the queue: who finalizes has submitted before, and it must be found there. */
    unsigned flags = dp_inbox_take_flags(inbox);
    dp_loop_node_t *node = dp_inbox_take(inbox);
    const int did = flags != 0 || node != NULL;
    char text[DP_INBOX_TEXT_MAX];
    dp_status_t status;

    if (flags & DP_INBOX_STOP) loop->must_stop = 1;
    if (flags & DP_INBOX_PROGRESS) {
        pthread_mutex_lock(&inbox->lock);
        memcpy(text, inbox->progress, sizeof(text));
        pthread_mutex_unlock(&inbox->lock);
        dp_negotiator_progress(loop->negotiator, text);
    }
    if (flags & DP_INBOX_LAUNCHED) {
        dp_negotiator_launched(loop->negotiator, atomic_load(&inbox->launched), now_ns);
    }
    if (flags & DP_INBOX_PACE) {
        loop->hold_ns = atomic_load(&inbox->hold_ns);
        dp_negotiator_pace(loop->negotiator, loop->hold_ns, atomic_load(&inbox->fusion_bytes));
    }
    /* Before what is in the queue, which may be of the next round already: then it is raised by
     * now.
     */
    flags |= dp_inbox_take_flag(inbox, DP_INBOX_ROUND);
    if (flags & DP_INBOX_ROUND) dp_negotiator_round(loop->negotiator, now_ns);
    if (flags & DP_INBOX_UNLOCK)
        dp_negotiator_unlock(loop->negotiator, "a setting changes", now_ns);
    while (node != NULL) {
        dp_loop_node_t *next = node->next;

        submit(loop, node, now_ns);
        node = next;
    }
    if (flags & DP_INBOX_URGENT) take_urgent(loop, now_ns);
    if (flags & DP_INBOX_WAITS) dp_negotiator_waits(loop->negotiator, now_ns);
    if (flags & DP_INBOX_ABORT) {
        pthread_mutex_lock(&inbox->lock);
        memcpy(text, inbox->abort_text, sizeof(text));
        status = inbox->abort_status;
        pthread_mutex_unlock(&inbox->lock);
        give_up(loop, status, text);
    }
    if (flags & DP_INBOX_EXPLAIN) {
        loop->explain_ns = now_ns + EXPLAIN_NS;
        if (loop->node.parent >= 0) tell_story(loop, loop->node.parent, now_ns);
        for (int i = 0; i < loop->node.child_count; i++)
            tell_story(loop, loop->node.children[i], now_ns);
    }
    if (flags & DP_INBOX_FINALIZE) dp_negotiator_finalize(loop->negotiator, now_ns);
    return did;
}

/* Whether nothing from this neighbour is missing. What was lost cannot be known, and the ranks
 * would wait for each other: the world ends. The neighbour lives and hears of it like all others.
 */
static int is_in_order(dp_loop_t *loop, int rank, int is_message, uint32_t number)
{
    char text[128];
    uint32_t due;

    if (dp_health_in_order(&loop->health, rank, is_message, number, &due)) return 1;
    snprintf(text, sizeof(text), "a control message from rank %d was lost: %s %u came, %u was due",
             rank, is_message ? "number" : "a sign of life after number", number, due);
    give_up(loop, DP_ERR_SYSTEM, text);
    return 0;
}

/* What a neighbour says beside the negotiation. */
static void take_gossip(dp_loop_t *loop, int rank, uint8_t kind, const void *data, size_t bytes,
                        uint64_t now_ns)
{
    const dp_loop_gossip_t *gossip = &loop->options.gossip;
    char text[DP_INBOX_TEXT_MAX] = "";
    dp_status_t status = DP_OK;

    if (kind == KIND_HEARTBEAT && bytes > 0 && gossip->hear_beat != NULL) {
        status = gossip->hear_beat(gossip->user, rank, data, bytes, text, sizeof(text));
        if (status == DP_ERR_MISMATCH) {
            tell_story(loop, rank, now_ns);
            return;
        }
    } else if (kind == KIND_STORY && gossip->hear_story != NULL) {
        status = gossip->hear_story(gossip->user, rank, data, bytes, text, sizeof(text));
    }
    if (status == DP_OK || loop->has_given_up) return;
    loop->has_given_up = 1;
    dp_negotiator_blame(loop->negotiator, status, -1, text, now_ns);
}

static void take_message(dp_loop_t *loop, const dp_transport_event_t *event, uint64_t now_ns)
{
    const uint8_t *data = event->data;
    dp_reader_t reader;
    uint8_t kind;
    uint32_t number;

    dp_health_heard(&loop->health, event->rank, now_ns);
    dp_reader_init(&reader, data, event->bytes);
    kind = dp_read_u8(&reader);
    number = dp_read_u32(&reader);
    if (reader.failed || (kind < KIND_NEGOTIATOR || kind > KIND_STORY)) {
        dp_log_warn(loop->options.log,
                    "dropped a message of an unknown kind from rank %d (%zu bytes)", event->rank,
                    event->bytes);
        return;
    }
    if (!is_in_order(loop, event->rank, kind == KIND_NEGOTIATOR, number)) return;
    if (kind != KIND_NEGOTIATOR) {
        take_gossip(loop, event->rank, kind, data + HEADER_BYTES, event->bytes - HEADER_BYTES,
                    now_ns);
        return;
    }
    count(&loop->received);
    dp_trace_record(loop->lane, (dp_trace_record_t){.kind = DP_TRACE_CONTROL,
                                                    .start_ns = now_ns,
                                                    .name = loop->name_in,
                                                    .aux = (uint32_t)event->rank & DP_TRACE_AUX_MAX,
                                                    .bytes = event->bytes - HEADER_BYTES});
    /* Hostile bytes and lack of memory come back as FATAL outputs. */
    (void)dp_negotiator_message(loop->negotiator, event->rank, data + HEADER_BYTES,
                                event->bytes - HEADER_BYTES, now_ns);
}

/* What neighbours sent. 1: something. */
static int take_events(dp_loop_t *loop, uint64_t now_ns)
{
    dp_transport_t *transport = loop->options.transport;
    dp_transport_event_t event;
    int taken = 0;

    while (taken < MESSAGES_PER_ROUND && transport->ops->poll(transport, &event) == DP_OK) {
        taken++;
        if (event.kind == DP_TRANSPORT_MESSAGE) {
            take_message(loop, &event, now_ns);
        } else {
            dp_health_gone(&loop->health, event.rank);
            dp_negotiator_peer_lost(loop->negotiator, event.rank, event.text, now_ns);
        }
    }
    return taken > 0;
}

/* What the clock brings. 1: something for the negotiator. */
static int take_time(dp_loop_t *loop, uint64_t now_ns)
{
    const dp_topology_t *topology = loop->options.topology;
    const dp_loop_callbacks_t *callbacks = &loop->options.callbacks;
    dp_health_action_t action;
    dp_status_t status = DP_OK;
    char text[DP_ERROR_TEXT_MAX];
    int culprit = -1;
    int did = 0;

    if (callbacks->watch != NULL) {
        status = callbacks->watch(callbacks->user, now_ns, &culprit, text, sizeof(text));
    }
    if (status != DP_OK) {
        dp_negotiator_blame(loop->negotiator, status, culprit, text, now_ns);
        did = 1;
    }

    if (dp_negotiator_deadline(loop->negotiator) <= now_ns) {
        dp_negotiator_tick(loop->negotiator, now_ns);
        did = 1;
    }
    if (now_ns >= loop->explain_ns) {
        loop->explain_ns = UINT64_MAX;
        pthread_mutex_lock(&loop->inbox.lock);
        snprintf(text, sizeof(text), "%s", loop->inbox.explain_text);
        status = loop->inbox.explain_status;
        pthread_mutex_unlock(&loop->inbox.lock);
        give_up(loop, status, text);
        did = 1;
    }
    while (dp_health_next(&loop->health, now_ns, &action)) {
        const char *host = topology->host_name[topology->host[action.rank]];
        const double seconds = (double)action.silent_ns / 1e9;

        switch (action.kind) {
        case DP_HEALTH_SEND:
            send_heartbeat(loop, action.rank, now_ns);
            break;
        case DP_HEALTH_SUSPECT:
            dp_log_warn(loop->options.log, "rank %d on host %s: no sign of life for %.1f s",
                        action.rank, host, seconds);
            break;
        case DP_HEALTH_BACK:
            dp_log_warn(loop->options.log, "rank %d on host %s: alive again", action.rank, host);
            break;
        case DP_HEALTH_LOST:
            snprintf(text, sizeof(text), "no sign of life for %.1f s (stopped or unreachable)",
                     seconds);
            dp_negotiator_peer_lost(loop->negotiator, action.rank, text, now_ns);
            did = 1;
            break;
        }
    }
    return did;
}

/* ---- Giving out --------------------------------------------------------------------------- */

static void launch(dp_loop_t *loop, const dp_output_t *out)
{
    const dp_loop_callbacks_t *callbacks = &loop->options.callbacks;
    const uint64_t start_ns = dp_trace_now(loop->lane);
    const uint64_t sequence = out->sequence;
    const uint32_t tensors = (uint32_t)DP_MIN(out->entry_count, (size_t)DP_TRACE_AUX_MAX);

    if (out->is_locked) count(&loop->locked_launches);
    callbacks->launch(callbacks->user, out);
    dp_trace_span(loop->lane, (dp_trace_record_t){.kind = DP_TRACE_LAUNCH,
                                                  .start_ns = start_ns,
                                                  .bucket = sequence,
                                                  .aux = tensors & DP_TRACE_AUX_MAX});
}

/* A schedule begins, or is over and why: seen on the timeline and in the counters. */
static void note_schedule(dp_loop_t *loop, const dp_output_t *out)
{
    char text[DP_ERROR_TEXT_MAX];

    if (out->kind == DP_OUTPUT_LOCKED) {
        count(&loop->locks);
        dp_log_debug(loop->options.log, "the schedule of %llu tensors is locked",
                     (unsigned long long)out->until);
        dp_trace_instant(loop->lane,
                         (dp_trace_record_t){.kind = DP_TRACE_CONTROL, .name = loop->name_lock});
    } else if (out->kind == DP_OUTPUT_UNLOCKED) {
        count(&loop->unlocks);
        atomic_store_explicit(&loop->unlock_reason, (int)out->reason, memory_order_relaxed);
        dp_log_debug(loop->options.log, "the schedule is unlocked (%s): %s",
                     dp_unlock_reason_name(out->reason), out->text);
        snprintf(text, sizeof(text), "unlock (%s)", dp_unlock_reason_name(out->reason));
        dp_trace_instant(loop->lane,
                         (dp_trace_record_t){.kind = DP_TRACE_CONTROL,
                                             .name = dp_trace_name(loop->options.trace, text),
                                             .aux = (uint32_t)out->culprit & DP_TRACE_AUX_MAX});
    }
}

/* What the negotiator answers. 1: something. */
static int give_outputs(dp_loop_t *loop, uint64_t now_ns)
{
    const dp_loop_callbacks_t *callbacks = &loop->options.callbacks;
    dp_output_t out;
    int did = 0;

    while (!loop->is_over && dp_negotiator_output(loop->negotiator, &out)) {
        did = 1;
        switch (out.kind) {
        case DP_OUTPUT_JOINED:
            callbacks->joined(callbacks->user, out.request, out.last_rank);
            break;
        case DP_OUTPUT_SEND:
            send_message(loop, &out, now_ns);
            break;
        case DP_OUTPUT_LAUNCH:
            launch(loop, &out);
            break;
        case DP_OUTPUT_FAIL:
            callbacks->fail(callbacks->user, out.request, out.status, out.text);
            break;
        case DP_OUTPUT_LOCKED:
        case DP_OUTPUT_HELD:
        case DP_OUTPUT_UNLOCKED:
        case DP_OUTPUT_SETTLED:
            note_schedule(loop, &out);
            if (callbacks->schedule != NULL) callbacks->schedule(callbacks->user, &out);
            break;
        case DP_OUTPUT_WARN:
            dp_log_warn(loop->options.log, "%s", out.text);
            break;
        case DP_OUTPUT_FATAL:
            loop->is_over = 1;
            loop->end_status = out.status == DP_OK ? DP_ERR_ABORTED : out.status;
            callbacks->fatal(callbacks->user, loop->end_status, out.culprit, out.text);
            break;
        case DP_OUTPUT_FINISHED:
            loop->is_over = 1;
            loop->end_status = DP_OK;
            break;
        }
    }
    return did;
}

/* ---- The thread --------------------------------------------------------------------------- */

static void on_ring(evutil_socket_t fd, short what, void *user)
{
    dp_loop_t *loop = user;

    (void)fd;
    (void)what;
    loop->has_rung = 1;
}

static void on_time(evutil_socket_t fd, short what, void *user)
{
    (void)fd;
    (void)what;
    (void)user; /* that the loop returns is all that is wanted */
}

uint64_t dp_loop_due(const dp_loop_t *loop)
{
    const uint64_t tick_ns = dp_negotiator_deadline(loop->negotiator);

    return DP_MIN(DP_MIN(tick_ns, loop->explain_ns), dp_health_deadline(&loop->health));
}

/* The baton goes from hand to hand while the thread sleeps. */
static void lay_baton_down(dp_loop_t *loop, uint64_t until_ns)
{
    dp_health_sleep(&loop->health, dp_loop_due(loop));
    loop->rest_ns = until_ns;
    loop->is_driven = 0;
    pthread_mutex_unlock(&loop->baton);
}

/* Where another thread makes the rounds, it stays out of its way. That it naps is said before the
 * look at the baton; the other one gives the baton back before it looks who naps. */
static void take_baton_up(dp_loop_t *loop)
{
    for (;;) {
        dp_inbox_lie_down(&loop->inbox);
        if (pthread_mutex_trylock(&loop->baton) == 0) break;
        dp_inbox_nap(&loop->inbox, NAP_NS);
    }
    dp_inbox_awake(&loop->inbox);
}

/* Leaves the rounds to others for a moment. */
static void nap(dp_loop_t *loop)
{
    const uint64_t now_ns = dp_now_ns();
    const uint64_t until_ns = DP_MIN(dp_loop_due(loop), now_ns + NAP_NS);

    dp_inbox_lie_down(&loop->inbox);
    /* who wants the baton finds what came in; if nobody does, it has to be looked at here */
    if (atomic_load(&loop->wanted) == 0 && !dp_inbox_is_empty(&loop->inbox)) {
        loop->is_driven = 0;
        dp_inbox_awake(&loop->inbox);
        return;
    }
    lay_baton_down(loop, until_ns);
    if (until_ns > now_ns) dp_inbox_nap(&loop->inbox, until_ns - now_ns);
    take_baton_up(loop);
}

/* Sleeps until something rings or is due; returns at once if something came in meanwhile. */
static void rest(dp_loop_t *loop)
{
    dp_transport_t *transport = loop->options.transport;
    const uint64_t tick_ns = dp_negotiator_deadline(loop->negotiator);
    const uint64_t deadline_ns = dp_loop_due(loop);
    const uint64_t now_ns = dp_now_ns();
    /* A root that holds launches back wants to know when those in flight are done. */
    const int is_holding = tick_ns != UINT64_MAX && tick_ns <= now_ns + loop->hold_ns;
    dp_status_t status;

    if (deadline_ns <= now_ns) return;
    if (loop->barren > BARREN_RINGS)
        (void)nanosleep(&(struct timespec){.tv_nsec = BARREN_NAP_NS}, NULL);
    dp_health_sleep(&loop->health, deadline_ns);
    if (!dp_inbox_sleep(&loop->inbox, is_holding)) return;
    status = transport->ops->arm(transport);
    if (status == DP_OK) {
        if (deadline_ns != UINT64_MAX) {
            const uint64_t rest_us = (deadline_ns - now_ns + 999) / 1000;
            const struct timeval wait = {(time_t)(rest_us / 1000000),
                                         (suseconds_t)(rest_us % 1000000)};

            (void)evtimer_add(loop->timer, &wait);
        }
        lay_baton_down(loop, deadline_ns);
        loop->has_rung = 0;
        (void)event_base_loop(loop->base, EVLOOP_ONCE);
        take_baton_up(loop);
        /* until a round finds something */
        if (loop->has_rung && loop->barren <= BARREN_RINGS) loop->barren++;
        count(&loop->wakeups);
    } else if (status != DP_ERR_AGAIN) {
        give_up(loop, status, "the transport cannot wait for messages any more");
    }
    dp_inbox_awake(&loop->inbox);
}

/* How long after the last activity it is worth polling. */
static uint64_t polling_ns(const dp_loop_t *loop)
{
    if (atomic_load_explicit(&loop->expected, memory_order_relaxed) <= 0) return loop->spin_ns;
    return DP_MAX(loop->spin_ns, loop->options.expect_ns);
}

int dp_loop_make_round(dp_loop_t *loop, uint64_t now_ns)
{
    int did;

    if (dp_health_resume(&loop->health, now_ns)) {
        dp_log_debug(loop->options.log, "the coordinator was away; no neighbour is blamed for it");
    }
    did = take_inbox(loop, now_ns);
    did |= take_events(loop, now_ns);
    did |= take_time(loop, now_ns);
    did |= give_outputs(loop, now_ns);
    if (!did) return 0;
    loop->active_ns = now_ns;
    loop->barren = 0;
    dp_trace_span(loop->lane, (dp_trace_record_t){.kind = DP_TRACE_CONTROL,
                                                  .start_ns = now_ns,
                                                  .name = loop->name_round});
    return 1;
}

/* Whether waiting threads make the rounds, and nobody sleeps who would need this thread to. */
static int is_driven_by_others(const dp_loop_t *loop)
{
    if (atomic_load(&loop->wanted) > 0) return 1;
    return loop->options.naps && loop->is_driven && atomic_load(&loop->expected) <= 0;
}

static void round_until_over(dp_loop_t *loop)
{
    while (!loop->is_over && !loop->must_stop) {
        const uint64_t now_ns = dp_now_ns();

        if (dp_loop_make_round(loop, now_ns)) continue;
        if (is_driven_by_others(loop)) {
            nap(loop);
        } else if (now_ns - loop->active_ns >= polling_ns(loop)) {
            rest(loop);
        }
    }
}

static void *run(void *arg)
{
    dp_loop_t *loop = arg;
    dp_transport_t *transport = loop->options.transport;

    pthread_mutex_lock(&loop->baton); /* kept from the end on: nobody makes rounds any more */
    round_until_over(loop);
    /* Who is stopped before the end leaves without a goodbye: to the others it is lost. */
    if (loop->is_over) {
        const uint64_t patience_ns = loop->end_status == DP_OK ? FINISH_NS : FATAL_NS;

        transport->ops->close(transport, dp_now_ns() + patience_ns);
    }
    atomic_store(&loop->cpu_ns, dp_loop_cpu_ns(CLOCK_THREAD_CPUTIME_ID, 0));
    pthread_mutex_unlock(&loop->baton);
    pthread_mutex_lock(&loop->lock);
    loop->final_status = loop->is_over ? loop->end_status : DP_ERR_ABORTED;
    loop->has_ended = 1;
    pthread_cond_broadcast(&loop->ended);
    pthread_mutex_unlock(&loop->lock);
    return NULL;
}

/* ---- Start and stop ----------------------------------------------------------------------- */

dp_status_t dp_loop_neighbours(const dp_topology_t *topology, int arity, int rank, int *ranks,
                               int *out_count)
{
    dp_tree_node_t node;
    dp_status_t status = dp_tree_node_init(&node, topology, arity, rank);
    int found = 0;

    if (status != DP_OK) return status;
    DP_ASSERT(node.child_count + 1 <= DP_LOOP_NEIGHBOURS_MAX(arity));
    if (node.parent >= 0) ranks[found++] = node.parent;
    for (int i = 0; i < node.child_count; i++)
        ranks[found++] = node.children[i];
    dp_tree_node_fini(&node);
    *out_count = found;
    return DP_OK;
}

static dp_status_t open_events(dp_loop_t *loop)
{
    dp_transport_t *transport = loop->options.transport;
    struct event_config *config = event_config_new();

    if (config == NULL) return DP_ERR_NO_MEMORY;
    /* Precise: a deadline of 200 us must not become the next millisecond. */
    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK | EVENT_BASE_FLAG_IGNORE_ENV |
                                      EVENT_BASE_FLAG_PRECISE_TIMER);
    loop->base = event_base_new_with_config(config);
    event_config_free(config);
    if (loop->base == NULL) return DP_ERR_SYSTEM;
    loop->readable =
        event_new(loop->base, transport->ops->fd(transport), EV_READ | EV_PERSIST, on_ring, loop);
    loop->timer = evtimer_new(loop->base, on_time, NULL);
    if (loop->readable == NULL || loop->timer == NULL) return DP_ERR_NO_MEMORY;
    return event_add(loop->readable, NULL) == 0 ? DP_OK : DP_ERR_SYSTEM;
}

static dp_status_t open_health(dp_loop_t *loop)
{
    const dp_config_t *config = loop->options.config;
    int *ranks = malloc(((size_t)loop->node.child_count + 1) * sizeof(*ranks));
    int found = 0;
    dp_status_t status;

    if (ranks == NULL) return DP_ERR_NO_MEMORY;
    if (loop->node.parent >= 0) ranks[found++] = loop->node.parent;
    for (int i = 0; i < loop->node.child_count; i++)
        ranks[found++] = loop->node.children[i];
    status = dp_health_init(&loop->health, ranks, found, config->heartbeat_ns,
                            config->peer_timeout_ns, config->start_timeout_ns, dp_now_ns());
    free(ranks);
    return status;
}

static dp_status_t start_thread(dp_loop_t *loop)
{
    sigset_t all;
    sigset_t before;
    int failed;

    sigfillset(&all); /* signals are the program's business, on the program's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&loop->thread, NULL, run, loop);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) return DP_ERR_SYSTEM;
    loop->has_thread = 1;
    (void)pthread_setname_np(loop->thread, "dp-coordinator");
    return DP_OK;
}

static void loop_destroy(dp_loop_t *loop)
{
    if (loop->readable != NULL) event_free(loop->readable);
    if (loop->timer != NULL) event_free(loop->timer);
    if (loop->base != NULL) event_base_free(loop->base);
    dp_negotiator_destroy(loop->negotiator);
    dp_health_fini(&loop->health);
    dp_tree_node_fini(&loop->node);
    dp_inbox_fini(&loop->inbox);
    pthread_cond_destroy(&loop->ended);
    pthread_mutex_destroy(&loop->baton);
    pthread_mutex_destroy(&loop->lock);
    free(loop->message);
    free(loop);
}

dp_status_t dp_loop_start(const dp_loop_options_t *options, dp_loop_t **out, dp_error_t *error)
{
    const dp_config_t *config = options->config;
    dp_negotiator_options_t negotiator = {.rank = options->rank,
                                          .size = options->size,
                                          .topology = options->topology,
                                          .hold_ns = config->hold_ns,
                                          .fusion_bytes = config->fusion_bytes,
                                          .stall_warn_ns = config->stall_warn_ns,
                                          .stall_limit_ns = config->stall_limit_ns,
                                          .may_lock = config->lock &&
                                                      config->order != DP_CONFIG_ORDER_PROGRAM};
    const char *what = "its place in the tree";
    dp_loop_t *loop = calloc(1, sizeof(*loop));
    dp_status_t status;

    if (loop == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d: no memory for the coordinator",
                            options->rank);
    }
    loop->options = *options;
    loop->explain_ns = UINT64_MAX;
    atomic_init(&loop->unlock_reason, -1);
    loop->lane = dp_trace_lane(options->trace, "coordinator", DP_TRACE_LANE_COORDINATOR);
    loop->name_in = dp_trace_name(options->trace, "message in");
    loop->name_out = dp_trace_name(options->trace, "message out");
    loop->name_round = dp_trace_name(options->trace, "round");
    loop->name_lock = dp_trace_name(options->trace, "lock");
    loop->spin_ns = config->spin_ns;
    loop->hold_ns = config->hold_ns;
    dp_inbox_init(&loop->inbox, options->transport);
    atomic_init(&loop->inbox.hold_ns, config->hold_ns);
    atomic_init(&loop->inbox.fusion_bytes, config->fusion_bytes);
    pthread_mutex_init(&loop->baton, NULL);
    pthread_mutex_init(&loop->lock, NULL);
    pthread_cond_init(&loop->ended, NULL);
    status = dp_tree_node_init(&loop->node, options->topology, config->tree_arity, options->rank);
    if (status != DP_OK) goto fail;
    what = "its negotiator";
    negotiator.node = &loop->node;
    status = dp_negotiator_create(&negotiator, &loop->negotiator);
    if (status != DP_OK) goto fail;
    what = "its neighbours' clocks";
    status = open_health(loop);
    if (status != DP_OK) goto fail;
    what = "libevent";
    status = open_events(loop);
    if (status != DP_OK) goto fail;
    what = "its thread";
    status = start_thread(loop);
    if (status != DP_OK) goto fail;
    *out = loop;
    return DP_OK;
fail:
    loop_destroy(loop);
    return dp_error_set(error, status, "rank %d: the coordinator did not start: %s: %s",
                        options->rank, what, dp_status_string(status));
}

void dp_loop_stop(dp_loop_t *loop)
{
    if (loop == NULL) return;
    dp_inbox_raise(&loop->inbox, DP_INBOX_STOP);
    if (loop->has_thread) pthread_join(loop->thread, NULL);
    loop_destroy(loop);
}
