#include <redco/detail/name_pattern.h>

#include <string_view>

namespace redco {

namespace {

bool matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] == '*') {
    for (size_t skip = 0; skip <= text.size(); ++skip)
      if (matches(pattern.substr(1), text.substr(skip))) return true;
    return false;
  }
  return !text.empty() && text[0] == pattern[0] && matches(pattern.substr(1), text.substr(1));
}

}  // namespace

bool matches_name(const std::string& pattern, const std::string& name) {
  if (matches(pattern, name)) return true;
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
    if (matches(pattern, std::string_view(name).substr(dot + 1))) return true;
  return false;
}

}  // namespace redco
