/*
 * chain.c - the history of a rank's program as a chain of digests, and the first entry in which two
 * histories differ. Called by program.c on any thread, under its lock.
 *
 * A position p is kept at links[p % DP_CHAIN_KEPT] until DP_CHAIN_KEPT entries have followed. A
 * history that arrives is read with every length checked: it comes from another process.
 */
#include "coordinator/program/chain.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dp_status_t dp_chain_init(dp_chain_t *chain)
{
    *chain = (dp_chain_t){.links = calloc(DP_CHAIN_KEPT, sizeof(*chain->links))};
    return chain->links == NULL ? DP_ERR_NO_MEMORY : DP_OK;
}

void dp_chain_fini(dp_chain_t *chain)
{
    free(chain->links);
    chain->links = NULL;
}

/* ---- Appending ------------------------------------------------------------------------------ */

uint64_t dp_chain_hash(const char *name, const dp_signature_t *signature,
                       const dp_chain_manner_t *manner)
{
    const uint32_t flags = (manner->in_place ? 1u : 0) | (manner->launches_now ? 2u : 0);
    /* No padding: its bytes would be of any value and change the digest. */
    struct {
        double prescale, postscale;
        uint64_t tag;
        uint32_t words[8];
        float absmax;
        uint32_t zero;
    } fixed = {.prescale = signature->prescale,
               .postscale = signature->postscale,
               .tag = signature->tag,
               .words = {(uint32_t)signature->collective, (uint32_t)signature->reduce,
                         (uint32_t)signature->wire, (uint32_t)signature->root,
                         (uint32_t)signature->peer, (uint32_t)signature->is_grouped,
                         signature->part_count, flags},
               .absmax = manner->absmax};
    uint64_t hash = dp_kernel_hash(name, strlen(name), signature->part_count);

    hash = dp_kernel_hash(&fixed, sizeof(fixed), hash);
    for (uint32_t i = 0; i < signature->part_count; i++) {
        const uint64_t part[2] = {signature->parts[i].count, (uint64_t)signature->parts[i].dtype};

        hash = dp_kernel_hash(part, sizeof(part), hash);
    }
    return hash;
}

static uint64_t digest_at(const dp_chain_t *chain, uint64_t position)
{
    return position == 0 ? 0 : chain->links[position % DP_CHAIN_KEPT].digest;
}

static void append_link(dp_chain_t *chain, uint64_t hash, const dp_chain_link_t *link)
{
    const uint64_t before = digest_at(chain, chain->position);
    dp_chain_link_t *at;

    chain->position++;
    at = &chain->links[chain->position % DP_CHAIN_KEPT];
    *at = *link;
    at->digest = dp_kernel_hash(&hash, sizeof(hash), before);
}

void dp_chain_add(dp_chain_t *chain, uint64_t hash, const char *name,
                  const dp_signature_t *signature, const dp_chain_manner_t *manner)
{
    dp_chain_link_t link = {.name = name,
                            .collective = signature->collective,
                            .reduce = signature->reduce,
                            .wire = signature->wire,
                            .root = signature->root,
                            .part_count = signature->part_count,
                            .prescale = signature->prescale,
                            .postscale = signature->postscale,
                            .tag = signature->tag,
                            .manner = *manner};

    if (signature->part_count > 0) link.dtype = signature->parts[0].dtype;
    for (uint32_t i = 0; i < signature->part_count; i++)
        link.count += signature->parts[i].count;
    append_link(chain, hash, &link);
}

void dp_chain_add_wait(dp_chain_t *chain)
{
    append_link(chain, 1, &(dp_chain_link_t){.name = NULL});
}

/* ---- As text -------------------------------------------------------------------------------- */

/* Everything that may differ and is not a default: "act.3 (allreduce sum of 768 f32)". */
static void describe_link(const dp_chain_link_t *link, char *text)
{
    const int has_wire = link->wire == DP_WIRE_FP16 || link->wire == DP_WIRE_BF16;
    char parts[32] = "", root[32] = "", wire[48] = "", scales[64] = "", tag[32] = "";

    if (link->name == NULL) {
        snprintf(text, DP_CHAIN_WHAT_MAX, "a wait");
        return;
    }
    if (link->part_count > 1) snprintf(parts, sizeof(parts), " in %u parts", link->part_count);
    if (link->root >= 0) snprintf(root, sizeof(root), ", root %d", link->root);
    if (has_wire) {
        snprintf(wire, sizeof(wire), ", as %s, last %.3g",
                 link->wire == DP_WIRE_FP16 ? "fp16" : "bf16", (double)link->manner.absmax);
    }
    if (link->prescale != 1.0 || link->postscale != 1.0) {
        snprintf(scales, sizeof(scales), ", scaled %.6g, %.6g", link->prescale, link->postscale);
    }
    if (link->tag != 0) snprintf(tag, sizeof(tag), ", tag %016" PRIx64, link->tag);
    snprintf(text, DP_CHAIN_WHAT_MAX, "%.*s (%s%s%s of %llu %s%s%s%s%s%s%s%s)", 48, link->name,
             dp_collective_name(link->collective),
             dp_collective_reduces(link->collective) ? " " : "",
             dp_collective_reduces(link->collective) ? dp_reduce_name(link->reduce) : "",
             (unsigned long long)link->count, dp_dtype_name(link->dtype), parts, root, wire, scales,
             tag, link->manner.in_place ? ", where it lies" : "",
             link->manner.launches_now ? ", launched at once" : "");
}

/* 1: the entry is still known. */
static int is_kept(const dp_chain_t *chain, uint64_t position)
{
    return position >= 1 && position <= chain->position &&
           chain->position - position < DP_CHAIN_KEPT;
}

/* ---- Heartbeats ----------------------------------------------------------------------------- */

void dp_chain_write_heartbeat(const dp_chain_t *chain, dp_writer_t *writer)
{
    dp_write_u64(writer, chain->position);
    dp_write_u64(writer, digest_at(chain, chain->position));
    dp_write_u8(writer, chain->is_final != 0);
}

dp_chain_verdict_t dp_chain_check_heartbeat(const dp_chain_t *chain, dp_reader_t *reader,
                                            char *what, uint64_t *position)
{
    const uint64_t theirs = dp_read_u64(reader);
    const uint64_t digest = dp_read_u64(reader);
    const uint8_t is_final = dp_read_u8(reader);

    if (reader->failed || is_final > 1) return DP_CHAIN_BAD;
    /* A position this rank has not reached, or has forgotten, says nothing: a later heartbeat will.
     */
    if (is_kept(chain, theirs) && digest_at(chain, theirs) != digest) return DP_CHAIN_DIFFERS;
    /* The sender has finalized and will never submit what this rank has submitted since. */
    if (!is_final || theirs >= chain->position) return DP_CHAIN_ALIKE;
    *position = theirs + 1;
    snprintf(what, DP_CHAIN_WHAT_MAX, "something long ago");
    if (is_kept(chain, theirs + 1))
        describe_link(&chain->links[(theirs + 1) % DP_CHAIN_KEPT], what);
    return DP_CHAIN_LACKS;
}

/* ---- Histories ------------------------------------------------------------------------------ */

void dp_chain_write_history(const dp_chain_t *chain, dp_writer_t *writer)
{
    const uint64_t count = dp_min(chain->position, (uint64_t)DP_CHAIN_HISTORY_MAX);
    char what[DP_CHAIN_WHAT_MAX];

    dp_write_u64(writer, chain->position - count + 1);
    dp_write_u32(writer, (uint32_t)count);
    for (uint64_t p = chain->position - count + 1; p <= chain->position; p++) {
        const dp_chain_link_t *link = &chain->links[p % DP_CHAIN_KEPT];

        describe_link(link, what);
        dp_write_u64(writer, link->digest);
        dp_write_text(writer, what);
    }
}

dp_chain_verdict_t dp_chain_compare_history(const dp_chain_t *chain, dp_reader_t *reader,
                                            uint64_t *position, char *own, char *other)
{
    const uint64_t first = dp_read_u64(reader);
    const uint32_t count = dp_read_u32(reader);

    if (reader->failed || count > DP_CHAIN_HISTORY_MAX || first == 0) return DP_CHAIN_BAD;
    for (uint64_t p = first; p - first < count; p++) {
        const uint64_t digest = dp_read_u64(reader);

        dp_read_text(reader, other, DP_CHAIN_WHAT_MAX);
        if (reader->failed) return DP_CHAIN_BAD;
        /* Digests cover what came before, so the first one that differs is the first difference,
         * unless that is too old to be kept by either rank. */
        if (!is_kept(chain, p) || digest_at(chain, p) == digest) continue;
        describe_link(&chain->links[p % DP_CHAIN_KEPT], own);
        *position = p;
        return DP_CHAIN_DIFFERS;
    }
    return DP_CHAIN_ALIKE;
}
