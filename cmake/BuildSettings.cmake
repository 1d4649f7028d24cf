# Compiler settings of our own targets. A project that uses Accelerant by add_subdirectory keeps its
# own: nothing here is global unless Accelerant is the top-level project.

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
  endif()
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

  # Both only make builds faster, so each is used if it is found.
  find_program(CCACHE_PROGRAM ccache)
  if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # ccache only caches precompiled headers if it may ignore their time stamps.
    set(CMAKE_CXX_COMPILER_LAUNCHER
        ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
        ${CCACHE_PROGRAM})
  endif()
  find_program(MOLD_PROGRAM mold)
  if(MOLD_PROGRAM AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
    add_link_options(-fuse-ld=mold)
  endif()
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "Accelerant needs g++ 12 or newer, got ${CMAKE_CXX_COMPILER_VERSION}. "
                      "Install a newer one and pass, for example, -DCMAKE_CXX_COMPILER=g++-12.")
endif()

# Settings for every target of ours: accelerant_target(name).
function(accelerant_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wconversion>)
  if(PROJECT_IS_TOP_LEVEL)
    # Not in other people's builds: their compiler may have warnings that ours has not.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # g++ 12 warns of impossible overlaps inside std::string (its bug 105651).
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
  endif()
  if(ACCELERANT_SANITIZE)
    # With sanitizers, g++ 12 warns that members of empty optionals are used uninitialised.
    target_compile_options(${target} PRIVATE -fsanitize=${ACCELERANT_SANITIZE}
                           -fno-omit-frame-pointer -fno-sanitize-recover=all -Wno-maybe-uninitialized)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND ACCELERANT_SANITIZE MATCHES "thread")
      target_compile_options(${target} PRIVATE -Wno-tsan)  # it does not support fences
    endif()
    target_link_options(${target} PUBLIC -fsanitize=${ACCELERANT_SANITIZE})
  endif()
endfunction()
