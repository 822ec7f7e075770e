#pragma once

#include <redco/export.h>
#include <redco/tree.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace redco {

/// A safetensors file: 8 bytes of little-endian header length N, N bytes of JSON that give each
/// tensor's dtype, shape and bytes, then the data without a gap
/// (https://huggingface.co/docs/safetensors, "Format").
///
/// Opening reads and checks the header and maps the rest; the data is read from the disk where a
/// tensor is used. A file that breaks any rule of the format is an Error that names the file, what
/// is wrong in it and what was expected. The file must not be shortened or written in place while
/// its tensors live; replacing it, as `save_safetensors` does, is safe.
class REDCO_API SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return path_; }
  /// The names of the tensors, ordered by their bytes.
  std::vector<std::string> keys() const;
  bool contains(const std::string& name) const { return entries_.count(name) != 0; }
  /// What the writer noted beside the tensors; empty when it noted nothing.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Looked up in the header, without touching the data. Throw Error when there is no such tensor.
  at::ScalarType dtype(const std::string& name) const { return entry(name).dtype; }
  const std::vector<int64_t>& shape(const std::string& name) const { return entry(name).shape; }

  /// Its first byte in the file.
  size_t offset(const std::string& name) const { return data_begin_ + entry(name).begin; }

  /// The tensor, on the CPU and contiguous. It lies in the mapped file, which it keeps alive, and
  /// is copied only where the file does not align it for its dtype. Writing to it is allowed and
  /// never changes the file, but shows in other tensors this object gave out under the same name.
  /// Throws Error, with the nearest name, when there is no such tensor, and when a byte of a
  /// boolean tensor is neither 0 nor 1.
  at::Tensor tensor(const std::string& name) const;

 private:
  struct Entry {
    at::ScalarType dtype;
    std::vector<int64_t> shape;
    size_t begin;  ///< first byte, counted from the start of the data
    size_t end;    ///< one past the last
  };

  const Entry& entry(const std::string& name) const;
  void parse_header(std::string_view header, size_t data_size);

  std::string path_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
  size_t data_begin_ = 0;            ///< the bytes of the header, its length included
  std::shared_ptr<std::byte> data_;  ///< the first byte after them; owns the mapping
};

/// Writes tensors of any device, layout in memory and dtype the format knows, one copied to the
/// CPU at a time; bytes and order are those of the reference implementation. The file appears
/// whole or not at all: it is written under another name in the same folder, synced and renamed,
/// so an earlier file of this name stays as it was until the new one is complete.
/// Where a tensor is sharded every process must call it: each tensor is brought together in its
/// turn and dropped after, the first process writes, and the call returns when the file is there,
/// or throws on every process. Throws Error for a path that cannot be written (a full disk too), a
/// tensor that is undefined, not dense or of a dtype the format lacks (complex, quantized), the
/// reserved name
/// "__metadata__", and text that is not UTF-8.
REDCO_API void save_safetensors(const std::string& path,
                                const std::map<std::string, at::Tensor>& tensors,
                                const std::map<std::string, std::string>& metadata = {});

/// Writes a tree as safetensors, readable by any program that reads those. Tensors are named by
/// their place as in `named_tensors`; where two places read the same ("a.b" and b inside a), the
/// second gets "#2". The rest of the tree is JSON in the metadata under "redco.tree". Sharded
/// tensors are written as `save_safetensors` does. Throws Error as it does, and for a tree nested
/// deeper than 500 levels.
REDCO_API void save_tree(const std::string& path, const Tree& tree);

/// The tree that `save_tree` wrote, the same in every key, kind, number and tensor, except that all
/// tensors are on the CPU. A file of another writer is a dictionary of its tensors by their names,
/// dots included. The tensors lie in the mapped file as those of SafetensorsFile do.
REDCO_API Tree load_tree(const std::string& path);

}  // namespace redco
