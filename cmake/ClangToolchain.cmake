# The compiler of the preset fuzz: CXX if it is set, else the first clang++ found. scripts/setup
# looks in the same order.

if(NOT DEFINED ENV{CXX})
  find_program(CLANG_PROGRAM REQUIRED
    NAMES clang++ clang++-20 clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14)
  set(CMAKE_CXX_COMPILER ${CLANG_PROGRAM})
endif()
