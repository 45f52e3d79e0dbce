/*
 * interface.c - which network interface leads to the other machines of a job, asked of the kernel.
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

/* An interface of this machine, and how many of the others it leads to. */
typedef struct way {
    char name[IF_NAMESIZE];
    uint32_t ip;
    uint32_t mask; /* of the addresses that need no router */
    int near;      /* machines of which an address is one of these */
    int machines;  /* all that it leads to */
    int last_near; /* machine counted last */
    int last;
} way_t;

static uint32_t ip_of(const struct sockaddr *address)
{
    struct sockaddr_in in;

    memcpy(&in, address, sizeof(in));
    return in.sin_addr.s_addr;
}

static int list_ways(way_t *ways, unsigned with, unsigned without)
{
    struct ifaddrs *all = NULL;
    int count = 0;

    if (getifaddrs(&all) != 0) return 0;
    for (const struct ifaddrs *at = all; at != NULL && count < INTERFACES; at = at->ifa_next) {
        if (at->ifa_addr == NULL || at->ifa_addr->sa_family != AF_INET) continue;
        if ((at->ifa_flags & with) != with || (at->ifa_flags & without) != 0) continue;
        ways[count] = (way_t){.ip = ip_of(at->ifa_addr), .last = -1, .last_near = -1};
        if (at->ifa_netmask != NULL) ways[count].mask = ip_of(at->ifa_netmask);
        snprintf(ways[count++].name, IF_NAMESIZE, "%s", at->ifa_name);
    }
    freeifaddrs(all);
    return count;
}

void dp_interface_list(dp_interface_addresses_t *own)
{
    way_t ways[INTERFACES];
    const int count = list_ways(ways, IFF_UP, IFF_LOOPBACK);

    *own = (dp_interface_addresses_t){0};
    for (int i = 0; i < count && own->count < DP_INTERFACE_ADDRESSES; i++)
        own->ip[own->count++] = ways[i].ip;
}

static way_t *way_with(way_t *ways, int count, uint32_t ip)
{
    for (int i = 0; i < count; i++) {
        if (ways[i].ip == ip) return &ways[i];
    }
    return NULL;
}

/* The address that packets to another one would carry; 0: there is no route. */
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

/* Takes note that an address of a machine is reached in some way. */
static void count_address(way_t *ways, int way_count, int machine, uint32_t ip)
{
    way_t *way;

    if (way_with(ways, way_count, ip) != NULL) return; /* this machine's, too */
    way = way_with(ways, way_count, source_for(ip));
    if (way == NULL) return;
    if (way->last != machine) way->machines++;
    way->last = machine;
    if (way->mask == 0 || ((ip ^ way->ip) & way->mask) != 0) return;
    if (way->last_near != machine) way->near++;
    way->last_near = machine;
}

/* An address behind a router may be one that only its machine can reach, as a bridge of containers:
 * the default route seems to lead there. So machines without one in between count first. */
static int is_better(const way_t *way, const way_t *best)
{
    if (best == NULL) return way->machines > 0;
    if (way->near != best->near) return way->near > best->near;
    return way->machines > best->machines;
}

void dp_interface_choose(const dp_interface_addresses_t *others, int count, char name[IF_NAMESIZE])
{
    way_t ways[INTERFACES];
    const int way_count = list_ways(ways, IFF_UP, IFF_LOOPBACK);
    const way_t *best = NULL;

    for (int machine = 0; machine < count; machine++) {
        for (uint32_t k = 0; k < others[machine].count && k < DP_INTERFACE_ADDRESSES; k++)
            count_address(ways, way_count, machine, others[machine].ip[k]);
    }
    for (int i = 0; i < way_count; i++) {
        if (is_better(&ways[i], best)) best = &ways[i];
    }
    snprintf(name, IF_NAMESIZE, "%s", best == NULL ? "" : best->name);
}

int dp_interface_is(const char *name)
{
    return if_nametoindex(name) != 0;
}

void dp_interface_loopback(char name[IF_NAMESIZE])
{
    way_t ways[INTERFACES];

    name[0] = '\0';
    if (list_ways(ways, IFF_UP | IFF_LOOPBACK, 0) > 0)
        snprintf(name, IF_NAMESIZE, "%s", ways[0].name);
}
