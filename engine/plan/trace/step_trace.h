#pragma once

#include "tracer.h"

#include <redco/moves.h>
#include <redco/trainer.h>

#include <map>
#include <string>

namespace redco::plan {

/// How a training step is spread over devices.
struct TracedLayout {
  MeshSize mesh;
  Library library = Library::gloo;
  int64_t zero = 0;
  bool sequence_parallel = false;
  Recompute recompute = Recompute::none;
  int64_t per_device_batch_size = 1;
  int64_t n_accumulated = 1;  ///< micro-batches of a step
};

/// A program that trains: what a Trainer is made from, and its examples.
struct TracedProgram {
  TrainerOptions options;  ///< params: any tensors of the right shapes, whole; they are not read
  Dataset examples;
};

/// Whole tensors without values, of the shapes of `tensors`. Tied ones stay tied.
Tree whole_on_meta(const Tree& tensors, const std::shared_ptr<Mesh>& mesh);

using Collectives = std::map<std::string, Group::Counters>;  // by group

struct StepTrace {
  Tracer::Step step;
  Collectives collectives;     ///< of the step
  Collectives of_micro_batch;  ///< those of the first micro-batch's passes
  int64_t n_parameters = 0;    ///< elements of the whole model
  bool has_blocks = false;     ///< whether the loss marks blocks (RecomputeBlocks)
  std::vector<ShardingDecision> decisions = {};    ///< how the parameters are split
  std::vector<StageDecisions::Stage> stages = {};  ///< of a pipeline
};

/// Adds `more` as often as `times` says.
void add(Collectives& sum, const Collectives& more, int64_t times);

/// While it exists, nothing that this thread calls concerns the other processes of a run
/// (REDCO_CHECK_SPMD), or its report.
class Unlogged {
 public:
  Unlogged();
  ~Unlogged();
  Unlogged(const Unlogged&) = delete;
  Unlogged& operator=(const Unlogged&) = delete;

 private:
  bool was_on_;
  MoveCounters moves_;
};

/// Runs steps of the program's Trainer on tensors without values, on an imagined mesh, and returns
/// the second, or of step `n_steps`. If Lua frees the garbage of several steps at
/// once, it is the step that begins with the most. Throws what the program throws.
REDCO_API StepTrace trace_step(const TracedProgram& program, const TracedLayout& layout,
                               int64_t n_steps = 2);

}  // namespace redco::plan
