/*
 * fuzz_launchers.c - any bytes as what other launchers hand a process: their variables, messages of
 * PMI-1 and PMI-2, and the beacon by which ranks find the rendezvous.
 *
 * The first byte picks what the rest is.
 */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "runtime/group/beacon.h"
#include "runtime/group/pmi.h"
#include "runtime/group/starter.h"

enum { PMI_1, PMI_2, LENGTH, BEACON, BEACON_TEXT, VARIABLES, KINDS };

static void fuzz_pmi(int version, const char *message, size_t bytes)
{
    static const char *const keys[] = {"cmd", "rc", "value", "size", "rank", "found"};
    dp_error_t error = {DP_OK, ""};
    char value[32];

    for (size_t i = 0; i < DP_ARRAY_LEN(keys); i++) {
        memset(value, 'x', sizeof(value));
        if (dp_pmi_find(version, message, bytes, keys[i], value, sizeof(value)) == 1 &&
            memchr(value, '\0', sizeof(value)) == NULL) {
            abort();
        }
    }
    if (dp_pmi_check(version, message, bytes, "get_result", &error) != DP_OK &&
        error.text[0] == '\0') {
        abort();
    }
    for (const char *at = error.text; *at != '\0'; at++)
        if ((unsigned char)*at < 0x20) abort(); /* reaches a terminal */
}

/* An accepted beacon can be written, and is read as the same again. */
static void check_beacon(const dp_beacon_t *beacon)
{
    char text[2 * DP_BEACON_MAX + 1];
    dp_error_t error = {DP_OK, ""};
    dp_beacon_t again;

    memset(&again, 0, sizeof(again));
    if (dp_beacon_to_text(beacon, text, sizeof(text)) == 0 ||
        dp_beacon_from_text(text, &again, &error) != DP_OK) {
        abort();
    }
    if (again.port != beacon->port || again.address_count != beacon->address_count ||
        again.server.pid != beacon->server.pid || strcmp(again.identity, beacon->identity) != 0 ||
        memcmp(again.secret.bytes, beacon->secret.bytes, DP_SECRET_BYTES) != 0) {
        abort();
    }
}

static void fuzz_beacon(const uint8_t *data, size_t bytes)
{
    dp_error_t error = {DP_OK, ""};
    dp_beacon_t beacon;

    if (dp_beacon_read(data, bytes, &beacon, &error) == DP_OK) {
        check_beacon(&beacon);
    } else if (error.text[0] == '\0') {
        abort();
    }
}

static void fuzz_beacon_text(const char *text)
{
    dp_error_t error = {DP_OK, ""};
    dp_beacon_t beacon;

    if (dp_beacon_from_text(text, &beacon, &error) == DP_OK) {
        check_beacon(&beacon);
    } else if (error.text[0] == '\0') {
        abort();
    }
}

/* The input as lines NAME=VALUE. */
static const char *look_up(void *context, const char *name)
{
    static char value[256];
    const char *line = context;
    const size_t name_bytes = strlen(name);

    while (*line != '\0') {
        const size_t bytes = strcspn(line, "\n");

        if (bytes > name_bytes && bytes - name_bytes <= sizeof(value) && line[name_bytes] == '=' &&
            memcmp(line, name, name_bytes) == 0) {
            memcpy(value, line + name_bytes + 1, bytes - name_bytes - 1);
            value[bytes - name_bytes - 1] = '\0';
            return value;
        }
        line += bytes + (line[bytes] == '\n' ? 1 : 0);
    }
    return NULL;
}

static void fuzz_variables(char *text)
{
    dp_error_t error = {DP_OK, ""};
    dp_starter_t starter;
    dp_config_t config;

    dp_config_defaults(&config);
    if (dp_starter_find(&config, look_up, text, &starter, &error) != DP_OK) {
        if (error.text[0] == '\0') abort();
        return;
    }
    if (starter.kind == DP_STARTER_NONE) return;
    if (starter.rank < 0 || starter.size < 1 || starter.rank >= starter.size) abort();
    if (starter.port < 0 || starter.port > 65535) abort();
    if (memchr(starter.identity, '\0', sizeof(starter.identity)) == NULL) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char digits[DP_PMI_LENGTH_BYTES] = {0};
    char *text;

    if (bytes == 0) return 0;
    text = malloc(bytes);
    if (text == NULL) return 0;
    memcpy(text, data + 1, bytes - 1);
    text[bytes - 1] = '\0';
    switch (data[0] % KINDS) {
    case PMI_1:
    case PMI_2:
        fuzz_pmi(data[0] % KINDS == PMI_1 ? 1 : 2, (const char *)data + 1, bytes - 1);
        break;
    case LENGTH:
        memcpy(digits, data + 1, dp_min(bytes - 1, sizeof(digits)));
        if (dp_pmi_length(digits) > DP_PMI_MESSAGE_MAX) abort();
        break;
    case BEACON:
        fuzz_beacon(data + 1, bytes - 1);
        break;
    case BEACON_TEXT:
        fuzz_beacon_text(text);
        break;
    default:
        fuzz_variables(text);
        break;
    }
    free(text);
    return 0;
}

static void make_beacon(dp_beacon_t *beacon)
{
    memset(beacon, 0, sizeof(*beacon));
    beacon->port = 4711;
    beacon->address_count = 2;
    memcpy(beacon->addresses[0], "127.0.0.1", 10);
    memcpy(beacon->addresses[1], "10.0.0.7", 9);
    beacon->secret.bytes[0] = 7;
    beacon->server.pid = 99;
    beacon->server.start = 12345;
    memcpy(beacon->server.boot, "8d0c2f", 7);
    memcpy(beacon->identity, "torchrun 9", 11);
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    /* The first character modulo six is the kind. */
    static const char *const seeds[] = {
        "Bcmd=get_result rc=0 value=2f736861 msg=success",
        "Bcmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
        "Ccmd=kvs-get-response;found=TRUE;value=a;;b;rc=0;",
        "Ccmd=fullinit-response;pmi-version=2;rank=1;size=4;appnum=0;rc=0;",
        "D   128",
        "GRANK=1\nWORLD_SIZE=4\nLOCAL_RANK=1\nMASTER_ADDR=a.b\nMASTER_PORT=2950",
        "GOMPI_COMM_WORLD_RANK=0\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_RANK=0",
        "GPMI_FD=5\nPMI_RANK=1\nPMI_SIZE=3\nPMI_JOBID=7",
        "GSLURM_PROCID=1\nSLURM_NTASKS=2\nSLURM_JOB_ID=12\nSLURM_STEP_ID=0\nSLURM_NNODES=1",
        "GDP_RANK=1\nDP_SIZE=2\nDP_RENDEZVOUS=10.0.0.1:4711",
    };
    char text[2 * DP_BEACON_MAX + 1];
    dp_beacon_t beacon;
    size_t bytes;

    if (which < DP_ARRAY_LEN(seeds)) {
        return fuzz_seed_text(seeds, DP_ARRAY_LEN(seeds), which, data, room);
    }
    make_beacon(&beacon);
    if (which == DP_ARRAY_LEN(seeds)) {
        data[0] = BEACON;
        return 1 + dp_beacon_write(&beacon, data + 1, room - 1);
    }
    if (which > DP_ARRAY_LEN(seeds) + 1) return 0;
    data[0] = BEACON_TEXT;
    bytes = dp_beacon_to_text(&beacon, text, sizeof(text));
    memcpy(data + 1, text, bytes);
    return 1 + bytes;
}
