/*
 * line.h - the transport that tells the death of neighbours on other nodes, by a TCP connection of
 * our own to each of them, called a line. Messages go through the transport below it, ucx.
 *
 * UCX makes its connections late, and may end a process by an assertion when one breaks, so deaths
 * must not be learned from them. A line carries a beat in each DP_HEARTBEAT, and nothing else:
 *
 *     it ends without a farewell      the process is dead: DP_TRANSPORT_PEER_LOST
 *     a beat comes                    DP_TRANSPORT_ALIVE
 *     no beat comes, and silence.h    nothing is reported; the owner gives the rank up after
 *     sees no other sign of life      DP_PEER_TIMEOUT, and calls give_up()
 *
 * Here each message gets a number and a code that only ranks of this world can make (line_hello.h);
 * a message without them is dropped.
 */
#ifndef DP_TRANSPORT_LINE_H
#define DP_TRANSPORT_LINE_H

#include "runtime/base/auth.h"
#include "runtime/network/interface.h"
#include "runtime/transport/transport.h"

typedef struct dp_line_options {
    int rank;
    const dp_secret_t *secret; /* of this world, the same on all ranks; borrowed during the call */
    const int *ranks; /* [count] neighbours on other nodes; copied. The relation is mutual */
    int count;
    dp_ip_t own_ip; /* where this rank's end of each line is; version 0: the next line tells */
    const char *network_interface; /* whose address is used; "": the first one of this node */
    uint64_t beat_ns;
    uint64_t timeout_ns; /* 0: silence is never death */
    uint64_t start_ns;   /* longest that opening a line may take */
    const dp_log_t *log;
} dp_line_options_t;

/**
 * Makes the lines of a rank. It listens if a neighbour has a higher number, on one address and
 * until all those have come.
 *
 * @param lower carries the messages; taken, also on failure
 * @return DP_OK
 *         DP_ERR_SYSTEM    no address, no socket
 *         DP_ERR_NO_MEMORY
 */
dp_status_t dp_transport_line_create(const dp_line_options_t *options, dp_transport_t *lower,
                                     dp_transport_t **out, dp_error_t *error);

#endif
