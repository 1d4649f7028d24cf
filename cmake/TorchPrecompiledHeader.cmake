# One precompiled torch/torch.h for every program in the tree (tests, examples, benchmarks).
#
# Compiling torch/torch.h takes about 20 s per unit. Precompiled it takes about 9 s, most of it for
# code that the header makes the compiler generate, so the files of a program are also joined into a
# few units. -O1 is enough for programs that call a library. The library has no precompiled header:
# its sources include only what they need.

add_executable(accelerant_torch_pch "${CMAKE_CURRENT_LIST_DIR}/torch_pch_main.cpp")
accelerant_target(accelerant_torch_pch)
target_link_libraries(accelerant_torch_pch PRIVATE torch)
target_compile_options(accelerant_torch_pch PRIVATE -O1)
target_precompile_headers(accelerant_torch_pch PRIVATE <torch/torch.h>)

# Adds a program that uses torch/torch.h: links Accelerant and uses the precompiled header.
# accelerant_program(name [ALONE] sources...)
# ALONE is for programs that are built without the others: one unit, which compiles faster than the
# precompiled header would.
function(accelerant_program target)
  cmake_parse_arguments(PARSE_ARGV 1 program "ALONE" "" "")
  add_executable(${target} ${program_UNPARSED_ARGUMENTS})
  accelerant_target(${target})
  # g++ 12 wrongly warns of uninitialised values in optionals of torch's own templates.
  target_compile_options(${target} PRIVATE -O1 -Wno-maybe-uninitialized)
  target_link_libraries(${target} PRIVATE accelerant::accelerant)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${ACCELERANT_JOIN_UNITS} UNITY_BUILD_BATCH_SIZE 6)
  if(program_ALONE AND ACCELERANT_JOIN_UNITS)
    set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE 0)
  else()
    target_precompile_headers(${target} REUSE_FROM accelerant_torch_pch)
  endif()
endfunction()
