// The tensors that a checkpointed function reads; backward runs the function again.

#pragma once

#include "state/context.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace redco::lua {

/// The tensors that operators of a function read, and the version of each at its first read. A
/// second run must read the same versions. Tensors that the first run makes and the second makes
/// anew do not count.
class TensorReads {
 public:
  void note(const at::Tensor& tensor);  ///< in the first run
  void end_first_run();
  void begin_second_run();
  void compare(const at::Tensor& tensor);  ///< in the second run

  /// A sentence about a tensor that was written in place since the first run read it, or by the
  /// first run itself; empty if there is none. Names it as the function does, whose arguments
  /// these are.
  std::string difference(const Ref& function, const std::vector<Ref>& args) const;

 private:
  using Impl = c10::TensorImpl;
  struct Read {
    c10::weak_intrusive_ptr<Impl, c10::UndefinedTensorImpl> impl;  // keeps the address, not memory
    uint32_t version;
    uint32_t version_after_run = 0;
    bool is_compared = false;
  };
  std::unordered_map<const Impl*, Read> reads_;
  at::Tensor changed_;
  Read* change_ = nullptr;
};

}  // namespace redco::lua
