/*
 * channel.c - messages between dprun and its agent, as datagrams with descriptors attached.
 *
 * Called by supervise.c in dprun, by station_job.c on another node and by agent.c in the agent,
 * each on its only thread; check.c tries whether one works. Encoded field by field
 * (runtime/base/wire.h) and checked on arrival. It must not know what the messages mean.
 */
#include "launcher/dprun/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/wire.h"

#define MESSAGE_MAX 128

typedef union control {
    struct cmsghdr header; /* for its alignment */
    char room[CMSG_SPACE(sizeof(int) * DP_MESSAGE_FDS)];
} control_t;

void dp_message_init(dp_message_t *message, dp_message_type_t type, int rank)
{
    memset(message, 0, sizeof(*message));
    message->type = type;
    message->rank = rank;
    for (int i = 0; i < DP_MESSAGE_FDS; i++) {
        message->fds[i] = -1;
    }
}

void dp_message_write(dp_writer_t *writer, const dp_message_t *message)
{
    dp_write_u8(writer, (uint8_t)message->type);
    dp_write_u32(writer, (uint32_t)message->rank);
    dp_write_u32(writer, (uint32_t)message->pid);
    dp_write_u32(writer, (uint32_t)message->status);
    dp_write_u64(writer, message->time_ns);
    dp_write_u64(writer, message->peak_kib);
    dp_write_text(writer, message->text);
}

static int is_of_rank(dp_message_type_t type)
{
    return type >= DP_MESSAGE_STARTED && type <= DP_MESSAGE_CONTINUED;
}

int dp_message_read(dp_reader_t *fields, dp_message_t *message)
{
    message->type = dp_read_u8(fields);
    message->rank = (int)dp_read_u32(fields);
    message->pid = (int)dp_read_u32(fields);
    message->status = (int)dp_read_u32(fields);
    message->time_ns = dp_read_u64(fields);
    message->peak_kib = dp_read_u64(fields);
    dp_read_text(fields, message->text, sizeof(message->text));
    if (fields->failed || message->type < DP_MESSAGE_STARTED || message->type > DP_MESSAGE_BYE)
        return -1;
    return message->rank < 0 && is_of_rank(message->type) ? -1 : 0;
}

dp_status_t dp_channel_open(int fds[2], dp_error_t *error)
{
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "socketpair: %s", strerror(errno));
    }
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    return DP_OK;
}

static void attach_fds(struct msghdr *header, control_t *control, const int *fds, int count)
{
    struct cmsghdr *attached;

    if (count == 0) return;
    memset(control, 0, sizeof(*control));
    header->msg_control = control->room;
    header->msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count);
    attached = CMSG_FIRSTHDR(header);
    attached->cmsg_level = SOL_SOCKET;
    attached->cmsg_type = SCM_RIGHTS;
    attached->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count);
    memcpy(CMSG_DATA(attached), fds, sizeof(int) * (size_t)count);
}

int dp_channel_send(int fd, const dp_message_t *message)
{
    uint8_t data[MESSAGE_MAX];
    dp_writer_t writer;
    control_t control;
    struct iovec part = {.iov_base = data};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    int count = 0;

    dp_writer_init(&writer, data, sizeof(data));
    dp_message_write(&writer, message);
    DP_ASSERT(!writer.failed);
    part.iov_len = writer.bytes;
    while (count < DP_MESSAGE_FDS && message->fds[count] >= 0) {
        count++;
    }
    attach_fds(&header, &control, message->fds, count);
    for (;;) {
        if (sendmsg(fd, &header, MSG_NOSIGNAL) >= 0) return 0;
        if (errno == ETOOMANYREFS) {
            /* The kernel limits descriptors in flight per user; dprun receives them soon. */
            poll(NULL, 0, 1);
        } else if (errno != EINTR) {
            return -1;
        }
    }
}

static void take_fds(struct msghdr *header, dp_message_t *message)
{
    for (struct cmsghdr *attached = CMSG_FIRSTHDR(header); attached != NULL;
         attached = CMSG_NXTHDR(header, attached)) {
        size_t bytes = attached->cmsg_len - CMSG_LEN(0);

        if (attached->cmsg_level != SOL_SOCKET || attached->cmsg_type != SCM_RIGHTS) continue;
        memcpy(message->fds, CMSG_DATA(attached), dp_min(bytes, sizeof(message->fds)));
    }
}

int dp_channel_receive(int fd, dp_message_t *message)
{
    uint8_t data[MESSAGE_MAX];
    dp_reader_t reader;
    control_t control;
    struct iovec part = {.iov_base = data, .iov_len = sizeof(data)};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control.room,
                            .msg_controllen = sizeof(control.room)};
    ssize_t bytes;

    dp_message_init(message, DP_MESSAGE_BYE, -1);
    do {
        bytes = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
    } while (bytes < 0 && errno == EINTR);
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    if (bytes <= 0) return -1;
    take_fds(&header, message);
    dp_reader_init(&reader, data, (size_t)bytes);
    if (dp_message_read(&reader, message) == 0) return 1;
    for (int i = 0; i < DP_MESSAGE_FDS; i++) {
        if (message->fds[i] >= 0) close(message->fds[i]);
        message->fds[i] = -1;
    }
    return -1;
}
