/*
 * limits.c - what the kernel lets this process have (ulimit): open files, address space, file size.
 * bootstrap.c, runtime/shm and runtime/trace call it in dp_init().
 */
#include "runtime/base/limits.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/base/common.h"
#include "runtime/base/input_file.h"

#define ENOUGH 65536

void dp_limits_raise_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= ENOUGH) return;
    limit.rlim_cur = dp_min(limit.rlim_max, (rlim_t)ENOUGH); /* RLIM_INFINITY is the largest */
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

dp_status_t dp_limits_check_files(int need, const char *for_what, dp_error_t *error)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= (rlim_t)need) return DP_OK;
    return dp_error_set(error, DP_ERR_SYSTEM,
                        "%s need %d open files in each rank, the limit is %llu (ulimit -Hn: %llu)",
                        for_what, need, (unsigned long long)limit.rlim_cur,
                        (unsigned long long)limit.rlim_max);
}

const char *dp_limits_describe(int code, char *text, size_t room)
{
    struct rlimit limit = {0, 0};

    (void)getrlimit(RLIMIT_NOFILE, &limit);
    if (code == EMFILE) {
        snprintf(text, room, "no descriptor is free: the limit on open files is %llu (ulimit -n)",
                 (unsigned long long)limit.rlim_cur);
    } else if (code == ETOOMANYREFS) {
        snprintf(text, room,
                 "more descriptors of this user are on their way between processes than the limit "
                 "on open files, %llu (ulimit -n), allows",
                 (unsigned long long)limit.rlim_cur);
    } else {
        snprintf(text, room, "%s", strerror(code));
    }
    return text;
}

size_t dp_limits_address_space(size_t *left)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned long long pages = 0;
    struct rlimit limit;
    char text[64];

    *left = SIZE_MAX;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
    dp_input_file_read_line("/proc/self/statm", text, sizeof(text));
    if (sscanf(text, "%llu", &pages) != 1) pages = 0;
    *left = limit.rlim_cur > pages * page ? (size_t)(limit.rlim_cur - pages * page) : 0;
    return (size_t)limit.rlim_cur;
}

size_t dp_limits_file_bytes(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
    return (size_t)limit.rlim_cur;
}

const char *dp_limits_describe_memory(char *text, size_t room)
{
    size_t left;
    const size_t limit = dp_limits_address_space(&left);

    text[0] = '\0';
    if (limit != SIZE_MAX) {
        snprintf(text, room, ": ulimit -v (RLIMIT_AS) is %zu bytes, of which %zu are left", limit,
                 left);
    } else if (dp_limits_file_bytes() != SIZE_MAX) {
        snprintf(text, room, ": ulimit -f (RLIMIT_FSIZE) is %zu bytes", dp_limits_file_bytes());
    }
    return text;
}

const char *dp_limits_describe_start(int code)
{
    if (code == EPERM) {
        return "Operation not permitted (a sandbox that answers clone3() so instead of with "
               "ENOSYS, "
               "as older container runtimes do?)";
    }
    if (code != EAGAIN) return strerror(code);
    return "this user's processes and threads are at their limit (ulimit -u, RLIMIT_NPROC; or "
           "pids.max of the cgroup)";
}
