/*
 * bootstrap_place.h - the addresses of its machine on which rank 0 serves the rendezvous of a job
 * that dprun did not start.
 *
 * Called by bootstrap_elsewhere.c in rank 0, on the program's thread. The other ranks come by the
 * name that the starter gave all of them (MASTER_ADDR, DP_RENDEZVOUS), so rank 0 listens where that
 * name leads, and on no other interface:
 *
 *     the name has here                 listens on                 with DP_NET_INTERFACE
 *     addresses of this machine         these                      those of them on the interface;
 *                                                                  none: both
 *     loopback alone (127.0.1.1 in      every address, as the      the interface's, and that
 *     /etc/hosts), or an address of     others know a better one   loopback address
 *     another machine (translated), or
 *     none
 *     is localhost or 127.0.0.1 itself  loopback                   loopback
 *
 * Through PMI, or a store of the program's own, rank 0 tells the others its addresses. Then the
 * name is that of this machine where its surroundings have one: SLURMD_NODENAME, or MASTER_ADDR.
 */
#ifndef DP_GROUP_BOOTSTRAP_PLACE_H
#define DP_GROUP_BOOTSTRAP_PLACE_H

#include "runtime/base/error.h"
#include "runtime/network/interface.h"

#define DP_BOOTSTRAP_PLACE_MAX 16

typedef struct dp_bootstrap_place {
    int count; /* 0: every address */
    dp_ip_t ips[DP_BOOTSTRAP_PLACE_MAX];
    const char *name; /* by which it was found; borrowed */
    const char *why;  /* that it is every address: "leads to no address of this machine" */
} dp_bootstrap_place_t;

/* The facts by which dp_bootstrap_place_choose() decides. Lists are borrowed. */
typedef struct dp_bootstrap_place_facts {
    int is_local_name;    /* the name is localhost, or a loopback address */
    const dp_ip_t *named; /* [named_count] the addresses that the name has on this machine */
    int named_count;
    const dp_interface_address_t *interface; /* [interface_count] of DP_NET_INTERFACE */
    int interface_count;                     /* 0: it is not set, or has none */
    int (*is_own)(const dp_ip_t *ip);        /* dp_ip_is_own(), or a test's */
} dp_bootstrap_place_facts_t;

/* Pure: chooses by the table above. */
void dp_bootstrap_place_choose(const dp_bootstrap_place_facts_t *facts,
                               dp_bootstrap_place_t *place);

/* Gathers the facts and chooses. host: the name; "": every rank learns the addresses in another
 * way, and those on this machine come by loopback. interface: "": any. Waits two seconds for the
 * name at most. */
void dp_bootstrap_place_find(const char *host, const char *interface, dp_bootstrap_place_t *place);

/* For a rank 0 that tells the others where it is: its addresses of this name, if any leads to it
 * from elsewhere, and loopback for the ranks beside it; else as with "" above. name: "": none. */
void dp_bootstrap_place_find_own(const char *name, const char *interface,
                                 dp_bootstrap_place_t *place);

/* Listens at one port (0: any that is free) of all these addresses. listeners are returned.
 * DP_ERR_BUSY: the port is taken at one of them; DP_ERR_SYSTEM. */
dp_status_t dp_bootstrap_place_listen(const dp_bootstrap_place_t *place, uint16_t port,
                                      int listeners[DP_BOOTSTRAP_PLACE_MAX], int *count,
                                      uint16_t *bound, dp_error_t *error);

/* "on 10.0.0.1, fd99::1 port 29511" */
void dp_bootstrap_place_format(const dp_bootstrap_place_t *place, uint16_t port, char *text,
                               size_t room);

#endif
