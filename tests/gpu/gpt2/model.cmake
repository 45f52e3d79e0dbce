# The trainer's replica on a GPU: the sources of libgpt2-cuda.so over the doubles.
dp_add_simt_library(gpt2_cuda_checksum_double
                    ${PROJECT_SOURCE_DIR}/examples/gpt2/cuda/checksum.cu)
target_link_libraries(gpt2_cuda_checksum_double PUBLIC dp_cuda_double)
dp_add_library(gpt2_cuda_model_double ${gpt2_cuda_model_sources})
target_include_directories(gpt2_cuda_model_double SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(
  gpt2_cuda_model_double
  PUBLIC gpt2_model gpt2_cuda_matmul_double gpt2_attention_simt_kernels gpt2_cuda_kernels_double
         gpt2_cuda_checksum_double dp_cuda_double)
set(gpt2_tests ${PROJECT_SOURCE_DIR}/tests/gpt2)
dp_test(
  test_gpt2_cuda
  SOURCES test_gpt2_cuda.c ${gpt2_tests}/fixture.c ${gpt2_tests}/scratch.c
  LIBS gpt2_cuda_model_double
  LABELS unit cuda long unsanitized
  TIMEOUT 240)
target_compile_definitions(test_gpt2_cuda PRIVATE GPT2_FIXTURES="${gpt2_tests}/fixtures")
dp_test(
  test_gpt2_cuda_trainer
  SOURCES test_gpt2_cuda_trainer.c ${gpt2_tests}/strategy_threads.c ${gpt2_tests}/scratch.c
  LIBS gpt2_trainer gpt2_cuda_model_double
  LABELS unit cuda long unsanitized
  TIMEOUT 400)
dp_test(
  test_gpt2_cuda_halves
  SOURCES test_gpt2_cuda_halves.c
  LIBS gpt2_cuda_model_double
  LABELS unit cuda
  TIMEOUT 120)
set_tests_properties(test_gpt2_cuda test_gpt2_cuda_trainer PROPERTIES COST 40)
set_target_properties(test_gpt2_cuda test_gpt2_cuda_trainer test_gpt2_cuda_halves
                      PROPERTIES LINKER_LANGUAGE CXX)

# The program itself and the plug-in it opens, in the folder of libdp's double plug-in.
if(TARGET dp_plugin_double AND TARGET dprun)
  set_target_properties(gpt2_cublaslt_double PROPERTIES POSITION_INDEPENDENT_CODE ON)
  add_library(gpt2_plugin_double MODULE ${PROJECT_SOURCE_DIR}/examples/gpt2/cuda/plugin.c)
  set_target_properties(gpt2_plugin_double PROPERTIES OUTPUT_NAME gpt2-cuda C_EXTENSIONS OFF
                        LINKER_LANGUAGE CXX LIBRARY_OUTPUT_DIRECTORY ${dp_double_directory})
  target_link_libraries(gpt2_plugin_double PRIVATE gpt2_cuda_model_double dp_flags dp_warnings)
  dp_add_program(gpt2_double ${PROJECT_SOURCE_DIR}/examples/gpt2/train/main.c)
  set_target_properties(gpt2_double PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${dp_double_directory})
  target_link_libraries(gpt2_double PRIVATE gpt2_trainer)
  add_dependencies(gpt2_double gpt2_plugin_double dp_double_links dptrace)
  add_test(NAME gpt2_ranks_double
           COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/ranks.sh $<TARGET_FILE:dprun>
                   $<TARGET_FILE:gpt2_double>)
  set_tests_properties(
    gpt2_ranks_double
    PROPERTIES TIMEOUT 240 LABELS "ranks;process;cuda;long;unsanitized" COST 35 ENVIRONMENT
               "LD_LIBRARY_PATH=${dp_double_directory};DP_TEST_GPUS=2")
  add_test(NAME gpt2_compress_double
           COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/compress.sh $<TARGET_FILE:dprun>
                   $<TARGET_FILE:gpt2_double>)
  set_tests_properties(
    gpt2_compress_double
    PROPERTIES TIMEOUT 600 LABELS "ranks;process;cuda;long;unsanitized" COST 35 ENVIRONMENT
               "LD_LIBRARY_PATH=${dp_double_directory};DP_TEST_GPUS=2")
  add_test(NAME gpt2_shards_double
           COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/shards.sh $<TARGET_FILE:dprun>
                   $<TARGET_FILE:gpt2_double> brief)
  add_test(NAME gpt2_shards_double_whole
           COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/shards.sh $<TARGET_FILE:dprun>
                   $<TARGET_FILE:gpt2_double>)
  set_tests_properties(
    gpt2_shards_double gpt2_shards_double_whole
    PROPERTIES TIMEOUT 600 LABELS "ranks;process;cuda;long;unsanitized" COST 45 ENVIRONMENT
               "LD_LIBRARY_PATH=${dp_double_directory};DP_TEST_GPUS=3")
  set_tests_properties(gpt2_shards_double_whole PROPERTIES LABELS "ranks;process;cuda;long;repeat")
  add_test(NAME gpt2_hybrid_double
           COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/hybrid.sh $<TARGET_FILE:dprun>
                   $<TARGET_FILE:gpt2_double>)
  set_tests_properties(
    gpt2_hybrid_double
    PROPERTIES TIMEOUT 600 LABELS "ranks;process;cuda;long;unsanitized" ENVIRONMENT
               "LD_LIBRARY_PATH=${dp_double_directory};DP_TEST_GPUS=2")
endif()
