# Tensor core instructions and the attention made of them: on a GPU (77 without), and simulated.
function(dp_test_kernels name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LIBS;SIMT_LIBS;ORDERS" ${ARGN})
  if(NOT DP_SANITIZE) # which see nothing of a device
    add_executable(${name} ${arg_SOURCES})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests
                                             CUDA_EXTENSIONS OFF)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
    target_link_libraries(${name} PRIVATE dp_cudart ${arg_LIBS})
    add_test(NAME ${name}_device COMMAND ${name})
    set_tests_properties(${name}_device PROPERTIES TIMEOUT 300 LABELS gpu SKIP_RETURN_CODE 77)
  endif()

  dp_add_simt_library(${name}_kernels_simt ${arg_SOURCES})
  target_link_libraries(${name}_kernels_simt PUBLIC dp_cuda_double ${arg_SIMT_LIBS})
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/simt/empty.c CONTENT "typedef int empty_t;\n")
  add_executable(${name}_simt ${PROJECT_BINARY_DIR}/simt/empty.c)
  set_target_properties(${name}_simt PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests
                                                LINKER_LANGUAGE CXX)
  target_link_libraries(${name}_simt PRIVATE ${name}_kernels_simt)
  foreach(order ${arg_ORDERS})
    add_test(NAME ${name}_simt_${order} COMMAND ${name}_simt ${order})
    set(labels unit cuda)
    if(order EQUAL 1)
      list(APPEND labels repeat)
    elseif(order GREATER 1)
      list(APPEND labels long unsanitized)
    endif()
    set_tests_properties(${name}_simt_${order} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${labels}")
  endforeach()
endfunction()

dp_test_kernels(cuda_mma SOURCES gpt2/mma.cu ORDERS 0 1 7 TIMEOUT 60)

if(TARGET gpt2_cuda_attention)
  dp_add_simt_library(gpt2_attention_simt_kernels ${gpt2_attention_sources})
  target_link_libraries(gpt2_attention_simt_kernels PUBLIC gpt2_cuda_kernels_double)
  dp_test_kernels(gpt2_attention SOURCES gpt2/attention.cu LIBS gpt2_cuda_attention
                  SIMT_LIBS gpt2_attention_simt_kernels ORDERS 0 1 7 TIMEOUT 240)
endif()
