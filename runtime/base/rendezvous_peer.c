/*
 * rendezvous_peer.c - a connection to the rendezvous, whether it has proven something or not: a
 * text for it, its end, and the line about one that was dropped.
 *
 * Called by rendezvous_door.c and rendezvous.c, in the event loop's thread. It must not know how a
 * connection proves itself or what ranks exchange.
 */
#include "runtime/base/rendezvous_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void dp_rendezvous_refuse(dp_rendezvous_t *rendezvous, const char *origin, const char *format, ...)
{
    dp_rendezvous_door_t *door = &rendezvous->door;
    const int most =
        DP_RENDEZVOUS_REFUSED_MAX - !door->has_told_flood; /* one line is kept for a flood */
    char reason[512];
    char text[640];
    va_list arguments;

    door->refused++;
    if (door->refused > most) return;
    va_start(arguments, format);
    vsnprintf(reason, sizeof(reason), format, arguments);
    va_end(arguments);
    snprintf(text, sizeof(text), "rendezvous: dropped %s: %s%s", origin, reason,
             door->refused == most ? " (no more such lines)" : "");
    rendezvous->events.refused(rendezvous->events.context, text);
}

void dp_rendezvous_send_text(dp_rendezvous_peer_t *peer, enum dp_kv_type type, const char *text)
{
    uint8_t frame[DP_KV_FRAME_HEADER_BYTES + 2 + DP_KV_TEXT_MAX];
    dp_writer_t writer;

    dp_writer_init(&writer, frame, sizeof(frame));
    dp_kv_text_write(&writer, type, text);
    if (!writer.failed) bufferevent_write(peer->socket, frame, writer.bytes);
}

void dp_rendezvous_peer_close(dp_rendezvous_peer_t *peer)
{
    dp_rendezvous_t *rendezvous = peer->rendezvous;

    if (peer->rank < 0) {
        rendezvous->door.unproven--;
        rendezvous->door.unproven_of[peer->source]--;
    } else if (rendezvous->ranks[peer->rank].peer == peer) {
        rendezvous->ranks[peer->rank].peer = NULL;
    }
    *peer->back = peer->next;
    if (peer->next != NULL) peer->next->back = peer->back;
    bufferevent_free(peer->socket);
    free(peer);
}
