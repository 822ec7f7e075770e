// Shared by the files about redco.Tokenizer.

#pragma once

#include "state/object.h"

#include <redco/tokenizer.h>

#include <lua.hpp>

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace redco::lua {

struct LuaTokenizer {
  static constexpr const char* lua_name = "Tokenizer";
  static constexpr bool is_thread_safe = true;
  explicit LuaTokenizer(Tokenizer made) : tokenizer(std::move(made)) {}
  Tokenizer tokenizer;
  /// Held by calls: worker threads may encode while a script adds tokens.
  std::shared_mutex mutex;

  std::string described() const { return "vocab_size = " + std::to_string(tokenizer.vocab_size()); }
};

/// The tokenizer of a method, locked for reading or for writing.
template <class Lock>
class Self {
 public:
  explicit Self(lua_State* L)
      : object_(check_object<LuaTokenizer>(L, 1, "Tokenizer method")), lock_(object_->mutex) {}

  auto& tokenizer() const {
    if constexpr (std::is_same_v<Lock, std::unique_lock<std::shared_mutex>>)
      return object_->tokenizer;
    else
      return std::as_const(object_->tokenizer);
  }

 private:
  std::shared_ptr<LuaTokenizer> object_;
  Lock lock_;
};
using Reading = Self<std::shared_lock<std::shared_mutex>>;
using Writing = Self<std::unique_lock<std::shared_mutex>>;

/// The string at `index`; errors begin with `what`.
std::string check_text(lua_State* L, int index, const std::string& what);

/// The same for a list of strings, or one string.
std::vector<std::string> check_texts(lua_State* L, int index, const std::string& what);

/// "left" or "right".
Side check_side(const std::string& what, const std::string& side);

inline void push_text(lua_State* L, const std::string& text) {
  lua_pushlstring(L, text.data(), text.size());
}

template <class T, class Push>
void push_list(lua_State* L, const std::vector<T>& values, Push push) {
  lua_createtable(L, int(values.size()), 0);
  for (size_t i = 0; i < values.size(); ++i) {
    push(L, values[i]);
    lua_rawseti(L, -2, int(i) + 1);
  }
}

/// The metamethods: fields of a Tokenizer, and the number of its tokens.
int tokenizer_field(lua_State* L);
int set_tokenizer_field(lua_State* L);
int count_tokens(lua_State* L);

int add_tokens(lua_State* L);
extern const char* const add_tokens_text;
int add_special_tokens(lua_State* L);
extern const char* const add_special_tokens_text;

}  // namespace redco::lua
