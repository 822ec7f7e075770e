// Operators of mixtures, at the ranks of their experts.

#include "expert_calls.h"

#include "../operators/rules.h"
#include "../tensor/gathered_view.h"
#include "../tensor/routing.h"
#include "execution.h"
#include "expert_stacks.h"

#include <redco/moves.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace redco::sharding {

namespace {

using torch::jit::Stack;

constexpr Mesh::Dim ep = Routing::ep;
// The arguments of a call, by their role.
struct Roles {
  std::shared_ptr<const Routing> routing;
  size_t first_weight;  // index in the call's tensors; their number if there are no weights
  int numbers = -1;     // index in the call's tensors; -1 if there are none
  RoutedRows::Kind result = RoutedRows::choices;
  int table = -1;  // a table with a row for each expert, such as one of biases
};

// Whether the experts' weights from `first` on are on the ranks of their experts. Some may be
// whole.
bool are_at_experts(const Call& call, size_t first) {
  const auto n = int64_t(call.tensors.size() - first);
  bool any = false;
  for (int64_t i = 0; i < n; ++i) {
    const TensorArgument& weight = call.tensors[first + size_t(i)];
    const bool is_there =
        weight.placements[ep] == Placement::on_rank(Routing::rank_of(i, n, call.mesh->size(ep)));
    if (!is_there && !weight.placements[ep].is_replicated()) return false;
    any |= is_there;
  }
  return any;
}

std::optional<Roles> roles_of_products(const Call& call) {
  const bool is_outer = call.op.at_experts == AtExperts::gradients_of_weights;
  if (!is_outer && call.op.at_experts != AtExperts::product) return std::nullopt;
  const size_t first = is_outer ? 3 : 2;
  if (!are_at_experts(call, first)) return std::nullopt;
  auto routing = Routing::of(call.tensors[first - 1].tensor, int64_t(call.tensors.size() - first));
  if (!routing) return std::nullopt;
  return Roles{std::move(routing), first, int(first) - 1};
}

// Whether a product reads one row for all choices: its rows have no dimension for choices.
bool is_for_all(const Call& call, const TensorArgument& rows) {
  // Quantized weights, and the rows that they multiply, have a dimension of blocks.
  const bool has_blocks = call.tensors.back().tensor.dim() == 3;
  const int64_t n_dims = has_blocks && !call.boolean("is_transposed", false) ? 4 : 3;
  return rows.tensor.dim() < n_dims;
}

// Returns the routed rows that hold an argument's values. Null if there are none.
std::shared_ptr<RoutedRows> rows_of(const TensorArgument& argument) {
  auto rows = argument.impl ? argument.impl->routed() : nullptr;
  return rows && rows->kind != RoutedRows::copy ? rows : nullptr;
}

// Finds the roles of a lookup in a table, such as the biases of experts, by numbers whose routing
// is known, or of the table's gradient.
std::optional<Roles> roles_of_table(const Call& call) {
  const bool is_backward = call.op.at_experts == AtExperts::gradient_of_table;
  if ((!is_backward && call.op.at_experts != AtExperts::table) || call.tensors.size() != 2)
    return std::nullopt;
  const TensorArgument &first = call.tensors[0], &numbers = call.tensors[1];
  auto routing = numbers.impl ? Routing::known(numbers.tensor) : nullptr;
  if (!routing) return std::nullopt;
  if (is_backward) {
    const auto rows = rows_of(first);
    if (!rows || rows->routing != routing || rows->kind != RoutedRows::choices) return std::nullopt;
    return Roles{std::move(routing), call.tensors.size(), 1};
  }
  if (first.sizes()[0] != routing->n_experts() || !first.placements[ep].is_replicated())
    return std::nullopt;
  return Roles{std::move(routing), call.tensors.size(), 1, RoutedRows::choices, 0};
}

// Whether the call works only along dimensions after those of rows and choices.
bool is_behind_choices(const Call& call, int64_t n_dims) {
  const auto dims = call.dims("dim", n_dims);
  return dims && !dims->empty() && std::ranges::all_of(*dims, [](int64_t dim) { return dim >= 2; });
}

std::optional<Roles> roles_of_others(const Call& call) {
  std::shared_ptr<RoutedRows> rows;
  int64_t n_dims = 0;
  for (const TensorArgument& argument : call.tensors) {
    if (argument.is_written) return std::nullopt;
    const auto own = rows_of(argument);
    if (!own) continue;
    if (rows && (rows->routing != own->routing || rows->kind != own->kind)) return std::nullopt;
    rows = own;
    n_dims = std::max(n_dims, argument.tensor.dim());
  }
  if (!rows) return std::nullopt;
  const Roles roles{rows->routing, call.tensors.size(), -1, rows->kind};
  if (rows->kind == RoutedRows::sum) {
    // Adds sums only to sums, as for gradients.
    const bool are_alike = std::ranges::all_of(call.tensors, [&](const TensorArgument& argument) {
      return rows_of(argument) && argument.sizes() == call.tensors[0].sizes();
    });
    return call.op.at_experts == AtExperts::addition && are_alike ? std::optional(roles)
                                                                  : std::nullopt;
  }
  if (call.op.handle.hasTag(at::Tag::nondeterministic_seeded)) return std::nullopt;
  switch (call.op.at_experts) {
    case AtExperts::sum: {
      if (is_behind_choices(call, n_dims)) return roles;
      const auto dims = call.dims("dim", n_dims);
      if (!dims || *dims != std::vector<int64_t>{1} || call.boolean("keepdim", false))
        return std::nullopt;
      Roles sum = roles;
      sum.result = RoutedRows::sum;
      return sum;
    }
    case AtExperts::view: {
      if (call.index_of("size") < 0) return std::nullopt;  // a view as another type
      const std::vector<int64_t> sizes = call.find("size")->toIntVector();
      const bool keeps_choices = sizes.size() > 2 && sizes[0] == roles.routing->n_rows() &&
                                 sizes[1] == roles.routing->n_choices();
      return keeps_choices ? std::optional(roles) : std::nullopt;
    }
    case AtExperts::along_dim:
    case AtExperts::unbind:
    case AtExperts::stack:
      return is_behind_choices(call, n_dims) ? std::optional(roles) : std::nullopt;
    case AtExperts::pointwise:
    case AtExperts::addition:
      break;
    default:
      return std::nullopt;
  }
  for (const TensorArgument& argument : call.tensors) {
    const at::IntArrayRef sizes = argument.sizes();
    const int64_t n = argument.tensor.dim();
    const bool is_behind = n < n_dims - 1 || (n == n_dims - 1 && sizes[0] == 1);
    const bool is_one = n == n_dims && sizes[0] == 1 && sizes[1] == 1;
    if (n > n_dims || (!is_behind && !is_one && !roles.routing->has_rows(sizes)))
      return std::nullopt;
  }
  return roles;
}

bool splits_rows(const Placement& placement) { return placement.is_sharded() && placement.dim < 2; }

// Returns placements in which the local parts of rows can be sent: split like the numbers, with all
// choices of a row on its rank.
Placements to_send(const Placements& now, const Routing& routing) {
  Placements target = now;
  for (Mesh::Dim dim : Mesh::dims) {
    if (routing.home()[dim].is_sharded())
      target[dim] = routing.home()[dim];
    else if (splits_rows(now[dim]))
      target[dim] = {};
  }
  return target;
}

class CallAtExperts {
 public:
  CallAtExperts(Call& call, Roles roles) : call_(call), roles_(std::move(roles)), own_(call) {}

  bool run(Stack* stack) {
    Moving moving(Move::within_operator, call_.op.name);
    for (size_t i = 0; i < call_.tensors.size(); ++i)
      if (!take(i)) return false;
    const CallPlan& kept = plan_for(own_);
    if (!leaves_rows(kept)) return false;
    const bool is_view = call_.op.at_experts == AtExperts::view;
    const CallPlan of_view = is_view ? with_own_sizes(kept) : CallPlan();
    const CallPlan& plan = is_view ? of_view : kept;
    Stack local(call_.arguments.begin(), call_.arguments.end());
    std::vector<at::Tensor> inputs;
    for (size_t i = 0; i < own_.tensors.size(); ++i) {
      const TensorArgument& argument = own_.tensors[i];
      inputs.push_back(redistribute_local(argument.local(), argument.sizes(),
                                          argument.tensor.strides(), argument.placements,
                                          plan.inputs[i], *call_.mesh));
    }
    set_tensors(own_, inputs, local);
    if (roles_.first_weight < own_.tensors.size()) keep_own_experts(inputs, local);
    for (const auto& [index, value] : plan.arguments) local[index] = value;
    if (const int sizes = call_.index_of("input_sizes"); sizes >= 0)
      local[size_t(sizes)] = own_sizes(local[size_t(sizes)].toIntVector());
    execution().run(own_, plan, local);
    if (call_.op.at_experts == AtExperts::gradients_of_weights)
      local = {of_all_experts(local[0].toTensorVector(), plan)};
    else
      for (c10::IValue& value : local) value = wrapped(std::move(value), plan);
    execution().after(own_, plan, local);
    torch::jit::drop(*stack, call_.arguments.size());
    for (c10::IValue& value : local) stack->push_back(std::move(value));
    return true;
  }

 private:
  const Routing& routing() const { return *roles_.routing; }

  // Replaces the sizes in the plan of a view: the plan assumes an even part of the rows.
  CallPlan with_own_sizes(CallPlan plan) const {
    const std::vector<int64_t> whole =
        resolved_sizes(call_.find("size")->toIntVector(), call_.tensors[0].tensor.numel());
    const Sizes sizes = local_sizes(
        whole, plan.outputs.empty() ? Placements() : plan.outputs[0].placements, *call_.mesh);
    plan.run = nullptr;
    plan.arguments = {{size_t(call_.index_of("size")), own_sizes({sizes.begin(), sizes.end()})}};
    return plan;
  }

  int64_t n_experts() const { return int64_t(call_.tensors.size() - roles_.first_weight); }
  Placement place_of(int64_t expert) const {
    return Placement::on_rank(Routing::rank_of(expert, n_experts(), call_.mesh->size(ep)));
  }
  bool is_here(int64_t expert) const { return place_of(expert).rank == call_.mesh->coordinate(ep); }

  // Gives the kernel only this rank's experts, numbered from 0.
  void keep_own_experts(const std::vector<at::Tensor>& inputs, Stack& local) const {
    c10::List<at::Tensor> own;
    int64_t first = 0;
    for (int64_t i = n_experts(); i-- > 0;)
      if (is_here(i)) first = i;
    for (int64_t i = 0; i < n_experts(); ++i)
      if (is_here(i)) own.push_back(inputs[roles_.first_weight + size_t(i)]);
    if (own.empty()) {  // then there are no rows: any weight of the right shape will do
      const TensorArgument& weight = own_.tensors[roles_.first_weight];
      own.push_back(
          weight.local().new_empty(local_sizes(weight.sizes(), weight.placements, *call_.mesh)));
    }
    local[own_.tensors[roles_.first_weight].argument] = own;
    local[own_.tensors[size_t(roles_.numbers)].argument] = routing().numbers() - first;
  }

  std::vector<int64_t> own_sizes(std::vector<int64_t> sizes) const {
    sizes[0] = routing().n_received();
    sizes[1] = 1;
    return sizes;
  }

  // Replaces an argument with this rank's part. Every rank has some of the rows, so counts them as
  // not split over the experts' ranks.
  bool take(size_t i) {
    TensorArgument& argument = own_.tensors[i];
    Placements placements = argument.placements;
    Sizes sizes(argument.sizes());
    bool lacks_choices = false;
    at::Tensor local;
    if (i >= roles_.first_weight) {
      Placements here = placements;
      here[ep] = place_of(int64_t(i - roles_.first_weight));
      local = redistribute_local(argument.local(), argument.sizes(), argument.tensor.strides(),
                                 placements, here, *call_.mesh);
    } else if (int(i) == roles_.table) {
      local = argument.local();
    } else if (int(i) == roles_.numbers) {
      local = routing().numbers();
      placements = routing().home();
    } else if (const auto rows = rows_of(argument); rows && rows->routing == roles_.routing) {
      local = rows->rows;
      lacks_choices = rows->kind == RoutedRows::sum;
    } else if (roles_.numbers < 0 && !routing().has_rows(argument.sizes())) {
      if (!placements[ep].is_replicated()) return false;
      if (std::ranges::any_of(placements, splits_rows)) return false;
      local = argument.local();
      if (argument.impl == nullptr) return true;
    } else {
      lacks_choices = roles_.numbers >= 0 && is_for_all(call_, argument);
      local = sent(argument, placements, lacks_choices);
    }
    placements[ep] = {};
    if (lacks_choices) {
      const bool is_sum = roles_.result == RoutedRows::sum;
      sizes.insert(sizes.begin() + 1, is_sum ? 1 : routing().n_choices());
      placements = shifted(placements, 1, 1);
    }
    argument.tensor = wrap(local, placements, call_.mesh, contiguous_geometry(sizes));
    argument.impl = sharded_impl(argument.tensor);
    argument.placements = placements;
    return true;
  }

  // Sends the rows of an argument only once for all operators that read it.
  at::Tensor sent(const TensorArgument& argument, Placements& placements,
                  bool lacks_choices) const {
    placements = to_send(placements, routing());
    const auto known = argument.impl ? argument.impl->routed() : nullptr;
    if (known && known->routing == roles_.routing && argument.placements == placements)
      return known->rows;
    const at::Tensor part =
        redistribute_local(argument.local(), argument.sizes(), argument.tensor.strides(),
                           argument.placements, placements, *call_.mesh);
    at::Tensor rows = routing().sent(part, lacks_choices);
    const bool has_version = argument.impl && !argument.local().is_inference();
    if (has_version && argument.placements == placements && !argument.impl->routed())
      argument.impl->set_routed(std::make_shared<RoutedRows>(RoutedRows{
          roles_.routing, rows, RoutedRows::copy, argument.local(), version_of(argument.local())}));
    return rows;
  }

  // Whether a plan moves nothing between rows, because other ranks have other rows.
  bool leaves_rows(const CallPlan& plan) const {
    for (size_t i = 0; i < own_.tensors.size(); ++i)
      for (Mesh::Dim dim : Mesh::dims) {
        const Placement &now = own_.tensors[i].placements[dim], &target = plan.inputs[i][dim];
        if (now != target && (i >= roles_.first_weight || splits_rows(now) || splits_rows(target)))
          return false;
      }
    return true;
  }

  c10::IValue wrapped(c10::IValue value, const CallPlan& plan) {
    if (value.isTensor()) return wrapped(value.toTensor(), plan);
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(wrapped(tensor, plan));
    return list;
  }

  // Returns the sums of products for all experts. `own` has those of this rank's experts and rows.
  c10::List<at::Tensor> of_all_experts(const std::vector<at::Tensor>& own,
                                       const CallPlan& plan) const {
    c10::List<at::Tensor> all;
    auto next = own.begin();
    for (int64_t i = 0; i < n_experts(); ++i) {
      const TensorArgument& weight = call_.tensors[roles_.first_weight + size_t(i)];
      Placements placements;
      if (size_t(i) < plan.outputs.size()) placements = plan.outputs[size_t(i)].placements;
      placements[ep] = place_of(i);
      const at::Tensor local =
          is_here(i) ? *next++
                     : own[0].new_empty(local_sizes(weight.sizes(), placements, *call_.mesh));
      all.push_back(wrap(local, placements, call_.mesh, contiguous_geometry(weight.sizes())));
    }
    return all;
  }

  at::Tensor wrapped(at::Tensor local, const CallPlan& plan) {
    const size_t index = next_++;
    static const OutputPlan whole;  // for results without a rule
    const OutputPlan& output = index < plan.outputs.size() ? plan.outputs[index] : whole;
    Placements placements = output.placements;
    if (call_.op.at_experts == AtExperts::gradient_of_table) {
      placements[ep] = Placement::reduction();
      const Sizes sizes{call_.integer("num_weights", 0), call_.tensors[0].sizes().back()};
      return wrap(local, placements, call_.mesh, contiguous_geometry(sizes));
    }
    Sizes sizes(output.geometry ? at::IntArrayRef(output.geometry->sizes) : local.sizes());
    for (size_t dim = 0; dim < output.sizes.size(); ++dim)
      if (output.sizes[dim] >= 0) sizes[dim] = output.sizes[dim];
    if (roles_.result == RoutedRows::sum && call_.op.at_experts == AtExperts::sum) {
      local = local.unsqueeze(1);  // each row here has one choice
    } else if (roles_.result == RoutedRows::sum) {
      sizes.erase(sizes.begin() + 1);
      placements = shifted(placements, 1, -1);
    } else {
      sizes[1] = routing().n_choices();
    }
    sizes[0] = routing().n_rows();
    placements[ep] = routing().home()[ep];
    at::Tensor result = wrap_routed({roles_.routing, local, roles_.result}, placements, call_.mesh,
                                    contiguous_geometry(sizes));
    if (call_.op.is_view)
      sharded_impl(result)->set_gathered_view(
          std::make_shared<GatheredView>(call_, index, call_.tensors[0].placements));
    return result;
  }

  Call& call_;
  Roles roles_;
  Call own_;  // with the rows here
  size_t next_ = 0;
};

}  // namespace

bool run_at_experts(Call& call, Stack* stack) {
  if (call.op.at_experts == AtExperts::none) return false;
  if (run_on_expert_stack(call, stack)) return true;
  std::optional<Roles> roles = roles_of_products(call);
  if (!roles) roles = roles_of_table(call);
  if (!roles) roles = roles_of_others(call);
  return roles && CallAtExperts(call, *std::move(roles)).run(stack);
}

}  // namespace redco::sharding
