# Compiles the sources of a target by folder: CMake joins the files of a folder into one unit, and the
# compiler reads LibTorch's headers once for each folder, not for each file. Generated files and
# files with options of their own are compiled alone.
#
# Measured with GCC 12 on a busy machine, in processor time: the program takes about 10 minutes, in
# place of about 22. The largest units measured take 1.5 GB of memory. After a change
# of one file the whole folder is compiled again: in 26 s where the file alone takes 5 s, for example.
# Builds for development (other build types) therefore compile each file alone, and so check that
# each includes what it uses.
include(CMakeDependentOption)
cmake_dependent_option(REDCO_UNITY "Compile the files of a folder together" ON
  "CMAKE_BUILD_TYPE STREQUAL Release" OFF)

function(compile_by_folder target)
  if(NOT REDCO_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE path)
    cmake_path(GET path PARENT_PATH folder)
    if(NOT folder MATCHES "^\\.\\.")
      string(REPLACE "/" "_" group "${target}_${folder}")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # GCC takes the files of a unit for headers, and warns about anonymous namespaces in those.
    set_target_properties(${target} PROPERTIES UNITY_BUILD_CODE_BEFORE_INCLUDE
      "#pragma GCC diagnostic ignored \"-Wsubobject-linkage\"")
  endif()
endfunction()
