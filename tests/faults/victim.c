/*
 * victim.c - a rank that comes to harm at a chosen moment, in a job that otherwise runs for ever.
 *
 *     dprun -np N victim RANK HOW WHEN
 *
 * HOW: kill stop segv exit0 exit5 abort; WHEN: start (before dp_init), init (right after), step (in
 * the middle of a loop of collectives), finalize. A survivor prints what it learned and exits 3.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp.h"

static void come_to_harm(dp_context_t *dp, const char *how)
{
    if (strcmp(how, "kill") == 0) kill(getpid(), SIGKILL);
    if (strcmp(how, "stop") == 0) kill(getpid(), SIGSTOP);
    if (strcmp(how, "segv") == 0) raise(SIGSEGV);
    if (strcmp(how, "exit0") == 0) _exit(0);
    if (strcmp(how, "exit5") == 0) _exit(5);
    if (strcmp(how, "abort") == 0) dp_abort(dp, "the victim gives up");
}

int main(int argc, char **argv)
{
    static float values[100000];
    const char *rank_text = getenv("DP_RANK");
    dp_context_t *dp;
    int rank, is_victim;

    if (argc != 4 || rank_text == NULL) {
        fprintf(stderr, "usage: dprun -np N victim RANK HOW WHEN\n");
        return 2;
    }
    rank = atoi(rank_text);
    is_victim = rank == atoi(argv[1]);
    if (is_victim && strcmp(argv[3], "start") == 0) come_to_harm(NULL, argv[2]);
    if (dp_init(NULL, &dp) != DP_OK) return 4;
    if (is_victim && strcmp(argv[3], "init") == 0) come_to_harm(dp, argv[2]);
    for (int step = 0; step < 20000; step++) {
        dp_handle_t *handle;
        dp_status_t status;

        dp_step_begin(dp, (uint64_t)step);
        status =
            dp_allreduce(dp_world(dp), "gradient", values, values, 100000, DP_F32, NULL, &handle);
        if (status == DP_OK) status = dp_wait(handle, -1.0, NULL);
        dp_step_end(dp);
        if (status != DP_OK) {
            fprintf(stderr, "learned: %s: %s\n", dp_status_string(status), dp_error_text(dp));
            dp_finalize(dp);
            return 3;
        }
        if (step == 100 && is_victim && strcmp(argv[3], "step") == 0) come_to_harm(dp, argv[2]);
        if (step == 100 && strcmp(argv[3], "finalize") == 0) {
            if (is_victim) come_to_harm(dp, argv[2]);
            break;
        }
    }
    if (dp_finalize(dp) != DP_OK) {
        fprintf(stderr, "learned: finalize failed\n");
        return 3;
    }
    return 0;
}
