// Text with the origin of each byte.

#include "text.h"

#include "utf8.h"

namespace redco::text {

Text::Text(std::string_view given, size_t first, bool tracked) : tracked_(tracked), bytes_(given) {
  if (!tracked_) return;
  origins_.reserve(given.size());
  auto character = uint32_t(first);
  for (size_t i = 0; i < given.size(); ++character) {
    size_t size = character_size(given[i]);
    origins_.insert(origins_.end(), size, Span{character, character + 1});
    i += size;
  }
}

void Text::reserve(size_t size) {
  bytes_.reserve(size);
  if (tracked_) origins_.reserve(size);
}

void Text::append(std::string_view bytes, Span origin) {
  bytes_ += bytes;
  if (tracked_) origins_.insert(origins_.end(), bytes.size(), origin);
}

void Text::append(const Text& other, size_t begin, size_t end) {
  bytes_.append(other.bytes_, begin, end - begin);
  if (tracked_)
    origins_.insert(origins_.end(), other.origins_.begin() + ptrdiff_t(begin),
                    other.origins_.begin() + ptrdiff_t(end));
}

void Text::crop(size_t begin, size_t end) {
  Text kept(tracked_);
  kept.append(*this, begin, end);
  *this = std::move(kept);
}

}  // namespace redco::text
