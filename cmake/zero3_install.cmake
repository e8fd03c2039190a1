include(CMakePackageConfigHelpers)
get_property(modules GLOBAL PROPERTY zero3_modules)
install(TARGETS zero3 ${modules} EXPORT zero3Targets FILE_SET HEADERS)
if(TARGET zero3_program)
  install(TARGETS zero3_program)
endif()
set(where ${CMAKE_INSTALL_LIBDIR}/cmake/zero3)
install(EXPORT zero3Targets NAMESPACE zero3:: DESTINATION ${where})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/zero3-config.cmake.in
  ${PROJECT_BINARY_DIR}/zero3-config.cmake INSTALL_DESTINATION ${where})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/zero3-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/zero3-config.cmake ${PROJECT_BINARY_DIR}/zero3-config-version.cmake
  DESTINATION ${where})
