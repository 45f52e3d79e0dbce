/*
 * reach.c - listens on each address of this node for a moment, and answers other nodes of the job
 * that try it; and writes as bytes what nodes exchange about that: cards and surveys.
 *
 * Opened and closed by dp_init() on the program's thread, or by dprun. The answers come from a
 * thread of its own, as the program's thread waits for other ranks meanwhile. The two share the
 * descriptor that ends the thread, and what is fixed before it starts.
 */
#include "runtime/network/reach_internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "runtime/base/thread.h"

#define MAGIC 0x43525044u /* "DPRC" */
#define VERSION 1

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

/* A visitor that proves itself is answered, and is done with like any other. */
static int answer_visitor(void *context, dp_door_visitor_t *visitor, char *why)
{
    const dp_reach_t *reach = context;
    uint8_t answer[REACH_ANSWER_BYTES];

    (void)why;
    if (dp_reach_hello_answer(&reach->secret, reach->node, visitor->hello, answer))
        (void)dp_door_answer(visitor, answer, sizeof(answer));
    return 0;
}

static void *answer_visitors(void *context)
{
    dp_reach_t *reach = context;
    struct pollfd polled[] = {{.fd = reach->stop_fd, .events = POLLIN},
                              {.fd = dp_door_fd(reach->door), .events = POLLIN}};

    for (;;) {
        if (poll(polled, DP_ARRAY_LEN(polled), -1) < 0) continue;
        if (polled[0].revents != 0) return NULL;
        dp_door_turn(reach->door);
    }
}

/* ---- Life ----------------------------------------------------------------------------------- */

static void open_listeners(dp_reach_t *reach, const dp_reach_card_t *list)
{
    dp_reach_card_t *card = &reach->card;

    for (int i = 0; i < list->count; i++) {
        struct sockaddr_storage address;
        const socklen_t bytes = dp_ip_socket_address(&list->addresses[i].ip, 0, &address);
        const int fd =
            dp_door_bind((const struct sockaddr *)&address, bytes, 1, &card->ports[card->count]);

        /* An IPv6 address may not be confirmed yet, for example. */
        if (fd < 0 || dp_door_listen(reach->door, fd) != 0) continue;
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
    const dp_door_owner_t owner = {
        .hello_bytes = REACH_HELLO_BYTES, .judge = answer_visitor, .context = reach};
    dp_status_t status;

    if (reach == NULL)
        return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory to find the network");
    reach->secret = *secret;
    reach->node = node;
    reach->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (reach->stop_fd < 0) {
        status = dp_error_set(error, DP_ERR_SYSTEM, "no descriptor to find the network: %s",
                              strerror(errno));
        goto fail;
    }
    status = dp_door_create(&owner, 0, &reach->door, error);
    if (status != DP_OK) goto fail;
    open_listeners(reach, list);
    status = start_thread(reach, error);
    if (status != DP_OK) goto fail;
    *out = reach;
    return DP_OK;
fail:
    dp_reach_close(reach);
    return status;
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
    dp_door_destroy(reach->door);
    if (reach->stop_fd >= 0) close(reach->stop_fd);
    explicit_bzero(&reach->secret, sizeof(reach->secret));
    free(reach);
}

const dp_reach_card_t *dp_reach_own_card(const dp_reach_t *reach)
{
    return &reach->card;
}

/* ---- Cards and surveys ---------------------------------------------------------------------- */

#define TRY_BYTES (4 + DP_INTERFACE_ADDRESSES)

size_t dp_reach_card_write(const dp_reach_card_t *card, uint8_t data[DP_REACH_CARD_ROOM])
{
    dp_writer_t writer;

    dp_writer_init(&writer, data, DP_REACH_CARD_ROOM);
    dp_write_u8(&writer, (uint8_t)card->count);
    for (int i = 0; i < card->count; i++) {
        const dp_interface_address_t *address = &card->addresses[i];

        dp_write_u8(&writer, address->ip.version);
        dp_write_bytes(&writer, address->ip.bytes, DP_IP_BYTES);
        dp_write_u8(&writer, address->prefix);
        dp_write_u32(&writer, address->speed);
        dp_write_u16(&writer, card->ports[i]);
        dp_write_text(&writer, address->name);
    }
    return writer.failed ? 0 : writer.bytes;
}

int dp_reach_card_read(const void *data, size_t bytes, dp_reach_card_t *card)
{
    dp_reader_t reader;

    memset(card, 0, sizeof(*card));
    dp_reader_init(&reader, data, bytes);
    card->count = dp_read_u8(&reader);
    if (card->count > DP_INTERFACE_ADDRESSES) reader.failed = 1;
    for (int i = 0; i < card->count && !reader.failed; i++) {
        dp_interface_address_t *address = &card->addresses[i];
        const void *ip;

        address->ip.version = dp_read_u8(&reader);
        ip = dp_read_bytes(&reader, DP_IP_BYTES);
        if (ip != NULL) memcpy(address->ip.bytes, ip, DP_IP_BYTES);
        if (address->ip.version != 4 && address->ip.version != 6) reader.failed = 1;
        address->prefix = dp_read_u8(&reader);
        address->speed = dp_read_u32(&reader);
        card->ports[i] = dp_read_u16(&reader);
        dp_read_text(&reader, address->name, sizeof(address->name));
    }
    return !reader.failed && dp_reader_left(&reader) == 0;
}

size_t dp_reach_survey_bytes(const dp_reach_survey_t *survey)
{
    return 4 + (size_t)survey->count * TRY_BYTES;
}

size_t dp_reach_survey_write(const dp_reach_survey_t *survey, uint8_t *data, size_t room)
{
    dp_writer_t writer;

    dp_writer_init(&writer, data, room);
    dp_write_u32(&writer, (uint32_t)survey->count);
    for (int i = 0; i < survey->count; i++) {
        dp_write_u32(&writer, (uint32_t)survey->tries[i].node);
        dp_write_bytes(&writer, survey->tries[i].how, DP_INTERFACE_ADDRESSES);
    }
    return writer.failed ? 0 : writer.bytes;
}

dp_status_t dp_reach_survey_read(const void *data, size_t bytes, int node_count,
                                 dp_reach_survey_t *survey)
{
    dp_reader_t reader;
    uint32_t count;
    int before = -1;

    *survey = (dp_reach_survey_t){0, NULL};
    dp_reader_init(&reader, data, bytes);
    count = dp_read_u32(&reader);
    if (reader.failed || count > (uint32_t)node_count ||
        dp_reader_left(&reader) != (size_t)count * TRY_BYTES) {
        return DP_ERR_SYSTEM;
    }
    survey->tries = calloc((size_t)count + 1, sizeof(*survey->tries));
    if (survey->tries == NULL) return DP_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t node = dp_read_u32(&reader);
        const void *how = dp_read_bytes(&reader, DP_INTERFACE_ADDRESSES);

        if (how == NULL || node >= (uint32_t)node_count || (int)node <= before) { /* ascending */
            dp_reach_survey_free(survey);
            return DP_ERR_SYSTEM;
        }
        before = (int)node;
        survey->tries[i].node = before;
        memcpy(survey->tries[i].how, how, DP_INTERFACE_ADDRESSES);
        survey->count++;
    }
    return DP_OK;
}

void dp_reach_survey_free(dp_reach_survey_t *survey)
{
    free(survey->tries);
    *survey = (dp_reach_survey_t){0, NULL};
}
