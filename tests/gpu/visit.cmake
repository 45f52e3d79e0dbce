# What a GPU visit takes along beyond programs that are tests already, doubles of what has none yet
# for a rehearsal, and tests of the package: see visit.list.
if(DP_SANITIZE)
  return()
endif()

# embed_cuda, which knows dp.h alone, over the doubles: launches rewritten, and a few pages of weights.
if(TARGET dp_plugin_double AND TARGET embed_cuda)
  set(embed_source ${PROJECT_SOURCE_DIR}/examples/embed_cuda.cu)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${embed_source})
  file(READ ${embed_source} embed_text)
  string(REGEX REPLACE "([a-z_]+)<<<([^>]*)>>>\\(" "SIMT_LAUNCH(\\1, \\2, " embed_text "${embed_text}")
  string(REGEX REPLACE "#define COUNT [^/]*" "#define COUNT ((size_t)1 << 12) " embed_text
                       "${embed_text}")
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/simt/embed_cuda.cu CONTENT "${embed_text}" @ONLY)
  dp_add_simt_library(embed_cuda_simt ${PROJECT_BINARY_DIR}/simt/embed_cuda.cu)
  add_executable(embed_cuda_double $<TARGET_OBJECTS:embed_cuda_simt>)
  set_target_properties(embed_cuda_double PROPERTIES OUTPUT_NAME embed_cuda LINKER_LANGUAGE CXX
                        RUNTIME_OUTPUT_DIRECTORY ${dp_double_directory})
  target_link_libraries(embed_cuda_double PRIVATE embed_cuda_simt dp_cuda_double dp)
  add_dependencies(embed_cuda_double dp_double_links)
endif()

add_test(NAME gpu_libraries COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/test_libraries.sh)
set_tests_properties(gpu_libraries PROPERTIES TIMEOUT 120 LABELS "gpu;package" SKIP_RETURN_CODE 77)
if(TARGET dp_cuda AND TARGET dp_nccl AND TARGET gpt2_cuda)
  add_test(NAME gpu_pack_check COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/test_pack.sh ${PROJECT_BINARY_DIR})
  set_tests_properties(gpu_pack_check PROPERTIES TIMEOUT 300 LABELS "gpu;package;long" COST 70 SKIP_RETURN_CODE 77)
endif()
