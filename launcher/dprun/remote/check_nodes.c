/*
 * check_nodes.c - see check_nodes.h. dprun.c calls it for --check with -H, --hostfile, --node or in
 * a Slurm allocation.
 *
 * The stations come up as for a job, which proves login, program path, version, dprun's port and
 * the way back to it. They say what their machine is, try the network to each other, and end.
 */
#include "launcher/dprun/remote/check_nodes.h"

#include <inttypes.h>
#include <string.h>

#include "launcher/dprun/remote/fleet_internal.h"

#define CLOCK_LOOK_US 50000 /* for some quick rounds to each node */
#define SHM_MIN ((uint64_t)64 << 20)
#define RUN_MIN ((uint64_t)256 << 20)
#define FILES_MIN 1024

typedef struct check {
    struct event_base *base;
    int failed;
} check_t;

static void on_message(void *context, dp_message_t *message)
{
    (void)context;
    (void)message;
}

static void on_output(void *context, int rank, int stream, const char *data, size_t bytes)
{
    (void)context;
    (void)rank;
    (void)stream;
    (void)data;
    (void)bytes;
}

static void on_lost(void *context, int node, const dp_fleet_loss_t *loss)
{
    check_t *check = context;

    (void)node;
    fprintf(stderr, "dprun: a node was lost: %s\n", loss->why);
    check->failed++;
}

static void on_end(void *context, int number)
{
    check_t *check = context;

    (void)number;
    event_base_loopbreak(check->base);
}

static void on_signalled(void *context, const char *node, int number, int is_again)
{
    (void)node;
    (void)is_again;
    on_end(context, number);
}

static void on_memory(void *context, const dp_memory_sight_t *before,
                      const dp_memory_sight_t *after)
{
    (void)context;
    (void)before;
    (void)after;
}

static void on_line(void *context, const char *line)
{
    (void)context;
    fprintf(stderr, "dprun: %s\n", line);
}

static void format_size(uint64_t bytes, char *text, size_t room)
{
    if (bytes >= (uint64_t)1 << 30) {
        snprintf(text, room, "%.1f GiB", (double)bytes / (double)DP_GIB);
    } else {
        snprintf(text, room, "%.0f MiB", (double)bytes / (double)DP_MIB);
    }
}

static void print_row(check_t *check, const dp_fleet_node_t *node, FILE *out)
{
    const dp_remote_about_t *about = &node->about;
    char memory[32];
    char shm[32];
    char cores[32];
    char clock[64] = "not known";

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
        check->failed++;
    }
    if (about->shm_free_bytes < SHM_MIN) {
        fprintf(out, "        %-16s -> /dev/shm has less than 64 MiB: mount it larger\n", "");
        check->failed++;
    }
    if (about->run_free_bytes < RUN_MIN) {
        fprintf(out, "        %-16s -> less than 256 MiB for run directories: set TMPDIR\n", "");
        check->failed++;
    }
    if (about->open_files < FILES_MIN) {
        fprintf(out, "        %-16s -> raise the hard limit on open files (ulimit -Hn)\n", "");
        check->failed++;
    }
}

static void print_table(check_t *check, const dp_fleet_t *fleet, FILE *out)
{
    fprintf(out, "%-7s %-16s %-16s %-8s %-8s %-10s %-10s %-10s %-10s %-30s %s\n", "", "node",
            "host", "dprun", "ucx", "cores", "memory", "/dev/shm", "files", "clock", "addresses");
    for (int i = 0; i < fleet->count; i++) {
        const dp_fleet_node_t *node = &fleet->list[i];

        if (node->about.version[0] != '\0') {
            print_row(check, node, out);
        } else {
            fprintf(out, "%-7s %-16s see above\n", "FAILED", node->name);
            check->failed++;
        }
    }
}

int dp_check_nodes_run(const dp_nodes_t *nodes, const dp_command_t *command, FILE *out)
{
    const struct timeval look = {0, CLOCK_LOOK_US};
    dp_kv_ticket_t ticket = {.job = "check"}; /* its secret is that of the tries between nodes */
    check_t check = {.base = event_base_new()};
    dp_fleet_start_t start = {.nodes = nodes,
                              .command = command,
                              .ticket = &ticket,
                              .input_fd = -1,
                              .only_looks = 1,
                              .events = {on_message, on_output, on_lost, on_end, on_end,
                                         on_signalled, on_memory, on_line, NULL, &check}};
    dp_fleet_t *fleet = NULL;
    dp_error_t error = {DP_OK, "out of memory"};

    dp_random(ticket.secret.bytes, sizeof(ticket.secret.bytes));
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_BLOCK, NULL, &start.signals);
    if (check.base == NULL || dp_fleet_create(check.base, &start, &fleet, &error) != DP_OK) {
        fprintf(stderr, "dprun: %s\n", error.text);
        if (check.base != NULL) event_base_free(check.base);
        return 1;
    }
    event_base_dispatch(check.base);
    event_base_loopexit(check.base, &look);
    event_base_dispatch(check.base);
    print_table(&check, fleet, out);
    check.failed += dp_fleet_reach(fleet, out);
    dp_fleet_dismiss(fleet, 0);
    dp_fleet_destroy(fleet);
    event_base_free(check.base);
    if (check.failed == 0) {
        fprintf(out, "these machines can run jobs\n");
    } else {
        fprintf(out, "%d of these must be put right first\n", check.failed);
    }
    return check.failed == 0 ? 0 : 1;
}
