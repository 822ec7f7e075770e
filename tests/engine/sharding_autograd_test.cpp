// The layers of LibTorch above sharded tensors: custom functions, hooks, re-entrant backward,
// forward derivatives, vmap, autocast.

#include <redco/sharding.h>

#include "thread_mesh.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/TensorWrapper.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/forward_grad.h>

using namespace redco;
using redco::testing::on_threads;

namespace {

using MeshPointer = std::shared_ptr<const Mesh>;
using Tensors = std::vector<at::Tensor>;
using torch::autograd::AutogradContext;

const Placement whole = {}, rows = Placement::shard(0), columns = Placement::shard(1),
                sum = Placement::reduction();

at::Tensor numbers(at::IntArrayRef sizes) {
  return at::arange(1, 1 + c10::multiply_integers(sizes), at::kDouble).reshape(sizes) / 10;
}

void same(const at::Tensor& actual, const at::Tensor& expected, double tolerance = 1e-12) {
  at::Tensor a = full(actual).detach();
  CHECK_MESSAGE((a.sizes() == expected.sizes() && at::allclose(a, expected, tolerance, tolerance)),
                a, " is not ", expected);
}

/// `body` on a plain [4, 6] tensor and on every placement of it; the results are the same.
void everywhere(const std::function<Tensors(const at::Tensor&)>& body, double tolerance = 1e-12) {
  Tensors expected = body(numbers({4, 6}));
  on_threads(1, 2, [&](const MeshPointer& mesh) {
    for (const Placement& placement : {whole, rows, columns, sum}) {
      Tensors actual = body(shard(numbers({4, 6}), mesh, {whole, {}, {}, {}, placement}).detach());
      REQUIRE(actual.size() == expected.size());
      for (size_t i = 0; i < actual.size(); ++i) same(actual[i], expected[i].detach(), tolerance);
    }
  });
}

struct Cube : torch::autograd::Function<Cube> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    return x * x * x;
  }
  static torch::autograd::variable_list backward(AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    at::Tensor x = ctx->get_saved_variables()[0];
    return {grads[0] * 3 * x * x};
  }
};

// Keeps nothing of the forward: runs it again in backward.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor body(const at::Tensor& x) { return (x.exp() * x).sin(); }
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    return body(x);
  }
  static torch::autograd::variable_list backward(AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    at::AutoGradMode record(true);
    at::Tensor x = ctx->get_saved_variables()[0].detach().requires_grad_();
    body(x).backward(grads[0]);
    return {x.grad()};
  }
};

// A level of vmap or of derivatives, left however the scope is.
struct Level {
  template <class... Args>
  explicit Level(Args&&... args)
      : number(at::functorch::initAndPushDynamicLayer(std::forward<Args>(args)...)) {}
  ~Level() { at::functorch::popDynamicLayerAndDeleteMetadata(); }
  int64_t number;
};

at::Tensor vmapped(const std::function<at::Tensor(const at::Tensor&)>& body, const at::Tensor& x) {
  using namespace at::functorch;
  Level level(TransformType::Vmap, c10::SymInt(x.size(0)), RandomnessType::Error);
  at::Tensor y = body(addBatchDim(x, 0, level.number));
  BatchedTensorImpl* batched = maybeGetBatchedImpl(y);
  return batched->value().movedim(batched->bdim(), 0);
}

}  // namespace

TEST_CASE("custom functions, twice differentiated") {
  everywhere([](at::Tensor x) -> Tensors {
    x.requires_grad_();
    at::Tensor y = Cube::apply(x).sum();
    at::Tensor g = torch::autograd::grad({y}, {x}, {}, std::nullopt, true)[0];
    return {g, torch::autograd::grad({g.sum()}, {x})[0]};
  });
}

TEST_CASE("hooks see and may change the gradient") {
  everywhere([](at::Tensor x) -> Tensors {
    x.requires_grad_();
    at::Tensor y = x * 2;
    y.register_hook([](const at::Tensor& grad) { return grad * 3; });
    x.register_hook([](const at::Tensor& grad) { return grad.cos(); });
    (y * y).sum().backward();
    return {x.grad()};
  });
}

TEST_CASE("backward within backward") {
  everywhere([](at::Tensor x) -> Tensors {
    x.requires_grad_();
    (Recomputed::apply(x * 2) * x).sum().backward();
    return {x.grad()};
  });
}

TEST_CASE("forward derivatives") {
  uint64_t level = torch::autograd::ForwardADLevel::get_next_idx();  // one for all threads
  everywhere([&](const at::Tensor& x) -> Tensors {
    at::Tensor dual = at::_make_dual(x, x.cos(), int64_t(level));
    auto parts = at::_unpack_dual((dual * dual).exp().mm(dual.t()), int64_t(level));
    Tensors results = {std::get<0>(parts).detach(), std::get<1>(parts).detach()};
    return results;
  });
  torch::autograd::ForwardADLevel::release_idx(level);
}

TEST_CASE("vmap, and the gradients of each example") {
  everywhere([](const at::Tensor& x) -> Tensors {
    auto loss = [](const at::Tensor& row) { return (row.exp() * row).sum() + row.amax(); };
    auto gradient = [&](const at::Tensor& row) {
      using namespace at::functorch;
      Level level(TransformType::Grad, std::nullopt, std::nullopt, true);
      at::Tensor leaf = makeTensorWrapper(row, level.number).requires_grad_();
      at::Tensor y = loss(leaf);
      at::Tensor grad = torch::autograd::grad({y}, {leaf}, {}, std::nullopt, true)[0];
      return maybeGetTensorWrapper(grad)->value();
    };
    return {vmapped(loss, x), vmapped(gradient, x),
            vmapped([](auto& row) { return row.cumsum(0); }, x)};
  });
}

TEST_CASE("autocast") {
  everywhere(
      [](at::Tensor x) -> Tensors {
        x = x.to(at::kFloat).requires_grad_();
        at::autocast::set_autocast_enabled(at::kCPU, true);
        at::Tensor y = x.mm(x.t());
        at::Tensor z = y.softmax(-1, at::kFloat);
        at::autocast::set_autocast_enabled(at::kCPU, false);
        at::autocast::clear_cache();
        z.square().sum().backward();
        return {y.to(at::kFloat), x.grad()};
      },
      2e-2);
}
