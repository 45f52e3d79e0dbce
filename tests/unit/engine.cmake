# The host engine and what it stands on.
set(wrapped "-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup")
dp_test(test_device SOURCES test_device.c fail_allocation.c LIBS dp_device ${wrapped} LABELS unit tsan)
dp_test(test_arena SOURCES test_arena.c fail_allocation.c LIBS dp_shm ${wrapped} LABELS unit)

set(engine_support ${CMAKE_CURRENT_LIST_DIR}/engine_world.c ${CMAKE_CURRENT_LIST_DIR}/engine_reference.c
                   ${CMAKE_CURRENT_LIST_DIR}/engine_cases.c)
dp_test(test_engine SOURCES test_engine.c ${engine_support} LIBS dp_engine TIMEOUT 240 LABELS unit ranks)
# Without traffic between hosts, and smaller: what the thread sanitizer can follow. UCX is linked all
# the same, and its memory hooks run in threads that the sanitizer has already taken down.
add_test(NAME test_engine_one_host COMMAND test_engine 1 3)
set_tests_properties(test_engine_one_host PROPERTIES TIMEOUT 240 LABELS "unit;ranks;tsan" ENVIRONMENT
                                                     "UCX_MEM_EVENTS=n;UCX_MEM_MMAP_HOOK_MODE=none")
dp_test(test_engine_processes SOURCES ../ranks/test_engine_processes.c ${engine_support} LIBS dp_engine
        TIMEOUT 240 LABELS ranks process)

# How close it comes to the machine; by hand, see the file.
dp_add_program(engine_bench ../bench/engine_bench.c ${engine_support})
target_link_libraries(engine_bench PRIVATE dp_engine)
