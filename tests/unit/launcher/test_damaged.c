/*
 * test_damaged.c - a damaged recorder costs what cannot be read of it, and nothing of the others.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/cases.h"
#include "tests/unit/launcher/synth_job.h"

static size_t events_of_rank(const dp_timeline_t *timeline, int rank, size_t *ranks)
{
    size_t count = 0;

    *ranks = timeline->rank_count;
    for (size_t i = 0; i < timeline->event_count; i++)
        count += timeline->ranks[timeline->events[i].rank].rank == rank;
    return count;
}

/* Whatever is left of one recorder, the other rank is shown whole, and one line tells what is
 * missing. */
static void damaged_recorder_costs_its_own_rank_alone(void **state)
{
    dp_synth_t synth = DP_SYNTH_INIT;
    dp_error_t error = {.text = ""};
    dp_timeline_t timeline;
    char path[2][128], wanted[64];
    size_t whole, part = 0, ranks;
    struct stat info;
    job_t job;

    (void)state;
    synth.ranks = 2;
    analyse_job(&job, &synth);
    whole = events_of_rank(&job.timeline, 0, &ranks);
    for (int r = 0; r < 2; r++)
        snprintf(path[r], sizeof(path[r]), "%s/trace.%d.dpt", job.path, r);
    assert_int_equal(stat(path[1], &info), 0);
    for (long left = info.st_size - 1; left > 0; left -= dp_max(left / 7, 1l)) {
        const int has_header = left >= DP_TRACE_HEADER_BYTES;

        assert_int_equal(truncate(path[1], left), 0);
        if (dp_timeline_load(job.path, NULL, &timeline, &error) != DP_OK)
            fail_msg("%ld bytes: %s", left, error.text);
        assert_int_equal(events_of_rank(&timeline, 0, &ranks), whole);
        assert_int_equal(ranks, 1 + has_header);
        assert_int_equal(timeline.missing_count, 1);
        snprintf(wanted, sizeof(wanted), has_header ? "%ld bytes of %ld" : "%ld bytes", left,
                 (long)info.st_size);
        if (strstr(timeline.missing[0], "rank 1") == NULL ||
            strstr(timeline.missing[0], "trace.1.dpt") == NULL ||
            strstr(timeline.missing[0], wanted) == NULL)
            fail_msg("no '%s' in '%s'", wanted, timeline.missing[0]);
        part = dp_max(part, events_of_rank(&timeline, 1, &ranks));
        dp_timeline_fini(&timeline);
    }
    assert_true(part > 0); /* of what is there something is shown */
    assert_int_equal(truncate(path[0], 0), 0);
    assert_int_equal(dp_timeline_load(job.path, NULL, &timeline, &error), DP_ERR_INVALID);
    assert_non_null(strstr(error.text, "trace.0.dpt: 0 bytes"));
    remove_job(&job);
}

/* The first recorder gives the clock; without it the next one does. */
static void first_recorder_may_be_the_damaged_one(void **state)
{
    dp_synth_t synth = DP_SYNTH_INIT;
    dp_error_t error = {.text = ""};
    dp_timeline_t timeline;
    char path[128];
    size_t ranks;
    FILE *file;
    job_t job;

    (void)state;
    analyse_job(&job, &synth);
    snprintf(path, sizeof(path), "%s/trace.0.dpt", job.path);
    file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 10000; i++)
        fputs("garbage", file);
    fclose(file);
    if (dp_timeline_load(job.path, NULL, &timeline, &error) != DP_OK) fail_msg("%s", error.text);
    assert_true(events_of_rank(&timeline, 3, &ranks) > 0);
    assert_int_equal(ranks, 3);
    assert_non_null(strstr(timeline.missing[0], "rank 0 is missing"));
    dp_timeline_fini(&timeline);
    remove_job(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_recorder_costs_its_own_rank_alone),
        cmocka_unit_test(first_recorder_may_be_the_damaged_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
