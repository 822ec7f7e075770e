// Truncation of texts and pairs, and the parts that overflow.

#include "truncation.h"

#include <redco/error.h>

#include <algorithm>

namespace redco::text {

namespace {

Encoding slice(const Encoding& text, size_t begin, size_t end) {
  auto part = [&](const auto& list) {
    using List = std::decay_t<decltype(list)>;
    if (list.empty()) return List();
    return List(list.begin() + ptrdiff_t(begin), list.begin() + ptrdiff_t(end));
  };
  Encoding result;
  result.ids = part(text.ids);
  result.tokens = part(text.tokens);
  result.offsets = part(text.offsets);
  return result;
}

std::vector<Encoding> cut(const Encoding& text, size_t length, Side side,
                          const EncodeOptions& options) {
  size_t n = text.ids.size();
  if (n <= length) return {text};
  if (!options.with_overflow)
    return {side == Side::right ? slice(text, 0, length) : slice(text, n - length, n)};
  auto stride = size_t(options.stride);
  require(stride < length, "stride is ", stride, ", but only ", length,
          " tokens of the text fit in max_length: the parts must be longer than what they share");
  std::vector<Encoding> parts;
  size_t step = length - stride;
  if (side == Side::right) {
    for (size_t begin = 0;; begin += step) {
      size_t end = std::min(begin + length, n);
      parts.push_back(slice(text, begin, end));
      if (end == n) return parts;
    }
  }
  for (size_t end = n;; end -= step) {
    size_t begin = end > length ? end - length : 0;
    parts.push_back(slice(text, begin, end));
    if (begin == 0) return parts;
  }
}

// Cuts first the longer of two lengths and then both.
void cut_longest_first(std::vector<size_t>& lengths, size_t room) {
  if (lengths.size() == 1) {
    lengths[0] = room;
    return;
  }
  size_t a = lengths[0], b = lengths[1];
  size_t shorter = std::min(a, b);
  size_t longer = shorter > room ? shorter : std::max(shorter, room - shorter);
  if (shorter + longer > room) {
    shorter = room / 2;
    longer = shorter + room % 2;
  }
  lengths[0] = a <= b ? shorter : longer;
  lengths[1] = a <= b ? longer : shorter;
}

}  // namespace

std::vector<std::vector<Encoding>> truncate(const std::vector<Encoding>& texts, size_t room,
                                            Side side, const EncodeOptions& options) {
  require(options.stride >= 0, "stride is ", options.stride, ", expected at least 0");
  std::vector<size_t> lengths;
  size_t total = 0;
  for (const Encoding& text : texts) {
    lengths.push_back(text.ids.size());
    total += text.ids.size();
  }
  if (room == 0) {
    lengths.assign(texts.size(), 0);
  } else if (total > room && options.truncation == Truncation::longest_first) {
    cut_longest_first(lengths, room);
  } else if (total > room) {
    size_t cut_text = options.truncation == Truncation::only_first ? 0 : 1;
    require(cut_text < texts.size(), "truncation is only_second, but there is no text_pair");
    size_t extra = total - room, n = lengths[cut_text];
    require(n > extra, "the ", cut_text == 0 ? "first" : "second", " text has ", n, " tokens, and ",
            extra, " must be removed to fit max_length: use truncation = \"longest_first\"");
    lengths[cut_text] -= extra;
  }
  std::vector<std::vector<Encoding>> parts;
  for (size_t i = 0; i < texts.size(); ++i)
    parts.push_back(cut(texts[i], lengths[i], side, options));
  return parts;
}

}  // namespace redco::text
