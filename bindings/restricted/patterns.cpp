// Lua patterns as in LuaJIT, but with counted steps. The algorithm is that of Lua 5.1's lstrlib.c
// (MIT licence, Copyright (C) 1994-2012 Lua.org, PUC-Rio).
#include "patterns.h"

#include "state/context.h"

#include <redco/error.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <string>
#include <string_view>

namespace redco::lua {

namespace {

constexpr int max_captures = 32;
constexpr int max_depth = 200;  // of nested matches
constexpr ptrdiff_t unfinished = -1, position = -2;

class Matcher {
 public:
  Matcher(lua_State* L, std::string_view subject, std::string_view pattern)
      : L_(L),
        context_(context(L)),
        begin_(subject.data()),
        end_(subject.data() + subject.size()),
        pattern_(pattern.data()),
        pattern_end_(pattern.data() + pattern.size()) {}

  // Returns the end of a match that begins at `s`, or null.
  const char* match_at(const char* s) {
    n_captures_ = depth_ = 0;
    return match(s, pattern_);
  }

  // Pushes the captures of the last match; if there are none and `s` is not null, the whole match.
  int push_captures(const char* s, const char* e) {
    int n = n_captures_ == 0 && s != nullptr ? 1 : n_captures_;
    luaL_checkstack(L_, n, "too many captures");
    for (int i = 0; i < n; ++i) push_capture(i, s, e);
    return n;
  }

  void push_capture(int i, const char* s, const char* e) {
    if (i >= n_captures_) {
      require(i == 0, "invalid capture index");
      lua_pushlstring(L_, s, size_t(e - s));
      return;
    }
    const Capture& capture = captures_[i];
    require(capture.length != unfinished, "unfinished capture");
    if (capture.length == position)
      lua_pushinteger(L_, capture.start - begin_ + 1);
    else
      lua_pushlstring(L_, capture.start, size_t(capture.length));
  }

 private:
  struct Capture {
    const char* start;
    ptrdiff_t length;
  };

  // Counts a step of a match as one Lua instruction: some instructions take as long.
  void count() {
    constexpr int64_t quantum = 1000;
    if (++n_counted_ % quantum == 0) take_steps(context_, quantum);
  }

  const char* class_end(const char* p) const {
    require(p < pattern_end_, "malformed pattern (ends with '%')");
    if (*p++ == '%') {
      require(p < pattern_end_, "malformed pattern (ends with '%')");
      return p + 1;
    }
    if (p[-1] != '[') return p;
    if (p < pattern_end_ && *p == '^') ++p;
    do {
      require(p < pattern_end_, "malformed pattern (missing ']')");
      if (*p++ == '%' && p < pattern_end_) ++p;
      require(p < pattern_end_, "malformed pattern (missing ']')");
    } while (*p != ']');
    return p + 1;
  }

  static bool is_in_class(int c, int name) {
    bool result;
    switch (std::tolower(name)) {
      case 'a':
        result = std::isalpha(c);
        break;
      case 'c':
        result = std::iscntrl(c);
        break;
      case 'd':
        result = std::isdigit(c);
        break;
      case 'g':
        result = std::isgraph(c);
        break;
      case 'l':
        result = std::islower(c);
        break;
      case 'p':
        result = std::ispunct(c);
        break;
      case 's':
        result = std::isspace(c);
        break;
      case 'u':
        result = std::isupper(c);
        break;
      case 'w':
        result = std::isalnum(c);
        break;
      case 'x':
        result = std::isxdigit(c);
        break;
      case 'z':
        result = c == 0;
        break;
      default:
        return name == c;
    }
    return std::isupper(name) ? !result : result;
  }

  // `p` points to the '[' of a set, `last` to its ']'.
  static bool is_in_set(int c, const char* p, const char* last) {
    bool found = true;
    if (p[1] == '^') {
      found = false;
      ++p;
    }
    while (++p < last) {
      auto at = static_cast<unsigned char>(*p);
      if (at == '%') {
        ++p;
        if (is_in_class(c, static_cast<unsigned char>(*p))) return found;
      } else if (p[1] == '-' && p + 2 < last) {
        p += 2;
        if (at <= c && c <= static_cast<unsigned char>(*p)) return found;
      } else if (at == c) {
        return found;
      }
    }
    return !found;
  }

  bool matches_one(const char* s, const char* p, const char* ep) {
    count();
    if (s >= end_) return false;
    int c = static_cast<unsigned char>(*s);
    switch (*p) {
      case '.':
        return true;
      case '%':
        return is_in_class(c, static_cast<unsigned char>(p[1]));
      case '[':
        return is_in_set(c, p, ep - 1);
      default:
        return static_cast<unsigned char>(*p) == c;
    }
  }

  const char* match_balance(const char* s, const char* p) {
    require(p + 1 < pattern_end_, "unbalanced pattern");
    if (s >= end_ || *s != p[0]) return nullptr;
    int depth = 1;
    for (const char* at = s + 1; at < end_; ++at) {
      count();
      if (*at == p[1]) {
        if (--depth == 0) return at + 1;
      } else if (*at == p[0]) {
        ++depth;
      }
    }
    return nullptr;
  }

  const char* max_expand(const char* s, const char* p, const char* ep) {
    ptrdiff_t i = 0;
    while (matches_one(s + i, p, ep)) ++i;
    for (; i >= 0; --i)
      if (const char* result = match(s + i, ep + 1)) return result;
    return nullptr;
  }

  const char* min_expand(const char* s, const char* p, const char* ep) {
    for (;; ++s) {
      if (const char* result = match(s, ep + 1)) return result;
      if (!matches_one(s, p, ep)) return nullptr;
    }
  }

  const char* start_capture(const char* s, const char* p, ptrdiff_t kind) {
    require(n_captures_ < max_captures, "too many captures");
    captures_[n_captures_++] = {s, kind};
    const char* result = match(s, p);
    if (result == nullptr) --n_captures_;
    return result;
  }

  const char* end_capture(const char* s, const char* p) {
    int i = n_captures_ - 1;
    while (i >= 0 && captures_[i].length != unfinished) --i;
    require(i >= 0, "invalid pattern capture");
    captures_[i].length = s - captures_[i].start;
    const char* result = match(s, p);
    if (result == nullptr) captures_[i].length = unfinished;
    return result;
  }

  const char* match_back(const char* s, int name) {
    int i = name - '1';
    require(i >= 0 && i < n_captures_ && captures_[i].length >= 0, "invalid capture index");
    const Capture& capture = captures_[i];
    count();
    if (end_ - s < capture.length) return nullptr;
    take_steps(context_, capture.length / 64);
    return std::memcmp(capture.start, s, size_t(capture.length)) == 0 ? s + capture.length
                                                                      : nullptr;
  }

  const char* match(const char* s, const char* p) {
    require(++depth_ <= max_depth, "pattern too complex");
    const char* result = match_from(s, p);
    --depth_;
    return result;
  }

  const char* match_from(const char* s, const char* p) {
    for (;;) {
      count();
      if (p == pattern_end_) return s;
      char next = p + 1 < pattern_end_ ? p[1] : '\0';
      if (*p == '(')
        return next == ')' ? start_capture(s, p + 2, position)
                           : start_capture(s, p + 1, unfinished);
      if (*p == ')') return end_capture(s, p + 1);
      if (*p == '$' && p + 1 == pattern_end_) return s == end_ ? s : nullptr;
      if (*p == '%' && next == 'b') {
        s = match_balance(s, p + 2);
        if (s == nullptr) return nullptr;
        p += 4;
        continue;
      }
      if (*p == '%' && next == 'f') {
        p += 2;
        require(p < pattern_end_ && *p == '[', "missing '[' after '%f' in pattern");
        const char* ep = class_end(p);
        int before = s == begin_ ? 0 : static_cast<unsigned char>(s[-1]);
        int after = s == end_ ? 0 : static_cast<unsigned char>(*s);
        if (is_in_set(before, p, ep - 1) || !is_in_set(after, p, ep - 1)) return nullptr;
        p = ep;
        continue;
      }
      if (*p == '%' && std::isdigit(static_cast<unsigned char>(next))) {
        s = match_back(s, next);
        if (s == nullptr) return nullptr;
        p += 2;
        continue;
      }
      const char* ep = class_end(p);
      char suffix = ep < pattern_end_ ? *ep : '\0';
      if (suffix == '*') return max_expand(s, p, ep);
      if (suffix == '+') return matches_one(s, p, ep) ? max_expand(s + 1, p, ep) : nullptr;
      if (suffix == '-') return min_expand(s, p, ep);
      bool fits = matches_one(s, p, ep);
      if (suffix == '?') {
        if (fits)
          if (const char* result = match(s + 1, ep + 1)) return result;
        p = ep + 1;
        continue;
      }
      if (!fits) return nullptr;
      ++s;
      p = ep;
    }
  }

  lua_State* L_;
  Context& context_;
  const char* begin_;
  const char* end_;
  const char* pattern_;
  const char* pattern_end_;
  int n_captures_ = 0;
  int depth_ = 0;
  int64_t n_counted_ = 0;
  Capture captures_[max_captures];
};

std::string_view check_text(lua_State* L, int index) {
  size_t size;
  const char* text = luaL_checklstring(L, index, &size);
  return {text, size};
}

// Removes the anchor from the pattern. Returns whether there was one.
bool take_anchor(std::string_view& pattern) {
  bool is_anchored = pattern.starts_with('^');
  if (is_anchored) pattern.remove_prefix(1);
  return is_anchored;
}

size_t start_of(lua_State* L, int index, size_t size) {
  auto init = ptrdiff_t(luaL_optnumber(L, index, 1));
  if (init < 0) init += ptrdiff_t(size) + 1;
  if (init < 1) init = 1;
  return std::min(size_t(init) - 1, size);
}

template <bool is_find>
int search(lua_State* L) {
  std::string_view subject = check_text(L, 1), pattern = check_text(L, 2);
  size_t start = start_of(L, 3, subject.size());
  if (is_find && (lua_toboolean(L, 4) || pattern.find_first_of("^$*+?.([%-") == pattern.npos)) {
    take_steps(context(L), int64_t((subject.size() - start) / 16));
    size_t found = subject.find(pattern, start);
    if (found == subject.npos) {
      lua_pushnil(L);
      return 1;
    }
    lua_pushinteger(L, static_cast<lua_Integer>(found) + 1);
    lua_pushinteger(L, static_cast<lua_Integer>(found + pattern.size()));
    return 2;
  }
  bool is_anchored = take_anchor(pattern);
  Matcher matcher(L, subject, pattern);
  const char* end = subject.data() + subject.size();
  for (const char* s = subject.data() + start; s <= end; ++s) {
    if (const char* e = matcher.match_at(s)) {
      if (!is_find) return matcher.push_captures(s, e);
      lua_pushinteger(L, s - subject.data() + 1);
      lua_pushinteger(L, e - subject.data());
      return 2 + matcher.push_captures(nullptr, nullptr);
    }
    if (is_anchored) break;
  }
  lua_pushnil(L);
  return 1;
}

// Upvalues: the subject, the pattern, the position at which to continue.
int next_match(lua_State* L) {
  std::string_view subject = check_text(L, lua_upvalueindex(1)),
                   pattern = check_text(L, lua_upvalueindex(2));
  Matcher matcher(L, subject, pattern);
  const char* end = subject.data() + subject.size();
  for (const char* s = subject.data() + lua_tointeger(L, lua_upvalueindex(3)); s <= end; ++s) {
    const char* e = matcher.match_at(s);
    if (e == nullptr) continue;
    lua_pushinteger(L, (e == s ? e + 1 : e) - subject.data());
    lua_replace(L, lua_upvalueindex(3));
    return matcher.push_captures(s, e);
  }
  return 0;
}

int gmatch(lua_State* L) {
  check_text(L, 1);
  check_text(L, 2);
  lua_settop(L, 2);
  lua_pushinteger(L, 0);
  lua_pushcclosure(L, next_match, 3);
  return 1;
}

// Pushes the replacement of a match from `s` to `e`, given argument 3.
void push_replacement(lua_State* L, Matcher& matcher, const char* s, const char* e) {
  int type = lua_type(L, 3);
  if (type == LUA_TTABLE) {
    matcher.push_capture(0, s, e);
    lua_gettable(L, 3);
  } else if (type == LUA_TFUNCTION) {
    lua_pushvalue(L, 3);
    lua_call(L, matcher.push_captures(s, e), 1);
  } else {
    std::string_view text = check_text(L, 3);
    luaL_Buffer buffer;
    luaL_buffinit(L, &buffer);
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '%' || ++i >= text.size() ||
          !std::isdigit(static_cast<unsigned char>(text[i]))) {
        if (i < text.size()) luaL_addchar(&buffer, text[i]);
      } else if (text[i] == '0') {
        luaL_addlstring(&buffer, s, size_t(e - s));
      } else {
        matcher.push_capture(text[i] - '1', s, e);
        luaL_addvalue(&buffer);
      }
    }
    luaL_pushresult(&buffer);
  }
  if (!lua_toboolean(L, -1)) {
    lua_pop(L, 1);
    lua_pushlstring(L, s, size_t(e - s));
  } else if (!lua_isstring(L, -1)) {
    fail("invalid replacement value (a ", luaL_typename(L, -1), ")");
  }
}

int gsub(lua_State* L) {
  std::string_view subject = check_text(L, 1), pattern = check_text(L, 2);
  int type = lua_type(L, 3);
  luaL_argcheck(
      L, type == LUA_TNUMBER || type == LUA_TSTRING || type == LUA_TFUNCTION || type == LUA_TTABLE,
      3, "string/function/table expected");
  double most = luaL_optnumber(L, 4, double(subject.size()) + 1);
  bool is_anchored = take_anchor(pattern);
  Matcher matcher(L, subject, pattern);
  const char* s = subject.data();
  const char* end = s + subject.size();
  int n = 0;
  luaL_Buffer buffer;
  luaL_buffinit(L, &buffer);
  while (n < most) {
    const char* e = matcher.match_at(s);
    if (e != nullptr) {
      ++n;
      push_replacement(L, matcher, s, e);
      luaL_addvalue(&buffer);
    }
    if (e != nullptr && e > s)
      s = e;
    else if (s < end)
      luaL_addchar(&buffer, *s++);
    else
      break;
    if (is_anchored) break;
  }
  luaL_addlstring(&buffer, s, size_t(end - s));
  luaL_pushresult(&buffer);
  lua_pushinteger(L, n);
  return 2;
}

}  // namespace

void push_counted_patterns(lua_State* L) {
  lua_newtable(L);
  constexpr luaL_Reg functions[] = {
      {"find", search<true>}, {"match", search<false>}, {"gmatch", gmatch}, {"gsub", gsub}};
  for (const luaL_Reg& each : functions) {
    lua_pushcfunction(L, each.func);
    lua_setfield(L, -2, each.name);
  }
}

}  // namespace redco::lua
