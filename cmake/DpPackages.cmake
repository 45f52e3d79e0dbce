# What we stand on. Each is a pkg-config module turned into one imported target.
find_package(PkgConfig REQUIRED)
pkg_check_modules(ucx REQUIRED IMPORTED_TARGET ucx>=1.12)
pkg_check_modules(libevent REQUIRED IMPORTED_TARGET libevent_core>=2.1)
pkg_check_modules(libsodium REQUIRED IMPORTED_TARGET libsodium>=1.0.16)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc>=2.0)
if(DP_EXAMPLES)
  # Any CBLAS; the trainer has its own (slower) kernels where there is none.
  pkg_search_module(blas IMPORTED_TARGET openblas blis cblas)
endif()
if(DP_TESTS)
  pkg_check_modules(cmocka REQUIRED IMPORTED_TARGET cmocka>=1.1)
endif()
