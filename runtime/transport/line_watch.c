/*
 * line_watch.c - the lowest file of the line transport: it finds a neighbour by its rank, has
 * poll() look at a socket, sets the timer, and writes an address as text.
 *
 * Called by line.c, line_peer.c and line_listen.c, on the thread that owns the transport. It must
 * not know what a socket carries.
 */
#include "runtime/transport/line_internal.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

dp_line_peer_t *dp_line_find(dp_line_t *self, int rank)
{
    for (int i = 0; i < self->peer_count; i++) {
        if (self->peers[i].rank == rank) return &self->peers[i];
    }
    return NULL;
}

int dp_line_watch(const dp_line_t *self, int fd, uint32_t events, dp_line_source_t source,
                  int place)
{
    struct epoll_event event = {.events = events,
                                .data.u64 = (uint64_t)source << 32 | (uint32_t)place};

    return epoll_ctl(self->events, EPOLL_CTL_ADD, fd, &event);
}

void dp_line_arm_timer(dp_line_t *self, uint64_t due_ns)
{
    const struct itimerspec due = {.it_value = {.tv_sec = (time_t)(due_ns / 1000000000),
                                                .tv_nsec = (long)(due_ns % 1000000000)}};

    (void)timerfd_settime(self->timer, TFD_TIMER_ABSTIME, &due, NULL);
}

void dp_line_set_timer(dp_line_t *self, uint64_t due_ns)
{
    if (self->is_connected && due_ns < self->next_beat_ns) dp_line_arm_timer(self, due_ns);
}

uint16_t dp_line_port(const struct sockaddr_storage *address)
{
    struct sockaddr_in in;
    struct sockaddr_in6 in6;

    memcpy(&in, address, sizeof(in));
    memcpy(&in6, address, sizeof(in6));
    return ntohs(address->ss_family == AF_INET6 ? in6.sin6_port : in.sin_port);
}

void dp_line_address_text(const struct sockaddr_storage *address, char *text, size_t room)
{
    char ip[INET6_ADDRSTRLEN] = "?";
    struct sockaddr_in in;
    struct sockaddr_in6 in6;

    memcpy(&in, address, sizeof(in));
    memcpy(&in6, address, sizeof(in6));
    if (address->ss_family == AF_INET6) {
        (void)inet_ntop(AF_INET6, &in6.sin6_addr, ip, sizeof(ip));
    } else {
        (void)inet_ntop(AF_INET, &in.sin_addr, ip, sizeof(ip));
    }
    snprintf(text, room, "%s port %u", ip, (unsigned)dp_line_port(address));
}
