/*
 * test_skew.c - dptrace finds a rank that is late, however the ranks came to launch: by agreement,
 * or each by itself, so that the engines waited.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"
#include "tests/unit/launcher/synth_job.h"

static void late_rank_shows_as_skew(int wait_for_all, int unasked)
{
    const int sizes[] = {2, 3, 8};

    for (size_t i = 0; i < DP_ARRAY_LEN(sizes); i++) {
        dp_synth_t synth = DP_SYNTH_INIT;
        job_t job;

        synth.ranks = sizes[i];
        synth.late_rank = 1;
        synth.late_ns = 5000000;
        synth.wait_for_all = wait_for_all;
        synth.unasked = unasked;
        analyse_job(&job, &synth);
        check_sums(&job);
        ASSERT_NEAR(part_ms(&job, DP_PART_SKEW), 5.0, 0.1);
        ASSERT_NEAR(part_ms(&job, DP_PART_COMPUTE), 28.0, 0.01);
        ASSERT_NEAR(part_ms(&job, DP_PART_WIRE), 2.0, 0.1);
        assert_int_equal(job.timeline.ranks[job.analysis.stragglers[0].rank].rank, 1);
        assert_int_equal(job.analysis.stragglers[0].last_count, 20 * 6);
        ASSERT_NEAR(job.analysis.stragglers[0].late_ns, 5e6, 0.1);
        ASSERT_NEAR(job.analysis.stragglers[0].slow_ns, 5e6, 0.1);
        assert_string_equal(job.timeline.strings[job.analysis.stragglers[0].slow_span], "forward");
        remove_job(&job);
    }
}

static void rank_5_ms_late_shows_as_5_ms_of_skew(void **state)
{
    (void)state;
    late_rank_shows_as_skew(0, 0);
}

static void so_it_does_with_one_wait_for_all(void **state)
{
    (void)state;
    late_rank_shows_as_skew(1, 0);
}

/* In program order. */
static void so_it_does_where_ranks_launch_without_asking(void **state)
{
    (void)state;
    late_rank_shows_as_skew(0, 1);
    late_rank_shows_as_skew(1, 1);
}

/* The report in words, or as JSON; the caller frees it. */
static char *report_of(const job_t *job, int as_json)
{
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);

    assert_non_null(file);
    if (as_json) {
        dp_report_json(&job->timeline, &job->analysis, file);
    } else {
        dp_report_text(&job->timeline, &job->analysis, "job", file);
    }
    fclose(file);
    return text;
}

static void advice_names_the_late_rank_unless_ranks_take_turns(void **state)
{
    (void)state;
    for (int k = 0; k < 8; k++) {
        dp_synth_t synth = DP_SYNTH_INIT;
        const char *wanted = k & 4 ? "first      ranks take turns being late"
                                   : "first      find out why rank 1 on node00 is late";
        char *text;
        job_t job;

        synth.ranks = k & 2 ? 3 : 2;
        synth.steps = 24;
        synth.late_rank = 1;
        synth.late_ns = 5000000;
        synth.unasked = k & 1;
        synth.take_turns = (k & 4) != 0;
        analyse_job(&job, &synth);
        text = report_of(&job, 0);
        if (strstr(text, wanted) == NULL) fail_msg("case %d: no '%s' in:\n%s", k, wanted, text);
        free(text);
        remove_job(&job);
    }
}

/* Rank 2 is late, rank 0 waits for it, and rank 1 for what rank 0 makes of both. */
static void who_waits_for_one_that_waits_blames_the_late_one(void **state)
{
    dp_synth_t synth = DP_SYNTH_INIT;
    job_t job;

    (void)state;
    synth.ranks = 3;
    synth.late_rank = 2;
    synth.late_ns = 5000000;
    synth.unasked = 1;
    analyse_job(&job, &synth);
    for (size_t i = 0; i < job.timeline.event_count; i++) {
        dp_timeline_event_t *event = &job.timeline.events[i];

        if (event->kind != DP_TRACE_WAIT_RANK || event->rank != 1) continue;
        event->aux = 0;
        event->duration_ns += 10000;
    }
    dp_analysis_fini(&job.analysis);
    assert_int_equal(dp_analyse(&job.timeline, &job.analysis), DP_OK);
    assert_int_equal(job.timeline.ranks[job.analysis.stragglers[0].rank].rank, 2);
    assert_true(job.analysis.stragglers[0].share > 0.99);
    remove_job(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_5_ms_late_shows_as_5_ms_of_skew),
        cmocka_unit_test(so_it_does_with_one_wait_for_all),
        cmocka_unit_test(so_it_does_where_ranks_launch_without_asking),
        cmocka_unit_test(advice_names_the_late_rank_unless_ranks_take_turns),
        cmocka_unit_test(who_waits_for_one_that_waits_blames_the_late_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
