# Finds libtorch, and whether our CUDA kernels can be built with it.
#
# Looks at Torch_DIR and CMAKE_PREFIX_PATH; if neither is set, the active Python's torch is used.
# Defines the target `torch`, and the variables ACCELERANT_WITH_CUDA, ACCELERANT_WITH_NCCL and
# ACCELERANT_WITH_OPENMP.

if(NOT Torch_DIR AND NOT CMAKE_PREFIX_PATH AND NOT DEFINED ENV{CMAKE_PREFIX_PATH})
  find_program(ACTIVE_PYTHON NAMES python3 python)
  if(ACTIVE_PYTHON)
    execute_process(
      COMMAND ${ACTIVE_PYTHON} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE python_torch OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(python_torch)
      set(Torch_DIR "${python_torch}/share/cmake/Torch" CACHE PATH "The folder of TorchConfig.cmake")
    endif()
  endif()
endif()

# TorchConfig.cmake warns about a static library (kineto) that shared builds do not need.
set(user_cuda_architectures "${CMAKE_CUDA_ARCHITECTURES}")
set(saved_log_level "${CMAKE_MESSAGE_LOG_LEVEL}")
set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
find_package(Torch QUIET)
set(CMAKE_MESSAGE_LOG_LEVEL "${saved_log_level}")
# With CUDA, TorchConfig.cmake adds architecture flags, some of which newer compilers refuse. Our
# kernels have their own, so go back to the user's flags (the cache entry).
unset(CMAKE_CUDA_FLAGS)
if(NOT Torch_FOUND)
  message(FATAL_ERROR
    "Accelerant needs libtorch 2.11 or newer, and found none. Pass -DTorch_DIR=<torch>/share/cmake/Torch "
    "or -DCMAKE_PREFIX_PATH=<torch>, or run scripts/setup, which installs one.")
endif()
message(STATUS "libtorch: ${TORCH_INSTALL_PREFIX}")

set(ACCELERANT_WITH_CUDA OFF)
if(ACCELERANT_CUDA AND TARGET torch_cuda)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    set(ACCELERANT_WITH_CUDA ON)
  endif()
endif()
if(ACCELERANT_CUDA AND NOT ACCELERANT_CUDA STREQUAL "AUTO" AND NOT ACCELERANT_WITH_CUDA)
  message(FATAL_ERROR "ACCELERANT_CUDA=ON needs a libtorch built with CUDA and nvcc on the PATH; "
                      "pass -DACCELERANT_CUDA=AUTO to build without CUDA kernels.")
endif()
if(ACCELERANT_WITH_CUDA)
  # all-major of CUDA 12 would include devices that the kernels do not support.
  set(default_architectures "70;80;90")
  if(user_cuda_architectures)
    set(default_architectures "${user_cuda_architectures}")
  elseif(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    set(default_architectures all-major)
  endif()
  set(ACCELERANT_CUDA_ARCHITECTURES "${default_architectures}" CACHE STRING
      "Architectures of the CUDA kernels, as CMAKE_CUDA_ARCHITECTURES takes them")
endif()
message(STATUS "CUDA kernels: ${ACCELERANT_WITH_CUDA}")

# libtorch's NCCL classes hold structures of nccl.h by value, so the header must be of the same NCCL
# that libtorch was built with: prefer the one of its wheel to the system's.
set(ACCELERANT_WITH_NCCL OFF)
if(ACCELERANT_WITH_CUDA)
  cmake_path(GET TORCH_INSTALL_PREFIX PARENT_PATH site_packages)
  find_path(NCCL_INCLUDE_DIR nccl.h
    HINTS "${site_packages}/nvidia/nccl/include" "${site_packages}/nvidia/cu13/include")
  if(NCCL_INCLUDE_DIR)
    set(ACCELERANT_WITH_NCCL ON)
  endif()
endif()
message(STATUS "NCCL: ${ACCELERANT_WITH_NCCL}")

# at::parallel_for is code in torch's headers, and runs in one thread unless it is compiled with
# OpenMP. The runtime of g++ has the same name as libtorch's own, so a program loads only one; that
# of another compiler would be loaded beside it.
set(ACCELERANT_WITH_OPENMP OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND
   NOT ACCELERANT_SANITIZE MATCHES "thread")  # it does not see how the runtime orders threads
  set(ACCELERANT_WITH_OPENMP ON)
endif()
message(STATUS "OpenMP: ${ACCELERANT_WITH_OPENMP}")
