#include <redco/engine.h>

#include "context.h"
#include "modules.h"
#include "run_record.h"
#include "values.h"

#include <redco/error.h>

#include <fstream>
#include <lua.hpp>
#include <new>
#include <sstream>
#include <thread>

namespace redco {

struct Engine::Impl {
  lua_State* L = nullptr;
  std::shared_ptr<lua::Context> context;
  EngineOptions options;
  // What set_memory_limit counts with, on top of the state's own allocator.
  struct Memory {
    lua_Alloc allocate = nullptr;
    void* state = nullptr;
    size_t used = 0;
    size_t limit = 0;
  } memory;
  ~Impl() {
    if (L == nullptr) return;
    // The state's own allocator is given back as a whole.
    if (memory.allocate != nullptr) lua_setallocf(L, memory.allocate, memory.state);
    lua_close(L);
  }
};

namespace {

void* allocate_within_limit(void* state, void* block, size_t old_size, size_t new_size) {
  auto& memory = *static_cast<Engine::Impl::Memory*>(state);
  if (new_size > old_size && memory.used + (new_size - old_size) > memory.limit) return nullptr;
  void* result = memory.allocate(memory.state, block, old_size, new_size);
  if (result != nullptr || new_size == 0) memory.used += new_size - old_size;
  return result;
}

using HostFunction = std::function<std::vector<Tree>(const std::vector<Tree>&)>;

void open_all(lua_State* L) {
  luaL_openlibs(L);
  lua::open_modules(L);
}

// Pushes the global `path`, dots reaching into tables.
void push_global(lua_State* L, const std::string& path) {
  lua_pushvalue(L, LUA_GLOBALSINDEX);
  std::istringstream parts(path);
  for (std::string part; std::getline(parts, part, '.');) {
    require(lua_istable(L, -1), "'", path, "': '", part, "' is looked up in a ",
            luaL_typename(L, -1));
    lua_pushlstring(L, part.data(), part.size());
    lua_rawget(L, -2);
    lua_remove(L, -2);
  }
}

int call_host(lua_State* L) {
  auto& function = *static_cast<HostFunction*>(lua_touserdata(L, lua_upvalueindex(1)));
  std::vector<Tree> args;
  for (int i = 1; i <= lua_gettop(L); ++i) args.push_back(lua::check_tree(L, i));
  std::vector<Tree> results = function(args);
  for (const Tree& result : results) lua::push_tree(L, result);
  return static_cast<int>(results.size());
}

int destroy_host(lua_State* L) {
  static_cast<HostFunction*>(lua_touserdata(L, 1))->~HostFunction();
  return 0;
}

void load(lua_State* L, const std::string& code, const std::string& chunk) {
  // Text only: bytecode is not checked by LuaJIT and can crash the process.
  if (luaL_loadbufferx(L, code.data(), code.size(), chunk.c_str(), "t") != 0)
    throw lua::take_error(L);
}

// Modules beside a script are found, wherever it is run from.
void search_beside(lua_State* L, const std::string& script) {
  lua::balanced(L, [&] {
    std::string folder = script.substr(0, script.rfind('/') + 1);
    lua_getfield(L, LUA_GLOBALSINDEX, "package");
    lua_getfield(L, -1, "path");
    std::string path = folder + "?.lua;" + folder + "?/init.lua;" + luaL_checkstring(L, -1);
    lua_pushlstring(L, path.data(), path.size());
    lua_setfield(L, -3, "path");
  });
}

// Calls the chunk on top of the stack; `args` are its `...` and, with its name, the table `arg`.
void call_with(lua_State* L, const std::string& name, const std::vector<std::string>& args) {
  int n_args = static_cast<int>(args.size());
  luaL_checkstack(L, n_args + 4, "script arguments");
  lua_pushliteral(L, "arg");
  lua_createtable(L, n_args, 1);
  lua_pushlstring(L, name.data(), name.size());
  lua_rawseti(L, -2, 0);
  for (int i = 0; i < n_args; ++i) {
    lua_pushlstring(L, args[i].data(), args[i].size());
    lua_rawseti(L, -2, i + 1);
  }
  lua_rawset(L, LUA_GLOBALSINDEX);
  for (const auto& arg : args) lua_pushlstring(L, arg.data(), arg.size());
  lua::call(L, n_args, 0);
}

}  // namespace

Engine::Engine(EngineOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  lua_State* L = impl_->L = luaL_newstate();
  if (L == nullptr) throw std::bad_alloc();
  impl_->context = lua::open_context(L);
  impl_->context->console = impl_->options.console;
  impl_->context->is_strict = impl_->options.strict;
  if (impl_->options.records_sharding) impl_->context->record = std::make_shared<lua::RunRecord>();
  lua::protect(L, [&](lua_State* state) {
    open_all(state);
    if (impl_->options.strict) lua::forbid_undeclared_globals(state);
  });
}

Engine::~Engine() = default;

void Engine::interrupt() noexcept {
  impl_->context->interrupted = true;
  // As the stand-alone interpreters do: the hook is all that may be touched in a signal handler.
  // Another thread may not even touch that.
  if (impl_->context->thread != std::this_thread::get_id()) return;
  lua_sethook(impl_->L, lua::interrupt_hook, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

void Engine::set_memory_limit(size_t bytes) {
  auto& memory = impl_->memory;
  if (memory.allocate == nullptr) {
    // LuaJIT may loop forever where memory runs out in code that it has compiled.
    luaJIT_setmode(impl_->L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
    memory.allocate = lua_getallocf(impl_->L, &memory.state);
    memory.used = static_cast<size_t>(lua_gc(impl_->L, LUA_GCCOUNT, 0)) * 1024 +
                  static_cast<size_t>(lua_gc(impl_->L, LUA_GCCOUNTB, 0));
    lua_setallocf(impl_->L, allocate_within_limit, &memory);
  }
  memory.limit = bytes;
}

std::string Engine::sharding_report() const {
  require(impl_->context->record != nullptr,
          "Engine::sharding_report: set EngineOptions::records_sharding");
  return impl_->context->record->report();
}

lua_State* Engine::state() const { return impl_->L; }

void Engine::run_file(const std::string& path, const std::vector<std::string>& args) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || !text) throw UsageError("cannot read the script " + path);
  std::string code = text.str();
  if (code.starts_with("#")) code.insert(0, "--");  // the line `#!...` of an executable script
  lua::protect(impl_->L, [&](lua_State* L) {
    search_beside(L, path);
    load(L, code, "@" + path);
    call_with(L, path, args);
  });
}

void Engine::run_string(const std::string& code, const std::string& name,
                        const std::vector<std::string>& args) {
  lua::protect(impl_->L, [&](lua_State* L) {
    load(L, code, "=" + name);
    call_with(L, name, args);
  });
}

std::vector<Tree> Engine::call(const std::string& function, const std::vector<Tree>& args) {
  std::vector<Tree> results;
  lua::protect(impl_->L, [&](lua_State* L) {
    push_global(L, function);
    require(!lua_isnil(L, -1), "Engine::call: there is no global '", function, "'");
    luaL_checkstack(L, static_cast<int>(args.size()), "arguments of a call");
    for (const Tree& arg : args) lua::push_tree(L, arg);
    lua::call(L, static_cast<int>(args.size()), LUA_MULTRET);
    for (int i = 1; i <= lua_gettop(L); ++i) results.push_back(lua::check_tree(L, i));
  });
  return results;
}

Tree Engine::get_global(const std::string& name) {
  Tree value;
  lua::protect(impl_->L, [&](lua_State* L) {
    push_global(L, name);
    value = lua::check_tree(L, -1);
  });
  return value;
}

void Engine::set_global(const std::string& name, const Tree& value) {
  lua::protect(impl_->L, [&](lua_State* L) {
    lua_pushlstring(L, name.data(), name.size());
    lua::push_tree(L, value);
    lua_rawset(L, LUA_GLOBALSINDEX);
  });
}

void Engine::register_function(const std::string& name, HostFunction function) {
  lua::protect(impl_->L, [&](lua_State* L) {
    lua_pushlstring(L, name.data(), name.size());
    lua_newtable(L);
    lua_pushcfunction(L, destroy_host);
    lua_setfield(L, -2, "__gc");
    new (lua_newuserdata(L, sizeof(HostFunction))) HostFunction(std::move(function));
    lua_insert(L, -2);
    lua_setmetatable(L, -2);
    lua_pushcclosure(L, call_host, 1);
    lua_rawset(L, LUA_GLOBALSINDEX);
  });
}

}  // namespace redco
