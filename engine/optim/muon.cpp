// The Muon optimizer.

#include "with_learning_rate.h"

#include <redco/detail/read_whole.h>
#include <redco/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>

namespace redco {

using namespace train;

namespace {

class Muon : public WithLearningRate<MuonOptions> {
 public:
  explicit Muon(MuonOptions options) : WithLearningRate("muon", std::move(options)) {
    check_fraction("muon", "momentum", options_.momentum);
    check_at_least("muon", "eps", options_.eps, 0);
    require(options_.ns_steps >= 1 && options_.ns_steps < 100,
            "muon: ns_steps = ", options_.ns_steps, " must be from 1 to 99");
    require(options_.adjust_lr_fn == "original" || options_.adjust_lr_fn == "match_rms_adamw",
            "muon: adjust_lr_fn = \"", options_.adjust_lr_fn,
            "\" is not one of \"original\" and \"match_rms_adamw\"");
  }

  Tree slots(const std::vector<NamedTensor>& params) const override {
    for (const auto& [name, param] : params)
      require(param.dim() == 2, "muon: the parameter '", name, "' has the shape ", param.sizes(),
              ", but muon updates matrices: use it for those in a `multi`, with another optimizer "
              "for the rest");
    return Tree::Dict{{"momentum_buffer", zeros_like(params)}};
  }

  void apply(Update& update, Tree& state, double learning_rate) const override {
    for (const ParameterGroup& group : groups(update)) {
      std::vector<at::Tensor> buffers = select(state, "momentum_buffer", update, group);
      for (size_t i = 0; i < buffers.size(); ++i) {
        at::Tensor& param = update.params[group.members[i]];
        const at::Tensor& grad = update.grads[group.members[i]];
        buffers[i].lerp_(grad, 1 - options_.momentum);
        at::Tensor momentum =
            options_.nesterov ? at::lerp(grad, buffers[i], options_.momentum) : buffers[i];
        // The iterations amplify rounding, so they run on the whole matrix on every process: the
        // result does not depend on the layout.
        at::Tensor change = orthogonal(full_to_read(momentum)).to(param.scalar_type());
        if (is_sharded(param)) change = shard_to_read(change, mesh_of(param), placements_of(param));
        if (group.weight_decay != 0) param.mul_(1 - learning_rate * group.weight_decay);
        param.sub_(change, learning_rate * factor(param));
      }
    }
  }

 private:
  // Newton-Schulz iterations towards the nearest matrix with orthonormal rows or columns.
  at::Tensor orthogonal(const at::Tensor& matrix) const {
    auto [a, b, c] = options_.ns_coefficients;
    bool is_tall = matrix.size(0) > matrix.size(1);
    at::Tensor x = matrix.to(at::kBFloat16, /*non_blocking=*/false, /*copy=*/true);
    if (is_tall) x = x.t();
    x.div_(at::linalg_vector_norm(x).clamp_min_(options_.eps));
    for (int64_t i = 0; i < options_.ns_steps; ++i) {
      at::Tensor gram = at::mm(x, x.t());
      x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a);
    }
    return is_tall ? x.t() : x;
  }

  double factor(const at::Tensor& param) const {
    auto rows = double(param.size(0)), columns = double(param.size(1));
    if (options_.adjust_lr_fn == "original") return std::sqrt(std::max(1.0, rows / columns));
    return 0.2 * std::sqrt(std::max(rows, columns));
  }
};

}  // namespace

std::shared_ptr<Optimizer> muon(MuonOptions options) {
  return std::make_shared<Muon>(std::move(options));
}

}  // namespace redco
