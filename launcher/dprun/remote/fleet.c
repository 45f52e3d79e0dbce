/*
 * fleet.c - the stations of a job while its ranks run; see fleet.h.
 *
 * Callbacks of link.c and of a timer, and what supervise_nodes.c orders; all on dprun's only
 * thread. A node is lost when its link closes (its machine died and said goodbye, its station was
 * killed, or nothing of dprun reaches it), when it is silent for DP_REMOTE_SILENCE_NS, or when the
 * ssh that brought it up ends. Its station then ends its ranks by itself: by the closed link, the
 * end of its standard input, or its lease.
 */
#include "launcher/dprun/remote/fleet_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOKS_PER_BEAT 5
#define LOOK_NS (DP_REMOTE_BEAT_NS / LOOKS_PER_BEAT) /* silence is noticed within 100 ms */
#define CREDIT_PIECE (DP_REMOTE_CREDIT / 4)

void dp_fleet_say(dp_fleet_t *fleet, const char *format, ...)
{
    char text[1024];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    dp_text_mask(text); /* parts of it may be a node's words */
    fleet->events.say(fleet->events.context, text);
}

dp_fleet_node_t *dp_fleet_node_of_rank(dp_fleet_t *fleet, int rank)
{
    for (int i = 0; i < fleet->count; i++) {
        const dp_host_t *host = fleet->list[i].host;

        if (rank >= host->first_rank && rank < host->first_rank + host->ranks)
            return &fleet->list[i];
    }
    return NULL;
}

void dp_fleet_node_send(dp_fleet_node_t *node, uint8_t type, const void *fields, size_t bytes)
{
    if (node->link != NULL) dp_link_send(node->link, type, fields, bytes);
}

static void send_to_all(dp_fleet_t *fleet, uint8_t type, const void *fields, size_t bytes)
{
    for (int i = 0; i < fleet->count; i++) {
        dp_fleet_node_send(&fleet->list[i], type, fields, bytes);
    }
}

/* ---- Ends ----------------------------------------------------------------------------------- */

/* Tells the owner once when no node has ranks any more. */
static void check_gone(dp_fleet_t *fleet)
{
    int left = 0;

    if (fleet->is_over || !fleet->is_running) return;
    for (int i = 0; i < fleet->count; i++) {
        if (fleet->list[i].stage < DP_FLEET_GONE) return;
        left += fleet->list[i].left;
    }
    fleet->is_over = 1;
    fleet->events.gone(fleet->events.context, left);
}

void dp_fleet_node_lose(dp_fleet_node_t *node, int exit_code, const char *why)
{
    dp_fleet_t *fleet = node->fleet;
    const int had_started = node->stage == DP_FLEET_RUNNING;
    const int had_ended = node->stage >= DP_FLEET_GONE;

    if (node->link != NULL) dp_link_close(node->link);
    node->link = NULL;
    dp_tunnel_destroy(node->tunnel);
    node->tunnel = NULL;
    node->has_files = 1; /* none will come any more */
    if (had_ended || fleet->is_leaving) return;
    node->stage = DP_FLEET_LOST;
    snprintf(node->why, sizeof(node->why), "%s", why);
    if (had_started) {
        const dp_fleet_loss_t loss = {.at_ns = node->silent_ns != 0 ? node->silent_ns : dp_now_ns(),
                                      .kernel_answered = node->kernel_answered,
                                      .why = node->why};

        fleet->events.lost(fleet->events.context, node->index, &loss);
        check_gone(fleet);
        return;
    }
    if (why[0] != '\0') dp_fleet_say(fleet, "%s", why);
    if (fleet->exit_code == 0) fleet->exit_code = exit_code;
    dp_fleet_check_start(fleet);
}

/* ---- Frames --------------------------------------------------------------------------------- */

static void serve_message(dp_fleet_node_t *node, dp_reader_t *fields)
{
    dp_fleet_t *fleet = node->fleet;
    dp_message_t message;

    dp_message_init(&message, DP_MESSAGE_BYE, -1); /* without descriptors */
    if (dp_message_read(fields, &message) != 0) return;
    if (message.rank >= 0 && (message.rank < node->host->first_rank ||
                              message.rank >= node->host->first_rank + node->host->ranks)) {
        return; /* no rank of this node */
    }
    message.time_ns -= (uint64_t)node->best.offset_ns;
    if (message.type != DP_MESSAGE_ALL_GONE) {
        fleet->events.message(fleet->events.context, &message);
        return;
    }
    if (node->stage != DP_FLEET_RUNNING) return;
    node->stage = DP_FLEET_GONE;
    node->left = message.status;
    check_gone(fleet);
}

static void serve_output(dp_fleet_node_t *node, dp_reader_t *fields)
{
    dp_fleet_t *fleet = node->fleet;
    const int rank = (int)dp_read_u32(fields);
    const int stream = dp_read_u8(fields);
    const size_t bytes = dp_reader_left(fields);
    const char *data = dp_read_bytes(fields, bytes);

    if (fields->failed || stream < 1 || stream > 2 || rank < node->host->first_rank ||
        rank >= node->host->first_rank + node->host->ranks) {
        return;
    }
    fleet->events.output(fleet->events.context, rank, stream, data, bytes);
}

static void serve_about(dp_fleet_node_t *node, dp_reader_t *fields)
{
    if (node->stage != DP_FLEET_JOINED || dp_remote_about_read(fields, &node->about) != 0) return;
    node->stage = DP_FLEET_READY;
    dp_fleet_check_start(node->fleet);
}

static void serve_refused(dp_fleet_node_t *node, dp_reader_t *fields)
{
    const int code = (int)dp_read_u32(fields);
    char text[DP_ERROR_TEXT_MAX];
    char line[sizeof(text) + 300];

    dp_read_text(fields, text, sizeof(text));
    if (fields->failed) return;
    dp_text_mask(text);
    snprintf(line, sizeof(line), "node %s: %s", node->name, text);
    dp_fleet_node_lose(node, code > 0 && code < 256 ? code : 1,
                       node->stage == DP_FLEET_RUNNING ? text : line);
}

static void serve_tunnel(dp_fleet_node_t *node, uint8_t type, dp_reader_t *fields)
{
    const uint32_t number = dp_read_u32(fields);
    const size_t bytes = dp_reader_left(fields);
    const dp_fleet_events_t *events = &node->fleet->events;

    if (node->tunnel == NULL || fields->failed) return;
    if (type == DP_REMOTE_TUNNEL_OPEN) {
        dp_tunnel_adopt(node->tunnel, number,
                        events->tunnel == NULL ? -1 : events->tunnel(events->context, node->index));
    } else if (type == DP_REMOTE_TUNNEL_DATA) {
        dp_tunnel_receive(node->tunnel, number, dp_read_bytes(fields, bytes), bytes);
    } else {
        dp_tunnel_closed(node->tunnel, number);
    }
}

static void read_sight(dp_reader_t *fields, dp_memory_sight_t *sight)
{
    sight->cgroup_kills = (int64_t)dp_read_u64(fields);
    sight->system_kills = (int64_t)dp_read_u64(fields);
    sight->limit_bytes = (int64_t)dp_read_u64(fields);
    sight->total_bytes = (int64_t)dp_read_u64(fields);
}

static void serve_memory(dp_fleet_node_t *node, dp_reader_t *fields)
{
    dp_memory_sight_t before;
    dp_memory_sight_t after;

    read_sight(fields, &before);
    read_sight(fields, &after);
    if (!fields->failed) node->fleet->events.memory(node->fleet->events.context, &before, &after);
}

static void serve_signalled(dp_fleet_node_t *node, dp_reader_t *fields)
{
    const dp_fleet_events_t *events = &node->fleet->events;
    const int number = (int)dp_read_u32(fields);
    const int is_again = node->is_told;

    if (fields->failed ||
        (number != SIGTERM && number != SIGINT && number != SIGHUP && number != SIGQUIT))
        return;
    node->is_told = 1;
    events->signalled(events->context, node->name, number, is_again);
}

static void serve_pong(dp_fleet_node_t *node, dp_reader_t *fields)
{
    const uint64_t sent_ns = dp_read_u64(fields);
    const uint64_t theirs_ns = dp_read_u64(fields);

    if (!fields->failed) dp_fleet_clock(node, sent_ns, theirs_ns);
}

static dp_fleet_node_t *node_of(dp_fleet_t *fleet, const dp_link_t *link)
{
    for (int i = 0; i < fleet->count; i++) {
        if (fleet->list[i].link == link) return &fleet->list[i];
    }
    return NULL;
}

static void on_frame(void *context, dp_link_t *link, uint8_t type, dp_reader_t *fields)
{
    dp_fleet_t *fleet = context;
    dp_fleet_node_t *node = node_of(fleet, link);

    if (node == NULL) return;
    switch (type) {
    case DP_REMOTE_ABOUT:
        serve_about(node, fields);
        break;
    case DP_REMOTE_REFUSED:
        serve_refused(node, fields);
        break;
    case DP_REMOTE_MESSAGE:
        serve_message(node, fields);
        break;
    case DP_REMOTE_PONG:
        serve_pong(node, fields);
        break;
    case DP_REMOTE_OUTPUT:
        serve_output(node, fields);
        break;
    case DP_REMOTE_INPUT_TAKEN:
        dp_fleet_input_taken(fleet, dp_read_u8(fields));
        break;
    case DP_REMOTE_FILE:
        dp_fleet_file(node, fields);
        break;
    case DP_REMOTE_FILES_DONE:
        node->has_files = 1;
        break;
    case DP_REMOTE_SIGNALLED:
        serve_signalled(node, fields);
        break;
    case DP_REMOTE_MEMORY:
        serve_memory(node, fields);
        break;
    case DP_REMOTE_TUNNEL_OPEN:
    case DP_REMOTE_TUNNEL_DATA:
    case DP_REMOTE_TUNNEL_CLOSE:
        serve_tunnel(node, type, fields);
        break;
    default:
        break; /* of a later version, or dprun's own */
    }
}

/* ---- Links ---------------------------------------------------------------------------------- */

static int on_proven(void *context, dp_link_t *link, uint32_t number)
{
    dp_fleet_t *fleet = context;
    dp_fleet_node_t *node = number < (uint32_t)fleet->count ? &fleet->list[number] : NULL;

    if (node == NULL || node->link != NULL || node->stage > DP_FLEET_STARTING) {
        dp_fleet_say(fleet, "a second station of node %s was refused",
                     node == NULL ? "?" : node->name);
        return -1;
    }
    node->link = link;
    dp_fleet_node_joined(node);
    return 0;
}

static void lose_silent(dp_fleet_node_t *node, uint64_t since_ns, const char *what, uint64_t now_ns)
{
    char text[400];

    snprintf(text, sizeof(text), "%s%s%s%s for %.1f s",
             node->stage < DP_FLEET_RUNNING ? "node " : "",
             node->stage < DP_FLEET_RUNNING ? node->name : "",
             node->stage < DP_FLEET_RUNNING ? ": " : "", what, (double)(now_ns - since_ns) / 1e9);
    node->silent_ns = since_ns;
    if (node->link != NULL) dp_link_give_up(node->link); /* it may still hear this machine */
    dp_fleet_node_lose(node, 1, text);
}

/* A node that nothing reaches resets its connection after a while (station.c). It was lost
 * when it last confirmed something; its frames may have come until now. 0: it did just now, or this
 * process has not looked since. */
static uint64_t unreached_since(const dp_fleet_t *fleet, const dp_link_t *link)
{
    const uint64_t confirmed_ns = dp_max(dp_link_confirmed_ns(link), fleet->awake_ns);
    const uint64_t look_ns = fleet->beat_ns;

    return look_ns >= confirmed_ns + DP_REMOTE_UNREACHED_NS ? confirmed_ns : 0;
}

static void on_closed(void *context, dp_link_t *link, const char *why)
{
    dp_fleet_t *fleet = context;
    dp_fleet_node_t *node = node_of(fleet, link);
    char text[256];

    if (node == NULL) return;
    node->silent_ns = unreached_since(fleet, link);
    node->link = NULL; /* it frees itself */
    if (node->silent_ns != 0) {
        lose_silent(node, node->silent_ns,
                    "nothing reaches it any more: it has confirmed nothing from here", dp_now_ns());
        return;
    }
    if (node->stage >= DP_FLEET_RUNNING) {
        snprintf(text, sizeof(text), "%s (its machine went down, or its station was killed)", why);
    } else {
        snprintf(text, sizeof(text), "node %.100s: %s", node->name, why);
    }
    dp_fleet_node_lose(node, 1, text);
}

const dp_link_events_t dp_fleet_link_events = {on_proven, on_frame, on_closed, NULL};

/* ---- Signs of life -------------------------------------------------------------------------- */

void dp_fleet_ping(dp_fleet_node_t *node)
{
    uint8_t data[8];
    dp_writer_t writer;

    dp_writer_init(&writer, data, sizeof(data));
    dp_write_u64(&writer, dp_now_ns());
    dp_fleet_node_send(node, DP_REMOTE_PING, data, sizeof(data));
}

/* 1: the node is silent, but its kernel lives and hears this machine: it confirms a ping every
 * 500 ms. Packets alone do not show that, since they also come from a node that nothing reaches. */
static int is_kernel_answering(dp_fleet_node_t *node, uint64_t now_ns)
{
    const uint64_t limit_ns = DP_REMOTE_SILENCE_NS / 2;

    return now_ns < dp_link_packet_ns(node->link, now_ns) + limit_ns &&
           now_ns < dp_link_confirmed_ns(node->link) + limit_ns;
}

static void look_for_silence(dp_fleet_node_t *node, uint64_t now_ns)
{
    uint64_t heard_ns;

    if (node->link == NULL) return;
    heard_ns = dp_link_heard_ns(node->link, now_ns); /* notes what was confirmed, too */
    if (node->is_suspected) heard_ns = dp_link_frame_ns(node->link);
    heard_ns = dp_max(heard_ns, node->fleet->awake_ns);
    if (now_ns < heard_ns + DP_REMOTE_SILENCE_NS) return;
    node->kernel_answered = is_kernel_answering(node, now_ns);
    /* On a bad link heard_ns is later than what was heard. */
    lose_silent(node, dp_max(dp_link_frame_ns(node->link), node->fleet->awake_ns),
                "no sign of life", now_ns);
}

static void note_standstill(dp_fleet_t *fleet, uint64_t for_ns)
{
    for (int i = 0; i < fleet->count; i++) {
        if (fleet->list[i].link != NULL) dp_link_stood_still(fleet->list[i].link, for_ns);
    }
}

static void on_beat(evutil_socket_t fd, short what, void *context)
{
    dp_fleet_t *fleet = context;
    const uint64_t now_ns = dp_now_ns();
    const int is_round = fleet->beats % LOOKS_PER_BEAT == 0;

    (void)fd;
    (void)what;
    /* This process was stopped, or had no core: what was sent meanwhile has not been read yet. */
    if (now_ns > fleet->beat_ns + DP_FLEET_STOOD_STILL_NS) {
        fleet->awake_ns = now_ns;
    } else if (now_ns > fleet->beat_ns + 2 * LOOK_NS) { /* perhaps again and again */
        note_standstill(fleet, now_ns - fleet->beat_ns - LOOK_NS);
    }
    fleet->beat_ns = now_ns;
    fleet->beats++;
    for (int i = 0; i < fleet->count; i++) {
        look_for_silence(&fleet->list[i], now_ns);
        if (is_round) dp_fleet_ping(&fleet->list[i]);
    }
    if (!fleet->is_running && !fleet->is_over) dp_fleet_watch_start(fleet, now_ns);
}

int dp_fleet_beat_start(dp_fleet_t *fleet)
{
    const struct timeval period = {0, LOOK_NS / 1000};

    fleet->beat_ns = fleet->awake_ns = dp_now_ns();
    fleet->beat = event_new(fleet->base, -1, EV_PERSIST, on_beat, fleet);
    return fleet->beat == NULL ? -1 : event_add(fleet->beat, &period);
}

/* ---- Orders --------------------------------------------------------------------------------- */

void dp_fleet_order(dp_fleet_t *fleet, dp_message_type_t type, int number)
{
    const int ends = type == DP_MESSAGE_KILL || number == SIGTERM || number == SIGINT ||
                     number == SIGHUP || number == SIGQUIT;
    uint8_t data[5];
    dp_writer_t writer;

    if (!fleet->is_running) {
        if (ends) dp_fleet_give_up(fleet);
        return;
    }
    dp_writer_init(&writer, data, sizeof(data));
    dp_write_u8(&writer, (uint8_t)type);
    dp_write_u32(&writer, (uint32_t)number);
    send_to_all(fleet, DP_REMOTE_ORDER, data, sizeof(data));
}

void dp_fleet_abandon(dp_fleet_t *fleet)
{
    for (int i = 0; i < fleet->count; i++) {
        if (fleet->list[i].stage != DP_FLEET_RUNNING) continue;
        dp_fleet_node_lose(&fleet->list[i], 1, "it has not ended its ranks");
    }
}

/* Packets without frames are a sign of life because a link may only lose some of them. They also
 * come from a node that hears nobody any more and repeats what nobody acknowledges, for many
 * seconds; but then its neighbours have given it up. */
void dp_fleet_suspect(dp_fleet_t *fleet, int reporter, int culprit)
{
    dp_fleet_node_t *node = dp_fleet_node_of_rank(fleet, culprit);

    if (node != NULL && node != dp_fleet_node_of_rank(fleet, reporter)) node->is_suspected = 1;
}

void dp_fleet_pause(dp_fleet_t *fleet)
{
    send_to_all(fleet, DP_REMOTE_PAUSE, NULL, 0);
    for (int i = 0; i < fleet->count; i++) { /* it must be out before this process stops */
        if (fleet->list[i].link != NULL) dp_link_flush(fleet->list[i].link);
    }
}

void dp_fleet_credit(dp_fleet_t *fleet, int rank, int stream, size_t bytes)
{
    size_t *unreturned = &fleet->unreturned[rank * 2 + stream - 1];
    dp_fleet_node_t *node;
    uint8_t data[9];
    dp_writer_t writer;

    *unreturned += bytes;
    if (*unreturned < CREDIT_PIECE) return;
    dp_writer_init(&writer, data, sizeof(data));
    dp_write_u32(&writer, (uint32_t)rank);
    dp_write_u8(&writer, (uint8_t)stream);
    dp_write_u32(&writer, (uint32_t)*unreturned);
    *unreturned = 0;
    node = dp_fleet_node_of_rank(fleet, rank);
    if (node != NULL) dp_fleet_node_send(node, DP_REMOTE_CREDIT_BACK, data, sizeof(data));
}

void dp_fleet_met(dp_fleet_t *fleet)
{
    explicit_bzero(&fleet->ticket, sizeof(fleet->ticket));
    send_to_all(fleet, DP_REMOTE_MET, NULL, 0);
}

int dp_fleet_node_count(const dp_fleet_t *fleet)
{
    return fleet->count;
}

void dp_fleet_node(const dp_fleet_t *fleet, int node, dp_fleet_node_view_t *view)
{
    const dp_fleet_node_t *at = &fleet->list[node];

    view->name = at->name;
    view->host = at->about.host;
    view->first_rank = at->host->first_rank;
    view->ranks = at->host->ranks;
    view->clock_ns = at->best.offset_ns;
    view->clock_error_ns = at->best.at_ns == 0 ? UINT64_MAX : at->best.error_ns;
}
