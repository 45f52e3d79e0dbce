# The planner, the compression's scale, and the pipeline over a fake engine.
dp_test(test_plan SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_plan.c
        ${CMAKE_CURRENT_LIST_DIR}/kernel_data.c ${CMAKE_CURRENT_LIST_DIR}/fail_allocation.c
        LIBS dp_fusion LABELS unit)
dp_test(test_compress SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_compress.c LIBS dp_fusion LABELS unit)
dp_test(test_pipeline SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_pipeline.c
        ${CMAKE_CURRENT_LIST_DIR}/pipeline_world.c ${CMAKE_CURRENT_LIST_DIR}/fake_engine.c
        ${CMAKE_CURRENT_LIST_DIR}/kernel_data.c ${CMAKE_CURRENT_LIST_DIR}/fail_allocation.c
        LIBS dp_fusion LABELS unit TIMEOUT 120)
foreach(name plan pipeline) # the nth allocation fails, for n = 1, 2, 3, ...
  target_link_options(test_${name} PRIVATE
                      -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup)
endforeach()
