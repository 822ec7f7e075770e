#pragma once

#include "../../io/atomic_file.h"

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

/// Throws Error for a tensor that cannot be written to `path`. Checks only properties that are
/// equal on all processes.
void check_tensor(const std::string& path, const Tensors::value_type& item);

/// Sorts tensors in the order of the format, in which each is aligned.
void sort_by_dtype(std::vector<const Tensors::value_type*>& items);

/// The header of a file of these tensors, preceded by its size. Error messages name `path`.
std::string header_of(const std::string& path, const std::vector<const Tensors::value_type*>& items,
                      const Metadata& metadata);

/// Writes files together with all processes of a mesh, or from a single process. All processes
/// gather each tensor, the first one writes it, and it is dropped. A failure there does not stop
/// the first process from joining the collectives of the others: the next `agree` reports it.
class Writer {
 public:
  explicit Writer(std::shared_ptr<const Mesh> mesh);

  /// Writes and syncs one file, for `commit`. The pointers must stay valid for the call.
  void write(const std::string& path, std::vector<const Tensors::value_type*> items,
             const Metadata& metadata);

  /// Runs `step` on the first process, unless something failed before.
  void on_first(const std::function<void()>& step);

  /// Renames the written files to their final names, in order.
  void commit();

  /// Throws Error on every process if something failed on the first.
  void agree();

 private:
  std::shared_ptr<const Mesh> mesh_;
  bool is_first_;
  std::exception_ptr failure_;
  std::vector<std::unique_ptr<io::AtomicFile>> files_;
};

}  // namespace redco::safetensors
