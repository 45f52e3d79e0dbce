/*
 * check_nodes.c - see check_nodes.h. Called by dprun.c ahead of the job and behind it, and by
 * supervise.c when all ranks have met.
 *
 * That the stations came proves login, program path, version, dprun's port and the way back to it;
 * they say what their machine is. That the ranks ran shows the rest, and they try the network.
 */
#include "launcher/dprun/remote/check_nodes.h"

#include <inttypes.h>
#include <string.h>

#include "launcher/dprun/remote/fleet_internal.h"

#define SHM_MIN ((uint64_t)64 << 20)
#define RUN_MIN ((uint64_t)256 << 20)
#define FILES_MIN 1024

static void format_size(uint64_t bytes, char *text, size_t room)
{
    if (bytes >= (uint64_t)1 << 30) {
        snprintf(text, room, "%.1f GiB", (double)bytes / (double)DP_GIB);
    } else {
        snprintf(text, room, "%.0f MiB", (double)bytes / (double)DP_MIB);
    }
}

/* Returns what must be put right there. */
static int print_row(const dp_fleet_node_t *node, FILE *out)
{
    const dp_remote_about_t *about = &node->about;
    char memory[32];
    char shm[32];
    char cores[32];
    char clock[64] = "not known";
    int wrong = 0;

    format_size(about->memory_bytes, memory, sizeof(memory));
    format_size(about->shm_free_bytes, shm, sizeof(shm));
    snprintf(cores, sizeof(cores), "%d of %d", about->cores, about->cores_in_machine);
    if (node->best.at_ns != 0) {
        snprintf(clock, sizeof(clock), "%+.6f s +- %.0f us", (double)node->best.offset_ns / 1e9,
                 (double)node->best.error_ns / 1e3);
    }
    fprintf(out, "%-7s %-16s %-16s %-8s %-8s %-10s %-10s %-10s %-10" PRIu64 " %-30s %s\n",
            node->stage == DP_FLEET_LOST ? "FAILED" : "ok", node->name, about->host, about->version,
            about->ucx[0] != '\0' ? about->ucx : "none", cores, memory, shm, about->open_files,
            clock, about->addresses);
    if (about->ucx[0] == '\0') {
        fprintf(out,
                "        %-16s -> libucp.so.0 cannot be loaded: install UCX (Debian: libucx0)\n",
                "");
        wrong++;
    }
    if (about->shm_free_bytes < SHM_MIN) {
        fprintf(out, "        %-16s -> /dev/shm has less than 64 MiB: mount it larger\n", "");
        wrong++;
    }
    if (about->run_free_bytes < RUN_MIN) {
        fprintf(out, "        %-16s -> less than 256 MiB for run directories: set TMPDIR\n", "");
        wrong++;
    }
    if (about->open_files < FILES_MIN) {
        fprintf(out, "        %-16s -> raise the hard limit on open files (ulimit -Hn)\n", "");
        wrong++;
    }
    return wrong;
}

int dp_check_nodes_print(const dp_fleet_t *fleet, FILE *out)
{
    int wrong = 0;

    fprintf(out, "%-7s %-16s %-16s %-8s %-8s %-10s %-10s %-10s %-10s %-30s %s\n", "", "node",
            "host", "dprun", "ucx", "cores", "memory", "/dev/shm", "files", "clock", "addresses");
    for (int i = 0; i < fleet->count; i++) {
        const dp_fleet_node_t *node = &fleet->list[i];

        if (node->about.version[0] != '\0') {
            wrong += print_row(node, out);
        } else {
            fprintf(out, "%-7s %-16s see above\n", "FAILED", node->name);
            wrong++;
        }
    }
    fflush(out);
    return wrong;
}

void dp_check_nodes_prepare(dp_nodes_t *nodes, dp_command_t *command, char **words)
{
    static char probe[] = "--probe";

    words[0] = nodes->program;
    words[1] = probe;
    for (int i = 0; i < nodes->hosts.count; i++) {
        dp_host_t *host = &nodes->hosts.list[i];

        host->ranks = 1;
        host->first_rank = i;
        /* Under --node their names come with them, too late for a command line. */
        words[i + 2] = nodes->way == DP_NODES_JOIN ? NULL : host->name;
    }
    words[nodes->hosts.count + 2] = NULL;
    nodes->directory[0] = '\0'; /* wherever the stations are */
    command->argv = words;
    command->size = nodes->hosts.count;
    command->has_prefix = command->has_timestamps = command->is_quiet = 0;
    command->stdin_rank = -1;
    command->output_dir = NULL;
    command->config.timeline[0] = '\0';
}
