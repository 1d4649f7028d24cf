# Builds and runs the consumer project: cmake -DWAY=installed|subdirectory|compiled -D... -P run.cmake

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output
                  WORKING_DIRECTORY "${work}")
  if(code)
    message(FATAL_ERROR "failed (${code}): ${ARGV}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# Own folders, made anew: nothing of an earlier run may help.
file(REMOVE_RECURSE "${WORK_DIR}")
set(work "${WORK_DIR}/build")
file(MAKE_DIRECTORY "${work}")
set(arguments -G Ninja -DTorch_DIR=${TORCH_DIR} -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_BUILD_TYPE=Release)
if(WAY STREQUAL "installed")
  run(${CMAKE_COMMAND} --install "${BUILD_DIR}" --prefix "${WORK_DIR}/prefix")
  list(APPEND arguments -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix)
else()
  list(APPEND arguments -DACCELERANT_SOURCE_DIR=${SOURCE_DIR})
endif()
run(${CMAKE_COMMAND} -S "${CMAKE_CURRENT_LIST_DIR}/project" -B "${work}" ${arguments})
if(NOT WAY STREQUAL "subdirectory")
  run(${CMAKE_COMMAND} --build "${work}")
else()
  # Compiles the program and links it by the project's own command. Of the library its archives are taken as this
  # build has made them of the same sources: it compiles once.
  run(${CMAKE_COMMAND} --build "${work}" --target CMakeFiles/consumer.dir/main.cpp.o)
  file(GLOB archives "${BUILD_DIR}/src/*.a")
  file(COPY ${archives} DESTINATION "${work}/accelerant/src")
  run(ninja -t commands consumer)
  string(STRIP "${output}" output)
  string(REGEX REPLACE ".*\n" "" link "${output}")
  run(sh -c "${link}")
endif()
run("${work}/consumer")
