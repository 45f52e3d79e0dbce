# What a prefix gets: the header, the library, the programs with their manual pages and completions, and the two
# ways other builds find the library: pkg-config and find_package(dp). A component is a Debian package (DpDebian.cmake).
include(CMakePackageConfigHelpers)

install(TARGETS dp EXPORT dp-targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development)
install(FILES ${PROJECT_SOURCE_DIR}/include/dp.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/link/completion)
install(TARGETS dprun dptrace RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
set(dp_programs dprun dptrace)
if(DP_EXAMPLES)
  install(TARGETS dpbench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
  # The trainer opens its CUDA plug-in from the folder in which it lies itself.
  set(dp_private_dir ${CMAKE_INSTALL_LIBDIR}/dp)
  install(TARGETS gpt2 RUNTIME DESTINATION ${dp_private_dir} COMPONENT tools)
  file(RELATIVE_PATH dp_private_from_bin /${CMAKE_INSTALL_BINDIR} /${dp_private_dir})
  file(CREATE_LINK ${dp_private_from_bin}/gpt2 ${PROJECT_BINARY_DIR}/link/gpt2 SYMBOLIC)
  install(FILES ${PROJECT_BINARY_DIR}/link/gpt2 DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
  if(TARGET gpt2_cuda)
    install(TARGETS gpt2_cuda LIBRARY DESTINATION ${dp_private_dir} COMPONENT cuda)
  endif()
  list(APPEND dp_programs dpbench gpt2)
endif()

set(dp_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dp)
install(EXPORT dp-targets NAMESPACE dp:: FILE dp-config.cmake DESTINATION ${dp_package_dir} COMPONENT development)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/dp-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dp-config-version.cmake DESTINATION ${dp_package_dir} COMPONENT development)
# Relative to the file itself, so that the prefix can be moved, or chosen at install time.
file(RELATIVE_PATH dp_prefix_from_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/dp.pc.in ${PROJECT_BINARY_DIR}/dp.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/dp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

# Completions ask the program itself: its --help has every option.
install(FILES ${PROJECT_SOURCE_DIR}/cmake/completion/dprun.bash
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME dprun COMPONENT tools)
install(FILES ${PROJECT_SOURCE_DIR}/cmake/completion/_dprun
        DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT tools)
foreach(program IN LISTS dp_programs)
  if(NOT program STREQUAL "dprun")
    file(CREATE_LINK dprun ${PROJECT_BINARY_DIR}/link/completion/${program} SYMBOLIC)
    install(FILES ${PROJECT_BINARY_DIR}/link/completion/${program}
            DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT tools)
  endif()
endforeach()

# Manual pages: of the programs from their --help, of dp.h from its comments. Programs of a sanitizer's build are
# not for installing, and those for another machine cannot be asked.
if(DP_SANITIZE OR CMAKE_CROSSCOMPILING)
  return()
endif()
set(dp_about_dprun "starts the ranks of a job on one machine or several")
set(dp_about_dptrace "merges, reports and shows what the ranks of a job recorded")
set(dp_about_dpbench "measures collectives through libdp")
set(dp_about_gpt2 "trains a GPT-2, alone or data-parallel through libdp")
set(dp_man ${PROJECT_BINARY_DIR}/man)
set(dp_pages)
foreach(program IN LISTS dp_programs)
  set(page ${dp_man}/man1/${program}.1.gz)
  add_custom_command(
    OUTPUT ${page}
    COMMAND sh ${PROJECT_SOURCE_DIR}/cmake/man/program.sh $<TARGET_FILE:${program}> ${program} ${PROJECT_VERSION}
            ${dp_about_${program}} ${dp_man}/man1
    DEPENDS ${program} ${PROJECT_SOURCE_DIR}/cmake/man/program.sh ${PROJECT_SOURCE_DIR}/cmake/man/program.awk
    COMMENT "Manual page of ${program}" VERBATIM)
  list(APPEND dp_pages ${page})
endforeach()
add_custom_command(
  OUTPUT ${dp_man}/man3.made
  COMMAND sh ${PROJECT_SOURCE_DIR}/cmake/man/header.sh ${PROJECT_SOURCE_DIR}/include/dp.h ${PROJECT_VERSION} ${dp_man}/man3
  COMMAND ${CMAKE_COMMAND} -E touch ${dp_man}/man3.made
  DEPENDS ${PROJECT_SOURCE_DIR}/include/dp.h ${PROJECT_SOURCE_DIR}/cmake/man/header.sh
          ${PROJECT_SOURCE_DIR}/cmake/man/header.awk
  COMMENT "Manual pages of dp.h" VERBATIM)
add_custom_target(man ALL DEPENDS ${dp_pages} ${dp_man}/man3.made)
install(DIRECTORY ${dp_man}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT tools)
install(DIRECTORY ${dp_man}/man3 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT development)
