/*
 * options.c - parses a dprun command line.
 *
 * Called by dprun.c before anything is started, and by help.c for its table of flags. Flags end at
 * the first argument that is not one: it and all that follow are the program's. A flag's value is
 * its own argument or follows "=". Yes/no settings take a value only with "=", so that "dprun
 * --trace program" means what it says.
 */
#include "launcher/dprun/options.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/dprun/other_flags.h"
#include "launcher/dprun/remote/nodes.h"
#include "runtime/base/config_value.h"

#define FLAG_MAX 128
#define DEFAULT_GRACE_NS UINT64_C(5000000000)
/* A year: no sum of times comes near the end of 64 bits. */
#define TIME_MAX_NS (INT64_C(365) * 86400 * 1000000000)

/* What a flag does with the field of dp_command_t that its row names. */
enum flag_kind {
    FLAG_TEXT,    /* keeps its value there */
    FLAG_NUMBER,  /* takes no value, sets the row's number */
    FLAG_CHOICE,  /* sets the place of its value among the choices */
    FLAG_SECONDS, /* a time of at least the row's number */
    FLAG_PATH,    /* as FLAG_TEXT, of 1 to DP_DIRECTORY_MAX bytes */
    /* each the only one of its kind */
    FLAG_RANKS,
    FLAG_PORT,
    FLAG_READER,
    FLAG_VARIABLE
};

#define AT(field) offsetof(dp_command_t, field)
#define TEXT(field) AT(field), FLAG_TEXT, 0
#define SET(field, number) AT(field), FLAG_NUMBER, number
#define CHOICE(field) AT(field), FLAG_CHOICE, 0
#define SECONDS(field, least) AT(field), FLAG_SECONDS, least
#define OWN(kind, field) AT(field), FLAG_##kind, 0

#define START "Start"
#define MACHINES "Several machines"
#define OUTPUT "Output"
#define END "End"
#define INSTEAD "Instead of starting a job"

static const dp_flag_t flags[] = {
    {OWN(RANKS, size), "-np", "-n", "N", "Ranks to start, 1 to 1024.", START},
    {OWN(RANKS, size), "--np", NULL, "N", NULL, START},
    {TEXT(config_file), "--config", NULL, "FILE", "Lines \"name = value\" for the knobs below.",
     START},
    {OWN(VARIABLE, variables), "--env", "-x", "VAR=VALUE",
     "Sets a variable for the ranks (all others are inherited here). To other machines -x VAR and "
     "-x 'NCCL_*' pass what is set here. Repeatable.",
     START},
    {CHOICE(binds_cores), "--bind", NULL, "none|core",
     "Binds each rank to its share of the cores. Default: none.", START},
    {SET(shares_gpu, 1), "--share-gpu", NULL, NULL,
     "Lets all ranks use one GPU with NCCL: a functional test, not a benchmark.", START},
    {OWN(READER, stdin_rank), "--stdin", NULL, "RANK|none",
     "Who reads dprun's standard input; the others read nothing. none: what you type meanwhile, "
     "and "
     "the rest of a script's loop, stays for the shell. Default: 0.",
     START},
    {OWN(PATH, directory), "--wdir", NULL, "DIR",
     "Where the ranks start, here and on every other machine. Default: this folder.", START},
    {TEXT(hosts), "--hosts", "-H", "NAME:SLOTS,...",
     "Starts them on these machines, through ssh. Without -np a rank for each slot.", MACHINES},
    {TEXT(hosts), "--host", NULL, "NAME:SLOTS,...", NULL, MACHINES},
    {TEXT(hostfile), "--hostfile", NULL, "FILE", "The same, a line each: NAME slots=N, or NAME:N.",
     MACHINES},
    {TEXT(hostfile), "--machinefile", NULL, "FILE", NULL, MACHINES},
    {TEXT(node), "--node", NULL, "R/N|env",
     "Something else starts a dprun on each of N machines; this is number R, with -np ranks. env: "
     "as PET_*, VC_* or SM_* variables say. Needs DP_SECRET_FILE.",
     MACHINES},
    {TEXT(meet), "--meet", NULL, "HOST:PORT", "With --node: where number 0 is.", MACHINES},
    {OWN(PORT, port), "--port", NULL, "N",
     "Where this dprun listens for the other machines while it starts. Default: any free port.",
     MACHINES},
    {SET(action, DP_ACTION_STATION), "--station", NULL, NULL, NULL, MACHINES},
    {SET(action, DP_ACTION_PROBE), "--probe", NULL, NULL, NULL, MACHINES},
    {TEXT(output_dir), "--output-dir", NULL, "DIR",
     "Also writes DIR/rank.R.out and DIR/rank.R.err, unprefixed.", OUTPUT},
    {TEXT(report_file), "--report", NULL, "FILE",
     "When the job has ended: how, by which rank and why; fields where FILE ends in .json, else "
     "the "
     "text that dprun prints.",
     OUTPUT},
    {OWN(PATH, metrics), "--metrics", NULL, "FILE|DIR|[HOST]:PORT",
     "The ranks' steps, waits, bytes and memory while they run, for Prometheus: in a file, or at "
     "http://HOST:PORT/metrics (without HOST on this machine alone); of each node on that node.",
     OUTPUT},
    {SET(is_quiet, 1), "--quiet", "-q", NULL,
     "Prints nothing of the ranks, only dprun's own lines.", OUTPUT},
    {SET(has_timestamps, 1), "--timestamps", NULL, NULL, "Time since the start before each line.",
     OUTPUT},
    {SET(has_prefix, 1), "--prefix", NULL, NULL, "[RANK] before each line: the default.", OUTPUT},
    {SET(has_prefix, 0), "--no-prefix", NULL, NULL,
     "Bytes as the ranks wrote them, a line at a time.", OUTPUT},
    {CHOICE(color), "--color", NULL, "auto|always|never",
     "A colour per rank. Default: auto, on a terminal.", OUTPUT},
    {CHOICE(color), "--colour", NULL, "auto|always|never", NULL, OUTPUT},
    {SECONDS(grace_ns, 0), "--grace", NULL, "SECONDS",
     "From SIGTERM to SIGKILL; after a failure at most 0.7. Default: 5.", END},
    {SECONDS(timeout_ns, 1), "--timeout", NULL, "SECONDS",
     "Ends a job that runs longer (90, 15min, 2h).", END},
    {SET(keeps_run_dir, 1), "--keep-run-dir", NULL, NULL,
     "Keeps the run directory also after success, and names it.", END},
    {SET(action, DP_ACTION_DRY_RUN), "--dry-run", NULL, NULL,
     "Prints ranks, cores, environment and command.", INSTEAD},
    {SET(action, DP_ACTION_CHECK), "--check", NULL, NULL,
     "Looks whether this machine can run jobs.", INSTEAD},
    {SET(action, DP_ACTION_HELP), "--help", "-h", NULL, "This text.", INSTEAD},
    {SET(action, DP_ACTION_VERSION), "--version", "-V", NULL, "The version.", INSTEAD},
};

size_t dp_flag_count(void)
{
    return DP_ARRAY_LEN(flags);
}

const dp_flag_t *dp_flag(size_t index)
{
    return &flags[index];
}

void dp_flag_of_setting(const dp_setting_t *setting, char *text, size_t room)
{
    snprintf(text, room, "--%s", setting->name);
    for (char *c = text; *c != '\0'; c++) {
        if (*c == '_') *c = '-';
        *c = (char)tolower((unsigned char)*c);
    }
}

static const dp_flag_t *find_flag(const char *name)
{
    for (size_t i = 0; i < DP_ARRAY_LEN(flags); i++) {
        if (strcmp(flags[i].name, name) == 0) return &flags[i];
        if (flags[i].alias != NULL && strcmp(flags[i].alias, name) == 0) return &flags[i];
    }
    return NULL;
}

/* Whole numbers only: "2x" and "" are not 2 and 0. */
static int parse_integer(const char *text, long *out)
{
    char *end;

    errno = 0;
    *out = strtol(text, &end, 10);
    return errno == 0 && end != text && *end == '\0';
}

/* "1.5", "90s", "200ms", "15min", "2h": seconds unless a unit follows. */
static int parse_seconds(const char *text, uint64_t *ns)
{
    char with_unit[64];
    int64_t value;
    int is_bare = text[strspn(text, "0123456789.")] == '\0';

    snprintf(with_unit, sizeof(with_unit), "%s%s", text, is_bare ? "s" : "");
    if (dp_parse_time(with_unit, &value) != NULL) return 0;
    if (value < 0 || value > TIME_MAX_NS) return 0;
    *ns = (uint64_t)value;
    return 1;
}

static dp_status_t bad_value(const dp_flag_t *flag, const char *value, dp_error_t *error)
{
    return dp_error_set(error, DP_ERR_CONFIG, "%s %s: must be %s", flag->name, value, flag->value);
}

static dp_status_t append_word(char ***list, size_t *count, char *word, dp_error_t *error)
{
    char **words = realloc(*list, (*count + 1) * sizeof(*words));

    if (words == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    *list = words;
    words[(*count)++] = word;
    return DP_OK;
}

static dp_status_t add_variable(dp_command_t *command, const dp_flag_t *flag, char *value,
                                dp_error_t *error)
{
    const char *equals = strchr(value, '=');

    if (equals == value || value[0] == '\0') return bad_value(flag, value, error);
    if (equals != NULL) {
        return append_word(&command->variables, &command->variable_count, value, error);
    }
    /* mpirun's "-x VAR": pass it on. On this machine everything is; only its absence is news. */
    if (strpbrk(value, "*?[") == NULL && dp_environment(value) == NULL) {
        return dp_error_set(error, DP_ERR_CONFIG, "%s %s: not set here; write %s=VALUE", flag->name,
                            value, value);
    }
    return append_word(&command->passed, &command->passed_count, value, error);
}

/* One of dprun's own flags. value: NULL where it takes none. */
static dp_status_t apply_own_flag(dp_command_t *command, const dp_flag_t *flag, char *value,
                                  dp_error_t *error)
{
    void *field = (char *)command + flag->offset;
    uint64_t *ns = field;
    int *number = field;
    long parsed = 0;

    switch ((enum flag_kind)flag->kind) {
    case FLAG_TEXT:
        *(const char **)field = value;
        return DP_OK;
    case FLAG_NUMBER:
        *number = flag->number;
        return DP_OK;
    case FLAG_CHOICE:
        *number = dp_parse_choice(value, flag->value);
        if (*number >= 0) return DP_OK;
        break;
    case FLAG_SECONDS:
        if (parse_seconds(value, ns) && *ns >= (uint64_t)flag->number) return DP_OK;
        break;
    case FLAG_PATH:
        *(const char **)field = value;
        if (value[0] != '\0' && strlen(value) <= DP_DIRECTORY_MAX) return DP_OK;
        break;
    case FLAG_RANKS:
        if (!parse_integer(value, &parsed) || parsed < 1 || parsed > DP_RANKS_MAX) {
            return dp_error_set(
                error, DP_ERR_CONFIG, "%s %s: must be a number from 1 to %d%s", flag->name, value,
                DP_RANKS_MAX,
                isalpha((unsigned char)value[0]) ? "; -np $(nproc) is a rank for each core" : "");
        }
        *number = (int)parsed;
        return DP_OK;
    case FLAG_PORT:
        if (!parse_integer(value, &parsed) || parsed < 0 || parsed > 65535) break;
        *number = (int)parsed;
        return DP_OK;
    case FLAG_READER:
        *number = -1;
        if (strcmp(value, "none") == 0) return DP_OK;
        if (!parse_integer(value, &parsed) || parsed < 0 || parsed >= DP_RANKS_MAX) break;
        *number = (int)parsed;
        return DP_OK;
    case FLAG_VARIABLE:
        return add_variable(command, flag, value, error);
    }
    return bad_value(flag, value, error);
}

/* The setting behind "--fusion-bytes", or NULL. */
static const dp_setting_t *find_setting(const char *flag)
{
    size_t index;

    if (strncmp(flag, "--", 2) != 0) return NULL;
    index = dp_config_find(flag + 2, NULL);
    if (index == SIZE_MAX || dp_config_setting(index)->is_internal) return NULL;
    return dp_config_setting(index);
}

static dp_status_t unknown_flag(const char *name, dp_error_t *error)
{
    size_t room = DP_ARRAY_LEN(flags) * 2 + dp_config_count();
    const char **names = calloc(room, sizeof(*names));
    char(*texts)[FLAG_MAX] = calloc(dp_config_count(), sizeof(*texts));
    const char *nearest = NULL;
    size_t count = 0;
    dp_status_t status;
    const char *other = dp_other_flag(name);

    for (size_t i = 0; names != NULL && i < DP_ARRAY_LEN(flags); i++) {
        names[count++] = flags[i].name;
        if (flags[i].alias != NULL && strlen(name) < 4) names[count++] = flags[i].alias;
    }
    for (size_t i = 0; names != NULL && texts != NULL && i < dp_config_count(); i++) {
        if (dp_config_setting(i)->is_internal) continue;
        dp_flag_of_setting(dp_config_setting(i), texts[i], sizeof(texts[i]));
        names[count++] = texts[i];
    }
    if (names != NULL) nearest = dp_nearest_name(name, names, count);
    if (other != NULL) {
        status = dp_error_set(error, DP_ERR_CONFIG, "unknown flag %s; %s", name, other);
    } else if (nearest != NULL) {
        status =
            dp_error_set(error, DP_ERR_CONFIG, "unknown flag %s; did you mean %s?", name, nearest);
    } else {
        status = dp_error_set(error, DP_ERR_CONFIG,
                              "unknown flag %s; dprun --help lists them (flags of the program go "
                              "after its name)",
                              name);
    }
    free(texts);
    free(names);
    return status;
}

/* "--no-trace" of a yes/no setting. */
static const dp_setting_t *find_negated(const char *flag)
{
    const dp_setting_t *setting;
    char positive[FLAG_MAX];

    if (strncmp(flag, "--no-", 5) != 0) return NULL;
    snprintf(positive, sizeof(positive), "--%s", flag + 5);
    setting = find_setting(positive);
    return setting != NULL && strcmp(setting->kind, "yes/no") == 0 ? setting : NULL;
}

/* mpirun's "a : -np 1 b" starts two programs. A user whose program takes such arguments writes "--"
 * before it. */
static dp_status_t refuse_second_program(char *const *argv, dp_error_t *error)
{
    static const char *const flags_of_ranks[] = {"-n", "-np",    "--np", "-c",
                                                 "-H", "--host", "-host"};

    for (; *argv != NULL && argv[1] != NULL; argv++) {
        for (size_t i = 0; i < DP_ARRAY_LEN(flags_of_ranks) && strcmp(*argv, ":") == 0; i++) {
            if (strcmp(argv[1], flags_of_ranks[i]) != 0) continue;
            return dp_error_set(
                error, DP_ERR_CONFIG,
                "\": %s\": mpirun starts a second program so, dprun has one for all "
                "ranks: sh -c 'if [ $DP_RANK = 0 ]; then exec A; else exec B; fi' "
                "(-- before the program passes a \":\" on)",
                argv[1]);
        }
    }
    return DP_OK;
}

/* Warns where argv[index] is a flag that stood before it with another value: a wrapper's caller may
 * add flags behind the wrapper's, so the last one counts, as for mpirun and compilers. */
static void warn_of_earlier(char *const *argv, int index, const dp_flag_t *own, const char *value,
                            const dp_log_t *log)
{
    char names[2][FLAG_MAX];

    snprintf(names[0], FLAG_MAX, "%.*s", (int)strcspn(argv[index], "="), argv[index]);
    for (int i = index - 1; i > 0; i--) {
        const size_t length = strcspn(argv[i], "=");
        const dp_flag_t *earlier;
        const char *before = argv[i][length] == '=' ? argv[i] + length + 1 : argv[i + 1];

        snprintf(names[1], FLAG_MAX, "%.*s", (int)length, argv[i]);
        earlier = find_flag(names[1]);
        if (strcmp(names[0], names[1]) != 0 &&
            (own == NULL || earlier == NULL || earlier->offset != own->offset)) {
            continue;
        }
        if (strcmp(before, value) != 0) {
            dp_log_warn(log, "%s is given twice, %s and %s: the last one counts", names[0], before,
                        value);
        }
        return;
    }
}

static dp_status_t parse_flags(int argc, char **argv, const dp_log_t *log, dp_command_t *command,
                               dp_error_t *error)
{
    dp_status_t status = DP_OK;

    for (int i = 1; i < argc && status == DP_OK; i++) {
        char *argument = argv[i];
        const int at = i;
        char name[FLAG_MAX];
        char *value = strchr(argument, '=');
        const dp_setting_t *setting;
        const dp_flag_t *own;
        int is_yes_no;

        if (argument[0] != '-' || argument[1] == '\0') {
            command->argv = argv + i;
            return refuse_second_program(command->argv, error);
        }
        if (strcmp(argument, "--") == 0) {
            command->argv = i + 1 < argc ? argv + i + 1 : NULL;
            return DP_OK;
        }
        snprintf(name, sizeof(name), "%.*s",
                 value == NULL ? (int)sizeof(name) - 1 : (int)(value - argument), argument);
        if (value != NULL) value++;
        own = find_flag(name);
        setting = find_setting(name);
        if (own != NULL && own->value == NULL && value != NULL)
            return dp_error_set(error, DP_ERR_CONFIG, "%s takes no value, got \"%s\"", name, value);
        if (own != NULL) {
            if (own->value != NULL && value == NULL) {
                if (++i >= argc) {
                    return dp_error_set(error, DP_ERR_CONFIG, "%s needs a value: %s", name,
                                        own->value);
                }
                value = argv[i];
            }
            status = apply_own_flag(command, own, value, error);
            if (status == DP_OK && own->value != NULL && own->kind != FLAG_VARIABLE)
                warn_of_earlier(argv, at, own, value, log);
            continue;
        }
        if (setting == NULL && value == NULL && find_negated(name) != NULL) {
            setting = find_negated(name);
            status = dp_config_set(&command->config, setting->name, "0", DP_FROM_FLAG, error);
            continue;
        }
        if (setting == NULL) return unknown_flag(name, error);
        is_yes_no = strcmp(setting->kind, "yes/no") == 0;
        if (value == NULL && !is_yes_no && ++i >= argc) {
            return dp_error_set(error, DP_ERR_CONFIG, "%s needs a value: %s", name, setting->kind);
        }
        if (value == NULL && !is_yes_no) value = argv[i];
        status = dp_config_set(&command->config, setting->name, value == NULL ? "1" : value,
                               DP_FROM_FLAG, error);
        if (status == DP_OK && !is_yes_no) warn_of_earlier(argv, at, NULL, value, log);
    }
    return status;
}

/* A flag that could have no effect is refused. */
static dp_status_t check_together(const dp_command_t *command, dp_error_t *error)
{
    if (command->meet != NULL && command->node == NULL) {
        return dp_error_set(error, DP_ERR_CONFIG,
                            "--meet %s: it goes with --node R/N, for a dprun on each machine",
                            command->meet);
    }
    if (command->port != 0 && command->node != NULL) {
        return dp_error_set(error, DP_ERR_CONFIG,
                            "--port %d: with --node the port is that of --meet HOST:PORT",
                            command->port);
    }
    if (command->port != 0 && !dp_nodes_are_asked(command)) {
        return dp_error_set(error, DP_ERR_CONFIG,
                            "--port %d: on one machine dprun listens on no port; it goes with -H, "
                            "--hostfile or a Slurm allocation",
                            command->port);
    }
    return DP_OK;
}

static dp_status_t check_whole(const dp_command_t *command, dp_error_t *error)
{
    if (command->action == DP_ACTION_HELP || command->action == DP_ACTION_VERSION ||
        command->action == DP_ACTION_STATION || command->action == DP_ACTION_PROBE) {
        return DP_OK;
    }
    if (check_together(command, error) != DP_OK) return error->status;
    if (command->action == DP_ACTION_CHECK) return DP_OK;
    if (command->size == 0 && !dp_nodes_are_asked(command)) {
        return dp_error_set(error, DP_ERR_CONFIG, "-np N is missing: how many ranks?");
    }
    if (command->argv == NULL) {
        return dp_error_set(error, DP_ERR_CONFIG,
                            "the program is missing: dprun -np %d PROGRAM ARGUMENTS...",
                            dp_max(command->size, 1));
    }
    if (command->stdin_rank >= command->size && command->size > 0) {
        return dp_error_set(error, DP_ERR_CONFIG, "--stdin %d: the job has ranks 0 to %d",
                            command->stdin_rank, command->size - 1);
    }
    return DP_OK;
}

dp_status_t dp_command_parse(int argc, char **argv, const dp_log_t *log, dp_command_t *command,
                             dp_error_t *error)
{
    dp_status_t status;

    memset(command, 0, sizeof(*command));
    command->has_prefix = 1;
    command->grace_ns = DEFAULT_GRACE_NS;
    dp_config_defaults(&command->config);
    if (argc <= 1) command->action = DP_ACTION_HELP;
    status = parse_flags(argc, argv, log, command, error);
    if (status == DP_OK) status = check_whole(command, error);
    if (status == DP_OK && command->config_file != NULL) {
        status = dp_config_from_file(&command->config, command->config_file, error);
    }
    if (status == DP_OK &&
        (command->action == DP_ACTION_RUN || command->action == DP_ACTION_DRY_RUN ||
         (command->action == DP_ACTION_CHECK && dp_nodes_are_asked(command)))) {
        status = dp_config_from_environment(&command->config, log, error);
        if (status == DP_OK) status = dp_config_check(&command->config, error);
    }
    if (status != DP_OK) dp_command_fini(command);
    return status;
}

void dp_command_fini(dp_command_t *command)
{
    free(command->variables);
    free(command->passed);
    command->variables = command->passed = NULL;
    command->variable_count = command->passed_count = 0;
}
