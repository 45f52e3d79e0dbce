/*
 * link_wire.c - bytes and times of frames on a wire.
 */
#include "tests/bench/peers/link_wire.h"

#include <linux/virtio_net.h>

#include "runtime/base/common.h"

enum {
    FRAME_MIN = 60,     /* a shorter frame is filled up */
    FRAME_EXTRA = 24,   /* preamble 8, checksum 4, gap 12 */
    TCP_OFFSET_AT = 12, /* the byte of a TCP header whose upper half is its length in words */
    TCP_HEADER_MIN = 20,
};

static size_t alone(size_t bytes)
{
    return dp_max(bytes, (size_t)FRAME_MIN) + FRAME_EXTRA;
}

size_t wire_bytes(const struct virtio_net_hdr *header, const unsigned char *frame, size_t bytes)
{
    const int kind = header->gso_type & ~VIRTIO_NET_HDR_GSO_ECN;
    const size_t tcp = header->csum_start; /* where the TCP header is: its sum is left to us */
    size_t headers, payload, segments;

    if ((kind != VIRTIO_NET_HDR_GSO_TCPV4 && kind != VIRTIO_NET_HDR_GSO_TCPV6) ||
        header->gso_size == 0 || bytes < tcp + TCP_HEADER_MIN) {
        return alone(bytes);
    }
    headers = tcp + (size_t)(frame[tcp + TCP_OFFSET_AT] >> 4) * 4;
    if (bytes <= headers + header->gso_size) return alone(bytes);
    payload = bytes - headers;
    segments = payload / header->gso_size; /* whole ones */
    bytes = segments * alone(headers + header->gso_size);
    payload -= segments * header->gso_size;
    return payload == 0 ? bytes : bytes + alone(headers + payload);
}

uint64_t wire_take(wire_t *wire, uint64_t now_ns, size_t bytes)
{
    const uint64_t starts_ns = dp_max(now_ns, wire->free_ns);

    if (starts_ns - now_ns > wire->queue_ns) return 0;
    wire->free_ns = starts_ns + (uint64_t)((double)bytes * wire->ns_per_byte);
    return wire->free_ns + wire->delay_ns;
}
