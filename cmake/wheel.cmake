# The target `wheel`: a Python wheel of the program, which runs on the libraries of the environment's
# torch.
find_program(PYTHON python3)
mark_as_advanced(PYTHON)
add_custom_target(wheel VERBATIM
  COMMAND ${PYTHON} ${PROJECT_SOURCE_DIR}/cmake/wheel/make_wheel.py ${PROJECT_BINARY_DIR}
          ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR} ${PROJECT_VERSION} ${LibTorch_VERSION}
  DEPENDS redco_lua_main redco_sandbox redco_module redco_manual stubs)
