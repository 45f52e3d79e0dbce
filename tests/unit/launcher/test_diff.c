/*
 * test_diff.c - `dptrace diff` says which part, span and bucket of a step became slower, by how
 * much.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"
#include "tests/unit/launcher/synth_job.h"

/* The text for two jobs on paper. */
static void compare(const dp_synth_t *first, const dp_synth_t *second, char *text, size_t room)
{
    job_t one, two;
    FILE *file = fmemopen(text, room, "w");

    assert_non_null(file);
    analyse_job(&one, first);
    analyse_job(&two, second);
    assert_int_equal(dp_diff_write((dp_diff_side_t[]){{&one.timeline, &one.analysis, "one"},
                                                      {&two.timeline, &two.analysis, "two"}},
                                   file),
                     DP_OK);
    fclose(file);
    remove_job(&one);
    remove_job(&two);
}

/* The line that begins with `start`, its change in ms. */
static double change_of(const char *text, const char *start)
{
    const char *line = strstr(text, start);
    double before, after, change;

    if (line == NULL) fail_msg("no \"%s\" in:\n%s", start, text);
    if (sscanf(line + strlen(start), " %lf %lf %lf", &before, &after, &change) != 3)
        fail_msg("no three numbers behind \"%s\" in:\n%s", start, text);
    assert_true(fabs(after - before - change) < 0.02);
    return change;
}

static void expect(const char *text, const char *line)
{
    if (strstr(text, line) == NULL) fail_msg("no \"%s\" in:\n%s", line, text);
}

static void slower_work_is_named_by_its_span(void **state)
{
    dp_synth_t before = DP_SYNTH_INIT, after = DP_SYNTH_INIT;
    char text[8192] = "";

    (void)state;
    after.forward_ns += 4000000;
    compare(&before, &after, text, sizeof(text));
    expect(text, "B is slower by 4.00 ms a step");
    expect(text, "A  one: 4 ranks, 20 steps");
    if (strstr(text, "chance") != NULL) fail_msg("a clear difference is called chance:\n%s", text);
    ASSERT_NEAR(change_of(text, "\n  compute"), 4.0, 0.02);
    ASSERT_NEAR(change_of(text, "\n  forward"), 4.0, 0.02);
    compare(&after, &before, text, sizeof(text));
    expect(text, "B is faster by 4.00 ms a step");
    ASSERT_NEAR(-change_of(text, "\n  forward"), 4.0, 0.02);
}

static void slower_wire_is_named_by_its_buckets(void **state)
{
    dp_synth_t before = DP_SYNTH_INIT, after = DP_SYNTH_INIT;
    char text[8192] = "";

    (void)state;
    after.wire_ns = 5 * before.wire_ns;
    compare(&before, &after, text, sizeof(text));
    ASSERT_NEAR(change_of(text, "\n  exposed wire"), 44.0, 0.02); /* the rest is hidden */
    ASSERT_NEAR(change_of(text, "\n  allreduce h.0.attn.1.weight"), 8.0, 0.02);
}

static void a_late_rank_is_skew(void **state)
{
    dp_synth_t before = DP_SYNTH_INIT, after = DP_SYNTH_INIT;
    char text[8192] = "";

    (void)state;
    after.late_rank = 1;
    after.late_ns = 5000000;
    compare(&before, &after, text, sizeof(text));
    ASSERT_NEAR(change_of(text, "\n  skew"), 5.0, 0.1);
}

static void equal_recordings_differ_in_nothing(void **state)
{
    dp_synth_t synth = DP_SYNTH_INIT;
    char text[8192] = "";

    (void)state;
    compare(&synth, &synth, text, sizeof(text));
    expect(text, "B takes as long as A");
    expect(text, "nothing changes by half a percent of the step");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slower_work_is_named_by_its_span),
        cmocka_unit_test(slower_wire_is_named_by_its_buckets),
        cmocka_unit_test(a_late_rank_is_skew),
        cmocka_unit_test(equal_recordings_differ_in_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
