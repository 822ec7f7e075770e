# `cmake --install`: component Runtime is what programs need, Development what builds need.
# find_package(redco) then gives redco::engine and, where it was built, redco::lua.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/redco)
file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})

# Each finds what was installed beside it, and LibTorch where it was at configure time.
get_filename_component(torch_lib_dir ${LibTorch_CPU_LIBRARY} DIRECTORY)
set(libraries redco)
set(header_dirs engine/include/redco)
if(TARGET redco_lua)
  list(APPEND libraries redco_lua)
  list(APPEND header_dirs bindings/include/redco)
endif()
set_target_properties(${libraries} PROPERTIES INSTALL_RPATH "$ORIGIN;${torch_lib_dir}")

install(TARGETS ${libraries} EXPORT redcoTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT Runtime NAMELINK_COMPONENT Development)
if(TARGET redco_nccl)  # redco loads it from its own folder
  set_target_properties(redco_nccl PROPERTIES INSTALL_RPATH "$ORIGIN;${torch_lib_dir}")
  install(TARGETS redco_nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT Runtime)
endif()
if(TARGET redco_lua_main)
  set_target_properties(redco_lua_main PROPERTIES
    INSTALL_RPATH "$ORIGIN/${bin_to_lib};${torch_lib_dir}")
  install(TARGETS redco_lua_main RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT Runtime)
endif()
if(TARGET redco_module)  # `require "redco"` in luajit, whose path of C modules has this folder
  set(module_dir ${CMAKE_INSTALL_LIBDIR}/lua/5.1)
  file(RELATIVE_PATH module_to_lib ${CMAKE_INSTALL_PREFIX}/${module_dir} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(redco_module PROPERTIES
    INSTALL_RPATH "$ORIGIN/${module_to_lib};${torch_lib_dir}")
  install(TARGETS redco_module LIBRARY DESTINATION ${module_dir} COMPONENT Runtime)
endif()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT Runtime)

install(DIRECTORY ${header_dirs} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT Development
  FILES_MATCHING PATTERN *.h)
install(FILES ${PROJECT_BINARY_DIR}/include/redco/version.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/redco COMPONENT Development)

get_filename_component(redco_LIBTORCH ${torch_lib_dir} DIRECTORY)
configure_package_config_file(cmake/redcoConfig.cmake.in ${PROJECT_BINARY_DIR}/redcoConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/redcoConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(EXPORT redcoTargets NAMESPACE redco:: DESTINATION ${package_dir} COMPONENT Development)
install(FILES
  ${PROJECT_BINARY_DIR}/redcoConfig.cmake ${PROJECT_BINARY_DIR}/redcoConfigVersion.cmake
  cmake/FindLibTorch.cmake cmake/FindLuaJIT.cmake
  DESTINATION ${package_dir} COMPONENT Development)
