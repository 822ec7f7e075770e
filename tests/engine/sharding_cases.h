#pragma once

// Every operator of a table, with its arguments in every placement, against the plain tensors:
// forward, backward and, where it is defined, double backward.

#include "thread_mesh.h"

#include <redco/sharding.h>

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace redco::testing {

using Tensors = std::vector<at::Tensor>;

/// An argument: random numbers of these sizes, or what `make` returns (indices, masks). Only
/// floating-point arguments are placed as sums and given gradients.
struct Input {
  std::vector<int64_t> sizes;
  std::function<at::Tensor()> make = {};
};

/// Integers of this shape.
Input longs(std::vector<int64_t> values, std::vector<int64_t> sizes);

struct Case {
  std::string name;
  std::vector<Input> inputs;
  std::function<Tensors(const Tensors&)> call;
  /// How often it is differentiated: 0 where there is no gradient, 2 where the gradient has one.
  int order = 2;
  /// Which dimensions of which inputs may be split without any gather: "01,1" is dimensions 0 and 1
  /// of the first input and 1 of the second. Sums count as whole.
  std::string free = {};
  double tolerance = 1e-9;  ///< relative
};

/// A tensor in these placements. Where it is a sum to come the terms are noise that cancels to the
/// value: an operator that takes them for values gives other results.
at::Tensor placed(const at::Tensor& tensor, const std::shared_ptr<const Mesh>& mesh,
                  const Placements& placements);

/// Runs a case on the meshes and throws, naming placements, what differs or was gathered.
void run_case(const Case& c);

/// Runs all; each that fails fails the test. REDCO_TEST_CASE chooses one by its name.
void run_all(const std::vector<Case>& cases);

}  // namespace redco::testing
