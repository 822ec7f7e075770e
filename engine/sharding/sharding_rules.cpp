// The layout of a params tree, decided by watching one forward pass.

#include <redco/sharding_rules.h>

#include "rules.h"
#include "trace.h"
#include "tracer.h"

#include <redco/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <iomanip>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <unordered_map>

namespace redco {

namespace {

constexpr Mesh::Dim mp = Mesh::mp;

// Weights of these are split along what they put out, where their input is whole.
const std::set<std::string_view> products = {
    "aten::mm", "aten::addmm", "aten::bmm",         "aten::baddbmm",
    "aten::mv", "aten::addmv", "aten::convolution", "redco::linear_cross_entropy",
    "aten::dot"};

// These hand a weight on, seen otherwise or in another type.
const std::set<std::string_view> handed_on = {"aten::_to_copy", "aten::clone", "aten::detach",
                                              "aten::alias"};

bool regroups(const Operator& op) {
  static const std::set<std::string_view> names = {
      "aten::view",         "aten::_unsafe_view",           "aten::_reshape_alias",
      "aten::split",        "aten::split_with_sizes",       "aten::unbind",
      "aten::unsafe_split", "aten::unsafe_split_with_sizes"};
  return names.contains(op.name);
}

struct Parameter {
  std::string name;
  at::Tensor given;
  std::optional<Placement> placement = {};  // on mp
  std::string reason = "not used as the weight of a product or an embedding: whole";
  bool is_embedding = false;
};

class LayoutTracer final : public Tracer {
 public:
  LayoutTracer(std::vector<Parameter>& parameters, std::shared_ptr<const Mesh> mesh)
      : parameters_(parameters), mesh_(std::move(mesh)), n_(mesh_->size(mp)) {
    previous_ = std::exchange(current_tracer(), this);
  }
  ~LayoutTracer() override { current_tracer() = previous_; }

  // The parameter as the forward pass sees it.
  at::Tensor stand_in(int parameter) {
    at::Tensor tensor = whole_like(parameters_[size_t(parameter)].given);
    remember(tensor, parameter);
    return tensor;
  }

  void before(Call& call) override {
    bool is_handed_on = call.op.is_view || handed_on.contains(call.op.name);
    // Weights before what is added to their product: a bias follows.
    for (bool is_weight : {true, false}) {
      for (size_t i = 0; i < call.tensors.size(); ++i) {
        auto seen = origins_.find(call.tensors[i].impl);
        if (seen == origins_.end() || (call.tensors[i].tensor.dim() > 1) != is_weight) continue;
        Parameter& parameter = parameters_[size_t(seen->second)];
        if (!parameter.placement) {
          if (is_handed_on) continue;
          decide(call, i, parameter);
        }
        lay_out(call, i, parameter);
      }
    }
  }

  void run(const Call& call, const Plan& plan, torch::jit::Stack& local) override {
    if (call.op.name == "aten::_local_scalar_dense") {
      local = {at::Scalar(1)};  // the layout does not hang on it
    } else {
      call_without_values(local, [&](torch::jit::Stack& stack) {
        if (plan.run)
          plan.run(call.op, stack, *call.mesh);
        else
          call.op.handle.callBoxed(&stack);
      });
    }
  }

  void after(const Call& call, const Plan& plan, c10::ArrayRef<c10::IValue> results) override {
    std::set<int> sources;
    for (size_t i = 0; i < call.tensors.size(); ++i) {
      const TensorArgument& argument = call.tensors[i];
      const Placement &now = argument.placements[mp], &target = plan.inputs[i][mp];
      if (now.is_replicated()) continue;
      const std::set<int>& own = sources_[argument.impl];
      if (now.is_sharded() && target.is_replicated() && regroups(call.op)) mend(call, i, own);
      if (now.is_partial() && target.is_sharded()) split_columns(own);
      if (!target.is_replicated()) sources.insert(own.begin(), own.end());
    }
    bool is_handed_on = call.op.is_view || handed_on.contains(call.op.name);
    auto origin = call.tensors.empty() ? origins_.end() : origins_.find(call.tensors[0].impl);
    for (const c10::IValue& result : results) {
      if (result.isTensor()) {
        note(result.toTensor(), sources,
             is_handed_on && origin != origins_.end() ? origin->second : -1);
      } else if (result.isTensorList()) {
        for (const at::Tensor& tensor : result.toTensorVector()) note(tensor, sources, -1);
      }
    }
  }

  // What turned out wrong, by parameter: the forward pass is watched again with it.
  std::map<int, std::pair<Placement, std::string>> corrections;

 private:
  at::Tensor whole_like(const at::Tensor& tensor) {
    at::Tensor local = at::empty_strided(tensor.sizes(), tensor.strides(),
                                         at::TensorOptions(tensor.dtype()).device(at::kMeta));
    return wrap(local, {}, mesh_, dense_geometry(tensor.sizes(), local));
  }

  void remember(const at::Tensor& tensor, int parameter) {
    origins_[tensor.unsafeGetTensorImpl()] = parameter;
    alive_.push_back(tensor);
  }

  void note(const at::Tensor& tensor, const std::set<int>& sources, int parameter) {
    if (!tensor.defined() || !sharded_impl(tensor)) return;
    alive_.push_back(tensor);
    if (!placements_of(tensor)[mp].is_replicated())
      sources_[tensor.unsafeGetTensorImpl()] = sources;
    if (parameter >= 0 && !parameters_[size_t(parameter)].placement) remember(tensor, parameter);
  }

  // The dimension of a parameter that a dimension of its view shows, told by its stride; or -1.
  static int dim_of_parameter(const at::Tensor& view, int64_t dim, const at::Tensor& parameter) {
    for (int64_t i = 0; i < parameter.dim(); ++i)
      if (parameter.size(i) == view.size(dim) && parameter.stride(i) == view.stride(dim))
        return int(i);
    return -1;
  }

  bool decide_as(Parameter& parameter, const at::Tensor& seen, Placement placement,
                 std::string reason) {
    int dim = dim_of_parameter(seen, placement.dim, parameter.given);
    if (dim < 0 || placement.block_length(parameter.given.size(dim)) < n_) return false;
    placement.dim = dim;
    parameter.placement = placement;
    parameter.reason = std::move(reason);
    return true;
  }

  void decide(Call& call, size_t i, Parameter& parameter) {
    const at::Tensor& seen = call.tensors[i].tensor;
    if (call.op.name == "aten::embedding" && i == 0) {
      parameter.is_embedding = true;
      if (!decide_as(parameter, seen, Placement::shard(0), "embedding: split along its rows"))
        keep_whole(parameter, "an embedding of fewer rows than ranks: whole");
      return;
    }
    std::optional<Plan> plan = call.op.rule ? call.op.rule(call) : std::nullopt;
    if (!plan) return;
    const Placement& wanted = plan->inputs[i][mp];
    bool is_weight = products.contains(call.op.name) && seen.dim() > 1;
    if (wanted.is_sharded()) {
      std::string reason = is_weight ? "its input comes split: split along its inputs"
                                     : "follows what it is combined with";
      decide_as(parameter, seen, wanted, std::move(reason));
    } else if (is_weight) {
      split_outputs(call, i, parameter);
    }
  }

  // The dimension that the result shows, with nothing else to be moved for it but sums.
  void split_outputs(Call call, size_t i, Parameter& parameter) {
    for (TensorArgument& argument : call.tensors)
      if (argument.placements[mp].is_partial()) argument.placements[mp] = {};
    TensorArgument& argument = call.tensors[i];
    for (int64_t dim = argument.tensor.dim(); dim-- > 0;) {
      argument.placements[mp] = Placement::shard(dim);
      std::optional<Plan> plan = call.op.rule(call);
      if (!plan || !plan->inputs[i][mp].is_sharded() ||
          !plan->outputs[0].placements[mp].is_sharded())
        continue;
      if (decide_as(parameter, argument.tensor, Placement::shard(dim),
                    "its input is whole: split along its outputs"))
        return;
    }
    parameter.reason = "no dimension of its outputs is as large as the number of ranks: whole";
  }

  static void keep_whole(Parameter& parameter, std::string reason) {
    parameter.placement = Placement::replicate();
    parameter.reason = std::move(reason);
  }

  // Gives the call the parameter as it has been decided to lie.
  void lay_out(Call& call, size_t i, const Parameter& parameter) {
    TensorArgument& argument = call.tensors[i];
    if (!parameter.placement || !parameter.placement->is_sharded()) return;
    if (!argument.placements[mp].is_replicated()) return;
    Placement placement = *parameter.placement;
    for (int64_t dim = 0; dim < argument.tensor.dim(); ++dim) {
      if (dim_of_parameter(argument.tensor, dim, parameter.given) != placement.dim) continue;
      placement.dim = int32_t(dim);
      Placements placements = {Placement(), placement};
      Sizes sizes = local_sizes(argument.sizes(), placements, *mesh_);
      Geometry order = dense_geometry(sizes, argument.impl->local());
      at::Tensor local = at::empty_strided(sizes, order.strides, argument.impl->local().options());
      Geometry geometry = dense_geometry(argument.sizes(), local);
      argument.tensor = wrap(local, placements, mesh_, geometry);
      argument.impl = sharded_impl(argument.tensor);
      argument.placements = placements;
      alive_.push_back(argument.tensor);
      sources_[argument.impl] = {int(&parameter - parameters_.data())};
      return;
    }
  }

  // The outputs of these weights are regrouped in a way that their split does not fit.
  void mend(const Call& call, size_t i, const std::set<int>& weights) {
    const TensorArgument& argument = call.tensors[i];
    int64_t split_dim = argument.placements[mp].dim;
    const c10::IValue* regrouped = call.find("size");
    auto pieces = regrouped ? 0 : int64_t(logical_pieces(call));
    for (int weight : weights) {
      const Parameter& parameter = parameters_[size_t(weight)];
      const at::Tensor& given = parameter.given;
      if (!regrouped || given.dim() < 2 || !parameter.placement) continue;
      if (!parameter.placement->is_sharded()) continue;
      int64_t n_inputs = given.numel() / given.size(parameter.placement->dim);
      pieces = fused_parts(argument.sizes(), regrouped->toIntVector(), split_dim, n_inputs);
    }
    int64_t size = argument.sizes()[size_t(split_dim)];
    for (int weight : weights) {
      const Parameter& parameter = parameters_[size_t(weight)];
      if (!parameter.placement || !parameter.placement->is_sharded()) continue;
      Placement placement = *parameter.placement;
      std::ostringstream reason;
      if (pieces > 1 && size % pieces == 0 && placement.block == 0 &&
          parameter.given.size(placement.dim) % pieces == 0) {
        placement.block = int32_t(parameter.given.size(placement.dim) / pieces);
        reason << "split along its outputs, each of the " << pieces << " parts fused in it";
      } else {
        placement = {};
        reason << "whole: its outputs, " << argument.sizes() << ", are regrouped";
        if (const c10::IValue* sizes = call.find("size"))
          reason << " as " << at::IntArrayRef(sizes->toIntVector());
        reason << ", which " << n_ << " ranks do not divide";
      }
      corrections.emplace(weight, std::pair(placement, reason.str()));
    }
  }

  // How many pieces of one size an operator splits its argument into, or 0.
  static size_t logical_pieces(const Call& call) {
    if (const c10::IValue* sizes = call.find("split_sizes")) {
      std::vector<int64_t> pieces = sizes->toIntVector();
      bool is_even = std::all_of(pieces.begin(), pieces.end(),
                                 [&](int64_t size) { return size == pieces[0]; });
      return is_even ? pieces.size() : 0;
    }
    const c10::IValue* size = call.find("split_size");
    if (!size || !size->isInt() || size->toInt() <= 0) return 0;
    int64_t dim = call.integer("dim", 0);
    int64_t whole = call.tensors[0].tensor.size(dim);
    return whole % size->toInt() == 0 ? size_t(whole / size->toInt()) : 0;
  }

  // What an embedding's rows add up to meets something split along its columns.
  void split_columns(const std::set<int>& weights) {
    for (int weight : weights) {
      const Parameter& parameter = parameters_[size_t(weight)];
      if (parameter.is_embedding && parameter.placement == Placement::shard(0) &&
          parameter.given.dim() > 1 && parameter.given.size(1) >= n_)
        corrections.emplace(
            weight, std::pair(Placement::shard(1),
                              "embedding: split along its columns, as what it is added to"));
    }
  }

  std::vector<Parameter>& parameters_;
  std::shared_ptr<const Mesh> mesh_;
  int64_t n_;
  Tracer* previous_;
  std::unordered_map<const void*, int> origins_;  // of views of undecided parameters
  std::unordered_map<const void*, std::set<int>>
      sources_;                    // whose split a tensor's split comes from
  std::vector<at::Tensor> alive_;  // what the maps name
};

bool matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] == '*') {
    for (size_t skip = 0; skip <= text.size(); ++skip)
      if (matches(pattern.substr(1), text.substr(skip))) return true;
    return false;
  }
  return !text.empty() && text[0] == pattern[0] && matches(pattern.substr(1), text.substr(1));
}

bool matches_name(const std::string& pattern, const std::string& name) {
  if (matches(pattern, name)) return true;
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
    if (matches(pattern, std::string_view(name).substr(dot + 1))) return true;
  return false;
}

void apply_rules(const std::vector<ShardingRule>& rules, std::vector<Parameter>& parameters) {
  for (const ShardingRule& rule : rules) {
    bool matched = false;
    for (Parameter& parameter : parameters) {
      if (!matches_name(rule.pattern, parameter.name)) continue;
      matched = true;
      if (parameter.placement) continue;  // an earlier rule decided
      const Placement& placement = rule.placement;
      if (placement.is_sharded()) {
        require(placement.dim >= 0 && placement.dim < parameter.given.dim(), "sharding rule \"",
                rule.pattern, "\" splits dimension ", placement.dim, " of '", parameter.name,
                "', which has the shape ", parameter.given.sizes());
        require(placement.block == 0 || parameter.given.size(placement.dim) % placement.block == 0,
                "sharding rule \"", rule.pattern, "\": dimension ", placement.dim, " of '",
                parameter.name, "', of shape ", parameter.given.sizes(), ", is not a multiple of ",
                placement.block, ", the block");
      }
      parameter.placement = placement;
      parameter.reason = "by the rule \"" + rule.pattern + "\"";
    }
    require(matched, "sharding rule \"", rule.pattern,
            "\" matches no parameter; a pattern must match a "
            "whole dotted name or its last parts, with * for anything");
  }
}

Tree with_stand_ins(const Tree& params, LayoutTracer& tracer,
                    const std::map<const void*, int>& places) {
  std::map<int, at::Tensor> made;  // tied weights stay tied
  return map_tensors(params, [&](const std::string&, const at::Tensor& tensor) {
    auto place = places.find(tensor.unsafeGetTensorImpl());
    // Not itself: a forward pass may count its calls in it.
    if (place == places.end()) return tensor.clone();
    at::Tensor& stand_in = made[place->second];
    if (!stand_in.defined()) stand_in = tracer.stand_in(place->second);
    return stand_in;
  });
}

}  // namespace

std::vector<ShardingDecision> decide_sharding(
    const Tree& params, int64_t n_model_shards, const std::vector<ShardingRule>& rules,
    const std::function<void(const Tree& params)>& forward) {
  require(n_model_shards > 0, "n_model_shards = ", n_model_shards, " must be positive");
  std::vector<Parameter> parameters;
  std::map<const void*, int> places;
  for (const auto& [name, tensor] : named_tensors(params)) {
    if (!tensor.is_floating_point()) continue;
    if (places.emplace(tensor.unsafeGetTensorImpl(), int(parameters.size())).second)
      parameters.push_back({name, tensor});
  }
  apply_rules(rules, parameters);
  if (n_model_shards > 1 && forward) {
    at::NoGradGuard no_grad;
    std::shared_ptr<const Mesh> mesh = make_imagined_mesh(
        n_model_shards, parameters.empty() ? at::kCPU : parameters[0].given.device());
    std::vector<Parameter> ruled = parameters;
    // Each round mends at least one parameter, and none twice to the same.
    for (size_t round = 0; round <= 2 * parameters.size(); ++round) {
      std::vector<Parameter> watched = ruled;
      LayoutTracer tracer(watched, mesh);
      forward(with_stand_ins(params, tracer, places));
      if (tracer.corrections.empty()) {
        parameters = std::move(watched);
        break;
      }
      for (const auto& [index, correction] : tracer.corrections) {
        ruled[size_t(index)].placement = correction.first;
        ruled[size_t(index)].reason = correction.second;
      }
    }
  }

  std::vector<ShardingDecision> decisions;
  for (const Parameter& parameter : parameters) {
    Placement placement =
        n_model_shards > 1 ? parameter.placement.value_or(Placement()) : Placement();
    ShardingDecision decision{parameter.name, parameter.given.sizes().vec(), placement,
                              parameter.reason};
    decision.bytes = decision.bytes_per_device = int64_t(parameter.given.nbytes());
    if (placement.is_sharded()) {
      int64_t size = parameter.given.size(placement.dim), longest = 0;
      for (int64_t rank = 0; rank < n_model_shards; ++rank)
        longest = std::max(longest,
                           span_of(placement.block_length(size), 1, n_model_shards, rank).length());
      decision.bytes_per_device =
          size == 0 ? 0 : decision.bytes / size * longest * placement.n_blocks(size);
    }
    decisions.push_back(std::move(decision));
  }
  return decisions;
}

std::vector<ShardingRule> as_rules(const std::vector<ShardingDecision>& decisions) {
  std::vector<ShardingRule> rules;
  for (const ShardingDecision& decision : decisions)
    if (decision.placement.is_sharded()) rules.push_back({decision.name, decision.placement});
  return rules;
}

namespace {

// "h.0.attn.weight" and "h.1.attn.weight" are one line, "h.*.attn.weight".
std::string with_stars(const std::string& name) {
  std::string result;
  std::istringstream parts(name);
  for (std::string part; std::getline(parts, part, '.');) {
    bool is_number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    result += (result.empty() ? "" : ".") + (is_number ? "*" : part);
  }
  return result;
}

std::string in_bytes(int64_t bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1);
  if (bytes >= 1 << 20)
    text << double(bytes) / (1 << 20) << " MiB";
  else
    text << double(bytes) / (1 << 10) << " KiB";
  return text.str();
}

}  // namespace

std::string to_string(const std::vector<ShardingDecision>& decisions) {
  struct Line {
    const ShardingDecision* first;
    std::string name;
    int64_t count = 0, bytes_per_device = 0;
  };
  std::vector<Line> lines;
  int64_t bytes = 0, bytes_per_device = 0;
  for (const ShardingDecision& decision : decisions) {
    bytes += decision.bytes;
    bytes_per_device += decision.bytes_per_device;
    std::string name = with_stars(decision.name);
    auto same = std::find_if(lines.begin(), lines.end(), [&](const Line& line) {
      return line.name == name && line.first->sizes == decision.sizes &&
             line.first->placement == decision.placement && line.first->reason == decision.reason;
    });
    if (same == lines.end()) same = lines.insert(lines.end(), {&decision, name});
    ++same->count;
    same->bytes_per_device += decision.bytes_per_device;
  }
  std::ostringstream text;
  for (const Line& line : lines) {
    text << (line.count == 1 ? line.first->name : line.name);
    if (line.count > 1) text << " (" << line.count << ")";
    text << " " << at::IntArrayRef(line.first->sizes) << ": " << to_string(line.first->placement)
         << ", " << in_bytes(line.bytes_per_device) << " a device; " << line.first->reason << "\n";
  }
  text << "all: " << in_bytes(bytes_per_device) << " of " << in_bytes(bytes) << " on each device";
  return text.str();
}

}  // namespace redco
