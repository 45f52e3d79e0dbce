/*
 * waits.c - loaded before everything else into the processes of a job: notes each call that waits
 * on a thread which has an event loop to serve.
 *
 *     WAITS=FILE   a line for each: the function, its descriptor, the callers' addresses; and
 *                  "serves NAME" for each thread that has a loop, with a wait of this file's own
 *                  (canary) to show that it would be noted
 *
 * A thread serves one while it is inside event_base_loop() or event_base_dispatch(), and a
 * coordinator always, which enters its loop for one turn at a time. There nothing may wait for
 * another process or for time: a stranger, a stopped process or a full pipe would hold up signals,
 * deadlines and all other connections. What counts is whether the call could wait, not whether it
 * did: so an idle machine shows what a flood would hit. Files on a disk do not count. The loop's
 * own epoll_wait() is libevent's, and is not looked at.
 */
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CALLERS 8
#define ONE_TURN 1       /* EVLOOP_ONCE */
#define MEMORY_DEVICES 1 /* major number of /dev/null, /dev/urandom, ... */

struct event_base;

static __thread int loops;  /* of libevent that this thread is in */
static __thread int always; /* a coordinator's thread */
static __thread int is_known;
static __thread int noting;

/* The C library's own, or libevent's. */
#define REAL(name) ((__typeof__(&(name)))(size_t)dlsym(RTLD_NEXT, #name))

static void write_line(const char *line)
{
    const char *path = getenv("WAITS");
    const int file =
        path == NULL ? -1 : open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);

    if (file < 0) return;
    (void)!REAL(write)(file, line, strlen(line));
    close(file);
}

static void note(const char *function, int fd)
{
    void *callers[CALLERS];
    char line[1024];
    int used, count;

    noting = 1;
    count = backtrace(callers, CALLERS);
    used = snprintf(line, sizeof(line), "%s fd %d", function, fd);
    for (int i = 0; i < count; i++) {
        Dl_info about;

        if (dladdr(callers[i], &about) == 0 || about.dli_fname == NULL ||
            strstr(about.dli_fname, "security_waits") != NULL)
            continue;
        used += snprintf(line + used, sizeof(line) - (size_t)used, " %s+%#zx",
                         strrchr(about.dli_fname, '/') == NULL ? about.dli_fname
                                                               : strrchr(about.dli_fname, '/') + 1,
                         (size_t)callers[i] - (size_t)about.dli_fbase - 1);
        if (used >= (int)sizeof(line) - 1) break;
    }
    snprintf(line + (used > (int)sizeof(line) - 2 ? (int)sizeof(line) - 2 : used), 2, "\n");
    write_line(line);
    noting = 0;
}

static int is_serving(void)
{
    return (loops > 0 || always) && !noting;
}

static void look_at_wait(const char *function, int may_wait)
{
    if (may_wait && is_serving()) note(function, -1);
}

static void look_at_fd(const char *function, int fd, int flags)
{
    struct stat about;
    int state;

    if (!is_serving() || (flags & MSG_DONTWAIT)) return;
    state = fcntl(fd, F_GETFL);
    if (state < 0 || (state & O_NONBLOCK) || fstat(fd, &about) != 0) return;
    if (S_ISREG(about.st_mode) || S_ISDIR(about.st_mode) || S_ISBLK(about.st_mode)) return;
    if (S_ISCHR(about.st_mode) && major(about.st_rdev) == MEMORY_DEVICES) return;
    note(function, fd);
}

#pragma GCC visibility push(default) /* these are what the program finds instead */

int event_base_loop(struct event_base *base, int flags);
int event_base_dispatch(struct event_base *base);

/* Once in each thread: what it is. */
static void enter_loop(int flags)
{
    char name[16] = "";
    char line[32];

    loops++;
    if (is_known) return;
    is_known = 1;
    (void)prctl(PR_GET_NAME, name);
    if (strncmp(name, "dprun", 5) != 0) { /* a rank: a thread has its name a moment later */
        always = flags == ONE_TURN;
        snprintf(name, sizeof(name), "%s", always ? "coordinator" : "rendezvous");
    }
    snprintf(line, sizeof(line), "serves %s\n", name);
    write_line(line);
    look_at_wait("canary", 1);
}

int event_base_loop(struct event_base *base, int flags)
{
    int code;

    enter_loop(flags);
    code = REAL(event_base_loop)(base, flags);
    loops--;
    return code;
}

int event_base_dispatch(struct event_base *base)
{
    int code;

    enter_loop(0);
    code = REAL(event_base_dispatch)(base);
    loops--;
    return code;
}

pid_t fork(void)
{
    const pid_t pid = REAL(fork)();

    if (pid == 0) loops = always = is_known = 0; /* a station's guard has no loop */
    return pid;
}

/* ---- Descriptors ---------------------------------------------------------------------------- */

int connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    look_at_fd("connect", fd, 0);
    return REAL(connect)(fd, address, bytes);
}

int accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
    look_at_fd("accept4", fd, 0);
    return REAL(accept4)(fd, address, bytes, flags);
}

ssize_t read(int fd, void *data, size_t bytes)
{
    look_at_fd("read", fd, 0);
    return REAL(read)(fd, data, bytes);
}

ssize_t readv(int fd, const struct iovec *parts, int count)
{
    look_at_fd("readv", fd, 0);
    return REAL(readv)(fd, parts, count);
}

ssize_t recv(int fd, void *data, size_t bytes, int flags)
{
    look_at_fd("recv", fd, flags);
    return REAL(recv)(fd, data, bytes, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    look_at_fd("recvmsg", fd, flags);
    return REAL(recvmsg)(fd, message, flags);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    look_at_fd("write", fd, 0);
    return REAL(write)(fd, data, bytes);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    look_at_fd("writev", fd, 0);
    return REAL(writev)(fd, parts, count);
}

ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    look_at_fd("send", fd, flags);
    return REAL(send)(fd, data, bytes, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    look_at_fd("sendmsg", fd, flags);
    return REAL(sendmsg)(fd, message, flags);
}

/* ---- Time and processes --------------------------------------------------------------------- */

int poll(struct pollfd *fds, nfds_t count, int timeout)
{
    look_at_wait("poll", timeout != 0);
    return REAL(poll)(fds, count, timeout);
}

int select(int count, fd_set *in, fd_set *out, fd_set *bad, struct timeval *timeout)
{
    look_at_wait("select", timeout == NULL || timeout->tv_sec != 0 || timeout->tv_usec != 0);
    return REAL(select)(count, in, out, bad, timeout);
}

int nanosleep(const struct timespec *time, struct timespec *left)
{
    look_at_wait("nanosleep", 1);
    return REAL(nanosleep)(time, left);
}

int usleep(useconds_t us)
{
    look_at_wait("usleep", 1);
    return REAL(usleep)(us);
}

pid_t waitpid(pid_t pid, int *status, int options)
{
    look_at_wait("waitpid", !(options & WNOHANG));
    return REAL(waitpid)(pid, status, options);
}

int flock(int fd, int operation)
{
    look_at_wait("flock", !(operation & LOCK_NB) && operation != LOCK_UN);
    return REAL(flock)(fd, operation);
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **found)
{
    look_at_wait("getaddrinfo", hints == NULL || !(hints->ai_flags & AI_NUMERICHOST));
    return REAL(getaddrinfo)(name, service, hints, found);
}

int pthread_join(pthread_t thread, void **value)
{
    look_at_wait("pthread_join", 1);
    return REAL(pthread_join)(thread, value);
}

int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock)
{
    look_at_wait("pthread_cond_wait", 1);
    return REAL(pthread_cond_wait)(condition, lock);
}

#pragma GCC visibility pop
