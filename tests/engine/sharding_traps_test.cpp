// Silent errors of the first sharded tensors, which must not return.

#include <redco/sharding.h>

#include "thread_mesh.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <sstream>

using namespace redco;
using redco::testing::on_threads;

namespace {

using MeshPointer = std::shared_ptr<const Mesh>;
using Tensors = std::vector<at::Tensor>;

const Placement whole = {}, rows = Placement::shard(0), columns = Placement::shard(1),
                sum = Placement::reduction();

at::Tensor numbers(at::IntArrayRef sizes) {
  return at::arange(1, 1 + c10::multiply_integers(sizes), at::kDouble).reshape(sizes);
}

// On two ranks of mp.
at::Tensor on(const MeshPointer& mesh, const at::Tensor& tensor, const Placement& placement) {
  return shard(tensor, mesh, {whole, {}, {}, {}, placement}).detach();
}

void same(const at::Tensor& actual, const at::Tensor& expected) {
  at::Tensor a = full(actual).detach();
  CHECK_MESSAGE((a.sizes() == expected.sizes() && at::allclose(a, expected, 1e-12)), a, " is not ",
                expected);
}

template <class F>
void refuses(F&& body, const std::string& part) {
  try {
    body();
  } catch (const std::exception& error) {
    std::string text = error.what();
    CHECK_MESSAGE(text.find(part) != std::string::npos, text, " does not say ", part);
    return;
  }
  FAIL_CHECK("nothing was refused: " << part);
}

#define ON_TWO(mesh) on_threads(1, 2, [&](const MeshPointer& mesh)

}  // namespace

TEST_CASE("the gradient through in-place on a view is that of the plain tensor") {
  ON_TWO(mesh) {
    for (const Placement& placement : {whole, columns, sum}) {
      at::Tensor x = on(mesh, numbers({2, 4}), placement).requires_grad_();
      at::Tensor y = x * 1;
      y[1].mul_(3);
      y.sum().backward();
      same(x.grad(), at::tensor({1., 1., 1., 1., 3., 3., 3., 3.}).reshape({2, 4}));
    }
  });
}

TEST_CASE("a view that had to be gathered and its base see each other's writes") {
  using View = at::Tensor (*)(const at::Tensor&);
  const View views[] = {
      [](const at::Tensor& x) { return x[1]; },
      [](const at::Tensor& x) { return x.narrow(1, 1, 2).t(); },
      [](const at::Tensor& x) { return x.reshape({8})[5]; },
      [](const at::Tensor& x) { return x.diagonal(); },
      [](const at::Tensor& x) { return x.unbind(1)[2].unsqueeze(0); },
      [](const at::Tensor& x) {
        return x.as_strided({2, 2}, {3, 2}, 1);
      },
      [](const at::Tensor& x) { return x.slice(1, 0, 4, 2).select(0, 1); },
      [](const at::Tensor& x) {
        return at::view_as_complex(x.unflatten(1, {2, 2})).select(1, 1);
      },
  };
  ON_TWO(mesh) {
    for (const Placement& placement : {rows, columns, sum}) {
      for (View view_of : views) {
        at::Tensor plain = numbers({2, 4}) * 1, x = on(mesh, numbers({2, 4}), placement) * 1;
        at::Tensor expected = view_of(plain), view = view_of(x);
        plain.mul_(2), x.mul_(2);
        same(view, expected);
        expected.add_(10), view.add_(10);
        same(x, plain);
        same(view, expected);
        plain.sub_(1), x.sub_(1);
        same(view * 1, expected);
        CHECK(view.strides() == expected.strides());
        CHECK(view.storage_offset() == expected.storage_offset());
      }
    }
  });
}

TEST_CASE("the bytes of a sum are not summed") {
  ON_TWO(mesh) {
    at::Tensor x = on(mesh, numbers({2, 4}), sum);
    CHECK(at::equal(full(x.view(at::kLong)), numbers({2, 4}).view(at::kLong)));
    x = on(mesh, numbers({2, 4}), sum) * 1;
    CHECK(at::equal(full(x.view(at::kInt)), numbers({2, 4}).view(at::kInt)));
    for (const Placement& placement : {rows, columns}) {
      at::Tensor split = on(mesh, numbers({2, 4}), placement);
      CHECK(at::equal(full(split.view(at::kInt)), numbers({2, 4}).view(at::kInt)));
    }
  });
}

TEST_CASE("a sum that is reduced where it lies is reduced for its views, be it a copy itself") {
  on_threads(2, 2, [](const MeshPointer& mesh) {
    at::Tensor x = shard(numbers({2, 2, 3}), mesh, {Placement::shard(1), {}, {}, {}, sum}).detach();
    at::Tensor copy = x.reshape({4, 3}), view = copy[1];
    copy.cos();
    same(view, numbers({2, 2, 3}).reshape({4, 3})[1]);
  });
}

TEST_CASE("a new tensor like a split one has its sizes and strides") {
  ON_TWO(mesh) {
    for (const Placement& placement : {whole, rows, columns, sum}) {
      at::Tensor x = on(mesh, numbers({2, 4}), placement);
      at::Tensor y = x.new_empty_strided({2, 4}, {1, 2}).copy_(x);
      same(y, numbers({2, 4}));
      CHECK(y.strides() == at::IntArrayRef({1, 2}));
      CHECK(placements_of(y) == placements_of(x));
      same(x.new_zeros({2, 4}) + 1, at::ones({2, 4}, at::kDouble));
      same(x.new_full({2, 4}, 2), at::full({2, 4}, 2, at::kDouble));
      same(x.new_ones({5}), at::ones({5}, at::kDouble));
      same(x.as_strided({2, 2}, {4, 2}, 1), numbers({2, 4}).as_strided({2, 2}, {4, 2}, 1));
    }
  });
}

TEST_CASE("set_data takes sizes, values and placement") {
  ON_TWO(mesh) {
    at::Tensor x = on(mesh, numbers({2, 4}), rows), y = on(mesh, numbers({3, 2}) * 5, columns);
    x.set_data(y);
    same(x * 2, numbers({3, 2}) * 10);
    CHECK(placements_of(x) == placements_of(y));
    refuses([&] { x.set_data(numbers({3, 2})); }, "shard that first");
    at::Tensor plain = numbers({2, 4});
    refuses(
        [&] {
          plain.set_data(y);
          plain.add(1);
        },
        "by set_data");
  });
}

TEST_CASE("set_ is refused") {
  ON_TWO(mesh) {
    at::Tensor x = on(mesh, numbers({2, 4}), rows), plain = numbers({2, 4});
    at::NoGradGuard no_grad;
    refuses([&] { plain.set_(x); }, "set_");
    refuses([&] { x.set_(plain); }, "set_");
  });
}

TEST_CASE("lists of results are sharded too") {
  ON_TWO(mesh) {
    at::Tensor x = on(mesh, numbers({2, 4}), rows);
    for (const at::Tensor& piece : x.split(2, 1)) CHECK(is_sharded(piece));
    for (const at::Tensor& piece : at::_foreach_add({x}, 1)) CHECK(is_sharded(piece));
  });
}

TEST_CASE("what is saved for backward and then written is noticed") {
  ON_TWO(mesh) {
    for (const Placement& placement : {whole, rows, sum}) {
      for (bool in_list : {false, true}) {
        at::Tensor x = on(mesh, numbers({2, 4}), placement).requires_grad_();
        at::Tensor y = x.exp();
        {
          at::NoGradGuard no_grad;
          if (in_list)
            at::_foreach_mul_({y}, 2);
          else
            y.mul_(2);
        }
        CHECK(y._version() >= 1);
        refuses([&] { y.sum().backward(); }, "modified by an inplace operation");
      }
    }
    at::Tensor plain = at::ones({2, 4}, at::kDouble), x = on(mesh, numbers({2, 4}), rows);
    at::_foreach_add_(at::TensorList(plain), at::TensorList(x));
    CHECK(plain._version() >= 1);
  });
}

TEST_CASE("an optimizer's step raises the versions of what it writes") {
  ON_TWO(mesh) {
    at::Tensor p = on(mesh, numbers({2, 4}), rows), m = p.clone(), v = p.clone(), g = p.clone();
    at::_fused_adamw_({p}, {g}, {m}, {v}, {}, {at::ones({})}, 0.1, 0.9, 0.99, 0.01, 1e-8, false,
                      false);
    for (const at::Tensor& tensor : {p, m, v}) CHECK(tensor._version() == 1);
  });
}

TEST_CASE("a plain gradient of a sharded leaf counts as whole") {
  ON_TWO(mesh) {
    for (const Placement& placement : {whole, rows, columns}) {
      at::Tensor x = on(mesh, numbers({2, 4}), placement).requires_grad_();
      x.backward(numbers({2, 4}));
      (x * x).sum().backward();  // added to it in place
      same(x.grad(), numbers({2, 4}) * 3);
      at::NoGradGuard no_grad;
      x.sub_(x.grad());
      same(x, numbers({2, 4}) * -2);
    }
  });
}

TEST_CASE("gradients accumulate whatever way") {
  ON_TWO(mesh) {
    for (const Placement& placement : {whole, rows, columns, sum}) {
      for (const Placement& other : {whole, rows, columns, sum}) {
        for (bool create_graph : {false, true}) {
          at::Tensor x = on(mesh, numbers({2, 4}), placement).requires_grad_();
          at::Tensor w = on(mesh, numbers({2, 4}) + 1, other);
          for (int i = 0; i < 3; ++i) (x * w).sum().backward({}, true, create_graph);
          same(x.grad(), (numbers({2, 4}) + 1) * 3);
          x.mutable_grad().reset();
          x.backward(w);  // a gradient that others hold: copied
          x.backward(w);
          same(x.grad(), (numbers({2, 4}) + 1) * 2);
          same(w, numbers({2, 4}) + 1);
        }
      }
    }
    CHECK(redco::testing::gathered_without_rule().empty());
  });
}

TEST_CASE("gradients of operators whose derivative scatters into plain zeros") {
  ON_TWO(mesh) {
    for (const Placement& placement : {whole, rows, columns, sum}) {
      at::Tensor x = on(mesh, numbers({2, 4}), placement).requires_grad_();
      std::get<0>(x.max(1)).sum().backward();
      (x * 1).sum().backward();
      same(x.grad(), at::tensor({1., 1., 1., 2., 1., 1., 1., 2.}).reshape({2, 4}));
    }
  });
}

TEST_CASE("the local part does not come to require gradients") {
  ON_TWO(mesh) {
    at::Tensor x = on(mesh, numbers({2, 4}), rows).requires_grad_();
    at::Tensor part = to_local(x);
    CHECK(part.requires_grad());
    CHECK(!to_local(x.detach()).requires_grad());
    (part * 2).sum().backward();
    same(x.grad(), at::full({2, 4}, 2, at::kDouble));
  });
}

TEST_CASE("in-place changes of the shape reach the logical sizes and strides") {
  ON_TWO(mesh) {
    for (const Placement& placement : {whole, rows, columns, sum}) {
      at::Tensor plain = numbers({4, 4});  // square: its sizes do not tell
      at::Tensor x = on(mesh, plain.clone(), placement);
      auto check = [&] {
        same(x, plain);
        CHECK(x.sizes() == plain.sizes());
        CHECK(x.strides() == plain.strides());
        same(x.reshape({-1}), plain.reshape({-1}));
      };
      x.t_(), plain.t_(), check();
      x.transpose_(0, 1), plain.transpose_(0, 1), check();
      x.unsqueeze_(1), plain.unsqueeze_(1), check();
      x.squeeze_(1), plain.squeeze_(1), check();
      x.unsqueeze_(0), plain.unsqueeze_(0), check();
      x.squeeze_(), plain.squeeze_(), check();
    }
  });
}

TEST_CASE("resizing: right where whole, refused where split") {
  ON_TWO(mesh) {
    at::NoGradGuard no_grad;
    at::Tensor x = on(mesh, numbers({2, 4}), whole);
    x.resize_({4, 2});
    same(x, numbers({4, 2}));
    x.resize_({6}).fill_(1);
    same(x, at::ones({6}, at::kDouble));
    for (const Placement& placement : {rows, columns}) {
      at::Tensor y = on(mesh, numbers({2, 4}), placement);
      y.resize_({2, 4});
      same(y, numbers({2, 4}));
      refuses([&] { y.resize_({4, 2}); }, "resize");
      same(y, numbers({2, 4}));
    }
  });
}

TEST_CASE("out arguments, of the same layout, another, plain, or to be resized") {
  ON_TWO(mesh) {
    at::NoGradGuard no_grad;
    at::Tensor expected = numbers({2, 4}) + 1;
    for (const Placement& placement : {whole, rows, columns, sum}) {
      at::Tensor x = on(mesh, numbers({2, 4}), placement);
      for (const Placement& other : {whole, rows, columns, sum}) {
        at::Tensor out = on(mesh, at::zeros({2, 4}, at::kDouble), other);
        CHECK(at::add_out(out, x, at::ones({}, at::kDouble)).is_same(out));
        same(out, expected);
        at::Tensor product = on(mesh, at::zeros({2, 2}, at::kDouble), other);
        at::mm_out(product, x, x.t());
        same(product, numbers({2, 4}).mm(numbers({2, 4}).t()));
        at::Tensor total = on(mesh, at::zeros({4}, at::kDouble), other == columns ? rows : other);
        at::sum_out(total, x, 0);
        same(total, numbers({2, 4}).sum(0));
      }
      at::Tensor plain = at::zeros({2, 4}, at::kDouble);
      at::add_out(plain, x, at::ones({}, at::kDouble));
      CHECK(!is_sharded(plain));
      same(plain, expected);
      at::Tensor empty = on(mesh, at::empty({0}, at::kDouble), whole);
      at::add_out(empty, x, at::ones({}, at::kDouble));
      same(empty, expected);
      CHECK(empty.sizes() == expected.sizes());
      at::Tensor plain_empty = at::empty({0}, at::kDouble);
      at::add_out(plain_empty, x, at::ones({}, at::kDouble));
      same(plain_empty, expected);
      at::Tensor split = on(mesh, at::empty({0}, at::kDouble), rows);
      refuses([&] { at::add_out(split, x, at::ones({}, at::kDouble)); }, "resize");
    }
  });
}

TEST_CASE("in place, whatever way self and other lie") {
  ON_TWO(mesh) {
    at::NoGradGuard no_grad;
    for (const Placement& placement : {whole, rows, columns, sum}) {
      at::Tensor other = on(mesh, numbers({2, 4}) + 1, placement);
      at::Tensor row = on(mesh, numbers({4}), placement == columns ? rows : placement);
      auto check = [&](at::Tensor self) {
        at::Tensor expected = numbers({2, 4});
        auto both = [&](auto&& f) {
          f(self, other, row);
          f(expected, numbers({2, 4}) + 1, numbers({4}));
          same(self, expected);
        };
        both([](at::Tensor& a, const at::Tensor& b, const at::Tensor&) { a.add_(b, 3); });
        both([](at::Tensor& a, const at::Tensor& b, const at::Tensor&) { a.mul_(b); });
        both([](at::Tensor& a, const at::Tensor&, const at::Tensor& c) { a.sub_(c); });
        both([](at::Tensor& a, const at::Tensor& b, const at::Tensor& c) { a.addcmul_(b, c); });
        both([](at::Tensor& a, const at::Tensor& b, const at::Tensor&) { a.lerp_(b, 0.5); });
        both([](at::Tensor& a, const at::Tensor&, const at::Tensor& c) { a.copy_(c); });
        both([](at::Tensor& a, const at::Tensor& b, const at::Tensor&) { a.copy_(b); });
        both([](at::Tensor& a, const at::Tensor&, const at::Tensor&) { a.clamp_(2, 5); });
        both([](at::Tensor& a, const at::Tensor&, const at::Tensor&) { a.fill_(7); });
        both([](at::Tensor& a, const at::Tensor& b, const at::Tensor&) { a.add_(b); });
        both([](at::Tensor& a, const at::Tensor&, const at::Tensor&) { a.zero_(); });
        both([](at::Tensor& a, const at::Tensor& b, const at::Tensor&) { a.add_(b); });
      };
      check(numbers({2, 4}));
      for (const Placement& own : {whole, rows, columns, sum}) {
        at::Tensor self = on(mesh, numbers({2, 4}), own);
        check(self);
        if (!own.is_partial()) CHECK(placements_of(self)[Mesh::mp] == own);
      }
      refuses([&] { row.add_(other); }, "shape");
    }
  });
}

TEST_CASE("questions have one answer everywhere") {
  ON_TWO(mesh) {
    for (const Placement& placement : {whole, rows, columns, sum}) {
      at::Tensor x = on(mesh, numbers({2, 4}), placement);
      for (const Placement& other : {whole, rows, columns, sum}) {
        at::Tensor y = on(mesh, numbers({2, 4}), other);
        CHECK(x.is_same_size(y));
        CHECK(at::equal(x, y));
        CHECK(!at::equal(x, y + 1));
        CHECK(at::allclose(x, y));
        CHECK(!at::allclose(x, y * 1.5));
      }
      CHECK(at::equal(x, numbers({2, 4})));
      CHECK(x.sum().item<double>() == 36);
      CHECK((x.sum() > 3).is_nonzero());
    }
  });
}

TEST_CASE("memory of a sharded tensor is refused, by a text that says what to call") {
  ON_TWO(mesh) {
    at::Tensor x = on(mesh, numbers({2, 4}), rows);
    refuses([&] { x.data_ptr(); }, "to_local");
    refuses([&] { x.const_data_ptr<double>(); }, "to_local");
    refuses([&] { x.storage(); }, "to_local");
    std::ostringstream text;
    refuses([&] { text << x; }, "to_local");
  });
}

TEST_CASE("inference mode is refused, or right") {
  ON_TWO(mesh) {
    at::Tensor x = on(mesh, numbers({2, 4}), rows), w = on(mesh, numbers({3, 4}), columns);
    c10::InferenceMode inference;
    same(x + x, numbers({2, 4}) * 2);
    same(at::linear(x, w), at::linear(numbers({2, 4}), numbers({3, 4})));
    same(x.matmul(w.t()).softmax(-1), numbers({2, 4}).matmul(numbers({3, 4}).t()).softmax(-1));
  });
}

TEST_CASE("complex numbers, and their lazy conjugates and negatives") {
  ON_TWO(mesh) {
    at::Tensor z = at::complex(numbers({2, 4}), numbers({2, 4}).flip(0));
    for (const Placement& placement : {whole, rows, columns}) {
      at::Tensor x = on(mesh, z, placement).requires_grad_();
      auto f = [](const at::Tensor& t) { return (t.conj() * t * 2 + at::imag(t.conj()) * t); };
      at::Tensor plain = z.detach().requires_grad_();
      at::Tensor y = f(x), expected = f(plain);
      same(y, expected.detach());
      at::real(y).sum().backward();
      at::real(expected).sum().backward();
      same(x.grad(), plain.grad());
    }
  });
}
