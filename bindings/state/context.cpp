// The context of a Lua state: errors, tracebacks, interrupts, instruction counts and references.

#include "context.h"

#include "collector.h"
#include "habits.h"
#include "values.h"

#include <redco/mapped_files.h>

#include <redco/group.h>
#include <redco/stop.h>

#include <c10/util/Exception.h>

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace redco::lua {

// The error of a failed allocation. LibTorch's has its file, line and condition before the message,
// or advice on environment variables after it.
static std::string out_of_memory_text(std::string text) {
  constexpr std::string_view tried = "you tried to allocate ";
  if (size_t at = text.find(tried); at != std::string::npos) {
    constexpr double gib = 1024.0 * 1024.0 * 1024.0;
    char amount[40];
    std::snprintf(amount, sizeof(amount), "%.1f",
                  std::atof(text.c_str() + at + tried.size()) / gib);
    text = "out of memory: cannot allocate " + std::string(amount) + " GiB";
  }
  text = text.substr(0, text.find(" If reserved but unallocated memory"));
  return text +
         ". To train with less: a smaller per_device_batch_size, recompute = \"blocks\", "
         "offload_optimizer = true (on a GPU) or more processes. redco-lua plan shows what takes "
         "the memory";
}

// Whether an operator needed the values of a tensor of the device meta.
static bool needs_values(std::string_view text) {
  return text.find("attempted to run this operator with Meta tensors") != text.npos ||
         text.find("Cannot copy out of meta tensor") != text.npos;
}

std::string text_of(const std::exception& error) {
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error)) {
    static const bool trace = std::getenv("REDCO_TRACE") != nullptr;
    if (trace) return torch_error->what();
    std::string text = torch_error->what_without_backtrace();
    if (is_out_of_memory(error)) return out_of_memory_text(text);
    if (needs_values(text))
      return "a tensor of the device meta has no values. Functions of a script run on such tensors "
             "while a layout is chosen or a step is planned, and must not keep them";
    // LibTorch appends pages about registered backends to the error of a missing kernel.
    return text.substr(0, text.find(". This could be because the operator doesn't exist for this"));
  }
  return error.what();
}

std::string script_line(lua_State* L) {
  lua_Debug frame;
  for (int level = 0; lua_getstack(L, level, &frame); ++level) {
    lua_getinfo(L, "Sl", &frame);
    if (frame.currentline > 0 && std::strncmp(frame.source, "=redco/", 7) != 0)
      return frame.short_src + (":" + std::to_string(frame.currentline));
  }
  return "";
}

namespace {

// Pushes `text` prefixed with the script line that called the failing function, as in Lua's errors.
void push_located(lua_State* L, const std::string& text) {
  std::string line = script_line(L);
  std::string whole = line.empty() ? text : line + ": " + text;
  lua_pushlstring(L, whole.data(), whole.size());
}

// Whether `message` is the noted error. Lua functions such as coroutine.wrap may have prefixed a
// position.
bool is_noted(lua_State* L, std::string_view message) {
  const auto& error = context(L).error;
  return !error.message.empty() && message.ends_with(error.message);
}

void note_error(lua_State* L, ScriptError::Kind kind, std::string traceback, int number = 0) {
  auto& error = context(L).error;
  error.message = lua_tostring(L, -1);
  error.kind = kind;
  error.traceback = std::move(traceback);
  error.number = number;
}

// Lua instructions are counted in units of this size. Once the limit is reached, every further unit
// raises the error again, so a script cannot catch it and continue.
constexpr int quantum = 1000;

void count_hook(lua_State* L, lua_Debug*);

// In a restricted engine the processor time since the last count replaces the number of
// instructions if the number is smaller: one instruction may join long strings, and an operator may
// take seconds.
thread_local int64_t last_look = 0;

int64_t instructions_or_time(const Context& context, int64_t instructions) {
  if (!context.is_restricted) return instructions;
  int64_t before = std::exchange(last_look, processor_time());
  return std::max(instructions, last_look - before);
}

void watch_instructions(lua_State* L) {
  const auto& instructions = context(L).instructions;
  if (instructions.limit == 0)
    lua_sethook(L, nullptr, 0, 0);
  else
    lua_sethook(L, count_hook, LUA_MASKCOUNT, instructions.left > 0 ? quantum : 1);
}

// Pushes the error of an interrupt and clears the request.
void push_interrupted(lua_State* L) {
  context(L).interrupted = false;
  watch_instructions(L);
  push_located(L, "interrupted");
  note_error(L, ScriptError::Kind::interrupted, "");
}

std::string out_of_instructions(const Context& context) {
  return "the limit of " + std::to_string(context.instructions.limit) +
         " instructions is reached, see ScriptEngine::set_instruction_limit";
}

int fail_out_of_instructions(lua_State* L) {
  push_located(L, out_of_instructions(context(L)));
  note_error(L, ScriptError::Kind::out_of_instructions, "");
  return lua_error(L);
}

thread_local Context* running_here = nullptr;

// Makes `L` the running Lua thread in its scope; Lua errors unwind it like exceptions.
class Running {
 public:
  Running(Context& context, lua_State* L)
      : context_(context), caller_(context.current), outer_(std::exchange(running_here, &context)) {
    context.current = L;
    ++context.depth;
  }
  ~Running() {
    running_here = outer_;
    context_.current = caller_;
    --context_.depth;
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  Context& context_;
  lua_State* caller_;
  Context* outer_;
};

std::string line_running_here() {
  return running_here != nullptr ? script_line(running_here->current) : "";
}

// Whether the collector calls `function`. A finalizer must not fail: its object would never be
// freed.
bool is_finalizer(lua_State* L, lua_CFunction function) {
  if (lua_type(L, 1) != LUA_TUSERDATA || !lua_getmetatable(L, 1)) return false;
  lua_pushliteral(L, "__gc");
  lua_rawget(L, -2);
  bool same = lua_tocfunction(L, -1) == function;
  lua_pop(L, 2);
  return same;
}

// Whether this state, or every state through request_interrupt, was asked to stop.
bool is_interrupted(Context& ctx) {
  try {
    if (!ctx.is_worker) check_interrupt();
  } catch (const Interrupted&) {
    ctx.interrupted = true;
  }
  return ctx.interrupted.load(std::memory_order_relaxed);
}

// Whether the function at `level` is in a loop `for ... in` over something that is not a function.
bool is_in_loop_over_value(lua_State* L, int level) {
  lua_Debug frame;
  if (!lua_getstack(L, level, &frame)) return false;
  bool found = false;
  for (int n = 1; const char* name = lua_getlocal(L, &frame, n); ++n) {
    found = found || (std::strcmp(name, "(for generator)") == 0 && !lua_isfunction(L, -1));
    lua_pop(L, 1);
  }
  return found;
}

void add_advice(lua_State* L) {
  std::string message = with_advice(lua_tostring(L, 1), is_in_loop_over_value(L, 1));
  lua_pushlstring(L, message.data(), message.size());
  lua_replace(L, 1);
}

// The traceback from `level` on, without the functions that raise errors and the address of the
// C++ code that called the script.
std::string traceback_from(lua_State* L, int level) {
  luaL_traceback(L, L, nullptr, level);
  std::istringstream all(lua_tostring(L, -1));
  lua_pop(L, 1);
  std::string text;
  for (std::string line; std::getline(all, line);) {
    if (line.starts_with("\t[C]: at ") || line == "\t[C]: in function 'fail'" ||
        line.starts_with("\tredco/fail.lua:"))
      continue;
    text += (text.empty() ? "" : "\n") + line;
  }
  return text;
}

int with_traceback(lua_State* L) {
  if (!lua_isstring(L, 1)) return 1;
  auto& error = context(L).error;
  bool noted = is_noted(L, lua_tostring(L, 1));
  if (!noted) add_advice(L);
  // An error that came through C++ already has the deeper traceback.
  if (!noted || error.traceback.empty()) {
    ScriptError::Kind kind = noted ? error.kind : ScriptError::Kind::script;
    note_error(L, kind, traceback_from(L, 1), error.number);
  }
  return 1;
}

// Destroys the context when its state closes. Finalizers run in reverse order of creation, so all
// other objects of this library are gone by then, and other finalizers need no wrapper.
int close_context(lua_State* L) {
  luaJIT_setmode(L, 0, LUAJIT_MODE_WRAPCFUNC | LUAJIT_MODE_OFF);
  static_cast<std::shared_ptr<Context>*>(lua_touserdata(L, 1))->~shared_ptr();
  return 0;
}

// The limit of nested C calls. LuaJIT has none; other Lua implementations have this one, which fits
// the stack of a thread.
constexpr int max_depth = 200;

// Every C function of the state is called through this one.
int wrapper(lua_State* L, lua_CFunction function) {
  if (function == close_context) return function(L);
  Context& ctx = context(L);
  Running running(ctx, L);
  try {
    if (is_interrupted(ctx) && !is_finalizer(L, function)) throw Interrupted();
    if (ctx.exited && function != with_traceback && !is_finalizer(L, function)) throw *ctx.exited;
    if (ctx.depth > max_depth && function != with_traceback && !is_finalizer(L, function))
      fail("stack overflow: functions of Lua and of C++ call each other without end");
    int n_results = function(L);
    if (mapped_file_failed && !is_finalizer(L, function)) check_mapped_files();
    return n_results;
  } catch (const ScriptError& error) {
    lua_pushlstring(L, error.what(), std::strlen(error.what()));
    note_error(L, error.kind(), error.traceback(), error.number());
  } catch (const UsageError& error) {
    push_located(L, text_of(error));
    note_error(L, ScriptError::Kind::usage, "");
  } catch (const Stopped& error) {
    push_located(L, error.what());
    note_error(L, ScriptError::Kind::stopped, "", error.signal());
  } catch (const Interrupted& error) {
    push_interrupted(L);
  } catch (const std::bad_alloc&) {
    push_located(L, "not enough memory");
  } catch (const std::exception& error) {
    push_located(L, text_of(error));
  }
  // LuaJIT's own errors are not std::exceptions: they propagate.
  return lua_error(L);
}

}  // namespace

std::shared_ptr<Context> open_context(lua_State* L) {
  set_call_site(line_running_here);
  auto made = std::make_shared<Context>();
  made->current = L;
  lua_pushlightuserdata(L, made.get());
  lua_rawseti(L, LUA_REGISTRYINDEX, slot_context);

  lua_pushlightuserdata(L, reinterpret_cast<void*>(&wrapper));
  luaJIT_setmode(L, -1, LUAJIT_MODE_WRAPCFUNC | LUAJIT_MODE_ON);
  lua_pop(L, 1);
  return made;
}

void open_context_of_others(lua_State* L, std::shared_ptr<Console> console) {
  lua_rawgeti(L, LUA_REGISTRYINDEX, slot_context);
  bool is_open = !lua_isnil(L, -1);
  lua_pop(L, 1);
  if (is_open) return;
  lua_newtable(L);
  lua_pushcfunction(L, close_context);
  lua_setfield(L, -2, "__gc");
  auto* held = new (lua_newuserdata(L, sizeof(std::shared_ptr<Context>))) std::shared_ptr<Context>;
  lua_insert(L, -2);
  lua_setmetatable(L, -2);
  luaL_ref(L, LUA_REGISTRYINDEX);
  *held = open_context(L);
  (*held)->console = std::move(console);
}

namespace {

void count_hook(lua_State* L, lua_Debug*) {
  Context& ctx = context(L);
  ctx.instructions.left -= instructions_or_time(ctx, quantum);
  if (is_interrupted(ctx)) {
    push_interrupted(L);
    lua_error(L);
  }
  if (ctx.instructions.left > 0) return;
  watch_instructions(L);
  fail_out_of_instructions(L);
}

}  // namespace

void limit_instructions(lua_State* L, int64_t limit) {
  context(L).instructions = {limit, limit};
  watch_instructions(L);
}

int64_t processor_time() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

void restart_step_clock() { last_look = processor_time(); }

void start_counting_instructions(lua_State* L) {
  restart_step_clock();
  // Without a limit, any hook belongs to an interrupt or to the script.
  if (int64_t limit = context(L).instructions.limit; limit != 0) limit_instructions(L, limit);
}

int take_instructions(lua_State* L) {
  auto& instructions = context(L).instructions;
  if (instructions.limit == 0) return 0;
  instructions.left -= int64_t(luaL_optnumber(L, 1, 100));
  return instructions.left > 0 ? 0 : fail_out_of_instructions(L);
}

void take_instructions(Context& context, int64_t instructions) {
  if (is_interrupted(context)) throw Interrupted();
  if (context.instructions.limit == 0) return;
  context.instructions.left -= instructions_or_time(context, instructions);
  if (context.instructions.left > 0) return;
  watch_instructions(context.current);
  std::string line = script_line(context.current);
  throw ScriptError((line.empty() ? "" : line + ": ") + out_of_instructions(context), "",
                    ScriptError::Kind::out_of_instructions);
}

int end_script(lua_State* L) {
  // As LuaJIT's: a number, or true for success.
  int code = lua_isboolean(L, 1) ? !lua_toboolean(L, 1) : int(luaL_optinteger(L, 1, 0));
  std::string line = script_line(L);
  context(L).exited.emplace(
      (line.empty() ? "" : line + ": ") + "os.exit(" + std::to_string(code) + ")", "",
      ScriptError::Kind::exited, code);
  throw *context(L).exited;
}

void interrupt_hook(lua_State* L, lua_Debug*) {
  watch_instructions(L);
  if (!is_interrupted(context(L))) return;
  push_interrupted(L);
  lua_error(L);
}

Context& context(lua_State* L) {
  lua_rawgeti(L, LUA_REGISTRYINDEX, slot_context);
  auto* found = static_cast<Context*>(lua_touserdata(L, -1));
  lua_pop(L, 1);
  return *found;
}

void call(lua_State* L, int n_args, int n_results) {
  int handler = lua_gettop(L) - n_args;
  lua_pushcfunction(L, with_traceback);
  lua_insert(L, handler);
  lua_State* current = context(L).current;
  int status = lua_pcall(L, n_args, n_results, handler);
  context(L).current = current;
  lua_remove(L, handler);
  if (status != 0) throw take_error(L);
}

ScriptError take_error(lua_State* L) {
  std::string message;
  if (lua_isstring(L, -1)) {
    message = lua_tostring(L, -1);
  } else {
    message = "an error value that is not text: " + describe(L, lua_gettop(L));
    if (luaL_getmetafield(L, -1, "__tostring")) {
      lua_pushvalue(L, -2);
      if (lua_pcall(L, 1, 1, 0) == 0 && lua_isstring(L, -1)) message = lua_tostring(L, -1);
      lua_pop(L, 1);
    }
  }
  lua_pop(L, 1);
  bool noted = is_noted(L, message);
  auto error = std::exchange(context(L).error, {});  // cleared, so that it explains no later error
  if (!noted) return ScriptError(message, "", ScriptError::Kind::script);
  return ScriptError(message, std::move(error.traceback), error.kind, error.number);
}

struct Ref::Slot {
  std::weak_ptr<Context> context;  // expired once the state is closed
  int key;

  ~Slot() {
    if (auto alive = context.lock()) luaL_unref(alive->current, LUA_REGISTRYINDEX, key);
  }
};

Ref::Ref(lua_State* L, int index) {
  lua_pushvalue(L, index);
  slot_ =
      std::shared_ptr<Slot>(new Slot{context(L).weak_from_this(), luaL_ref(L, LUA_REGISTRYINDEX)});
}

lua_State* Ref::state() const {
  auto alive = slot_->context.lock();
  require(alive != nullptr, "a Lua value was used after its engine was destroyed");
  return alive->current;
}

void Ref::push() const { lua_rawgeti(state(), LUA_REGISTRYINDEX, slot_->key); }

}  // namespace redco::lua
