/*
 * link_wire.h - the arithmetic of a wire: what a frame takes on it, and when it is at the other
 * end.
 *
 * Times go in and come out: it must not know about clocks, devices or sockets, so that plain
 * numbers can test it.
 */
#ifndef DP_BENCH_LINK_WIRE_H
#define DP_BENCH_LINK_WIRE_H

#include <stddef.h>
#include <stdint.h>

struct virtio_net_hdr;

/* One direction. */
typedef struct wire {
    double ns_per_byte;
    uint64_t delay_ns;
    uint64_t queue_ns; /* what may stand in front of a frame, as time on the wire */
    uint64_t free_ns;  /* when the last byte of what was taken is on the wire; from 0 */
} wire_t;

/*
 * Bytes on the wire with preamble, checksum and gap. The kernel hands over TCP's segments as one
 * large frame, which counts as what a network card makes of it.
 *
 * @param header what the tap device puts before the frame
 * @param frame  [bytes] from the Ethernet header on
 */
size_t wire_bytes(const struct virtio_net_hdr *header, const unsigned char *frame, size_t bytes);

/* When a frame that comes now has arrived; 0: it found the queue full and is lost. */
uint64_t wire_take(wire_t *wire, uint64_t now_ns, size_t bytes);

#endif
