/*
 * test_exposed.c - which collectives a step waited for: dptrace tells them apart, from recorders
 * and from merged files, and its JSON says the same.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/dptrace/analysis.h"
#include "launcher/dptrace/formats.h"
#include "tests/trace/synth.h"
#include "tests/unit/cases.h"

#define RANKS 4

enum { ALLREDUCE = 1, ALLGATHER = 3 }; /* as recorded: dp_collective_t + 1 */

typedef struct job {
    char path[64];
    dp_timeline_t timeline;
    dp_analysis_t analysis;
} job_t;

/* Six buckets of 4 ms a step, of which the last two are all-gathers. The five layers of 3 ms behind
 * the first submission hide 15 of the 24 ms. */
static dp_synth_t two_kinds(void)
{
    dp_synth_t synth = DP_SYNTH_INIT;

    synth.ranks = RANKS;
    synth.wire_ns = 4000000;
    synth.pack_ns = 1000;
    synth.gathers = 2;
    return synth;
}

static void make_job(job_t *job)
{
    const dp_synth_t synth = two_kinds();
    dp_error_t error = {.text = ""};

    memset(job, 0, sizeof(*job));
    (void)snprintf(job->path, sizeof(job->path), "/tmp/dp-test-exposed-XXXXXX");
    assert_non_null(mkdtemp(job->path));
    if (dp_synth_write(&synth, job->path, &error) != DP_OK) fail_msg("%s", error.text);
}

static void analyse(job_t *job, const char *path)
{
    dp_error_t error = {.text = ""};

    if (dp_timeline_load(path, NULL, &job->timeline, &error) != DP_OK) fail_msg("%s", error.text);
    assert_int_equal(dp_analyse(&job->timeline, &job->analysis), DP_OK);
}

static void remove_job(job_t *job)
{
    char path[96];

    for (int rank = 0; rank < RANKS; rank++) {
        (void)snprintf(path, sizeof(path), "%s/trace.%d.dpt", job->path, rank);
        unlink(path);
    }
    assert_int_equal(rmdir(job->path), 0);
    dp_analysis_fini(&job->analysis);
    dp_timeline_fini(&job->timeline);
}

static double ms(double ns)
{
    return ns / 1e6;
}

static void check_near(const char *what, double is, double wanted, double off)
{
    if (fabs(is - wanted) > off) fail_msg("%s is %g, expected %g", what, is, wanted);
}

/* The wait begins 9 ms before the last bucket ends: 1 ms of the fourth bucket, an all-reduce, and
 * both all-gathers. */
static void check_kinds(const dp_analysis_t *analysis)
{
    check_near("allreduce", ms(analysis->collective_ns[ALLREDUCE]), 1.0, 0.2);
    check_near("allgather", ms(analysis->collective_ns[ALLGATHER]), 8.0, 0.2);
    check_near("the sum",
               ms(analysis->collective_ns[ALLREDUCE] + analysis->collective_ns[ALLGATHER]),
               ms(analysis->part[DP_PART_WIRE]), 1e-6);
}

static void exposed_time_is_told_apart_by_collective(void **state)
{
    job_t job;

    (void)state;
    make_job(&job);
    analyse(&job, job.path);
    check_kinds(&job.analysis);
    for (size_t i = 0; i < job.analysis.step_count * job.analysis.rank_count; i++) {
        const dp_step_cell_t *cell = &job.analysis.cells[i];
        double sum = 0;

        for (int c = 0; c < DP_TRACE_COLLECTIVES; c++)
            sum += cell->exposed_ns[c];
        check_near("a step's sum", sum, cell->part[DP_PART_WIRE], 1.0);
    }
    assert_int_equal(job.analysis.groups[0].collective, ALLGATHER);
    remove_job(&job);
}

static void merged_files_keep_it(void **state)
{
    char path[] = "/tmp/dp-test-exposed-file-XXXXXX";
    dp_timeline_t timeline;
    dp_error_t error = {.text = ""};
    FILE *file;
    job_t job;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    file = fdopen(fd, "wb");
    assert_non_null(file);
    make_job(&job);
    if (dp_timeline_load(job.path, NULL, &timeline, &error) != DP_OK) fail_msg("%s", error.text);
    assert_int_equal(dp_perfetto_write(&timeline, file), DP_OK);
    assert_int_equal(fclose(file), 0);
    dp_timeline_fini(&timeline);
    analyse(&job, path);
    check_kinds(&job.analysis);
    unlink(path);
    remove_job(&job);
}

static void report_says_it_to_people_and_programs(void **state)
{
    char *text = NULL, *at;
    size_t bytes = 0;
    double value = 0;
    FILE *file;
    job_t job;

    (void)state;
    make_job(&job);
    analyse(&job, job.path);
    file = open_memstream(&text, &bytes);
    assert_non_null(file);
    dp_report_json(&job.timeline, &job.analysis, file);
    assert_int_equal(fclose(file), 0);
    at = strstr(text, "\n\"exposed_by_collective_ms\":{\"allreduce\":");
    assert_non_null(at);
    at = strstr(at, "\"allgather\":");
    assert_non_null(at);
    value = strtod(at + strlen("\"allgather\":"), NULL);
    check_near("allgather", value, 8.0, 0.2);
    assert_non_null(strstr(text, "\"collective\":\"allgather\""));
    free(text);
    text = NULL;
    file = open_memstream(&text, &bytes);
    assert_non_null(file);
    dp_report_text(&job.timeline, &job.analysis, "it", file);
    assert_int_equal(fclose(file), 0);
    assert_non_null(strstr(text, "\nexposed wire  allreduce "));
    free(text);
    remove_job(&job);
}

/* A type of the wire is for traffic between nodes. */
static void advice_knows_whether_there_are_nodes(void **state)
{
    job_t job;

    (void)state;
    make_job(&job);
    analyse(&job, job.path);
    for (int is_one = 0; is_one <= 1; is_one++) {
        char *text = NULL;
        size_t bytes = 0;
        FILE *file = open_memstream(&text, &bytes);

        assert_non_null(file);
        for (size_t i = 0; is_one && i < job.timeline.rank_count; i++)
            (void)snprintf(job.timeline.ranks[i].host, sizeof(job.timeline.ranks[i].host), "one");
        dp_report_text(&job.timeline, &job.analysis, "it", file);
        assert_int_equal(fclose(file), 0);
        assert_non_null(strstr(text, is_one ? ", 1 node, " : ", 2 nodes, "));
        assert_non_null(strstr(text, "so that it starts sooner"));
        assert_int_equal(strstr(text, "or --wire fp16 between nodes") == NULL, is_one);
        free(text);
    }
    remove_job(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exposed_time_is_told_apart_by_collective),
        cmocka_unit_test(merged_files_keep_it),
        cmocka_unit_test(report_says_it_to_people_and_programs),
        cmocka_unit_test(advice_knows_whether_there_are_nodes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
