# The negotiator: pure, so worlds of several ranks run inside one test.
foreach(name negotiator negotiator_groups stall)
  dp_test(test_${name} SOURCES test_${name}.c ../sim/world.c LIBS dp_coordinator TIMEOUT 30)
endforeach()
dp_test(test_signature SOURCES test_signature.c LIBS dp_coordinator TIMEOUT 30)
dp_test(test_negotiator_memory SOURCES test_negotiator_memory.c fail_allocation.c
        LIBS dp_coordinator TIMEOUT 60)
target_link_options(test_negotiator_memory PRIVATE
                    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup)

# The front door when memory runs out.
dp_test(test_context_memory SOURCES test_context_memory.c fail_allocation.c LIBS dp_coordinator
        TIMEOUT 120)
target_link_options(test_context_memory PRIVATE
                    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup)
