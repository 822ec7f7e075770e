#pragma once

#include <cstdint>

namespace redco::gguf {

/// The alignment of tensors in a file that names no other.
inline constexpr uint64_t default_alignment = 32;

/// The types of values in the metadata, by their numbers.
enum ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
  n_value_types
};

}  // namespace redco::gguf
