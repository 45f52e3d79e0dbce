/*
 * interface.c - lists the network interfaces of this machine and their addresses.
 *
 * Called by dp_init() on the program's thread, by reach*.c and by dprun. It must not know about UCX
 * or about other machines.
 */
#include "runtime/network/interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "runtime/base/input_file.h"

/* ---- Addresses ------------------------------------------------------------------------------ */

static int ip_bytes(const dp_ip_t *ip)
{
    return ip->version == 4 ? 4 : DP_IP_BYTES;
}

/* 0: neither version. */
static int from_socket_address(const struct sockaddr *address, dp_ip_t *ip)
{
    *ip = (dp_ip_t){0};
    if (address->sa_family == AF_INET) {
        struct sockaddr_in in;

        memcpy(&in, address, sizeof(in));
        memcpy(ip->bytes, &in.sin_addr, 4);
        ip->version = 4;
    } else if (address->sa_family == AF_INET6) {
        struct sockaddr_in6 in;

        memcpy(&in, address, sizeof(in));
        memcpy(ip->bytes, &in.sin6_addr, DP_IP_BYTES);
        ip->version = 6;
    }
    return ip->version != 0;
}

socklen_t dp_ip_socket_address(const dp_ip_t *ip, uint16_t port, struct sockaddr_storage *address)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};

    memset(address, 0, sizeof(*address));
    if (ip->version == 4) {
        memcpy(&in.sin_addr, ip->bytes, 4);
        memcpy(address, &in, sizeof(in));
        return sizeof(in);
    }
    memcpy(&in6.sin6_addr, ip->bytes, DP_IP_BYTES);
    memcpy(address, &in6, sizeof(in6));
    return sizeof(in6);
}

const char *dp_ip_format(const dp_ip_t *ip, char text[DP_IP_TEXT])
{
    if (inet_ntop(ip->version == 6 ? AF_INET6 : AF_INET, ip->bytes, text, DP_IP_TEXT) == NULL)
        snprintf(text, DP_IP_TEXT, "?");
    return text;
}

int dp_ip_parse(const char *text, dp_ip_t *ip)
{
    *ip = (dp_ip_t){0};
    if (inet_pton(AF_INET, text, ip->bytes) == 1) {
        ip->version = 4;
    } else if (inet_pton(AF_INET6, text, ip->bytes) == 1) {
        ip->version = 6;
    }
    return ip->version != 0;
}

int dp_ip_is_equal(const dp_ip_t *a, const dp_ip_t *b)
{
    return a->version == b->version && memcmp(a->bytes, b->bytes, (size_t)ip_bytes(a)) == 0;
}

int dp_ip_is_near(const dp_ip_t *a, const dp_ip_t *b, int prefix)
{
    if (a->version != b->version) return 0;
    for (int bit = 0; bit < prefix && bit < 8 * ip_bytes(a); bit++) {
        if (((a->bytes[bit / 8] ^ b->bytes[bit / 8]) >> (7 - bit % 8) & 1) != 0) return 0;
    }
    return 1;
}

/* ---- Interfaces ----------------------------------------------------------------------------- */

/* 1: packets to this address find a machine only if the sender says on which link. */
static int is_of_one_link(const dp_ip_t *ip)
{
    if (ip->version == 4) return ip->bytes[0] == 169 && ip->bytes[1] == 254;
    return ip->bytes[0] == 0xfe && (ip->bytes[1] & 0xc0) == 0x80;
}

static int count_prefix(const struct sockaddr *mask)
{
    dp_ip_t ip;
    int bits = 0;

    if (mask == NULL || !from_socket_address(mask, &ip)) return 0;
    while (bits < 8 * ip_bytes(&ip) && ip.bytes[bits / 8] >> (7 - bits % 8) & 1)
        bits++;
    return bits;
}

/* The driver's figure; bridges and tunnels often give none, or -1. */
static uint32_t read_speed(const char *name)
{
    char path[64];
    char text[32];
    long speed = 0;

    snprintf(path, sizeof(path), "/sys/class/net/%.15s/speed", name);
    if (dp_input_file_read_line(path, text, sizeof(text))) speed = strtol(text, NULL, 10);
    return speed > 0 && speed < INT32_MAX ? (uint32_t)speed : 0;
}

static int list_version(const struct ifaddrs *all, int version, const char *only,
                        dp_interface_address_t *addresses, int max)
{
    int count = 0;

    for (const struct ifaddrs *at = all; at != NULL && count < max; at = at->ifa_next) {
        dp_interface_address_t *address = &addresses[count];

        if (at->ifa_addr == NULL || !(at->ifa_flags & IFF_UP)) continue;
        if (only[0] == '\0' ? at->ifa_flags & IFF_LOOPBACK : strcmp(at->ifa_name, only) != 0)
            continue;
        *address = (dp_interface_address_t){0};
        if (!from_socket_address(at->ifa_addr, &address->ip)) continue;
        if (address->ip.version != version || is_of_one_link(&address->ip)) continue;
        address->prefix = (uint8_t)count_prefix(at->ifa_netmask);
        address->speed = read_speed(at->ifa_name);
        snprintf(address->name, sizeof(address->name), "%s", at->ifa_name);
        count++;
    }
    return count;
}

int dp_interface_list(dp_interface_address_t *addresses, int max, const char *only)
{
    struct ifaddrs *all = NULL;
    int count;

    if (getifaddrs(&all) != 0) return 0;
    count = list_version(all, 4, only, addresses, max);
    count += list_version(all, 6, only, addresses + count, max - count);
    freeifaddrs(all);
    return count;
}

socklen_t dp_interface_source(const struct sockaddr_storage *to, socklen_t bytes,
                              struct sockaddr_storage *from)
{
    const int fd = socket(to->ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const in_port_t port = htons(9); /* any; there must be one */
    struct sockaddr_storage target = *to;
    socklen_t room = sizeof(*from);
    int is_there;

    if (fd < 0) return 0;
    /* The port stands behind the family in both kinds of address. */
    memcpy((char *)&target + offsetof(struct sockaddr_in, sin_port), &port, sizeof(port));
    memset(from, 0, sizeof(*from));
    is_there = connect(fd, (struct sockaddr *)&target, bytes) == 0 &&
               getsockname(fd, (struct sockaddr *)from, &room) == 0;
    close(fd);
    return is_there ? room : 0;
}

int dp_ip_source(const dp_ip_t *to, dp_ip_t *from)
{
    struct sockaddr_storage target;
    struct sockaddr_storage source;
    const socklen_t bytes = dp_ip_socket_address(to, 0, &target);

    if (dp_interface_source(&target, bytes, &source) == 0) return 0;
    return from_socket_address((const struct sockaddr *)&source, from);
}

int dp_ip_is_own(const dp_ip_t *ip)
{
    struct ifaddrs *all = NULL;
    dp_ip_t own;
    int is_own = 0;

    if (getifaddrs(&all) != 0) return 0;
    for (const struct ifaddrs *at = all; at != NULL && !is_own; at = at->ifa_next) {
        if (at->ifa_addr == NULL || !(at->ifa_flags & IFF_UP)) continue;
        is_own = from_socket_address(at->ifa_addr, &own) && dp_ip_is_equal(&own, ip);
    }
    freeifaddrs(all);
    return is_own;
}

int dp_ip_is_loopback(const dp_ip_t *ip)
{
    static const uint8_t six[DP_IP_BYTES] = {[DP_IP_BYTES - 1] = 1};

    return ip->version == 4 ? ip->bytes[0] == 127
                            : ip->version == 6 && memcmp(ip->bytes, six, sizeof(six)) == 0;
}

int dp_interface_is(const char *name)
{
    return if_nametoindex(name) != 0;
}

int dp_interface_is_running(const char *name)
{
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = {0};
    int is_running;

    if (fd < 0) return 0;
    snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
    is_running = ioctl(fd, SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_RUNNING) != 0;
    close(fd);
    return is_running;
}

void dp_interface_loopback(char name[IF_NAMESIZE])
{
    struct ifaddrs *all = NULL;

    name[0] = '\0';
    if (getifaddrs(&all) != 0) return;
    for (const struct ifaddrs *at = all; at != NULL && name[0] == '\0'; at = at->ifa_next) {
        if (at->ifa_addr == NULL || at->ifa_addr->sa_family != AF_INET) continue;
        if (at->ifa_flags & IFF_UP && at->ifa_flags & IFF_LOOPBACK)
            snprintf(name, IF_NAMESIZE, "%s", at->ifa_name);
    }
    freeifaddrs(all);
}
