// The functions of redco.so that `require` calls, one for each module.
#include <redco/export.h>
#include <redco/run_log.h>
#include <redco/script_engine.h>

#include <cstdio>
#include <lua.hpp>
#include <memory>
#include <string>
#include <string_view>

namespace {

// Prints to standard output, as Lua's print does: training runs report their progress there.
class Lines : public redco::Console {
 public:
  void line(std::string_view text) override {
    std::printf("%.*s\n", int(text.size()), text.data());
    std::fflush(stdout);
  }
  void progress(const redco::ProgressState& state) override {
    if (state.finished && state.is_kept) line(redco::format_progress(state, 79));
  }
};

int open(lua_State* L, const char* name) {
  redco::open_modules(L, std::make_shared<Lines>());
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "preload");
  lua_getfield(L, -1, name);
  lua_call(L, 0, 1);
  return 1;
}

}  // namespace

#define OPEN(symbol, name) \
  extern "C" REDCO_API int luaopen_##symbol(lua_State* L) { return open(L, name); }
#include "names.inc"
