/*
 * link_relay.c - a link of a given rate and delay between two network namespaces, for kernels that
 * have no netem.
 *
 *     link_relay NETNS_A NETNS_B [rate_mbit=1000] [delay_us=100] [queue_kib=1024]
 *
 * Each namespace gets a tap device link0, and what leaves one comes out of the other when its last
 * byte would have arrived (link_wire.h). Frames are large ones of up to 64 KiB, so that a full wire
 * costs some thousand system calls a second and no spinning. What finds the queue full is lost, as
 * in a switch, and counted. Prints "up" once the devices are there, and a line of JSON with what it
 * carried when its standard input ends. It dies with its parent, and the devices with it.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/common.h"
#include "tests/bench/peers/link_wire.h"

enum { FRAME_MAX = 66 * 1024, READS_MAX = 16 }; /* reads before what is due is seen to again */
enum { SIDES = 2, STDIN = SIDES };

typedef struct frame {
    struct frame *next;
    uint64_t arrives_ns;
    size_t bytes;
    unsigned char data[FRAME_MAX]; /* a virtio_net_hdr, then the frame */
} frame_t;

/* From one side to the other. */
typedef struct lane {
    wire_t wire;
    frame_t *first, **end; /* under way, in order */
    uint64_t frames, wire_bytes;
    uint64_t dropped; /* the queue was full */
    uint64_t refused; /* by the other device: it is down, or out of memory */
} lane_t;

typedef struct relay {
    int devices[SIDES];
    lane_t lanes[SIDES]; /* [from] */
    frame_t *spare;      /* the last one used first: it is still in the cache */
} relay_t;

static int failed(const char *what)
{
    fprintf(stderr, "link_relay: %s: %s\n", what, strerror(errno));
    return -1;
}

/* ---- Devices -------------------------------------------------------------------------------- */

/* A device belongs to the namespace its maker is in. */
static int enter(const char *name)
{
    char path[128];
    int fd, result;

    snprintf(path, sizeof(path), "/run/netns/%s", name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return failed(path);
    result = setns(fd, CLONE_NEWNET);
    close(fd);
    return result == 0 ? 0 : failed(path);
}

static int open_device(const char *netns)
{
    const unsigned offloads = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    struct ifreq request = {.ifr_name = "link0"};
    int fd;

    if (enter(netns) != 0) return -1;
    fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return failed("/dev/net/tun");
    request.ifr_flags = (short)(IFF_TAP | IFF_NO_PI | IFF_VNET_HDR);
    if (ioctl(fd, TUNSETIFF, &request) != 0 || ioctl(fd, TUNSETOFFLOAD, offloads) != 0) {
        close(fd);
        return failed("link0");
    }
    return fd;
}

/* ---- Frames --------------------------------------------------------------------------------- */

static frame_t *take_spare(relay_t *relay)
{
    frame_t *frame = relay->spare;

    if (frame == NULL) return malloc(sizeof(*frame));
    relay->spare = frame->next;
    return frame;
}

static void give_spare(relay_t *relay, frame_t *frame)
{
    frame->next = relay->spare;
    relay->spare = frame;
}

/* Takes one frame from a side. 1: taken, or lost; 0: there is none; -1: failed. */
static int accept_frame(relay_t *relay, int side)
{
    lane_t *lane = &relay->lanes[side];
    frame_t *frame = take_spare(relay);
    struct virtio_net_hdr header;
    size_t on_wire;
    ssize_t got;

    if (frame == NULL) return failed("a frame");
    got = read(relay->devices[side], frame->data, sizeof(frame->data));
    if (got < (ssize_t)sizeof(header)) {
        give_spare(relay, frame);
        return got >= 0 || errno == EAGAIN || errno == EINTR ? 0 : failed("reading link0");
    }
    frame->bytes = (size_t)got;
    memcpy(&header, frame->data, sizeof(header));
    on_wire = wire_bytes(&header, frame->data + sizeof(header), frame->bytes - sizeof(header));
    frame->arrives_ns = wire_take(&lane->wire, dp_now_ns(), on_wire);
    if (frame->arrives_ns == 0) {
        lane->dropped++;
        give_spare(relay, frame);
        return 1;
    }
    lane->frames++;
    lane->wire_bytes += on_wire;
    frame->next = NULL;
    *lane->end = frame;
    lane->end = &frame->next;
    return 1;
}

static void deliver_due(relay_t *relay, int side)
{
    lane_t *lane = &relay->lanes[side];

    while (lane->first != NULL && lane->first->arrives_ns <= dp_now_ns()) {
        frame_t *frame = lane->first;

        lane->first = frame->next;
        if (lane->first == NULL) lane->end = &lane->first;
        if (write(relay->devices[1 - side], frame->data, frame->bytes) < 0) lane->refused++;
        give_spare(relay, frame);
    }
}

/* Until the next frame arrives; NULL: none is under way. */
static struct timespec *time_left(const relay_t *relay, struct timespec *left)
{
    const uint64_t now_ns = dp_now_ns();
    uint64_t next_ns = UINT64_MAX;

    for (int side = 0; side < SIDES; side++) {
        const frame_t *first = relay->lanes[side].first;

        if (first != NULL) next_ns = dp_min(next_ns, first->arrives_ns);
    }
    if (next_ns == UINT64_MAX) return NULL;
    next_ns -= dp_min(next_ns, now_ns);
    *left = (struct timespec){(time_t)(next_ns / 1000000000u), (long)(next_ns % 1000000000u)};
    return left;
}

static int carry(relay_t *relay)
{
    struct pollfd polled[SIDES + 1] = {[STDIN] = {.fd = STDIN_FILENO, .events = POLLIN}};
    struct timespec left;
    char byte;

    for (int side = 0; side < SIDES; side++)
        polled[side] = (struct pollfd){.fd = relay->devices[side], .events = POLLIN};
    for (;;) {
        if (ppoll(polled, SIDES + 1, time_left(relay, &left), NULL) < 0 && errno != EINTR) {
            return failed("ppoll");
        }
        if (polled[STDIN].revents != 0 && read(STDIN_FILENO, &byte, 1) == 0) return 0;
        for (int side = 0; side < SIDES; side++) {
            int got = polled[side].revents != 0;

            for (int i = 0; got > 0 && i < READS_MAX; i++)
                got = accept_frame(relay, side);
            if (got < 0) return -1;
        }
        for (int side = 0; side < SIDES; side++)
            deliver_due(relay, side);
    }
}

/* ---- The run -------------------------------------------------------------------------------- */

static double argument(int argc, char **argv, const char *name, double otherwise)
{
    const size_t length = strlen(name);

    for (int i = 3; i < argc; i++) {
        if (strncmp(argv[i], name, length) == 0 && argv[i][length] == '=') {
            return strtod(argv[i] + length + 1, NULL);
        }
    }
    return otherwise;
}

static void print_counts(const relay_t *relay)
{
    const lane_t *a = &relay->lanes[0], *b = &relay->lanes[1];
    struct rusage used;
    double cpu_s;

    getrusage(RUSAGE_SELF, &used);
    cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
            (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
    printf("{\"frames\": [%llu, %llu], \"wire_bytes\": [%llu, %llu], \"dropped\": [%llu, %llu], "
           "\"refused\": [%llu, %llu], \"cpu_s\": %.3f}\n",
           (unsigned long long)a->frames, (unsigned long long)b->frames,
           (unsigned long long)a->wire_bytes, (unsigned long long)b->wire_bytes,
           (unsigned long long)a->dropped, (unsigned long long)b->dropped,
           (unsigned long long)a->refused, (unsigned long long)b->refused, cpu_s);
}

int main(int argc, char **argv)
{
    const double rate_mbit = argument(argc, argv, "rate_mbit", 1000.0);
    const double delay_us = argument(argc, argv, "delay_us", 100.0);
    const double queue_kib = argument(argc, argv, "queue_kib", 1024.0);
    const struct sched_param first = {.sched_priority = 1};
    static relay_t relay;

    if (argc < 3 || rate_mbit <= 0.0 || delay_us < 0.0 || queue_kib <= 0.0) {
        fprintf(stderr, "usage: link_relay NETNS_A NETNS_B [rate_mbit=] [delay_us=] "
                        "[queue_kib=]\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_TIMERSLACK, 1); /* ns; 50000 is what is usual */
    /* A wire does not wait for a core. It sleeps most of the time, so nobody starves. */
    sched_setscheduler(0, SCHED_FIFO, &first);
    for (int side = 0; side < SIDES; side++) {
        lane_t *lane = &relay.lanes[side];

        relay.devices[side] = open_device(argv[1 + side]);
        if (relay.devices[side] < 0) return 1;
        lane->wire.ns_per_byte = 8e3 / rate_mbit;
        lane->wire.delay_ns = (uint64_t)(delay_us * 1e3);
        lane->wire.queue_ns = (uint64_t)(queue_kib * DP_KIB * lane->wire.ns_per_byte);
        lane->end = &lane->first;
    }
    printf("up\n");
    fflush(stdout);
    if (carry(&relay) != 0) return 1;
    print_counts(&relay);
    return 0;
}
