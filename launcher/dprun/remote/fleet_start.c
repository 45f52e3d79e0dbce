/*
 * fleet_start.c - brings the stations of a job up, and takes them down; see fleet.h.
 *
 * Called by supervise_nodes.c, and by fleet.c as stations come and answer; its own callbacks are
 * those of shell.c and of timers. All on dprun's only thread. The program starts only after every
 * node has said that it can (READY), so an error on one of them is told before anything has run
 * anywhere. Errors of several nodes are all told.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/dprun/remote/fleet_internal.h"

#define AT_A_TIME 64 /* shells that are still logging in */
#define TRIES 4
#define RETRY_US 200000
#define MORE_ERRORS_US 1000000 /* from the first failed node until the start is given up */
#define FIRST_LINE_NS UINT64_C(2000000000)
#define NEXT_LINE_NS UINT64_C(5000000000)
#define SHELLS_END_NS UINT64_C(3000000000)
#define CLOCK_BURST 16
#define LISTED_MAX 8

static void start_shells(dp_fleet_t *fleet);

/* ---- Shells --------------------------------------------------------------------------------- */

static void on_retry(evutil_socket_t fd, short what, void *context)
{
    dp_fleet_node_t *node = context;

    (void)fd;
    (void)what;
    if (node->stage == DP_FLEET_STARTING) node->stage = DP_FLEET_WAITING;
    start_shells(node->fleet);
}

/* A moment later; not all at the same time. */
static int try_again(dp_fleet_node_t *node)
{
    struct timeval pause = {0, 0};
    uint8_t jitter;

    dp_random(&jitter, sizeof(jitter));
    pause.tv_usec = RETRY_US * node->tries + 2000 * jitter;
    pause.tv_sec = pause.tv_usec / 1000000;
    pause.tv_usec %= 1000000;
    if (node->retry == NULL) node->retry = event_new(node->fleet->base, -1, 0, on_retry, node);
    return node->retry == NULL ? -1 : event_add(node->retry, &pause);
}

static void describe_end(int status, char *text, size_t room)
{
    if (WIFSIGNALED(status)) {
        snprintf(text, room, "its ssh was killed by signal %d", WTERMSIG(status));
    } else {
        snprintf(text, room, "its ssh ended (code %d)", WEXITSTATUS(status));
    }
}

static void on_shell_ended(void *context, dp_shell_t *shell)
{
    dp_fleet_node_t *node = context;
    dp_fleet_t *fleet = node->fleet;
    const int status = dp_shell_status(shell);
    char text[900];
    dp_shell_cause_t cause;

    if (fleet->is_leaving || node->stage >= DP_FLEET_GONE) return;
    if (node->stage == DP_FLEET_RUNNING) {
        describe_end(status, text, sizeof(text));
        dp_fleet_node_lose(node, 1, text);
        return;
    }
    cause = dp_shell_explain("ssh", node->name, fleet->nodes->program, status,
                             dp_shell_words(shell), text, sizeof(text));
    if (node->link == NULL && strstr(dp_shell_words(shell), DP_REMOTE_UNREACHED) != NULL &&
        dp_fleet_widen_door(fleet) > 0) {
        dp_fleet_say(fleet, "%s; listening on all addresses now (--net-interface names one)", text);
        cause = DP_SHELL_TRY_AGAIN;
    }
    if (node->link == NULL && cause != DP_SHELL_OTHER && node->tries < TRIES) {
        if (cause == DP_SHELL_TRY_PLAIN) node->is_plain = 1;
        dp_shell_destroy(shell);
        node->shell = NULL;
        if (try_again(node) == 0) return;
    }
    dp_fleet_node_lose(node, 1, text);
}

static void start_shell(dp_fleet_node_t *node)
{
    dp_fleet_t *fleet = node->fleet;
    dp_shell_command_t *command = malloc(sizeof(*command));
    dp_remote_ticket_t ticket;
    dp_shell_start_t start = {.ticket = &ticket,
                              .signals = fleet->signals,
                              .is_shielded = !node->is_here, /* that is a station */
                              .dies_with_dprun = 1,
                              .ended = on_shell_ended,
                              .context = node};
    dp_error_t error = {DP_OK, "out of memory"};
    dp_status_t status = DP_ERR_NO_MEMORY;

    dp_fleet_write_ticket(fleet, (uint32_t)node->index, node->is_here, &ticket);
    if (command != NULL && node->is_here) {
        status = dp_shell_command_here(command, fleet->nodes->program, &error);
    } else if (command != NULL) {
        status = dp_shell_command_ssh(command, fleet->command->config.ssh, node->host->name,
                                      fleet->nodes->program, node->is_plain, &error);
    }
    node->stage = DP_FLEET_STARTING;
    node->tries++;
    if (node->started_ns == 0) node->started_ns = dp_now_ns();
    if (status == DP_OK) {
        start.argv = command->argv;
        status = dp_shell_create(fleet->base, &start, &node->shell, &error);
    }
    free(command);
    explicit_bzero(&ticket, sizeof(ticket));
    if (status != DP_OK) dp_fleet_node_lose(node, 1, error.text);
}

/* Some at a time: a login takes a core of this machine for a while, and sshd limits how many it
 * serves that have not logged in. */
static void start_shells(dp_fleet_t *fleet)
{
    int busy = 0;

    for (int i = 0; i < fleet->count; i++) {
        busy += fleet->list[i].stage == DP_FLEET_STARTING;
    }
    for (int i = 0; i < fleet->count && busy < AT_A_TIME && !fleet->is_over; i++) {
        if (fleet->list[i].stage != DP_FLEET_WAITING) continue;
        start_shell(&fleet->list[i]);
        busy++;
    }
}

/* ---- srun ----------------------------------------------------------------------------------- */

static void on_srun_ended(void *context, dp_shell_t *shell)
{
    dp_fleet_t *fleet = context;
    int linked = 0;
    char text[900];

    if (fleet->is_leaving || fleet->is_over) return;
    dp_shell_explain("srun", NULL, fleet->nodes->program, dp_shell_status(shell),
                     dp_shell_words(shell), text, sizeof(text));
    dp_fleet_say(fleet, "%s", text);
    for (int i = 0; i < fleet->count; i++)
        linked += fleet->list[i].link != NULL;
    for (int i = 0; i < fleet->count; i++) {
        dp_fleet_node_t *node = &fleet->list[i];

        if (node->link != NULL || node->stage >= DP_FLEET_GONE) continue;
        /* Where none came up, the line above is the reason of all. */
        snprintf(text, sizeof(text), "node %s: its station was not started", node->name);
        dp_fleet_node_lose(node, 1, linked == 0 ? "" : text);
    }
}

static dp_status_t start_srun(dp_fleet_t *fleet, dp_error_t *error)
{
    dp_shell_command_t *command = malloc(sizeof(*command));
    dp_remote_ticket_t ticket;
    dp_shell_start_t start = {
        .ticket = &ticket, .signals = fleet->signals, .ended = on_srun_ended, .context = fleet};
    dp_status_t status;

    if (command == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    dp_fleet_write_ticket(fleet, DP_REMOTE_ASK_SLURM, 0, &ticket);
    status = dp_shell_command_srun(command, fleet->nodes->names, fleet->count,
                                   fleet->nodes->program, error);
    for (int i = 0; i < fleet->count; i++) {
        fleet->list[i].stage = DP_FLEET_STARTING;
        fleet->list[i].started_ns = dp_now_ns();
    }
    start.argv = command->argv;
    if (status == DP_OK) status = dp_shell_create(fleet->base, &start, &fleet->srun, error);
    free(command);
    explicit_bzero(&ticket, sizeof(ticket));
    return status;
}

/* ---- From the link to GO -------------------------------------------------------------------- */

static void send_tunnel_frame(void *context, uint8_t type, const void *fields, size_t bytes)
{
    dp_fleet_node_send(context, type, fields, bytes);
}

void dp_fleet_node_joined(dp_fleet_node_t *node)
{
    dp_fleet_t *fleet = node->fleet;
    const dp_command_t *command = fleet->command;
    dp_remote_start_t start = {.node = node->index,
                               .node_count = fleet->count,
                               .first_rank = node->host->first_rank,
                               .local_size = node->host->ranks,
                               .size = command->size,
                               .stdin_rank = command->stdin_rank,
                               .binds_cores = command->binds_cores,
                               .shares_gpu = command->shares_gpu,
                               .is_check = command->action == DP_ACTION_CHECK,
                               .secret = fleet->ticket.secret,
                               .argv = command->argv,
                               .variables = fleet->nodes->variables,
                               .variable_count = (int)fleet->nodes->variable_count};
    size_t bytes = 0;
    uint8_t *data;

    fleet->has_joined = 1;
    node->stage = DP_FLEET_JOINED;
    snprintf(start.version, sizeof(start.version), "%d.%d.%d", DP_VERSION_MAJOR, DP_VERSION_MINOR,
             DP_VERSION_PATCH);
    snprintf(start.node_name, sizeof(start.node_name), "%s", node->name);
    snprintf(start.first_host, sizeof(start.first_host), "%s",
             fleet->nodes->way == DP_NODES_JOIN ? fleet->nodes->meet : fleet->list[0].host->name);
    if (strchr(start.first_host, '@') != NULL) {
        memmove(start.first_host, strchr(start.first_host, '@') + 1,
                strlen(strchr(start.first_host, '@')));
    }
    if (command->metrics != NULL)
        snprintf(start.metrics, sizeof(start.metrics), "%s", command->metrics);
    snprintf(start.directory, sizeof(start.directory), "%.1023s", fleet->nodes->directory);
    snprintf(start.job, sizeof(start.job), "%s", fleet->ticket.job);
    while (start.argv != NULL && start.argv[start.argc] != NULL)
        start.argc++;
    node->tunnel = dp_tunnel_create(fleet->base, send_tunnel_frame, node);
    data = dp_remote_start_write(&start, &bytes);
    if (data != NULL && node->tunnel != NULL) {
        dp_fleet_node_send(node, DP_REMOTE_START, data, bytes);
        explicit_bzero(data, bytes);
    }
    free(data);
    explicit_bzero(&start, sizeof(start));
    node->bursts = CLOCK_BURST;
    dp_fleet_ping(node);
    start_shells(fleet); /* the next one's turn */
}

static void on_abort_timer(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    dp_fleet_give_up(context);
}

void dp_fleet_give_up(dp_fleet_t *fleet)
{
    if (fleet->is_over || fleet->is_running) return;
    fleet->is_over = 1;
    fleet->events.refused(fleet->events.context, fleet->exit_code == 0 ? 1 : fleet->exit_code);
}

/* Two names of one machine are two nodes that share its memory: fine, but seldom meant. */
static void warn_of_twins(dp_fleet_t *fleet)
{
    for (int i = 1; i < fleet->count; i++) {
        const dp_fleet_node_t *a = &fleet->list[i - 1];
        const dp_fleet_node_t *b = &fleet->list[i];

        if (a->about.boot[0] != '\0' && strcmp(a->about.boot, b->about.boot) == 0 &&
            strcmp(a->about.host, b->about.host) == 0) {
            dp_fleet_say(fleet, "nodes %s and %s are the same machine", a->name, b->name);
        }
    }
}

/* Of nodes that others started only numbers were known. They get the names that their machines give
 * themselves, unless one machine's is another's, too. */
static void name_joined_nodes(dp_fleet_t *fleet)
{
    for (int i = 0; i < fleet->count; i++) {
        if (fleet->list[i].about.host[0] == '\0') return;
        for (int k = 0; k < i; k++) {
            if (strcmp(fleet->list[i].about.host, fleet->list[k].about.host) == 0) return;
        }
    }
    for (int i = 0; i < fleet->count; i++) {
        dp_fleet_node_t *node = &fleet->list[i];

        snprintf(node->name, sizeof(node->name), "%s", node->about.host);
    }
}

static void send_go(dp_fleet_t *fleet)
{
    uint8_t data[2];
    dp_writer_t writer;

    fleet->is_running = 1;
    dp_fleet_close_door(fleet);
    explicit_bzero(&fleet->secret, sizeof(fleet->secret)); /* all links are there */
    if (fleet->nodes->way == DP_NODES_JOIN) name_joined_nodes(fleet);
    warn_of_twins(fleet);
    dp_writer_init(&writer, data, sizeof(data));
    dp_write_u16(&writer, fleet->list[0].about.free_port);
    for (int i = 0; i < fleet->count; i++) {
        fleet->list[i].stage = DP_FLEET_RUNNING;
        dp_fleet_node_send(&fleet->list[i], DP_REMOTE_GO, data, 2);
    }
    dp_fleet_input_start(fleet);
}

void dp_fleet_check_start(dp_fleet_t *fleet)
{
    const struct timeval more = {MORE_ERRORS_US / 1000000, MORE_ERRORS_US % 1000000};
    const struct timeval now = {0, 0};
    int ready = 0;
    int lost = 0;
    int is_silent = 0; /* it has been for seconds: other errors had their time */

    if (fleet->is_running || fleet->is_over) return;
    for (int i = 0; i < fleet->count; i++) {
        ready += fleet->list[i].stage == DP_FLEET_READY;
        lost += fleet->list[i].stage == DP_FLEET_LOST;
        is_silent |= fleet->list[i].silent_ns != 0;
    }
    if (ready == fleet->count) {
        send_go(fleet);
    } else if (lost > 0 && (is_silent || ready + lost == fleet->count)) {
        event_add(fleet->abort_timer, &now);
    } else if (lost > 0 && !event_pending(fleet->abort_timer, EV_TIMEOUT, NULL)) {
        event_add(fleet->abort_timer, &more);
    }
}

static void tell_progress(dp_fleet_t *fleet, uint64_t now_ns)
{
    char names[512] = "";
    size_t used = 0;
    int count = 0;

    for (int i = 0; i < fleet->count; i++) {
        if (fleet->list[i].stage >= DP_FLEET_READY) continue; /* or lost */
        if (++count > LISTED_MAX) continue;
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%.50s",
                                 count > 1 ? ", " : "", fleet->list[i].name);
    }
    if (count == 0) return; /* the start is about to be given up */
    if (count > LISTED_MAX) snprintf(names + used, sizeof(names) - used, ", ...");
    fleet->told_ns = now_ns;
    dp_fleet_say(fleet, "waiting for %d of %d nodes: %s", count, fleet->count, names);
}

void dp_fleet_watch_start(dp_fleet_t *fleet, uint64_t now_ns)
{
    const uint64_t patience_ns = fleet->command->config.start_timeout_ns;
    char text[512];

    for (int i = 0; i < fleet->count; i++) {
        dp_fleet_node_t *node = &fleet->list[i];

        if (node->stage != DP_FLEET_STARTING) continue;
        if (now_ns - node->started_ns < patience_ns) continue;
        snprintf(
            text, sizeof(text),
            "node %.100s: its station did not come within DP_START_TIMEOUT=%.4g s: does its login "
            "stand still? can it reach port %u of this machine?",
            node->name, (double)patience_ns / 1e9, fleet->port);
        dp_fleet_node_lose(node, 1, text);
    }
    if (fleet->is_over) return;
    if (now_ns - fleet->start_ns >= FIRST_LINE_NS &&
        (fleet->told_ns == 0 || now_ns - fleet->told_ns >= NEXT_LINE_NS)) {
        tell_progress(fleet, now_ns);
    }
}

/* ---- Life ----------------------------------------------------------------------------------- */

/* Whether a name is this machine's: its station needs no ssh. */
static int is_this_machine(const char *name)
{
    char own[256] = "";

    if (strcmp(name, "localhost") == 0 || strcmp(name, "127.0.0.1") == 0) return 1;
    if (gethostname(own, sizeof(own) - 1) != 0) return 0;
    return strcmp(name, own) == 0;
}

static dp_status_t make_nodes(dp_fleet_t *fleet, dp_error_t *error)
{
    fleet->count = fleet->nodes->hosts.count;
    fleet->list = calloc((size_t)fleet->count, sizeof(*fleet->list));
    fleet->unreturned = calloc((size_t)fleet->command->size * 2, sizeof(*fleet->unreturned));
    if (fleet->list == NULL || fleet->unreturned == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    for (int i = 0; i < fleet->count; i++) {
        dp_fleet_node_t *node = &fleet->list[i];

        node->fleet = fleet;
        node->index = i;
        node->host = &fleet->nodes->hosts.list[i];
        snprintf(node->name, sizeof(node->name), "%s", node->host->name);
        node->is_here = fleet->nodes->way == DP_NODES_JOIN ? i == fleet->nodes->node
                                                           : is_this_machine(node->name);
    }
    return DP_OK;
}

static dp_status_t start_nodes(dp_fleet_t *fleet, dp_error_t *error)
{
    if (fleet->nodes->way == DP_NODES_SRUN) return start_srun(fleet, error);
    for (int i = 0; i < fleet->count && fleet->nodes->way == DP_NODES_JOIN; i++) {
        if (fleet->list[i].is_here) continue;
        fleet->list[i].stage = DP_FLEET_STARTING; /* by others */
        fleet->list[i].started_ns = dp_now_ns();
    }
    start_shells(fleet);
    return DP_OK;
}

dp_status_t dp_fleet_create(struct event_base *base, const dp_fleet_start_t *start,
                            dp_fleet_t **out, dp_error_t *error)
{
    dp_fleet_t *fleet = calloc(1, sizeof(*fleet));
    dp_status_t status;

    if (fleet == NULL) {
        if (start->input_fd >= 0) close(start->input_fd);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    fleet->base = base;
    fleet->nodes = start->nodes;
    fleet->command = start->command;
    fleet->events = start->events;
    fleet->ticket = *start->ticket;
    fleet->signals = start->signals;
    fleet->input_fd = start->input_fd;
    fleet->start_ns = dp_now_ns();
    dp_random(fleet->secret.bytes, sizeof(fleet->secret.bytes));
    if (start->nodes->way == DP_NODES_JOIN) fleet->secret = start->nodes->secret;
    fleet->abort_timer = event_new(base, -1, 0, on_abort_timer, fleet);
    status = fleet->abort_timer == NULL ? dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory")
                                        : make_nodes(fleet, error);
    if (status == DP_OK) status = dp_fleet_open_door(fleet, error);
    if (status == DP_OK && dp_fleet_beat_start(fleet) != 0) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    if (status == DP_OK) status = start_nodes(fleet, error);
    if (status == DP_OK) {
        *out = fleet;
    } else {
        dp_fleet_destroy(fleet);
    }
    return status;
}

static int has_shell(const dp_fleet_t *fleet)
{
    if (fleet->srun != NULL && fleet->has_joined && !dp_shell_has_ended(fleet->srun)) return 1;
    for (int i = 0; i < fleet->count; i++) {
        const dp_fleet_node_t *node = &fleet->list[i];

        if (node->shell != NULL && !dp_shell_has_ended(node->shell) &&
            node->stage >= DP_FLEET_JOINED && node->stage != DP_FLEET_LOST) {
            return 1;
        }
        if (node->link != NULL) return 1; /* it closes once the station's files are gone */
    }
    return 0;
}

void dp_fleet_dismiss(dp_fleet_t *fleet, int exit_code)
{
    const uint64_t deadline_ns = dp_now_ns() + SHELLS_END_NS;
    uint8_t data[4];
    dp_writer_t writer;

    if (fleet == NULL || fleet->is_leaving) return;
    fleet->is_leaving = 1;
    dp_fleet_close_door(fleet);
    dp_fleet_input_close(fleet);
    dp_writer_init(&writer, data, sizeof(data));
    dp_write_u32(&writer, (uint32_t)exit_code);
    for (int i = 0; i < fleet->count; i++) {
        dp_fleet_node_send(&fleet->list[i], DP_REMOTE_BYE, data, sizeof(data));
    }
    while (has_shell(fleet) && dp_now_ns() < deadline_ns) {
        if (event_base_loop(fleet->base, EVLOOP_ONCE) != 0) break; /* the beat wakes it */
    }
}

void dp_fleet_destroy(dp_fleet_t *fleet)
{
    if (fleet == NULL) return;
    dp_fleet_close_door(fleet);
    dp_door_destroy(fleet->door);
    dp_fleet_input_close(fleet);
    for (int i = 0; fleet->list != NULL && i < fleet->count; i++) {
        dp_fleet_node_t *node = &fleet->list[i];

        dp_link_close(node->link);
        dp_tunnel_destroy(node->tunnel);
        dp_shell_destroy(node->shell);
        if (node->retry != NULL) event_free(node->retry);
        free(node->points);
    }
    /* Else it may wait for its nodes for ever. */
    if (fleet->srun != NULL && !fleet->has_joined) dp_shell_end_with_dprun(fleet->srun);
    dp_shell_destroy(fleet->srun);
    if (fleet->abort_timer != NULL) event_free(fleet->abort_timer);
    if (fleet->beat != NULL) event_free(fleet->beat);
    free(fleet->list);
    free(fleet->unreturned);
    explicit_bzero(&fleet->secret, sizeof(fleet->secret));
    explicit_bzero(&fleet->ticket, sizeof(fleet->ticket));
    free(fleet);
}
