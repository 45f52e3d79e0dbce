/*
 * interface.h - the network interfaces of this machine, and their addresses.
 *
 * UCX listens on every interface it is given, so it is given one: loopback where all ranks are
 * behind it (pretended nodes), else the one that reach.h finds. Interfaces that are down and
 * addresses of a link alone (fe80::) lead to no other machine, and are not listed.
 */
#ifndef DP_NETWORK_INTERFACE_H
#define DP_NETWORK_INTERFACE_H

#include <net/if.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define DP_INTERFACE_ADDRESSES 16
#define DP_IP_BYTES 16
#define DP_IP_TEXT 64 /* "[2001:db8::1]" */

/* An IP address, version 4 in the first 4 bytes, as it stands in a packet. */
typedef struct dp_ip {
    uint8_t version; /* 4 or 6; 0: none */
    uint8_t bytes[DP_IP_BYTES];
} dp_ip_t;

typedef struct dp_interface_address {
    dp_ip_t ip;
    uint8_t prefix; /* bits of the address that are the network's */
    uint32_t speed; /* of the link, in Mb/s; 0: not known */
    char name[IF_NAMESIZE];
} dp_interface_address_t;

/* Lists addresses of this machine, at most `max`, version 4 first. only: of this interface; "": of
 * all but loopback. Returns how many. */
int dp_interface_list(dp_interface_address_t *addresses, int max, const char *only);

/* The address of this machine from which packets to there start, as its routes say; no packet is
 * sent. Returns its length; 0: there is no route. */
socklen_t dp_interface_source(const struct sockaddr_storage *to, socklen_t bytes,
                              struct sockaddr_storage *from);

/* Likewise. 0: there is no route. */
int dp_ip_source(const dp_ip_t *to, dp_ip_t *from);

/* 1: an interface of this machine that is up has this address. */
int dp_ip_is_own(const dp_ip_t *ip);
int dp_ip_is_loopback(const dp_ip_t *ip);

/* 1: there is an interface of this name. */
int dp_interface_is(const char *name);

/* 1: its link works, as the kernel says it. Behind a cable that was just plugged in packets may
 * pass a moment before; UCX takes no interface that is not running. */
int dp_interface_is_running(const char *name);

/* Its name on this node for 127.0.0.1; "" if there is none. */
void dp_interface_loopback(char name[IF_NAMESIZE]);

/* 1: both are of one network, by the first `prefix` bits. */
int dp_ip_is_near(const dp_ip_t *a, const dp_ip_t *b, int prefix);
int dp_ip_is_equal(const dp_ip_t *a, const dp_ip_t *b);

/* For people and for dp_ip_parse(): 10.0.0.1, 2001:db8::1. */
const char *dp_ip_format(const dp_ip_t *ip, char text[DP_IP_TEXT]);
int dp_ip_parse(const char *text, dp_ip_t *ip); /* 0: it is no address */

/* The socket address of a port there; returns its length. */
socklen_t dp_ip_socket_address(const dp_ip_t *ip, uint16_t port, struct sockaddr_storage *address);

#endif
