# `cmake --install` installs headers, libraries, the package files for find_package(accelerant) and
# the command.

include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/accelerant")
install(TARGETS accelerant accelerant_core EXPORT accelerantTargets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
if(ACCELERANT_BUILD_CLI)
  # The installed helpers load the libtorch of this build. INSTALL_RPATH_USE_LINK_PATH does not do
  # it: it leaves out libraries in the source tree, where scripts/setup puts .venv.
  set(helper_rpath "${TORCH_INSTALL_PREFIX}/lib")
  if(ACCELERANT_WITH_CUDA)
    # The CUDA libraries of torch's wheels, and those of a toolkit.
    cmake_path(GET TORCH_INSTALL_PREFIX PARENT_PATH site_packages)
    file(GLOB cuda_library_dirs "${site_packages}/nvidia/*/lib")
    list(APPEND helper_rpath ${cuda_library_dirs})
    set_target_properties(accelerant-describe accelerant-selftest PROPERTIES
      INSTALL_RPATH_USE_LINK_PATH ON)
  endif()
  set_target_properties(accelerant-describe accelerant-selftest PROPERTIES
    INSTALL_RPATH "${helper_rpath}")
  install(TARGETS accelerant_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  install(TARGETS accelerant-describe accelerant-selftest
          RUNTIME DESTINATION "${CMAKE_INSTALL_LIBEXECDIR}/accelerant")
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/accelerant" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT accelerantTargets NAMESPACE accelerant:: DESTINATION "${package_dir}")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/accelerantConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/accelerantConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/accelerantConfigVersion.cmake"
  COMPATIBILITY SameMajorVersion)
install(FILES "${PROJECT_BINARY_DIR}/accelerantConfig.cmake"
              "${PROJECT_BINARY_DIR}/accelerantConfigVersion.cmake"
        DESTINATION "${package_dir}")
