/*
 * main.c - dptrace: the command line and its subcommands: merge, report, view, info, diff, top,
 * record.
 *
 *     trace.R.dpt of each rank --- load ---.
 *                                           >-- timeline --- perfetto_write, chrome      merge
 *     a merged .pftrace -- perfetto_read --'        |------- analysis, summary, report   report
 *                                                   |------- analysis, view (view/)      view
 *                                                   `------- two of them, diff           diff
 *
 *     trace.R.dpt of a running job --- running, top                                        top
 *                                       `----- record, then as for merge                   record
 *
 * Each subcommand loads a timeline and hands it to one writer; output.c puts the file in its place
 * when it is whole. dprun runs `merge` for --timeline. One thread.
 */
#include <getopt.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "launcher/dptrace/analysis.h"
#include "launcher/dptrace/formats.h"
#include "launcher/dptrace/record.h"
#include "launcher/dptrace/running.h"
#include "launcher/dptrace/top.h"
#include "launcher/dptrace/view.h"
#include "runtime/base/config.h"
#include "runtime/base/config_value.h"

extern char **environ;

typedef struct arguments {
    const char *input;
    const char *other;  /* the second input, of diff */
    const char *output; /* NULL: not given */
    const char *format; /* NULL: by the output's name */
    dp_step_window_t window;
    double every; /* seconds between frames */
    int once;
    int json;
    int open;
} arguments_t;

/* A subcommand. run answers the exit code. */
typedef struct command {
    const char *name;
    const char *options; /* letters of those it takes: o, s(teps), j(son), O(pen), f(ormat),
                            e(very), 1: once */
    const char *usage;
    int inputs; /* that it takes; 0: one or none */
    int (*run)(const arguments_t *arguments);
} command_t;

enum { EXIT_USAGE = 2 };

static int print_failure(const dp_error_t *error)
{
    fprintf(stderr, "dptrace: %s\n", error->text);
    return EXIT_FAILURE;
}

static void print_path(FILE *file, const char *path)
{
    char shown[PATH_MAX];

    snprintf(shown, sizeof(shown), "%s", path);
    dp_text_mask(shown);
    fputs(shown, file);
}

/* Tells at once which files are missing, even where the rest cannot be read. */
static dp_status_t load_input(const arguments_t *arguments, dp_timeline_t *timeline,
                              dp_error_t *error)
{
    const dp_status_t status =
        dp_timeline_load(arguments->input, &arguments->window, timeline, error);

    for (size_t i = 0; status == DP_OK && i < timeline->missing_count; i++)
        fprintf(stderr, "dptrace: %s\n", timeline->missing[i]);
    return status;
}

/* ---- merge ---------------------------------------------------------------------------------- */

static int ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);

    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* dprun --timeline runs this when the job has ended. */
static int run_merge(const arguments_t *arguments)
{
    const char *path = arguments->output;
    dp_timeline_t timeline;
    dp_whole_file_t output;
    dp_error_t error;
    dp_status_t status;
    int is_json = path != NULL && ends_with(path, ".json");

    if (path == NULL) {
        fputs("dptrace merge: -o FILE is missing (.pftrace for Perfetto, .json for Chrome)\n",
              stderr);
        return EXIT_USAGE;
    }
    if (arguments->format != NULL) is_json = strcmp(arguments->format, "json") == 0;
    if (load_input(arguments, &timeline, &error) != DP_OK) return print_failure(&error);
    status = dp_file_open(path, arguments->input, &output, &error);
    if (status == DP_OK) {
        status = is_json ? dp_chrome_write(&timeline, output.file)
                         : dp_perfetto_write(&timeline, output.file);
        status = dp_file_close(&output, status, &error);
    }
    if (status == DP_OK && strcmp(path, "-") != 0) {
        print_path(stderr, path);
        fprintf(stderr, ": %zu ranks, %zu events, %.3f s\n", timeline.rank_count,
                timeline.event_count, (double)timeline.end_ns / 1e9);
    }
    dp_timeline_fini(&timeline);
    return status == DP_OK ? EXIT_SUCCESS : print_failure(&error);
}

/* ---- report --------------------------------------------------------------------------------- */

static int run_report(const arguments_t *arguments)
{
    dp_timeline_t timeline;
    dp_analysis_t analysis;
    dp_whole_file_t output;
    dp_error_t error;
    dp_status_t status;

    if (load_input(arguments, &timeline, &error) != DP_OK) return print_failure(&error);
    status = dp_analyse(&timeline, &analysis);
    if (status != DP_OK) {
        dp_error_set(&error, status, "%s: no memory for the analysis", arguments->input);
        dp_timeline_fini(&timeline);
        return print_failure(&error);
    }
    status = dp_file_open(arguments->output != NULL ? arguments->output : "-", arguments->input,
                          &output, &error);
    if (status == DP_OK) {
        if (arguments->json) {
            dp_report_json(&timeline, &analysis, output.file);
        } else {
            dp_report_text(&timeline, &analysis, arguments->input, output.file);
        }
        status = dp_file_close(&output, status, &error);
    }
    dp_analysis_fini(&analysis);
    dp_timeline_fini(&timeline);
    return status == DP_OK ? EXIT_SUCCESS : print_failure(&error);
}

/* ---- view ----------------------------------------------------------------------------------- */

/* Lets the desktop show the page; it is no error when there is none. */
static void open_page(const char *path)
{
    char opener[] = "xdg-open";
    char *copy = strdup(path);
    char *argv[] = {opener, copy, NULL};
    pid_t child;

    if (copy == NULL || posix_spawnp(&child, opener, NULL, NULL, argv, environ) != 0)
        fprintf(stderr, "dptrace: cannot start xdg-open; open %s in a browser\n", path);
    free(copy);
}

static int run_view(const arguments_t *arguments)
{
    dp_timeline_t timeline;
    dp_analysis_t analysis;
    dp_whole_file_t output;
    dp_error_t error;
    dp_status_t status;
    char *path = NULL;

    if (arguments->output != NULL) {
        path = strdup(arguments->output);
    } else {
        size_t length = strlen(arguments->input);
        struct stat info;

        while (length > 1 && arguments->input[length - 1] == '/')
            length--;
        /* into the run directory, or beside the file */
        if (asprintf(&path, "%.*s%s", (int)length, arguments->input,
                     stat(arguments->input, &info) == 0 && S_ISDIR(info.st_mode) ? "/timeline.html"
                                                                                 : ".html") < 0)
            path = NULL;
    }
    if (path == NULL) {
        dp_error_set(&error, DP_ERR_NO_MEMORY, "no memory");
        return print_failure(&error);
    }
    status = load_input(arguments, &timeline, &error);
    if (status != DP_OK) goto done;
    status = dp_analyse(&timeline, &analysis);
    if (status != DP_OK) {
        dp_error_set(&error, status, "%s: no memory for the analysis", arguments->input);
        dp_timeline_fini(&timeline);
        goto done;
    }
    status = dp_file_open(path, arguments->input, &output, &error);
    if (status == DP_OK) {
        status = dp_view_write(&timeline, &analysis, arguments->input, output.file);
        status = dp_file_close(&output, status, &error);
    }
    if (status == DP_OK && strcmp(path, "-") != 0) {
        print_path(stderr, path);
        fprintf(stderr, ": %zu ranks, %zu events; open it in a browser\n", timeline.rank_count,
                timeline.event_count);
    }
    if (status == DP_OK && arguments->open) open_page(path);
    dp_analysis_fini(&analysis);
    dp_timeline_fini(&timeline);
done:
    free(path);
    return status == DP_OK ? EXIT_SUCCESS : print_failure(&error);
}

/* ---- info ----------------------------------------------------------------------------------- */

/* Prints the facts of a recording that need no analysis: the first thing to look at when a report
 * looks odd. */
static int run_info(const arguments_t *arguments)
{
    dp_timeline_t timeline;
    dp_error_t error;
    uint64_t kinds[DP_TRACE_KIND_COUNT] = {0};

    if (load_input(arguments, &timeline, &error) != DP_OK) return print_failure(&error);
    print_path(stdout, arguments->input);
    printf(": %zu ranks, %zu events, %zu rows, %.6f s\n", timeline.rank_count, timeline.event_count,
           timeline.row_count, (double)timeline.end_ns / 1e9);
    for (size_t r = 0; r < timeline.rank_count; r++) {
        const dp_timeline_rank_t *rank = &timeline.ranks[r];
        uint64_t first = UINT64_MAX, last = 0, from = UINT64_MAX, until = 0;
        size_t events = 0, open = 0;

        for (size_t i = 0; i < timeline.event_count; i++) {
            const dp_timeline_event_t *event = &timeline.events[i];

            if (event->rank != (int32_t)r) continue;
            events++;
            open += event->is_open;
            kinds[event->kind]++;
            from = dp_min(from, event->start_ns);
            until = dp_max(until, event->start_ns + event->duration_ns);
            if (event->kind != DP_TRACE_STEP) continue;
            first = dp_min(first, event->id);
            last = dp_max(last, event->id);
        }
        printf("  rank %d/%d %s pid %d: %zu events, dropped %" PRIu64, rank->rank, rank->size,
               rank->host, rank->pid, events, rank->dropped);
        if (rank->outside > 0) printf(", outside the window %" PRIu64, rank->outside);
        if (events > 0) printf(", %.6f-%.6f s", (double)from / 1e9, (double)until / 1e9);
        if (first != UINT64_MAX) printf(", steps %" PRIu64 "-%" PRIu64, first, last);
        if (rank->clock_error_ns == UINT64_MAX) {
            printf(", clock not measured");
        } else {
            printf(", clock error <= %.1f us", (double)rank->clock_error_ns / 1e3);
        }
        if (open > 0) printf(", %zu unfinished", open);
        if (rank->bad > 0) printf(", %" PRIu64 " unreadable", rank->bad);
        printf("%s\n", rank->is_closed ? "" : ", not closed (killed, or running)");
    }
    for (int i = 0; i < DP_TRACE_KIND_COUNT; i++) {
        if (kinds[i] > 0)
            printf("  %-10s %" PRIu64 "\n", dp_trace_kind_name((dp_trace_kind_t)i), kinds[i]);
    }
    dp_timeline_fini(&timeline);
    return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* ---- diff ----------------------------------------------------------------------------------- */

static dp_status_t load_and_analyse(const arguments_t *arguments, const char *input,
                                    dp_timeline_t *timeline, dp_analysis_t *analysis,
                                    dp_error_t *error)
{
    arguments_t one = *arguments;
    dp_status_t status;

    one.input = input;
    status = load_input(&one, timeline, error);
    if (status != DP_OK) return status;
    status = dp_analyse(timeline, analysis);
    if (status == DP_OK) return DP_OK;
    dp_timeline_fini(timeline);
    return dp_error_set(error, status, "%s: no memory for the analysis", input);
}

static int run_diff(const arguments_t *arguments)
{
    const char *const inputs[2] = {arguments->input, arguments->other};
    dp_timeline_t timelines[2];
    dp_analysis_t analyses[2];
    dp_diff_side_t sides[2];
    dp_whole_file_t output;
    dp_error_t error;
    dp_status_t status = DP_OK;
    int loaded = 0;

    while (status == DP_OK && loaded < 2) {
        status = load_and_analyse(arguments, inputs[loaded], &timelines[loaded], &analyses[loaded],
                                  &error);
        if (status != DP_OK) break;
        sides[loaded] = (dp_diff_side_t){&timelines[loaded], &analyses[loaded], inputs[loaded]};
        loaded++;
    }
    if (status == DP_OK) {
        status = dp_file_open(arguments->output != NULL ? arguments->output : "-", inputs[1],
                              &output, &error);
    }
    if (status == DP_OK) {
        status = dp_diff_write(sides, output.file);
        if (status != DP_OK) dp_error_set(&error, status, "no memory for the differences");
        status = dp_file_close(&output, status, &error);
    }
    for (int i = 0; i < loaded; i++) {
        dp_analysis_fini(&analyses[i]);
        dp_timeline_fini(&timelines[i]);
    }
    return status == DP_OK ? EXIT_SUCCESS : print_failure(&error);
}

/* ---- top ------------------------------------------------------------------------------------ */

/* One frame, in one write, so that a terminal does not flicker. *is_there: there was one. */
static dp_status_t show_frame(const char *run_dir, int is_terminal, int *is_there,
                              dp_error_t *error)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    dp_status_t status;

    *is_there = 0;
    if (file == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory");
    if (is_terminal) fputs("\033[H\033[J", file);
    status = dp_top_write(run_dir, dp_now_ns(), file, error);
    if (fclose(file) != 0) status = dp_error_set(error, DP_ERR_NO_MEMORY, "no memory");
    if (status == DP_OK) {
        fwrite(text, 1, bytes, stdout);
        if (fflush(stdout) != 0)
            status = dp_error_set(error, DP_ERR_SYSTEM, "standard output: %s", strerror(errno));
        *is_there = 1;
    }
    free(text);
    return status;
}

/* Until the job has ended, or somebody types Ctrl-C. */
static int run_top(const arguments_t *arguments)
{
    const int is_terminal = isatty(STDOUT_FILENO) && !arguments->once;
    const struct timespec pause = {(time_t)arguments->every,
                                   (long)(fmod(arguments->every, 1.0) * 1e9)};
    char run_dir[PATH_MAX];
    dp_error_t error;
    dp_status_t status = dp_running_find(arguments->input, run_dir, sizeof(run_dir), &error);

    while (status == DP_OK) {
        const int is_on = dp_running_is_on(run_dir);
        int is_there;

        status = show_frame(run_dir, is_terminal, &is_there, &error);
        if (!is_on || arguments->once) break;
        if (status == DP_ERR_BUSY) status = DP_OK; /* it starts */
        if (status == DP_OK && is_there && !is_terminal) putchar('\n');
        if (status == DP_OK) nanosleep(&pause, NULL);
    }
    if (status != DP_OK && !arguments->once && access(run_dir, F_OK) != 0) {
        status = DP_OK; /* it was removed behind a good end */
        fputs("the job has ended\n", stdout);
    } else if (status == DP_OK && !arguments->once) {
        fputs("the job has ended\n", stdout);
    }
    return status == DP_OK ? EXIT_SUCCESS : print_failure(&error);
}

/* ---- record --------------------------------------------------------------------------------- */

static void tell_window(const dp_step_window_t *window)
{
    fprintf(stderr, "dptrace: steps %" PRIu64 " to %" PRIu64 " are recorded\n", window->first,
            window->last);
}

static int run_record(const arguments_t *arguments)
{
    arguments_t one = *arguments;
    char run_dir[PATH_MAX];
    dp_error_t error;
    dp_status_t status;

    if (arguments->output == NULL || !arguments->window.is_set || arguments->window.first == 0 ||
        arguments->window.first != arguments->window.last) {
        fputs("dptrace record: --steps N (how many) and -o FILE are needed\n", stderr);
        return EXIT_USAGE;
    }
    status = dp_running_find(arguments->input, run_dir, sizeof(run_dir), &error);
    if (status == DP_OK) {
        status =
            dp_record_await(run_dir, arguments->window.first, &one.window, tell_window, &error);
    }
    if (status != DP_OK) return print_failure(&error);
    one.input = run_dir;
    return run_merge(&one);
}

/* ---- Command line --------------------------------------------------------------------------- */

static const command_t commands[] = {
    {"merge", "osf",
     "dptrace merge RUN_DIR -o FILE [--steps A-B] [--format perfetto|json]\n"
     "  One file of all ranks: Perfetto's protobuf, or Chrome's JSON where FILE ends in .json.\n",
     1, run_merge},
    {"report", "osj",
     "dptrace report RUN_DIR|FILE [--steps A-B] [--json] [-o FILE]\n"
     "  Where each step's time went, bandwidth per bucket, who is late, what to try first.\n",
     1, run_report},
    {"view", "osO",
     "dptrace view RUN_DIR|FILE [-o PAGE.html] [--steps A-B] [--open]\n"
     "  One HTML page with the timeline in it; needs no network.\n",
     1, run_view},
    {"info", "s",
     "dptrace info RUN_DIR|FILE [--steps A-B]\n"
     "  What is in there: ranks, events, steps, what was dropped, how good the clocks are.\n",
     1, run_info},
    {"diff", "os",
     "dptrace diff RUN_DIR|FILE RUN_DIR|FILE [--steps A-B] [-o FILE]\n"
     "  What became slower from the first to the second: parts of the step, spans, buckets.\n",
     2, run_diff},
    {"top", "e1",
     "dptrace top [RUN_DIR|PID] [--every SECONDS] [--once]\n"
     "  What each rank of a running job does now, and where the time of its last steps went.\n",
     0, run_top},
    {"record", "osf",
     "dptrace record [RUN_DIR|PID] --steps N -o FILE [--format perfetto|json]\n"
     "  The next N steps of a running job as one file, as merge does; nothing is restarted.\n",
     0, run_record},
};

static void print_usage(FILE *file)
{
    fputs("dptrace - looks at what the ranks of a job recorded\n\n", file);
    for (size_t i = 0; i < DP_ARRAY_LEN(commands); i++)
        fputs(commands[i].usage, file);
    fputs(
        "\nRUN_DIR holds the recorders trace.RANK.dpt; FILE is one of them or a merged .pftrace.\n"
        "  -o, --output FILE  where to write; - is standard output\n"
        "  -s, --steps A-B    only these steps\n"
        "  -h, --help         this text\n"
        "  -V, --version      the version\n",
        file);
}

static const command_t *find_command(const char *name)
{
    const char *names[DP_ARRAY_LEN(commands)];
    const char *nearest;

    for (size_t i = 0; i < DP_ARRAY_LEN(commands); i++) {
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
        names[i] = commands[i].name;
    }
    nearest = dp_nearest_name(name, names, DP_ARRAY_LEN(names));
    fprintf(stderr, "dptrace: unknown command %s%s%s%s; see dptrace --help\n", name,
            nearest != NULL ? ", did you mean " : "", nearest != NULL ? nearest : "",
            nearest != NULL ? "?" : "");
    return NULL;
}

static const struct option long_options[] = {{"output", required_argument, NULL, 'o'},
                                             {"steps", required_argument, NULL, 's'},
                                             {"format", required_argument, NULL, 'f'},
                                             {"json", no_argument, NULL, 'j'},
                                             {"open", no_argument, NULL, 'O'},
                                             {"every", required_argument, NULL, 'e'},
                                             {"once", no_argument, NULL, '1'},
                                             {"help", no_argument, NULL, 'h'},
                                             {NULL, 0, NULL, 0}};

/* An option that getopt does not know or found incomplete, and the nearest name that it knows. */
static void refuse_option(const command_t *command, int letter, const char *word)
{
    const char *names[DP_ARRAY_LEN(long_options) - 1];
    const char *nearest = NULL;

    for (size_t i = 0; i < DP_ARRAY_LEN(names); i++)
        names[i] = long_options[i].name;
    if (letter == ':') {
        fprintf(stderr, "dptrace %s: %s needs a value\n", command->name, word);
        return;
    }
    if (strncmp(word, "--", 2) == 0)
        nearest = dp_nearest_name(word + 2, names, DP_ARRAY_LEN(names));
    fprintf(stderr, "dptrace %s: unknown option %s%s%s%s\n", command->name, word,
            nearest != NULL ? ", did you mean --" : "", nearest != NULL ? nearest : "",
            nearest != NULL ? "?" : "");
}

/* 0: go on; otherwise the exit code plus one. */
static int parse_option(const command_t *command, int letter, arguments_t *arguments)
{
    const char *value = optarg == NULL ? "" : optarg; /* "": it takes none */
    dp_error_t error;

    if (letter == 'h') {
        fputs(command->usage, stdout);
        return EXIT_SUCCESS + 1;
    }
    if (strchr(command->options, letter) == NULL) {
        fprintf(stderr, "dptrace %s: does not take this option; usage:\n%s", command->name,
                command->usage);
        return EXIT_USAGE + 1;
    }
    if (letter == 'o') arguments->output = value;
    if (letter == 'j') arguments->json = 1;
    if (letter == 'O') arguments->open = 1;
    if (letter == '1') arguments->once = 1;
    if (letter == 'e') {
        char *end;

        arguments->every = strtod(value, &end);
        if (end == value || *end != '\0' ||
            !(arguments->every >= 0.1 && arguments->every <= 3600)) {
            fprintf(stderr, "dptrace: --every %s: expected 0.1 to 3600 seconds\n", value);
            return EXIT_USAGE + 1;
        }
    }
    if (letter == 'f') {
        arguments->format = value;
        if (strcmp(value, "json") != 0 && strcmp(value, "perfetto") != 0) {
            fprintf(stderr, "dptrace: --format %s: expected perfetto or json\n", value);
            return EXIT_USAGE + 1;
        }
    }
    if (letter == 's' && dp_step_window_parse(value, &arguments->window, &error) != DP_OK) {
        print_failure(&error);
        return EXIT_USAGE + 1;
    }
    return 0;
}

/* given [128]: the last value of each option. As for dprun and compilers the last one counts. */
static void warn_of_earlier(const char **given, int letter, const char *value)
{
    const struct option *option = long_options;

    while (option->val != letter)
        option++;
    if (given[letter] != NULL && strcmp(given[letter], value) != 0) {
        fprintf(stderr, "dptrace: --%s is given twice, %s and %s: the last one counts\n",
                option->name, given[letter], value);
    }
    given[letter] = value;
}

int main(int argc, char **argv)
{
    const char *given[128] = {NULL};
    arguments_t arguments = {.input = NULL, .every = 2.0};
    const command_t *command;
    int letter, code;

    signal(SIGXFSZ, SIG_IGN); /* a file past ulimit -f: write() then says EFBIG */
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_usage(stdout);
        return EXIT_SUCCESS;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        printf("dptrace %d.%d.%d\n", DP_VERSION_MAJOR, DP_VERSION_MINOR, DP_VERSION_PATCH);
        return EXIT_SUCCESS;
    }
    command = find_command(argv[1]);
    if (command == NULL) return EXIT_USAGE;
    argv[1] = argv[0];
    while ((letter = getopt_long(argc - 1, argv + 1, ":o:s:h", long_options, NULL)) != -1) {
        if (letter == '?' || letter == ':') {
            refuse_option(command, letter, argv[optind]); /* one back in argv + 1 */
            return EXIT_USAGE;
        }
        code = parse_option(command, letter, &arguments);
        if (code != 0) return code - 1;
        if (optarg != NULL) warn_of_earlier(given, letter, optarg);
    }
    argc--;
    argv++;
    if (optind + command->inputs != argc && !(command->inputs == 0 && optind + 1 == argc)) {
        fprintf(stderr, "dptrace %s: %s; usage:\n%s", command->name,
                optind + command->inputs > argc ? "RUN_DIR or FILE is missing"
                : command->inputs == 2          ? "two inputs at a time"
                                                : "one input at a time",
                command->usage);
        return EXIT_USAGE;
    }
    arguments.input = argv[optind]; /* NULL: none */
    if (command->inputs == 2) arguments.other = argv[optind + 1];
    return command->run(&arguments);
}
