# A room is a folder of src/ and an object library of its own (docs/architecture.md has the table of
# rooms). The rooms without torch become accelerant::core, those with it accelerant::accelerant.
#
# The files of a room are joined into one unit (ACCELERANT_JOIN_UNITS). Most of the time of a unit
# goes into torch's headers, so the library compiles in a quarter of the time. Functions in
# anonymous namespaces must therefore have different names within a room. The preset dev compiles
# file by file, so that a change recompiles only one file.

# accelerant_room(name [TORCH] SOURCES sources...)
function(accelerant_room name)
  cmake_parse_arguments(PARSE_ARGV 1 room "TORCH" "" "SOURCES")
  set(target accelerant_room_${name})
  add_library(${target} OBJECT ${room_SOURCES})
  accelerant_target(${target})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(${target} PRIVATE nlohmann_json::nlohmann_json)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${ACCELERANT_JOIN_UNITS} UNITY_BUILD_BATCH_SIZE 0)
  if(room_TORCH)
    target_include_directories(${target} SYSTEM PRIVATE "${PROJECT_SOURCE_DIR}/src/compat/gloo_headers")
    target_link_libraries(${target} PRIVATE torch)
    if(ACCELERANT_WITH_CUDA)
      target_compile_definitions(${target} PRIVATE ACCELERANT_WITH_CUDA)
    endif()
    if(ACCELERANT_WITH_NCCL)
      target_compile_definitions(${target} PRIVATE ACCELERANT_WITH_NCCL)
      target_include_directories(${target} SYSTEM PRIVATE ${NCCL_INCLUDE_DIR})
    endif()
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # g++ 13 wrongly warns that std::vector<bool> overruns inside torch's own Function::apply().
      target_compile_options(${target} PRIVATE
        $<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-restrict>)
    endif()
    set_property(GLOBAL APPEND PROPERTY ACCELERANT_TORCH_ROOMS ${target})
  else()
    set_property(GLOBAL APPEND PROPERTY ACCELERANT_PLAIN_ROOMS ${target})
  endif()
endfunction()

# accelerant_library(name property): a static library of the rooms that the global property lists.
function(accelerant_library name property)
  get_property(rooms GLOBAL PROPERTY ${property})
  list(TRANSFORM rooms REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
  add_library(${name} STATIC ${objects})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                            $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  if(ACCELERANT_SANITIZE)
    target_link_options(${name} PUBLIC -fsanitize=${ACCELERANT_SANITIZE})
  endif()
endfunction()
