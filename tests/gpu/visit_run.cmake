# The first program of a visit, for a GPU and over the double; the visit itself is rehearsed.
if(NOT DP_SANITIZE) # which see nothing of a device
  add_executable(gpu_copy copy.cu)
  target_include_directories(gpu_copy PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(gpu_copy PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
  target_link_libraries(gpu_copy PRIVATE dp_cudart)
  set_target_properties(gpu_copy PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests
                                            CUDA_EXTENSIONS OFF)
  add_test(NAME gpu_copy COMMAND gpu_copy 64)
  set_tests_properties(gpu_copy PROPERTIES TIMEOUT 120 LABELS gpu SKIP_RETURN_CODE 77)
endif()
dp_add_simt_library(gpu_copy_kernels_simt copy.cu)
target_link_libraries(gpu_copy_kernels_simt PUBLIC dp_cuda_double)
add_executable(gpu_copy_simt $<TARGET_OBJECTS:gpu_copy_kernels_simt>)
target_link_libraries(gpu_copy_simt PRIVATE gpu_copy_kernels_simt dp_cuda_double)
set_target_properties(gpu_copy_simt PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests
                                               LINKER_LANGUAGE CXX)
add_test(NAME gpu_copy_simt COMMAND gpu_copy_simt)
set_tests_properties(gpu_copy_simt PROPERTIES TIMEOUT 60 LABELS "unit;cuda")

if(NOT DP_SANITIZE)
  # run.sh over a package of stand-ins: each step fails once. And the whole visit, on doubles: what
  # it runs from within a package are the programs of the label cuda.
  add_test(NAME gpu_visit_planted COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/test_visit.sh
                                          ${CMAKE_CURRENT_SOURCE_DIR}/run.sh)
  set_tests_properties(gpu_visit_planted PROPERTIES TIMEOUT 400 LABELS "gpu;long;repeat" COST 58)
  add_test(NAME gpu_peer COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/peers/test_peer.sh)
  set_tests_properties(gpu_peer PROPERTIES TIMEOUT 300 LABELS "gpu;long" SKIP_RETURN_CODE 77)
  if(TARGET embed_cuda_double AND TARGET gpt2_double)
    add_test(NAME gpu_rehearsal COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/test_rehearsal.sh
                                        ${PROJECT_BINARY_DIR})
    set_tests_properties(gpu_rehearsal PROPERTIES TIMEOUT 600 LABELS "gpu;long;repeat" SKIP_RETURN_CODE 77)
  endif()
endif()
