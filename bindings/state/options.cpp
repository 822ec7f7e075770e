// redco.options: the options of a script, from the command line and TOML files.
#include <redco/options.h>

#include "context.h"
#include "options.h"
#include "values.h"

#include <redco/error.h>
#include <redco/plan.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace redco::lua {

namespace {

// The script's arguments: the global `arg`, of which entry 0 is the script itself.
struct Script {
  std::string file;
  std::vector<std::string> args;
};

Script script_of(lua_State* L) {
  return balanced(L, [&] {
    Script script;
    lua_pushliteral(L, "arg");
    lua_rawget(L, LUA_GLOBALSINDEX);
    if (!lua_istable(L, -1)) return script;
    lua_rawgeti(L, -1, 0);
    if (lua_isstring(L, -1)) script.file = lua_tostring(L, -1);
    lua_pop(L, 1);
    for (int i = 1; i <= int(lua_objlen(L, -1)); ++i) {
      lua_rawgeti(L, -1, i);
      script.args.push_back(luaL_checkstring(L, -1));
      lua_pop(L, 1);
    }
    return script;
  });
}

// Returns the options file of the script, or else of its folder; "" if there is neither.
std::string find_options_file(const std::filesystem::path& script) {
  if (script.empty()) return "";
  std::filesystem::path own = script, shared = script.parent_path() / "config.toml";
  own.replace_extension(".toml");
  std::error_code ignored;
  for (const auto& file : {own, shared})
    if (std::filesystem::exists(file, ignored)) return file.string();
  return "";
}

}  // namespace

int options(lua_State* L) {
  require(lua_istable(L, 1), "redco.options: expected a table of defaults, got ", described(L, 1));
  Script script = script_of(L);
  Tree resolved = resolve_options(check_tree(L, 1), find_options_file(script.file), script.args);
  const auto& values = resolved.as<Tree::Dict>();
  auto workdir = values.find("workdir");
  if (!PlanMode::is_on() && workdir != values.end() && workdir->second.is<std::string>() &&
      !workdir->second.as<std::string>().empty())
    write_config(workdir->second.as<std::string>(), resolved);
  push_tree(L, resolved);
  context(L).config = std::move(resolved);
  return 1;
}

}  // namespace redco::lua
