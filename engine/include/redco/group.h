#pragma once

#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

namespace redco {

enum class ReduceOp : uint8_t { sum, max, min };

/// A collective under way. Its result may be read, and its input changed, after `wait`. It may
/// outlive its group.
class REDCO_API Pending {
 public:
  virtual ~Pending() = default;
  /// Returns the result. Throws Error, which names the collective and the process, when one of the
  /// run failed, is gone, strayed or did not join in time; Interrupted after request_interrupt.
  /// On a GPU it returns at once. Operators that read the result on the host throw the same errors.
  virtual at::Tensor wait() = 0;
};

/// A collective that has ended.
REDCO_API std::unique_ptr<Pending> ended(at::Tensor result);

/// Collectives of one kind: how many there were, and the bytes this process sent in them.
struct Traffic {
  int64_t count = 0;
  int64_t bytes = 0;
};

/// Some of the processes of a run, which call the same collectives in the same order. One process
/// alone answers at once. Tensors are contiguous and of one shape and type on all ranks; every type
/// is moved, and every one is reduced that can be: bools by or (sum, max) and and (min), complex
/// numbers by sum alone. 16-bit floats are added in 32 bits and rounded once; a NaN in a maximum or
/// a minimum stays one.
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

  virtual const std::string& name() const = 0;  ///< "dp", "mp" or "world": for messages
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;

  /// In place: the sum, maximum or minimum over the ranks. The result is the tensor.
  virtual std::unique_ptr<Pending> start_all_reduce(at::Tensor tensor, ReduceOp op) = 0;
  /// [...] of each rank to [size, ...] on all.
  virtual std::unique_ptr<Pending> start_all_gather(at::Tensor tensor) = 0;
  /// [size, ...]: row r of every rank, reduced, to rank r: [...].
  virtual std::unique_ptr<Pending> start_reduce_scatter(at::Tensor tensor, ReduceOp op) = 0;
  /// [size, ...]: row r goes to rank r; row r of the result came from there.
  virtual std::unique_ptr<Pending> start_all_to_all(at::Tensor tensor) = 0;

  at::Tensor all_reduce(at::Tensor tensor, ReduceOp op) {
    return start_all_reduce(std::move(tensor), op)->wait();
  }
  at::Tensor all_gather(at::Tensor tensor) { return start_all_gather(std::move(tensor))->wait(); }
  at::Tensor reduce_scatter(at::Tensor tensor, ReduceOp op) {
    return start_reduce_scatter(std::move(tensor), op)->wait();
  }
  at::Tensor all_to_all(at::Tensor tensor) { return start_all_to_all(std::move(tensor))->wait(); }

  using Counters = std::array<Traffic, n_kinds>;
  const Counters& counters() const { return counters_; }

 protected:
  Counters counters_;
};

/// For how many seconds this thread has waited for collectives so far. Those on a GPU's stream are
/// not waited for.
REDCO_API double seconds_in_collectives();

/// Tells where the script is that runs on this thread, for messages about collectives:
/// `train.lua:12`, or "". The bindings set it.
REDCO_API void set_call_site(std::string (*call_site)());
/// What the function that was set last tells now; empty without one.
REDCO_API std::string call_site();

}  // namespace redco
