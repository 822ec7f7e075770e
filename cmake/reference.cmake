# What the program knows of its functions and of LibTorch's operators: stubs for editors, and by
# hand, with the target `reference`, the pages of docs/reference.
set(stubs ${PROJECT_BINARY_DIR}/stubs)
add_custom_command(OUTPUT ${stubs}/redco.lua
  COMMAND ${CMAKE_COMMAND} -E make_directory ${stubs}/redco
  COMMAND redco_lua_main -e "require('redco.reference').write('stubs', '${stubs}')"
  DEPENDS redco_lua_main redco_lua VERBATIM)
add_custom_target(stubs ALL DEPENDS ${stubs}/redco.lua)
add_custom_target(reference VERBATIM COMMAND redco_lua_main
  -e "require('redco.reference').write('pages', '${PROJECT_SOURCE_DIR}/docs/reference')")
install(DIRECTORY ${stubs}/ DESTINATION ${CMAKE_INSTALL_DATADIR}/redco/stubs COMPONENT Runtime)
