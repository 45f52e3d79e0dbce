/*
 * help.h - what --help prints, made from the two tables of flags. Called by dprun.c.
 */
#ifndef DP_LAUNCHER_HELP_H
#define DP_LAUNCHER_HELP_H

#include <stdio.h>

void dp_help_print(FILE *out);

#endif
