/*
 * fate.c - tells the cause of a failure from its victims, by typed facts alone (fate.h).
 *
 * Filled in by the files of supervise.c and read by report.c, on dprun's only thread.
 */
#include "launcher/dprun/failure/fate.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* A peer's death is known in about 1 ms; a rank that ends this much later may be a victim. */
#define SAME_TIME_NS UINT64_C(20000000)
/* wait() returns two dead children in an order of the kernel's choice: ends this close together say
 * nothing about which came first. */
#define TIE_NS UINT64_C(5000000)

/* From the first failure until ranks that do not use libdp are told to end. Peers learn of a
 * failure within some 10 ms. */
#define SETTLE_NS UINT64_C(250000000)
/* For ranks that know of the failure to write what they must and exit. Together with the time from
 * TERM to KILL a job's end stays below a second. */
#define LAST_WORDS_NS UINT64_C(700000000)
/* For ranks that use libdp and have not reported, on a machine that takes its time. */
#define REPORTS_NS UINT64_C(3000000000)

int dp_fate_init(dp_fate_t *fate, int size, uint64_t start_ns)
{
    memset(fate, 0, sizeof(*fate));
    fate->ranks = calloc((size_t)size, sizeof(*fate->ranks));
    fate->size = size;
    fate->start_ns = start_ns;
    if (fate->ranks == NULL) return -1;
    for (int i = 0; i < size; i++) {
        fate->ranks[i].blames = -1;
        fate->ranks[i].local = i; /* one machine */
    }
    return 0;
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

/* Whether it can be a cause. A rank that ended after dprun had told it to is none: dprun is the
 * reason. */
static int is_candidate(const dp_fate_t *fate, const dp_rank_fate_t *rank)
{
    return dp_rank_failed(rank) && (fate->stop_ns == 0 || rank->end_ns <= fate->stop_ns);
}

/* Whether its node, whose kernel answered, may have been short of cores while another one was
 * really gone. That one's silence began before this one was given up: what comes later may follow
 * from the end of the job. */
static int gives_way(const dp_fate_t *fate, const dp_rank_fate_t *rank)
{
    if (rank->lost == NULL || !rank->has_only_stalled) return 0;
    for (int i = 0; i < fate->size; i++) {
        const dp_rank_fate_t *other = &fate->ranks[i];

        if (other->lost != NULL && !other->has_only_stalled && other->end_ns <= rank->lost_ns)
            return 1;
    }
    return 0;
}

static int end_severity(const dp_rank_fate_t *rank)
{
    if (rank->start_error != 0 || rank->lost != NULL) return 2;
    return WIFSIGNALED(rank->status) ? 1 : 0;
}

static int may_be_first(const dp_fate_t *fate, const dp_rank_fate_t *rank)
{
    return is_candidate(fate, rank) && !gives_way(fate, rank);
}

/* The first to fail, without asking whom it blames. */
static int first_failed(const dp_fate_t *fate, int *doubt)
{
    uint64_t first_ns = UINT64_MAX;
    int found = -1;

    *doubt = -1;
    for (int i = 0; i < fate->size; i++) {
        if (!may_be_first(fate, &fate->ranks[i])) continue;
        if (fate->ranks[i].end_ns < first_ns) first_ns = fate->ranks[i].end_ns;
    }
    for (int i = 0; i < fate->size; i++) {
        const dp_rank_fate_t *rank = &fate->ranks[i];
        const dp_rank_fate_t *best = found < 0 ? NULL : &fate->ranks[found];

        if (!may_be_first(fate, rank) || rank->end_ns - first_ns > SAME_TIME_NS) continue;
        if (best == NULL || end_severity(rank) > end_severity(best) ||
            (end_severity(rank) == end_severity(best) && rank->end_ns < best->end_ns)) {
            found = i;
        }
    }
    for (int i = 0; i < fate->size && found >= 0 && *doubt < 0; i++) {
        const dp_rank_fate_t *rank = &fate->ranks[i];
        const dp_rank_fate_t *best = &fate->ranks[found];
        uint64_t apart =
            rank->end_ns > best->end_ns ? rank->end_ns - best->end_ns : best->end_ns - rank->end_ns;

        if (i == found || !may_be_first(fate, rank) || rank->blames == found) continue;
        if (rank->lost != NULL && rank->lost == best->lost) continue; /* with the same node */
        if (end_severity(rank) == end_severity(best) ? apart <= TIE_NS
                                                     : rank->end_ns < best->end_ns) {
            *doubt = i;
        }
    }
    return found;
}

int dp_rank_is_stopped(const dp_rank_fate_t *rank, uint64_t at_ns)
{
    return rank->stopped_by != 0 && rank->stopped_ns <= at_ns &&
           (!rank->has_ended || rank->end_ns > at_ns);
}

/* A signal that neither dprun nor a user's Ctrl-C sends: its own doing, however late it is seen (a
 * core dump takes its time). */
static int ended_by_own_signal(const dp_rank_fate_t *rank)
{
    int number = rank->has_ended && WIFSIGNALED(rank->status) ? WTERMSIG(rank->status) : 0;

    return number != 0 && number != SIGTERM && number != SIGKILL && number != SIGINT &&
           number != SIGHUP;
}

/* It ended before dprun told it to. Its end may be seen later than that of the ranks that missed
 * it: connections close while a process is still giving its memory back. */
static int left_by_itself(const dp_fate_t *fate, const dp_rank_fate_t *rank)
{
    return rank->has_ended && (fate->stop_ns == 0 || rank->end_ns <= fate->stop_ns);
}

/* It said itself that it ended the world. An interpreter may take long to end after that. */
static int has_aborted(const dp_fate_t *fate, const dp_rank_fate_t *rank)
{
    return rank->has_reported && rank->failure.kind == DP_FAILURE_ABORTED &&
           rank->failure.culprit == (int)(rank - fate->ranks);
}

dp_verdict_t dp_fate_cause(const dp_fate_t *fate)
{
    dp_verdict_t verdict = {-1, -1, -1};

    verdict.failed = first_failed(fate, &verdict.doubt);
    verdict.cause = verdict.failed;
    /* The culprit may itself report another culprit: follow the chain, at most one step per rank,
     * as two ranks may blame each other. */
    for (int step = 0; step < fate->size && verdict.cause >= 0; step++) {
        const dp_rank_fate_t *rank = &fate->ranks[verdict.cause];
        uint64_t at_ns = fate->ranks[verdict.failed].end_ns;
        const dp_rank_fate_t *blamed;

        if (rank->blames < 0 || end_severity(rank) > 0 || !dp_rank_failed(rank)) break;
        blamed = &fate->ranks[rank->blames];
        if (!dp_rank_is_stopped(blamed, at_ns) && !is_candidate(fate, blamed) &&
            !ended_by_own_signal(blamed) && !left_by_itself(fate, blamed) &&
            !has_aborted(fate, blamed) &&
            blamed->lost == NULL && /* its node was, however late that is known */
            (!blamed->is_awaited || blamed->blames >= 0)) {
            break; /* it lives: the connection may be at fault, or the one that blames */
        }
        verdict.cause = rank->blames;
        verdict.doubt = -1;
    }
    return verdict;
}

dp_cause_kind_t dp_fate_cause_kind(const dp_fate_t *fate, const dp_verdict_t *verdict)
{
    const dp_rank_fate_t *rank = &fate->ranks[verdict->cause];
    const uint64_t failed_ns = fate->ranks[verdict->failed].end_ns;

    if (rank->lost != NULL) return DP_CAUSE_NODE_LOST;
    if (dp_rank_is_stopped(rank, failed_ns)) return DP_CAUSE_STOPPED;
    if (rank->is_awaited && verdict->cause != verdict->failed &&
        (!rank->has_ended || rank->end_ns > failed_ns)) {
        return DP_CAUSE_LATE;
    }
    if (rank->start_error != 0) return DP_CAUSE_NOT_STARTED;
    if (WIFSIGNALED(rank->status)) return DP_CAUSE_KILLED;
    return dp_rank_failed(rank) ? DP_CAUSE_EXITED : DP_CAUSE_LEFT;
}

uint64_t dp_fate_cause_ns(const dp_fate_t *fate, const dp_verdict_t *verdict)
{
    switch (dp_fate_cause_kind(fate, verdict)) {
    case DP_CAUSE_STOPPED:
        return fate->ranks[verdict->cause].stopped_ns;
    case DP_CAUSE_LATE:
        return fate->ranks[verdict->failed].end_ns;
    default:
        return fate->ranks[verdict->cause].end_ns;
    }
}

int dp_fate_exit_code(const dp_fate_t *fate)
{
    const dp_verdict_t verdict = dp_fate_cause(fate);
    const dp_rank_fate_t *cause;

    if (verdict.cause < 0) return 1;
    cause = &fate->ranks[verdict.cause];
    if (dp_rank_failed(cause) &&
        (is_candidate(fate, cause) || ended_by_own_signal(cause) || cause->lost != NULL)) {
        return dp_rank_exit_code(cause);
    }
    return dp_rank_exit_code(&fate->ranks[verdict.failed]);
}

void dp_fate_report(dp_fate_t *fate, int rank, const dp_failure_t *failure, uint64_t now_ns)
{
    dp_rank_fate_t *reporter = &fate->ranks[rank];
    const int culprit = failure->culprit;
    const int is_blame = culprit >= 0 && culprit < fate->size && culprit != rank;

    /* One rank sees the silence and tells the others, who report a mere loss: what any of them
     * knows holds for the culprit. */
    if (is_blame && dp_failure_is_wait(failure->kind)) fate->ranks[culprit].is_awaited = 1;
    reporter->has_reported = 1;
    if (reporter->blames >= 0) return; /* what follows is a consequence of the first */
    if (is_blame) reporter->blames = culprit;
    reporter->failure = *failure;
    reporter->failure_ns = now_ns;
}

/* A rank that still starts does not watch its neighbours, nor does the news of a loss reach it. */
static int is_world_running(const dp_fate_t *fate)
{
    for (int i = 0; i < fate->size; i++) {
        const dp_rank_fate_t *rank = &fate->ranks[i];

        if (!rank->has_ended && rank->has_joined && !rank->is_running) return 0;
    }
    return 1;
}

int dp_fate_is_pending(const dp_fate_t *fate, uint64_t since_failure_ns)
{
    const int cause = dp_fate_cause(fate).cause;
    /* Where a node was lost during the start, only dprun knows of it: nobody will report. */
    const int knows_alone =
        cause >= 0 && fate->ranks[cause].lost != NULL && !is_world_running(fate);
    const uint64_t reports_ns = knows_alone ? SETTLE_NS : REPORTS_NS;

    if (since_failure_ns < SETTLE_NS) return 1;
    for (int i = 0; i < fate->size; i++) {
        const dp_rank_fate_t *rank = &fate->ranks[i];

        /* The rank that is blamed need not report, and a stopped one cannot. */
        if (rank->has_ended || !rank->has_joined || rank->stopped_by != 0 ||
            (i == cause && !has_aborted(fate, rank)))
            continue;
        if (since_failure_ns < (rank->has_reported ? LAST_WORDS_NS : reports_ns)) return 1;
    }
    return 0;
}
