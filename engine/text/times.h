#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace redco::text {

/// A part of a text that Whisper wrote: a time as "<|1.20|>", or tokens between times.
struct TimedPart {
  std::string time;
  std::vector<int64_t> ids;
};

/// Whether a token is a time, "<|1.20|>".
bool is_shown_time(std::string_view token);

/// Splits tokens at those of times, of which `first_time` is 0 and each next one is 0.02 s later.
/// Times that fall begin a new window of 30 s, and are shown from the beginning of the sound. As in
/// transformers' WhisperTokenizer.
std::vector<TimedPart> split_at_times(const std::vector<int64_t>& ids, int64_t first_time,
                                      const std::function<bool(int64_t id)>& is_time);

}  // namespace redco::text
