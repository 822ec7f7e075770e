#pragma once

#include "step_log.h"

#include "../../sharding/call/execution.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace redco::plan {

/// Where a block of memory was allocated.
struct BlockFacts {
  int64_t bytes = 0;
  MemoryKind kind = MemoryKind::activation;
  std::string operator_name = {};  ///< empty outside of operators
  std::string line = {};           ///< of the script, such as "train.lua:12"; empty if none runs
  bool is_backward = false;
};

/// Receives all that a planned step does, on its thread: the blocks of the device meta, operators
/// and collectives. While it exists, it is the thread's Execution: operators run on meta tensors,
/// and everything but the values is as in a run. Large tensors that a script makes have no values
/// either; they are whole tensors on `mesh`.
class Tracer final : public sharding::Execution, public mesh::CollectiveObserver {
 public:
  explicit Tracer(std::shared_ptr<const Mesh> mesh);
  ~Tracer() override;
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// The tracer of this thread; null if it has none, or something runs that is not part of the
  /// step, such as the search for a layout.
  static Tracer* current();
  /// Says whether the thread's script calls an operator: outside of a step, only tensors that a
  /// script makes have no values. Returns what was said before.
  static bool set_script_calling(bool is_calling);
  /// The tracer of this thread, whatever runs.
  static Tracer* of_thread();
  uint64_t number() const { return number_; }  ///< unique in the process

  /// While it exists, nothing is traced: what runs is not part of the step.
  class Pause {
   public:
    explicit Pause(Tracer& tracer) : tracer_(tracer) { ++tracer_.n_pauses_; }
    ~Pause() { --tracer_.n_pauses_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    Tracer& tracer_;
  };

  bool has_values() const override { return false; }
  bool is_faithful() const override { return true; }
  bool is_planned() const override { return true; }
  void before(sharding::Call&) override {}
  void run(const sharding::Call& call, const sharding::CallPlan& plan,
           torch::jit::Stack& local) override;
  void after(const sharding::Call& call, const sharding::CallPlan& plan,
             c10::ArrayRef<c10::IValue> results) override;
  void ran_on_zeros(const std::string& name) override;
  void read_value() override;

  std::optional<int64_t> started(const mesh::Collective& collective) override;
  void waited(int64_t collective) override;
  // Counts writing to a collective's memory as part of the collective's time.
  void enter() override { ++n_collectives_; }
  void leave() override { --n_collectives_; }

  /// Starts anew, with the blocks that exist now.
  void begin_step();
  /// Ends the step and returns it; `blocks` are numbered as the log's.
  struct Step {
    StepLog log;
    std::map<int64_t, BlockFacts> blocks;
    std::map<std::string, int64_t> values_read;     ///< operators that returned values, by line
    std::map<std::string, int64_t> without_shapes;  ///< operators that ran on zeros, calls
    int64_t host_bytes = 0;                         ///< of blocks that are not on the device
  };
  Step end_step();

  void begin_pass(bool is_backward);
  void end_pass();

  /// Says what the memory of a tensor is used for, from its allocation on.
  void label(const at::Tensor& tensor, MemoryKind kind);
  /// Takes the memory of a tensor for the host's, which the device uses over its link.
  void move_to_host(const at::Tensor& tensor);

  int64_t allocated(int64_t bytes);
  void freed(int64_t block);
  int64_t alive_bytes() const { return alive_bytes_; }  ///< of all blocks
  /// Whether an optimizer updates the parameters now: what it allocates is temporary.
  void set_updating(bool is_updating) { is_updating_ = is_updating; }
  /// Throws Error after this many operators in one pass of a micro-batch.
  static constexpr int64_t most_operators = 200000;

 private:
  struct Block {
    BlockFacts facts;
    int64_t operator_number;
    int64_t place;  ///< in log_.allocations; -1 before the step
  };
  MemoryKind kind_now() const;
  static bool take_over(const c10::OperatorHandle& handle, torch::jit::Stack& stack);
  bool make_tensor(const c10::OperatorHandle& handle, torch::jit::Stack& stack);
  static bool drop_values(const c10::OperatorHandle& handle, torch::jit::Stack& stack);

  uint64_t number_;
  Tracer* outer_;
  sharding::WithExecution installed_;
  c10::impl::IncludeDispatchKeyGuard sees_plain_calls_;
  sharding::PlainCalls outer_calls_;
  std::shared_ptr<const Mesh> mesh_;
  int n_pauses_ = 0, n_collectives_ = 0;
  StepLog log_;
  std::map<int64_t, Block> alive_;
  std::map<int64_t, int64_t> on_host_;  // the bytes of blocks
  std::map<int64_t, BlockFacts> ended_;
  std::map<std::string, int64_t> values_read_, without_shapes_;
  int64_t n_blocks_ = 0, n_operators_ = 0, alive_bytes_ = 0;
  int64_t n_before_pass_ = 0;  // of n_operators_
  struct Sum {
    int64_t block = -1, bytes = 0, operator_number = 0;
  } sum_;  // the last sum of two gradients
  std::string operator_name_;
  bool adds_gradients_in_place_ = false;  // whether the current operator does
  bool is_updating_ = false;
};

/// Counts the blocks of the device meta for the tracers of all threads. Called once per process,
/// by the first tracer; LibTorch's allocators are process-wide.
void count_meta_memory();
/// The number of the block that holds a tensor; -1 if it is not counted.
int64_t block_of(const at::Tensor& tensor);

}  // namespace redco::plan
