# The host engine and what it stands on.
set(wrapped "-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup")
dp_test(test_device SOURCES runtime/device/test_device.c fail_allocation.c LIBS dp_device ${wrapped} LABELS unit tsan)
dp_test(test_arena SOURCES runtime/shm/test_arena.c fail_allocation.c LIBS dp_shm dp_threads ${wrapped} LABELS unit)
dp_test(test_arena_adopt SOURCES runtime/shm/test_arena_adopt.c fail_allocation.c fail_call.c
        LIBS dp_shm dp_threads ${wrapped} -Wl,--wrap=mmap,--wrap=madvise,--wrap=fallocate
        -Wl,--wrap=open,--wrap=read,--wrap=mincore LABELS unit)

dp_test(test_arena_view SOURCES runtime/shm/test_arena_view.c LIBS dp_shm dp_threads -Wl,--wrap=syscall LABELS unit)

set(engine_support ${CMAKE_CURRENT_LIST_DIR}/engine_world.c ${CMAKE_CURRENT_LIST_DIR}/engine_reference.c
                   ${CMAKE_CURRENT_LIST_DIR}/engine_cases.c)
dp_compiled_once(engine_support)
set(engine_group_support ${engine_support} ${CMAKE_CURRENT_LIST_DIR}/engine_group_cases.c
                         ${CMAKE_CURRENT_LIST_DIR}/engine_exchange_cases.c)
set(engine_lane_support ${CMAKE_CURRENT_LIST_DIR}/engine_world.c ${CMAKE_CURRENT_LIST_DIR}/engine_lane_cases.c)
set(engine_args ARGS 3 4) # nodes and ranks at most: two ranks share a node, the others are alone
if(DP_SANITIZE)
  set(engine_args ARGS 2 3)
endif()
dp_test(test_engine SOURCES runtime/engine/test_engine.c ${engine_support} LIBS dp_engine dp_threads TIMEOUT 240 LABELS unit ranks ${engine_args})
dp_test(test_engine_groups SOURCES runtime/engine/test_engine_groups.c ${engine_group_support} fail_allocation.c
        LIBS dp_engine dp_threads ${wrapped} TIMEOUT 240 LABELS unit ranks long ${engine_args})
dp_test(test_engine_lanes SOURCES runtime/engine/test_engine_lanes.c ${engine_lane_support}
        LIBS dp_engine dp_threads TIMEOUT 240 LABELS unit ranks ${engine_args})
foreach(name test_engine test_engine_groups test_engine_lanes) # every number of ranks up to 8, on up to 3 or 4 nodes
  add_test(NAME ${name}_many COMMAND ${name})
  set_tests_properties(${name}_many PROPERTIES TIMEOUT 900 LABELS "unit;ranks;repeat")
endforeach()
dp_test(test_engine_brief SOURCES runtime/engine/test_engine_brief.c engine_world.c LIBS dp_engine dp_threads LABELS unit ranks tsan)
dp_test(test_engine_ends SOURCES runtime/engine/test_engine_ends.c ${engine_support} LIBS dp_engine dp_threads TIMEOUT 240 LABELS unit ranks)
dp_test(test_engine_pull SOURCES runtime/engine/test_engine_pull.c ${engine_support}
        LIBS dp_engine dp_threads -Wl,--wrap=process_vm_readv TIMEOUT 240 LABELS unit ranks)
dp_test(test_cpu_method SOURCES runtime/engine/test_cpu_method.c LIBS dp_engine LABELS unit)
dp_test(test_direct_slots SOURCES runtime/engine/test_direct_slots.c LIBS dp_engine LABELS unit)
# Parts of the above without traffic between nodes: what the thread sanitizer can follow. Elsewhere
# they would repeat it. UCX is linked all the same, and its memory hooks run in threads that the
# sanitizer has already taken down.
if(DP_SANITIZE MATCHES "thread")
  add_test(NAME test_engine_one_node COMMAND test_engine 1 3)
  add_test(NAME test_engine_groups_one_node COMMAND test_engine_groups 1 3)
  add_test(NAME test_engine_lanes_one_node COMMAND test_engine_lanes 1)
  add_test(NAME test_engine_pull_threads COMMAND test_engine_pull pull_gives_*)
  set_tests_properties(
    test_engine_one_node test_engine_groups_one_node test_engine_lanes_one_node test_engine_pull_threads test_engine_brief
    PROPERTIES TIMEOUT 300 LABELS "unit;ranks;tsan" ENVIRONMENT
               "UCX_MEM_EVENTS=n;UCX_MEM_MMAP_HOOK_MODE=none")
endif()
dp_test(test_engine_processes SOURCES ../ranks/test_engine_processes.c ${engine_group_support} engine_lane_cases.c LIBS dp_engine dp_threads
        TIMEOUT 240 LABELS ranks process long unsanitized)

# How close it comes to the machine; by hand, see the file.
dp_add_program(engine_bench ../bench/engine_bench.c ${engine_support})
target_link_libraries(engine_bench PRIVATE dp_engine dp_threads -Wl,--wrap=process_vm_readv)
dp_add_program(exchange_bench ../bench/exchange_bench.c ${engine_support})
target_link_libraries(exchange_bench PRIVATE dp_engine dp_threads)
dp_add_program(floor ../bench/floor.c)
target_link_libraries(floor PRIVATE dp)
target_compile_options(floor PRIVATE -O3)
