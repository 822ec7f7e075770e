// Encodes and decodes the messages of the run's store.

#include "messages.h"

#include <redco/error.h>

#include <string_view>

namespace redco::store {

namespace {

// A length is four bytes, little-endian. A message starts with the length of the rest, and each
// part with its own length.
constexpr size_t length_size = 4;

std::string packed_length(size_t length) {
  std::string bytes;
  for (size_t i = 0; i < length_size; ++i) bytes += char(length >> (8 * i) & 255);
  return bytes;
}

size_t take_length(std::string_view& bytes) {
  require(bytes.size() >= length_size, "a message of the run's store is cut off");
  size_t length = 0;
  for (size_t i = 0; i < length_size; ++i) length |= size_t(uint8_t(bytes[i])) << (8 * i);
  bytes.remove_prefix(length_size);
  return length;
}

}  // namespace

std::string packed(const Message& message) {
  std::string body(1, char(message.kind));
  for (const std::string& part : message.parts) {
    require(body.size() + length_size + part.size() <= longest_message, "a message of more than ",
            longest_message, " bytes is too long for the store of a run");
    body += packed_length(part.size()) + part;
  }
  return packed_length(body.size()) + body;
}

std::optional<Message> take_message(std::string& arrived) {
  if (arrived.size() < length_size) return std::nullopt;
  std::string_view rest = arrived;
  size_t length = take_length(rest);
  require(length > 0 && length <= longest_message, "a message of the run's store has ", length,
          " bytes");
  if (rest.size() < length) return std::nullopt;
  rest = rest.substr(0, length);
  Message message{.kind = uint8_t(rest.front())};
  rest.remove_prefix(1);
  while (!rest.empty()) {
    size_t size = take_length(rest);
    require(size <= rest.size(), "a message of the run's store is cut off");
    message.parts.emplace_back(rest.substr(0, size));
    rest.remove_prefix(size);
  }
  arrived.erase(0, length_size + length);
  return message;
}

}  // namespace redco::store
