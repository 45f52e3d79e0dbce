/*
 * fleet_files.c - brings the recorders of all nodes into dprun's run directory, and measures their
 * clocks; see fleet.h. Called by fleet.c with what stations send, and by dprun.c at the job's end.
 *
 * Clocks: the station answers a ping with its own time. Of a round trip from t0 to t1 its answer
 * lies somewhere in between, so the middle is wrong by half the round trip at most. The shortest
 * round trip of each half minute is kept, as its error is the smallest.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/dprun/remote/fleet_internal.h"

#define WINDOW_NS UINT64_C(30000000000)
#define FETCH_NS UINT64_C(120000000000)

/* ---- Clocks --------------------------------------------------------------------------------- */

static void keep_point(dp_fleet_node_t *node)
{
    if (node->points == NULL) {
        node->points = calloc(DP_FLEET_CLOCK_POINTS, sizeof(*node->points));
    }
    if (node->points == NULL || node->point_count == DP_FLEET_CLOCK_POINTS) return;
    node->points[node->point_count++] = node->best;
}

void dp_fleet_clock(dp_fleet_node_t *node, uint64_t sent_ns, uint64_t theirs_ns)
{
    const uint64_t now_ns = dp_now_ns();
    const uint64_t error_ns = (now_ns - sent_ns) / 2 + 1;

    if (sent_ns > now_ns || now_ns - sent_ns > DP_REMOTE_LEASE_NS) return;
    if (node->best.at_ns != 0 && now_ns - node->window_ns >= WINDOW_NS) {
        keep_point(node);
        node->window_ns = now_ns;
        node->best.error_ns = UINT64_MAX;
    }
    if (node->window_ns == 0) node->window_ns = now_ns;
    if (node->best.at_ns == 0 || error_ns < node->best.error_ns) {
        node->best =
            (dp_fleet_clock_point_t){.at_ns = theirs_ns,
                                     .offset_ns = (int64_t)(theirs_ns - (sent_ns + error_ns)),
                                     .error_ns = error_ns};
    }
    if (node->bursts > 0) {
        node->bursts--;
        dp_fleet_ping(node);
    }
}

/* For dptrace: what to add to a rank's clock to have this machine's. */
static void write_clocks(const dp_fleet_t *fleet, const char *run_dir)
{
    char path[4200];
    FILE *out;

    snprintf(path, sizeof(path), "%s/clocks", run_dir);
    out = fopen(path, "we");
    if (out == NULL) return;
    fprintf(out, "# rank, time on its clock, ns to add, error in ns\n");
    for (int i = 0; i < fleet->count; i++) {
        const dp_fleet_node_t *node = &fleet->list[i];

        for (int rank = node->host->first_rank; rank < node->host->first_rank + node->host->ranks;
             rank++) {
            for (int k = 0; k < node->point_count; k++) {
                fprintf(out, "%d %" PRIu64 " %" PRId64 " %" PRIu64 "\n", rank,
                        node->points[k].at_ns, -node->points[k].offset_ns,
                        node->points[k].error_ns);
            }
            if (node->best.at_ns == 0 || node->best.error_ns == UINT64_MAX) continue;
            fprintf(out, "%d %" PRIu64 " %" PRId64 " %" PRIu64 "\n", rank, node->best.at_ns,
                    -node->best.offset_ns, node->best.error_ns);
        }
    }
    fclose(out);
}

/* ---- Files ---------------------------------------------------------------------------------- */

/* Accepts only the plain name of a recorder: a node's bytes decide no path. */
static int is_recorder_name(const char *name)
{
    return strncmp(name, "trace.", 6) == 0 && strchr(name, '/') == NULL &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.") == strlen(name);
}

void dp_fleet_file(dp_fleet_node_t *node, dp_reader_t *fields)
{
    const char *run_dir = node->fleet->run_dir;
    char name[64];
    char path[4200];
    const uint8_t *data;
    size_t bytes;
    int fd;

    dp_read_text(fields, name, sizeof(name));
    bytes = dp_reader_left(fields);
    data = dp_read_bytes(fields, bytes);
    if (fields->failed || run_dir == NULL || !is_recorder_name(name)) return;
    snprintf(path, sizeof(path), "%s/%s", run_dir, name);
    fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | (bytes == 0 ? O_TRUNC : O_APPEND),
              0600);
    if (fd < 0) return;
    node->fleet->file_count += bytes == 0;
    while (bytes > 0) {
        const ssize_t written = write(fd, data, bytes);

        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) break; /* a full disk: the reader finds it cut short and says so */
        data += written;
        bytes -= (size_t)written;
    }
    close(fd);
}

static int is_file_missing(const dp_fleet_t *fleet)
{
    for (int i = 0; i < fleet->count; i++) {
        if (fleet->list[i].link != NULL && !fleet->list[i].has_files) return 1;
    }
    return 0;
}

void dp_fleet_fetch(dp_fleet_t *fleet, const char *run_dir)
{
    const uint64_t deadline_ns = dp_now_ns() + FETCH_NS;

    if (!fleet->is_running) return;
    fleet->run_dir = run_dir;
    for (int i = 0; i < fleet->count; i++) {
        dp_fleet_node_send(&fleet->list[i], DP_REMOTE_FETCH, NULL, 0);
    }
    while (is_file_missing(fleet) && dp_now_ns() < deadline_ns) {
        if (event_base_loop(fleet->base, EVLOOP_ONCE) != 0) break; /* the beat wakes it */
        if (event_base_got_break(fleet->base)) break;              /* the user does not wait */
    }
    fleet->run_dir = NULL;
    if (fleet->file_count > 0) write_clocks(fleet, run_dir);
}
