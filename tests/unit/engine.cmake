# The host engine and what it stands on.
set(engine_support ${CMAKE_CURRENT_LIST_DIR}/engine_world.c ${CMAKE_CURRENT_LIST_DIR}/engine_reference.c
                   ${CMAKE_CURRENT_LIST_DIR}/engine_cases.c)
dp_test(test_engine SOURCES test_engine.c ${engine_support} LIBS dp_engine TIMEOUT 240 LABELS unit ranks)
dp_test(test_engine_host SOURCES test_engine.c ${engine_support} LIBS dp_engine TIMEOUT 240 LABELS
        unit ranks tsan ARGS 1)
dp_test(test_engine_processes SOURCES ../ranks/test_engine_processes.c ${engine_support} LIBS dp_engine
        TIMEOUT 240 LABELS ranks process)

# How close it comes to the machine; by hand, see the file.
dp_add_program(engine_bench ../bench/engine_bench.c ${engine_support})
target_link_libraries(engine_bench PRIVATE dp_engine)
