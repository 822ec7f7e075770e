# Finds LibTorch by its files, not by its own TorchConfig.cmake: that one insists on a CUDA
# toolkit whenever LibTorch was built with CUDA, and a CPU program needs none.
#
# Reads CMAKE_PREFIX_PATH, else the folder that ./bootstrap unpacks. Defines the target
# LibTorch::LibTorch, LibTorch_VERSION and LibTorch_CUDA_LIBRARIES.
set(_cache "$ENV{REDCO_CACHE}")
if(NOT _cache)
  set(_cache "$ENV{XDG_CACHE_HOME}")
  if(NOT _cache)
    set(_cache "$ENV{HOME}/.cache")
  endif()
  set(_cache "${_cache}/redco")
endif()
set(_hints ${_cache}/libtorch-2.11.0/torch)

# What was found is kept: search again when another place is named, or it is there no more.
if((DEFINED CACHE{LibTorch_PREFIX_PATH} AND NOT "${LibTorch_PREFIX_PATH}" STREQUAL "${CMAKE_PREFIX_PATH}")
    OR NOT EXISTS "${LibTorch_INCLUDE_DIR}")
  foreach(_part INCLUDE_DIR CPU_LIBRARY C10_LIBRARY)
    unset(LibTorch_${_part} CACHE)
  endforeach()
endif()
set(LibTorch_PREFIX_PATH "${CMAKE_PREFIX_PATH}" CACHE INTERNAL "Where LibTorch was searched")

# The libraries are those beside the headers: two versions must not mix.
# PyTorch itself names its folder share/cmake (torch.utils.cmake_prefix_path).
set(_prefixes ${CMAKE_PREFIX_PATH})
list(TRANSFORM _prefixes REPLACE "/share/cmake/?$" "")
find_path(LibTorch_INCLUDE_DIR ATen/core/dispatch/Dispatcher.h
  HINTS ${_prefixes} ${_hints} PATH_SUFFIXES include)
get_filename_component(_root "${LibTorch_INCLUDE_DIR}/.." ABSOLUTE)
foreach(_name torch_cpu:CPU c10:C10)
  string(REGEX MATCH "(.*):(.*)" _match ${_name})
  find_library(LibTorch_${CMAKE_MATCH_2}_LIBRARY ${CMAKE_MATCH_1}
    PATHS ${_root} PATH_SUFFIXES lib NO_DEFAULT_PATH)
endforeach()

# A folder that was named and is a LibTorch in part is a mistake, not one to pass over.
set(_incomplete "")
foreach(_prefix ${_prefixes})
  set(_missing "")
  set(_files include/ATen/core/dispatch/Dispatcher.h lib/libtorch_cpu.so lib/libc10.so)
  foreach(_file ${_files})
    if(NOT EXISTS ${_prefix}/${_file})
      list(APPEND _missing ${_file})
    endif()
  endforeach()
  if(_missing AND NOT "${_missing}" STREQUAL "${_files}")
    list(JOIN _missing ", " _missing)
    string(APPEND _incomplete "${_prefix} is no whole LibTorch: it lacks ${_missing}. ")
  endif()
endforeach()
if(_incomplete)
  set(LibTorch_INCLUDE_DIR LibTorch_INCLUDE_DIR-NOTFOUND)
endif()

if(LibTorch_INCLUDE_DIR)
  foreach(_file torch/headeronly/version.h torch/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS ${LibTorch_INCLUDE_DIR}/${_file})
      file(STRINGS ${LibTorch_INCLUDE_DIR}/${_file} _lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      string(REGEX REPLACE "[^0-9;]" "" _numbers "${_lines}")
      string(REPLACE ";" "." LibTorch_VERSION "${_numbers}")
      if(LibTorch_VERSION)
        break()
      endif()
    endif()
  endforeach()
endif()

# A LibTorch for CPUs alone has none of these.
set(LibTorch_CUDA_LIBRARIES "")
foreach(_name torch_cuda c10_cuda)
  if(EXISTS ${_root}/lib/lib${_name}.so)
    list(APPEND LibTorch_CUDA_LIBRARIES ${_root}/lib/lib${_name}.so)
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION HANDLE_VERSION_RANGE
  REASON_FAILURE_MESSAGE
    "${_incomplete}Run ./bootstrap to fetch LibTorch 2.11.0, or pass -DCMAKE_PREFIX_PATH=/path/to/libtorch.")

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION ${LibTorch_C10_LIBRARY})
  add_library(LibTorch::LibTorch SHARED IMPORTED)
  set_target_properties(LibTorch::LibTorch PROPERTIES
    IMPORTED_LOCATION ${LibTorch_CPU_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES
      "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES LibTorch::c10)
  # LibTorch finds its own CUDA run-time libraries beside it at load time.
  target_link_options(LibTorch::LibTorch INTERFACE -Wl,--allow-shlib-undefined)
endif()
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY)
