/*
 * forked.c - the registry of descriptors that a forked child gives up. Descriptors are registered
 * by any thread; fork() runs the handlers.
 *
 * give_up_fd() runs in the child before fork() returns, in a copy of a process whose other threads
 * are gone and may have held any lock. So it makes system calls only, and uses no lock and no
 * memory but the registry, whose lock the forking thread holds meanwhile (pthread_atfork).
 */
#include "runtime/base/forked.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define DEPTH_MAX 5    /* of epolls in epolls; the kernel permits no more */
#define LINE_BYTES 256 /* of /proc/self/fdinfo */

_Atomic unsigned dp_fork_count;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* guarded by lock */
static dp_fork_watch_t *first;
static unsigned contexts;
static int is_child;

/* ---- In the child --------------------------------------------------------------------------- */

/* The descriptors that an epoll watches, from a line such as
 *
 *     tfd:       12 events:       19 data:  7f..  pos:0 ino:5c1b sdev:8
 *
 * where the last two say which file 12 was when it was added. */
typedef struct epoll_target {
    int fd;
    uint64_t inode, device;
} epoll_target_t;

static const char *skip_to(const char *text, const char *word)
{
    const char *found = strstr(text, word);

    return found == NULL ? NULL : found + strlen(word);
}

static uint64_t parse_digits(const char *text, unsigned base)
{
    uint64_t value = 0;

    while (*text == ' ')
        text++;
    for (;; text++) {
        const char *digits = "0123456789abcdef";
        const char *digit = *text == '\0' ? NULL : strchr(digits, *text);

        if (digit == NULL || digit - digits >= (int)base) return value;
        value = value * base + (uint64_t)(digit - digits);
    }
}

static int parse_target(const char *line, epoll_target_t *out)
{
    const char *inode = skip_to(line, " ino:");
    const char *device = skip_to(line, " sdev:");

    if (strncmp(line, "tfd:", 4) != 0 || inode == NULL || device == NULL) return 0;
    out->fd = (int)parse_digits(line + 4, 10);
    out->inode = parse_digits(inode, 16);
    out->device = parse_digits(device, 16);
    return 1;
}

/* The kernel's dev_t, which it prints, has 20 bits for the minor number. */
static uint64_t kernel_device(dev_t device)
{
    return (uint64_t)major(device) << 20 | minor(device);
}

/* The number may be another file's by now: a descriptor that was closed stays in the epoll while a
 * copy of it is open elsewhere. */
static int is_still(const epoll_target_t *target)
{
    struct stat about;

    return fstat(target->fd, &about) == 0 && (uint64_t)about.st_ino == target->inode &&
           kernel_device(about.st_dev) == target->device;
}

static int open_info(int fd)
{
    char path[40] = "/proc/self/fdinfo/";
    char digits[12];
    size_t length = strlen(path);
    int count = 0;

    if (fd < 0) return -1;
    do {
        digits[count++] = (char)('0' + fd % 10);
        fd /= 10;
    } while (fd > 0);
    while (count > 0)
        path[length++] = digits[--count];
    path[length] = '\0';
    return open(path, O_RDONLY | O_CLOEXEC);
}

static void give_up_fd(int fd, int null, int depth);

static void give_up_target(const char *line, int self, int null, int depth)
{
    epoll_target_t target;

    if (parse_target(line, &target) && target.fd != self && target.fd != null && is_still(&target))
        give_up_fd(target.fd, null, depth + 1);
}

/* All that this epoll watches; of another file there is no such line. */
static void give_up_targets(int fd, int null, int depth)
{
    char text[LINE_BYTES];
    size_t used = 0;
    ssize_t got;
    const int info = depth < DEPTH_MAX ? open_info(fd) : -1;

    if (info < 0) return;
    while ((got = read(info, text + used, sizeof(text) - 1 - used)) > 0) {
        char *end;

        used += (size_t)got;
        text[used] = '\0';
        while ((end = strchr(text, '\n')) != NULL) {
            *end = '\0';
            give_up_target(text, info, null, depth);
            used -= (size_t)(end + 1 - text);
            memmove(text, end + 1, used + 1);
        }
        if (used == sizeof(text) - 1) break; /* no line of ours */
    }
    close(info);
}

static void give_up_fd(int fd, int null, int depth)
{
    struct stat about;

    if (fstat(fd, &about) != 0) return; /* not open */
    if (!S_ISSOCK(about.st_mode) && !S_ISFIFO(about.st_mode)) give_up_targets(fd, null, depth);
    if (null >= 0) {
        (void)dup3(null, fd, O_CLOEXEC);
    } else {
        close(fd);
    }
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    if (contexts > 0 || first != NULL) {
        const int null = open("/dev/null", O_RDWR | O_CLOEXEC);

        atomic_fetch_add_explicit(&dp_fork_count, 1, memory_order_relaxed);
        is_child |= contexts > 0;
        contexts = 0;
        for (dp_fork_watch_t *watch = first; watch != NULL; watch = watch->next) {
            give_up_fd(watch->fd, null, 0);
            watch->is_listed = 0;
        }
        first = NULL;
        if (null >= 0) close(null);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- In the parent -------------------------------------------------------------------------- */

static void install(void)
{
    (void)pthread_atfork(before_fork, after_fork, in_child);
}

void dp_fork_enter(void)
{
    pthread_once(&once, install);
    pthread_mutex_lock(&lock);
    contexts++;
    pthread_mutex_unlock(&lock);
}

void dp_fork_leave(void)
{
    pthread_mutex_lock(&lock);
    if (contexts > 0) contexts--;
    pthread_mutex_unlock(&lock);
}

int dp_fork_is_child(void)
{
    int answer;

    pthread_mutex_lock(&lock);
    answer = is_child;
    pthread_mutex_unlock(&lock);
    return answer;
}

void dp_fork_watch(dp_fork_watch_t *watch, int fd)
{
    pthread_once(&once, install);
    pthread_mutex_lock(&lock);
    watch->fd = fd;
    if (!watch->is_listed) {
        watch->is_listed = 1;
        watch->previous = NULL;
        watch->next = first;
        if (first != NULL) first->previous = watch;
        first = watch;
    }
    pthread_mutex_unlock(&lock);
}

void dp_fork_forget(dp_fork_watch_t *watch)
{
    pthread_mutex_lock(&lock);
    if (watch->is_listed) {
        if (watch->next != NULL) watch->next->previous = watch->previous;
        if (watch->previous != NULL) {
            watch->previous->next = watch->next;
        } else {
            first = watch->next;
        }
        watch->is_listed = 0;
    }
    pthread_mutex_unlock(&lock);
}
