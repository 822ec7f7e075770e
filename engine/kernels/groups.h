#pragma once

#include <redco/error.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/bincount.h>

#include <cstdint>
#include <vector>

namespace redco::kernels {

/// The choices in the order of their weights: those of weight e are `counts[e]` in a row.
struct Groups {
  at::Tensor order;  ///< indices of choices
  std::vector<int64_t> counts;
  int64_t n_choices;  ///< of a row

  Groups(const at::Tensor& numbers, int64_t n_weights) : n_choices(numbers.size(1)) {
    at::Tensor all = numbers.reshape({-1});
    order = all.argsort(/*stable=*/true);
    at::Tensor n = at::bincount(all, {}, n_weights).cpu();
    require(n.numel() == n_weights, "grouped_linear: a number is ", n.numel() - 1,
            ", but there are ", n_weights, " weights");
    counts.assign(n.const_data_ptr<int64_t>(), n.const_data_ptr<int64_t>() + n_weights);
  }

  /// x [n, ...], or [n, k, ...] with a row `for_each_choice` -> [n k, ...]
  at::Tensor sorted(const at::Tensor& x, bool for_each_choice) const {
    if (for_each_choice) return x.flatten(0, 1).index_select(0, order);
    return x.index_select(0, order.div(n_choices, "floor"));
  }

  /// Calls function(weight, first row, number of rows) for each weight.
  template <class Function>
  void for_each(const Function& function) const {
    int64_t begin = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      function(i, begin, counts[i]);
      begin += counts[i];
    }
  }
};

/// Throws Error unless x is [n, in] or [n, k, in] for numbers [n, k] of int64.
void check_choices(const at::Tensor& x, const at::Tensor& numbers);

}  // namespace redco::kernels
