// Runs the operators of a planned step on meta tensors, and logs what they do.

#include "tracer.h"

#include "../../sharding/call/map_tensors.h"
#include "../../sharding/call/meta_kernels.h"
#include "../../sharding/operators/rules.h"
#include "../../train/measures/flop_counter.h"

#include <redco/detail/planned_device.h>
#include <redco/detail/recomputing.h>
#include <redco/error.h>
#include <redco/group.h>
#include <redco/moves.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

namespace redco::plan {

using namespace sharding;
using torch::jit::Stack;

namespace {

thread_local Tracer* of_this_thread = nullptr;
thread_local bool is_script_calling = false;

// Returns a tensor like the given one, but without values. Does not count it as an allocation of
// the step.
at::Tensor uncounted_on_meta(const at::Tensor& tensor) {
  WithExecution not_counted(nullptr);
  return on_meta(tensor);
}

template <class Function>
void for_each_tensor(c10::ArrayRef<c10::IValue> values, const Function& function) {
  for (c10::IValue value : values)
    map_tensors(value, [&](const at::Tensor& tensor) {
      function(tensor);
      return tensor;
    });
}

int64_t bytes_of(const at::Tensor& tensor) {
  // Expanded elements are read once.
  int64_t elements = 1;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.stride(dim) != 0) elements *= tensor.size(dim);
  return elements * int64_t(tensor.element_size());
}

// Returns the size that decides how long such an operator takes (Measurements::products).
int64_t product_size(ProductKind kind, const Stack& arguments) {
  std::vector<at::Tensor> given;
  bool has_numbers = false;  // numbers of experts, for each row
  for_each_tensor(c10::ArrayRef<c10::IValue>(arguments), [&](const at::Tensor& tensor) {
    if (tensor.scalar_type() == at::kLong)
      has_numbers = true;
    else if (tensor.dim() >= 2)
      given.push_back(tensor);
  });
  if (given.empty()) return 0;
  auto smaller = [](const at::Tensor& tensor, int64_t a, int64_t b) {
    return std::min(tensor.size(a), tensor.size(b));
  };
  switch (kind) {
    case ProductKind::attention:
    case ProductKind::biased_attention:
      return given[0].size(-2);  // the queries, or their gradient
    case ProductKind::convolution:
      return smaller(given.back(), 0, 1);  // the weight
    default: {
      auto of_matrix = [&](const at::Tensor& tensor) {
        if (tensor.scalar_type() == at::kByte) return tensor.size(0);  // [outputs, blocks, bytes]
        const bool has_choices = has_numbers && tensor.dim() == 3;     // [rows, choices, features]
        return smaller(tensor, -1, has_choices ? 0 : -2);
      };
      return std::min(of_matrix(given[0]), of_matrix(given[given.size() > 1]));
    }
  }
}

// Returns the index of the argument `device` of an operator that makes a tensor from no other
// tensor; none for other operators.
std::optional<size_t> device_of_factory(const c10::FunctionSchema& schema) {
  thread_local std::unordered_map<const c10::FunctionSchema*, std::optional<size_t>> known;
  auto found = known.find(&schema);
  if (found != known.end()) return found->second;
  std::optional<size_t> place;
  bool is_factory = schema.returns().size() == 1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (argument.name() == "device") place = i;
    is_factory &= argument.type()->str().find("Tensor") == std::string::npos;
  }
  if (!is_factory) place.reset();
  return known[&schema] = place;
}

uint64_t next_number() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

}  // namespace

Tracer::Tracer(std::shared_ptr<const Mesh> mesh)
    : number_(next_number()),
      outer_(std::exchange(of_this_thread, this)),
      installed_(this),
      sees_plain_calls_(c10::DispatchKey::Fake),
      outer_calls_(std::exchange(plain_calls(), take_over)),
      mesh_(std::move(mesh)) {
  count_meta_memory();
  add_meta_kernels();
}

Tracer::~Tracer() {
  plain_calls() = outer_calls_;
  of_this_thread = outer_;
}

Tracer* Tracer::of_thread() { return of_this_thread; }

Tracer* Tracer::current() {
  Tracer* tracer = of_this_thread;
  bool traces = tracer && !tracer->n_pauses_ && &execution() == tracer;
  return traces ? tracer : nullptr;
}

bool Tracer::set_script_calling(bool is_calling) {
  return std::exchange(is_script_calling, is_calling);
}

bool Tracer::take_over(const c10::OperatorHandle& handle, Stack& stack) {
  Tracer* tracer = of_this_thread;
  if (!tracer || &execution() != tracer) return false;
  return tracer->make_tensor(handle, stack) || drop_values(handle, stack);
}

// A whole parameter is a plain tensor without values. If an operator also reads tensors of the
// script that have values, drops those values too.
bool Tracer::drop_values(const c10::OperatorHandle& handle, Stack& stack) {
  const c10::FunctionSchema& schema = handle.schema();
  size_t n = schema.arguments().size(), first = stack.size() - n;
  Stack given(stack.begin() + std::ptrdiff_t(first), stack.end());
  bool has_some = false, lacks_some = false;
  for_each_tensor(c10::ArrayRef<c10::IValue>(given), [&](const at::Tensor& tensor) {
    (tensor.is_meta() ? lacks_some : has_some) = true;
  });
  if (!has_some || !lacks_some) return false;
  for (size_t i = first; i < stack.size(); ++i) map_tensors(stack[i], uncounted_on_meta);
  handle.callBoxed(&stack);
  size_t n_results = schema.returns().size();
  for (size_t i = 0; i < n_results; ++i) {
    const c10::AliasInfo* alias = schema.returns()[i].alias_info();
    for (size_t a = 0; a < n; ++a) {
      const c10::AliasInfo* other = schema.arguments()[a].alias_info();
      if (alias && alias->isWrite() && other && *other == *alias)
        stack[stack.size() - n_results + i] = given[a];
    }
  }
  return true;
}

bool Tracer::make_tensor(const c10::OperatorHandle& handle, Stack& stack) {
  const bool is_of_step = n_pauses_ == 0;
  if (!is_of_step && !is_script_calling) return false;
  auto place = device_of_factory(handle.schema());
  if (!place) return false;
  size_t first = stack.size() - handle.schema().arguments().size();
  const c10::IValue& device = stack[first + *place];
  if (device.isDevice() && !device.toDevice().is_cpu()) return false;
  Stack arguments(stack.begin() + std::ptrdiff_t(first), stack.end());
  arguments[*place] = c10::Device(c10::kMeta);
  at::Tensor made;
  try {
    WithExecution not_counted(nullptr);
    handle.callBoxed(&arguments);
    made = arguments.back().toTensor();
  } catch (const c10::Error&) {
    return false;  // the operator has no shapes-only form, or fails in any case
  }
  // Small tensors keep their values, because loops and conditions of a script read them. Outside of
  // the step integers keep their values too: they may be data, and no parameter is an integer.
  const size_t large = is_of_step ? 1 << 12 : 1 << 20;
  if (made.nbytes() < large || (!is_of_step && !made.is_floating_point())) return false;
  made = at::empty_strided(made.sizes(), made.strides(), made.options());
  torch::jit::drop(stack, handle.schema().arguments().size());
  stack.emplace_back(wrap(made, {}, mesh_, geometry_of(made)));
  return true;
}

void Tracer::run(const Call& call, const CallPlan& plan, Stack& local) {
  operator_name_ = call.op.name;
  // LibTorch adds up the gradients of an unwrapped tensor in place, unless the first one is a view;
  // see freed.
  adds_gradients_in_place_ = mesh_->world().size() == 1 && operator_name_ == "aten::add" &&
                             torch::autograd::get_current_node() != nullptr &&
                             !call.arguments[0].toTensor().is_view();
  if (n_pauses_ == 0 && ++n_operators_ - n_before_pass_ > most_operators)
    fail("plan: a pass of the step has called ", most_operators, " operators, at ", call_site(),
         ". Values are not computed here: does a loop wait for a value? Each value that is read is "
         "taken as 1");
  for (c10::IValue& value : local) {
    map_tensors(value, uncounted_on_meta);
    if (value.isDevice()) value = c10::Device(c10::kMeta);
  }
  // Memory that the operator reads or writes, to tell views from new results.
  std::set<const void*> given;
  Operator logged{.name = call.op.name, .is_recomputed = Recomputing::is_on()};
  auto is_on_host = [&](const at::Tensor& tensor) {
    return !on_host_.empty() && on_host_.contains(block_of(tensor));
  };
  bool is_first = true;
  for_each_tensor(c10::ArrayRef<c10::IValue>(local), [&](const at::Tensor& tensor) {
    if (tensor.has_storage()) given.insert(tensor.storage().unsafeGetStorageImpl());
    (is_on_host(tensor) ? logged.host_bytes_read : logged.bytes_read) += bytes_of(tensor);
    if (std::exchange(is_first, false)) logged.dtype = tensor.scalar_type();
  });
  for (size_t i = 0; i < local.size(); ++i)
    if (call.op.is_written[i])
      for_each_tensor(c10::ArrayRef<c10::IValue>(local[i]), [&](const at::Tensor& tensor) {
        (is_on_host(tensor) ? logged.host_bytes_written : logged.bytes_written) += bytes_of(tensor);
      });
  const OperatorFacts& facts = call.op.facts;
  const GpuCost cost = planned_device() == c10::kCUDA ? facts.gpu : GpuCost();
  logged.passes = cost.passes;
  logged.starts = cost.starts;
  if (cost.inside != nullptr) logged.bytes_inside = cost.inside(local, {});
  const Stack arguments = cost.workspace != nullptr ? local : Stack();
  std::optional<train::FlopCounter> counter;
  Recomputing counted(false);  // this work takes time, too
  if (facts.flops || facts.is_product) {
    counter.emplace(logged.flops);
    logged.kind = facts.kind;
    logged.size = product_size(logged.kind, local);
  }
  try {
    if (plan.run) {
      Moving moving(Move::within_operator, call.op.name);
      plan.run(call.op, local, *call.mesh);
    } else {
      call.op.handle.callBoxed(&local);
    }
  } catch (const c10::Error& error) {
    std::string line = call_site();
    fail("plan: ", call.op.name, line.empty() ? "" : ", called at " + line,
         ", cannot be planned: ", error.what_without_backtrace());
  }
  counter.reset();
  if (cost.workspace != nullptr)
    at::empty({cost.workspace(arguments, local)}, at::device(c10::kMeta).dtype(at::kByte));
  for_each_tensor(c10::ArrayRef<c10::IValue>(local), [&](const at::Tensor& tensor) {
    bool is_new = !tensor.has_storage() || !given.contains(tensor.storage().unsafeGetStorageImpl());
    if (is_new) logged.bytes_written += bytes_of(tensor);
  });
  if (n_pauses_ == 0) log_.add(std::move(logged));
}

void Tracer::after(const Call&, const CallPlan&, c10::ArrayRef<c10::IValue>) {
  operator_name_.clear();
  adds_gradients_in_place_ = false;
}

void Tracer::begin_step() {
  log_ = {};
  ended_.clear();
  values_read_.clear();
  without_shapes_.clear();
  n_operators_ = n_before_pass_ = 0;
  sum_ = {};
  for (auto& [number, block] : alive_) {
    block.place = int64_t(log_.allocations.size());
    log_.add(Allocation{number, block.facts.bytes, block.facts.kind});
  }
  log_.n_before = int64_t(log_.allocations.size());
}

Tracer::Step Tracer::end_step() {
  Step step{std::move(log_), std::move(ended_), std::move(values_read_),
            std::move(without_shapes_)};
  for (const auto& [number, bytes] : on_host_) step.host_bytes += bytes;
  for (const auto& [number, block] : alive_) step.blocks[number] = block.facts;
  // The kind of a block may become known only after its allocation.
  for (Allocation& allocation : step.log.allocations)
    allocation.kind = step.blocks.at(allocation.block).kind;
  begin_step();
  return step;
}

void Tracer::begin_pass(bool is_backward) {
  n_before_pass_ = n_operators_;
  log_.passes.push_back({is_backward, log_.sequence.size(), log_.sequence.size()});
}

void Tracer::end_pass() { log_.passes.back().end = log_.sequence.size(); }

void Tracer::label(const at::Tensor& tensor, MemoryKind kind) {
  auto found = alive_.find(block_of(tensor));
  if (found != alive_.end()) found->second.facts.kind = kind;
}

void Tracer::move_to_host(const at::Tensor& tensor) {
  auto found = alive_.find(block_of(tensor));
  if (found == alive_.end()) return;
  on_host_[found->first] = found->second.facts.bytes;
  alive_bytes_ -= found->second.facts.bytes;
  alive_.erase(found);
}

MemoryKind Tracer::kind_now() const {
  switch (Moving::cause_now()) {
    case Move::parameters:
      return MemoryKind::gathered;
    case Move::gradients:
      return MemoryKind::collective_buffer;
    default:
      return is_updating_ ? MemoryKind::temporary : MemoryKind::activation;
  }
}

int64_t Tracer::allocated(int64_t bytes) {
  int64_t number = n_blocks_++;
  Block block{{bytes, kind_now(), operator_name_, {}, false},
              n_operators_,
              int64_t(log_.allocations.size())};
  constexpr int64_t worth_a_line = 1 << 16;
  if (bytes >= worth_a_line) {
    block.facts.line = call_site();
    block.facts.is_backward = torch::autograd::get_current_node() != nullptr;
  }
  if (adds_gradients_in_place_) sum_ = {number, bytes, n_operators_};
  log_.add(Allocation{number, bytes, block.facts.kind});
  // Memory allocated between operators is for data that moves: joined in buffers, or cut out.
  if (operator_name_.empty() && n_collectives_ == 0)
    log_.add(Operator{.name = "copy", .bytes_read = bytes, .bytes_written = bytes});
  alive_bytes_ += bytes;
  alive_.emplace(number, std::move(block));
  return number;
}

void Tracer::freed(int64_t number) {
  on_host_.erase(number);
  auto found = alive_.find(number);
  if (found == alive_.end()) return;
  Block& block = found->second;
  bool is_of_operator = block.operator_number == n_operators_ && block.place >= 0;
  if (is_of_operator && block.facts.kind == MemoryKind::activation)
    block.facts.kind = MemoryKind::temporary;
  Allocation end{number, -block.facts.bytes, block.facts.kind};
  auto sum = alive_.find(sum_.block);
  if (sum != alive_.end() && number != sum_.block && sum_.operator_number == n_operators_ &&
      sum_.bytes == block.facts.bytes && sum->second.place >= 0) {
    // The sum takes the memory of this block: swaps the two events, so that one ends where the
    // other begins.
    std::swap(end, log_.allocations[size_t(sum->second.place)]);
    sum->second.place = int64_t(log_.allocations.size());
    sum_ = {};
  }
  log_.add(end);
  ended_[number] = std::move(block.facts);
  alive_bytes_ -= block.facts.bytes;
  alive_.erase(found);
}

std::optional<int64_t> Tracer::started(const Collective& collective) {
  if (current() != this) return std::nullopt;
  return log_.start(collective);
}

void Tracer::waited(int64_t collective) {
  if (current() == this) log_.wait(collective);
}

void Tracer::ran_on_zeros(const std::string& name) {
  if (current() == this) ++without_shapes_[name];
}

void Tracer::read_value() {
  if (current() != this) return;
  std::string line = call_site();
  ++values_read_[line.empty() ? "outside of the script" : line];
}

}  // namespace redco::plan
