#pragma once

#include "atomic_file.h"

#include <redco/mesh.h>

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace redco::safetensors {

using Tensors = std::map<std::string, at::Tensor>;
using Metadata = std::map<std::string, std::string>;

/// Throws Error for a tensor that cannot be written to `path`. Asks nothing that differs between
/// processes.
void check_tensor(const std::string& path, const Tensors::value_type& item);

/// In the order in which the format's files have them, so that each is aligned.
void sort_by_dtype(std::vector<const Tensors::value_type*>& items);

/// What a file of these tensors begins with: the header's size and the header, for messages of
/// `path`.
std::string header_of(const std::string& path, const std::vector<const Tensors::value_type*>& items,
                      const Metadata& metadata);

/// Writes files with all processes of a mesh, or with this one alone. Each tensor is brought
/// together by all and dropped after; the first process writes. A failure there does not keep it
/// from the collectives that the others have begun: it is told at the next `agree`.
class Writer {
 public:
  explicit Writer(std::shared_ptr<const Mesh> mesh);

  /// Writes and syncs one file, for `commit`. The pointers must stay valid for the call.
  void write(const std::string& path, std::vector<const Tensors::value_type*> items,
             const Metadata& metadata);

  /// Does `step` on the first process, unless something failed before.
  void on_first(const std::function<void()>& step);

  /// Gives the files that were written their names, in order.
  void commit();

  /// Throws Error on every process if something failed on the first.
  void agree();

 private:
  std::shared_ptr<const Mesh> mesh_;
  bool is_first_;
  std::exception_ptr failure_;
  std::vector<std::unique_ptr<AtomicFile>> files_;
};

}  // namespace redco::safetensors
