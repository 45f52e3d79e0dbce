/*
 * hosts.c - see hosts.h. Called by nodes.c, before anything is started.
 */
#include "launcher/dprun/remote/hosts.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/input_file.h"

#define SLOTS_MAX 1024
#define NODES_MAX 4096
#define LINE_MAX_BYTES 4096

void dp_hosts_fini(dp_hosts_t *hosts)
{
    free(hosts->list);
    hosts->list = NULL;
    hosts->count = 0;
}

/* A name is an argument of ssh: one that begins with "-" would be an option. It also stands in
 * front of each line of a rank's output, on a terminal. */
static int is_name(const char *name, size_t bytes)
{
    if (bytes == 0 || bytes > DP_HOST_NAME_MAX || name[0] == '-') return 0;
    for (size_t i = 0; i < bytes; i++)
        if (name[i] <= ' ' || name[i] > '~') return 0;
    return 1;
}

static dp_status_t add_host(dp_hosts_t *hosts, const char *name, size_t bytes, int slots,
                            int has_slots, dp_error_t *error)
{
    dp_host_t *list;

    if (!is_name(name, bytes)) {
        return dp_error_set(error, DP_ERR_CONFIG, "\"%.*s\" is no name of a host",
                            (int)dp_min(bytes, (size_t)80), name);
    }
    for (int i = 0; i < hosts->count; i++) {
        dp_host_t *host = &hosts->list[i];

        if (strlen(host->name) != bytes || memcmp(host->name, name, bytes) != 0) continue;
        host->slots += slots;
        host->has_slots |= has_slots;
        return DP_OK;
    }
    if (hosts->count >= NODES_MAX) {
        return dp_error_set(error, DP_ERR_CONFIG, "more than %d hosts", NODES_MAX);
    }
    list = realloc(hosts->list, ((size_t)hosts->count + 1) * sizeof(*list));
    if (list == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    hosts->list = list;
    memset(&list[hosts->count], 0, sizeof(*list));
    memcpy(list[hosts->count].name, name, bytes);
    list[hosts->count].slots = slots;
    list[hosts->count++].has_slots = has_slots;
    return DP_OK;
}

static int parse_slots(const char *text, size_t bytes, int *slots)
{
    char number[16];
    char *end;
    long value;

    if (bytes == 0 || bytes >= sizeof(number)) return -1;
    memcpy(number, text, bytes);
    number[bytes] = '\0';
    value = strtol(number, &end, 10);
    if (*end != '\0' || value < 0 || value > SLOTS_MAX) return -1;
    *slots = (int)value;
    return 0;
}

/* "name", "name:2", "[fe80::1]:2", "user@name:2". */
static dp_status_t add_word(dp_hosts_t *hosts, const char *word, size_t bytes, dp_error_t *error)
{
    const char *close = word[0] == '[' ? memchr(word, ']', bytes) : NULL;
    const char *name = close != NULL ? word + 1 : word;
    const char *colon = memchr(close != NULL ? close : word, ':',
                               bytes - (close != NULL ? (size_t)(close - word) : 0));
    const char *end = colon != NULL ? colon : word + bytes;
    int slots = 1;

    if (close == NULL && colon != NULL &&
        memchr(colon + 1, ':', (size_t)(word + bytes - colon) - 1)) {
        return dp_error_set(error, DP_ERR_CONFIG,
                            "\"%.*s\": an IPv6 address stands in brackets: [%.*s]:SLOTS",
                            (int)bytes, word, (int)bytes, word);
    }
    if (colon != NULL &&
        (parse_slots(colon + 1, (size_t)(word + bytes - colon) - 1, &slots) != 0 || slots == 0)) {
        return dp_error_set(error, DP_ERR_CONFIG, "\"%.*s\": after the colon must be 1 to %d slots",
                            (int)bytes, word, SLOTS_MAX);
    }
    if (close != NULL) end = close;
    return add_host(hosts, name, (size_t)(end - name), slots, colon != NULL, error);
}

dp_status_t dp_hosts_parse(dp_hosts_t *hosts, const char *text, dp_error_t *error)
{
    dp_error_t cause = {DP_OK, ""};
    dp_status_t status = DP_OK;

    memset(hosts, 0, sizeof(*hosts));
    for (const char *word = text; status == DP_OK; word++) {
        const char *end = strchrnul(word, ',');

        status = add_word(hosts, word, (size_t)(end - word), &cause);
        word = end;
        if (*end == '\0') break;
    }
    if (status == DP_OK) return DP_OK;
    dp_hosts_fini(hosts);
    return dp_error_set(error, status, "-H %s: %s", text, cause.text);
}

/* ---- Hostfile ------------------------------------------------------------------------------- */

static dp_status_t read_line(dp_hosts_t *hosts, char *line, dp_error_t *error)
{
    char *rest = line;
    char *name;
    char *word;
    int slots = 0;
    dp_status_t status;

    line[strcspn(line, "#\r\n")] = '\0';
    do {
        name = strsep(&rest, " \t");
    } while (name != NULL && name[0] == '\0');
    if (name == NULL) return DP_OK;
    status = add_word(hosts, name, strlen(name), error);
    while (status == DP_OK && (word = strsep(&rest, " \t")) != NULL) {
        const int is_slots = strncmp(word, "slots=", 6) == 0;

        if (word[0] == '\0') continue;
        if (!is_slots && strncmp(word, "max-slots=", 10) != 0 &&
            strncmp(word, "max_slots=", 10) != 0) {
            return dp_error_set(error, DP_ERR_CONFIG, "\"%s\": after a name may be slots=N", word);
        }
        if (!is_slots)
            continue; /* Open MPI's bound for more ranks than slots, which dprun refuses */
        if (parse_slots(word + 6, strlen(word + 6), &slots) != 0 || slots == 0) {
            return dp_error_set(error, DP_ERR_CONFIG, "\"%s\": must be 1 to %d", word, SLOTS_MAX);
        }
        for (int i = 0; i < hosts->count; i++) { /* the word above counted one */
            if (strcmp(hosts->list[i].name, name) != 0) continue;
            hosts->list[i].slots += slots - 1;
            hosts->list[i].has_slots = 1;
        }
    }
    return status;
}

dp_status_t dp_hosts_read(dp_hosts_t *hosts, const char *path, dp_error_t *error)
{
    char line[LINE_MAX_BYTES];
    dp_error_t cause = {DP_OK, ""};
    dp_status_t status = DP_OK;
    int number = 0;
    const char *why = "";
    FILE *file = dp_input_file_open(path, &why);

    memset(hosts, 0, sizeof(*hosts));
    if (file == NULL) return dp_error_set(error, DP_ERR_CONFIG, "--hostfile %s: %s", path, why);
    while (status == DP_OK && fgets(line, sizeof(line), file) != NULL) {
        number++;
        if (number == 1 && strncmp(line, "\xef\xbb\xbf", 3) == 0) /* a UTF-8 file of Windows */
            memmove(line, line + 3, strlen(line + 3) + 1);
        status = read_line(hosts, line, &cause);
    }
    fclose(file);
    if (status == DP_OK && hosts->count == 0) {
        status = dp_error_set(&cause, DP_ERR_CONFIG, "no host in it");
    }
    if (status == DP_OK) return DP_OK;
    dp_hosts_fini(hosts);
    return dp_error_set(error, status, "--hostfile %s: line %d: %s", path, number, cause.text);
}

/* ---- Slurm ---------------------------------------------------------------------------------- */

/* "1-3,07" between brackets: one name for each, as wide as the first number is written. */
static dp_status_t add_range(dp_hosts_t *hosts, const char *prefix, size_t prefix_bytes,
                             const char *range, const char *end, const char *suffix,
                             size_t suffix_bytes, dp_error_t *error)
{
    while (range < end) {
        char *after;
        unsigned long first = strtoul(range, &after, 10);
        unsigned long last = first;
        const int width = (int)(after - range);
        dp_status_t status = DP_OK;

        /* strtoul() takes blanks and signs, too, and ends at the largest number. */
        if (!isdigit((unsigned char)*range)) break;
        if (*after == '-') {
            if (!isdigit((unsigned char)after[1])) break;
            last = strtoul(after + 1, &after, 10);
        }
        if (last < first || last - first >= NODES_MAX || last > UINT32_MAX) break;
        for (unsigned long i = first; i <= last && status == DP_OK; i++) {
            char name[2 * DP_HOST_NAME_MAX];
            const int bytes = snprintf(name, sizeof(name), "%.*s%0*lu%.*s", (int)prefix_bytes,
                                       prefix, width, i, (int)suffix_bytes, suffix);

            status = add_host(hosts, name, (size_t)bytes, 1, 0, error);
        }
        if (status != DP_OK) return status;
        if (after == end) return DP_OK;
        if (*after != ',') break;
        range = after + 1;
    }
    return dp_error_set(error, DP_ERR_CONFIG, "cannot be read");
}

static dp_status_t add_slurm_names(dp_hosts_t *hosts, const char *names, dp_error_t *error)
{
    dp_status_t status = DP_OK;

    while (*names != '\0' && status == DP_OK) {
        const size_t plain = strcspn(names, "[,");

        if (names[plain] != '[') {
            status = add_host(hosts, names, plain, 1, 0, error);
            names += plain;
        } else {
            const char *close = strchr(names + plain, ']');
            const size_t suffix = close == NULL ? 0 : strcspn(close + 1, ",");

            if (close == NULL) return dp_error_set(error, DP_ERR_CONFIG, "cannot be read");
            status =
                add_range(hosts, names, plain, names + plain + 1, close, close + 1, suffix, error);
            names = close + 1 + suffix;
        }
        if (*names == ',') names++;
    }
    return status;
}

/* "2(x3),1": 2 on each of three nodes, then 1. */
static void take_slurm_tasks(dp_hosts_t *hosts, const char *tasks)
{
    int node = 0;

    while (tasks != NULL && *tasks != '\0' && node < hosts->count) {
        char *after;
        const long slots = strtol(tasks, &after, 10);
        long times = 1;

        if (after == tasks || slots < 1 || slots > SLOTS_MAX) return;
        if (strncmp(after, "(x", 2) == 0) {
            times = strtol(after + 2, &after, 10);
            if (*after == ')') after++;
        }
        for (; times > 0 && node < hosts->count; times--) {
            hosts->list[node].slots = (int)slots;
            hosts->list[node++].has_slots = 1;
        }
        tasks = *after == ',' ? after + 1 : after;
    }
}

dp_status_t dp_hosts_from_slurm(dp_hosts_t *hosts, const char *names, const char *tasks,
                                dp_error_t *error)
{
    dp_error_t cause = {DP_OK, ""};
    dp_status_t status;

    memset(hosts, 0, sizeof(*hosts));
    status = add_slurm_names(hosts, names, &cause);
    if (status == DP_OK && hosts->count == 0) {
        status = dp_error_set(&cause, DP_ERR_CONFIG, "it is empty");
    }
    if (status != DP_OK) {
        dp_hosts_fini(hosts);
        return dp_error_set(error, status, "SLURM_JOB_NODELIST=%s: %s", names, cause.text);
    }
    take_slurm_tasks(hosts, tasks);
    return DP_OK;
}

/* ---- Placing -------------------------------------------------------------------------------- */

dp_status_t dp_hosts_place(dp_hosts_t *hosts, int *size, dp_error_t *error)
{
    int slots = 0;
    int has_slots = 0;
    int rank = 0;
    int nodes = 0;

    for (int i = 0; i < hosts->count; i++) {
        slots += hosts->list[i].slots;
        has_slots |= hosts->list[i].has_slots;
    }
    if (*size == 0) *size = slots;
    if (*size > slots && has_slots) {
        return dp_error_set(error, DP_ERR_CONFIG,
                            "-np %d: %d host%s, %d slot%s: give more (name:SLOTS, Slurm's "
                            "--ntasks-per-node)",
                            *size, hosts->count, hosts->count == 1 ? "" : "s", slots,
                            slots == 1 ? "" : "s");
    }
    for (int i = 0; i < hosts->count; i++) {
        dp_host_t *host = &hosts->list[i];
        const int left = *size - rank;
        /* Names alone: the ranks are dealt evenly, the first nodes get one more. */
        const int share = *size / hosts->count + (i < *size % hosts->count);

        host->ranks = has_slots ? dp_min(host->slots, left) : share;
        host->first_rank = rank;
        rank += host->ranks;
        if (host->ranks > 0) hosts->list[nodes++] = *host;
    }
    hosts->count = nodes;
    return DP_OK;
}
