/*
 * job_folder.h - a job's recordings in a folder of their own, for the tests that load and analyse
 * them.
 */
#ifndef DP_TESTS_JOB_FOLDER_H
#define DP_TESTS_JOB_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/dptrace/analysis.h"
#include "tests/unit/cases.h"

#define RANKS_MAX 8 /* of a job */

typedef struct job {
    char path[64];
    dp_timeline_t timeline;
    dp_analysis_t analysis;
} job_t;

/* Makes the folder; nothing is loaded. */
static inline void job_folder(job_t *job)
{
    memset(job, 0, sizeof(*job));
    snprintf(job->path, sizeof(job->path), "/tmp/dp-test-job-XXXXXX");
    assert_non_null(mkdtemp(job->path));
}

static inline void remove_job(job_t *job)
{
    char path[96];

    for (int rank = 0; rank < RANKS_MAX; rank++) {
        snprintf(path, sizeof(path), "%s/trace.%d.dpt", job->path, rank);
        unlink(path);
    }
    assert_int_equal(rmdir(job->path), 0);
    dp_analysis_fini(&job->analysis);
    dp_timeline_fini(&job->timeline);
}

#endif
