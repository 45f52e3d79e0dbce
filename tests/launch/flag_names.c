/*
 * flag_names.c - prints every flag of dprun, as its option table has them, for flags.sh: "flag
 * NAME", "setting NAME VARIABLE VALUE". So a flag that is added has no row there, and the test
 * fails.
 */
#include "launcher/dprun/options.h"

#include <stdio.h>

int main(void)
{
    for (size_t i = 0; i < dp_flag_count(); i++) {
        printf("flag %s\n", dp_flag(i)->name);
        if (dp_flag(i)->alias != NULL) printf("flag %s\n", dp_flag(i)->alias);
    }
    for (size_t i = 0; i < dp_config_count(); i++) {
        const dp_setting_t *setting = dp_config_setting(i);
        char flag[128];

        if (setting->is_internal) continue;
        dp_flag_of_setting(setting, flag, sizeof(flag));
        printf("setting %s DP_%s %s\n", flag, setting->name, setting->value);
    }
    return 0;
}
