// Thrift's compact protocol.

#include "thrift.h"

#include <redco/error.h>

namespace redco::io {

namespace {

enum Type : uint8_t {
  stop = 0,
  true_value = 1,
  false_value = 2,
  byte = 3,
  int16 = 4,
  int32 = 5,
  int64 = 6,
  float64 = 7,
  binary = 8,
  list = 9,
  set = 10,
  map = 11,
  structure = 12,
  uuid = 13,
};

constexpr int max_thrift_depth = 32;  // Parquet's metadata has 7

int64_t signed_of(uint64_t zigzag) { return int64_t(zigzag >> 1) ^ -int64_t(zigzag & 1); }

}  // namespace

void ThriftReader::expect(bool is_right, const char* kind) const {
  require(is_right && is_next_, where_, "its metadata is damaged: at byte ", at_,
          " there is a value of type ", int(type_), ", expected ", kind);
}

std::string_view ThriftReader::take(uint64_t size) {
  require(size <= bytes_.size() - at_, where_,
          "its metadata is damaged or cut short: it ends inside a value");
  at_ += size;
  return bytes_.substr(at_ - size, size);
}

uint8_t ThriftReader::next() { return uint8_t(take(1)[0]); }

uint64_t ThriftReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    uint8_t byte = next();
    value |= uint64_t(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  fail(where_, "its metadata is damaged: a number at byte ", at_, " is too long");
}

void ThriftReader::read_fields(const std::function<void(int64_t number)>& field) {
  require(++depth_ <= max_thrift_depth, where_, "its metadata is nested more than ",
          max_thrift_depth, " deep");
  int64_t number = 0;
  while (uint8_t head = next()) {
    number = head >> 4 == 0 ? signed_of(varint()) : number + (head >> 4);
    type_ = head & 15;
    is_next_ = true;
    in_list_ = false;
    field(number);
    if (is_next_) skip();
  }
  --depth_;
  is_next_ = false;
}

void ThriftReader::read_struct(const std::function<void(int64_t number)>& field) {
  expect(type_ == structure, "a struct");
  read_fields(field);
}

void ThriftReader::read_list(const std::function<void()>& element) {
  expect(type_ == list || type_ == set, "a list");
  require(++depth_ <= max_thrift_depth, where_, "its metadata is nested more than ",
          max_thrift_depth, " deep");
  uint8_t head = next();
  uint8_t type = head & 15;
  uint64_t size = head >> 4 == 15 ? varint() : head >> 4;
  // Each element has at least one byte.
  require(size <= bytes_.size() - at_, where_, "its metadata is damaged: a list of ", size,
          " values at byte ", at_, " is longer than the metadata");
  for (uint64_t i = 0; i < size; ++i) {
    type_ = type;
    is_next_ = true;
    in_list_ = true;
    element();
    if (is_next_) skip();
  }
  --depth_;
  is_next_ = false;
}

int64_t ThriftReader::read_integer() {
  expect(type_ >= byte && type_ <= int64, "an integer");
  is_next_ = false;
  return type_ == byte ? int8_t(next()) : signed_of(varint());
}

bool ThriftReader::read_boolean() {
  expect(type_ == true_value || type_ == false_value, "a boolean");
  is_next_ = false;
  return in_list_ ? next() == true_value : type_ == true_value;
}

std::string_view ThriftReader::read_bytes() {
  expect(type_ == binary, "a string");
  is_next_ = false;
  return take(varint());
}

void ThriftReader::skip() {
  switch (type_) {
    case true_value:
    case false_value:
      read_boolean();
      break;
    case byte:
    case int16:
    case int32:
    case int64:
      read_integer();
      break;
    case float64:
      take(8);
      break;
    case uuid:
      take(16);
      break;
    case binary:
      read_bytes();
      break;
    case list:
    case set:
      read_list([] {});
      break;
    case structure:
      read_fields([](int64_t) {});
      break;
    case map: {
      uint64_t size = varint();
      require(size == 0, where_, "its metadata has a map, which Parquet has not");
      break;
    }
    default:
      fail(where_, "its metadata is damaged: at byte ", at_, " there is no type ", int(type_));
  }
  is_next_ = false;
}

}  // namespace redco::io
