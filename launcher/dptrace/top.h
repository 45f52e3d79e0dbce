/*
 * top.h - what the ranks of a running job do now: one frame of `dptrace top`.
 */
#ifndef DP_DPTRACE_TOP_H
#define DP_DPTRACE_TOP_H

#include <stdio.h>

#include "runtime/base/error.h"

/*
 * Reads the recorders in run_dir, which are still written, and describes the last steps and what
 * each rank does at now_ns, a time of dp_now_ns(). Ranks on other machines are not seen: their
 * recorders lie there.
 *
 * @return DP_OK
 *         DP_ERR_BUSY   no rank has recorded anything yet
 *         DP_ERR_SYSTEM, DP_ERR_INVALID, DP_ERR_NO_MEMORY  with a text
 */
dp_status_t dp_top_write(const char *run_dir, uint64_t now_ns, FILE *file, dp_error_t *error);

#endif
