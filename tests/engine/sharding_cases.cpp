#include "sharding_cases.h"

#include "selection.h"

#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <sstream>

namespace redco::testing {

namespace {

struct Results {
  Tensors outputs, grads, second;
};

at::Tensor fixed_noise(at::IntArrayRef sizes, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator, at::kDouble);
}

// A number that depends on every element of every floating-point tensor, each in its own way.
at::Tensor weighted_sum(const Tensors& tensors, uint64_t seed) {
  at::Tensor total;
  for (const at::Tensor& tensor : tensors) {
    ++seed;
    if (!tensor.defined() || !tensor.is_floating_point() || !tensor.requires_grad()) continue;
    at::Tensor term = (tensor * fixed_noise(tensor.sizes(), seed).to(tensor.scalar_type())).sum();
    total = total.defined() ? total + term : term;
  }
  return total;
}

Results evaluate(const Case& c, Tensors inputs) {
  Tensors leaves;
  for (at::Tensor& input : inputs) {
    if (!input.is_floating_point() || c.order == 0) continue;
    input = input.detach().requires_grad_();
    leaves.push_back(input);
  }
  Results results;
  results.outputs = c.call(inputs);
  if (c.order == 0) return results;
  at::Tensor loss = weighted_sum(results.outputs, 100);
  if (!loss.defined()) throw std::logic_error(c.name + ": nothing to differentiate");
  results.grads = torch::autograd::grad({loss}, leaves, {}, std::nullopt, c.order > 1, true);
  if (c.order > 1) {
    at::Tensor again = weighted_sum(results.grads, 200);
    if (again.defined())
      results.second = torch::autograd::grad({again}, leaves, {}, std::nullopt, false, true);
  }
  return results;
}

std::vector<Placement> placements_for(const at::Tensor& tensor) {
  std::vector<Placement> all = {Placement::replicate()};
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) all.push_back(Placement::shard(dim));
  if (tensor.is_floating_point()) all.push_back(Placement::reduction());
  return all;
}

}  // namespace

at::Tensor placed(const at::Tensor& tensor, const std::shared_ptr<const Mesh>& mesh,
                  const Placements& placements) {
  at::Tensor result = shard(tensor, mesh, placements).detach();
  at::Tensor local = to_local(result).clone();
  for (Mesh::Dim dim : Mesh::dims) {
    if (!placements_of(result)[dim].is_partial()) continue;
    // Eighths, so that the terms of floats cancel without an error.
    auto noise = [&](int64_t rank) {
      auto generator = at::detail::createCPUGenerator(uint64_t(1000 * (dim + 1) + rank));
      at::Tensor eighths = at::randint(-16, 17, local.sizes(), generator);
      return (local.is_floating_point() ? eighths / 8 : eighths).to(local.scalar_type());
    };
    for (int64_t rank = 1; rank < mesh->size(dim); ++rank)
      if (mesh->coordinate(dim) == rank)
        local += noise(rank);
      else if (mesh->coordinate(dim) == 0)
        local -= noise(rank);
  }
  return from_local(local, mesh, placements, tensor.sizes());
}

namespace {

void compare(const Tensors& actual, const Tensors& expected, double tolerance,
             const std::string& what) {
  if (actual.size() != expected.size())
    throw std::runtime_error(what + ": " + std::to_string(actual.size()) + " tensors, expected " +
                             std::to_string(expected.size()));
  for (size_t i = 0; i < actual.size(); ++i) {
    at::Tensor e = expected[i];
    if (!actual[i].defined() && (!e.defined() || e.eq(0).all().item<bool>())) continue;
    if (!actual[i].defined())
      throw std::runtime_error(what + " " + std::to_string(i) + " is undefined");
    at::Tensor a = full(actual[i]).detach();
    if (!e.defined()) e = at::zeros_like(a);
    e = e.detach();
    bool is_float = e.is_floating_point();
    if (a.sizes() == e.sizes() && a.scalar_type() == e.scalar_type() &&
        (is_float ? at::allclose(a, e, tolerance, tolerance, true) : at::equal(a, e)))
      continue;
    std::ostringstream text;
    text << what << " " << i << ": got\n" << a << "\nexpected\n" << e;
    throw std::runtime_error(text.str());
  }
}

using Layout = std::vector<Placements>;

std::string described(const Layout& layout) {
  std::string text;
  for (const Placements& placements : layout) text += " " + to_string(placements);
  return text;
}

// Whether the case promises that nothing is gathered for this layout.
bool is_free(const Case& c, const Layout& layout) {
  std::istringstream parts(c.free);
  for (const Placements& placements : layout) {
    std::string dims;
    std::getline(parts, dims, ',');
    for (const Placement& placement : placements)
      if (placement.is_sharded() && dims.find(char('0' + placement.dim)) == std::string::npos)
        return false;
  }
  return true;
}

std::vector<Layout> all_layouts(const Tensors& inputs, bool both) {
  std::vector<Layout> layouts = {{}};
  for (const at::Tensor& input : inputs) {
    std::vector<Layout> longer;
    for (const Layout& layout : layouts)
      for (const Placement& dp : both ? placements_for(input) : std::vector<Placement>{{}})
        for (const Placement& mp : placements_for(input)) {
          longer.push_back(layout);
          longer.back().push_back({dp, {}, {}, {}, mp});
        }
    layouts = std::move(longer);
  }
  return layouts;
}

void run_layouts(const Case& c, const Tensors& inputs, const Results& expected,
                 const Mesh::Shape& shape, const std::vector<Layout>& layouts) {
  on_threads(shape, [&](const std::shared_ptr<const Mesh>& mesh) {
    for (const Layout& layout : layouts) {
      std::string where = c.name + " on " + shape_text(shape) + described(layout);
      Tensors on_parts;
      for (size_t i = 0; i < inputs.size(); ++i)
        on_parts.push_back(placed(inputs[i], mesh, layout[i]));
      move_counters().moves.clear();
      try {
        Results actual = evaluate(c, on_parts);
        std::string gathered = gathered_without_rule();
        compare(actual.outputs, expected.outputs, c.tolerance, "output");
        compare(actual.grads, expected.grads, c.tolerance, "gradient");
        compare(actual.second, expected.second, c.tolerance, "second gradient");
        if (is_free(c, layout) && !gathered.empty())
          throw std::runtime_error("gathered by" + gathered);
      } catch (const std::exception& error) {
        std::string text = error.what();
        throw std::runtime_error(where + ": " + text.substr(0, text.find("Exception raised from")));
      }
    }
  });
}

std::mt19937_64 random_numbers() {
  const char* seed = std::getenv("REDCO_TEST_SEED");
  return std::mt19937_64(seed ? std::strtoull(seed, nullptr, 10) : 1);
}

// All, where REDCO_TEST_FULL is set; else some, chosen by a seed that REDCO_TEST_SEED sets.
std::vector<Layout> sample(std::vector<Layout> layouts, size_t n) {
  if (runs_all()) return layouts;
  std::shuffle(layouts.begin(), layouts.end(), random_numbers());
  if (layouts.size() > n) layouts.resize(n);
  return layouts;
}

// Some layouts on a mesh of more dimensions: all would be too many.
std::vector<Layout> some_layouts(const Tensors& inputs, const Mesh::Shape& shape, size_t n) {
  std::mt19937_64 random = random_numbers();
  std::vector<Layout> layouts(runs_all() ? 32 * n : n);
  for (Layout& layout : layouts)
    for (const at::Tensor& input : inputs) {
      std::vector<Placement> choices = placements_for(input);
      Placements& placements = layout.emplace_back();
      for (Mesh::Dim dim : Mesh::dims)
        if (shape[dim] > 1) placements[dim] = choices[random() % choices.size()];
    }
  return layouts;
}

}  // namespace

Input longs(std::vector<int64_t> values, std::vector<int64_t> sizes) {
  return {{}, [=] { return at::tensor(values, at::kLong).reshape(sizes); }};
}

void run_case(const Case& c) {
  Tensors inputs;
  for (size_t i = 0; i < c.inputs.size(); ++i)
    inputs.push_back(c.inputs[i].make ? c.inputs[i].make() : fixed_noise(c.inputs[i].sizes, i + 1));
  Results expected = evaluate(c, inputs);
  run_layouts(c, inputs, expected, {1, 1, 1, 1, 2, 1}, sample(all_layouts(inputs, false), 64));
  run_layouts(c, inputs, expected, {1, 1, 1, 1, 4, 1}, sample(all_layouts(inputs, false), 8));
  run_layouts(c, inputs, expected, {2, 1, 1, 1, 2, 1}, sample(all_layouts(inputs, true), 8));
  for (const Mesh::Shape& shape : {Mesh::Shape{2, 2, 1, 1, 1, 1}, Mesh::Shape{2, 2, 1, 1, 2, 1},
                                   Mesh::Shape{1, 1, 1, 2, 2, 1}})
    run_layouts(c, inputs, expected, shape,
                some_layouts(inputs, shape, shape[Mesh::mp] == 1 ? 8 : 2));
}

void run_all(const std::vector<Case>& cases) {
  const char* only = std::getenv("REDCO_TEST_CASE");
  for (const Case& c : cases) {
    if (only && c.name != only) continue;
    try {
      run_case(c);
    } catch (const std::exception& error) {
      FAIL_CHECK(std::string(error.what()));
    }
  }
}

}  // namespace redco::testing
