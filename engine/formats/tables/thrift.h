#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace redco::io {

/// Reads values of Thrift's compact protocol, in which Parquet stores its metadata
/// (https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md). Values that
/// the caller does not read are skipped. Throws Error, beginning with `where`, for damaged bytes.
class ThriftReader {
 public:
  ThriftReader(const std::string& where, std::string_view bytes) : where_(where), bytes_(bytes) {}

  /// Reads a struct: calls `field` with the number of each field, which may read the field's value
  /// by one of the functions below.
  void read_struct(const std::function<void(int64_t number)>& field);
  /// Reads a list: calls `element` for each element, which may read the element.
  void read_list(const std::function<void()>& element);
  int64_t read_integer();
  bool read_boolean();
  std::string_view read_bytes();

  size_t position() const { return at_; }

 private:
  void expect(bool is_right, const char* kind) const;
  uint8_t next();
  uint64_t varint();
  std::string_view take(uint64_t size);
  void read_fields(const std::function<void(int64_t number)>& field);
  void skip();

  const std::string& where_;
  std::string_view bytes_;
  size_t at_ = 0;
  int depth_ = 0;
  uint8_t type_ = 12;     // of the value that comes next; at first a struct
  bool is_next_ = true;   // whether that value is not yet read
  bool in_list_ = false;  // in a list booleans are bytes; in a field the type is the value
};

}  // namespace redco::io
