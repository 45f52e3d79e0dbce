/*
 * reach_wire.c - cards and surveys of reach.h as bytes. Called by whoever exchanges them, on one
 * thread. Whatever arrives is checked.
 */
#include "runtime/network/reach.h"

#include <stdlib.h>
#include <string.h>

#define TRY_BYTES (4 + DP_INTERFACE_ADDRESSES)

size_t dp_reach_card_write(const dp_reach_card_t *card, uint8_t data[DP_REACH_CARD_ROOM])
{
    dp_writer_t writer;

    dp_writer_init(&writer, data, DP_REACH_CARD_ROOM);
    dp_write_u8(&writer, (uint8_t)card->count);
    for (int i = 0; i < card->count; i++) {
        const dp_interface_address_t *address = &card->addresses[i];

        dp_write_u8(&writer, address->ip.version);
        dp_write_bytes(&writer, address->ip.bytes, DP_IP_BYTES);
        dp_write_u8(&writer, address->prefix);
        dp_write_u32(&writer, address->speed);
        dp_write_u16(&writer, card->ports[i]);
        dp_write_text(&writer, address->name);
    }
    return writer.failed ? 0 : writer.bytes;
}

int dp_reach_card_read(const void *data, size_t bytes, dp_reach_card_t *card)
{
    dp_reader_t reader;

    memset(card, 0, sizeof(*card));
    dp_reader_init(&reader, data, bytes);
    card->count = dp_read_u8(&reader);
    if (card->count > DP_INTERFACE_ADDRESSES) reader.failed = 1;
    for (int i = 0; i < card->count && !reader.failed; i++) {
        dp_interface_address_t *address = &card->addresses[i];
        const void *ip;

        address->ip.version = dp_read_u8(&reader);
        ip = dp_read_bytes(&reader, DP_IP_BYTES);
        if (ip != NULL) memcpy(address->ip.bytes, ip, DP_IP_BYTES);
        if (address->ip.version != 4 && address->ip.version != 6) reader.failed = 1;
        address->prefix = dp_read_u8(&reader);
        address->speed = dp_read_u32(&reader);
        card->ports[i] = dp_read_u16(&reader);
        dp_read_text(&reader, address->name, sizeof(address->name));
    }
    return !reader.failed && dp_reader_left(&reader) == 0;
}

size_t dp_reach_survey_bytes(const dp_reach_survey_t *survey)
{
    return 4 + (size_t)survey->count * TRY_BYTES;
}

size_t dp_reach_survey_write(const dp_reach_survey_t *survey, uint8_t *data, size_t room)
{
    dp_writer_t writer;

    dp_writer_init(&writer, data, room);
    dp_write_u32(&writer, (uint32_t)survey->count);
    for (int i = 0; i < survey->count; i++) {
        dp_write_u32(&writer, (uint32_t)survey->tries[i].node);
        dp_write_bytes(&writer, survey->tries[i].how, DP_INTERFACE_ADDRESSES);
    }
    return writer.failed ? 0 : writer.bytes;
}

dp_status_t dp_reach_survey_read(const void *data, size_t bytes, int node_count,
                                 dp_reach_survey_t *survey)
{
    dp_reader_t reader;
    uint32_t count;
    int before = -1;

    *survey = (dp_reach_survey_t){0, NULL};
    dp_reader_init(&reader, data, bytes);
    count = dp_read_u32(&reader);
    if (reader.failed || count > (uint32_t)node_count ||
        dp_reader_left(&reader) != (size_t)count * TRY_BYTES) {
        return DP_ERR_SYSTEM;
    }
    survey->tries = calloc((size_t)count + 1, sizeof(*survey->tries));
    if (survey->tries == NULL) return DP_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t node = dp_read_u32(&reader);
        const void *how = dp_read_bytes(&reader, DP_INTERFACE_ADDRESSES);

        if (how == NULL || node >= (uint32_t)node_count || (int)node <= before) { /* ascending */
            dp_reach_survey_free(survey);
            return DP_ERR_SYSTEM;
        }
        before = (int)node;
        survey->tries[i].node = before;
        memcpy(survey->tries[i].how, how, DP_INTERFACE_ADDRESSES);
        survey->count++;
    }
    return DP_OK;
}

void dp_reach_survey_free(dp_reach_survey_t *survey)
{
    free(survey->tries);
    *survey = (dp_reach_survey_t){0, NULL};
}
