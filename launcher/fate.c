/*
 * fate.c - tells the cause of a failure from its victims.
 */
#include "launcher/fate.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* A peer's death is known in about 1 ms; what ends this much later may be a victim. */
#define SAME_TIME_NS UINT64_C(20000000)
/* Two processes are waited for in an order of the kernel's: this close together tells nothing. */
#define TIE_NS UINT64_C(5000000)

int dp_fate_init(dp_fate_t *fate, int size, uint64_t start_ns)
{
    memset(fate, 0, sizeof(*fate));
    fate->ranks = calloc((size_t)size, sizeof(*fate->ranks));
    fate->size = size;
    fate->start_ns = start_ns;
    return fate->ranks == NULL ? -1 : 0;
}

void dp_fate_fini(dp_fate_t *fate)
{
    free(fate->ranks);
    memset(fate, 0, sizeof(*fate));
}

int dp_rank_failed(const dp_rank_fate_t *rank)
{
    return rank->has_ended && (rank->start_error != 0 || rank->status != 0);
}

int dp_rank_exit_code(const dp_rank_fate_t *rank)
{
    if (WIFSIGNALED(rank->status)) return 128 + WTERMSIG(rank->status);
    return WEXITSTATUS(rank->status);
}

/* Whether it can be a cause: what ends after dprun told it to has a reason we know. */
static int is_candidate(const dp_fate_t *fate, const dp_rank_fate_t *rank)
{
    return dp_rank_failed(rank) && (fate->stop_ns == 0 || rank->end_ns <= fate->stop_ns);
}

static int weight(const dp_rank_fate_t *rank)
{
    if (rank->start_error != 0) return 2;
    return WIFSIGNALED(rank->status) ? 1 : 0;
}

int dp_fate_cause(const dp_fate_t *fate, int *doubt)
{
    uint64_t first_ns = UINT64_MAX;
    int cause = -1;

    *doubt = -1;
    for (int i = 0; i < fate->size; i++) {
        if (!is_candidate(fate, &fate->ranks[i])) continue;
        if (fate->ranks[i].end_ns < first_ns) first_ns = fate->ranks[i].end_ns;
    }
    for (int i = 0; i < fate->size; i++) {
        const dp_rank_fate_t *rank = &fate->ranks[i];
        const dp_rank_fate_t *best = cause < 0 ? NULL : &fate->ranks[cause];

        if (!is_candidate(fate, rank) || rank->end_ns - first_ns > SAME_TIME_NS) continue;
        if (best == NULL || weight(rank) > weight(best) ||
            (weight(rank) == weight(best) && rank->end_ns < best->end_ns)) {
            cause = i;
        }
    }
    if (cause < 0) return -1;
    for (int i = 0; i < fate->size && *doubt < 0; i++) {
        const dp_rank_fate_t *rank = &fate->ranks[i];
        const dp_rank_fate_t *best = &fate->ranks[cause];
        uint64_t apart = rank->end_ns > best->end_ns ? rank->end_ns - best->end_ns
                                                     : best->end_ns - rank->end_ns;

        if (i == cause || !is_candidate(fate, rank)) continue;
        if (weight(rank) == weight(best) ? apart <= TIE_NS : rank->end_ns < best->end_ns) {
            *doubt = i;
        }
    }
    return cause;
}
