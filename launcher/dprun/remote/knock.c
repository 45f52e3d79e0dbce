/*
 * knock.c - see knock.h. Called by fleet_start.c.
 */
#include "launcher/dprun/remote/knock.h"

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/dprun/tree.h"
#include "runtime/base/input_file.h"

#define AGAIN_NS UINT64_C(750000000) /* after an answer */
#define EACH_NS UINT64_C(150000000)
#define SERIES_NS UINT64_C(1750000000) /* from its first try at least */
#define TRIES_MIN 8
#define SOCKETS_MAX 64

/* ---- Knocking ------------------------------------------------------------------------------- */

static void close_tries(dp_knock_t *knock)
{
    for (int i = 0; i < DP_KNOCK_TRIES; i++) {
        if (knock->fds[i] >= 0) close(knock->fds[i]);
        knock->fds[i] = -1;
    }
    knock->first_ns = 0;
    knock->tries = 0;
}

void dp_knock_init(dp_knock_t *knock, uint64_t now_ns)
{
    memset(knock, 0, sizeof(*knock));
    for (int i = 0; i < DP_KNOCK_TRIES; i++)
        knock->fds[i] = -1;
    knock->sign_ns = now_ns;
    knock->next_ns = now_ns;
}

void dp_knock_fini(dp_knock_t *knock)
{
    close_tries(knock);
}

void dp_knock_restart(dp_knock_t *knock, uint64_t now_ns)
{
    close_tries(knock);
    knock->sign_ns = now_ns;
}

/* One more, at the targets in turn. It is closed by a reset, so that nothing waits for its end. */
static void knock_once(dp_knock_t *knock, const dp_knock_target_t *target)
{
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    int *fd = &knock->fds[knock->tries % DP_KNOCK_TRIES];

    if (*fd >= 0) close(*fd);
    *fd = socket(target->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0) return; /* does not count */
    (void)setsockopt(*fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    (void)connect(*fd, (const struct sockaddr *)&target->address, target->bytes);
    knock->tries++;
}

/* 1: one of them was answered. An error of the network, or of a router, is no answer. */
static int is_answered(dp_knock_t *knock)
{
    int found = 0;

    for (int i = 0; i < DP_KNOCK_TRIES; i++) {
        struct pollfd look = {.fd = knock->fds[i], .events = POLLOUT};
        socklen_t bytes = sizeof(int);
        int code = 0;

        if (look.fd < 0 || poll(&look, 1, 0) <= 0) continue;
        if (getsockopt(look.fd, SOL_SOCKET, SO_ERROR, &code, &bytes) != 0) code = errno;
        found |= code == 0 || code == ECONNREFUSED;
        close(look.fd);
        knock->fds[i] = -1;
    }
    return found;
}

int dp_knock_is_silent(dp_knock_t *knock, const dp_knock_target_t *targets, int count,
                       uint64_t now_ns)
{
    if (is_answered(knock)) {
        dp_knock_restart(knock, now_ns);
        knock->next_ns = now_ns + AGAIN_NS;
    }
    if (count > 0 && now_ns >= knock->next_ns) {
        if (knock->first_ns == 0) knock->first_ns = now_ns;
        knock_once(knock, &targets[knock->tries % count]);
        knock->next_ns = now_ns + EACH_NS;
    }
    return knock->tries >= TRIES_MIN && now_ns - knock->sign_ns >= DP_KNOCK_SILENCE_NS &&
           now_ns - knock->first_ns >= SERIES_NS;
}

/* ---- Where ssh is --------------------------------------------------------------------------- */

/* The inodes of a process's sockets. Returns how many. */
static int list_sockets(pid_t pid, unsigned long inodes[SOCKETS_MAX])
{
    char path[64];
    const struct dirent *entry;
    int count = 0;
    DIR *folder;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    folder = opendir(path);
    while (folder != NULL && count < SOCKETS_MAX && (entry = readdir(folder)) != NULL) {
        char link[64];
        const ssize_t bytes = readlinkat(dirfd(folder), entry->d_name, link, sizeof(link) - 1);

        if (bytes <= 0) continue;
        link[bytes] = '\0';
        if (strncmp(link, "socket:[", 8) == 0) inodes[count++] = strtoul(link + 8, NULL, 10);
    }
    if (folder != NULL) closedir(folder);
    return count;
}

/* "0500630A:0016": words of 4 bytes in this machine's order, port. */
static int read_peer(const char *text, dp_knock_target_t *peer)
{
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    const size_t digits = strcspn(text, ":");
    uint32_t words[4];

    if (digits != 8 && digits != 32) return 0;
    for (size_t i = 0; i < digits / 8; i++) {
        char word[9];

        memcpy(word, text + 8 * i, 8);
        word[8] = '\0';
        words[i] = (uint32_t)strtoul(word, NULL, 16);
    }
    memset(peer, 0, sizeof(*peer));
    if (digits == 8) {
        memcpy(&four.sin_addr, words, 4);
        four.sin_port = htons((uint16_t)strtoul(text + digits + 1, NULL, 16));
        peer->bytes = sizeof(four);
        memcpy(&peer->address, &four, sizeof(four));
    } else {
        memcpy(&six.sin6_addr, words, 16);
        six.sin6_port = htons((uint16_t)strtoul(text + digits + 1, NULL, 16));
        peer->bytes = sizeof(six);
        memcpy(&peer->address, &six, sizeof(six));
    }
    return 1;
}

/* Columns are number, own address, other address, state, five more, inode. */
int dp_knock_find_in_table(const char *table, const unsigned long *inodes, int count,
                           dp_knock_target_t *peer)
{
    FILE *file = fopen(table, "re");
    char line[512];
    int found = 0;

    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL) {
        char other[64];
        unsigned state;
        unsigned long inode;

        if (sscanf(line, "%*s %*s %63s %x %*s %*s %*s %*s %*s %lu", other, &state, &inode) != 3)
            continue;
        if (state == 0x0a) continue; /* it listens */
        for (int i = 0; i < count && !found; i++)
            found = inodes[i] == inode && read_peer(other, peer);
    }
    if (file != NULL) fclose(file);
    return found;
}

static int find_peer_of(pid_t pid, dp_knock_target_t *peer)
{
    unsigned long inodes[SOCKETS_MAX];
    const int count = list_sockets(pid, inodes);

    return count > 0 && (dp_knock_find_in_table("/proc/self/net/tcp", inodes, count, peer) ||
                         dp_knock_find_in_table("/proc/self/net/tcp6", inodes, count, peer));
}

int dp_knock_find_peer(pid_t ssh, dp_knock_target_t *peer, pid_t *process)
{
    dp_tree_process_t *list;
    size_t count = 0;
    int found = find_peer_of(ssh, peer);

    *process = ssh;
    if (found) return 1;
    list = dp_tree_list(ssh, &count); /* --ssh may name a script */
    for (size_t i = 0; i < count && !found; i++) {
        if (strcmp(list[i].name, "ssh") != 0) continue;
        *process = list[i].pid;
        found = find_peer_of(list[i].pid, peer);
    }
    free(list);
    return found;
}

uint64_t dp_knock_bytes_read(pid_t process)
{
    unsigned long long bytes = 0;
    char path[64], text[64];

    snprintf(path, sizeof(path), "/proc/%d/io", (int)process);
    dp_input_file_read_line(path, text, sizeof(text));
    return sscanf(text, "rchar: %llu", &bytes) == 1 ? bytes : 0;
}

int dp_knock_set_port(dp_knock_target_t *targets, int count, const dp_knock_target_t *peer)
{
    struct sockaddr_in6 of_peer;
    int is_one = 0;

    memcpy(&of_peer, &peer->address, sizeof(of_peer));
    for (int i = 0; i < count; i++) {
        struct sockaddr_in6 own;

        memcpy(&own, &targets[i].address, sizeof(own));
        own.sin6_port = of_peer.sin6_port; /* at the same place in both kinds of address */
        memcpy(&targets[i].address, &own, sizeof(own));
        if (own.sin6_family != of_peer.sin6_family) continue;
        if (own.sin6_family == AF_INET6) {
            is_one |= memcmp(&own.sin6_addr, &of_peer.sin6_addr, 16) == 0;
        } else {
            is_one |=
                memcmp(&((const struct sockaddr_in *)(const void *)&targets[i].address)->sin_addr,
                       &((const struct sockaddr_in *)(const void *)&peer->address)->sin_addr,
                       4) == 0;
        }
    }
    return is_one;
}
