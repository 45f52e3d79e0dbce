/*
 * fuzz_reach.c - any bytes as the cards and surveys with which nodes find their network, as cores
 * of a rank, and as a hello of a stranger.
 *
 * An input is a list of (u8 what, u16 size, bytes). A card or survey that can be read can be
 * written again, and a choice made of them names addresses that exist.
 */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "runtime/group/core_share.h"
#include "runtime/network/reach.h"
#include "runtime/network/reach_internal.h"

#define NODES 4

typedef struct network {
    dp_reach_card_t cards[NODES];
    dp_reach_survey_t surveys[NODES];
    int cards_read, surveys_read;
} network_t;

static void read_card(network_t *network, const uint8_t *data, size_t bytes)
{
    dp_reach_card_t *card = &network->cards[network->cards_read++ % NODES];
    uint8_t again[DP_REACH_CARD_ROOM];

    if (!dp_reach_card_read(data, bytes, card)) {
        *card = (dp_reach_card_t){0};
        return;
    }
    if (dp_reach_card_write(card, again) != bytes || memcmp(again, data, bytes) != 0) abort();
}

static void read_survey(network_t *network, const uint8_t *data, size_t bytes)
{
    dp_reach_survey_t *survey = &network->surveys[network->surveys_read++ % NODES];
    uint8_t again[512];

    dp_reach_survey_free(survey);
    if (dp_reach_survey_read(data, bytes, NODES, survey) != DP_OK) return;
    if (dp_reach_survey_write(survey, again, sizeof(again)) != bytes ||
        memcmp(again, data, bytes) != 0)
        abort();
}

static void choose(network_t *network)
{
    static const char *const names[NODES] = {"a", "b", "c", "d"};
    char text[DP_ERROR_TEXT_MAX] = "";
    int chosen[NODES];
    const int without = dp_reach_choose(network->cards, network->surveys, NODES, chosen);
    int missing = 0;

    for (int i = 0; i < NODES; i++) {
        if (chosen[i] >= network->cards[i].count) abort();
        missing += chosen[i] < 0;
    }
    if (missing != without) abort();
    (void)dp_reach_is_open(network->cards, network->surveys, NODES);
    dp_reach_explain(network->cards, network->surveys, NODES, chosen, names, text, sizeof(text));
    if (memchr(text, '\0', sizeof(text)) == NULL) abort();
}

static void read_cores(const uint8_t *data, size_t bytes)
{
    dp_core_share_t share;
    const dp_core_share_t *list[2] = {&share, &share};
    dp_reader_t reader;

    dp_reader_init(&reader, data, bytes);
    dp_core_share_from(&share, &reader);
    if (share.quota_count > DP_CORE_QUOTAS_MAX) abort();
    (void)dp_core_share_each(list, 2, 2);
}

/* A caller that does not know the secret gets no answer. */
static void hear_stranger(const uint8_t *data, size_t bytes)
{
    static const dp_secret_t secret = {{1, 2, 3}};
    uint8_t hello[REACH_HELLO_BYTES] = {0};
    uint8_t answer[REACH_ANSWER_BYTES] = {0};

    memcpy(hello, data, dp_min(bytes, sizeof(hello)));
    if (dp_reach_hello_answer(&secret, 1, hello, answer)) abort();
    memcpy(answer, data, dp_min(bytes, sizeof(answer)));
    if (dp_reach_answer_read(&secret, hello + 16, answer) >= 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_input_t input = {data, bytes};
    network_t network = {0};

    while (input.bytes > 0) {
        const unsigned what = (unsigned)fuzz_number(&input, 1) % 4;
        const size_t size = (size_t)fuzz_number(&input, 2);
        size_t got;
        const uint8_t *at = fuzz_take(&input, size, &got);

        if (what == 0) read_card(&network, at, got);
        if (what == 1) read_survey(&network, at, got);
        if (what == 2) read_cores(at, got);
        if (what == 3) hear_stranger(at, got);
    }
    choose(&network);
    for (int i = 0; i < NODES; i++)
        dp_reach_survey_free(&network.surveys[i]);
    return 0;
}

static size_t put(uint8_t *data, uint8_t what, const uint8_t *part, size_t bytes)
{
    data[0] = what;
    data[1] = (uint8_t)bytes;
    data[2] = (uint8_t)(bytes >> 8);
    memcpy(data + 3, part, bytes);
    return bytes + 3;
}

/* Four nodes of which one is not reached, and the cores of a rank. */
size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    dp_reach_card_t card = {.count = 1, .ports = {4000}};
    dp_reach_try_t tries[NODES - 1] = {{0}};
    uint8_t part[DP_REACH_CARD_ROOM];
    dp_core_share_t share = {.cores = {15}, .quotas = {{7, 1500}}, .quota_count = 1};
    dp_writer_t writer;
    size_t used = 0;

    if (which > 0 || room < 4096) return 0;
    for (int node = 0; node < NODES; node++) {
        dp_reach_survey_t survey = {0, tries};

        (void)dp_ip_parse("10.0.0.1", &card.addresses[0].ip);
        card.addresses[0].ip.bytes[3] = (uint8_t)(node + 1);
        card.addresses[0].prefix = 24;
        memcpy(card.addresses[0].name, "eth0", 5);
        used += put(data + used, 0, part, dp_reach_card_write(&card, part));
        for (int other = 0; other < NODES; other++) {
            if (other == node) continue;
            tries[survey.count].node = other;
            tries[survey.count++].how[0] = other == 2 ? DP_REACH_SILENT : DP_REACH_YES;
        }
        used += put(data + used, 1, part, dp_reach_survey_write(&survey, part, sizeof(part)));
    }
    dp_writer_init(&writer, part, sizeof(part));
    dp_core_share_write(&share, &writer);
    return used + put(data + used, 2, part, writer.bytes);
}
