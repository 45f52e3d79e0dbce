# Flags travel on targets: dp_flags is what every C file here needs, dp_warnings what ours must pass.
find_package(Threads REQUIRED)

add_library(dp_flags INTERFACE)
target_compile_features(dp_flags INTERFACE c_std_17)
target_compile_definitions(dp_flags INTERFACE _GNU_SOURCE)
target_include_directories(dp_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
# No contraction: a fused multiply-add in one build and not in the other would break bit-equality.
target_compile_options(dp_flags INTERFACE -ffp-contract=off -fno-math-errno -fvisibility=hidden)
target_link_libraries(dp_flags INTERFACE Threads::Threads m)
if(DP_ASSERTS)
  target_compile_definitions(dp_flags INTERFACE DP_ASSERTS=1)
endif()
if(DP_SANITIZE)
  target_compile_options(dp_flags INTERFACE -fsanitize=${DP_SANITIZE} -fno-omit-frame-pointer
                                            -fno-sanitize-recover=all)
  target_link_options(dp_flags INTERFACE -fsanitize=${DP_SANITIZE})
endif()

# For loops that want the vectoriser. A sanitizer's checks in unrolled loops are a hundred times the
# compiler's work, and no other code than without: there they are compiled like the rest.
# The dev build vectorises them as a release does, but unrolls and specialises less, in 40 % of the time.
set(dp_vectorised -O3)
if(DP_SANITIZE)
  set(dp_vectorised)
elseif(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
  set(dp_vectorised -O2 -ftree-vectorize -fvect-cost-model)
endif()

add_library(dp_warnings INTERFACE)
target_compile_options(
  dp_warnings
  INTERFACE $<$<COMPILE_LANGUAGE:C>:-Wall
            -Wextra
            -Wshadow
            -Wstrict-prototypes
            -Wmissing-prototypes
            -Wpointer-arith
            -Wcast-qual
            -Wvla
            -Wundef
            $<$<BOOL:${DP_WERROR}>:-Werror>>)

# dp_add_library(name sources...): a static library that can also go into libdp.so.
function(dp_add_library name)
  add_library(${name} STATIC ${ARGN})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON C_EXTENSIONS OFF)
  target_link_libraries(${name} PUBLIC dp_flags PRIVATE dp_warnings)
endfunction()

# dp_add_program(name sources...): an executable of ours.
function(dp_add_program name)
  add_executable(${name} ${ARGN})
  set_target_properties(${name} PROPERTIES C_EXTENSIONS OFF)
  target_link_libraries(${name} PRIVATE dp_flags dp_warnings)
endfunction()
