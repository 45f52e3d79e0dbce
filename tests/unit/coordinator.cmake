# The negotiator: pure, so worlds of several ranks run inside one test.
foreach(name negotiator negotiator_groups negotiator_mesh negotiator_priority stall)
  dp_test(test_${name} SOURCES coordinator/negotiator/test_${name}.c ../sim/world.c ../sim/world_end.c
          LIBS dp_coordinator TIMEOUT 30)
endforeach()
dp_test(test_signature SOURCES coordinator/negotiator/test_signature.c LIBS dp_coordinator TIMEOUT 30)
dp_test(test_negotiator_memory SOURCES coordinator/negotiator/test_negotiator_memory.c fail_allocation.c
        LIBS dp_coordinator TIMEOUT 60)
target_link_options(test_negotiator_memory PRIVATE
                    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup)

# What the figures of a step mean.
dp_test(test_decision SOURCES coordinator/api/test_decision.c LIBS dp_coordinator m TIMEOUT 30)

# Worlds by a key-value store of the program.
dp_test(test_store SOURCES coordinator/api/test_store.c LIBS dp_coordinator TIMEOUT 60)

# The list of operations that are over.
dp_test(test_completions SOURCES coordinator/api/test_completions.c LIBS dp_coordinator TIMEOUT 60)

# Rows and slots of dp_shards_t.
dp_test(test_layout SOURCES coordinator/shards/test_layout.c LIBS dp_coordinator TIMEOUT 30)

# What ranks say to each other first.
dp_test(test_hello SOURCES coordinator/api/test_hello.c LIBS dp_threads_context TIMEOUT 120)
target_link_options(test_hello PRIVATE -Wl,--wrap=dp_version)

# The facts that a rank tells the launcher when its world ends.
dp_test(test_failure_report SOURCES coordinator/api/test_failure_report.c LIBS dp_threads_context TIMEOUT 60)

# The front door when memory runs out.
dp_test(test_context_memory SOURCES coordinator/api/test_context_memory.c fail_allocation.c LIBS dp_threads_context
        TIMEOUT 120)
target_link_options(test_context_memory PRIVATE
                    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup)

# order=program.
dp_test(test_chain SOURCES coordinator/program/test_chain.c LIBS dp_coordinator TIMEOUT 30)
dp_test(test_program SOURCES coordinator/program/test_program.c LIBS dp_threads_context TIMEOUT 120 LABELS tsan)
if(DP_SANITIZE MATCHES "thread")
  # UCX is not instrumented: its hooks on memory calls crash a sanitized thread that ends.
  set_tests_properties(test_program PROPERTIES ENVIRONMENT
                                               "UCX_MEM_EVENTS=n;UCX_MEM_MMAP_HOOK_MODE=none")
endif()
dp_test(test_program_memory SOURCES coordinator/program/test_program_memory.c fail_allocation.c LIBS dp_threads_context
        TIMEOUT 120)
target_link_options(test_program_memory PRIVATE
                    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup)
