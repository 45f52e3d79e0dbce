/*
 * look.c - see look.h. Called by a station for ABOUT and by dprun for its own addresses.
 */
#include "launcher/dprun/remote/look.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/dprun/cgroup.h"
#include "launcher/dprun/cores.h"
#include "launcher/dprun/run_dir.h"
#include "runtime/base/auth.h"
#include "runtime/base/input_file.h"
#include "runtime/network/interface.h"

#define UCX_MS 1000       /* to load a library: less than a link may be silent */
#define FIRST_PORT 15000u /* services with a number of their own are mostly below */

static uint64_t free_bytes(const char *path)
{
    struct statvfs disk;

    return statvfs(path, &disk) == 0 ? (uint64_t)disk.f_bavail * disk.f_frsize : 0;
}

int dp_look_for_addresses(const char *interface,
                          char addresses[DP_REMOTE_ADDRESSES][DP_REMOTE_ADDRESS_MAX])
{
    dp_interface_address_t found[DP_REMOTE_ADDRESSES];
    const int count = dp_interface_list(found, DP_REMOTE_ADDRESSES, interface);
    char ip[DP_IP_TEXT];

    for (int i = 0; i < count; i++)
        snprintf(addresses[i], DP_REMOTE_ADDRESS_MAX, "%s", dp_ip_format(&found[i].ip, ip));
    return count;
}

static void list_addresses(char *text, size_t room)
{
    dp_interface_address_t found[DP_REMOTE_ADDRESSES];
    const int count = dp_interface_list(found, DP_REMOTE_ADDRESSES, "");
    size_t used = 0;
    char ip[DP_IP_TEXT];

    text[0] = '\0';
    for (int i = 0; i < count && used < room; i++) {
        used += (size_t)snprintf(text + used, room - used, "%s%s %s", i > 0 ? ", " : "",
                                 found[i].name, dp_ip_format(&found[i].ip, ip));
    }
}

void dp_look_at_node(dp_remote_about_t *about)
{
    struct rlimit limit;
    dp_memory_sight_t memory;
    dp_cores_t cores;

    if (gethostname(about->host, sizeof(about->host) - 1) != 0) about->host[0] = '\0';
    dp_input_file_read_line(DP_BOOT_ID_FILE, about->boot, sizeof(about->boot));
    dp_cores_init(&cores);
    about->cores = cores.allowed;
    about->cores_in_machine = cores.in_machine;
    dp_cores_fini(&cores);
    dp_cgroup_memory(&memory);
    about->memory_bytes = (uint64_t)dp_max(memory.total_bytes, 0);
    about->shm_free_bytes = free_bytes("/dev/shm");
    about->run_free_bytes = free_bytes(dp_run_dir_parent());
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) about->open_files = (uint64_t)limit.rlim_max;
    list_addresses(about->addresses, sizeof(about->addresses));
}

/* The ports that the kernel gives to connections and to bind(0). */
static void read_ephemeral_ports(unsigned *low, unsigned *high)
{
    char text[64];

    if (dp_input_file_read_line("/proc/sys/net/ipv4/ip_local_port_range", text, sizeof(text)) &&
        sscanf(text, "%u %u", low, high) == 2)
        return;
    *low = 32768;
    *high = 60999;
}

/* port: 0 for any. Returns the port that could be bound; 0: it is taken. */
static uint16_t try_port(unsigned port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t bytes = sizeof(address);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint16_t bound = 0;

    if (fd < 0) return 0;
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &bytes) == 0) {
        bound = ntohs(address.sin_port);
    }
    close(fd);
    return bound;
}

/* A rank listens on the port seconds later, so it is none that the kernel could give to any
 * connection meanwhile. */
uint16_t dp_look_for_port(void)
{
    unsigned low, high, count, start;
    uint16_t port = 0;

    read_ephemeral_ports(&low, &high);
    low = dp_max(low, FIRST_PORT);
    high = dp_min(high, UINT16_MAX);
    count = (low - FIRST_PORT) + (UINT16_MAX - high);
    dp_random(&start, sizeof(start));
    for (unsigned i = 0; i < count && port == 0; i++) {
        const unsigned at = FIRST_PORT + (start % count + i) % count;

        port = try_port(at < low ? at : at - low + high + 1);
    }
    return port != 0 ? port : try_port(0);
}

static void write_ucx_version(int fd)
{
    void *ucp = dlopen("libucp.so.0", RTLD_NOW);
    void *symbol = ucp == NULL ? NULL : dlsym(ucp, "ucp_get_version_string");
    const char *(*version)(void);

    memcpy(&version, &symbol, sizeof(version));
    if (version != NULL) (void)!write(fd, version(), strlen(version()));
}

/* The library is asked for its version only: no transport is opened. Its signal handlers, which a
 * constructor installs, are switched off by the environment of a rank, not of dprun; so the child
 * that looks is a throw-away, and one that does not come back (a file system that stands still) is
 * killed: the station serves its link again. */
int dp_look_for_ucx(char *version, size_t room)
{
    struct pollfd look = {.events = POLLIN};
    ssize_t bytes = 0;
    int fds[2];
    pid_t pid;

    version[0] = '\0';
    if (pipe2(fds, O_CLOEXEC) != 0) return 0;
    pid = fork();
    if (pid == 0) {
        write_ucx_version(fds[1]);
        _exit(0);
    }
    close(fds[1]);
    look.fd = fds[0];
    if (pid > 0 && poll(&look, 1, UCX_MS) > 0) bytes = read(fds[0], version, room - 1);
    close(fds[0]);
    if (pid > 0 && bytes <= 0) kill(pid, SIGKILL);
    version[bytes > 0 ? bytes : 0] = '\0';
    if (pid > 0) (void)waitpid(pid, NULL, 0);
    return bytes > 0;
}
