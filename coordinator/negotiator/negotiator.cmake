# The negotiator: a pure state machine. Its cached schedule is a module that DP_WITH_SCHEDULE leaves
# out.
set(dp_negotiator_sources
    agree.c
    contest.c
    epoch.c
    flush.c
    follow.c
    item_entry.c
    group_view.c
    join.c
    joined.c
    leave.c
    left.c
    messages.c
    negotiator.c
    order.c
    outbox.c
    own.c
    own_end.c
    receive.c
    signature.c
    stall.c
    table.c)
set(dp_schedule_sources
    schedule/catch_up.c
    schedule/detect.c
    schedule/eligible.c
    schedule/give_up.c
    schedule/late_launch.c
    schedule/launch.c
    schedule/resume.c
    schedule/schedule_item.c
    schedule/schedule_messages.c
    schedule/standing.c
    schedule/unsettled.c)
list(TRANSFORM dp_negotiator_sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM dp_schedule_sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
set(dp_no_schedule_sources ${CMAKE_CURRENT_LIST_DIR}/schedule/none.c)

target_sources(dp_coordinator PRIVATE ${dp_negotiator_sources})
if(DP_WITH_SCHEDULE)
  target_sources(dp_coordinator PRIVATE ${dp_schedule_sources})
else()
  target_sources(dp_coordinator PRIVATE ${dp_no_schedule_sources})
endif()

# The negotiator without a schedule, whatever the option says: the simulator's tests run it too.
if(DP_TESTS)
  dp_add_library(dp_negotiator_plain ${dp_negotiator_sources} ${dp_no_schedule_sources})
  target_link_libraries(dp_negotiator_plain PUBLIC dp_engine dp_transport dp_group dp_base)
endif()
