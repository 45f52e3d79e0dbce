# The arithmetic: every variant this machine runs, against the plain loops of kernels/naive.c.
dp_test(test_kernels_reduce SOURCES ${CMAKE_CURRENT_LIST_DIR}/kernels/test_kernels_reduce.c ${CMAKE_CURRENT_LIST_DIR}/kernel_data.c LIBS dp_kernels
        LABELS unit TIMEOUT 120)
dp_test(test_kernels_cast SOURCES ${CMAKE_CURRENT_LIST_DIR}/kernels/test_kernels_cast.c ${CMAKE_CURRENT_LIST_DIR}/kernel_data.c LIBS dp_kernels
        LABELS unit TIMEOUT 120)
dp_test(test_tally SOURCES ${CMAKE_CURRENT_LIST_DIR}/kernels/test_tally.c ${CMAKE_CURRENT_LIST_DIR}/kernel_data.c LIBS dp_kernels LABELS unit)
