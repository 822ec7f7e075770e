# `cpack` makes two Debian packages: redco-lua, which carries the part of LibTorch that runs on
# CPUs (Debian's own LibTorch is too old), and redco-lua-dev with all headers.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME redco-lua)
set(CPACK_PACKAGE_CONTACT "The maintainers of redco-lua <maintainers@redco-lua.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL Runtime LibTorch Debian Development LibTorchDevelopment)
foreach(component RUNTIME LIBTORCH DEBIAN)
  set(CPACK_COMPONENT_${component}_GROUP program)
endforeach()
foreach(component DEVELOPMENT LIBTORCHDEVELOPMENT)
  set(CPACK_COMPONENT_${component}_GROUP development)
endforeach()

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)  # 450 MB in seconds; xz takes minutes
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME redco-lua)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION
"redco-lua runs Lua scripts that train and use models, on one process or several. It carries the
libraries of LibTorch ${LibTorch_VERSION} for CPUs in /usr/lib/redco, as Debian's LibTorch is too old;
for GPUs there is a Python wheel, which uses the environment's torch.")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS libcurl4)  # loaded for `--download` alone
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS librsvg2-bin)  # pictures of `redco-lua plot` as PNG
file(GLOB private_dirs ${torch_root}/lib ${torch_root}/../nvidia/*/lib)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR} ${private_dirs})

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME redco-lua-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION
"What C++ programs that embed redco-lua are built with: its headers and those of LibTorch
${LibTorch_VERSION}, and files for CMake and pkg-config.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
  "redco-lua (= ${PROJECT_VERSION}), libluajit-5.1-dev")

# Where Debian's zsh and LuaJIT look.
install(FILES ${manual}/redco-lua.zsh RENAME _redco-lua
  DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT Debian EXCLUDE_FROM_ALL)
install(TARGETS redco_module LIBRARY
  DESTINATION lib/${CMAKE_LIBRARY_ARCHITECTURE}/lua/5.1 COMPONENT Debian EXCLUDE_FROM_ALL)

include(CPack)
