// Reads protobuf messages.

#include "protobuf.h"

#include <redco/error.h>

#include <bit>

namespace redco::text {

std::string_view ProtobufFields::take(uint64_t size) {
  require(size <= rest_.size(), where_, "a field of ", size, " bytes, of which ", rest_.size(),
          " are left: the file is damaged or not protobuf");
  std::string_view taken = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return taken;
}

uint64_t ProtobufFields::read_varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    auto byte = static_cast<unsigned char>(take(1)[0]);
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
  fail(where_, "a number of more than 64 bits: the file is damaged or not protobuf");
}

bool ProtobufFields::next() {
  if (rest_.empty()) return false;
  uint64_t key = read_varint();
  number_ = key >> 3;
  type_ = key & 7;
  switch (type_) {
    case is_varint:
      integer_ = read_varint();
      return true;
    case is_64_bit:
      bytes_ = take(8);
      return true;
    case is_bytes:
      bytes_ = take(read_varint());
      return true;
    case is_32_bit:
      bytes_ = take(4);
      return true;
    default:
      fail(where_, "field ", number_, " has the wire type ", type_,
           ": the file is damaged or not protobuf");
  }
}

void ProtobufFields::expect(WireType type) const {
  require(type_ == type, where_, "field ", number_, " has the wire type ", type_, ", expected ",
          uint64_t(type));
}

std::string_view ProtobufFields::bytes() const {
  expect(is_bytes);
  return bytes_;
}

uint64_t ProtobufFields::varint() const {
  expect(is_varint);
  return integer_;
}

float ProtobufFields::float32() const {
  expect(is_32_bit);
  uint32_t bits = 0;
  for (size_t i = 4; i-- > 0;) bits = bits << 8 | static_cast<unsigned char>(bytes_[i]);
  return std::bit_cast<float>(bits);
}

}  // namespace redco::text
