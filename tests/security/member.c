/*
 * member.c - a rank for security.sh: works until it is told to stop, and says whether a variable of
 * its own is what it was.
 *
 *     security_member FOLDER
 *
 * Once dp_init() has returned it writes FOLDER/rank.N: where the variable lies, the number of hosts
 * its neighbours make, and its host's size. It goes on until rank 0 finds FOLDER/stop. Exit code 9:
 * the variable has changed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp.h"

#define CALM "nobody was here"

static char witness[64] = CALM; /* nothing here writes it */

static int tell(dp_context_t *dp, const char *folder)
{
    char path[512], temporary[528];
    FILE *file;
    int is_bad;

    snprintf(path, sizeof(path), "%s/rank.%d", folder, dp_rank(dp));
    snprintf(temporary, sizeof(temporary), "%s.new", path);
    file = fopen(temporary, "we");
    if (file == NULL) return -1;
    fprintf(file, "%llx %d %d\n", (unsigned long long)(size_t)witness, dp_local_rank(dp),
            dp_local_size(dp));
    is_bad = fclose(file) != 0;
    return is_bad || rename(temporary, path) != 0 ? -1 : 0;
}

static dp_status_t step(dp_context_t *dp, float *goes_on)
{
    dp_handle_t *handle;
    dp_status_t status;

    status = dp_allreduce(dp_world(dp), "goes on", goes_on, goes_on, 1, DP_F32, NULL, &handle);
    return status == DP_OK ? dp_wait(handle, -1.0, NULL) : status;
}

int main(int argc, char **argv)
{
    char error[512], stop[512];
    dp_init_options_t options = DP_INIT_OPTIONS_INIT;
    dp_context_t *dp;
    dp_status_t status;
    float goes_on = 1.0f;

    if (argc != 2) return 2;
    snprintf(stop, sizeof(stop), "%s/stop", argv[1]);
    options.error = error;
    options.error_bytes = sizeof(error);
    status = dp_init(&options, &dp);
    if (status != DP_OK) {
        fprintf(stderr, "member: %s: %s\n", dp_status_string(status), error);
        return 1;
    }
    if (tell(dp, argv[1]) != 0) return 2;
    while (status == DP_OK && goes_on > 0.0f) {
        goes_on = dp_rank(dp) == 0 && access(stop, F_OK) != 0 ? 1.0f : 0.0f;
        status = step(dp, &goes_on);
        usleep(2000);
    }
    if (status != DP_OK)
        fprintf(stderr, "member: %s: %s\n", dp_status_string(status), dp_error_text(dp));
    if (dp_finalize(dp) != DP_OK || status != DP_OK) return 1;
    if (memcmp(witness, CALM, sizeof(CALM)) == 0) return 0;
    fprintf(stderr, "member: its variable was written: %.60s\n", witness);
    return 9;
}
