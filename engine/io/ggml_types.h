// How tensors lie in GGUF files.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace redco::ggml {

/// A type of tensor that is read: `block_size` elements, along the last dimension, in
/// `block_bytes`.
struct Type {
  uint32_t number;
  const char* name;
  at::ScalarType dtype;  ///< of what it is read as
  int64_t block_size;
  int64_t block_bytes;
  /// Blocks [begin, end) of `source` to floats; null where the file has the elements themselves.
  void (*dequantize)(const std::byte* source, float* target, int64_t begin, int64_t end);
};

/// Null for a type that is not read.
const Type* find_type(uint32_t number);

/// "Q5_K"; "number 99" for one that does not exist.
std::string type_name(uint32_t number);

/// The names of the types that are read.
std::string known_types();

}  // namespace redco::ggml
