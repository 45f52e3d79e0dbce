# What a prefix gets: the header, the library, dprun, dptrace and the examples' programs, and the two
# ways other builds find the library: pkg-config and find_package(dp).
include(CMakePackageConfigHelpers)

install(TARGETS dp EXPORT dp-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${PROJECT_SOURCE_DIR}/include/dp.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS dprun dptrace RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(DP_EXAMPLES)
  install(TARGETS dpbench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

set(dp_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dp)
install(EXPORT dp-targets NAMESPACE dp:: FILE dp-config.cmake DESTINATION ${dp_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/dp-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dp-config-version.cmake DESTINATION ${dp_package_dir})
# Relative to the file itself, so that the prefix can be moved, or chosen at install time.
file(RELATIVE_PATH dp_prefix_from_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/dp.pc.in ${PROJECT_BINARY_DIR}/dp.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/dp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
