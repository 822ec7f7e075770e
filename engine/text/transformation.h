#pragma once

#include "text.h"
#include "utf8.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace redco::text {

/// Builds a text from another one, character by character. Each new character replaces the next old
/// one (0), is inserted (1), or also covers n removed ones (-n).
class Transformation {
 public:
  explicit Transformation(const Text& from) : from_(from) { bytes_.reserve(from.size()); }

  /// Appends a new character.
  void append_character(std::string_view character, ptrdiff_t change) {
    bytes_ += character;
    if (from_.tracked()) changes_.push_back(change);
  }

  /// Appends `replacement` for `n_old` characters. Removed characters without a replacement are
  /// attributed to the previous character; at the start, as in `tokenizers`, they are not counted.
  void append(size_t n_old, std::string_view replacement) {
    bytes_ += replacement;
    if (!from_.tracked()) return;
    auto more = ptrdiff_t(count_characters(replacement));
    changes_.insert(changes_.end(), size_t(more), 0);
    more -= ptrdiff_t(n_old);
    if (more > 0) std::fill(changes_.end() - more, changes_.end(), 1);
    if (more < 0 && !changes_.empty()) changes_.back() += more;
  }

  Text result() const {
    Text text(from_.tracked());
    if (!from_.tracked()) {
      text.append(bytes_, {});
      return text;
    }
    text.reserve(bytes_.size());
    size_t at = 0, i = 0;
    for (ptrdiff_t change : changes_) {
      size_t size = character_size(bytes_[i]);
      Span none;
      Span origin = change <= 0 ? from_.origin(at) : at > 0 ? from_.origin(at - 1) : none;
      text.append(std::string_view(bytes_).substr(i, size), origin);
      i += size;
      for (; change <= 0 && at < from_.size(); ++change) at += character_size(from_.bytes()[at]);
    }
    return text;
  }

 private:
  const Text& from_;
  std::string bytes_;
  std::vector<ptrdiff_t> changes_;  ///< of each new character; empty if not tracked
};

}  // namespace redco::text
