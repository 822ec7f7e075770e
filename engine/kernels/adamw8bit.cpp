// AdamW with moments of 8 bits, in blocks, as bitsandbytes' AdamW8bit computes it. A step computes
// the new moments twice: first to find their scales, then to round them. So it stores no float
// moments.

#include "adamw8bit.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

namespace redco::kernels {

namespace {

// The number of decades of a map; each decade has twice as many numbers as the one below.
constexpr int n_decades = 7;

at::Tensor make_dynamic_map(bool is_signed) {
  std::vector<at::Tensor> values{at::tensor({0.f, 1.f})};
  for (int i = 0; i < n_decades; ++i) {
    int64_t n = int64_t{is_signed ? 1 : 2} << i;
    at::Tensor ends = at::linspace(0.1, 1, n + 1, at::kFloat);
    at::Tensor middles = (ends.slice(0, 0, n) + ends.slice(0, 1)) / 2.0;
    double factor = std::pow(10.0, i + 1 - n_decades);
    values.push_back(middles * factor);
    if (is_signed) values.push_back(middles * -factor);
  }
  return std::get<0>(at::cat(values).sort());
}

// The bounds between neighbours of a map; a value on a bound rounds to the smaller number.
at::Tensor bounds_of(const at::Tensor& map) {
  return (map.slice(0, 1) + map.slice(0, 0, 255)) / 2.0;
}

// Finds the nearest number of a map.
class Nearest {
 public:
  explicit Nearest(bool is_signed) {
    at::Tensor map = dynamic_map(is_signed), bounds = bounds_of(map);
    std::copy_n(map.const_data_ptr<float>(), 256, values_.begin());
    std::copy_n(bounds.const_data_ptr<float>(), 255, bounds_.begin());
    for (uint32_t upper = 0; upper < first_.size(); ++upper) {
      auto smallest = std::bit_cast<float>(upper >> 15 ? upper << 16 | 0xffff : upper << 16);
      first_[upper] =
          uint8_t(std::lower_bound(bounds_.begin(), bounds_.end() - 1, smallest) - bounds_.begin());
    }
  }

  float value(uint8_t number) const { return values_[number]; }

  template <class T>
  uint8_t operator()(T x) const {
    // Only a few bounds lie between floats with the same upper 16 bits.
    size_t at = first_[std::bit_cast<uint32_t>(float(x)) >> 16];
    while (at < 255 && x > T(bounds_[at])) ++at;
    return uint8_t(at);
  }

 private:
  std::array<float, 256> values_{};
  std::array<float, 255> bounds_{};
  std::array<uint8_t, 1 << 16> first_{};
};

const Nearest& nearest(bool is_signed) {
  static const Nearest of_signed(true), of_unsigned(false);
  return is_signed ? of_signed : of_unsigned;
}

// A block of zeros has the scale 0.
constexpr float least_scale = 1e-38f;

// A part as rows in the order of memory. Element (i, j) has the place rows[i] + columns[j] in the
// whole parameter.
struct Rows {
  at::Tensor param, grad, exp_avg, exp_avg_sq;  // contiguous
  at::Tensor rows, columns;                     // int64

  explicit Rows(const Adamw8bitParam& p) {
    auto n_dims = p.sizes.size();
    std::vector<int64_t> order(n_dims);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(), [&](int64_t dim) {
      return p.param.size(dim) == 1 ? std::numeric_limits<int64_t>::max() : p.param.stride(dim);
    });
    param = p.param.permute(order).contiguous();
    grad = p.grad.permute(order).contiguous();
    exp_avg = p.exp_avg.permute(order).contiguous();
    exp_avg_sq = p.exp_avg_sq.permute(order).contiguous();
    rows = columns =
        at::zeros({1}, p.indices.empty() ? at::TensorOptions(at::kLong) : p.indices[0].options());
    for (size_t i = 0; i < n_dims; ++i) {
      auto dim = size_t(order[i]);
      auto stride = c10::multiply_integers(p.sizes.begin() + int64_t(dim) + 1, p.sizes.end());
      at::Tensor own = p.indices[dim] * stride;
      if (i + 1 == n_dims)
        columns = own;
      else
        rows = (rows.unsqueeze(1) + own).flatten();
    }
    order_ = std::move(order);
  }

  // Writes what had to be copied.
  void finish(const Adamw8bitParam& p) const {
    for (auto [to, from] :
         {std::pair{p.param, param}, {p.exp_avg, exp_avg}, {p.exp_avg_sq, exp_avg_sq}})
      if (!from.is_alias_of(to)) to.permute(order_).copy_(from);
  }

 private:
  std::vector<int64_t> order_;
};

// --- On a CPU ------------------------------------------------------------------------------------

template <class T>
struct Pointers {
  using Math = at::opmath_type<T>;

  T* param;
  const T* grad;
  uint8_t *exp_avg, *exp_avg_sq;
  const float* absmax;
  const int64_t *rows, *columns;
  int64_t n_rows, n_columns, n_blocks;
  Math beta1, beta2, rest1, rest2;  // rest: 1 - beta

  Pointers(const Rows& r, const at::Tensor& absmax, const Adamw8bitOptions& o)
      : param(r.param.mutable_data_ptr<T>()),
        grad(r.grad.const_data_ptr<T>()),
        exp_avg(r.exp_avg.mutable_data_ptr<uint8_t>()),
        exp_avg_sq(r.exp_avg_sq.mutable_data_ptr<uint8_t>()),
        absmax(absmax.const_data_ptr<float>()),
        rows(r.rows.const_data_ptr<int64_t>()),
        columns(r.columns.const_data_ptr<int64_t>()),
        n_rows(r.rows.numel()),
        n_columns(r.columns.numel()),
        n_blocks(absmax.size(1)),
        beta1(Math(o.beta1)),
        beta2(Math(o.beta2)),
        rest1(Math(1 - o.beta1)),
        rest2(Math(1 - o.beta2)) {}

  // Calls function(place, block, moment, second moment) with the new moments of each element.
  template <class Function>
  void for_each(int64_t begin, int64_t end, const Function& function) const {
    const Nearest &of_signed = nearest(true), &of_unsigned = nearest(false);
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0, at = i * n_columns; j < n_columns; ++j, ++at) {
        int64_t block = (rows[i] + columns[j]) / moment_block;
        auto g = Math(grad[at]);
        Math m = of_signed.value(exp_avg[at]) * absmax[block];
        Math v = of_unsigned.value(exp_avg_sq[at]) * absmax[n_blocks + block];
        m = m * beta1 + g * rest1;
        v = v * beta2 + g * g * rest2;
        function(at, block, m, v);
      }
    }
  }

  int64_t grain() const { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, n_columns)); }
};

// Blocks may lie in the rows of several threads.
void raise_to(float& largest, float value) {
  std::atomic_ref<float> shared(largest);
  float now = shared.load(std::memory_order_relaxed);
  while (value > now && !shared.compare_exchange_weak(now, value, std::memory_order_relaxed)) {
  }
}

template <class T>
void find_absmax_on_cpu(const Pointers<T>& p, float* absmax) {
  at::parallel_for(0, p.n_rows, p.grain(), [&](int64_t begin, int64_t end) {
    int64_t last = -1;
    float first_largest = 0, second_largest = 0;
    auto flush = [&] {
      if (last < 0) return;
      raise_to(absmax[last], first_largest);
      raise_to(absmax[p.n_blocks + last], second_largest);
      first_largest = second_largest = 0;
    };
    p.for_each(begin, end, [&](int64_t, int64_t block, auto m, auto v) {
      if (block != last) {
        flush();
        last = block;
      }
      first_largest = std::max(first_largest, float(std::abs(m)));
      second_largest = std::max(second_largest, float(v));
    });
    flush();
  });
}

template <class T>
void update_on_cpu(const Pointers<T>& p, const float* absmax, const Adamw8bitOptions& o) {
  using Math = at::opmath_type<T>;
  const double step = o.step.item<double>();
  const auto decay = Math(1 - o.learning_rate * o.weight_decay);
  const auto rate = Math(o.learning_rate / (1 - std::pow(o.beta1, step)));
  const auto root = Math(std::sqrt(1 - std::pow(o.beta2, step))), eps = Math(o.eps);
  const Nearest &of_signed = nearest(true), &of_unsigned = nearest(false);
  at::parallel_for(0, p.n_rows, p.grain(), [&](int64_t begin, int64_t end) {
    p.for_each(begin, end, [&](int64_t at, int64_t block, Math m, Math v) {
      const Math first = 1 / std::max(absmax[block], least_scale);
      const Math second = 1 / std::max(absmax[p.n_blocks + block], least_scale);
      p.param[at] = T(Math(p.param[at]) * decay - rate * (m / (std::sqrt(v) / root + eps)));
      p.exp_avg[at] = of_signed(m * first);
      p.exp_avg_sq[at] = of_unsigned(v * second);
    });
  });
}

// --- On any device -------------------------------------------------------------------------------

// The elements whose float moments are in memory together.
constexpr int64_t most_plain = int64_t{1} << 24;

struct Moments {
  at::Tensor blocks, first, second;  // flat, of some rows
};

at::Tensor flat_rows(const at::Tensor& t, int64_t n_rows, int64_t begin, int64_t n) {
  return t.view({n_rows, -1}).narrow(0, begin, n).view(-1);
}

// Calls function(begin, n, moments) for some rows at a time.
template <class Function>
void for_each_plain(const Rows& r, const at::Tensor& absmax, const Adamw8bitOptions& o,
                    const Function& function) {
  const at::ScalarType math = at::toOpMathType(r.param.scalar_type());
  const int64_t n_rows = r.rows.numel(),
                most = std::max<int64_t>(1, most_plain / r.columns.numel());
  for (int64_t begin = 0; begin < n_rows; begin += most) {
    const int64_t n = std::min(most, n_rows - begin);
    Moments moments;
    moments.blocks =
        (r.rows.narrow(0, begin, n).unsqueeze(1) + r.columns).flatten().div_(moment_block, "floor");
    at::Tensor grad = flat_rows(r.grad, n_rows, begin, n).to(math);
    auto old = [&](const at::Tensor& numbers, bool is_signed, int64_t row) {
      at::Tensor map = dynamic_map(is_signed).to(numbers.device());
      at::Tensor values = map.index_select(0, flat_rows(numbers, n_rows, begin, n).to(at::kInt));
      return (values * absmax.select(0, row).index_select(0, moments.blocks)).to(math);
    };
    moments.first = old(r.exp_avg, true, 0).mul_(o.beta1).add_(grad, 1 - o.beta1);
    moments.second = old(r.exp_avg_sq, false, 1).mul_(o.beta2).addcmul_(grad, grad, 1 - o.beta2);
    function(begin, n, moments);
  }
}

void find_absmax_plain(const Rows& r, const at::Tensor& old, at::Tensor absmax,
                       const Adamw8bitOptions& o) {
  for_each_plain(r, old, o, [&](int64_t, int64_t, const Moments& moments) {
    absmax.select(0, 0).scatter_reduce_(0, moments.blocks, moments.first.abs().to(at::kFloat),
                                        "amax");
    absmax.select(0, 1).scatter_reduce_(0, moments.blocks, moments.second.to(at::kFloat), "amax");
  });
}

void update_plain(const Rows& r, const at::Tensor& old, const at::Tensor& absmax,
                  const Adamw8bitOptions& o) {
  const int64_t n_rows = r.rows.numel();
  at::Tensor step = o.step.to(at::kDouble);
  at::Tensor rate = o.learning_rate / (1 - at::pow(o.beta1, step));
  at::Tensor root = (1 - at::pow(o.beta2, step)).sqrt_();
  for_each_plain(r, old, o, [&](int64_t begin, int64_t n, const Moments& moments) {
    auto round = [&](const at::Tensor& values, bool is_signed, int64_t row, const at::Tensor& to) {
      at::Tensor scales = absmax.select(0, row).index_select(0, moments.blocks);
      at::Tensor factors = scales.clamp_min(least_scale).reciprocal_().to(values.scalar_type());
      at::Tensor bounds = bounds_of(dynamic_map(is_signed)).to(factors.options());
      flat_rows(to, n_rows, begin, n).copy_(at::bucketize(values * factors, bounds));
    };
    round(moments.first, true, 0, r.exp_avg);
    round(moments.second, false, 1, r.exp_avg_sq);
    at::Tensor param = flat_rows(r.param, n_rows, begin, n);
    at::Tensor change = moments.first / (moments.second.sqrt() / root + o.eps) * rate;
    param.copy_(param.to(change.scalar_type()) * (1 - o.learning_rate * o.weight_decay) - change);
  });
}

void adamw8bit(const at::TensorList params, const at::TensorList grads,
               const at::TensorList exp_avgs, const at::TensorList exp_avg_sqs,
               const at::TensorList absmaxs, const at::Tensor& step, double learning_rate,
               double beta1, double beta2, double weight_decay, double eps) {
  std::vector<Adamw8bitParam> all;
  for (size_t i = 0; i < params.size(); ++i)
    all.push_back({params[i], grads[i], exp_avgs[i], exp_avg_sqs[i], absmaxs[i],
                   Adamw8bitParam::all_indices(params[i].sizes()), params[i].sizes().vec()});
  adamw8bit_step(std::move(all), {step, learning_rate, beta1, beta2, weight_decay, eps},
                 [](at::Tensor&) {});
}

TORCH_LIBRARY_FRAGMENT(redco, m) {
  m.def(
      "adamw8bit_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] "
      "exp_avg_sqs, Tensor(d!)[] absmaxs, Tensor step, float learning_rate, float beta1, float "
      "beta2, float weight_decay, float eps) -> ()",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &adamw8bit));
}

}  // namespace

const at::Tensor& dynamic_map(bool is_signed) {
  static const at::Tensor of_signed = make_dynamic_map(true), of_unsigned = make_dynamic_map(false);
  return is_signed ? of_signed : of_unsigned;
}

std::vector<at::Tensor> Adamw8bitParam::all_indices(at::IntArrayRef sizes) {
  std::vector<at::Tensor> indices;
  for (int64_t size : sizes) indices.push_back(at::arange(size));
  return indices;
}

void adamw8bit_step(std::vector<Adamw8bitParam> params, const Adamw8bitOptions& options,
                    const std::function<void(at::Tensor& absmax)>& reduce, bool is_plain) {
  if (params.empty()) return;
  int64_t n_scales = 0;
  for (Adamw8bitParam& p : params) {
    n_scales += p.absmax.numel();
    for (at::Tensor& own : p.indices) own = own.to(p.param.device());
  }
  at::Tensor scales = at::zeros({n_scales}, params[0].absmax.options());
  is_plain = is_plain || !scales.is_cpu();
  // Calls function(parameter, its rows, its new scales) for each part with elements.
  auto for_each_part = [&](const auto& function) {
    int64_t begin = 0;
    for (const Adamw8bitParam& p : params) {
      at::Tensor absmax = scales.narrow(0, begin, p.absmax.numel()).view(p.absmax.sizes());
      begin += absmax.numel();
      if (p.param.numel() > 0 && !p.param.is_meta()) function(p, Rows(p), absmax);
    }
  };
  for_each_part([&](const Adamw8bitParam& p, const Rows& rows, const at::Tensor& absmax) {
    if (is_plain) return find_absmax_plain(rows, p.absmax, absmax, options);
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, p.param.scalar_type(), "adamw8bit", [&] {
          find_absmax_on_cpu(Pointers<scalar_t>(rows, p.absmax, options),
                             absmax.mutable_data_ptr<float>());
        });
  });
  reduce(scales);
  for_each_part([&](const Adamw8bitParam& p, const Rows& rows, const at::Tensor& absmax) {
    if (is_plain)
      update_plain(rows, p.absmax, absmax, options);
    else
      AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, p.param.scalar_type(), "adamw8bit",
                                      [&] {
                                        update_on_cpu(Pointers<scalar_t>(rows, p.absmax, options),
                                                      absmax.const_data_ptr<float>(), options);
                                      });
    rows.finish(p);
  });
  int64_t begin = 0;
  for (const Adamw8bitParam& p : params) {
    p.absmax.copy_(scales.narrow(0, begin, p.absmax.numel()).view(p.absmax.sizes()));
    begin += p.absmax.numel();
  }
}

}  // namespace redco::kernels
