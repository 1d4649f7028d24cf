# Builds and runs the consumer project: cmake -DWAY=installed|subdirectory|compiled -D... -P run.cmake

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output
                  WORKING_DIRECTORY "${work}")
  if(code)
    message(FATAL_ERROR "failed (${code}): ${ARGV}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# Start with empty folders, so that nothing from an earlier run can help.
file(REMOVE_RECURSE "${WORK_DIR}")
set(work "${WORK_DIR}/build")
file(MAKE_DIRECTORY "${work}")
set(arguments -G Ninja -DTorch_DIR=${TORCH_DIR} -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_BUILD_TYPE=Release)
if(WAY STREQUAL "installed")
  run(${CMAKE_COMMAND} --install "${BUILD_DIR}" --prefix "${WORK_DIR}/prefix")
  list(APPEND arguments -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix)
  include("${CMAKE_CURRENT_LIST_DIR}/installed_command.cmake")
  include("${CMAKE_CURRENT_LIST_DIR}/package_checks.cmake")
else()
  list(APPEND arguments -DACCELERANT_SOURCE_DIR=${SOURCE_DIR})
endif()
run(${CMAKE_COMMAND} -S "${CMAKE_CURRENT_LIST_DIR}/project" -B "${work}" ${arguments})
if(NOT WAY STREQUAL "subdirectory")
  run(${CMAKE_COMMAND} --build "${work}")
else()
  # Compiles the program and links it with the project's own command, but with the archives that this build
  # made from the same sources. This avoids compiling the library again.
  run(${CMAKE_COMMAND} --build "${work}" --target CMakeFiles/consumer.dir/main.cpp.o)
  file(GLOB archives "${BUILD_DIR}/src/*.a")
  file(COPY ${archives} DESTINATION "${work}/accelerant/src")
  run(ninja -t commands consumer)
  string(STRIP "${output}" output)
  string(REGEX REPLACE ".*\n" "" link "${output}")
  run(sh -c "${link}")
endif()
run("${work}/consumer")
