# The CUDA toolkit, where there is one. DP_CUDA=AUTO builds the CUDA parts exactly there, ON insists,
# OFF leaves them out. Gives: DP_WITH_CUDA, and the targets dp_cudart, dp_cublas, dp_nccl.
set(DP_CUDA AUTO CACHE STRING "Build the CUDA parts: AUTO, ON or OFF")
set_property(CACHE DP_CUDA PROPERTY STRINGS AUTO ON OFF)
set(DP_CUDA_ARCHITECTURES "80-real;90-real;100-real;90-virtual"
    CACHE STRING "GPU architectures, as CMAKE_CUDA_ARCHITECTURES")
set(DP_WITH_CUDA OFF)

if(NOT DP_CUDA STREQUAL "OFF")
  find_program(
    DP_NVCC nvcc
    HINTS $ENV{CUDA_PATH} $ENV{CUDA_HOME} /usr/local/cuda /opt/cuda
    PATH_SUFFIXES bin)
  if(DP_NVCC)
    set(CMAKE_CUDA_COMPILER ${DP_NVCC})
    set(CMAKE_CUDA_ARCHITECTURES ${DP_CUDA_ARCHITECTURES})
    enable_language(CXX) # of the host compiler, which nvcc needs too; for test doubles only
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 17)
    set(DP_WITH_CUDA ON)
  elseif(DP_CUDA STREQUAL "ON")
    message(FATAL_ERROR "DP_CUDA=ON, but no nvcc was found: set CUDA_PATH or CMAKE_CUDA_COMPILER")
  endif()
endif()

if(DP_WITH_CUDA)
  find_package(CUDAToolkit REQUIRED)
  # Where other machines have the libraries of the toolkit: its folder is called lib or lib64.
  set(DP_CUDA_RPATH ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_TARGET_DIR}/lib
                    ${CUDAToolkit_TARGET_DIR}/lib64 /usr/local/cuda/lib64)
  list(REMOVE_DUPLICATES DP_CUDA_RPATH)
  add_library(dp_cudart INTERFACE)
  target_link_libraries(dp_cudart INTERFACE CUDA::cudart)
  add_library(dp_cublas INTERFACE)
  target_link_libraries(dp_cublas INTERFACE CUDA::cublasLt CUDA::cublas)
  find_path(DP_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(DP_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(DP_NCCL_INCLUDE AND DP_NCCL_LIBRARY)
    add_library(dp_nccl INTERFACE)
    target_include_directories(dp_nccl SYSTEM INTERFACE ${DP_NCCL_INCLUDE})
    target_link_libraries(dp_nccl INTERFACE ${DP_NCCL_LIBRARY})
  endif()
endif()

# dp_add_cuda_library(name sources...): kernels as a static library. Contraction is off as on the
# host, so that both compute the same bits. Sanitizers, which see nothing of a device, leave it out
# unless something needs it.
function(dp_add_cuda_library name)
  add_library(${name} STATIC ${ARGN})
  if(DP_SANITIZE)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_EXTENSIONS OFF)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_compile_options(
    ${name}
    PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false
            -Xcompiler=-ffp-contract=off,-fvisibility=hidden,-Wall,-Wextra,-Wno-missing-field-initializers
            $<$<BOOL:${DP_WERROR}>:--Werror=all-warnings
            -Xcompiler=-Werror>>)
  target_link_libraries(${name} PUBLIC dp_cudart)
endfunction()

# dp_add_simt_library(name sources...): the same kernels for the CPU, run by tests/gpu/double/simt.
function(dp_add_simt_library name)
  set(wrapped)
  foreach(source ${ARGN})
    get_filename_component(path ${source} ABSOLUTE)
    get_filename_component(stem ${source} NAME_WE)
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${path})
    set(wrapper ${PROJECT_BINARY_DIR}/simt/${name}_${stem}.cc)
    file(CONFIGURE OUTPUT ${wrapper} CONTENT
         "#include \"tests/gpu/double/simt.h\"\n#include \"${path}\"\n")
    list(APPEND wrapped ${wrapper})
  endforeach()
  add_library(${name} STATIC ${wrapped})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF
                                           CXX_STANDARD 17)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_include_directories(${name} SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_definitions(${name} PUBLIC DP_SIMT=1)
  target_link_libraries(${name} PUBLIC dp_flags)
endfunction()
