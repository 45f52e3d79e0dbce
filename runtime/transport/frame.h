/*
 * frame.h - the fixed header before every control frame, and how a long message becomes several
 * frames.
 *
 * Pure: bytes in, a verdict out. Frames come from the network, so nothing in them is believed
 * before it was checked here. It must not know which transport carries them.
 */
#ifndef DP_TRANSPORT_FRAME_H
#define DP_TRANSPORT_FRAME_H

#include "runtime/transport/transport.h"

#define DP_FRAME_HEADER 24    /* bytes of the header on the wire */
#define DP_FRAME_PAYLOAD 4096 /* largest part of a message in one frame */
/* A message may be this much longer than DP_MESSAGE_MAX: room for what callers put in front. */
#define DP_FRAME_TOTAL_MAX (DP_MESSAGE_MAX + 64)

typedef enum dp_frame_kind {
    DP_FRAME_DATA = 1,
    DP_FRAME_BYE = 2, /* the sender closes; nothing follows but an ACK */
    DP_FRAME_ACK = 3  /* the sender has seen the receiver's BYE */
} dp_frame_kind_t;

typedef struct dp_control_frame {
    uint64_t tag;    /* of the job */
    uint32_t from;   /* rank that sends */
    uint32_t kind;   /* dp_frame_kind_t */
    uint32_t total;  /* bytes of the whole message */
    uint32_t offset; /* of this frame's payload in it */
} dp_control_frame_t;

/* Writes the header to bytes[DP_FRAME_HEADER]. */
void dp_frame_write(const dp_control_frame_t *frame, uint8_t *bytes);

/**
 * Reads a frame's header and checks it against what a rank of this job would have sent.
 *
 * @param data    the frame, bytes long
 * @param tag     that the frame must carry
 * @param frame   written only when the frame is good; its payload is data + DP_FRAME_HEADER
 * @param payload bytes of payload; written likewise
 * @return NULL, or in words what is wrong with it
 */
const char *dp_frame_read(const void *data, size_t bytes, uint64_t tag, dp_control_frame_t *frame,
                          size_t *payload);

/* Where the message that is arriving from one peer stands. All zero at first. */
typedef struct dp_assembly {
    uint32_t total;
    uint32_t have;
    int is_open; /* more frames of a message are to come */
} dp_assembly_t;

/**
 * Takes note of the next DATA frame of a peer, whose payload then belongs at frame->offset of the
 * message. The message is whole when is_open is 0 afterwards.
 *
 * @return NULL, or why the frame does not follow the one before; then both are to be dropped
 */
const char *dp_assembly_add(dp_assembly_t *assembly, const dp_control_frame_t *frame,
                            size_t payload);

#endif
