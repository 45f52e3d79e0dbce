/*
 * tunnel.h - local connections that travel as frames of a link: a rank on a node talks to dprun's
 * rendezvous as if that were on its own machine.
 *
 *   rank --- socket --- station ===== link ===== dprun --- pair of sockets --- rendezvous
 *
 * The same at both ends, but that a station opens connections and dprun answers. A station hangs up
 * on processes of other users before it reads or sends a byte. Nothing else is looked at.
 */
#ifndef DP_LAUNCHER_TUNNEL_H
#define DP_LAUNCHER_TUNNEL_H

#include <event2/event.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dp_tunnel dp_tunnel_t;

/* Sends a TUNNEL_ frame (protocol.h) to the other end. */
typedef void (*dp_tunnel_send_fn)(void *context, uint8_t type, const void *fields, size_t bytes);

dp_tunnel_t *dp_tunnel_create(struct event_base *base, dp_tunnel_send_fn send, void *context);
void dp_tunnel_destroy(dp_tunnel_t *tunnel); /* closes all; NULL is fine */

/* Listens on a local socket (local_socket.h; taken) and opens a connection to the other end for
 * each that comes. */
int dp_tunnel_listen(dp_tunnel_t *tunnel, int listener); /* -1: no memory */
void dp_tunnel_close_door(dp_tunnel_t *tunnel);

/* The other end opened connection `number`: it leads to fd (taken; -1: nowhere, it is closed). */
void dp_tunnel_adopt(dp_tunnel_t *tunnel, uint32_t number, int fd);
/* Bytes from the other end. An unknown number is ignored: it has closed meanwhile. */
void dp_tunnel_receive(dp_tunnel_t *tunnel, uint32_t number, const void *data, size_t bytes);
void dp_tunnel_closed(dp_tunnel_t *tunnel, uint32_t number);

#endif
