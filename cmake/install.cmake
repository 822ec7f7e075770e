# `cmake --install`, in components:
#   Runtime               what programs need
#   CUDA                  the plug-in for several GPUs
#   Development           what builds need; find_package(redco) gives redco::engine and redco::lua
#   LibTorch, LibTorchDevelopment
#                         copies of LibTorch's libraries for CPUs and of its headers, on request
# An installation may be moved: its files find each other by relative paths, and LibTorch as
# lib/redco/torch, which is a link to the one of this build or those copies.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/redco)
set(torch_dir ${CMAKE_INSTALL_LIBDIR}/redco/torch)
file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
cmake_path(GET LibTorch_CPU_LIBRARY PARENT_PATH torch_root)
cmake_path(GET torch_root PARENT_PATH torch_root)

# --- Runtime, CUDA -------------------------------------------------------------------------------

set_target_properties(redco redco_lua PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/redco/torch/lib")
install(TARGETS redco redco_lua EXPORT redcoTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT Runtime NAMELINK_COMPONENT Development)
if(TARGET redco_cuda)  # redco loads it from its own folder
  set_target_properties(redco_cuda PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/redco/torch/lib")
  install(TARGETS redco_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT CUDA)
endif()
set_target_properties(redco_lua_main PROPERTIES
  INSTALL_RPATH "$ORIGIN/${bin_to_lib};$ORIGIN/${bin_to_lib}/redco/torch/lib")
install(TARGETS redco_lua_main RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT Runtime)
set_target_properties(redco_sandbox PROPERTIES INSTALL_RPATH "$ORIGIN/..;$ORIGIN/torch/lib")
install(TARGETS redco_sandbox
  RUNTIME DESTINATION ${CMAKE_INSTALL_LIBDIR}/redco COMPONENT Runtime)

# `require "redco"` from any LuaJIT.
set(REDCO_LUA_DIR ${CMAKE_INSTALL_LIBDIR}/lua/5.1 CACHE STRING "Where LuaJIT looks for modules")
if(IS_ABSOLUTE ${REDCO_LUA_DIR})
  set(module_to_lib ${CMAKE_INSTALL_FULL_LIBDIR})
else()
  cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_LIBDIR
    BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}/${REDCO_LUA_DIR} OUTPUT_VARIABLE module_to_lib)
  string(PREPEND module_to_lib $ORIGIN/)
endif()
set_target_properties(redco_module PROPERTIES
  INSTALL_RPATH "${module_to_lib};${module_to_lib}/redco/torch/lib")
install(TARGETS redco_module LIBRARY DESTINATION ${REDCO_LUA_DIR} COMPONENT Runtime)

install(CODE "
  set(link \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${torch_dir}\")
  if(IS_SYMLINK \"\${link}\" OR NOT EXISTS \"\${link}\")
    message(STATUS \"Installing: \${link} -> ${torch_root}\")
    cmake_path(GET link PARENT_PATH folder)
    file(MAKE_DIRECTORY \"\${folder}\")
    file(CREATE_LINK \"${torch_root}\" \"\${link}\" SYMBOLIC)
  endif()" COMPONENT Runtime)

install(FILES ${manual}/redco-lua.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT Runtime)
install(FILES ${manual}/redco-lua.bash RENAME redco-lua
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT Runtime)
install(FILES ${manual}/redco-lua.zsh RENAME _redco-lua
  DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT Runtime)
install(FILES ${manual}/redco-lua.fish
  DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT Runtime)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT Runtime)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DATADIR}/redco COMPONENT Runtime
  PATTERN workdir EXCLUDE)

# --- Development ---------------------------------------------------------------------------------

install(DIRECTORY engine/include/redco bindings/include/redco
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT Development
  FILES_MATCHING PATTERN *.h PATTERN detail EXCLUDE)
install(FILES ${PROJECT_BINARY_DIR}/include/redco/version.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/redco COMPONENT Development)

configure_package_config_file(cmake/redcoConfig.cmake.in ${PROJECT_BINARY_DIR}/redcoConfig.cmake
  INSTALL_DESTINATION ${package_dir} PATH_VARS torch_dir NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/redcoConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(EXPORT redcoTargets NAMESPACE redco:: DESTINATION ${package_dir} COMPONENT Development)
install(FILES
  ${PROJECT_BINARY_DIR}/redcoConfig.cmake ${PROJECT_BINARY_DIR}/redcoConfigVersion.cmake
  cmake/FindLibTorch.cmake cmake/FindLuaJIT.cmake
  DESTINATION ${package_dir} COMPONENT Development)

set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
  BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}/${pkgconfig_dir} OUTPUT_VARIABLE pkgconfig_to_prefix)
foreach(name redco redco-lua)
  configure_file(cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc
    DESTINATION ${pkgconfig_dir} COMPONENT Development)
endforeach()

# --- LibTorch ------------------------------------------------------------------------------------

configure_file(cmake/install_libtorch.cmake.in ${PROJECT_BINARY_DIR}/install_libtorch.cmake @ONLY)
install(SCRIPT ${PROJECT_BINARY_DIR}/install_libtorch.cmake COMPONENT LibTorch EXCLUDE_FROM_ALL)
install(DIRECTORY ${LibTorch_INCLUDE_DIR} DESTINATION ${torch_dir}
  COMPONENT LibTorchDevelopment EXCLUDE_FROM_ALL)
