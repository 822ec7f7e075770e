#pragma once

#include <redco/export.h>
#include <redco/tree.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace redco {

/// A type of quantized numbers: blocks of `size` neighbouring elements in `bytes` bytes, which
/// include the scales. A quantized weight [out, in] is a tensor [out, in / size, bytes] of uint8:
/// it is moved, saved and split between blocks as any other tensor.
struct BlockType {
  const char* name;  ///< "q4_k"
  int32_t ggml;      ///< its number in GGUF files, or -1
  int64_t size, bytes;

  double bits() const { return 8 * double(bytes) / double(size); }  ///< of an element
};

REDCO_API const std::vector<BlockType>& block_types();
/// Null for an unknown name or number.
REDCO_API const BlockType* find_block_type(const std::string& name);
REDCO_API const BlockType* find_ggml_block_type(uint32_t number);

/// Rounds a tensor [..., in] to numbers of a type: [..., in / size, bytes]. `importance` [in] has
/// the weights of the squares of the errors, such as the mean squares of a layer's inputs; types of
/// GGUF but q8_0 fit their scales to it. Throws Error for an `in` that the blocks do not divide,
/// for values that are not finite or beyond 65504, the largest scale, and for an importance that is
/// negative or not finite.
REDCO_API at::Tensor quantize(const at::Tensor& tensor, const std::string& type,
                              const std::optional<at::Tensor>& importance = {});

/// The values of quantized numbers [..., n, bytes] as [..., n size]. Throws Error if `bytes` is not
/// that of the type.
REDCO_API at::Tensor dequantize(const at::Tensor& blocks, const std::string& type,
                                at::ScalarType dtype = at::kFloat);

/// Computes x weight^T + bias with a quantized weight [out, n, bytes]; x [..., n size]. The weight
/// is never whole in memory: some outputs at a time are dequantized. For few rows without a
/// gradient, packed bytes are read once. Differentiable in x and bias.
REDCO_API at::Tensor quantized_linear(const at::Tensor& x, const at::Tensor& blocks,
                                      const std::string& type,
                                      const std::optional<at::Tensor>& bias = {});

/// The types of the quantized weights of a tree by path: a text X_type names that of X.
REDCO_API std::map<std::string, const BlockType*> quantized_weights(const Tree& params);

/// The numbers of all tensors of a tree, those of tied ones once: elements, or numbers in blocks.
/// With `counts`, only of the tensors for which it returns true.
REDCO_API int64_t count_numbers(const Tree& params,
                                const std::function<bool(const at::Tensor&)>& counts = nullptr);

}  // namespace redco
