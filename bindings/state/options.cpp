// redco.options: the options of a script, from the command line and TOML files.
#include <redco/options.h>

#include "context.h"
#include "options.h"
#include "values.h"

#include <redco/error.h>
#include <redco/mesh.h>
#include <redco/plan.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace redco::lua {

namespace {

// The script's arguments: the global `arg`. Its entry 0 is the script itself.
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

// The text of the running script, from the line at which the function at `level` runs.
std::string code_from_here(lua_State* L, int level) {
  lua_Debug frame;
  if (!lua_getstack(L, level, &frame) || !lua_getinfo(L, "Sl", &frame)) return "";
  std::stringstream code;
  if (frame.source[0] == '@')
    code << std::ifstream(frame.source + 1).rdbuf();
  else if (frame.source[0] != '=')
    code << frame.source;
  std::string line, text;
  for (int number = 1; std::getline(code, line); ++number)
    if (number >= frame.currentline) text += line + "\n";
  return text;
}

// Returns the comments in the table at the start of the code, `name = value,  -- comment`, by name.
std::map<std::string, std::string> comments_in(const std::string& code) {
  static const std::regex option(R"((^|[{,])\s*(\w+)\s*=[^=].*--\s*(\S.*?)\s*$)");
  std::map<std::string, std::string> comments;
  std::istringstream lines(code);
  std::smatch found;
  std::ptrdiff_t depth = 0;
  bool is_open = false;
  for (std::string line; (!is_open || depth > 0) && std::getline(lines, line);) {
    if (line.size() <= 500 && std::regex_search(line, found, option))  // std::regex recurses
      comments.emplace(found[2], found[3]);
    std::string before = line.substr(0, line.find("--"));
    is_open = is_open || before.find('{') != before.npos;
    depth += std::ranges::count(before, '{') - std::ranges::count(before, '}');
  }
  return comments;
}

// Prints the options of the script, on one process, and ends it.
void print_help(lua_State* L, const Tree& options) {
  if (find_processes().rank == 0) {
    std::string text = format_options(options, comments_in(code_from_here(L, 1)));
    lua_getglobal(L, "print");
    lua_pushlstring(L, text.data(), text.size() - 1);
    call(L, 1, 0);
  }
  lua_getglobal(L, "os");
  lua_getfield(L, -1, "exit");
  lua_pushinteger(L, 0);
  call(L, 1, 0);
}

}  // namespace

int options(lua_State* L) {
  require(lua_istable(L, 1), "redco.options: expected a table of defaults, got ", described(L, 1));
  Script script = script_of(L);
  Tree defaults = check_tree(L, 1);
  bool asks_help = !defaults.as<Tree::Dict>().contains("help") && !context(L).is_restricted &&
                   std::erase(script.args, "--help") > 0;
  Tree resolved = resolve_options(defaults, find_options_file(script.file), script.args);
  if (asks_help) print_help(L, resolved);
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
