/*
 * serve.c - see serve.h.
 *
 * A port answers GET /metrics, one request per connection. A process that reaches it is a stranger:
 * CONNECTIONS are held at a time, each for REQUEST_S and REQUEST_BYTES at most, and for the next
 * one the oldest goes. So a flood costs dprun neither descriptors nor time. A text is made once a
 * second at most.
 */
#include "launcher/dprun/metrics/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/listener.h>

#define CONNECTIONS 16
#define BACKLOG 16
#define REQUEST_BYTES 8192
#define REQUEST_S 5
#define FRESH_NS UINT64_C(1000000000)
#define FILE_EVERY_S 5

struct dp_metrics {
    int fd;          /* of a port, until it is started; -1 */
    char path[1024]; /* of a file or of its folder; "": a port */
    int is_folder;
    dp_metrics_source_t source;
    char *text; /* the latest */
    size_t bytes;
    uint64_t made_ns;
    struct event *timer; /* of a file: the next text; of a port: accepts again */
    struct evconnlistener *listener;
    struct bufferevent *connections[CONNECTIONS]; /* NULL: free */
    int is_answered[CONNECTIONS];
    uint64_t since_ns[CONNECTIONS];
};

/* ---- Where ---------------------------------------------------------------------------------- */

/* The digits of "HOST:PORT"; NULL: it is a path. */
static const char *find_port(const char *where)
{
    const char *colon = strrchr(where, ':');

    if (colon == NULL || strchr(where, '/') != NULL || colon[1] == '\0') return NULL;
    return colon[1 + strspn(colon + 1, "0123456789")] == '\0' ? colon + 1 : NULL;
}

static dp_status_t open_port(const char *where, const char *port, int *fd, dp_error_t *error)
{
    const struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV,
                                   .ai_socktype = SOCK_STREAM};
    const int one = 1;
    char host[256];
    struct addrinfo *found = NULL;
    int code;

    snprintf(host, sizeof(host), "%.*s", (int)dp_min((size_t)(port - 1 - where), sizeof(host) - 1),
             where);
    if (host[0] == '[' && host[strlen(host) - 1] == ']') { /* of version 6 */
        host[strlen(host) - 1] = '\0';
        memmove(host, host + 1, strlen(host));
    }
    if (atoi(port) < 1 || atoi(port) > 65535 || strlen(port) > 5)
        return dp_error_set(error, DP_ERR_CONFIG, "--metrics %s: a port is 1 to 65535", where);
    code = getaddrinfo(host[0] == '\0' ? "127.0.0.1" : host, port, &hints, &found);
    if (code != 0) {
        return dp_error_set(error, DP_ERR_CONFIG, "--metrics %s: %s: %s", where, host,
                            gai_strerror(code));
    }
    *fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd >= 0 && setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0 &&
        bind(*fd, found->ai_addr, found->ai_addrlen) == 0 && listen(*fd, BACKLOG) == 0) {
        freeaddrinfo(found);
        return DP_OK;
    }
    dp_error_set(error, DP_ERR_CONFIG, "--metrics %s: %s", where,
                 errno == EADDRINUSE ? "another program has this port" : strerror(errno));
    freeaddrinfo(found);
    return DP_ERR_CONFIG;
}

/* The run directory's name tells the files of several jobs in one folder apart. */
static void file_path(const dp_metrics_t *metrics, const char *ending, char *path, size_t room)
{
    const char *name = strrchr(metrics->source.run_dir, '/');

    if (metrics->is_folder) {
        snprintf(path, room, "%s/%.64s.prom%s", metrics->path,
                 name == NULL ? metrics->source.run_dir : name + 1, ending);
    } else {
        snprintf(path, room, "%s%s", metrics->path, ending);
    }
}

static dp_status_t look_at_path(const char *where, dp_metrics_t *metrics, dp_error_t *error)
{
    char folder[PATH_MAX];
    struct stat info;
    char *slash;

    if (strlen(where) >= sizeof(metrics->path)) {
        errno = ENAMETOOLONG;
        return dp_error_set(error, DP_ERR_CONFIG, "--metrics: %s", strerror(errno));
    }
    snprintf(metrics->path, sizeof(metrics->path), "%s", where);
    snprintf(folder, sizeof(folder), "%s", where);
    metrics->is_folder = stat(where, &info) == 0 && S_ISDIR(info.st_mode);
    slash = strrchr(folder, '/');
    if (!metrics->is_folder && slash == NULL) {
        snprintf(folder, sizeof(folder), ".");
    } else if (!metrics->is_folder) {
        slash[slash == folder ? 1 : 0] = '\0';
    }
    if (where[0] != '\0' && access(folder, W_OK | X_OK) == 0) return DP_OK;
    return dp_error_set(error, DP_ERR_CONFIG, "--metrics %s: the folder %s: %s", where, folder,
                        strerror(where[0] == '\0' ? ENOENT : errno));
}

dp_status_t dp_metrics_open(const char *where, dp_metrics_t **out, dp_error_t *error)
{
    const char *port;
    dp_metrics_t *metrics;
    dp_status_t status;

    *out = NULL;
    if (where == NULL || where[0] == '\0') return DP_OK;
    metrics = calloc(1, sizeof(*metrics));
    if (metrics == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    metrics->fd = -1;
    port = find_port(where);
    status = port != NULL ? open_port(where, port, &metrics->fd, error)
                          : look_at_path(where, metrics, error);
    if (status != DP_OK) {
        dp_metrics_close(metrics);
        return status;
    }
    *out = metrics;
    return DP_OK;
}

/* ---- Text ----------------------------------------------------------------------------------- */

/* 0: no memory. */
static int refresh_text(dp_metrics_t *metrics)
{
    const uint64_t now_ns = dp_now_ns();
    char *text = NULL;
    size_t bytes = 0;
    FILE *out;

    if (metrics->text != NULL && now_ns - metrics->made_ns < FRESH_NS) return 1;
    out = open_memstream(&text, &bytes);
    if (out == NULL) return 0;
    dp_metrics_write(&metrics->source, now_ns, out);
    if (fclose(out) != 0) {
        free(text);
        return 0;
    }
    free(metrics->text);
    metrics->text = text;
    metrics->bytes = bytes;
    metrics->made_ns = now_ns;
    return 1;
}

/* A reader sees the old text or the new one. */
static void write_file(evutil_socket_t fd, short what, void *context)
{
    dp_metrics_t *metrics = context;
    char path[PATH_MAX], temporary[PATH_MAX];
    FILE *file;

    (void)fd;
    (void)what;
    file_path(metrics, "", path, sizeof(path));
    file_path(metrics, ".new", temporary, sizeof(temporary));
    if (!refresh_text(metrics)) return;
    file = fopen(temporary, "we");
    if (file == NULL) return; /* a disk that is full now may have room in five seconds */
    if (fwrite(metrics->text, 1, metrics->bytes, file) != metrics->bytes) {
        fclose(file);
        unlink(temporary);
    } else if (fclose(file) != 0 || rename(temporary, path) != 0) {
        unlink(temporary);
    }
}

/* ---- Connections ---------------------------------------------------------------------------- */

static int find_connection(const dp_metrics_t *metrics, const struct bufferevent *connection)
{
    for (int i = 0; i < CONNECTIONS; i++) {
        if (metrics->connections[i] == connection) return i;
    }
    return -1;
}

static void end_connection(dp_metrics_t *metrics, int index)
{
    bufferevent_free(metrics->connections[index]);
    metrics->connections[index] = NULL;
}

/* A free place, or that of the oldest connection, which goes. */
static int make_room(dp_metrics_t *metrics)
{
    int index = find_connection(metrics, NULL), oldest = 0;

    if (index >= 0) return index;
    for (int i = 1; i < CONNECTIONS; i++) {
        if (metrics->since_ns[i] < metrics->since_ns[oldest]) oldest = i;
    }
    end_connection(metrics, oldest);
    return oldest;
}

/* Closed, broken, or too slow. */
static void on_connection_event(struct bufferevent *connection, short what, void *context)
{
    (void)what;
    end_connection(context, find_connection(context, connection));
}

static void on_written(struct bufferevent *connection, void *context)
{
    dp_metrics_t *metrics = context;
    const int index = find_connection(metrics, connection);

    if (metrics->is_answered[index]) end_connection(metrics, index);
}

static int is_ours(struct evbuffer *input)
{
    static const char *const lines[] = {"GET /metrics ", "GET /metrics?", "GET / "};
    char line[16] = "";

    evbuffer_copyout(input, line, sizeof(line) - 1);
    for (size_t i = 0; i < DP_ARRAY_LEN(lines); i++) {
        if (strncmp(line, lines[i], strlen(lines[i])) == 0) return 1;
    }
    return 0;
}

static void on_request(struct bufferevent *connection, void *context)
{
    dp_metrics_t *metrics = context;
    struct evbuffer *input = bufferevent_get_input(connection);
    struct evbuffer *output = bufferevent_get_output(connection);
    const int index = find_connection(metrics, connection);
    const int is_whole = evbuffer_search(input, "\r\n\r\n", 4, NULL).pos >= 0;

    if (metrics->is_answered[index]) return;
    if (!is_whole && evbuffer_get_length(input) < REQUEST_BYTES) return;
    metrics->is_answered[index] = 1;
    if (is_whole && is_ours(input) && refresh_text(metrics)) {
        evbuffer_add_printf(output,
                            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
                            "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                            metrics->bytes);
        evbuffer_add(output, metrics->text, metrics->bytes);
    } else {
        evbuffer_add_printf(output, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n"
                                    "Connection: close\r\n\r\n");
    }
}

static void on_connected(struct evconnlistener *listener, evutil_socket_t fd,
                         struct sockaddr *address, int bytes, void *context)
{
    dp_metrics_t *metrics = context;
    struct event_base *base = evconnlistener_get_base(listener);
    const struct timeval limit = {REQUEST_S, 0};
    const int index = make_room(metrics);
    struct bufferevent *connection = bufferevent_socket_new(base, fd, BEV_OPT_CLOSE_ON_FREE);

    (void)address;
    (void)bytes;
    if (connection == NULL) {
        close(fd);
        return;
    }
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    bufferevent_setcb(connection, on_request, on_written, on_connection_event, metrics);
    bufferevent_setwatermark(connection, EV_READ, 0, REQUEST_BYTES);
    bufferevent_set_timeouts(connection, &limit, &limit);
    bufferevent_enable(connection, EV_READ);
    metrics->connections[index] = connection;
    metrics->is_answered[index] = 0;
    metrics->since_ns[index] = dp_now_ns();
}

/* No descriptor is left, for example: tried again later, not in a busy loop. */
static void on_accept_failed(struct evconnlistener *listener, void *context)
{
    const dp_metrics_t *metrics = context;
    const struct timeval pause = {REQUEST_S, 0};

    evconnlistener_disable(listener);
    event_add(metrics->timer, &pause);
}

static void accept_again(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    evconnlistener_enable(((dp_metrics_t *)context)->listener);
}

/* ---- Life ----------------------------------------------------------------------------------- */

dp_status_t dp_metrics_start(dp_metrics_t *metrics, struct event_base *base,
                             const dp_metrics_source_t *source)
{
    const struct timeval every = {FILE_EVERY_S, 0};

    if (metrics == NULL) return DP_OK;
    metrics->source = *source;
    if (metrics->path[0] != '\0') {
        metrics->timer = event_new(base, -1, EV_PERSIST, write_file, metrics);
        if (metrics->timer == NULL || event_add(metrics->timer, &every) != 0)
            return DP_ERR_NO_MEMORY;
        write_file(-1, 0, metrics);
        return DP_OK;
    }
    metrics->listener =
        evconnlistener_new(base, on_connected, metrics, LEV_OPT_CLOSE_ON_FREE, 0, metrics->fd);
    if (metrics->listener == NULL) return DP_ERR_NO_MEMORY;
    metrics->fd = -1; /* the listener's now */
    metrics->timer = evtimer_new(base, accept_again, metrics);
    if (metrics->timer == NULL) return DP_ERR_NO_MEMORY;
    evconnlistener_set_error_cb(metrics->listener, on_accept_failed);
    return DP_OK;
}

void dp_metrics_forget(dp_metrics_t *metrics)
{
    if (metrics != NULL && metrics->fd >= 0) close(metrics->fd);
}

void dp_metrics_close(dp_metrics_t *metrics)
{
    char path[PATH_MAX];

    if (metrics == NULL) return;
    if (metrics->timer != NULL) event_free(metrics->timer);
    if (metrics->timer != NULL && metrics->path[0] != '\0') {
        file_path(metrics, "", path, sizeof(path));
        unlink(path);
    }
    for (int i = 0; i < CONNECTIONS; i++) {
        if (metrics->connections[i] != NULL) bufferevent_free(metrics->connections[i]);
    }
    if (metrics->listener != NULL) evconnlistener_free(metrics->listener);
    if (metrics->fd >= 0) close(metrics->fd);
    free(metrics->text);
    free(metrics);
}
