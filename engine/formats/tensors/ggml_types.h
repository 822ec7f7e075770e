// The storage types of tensors in GGUF files.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace redco::ggml {

/// A supported tensor type: blocks of `block_size` elements, along the last dimension, in
/// `block_bytes` bytes.
struct Type {
  uint32_t number;
  const char* name;
  at::ScalarType dtype;  ///< of the resulting tensor
  int64_t block_size;
  int64_t block_bytes;
  const char* quantized = nullptr;  ///< the name of its BlockType; null for plain elements
};

/// Nothing for an unsupported type.
std::optional<Type> find_type(uint32_t number);

/// The type of this name in lower case, "q5_k"; nothing for an unsupported one.
std::optional<Type> find_type_by_name(const std::string& name);

/// "Q5_K"; "number 99" for one that does not exist.
std::string type_name(uint32_t number);

/// The names of the supported types.
std::string known_types();

}  // namespace redco::ggml
