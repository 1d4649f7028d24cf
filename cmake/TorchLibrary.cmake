# Finds libtorch and tells whether our CUDA kernels can be built with it.
#
# Torch_DIR and CMAKE_PREFIX_PATH count first; without either, the active Python's torch is used.
# Afterwards: target `torch`, and ACCELERANT_WITH_CUDA as a plain variable.

if(NOT Torch_DIR AND NOT CMAKE_PREFIX_PATH AND NOT DEFINED ENV{CMAKE_PREFIX_PATH})
  find_program(ACTIVE_PYTHON NAMES python3 python)
  if(ACTIVE_PYTHON)
    execute_process(
      COMMAND ${ACTIVE_PYTHON} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE python_torch OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(python_torch)
      set(Torch_DIR "${python_torch}/share/cmake/Torch" CACHE PATH "Where TorchConfig.cmake lies")
    endif()
  endif()
endif()

# TorchConfig.cmake warns about a static library (kineto) that shared builds do not need.
set(saved_log_level "${CMAKE_MESSAGE_LOG_LEVEL}")
set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
find_package(Torch QUIET)
set(CMAKE_MESSAGE_LOG_LEVEL "${saved_log_level}")
if(NOT Torch_FOUND)
  message(FATAL_ERROR
    "Accelerant needs libtorch 2.11 or newer and found none. Pass -DTorch_DIR=<torch>/share/cmake/Torch "
    "or -DCMAKE_PREFIX_PATH=<torch>, or run scripts/setup, which installs one.")
endif()
message(STATUS "libtorch: ${TORCH_INSTALL_PREFIX}")

set(ACCELERANT_WITH_CUDA OFF)
if(NOT ACCELERANT_CUDA STREQUAL "OFF" AND TARGET torch_cuda)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    set(ACCELERANT_WITH_CUDA ON)
  endif()
endif()
if(ACCELERANT_CUDA STREQUAL "ON" AND NOT ACCELERANT_WITH_CUDA)
  message(FATAL_ERROR "ACCELERANT_CUDA=ON needs a libtorch built with CUDA and nvcc on the PATH; "
                      "pass -DACCELERANT_CUDA=AUTO to build without CUDA kernels.")
endif()
message(STATUS "CUDA kernels: ${ACCELERANT_WITH_CUDA}")
