// redco.checkpoint: recomputes activations in the backward pass instead of saving them.

#include "recompute.h"

#include "state/context.h"
#include "state/tensor.h"
#include "state/values.h"
#include "tensor_reads.h"

#include <redco/autocast.h>
#include <redco/detail/kept_results.h>
#include <redco/detail/recomputing.h>
#include <redco/detail/staged_pass.h>
#include <redco/error.h>
#include <redco/float8.h>
#include <redco/random.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <exception>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redco::lua {

namespace {

using torch::autograd::SavedVariableHooks;

// A generator, and its state when the checkpointed function first used it.
struct GeneratorState {
  at::Generator generator;
  at::Tensor state;
};

// Rewinds generators for a scope and restores them at its end.
class RewindScope {
 public:
  explicit RewindScope(const std::vector<GeneratorState>& then) {
    for (const auto& [generator, state] : then) {
      now_.push_back({generator, generator.get_state()});
      now_.back().generator.set_state(state);
    }
  }
  ~RewindScope() {
    for (auto& [generator, state] : now_) generator.set_state(state);
  }
  RewindScope(const RewindScope&) = delete;
  RewindScope& operator=(const RewindScope&) = delete;

 private:
  std::vector<GeneratorState> now_;
};

// The properties of a tensor that will be recomputed.
struct Meta {
  explicit Meta(const at::Tensor& tensor) : sizes(tensor.sizes()), dtype(tensor.scalar_type()) {}
  bool fits(const at::Tensor& tensor) const {
    return tensor.sizes() == at::IntArrayRef(sizes) && tensor.scalar_type() == dtype;
  }
  c10::SmallVector<int64_t, 5> sizes;
  c10::ScalarType dtype;
};

// Ends the second run of a function early.
struct StopRecomputing : std::exception {
  const char* what() const noexcept override { return "backward has all that it needs"; }
};

// The number of transforms, such as vmap, that the thread is inside of.
int64_t transform_depth() {
  const auto layer = at::functorch::maybeCurrentDynamicLayer();
  return layer ? layer->layerId() : 0;
}

// One call of a checkpointed function. The tensors that its operators save are numbered in order;
// the second run saves them in the same order.
class Checkpoint : public std::enable_shared_from_this<Checkpoint> {
 public:
  Checkpoint(Ref function, std::vector<Ref> args, Recompute recompute)
      : function_(std::move(function)), args_(std::move(args)), rng_(WithRng::current()) {
    if (recompute == Recompute::selective) kept_.emplace();
    met(at::detail::getDefaultCPUGenerator());
    if (rng_.defined()) met(rng_);
  }

  void met(const at::Generator& generator) {
    for (const auto& known : generators_)
      if (known.generator == generator) return;
    generators_.push_back({generator, generator.get_state()});
  }

  // Returns the number of a saved tensor.
  size_t note(const at::Tensor& tensor) {
    saved_.emplace_back(tensor);
    if (kept_) kept_->need_all();
    return saved_.size() - 1;
  }

  // Returns and releases the tensor saved under `number`, which is rarely needed twice.
  at::Tensor take(size_t number) {
    if (number >= recomputed_.size() || !recomputed_[number].defined()) recompute();
    return std::exchange(recomputed_[number], at::Tensor());
  }

  // Throws when backward has all that it needs: the rest of the function need not run again.
  void record(const at::Tensor& tensor) {
    if (!is_complete()) recomputed_.push_back(tensor.detach());
    if (is_complete()) throw StopRecomputing();
  }
  bool is_complete() const { return recomputed_.size() == saved_.size(); }

  // Whether the function now calls `redco.grad` or `redco.vmap`. Operators inside of them save
  // tensors for a backward pass that the function runs itself.
  bool is_within_function() const { return transform_depth() > transform_depth_; }

  TensorReads& reads() { return reads_; }
  KeptResults* kept() { return kept_ ? &*kept_ : nullptr; }

 private:
  void recompute();
  std::string difference_of_runs() const;

  Ref function_;
  std::vector<Ref> args_;
  at::Generator rng_;  // default generator of the first run
  int64_t transform_depth_ = transform_depth();
  int64_t stage_ = StageOfOthers::now();
  // The state of autocast in the first run.
  std::optional<at::ScalarType> cpu_dtype_ = autocast_dtype(at::kCPU);
  std::optional<at::ScalarType> gpu_dtype_ = autocast_dtype(at::kCUDA);
  bool has_float8_products_ = Float8Products::are_on();
  std::vector<GeneratorState> generators_;
  TensorReads reads_;
  std::vector<Meta> saved_;
  std::vector<at::Tensor> recomputed_;
  std::optional<KeptResults> kept_;
};

struct Run {
  std::shared_ptr<Checkpoint> checkpoint;
  bool again;
};

thread_local std::vector<Run> runs;

void read_argument(const c10::IValue& value) {
  if (value.isTensor())
    about_to_read(value.toTensor());
  else if (value.isList())
    for (const c10::IValue& element : value.toListRef()) read_argument(element);
}

// Operators such as empty_like and new_zeros read only sizes and types.
bool reads_values(std::string_view name) {
  return !name.ends_with("_like") && !name.starts_with("aten::new_");
}

// Sees each operator that a script or a TorchScript module calls. Below autograd LibTorch's kernels
// call others, on tensors whose writes are not counted.
std::unique_ptr<at::ObserverContext> on_call(const at::RecordFunction& call) {
  bool is_inner = c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView);
  // Threads that LibTorch starts inherit the callback.
  if (runs.empty() || is_inner || !reads_values(call.name())) return nullptr;
  for (const c10::IValue& input : call.inputs()) read_argument(input);
  return nullptr;
}

class RunScope {
 public:
  explicit RunScope(Run run) {
    if (runs.empty())
      handle_ =
          at::addThreadLocalCallback(at::RecordFunctionCallback(on_call).needsInputs(true).scopes(
              {at::RecordScope::FUNCTION}));
    if (run.again) run.checkpoint->reads().begin_second_run();
    // A checkpoint inside another's first run leaves the results to that one.
    if (run.again || run.checkpoint->kept())
      keeping_.emplace(run.checkpoint->kept(),
                       run.again ? KeptResults::Pass::second : KeptResults::Pass::first);
    runs.push_back(std::move(run));
  }
  ~RunScope() {
    const Run& run = runs.back();
    if (!run.again) {
      run.checkpoint->reads().end_first_run();
      if (KeptResults* kept = run.checkpoint->kept()) kept->drop_unneeded();
    }
    runs.pop_back();
    if (runs.empty()) at::removeCallback(handle_);
  }
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

 private:
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
  std::optional<KeptResults::Scope> keeping_;
};

// In the first run, replaces a saved tensor by its number.
class Forget : public SavedVariableHooks {
 public:
  explicit Forget(std::shared_ptr<Checkpoint> checkpoint) : checkpoint_(std::move(checkpoint)) {}
  void call_pack_hook(const at::Tensor& tensor) override { number_ = checkpoint_->note(tensor); }
  at::Tensor call_unpack_hook() override { return checkpoint_->take(number_); }

 private:
  std::shared_ptr<Checkpoint> checkpoint_;
  size_t number_ = 0;
};

// In the second run, collects the saved tensors and drops the history they belong to.
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

// LibTorch asks its autograd engine for hooks when an operator saves a tensor. Only Python's engine
// has any, so this engine supplies ours.
class HookingEngine : public torch::autograd::Engine {
 public:
  static torch::autograd::Engine& instance() {
    static auto* engine = new HookingEngine;  // outlives every thread that may run backward
    return *engine;
  }

  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (runs.empty()) return nullptr;
    const Run& run = runs.back();
    if (run.checkpoint->is_within_function()) return nullptr;
    if (run.again) return std::make_unique<Collect>(*run.checkpoint);
    return std::make_unique<Forget>(run.checkpoint);
  }
};

void Checkpoint::recompute() {
  recomputed_.clear();
  recomputed_.reserve(saved_.size());
  {
    RewindScope rewind(generators_);
    WithRng with_rng(rng_);
    Autocast on_cpu(at::kCPU, cpu_dtype_), on_gpu(at::kCUDA, gpu_dtype_);
    Float8Products float8(has_float8_products_);
    at::AutoGradMode record(true);
    Recomputing recomputing;
    StageOfOthers stage(stage_);
    RunScope scope({shared_from_this(), true});
    lua_State* L = function_.state();
    balanced(L, [&] {
      luaL_checkstack(L, int(args_.size()) + 4, "checkpoint");
      function_.push();
      for (const Ref& arg : args_) {
        if (arg)
          arg.push();
        else
          lua_pushnil(L);
      }
      try {
        call(L, int(args_.size()), 0);
      } catch (...) {
        if (!is_complete()) throw;
      }
    });
  }
  std::string written = reads_.difference(function_, args_);
  std::string difference = written.empty() ? difference_of_runs() : "";
  if (written.empty() && difference.empty()) return;
  recomputed_.clear();  // the next backward must not use them
  require(written.empty(), "redco.checkpoint: ", written);
  fail("redco.checkpoint: ", difference, "; the function must do the same both times");
}

// Describes how the tensors saved in the second run differ from the first; empty if they agree.
std::string Checkpoint::difference_of_runs() const {
  std::ostringstream text;
  if (recomputed_.size() != saved_.size()) {
    text << "the function saved " << saved_.size() << " tensors for backward in its first run and "
         << recomputed_.size() << " when it was run again";
    return text.str();
  }
  for (size_t i = 0; i < saved_.size(); ++i) {
    if (saved_[i].fits(recomputed_[i])) continue;
    text << "tensor " << i + 1 << " of the " << saved_.size()
         << " that the function saved for backward was " << dtype_name(saved_[i].dtype)
         << at::IntArrayRef(saved_[i].sizes) << " in its first run and is "
         << describe(recomputed_[i]) << " when it was run again";
    return text.str();
  }
  return "";
}

}  // namespace

void about_to_draw(const at::Generator& generator) {
  StagedPass::note_draw(generator);
  if (!runs.empty() && !runs.back().again) runs.back().checkpoint->met(generator);
}

void about_to_read(const at::Tensor& tensor) {
  for (const auto& [checkpoint, again] : runs) {
    if (again)
      checkpoint->reads().compare(tensor);
    else
      checkpoint->reads().note(tensor);
  }
}

int is_recomputing(lua_State* L) {
  lua_pushboolean(L, !runs.empty() && runs.back().again);
  return 1;
}

namespace {

int call_checkpointed(lua_State* L, Recompute recompute) {
  require(lua_isfunction(L, 1), "redco.checkpoint: expected a function to call, got ",
          described(L, 1));
  static const bool installed = [] {
    torch::autograd::set_default_engine_stub(&HookingEngine::instance);
    return true;
  }();
  (void)installed;
  int n_args = lua_gettop(L) - 1;
  std::vector<Ref> args;
  for (int i = 2; i <= n_args + 1; ++i) args.push_back(lua_isnil(L, i) ? Ref() : Ref(L, i));
  auto run = std::make_shared<Checkpoint>(Ref(L, 1), std::move(args), recompute);
  RunScope scope({run, false});
  call(L, n_args, LUA_MULTRET);
  return lua_gettop(L);
}

}  // namespace

int checkpoint(lua_State* L) { return call_checkpointed(L, Recompute::blocks); }

int checkpoint_block(lua_State* L) { return call_checkpointed(L, RecomputeBlocks::how()); }

int begins_recomputed_block(lua_State* L) {
  RecomputeBlocks::count_block();
  // A function that a checkpoint runs again makes no checkpoints: the outer one covers it.
  bool is_recomputed =
      RecomputeBlocks::how() != Recompute::none && runs.empty() && at::GradMode::is_enabled();
  lua_pushboolean(L, is_recomputed);
  return 1;
}

int check_recompute(lua_State* L) {
  const bool is_text = lua_type(L, 1) == LUA_TSTRING;
  parse_recompute(is_text ? lua_tostring(L, 1) : describe(L, 1), luaL_checkstring(L, 2));
  return 0;
}

int with_recomputed_blocks(lua_State* L) {
  RecomputeBlocks recompute(parse_recompute(luaL_checkstring(L, 1), "redco.models"));
  call(L, lua_gettop(L) - 2, LUA_MULTRET);
  return lua_gettop(L) - 1;
}

int keep_results_of(lua_State* L) {
  KeptResults::set_least_flops(luaL_checknumber(L, 1));
  return 0;
}

}  // namespace redco::lua
