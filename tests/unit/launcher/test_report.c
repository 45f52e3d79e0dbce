/*
 * test_report.c - who is the cause of a failure, who a victim, and how it is told.
 */
#include "launcher/dprun/failure/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <signal.h>

#include "tests/unit/cases.h"

#define MS UINT64_C(1000000)
#define SIZE 4

static void ended(dp_fate_t *fate, int rank, uint64_t ms, int status)
{
    fate->ranks[rank].pid = 100 + rank;
    fate->ranks[rank].has_ended = 1;
    fate->ranks[rank].end_ns = fate->start_ns + ms * MS;
    fate->ranks[rank].status = status;
}

#define EXITED(code) ((code) << 8)

static void reports(dp_fate_t *fate, int rank, dp_failure_kind_t kind, int culprit,
                    const char *text)
{
    dp_failure_t failure;

    dp_failure_init(&failure, kind, culprit, text);
    dp_fate_report(fate, rank, &failure, fate->start_ns);
}

static int cause_of(dp_fate_t *fate, int expected_doubt)
{
    dp_verdict_t verdict = dp_fate_cause(fate);

    assert_int_equal(verdict.doubt, expected_doubt);
    return verdict.cause;
}

static void fate_first_failure_is_the_cause(void **state)
{
    dp_fate_t fate;

    (void)state;
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    assert_int_equal(cause_of(&fate, -1), -1);
    ended(&fate, 0, 50, 0);
    assert_int_equal(cause_of(&fate, -1), -1);
    ended(&fate, 3, 300, EXITED(1));
    assert_int_equal(cause_of(&fate, -1), 3);
    ended(&fate, 1, 200, EXITED(7));
    assert_int_equal(cause_of(&fate, -1), 1);
    assert_int_equal(dp_rank_exit_code(&fate.ranks[1]), 7);
    dp_fate_fini(&fate);
}

static void fate_nobody_is_awaited_who_does_not_watch_its_neighbours(void **state)
{
    dp_fate_t fate;

    (void)state;
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    ended(&fate, 3, 100, SIGKILL);
    fate.ranks[3].lost = "no sign of life for 2.5 s";
    for (int rank = 0; rank < SIZE; rank++)
        fate.ranks[rank].has_joined = 1;
    fate.ranks[0].is_running = fate.ranks[1].is_running = 1; /* rank 2 still starts */
    assert_int_equal(dp_fate_is_pending(&fate, 200 * MS), 1);
    assert_int_equal(dp_fate_is_pending(&fate, 300 * MS), 0);
    reports(&fate, 0, DP_FAILURE_ENDED, 3, "rank 3 was lost before all ranks met");
    assert_int_equal(dp_fate_is_pending(&fate, 600 * MS), 1); /* it was told, and has not ended */
    assert_int_equal(dp_fate_is_pending(&fate, 800 * MS), 0);
    fate.ranks[2].is_running = 1;
    assert_int_equal(dp_fate_is_pending(&fate, 2900 * MS), 1); /* 1 and 2 will report */
    fate.ranks[3].lost = NULL; /* of a process's end its neighbours hear at once */
    fate.ranks[2].is_running = 0;
    assert_int_equal(dp_fate_is_pending(&fate, 2900 * MS), 1);
    dp_fate_fini(&fate);
}

static void fate_survivors_have_time_for_their_last_words(void **state)
{
    dp_fate_t fate;

    (void)state;
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    ended(&fate, 3, 100, SIGKILL);
    assert_int_equal(dp_fate_is_pending(&fate, 200 * MS), 1);
    assert_int_equal(dp_fate_is_pending(&fate, 300 * MS), 0); /* they use no libdp */
    for (int rank = 0; rank < SIZE; rank++)
        fate.ranks[rank].has_joined = 1;
    assert_int_equal(dp_fate_is_pending(&fate, 900 * MS), 1); /* they may still report */
    assert_int_equal(dp_fate_is_pending(&fate, 3100 * MS), 0);
    for (int rank = 0; rank < 3; rank++)
        reports(&fate, rank, DP_FAILURE_LOST, 3, "rank 3 (h): its connection broke");
    assert_int_equal(dp_fate_is_pending(&fate, 600 * MS), 1); /* all know, none has ended */
    assert_int_equal(dp_fate_is_pending(&fate, 800 * MS), 0);
    ended(&fate, 0, 110, EXITED(3));
    ended(&fate, 1, 120, EXITED(3));
    assert_int_equal(dp_fate_is_pending(&fate, 600 * MS), 1);
    fate.ranks[2].stopped_by = SIGSTOP; /* says nothing any more */
    assert_int_equal(dp_fate_is_pending(&fate, 600 * MS), 0);
    fate.ranks[2].stopped_by = 0;
    ended(&fate, 2, 130, EXITED(3));
    assert_int_equal(dp_fate_is_pending(&fate, 300 * MS), 0);
    dp_fate_fini(&fate);
}

/* A rank that loses a peer exits; that it was waited for first tells little. */
static void fate_signal_outranks_an_exit_at_the_same_time(void **state)
{
    dp_fate_t fate;

    (void)state;
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    ended(&fate, 0, 200, EXITED(1));
    ended(&fate, 2, 208, SIGKILL);
    assert_int_equal(cause_of(&fate, 0), 2);
    assert_int_equal(dp_rank_exit_code(&fate.ranks[2]), 137);
    fate.ranks[2].end_ns += 100 * MS; /* no longer at the same time */
    assert_int_equal(cause_of(&fate, -1), 0);
    dp_fate_fini(&fate);
}

static void fate_two_alike_leave_doubt(void **state)
{
    dp_fate_t fate;

    (void)state;
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    ended(&fate, 3, 200, EXITED(1));
    ended(&fate, 1, 203, EXITED(1));
    assert_int_equal(cause_of(&fate, 1), 3);
    dp_fate_fini(&fate);
}

static void fate_what_dprun_ended_is_no_cause(void **state)
{
    dp_fate_t fate;

    (void)state;
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    fate.stop_ns = fate.start_ns + 100 * MS;
    ended(&fate, 0, 101, SIGTERM);
    ended(&fate, 1, 102, EXITED(1));
    assert_int_equal(cause_of(&fate, -1), -1);
    dp_fate_fini(&fate);
}

static void fate_follows_the_word_of_the_ranks_that_lost_a_peer(void **state)
{
    dp_fate_t fate;

    (void)state;
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    /* Rank 1 left early with code 0; rank 0 says so and exits. */
    ended(&fate, 1, 100, 0);
    reports(&fate, 0, DP_FAILURE_ABORTED, 0, "rank 0 (h): out of memory");
    reports(&fate, 0, DP_FAILURE_LOST, 1, "rank 1 (h): its connection broke");
    reports(&fate, 0, DP_FAILURE_LOST, 2, "rank 2 (h): its connection broke");
    ended(&fate, 0, 150, EXITED(3));
    assert_int_equal(cause_of(&fate, -1), 1);
    assert_int_equal(dp_fate_exit_code(&fate), 3);
    assert_string_equal(fate.ranks[0].failure.text, "rank 1 (h): its connection broke");
    dp_fate_fini(&fate);
    /* Rank 1 stands stopped until dprun kills it. */
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    fate.ranks[1].stopped_by = SIGSTOP;
    fate.ranks[1].stopped_ns = fate.start_ns + 10 * MS;
    reports(&fate, 0, DP_FAILURE_SILENT, 1, "rank 1: no sign of life");
    ended(&fate, 0, 3000, EXITED(3));
    fate.stop_ns = fate.start_ns + 3200 * MS;
    ended(&fate, 1, 3300, SIGTERM);
    assert_int_equal(cause_of(&fate, -1), 1);
    assert_int_equal(dp_fate_exit_code(&fate), 3);
    dp_fate_fini(&fate);
    /* Rank 1 wrote a core dump while the others gave it up. */
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    reports(&fate, 0, DP_FAILURE_SILENT, 1, "rank 1: no sign of life");
    ended(&fate, 0, 3000, EXITED(3));
    fate.stop_ns = fate.start_ns + 3200 * MS;
    ended(&fate, 1, 3300, SIGSEGV);
    assert_int_equal(cause_of(&fate, -1), 1);
    assert_int_equal(dp_fate_exit_code(&fate), 139);
    dp_fate_fini(&fate);
}

/* Connections close while a process still gives its memory back: its end is seen after that of the
 * ranks that missed it. */
static void fate_a_culprit_may_be_seen_to_end_last(void **state)
{
    dp_fate_t fate;

    (void)state;
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    reports(&fate, 0, DP_FAILURE_LOST, 1, "rank 1 (h): its connection broke");
    ended(&fate, 0, 150, EXITED(3));
    ended(&fate, 1, 158, 0);
    fate.stop_ns = fate.start_ns + 400 * MS;
    assert_int_equal(cause_of(&fate, -1), 1);
    /* unless dprun had told it to go */
    ended(&fate, 1, 410, 0);
    assert_int_equal(cause_of(&fate, -1), 0);
    dp_fate_fini(&fate);
}

/* A machine that hears nobody ends its ranks by itself; dprun loses its node only while it ends the
 * job. */
static void fate_a_node_lost_late_is_the_cause(void **state)
{
    dp_fate_t fate;

    (void)state;
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    for (int rank = 0; rank < 3; rank++) {
        reports(&fate, rank, DP_FAILURE_LOST, 3, "rank 3 (h): its connection broke");
        ended(&fate, rank, 3800 + 10 * (uint64_t)rank, EXITED(3));
    }
    fate.stop_ns = fate.start_ns + 4100 * MS;
    ended(&fate, 3, 6000, SIGKILL);
    assert_int_equal(cause_of(&fate, -1), 0); /* dprun killed it: the connection may be at fault */
    fate.ranks[3].lost = "its ssh ended (code 255)";
    assert_int_equal(cause_of(&fate, -1), 3);
    assert_int_equal(dp_fate_exit_code(&fate), 137);
    dp_fate_fini(&fate);
}

static void loses_node(dp_fate_t *fate, int rank, uint64_t silent_ms, uint64_t lost_ms,
                       int kernel_answered)
{
    ended(fate, rank, silent_ms, SIGKILL);
    fate->ranks[rank].lost = "no sign of life for 2.5 s";
    fate->ranks[rank].lost_ns = fate->start_ns + lost_ms * MS;
    fate->ranks[rank].has_only_stalled = kernel_answered;
}

/* On a machine with too few cores a second one had none for a while: its silence began before that
 * of the one that was cut off. */
static void fate_a_node_without_cores_is_no_cause_beside_one_that_is_cut_off(void **state)
{
    for (int order = 0; order < 2; order++) {
        dp_fate_t fate;

        (void)state;
        assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
        loses_node(&fate, order == 0 ? 1 : 2, 1000, 3500, 1);
        assert_int_equal(cause_of(&fate, -1), order == 0 ? 1 : 2); /* the only one so far */
        loses_node(&fate, order == 0 ? 2 : 1, 1300, 3600, 0);
        assert_int_equal(cause_of(&fate, -1), order == 0 ? 2 : 1);
        dp_fate_fini(&fate);
    }
}

static void fate_a_frozen_node_stays_the_cause_when_another_one_goes_later(void **state)
{
    dp_fate_t fate;

    (void)state;
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    loses_node(&fate, 1, 1000, 3500, 1);
    loses_node(&fate, 2, 3600, 3600, 0); /* its ssh ended */
    assert_int_equal(cause_of(&fate, -1), 1);
    loses_node(&fate, 3, 900, 3500, 1); /* equal signs: the earlier one */
    assert_int_equal(cause_of(&fate, -1), 3);
    dp_fate_fini(&fate);
}

static void fate_a_living_rank_is_not_blamed_on_hearsay(void **state)
{
    dp_fate_t fate;

    (void)state;
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    reports(&fate, 0, DP_FAILURE_SILENT, 1, "rank 1: no sign of life");
    reports(&fate, 1, DP_FAILURE_SILENT, 0, "rank 0: no sign of life");
    ended(&fate, 0, 3000, EXITED(3));
    fate.stop_ns = fate.start_ns + 3200 * MS;
    ended(&fate, 1, 3300, SIGTERM);
    assert_int_equal(cause_of(&fate, -1), 0);
    /* Two that blame each other must not keep us here. */
    ended(&fate, 1, 3010, EXITED(3));
    assert_true(cause_of(&fate, -1) >= 0);
    /* A rank cannot blame itself, nor one that does not exist. */
    reports(&fate, 2, DP_FAILURE_ABORTED, 2, "rank 2 (h): gives up");
    reports(&fate, 3, DP_FAILURE_LOST, 99, "rank 99 (h): gone");
    reports(&fate, 3, DP_FAILURE_LOST, -1, "rank 1 (h): gone");
    assert_int_equal(fate.ranks[2].blames, -1);
    assert_int_equal(fate.ranks[3].blames, -1);
    dp_fate_fini(&fate);
}

static const dp_tail_t *tail_of(const void *context, int rank)
{
    (void)rank;
    return context;
}

static void write_block(dp_report_t *report, char *text, size_t room)
{
    FILE *out = fmemopen(text, room, "w");

    assert_non_null(out);
    dp_report_failure(report, out);
    fclose(out);
}

static void expect(const char *text, const char *line)
{
    if (strstr(text, line) == NULL) fail_msg("no \"%s\" in:\n%s", line, text);
}

static void report_tells_an_out_of_memory_kill(void **state)
{
    char text[8192] = "";
    dp_tail_t tail = {.count = 0};
    dp_failure_t failure;
    dp_fate_t fate;
    dp_report_t report = {
        .fate = &fate,
        .node = "node07",
        .tail = tail_of,
        .context = &tail,
        .before = {.cgroup_kills = 0, .system_kills = -1},
        .after = {.cgroup_kills = 1, .system_kills = -1, .limit_bytes = INT64_C(64) << 30},
        .saved = "run directory /run/x (4 files)",
        .exit_code = 137};

    (void)state;
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    fate.stop_ns = fate.start_ns + 197700 * MS;
    fate.kill_ns = fate.start_ns + 198500 * MS;
    ended(&fate, 0, 197710, SIGTERM);
    ended(&fate, 1, 197482, SIGKILL);
    ended(&fate, 2, 197500, EXITED(1));
    ended(&fate, 3, 198501, SIGKILL);
    fate.ranks[1].peak_kib = UINT64_C(62) << 20;
    fate.ranks[1].has_joined = 1;
    dp_failure_init(&failure, DP_FAILURE_ABORTED, 1, "step 412 bucket 3/9 packing");
    failure.has_step = 1;
    failure.step = 412;
    dp_fate_report(&fate, 1, &failure, fate.ranks[1].end_ns - 40 * MS);
    dp_tail_add(&tail, "loader: growing cache", 21);
    write_block(&report, text, sizeof(text));
    expect(text, "dprun: FAILED  rank 1 (node07, local 1, pid 101): SIGKILL at step 412, "
                 "+03:17.482\n");
    expect(text,
           "  cause    out of memory: cgroup oom_kill 0 -> 1; peak RSS 62.0 GiB of 64.0 GiB\n");
    expect(text, "  last op  step 412 bucket 3/9 packing (0.040 s before)\n");
    expect(text, "  output   [1] loader: growing cache\n");
    expect(text, "  victims  0: stopped by dprun\n");
    expect(text, "           2: exited with code 1\n");
    expect(text, "           3: killed by dprun: SIGTERM was not enough\n");
    expect(text, "  saved    run directory /run/x (4 files)\n");
    expect(text, "  left     0 processes\n  exit     137\n");
    dp_tail_fini(&tail);
    dp_fate_fini(&fate);
}

static void report_names_a_stopped_rank_and_an_early_leaver(void **state)
{
    char text[8192] = "";
    dp_tail_t tail = {.count = 0};
    dp_fate_t fate;
    dp_report_t report = {
        .fate = &fate, .node = "h", .tail = tail_of, .context = &tail, .exit_code = 1};

    (void)state;
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    ended(&fate, 0, 100, 0);
    ended(&fate, 1, 3000, EXITED(1));
    fate.ranks[2].pid = 102;
    fate.ranks[2].stopped_by = SIGSTOP;
    fate.ranks[2].stopped_ns = fate.start_ns + 10 * MS;
    fate.ranks[3].has_joined = 1;
    write_block(&report, text, sizeof(text));
    expect(text, "rank 0 had exited with code 0 at +00:00.100");
    expect(text, "rank 2 (pid 102) stood stopped by SIGSTOP since +00:00.010");
    expect(text, "  last op  it never came to the rendezvous; 1 of 4 ranks did\n");
    expect(text, "  output   none\n");
    dp_fate_fini(&fate);
}

/* It lives, but the others say that they waited for it. */
static void report_names_a_rank_that_was_waited_for_in_vain(void **state)
{
    const char *stalled = "stalled 2.0 s: tensor wte: ready on 3 of 4 ranks; missing rank 2 (h): "
                          "step 7; rank 3 (h)";
    char text[8192] = "";
    dp_tail_t tail = {.count = 0};
    dp_fate_t fate;
    dp_report_t report = {.fate = &fate, .node = "h", .tail = tail_of, .context = &tail};

    (void)state;
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    for (int rank = 0; rank < SIZE; rank++)
        reports(&fate, rank, DP_FAILURE_STALLED, 2, stalled); /* all learn it, itself too */
    ended(&fate, 1, 2000, EXITED(3));
    fate.ranks[2].pid = 102;
    assert_int_equal(cause_of(&fate, -1), 2);
    assert_int_equal(dp_fate_exit_code(&fate), 3);
    fate.stop_ns = fate.start_ns + 2250 * MS;
    ended(&fate, 2, 2300, SIGTERM); /* by dprun */
    ended(&fate, 0, 2300, EXITED(3));
    assert_int_equal(cause_of(&fate, -1), 2);
    assert_int_equal(dp_fate_exit_code(&fate), 3);
    write_block(&report, text, sizeof(text));
    expect(text, "rank 2 (h, local 2, pid 102): waited for in vain after +00:02.000\n");
    expect(text, "  cause    it was running, but did not do what the others waited for");
    expect(text, "  told by  rank 1: stalled 2.0 s: tensor wte");
    dp_fate_fini(&fate);
    /* Silence: the report's age says for how long. */
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    reports(&fate, 1, DP_FAILURE_SILENT, 2, "rank 2 (h): no sign of life (stopped or unreachable)");
    fate.ranks[1].failure.age_ns = 2500 * MS;
    ended(&fate, 1, 2500, EXITED(3));
    assert_int_equal(cause_of(&fate, -1), 2);
    write_block(&report, text, sizeof(text));
    expect(text, "  told by  rank 1 after 2.5 s: rank 2 (h): no sign of life (stopped");
    dp_fate_fini(&fate);
    /* The same from the rendezvous. */
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    reports(&fate, 0, DP_FAILURE_LATE, 3,
            "1 of 4 ranks did not come in time: 3; there were 0, 1, 2 (hello)");
    ended(&fate, 0, 4000, EXITED(4));
    assert_int_equal(cause_of(&fate, -1), 3);
    dp_fate_fini(&fate);
    /* Its program runs, its coordinator does not. */
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    reports(&fate, 0, DP_FAILURE_SILENT, 3, "rank 3 (h): no sign of life for 3.0 s");
    ended(&fate, 0, 4000, EXITED(4));
    assert_int_equal(cause_of(&fate, -1), 3);
    dp_fate_fini(&fate);
}

/* One rank sees the silence; the one that exits first was only told of a loss. */
static void fate_silence_seen_by_one_rank_counts_for_all(void **state)
{
    dp_fate_t fate;

    (void)state;
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    reports(&fate, 0, DP_FAILURE_LOST, 3, "rank 3 (h): lost");
    ended(&fate, 0, 4000, EXITED(3));
    assert_int_equal(cause_of(&fate, -1), 0); /* a connection may be at fault */
    reports(&fate, 1, DP_FAILURE_SILENT, 3, "rank 3 (h): lost");
    assert_int_equal(cause_of(&fate, -1), 3);
    dp_fate_fini(&fate);
}

/* Without a recorder the report of the rank itself tells where it was. */
static void report_tells_what_a_rank_without_a_recorder_waited_for(void **state)
{
    char text[8192] = "";
    dp_tail_t tail = {.count = 0};
    dp_failure_t failure;
    dp_fate_t fate;
    dp_report_t report = {.fate = &fate, .node = "h", .tail = tail_of, .context = &tail};

    (void)state;
    assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
    dp_failure_init(&failure, DP_FAILURE_LOST, 1, "rank 1 (h): its connection broke");
    failure.has_step = 1;
    failure.step = 7;
    failure.operation_ns = 250 * MS;
    snprintf(failure.operation, sizeof(failure.operation), "h.0.weight");
    dp_fate_report(&fate, 0, &failure, fate.start_ns + 900 * MS);
    ended(&fate, 0, 1000, EXITED(3));
    write_block(&report, text, sizeof(text));
    expect(text, "rank 0 (h, local 0, pid 100): exit code 3 at step 7, +00:01.000\n");
    expect(text, "  last op  waiting for h.0.weight, submitted 0.350 s before\n");
    expect(text, "  doubt    it says: rank 1 (h): its connection broke\n");
    dp_fate_fini(&fate);
}

/* ---- The verdict reads no texts ------------------------------------------------------------- */

/* The reports of each case's ranks; the text of all reports is `text`. */
typedef struct verdict_case {
    const char *name;
    void (*play)(dp_fate_t *fate, const char *text);
    int cause, exit_code;
} verdict_case_t;

static void all_report(dp_fate_t *fate, dp_failure_kind_t kind, int culprit, const char *text)
{
    for (int rank = 0; rank < fate->size; rank++)
        if (rank != culprit) reports(fate, rank, kind, culprit, text);
}

static void others_exit(dp_fate_t *fate, int except, uint64_t ms)
{
    for (int rank = 0; rank < fate->size; rank++)
        if (rank != except) ended(fate, rank, ms + (uint64_t)rank * 6, EXITED(3));
}

static void play_killed(dp_fate_t *fate, const char *text)
{
    all_report(fate, DP_FAILURE_LOST, 2, text);
    ended(fate, 2, 102, SIGKILL); /* seen after the first of its victims */
    others_exit(fate, 2, 100);
}

static void play_stopped(dp_fate_t *fate, const char *text)
{
    fate->ranks[1].stopped_by = SIGSTOP;
    fate->ranks[1].stopped_ns = fate->start_ns + 10 * MS;
    reports(fate, 0, DP_FAILURE_SILENT, 1, text);
    reports(fate, 2, DP_FAILURE_LOST, 1, text);
    others_exit(fate, 1, 3000);
}

static void play_stalled(dp_fate_t *fate, const char *text)
{
    all_report(fate, DP_FAILURE_STALLED, 3, text);
    reports(fate, 3, DP_FAILURE_STALLED, 3, text); /* it learns it too */
    others_exit(fate, 3, 2000);
}

static void play_mismatch(dp_fate_t *fate, const char *text)
{
    all_report(fate, DP_FAILURE_MISMATCH, 1, text);
    reports(fate, 1, DP_FAILURE_MISMATCH, 1, text); /* it found the difference, and ends first */
    ended(fate, 1, 500, EXITED(3));
    others_exit(fate, 1, 510);
}

static void play_aborted(dp_fate_t *fate, const char *text)
{
    all_report(fate, DP_FAILURE_ABORTED, 0, text);
    reports(fate, 0, DP_FAILURE_ABORTED, 0, text);
    others_exit(fate, 0, 300); /* all before the rank that aborted */
    ended(fate, 0, 330, EXITED(9));
}

static void play_aborted_and_slow(dp_fate_t *fate, const char *text)
{
    all_report(fate, DP_FAILURE_ABORTED, 0, text);
    reports(fate, 0, DP_FAILURE_ABORTED, 0, text);
    others_exit(fate, 0, 300);
    fate->stop_ns = fate->start_ns + 800 * MS;
    ended(fate, 0, 900, EXITED(9)); /* told to, on its way out */
}

/* Rank 3 died, rank 2 lost it and exited, ranks 0 and 1 know of rank 2 alone. */
static void play_lost_two_deep(dp_fate_t *fate, const char *text)
{
    reports(fate, 0, DP_FAILURE_LOST, 2, text);
    reports(fate, 1, DP_FAILURE_LOST, 2, text);
    reports(fate, 2, DP_FAILURE_LOST, 3, text);
    ended(fate, 0, 100, EXITED(3));
    ended(fate, 1, 130, EXITED(3));
    ended(fate, 2, 131, EXITED(4));
    ended(fate, 3, 132, 0);
}

static void play_out_of_memory(dp_fate_t *fate, const char *text)
{
    reports(fate, 2, DP_FAILURE_ABORTED, 2, text); /* its allocation failed, it said so, */
    reports(fate, 0, DP_FAILURE_ABORTED, 2, text);
    ended(fate, 2, 200, SIGKILL); /* and the kernel killed it */
    ended(fate, 0, 201, EXITED(3));
    fate->stop_ns = fate->start_ns + 450 * MS;
    ended(fate, 1, 460, SIGTERM);
    ended(fate, 3, 460, SIGTERM);
}

static void play_late(dp_fate_t *fate, const char *text)
{
    all_report(fate, DP_FAILURE_LATE, 1, text);
    others_exit(fate, 1, 5000);
}

static void play_left_early(dp_fate_t *fate, const char *text)
{
    ended(fate, 3, 90, 0);
    all_report(fate, DP_FAILURE_ENDED, 3, text);
    others_exit(fate, 3, 100);
}

static void play_lost_and_alive(dp_fate_t *fate, const char *text)
{
    reports(fate, 0, DP_FAILURE_LOST, 1, text);
    ended(fate, 0, 100, EXITED(3));
}

static const verdict_case_t verdict_cases[] = {
    {"killed", play_killed, 2, 137},
    {"stopped", play_stopped, 1, 3},
    {"stalled", play_stalled, 3, 3},
    {"mismatch", play_mismatch, 1, 3},
    {"aborted", play_aborted, 0, 9},
    {"aborted and slow", play_aborted_and_slow, 0, 3},
    {"lost two deep", play_lost_two_deep, 3, 3},
    {"out of memory", play_out_of_memory, 2, 137},
    {"late at the rendezvous", play_late, 1, 3},
    {"left early", play_left_early, 3, 3},
    {"lost and alive", play_lost_and_alive, 0, 3},
};

/* Texts that would mislead a parser, and some that it could not read. */
static const char *const any_texts[] = {
    "",
    "xyzzy",
    "rank 0 (h): no sign of life for 3.0 s (stopped or unreachable)",
    "rank 1 (h): its connection broke",
    "stalled 2.0 s: tensor wte: ready on 3 of 4 ranks; missing rank 0 (h)",
    "1 of 4 ranks did not come in time: 2; there were 0, 1, 3 (hello)",
    "rank 3 exited with code 1 before all ranks met (hello)",
};

static void fate_verdict_reads_no_texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(verdict_cases) / sizeof(verdict_cases[0]); i++) {
        for (size_t k = 0; k < sizeof(any_texts) / sizeof(any_texts[0]); k++) {
            const verdict_case_t *expected = &verdict_cases[i];
            dp_fate_t fate;
            int cause, code;

            assert_int_equal(dp_fate_init(&fate, SIZE, 1000 * MS), 0);
            expected->play(&fate, any_texts[k]);
            cause = dp_fate_cause(&fate).cause;
            code = dp_fate_exit_code(&fate);
            if (cause != expected->cause || code != expected->exit_code) {
                fail_msg("%s, text \"%s\": cause %d, exit code %d, expected %d and %d",
                         expected->name, any_texts[k], cause, code, expected->cause,
                         expected->exit_code);
            }
            dp_fate_fini(&fate);
        }
    }
}

static void report_lists_ranks_as_ranges(void **state)
{
    unsigned char is_member[1024] = {0};
    char text[64];

    (void)state;
    dp_format_ranks(is_member, 8, text, sizeof(text));
    assert_string_equal(text, "");
    is_member[0] = is_member[1] = is_member[2] = is_member[4] = is_member[6] = is_member[7] = 1;
    dp_format_ranks(is_member, 8, text, sizeof(text));
    assert_string_equal(text, "0-2,4,6,7");
    for (int i = 0; i < 1024; i += 2) {
        is_member[i] = 1;
        is_member[i + 1] = 0;
    }
    dp_format_ranks(is_member, 1024, text, sizeof(text));
    assert_true(strlen(text) < sizeof(text));
    assert_string_equal(text + strlen(text) - 4, ",...");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fate_first_failure_is_the_cause),
        cmocka_unit_test(fate_survivors_have_time_for_their_last_words),
        cmocka_unit_test(fate_nobody_is_awaited_who_does_not_watch_its_neighbours),
        cmocka_unit_test(fate_signal_outranks_an_exit_at_the_same_time),
        cmocka_unit_test(fate_two_alike_leave_doubt),
        cmocka_unit_test(fate_what_dprun_ended_is_no_cause),
        cmocka_unit_test(fate_follows_the_word_of_the_ranks_that_lost_a_peer),
        cmocka_unit_test(fate_a_culprit_may_be_seen_to_end_last),
        cmocka_unit_test(fate_a_node_lost_late_is_the_cause),
        cmocka_unit_test(fate_a_node_without_cores_is_no_cause_beside_one_that_is_cut_off),
        cmocka_unit_test(fate_a_frozen_node_stays_the_cause_when_another_one_goes_later),
        cmocka_unit_test(fate_a_living_rank_is_not_blamed_on_hearsay),
        cmocka_unit_test(report_tells_an_out_of_memory_kill),
        cmocka_unit_test(report_names_a_stopped_rank_and_an_early_leaver),
        cmocka_unit_test(report_names_a_rank_that_was_waited_for_in_vain),
        cmocka_unit_test(fate_silence_seen_by_one_rank_counts_for_all),
        cmocka_unit_test(report_tells_what_a_rank_without_a_recorder_waited_for),
        cmocka_unit_test(fate_verdict_reads_no_texts),
        cmocka_unit_test(report_lists_ranks_as_ranges),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
