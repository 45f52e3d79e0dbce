/*
 * timeline.c - runs dptrace merge over a job's run directory.
 *
 * dprun.c calls it after the last rank has ended, outside of the event loop, and waits for it.
 */
#include "launcher/dprun/timeline.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/config_value.h"

dp_status_t dp_timeline_request_parse(const char *text, dp_timeline_request_t *timeline,
                                      dp_error_t *error)
{
    dp_window_t window;
    dp_status_t status = dp_window_parse(text, &window, error);

    memset(timeline, 0, sizeof(*timeline));
    if (status != DP_OK) return status;
    if (window.file_bytes >= sizeof(timeline->file)) {
        return dp_error_set(error, DP_ERR_CONFIG, "timeline: its name has %zu bytes, %zu fit",
                            window.file_bytes, sizeof(timeline->file) - 1);
    }
    memcpy(timeline->file, text, window.file_bytes);
    if (window.has_steps) {
        snprintf(timeline->steps, sizeof(timeline->steps), "%llu-%llu",
                 (unsigned long long)window.first, (unsigned long long)window.last);
    }
    return DP_OK;
}

dp_status_t dp_timeline_request_check(const dp_timeline_request_t *timeline, dp_error_t *error)
{
    char folder[PATH_MAX];
    struct stat info;
    char *slash;

    snprintf(folder, sizeof(folder), "%s", timeline->file);
    slash = strrchr(folder, '/');
    if (slash == NULL) {
        snprintf(folder, sizeof(folder), ".");
    } else {
        slash[slash == folder ? 1 : 0] = '\0';
    }
    if (stat(timeline->file, &info) == 0 && S_ISDIR(info.st_mode)) {
        errno = EISDIR;
    } else if (access(folder, W_OK | X_OK) == 0) {
        return DP_OK;
    }
    return dp_error_set(error, DP_ERR_CONFIG, "--timeline %s: cannot be written: %s",
                        timeline->file, strerror(errno));
}

void dp_timeline_request_tool(char *path, size_t room)
{
    char self[PATH_MAX];
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash;

    snprintf(path, room, "dptrace");
    if (bytes <= 0) return;
    self[bytes] = '\0';
    slash = strrchr(self, '/');
    if (slash == NULL) return;
    snprintf(path, room, "%.*s/dptrace", (int)(slash - self), self);
}

static void exec_dptrace(const char *tool, const dp_timeline_request_t *timeline,
                         const char *run_dir)
{
    const char *arguments[] = {tool, "merge", run_dir, "-o", timeline->file, NULL, NULL, NULL};
    char *words[DP_ARRAY_LEN(arguments)];
    sigset_t held;

    if (timeline->steps[0] != '\0') {
        arguments[5] = "--steps";
        arguments[6] = timeline->steps;
    }
    for (size_t i = 0; i < DP_ARRAY_LEN(arguments); i++) {
        words[i] = arguments[i] == NULL ? NULL : strdup(arguments[i]);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* More signals of the request that has ended the job must not cost its timeline. */
    sigemptyset(&held);
    sigaddset(&held, SIGTERM);
    sigaddset(&held, SIGHUP);
    sigprocmask(SIG_SETMASK, &held, NULL);
    signal(SIGPIPE, SIG_DFL);
    /* Its standard output would come between ours; dprun says where the file is. */
    dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDOUT_FILENO);
    execv(tool, words);
    _exit(127);
}

dp_status_t dp_timeline_request_merge(const dp_timeline_request_t *timeline, const char *run_dir,
                                      dp_error_t *error)
{
    char tool[PATH_MAX];
    int status = 0;
    pid_t pid;

    dp_timeline_request_tool(tool, sizeof(tool));
    if (access(tool, X_OK) != 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "%s: %s", tool, strerror(errno));
    }
    pid = fork();
    if (pid == 0) exec_dptrace(tool, timeline, run_dir);
    if (pid < 0) return dp_error_set(error, DP_ERR_SYSTEM, "fork: %s", strerror(errno));
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return DP_OK;
    if (WIFSIGNALED(status)) {
        return dp_error_set(error, DP_ERR_SYSTEM, "%s merge was killed by signal %d", tool,
                            WTERMSIG(status));
    }
    return dp_error_set(error, DP_ERR_SYSTEM, "%s merge exited with code %d", tool,
                        WEXITSTATUS(status));
}
