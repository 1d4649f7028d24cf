# Checks what the package says about a torch that does not match. Included by run.cmake.

# configure_with(torch_dir expected_text [arguments...]): configures the project and looks for the
# text in what CMake prints; sets `code`.
function(configure_with torch_dir expected)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S "${CMAKE_CURRENT_LIST_DIR}/project" -B "${WORK_DIR}/checks" -G Ninja
            -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix
            -DTorch_DIR=${torch_dir} ${ARGN}
    RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")  # CMake wraps its messages
  string(FIND "${output}" "${expected}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "expected '${expected}', got (${code}): ${output}")
  endif()
  set(code "${code}" PARENT_SCOPE)
endfunction()

# Makes a Torch package of this version, without libraries.
function(make_torch version)
  file(WRITE "${WORK_DIR}/torch-${version}/TorchConfigVersion.cmake"
       "set(PACKAGE_VERSION ${version})\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
  file(WRITE "${WORK_DIR}/torch-${version}/TorchConfig.cmake"
       "add_library(torch INTERFACE IMPORTED)\nadd_library(torch_cuda INTERFACE IMPORTED)\n")
endfunction()

make_torch(1.2.3)
configure_with("${WORK_DIR}/torch-1.2.3"
  "built with torch ${TORCH_VERSION}, but CMake found torch 1.2.3")
if(NOT code)
  message(FATAL_ERROR "a torch of another version is accepted")
endif()

string(REGEX MATCH "^[0-9]+\\.[0-9]+" series "${TORCH_VERSION}")
make_torch(${series}.999)
configure_with("${WORK_DIR}/torch-${series}.999" "Patch versions mostly work together")
if(code)
  message(FATAL_ERROR "a torch of another patch version is refused")
endif()

configure_with("${TORCH_DIR}" "selects the old C++ ABI"
  -DCMAKE_CXX_FLAGS=-D_GLIBCXX_USE_CXX11_ABI=0)
if(NOT code)
  message(FATAL_ERROR "the old C++ ABI is accepted")
endif()
