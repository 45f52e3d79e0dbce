/*
 * tree.c - descendants of a process by way of /proc/PID/stat.
 *
 * Called by agent and guard, and by dprun where the agent was killed. Not
 * /proc/PID/task/TID/children: it is absent from many kernels, and only promises to be right while
 * everybody is stopped.
 */
#include "launcher/dprun/tree.h"

#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/common.h"
#include "runtime/base/input_file.h"

#define KILLED_NS UINT64_C(2000000000) /* for what got SIGKILL to be gone */
#define LOOK_NS 5000000L
#define ROUNDS_MAX 64 /* a fork bomb may outrun stopping; the caller repeats anyway */

static int read_process(const char *pid, dp_tree_process_t *process)
{
    char path[64];
    char text[512];
    char *open_mark;
    char *close_mark;

    snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
    if (!dp_input_file_read(path, text, sizeof(text))) return 0;
    memset(process, 0, sizeof(*process));
    process->pid = (pid_t)strtol(text, NULL, 10);
    /* The name may itself hold spaces and parentheses. */
    open_mark = strchr(text, '(');
    close_mark = strrchr(text, ')');
    if (open_mark == NULL || close_mark == NULL || close_mark < open_mark) return 0;
    snprintf(process->name, sizeof(process->name), "%.*s", (int)(close_mark - open_mark - 1),
             open_mark + 1);
    return sscanf(close_mark + 1, " %c %d %*d %d", &process->state, &process->parent,
                  &process->session) == 3;
}

static dp_tree_process_t *read_all(size_t *count)
{
    DIR *proc = opendir("/proc");
    dp_tree_process_t *all = NULL;
    size_t room = 0;

    *count = 0;
    if (proc == NULL) return NULL;
    for (struct dirent *entry; (entry = readdir(proc)) != NULL;) {
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        if (*count == room) {
            size_t larger = room == 0 ? 256 : room * 2;
            dp_tree_process_t *grown = realloc(all, larger * sizeof(*all));

            if (grown == NULL) break; /* the next round sees more */
            all = grown;
            room = larger;
        }
        if (read_process(entry->d_name, &all[*count])) (*count)++;
    }
    closedir(proc);
    return all;
}

static int is_below(const dp_tree_process_t *all, size_t count, pid_t parent, pid_t root)
{
    if (parent == root) return 1;
    for (size_t i = 0; i < count; i++) {
        if (all[i].pid == parent) return all[i].is_below;
    }
    return 0;
}

dp_tree_process_t *dp_tree_list(pid_t root, size_t *count)
{
    dp_tree_process_t *all = read_all(count);
    size_t kept = 0;
    int found = 1;

    while (found) { /* one level of the tree, or more, in each pass */
        found = 0;
        for (size_t i = 0; i < *count; i++) {
            if (all[i].is_below || !is_below(all, *count, all[i].parent, root)) continue;
            all[i].is_below = 1;
            found = 1;
        }
    }
    for (size_t i = 0; i < *count; i++) {
        if (!all[i].is_below || all[i].state == 'Z' || all[i].state == 'X') continue;
        all[kept++] = all[i];
    }
    *count = kept;
    if (kept > 0) return all;
    free(all);
    return NULL;
}

size_t dp_tree_kill(pid_t root)
{
    size_t before = 0;
    size_t count = 0;
    dp_tree_process_t *below;

    for (int round = 0; round < ROUNDS_MAX; round++) {
        below = dp_tree_list(root, &count);
        for (size_t i = 0; i < count; i++) {
            kill(below[i].pid, SIGSTOP);
        }
        free(below);
        if (count <= before) break;
        before = count;
    }
    below = dp_tree_list(root, &count);
    for (size_t i = 0; i < count; i++) {
        kill(below[i].pid, SIGKILL);
    }
    free(below);
    return count;
}

void dp_tree_await(pid_t child, uint64_t limit_ns)
{
    const struct timespec look = {0, LOOK_NS};
    uint64_t deadline_ns = dp_now_ns() + limit_ns;
    int is_killed = 0;

    while (waitpid(child, NULL, WNOHANG) == 0) {
        if (dp_now_ns() >= deadline_ns && is_killed) return; /* stuck in the kernel */
        if (dp_now_ns() >= deadline_ns) {
            dp_tree_kill(getpid());
            deadline_ns = dp_now_ns() + KILLED_NS;
            is_killed = 1;
        }
        nanosleep(&look, NULL);
    }
    while (is_killed && dp_tree_kill(getpid()) > 0 && dp_now_ns() < deadline_ns)
        nanosleep(&look, NULL);
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}
