/*
 * station.c - one job's life on a node, as dprun orders it; see station.h.
 *
 * Main of `dprun --station`. It ends with its ranks and their files gone whichever of these comes
 * first: BYE; the link closes; dprun is silent for the lease; standard input ends. Where the
 * station itself is killed, its agent and guard do the same (agent.c, guard.c).
 */
#include "launcher/dprun/remote/station.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "launcher/dprun/remote/shell.h"
#include "launcher/dprun/remote/station_internal.h"
#include "runtime/network/silence.h"

#define TICKET_NS UINT64_C(30000000000)
#define DIAL_NS UINT64_C(10000000000)
#define STOOD_STILL_NS UINT64_C(1500000000)

static void report_to_stderr(const char *text)
{
    fprintf(stderr, "dprun: %s\n", text);
}

void dp_station_send(dp_station_t *station, uint8_t type, const void *fields, size_t bytes)
{
    if (station->link != NULL) dp_link_send(station->link, type, fields, bytes);
}

void dp_station_refuse(dp_station_t *station, int code, const char *text)
{
    uint8_t data[DP_ERROR_TEXT_MAX + 64];
    dp_writer_t writer;

    dp_writer_init(&writer, data, sizeof(data));
    dp_write_u32(&writer, (uint32_t)code);
    dp_write_text(&writer, text);
    if (!writer.failed) dp_station_send(station, DP_REMOTE_REFUSED, data, writer.bytes);
}

void dp_station_end(dp_station_t *station, int code)
{
    if (!station->is_over) station->code = code;
    station->is_over = 1;
    event_base_loopbreak(station->base);
}

/* ---- Frames --------------------------------------------------------------------------------- */

static void serve_start(dp_station_t *station, dp_reader_t *fields)
{
    dp_remote_about_t about;
    uint8_t data[2048];
    dp_writer_t writer;
    dp_error_t error = {DP_OK, ""};
    int code = 1;

    if (station->has_start || dp_remote_start_read(fields, &station->start) != 0) {
        dp_station_refuse(station, 1,
                          "its dprun cannot read what this one sends: two versions of dprun?");
        return;
    }
    station->has_start = 1;
    if (dp_station_prepare(station, &code, &error) != DP_OK) {
        dp_station_refuse(station, code, error.text);
        return;
    }
    dp_station_about(station, &about);
    dp_writer_init(&writer, data, sizeof(data));
    dp_remote_about_write(&writer, &about);
    if (!writer.failed) dp_station_send(station, DP_REMOTE_ABOUT, data, writer.bytes);
}

static void serve_go(dp_station_t *station, dp_reader_t *fields)
{
    const uint16_t port = dp_read_u16(fields);
    dp_error_t error = {DP_OK, ""};

    if (!station->has_job || station->guard > 0) return;
    if (dp_station_go(station, port, &error) != DP_OK) dp_station_refuse(station, 1, error.text);
}

static void answer_ping(dp_station_t *station, dp_reader_t *fields)
{
    uint8_t data[16];
    dp_writer_t writer;

    dp_writer_init(&writer, data, sizeof(data));
    dp_write_u64(&writer, dp_read_u64(fields));
    dp_write_u64(&writer, dp_now_ns());
    dp_station_send(station, DP_REMOTE_PONG, data, writer.bytes);
}

static void serve_tunnel(dp_station_t *station, uint8_t type, dp_reader_t *fields)
{
    const uint32_t number = dp_read_u32(fields);
    const size_t bytes = dp_reader_left(fields);

    if (station->tunnel == NULL || fields->failed) return;
    if (type == DP_REMOTE_TUNNEL_DATA) {
        dp_tunnel_receive(station->tunnel, number, dp_read_bytes(fields, bytes), bytes);
    } else {
        dp_tunnel_closed(station->tunnel, number);
    }
}

static void serve_credit(dp_station_t *station, dp_reader_t *fields)
{
    const int rank = (int)dp_read_u32(fields);
    const int stream = dp_read_u8(fields);
    const uint32_t bytes = dp_read_u32(fields);

    if (!fields->failed) dp_station_credit(station, rank, stream, bytes);
}

static void serve_order(dp_station_t *station, dp_reader_t *fields)
{
    const dp_message_type_t type = dp_read_u8(fields);
    const int number = (int)dp_read_u32(fields);

    if (!fields->failed) dp_station_order(station, type, number);
}

static void on_frame(void *context, dp_link_t *link, uint8_t type, dp_reader_t *fields)
{
    dp_station_t *station = context;
    size_t bytes = dp_reader_left(fields);

    if (link != station->link) return;
    station->is_paused = 0;
    switch (type) {
    case DP_REMOTE_START:
        serve_start(station, fields);
        break;
    case DP_REMOTE_GO:
        serve_go(station, fields);
        break;
    case DP_REMOTE_ORDER:
        serve_order(station, fields);
        break;
    case DP_REMOTE_PING:
        answer_ping(station, fields);
        break;
    case DP_REMOTE_PAUSE:
        station->is_paused = 1;
        break;
    case DP_REMOTE_CREDIT_BACK:
        serve_credit(station, fields);
        break;
    case DP_REMOTE_INPUT:
        dp_station_input(station, dp_read_bytes(fields, bytes), bytes);
        break;
    case DP_REMOTE_MET:
        if (station->tunnel != NULL) dp_tunnel_close_door(station->tunnel);
        break;
    case DP_REMOTE_FETCH:
        dp_station_send_files(station);
        break;
    case DP_REMOTE_BYE:
        dp_station_end(station, (int)dp_read_u32(fields));
        break;
    case DP_REMOTE_TUNNEL_DATA:
    case DP_REMOTE_TUNNEL_CLOSE:
        serve_tunnel(station, type, fields);
        break;
    default:
        break; /* of a later version, or a station's own */
    }
}

static int on_proven(void *context, dp_link_t *link, uint32_t node)
{
    dp_station_t *station = context;

    (void)node;
    if (station->link != NULL) return -1; /* another address was faster */
    station->link = link;
    dp_station_dial_done(station, link);
    explicit_bzero(&station->options->ticket.secret, sizeof(station->options->ticket.secret));
    dp_auth_wipe_stack();
    return 0;
}

static void on_closed(void *context, dp_link_t *link, const char *why)
{
    dp_station_t *station = context;

    if (link != station->link) {
        dp_station_dial_failed(station, link, why);
        return;
    }
    station->link = NULL;
    fprintf(stderr, "dprun: %s: ending this node's ranks\n", why);
    dp_station_end(station, 1);
}

/* ---- Signs of life -------------------------------------------------------------------------- */

/* Where packets are lost in one direction alone, dprun receives this node's and cannot tell: its
 * own are unanswered, which a bad link explains as well. This end knows, as dprun sends every
 * 500 ms and each kernel answers the other's probes every second. Nothing that waits for dprun's
 * answer gets through, but a reset needs none: dprun sees the connection break. */
static void look_for_deafness(dp_station_t *station, uint64_t now_ns)
{
    const struct timeval ranks_notice = {1, 0};
    uint64_t limit_ns;

    if (now_ns - station->deaf_look_ns > STOOD_STILL_NS) station->deaf_awake_ns = now_ns;
    station->deaf_look_ns = now_ns;
    if (station->link == NULL || station->is_paused) return;
    limit_ns = dp_max(dp_link_packet_ns(station->link, now_ns), station->deaf_awake_ns) +
               (dp_link_is_bad(station->link, now_ns) ? DP_SILENCE_PATIENCE * DP_REMOTE_SILENCE_NS
                                                      : DP_REMOTE_SILENCE_NS);
    if (now_ns >= limit_ns) {
        report_to_stderr("no packet of dprun comes any more: this node's ranks will end");
        dp_link_give_up(station->link);
        dp_link_close(station->link);
        station->link = NULL;
        station->has_reset = 1;
        event_add(station->deaf_timer, &ranks_notice);  /* and tell those of other nodes */
    } else if (limit_ns - now_ns < DP_REMOTE_BEAT_NS) { /* before the next beat */
        const struct timeval rest = {0, (suseconds_t)((limit_ns - now_ns) / 1000 + 1)};

        event_add(station->deaf_timer, &rest);
    }
}

static void on_deaf_timer(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    if (((dp_station_t *)context)->has_reset) {
        dp_station_end(context, 1);
    } else {
        look_for_deafness(context, dp_now_ns());
    }
}

static void on_beat(evutil_socket_t fd, short what, void *context)
{
    dp_station_t *station = context;
    const uint64_t now_ns = dp_now_ns();

    (void)fd;
    (void)what;
    look_for_deafness(station, now_ns);
    if (station->link == NULL) return;
    (void)dp_link_heard_ns(station->link, now_ns); /* notes losses */
    /* Frames alone: dprun has given this node up long before, on a bad link, too. */
    if (station->is_paused || now_ns < dp_link_frame_ns(station->link) + DP_REMOTE_LEASE_NS) return;
    report_to_stderr("dprun is silent: ending this node's ranks");
    dp_station_end(station, 1);
}

/* The process that started this one holds the other end of standard input as long as it lives. */
static void on_lifeline(evutil_socket_t fd, short what, void *context)
{
    char data[256];
    const ssize_t bytes = read((int)fd, data, sizeof(data));

    (void)what;
    if (bytes > 0 || (bytes < 0 && (errno == EINTR || errno == EAGAIN))) return;
    dp_station_end(context, 1);
}

/* A notice of the end (a scheduler's, Kubernetes'): dprun ends the whole job as for a signal to
 * itself. Before there is a dprun it is for this process. */
static void on_signal(evutil_socket_t fd, short what, void *context)
{
    dp_station_t *station = context;
    struct signalfd_siginfo info;
    uint8_t data[4];
    dp_writer_t writer;

    (void)what;
    if (read((int)fd, &info, sizeof(info)) != (ssize_t)sizeof(info)) return;
    if (station->link == NULL) {
        dp_station_end(station, 128 + (int)info.ssi_signo);
        return;
    }
    if (dp_wish_hear(&station->wish, (int)info.ssi_signo, dp_now_ns()) == DP_WISH_SAME) return;
    dp_writer_init(&writer, data, sizeof(data));
    dp_write_u32(&writer, info.ssi_signo);
    dp_station_send(station, DP_REMOTE_SIGNALLED, data, sizeof(data));
}

/* ---- Life ----------------------------------------------------------------------------------- */

static const int requests[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};

static int is_ignored(int number)
{
    struct sigaction old;

    return sigaction(number, NULL, &old) == 0 && old.sa_handler == SIG_IGN;
}

static dp_status_t open_station(dp_station_t *station, dp_error_t *error)
{
    const struct timeval beat = {0, DP_REMOTE_BEAT_NS / 1000};
    sigset_t heard;
    sigset_t all;

    prctl(PR_SET_NAME, "dprun-station");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&heard);
    for (size_t i = 0; i < DP_ARRAY_LEN(requests);
         i++) /* not those that nohup or "&" has ignored */
        if (!is_ignored(requests[i])) sigaddset(&heard, requests[i]);
    /* A signal to all processes of a job does not end this one: it waits for dprun's word. */
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &station->old_mask);
    station->signals = signalfd(-1, &heard, SFD_CLOEXEC | SFD_NONBLOCK);
    station->base = event_base_new();
    if (station->signals < 0 || station->base == NULL) {
        return dp_error_set(error, DP_ERR_SYSTEM, "an event loop: %s", strerror(errno));
    }
    station->on_signal =
        event_new(station->base, station->signals, EV_READ | EV_PERSIST, on_signal, station);
    station->beat = event_new(station->base, -1, EV_PERSIST, on_beat, station);
    station->deaf_timer = event_new(station->base, -1, 0, on_deaf_timer, station);
    station->deaf_look_ns = station->deaf_awake_ns = dp_now_ns();
    if (station->on_signal == NULL || station->beat == NULL || station->deaf_timer == NULL ||
        event_add(station->on_signal, NULL) != 0 || event_add(station->beat, &beat) != 0) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    if (!station->options->has_lifeline) return DP_OK;
    station->on_lifeline =
        event_new(station->base, STDIN_FILENO, EV_READ | EV_PERSIST, on_lifeline, station);
    if (station->on_lifeline == NULL || event_add(station->on_lifeline, NULL) != 0) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    return DP_OK;
}

static void flush_link(dp_station_t *station)
{
    const uint64_t deadline_ns = dp_now_ns() + DP_REMOTE_SILENCE_NS;

    while (station->link != NULL && dp_link_queued(station->link) > 0 &&
           dp_now_ns() < deadline_ns) {
        if (event_base_loop(station->base, EVLOOP_ONCE) != 0) return;
    }
}

static void close_station(dp_station_t *station)
{
    const int is_orphan = station->link == NULL;

    dp_station_stop_job(station, is_orphan);
    flush_link(station);
    dp_link_close(station->link);
    dp_station_dial_done(station, NULL);
    dp_station_files_free(station);
    if (station->deaf_timer != NULL) event_free(station->deaf_timer);
    if (station->on_lifeline != NULL) event_free(station->on_lifeline);
    if (station->on_signal != NULL) event_free(station->on_signal);
    if (station->beat != NULL) event_free(station->beat);
    if (station->base != NULL) event_base_free(station->base);
    if (station->signals >= 0) close(station->signals);
    if (station->has_job) dp_job_fini(&station->job);
    if (station->has_start) dp_remote_start_fini(&station->start);
}

static void report_failed_dial(const dp_station_t *station)
{
    if (station->options->has_lifeline && !station->is_turned_away) {
        fprintf(stderr, DP_REMOTE_UNREACHED ": %s\n", station->dial_error);
    } else {
        report_to_stderr(station->dial_error); /* to people, or another address would not help */
    }
}

int dp_station_run(dp_station_options_t *options)
{
    dp_station_t station = {.options = options, .signals = -1, .channel = -1, .input = -1};
    const dp_link_events_t events = {on_proven, on_frame, on_closed, &station};
    dp_error_t error = {DP_OK, ""};
    const char *slurm = dp_environment("SLURM_NODEID");
    dp_status_t status;

    station.node = options->ticket.node;
    if (station.node == DP_REMOTE_ASK_SLURM) {
        station.node = slurm == NULL ? 0 : (uint32_t)strtoul(slurm, NULL, 10);
    }
    status = open_station(&station, &error);
    if (status == DP_OK) status = dp_station_dial(&station, &events);
    if (status == DP_OK) {
        event_base_dispatch(station.base);
    } else {
        report_to_stderr(error.text);
        station.code = 1;
    }
    if (!station.has_start && station.dial_error[0] != '\0') report_failed_dial(&station);
    close_station(&station);
    return station.code;
}

/* The address that ssh came from, as this machine sees it: dprun's own unless there is a proxy or a
 * translation of addresses in between. Only the proof of the secret tells. */
static void add_ssh_address(dp_remote_ticket_t *ticket)
{
    const char *connection = dp_environment("SSH_CONNECTION"); /* client, port, server, port */
    const size_t bytes = connection == NULL ? 0 : strcspn(connection, " ");
    char *text = ticket->addresses[dp_min(ticket->address_count, DP_REMOTE_ADDRESSES - 1)];

    if (bytes == 0 || bytes >= DP_REMOTE_ADDRESS_MAX) return;
    for (int i = 0; i < ticket->address_count; i++) {
        if (strncmp(ticket->addresses[i], connection, bytes) == 0 &&
            ticket->addresses[i][bytes] == '\0')
            return;
    }
    if (ticket->address_count >= DP_REMOTE_ADDRESSES) return;
    memcpy(text, connection, bytes);
    text[bytes] = '\0';
    ticket->address_count++;
}

/* dprun's ssh ignores these (shell.c). Where it is a program that passes that on, as nsenter
 * does, the ranks must hear them all the same. */
static void undo_shield(void)
{
    static const int shielded[] = DP_SHELL_SHIELDED;

    for (size_t i = 0; i < DP_ARRAY_LEN(shielded); i++)
        if (!is_ignored(shielded[i])) return;
    for (size_t i = 0; i < DP_ARRAY_LEN(shielded); i++)
        signal(shielded[i], SIG_DFL);
}

int dp_station_main(void)
{
    dp_station_options_t options = {.has_lifeline = 1, .start_timeout_ns = DIAL_NS};
    dp_error_t error = {DP_OK, ""};
    int code;

    if (dp_remote_ticket_read(STDIN_FILENO, dp_now_ns() + TICKET_NS, &options.ticket, &error) !=
        DP_OK) {
        report_to_stderr(error.text);
        return 1;
    }
    undo_shield();
    add_ssh_address(&options.ticket);
    code = dp_station_run(&options);
    explicit_bzero(&options, sizeof(options));
    return code;
}
