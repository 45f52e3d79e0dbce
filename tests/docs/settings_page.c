/*
 * settings_page.c - writes docs/settings.md from the one table of settings.
 *
 *     build-dev/tests/settings_page > docs/settings.md
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/config.h"

static void print_flag(const dp_setting_t *setting)
{
    printf("`--");
    for (const char *name = setting->name; *name != '\0'; name++)
        putchar(*name == '_' ? '-' : tolower((unsigned char)*name));
    /* dprun has a --check of its own, so the value is part of the flag */
    printf("%s`", strcmp(setting->kind, "yes/no") == 0 ? "=yes\\|no" : "");
}

/* A table cell: choices hold bars. */
static void print_cell(const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '|') putchar('\\');
        putchar(*text);
    }
}

static void print_settings(int is_internal)
{
    for (size_t i = 0; i < dp_config_count(); i++) {
        const dp_setting_t *setting = dp_config_setting(i);

        if (setting->is_internal != is_internal) continue;
        printf("| `DP_%s` | ", setting->name);
        if (!is_internal) {
            print_flag(setting);
            printf(" | %s%s%s | ", setting->value[0] != '\0' ? "`" : "", setting->value,
                   setting->value[0] != '\0' ? "`" : "");
        }
        print_cell(setting->kind);
        printf(" | ");
        print_cell(setting->help);
        printf(" |\n");
    }
}

int main(void)
{
    printf("# Settings\n"
           "\n"
           "Made from the table in `runtime/base/config.c` by `tests/docs/settings_page.c`; a test "
           "keeps the\n"
           "two equal. Each setting is an environment variable, a flag of dprun and a line `name = "
           "value` of a\n"
           "`--config` file; a flag wins over the environment, the environment over the file. "
           "Bytes take K, M, G;\n"
           "times need a unit: ns, us, ms, s, min, h.\n"
           "\n"
           "| variable | flag | default | kind | what it does |\n"
           "|---|---|---|---|---|\n");
    print_settings(0);
    printf(
        "\n"
        "## Set by a launcher\n"
        "\n"
        "dprun sets these for its ranks; where something else starts them, [launch.md](launch.md) "
        "says which\n"
        "are yours to set. They are no flags, and not for a file.\n"
        "\n"
        "| variable | kind | what it says |\n"
        "|---|---|---|\n");
    print_settings(1);
    return 0;
}
