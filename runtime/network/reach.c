/*
 * reach.c - listens on each address of this node for a moment, and answers other nodes of the job
 * that try it.
 *
 * Opened and closed by dp_init() on the program's thread, or by dprun. The answers come from a
 * thread of its own, as the program's thread waits for other ranks meanwhile. The two share the
 * descriptor that ends the thread, and what is fixed before it starts.
 */
#include "runtime/network/reach_internal.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "runtime/base/thread.h"

#define MAGIC 0x43525044u /* "DPRC" */
#define VERSION 1
#define BACKLOG 256
#define VISIT_NS 2000000000ull /* for a hello to come */

/* ---- Messages ------------------------------------------------------------------------------- */

void dp_reach_hello_write(const dp_secret_t *secret, int from, int to,
                          const uint8_t nonce[REACH_NONCE_BYTES], uint8_t hello[REACH_HELLO_BYTES])
{
    dp_writer_t writer;
    dp_secret_t proof;

    dp_writer_init(&writer, hello, REACH_HELLO_BYTES);
    dp_write_u32(&writer, MAGIC);
    dp_write_u16(&writer, VERSION);
    dp_write_u16(&writer, 0);
    dp_write_u32(&writer, (uint32_t)from);
    dp_write_u32(&writer, (uint32_t)to);
    dp_write_bytes(&writer, nonce, REACH_NONCE_BYTES);
    dp_auth_derive(secret, "reach hello", hello, writer.bytes, &proof);
    dp_write_bytes(&writer, proof.bytes, DP_PROOF_BYTES);
    DP_ASSERT(!writer.failed && writer.bytes == REACH_HELLO_BYTES);
}

static void prove_answer(const dp_secret_t *secret, const uint8_t nonce[REACH_NONCE_BYTES],
                         uint32_t node, dp_secret_t *proof)
{
    uint8_t data[REACH_NONCE_BYTES + 4];
    dp_writer_t writer;

    dp_writer_init(&writer, data, sizeof(data));
    dp_write_bytes(&writer, nonce, REACH_NONCE_BYTES);
    dp_write_u32(&writer, node);
    dp_auth_derive(secret, "reach answer", data, sizeof(data), proof);
}

int dp_reach_hello_answer(const dp_secret_t *secret, int node,
                          const uint8_t hello[REACH_HELLO_BYTES],
                          uint8_t answer[REACH_ANSWER_BYTES])
{
    const size_t proven = REACH_HELLO_BYTES - DP_PROOF_BYTES;
    dp_reader_t reader;
    dp_writer_t writer;
    dp_secret_t proof;

    dp_auth_derive(secret, "reach hello", hello, proven, &proof);
    if (!dp_auth_equal(proof.bytes, hello + proven, DP_PROOF_BYTES)) return 0;
    dp_reader_init(&reader, hello, proven);
    if (dp_read_u32(&reader) != MAGIC || dp_read_u16(&reader) != VERSION) return 0;
    prove_answer(secret, hello + proven - REACH_NONCE_BYTES, (uint32_t)node, &proof);
    dp_writer_init(&writer, answer, REACH_ANSWER_BYTES);
    dp_write_u32(&writer, MAGIC);
    dp_write_u32(&writer, (uint32_t)node);
    dp_write_bytes(&writer, proof.bytes, DP_PROOF_BYTES);
    return 1;
}

int dp_reach_answer_read(const dp_secret_t *secret, const uint8_t nonce[REACH_NONCE_BYTES],
                         const uint8_t answer[REACH_ANSWER_BYTES])
{
    dp_reader_t reader;
    dp_secret_t proof;
    uint32_t magic;
    uint32_t node;

    dp_reader_init(&reader, answer, REACH_ANSWER_BYTES);
    magic = dp_read_u32(&reader);
    node = dp_read_u32(&reader);
    prove_answer(secret, nonce, node, &proof);
    if (magic != MAGIC || node > INT32_MAX) return -1;
    return dp_auth_equal(proof.bytes, answer + 8, DP_PROOF_BYTES) ? (int)node : -1;
}

/* ---- Answering ------------------------------------------------------------------------------ */

static void end_visit(visitor_t *visitor)
{
    if (visitor->fd >= 0) close(visitor->fd);
    visitor->fd = -1;
}

/* A free place, or that of the visitor that has been silent for longest. */
static visitor_t *find_place(dp_reach_t *reach)
{
    visitor_t *oldest = &reach->visitors[0];

    for (int i = 0; i < REACH_VISITORS; i++) {
        visitor_t *visitor = &reach->visitors[i];

        if (visitor->fd < 0) return visitor;
        if (visitor->until_ns < oldest->until_ns) oldest = visitor;
    }
    end_visit(oldest);
    return oldest;
}

static void accept_visitor(dp_reach_t *reach, int listener)
{
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    visitor_t *visitor;

    if (fd < 0) return;
    visitor = find_place(reach);
    visitor->fd = fd;
    visitor->bytes = 0;
    visitor->until_ns = dp_now_ns() + VISIT_NS;
}

static void hear_visitor(dp_reach_t *reach, visitor_t *visitor)
{
    uint8_t answer[REACH_ANSWER_BYTES];
    const ssize_t got = recv(visitor->fd, visitor->hello + visitor->bytes,
                             sizeof(visitor->hello) - visitor->bytes, 0);

    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got > 0) visitor->bytes += (size_t)got;
    if (got > 0 && visitor->bytes < sizeof(visitor->hello)) return;
    /* The answer always finds room in a socket that has sent nothing yet. */
    if (got > 0 && dp_reach_hello_answer(&reach->secret, reach->node, visitor->hello, answer))
        (void)!send(visitor->fd, answer, sizeof(answer), MSG_NOSIGNAL);
    end_visit(visitor);
}

static void *answer_visitors(void *context)
{
    dp_reach_t *reach = context;

    for (;;) {
        struct pollfd polled[1 + DP_INTERFACE_ADDRESSES + REACH_VISITORS];
        struct pollfd *visits = polled + 1 + reach->card.count;
        const nfds_t count = (nfds_t)reach->card.count + REACH_VISITORS + 1;
        const uint64_t now_ns = dp_now_ns();

        polled[0] = (struct pollfd){.fd = reach->stop_fd, .events = POLLIN};
        for (int i = 0; i < reach->card.count; i++)
            polled[1 + i] = (struct pollfd){.fd = reach->listeners[i], .events = POLLIN};
        for (int i = 0; i < REACH_VISITORS; i++) {
            if (reach->visitors[i].until_ns < now_ns) end_visit(&reach->visitors[i]);
            visits[i] = (struct pollfd){.fd = reach->visitors[i].fd, .events = POLLIN};
        }
        if (poll(polled, count, 500) < 0) continue;
        if (polled[0].revents != 0) break;
        for (int i = 0; i < REACH_VISITORS; i++) { /* before their places are given away */
            if (visits[i].revents != 0) hear_visitor(reach, &reach->visitors[i]);
        }
        for (int i = 0; i < reach->card.count; i++) {
            if (polled[1 + i].revents != 0) accept_visitor(reach, reach->listeners[i]);
        }
    }
    for (int i = 0; i < REACH_VISITORS; i++)
        end_visit(&reach->visitors[i]);
    return NULL;
}

/* ---- Life ----------------------------------------------------------------------------------- */

/* Listens at a port of the kernel's choice. -1: the address cannot be used. */
static int listen_at(const dp_ip_t *ip, uint16_t *port)
{
    const int only_6 = 1;
    struct sockaddr_storage address;
    const socklen_t bytes = dp_ip_socket_address(ip, 0, &address);
    socklen_t room = sizeof(address);
    const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    in_port_t bound;

    if (fd < 0) return -1;
    if (ip->version == 6) (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_6, sizeof(only_6));
    if (bind(fd, (struct sockaddr *)&address, bytes) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &room) != 0) {
        close(fd);
        return -1;
    }
    memcpy(&bound,
           (const char *)&address + (ip->version == 6 ? offsetof(struct sockaddr_in6, sin6_port)
                                                      : offsetof(struct sockaddr_in, sin_port)),
           sizeof(bound));
    *port = ntohs(bound);
    return fd;
}

static void open_listeners(dp_reach_t *reach, const dp_reach_card_t *list)
{
    dp_reach_card_t *card = &reach->card;

    for (int i = 0; i < list->count; i++) {
        const int fd = listen_at(&list->addresses[i].ip, &card->ports[card->count]);

        if (fd < 0) continue; /* an IPv6 address that is not confirmed yet, for example */
        reach->listeners[card->count] = fd;
        card->addresses[card->count++] = list->addresses[i];
    }
}

static dp_status_t start_thread(dp_reach_t *reach, dp_error_t *error)
{
    const int failed = dp_thread_start(&reach->thread, answer_visitors, reach);

    if (failed) {
        return dp_error_set(error, DP_ERR_SYSTEM, "no thread to find the network: %s",
                            strerror(failed));
    }
    reach->has_thread = 1;
    (void)pthread_setname_np(reach->thread, "dp-reach");
    return DP_OK;
}

void dp_reach_list(const char *only, dp_reach_card_t *list)
{
    memset(list, 0, sizeof(*list));
    list->count = dp_interface_list(list->addresses, DP_INTERFACE_ADDRESSES, only);
}

dp_status_t dp_reach_open(const dp_secret_t *secret, int node, const dp_reach_card_t *list,
                          dp_reach_t **out, dp_error_t *error)
{
    dp_reach_t *reach = calloc(1, sizeof(*reach));
    dp_status_t status;

    if (reach == NULL)
        return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory to find the network");
    reach->secret = *secret;
    reach->node = node;
    for (int i = 0; i < REACH_VISITORS; i++)
        reach->visitors[i].fd = -1;
    reach->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (reach->stop_fd < 0) {
        status = dp_error_set(error, DP_ERR_SYSTEM, "no descriptor to find the network: %s",
                              strerror(errno));
        goto fail;
    }
    open_listeners(reach, list);
    status = start_thread(reach, error);
    if (status != DP_OK) goto fail;
    *out = reach;
    return DP_OK;
fail:
    dp_reach_close(reach);
    return status;
}

void dp_reach_stop(dp_reach_t *reach)
{
    atomic_store(&reach->is_stopped, 1); /* run_trial() loads it */
}

void dp_reach_close(dp_reach_t *reach)
{
    const uint64_t one = 1;

    if (reach == NULL) return;
    if (reach->has_thread) {
        while (write(reach->stop_fd, &one, sizeof(one)) < 0 && errno == EINTR)
            continue;
        pthread_join(reach->thread, NULL);
    }
    for (int i = 0; i < reach->card.count; i++)
        close(reach->listeners[i]);
    if (reach->stop_fd >= 0) close(reach->stop_fd);
    explicit_bzero(&reach->secret, sizeof(reach->secret));
    free(reach);
}

const dp_reach_card_t *dp_reach_own_card(const dp_reach_t *reach)
{
    return &reach->card;
}
