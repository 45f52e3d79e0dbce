/*
 * help.c - the text of --help, made from dprun's flags and the settings of runtime/base/config.h.
 *
 * dprun.c prints it and exits; nothing else calls it.
 */
#include "launcher/dprun/help.h"

#include <string.h>

#include "launcher/dprun/options.h"

#define COLUMN 32 /* where explanations begin */
#define WIDTH 100

static const char *const examples[][2] = {
    {"dprun -np 2 ./hello", "two ranks on this machine"},
    {"dprun -np 4 --timestamps --output-dir logs ./train", "output also into files"},
    {"dprun -H a:4,b:4 ./train", "on two machines, through ssh"},
    {"dprun -np 2 --timeline run.pftrace:steps=10-20 ./train", "where each microsecond went"},
    {"dprun -np 8 --dry-run --bind core ./train", "who would run where, with what"},
};

static const char *const exit_codes[][2] = {
    {"0", "every rank exited with 0"},
    {"1 - 123", "of the first rank that failed; 1 also if dprun itself could not go on"},
    {"2", "the command line is wrong; nothing was started"},
    {"124", "--timeout"},
    {"125", "every rank exited with 0, but output was lost (a full disk)"},
    {"126, 127", "the program is not executable, not found"},
    {"128 + N", "signal N ended the first rank that failed, or dprun (130: Ctrl-C)"},
    {"137", "also: a machine was lost, with all its ranks"},
};

/* Explanations wrap at the right margin and keep to their column. */
static void print_entry(FILE *out, const char *left, const char *help, const char *suffix)
{
    char text[512];
    int column = fprintf(out, "  %s", left);
    char *rest = text;
    char *word;

    snprintf(text, sizeof(text), "%s%s", help, suffix);
    if (column >= COLUMN) {
        fputc('\n', out);
        column = 0;
    }
    column += fprintf(out, "%*s", COLUMN - column, "");
    while ((word = strsep(&rest, " ")) != NULL) {
        if (column + (int)strlen(word) > WIDTH) column = fprintf(out, "\n%*s", COLUMN, "") - 1;
        column += fprintf(out, column == COLUMN ? "%s" : " %s", word);
    }
    fputc('\n', out);
}

static void print_own(FILE *out)
{
    const char *group = "";

    for (size_t i = 0; i < dp_flag_count(); i++) {
        const dp_flag_t *flag = dp_flag(i);
        char left[128];

        if (flag->help == NULL) continue;
        if (strcmp(group, flag->group) != 0) {
            group = flag->group;
            fprintf(out, "\n%s\n", group);
        }
        snprintf(left, sizeof(left), "%s%s%s%s%s", flag->alias == NULL ? "" : flag->alias,
                 flag->alias == NULL ? "" : ", ", flag->name, flag->value == NULL ? "" : " ",
                 flag->value == NULL ? "" : flag->value);
        print_entry(out, left, flag->help, "");
    }
}

/* A word in place of the value of a setting: "BYTES" in "--fusion-bytes BYTES". */
static const char *value_name(const char *kind)
{
    if (strcmp(kind, "bytes") == 0) return "BYTES";
    if (strcmp(kind, "time") == 0) return "TIME";
    if (strcmp(kind, "integer") == 0) return "N";
    if (strcmp(kind, "text") == 0) return "TEXT";
    return kind; /* its choices */
}

static void print_rows(FILE *out)
{
    fprintf(out,
            "\nKnobs of the ranks: a flag here, a variable DP_NAME, or a line in --config FILE\n"
            "(--fusion-bytes 64M, DP_FUSION_BYTES=64M, fusion-bytes = 64M). Flags win over\n"
            "variables, variables over the file. BYTES: 4096, 64K, 32M, 2G. TIME: 200us, 10ms,\n"
            "1.5s, 10min. Yes/no knobs: --NAME, --no-NAME or --NAME=yes|no.\n");
    for (size_t i = 0; i < dp_config_count(); i++) {
        const dp_setting_t *setting = dp_config_setting(i);
        int is_yes_no = strcmp(setting->kind, "yes/no") == 0;
        char flag[96];
        char left[256];
        char suffix[160];

        if (setting->is_internal) continue;
        dp_flag_of_setting(setting, flag, sizeof(flag));
        if (is_yes_no) {
            snprintf(left, sizeof(left), "%s", flag);
        } else {
            snprintf(left, sizeof(left), "%s %s", flag, value_name(setting->kind));
        }
        snprintf(suffix, sizeof(suffix), " Default: %s.",
                 is_yes_no                   ? (setting->value[0] == '1' ? "yes" : "no")
                 : setting->value[0] == '\0' ? "none"
                                             : setting->value);
        print_entry(out, left, setting->help, suffix);
    }
}

void dp_help_print(FILE *out)
{
    fprintf(out, "usage: dprun -np N | -H HOSTS [flags] PROGRAM [ARGUMENTS...]\n\n"
                 "Starts N ranks of a program, here or on several machines, prints what they write "
                 "line by line,\n"
                 "ends them all when one fails, says who and why, and leaves nothing behind.\n\n"
                 "Examples\n");
    for (size_t i = 0; i < DP_ARRAY_LEN(examples); i++) {
        fprintf(out, "  %-58s %s\n", examples[i][0], examples[i][1]);
    }
    print_own(out);
    print_rows(out);
    fprintf(out,
            "\nSignals\n"
            "  INT, TERM and HUP go to the ranks' process groups; what is left after the grace\n"
            "  time is killed with everything it has started. INT or TERM once more, half a\n"
            "  second later at the earliest, and QUIT kill at once.\n"
            "  USR1, USR2, TSTP and CONT are passed on.\n"
            "\nExit code\n");
    for (size_t i = 0; i < DP_ARRAY_LEN(exit_codes); i++) {
        fprintf(out, "  %-10s %s\n", exit_codes[i][0], exit_codes[i][1]);
    }
}
