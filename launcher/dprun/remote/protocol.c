/*
 * protocol.c - the frames of protocol.h as bytes. Pure but for the ticket, which reads a
 * descriptor.
 *
 * Called by the files of fleet.c in dprun and of station.c on a node. Every field read is checked.
 */
#include "launcher/dprun/remote/protocol.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICKET_MAGIC "DPRUN-TICKET-1\n"
#define TICKET_MAGIC_BYTES (sizeof(TICKET_MAGIC) - 1)
#define LIST_MAX 65536 /* arguments or variables */

/* ---- Ticket --------------------------------------------------------------------------------- */

size_t dp_remote_ticket_write(const dp_remote_ticket_t *ticket, void *data, size_t room)
{
    const size_t begin = TICKET_MAGIC_BYTES + 2;
    dp_writer_t writer;
    dp_writer_t length;

    dp_writer_init(&writer, data, room);
    dp_write_bytes(&writer, TICKET_MAGIC, TICKET_MAGIC_BYTES);
    dp_write_u16(&writer, 0); /* the length, below */
    dp_write_u32(&writer, ticket->node);
    dp_write_u16(&writer, ticket->port);
    dp_write_bytes(&writer, ticket->secret.bytes, sizeof(ticket->secret.bytes));
    dp_write_u8(&writer, (uint8_t)ticket->address_count);
    for (int i = 0; i < ticket->address_count; i++) {
        dp_write_text(&writer, ticket->addresses[i]);
    }
    if (writer.failed || writer.bytes - begin > DP_REMOTE_TICKET_MAX) return 0;
    dp_writer_init(&length, (uint8_t *)data + TICKET_MAGIC_BYTES, 2);
    dp_write_u16(&length, (uint16_t)(writer.bytes - begin));
    return writer.bytes;
}

static dp_status_t read_exactly(int fd, void *data, size_t bytes, uint64_t deadline_ns,
                                dp_error_t *error)
{
    uint8_t *at = data;

    while (bytes > 0) {
        const uint64_t now = dp_now_ns();
        struct pollfd wait = {fd, POLLIN, 0};
        ssize_t got;

        if (now >= deadline_ns || poll(&wait, 1, (int)((deadline_ns - now) / 1000000) + 1) == 0) {
            return dp_error_set(error, DP_ERR_TIMEOUT,
                                "no ticket came on standard input: dprun --station is started by "
                                "dprun itself");
        }
        got = read(fd, at, bytes);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got <= 0) {
            return dp_error_set(error, DP_ERR_CONFIG,
                                "standard input ended before a ticket: dprun --station is started "
                                "by dprun itself");
        }
        at += got;
        bytes -= (size_t)got;
    }
    return DP_OK;
}

dp_status_t dp_remote_ticket_read(int fd, uint64_t deadline_ns, dp_remote_ticket_t *ticket,
                                  dp_error_t *error)
{
    uint8_t head[TICKET_MAGIC_BYTES + 2];
    uint8_t data[DP_REMOTE_TICKET_MAX];
    const void *secret;
    dp_reader_t reader;
    size_t bytes;
    dp_status_t status = read_exactly(fd, head, sizeof(head), deadline_ns, error);

    memset(ticket, 0, sizeof(*ticket));
    if (status != DP_OK) return status;
    dp_reader_init(&reader, head + TICKET_MAGIC_BYTES, 2);
    bytes = dp_read_u16(&reader);
    if (memcmp(head, TICKET_MAGIC, TICKET_MAGIC_BYTES) != 0 || bytes > sizeof(data)) {
        return dp_error_set(error, DP_ERR_MISMATCH,
                            "what came on standard input is no ticket of this version of dprun");
    }
    status = read_exactly(fd, data, bytes, deadline_ns, error);
    if (status != DP_OK) return status;
    dp_reader_init(&reader, data, bytes);
    ticket->node = dp_read_u32(&reader);
    ticket->port = dp_read_u16(&reader);
    secret = dp_read_bytes(&reader, sizeof(ticket->secret.bytes));
    if (secret != NULL) memcpy(ticket->secret.bytes, secret, sizeof(ticket->secret.bytes));
    ticket->address_count = dp_read_u8(&reader);
    if (ticket->address_count > DP_REMOTE_ADDRESSES) reader.failed = 1;
    for (int i = 0; i < ticket->address_count && !reader.failed; i++) {
        dp_read_text(&reader, ticket->addresses[i], sizeof(ticket->addresses[i]));
    }
    explicit_bzero(data, sizeof(data));
    if (!reader.failed) return DP_OK;
    return dp_error_set(error, DP_ERR_MISMATCH, "the ticket on standard input is malformed");
}

/* ---- Start ---------------------------------------------------------------------------------- */

static void write_list(dp_writer_t *writer, char *const *list, int count)
{
    dp_write_u32(writer, (uint32_t)count);
    for (int i = 0; i < count; i++) {
        const size_t bytes = strlen(list[i]);

        dp_write_u32(writer, (uint32_t)bytes);
        dp_write_bytes(writer, list[i], bytes);
    }
}

static size_t list_bytes(char *const *list, int count)
{
    size_t bytes = 4;

    for (int i = 0; i < count; i++) {
        bytes += 4 + strlen(list[i]);
    }
    return bytes;
}

uint8_t *dp_remote_start_write(const dp_remote_start_t *start, size_t *bytes)
{
    const size_t room = sizeof(*start) + 64 + list_bytes(start->argv, start->argc) +
                        list_bytes(start->variables, start->variable_count);
    uint8_t *data = malloc(room);
    dp_writer_t writer;

    if (data == NULL) return NULL;
    dp_writer_init(&writer, data, room);
    dp_write_u16(&writer, DP_REMOTE_VERSION);
    dp_write_text(&writer, start->version);
    dp_write_u32(&writer, (uint32_t)start->node);
    dp_write_u32(&writer, (uint32_t)start->node_count);
    dp_write_u32(&writer, (uint32_t)start->first_rank);
    dp_write_u32(&writer, (uint32_t)start->local_size);
    dp_write_u32(&writer, (uint32_t)start->size);
    dp_write_u32(&writer, (uint32_t)start->stdin_rank);
    dp_write_u8(&writer, (uint8_t)start->binds_cores);
    dp_write_u8(&writer, (uint8_t)start->shares_gpu);
    dp_write_u8(&writer, (uint8_t)start->is_check);
    dp_write_text(&writer, start->node_name);
    dp_write_text(&writer, start->first_host);
    dp_write_text(&writer, start->directory);
    dp_write_text(&writer, start->metrics);
    dp_write_text(&writer, start->job);
    dp_write_bytes(&writer, start->secret.bytes, sizeof(start->secret.bytes));
    write_list(&writer, start->argv, start->argc);
    write_list(&writer, start->variables, start->variable_count);
    DP_ASSERT(!writer.failed);
    *bytes = writer.bytes;
    return data;
}

static char **read_list(dp_reader_t *fields, int *count)
{
    const uint32_t entries = dp_read_u32(fields);
    char **list = entries <= LIST_MAX ? calloc((size_t)entries + 1, sizeof(*list)) : NULL;

    *count = 0;
    if (list == NULL) fields->failed = 1;
    for (uint32_t i = 0; i < entries && !fields->failed; i++) {
        const uint32_t bytes = dp_read_u32(fields);
        const char *text = dp_read_bytes(fields, bytes);

        if (text == NULL || memchr(text, '\0', bytes) != NULL) break;
        list[i] = strndup(text, bytes);
        if (list[i] == NULL) break;
        *count = (int)i + 1;
    }
    if ((uint32_t)*count != entries) fields->failed = 1;
    return list;
}

int dp_remote_start_read(dp_reader_t *fields, dp_remote_start_t *start)
{
    const void *secret;

    memset(start, 0, sizeof(*start));
    if (dp_read_u16(fields) != DP_REMOTE_VERSION) return -1;
    dp_read_text(fields, start->version, sizeof(start->version));
    start->node = (int)dp_read_u32(fields);
    start->node_count = (int)dp_read_u32(fields);
    start->first_rank = (int)dp_read_u32(fields);
    start->local_size = (int)dp_read_u32(fields);
    start->size = (int)dp_read_u32(fields);
    start->stdin_rank = (int)dp_read_u32(fields);
    start->binds_cores = dp_read_u8(fields);
    start->shares_gpu = dp_read_u8(fields);
    start->is_check = dp_read_u8(fields);
    dp_read_text(fields, start->node_name, sizeof(start->node_name));
    dp_read_text(fields, start->first_host, sizeof(start->first_host));
    dp_read_text(fields, start->directory, sizeof(start->directory));
    dp_read_text(fields, start->metrics, sizeof(start->metrics));
    dp_read_text(fields, start->job, sizeof(start->job));
    secret = dp_read_bytes(fields, sizeof(start->secret.bytes));
    if (secret != NULL) memcpy(start->secret.bytes, secret, sizeof(start->secret.bytes));
    start->argv = read_list(fields, &start->argc);
    start->variables = read_list(fields, &start->variable_count);
    if (!fields->failed && start->size >= 1 && start->local_size >= 1 && start->first_rank >= 0 &&
        start->first_rank <= start->size - start->local_size) {
        return 0;
    }
    dp_remote_start_fini(start);
    return -1;
}

void dp_remote_start_fini(dp_remote_start_t *start)
{
    for (int i = 0; start->argv != NULL && i < start->argc; i++) {
        free(start->argv[i]);
    }
    for (int i = 0; start->variables != NULL && i < start->variable_count; i++) {
        free(start->variables[i]);
    }
    free(start->argv);
    free(start->variables);
    explicit_bzero(start, sizeof(*start));
}

/* ---- About --------------------------------------------------------------------------------- */

void dp_remote_about_write(dp_writer_t *writer, const dp_remote_about_t *about)
{
    dp_write_text(writer, about->version);
    dp_write_text(writer, about->host);
    dp_write_text(writer, about->boot);
    dp_write_u32(writer, (uint32_t)about->cores);
    dp_write_u32(writer, (uint32_t)about->cores_in_machine);
    dp_write_u64(writer, about->memory_bytes);
    dp_write_u64(writer, about->shm_free_bytes);
    dp_write_u64(writer, about->run_free_bytes);
    dp_write_u64(writer, about->open_files);
    dp_write_u16(writer, about->free_port);
    dp_write_text(writer, about->ucx);
    dp_write_text(writer, about->addresses);
}

int dp_remote_about_read(dp_reader_t *fields, dp_remote_about_t *about)
{
    memset(about, 0, sizeof(*about));
    dp_read_text(fields, about->version, sizeof(about->version));
    dp_read_text(fields, about->host, sizeof(about->host));
    dp_read_text(fields, about->boot, sizeof(about->boot));
    about->cores = (int)dp_read_u32(fields);
    about->cores_in_machine = (int)dp_read_u32(fields);
    about->memory_bytes = dp_read_u64(fields);
    about->shm_free_bytes = dp_read_u64(fields);
    about->run_free_bytes = dp_read_u64(fields);
    about->open_files = dp_read_u64(fields);
    about->free_port = dp_read_u16(fields);
    dp_read_text(fields, about->ucx, sizeof(about->ucx));
    dp_read_text(fields, about->addresses, sizeof(about->addresses));
    dp_text_mask(about->version);
    dp_text_mask(about->host);
    dp_text_mask(about->ucx);
    dp_text_mask(about->addresses);
    return fields->failed ? -1 : 0;
}
