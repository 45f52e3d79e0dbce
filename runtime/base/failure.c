/*
 * failure.c - a failure's facts as bytes, and what a status tells of its kind.
 *
 * Called by ranks (to report) and by the rendezvous' server (to read), on any thread. Everything
 * read comes from another process: lengths are checked by the reader of runtime/base/wire.h, values
 * here.
 */
#include "runtime/base/failure.h"

#include <stdio.h>
#include <string.h>

#define FLAG_SEEN 1u
#define FLAG_STEP 2u /* the field step means something */
#define FLAGS_ALL (FLAG_SEEN | FLAG_STEP)
#define CULPRIT_UNKNOWN UINT32_MAX

void dp_failure_init(dp_failure_t *failure, dp_failure_kind_t kind, int culprit, const char *text)
{
    memset(failure, 0, sizeof(*failure));
    failure->kind = kind;
    failure->culprit = culprit;
    snprintf(failure->text, sizeof(failure->text), "%s", text);
}

dp_failure_kind_t dp_failure_kind_of(dp_status_t status)
{
    if (status == DP_ERR_PEER_LOST) return DP_FAILURE_LOST;
    if (status == DP_ERR_STALLED) return DP_FAILURE_STALLED;
    if (status == DP_ERR_MISMATCH) return DP_FAILURE_MISMATCH;
    return DP_FAILURE_ABORTED;
}

int dp_failure_is_wait(dp_failure_kind_t kind)
{
    return kind == DP_FAILURE_SILENT || kind == DP_FAILURE_STALLED || kind == DP_FAILURE_LATE;
}

void dp_failure_write(dp_writer_t *writer, const dp_failure_t *failure)
{
    dp_write_u8(writer, DP_FAILURE_VERSION);
    dp_write_u8(writer, (uint8_t)failure->kind);
    dp_write_u8(writer, (uint8_t)((failure->is_seen ? FLAG_SEEN : 0) |
                                  (failure->has_step ? FLAG_STEP : 0)));
    dp_write_u32(writer, failure->culprit < 0 ? CULPRIT_UNKNOWN : (uint32_t)failure->culprit);
    dp_write_u64(writer, failure->age_ns);
    dp_write_u64(writer, failure->step);
    dp_write_u64(writer, failure->operation_ns);
    dp_write_text(writer, failure->node);
    dp_write_text(writer, failure->operation);
    dp_write_text(writer, failure->text);
}

dp_status_t dp_failure_read(dp_reader_t *reader, dp_failure_t *failure)
{
    dp_failure_t got;
    uint32_t culprit;
    uint8_t version, kind, flags;

    memset(&got, 0, sizeof(got));
    version = dp_read_u8(reader);
    kind = dp_read_u8(reader);
    flags = dp_read_u8(reader);
    culprit = dp_read_u32(reader);
    got.age_ns = dp_read_u64(reader);
    got.step = dp_read_u64(reader);
    got.operation_ns = dp_read_u64(reader);
    dp_read_text(reader, got.node, sizeof(got.node));
    dp_read_text(reader, got.operation, sizeof(got.operation));
    dp_read_text(reader, got.text, sizeof(got.text));
    if (reader->failed || version < DP_FAILURE_VERSION) return DP_ERR_SYSTEM;
    if (version == DP_FAILURE_VERSION &&
        (dp_reader_left(reader) != 0 || kind >= DP_FAILURE_KINDS || (flags & ~FLAGS_ALL) != 0)) {
        return DP_ERR_SYSTEM;
    }
    if (culprit != CULPRIT_UNKNOWN && culprit > INT32_MAX) return DP_ERR_SYSTEM;
    got.kind = kind < DP_FAILURE_KINDS ? (dp_failure_kind_t)kind : DP_FAILURE_OTHER;
    got.is_seen = (flags & FLAG_SEEN) != 0;
    got.has_step = (flags & FLAG_STEP) != 0;
    got.culprit = culprit == CULPRIT_UNKNOWN ? -1 : (int)culprit;
    dp_text_mask(got.node);
    dp_text_mask(got.operation);
    dp_text_mask(got.text);
    *failure = got;
    return DP_OK;
}
