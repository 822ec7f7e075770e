#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace redco::text {

/// Iterates over the fields of a protobuf message
/// (https://protobuf.dev/programming-guides/encoding): number, wire type, value.
class ProtobufFields {
 public:
  /// `where` begins error messages and must outlive this.
  ProtobufFields(const std::string& where, std::string_view message)
      : where_(where), rest_(message) {}

  /// Advances to the next field; returns false at the end. Throws Error for invalid bytes.
  bool next();

  uint64_t number() const { return number_; }
  /// The value, as the type in the message's definition; throws Error if the wire type differs.
  std::string_view bytes() const;
  uint64_t varint() const;
  bool boolean() const { return varint() != 0; }
  float float32() const;

 private:
  enum WireType : uint64_t { is_varint = 0, is_64_bit = 1, is_bytes = 2, is_32_bit = 5 };

  uint64_t read_varint();
  std::string_view take(uint64_t size);
  void expect(WireType type) const;

  const std::string& where_;
  std::string_view rest_;
  uint64_t number_ = 0;
  uint64_t type_ = 0;
  uint64_t integer_ = 0;
  std::string_view bytes_;
};

}  // namespace redco::text
