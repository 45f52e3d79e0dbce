/*
 * cgroup.c - CPU quota and out-of-memory evidence from the kernel's files.
 *
 * A process sees its own path in /proc/self/cgroup, but inside a container the mount often starts
 * at that very group; so every level from the path up to the mount's root is tried.
 */
#include "launcher/dprun/cgroup.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/common.h"
#include "runtime/base/input_file.h"

/* The number behind "name " at the start of a line, or -1. */
static int64_t number_after(const char *text, const char *name)
{
    size_t bytes = strlen(name);

    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, name, bytes) == 0 && line[bytes] == ' ') {
            return strtoll(line + bytes, NULL, 10);
        }
        line = strchr(line, '\n');
        if (line != NULL) line++;
    }
    return -1;
}

/* Reads `file` of the nearest group at or above ours that has it. */
static int read_nearest(const char *mount, const char *controller, const char *file, char *text,
                        size_t room)
{
    char group[2048];
    char path[PATH_MAX];

    if (!dp_input_file_read_cgroup("/proc/self/cgroup", controller, group, sizeof(group))) return 0;
    for (;;) {
        char *slash;

        snprintf(path, sizeof(path), "%s%s/%s", mount, strcmp(group, "/") == 0 ? "" : group, file);
        if (dp_input_file_read(path, text, room)) return 1;
        slash = strrchr(group, '/');
        if (slash == NULL) return 0;
        *slash = '\0';
    }
}

void dp_cgroup_memory(dp_memory_sight_t *sight)
{
    char text[8192];
    char vmstat[16384];

    memset(sight, 0, sizeof(*sight));
    sight->cgroup_kills = -1;
    sight->system_kills = -1;
    if (read_nearest("/sys/fs/cgroup", "", "memory.events", text, sizeof(text)) ||
        read_nearest("/sys/fs/cgroup/memory", "memory", "memory.oom_control", text, sizeof(text))) {
        sight->cgroup_kills = number_after(text, "oom_kill");
    }
    if (read_nearest("/sys/fs/cgroup", "", "memory.max", text, sizeof(text)) ||
        read_nearest("/sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", text,
                     sizeof(text))) {
        int64_t limit = strtoll(text, NULL, 10); /* "max" reads as 0 */

        /* v1 says "no limit" with a number near 2^63. */
        sight->limit_bytes = limit > 0 && limit < INT64_MAX / 2 ? limit : 0;
    }
    if (dp_input_file_read("/proc/vmstat", vmstat, sizeof(vmstat))) {
        sight->system_kills = number_after(vmstat, "oom_kill");
    }
    if (dp_input_file_read("/proc/meminfo", text, sizeof(text))) {
        int64_t kib = number_after(text, "MemTotal:");

        sight->total_bytes = kib > 0 ? kib * 1024 : 0;
    }
}

double dp_cgroup_cpu_quota(void)
{
    char text[256];
    double quota;
    double period;

    if (read_nearest("/sys/fs/cgroup", "", "cpu.max", text, sizeof(text))) {
        return sscanf(text, "%lf %lf", &quota, &period) == 2 && period > 0 ? quota / period : 0;
    }
    if (!read_nearest("/sys/fs/cgroup/cpu", "cpu", "cpu.cfs_quota_us", text, sizeof(text))) {
        return 0;
    }
    quota = strtod(text, NULL);
    if (quota <= 0 ||
        !read_nearest("/sys/fs/cgroup/cpu", "cpu", "cpu.cfs_period_us", text, sizeof(text))) {
        return 0;
    }
    period = strtod(text, NULL);
    return period > 0 ? quota / period : 0;
}
