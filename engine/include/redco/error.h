#pragma once

#include <redco/export.h>

#include <atomic>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace redco {

/// The base class of all errors of the engine. The text says where the error occurred, what was
/// expected, what was given and how to fix it.
class REDCO_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An error in how the program was called: exit code 2, where Error is 1.
class REDCO_API UsageError : public Error {
 public:
  using Error::Error;
};

/// Thrown by `check_interrupt` after `request_interrupt`: exit code 130.
class REDCO_API Interrupted : public Error {
 public:
  Interrupted() : Error("interrupted") {}
};

/// Requests the running step to stop at its next check. Safe in a signal handler and on any thread.
REDCO_API void request_interrupt() noexcept;

/// Throws Interrupted and clears the request if an interrupt was requested since the last check.
REDCO_API void check_interrupt();

/// Throws Error with the concatenated arguments as its text.
template <class... Args>
[[noreturn]] void fail(const Args&... args) {
  std::ostringstream text;
  (text << ... << args);
  throw Error(text.str());
}

/// `fail(args...)` unless `condition` holds.
template <class... Args>
void require(bool condition, const Args&... args) {
  if (!condition) [[unlikely]]
    fail(args...);
}

/// The number of edits between two words: letters added, left out, replaced or swapped with the
/// next one. Capitals count as small letters.
REDCO_API size_t edit_distance(const std::string& a, const std::string& b);

/// The candidate nearest to `word` by edit distance, or "" if none is near. Of equally near ones
/// it is the one that begins like `word` for longest, then the first in the alphabet. For
/// suggestions in messages about a misspelt name.
REDCO_API std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

template <class Names>
std::string nearest(const std::string& word, const Names& candidates) {
  return nearest(word, std::vector<std::string>(candidates.begin(), candidates.end()));
}

}  // namespace redco
