// Times among the tokens that Whisper writes.
#include "times.h"

#include <cstdio>

namespace redco::text {

namespace {

std::string shown(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "<|%.2f|>", seconds);
  return text;
}

}  // namespace

bool is_shown_time(std::string_view token) {
  if (!token.starts_with("<|") || !token.ends_with("|>") || token.size() < 7) return false;
  token = token.substr(2, token.size() - 4);
  size_t point = token.find('.');
  return point != token.npos && point > 0 && point + 1 < token.size() &&
         token.find_first_not_of("0123456789.") == token.npos &&
         token.find('.', point + 1) == token.npos;
}

std::vector<TimedPart> split_at_times(const std::vector<int64_t>& ids, int64_t first_time,
                                      const std::function<bool(int64_t id)>& is_time) {
  constexpr double step = 0.02, window = step * 1500;
  std::vector<TimedPart> parts(1);
  double start = 0, last = 0, last_but_one = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!is_time(ids[i])) {
      parts.back().ids.push_back(ids[i]);
      continue;
    }
    double time = double(ids[i] - first_time) * step;
    if (time < last) {
      if (i >= 2 && !(is_time(ids[i - 1]) && is_time(ids[i - 2]))) {
        start += window;
      } else {
        // The second time of the pair began a segment that was not finished.
        last = last_but_one;
        start += last_but_one;
        parts.pop_back();
      }
    }
    last_but_one = last;
    last = time;
    parts.push_back({.time = shown(time + start), .ids = {}});
  }
  return parts;
}

}  // namespace redco::text
