// ScriptEngine: runs scripts and calls between C++ and Lua.

#include <redco/script_engine.h>

#include "host_type.h"
#include "modules.h"
#include "state/confinement.h"
#include "state/context.h"
#include "state/habits.h"
#include "state/values.h"
#include "training/reported_runs.h"

#include <redco/detail/cuda.h>
#include <redco/error.h>
#include <redco/run_log.h>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <lua.hpp>
#include <new>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

namespace redco {

namespace {

// Prints each of LibTorch's warnings once. The default handler prints C++ lines, at every call.
class Warnings : public c10::WarningHandler {
 public:
  explicit Warnings(std::shared_ptr<Console> console) : console_(std::move(console)) {}
  void process(const c10::Warning& warning) override {
    if (console_ && seen_.insert(warning.msg()).second) console_->line("warning: " + warning.msg());
  }

 private:
  std::shared_ptr<Console> console_;
  std::set<std::string> seen_;
};

}  // namespace

struct ScriptEngine::Impl {
  explicit Impl(ScriptEngineOptions given) : options(std::move(given)), warnings(options.console) {}

  ScriptEngineOptions options;
  lua_State* L = nullptr;
  Warnings warnings;
  // The thread that runs the engine now; default-constructed if none.
  std::atomic<std::thread::id> user;
  std::shared_ptr<lua::Context> context;
  // The allocator of set_memory_limit, in front of the state's own one.
  struct Memory {
    lua_Alloc allocate = nullptr;
    void* state = nullptr;
    size_t used = 0;
    size_t limit = 0;
    bool ran_out = false;
  } memory;
  ~Impl() {
    if (L == nullptr) return;
    // Restore the state's own allocator.
    if (memory.allocate != nullptr) lua_setallocf(L, memory.allocate, memory.state);
    lua_close(L);
  }
};

namespace {

void* allocate_within_limit(void* state, void* block, size_t old_size, size_t new_size) {
  auto& memory = *static_cast<ScriptEngine::Impl::Memory*>(state);
  if (new_size > old_size && memory.used + (new_size - old_size) > memory.limit) {
    memory.ran_out = true;
    return nullptr;
  }
  void* result = memory.allocate(memory.state, block, old_size, new_size);
  if (result != nullptr || new_size == 0) memory.used += new_size - old_size;
  return result;
}

// Admits a thread to the state: every use of the state needs an Entry. Keeps the state alive,
// because a function of the program may destroy the engine during a call.
class Entry {
 public:
  explicit Entry(std::shared_ptr<ScriptEngine::Impl> impl) : impl_(std::move(impl)) {
    std::thread::id none, self = std::this_thread::get_id();
    if (impl_->user.compare_exchange_strong(none, self)) {
      is_outermost_ = true;
      collect_if_ran_out();
      lua::start_counting_instructions(impl_->L);
      if (impl_->context->is_restricted) confinement_.emplace(*impl_->context);
      guard_.emplace(&impl_->warnings);
    } else if (none != self) {
      throw UsageError(
          "a ScriptEngine is used by two threads at once: give each its own, or let them take "
          "turns");
    }
  }
  ~Entry() {
    confinement_.reset();
    if (is_outermost_) impl_->user = std::thread::id();
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  template <class Body>
  void protect(Body body) {
    try {
      lua::protect(impl_->L, std::move(body));
    } catch (const ScriptError&) {
      end_if_exited();
      throw;
    }
    end_if_exited();
  }

 private:
  // A script may have caught the error of os.exit.
  void end_if_exited() {
    if (!is_outermost_) return;
    if (auto exited = std::exchange(impl_->context->exited, std::nullopt)) throw *exited;
  }

  // Lua's C API does not collect garbage when memory runs out, so the next run might not even
  // start.
  void collect_if_ran_out() {
    if (!std::exchange(impl_->memory.ran_out, false)) return;
    try {
      lua_gc(impl_->L, LUA_GCCOLLECT, 0);
    } catch (...) {  // an error of a script's finalizer has no caller to report it to
    }
  }

  std::shared_ptr<ScriptEngine::Impl> impl_;
  std::optional<c10::WarningUtils::WarningHandlerGuard> guard_;
  std::optional<lua::Confinement> confinement_;
  bool is_outermost_ = false;
};

void check_name(const char* function, const std::string& name) {
  if (name.empty() || name.find('.') != std::string::npos)
    throw UsageError(std::string(function) + ": '" + name +
                     "' is not a name of a global: it must not be empty or contain dots");
}

// A compiled loop never calls a hook, and LuaJIT may loop forever if memory runs out in one.
void turn_compiler_off(lua_State* L) {
  luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
  luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_FLUSH);
}

void open_all(lua_State* L) {
  luaL_openlibs(L);
  if (!lua::context(L).exits_process) {
    lua_getglobal(L, "os");
    lua_pushcfunction(L, lua::end_script);
    lua_setfield(L, -2, "exit");
    lua_pop(L, 1);
  }
  lua::open_modules(L);
}

// Pushes the global `path`; dots denote fields of tables.
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

struct NamedFunction {
  std::string name;
  ScriptEngine::UntypedFunction function;
};

int call_host(lua_State* L) {
  auto& host = *static_cast<NamedFunction*>(lua_touserdata(L, lua_upvalueindex(1)));
  std::vector<Tree> args, results;
  for (int i = 1; i <= lua_gettop(L); ++i) {
    std::string what = host.name + ": argument " + std::to_string(i);
    args.push_back(lua::check_tree(L, i, what.c_str()));
  }
  lua::call_program(host.name, [&] { results = host.function(args); });
  luaL_checkstack(L, int(results.size()), "results of a call");
  for (const Tree& result : results) lua::push_tree(L, result);
  return int(results.size());
}

int destroy_host(lua_State* L) {
  static_cast<NamedFunction*>(lua_touserdata(L, 1))->~NamedFunction();
  return 0;
}

// Why a script cannot be read.
std::string reason_for(const std::string& path) {
  std::error_code code;
  if (std::filesystem::is_directory(path, code))
    return "it is a folder; name a file in it, such as " + path + (path.ends_with('/') ? "" : "/") +
           "train.lua";
  if (std::filesystem::exists(path, code)) return "it cannot be opened";
  return "there is no such file" +
         std::string(path.find('.') == path.npos
                         ? ", and no command of this name: see redco-lua --help"
                         : "");
}

void load(lua_State* L, const std::string& code, const std::string& chunk) {
  // Text only: bytecode is not checked by LuaJIT and can crash the process.
  if (luaL_loadbufferx(L, code.data(), code.size(), chunk.c_str(), "t") == 0) return;
  std::string message = lua_tostring(L, -1), advice = lua::advice_on_syntax(message, code);
  lua_pushlstring(L, advice.data(), advice.size());
  lua_concat(L, 2);
  throw lua::take_error(L);
}

// Shows a warning for each line that compares a tensor with a number by ==.
void look_for_comparisons(lua_State* L, const std::string& code, const std::string& path) {
  if (code.find("torch") == code.npos || code.find_first_of("=~") == code.npos) return;
  lua::balanced(L, [&] {
    lua_getfield(L, LUA_GLOBALSINDEX, "require");
    lua_pushliteral(L, "redco.comparisons");
    lua::call(L, 1, 1);
    lua_pushlstring(L, code.data(), code.size());
    lua_pushlstring(L, path.data(), path.size());
    lua::call(L, 2, 0);
  });
}

// Adds the script's folder to the search path of `require`.
void add_script_folder(lua_State* L, const std::string& script) {
  lua::balanced(L, [&] {
    std::string folder = script.substr(0, script.rfind('/') + 1);
    lua_getfield(L, LUA_GLOBALSINDEX, "package");
    lua_getfield(L, -1, "path");
    std::string path = folder + "?.lua;" + folder + "?/init.lua;" + luaL_checkstring(L, -1);
    lua_pushlstring(L, path.data(), path.size());
    lua_setfield(L, -3, "path");
  });
}

// Calls the chunk on top of the stack. Sets `args` as its `...` and as the global table `arg`.
void call_with(lua_State* L, const std::string& name, const std::vector<std::string>& args) {
  int n_args = int(args.size());
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

ScriptEngine::ScriptEngine(ScriptEngineOptions options)
    : impl_(std::make_shared<Impl>(std::move(options))) {
  if (!impl_->options.restricted) load_cuda_if_present();  // scripts cannot use it
  lua_State* L = impl_->L = luaL_newstate();
  if (L == nullptr) throw std::bad_alloc();
  impl_->context = lua::open_context(L);
  impl_->context->console = impl_->options.console;
  impl_->context->is_strict = impl_->options.strict;
  impl_->context->exits_process = impl_->options.exits_process;
  if (impl_->options.reports_sharding)
    impl_->context->reported_runs = std::make_shared<lua::ReportedRuns>();
  Entry(impl_).protect([&](lua_State* state) {
    open_all(state);
    if (impl_->options.restricted) {
      turn_compiler_off(state);
      impl_->context->tensor_memory = std::make_shared<lua::TensorMemory>();
      impl_->context->rng = at::make_generator<at::CPUGeneratorImpl>();
      lua::restrict_globals(state);
    }
    if (impl_->options.strict) lua::forbid_undeclared_globals(state);
  });
}

ScriptEngine::~ScriptEngine() {
  // If a function of the program destroys the engine during a call, the call should end soon.
  if (impl_->user.load() != std::thread::id()) impl_->context->interrupted = true;
}

bool ScriptEngine::request_stop(int signal) noexcept { return impl_->context->stop->make(signal); }

void ScriptEngine::interrupt() noexcept {
  impl_->context->interrupted = true;
  // A signal handler on the engine's thread may set the hook, as in stand-alone interpreters;
  // another thread may not.
  if (impl_->context->thread != std::this_thread::get_id()) return;
  lua_sethook(impl_->L, lua::interrupt_hook, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

void ScriptEngine::set_memory_limit(size_t bytes) {
  Entry entry(impl_);
  auto& memory = impl_->memory;
  if (memory.allocate == nullptr) {
    turn_compiler_off(impl_->L);
    memory.allocate = lua_getallocf(impl_->L, &memory.state);
    memory.used =
        size_t(lua_gc(impl_->L, LUA_GCCOUNT, 0)) * 1024 + size_t(lua_gc(impl_->L, LUA_GCCOUNTB, 0));
    lua_setallocf(impl_->L, allocate_within_limit, &memory);
  }
  memory.limit = bytes;
}

void ScriptEngine::set_instruction_limit(int64_t instructions) {
  if (instructions < 0)
    throw UsageError("set_instruction_limit: expected 0 or more, got " +
                     std::to_string(instructions));
  Entry entry(impl_);
  turn_compiler_off(impl_->L);
  lua::limit_instructions(impl_->L, instructions);
}

void ScriptEngine::set_tensor_memory_limit(size_t bytes) {
  require(impl_->context->is_restricted,
          "ScriptEngine::set_tensor_memory_limit: set ScriptEngineOptions::restricted");
  Entry entry(impl_);
  impl_->context->tensor_memory->limit = bytes;
}

std::string ScriptEngine::sharding_report() const {
  require(impl_->context->reported_runs != nullptr,
          "ScriptEngine::sharding_report: set ScriptEngineOptions::reports_sharding");
  return impl_->context->reported_runs->report();
}

lua_State* ScriptEngine::state() const { return impl_->L; }

void ScriptEngine::run_file(const std::string& path, const std::vector<std::string>& args) {
  std::ifstream file(path, std::ios::binary);
  std::error_code ignored;
  if (!file.is_open() || std::filesystem::is_directory(path, ignored))
    throw UsageError("cannot read the script " + path + ": " + reason_for(path));
  std::string code(std::istreambuf_iterator<char>(file), {});
  if (code.starts_with("#")) code.insert(0, "--");  // the `#!...` line of an executable script
  Entry(impl_).protect([&](lua_State* L) {
    if (!impl_->options.restricted) {
      add_script_folder(L, path);
      look_for_comparisons(L, code, path);
    }
    load(L, code, "@" + path);
    call_with(L, path, args);
  });
}

void ScriptEngine::run_string(const std::string& code, const std::string& name,
                              const std::vector<std::string>& args) {
  Entry(impl_).protect([&](lua_State* L) {
    load(L, code, "=" + name);
    call_with(L, name, args);
  });
}

std::vector<Tree> ScriptEngine::call(const std::string& function, const std::vector<Tree>& args) {
  std::vector<Tree> results;
  Entry(impl_).protect([&](lua_State* L) {
    push_global(L, function);
    require(!lua_isnil(L, -1), "ScriptEngine::call: there is no global '", function, "'");
    require(lua_isfunction(L, -1) || luaL_getmetafield(L, -1, "__call"), "ScriptEngine::call: '",
            function, "' is not a function but ", lua::described(L, -1));
    lua_settop(L, 1);
    luaL_checkstack(L, int(args.size()), "arguments of a call");
    for (const Tree& arg : args) lua::push_tree(L, arg);
    lua::call(L, int(args.size()), LUA_MULTRET);
    for (int i = 1; i <= lua_gettop(L); ++i) results.push_back(lua::check_tree(L, i));
  });
  return results;
}

Tree ScriptEngine::get_global(const std::string& name) {
  Tree value;
  Entry(impl_).protect([&](lua_State* L) {
    push_global(L, name);
    value = lua::check_tree(L, -1);
  });
  return value;
}

void ScriptEngine::set_global(const std::string& name, const Tree& value) {
  check_name("set_global", name);
  Entry(impl_).protect([&](lua_State* L) {
    lua_pushlstring(L, name.data(), name.size());
    lua::push_tree(L, value);
    lua_rawset(L, LUA_GLOBALSINDEX);
  });
}

void ScriptEngine::register_function(const std::string& name, UntypedFunction function) {
  check_name("register_function", name);
  if (!function) throw UsageError("register_function: '" + name + "': the function is empty");
  Entry(impl_).protect([&](lua_State* L) {
    lua_pushlstring(L, name.data(), name.size());
    lua_newtable(L);
    lua_pushcfunction(L, destroy_host);
    lua_setfield(L, -2, "__gc");
    new (lua_newuserdata(L, sizeof(NamedFunction))) NamedFunction{name, std::move(function)};
    lua_insert(L, -2);
    lua_setmetatable(L, -2);
    lua_pushcclosure(L, call_host, 1);
    lua_rawset(L, LUA_GLOBALSINDEX);
  });
}

void open_modules(lua_State* L, std::shared_ptr<Console> console) {
  lua::open_context_of_others(L, std::move(console));
  lua::open_modules(L);
}

void host::make_type(ScriptEngine& engine, const std::string& name, std::type_index type) {
  check_name("register_type", name);
  Entry(engine.impl_).protect([&](lua_State* L) {
    const auto& types = engine.impl_->context->host_types;
    if (std::any_of(types.begin(), types.end(), [&](auto& each) { return each.second == name; }))
      throw UsageError("register_type: the type '" + name + "' already exists");
    lua::make_host_type(L, name, type);
  });
}

void host::add_member(ScriptEngine& engine, std::type_index type, Member kind,
                      const std::string& name, Function function) {
  if (kind != Member::constructor) check_name("register_type", name);
  Entry(engine.impl_).protect([&](lua_State* L) {
    lua::add_host_member(L, type, kind, name, std::move(function));
  });
}

void host::add_function(ScriptEngine& engine, const std::string& name, Function function) {
  check_name("register_function", name);
  Entry(engine.impl_).protect([&](lua_State* L) {
    lua::add_host_function(L, name, std::move(function));
  });
}

void host::set_global(ScriptEngine& engine, const std::string& name, std::shared_ptr<void> object,
                      std::type_index type) {
  check_name("set_global", name);
  Entry(engine.impl_).protect([&](lua_State* L) {
    lua_pushlstring(L, name.data(), name.size());
    lua::push_host_object(L, std::move(object), type);
    lua_rawset(L, LUA_GLOBALSINDEX);
  });
}

}  // namespace redco
