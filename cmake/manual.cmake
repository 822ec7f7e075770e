# The man page and what shells complete, written by the program.
set(manual ${PROJECT_BINARY_DIR}/manual)
set(texts ${manual}/redco-lua.1)
foreach(shell bash zsh fish)
  list(APPEND texts ${manual}/redco-lua.${shell})
endforeach()
file(MAKE_DIRECTORY ${manual})
add_custom_command(OUTPUT ${texts}
  COMMAND ${PROJECT_SOURCE_DIR}/program/man_page.sh $<TARGET_FILE:redco_lua_main> ${PROJECT_VERSION}
          > ${manual}/redco-lua.1
  COMMAND redco_lua_main --completion bash > ${manual}/redco-lua.bash
  COMMAND redco_lua_main --completion zsh > ${manual}/redco-lua.zsh
  COMMAND redco_lua_main --completion fish > ${manual}/redco-lua.fish
  DEPENDS redco_lua_main ${PROJECT_SOURCE_DIR}/program/man_page.sh VERBATIM)
add_custom_target(redco_manual ALL DEPENDS ${texts})
