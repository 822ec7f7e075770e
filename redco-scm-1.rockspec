-- `luarocks make` in a clone builds `require "redco"` for LuaJIT. Needs the packages of
-- cmake/packages.txt, and LibTorch where ./bootstrap puts it or where CMAKE_PREFIX_PATH says.
rockspec_format = "3.0"
package = "redco"
version = "scm-1"
source = { url = "git+file://." }
description = {
  summary = "Distributed training, scripted in Lua, embeddable in C++",
  detailed = "Trains and fine-tunes models on any number of devices from a Lua script, on LibTorch.",
  license = "Apache-2.0",
  labels = { "machine-learning", "tensor" },
}
supported_platforms = { "linux" }
dependencies = { "lua == 5.1" }
build = {
  type = "cmake",
  variables = {
    CMAKE_BUILD_TYPE = "Release",
    CMAKE_INSTALL_PREFIX = "$(PREFIX)",
    -- LuaRocks moves what is in $(LIBDIR) to where Lua looks: only the module.
    CMAKE_INSTALL_BINDIR = "native/bin",
    CMAKE_INSTALL_LIBDIR = "native/lib",
    REDCO_LUA_DIR = "$(LIBDIR)",
    REDCO_TESTS = "OFF",
  },
}
