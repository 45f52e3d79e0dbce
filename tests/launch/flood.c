/*
 * flood.c - connects to a rendezvous over and over and proves nothing.
 *
 *   flood ADDRESS PORT USER STOP
 *
 * ADDRESS is "@NAME" (a local socket; PORT is ignored) or IPv4. As USER where that can be had.
 * Keeps some hundred silent connections open, and makes and closes others without end, with garbage
 * in every other one. Those that stay make it a flood however slowly the other side accepts.
 * Says "flowing" once it has made that many, and ends when the file STOP is there.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define KEPT 200 /* silent ones, for as long as the other side lets them be */
#define HOLD 400 /* these and the changing ones */
#define LOOK 100 /* connections between looks for STOP */

typedef union name {
    struct sockaddr any;
    struct sockaddr_in port;
    struct sockaddr_un local;
} name_t;

static socklen_t make_name(const char *address, int port, name_t *name)
{
    memset(name, 0, sizeof(*name));
    if (address[0] != '@') {
        name->port.sin_family = AF_INET;
        name->port.sin_port = htons((uint16_t)port);
        inet_pton(AF_INET, address, &name->port.sin_addr);
        return sizeof(name->port);
    }
    name->local.sun_family = AF_UNIX;
    memcpy(name->local.sun_path + 1, address + 1,
           strnlen(address + 1, sizeof(name->local.sun_path) - 1));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(address));
}

int main(int argc, char **argv)
{
    static const char garbage[100] = "GET / HTTP/1.1";
    int fds[HOLD];
    name_t name;
    socklen_t bytes;

    if (argc != 5) return 2;
    bytes = make_name(argv[1], atoi(argv[2]), &name);
    for (int i = 0; i < HOLD; i++)
        fds[i] = -1;
    if (geteuid() == 0 && setuid((uid_t)atoi(argv[3])) != 0) return 2;
    for (unsigned long made = 0;; made++) {
        int *fd = &fds[made < HOLD ? made : KEPT + made % (HOLD - KEPT)];

        if (*fd >= 0) close(*fd);
        *fd = socket(name.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (*fd >= 0) (void)!connect(*fd, &name.any, bytes);
        if (*fd >= 0 && made >= KEPT && made % 2 != 0)
            (void)!send(*fd, garbage, sizeof(garbage), MSG_NOSIGNAL);
        if (made == HOLD) (void)!write(STDOUT_FILENO, "flowing\n", 8);
        if (made % LOOK == 0 && access(argv[4], F_OK) == 0) return 0;
    }
}
