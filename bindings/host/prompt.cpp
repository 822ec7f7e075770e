// Prompt, on top of the Lua module redco.repl.session.

#include <redco/prompt.h>

#include "state/context.h"
#include "state/values.h"

#include <redco/error.h>

#include <lua.hpp>

namespace redco {

struct Prompt::Impl {
  ScriptEngine& engine;
  lua::Ref session;

  // Calls a method of the session and leaves its results on the stack.
  template <class... Args>
  void call(lua_State* L, const char* method, int n_results, const Args&... args) {
    session.push();
    lua_getfield(L, -1, method);
    lua_insert(L, -2);
    (push(L, args), ...);
    lua::call(L, 1 + int(sizeof...(args)), n_results);
  }

 private:
  static void push(lua_State* L, const std::string& text) {
    lua_pushlstring(L, text.data(), text.size());
  }
  static void push(lua_State* L, size_t number) {
    lua_pushinteger(L, static_cast<lua_Integer>(number));
  }
};

namespace {

std::string text_at(lua_State* L, int index) {
  size_t size = 0;
  const char* text = lua_tolstring(L, index, &size);
  return text == nullptr ? "" : std::string(text, size);
}

std::string text_field(lua_State* L, const char* name) {
  return lua::balanced(L, [&] {
    lua_getfield(L, -1, name);
    return text_at(L, -1);
  });
}

bool bool_field(lua_State* L, const char* name) {
  return lua::balanced(L, [&] {
    lua_getfield(L, -1, name);
    return lua_toboolean(L, -1) != 0;
  });
}

}  // namespace

Prompt::Prompt(ScriptEngine& engine, const PromptOptions& options)
    : impl_(std::make_unique<Impl>(Impl{.engine = engine, .session = {}})) {
  lua::protect(engine.state(), [&](lua_State* L) {
    lua_getfield(L, LUA_GLOBALSINDEX, "require");
    lua_pushliteral(L, "redco.repl.session");
    lua::call(L, 1, 1);
    lua_getfield(L, -1, "new");
    lua_newtable(L);
    lua_pushinteger(L, static_cast<lua_Integer>(options.width));
    lua_setfield(L, -2, "width");
    lua_pushboolean(L, options.colors);
    lua_setfield(L, -2, "colors");
    lua_pushlstring(L, options.line_separator.data(), options.line_separator.size());
    lua_setfield(L, -2, "line_separator");
    lua::call(L, 1, 1);
    impl_->session = lua::Ref(L, -1);
  });
}

Prompt::~Prompt() = default;

Prompt::Fed Prompt::feed(const std::string& lines) {
  Fed fed{Status::more, ""};
  lua::protect(impl_->engine.state(), [&](lua_State* L) {
    impl_->call(L, "feed", 2, lines);
    std::string status = text_at(L, -2);
    fed.chunk = text_at(L, -1);
    fed.status = status == "quit" ? Status::quit : status == "chunk" ? Status::chunk : Status::more;
  });
  return fed;
}

std::string Prompt::forget() {
  std::string lines;
  lua::protect(impl_->engine.state(), [&](lua_State* L) {
    impl_->call(L, "forget", 1);
    lines = text_at(L, -1);
  });
  return lines;
}

Prompt::Answer Prompt::run(const std::string& chunk) {
  Answer answer;
  lua_State* state = impl_->engine.state();
  try {
    lua::protect(state, [&](lua_State* L) {
      impl_->call(L, "run", 1, chunk);
      answer = {text_field(L, "text"), text_field(L, "message"), text_field(L, "traceback"),
                text_field(L, "hint"), bool_field(L, "is_help")};
    });
  } catch (const ScriptError& error) {  // while formatting the values
    if (error.kind() == ScriptError::Kind::stopped) throw;
    answer.message = error.what();
  }
  lua::context(state).interrupted = false;
  lua_sethook(state, nullptr, 0, 0);
  try {
    check_interrupt();
  } catch (const Interrupted&) {
  }
  return answer;
}

Prompt::Completion Prompt::complete(const std::string& line, size_t cursor) const {
  Completion completion{cursor};
  lua::protect(impl_->engine.state(), [&](lua_State* L) {
    impl_->call(L, "complete", 3, line, cursor);
    completion.start = size_t(lua_tointeger(L, -3)) - 1;
    completion.is_file = !lua_isnil(L, -1);
    lua_pop(L, 1);
    for (int i = 1; i <= int(lua_objlen(L, -1)); ++i) {
      lua_rawgeti(L, -1, i);
      completion.candidates.push_back(text_at(L, -1));
      lua_pop(L, 1);
    }
  });
  return completion;
}

void Prompt::set_width(size_t columns) {
  lua::protect(impl_->engine.state(), [&](lua_State* L) {
    impl_->session.push();
    lua_getfield(L, -1, "options");
    lua_pushinteger(L, static_cast<lua_Integer>(columns));
    lua_setfield(L, -2, "width");
  });
}

}  // namespace redco
