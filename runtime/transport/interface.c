/*
 * interface.c - which network interface leads to the other nodes of a job, asked of the kernel's
 * routing table. Called once by dp_init(). It must not know about UCX.
 */
#include "runtime/transport/interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define INTERFACES 64
#define ANY_PORT 9 /* nothing is sent there */

/* An interface of this node, and how many of the others it leads to. */
typedef struct candidate {
    char name[IF_NAMESIZE];
    uint32_t ip;
    uint32_t mask;   /* of the addresses that need no router */
    int direct;      /* other nodes that it reaches without a router */
    int nodes;       /* other nodes that it reaches at all */
    int last_direct; /* the node counted last: one with several addresses counts once */
    int last;
} candidate_t;

static uint32_t ip_of(const struct sockaddr *address)
{
    struct sockaddr_in in;

    memcpy(&in, address, sizeof(in));
    return in.sin_addr.s_addr;
}

static int list_candidates(candidate_t *candidates, unsigned with, unsigned without)
{
    struct ifaddrs *all = NULL;
    int count = 0;

    if (getifaddrs(&all) != 0) return 0;
    for (const struct ifaddrs *at = all; at != NULL && count < INTERFACES; at = at->ifa_next) {
        if (at->ifa_addr == NULL || at->ifa_addr->sa_family != AF_INET) continue;
        if ((at->ifa_flags & with) != with || (at->ifa_flags & without) != 0) continue;
        candidates[count] = (candidate_t){.ip = ip_of(at->ifa_addr), .last = -1, .last_direct = -1};
        if (at->ifa_netmask != NULL) candidates[count].mask = ip_of(at->ifa_netmask);
        snprintf(candidates[count++].name, IF_NAMESIZE, "%s", at->ifa_name);
    }
    freeifaddrs(all);
    return count;
}

void dp_interface_list(dp_interface_addresses_t *own)
{
    candidate_t candidates[INTERFACES];
    const int count = list_candidates(candidates, IFF_UP, IFF_LOOPBACK);

    *own = (dp_interface_addresses_t){0};
    for (int i = 0; i < count && own->count < DP_INTERFACE_ADDRESSES; i++)
        own->ip[own->count++] = candidates[i].ip;
}

static candidate_t *candidate_with(candidate_t *candidates, int count, uint32_t ip)
{
    for (int i = 0; i < count; i++) {
        if (candidates[i].ip == ip) return &candidates[i];
    }
    return NULL;
}

/* The source address of packets to another address; 0: there is no route. */
static uint32_t source_for(uint32_t ip)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(ANY_PORT)};
    struct sockaddr_in from = {0};
    socklen_t bytes = sizeof(from);
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int is_known;

    if (fd < 0) return 0;
    to.sin_addr.s_addr = ip;
    is_known = connect(fd, (const struct sockaddr *)&to, sizeof(to)) == 0 &&
               getsockname(fd, (struct sockaddr *)&from, &bytes) == 0;
    close(fd);
    return is_known ? from.sin_addr.s_addr : 0;
}

/* Counts an address of another node for the interface that its packets would take. */
static void count_address(candidate_t *candidates, int candidate_count, int node, uint32_t ip)
{
    candidate_t *candidate;

    if (candidate_with(candidates, candidate_count, ip) != NULL)
        return; /* this node has it, too: it says nothing */
    candidate = candidate_with(candidates, candidate_count, source_for(ip));
    if (candidate == NULL) return;
    if (candidate->last != node) candidate->nodes++;
    candidate->last = node;
    if (candidate->mask == 0 || ((ip ^ candidate->ip) & candidate->mask) != 0) return;
    if (candidate->last_direct != node) candidate->direct++;
    candidate->last_direct = node;
}

/* An address behind a router may be one that only its own node can reach, as that of a bridge of
 * containers: the default route seems to lead there. So nodes reached directly count first. */
static int is_better(const candidate_t *candidate, const candidate_t *best)
{
    if (best == NULL) return candidate->nodes > 0;
    if (candidate->direct != best->direct) return candidate->direct > best->direct;
    return candidate->nodes > best->nodes;
}

void dp_interface_choose(const dp_interface_addresses_t *others, int count, char name[IF_NAMESIZE])
{
    candidate_t candidates[INTERFACES];
    const int candidate_count = list_candidates(candidates, IFF_UP, IFF_LOOPBACK);
    const candidate_t *best = NULL;

    for (int node = 0; node < count; node++) {
        for (uint32_t k = 0; k < others[node].count && k < DP_INTERFACE_ADDRESSES; k++)
            count_address(candidates, candidate_count, node, others[node].ip[k]);
    }
    for (int i = 0; i < candidate_count; i++) {
        if (is_better(&candidates[i], best)) best = &candidates[i];
    }
    snprintf(name, IF_NAMESIZE, "%s", best == NULL ? "" : best->name);
}

int dp_interface_is(const char *name)
{
    return if_nametoindex(name) != 0;
}

void dp_interface_loopback(char name[IF_NAMESIZE])
{
    candidate_t candidates[INTERFACES];

    name[0] = '\0';
    if (list_candidates(candidates, IFF_UP | IFF_LOOPBACK, 0) > 0)
        snprintf(name, IF_NAMESIZE, "%s", candidates[0].name);
}
