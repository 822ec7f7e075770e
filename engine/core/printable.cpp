// Escapes text of other processes.

#include <redco/detail/printable.h>

#include <utf8proc.h>

#include <cstdint>

namespace redco {

std::string printable(std::string_view text) {
  constexpr const char* digits = "0123456789abcdef";
  std::string shown;
  while (!text.empty()) {
    utf8proc_int32_t letter = -1;
    auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                              static_cast<utf8proc_ssize_t>(text.size()), &letter);
    size_t size = n > 0 ? size_t(n) : 1;
    bool is_shown = n > 0 && (letter == '\n' || letter == '\t' ||
                              utf8proc_category(letter) != UTF8PROC_CATEGORY_CC);
    if (is_shown) {
      shown += text.substr(0, size);
    } else {
      for (char each : text.substr(0, size)) {
        auto byte = uint8_t(each);
        shown += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
      }
    }
    text.remove_prefix(size);
  }
  return shown;
}

}  // namespace redco
