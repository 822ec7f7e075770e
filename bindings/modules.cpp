#include "modules.h"

#include "checkpoint.h"
#include "context.h"
#include "optim.h"
#include "registry.h"
#include "tensor.h"
#include "torch.h"
#include "training_objects.h"
#include "values.h"

#include <redco/error.h>

#include <cstring>
#include <string>

namespace redco::lua {

namespace {

struct NativeModule {
  const char* name;
  lua_CFunction open;
};

int load_embedded(lua_State* L) {
  const auto* file = static_cast<const EmbeddedFile*>(lua_touserdata(L, lua_upvalueindex(1)));
  std::string chunk = std::string("@") + file->path;
  if (luaL_loadbufferx(L, file->text, std::strlen(file->text), chunk.c_str(), "t") != 0)
    throw take_error(L);
  lua_pushstring(L, file->name);
  lua_call(L, 1, 1);
  return 1;
}

int open_redco(lua_State* L) {
  lua_newtable(L);
  register_functions(
      L, "redco.",
      {{"checkpoint", checkpoint,
        "checkpoint(f, ...) -> what f returns\n"
        "Calls f(...) without keeping what its operators save for the backward pass: there f runs "
        "again, with the random numbers of its first run. Saves memory for time. f must do the "
        "same both times."}});
  add_deployer(L);
  add_trainer(L);
  add_predictor(L);
  return 1;
}

int undeclared_read(lua_State* L) {
  fail("undeclared global '", luaL_checkstring(L, 2),
       "' is read; declare it with `local`, or run with --no-strict");
}

int undeclared_write(lua_State* L) {
  fail("undeclared global '", luaL_checkstring(L, 2),
       "' is assigned; declare it with `local`, or run with --no-strict");
}

// What Lua files build on. Modules in Lua of the same family are among the embedded files.
constexpr NativeModule native_modules[] = {
    {"redco.registry", open_registry},   {"redco.torch.native", open_torch},
    {"redco.functorch", open_functorch}, {"redco.native", open_redco},
    {"redco.optim", open_optim},
};

}  // namespace

void open_modules(lua_State* L) {
  open_values(L);
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "preload");
  for (const NativeModule& module : native_modules) {
    lua_pushcfunction(L, module.open);
    lua_setfield(L, -2, module.name);
  }
  for (int i = 0; i < n_embedded_files; ++i) {
    lua_pushlightuserdata(L, const_cast<EmbeddedFile*>(&embedded_files[i]));
    lua_pushcclosure(L, load_embedded, 1);
    lua_setfield(L, -2, embedded_files[i].name);
  }
  lua_pop(L, 2);
}

void forbid_undeclared_globals(lua_State* L) {
  lua_newtable(L);
  lua_pushcfunction(L, undeclared_read);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, undeclared_write);
  lua_setfield(L, -2, "__newindex");
  lua_setmetatable(L, LUA_GLOBALSINDEX);
}

}  // namespace redco::lua
