/*
 * check.c - looks at what jobs need of a machine: kernel features, limits, sockets, UCX, disk.
 *
 * dprun.c calls it for --check. Each look is the cheapest thing that proves the point: make one,
 * use it, drop it. Nothing is started.
 */
#include "launcher/dprun/check.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "launcher/dprun/cgroup.h"
#include "launcher/dprun/channel.h"
#include "launcher/dprun/cores.h"
#include "launcher/dprun/job.h"
#include "launcher/dprun/remote/look.h"
#include "runtime/base/driver.h"
#include "runtime/base/local_socket.h"
#include "runtime/base/rendezvous.h"
#include "launcher/dprun/run_dir.h"
#include "launcher/dprun/timeline.h"
#include "launcher/dprun/tree.h"

#define CONNECT_NS UINT64_C(5000000000)

typedef struct check {
    FILE *out;
    int failed;
} check_t;

static void print_result(check_t *check, const char *name, int is_ok, const char *remedy,
                         const char *format, ...) __attribute__((format(printf, 5, 6)));

static void print_result(check_t *check, const char *name, int is_ok, const char *remedy,
                         const char *format, ...)
{
    va_list arguments;

    fprintf(check->out, "%-7s %-16s ", is_ok ? "ok" : "FAILED", name);
    va_start(arguments, format);
    vfprintf(check->out, format, arguments);
    va_end(arguments);
    fputc('\n', check->out);
    if (is_ok) return;
    fprintf(check->out, "        %-16s -> %s\n", "", remedy);
    check->failed++;
}

static void check_build(check_t *check)
{
    char tool[PATH_MAX];

    print_result(check, "build", 1, "", "dprun %d.%d.%d, %s %d.%d%s", DP_VERSION_MAJOR,
                 DP_VERSION_MINOR, DP_VERSION_PATCH,
#if defined(__clang__)
                 "clang", __clang_major__, __clang_minor__,
#else
                 "gcc", __GNUC__, __GNUC_MINOR__,
#endif
#if defined(DP_ASSERTS) && DP_ASSERTS
                 ", with assertions"
#else
                 ""
#endif
    );
    dp_timeline_request_tool(tool, sizeof(tool));
    print_result(check, "dptrace", access(tool, X_OK) == 0,
                 "build the target dptrace, or install all of dp", "%s", tool);
}

/* A machine without a GPU is as good as any other: this only says what there is, or why not. */
static void check_gpu(check_t *check)
{
    char text[256];

    (void)dp_driver_find(text, sizeof(text));
    print_result(check, "gpu", 1, "", "%s", text);
}

static void check_ucx(check_t *check)
{
    char version[32];
    int is_there;

    fflush(check->out); /* a child process looks */
    is_there = dp_look_for_ucx(version, sizeof(version));
    print_result(check, "ucx", is_there, "install UCX (Debian: libucx0)", "libucp.so.0 %s",
                 is_there ? version : "cannot be loaded");
}

static void check_rendezvous(check_t *check)
{
    dp_kv_ticket_t ticket;
    dp_error_t error = {DP_OK, ""};
    int listener = -1;
    int fd = -1;
    int is_ok = dp_rendezvous_listen(&ticket, &listener, &error) == DP_OK &&
                dp_local_connect(ticket.address, dp_now_ns() + CONNECT_NS, &fd, &error) == DP_OK;

    print_result(check, "rendezvous", is_ok,
                 "abstract sockets are Linux's; is a sandbox in the way?", "%s",
                 is_ok ? "a socket of this machine listens and connects" : error.text);
    explicit_bzero(&ticket, sizeof(ticket));
    if (fd >= 0) close(fd);
    if (listener >= 0) close(listener);
}

static void check_memfd(check_t *check)
{
    int fd = memfd_create("dprun-check", MFD_CLOEXEC);
    void *memory = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, 4096) == 0) {
        memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    print_result(check, "shared memory", memory != MAP_FAILED,
                 "needs Linux >= 3.17 without a seccomp filter"
                 " on memfd_create",
                 "%s", memory != MAP_FAILED ? "memfd_create, mmap" : strerror(errno));
    if (memory != MAP_FAILED) munmap(memory, 4096);
    if (fd >= 0) close(fd);
}

static void check_passing(check_t *check)
{
    dp_message_t message;
    int fds[2] = {-1, -1};
    int is_ok;

    dp_message_init(&message, DP_MESSAGE_STARTED, 0);
    message.fds[0] = STDOUT_FILENO;
    is_ok = dp_channel_open(fds, NULL) == DP_OK && dp_channel_send(fds[0], &message) == 0 &&
            dp_channel_receive(fds[1], &message) == 1 && message.fds[0] >= 0;
    print_result(check, "passing files", is_ok, "SCM_RIGHTS is refused; is a sandbox in the way?",
                 "%s", is_ok ? "descriptors over sockets" : strerror(errno));
    if (is_ok) close(message.fds[0]);
    if (fds[0] >= 0) close(fds[0]);
    if (fds[1] >= 0) close(fds[1]);
}

static void check_processes(check_t *check)
{
    int is_ok = prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
    size_t count;

    print_result(check, "subreaper", is_ok,
                 "needs Linux >= 3.4; without it daemons of ranks may escape", "%s",
                 is_ok ? "orphans of ranks stay ours" : strerror(errno));
    free(dp_tree_list(1, &count));
    is_ok = access("/proc/self/stat", R_OK) == 0;
    print_result(check, "proc", is_ok, "mount -t proc proc /proc", "%s",
                 is_ok ? "process trees can be walked" : "/proc is not readable");
}

static void check_limits(check_t *check, int size)
{
    int ranks = size > 0 ? size : 8;
    rlim_t need = (rlim_t)ranks * 5 + 64;
    struct rlimit limit;
    char value[32] = "unlimited";

    getrlimit(RLIMIT_NOFILE, &limit);
    print_result(check, "open files", limit.rlim_max == RLIM_INFINITY || limit.rlim_max >= need,
                 "raise the hard limit (ulimit -Hn, limits.conf, docker --ulimit nofile)",
                 "limit %llu (hard), %llu needed for %d ranks", (unsigned long long)limit.rlim_max,
                 (unsigned long long)need, ranks);
    getrlimit(RLIMIT_AS, &limit);
    if (limit.rlim_cur != RLIM_INFINITY) {
        snprintf(value, sizeof(value), "%llu MiB", (unsigned long long)limit.rlim_cur >> 20);
    }
    print_result(check, "address space",
                 limit.rlim_cur == RLIM_INFINITY ||
                     limit.rlim_cur >= DP_GIB + (rlim_t)ranks * 256 * DP_MIB,
                 "ulimit -v unlimited, or a smaller --fusion-bytes", "%s", value);
    getrlimit(RLIMIT_FSIZE, &limit);
    snprintf(value, sizeof(value), "unlimited");
    if (limit.rlim_cur != RLIM_INFINITY) {
        snprintf(value, sizeof(value), "%llu MiB", (unsigned long long)limit.rlim_cur >> 20);
    }
    print_result(check, "file size",
                 limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= 256 * DP_MIB,
                 "ulimit -f unlimited: shared memory counts as files", "%s", value);
    getrlimit(RLIMIT_NPROC, &limit);
    print_result(check, "processes",
                 limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= (rlim_t)ranks * 8,
                 "raise ulimit -u", "limit %lld",
                 limit.rlim_cur == RLIM_INFINITY ? -1LL : (long long)limit.rlim_cur);
}

static void check_machine(check_t *check, int size)
{
    dp_cores_t cores;
    dp_memory_sight_t memory;
    struct statvfs disk;
    const char *parent = dp_run_dir_parent();
    char path[PATH_MAX];
    dp_error_t error = {DP_OK, ""};
    int is_ok;

    dp_cores_init(&cores);
    print_result(check, "cores", 1, "", "%d of %d allowed%s", cores.allowed, cores.in_machine,
                 size > cores.allowed ? "; more ranks than cores: they take turns" : "");
    dp_cores_fini(&cores);
    dp_cgroup_memory(&memory);
    print_result(check, "memory", 1, "", "%.1f GiB%s", (double)memory.total_bytes / (double)DP_GIB,
                 memory.limit_bytes > 0 ? ", less for this cgroup" : "");
    is_ok = dp_run_dir_create(path, sizeof(path), &error) == DP_OK;
    if (is_ok) {
        int has_space = statvfs(path, &disk) == 0;
        double free_mib = has_space ? (double)disk.f_bavail * (double)disk.f_frsize / (1 << 20) : 0;

        dp_run_dir_remove(path);
        print_result(check, "run directory", free_mib >= 256,
                     "free some space there, or set TMPDIR", "in %s, %.0f MiB free", parent,
                     free_mib);
    } else {
        print_result(check, "run directory", 0, "set TMPDIR to a directory you may write to", "%s",
                     error.text);
    }
}

int dp_check_run(int size, FILE *out)
{
    check_t check = {out, 0};

    check_build(&check);
    check_gpu(&check);
    check_ucx(&check);
    check_rendezvous(&check);
    check_memfd(&check);
    check_passing(&check);
    check_processes(&check);
    check_limits(&check, size);
    check_machine(&check, size);
    if (check.failed == 0) {
        fprintf(out, "this machine can run jobs\n");
    } else {
        fprintf(out, "%d of these must be put right first\n", check.failed);
    }
    return check.failed == 0 ? 0 : 1;
}
