/*
 * interface.h - which network interface leads to the other nodes of a job.
 *
 * UCX listens on every interface it is given, so it is given one: loopback where all ranks are
 * behind it (pretended nodes), else the one whose routes reach most of the other nodes.
 */
#ifndef DP_TRANSPORT_INTERFACE_H
#define DP_TRANSPORT_INTERFACE_H

#include <net/if.h>
#include <stddef.h>
#include <stdint.h>

#define DP_INTERFACE_ADDRESSES 16

/* IPv4 addresses of a node, as they stand in a packet; none of loopback. */
typedef struct dp_interface_addresses {
    uint32_t count;
    uint32_t ip[DP_INTERFACE_ADDRESSES];
} dp_interface_addresses_t;

void dp_interface_list(dp_interface_addresses_t *own);

/**
 * Chooses by the routing table; sends nothing.
 *
 * An address that this node has, too, says nothing about the other one: a bridge of containers
 * has the same address everywhere.
 *
 * @param others [count] addresses of each other node
 * @param name   the interface that leads to most of them, counting those first that need no router;
 *               the first of equals; "" if none does
 */
void dp_interface_choose(const dp_interface_addresses_t *others, int count, char name[IF_NAMESIZE]);

/* 1: there is an interface of this name. */
int dp_interface_is(const char *name);

/* Its name on this node for 127.0.0.1; "" if there is none. */
void dp_interface_loopback(char name[IF_NAMESIZE]);

#endif
