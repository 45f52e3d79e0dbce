/*
 * pmi.c - the conversation with an MPI launcher: one request, one answer, every wait bounded.
 * Called by bootstrap_elsewhere.c. It must not know what is put into the key-value space.
 */
#include "runtime/group/pmi.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* ---- Messages: pure -------------------------------------------------------------------------- */

/* Copies a value that ends at `end` or at the message's end; doubled semicolons become one. Moves
 * *at behind it. 0, or -1: no room. value may be NULL: then it is skipped. */
static int take_value(int version, const char *message, size_t bytes, size_t *at, char *value,
                      size_t room)
{
    const char end = version == 1 ? ' ' : ';';
    size_t length = 0;

    for (; *at < bytes; (*at)++) {
        if (message[*at] == end) {
            const int is_doubled = version == 2 && *at + 1 < bytes && message[*at + 1] == ';';

            if (!is_doubled) break;
            (*at)++;
        }
        if (value == NULL) continue;
        if (length + 1 >= room || message[*at] == '\0') {
            value[0] = '\0';
            return -1;
        }
        value[length++] = message[*at];
    }
    if (value != NULL) value[length] = '\0';
    if (*at < bytes) (*at)++; /* the end itself */
    return 0;
}

int dp_pmi_find(int version, const char *message, size_t bytes, const char *key, char *value,
                size_t room)
{
    const char end = version == 1 ? ' ' : ';';
    const size_t key_bytes = strlen(key);
    size_t at = 0;

    while (at < bytes) {
        const size_t begin = at;

        if (version == 1 && message[at] == ' ') { /* several blanks between two words */
            at++;
            continue;
        }
        while (at < bytes && message[at] != '=' && message[at] != end)
            at++;
        if (at == bytes || message[at] != '=') {
            if (version != 1) return -1;
            continue; /* of a sentence: what PMI-1 says in words is not quoted */
        }
        at++;
        if (at - 1 - begin == key_bytes && memcmp(message + begin, key, key_bytes) == 0) {
            return take_value(version, message, bytes, &at, value, room) == 0 ? 1 : -1;
        }
        take_value(version, message, bytes, &at, NULL, 0);
    }
    return 0;
}

/* Makes a message from an unknown sender printable and short. */
static void show(const char *message, size_t bytes, char text[128])
{
    const size_t kept = dp_min(bytes, (size_t)127);

    for (size_t i = 0; i < kept; i++)
        text[i] = (char)(message[i] < 0x20 || message[i] > 0x7e ? '?' : message[i]);
    text[kept] = '\0';
}

dp_status_t dp_pmi_check(int version, const char *message, size_t bytes, const char *command,
                         dp_error_t *error)
{
    char value[256] = "";
    char shown[128];

    show(message, bytes, shown);
    if (dp_pmi_find(version, message, bytes, "cmd", value, sizeof(value)) != 1 ||
        strcmp(value, command) != 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "PMI: the launcher said '%s', expected %s", shown,
                            command);
    }
    if (dp_pmi_find(version, message, bytes, "rc", value, sizeof(value)) == 0) return DP_OK;
    if (strcmp(value, "0") == 0) return DP_OK;
    return dp_error_set(error, DP_ERR_SYSTEM, "PMI: the launcher refused: '%s'", shown);
}

size_t dp_pmi_length(const char digits[DP_PMI_LENGTH_BYTES])
{
    size_t value = 0;
    int is_over = 0;
    int count = 0;

    for (int i = 0; i < DP_PMI_LENGTH_BYTES; i++) {
        if (digits[i] == ' ') {
            is_over = count > 0;
            continue;
        }
        if (digits[i] < '0' || digits[i] > '9' || is_over) return 0;
        value = value * 10 + (size_t)(digits[i] - '0');
        count++;
    }
    return value <= DP_PMI_MESSAGE_MAX ? value : 0;
}

/* ---- Bytes ---------------------------------------------------------------------------------- */

static dp_status_t wait_for_launcher(dp_pmi_t *pmi, short events, const char *what,
                                     dp_error_t *error)
{
    struct pollfd wait = {pmi->fd, events, 0};

    for (;;) {
        const uint64_t now = dp_now_ns();
        const uint64_t left = pmi->deadline_ns > now ? pmi->deadline_ns - now : 0;
        const int ready = poll(&wait, 1, (int)dp_min((left + 999999) / 1000000, 3600000u));

        if (ready > 0) return DP_OK;
        if (ready < 0 && errno != EINTR) {
            return dp_error_set(error, DP_ERR_SYSTEM, "PMI_FD=%d: %s", pmi->fd, strerror(errno));
        }
        if (ready == 0 && dp_now_ns() >= pmi->deadline_ns) {
            return dp_error_set(error, DP_ERR_TIMEOUT, "PMI: %s did not come in time", what);
        }
    }
}

static dp_status_t send_to_launcher(dp_pmi_t *pmi, const char *data, size_t bytes,
                                    dp_error_t *error)
{
    while (bytes > 0) {
        const ssize_t sent = send(pmi->fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        dp_status_t status;

        if (sent >= 0) {
            data += sent;
            bytes -= (size_t)sent;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            status = wait_for_launcher(pmi, POLLOUT, "room to send", error);
            if (status != DP_OK) return status;
        } else if (pmi->version != 0 && errno != EINTR) {
            return dp_error_set(error, DP_ERR_SYSTEM, "PMI: the launcher closed: %s",
                                strerror(errno));
        } else if (errno != EINTR) { /* not even a hello could be said */
            return dp_error_set(error, DP_ERR_CONFIG,
                                "PMI_FD=%d: %s: no launcher listens there; start with srun or "
                                "mpiexec, or unset PMI_RANK, PMI_SIZE and PMI_FD",
                                pmi->fd, strerror(errno));
        }
    }
    return DP_OK;
}

/* Reads on, at least a byte. */
static dp_status_t receive_some(dp_pmi_t *pmi, const char *what, dp_error_t *error)
{
    for (;;) {
        const ssize_t got = recv(pmi->fd, pmi->input + pmi->input_bytes,
                                 sizeof(pmi->input) - pmi->input_bytes, MSG_DONTWAIT);
        dp_status_t status;

        if (got > 0) {
            pmi->input_bytes += (size_t)got;
            return DP_OK;
        }
        if (got == 0) {
            return dp_error_set(error, DP_ERR_SYSTEM, "PMI: the launcher closed, expected %s",
                                what);
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            status = wait_for_launcher(pmi, POLLIN, what, error);
            if (status != DP_OK) return status;
        } else if (errno != EINTR) {
            return dp_error_set(error, DP_ERR_SYSTEM, "PMI: the launcher closed, expected %s: %s",
                                what, strerror(errno));
        }
    }
}

/* ---- Messages ------------------------------------------------------------------------------- */

/* Receives one message of a version into message[DP_PMI_MESSAGE_MAX]. */
static dp_status_t receive(dp_pmi_t *pmi, int version, char *message, size_t *bytes,
                           const char *what, dp_error_t *error)
{
    size_t whole = 0;
    size_t skip = version == 1 ? 0 : DP_PMI_LENGTH_BYTES;
    dp_status_t status;

    for (;;) {
        if (version == 1) {
            const char *end = memchr(pmi->input, '\n', pmi->input_bytes);

            if (end != NULL) {
                *bytes = (size_t)(end - pmi->input);
                whole = *bytes + 1;
                break;
            }
        } else if (pmi->input_bytes >= DP_PMI_LENGTH_BYTES) {
            *bytes = dp_pmi_length(pmi->input);
            if (*bytes == 0 || skip + *bytes > sizeof(pmi->input)) {
                return dp_error_set(error, DP_ERR_SYSTEM,
                                    "PMI: a message begins with '%.6s', expected its length",
                                    pmi->input);
            }
            whole = skip + *bytes;
            if (pmi->input_bytes >= whole) break;
        }
        if (pmi->input_bytes == sizeof(pmi->input)) {
            return dp_error_set(error, DP_ERR_SYSTEM, "PMI: a message of more than %zu bytes",
                                sizeof(pmi->input));
        }
        status = receive_some(pmi, what, error);
        if (status != DP_OK) return status;
    }
    memcpy(message, pmi->input + skip, *bytes);
    pmi->input_bytes -= whole;
    memmove(pmi->input, pmi->input + whole, pmi->input_bytes);
    return DP_OK;
}

static dp_status_t send_message(dp_pmi_t *pmi, int version, const char *text, dp_error_t *error)
{
    char framed[DP_PMI_MESSAGE_MAX + 16];
    int bytes;

    if (version == 1) {
        bytes = snprintf(framed, sizeof(framed), "%s\n", text);
    } else {
        bytes = snprintf(framed, sizeof(framed), "%6zu%s", strlen(text), text);
    }
    if (bytes < 0 || (size_t)bytes >= sizeof(framed)) {
        return dp_error_set(error, DP_ERR_INVALID, "PMI: a message of %zu bytes", strlen(text));
    }
    return send_to_launcher(pmi, framed, (size_t)bytes, error);
}

/* Asks and waits for the answer, which is left in message. */
static dp_status_t ask(dp_pmi_t *pmi, const char *expected, char *message, size_t *bytes,
                       dp_error_t *error, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

static dp_status_t ask(dp_pmi_t *pmi, const char *expected, char *message, size_t *bytes,
                       dp_error_t *error, const char *format, ...)
{
    char text[DP_PMI_MESSAGE_MAX];
    va_list arguments;
    dp_status_t status;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    status = send_message(pmi, pmi->version, text, error);
    explicit_bzero(text, sizeof(text)); /* a value may be a secret */
    if (status == DP_OK) status = receive(pmi, pmi->version, message, bytes, expected, error);
    if (status == DP_OK) status = dp_pmi_check(pmi->version, message, *bytes, expected, error);
    return status;
}

/* ---- Life ----------------------------------------------------------------------------------- */

/* Both versions begin with the same line; the answer says which one the launcher speaks. */
static dp_status_t agree_on_version(dp_pmi_t *pmi, int wanted, dp_error_t *error)
{
    char message[DP_PMI_MESSAGE_MAX];
    char value[32] = "";
    size_t bytes = 0;
    dp_status_t status;

    status = send_message(pmi, 1,
                          wanted == 2 ? "cmd=init pmi_version=2 pmi_subversion=0"
                                      : "cmd=init pmi_version=1 pmi_subversion=1",
                          error);
    if (status == DP_OK) status = receive(pmi, 1, message, &bytes, "response_to_init", error);
    if (status == DP_OK) status = dp_pmi_check(1, message, bytes, "response_to_init", error);
    if (status != DP_OK) return status;
    if (dp_pmi_find(1, message, bytes, "pmi_version", value, sizeof(value)) != 1 ||
        atoi(value) != wanted) {
        return dp_error_set(error, DP_ERR_UNSUPPORTED,
                            "PMI: the launcher speaks version '%s', asked for %d", value, wanted);
    }
    pmi->version = wanted;
    return DP_OK;
}

static dp_status_t check_number(dp_pmi_t *pmi, const char *message, size_t bytes, const char *key,
                                int expected, dp_error_t *error)
{
    char value[32];

    if (dp_pmi_find(pmi->version, message, bytes, key, value, sizeof(value)) != 1) return DP_OK;
    if (atoi(value) == expected) return DP_OK;
    return dp_error_set(error, DP_ERR_CONFIG,
                        "the launcher's PMI says %s %s, the environment %d: variables of another "
                        "job?",
                        key, value, expected);
}

dp_status_t dp_pmi_open(dp_pmi_t *pmi, int fd, const char *job, int rank, int size,
                        uint64_t deadline_ns, dp_error_t *error)
{
    char message[DP_PMI_MESSAGE_MAX];
    const int first = job != NULL ? 2 : 1;
    size_t bytes = 0;
    dp_status_t status;

    memset(pmi, 0, sizeof(*pmi));
    pmi->fd = fd;
    pmi->deadline_ns = deadline_ns;
    snprintf(pmi->job, sizeof(pmi->job), "%s", job != NULL ? job : "");
    status = agree_on_version(pmi, first, error);
    if (status == DP_ERR_SYSTEM || status == DP_ERR_UNSUPPORTED) {
        if (agree_on_version(pmi, 3 - first, NULL) == DP_OK) status = DP_OK;
    }
    if (status != DP_OK) return status;
    if (pmi->version == 2) {
        status = ask(pmi, "fullinit-response", message, &bytes, error,
                     "cmd=fullinit;pmijobid=%s;pmirank=%d;threaded=FALSE;", pmi->job, rank);
        if (status == DP_OK) status = check_number(pmi, message, bytes, "rank", rank, error);
        if (status == DP_OK) status = check_number(pmi, message, bytes, "size", size, error);
        return status;
    }
    status = ask(pmi, "maxes", message, &bytes, error, "cmd=get_maxes");
    if (status == DP_OK) {
        status = ask(pmi, "my_kvsname", message, &bytes, error, "cmd=get_my_kvsname");
    }
    if (status != DP_OK) return status;
    if (dp_pmi_find(1, message, bytes, "kvsname", pmi->space, sizeof(pmi->space)) != 1) {
        return dp_error_set(error, DP_ERR_SYSTEM, "PMI: the launcher names no key-value space");
    }
    return DP_OK;
}

dp_status_t dp_pmi_put(dp_pmi_t *pmi, const char *key, const char *value, dp_error_t *error)
{
    char message[DP_PMI_MESSAGE_MAX];
    size_t bytes = 0;

    if (pmi->version == 2) {
        return ask(pmi, "kvs-put-response", message, &bytes, error, "cmd=kvs-put;key=%s;value=%s;",
                   key, value);
    }
    return ask(pmi, "put_result", message, &bytes, error, "cmd=put kvsname=%s key=%s value=%s",
               pmi->space, key, value);
}

dp_status_t dp_pmi_fence(dp_pmi_t *pmi, dp_error_t *error)
{
    char message[DP_PMI_MESSAGE_MAX];
    size_t bytes = 0;
    dp_status_t status;

    if (pmi->version == 2) {
        status = ask(pmi, "kvs-fence-response", message, &bytes, error, "cmd=kvs-fence;");
    } else {
        status = ask(pmi, "barrier_out", message, &bytes, error, "cmd=barrier_in");
    }
    if (status != DP_ERR_TIMEOUT) return status;
    return dp_error_set(error, status,
                        "PMI: not all ranks came to the fence in time; this one did, of the others "
                        "PMI does not tell");
}

dp_status_t dp_pmi_get(dp_pmi_t *pmi, const char *key, char *value, size_t room, dp_error_t *error)
{
    char message[DP_PMI_MESSAGE_MAX];
    size_t bytes = 0;
    dp_status_t status;

    if (pmi->version == 2 && pmi->job[0] != '\0') {
        status = ask(pmi, "kvs-get-response", message, &bytes, error,
                     "cmd=kvs-get;jobid=%s;srcid=0;key=%s;", pmi->job, key);
    } else if (pmi->version == 2) {
        status = ask(pmi, "kvs-get-response", message, &bytes, error, "cmd=kvs-get;key=%s;", key);
    } else {
        status = ask(pmi, "get_result", message, &bytes, error, "cmd=get kvsname=%s key=%s",
                     pmi->space, key);
    }
    if (status != DP_OK) return status;
    if (dp_pmi_find(pmi->version, message, bytes, "value", value, room) != 1) {
        status = dp_error_set(error, DP_ERR_SYSTEM, "PMI: no value for the key %s", key);
    }
    explicit_bzero(message, sizeof(message));
    return status;
}

dp_status_t dp_pmi_close(dp_pmi_t *pmi, dp_error_t *error)
{
    char message[DP_PMI_MESSAGE_MAX];
    size_t bytes = 0;

    explicit_bzero(pmi->input, sizeof(pmi->input));
    if (pmi->version == 2) {
        return ask(pmi, "finalize-response", message, &bytes, error, "cmd=finalize;");
    }
    return ask(pmi, "finalize_ack", message, &bytes, error, "cmd=finalize");
}
