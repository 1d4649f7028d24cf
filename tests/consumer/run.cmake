# Builds and runs the consumer project: cmake -DWAY=installed|subdirectory -D... -P run.cmake

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(code)
    message(FATAL_ERROR "failed (${code}): ${ARGV}\n${output}")
  endif()
endfunction()

# Own folders, made anew: nothing of an earlier run may help.
file(REMOVE_RECURSE "${WORK_DIR}")
set(arguments -G Ninja -DTorch_DIR=${TORCH_DIR} -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_BUILD_TYPE=Release)
if(WAY STREQUAL "installed")
  run(${CMAKE_COMMAND} --install "${BUILD_DIR}" --prefix "${WORK_DIR}/prefix")
  list(APPEND arguments -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix)
else()
  # The sources are compiled already; with ccache that need not happen twice.
  find_program(CCACHE_PROGRAM ccache)
  if(CCACHE_PROGRAM)
    list(APPEND arguments -DCMAKE_CXX_COMPILER_LAUNCHER=${CCACHE_PROGRAM})
  endif()
  list(APPEND arguments -DACCELERANT_SOURCE_DIR=${SOURCE_DIR})
endif()
run(${CMAKE_COMMAND} -S "${CMAKE_CURRENT_LIST_DIR}" -B "${WORK_DIR}/build" ${arguments})
run(${CMAKE_COMMAND} --build "${WORK_DIR}/build")
run("${WORK_DIR}/build/consumer")
