# Registers the suites of a GoogleTest program with CTest: one test per suite, named <program>.<suite>.
#
# Loading libtorch takes longer than most tests, so a process for each of them, as gtest_discover_tests() starts,
# would take most of the time of a run. Tests that need a GPU (their names end with /cuda) are a test of their own, which
# CTest counts as skipped where there is none. A suite in which some tests are skipped has passed; the log names them.
#
# As a script, after the program was built, with -D program=... -D name=... -D output=... and perhaps -D label=...:
# writes the file that CTest includes.

if(CMAKE_SCRIPT_MODE_FILE)
  execute_process(COMMAND ${program} --gtest_list_tests OUTPUT_VARIABLE listed RESULT_VARIABLE failure TIMEOUT 60)
  if(failure)
    message(FATAL_ERROR "${program} --gtest_list_tests failed (${failure}):\n${listed}")
  endif()
  set(script "")
  set(suites "")
  # Semicolons and brackets in the comments behind names of parameters would confuse lists.
  string(REGEX REPLACE " +#[^\n]*" "" listed "${listed}")
  string(REPLACE "\n" ";" lines "${listed}")
  foreach(line IN LISTS lines)
    if(line MATCHES "^([^ ]+)\\.$")
      set(suite ${CMAKE_MATCH_1})
      list(APPEND suites ${suite})
      set(on_cuda_${suite} FALSE)
      set(elsewhere_${suite} FALSE)
    elseif(line MATCHES "^ +[^ ]+/cuda$")
      set(on_cuda_${suite} TRUE)
    elseif(line MATCHES "^ +DISABLED_")
      # CTest would count a suite without tests as skipped.
    elseif(line MATCHES "^ +[^ ]+$")
      set(elsewhere_${suite} TRUE)
    endif()
  endforeach()

  set(properties "TIMEOUT 600 SKIP_RETURN_CODE 77")
  if(label)
    string(APPEND properties " LABELS ${label}")
  endif()
  macro(register test filter)
    string(APPEND script "add_test([==[${test}]==] [==[${program}]==] [==[--gtest_filter=${filter}]==])\n"
      "set_tests_properties([==[${test}]==] PROPERTIES ${properties})\n")
  endmacro()

  foreach(suite IN LISTS suites)
    if(elsewhere_${suite})
      register("${name}.${suite}" "${suite}.*-${suite}.*/cuda")
    endif()
    if(on_cuda_${suite})
      register("${name}.${suite}.cuda" "${suite}.*/cuda")
    endif()
  endforeach()
  file(WRITE "${output}" "${script}")
  return()
endif()

set(ACCELERANT_DISCOVER_SUITES "${CMAKE_CURRENT_LIST_FILE}")

# accelerant_discover_suites(target [LABEL label])
function(accelerant_discover_suites target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL" "")
  set(label "")
  if(arg_LABEL)
    set(label -D label=${arg_LABEL})
  endif()
  set(output "${CMAKE_CURRENT_BINARY_DIR}/${target}_suites.cmake")
  set(include "${CMAKE_CURRENT_BINARY_DIR}/${target}_include.cmake")
  add_custom_command(TARGET ${target} POST_BUILD
    COMMAND ${CMAKE_COMMAND} -D program=$<TARGET_FILE:${target}> -D name=${target} -D output=${output} ${label}
            -P ${ACCELERANT_DISCOVER_SUITES}
    BYPRODUCTS ${output}
    VERBATIM)
  # A program that was not built is a test that fails, not one that is missing.
  file(WRITE "${include}" "if(EXISTS [==[${output}]==])\n  include([==[${output}]==])\n"
    "else()\n  add_test(${target}_NOT_BUILT ${target}_NOT_BUILT)\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${include}")
endfunction()
