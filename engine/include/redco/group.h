#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace redco {

enum class ReduceOp : uint8_t { sum, max, min };

/// A collective in progress. After `wait` its result may be read and its input changed. It may
/// outlive its group.
class REDCO_API Pending {
 public:
  virtual ~Pending() = default;
  /// Returns the result. Throws Error, which names the collective and the process, if a process of
  /// the run failed, is gone, called a different collective or did not join in time; Interrupted
  /// after request_interrupt. On a GPU it returns at once, and operators that read the result on
  /// the host throw these errors.
  virtual at::Tensor wait() = 0;
};

/// A completed collective with this result.
REDCO_API std::unique_ptr<Pending> ended(at::Tensor result);

/// Statistics of one kind of collective: the number of calls and the bytes this process sent.
struct Traffic {
  int64_t count = 0;
  int64_t bytes = 0;
};

/// A group of processes that call the same collectives in the same order. In a group of one,
/// collectives return at once. Tensors are contiguous and have the same shape and dtype on all
/// ranks. Any dtype can be moved, and any dtype that supports the operation can be reduced: bools
/// by or (sum, max) and and (min), complex numbers by sum only. 16-bit floats are added in 32 bits
/// and rounded once; max and min propagate NaN.
class REDCO_API Group {
 public:
  enum Kind : uint8_t {
    all_reduce_kind,
    all_gather_kind,
    reduce_scatter_kind,
    all_to_all_kind,
    n_kinds
  };
  static const char* name(Kind kind);

  virtual ~Group() = default;

  virtual const std::string& name() const = 0;  ///< of its mesh dimension, or "world"
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;

  /// Reduces the tensor over the ranks in place and returns it.
  virtual std::unique_ptr<Pending> start_all_reduce(at::Tensor tensor, ReduceOp op) = 0;
  /// Gathers [...] of each rank into [size, ...] on all ranks.
  virtual std::unique_ptr<Pending> start_all_gather(at::Tensor tensor) = 0;
  /// Reduces [size, ...] over the ranks; rank r gets row r, of shape [...].
  virtual std::unique_ptr<Pending> start_reduce_scatter(at::Tensor tensor, ReduceOp op) = 0;
  /// Sends row r of [size, ...] to rank r; row r of the result is received from rank r.
  virtual std::unique_ptr<Pending> start_all_to_all(at::Tensor tensor) = 0;
  /// The same with a number of rows for each pair of ranks: sends `sent[r]`, of shape [n, ...], to
  /// rank r, and returns the rows received, [sum of n_received, ...]: `n_received[r]` from rank r,
  /// in this order. Both ranks of a pair know its number; the other sizes are equal everywhere.
  virtual std::unique_ptr<Pending> start_exchange(std::vector<at::Tensor> sent,
                                                  std::vector<int64_t> n_received) = 0;

  at::Tensor all_reduce(at::Tensor tensor, ReduceOp op) {
    return start_all_reduce(std::move(tensor), op)->wait();
  }
  at::Tensor all_gather(at::Tensor tensor) { return start_all_gather(std::move(tensor))->wait(); }
  at::Tensor reduce_scatter(at::Tensor tensor, ReduceOp op) {
    return start_reduce_scatter(std::move(tensor), op)->wait();
  }
  at::Tensor all_to_all(at::Tensor tensor) { return start_all_to_all(std::move(tensor))->wait(); }
  at::Tensor exchange(std::vector<at::Tensor> sent, std::vector<int64_t> n_received) {
    return start_exchange(std::move(sent), std::move(n_received))->wait();
  }

  using Counters = std::array<Traffic, n_kinds>;
  const Counters& counters() const { return counters_; }

 protected:
  Counters counters_;
};

/// The total seconds this thread has waited for collectives. Collectives on a GPU's stream do not
/// make it wait.
REDCO_API double seconds_in_collectives();

/// Sets the function that returns the script line this thread is executing, such as `train.lua:12`,
/// or "". Messages about collectives show it; the bindings set it.
REDCO_API void set_call_site(std::string (*call_site)());
/// Calls the function that was set last; empty if there is none.
REDCO_API std::string call_site();

}  // namespace redco
