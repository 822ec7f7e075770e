// Pipeline parallelism: passes of a model whose blocks are on several stages.
//
// Every process runs the whole function, but computes only what its own stage has. A tensor that a
// stage computes is on that stage's mesh (Mesh::of_stage). On the processes of other stages it has
// its shape, its placements and its part in autograd's graph, but no values, and an operator on it
// takes microseconds. Outside of a pass a parameter is on the rank of its stage along pp.

#pragma once

#include <redco/export.h>
#include <redco/group.h>
#include <redco/mesh.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

namespace redco {

namespace sharding {
class StagedCalls;
}

/// A forward pass of a function, and its backward pass. An operator on tensors of several stages
/// gets them at the last of these, which is differentiable: backward sends the gradients to where
/// the tensors came from. With one stage it does nothing.
class REDCO_API StagedPass {
 public:
  enum Order : uint8_t {
    as_written,  ///< all processes run it at the same point: a value that is read is sent to all
    scheduled,   ///< stages run it, and its backward, at different times: values cannot be read
  };
  /// With `computing`, this process computes only what that stage has: the others are computed in
  /// other passes of the function.
  StagedPass(const std::shared_ptr<const Mesh>& run, Order order,
             std::optional<int64_t> computing = std::nullopt);
  ~StagedPass();
  StagedPass(const StagedPass&) = delete;
  StagedPass& operator=(const StagedPass&) = delete;

  /// A digest of what the forward passes have called and drawn, for a pass that computes one stage.
  /// It is the same for all passes of a function that does the same each time.
  uint64_t digest() const { return digest_; }
  /// Before this thread's function draws from a generator.
  static void note_draw(const at::Generator& generator);

  /// Waits until other stages have received what the pass has sent them.
  void wait();

  /// The thread runs the pass while it exists.
  class REDCO_API Running {
   public:
    explicit Running(StagedPass& pass, bool is_backward = false);
    ~Running();
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    struct Scope;
    std::unique_ptr<Scope> scope_;
  };

 private:
  friend class sharding::StagedCalls;

  std::shared_ptr<const Mesh> run_;
  Order order_;
  std::optional<int64_t> computing_;
  std::vector<std::unique_ptr<Pending>> sends_;
  bool is_backward_ = false;
  uint64_t digest_ = 0;
  int64_t current_ = 0;  // the stage of the last operator that had one
  // The moved tensors, by tensor, stage, and whether autograd recorded the move.
  using Key = std::tuple<const void*, int64_t, bool>;
  struct MovedTensor {
    at::Tensor from;
    int64_t version;  // of `from`
    at::Tensor result;
  };
  std::map<Key, MovedTensor> moved_;
  std::set<uint64_t> seen_;  // the memory of tensors that all stages have, as put on one stage
};

/// While it exists, this stage computes operators whose parameters all stages have, until an
/// operator reads a tensor of another stage. With it, a function that backward computes again
/// begins on the stage on which it began at first.
class REDCO_API StageOfOthers {
 public:
  explicit StageOfOthers(int64_t stage);
  ~StageOfOthers();
  StageOfOthers(const StageOfOthers&) = delete;
  StageOfOthers& operator=(const StageOfOthers&) = delete;

  static int64_t now();  ///< of this thread's pass; 0 without one

 private:
  StagedPass* pass_;
  int64_t outer_;
};

/// The first gradient of a backward pass from `value`, on the stage of that.
REDCO_API at::Tensor first_gradient_of(const at::Tensor& value, const at::Tensor& gradient);

}  // namespace redco
