// Random expressions over random shapes and placements, against the plain tensors. A failure prints
// its seed: REDCO_TEST_SEED=n runs that one alone.

#include <redco/sharding.h>

#include "selection.h"
#include "thread_mesh.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdlib>
#include <random>
#include <sstream>

using namespace redco;
using redco::testing::on_threads;

namespace {

using Tensors = std::vector<at::Tensor>;

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed * 0x9E3779B97F4A7C15) {}
  /// 0 .. n - 1
  int64_t below(int64_t n) { return int64_t(engine_() % uint64_t(n)); }

 private:
  std::mt19937_64 engine_;
};

// A step makes one more tensor of those before it. `a` and `b` name two, the others what the
// operator needs; all are taken modulo what there is, so that any numbers make a program.
struct Step {
  int64_t op, a, b, i, j;
};

using Operator = at::Tensor (*)(const at::Tensor& a, const at::Tensor& b, int64_t i, int64_t j);

// Undefined where the operator does not apply to such shapes.
at::Tensor broadcast(const at::Tensor& a, const at::Tensor& b,
                     at::Tensor (*f)(const at::Tensor&, const at::Tensor&)) {
  for (int64_t dim = 1; dim <= std::min(a.dim(), b.dim()); ++dim)
    if (a.size(-dim) != b.size(-dim) && a.size(-dim) != 1 && b.size(-dim) != 1) return {};
  return f(a, b);
}

struct Named {
  const char* name;
  Operator run;
};

#define OP(name, expression)                                                   \
  {                                                                            \
    name, [](const at::Tensor& a, const at::Tensor& b, int64_t i, int64_t j) { \
      (void)a, (void)b, (void)i, (void)j;                                      \
      return expression;                                                       \
    }                                                                          \
  }
#define BINARY(name, expression)                                                        \
  OP(name, broadcast(a, b, [](const at::Tensor& a, const at::Tensor& b) -> at::Tensor { \
       return expression;                                                               \
     }))
// Of a tensor that has dimensions: `i` and `j` are two of them.
#define DIMS(name, expression)                                                 \
  {                                                                            \
    name, [](const at::Tensor& a, const at::Tensor& b, int64_t i, int64_t j) { \
      (void)b;                                                                 \
      if (a.dim() == 0) return at::Tensor();                                   \
      int64_t k = j;                                                           \
      i %= a.dim(), j %= a.dim(), (void)j, (void)k;                            \
      return at::Tensor(expression);                                           \
    }                                                                          \
  }

const Named operators[] = {
    OP("neg", -a),
    OP("tanh", a.tanh()),
    OP("sigmoid", a.sigmoid()),
    OP("half", a * 0.5),
    OP("clone", a.clone()),
    OP("square", a.square() * 0.1),
    BINARY("add", a + b),
    BINARY("sub", a - 0.5 * b),
    BINARY("mul", (a * b).tanh()),
    BINARY("div", a / (1 + b.square())),
    BINARY("add in place", a.sizes() == (a + b).sizes() ? (a * 1).add_(b) : at::Tensor()),
    BINARY("mul in place", a.sizes() == (a * b).sizes() ? (a * 1).mul_(b.sin()) : at::Tensor()),
    BINARY("copy in place", a.sizes() == (a + b).sizes() ? (a * 1).copy_(b) : at::Tensor()),
    BINARY("foreach", at::_foreach_add({a, b}, {b, a})[0]),
    BINARY("where", at::where(a > 0, a, b)),
    DIMS("sum", a.sum(i)),
    DIMS("sum, kept", a.sum(i, true)),
    DIMS("mean", a.mean(i)),
    DIMS("mean of two", a.mean(i == j ? std::vector<int64_t>{i} : std::vector<int64_t>{i, j}, true)),
    DIMS("softmax", a.softmax(i)),
    DIMS("cumsum", a.cumsum(i)),
    DIMS("transpose", a.transpose(i, j)),
    DIMS("contiguous transpose", a.transpose(i, j).contiguous()),
    DIMS("select", a.select(i, k % a.size(i))),
    DIMS("narrow", a.narrow(i, k % a.size(i), 1 + (a.size(i) - k % a.size(i)) / 2)),
    DIMS("chunk", a.chunk(2, i)[0]),
    DIMS("unsqueeze", a.dim() < 4 ? a.unsqueeze(i) : at::Tensor()),
    DIMS("cat", a.numel() < 200 ? at::cat({a, a.tanh()}, i) : at::Tensor()),
    DIMS("stack", a.numel() < 200 && a.dim() < 4 ? at::stack({a, a * 2}, i) : at::Tensor()),
    DIMS("reshape", a.reshape({-1})),
    DIMS("reshape to rows", a.reshape({a.size(0), -1})),
    DIMS("reshape to columns", a.reshape({-1, a.size(-1)})),
    DIMS("unflatten", a.size(i) % 2 == 0 && a.dim() < 4 ? a.unflatten(i, {2, -1}) : at::Tensor()),
    DIMS("flip", a.flip(i)),
    OP("expand", a.dim() < 3 ? a.expand(a.dim() == 0 ? std::vector<int64_t>{3}
                                                       : [&] {
                                                           auto sizes = a.sizes().vec();
                                                           sizes.insert(sizes.begin(), 2);
                                                           return sizes;
                                                         }())
                             : at::Tensor()),
    OP("mm", a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) ? a.mm(b) * 0.3
                                                                      : at::Tensor()),
    OP("mm with a transpose",
       a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(1) ? a.mm(b.t()) * 0.3 : at::Tensor()),
    OP("gram", a.dim() == 2 ? a.mm(a.t()).tanh() : at::Tensor()),
    OP("linear", a.dim() > 1 && b.dim() == 2 && a.size(-1) == b.size(1) ? at::linear(a, b).tanh()
                                                                          : at::Tensor()),
    OP("bmm", a.dim() == 3 ? a.bmm(a.transpose(1, 2)).tanh() : at::Tensor()),
};
constexpr int64_t n_operators = std::size(operators);

struct Program {
  std::vector<std::vector<int64_t>> leaves;
  std::vector<Step> steps;
};

Program program(Random& random) {
  Program p;
  // Few sizes, so that shapes often fit together.
  const int64_t sizes[] = {1, 2, 3, 4, 5, 8};
  int64_t size = sizes[random.below(6)], other = sizes[random.below(6)];
  for (int64_t n = 2 + random.below(2); n > 0; --n) {
    auto& leaf = p.leaves.emplace_back();
    for (int64_t dims = 1 + random.below(3); dims > 0; --dims)
      leaf.push_back(random.below(3) == 0 ? sizes[random.below(6)]
                                          : (random.below(2) ? size : other));
  }
  for (int64_t n = 3 + random.below(8); n > 0; --n)
    p.steps.push_back({random.below(n_operators), random.below(1000), random.below(1000),
                       random.below(1000), random.below(1000)});
  return p;
}

std::string described(const Program& p, const std::vector<Placements>& layout) {
  std::ostringstream text;
  for (size_t i = 0; i < p.leaves.size(); ++i)
    text << at::IntArrayRef(p.leaves[i]) << " " << to_string(layout[i]) << "; ";
  for (const Step& step : p.steps) text << operators[step.op].name << ", ";
  return text.str();
}

struct Results {
  Tensors pool, grads;
};

Results evaluate(const Program& p, Tensors leaves) {
  Results results;
  for (at::Tensor& leaf : leaves) leaf = leaf.detach().requires_grad_();
  results.pool = leaves;
  for (const Step& step : p.steps) {
    auto n = int64_t(results.pool.size());
    // The last made is taken more often than chance has it, so that expressions grow deep.
    at::Tensor a = results.pool[size_t(step.a % 2 ? n - 1 : step.a / 2 % n)];
    at::Tensor b = results.pool[size_t(step.b % n)];
    at::Tensor made = operators[step.op].run(a, b, step.i, step.j);
    if (made.defined()) results.pool.push_back(made);
  }
  at::Tensor loss = (results.pool.back().sin() * 2).sum();
  for (const at::Tensor& tensor : results.pool) loss = loss + tensor.cos().sum() * 0.1;
  results.grads = torch::autograd::grad({loss}, leaves);
  results.pool.push_back(loss);
  return results;
}

void compare(const Tensors& actual, const Tensors& expected, const char* what) {
  if (actual.size() != expected.size()) throw std::runtime_error("another number of tensors");
  for (size_t i = 0; i < actual.size(); ++i) {
    at::Tensor a = full(actual[i]).detach(), e = expected[i].detach();
    if (a.sizes() == e.sizes() && at::allclose(a, e, 1e-9, 1e-9)) continue;
    std::ostringstream text;
    text << what << " " << i << ": got\n" << a << "\nexpected\n" << e;
    throw std::runtime_error(text.str());
  }
}

Placement any_placement(Random& random, int64_t n_dims) {
  int64_t choice = random.below(n_dims + 2);
  if (choice < n_dims) return Placement::shard(choice);
  return choice == n_dims ? Placement::replicate() : Placement::reduction();
}

void run_seed(uint64_t seed, const std::shared_ptr<const Mesh>& mesh) {
  Random random(seed);
  Program p = program(random);
  auto generator = at::detail::createCPUGenerator(seed);
  Tensors leaves, placed;
  std::vector<Placements> layout;
  for (const auto& sizes : p.leaves) {
    leaves.push_back(at::randn(sizes, generator, at::kDouble));
    auto n_dims = int64_t(sizes.size());
    layout.push_back({any_placement(random, n_dims), {}, any_placement(random, n_dims)});
    if (mesh->size(Mesh::dp_replicate) > 1)
      layout.back()[Mesh::dp_replicate] = any_placement(random, n_dims);
    placed.push_back(shard(leaves.back(), mesh, layout.back()));
  }
  try {
    Results expected = evaluate(p, leaves), actual = evaluate(p, placed);
    compare(actual.pool, expected.pool, "tensor");
    compare(actual.grads, expected.grads, "gradient");
  } catch (const std::exception& error) {
    std::string text = error.what();
    throw std::runtime_error("REDCO_TEST_SEED=" + std::to_string(seed) + ": " +
                             described(p, layout) + text.substr(0, text.find("Exception raised")));
  }
}

}  // namespace

TEST_CASE("random expressions") {
  const char* one = std::getenv("REDCO_TEST_SEED");
  uint64_t first = one ? std::strtoull(one, nullptr, 10) : 1;
  uint64_t n = one ? 1 : (runs_all() ? 5000 : 200);
  for (const Mesh::Shape& shape : {Mesh::Shape{1, 1, 1, 1, 2, 1},
                                   {1, 1, 1, 1, 3, 1},
                                   {2, 1, 1, 1, 2, 1},
                                   {2, 2, 1, 1, 1, 1},
                                   {1, 2, 1, 1, 2, 1},
                                   {1, 1, 1, 2, 2, 1}}) {
    CAPTURE(redco::testing::shape_text(shape));
    CHECK_NOTHROW(on_threads(shape, [&](const std::shared_ptr<const Mesh>& mesh) {
      for (uint64_t seed = first; seed < first + n; ++seed) run_seed(seed, mesh);
    }));
  }
}
