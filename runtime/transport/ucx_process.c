/*
 * ucx_process.c - undoes what libucs does to a whole process: its signal handlers and its log.
 *
 * dp_init() calls it on every rank, on the program's thread, before anything of UCX is opened; and
 * ucx.c, for programs that make a transport alone. Linking libucs is enough for SIGSEGV and its kin
 * to end in a handler of UCX, which may hang, and for SIGHUP to be swallowed. UCX_ERROR_SIGNALS
 * would prevent it, but only if it was in the environment before the library was loaded.
 */
#include "runtime/transport/ucx_process.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <ucs/config/global_opts.h>

#include "runtime/base/config.h"

int dp_ucx_signals_restore(void)
{
    int count = 0;

    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        Dl_info info;

        if (sigaction(number, NULL, &action) != 0) continue; /* a number without a signal */
        if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) continue;
        /* The handlers share a union, so one member tells where either lies. */
        if (dladdr((void *)(uintptr_t)action.sa_handler, &info) == 0) continue;
        if (info.dli_fname == NULL || strstr(info.dli_fname, "libucs") == NULL) continue;
        memset(&action, 0, sizeof(action));
        action.sa_handler = SIG_DFL;
        if (sigaction(number, &action, NULL) == 0) count++;
    }
    return count;
}

/* UCX prints its log on standard output, which belongs to the program. Every failure comes back as
 * a status as well, and is reported by us. UCX keeps one level per process; a user who sets
 * UCX_LOG_LEVEL keeps it. */
void dp_ucx_process_prepare(void)
{
    (void)dp_ucx_signals_restore();
    if (dp_environment("UCX_LOG_LEVEL") == NULL) {
        (void)ucs_global_opts_set_value("LOG_LEVEL", "fatal");
    }
}
