// Unicode for text metrics and tokenizers in Lua.
#include "unicode.h"

#include "state/registry.h"

#include <redco/detail/unicode.h>

#include <string_view>

namespace redco::lua {

namespace {

std::string_view check_text(lua_State* L) {
  size_t size = 0;
  const char* text = luaL_checklstring(L, 1, &size);
  return {text, size};
}

void push_text(lua_State* L, std::string_view text) {
  lua_pushlstring(L, text.data(), text.size());
}

int lua_lower_case(lua_State* L) {
  push_text(L, lower_case(check_text(L)));
  return 1;
}

int lua_upper_case(lua_State* L) {
  push_text(L, upper_case(check_text(L)));
  return 1;
}

int lua_general_category(lua_State* L) {
  push_text(L, general_category(check_text(L)));
  return 1;
}

}  // namespace

void add_unicode(lua_State* L) {
  register_functions(
      L, "redco.native.",
      {{"lower_case", lua_lower_case,
        "lower_case(text) -> string\n"
        "Returns a text in lower case, as Python's `str.lower` does."},
       {"upper_case", lua_upper_case,
        "upper_case(text) -> string\n"
        "Returns a text in upper case, as Python's `str.upper` does, but for rare letters whose "
        "upper case is several letters."},
       {"general_category", lua_general_category,
        "general_category(text) -> string\n"
        "Returns Unicode's general category of the first character, such as \"Lu\"; \"Cn\" if the "
        "text does not begin with a character in UTF-8."}});
}

}  // namespace redco::lua
