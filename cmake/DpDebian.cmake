# Debian packages, by CPack: `cmake --build build --target package` writes libdpX.Y (the library), libdp-dev, dp-tools
# (dprun, dptrace, dpbench, gpt2) and, where there is a CUDA toolkit, dp-cuda (the plug-ins). And `--target dist`, the
# archive of the sources of HEAD.
find_program(dp_git git)
if(dp_git)
  add_custom_target(
    dist
    COMMAND ${dp_git} -C ${PROJECT_SOURCE_DIR} archive --prefix=dp-${PROJECT_VERSION}/
            -o ${PROJECT_BINARY_DIR}/dp-${PROJECT_VERSION}.tar.gz HEAD
    COMMENT "dp-${PROJECT_VERSION}.tar.gz of HEAD" VERBATIM)
endif()

set(DP_PACKAGE_MAINTAINER "dp maintainers <maintainers@dp.invalid>" CACHE STRING "Maintainer of the Debian packages: NAME <ADDRESS>")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME dp)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # each package has its own
set(CPACK_PACKAGE_VENDOR "dp")
set(CPACK_PACKAGE_CONTACT ${DP_PACKAGE_MAINTAINER})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
                                                WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL library development tools)
if(TARGET dp_cuda)
  list(APPEND CPACK_COMPONENTS_ALL cuda)
endif()
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})

set(dp_soname_package libdp${dp_abi})
set(dp_same "${dp_soname_package} (= ${PROJECT_VERSION}-1)")
# dp_debian(component package section summary text): a package of a component. dp_more_overrides: lines for lintian.
macro(dp_debian component package section summary text)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${summary}\n${text}")
  foreach(file copyright changelog.gz changelog.Debian.gz)
    install(FILES ${PROJECT_BINARY_DIR}/debian/${file} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package}
            COMPONENT ${component} EXCLUDE_FROM_ALL) # of packages alone, not of `cmake --install`
  endforeach()
  set(dp_package ${package})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/debian/lintian-overrides.in ${PROJECT_BINARY_DIR}/debian/lintian/${package} @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/debian/lintian/${package} DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides
          COMPONENT ${component} EXCLUDE_FROM_ALL)
endmacro()
set(dp_what "libdp averages gradients across ranks while the backward pass is still
running: a background thread agrees with the other ranks on which tensors are
ready, packs small ones together and has them reduced, over shared memory,
UCX or NCCL.")
# CPack's scripts call ldconfig.
set(dp_more_overrides "${dp_soname_package}: maintscript-calls-ldconfig")
dp_debian(library ${dp_soname_package} libs "collective coordinator runtime for data-parallel training" "${dp_what}")
set(dp_more_overrides)
dp_debian(development libdp-dev libdevel "headers of the collective coordinator runtime libdp"
          "${dp_what}\nThis package has dp.h, its manual pages and what builds need.")
dp_debian(tools dp-tools utils "launcher, timeline tools and GPT-2 trainer of libdp"
          "${dp_what}\nThis package has the launcher dprun, dptrace for timelines, the benchmark\ndpbench and the trainer gpt2.")
# The plug-ins are opened by their names, and look for CUDA where it was.
set(dp_more_overrides "dp-cuda: sharedobject-in-library-directory-missing-soname\ndp-cuda: custom-library-search-path")
dp_debian(cuda dp-cuda libs "CUDA and NCCL plug-ins of libdp and its GPT-2 trainer"
          "${dp_what}\nThis package lets libdp and gpt2 use NVIDIA GPUs. CUDA and NCCL, which are\nnot part of Debian, have to be installed beside it.")
file(WRITE ${PROJECT_BINARY_DIR}/debian/shlibs "libdp ${dp_abi} ${dp_soname_package} (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/shlibs
                                               ${PROJECT_SOURCE_DIR}/cmake/debian/triggers)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${dp_same}")
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "${dp_same}")
# dpkg-shlibdeps knows packages of Debian alone.
set(CPACK_DEBIAN_CUDA_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "${dp_same}, libc6, libstdc++6")

file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/debian)
configure_file(${PROJECT_SOURCE_DIR}/cmake/debian/copyright ${PROJECT_BINARY_DIR}/debian/copyright COPYONLY)
string(TIMESTAMP dp_date "%a, %d %b %Y %H:%M:%S +0000" UTC)
configure_file(${PROJECT_SOURCE_DIR}/cmake/debian/changelog.in ${PROJECT_BINARY_DIR}/debian/changelog.Debian @ONLY)
configure_file(${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_BINARY_DIR}/debian/changelog COPYONLY)
execute_process(COMMAND gzip -9nf changelog changelog.Debian WORKING_DIRECTORY ${PROJECT_BINARY_DIR}/debian
                COMMAND_ERROR_IS_FATAL ANY)
include(CPack)
