#pragma once

#include <redco/export.h>
#include <redco/mesh.h>
#include <redco/tree.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace redco {

/// A model file of llama.cpp in GGUF versions 2 and 3, little-endian: metadata, then tensors, many
/// of them quantised in blocks (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
///
/// Opening the file reads and checks everything except the data, which is mapped. A file that
/// violates the format, or has a tensor of an unsupported type, raises an Error that names the
/// file, the tensor or key, and the reason. The file must not be truncated or written in place
/// while the object or its tensors exist.
class REDCO_API GgufFile {
 public:
  explicit GgufFile(const std::string& path);

  const std::string& path() const { return path_; }
  /// Values by key ("general.architecture"): numbers, booleans, strings and lists of these.
  const Tree::Dict& metadata() const { return metadata_; }
  /// The names of the tensors in byte order.
  std::vector<std::string> keys() const;
  bool contains(const std::string& name) const { return entries_.count(name) != 0; }

  /// The dtype that `tensor` returns: float32 for a quantised tensor.
  at::ScalarType dtype(const std::string& name) const;
  /// The shape in PyTorch's order, which is the reverse of the file's.
  const std::vector<int64_t>& shape(const std::string& name) const { return entry(name).shape; }

  /// The tensor, on the CPU and contiguous. F32, F16 and BF16 tensors are mapped, as those of
  /// SafetensorsFile are; quantised ones are dequantised into new memory. Throws Error, with the
  /// nearest name, if there is no tensor of this name.
  at::Tensor tensor(const std::string& name) const;
  /// The name of a quantised tensor's BlockType (redco/quantized.h); null for others.
  const char* quantized_type(const std::string& name) const;
  /// The blocks of a quantised tensor, mapped. Throws Error for another.
  at::Tensor blocks(const std::string& name) const;

 private:
  struct Entry {
    uint32_t type;  ///< ggml's type number
    std::vector<int64_t> shape;
    size_t begin;  ///< first byte, counted from the start of the data
  };

  const Entry& entry(const std::string& name) const;
  /// Returns the offset at which the data begins in the file.
  size_t parse(const std::byte* bytes, size_t size);

  std::string path_;
  Tree::Dict metadata_;
  std::map<std::string, Entry> entries_;
  std::shared_ptr<std::byte> data_;  ///< owns the mapping
};

/// A value of a file's metadata. `type` is "u32", "i32", "f32", "bool" or "string", or "u32[]" and
/// so on for a list of these.
struct GgufValue {
  std::string key;
  std::string type;
  Tree value;
};

class Tokenizer;

/// The metadata of a tokenizer, with `n_tokens` tokens: as many as an embedding has rows. Throws
/// Error for kinds of tokenizers that the files do not have, and for more tokens.
REDCO_API std::vector<GgufValue> gguf_tokenizer(const Tokenizer& tokenizer, int64_t n_tokens);

/// A tensor to be written: its type, "f32", "f16", "bf16" or that of a BlockType, and its shape in
/// PyTorch's order, counted in numbers.
struct GgufTensor {
  std::string name;
  std::string type;
  std::vector<int64_t> shape;
};

/// Writes a model file of llama.cpp in GGUF version 3, tensor by tensor, together with all
/// processes of a mesh or from a single process. The file appears under its name when it is
/// complete; without a commit nothing is left, and an earlier file stays. A failure of the first
/// process to write does not stop it from joining collectives: `commit` reports it on all.
class REDCO_API GgufWriter {
 public:
  /// Throws Error for values and tensors that the format lacks.
  GgufWriter(std::string path, const std::vector<GgufValue>& metadata,
             std::vector<GgufTensor> tensors, std::shared_ptr<const Mesh> mesh);
  ~GgufWriter();

  /// Appends the next tensor, or a part of it along the first dimension: numbers of the dtype, or
  /// blocks of uint8. All processes gather one that is sharded. Throws Error for another dtype
  /// or size than is expected.
  void add(const at::Tensor& part);
  /// Completes the file. Throws Error if tensors are missing.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace redco
