/*
 * member.c - a rank for launch.sh: comes, sums, says who it is, and leaves; as often as asked. It
 * fails where a library has taken the signal of a closed terminal for itself.
 *
 *     member [rounds [seconds rank 0 sleeps between its collective and dp_finalize()]]
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "dp.h"

/* UCX installs a handler that swallows it, before main(); dp_init() takes that back. */
static int has_foreign_handler(void)
{
    struct sigaction action;

    if (sigaction(SIGHUP, NULL, &action) != 0) return 1;
    return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

static int meet(unsigned sleep_seconds)
{
    char error[512];
    dp_init_options_t options = DP_INIT_OPTIONS_INIT;
    dp_context_t *dp;
    dp_handle_t *handle;
    dp_status_t status;
    double value;

    options.error = error;
    options.error_bytes = sizeof(error);
    status = dp_init(&options, &dp);
    if (status != DP_OK) {
        fprintf(stderr, "member: %s: %s\n", dp_status_string(status), error);
        return 1;
    }
    if (has_foreign_handler()) {
        fprintf(stderr, "member: SIGHUP would be swallowed\n");
        return 1;
    }
    value = 1.0 + dp_rank(dp);
    status = dp_allreduce(dp_world(dp), "value", &value, &value, 1, DP_F64, NULL, &handle);
    if (status == DP_OK) status = dp_wait(handle, -1.0, NULL);
    if (status != DP_OK) {
        fprintf(stderr, "member: %s: %s\n", dp_status_string(status), dp_error_text(dp));
    } else {
        printf("rank %d of %d, local %d of %d, sum %g\n", dp_rank(dp), dp_size(dp),
               dp_local_rank(dp), dp_local_size(dp), value);
    }
    if (dp_rank(dp) == 0) sleep(sleep_seconds);
    return dp_finalize(dp) != DP_OK || status != DP_OK;
}

int main(int argc, char **argv)
{
    const long rounds = argc > 1 ? strtol(argv[1], NULL, 10) : 1;
    const long seconds = argc > 2 ? strtol(argv[2], NULL, 10) : 0;
    int failed = 0;

    for (long i = 0; i < rounds && !failed; i++)
        failed = meet((unsigned)seconds);
    return failed;
}
