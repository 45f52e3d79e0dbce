# The arithmetic: every variant this machine runs, against the plain loops of naive.c. The thread
# sanitizer would spend most of its time in those, and sees their callers read the results.
add_library(dp_naive STATIC ${CMAKE_CURRENT_LIST_DIR}/naive.c)
set_target_properties(dp_naive PROPERTIES C_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON) # the doubles are shared libraries
target_link_libraries(dp_naive PUBLIC dp_kernels PRIVATE dp_warnings)
if(DP_SANITIZE MATCHES "thread")
  target_compile_options(dp_naive PRIVATE -O2 -fno-sanitize=thread)
endif()
dp_test(test_kernels_reduce SOURCES ${CMAKE_CURRENT_LIST_DIR}/kernels/test_kernels_reduce.c ${CMAKE_CURRENT_LIST_DIR}/kernel_data.c LIBS dp_naive
        LABELS unit TIMEOUT 120)
dp_test(test_kernels_cast SOURCES ${CMAKE_CURRENT_LIST_DIR}/kernels/test_kernels_cast.c ${CMAKE_CURRENT_LIST_DIR}/kernel_data.c LIBS dp_naive
        LABELS unit TIMEOUT 120)
dp_test(test_tally SOURCES ${CMAKE_CURRENT_LIST_DIR}/kernels/test_tally.c ${CMAKE_CURRENT_LIST_DIR}/kernel_data.c LIBS dp_naive LABELS unit)
