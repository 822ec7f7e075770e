#pragma once

#include "../../mesh/imagined.h"

#include <redco/cluster.h>

#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace redco::plan {

using mesh::Collective;
using mesh::Library;
using mesh::MeshSize;

/// The use of a block of memory.
enum class MemoryKind : uint8_t {
  parameters,
  gradients,
  states,             ///< of the optimizer
  activation,         ///< made by the forward pass and used after the operator that made it
  temporary,          ///< freed by the operator that allocated it
  collective_buffer,  ///< input or output of a collective, or a bucket of gradients
  gathered,           ///< whole parameters, gathered from their parts
  n_kinds
};
constexpr size_t n_memory_kinds = size_t(MemoryKind::n_kinds);

/// A name for messages and reports, such as "collective buffers".
constexpr const char* name_of(MemoryKind kind) {
  constexpr std::array<const char*, n_memory_kinds> names = {
      "parameters",  "gradients",          "states",  "activations",
      "temporaries", "collective buffers", "gathered"};
  return names[size_t(kind)];
}

/// A block that is allocated or freed.
struct Allocation {
  int64_t block;  ///< identifies the block: its allocation and its release have the same number
  int64_t bytes;  ///< as requested; negative if the block is freed
  MemoryKind kind;
};

/// An operator that runs on the device. Numbers are those of this device's part.
struct Operator {
  std::string name = {};  ///< such as "aten::mm", or "copy" between operators
  /// Multiplications and additions of products, convolutions and attention, as FlopCounter counts
  /// them; 0 for all other operators.
  double flops = 0;
  bool is_recomputed = false;  ///< whether backward computes again what forward did not keep
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< in which the products are computed
  int64_t bytes_read = 0;                          ///< of all arguments
  int64_t bytes_written = 0;                       ///< of all results; 0 for views
  int64_t host_bytes_read = 0;                     ///< of arguments in the memory of the host
  int64_t host_bytes_written = 0;
  int64_t bytes_inside = 0;                ///< read and written between the parts of an operator
  double passes = 1, starts = 1;           ///< sharding::GpuCost
  ProductKind kind = ProductKind::matmul;  ///< of an operator with flops
  int64_t size = 0;                        ///< of an operator with flops: Measurements

  bool is_view() const { return flops == 0 && bytes_written == 0 && host_bytes_written == 0; }
};

/// The log of one device's training step: everything it allocates, computes and sends, in the
/// order in which the host starts it. It begins with the allocation of what exists before the step
/// (parameters, states), which stays allocated at the end.
struct StepLog {
  enum class What : uint8_t { allocation, operator_call, collective_start, collective_wait };
  /// One element of the sequence. `index` refers to `allocations`, `operators` or, for both the
  /// start and the wait, `collectives`.
  struct Event {
    What what;
    int64_t index;
  };

  /// The forward or the backward pass of a micro-batch.
  struct Pass {
    bool is_backward;
    size_t begin, end;  ///< in `sequence`
  };

  std::vector<Allocation> allocations = {};
  int64_t n_before = 0;  ///< how many of them are of what exists before the step
  std::vector<Operator> operators = {};
  std::vector<Collective> collectives = {};
  std::vector<Event> sequence = {};
  std::vector<Pass> passes = {};

  void add(const Allocation& allocation) {
    sequence.push_back({What::allocation, int64_t(allocations.size())});
    allocations.push_back(allocation);
  }
  void add(Operator call) {
    sequence.push_back({What::operator_call, int64_t(operators.size())});
    operators.push_back(std::move(call));
  }
  /// Returns the number that `wait` takes.
  int64_t start(const Collective& collective) {
    auto number = int64_t(collectives.size());
    sequence.push_back({What::collective_start, number});
    collectives.push_back(collective);
    return number;
  }
  void wait(int64_t collective) { sequence.push_back({What::collective_wait, collective}); }
};

}  // namespace redco::plan
