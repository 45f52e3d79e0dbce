/*
 * no_schedule.c - a negotiator that is built without schedules (DP_WITH_SCHEDULE=OFF): it
 * negotiates whatever repeats itself, and refuses a schedule by name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "coordinator/negotiator/messages.h"
#include "scenario_world.h"

static const scenario_t pair = {.size = 2, .arity = 2, .tensors = 2, .may_schedule = 1};

static void rounds_that_repeat_stay_negotiated(void **state)
{
    uint64_t messages = 0;
    world_t world;

    (void)state;
    scenario_begin(&world, &pair);
    scenario_play(&world, 10, 2);
    messages = world.messages;
    scenario_play(&world, 10, 2);
    assert_int_equal(world.messages - messages, messages);
    assert_int_equal(world.ranks[1].schedules, 0);
    scenario_part(&world);
}

static void schedule_is_refused_by_name(void **state)
{
    uint8_t data[256];
    dp_frame_header_t header = {0, 0, 0};
    dp_item_t item = {.kind = DP_ITEM_SCHEDULE, .stride = 1, .count = 1};
    dp_writer_t writer;
    world_t world;

    (void)state;
    scenario_begin(&world, &pair);
    dp_writer_init(&writer, data, sizeof(data));
    dp_frame_write_header(&writer, &header);
    dp_item_write(&writer, &item);
    dp_write_u32(&writer, 1); /* one bucket of one tensor */
    dp_item_write_entry(&writer, &item);
    assert_int_equal(dp_negotiator_message(world.ranks[1].negotiator, 0, data, writer.bytes, 0),
                     DP_OK);
    scenario_settle(&world);
    for (int r = 0; r < 2; r++) {
        assert_true(world.ranks[r].is_fatal);
        if (strstr(world.ranks[r].fatal_text, "this rank is built without schedules") == NULL)
            fail_msg("rank %d: %s", r, world.ranks[r].fatal_text);
    }
    world_fini(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_that_repeat_stay_negotiated),
        cmocka_unit_test(schedule_is_refused_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
