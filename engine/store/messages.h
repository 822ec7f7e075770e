#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace redco {

/// What the clients of a run's store and its server send each other, one answer to each request.
struct Message {
  enum Request : uint8_t {
    set,          ///< key, value, key, value ...
    compare_set,  ///< key, expected, desired; answer: the value after it
    get,          ///< keys; answer: their values, or `no` where one is missing
    add,          ///< key, number; answer: the sum
    append,       ///< key, value
    remove,       ///< key; answer: whether it was there
    check,        ///< keys; answer: whether all are there
    count,        ///< answer: how many keys there are
  };
  enum Answer : uint8_t { no, yes, failed /* text */ };

  uint8_t kind = 0;
  std::vector<std::string> parts = {};
};

/// The most bytes of a message.
constexpr size_t longest_message = size_t(64) << 20;

/// Throws Error for one that is too long.
std::string packed(const Message& message);

/// Takes the first message out of what has arrived; none while it is not whole. Throws Error for
/// what is no message.
std::optional<Message> take_message(std::string& arrived);

}  // namespace redco
