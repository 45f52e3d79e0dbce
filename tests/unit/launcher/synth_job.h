/*
 * synth_job.h - a job on paper (tests/trace/synth.h), written, loaded and analysed.
 */
#ifndef DP_TESTS_SYNTH_JOB_H
#define DP_TESTS_SYNTH_JOB_H

#include "tests/unit/launcher/job_folder.h"

#include <math.h>

#include "tests/trace/synth.h"

static inline void write_job(job_t *job, const dp_synth_t *synth)
{
    dp_error_t error = {.text = ""};

    job_folder(job);
    if (dp_synth_write(synth, job->path, &error) != DP_OK) fail_msg("%s", error.text);
}

static inline void analyse_job(job_t *job, const dp_synth_t *synth)
{
    dp_error_t error = {.text = ""};

    write_job(job, synth);
    if (dp_timeline_load(job->path, NULL, &job->timeline, &error) != DP_OK)
        fail_msg("%s", error.text);
    assert_int_equal(dp_analyse(&job->timeline, &job->analysis), DP_OK);
}

static inline double part_ms(const job_t *job, dp_step_part_t part)
{
    return job->analysis.part[part] / 1e6;
}

#define ASSERT_NEAR(value, expected, share)                                                        \
    do {                                                                                           \
        double is = (value), wanted = (expected);                                                  \
        if (fabs(is - wanted) > (share)*wanted)                                                    \
            fail_msg("%s is %g, expected %g", #value, is, wanted);                                 \
    } while (0)

static inline void check_sums(const job_t *job)
{
    for (size_t i = 0; i < job->analysis.step_count * job->analysis.rank_count; i++) {
        const dp_step_cell_t *cell = &job->analysis.cells[i];
        double sum = 0;

        if (!cell->is_set) continue;
        for (int p = 0; p < DP_PART_COUNT; p++) {
            assert_true(cell->part[p] >= 0);
            sum += cell->part[p];
        }
        if (fabs(sum - (double)cell->duration_ns) > 1)
            fail_msg("parts sum to %g of %g ns", sum, (double)cell->duration_ns);
    }
}

#endif
