/*
 * record.c - see record.h. Looks at the first pages of the recorders, and changes nothing.
 */
#include "launcher/dptrace/record.h"

#include <limits.h>
#include <stdio.h>
#include <time.h>

#include "launcher/dptrace/running.h"

#define RANKS_MAX 1024
#define LOOK_NS 20000000L

/* The latest step that every rank has ended, and the latest that any has. */
typedef struct ended {
    uint64_t all, any;
    int ranks, without; /* so many, and so many of them that have ended none */
} ended_t;

static ended_t look_at_ranks(const char *run_dir)
{
    ended_t ended = {.all = UINT64_MAX};
    int size = RANKS_MAX;

    for (int rank = 0; rank < size; rank++) {
        char path[PATH_MAX];
        dp_trace_head_t head;

        snprintf(path, sizeof(path), "%.3800s/trace.%d.dpt", run_dir, rank);
        if (dp_trace_head_read(path, &head, NULL) != DP_OK) continue;
        size = dp_min(head.size, RANKS_MAX);
        ended.ranks++;
        ended.without += head.steps == 0;
        ended.all = dp_min(ended.all, head.step);
        ended.any = dp_max(ended.any, head.step);
    }
    return ended;
}

dp_status_t dp_record_await(const char *run_dir, uint64_t count, dp_step_window_t *window,
                            void (*on_begin)(const dp_step_window_t *window), dp_error_t *error)
{
    const struct timespec pause = {0, LOOK_NS};
    ended_t ended = look_at_ranks(run_dir);

    if (ended.ranks == 0)
        return dp_error_set(error, DP_ERR_INVALID, "%s: no rank has a recorder here", run_dir);
    if (ended.without == ended.ranks) {
        return dp_error_set(error, DP_ERR_INVALID,
                            "%s: no rank has ended a step (dp_step_end()) yet", run_dir);
    }
    *window = (dp_step_window_t){.is_set = 1, .first = ended.any + 1, .last = ended.any + count};
    on_begin(window);
    while (dp_running_is_on(run_dir)) {
        ended = look_at_ranks(run_dir);
        if (ended.ranks > 0 && ended.without == 0 && ended.all >= window->last) return DP_OK;
        nanosleep(&pause, NULL);
    }
    ended = look_at_ranks(run_dir);
    if (ended.ranks == 0 || ended.any < window->first) {
        return dp_error_set(error, DP_ERR_INVALID, "%s: the job ended before step %llu did",
                            run_dir, (unsigned long long)window->first);
    }
    window->last = dp_min(window->last, ended.any);
    return DP_OK;
}
