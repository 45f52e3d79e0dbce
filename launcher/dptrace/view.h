/*
 * view.h - one HTML page that holds a timeline and everything needed to look at it.
 *
 * The page's own files lie in view/ and are embedded at build time (embed.cmake). Called by main.c,
 * on dptrace's only thread.
 */
#ifndef DP_DPTRACE_VIEW_H
#define DP_DPTRACE_VIEW_H

#include <stdio.h>

#include "launcher/dptrace/analysis.h"

/* `what` is the page's title. DP_OK or DP_ERR_NO_MEMORY; the caller looks at ferror(). */
dp_status_t dp_view_write(const dp_timeline_t *timeline, const dp_analysis_t *analysis,
                          const char *what, FILE *file);

/* The page's parts, put into the program by embed.cmake. */
extern const char dp_view_page[]; /* with @TITLE@, @STYLE@, @META@, @DATA@ and @SCRIPT@ */
extern const char dp_view_style[];
extern const char dp_view_script[];

#endif
