/*
 * fuzz_options.c - any lines as the arguments of dprun.
 *
 * Slashes are taken away, so that --config names no file of the machine's.
 */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "launcher/dprun/options.h"
#include "launcher/dprun/remote/nodes.h"
#include "launcher/dprun/timeline.h"

#define ARGUMENTS_MAX 64

static void check_timeline(const char *text)
{
    dp_error_t error = {DP_OK, ""};
    dp_timeline_request_t timeline;

    if (dp_timeline_request_parse(text, &timeline, &error) != DP_OK) {
        if (error.text[0] == '\0') abort();
        return;
    }
    if (strncmp(text, timeline.file, strlen(timeline.file)) != 0) abort();
}

static void check(const dp_command_t *command, char **argv, int argc)
{
    int is_run = command->action == DP_ACTION_RUN || command->action == DP_ACTION_DRY_RUN;
    int is_mine = command->argv == NULL;

    if (command->size < 0 || command->size > DP_RANKS_MAX) abort();
    if (command->stdin_rank < -1 || command->stdin_rank >= DP_RANKS_MAX) abort();
    if (is_run && command->argv == NULL) abort();
    if (is_run && command->size == 0 && !dp_nodes_are_asked(command)) abort(); /* else: all slots */
    for (int i = 1; i < argc; i++)
        is_mine |= command->argv == argv + i;
    if (!is_mine) abort();
    if (command->config.timeline[0] != '\0') check_timeline(command->config.timeline);
    for (size_t i = 0; i < command->variable_count; i++)
        if (strchr(command->variables[i], '=') == NULL) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static char name[] = "dprun";
    char *argv[ARGUMENTS_MAX + 2] = {name};
    char *text = malloc(bytes + 1);
    dp_command_t command;
    dp_error_t error = {DP_OK, ""};
    dp_log_t log;
    int argc = 1;

    if (text == NULL) return 0;
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    for (size_t i = 0; i < bytes; i++)
        if (text[i] == '/') text[i] = '_';
    /* Each line is an argument, an empty one too; a NUL ends an argument early. */
    for (char *line = text; line != NULL && line < text + bytes && argc <= ARGUMENTS_MAX;) {
        char *end = memchr(line, '\n', (size_t)(text + bytes - line));

        if (end != NULL) *end = '\0';
        argv[argc++] = line;
        line = end != NULL ? end + 1 : NULL;
    }
    clearenv();
    dp_log_init(&log, DP_LOG_ERROR, -1);
    if (dp_command_parse(argc, argv, &log, &command, &error) == DP_OK) {
        check(&command, argv, argc);
        dp_command_fini(&command);
    } else if (error.text[0] == '\0') {
        abort();
    }
    free(text);
    return 0;
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const char *const seeds[] = {
        "-np\n4\ntrain\n--steps=10\n-np\n9",
        "-n\n2\n--grace=1.5\n--timeout\n15min\n-x\nA=1\n--env=B=2\n--\nprogram",
        "--np\n3\n--bind=core\n--stdin\n2\n--output-dir\nout\n-q\n--timestamps\nprogram",
        "-np\n2\n--fusion-bytes\n4M\n--wire=fp16\n--trace\n--no-check\n--timeline\nt:steps=1-2\np",
        "--color=never\n--no-prefix\n--keep-run-dir\n--dry-run\n-np\n1024\np",
        "--chek",
        "--help",
        "-V",
        "--config\nmissing\n-np\n1\np",
        "--check\n-np\n2",
        "--pretend-nodes=2\n-np\n8\n--log\ntrace\np",
    };

    return fuzz_seed_text(seeds, DP_ARRAY_LEN(seeds), which, data, room);
}
