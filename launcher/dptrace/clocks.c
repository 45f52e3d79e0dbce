/*
 * clocks.c - see clocks.h. Called by load.c for a directory of recorders.
 */
#include "launcher/dptrace/clocks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/dptrace/timeline.h"
#include "runtime/base/input_file.h"
#include "runtime/base/trace_format.h"

int dp_clocks_read(const char *directory, dp_clocks_t *clocks)
{
    char path[4200];
    char line[256];
    size_t room = 0;
    int failed = 0;
    const char *why;
    FILE *file;

    memset(clocks, 0, sizeof(*clocks));
    snprintf(path, sizeof(path), "%s/clocks", directory);
    file = dp_input_file_open(path, &why);
    if (file == NULL) return 0;
    while (!failed && fgets(line, sizeof(line), file) != NULL) {
        dp_clock_entry_t entry;

        if (sscanf(line, "%d %" SCNu64 " %" SCNd64 " %" SCNu64, &entry.rank, &entry.at_ns,
                   &entry.offset_ns, &entry.error_ns) != 4) {
            continue; /* a comment */
        }
        if (entry.at_ns > DP_TRACE_LATEST_NS || entry.offset_ns > (int64_t)DP_TRACE_LATEST_NS ||
            entry.offset_ns < -(int64_t)DP_TRACE_LATEST_NS || entry.error_ns > DP_TRACE_LATEST_NS) {
            continue;
        }
        failed = !dp_grow(&clocks->entries, clocks->count, &room, sizeof(*clocks->entries));
        if (!failed) clocks->entries[clocks->count++] = entry;
    }
    fclose(file);
    if (failed) dp_clocks_fini(clocks);
    return failed ? -1 : 0;
}

void dp_clocks_fini(dp_clocks_t *clocks)
{
    free(clocks->entries);
    memset(clocks, 0, sizeof(*clocks));
}

const dp_clock_entry_t *dp_clocks_find(const dp_clocks_t *clocks, int rank, size_t index)
{
    const dp_clock_entry_t *found = NULL;
    size_t seen = 0;

    for (size_t i = 0; i < clocks->count && seen <= index; i++) {
        if (clocks->entries[i].rank != rank) continue;
        found = &clocks->entries[i];
        seen++;
    }
    return found;
}
