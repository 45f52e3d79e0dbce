# The planner, the compression's scale, and the pipeline over a fake engine and the host engine.
set(here ${CMAKE_CURRENT_LIST_DIR})
set(fusion_wrapped "-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup")
set(pipeline_support ${here}/pipeline_world.c ${here}/pipeline_op.c ${here}/fake_engine.c
                     ${here}/kernel_data.c ${here}/fail_allocation.c)
dp_test(test_plan SOURCES ${here}/fusion/test_plan.c ${here}/kernel_data.c ${here}/fail_allocation.c
        LIBS dp_fusion ${fusion_wrapped} LABELS unit)
dp_test(test_identity SOURCES ${here}/fusion/test_identity.c ${here}/kernel_data.c LIBS dp_fusion dp_naive LABELS unit)
dp_test(test_pipeline SOURCES ${here}/fusion/test_pipeline.c ${pipeline_support}
        LIBS dp_fusion dp_threads dp_naive ${fusion_wrapped} LABELS unit TIMEOUT 120)
dp_test(test_pipeline_groups SOURCES ${here}/fusion/test_pipeline_groups.c ${pipeline_support}
        LIBS dp_fusion dp_threads dp_naive ${fusion_wrapped} LABELS unit TIMEOUT 240)
dp_test(test_pipeline_lanes SOURCES ${here}/fusion/test_pipeline_lanes.c ${pipeline_support}
        LIBS dp_fusion dp_threads dp_naive ${fusion_wrapped} LABELS unit ranks tsan TIMEOUT 240)
dp_test(test_pipeline_streams SOURCES ${here}/fusion/test_pipeline_streams.c ${pipeline_support}
        LIBS dp_fusion dp_threads dp_naive ${fusion_wrapped} LABELS unit tsan TIMEOUT 240)
# UCX is linked with the host engine, and its memory hooks do not go with the thread sanitizer.
set_tests_properties(test_pipeline_streams test_pipeline_lanes PROPERTIES
                     ENVIRONMENT "UCX_MEM_EVENTS=n;UCX_MEM_MMAP_HOOK_MODE=none")
dp_test(test_pipeline_cpu SOURCES ${here}/fusion/test_pipeline_cpu.c ${pipeline_support}
        LIBS dp_fusion dp_threads dp_naive ${fusion_wrapped} LABELS unit ranks TIMEOUT 240)
