/*
 * station_job.c - the agent below a station, and what passes between its ranks and dprun: messages,
 * output, input, connections to the rendezvous. Called by station.c, on its only thread.
 *
 * The guard is forked from within the event loop: this process has no other thread, and the child
 * closes every descriptor but its own before it goes on (close_others).
 */
#include "launcher/dprun/remote/station_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/dprun/guard.h"
#include "launcher/dprun/remote/look.h"
#include "launcher/dprun/run_dir.h"
#include "launcher/dprun/tree.h"
#include "runtime/base/local_socket.h"

#define GUARD_ENDS_NS UINT64_C(12000000000) /* agents give a stuck process 10 s */
#define LOOK_NS 5000000L

/* They would tell a rank that it is the agent: another rank of a smaller job. */
static const char *const foreign_variables[] = {"SLURM_PROCID",  "SLURM_LOCALID",
                                                "SLURM_STEP_ID", "SLURM_STEPID",
                                                "SLURM_NODEID",  "SLURM_STEP_NUM_TASKS",
                                                "SLURM_NTASKS",  "SLURM_NPROCS",
                                                "SLURM_GTIDS",   "SLURM_TASK_PID",
                                                "PMI_RANK",      "PMI_SIZE",
                                                "PMI_FD",        "PMI_JOBID",
                                                "PET_NODE_RANK", "PET_NNODES",
                                                "RANK",          "WORLD_SIZE",
                                                "LOCAL_RANK",    "LOCAL_WORLD_SIZE"};

/* ---- Whether it can run --------------------------------------------------------------------- */

static dp_status_t enter_directory(const dp_remote_start_t *start, dp_error_t *error)
{
    if (start->directory[0] == '\0') return DP_OK;
    if (chdir(start->directory) == 0) {
        setenv("PWD", start->directory, 1); /* or it names the folder of the login */
        return DP_OK;
    }
    return dp_error_set(error, DP_ERR_CONFIG,
                        "the working folder %s: %s (--wdir names one that every node has)",
                        start->directory, strerror(errno));
}

dp_status_t dp_station_prepare(dp_station_t *station, int *code, dp_error_t *error)
{
    const dp_remote_start_t *start = &station->start;
    dp_command_t *command = &station->command;
    const int reader = start->stdin_rank - start->first_rank;
    char version[32];

    *code = 1;
    snprintf(version, sizeof(version), "%d.%d.%d", DP_VERSION_MAJOR, DP_VERSION_MINOR,
             DP_VERSION_PATCH);
    if (strcmp(version, start->version) != 0) {
        return dp_error_set(error, DP_ERR_MISMATCH, "dprun %s is there, %s started the job",
                            version, start->version);
    }
    for (size_t i = 0; i < DP_ARRAY_LEN(foreign_variables); i++) {
        unsetenv(foreign_variables[i]);
    }
    if (enter_directory(start, error) != DP_OK) return error->status;
    memset(command, 0, sizeof(*command));
    dp_config_defaults(&command->config);
    command->argv = start->argv;
    command->size = start->local_size;
    command->place.first_rank = start->first_rank;
    command->place.size = start->size;
    command->place.node = start->node;
    command->stdin_rank =
        start->stdin_rank >= 0 && reader >= 0 && reader < start->local_size ? reader : -1;
    command->binds_cores = start->binds_cores;
    command->shares_gpu = start->shares_gpu;
    command->metrics = start->metrics;
    command->variables = start->variables;
    command->variable_count = (size_t)start->variable_count;
    if (dp_job_init(&station->job, command, code, error) != DP_OK) return DP_ERR_CONFIG;
    snprintf(station->job.host, sizeof(station->job.host), "%s", start->node_name);
    station->has_job = 1;
    return DP_OK;
}

/* ---- Agent ---------------------------------------------------------------------------------- */

/* In the forked child: it keeps what the agent needs, and nothing that another end waits on. */
static void close_others(const dp_agent_start_t *agent)
{
    DIR *open_fds = opendir("/proc/self/fd");

    if (open_fds == NULL) return;
    for (struct dirent *entry; (entry = readdir(open_fds)) != NULL;) {
        const int fd = (int)strtol(entry->d_name, NULL, 10);

        if (entry->d_name[0] == '.' || fd <= STDERR_FILENO || fd == dirfd(open_fds)) continue;
        if (fd == agent->channel || fd == agent->stdin_fd) continue;
        close(fd);
    }
    closedir(open_fds);
}

static dp_status_t open_input(dp_station_t *station, dp_agent_start_t *agent, dp_error_t *error)
{
    int fds[2];

    if (station->command.stdin_rank < 0) return DP_OK;
    if (pipe2(fds, O_CLOEXEC) != 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "pipe: %s", strerror(errno));
    }
    fcntl(fds[1], F_SETFL, O_NONBLOCK);
    agent->stdin_fd = fds[0];
    station->input = fds[1];
    return DP_OK;
}

static void raise_file_limit(dp_agent_start_t *agent, int ranks)
{
    struct rlimit limit;

    getrlimit(RLIMIT_NOFILE, &limit);
    agent->open_files = limit;
    limit.rlim_cur = dp_min(limit.rlim_max, (rlim_t)(ranks * 6 + 128));
    if (limit.rlim_cur > agent->open_files.rlim_cur) setrlimit(RLIMIT_NOFILE, &limit);
}

static void send_tunnel_frame(void *context, uint8_t type, const void *fields, size_t bytes)
{
    dp_station_send(context, type, fields, bytes);
}

/* The rendezvous, as the ranks of this node see it: a local socket that leads to dprun's. */
static dp_status_t open_tunnel(dp_station_t *station, dp_error_t *error)
{
    dp_kv_ticket_t *ticket = &station->job.ticket;
    char address[DP_LOCAL_ADDRESS_ROOM];
    int listener;

    if (dp_local_listen(address, &listener, error) != DP_OK) return error->status;
    memset(ticket, 0, sizeof(*ticket));
    snprintf(ticket->address, sizeof(ticket->address), "%s", address);
    snprintf(ticket->job, sizeof(ticket->job), "%s", station->start.job);
    ticket->secret = station->start.secret;
    explicit_bzero(&station->start.secret, sizeof(station->start.secret));
    station->tunnel = dp_tunnel_create(station->base, send_tunnel_frame, station);
    if (station->tunnel == NULL || dp_tunnel_listen(station->tunnel, listener) != 0) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    return DP_OK;
}

static void on_input(evutil_socket_t fd, short what, void *context);
static void on_channel(evutil_socket_t fd, short what, void *context);

static dp_status_t watch_agent(dp_station_t *station)
{
    station->on_channel =
        event_new(station->base, station->channel, EV_READ | EV_PERSIST, on_channel, station);
    if (station->on_channel == NULL || event_add(station->on_channel, NULL) != 0) {
        return DP_ERR_NO_MEMORY;
    }
    if (station->input < 0) return DP_OK;
    station->on_input = event_new(station->base, station->input, EV_WRITE, on_input, station);
    return station->on_input == NULL ? DP_ERR_NO_MEMORY : DP_OK;
}

static dp_status_t make_streams(dp_station_t *station, dp_error_t *error)
{
    const size_t count = (size_t)station->job.size * 2;

    station->streams = calloc(count, sizeof(*station->streams));
    if (station->streams == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < count; i++) {
        station->streams[i] =
            (dp_station_stream_t){.station = station,
                                  .rank = station->start.first_rank + (int)(i / 2),
                                  .number = (int)(i % 2) + 1,
                                  .fd = -1};
    }
    return DP_OK;
}

static dp_status_t fork_guard(dp_station_t *station, dp_agent_start_t *agent, dp_error_t *error)
{
    agent->signals = station->old_mask;
    raise_file_limit(agent, station->job.size);
    station->guard = fork();
    if (station->guard == 0) {
        close_others(agent);
        _exit(dp_guard_run(agent));
    }
    if (station->guard > 0) return DP_OK;
    station->guard = 0;
    return dp_error_set(error, DP_ERR_SYSTEM, "starting the agent: %s", strerror(errno));
}

dp_status_t dp_station_go(dp_station_t *station, uint16_t master_port, dp_error_t *error)
{
    dp_agent_start_t agent = {.job = &station->job, .channel = -1, .stdin_fd = -1};
    char path[PATH_MAX];
    int channel[2];
    dp_status_t status = make_streams(station, error);

    if (status == DP_OK) status = open_tunnel(station, error);
    if (status == DP_OK) status = open_input(station, &agent, error);
    if (status == DP_OK) status = dp_channel_open(channel, error);
    if (status != DP_OK) return status;
    station->channel = channel[0];
    agent.channel = channel[1];
    status = dp_job_set_master(&station->job, station->start.first_host, master_port, error);
    dp_run_dir_sweep();
    if (status == DP_OK) status = dp_run_dir_create(path, sizeof(path), error);
    if (status == DP_OK) {
        (void)dp_run_dir_lock(path);
        dp_run_dir_mark_as_node(path);
        status = dp_job_set_run_dir(&station->job, path, 1, error);
    }
    if (status == DP_OK && dp_job_start_metrics(&station->job, station->base) != DP_OK)
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    dp_cgroup_memory(&station->before);
    if (status == DP_OK) status = fork_guard(station, &agent, error);
    dp_job_forget_secret(&station->job); /* the agent has it */
    close(agent.channel);
    if (agent.stdin_fd >= 0) close(agent.stdin_fd);
    if (status == DP_OK && watch_agent(station) != DP_OK) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    return status;
}

void dp_station_order(dp_station_t *station, dp_message_type_t type, int number)
{
    dp_message_t message;

    if (station->channel < 0 || (type != DP_MESSAGE_SIGNAL && type != DP_MESSAGE_KILL)) return;
    dp_message_init(&message, type, -1);
    message.status = number;
    dp_channel_send(station->channel, &message);
}

/* ---- Output --------------------------------------------------------------------------------- */

static void end_stream(dp_station_stream_t *stream)
{
    uint8_t data[5];
    dp_writer_t writer;

    if (stream->fd < 0) return;
    event_free(stream->readable);
    stream->readable = NULL;
    close(stream->fd);
    stream->fd = -1;
    dp_writer_init(&writer, data, sizeof(data));
    dp_write_u32(&writer, (uint32_t)stream->rank);
    dp_write_u8(&writer, (uint8_t)stream->number);
    dp_station_send(stream->station, DP_REMOTE_OUTPUT, data, sizeof(data));
}

static void on_output(evutil_socket_t fd, short what, void *context)
{
    dp_station_stream_t *stream = context;
    uint8_t data[5 + DP_REMOTE_PIECE];
    const size_t room = dp_min(DP_REMOTE_PIECE, DP_REMOTE_CREDIT - stream->under_way);
    const ssize_t bytes = read((int)fd, data + 5, room);
    dp_writer_t writer;

    (void)what;
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (bytes <= 0) {
        end_stream(stream);
        return;
    }
    dp_writer_init(&writer, data, 5);
    dp_write_u32(&writer, (uint32_t)stream->rank);
    dp_write_u8(&writer, (uint8_t)stream->number);
    dp_station_send(stream->station, DP_REMOTE_OUTPUT, data, 5 + (size_t)bytes);
    stream->under_way += (size_t)bytes;
    if (stream->under_way >= DP_REMOTE_CREDIT) event_del(stream->readable);
}

static dp_station_stream_t *find_stream(dp_station_t *station, int rank, int number)
{
    const int local = rank - station->start.first_rank;

    if (station->streams == NULL || local < 0 || local >= station->job.size || number < 1 ||
        number > 2) {
        return NULL;
    }
    return &station->streams[local * 2 + number - 1];
}

void dp_station_credit(dp_station_t *station, int rank, int number, size_t bytes)
{
    dp_station_stream_t *stream = find_stream(station, rank, number);

    if (stream == NULL) return;
    stream->under_way -= dp_min(bytes, stream->under_way);
    if (stream->readable != NULL && stream->under_way < DP_REMOTE_CREDIT) {
        event_add(stream->readable, NULL);
    }
}

static void attach_stream(dp_station_t *station, int rank, int number, int fd)
{
    dp_station_stream_t *stream = find_stream(station, rank, number);

    if (stream == NULL || stream->fd >= 0) {
        close(fd);
        return;
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    stream->fd = fd;
    stream->readable = event_new(station->base, fd, EV_READ | EV_PERSIST, on_output, stream);
    if (stream->readable == NULL || event_add(stream->readable, NULL) != 0) {
        dp_station_end(station, 1); /* no memory */
    }
}

/* ---- Input ---------------------------------------------------------------------------------- */

static void answer_input(dp_station_t *station, int is_closed)
{
    const uint8_t data = (uint8_t)is_closed;

    dp_station_send(station, DP_REMOTE_INPUT_TAKEN, &data, 1);
}

static void close_input(dp_station_t *station)
{
    if (station->on_input != NULL) event_free(station->on_input);
    if (station->input >= 0) close(station->input);
    free(station->piece);
    station->on_input = NULL;
    station->input = -1;
    station->piece = NULL;
}

static void on_input(evutil_socket_t fd, short what, void *context)
{
    dp_station_t *station = context;
    const ssize_t bytes = write((int)fd, station->piece + station->piece_at,
                                station->piece_bytes - station->piece_at);

    (void)what;
    if (bytes < 0 && errno != EAGAIN && errno != EINTR) {
        close_input(station); /* the rank reads no more */
        answer_input(station, 1);
        return;
    }
    if (bytes > 0) station->piece_at += (size_t)bytes;
    if (station->piece_at < station->piece_bytes) {
        event_add(station->on_input, NULL);
        return;
    }
    free(station->piece);
    station->piece = NULL;
    answer_input(station, 0);
}

void dp_station_input(dp_station_t *station, const void *data, size_t bytes)
{
    if (station->input < 0 || station->piece != NULL) return;
    if (bytes == 0) {
        close_input(station);
        return;
    }
    station->piece = malloc(bytes);
    if (station->piece == NULL) {
        close_input(station);
        answer_input(station, 1);
        return;
    }
    memcpy(station->piece, data, bytes);
    station->piece_bytes = bytes;
    station->piece_at = 0;
    event_add(station->on_input, NULL);
}

/* ---- Messages of the agent ------------------------------------------------------------------ */

static void write_sight(dp_writer_t *writer, const dp_memory_sight_t *sight)
{
    dp_write_u64(writer, (uint64_t)sight->cgroup_kills);
    dp_write_u64(writer, (uint64_t)sight->system_kills);
    dp_write_u64(writer, (uint64_t)sight->limit_bytes);
    dp_write_u64(writer, (uint64_t)sight->total_bytes);
}

/* Evidence of a kill for lack of memory, ahead of the end that it may explain. */
static void send_memory(dp_station_t *station)
{
    dp_memory_sight_t after;
    uint8_t data[64];
    dp_writer_t writer;

    dp_cgroup_memory(&after);
    dp_writer_init(&writer, data, sizeof(data));
    write_sight(&writer, &station->before);
    write_sight(&writer, &after);
    dp_station_send(station, DP_REMOTE_MEMORY, data, writer.bytes);
}

static void relay_message(dp_station_t *station, dp_message_t *message)
{
    uint8_t data[256];
    dp_writer_t writer;

    if (message->rank >= 0) message->rank += station->start.first_rank;
    if (message->type == DP_MESSAGE_ENDED && message->status != 0) send_memory(station);
    dp_writer_init(&writer, data, sizeof(data));
    dp_message_write(&writer, message);
    if (!writer.failed) dp_station_send(station, DP_REMOTE_MESSAGE, data, writer.bytes);
    for (int i = 0; i < DP_MESSAGE_FDS; i++) {
        if (message->fds[i] >= 0) attach_stream(station, message->rank, i + 1, message->fds[i]);
    }
}

static void on_channel(evutil_socket_t fd, short what, void *context)
{
    dp_station_t *station = context;
    dp_message_t message;
    const int got = dp_channel_receive((int)fd, &message);

    (void)what;
    if (got > 0) relay_message(station, &message);
    if (got >= 0) return;
    /* The agent was killed. Its ranks die with it, the rest is ended below. */
    dp_station_refuse(station, 1, "its agent (a helper process of dprun) was killed");
    dp_station_end(station, 1);
}

/* ---- End ------------------------------------------------------------------------------------ */

/* Waits for the guard, which goes when nothing below it is left. */
static void await_guard(dp_station_t *station)
{
    const uint64_t deadline_ns = dp_now_ns() + GUARD_ENDS_NS;
    const struct timespec look = {0, LOOK_NS};

    while (waitpid(station->guard, NULL, WNOHANG) == 0 && dp_now_ns() < deadline_ns)
        nanosleep(&look, NULL);
    dp_tree_kill(getpid()); /* where guard and agent were killed: their descendants fell to us */
}

void dp_station_stop_job(dp_station_t *station, int is_orphan)
{
    dp_message_t message;

    for (int i = 0; station->streams != NULL && i < station->job.size * 2; i++) {
        if (station->streams[i].readable != NULL) event_free(station->streams[i].readable);
        if (station->streams[i].fd >= 0) close(station->streams[i].fd);
    }
    free(station->streams);
    station->streams = NULL;
    close_input(station);
    dp_tunnel_destroy(station->tunnel);
    station->tunnel = NULL;
    if (station->on_channel != NULL) event_free(station->on_channel);
    station->on_channel = NULL;
    if (station->channel >= 0 && !is_orphan) {
        dp_message_init(&message, DP_MESSAGE_KILL, -1); /* nothing, where all is gone already */
        dp_channel_send(station->channel, &message);
        dp_message_init(&message, DP_MESSAGE_BYE, -1);
        dp_channel_send(station->channel, &message);
    }
    if (station->channel >= 0 && is_orphan) close(station->channel);
    if (station->guard > 0) await_guard(station);
    if (station->channel >= 0 && !is_orphan) close(station->channel);
    station->channel = -1;
    if (station->has_job) dp_job_stop_metrics(&station->job);
    if (station->has_job && station->job.owns_run_dir) dp_run_dir_remove(station->job.run_dir);
}

/* ---- About this node ------------------------------------------------------------------------ */

void dp_station_about(const dp_station_t *station, dp_remote_about_t *about)
{
    memset(about, 0, sizeof(*about));
    snprintf(about->version, sizeof(about->version), "%d.%d.%d", DP_VERSION_MAJOR, DP_VERSION_MINOR,
             DP_VERSION_PATCH);
    about->free_port = station->start.node == 0 ? dp_look_for_port() : 0;
    dp_look_at_node(about);
    if (station->start.is_check) (void)dp_look_for_ucx(about->ucx, sizeof(about->ucx));
}
