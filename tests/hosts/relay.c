/*
 * relay.c - a slow link: passes the frames of one machine on, later and no faster than told.
 *
 *   relay PORT TAP DELAY_MS BITS_PER_SECOND
 *
 * hosts.sh --rate starts it on login. It stands between PORT, the machine's end of a veth pair, and
 * TAP, which it makes and hosts.sh plugs into the bridge. The kernel's netem would do the same, but
 * is missing in many containers' kernels. It ends by a signal, and TAP with it.
 *
 * Frames keep their virtio header: the kernel hands them over before it has cut them into packets
 * and computed their checksums, and the header tells the other side what is left to do.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <arpa/inet.h>

#define FRAME_MAX (66 * 1024)
#define QUEUE_MAX_NS                                                                               \
    400000000 /* a frame that would wait longer for its turn is lost, as in a router */
#define SECOND_NS 1000000000LL

typedef struct frame {
    struct frame *next;
    int64_t due; /* when it leaves */
    size_t bytes;
    unsigned char data[];
} frame_t;

/* One direction. Frames leave in the order in which they came. */
typedef struct {
    int in, out;
    frame_t *first, **last;
    int64_t free_at; /* when the last bit of all that came is on the line */
} direction_t;

static int64_t delay_ns;
static int64_t bits_per_second; /* 0: no limit */

static void fail(const char *what)
{
    fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

static int open_port(const char *name)
{
    const int on = 1;
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
    struct packet_mreq all = {.mr_type = PACKET_MR_PROMISC};
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, 0);

    address.sll_ifindex = all.mr_ifindex = (int)if_nametoindex(name);
    if (fd < 0 || address.sll_ifindex == 0) fail(name);
    if (setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof(on)) != 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof(on)) != 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof(all)) != 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
        fail(name);
    return fd;
}

static int open_tap(const char *name)
{
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);

    if (fd < 0) fail("/dev/net/tun");
    snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
    if (ioctl(fd, TUNSETIFF, &request) != 0) fail(name);
    return fd;
}

/* Queues everything that has arrived. */
static void receive_frames(direction_t *way, int64_t now)
{
    static unsigned char buffer[FRAME_MAX];
    ssize_t bytes;

    while ((bytes = read(way->in, buffer, sizeof(buffer))) > 0) {
        frame_t *frame;

        if (way->free_at < now) way->free_at = now;
        if (way->free_at > now + QUEUE_MAX_NS) continue;
        if (bits_per_second > 0) way->free_at += bytes * 8 * SECOND_NS / bits_per_second;
        frame = malloc(sizeof(*frame) + (size_t)bytes);
        if (frame == NULL) fail("memory");
        frame->next = NULL;
        frame->due = way->free_at + delay_ns;
        frame->bytes = (size_t)bytes;
        memcpy(frame->data, buffer, (size_t)bytes);
        *way->last = frame;
        way->last = &frame->next;
    }
}

/* Sends what is due. A frame that the kernel refuses is lost, as on any link. */
static void send_frames(direction_t *way, int64_t now)
{
    while (way->first != NULL && way->first->due <= now) {
        frame_t *frame = way->first;

        if (write(way->out, frame->data, frame->bytes) < 0 && errno == EBADFD) fail("interface");
        way->first = frame->next;
        if (way->first == NULL) way->last = &way->first;
        free(frame);
    }
}

int main(int argc, char **argv)
{
    direction_t ways[2] = {{0}};
    struct pollfd polled[2];

    if (argc != 5) {
        fprintf(stderr, "usage: relay PORT TAP DELAY_MS BITS_PER_SECOND\n");
        return 2;
    }
    delay_ns = (int64_t)(strtod(argv[3], NULL) * 1e6);
    bits_per_second = strtoll(argv[4], NULL, 10);
    ways[0].in = ways[1].out = open_port(argv[1]);
    ways[0].out = ways[1].in = open_tap(argv[2]);
    for (int i = 0; i < 2; i++) {
        ways[i].last = &ways[i].first;
        polled[i] = (struct pollfd){.fd = ways[i].in, .events = POLLIN};
    }
    for (;;) {
        int64_t now = now_ns(), next = now + SECOND_NS;
        struct timespec wait;

        for (int i = 0; i < 2; i++) {
            receive_frames(&ways[i], now);
            send_frames(&ways[i], now);
            if (ways[i].first != NULL && ways[i].first->due < next) next = ways[i].first->due;
        }
        wait = (struct timespec){(next - now) / SECOND_NS, (next - now) % SECOND_NS};
        if (ppoll(polled, 2, &wait, NULL) < 0 && errno != EINTR) fail("ppoll");
    }
}
