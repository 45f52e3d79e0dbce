/*
 * kv.c - a rank's blocking end of the rendezvous, every wait under a deadline.
 *
 * Bytes from the server are treated as hostile, also after its proof: a length is checked before
 * anything is allocated or awaited for it. An error text names the server's address.
 *
 * Called by the bootstraps of runtime/group: on the thread of dp_init() while ranks meet; later the
 * thread that owns progress reports how the world ended, so sending has a lock.
 */
#include "runtime/base/kv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/forked.h"
#include "runtime/base/local_socket.h"

#define GIVE_UP_NS 1000000000ull /* for the answer that names who is missing */
#define REPORT_ROOM (DP_KV_FRAME_HEADER_BYTES + DP_FAILURE_BYTES_MAX)

struct dp_kv {
    int fd; /* does not block */
    dp_fork_watch_t fork_watch;
    char peer[96];      /* "rendezvous 127.0.0.1:4711", begins every error */
    dp_error_t failure; /* why the connection is of no more use */
    pthread_mutex_t send_lock;
    /* guarded by send_lock */
    uint8_t unsent[REPORT_ROOM]; /* the rest of a report that the socket had no room for */
    size_t unsent_bytes;
};

/* ---- Bytes under a deadline ----------------------------------------------------------------- */

/* Waits for events on the socket; for_what completes "... did not come in time". */
static dp_status_t wait_until_ready(dp_kv_t *kv, short events, uint64_t deadline_ns,
                                    const char *for_what, dp_error_t *error)
{
    struct pollfd wait = {kv->fd, events, 0};

    for (;;) {
        uint64_t now = dp_now_ns();
        uint64_t left_ms = deadline_ns > now ? (deadline_ns - now + 999999) / 1000000 : 0;
        int ready = poll(&wait, 1, (int)dp_min(left_ms, (uint64_t)3600000));

        if (ready > 0) return DP_OK;
        if (ready < 0 && errno != EINTR) {
            return dp_error_set(error, DP_ERR_SYSTEM, "%s: poll: %s", kv->peer, strerror(errno));
        }
        if (ready == 0 && dp_now_ns() >= deadline_ns) {
            return dp_error_set(error, DP_ERR_TIMEOUT, "%s: %s did not come in time", kv->peer,
                                for_what);
        }
    }
}

static dp_status_t send_bytes(dp_kv_t *kv, const void *data, size_t bytes, uint64_t deadline_ns,
                              dp_error_t *error)
{
    const uint8_t *at = data;
    dp_status_t status;

    while (bytes > 0) {
        ssize_t sent = send(kv->fd, at, bytes, MSG_NOSIGNAL);

        if (sent >= 0) {
            at += sent;
            bytes -= (size_t)sent;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            status = wait_until_ready(kv, POLLOUT, deadline_ns, "room to send", error);
            if (status != DP_OK) return status;
        } else if (errno != EINTR) {
            return dp_error_set(error, DP_ERR_SYSTEM, "%s: sending: %s", kv->peer, strerror(errno));
        }
    }
    return DP_OK;
}

static dp_status_t receive_all(dp_kv_t *kv, void *data, size_t bytes, uint64_t deadline_ns,
                               const char *what, dp_error_t *error)
{
    uint8_t *at = data;
    dp_status_t status;

    while (bytes > 0) {
        ssize_t got = recv(kv->fd, at, bytes, 0);

        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
        } else if (got == 0) {
            return dp_error_set(error, DP_ERR_SYSTEM, "%s: closed, expected %s", kv->peer, what);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            status = wait_until_ready(kv, POLLIN, deadline_ns, what, error);
            if (status != DP_OK) return status;
        } else if (errno != EINTR) {
            return dp_error_set(error, DP_ERR_SYSTEM, "%s: expected %s: %s", kv->peer, what,
                                strerror(errno));
        }
    }
    return DP_OK;
}

/* ---- Connecting ----------------------------------------------------------------------------- */

static dp_status_t connect_local(dp_kv_t *kv, const char *address, uint64_t deadline_ns,
                                 dp_error_t *error)
{
    dp_error_t cause = {DP_OK, ""};
    dp_status_t status = dp_local_connect(address, deadline_ns, &kv->fd, &cause);

    if (status != DP_OK) return dp_error_set(error, status, "%s: %s", kv->peer, cause.text);
    if (fcntl(kv->fd, F_SETFL, O_NONBLOCK) != 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "%s: fcntl: %s", kv->peer, strerror(errno));
    }
    return DP_OK;
}

static dp_status_t connect_port(dp_kv_t *kv, const dp_kv_ticket_t *ticket, uint64_t deadline_ns,
                                dp_error_t *error)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(ticket->port)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(ticket->port)};
    const int is_four = inet_pton(AF_INET, ticket->address, &four.sin_addr) == 1;
    const int is_six = !is_four && inet_pton(AF_INET6, ticket->address, &six.sin6_addr) == 1;
    const struct sockaddr *address = is_four ? (const struct sockaddr *)&four : (void *)&six;
    const int one = 1;
    socklen_t bytes = sizeof(int);
    int failure = 0;
    dp_status_t status;

    if (ticket->port == 0 || (!is_four && !is_six)) {
        return dp_error_set(error, DP_ERR_CONFIG, "%s: not an IP address and a port", kv->peer);
    }
    kv->fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (kv->fd < 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "%s: socket: %s", kv->peer, strerror(errno));
    }
    dp_fork_watch(&kv->fork_watch, kv->fd);
    /* Small frames that each await an answer: never hold one back. Only speed depends on it. */
    (void)setsockopt(kv->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (connect(kv->fd, address, is_four ? sizeof(four) : sizeof(six)) == 0) return DP_OK;
    failure = errno;
    if (failure == EINPROGRESS || failure == EINTR) {
        status = wait_until_ready(kv, POLLOUT, deadline_ns, "the connection", error);
        if (status != DP_OK) return status;
        if (getsockopt(kv->fd, SOL_SOCKET, SO_ERROR, &failure, &bytes) != 0) failure = errno;
    }
    if (failure != 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "%s: connecting: %s", kv->peer,
                            strerror(failure));
    }
    return DP_OK;
}

/* Both prove the secret over both challenges; ours comes first, so a server that does not know the
 * secret learns nothing but a proof that serves nobody else. */
static dp_status_t shake_hands(dp_kv_t *kv, const dp_secret_t *secret, int rank,
                               uint64_t deadline_ns, dp_error_t *error)
{
    uint8_t server_hello[DP_KV_SERVER_HELLO_BYTES];
    uint8_t hello[DP_KV_CLIENT_HELLO_BYTES];
    uint8_t challenge[DP_CHALLENGE_BYTES];
    uint8_t welcome[DP_PROOF_BYTES];
    const uint8_t *server_challenge;
    dp_error_t cause = {DP_OK, ""};
    dp_status_t status;

    status = receive_all(kv, server_hello, sizeof(server_hello), deadline_ns, "its hello", error);
    if (status != DP_OK) return status;
    status = dp_kv_server_hello_read(server_hello, &server_challenge, &cause);
    if (status != DP_OK) return dp_error_set(error, status, "%s: %s", kv->peer, cause.text);
    dp_random(challenge, sizeof(challenge));
    dp_kv_client_hello_write(secret, server_challenge, challenge, rank, hello);
    status = send_bytes(kv, hello, sizeof(hello), deadline_ns, error);
    if (status != DP_OK) return status;
    status = receive_all(kv, welcome, sizeof(welcome), deadline_ns, "its proof", &cause);
    if (status == DP_ERR_SYSTEM) { /* its port and its greeting were right */
        return dp_error_set(error, status, "%s: it ended, or dropped this connection among many",
                            cause.text);
    }
    if (status != DP_OK) return dp_error_set(error, status, "%s", cause.text);
    if (memcmp(welcome, DP_KV_BUSY, sizeof(welcome)) == 0) {
        return dp_error_set(error, DP_ERR_SYSTEM,
                            "%s: dropped this connection among many that prove nothing: a flood?",
                            kv->peer);
    }
    if (memcmp(welcome, DP_KV_WRONG_PROOF, sizeof(welcome)) == 0) {
        return dp_error_set(error, DP_ERR_CONFIG, "%s: refused our proof: the job's secrets differ",
                            kv->peer);
    }
    if (!dp_kv_welcome_check(secret, server_challenge, challenge, rank, welcome)) {
        return dp_error_set(error, DP_ERR_CONFIG, "%s: does not know the job's secret", kv->peer);
    }
    return DP_OK;
}

dp_status_t dp_kv_connect(const dp_kv_ticket_t *ticket, int rank, uint64_t deadline_ns,
                          dp_kv_t **kv, dp_error_t *error)
{
    dp_kv_t *made = calloc(1, sizeof(*made));
    dp_status_t status;

    if (made == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory for the rendezvous");
    }
    made->fd = -1;
    pthread_mutex_init(&made->send_lock, NULL);
    if (dp_local_is_address(ticket->address)) {
        snprintf(made->peer, sizeof(made->peer), "rendezvous %s", ticket->address);
        status = connect_local(made, ticket->address, deadline_ns, error);
    } else {
        snprintf(made->peer, sizeof(made->peer),
                 strchr(ticket->address, ':') == NULL ? "rendezvous %s:%u" : "rendezvous [%s]:%u",
                 ticket->address, ticket->port);
        status = connect_port(made, ticket, deadline_ns, error);
    }
    if (status != DP_OK) goto fail;
    status = shake_hands(made, &ticket->secret, rank, deadline_ns, error);
    if (status != DP_OK) goto fail;
    *kv = made;
    return DP_OK;
fail:
    dp_kv_close(made);
    return status;
}

void dp_kv_close(dp_kv_t *kv)
{
    if (kv == NULL) return;
    dp_fork_forget(&kv->fork_watch);
    if (kv->fd >= 0) close(kv->fd);
    pthread_mutex_destroy(&kv->send_lock);
    free(kv);
}

/* ---- Exchange ------------------------------------------------------------------------------- */

static dp_status_t send_request(dp_kv_t *kv, const char *name, int size, const void *value,
                                size_t value_bytes, uint64_t deadline_ns, dp_error_t *error)
{
    const size_t room = DP_KV_FRAME_HEADER_BYTES + 2 + DP_KV_NAME_MAX + 8 + value_bytes;
    uint8_t *frame = malloc(room);
    dp_writer_t writer;
    dp_status_t status;

    if (frame == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "%s: no memory for %zu bytes", kv->peer, room);
    }
    dp_writer_init(&writer, frame, room);
    dp_kv_frame_begin(&writer, DP_KV_EXCHANGE);
    dp_write_text(&writer, name);
    dp_write_u32(&writer, (uint32_t)size);
    dp_write_u32(&writer, (uint32_t)value_bytes);
    dp_write_bytes(&writer, value, value_bytes);
    dp_kv_frame_end(&writer, 0);
    DP_ASSERT(!writer.failed);
    pthread_mutex_lock(&kv->send_lock);
    status = send_bytes(kv, kv->unsent, kv->unsent_bytes, deadline_ns, error);
    kv->unsent_bytes = 0;
    if (status == DP_OK) status = send_bytes(kv, frame, writer.bytes, deadline_ns, error);
    pthread_mutex_unlock(&kv->send_lock);
    free(frame);
    return status;
}

/* Receives one whole frame; returned, free() it. */
static dp_status_t receive_frame(dp_kv_t *kv, const char *what, uint64_t deadline_ns,
                                 uint8_t **frame, uint8_t *type, dp_reader_t *fields,
                                 dp_error_t *error)
{
    uint8_t header[4];
    uint8_t *whole = NULL;
    dp_error_t cause = {DP_OK, ""};
    size_t bytes = 0;
    dp_status_t status;

    status = receive_all(kv, header, sizeof(header), deadline_ns, what, error);
    if (status != DP_OK) return status;
    status = dp_kv_frame_parse(header, sizeof(header), type, fields, &bytes, &cause);
    if (status == DP_ERR_PENDING) { /* a length that may be true, and the rest to come */
        whole = malloc(bytes);
        if (whole == NULL) {
            return dp_error_set(error, DP_ERR_NO_MEMORY, "%s: no memory for a frame of %zu bytes",
                                kv->peer, bytes);
        }
        memcpy(whole, header, sizeof(header));
        status = receive_all(kv, whole + 4, bytes - 4, deadline_ns, what, error);
        if (status != DP_OK) goto fail;
        status = dp_kv_frame_parse(whole, bytes, type, fields, &bytes, &cause);
    }
    if (status == DP_OK) {
        *frame = whole;
        return DP_OK;
    }
    dp_error_set(error, status, "%s: %s, expected %s", kv->peer, cause.text, what);
fail:
    free(whole);
    return status;
}

/* Copies the values out of a VALUES frame. */
static dp_status_t take_values(dp_kv_t *kv, dp_reader_t *fields, const char *name, int size,
                               void **values, size_t *bytes, dp_error_t *error)
{
    const uint32_t count = dp_read_u32(fields);
    dp_status_t status;
    int taken;

    if (fields->failed || count != (uint32_t)size) {
        return dp_error_set(error, DP_ERR_SYSTEM, "%s: %u values in exchange '%s', expected %d",
                            kv->peer, count, name, size);
    }
    for (taken = 0; taken < size; taken++) {
        const size_t value_bytes = dp_read_u32(fields);
        const void *value = dp_read_bytes(fields, value_bytes);

        values[taken] = NULL;
        bytes[taken] = value_bytes;
        if (value == NULL) goto malformed;
        values[taken] = malloc(value_bytes + 1);
        if (values[taken] == NULL) {
            status = dp_error_set(error, DP_ERR_NO_MEMORY, "%s: no memory for %zu bytes", kv->peer,
                                  value_bytes);
            goto fail;
        }
        memcpy(values[taken], value, value_bytes);
        ((char *)values[taken])[value_bytes] = '\0';
    }
    if (dp_reader_left(fields) == 0) return DP_OK;
malformed:
    status =
        dp_error_set(error, DP_ERR_SYSTEM, "%s: malformed values in exchange '%s'", kv->peer, name);
fail:
    for (int i = 0; i < taken; i++) {
        free(values[i]);
        values[i] = NULL;
    }
    return status;
}

/* The deadline has passed: asks the server to name the missing ranks, which ends the exchange for
 * all ranks that wait in it. DP_OK when a frame comes: LATE, or the values after all. */
static dp_status_t ask_for_missing(dp_kv_t *kv, const char *name)
{
    uint8_t frame[DP_KV_FRAME_HEADER_BYTES + 2 + DP_KV_NAME_MAX];
    const uint64_t deadline_ns = dp_now_ns() + GIVE_UP_NS;
    dp_writer_t writer;
    dp_status_t status;

    dp_writer_init(&writer, frame, sizeof(frame));
    dp_kv_text_write(&writer, DP_KV_GIVE_UP, name);
    pthread_mutex_lock(&kv->send_lock);
    status = send_bytes(kv, kv->unsent, kv->unsent_bytes, deadline_ns, NULL);
    kv->unsent_bytes = 0;
    if (status == DP_OK) status = send_bytes(kv, frame, writer.bytes, deadline_ns, NULL);
    pthread_mutex_unlock(&kv->send_lock);
    return status == DP_OK ? wait_until_ready(kv, POLLIN, deadline_ns, "", NULL) : status;
}

static dp_status_t exchange(dp_kv_t *kv, const char *name, int size, const void *value,
                            size_t value_bytes, void **values, size_t *bytes, uint64_t deadline_ns,
                            dp_error_t *error)
{
    char what[160];
    char text[DP_ERROR_TEXT_MAX];
    uint8_t *frame = NULL;
    uint8_t type = 0;
    dp_reader_t fields;
    dp_status_t sent;
    dp_status_t status;

    sent = send_request(kv, name, size, value, value_bytes, deadline_ns, error);
    if (sent != DP_OK && sent != DP_ERR_SYSTEM) return sent;
    /* A server that hung up on us may have said why before. */
    if (sent != DP_OK) deadline_ns = dp_now_ns();
    snprintf(what, sizeof(what), "the values of all %d ranks for exchange '%s'", size, name);
    status = wait_until_ready(kv, POLLIN, deadline_ns, what, sent == DP_OK ? error : NULL);
    if (status == DP_ERR_TIMEOUT && sent == DP_OK) {
        status = ask_for_missing(kv, name);
        if (status == DP_OK) {
            status =
                receive_frame(kv, what, dp_now_ns() + GIVE_UP_NS, &frame, &type, &fields, NULL);
        }
        if (status != DP_OK) {
            return dp_error_set(error, DP_ERR_TIMEOUT,
                                "%s: %s did not come in time, and it does not say who is missing: "
                                "is it stopped?",
                                kv->peer, what);
        }
    } else if (status == DP_OK) {
        status = receive_frame(kv, what, deadline_ns, &frame, &type, &fields,
                               sent == DP_OK ? error : NULL);
    }
    if (status != DP_OK) return sent != DP_OK ? sent : status;
    if (type == DP_KV_VALUES) {
        status = take_values(kv, &fields, name, size, values, bytes, error);
    } else if (type == DP_KV_ERROR && dp_kv_text_read(&fields, text, sizeof(text)) == 0) {
        status = dp_error_set(error, DP_ERR_PEER_LOST, "%s", text);
    } else if (type == DP_KV_LATE && dp_kv_text_read(&fields, text, sizeof(text)) == 0) {
        status = dp_error_set(error, DP_ERR_TIMEOUT, "%s", text);
    } else {
        status = dp_error_set(error, DP_ERR_SYSTEM, "%s: a frame of type %u, expected %s", kv->peer,
                              type, what);
    }
    free(frame);
    return status;
}

dp_status_t dp_kv_exchange(dp_kv_t *kv, const char *name, int size, const void *value,
                           size_t value_bytes, void **values, size_t *bytes, uint64_t deadline_ns,
                           dp_error_t *error)
{
    const size_t name_bytes = strlen(name);
    dp_status_t status;

    if (name_bytes == 0 || name_bytes > DP_KV_NAME_MAX || size < 1) {
        return dp_error_set(error, DP_ERR_INVALID,
                            "exchange '%.80s' of %d ranks: 1 to %d bytes of name, 1 rank or more",
                            name, size, DP_KV_NAME_MAX);
    }
    if (value_bytes > DP_KV_FRAME_MAX / 2) {
        return dp_error_set(error, DP_ERR_INVALID,
                            "exchange '%s': a value of %zu bytes, at most %u", name, value_bytes,
                            DP_KV_FRAME_MAX / 2);
    }
    if (kv->failure.status != DP_OK) {
        return dp_error_set(error, kv->failure.status, "%s", kv->failure.text);
    }
    status = exchange(kv, name, size, value, value_bytes, values, bytes, deadline_ns, &kv->failure);
    if (status == DP_OK) return DP_OK;
    return dp_error_set(error, status, "%s", kv->failure.text);
}

/* ---- Reports -------------------------------------------------------------------------------- */

/* Sends a whole frame or nothing of it; the rest of one that the socket has no room for goes out
 * with the next. */
static void send_at_once(dp_kv_t *kv, const uint8_t *frame, size_t bytes)
{
    ssize_t sent;

    if (pthread_mutex_trylock(&kv->send_lock) != 0) return; /* an exchange is being sent */
    if (kv->unsent_bytes > 0) {
        sent = send(kv->fd, kv->unsent, kv->unsent_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            kv->unsent_bytes -= (size_t)sent;
            memmove(kv->unsent, kv->unsent + sent, kv->unsent_bytes);
        }
    }
    if (kv->unsent_bytes == 0) { /* else this one is dropped: half a frame would garble the rest */
        sent = send(kv->fd, frame, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0 && (size_t)sent < bytes) {
            kv->unsent_bytes = bytes - (size_t)sent;
            memcpy(kv->unsent, frame + sent, kv->unsent_bytes);
        }
    }
    pthread_mutex_unlock(&kv->send_lock);
}

void dp_kv_report(dp_kv_t *kv, const dp_failure_t *failure)
{
    uint8_t frame[REPORT_ROOM];
    dp_writer_t writer;

    dp_writer_init(&writer, frame, sizeof(frame));
    dp_kv_failure_write(&writer, failure);
    send_at_once(kv, frame, writer.bytes);
}

void dp_kv_running(dp_kv_t *kv)
{
    uint8_t frame[DP_KV_FRAME_HEADER_BYTES];
    dp_writer_t writer;

    dp_writer_init(&writer, frame, sizeof(frame));
    dp_kv_frame_begin(&writer, DP_KV_RUNNING);
    dp_kv_frame_end(&writer, 0);
    send_at_once(kv, frame, writer.bytes);
}
