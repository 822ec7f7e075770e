#include "checkpoint.h"

#include "context.h"
#include "tensor.h"
#include "values.h"

#include <redco/error.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <utility>
#include <vector>

namespace redco::lua {

namespace {

using torch::autograd::SavedVariableHooks;

// A generator and the state it had when the checkpointed function first met it.
struct GeneratorState {
  at::Generator generator;
  at::Tensor state;
};

// One call of a checkpointed function. What its operators save is numbered in order; the second
// run saves in the same order, so a number finds its tensor.
class Checkpoint : public std::enable_shared_from_this<Checkpoint> {
 public:
  Checkpoint(Ref function, std::vector<Ref> args)
      : function_(std::move(function)), args_(std::move(args)) {}

  void met(const at::Generator& generator) {
    for (const auto& known : generators_)
      if (known.generator == generator) return;
    generators_.push_back({generator, generator.get_state()});
  }

  size_t n_saved() const { return n_saved_; }
  size_t next_number() { return n_saved_++; }

  // The tensor saved under `number`; it is given away, for it is seldom asked for twice.
  at::Tensor take(size_t number) {
    if (number >= recomputed_.size() || !recomputed_[number].defined()) recompute();
    return std::exchange(recomputed_[number], at::Tensor());
  }

  void record(const at::Tensor& tensor) { recomputed_.push_back(tensor.detach()); }

 private:
  void recompute();

  Ref function_;
  std::vector<Ref> args_;
  std::vector<GeneratorState> generators_;
  size_t n_saved_ = 0;
  std::vector<at::Tensor> recomputed_;
};

struct Run {
  std::shared_ptr<Checkpoint> checkpoint;
  bool again;
};

thread_local std::vector<Run> runs;

class RunScope {
 public:
  explicit RunScope(Run run) { runs.push_back(std::move(run)); }
  ~RunScope() { runs.pop_back(); }
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;
};

// In the first run a saved tensor is replaced by its number.
class Forget : public SavedVariableHooks {
 public:
  explicit Forget(std::shared_ptr<Checkpoint> checkpoint) : checkpoint_(std::move(checkpoint)) {}
  void call_pack_hook(const at::Tensor&) override { number_ = checkpoint_->next_number(); }
  at::Tensor call_unpack_hook() override { return checkpoint_->take(number_); }

 private:
  std::shared_ptr<Checkpoint> checkpoint_;
  size_t number_ = 0;
};

// In the second run saved tensors are collected; the history they belong to is thrown away.
class Collect : public SavedVariableHooks {
 public:
  explicit Collect(Checkpoint& checkpoint) : checkpoint_(checkpoint) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    checkpoint_.record(tensor);
    tensor_ = tensor.detach();
  }
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  Checkpoint& checkpoint_;
  at::Tensor tensor_;
};

// LibTorch asks its engine for hooks whenever an operator saves a tensor; only Python's engine
// has any, so this one supplies ours.
class HookingEngine : public torch::autograd::Engine {
 public:
  static torch::autograd::Engine& instance() {
    static auto* engine = new HookingEngine;  // outlives every thread that may run backward
    return *engine;
  }

  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (runs.empty()) return nullptr;
    const Run& run = runs.back();
    if (run.again) return std::make_unique<Collect>(*run.checkpoint);
    return std::make_unique<Forget>(run.checkpoint);
  }
};

void Checkpoint::recompute() {
  std::vector<GeneratorState> now;
  for (auto& [generator, state] : generators_) {
    now.push_back({generator, generator.get_state()});
    generator.set_state(state);
  }
  recomputed_.clear();
  recomputed_.reserve(n_saved_);
  {
    at::AutoGradMode record(true);
    RunScope scope({shared_from_this(), true});
    lua_State* L = function_.state();
    StackGuard guard(L);
    luaL_checkstack(L, static_cast<int>(args_.size()) + 4, "checkpoint");
    function_.push();
    for (const Ref& arg : args_) arg.push();
    call(L, static_cast<int>(args_.size()), 0);
  }
  for (auto& [generator, state] : now) generator.set_state(state);
  require(recomputed_.size() >= n_saved_, "redco.checkpoint: the function saved ", n_saved_,
          " tensors in its first run and ", recomputed_.size(),
          " when it was run again; it must do the same both times");
}

}  // namespace

void about_to_draw(const at::Generator& generator) {
  if (!runs.empty() && !runs.back().again) runs.back().checkpoint->met(generator);
}

int checkpoint(lua_State* L) {
  require(lua_isfunction(L, 1), "redco.checkpoint: expected a function to call, got ",
          describe(L, 1));
  static const bool installed = [] {
    torch::autograd::set_default_engine_stub(&HookingEngine::instance);
    return true;
  }();
  (void)installed;
  int n_args = lua_gettop(L) - 1;
  std::vector<Ref> args;
  for (int i = 2; i <= n_args + 1; ++i) args.emplace_back(L, i);
  auto run = std::make_shared<Checkpoint>(Ref(L, 1), std::move(args));
  run->met(at::detail::getDefaultCPUGenerator());
  RunScope scope({run, false});
  call(L, n_args, LUA_MULTRET);
  return lua_gettop(L);
}

}  // namespace redco::lua
