#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace redco::store {

/// A message between a client of the run's store and its server, which sends one answer per
/// request.
struct Message {
  enum Request : uint8_t {
    set,          ///< key, value, key, value ...
    compare_set,  ///< key, expected, desired; answer: the resulting value
    get,          ///< keys; answer: their values, or `no` if one is missing
    add,          ///< key, number; answer: the sum
    append,       ///< key, value
    remove,       ///< key; answer: whether it existed
    check,        ///< keys; answer: whether all exist
    count,        ///< answer: the number of keys
  };
  enum Answer : uint8_t { no, yes, failed /* text */ };

  uint8_t kind = 0;
  std::vector<std::string> parts = {};
};

/// The maximum bytes of a message.
constexpr size_t longest_message = size_t(64) << 20;

/// Encodes a message. Throws Error if it is too long.
std::string packed(const Message& message);

/// Removes the first message from the received bytes; none if it is incomplete. Throws Error for
/// invalid bytes.
std::optional<Message> take_message(std::string& arrived);

}  // namespace redco::store
