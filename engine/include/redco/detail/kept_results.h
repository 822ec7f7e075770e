// Keeps results of a function that backward runs again, so that the second run reuses them.

#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace c10 {
class OperatorHandle;
}

namespace redco {

/// The results of those operators of a function that cost much to compute for their size: products
/// with weights, attention over many positions (selective recomputation, arXiv 2205.05198). The
/// function's second run takes them, in the order in which the first computed them, and calls the
/// other operators.
class REDCO_API KeptResults {
 public:
  enum class Pass { first, second };

  /// While it exists, this thread runs the function. Null `results`: a function that keeps none.
  class REDCO_API Scope {
   public:
    Scope(KeptResults* results, Pass pass);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    KeptResults* outer_;
    Pass outer_pass_;
    c10::impl::IncludeDispatchKeyGuard sees_calls_;
  };

  /// The floating-point operations of a result that is kept, for each of its bytes; for tests,
  /// whose models are small.
  static void set_least_flops(double per_byte);

  /// The results of the function that this thread runs; null: none.
  static KeptResults* current();

  /// For the implementation of sharding: of each product and each attention. `take` replaces the
  /// arguments on the stack by the results that the first run kept; false: there are none, call the
  /// operator.
  bool take(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  /// In a first run: keeps the results on the stack, which cost so many floating-point operations,
  /// if that is much for their size.
  void keep(const c10::OperatorHandle& op, const torch::jit::Stack& stack, double flops);
  /// Of each call: some results are other names of kept ones, and their writes are counted apart.
  void look_at(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

  /// In the first run: what was computed so far is needed in the second.
  void need_all() { n_needed_ = calls_.size(); }
  /// At the end of the first run: drops the results that came after.
  void drop_unneeded() { calls_.resize(n_needed_); }

 private:
  // A count of writes, and its value when the results were computed.
  struct Writes {
    c10::VariableVersion counter;
    uint32_t number;
  };
  struct Call {
    const void* op = nullptr;          // its schema's address
    std::vector<c10::IValue> results;  // empty: not kept
    std::vector<Writes> writes = {};
  };
  void count_writes(Call& call, const at::Tensor& tensor);

  std::vector<Call> calls_;
  std::unordered_map<const void*, size_t> call_of_memory_;
  size_t next_ = 0, n_needed_ = 0;
};

}  // namespace redco
