# Control messages and the coordinator thread that drives them.
dp_test(test_transport_frame SOURCES runtime/transport/test_transport_frame.c LIBS dp_transport)
dp_test(test_transport_ring SOURCES runtime/transport/test_transport_ring.c fail_allocation.c LIBS dp_transport)
target_link_options(test_transport_ring PRIVATE
                    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup)
dp_test(test_transport_mailbox SOURCES runtime/transport/test_transport_mailbox.c fail_allocation.c fail_call.c
        LIBS dp_transport)
target_link_options(test_transport_mailbox PRIVATE
                    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup
                    -Wl,--wrap=mmap,--wrap=madvise,--wrap=fallocate,--wrap=open,--wrap=read,--wrap=mincore)
dp_test(test_transport SOURCES runtime/transport/test_transport.c LIBS dp_threads_context TIMEOUT 120)
dp_test(test_transport_line SOURCES runtime/transport/test_transport_line.c LIBS dp_transport dp_group TIMEOUT 120)
dp_test(test_transport_line_hello SOURCES runtime/transport/test_transport_line_hello.c LIBS dp_transport)
dp_test(test_transport_near SOURCES runtime/transport/test_transport_near.c LIBS dp_transport TIMEOUT 60)
dp_test(test_transport_shm SOURCES runtime/transport/test_transport_shm.c LIBS dp_transport TIMEOUT 120)
dp_test(test_transport_death SOURCES runtime/transport/test_transport_death.c LIBS dp_transport TIMEOUT 60)
dp_test(test_transport_memory SOURCES runtime/transport/test_transport_memory.c LIBS dp_threads_context TIMEOUT 120)
target_link_options(test_transport_memory PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
dp_test(test_health SOURCES coordinator/loop/test_health.c LIBS dp_coordinator)
dp_test(test_loop SOURCES coordinator/loop/test_loop.c LIBS dp_threads_context TIMEOUT 120)
dp_test(test_loop_progress SOURCES coordinator/loop/test_loop_progress.c LIBS dp_threads_context TIMEOUT 120)
dp_test(test_loop_ucx SOURCES coordinator/loop/test_loop_ucx.c LIBS dp_coordinator TIMEOUT 120)
if(DP_SANITIZE MATCHES thread)
  # libucm patches madvise() of a process that merely links it, which the sanitizer does not survive
  # when a thread ends.
  set_tests_properties(test_transport_ring test_transport_mailbox test_transport test_transport_near
                       test_transport_line test_transport_shm
                       test_transport_death test_transport_memory test_health
                       test_loop test_loop_progress test_loop_ucx
                       PROPERTIES ENVIRONMENT UCX_MEM_MMAP_HOOK_MODE=none)
endif()
