// The random operators for CounterGenerator. LibTorch's composite operators (rand, randn_like,
// dropout, bernoulli ...) call these.

#include "local_region.h"
#include "places.h"

#include <redco/error.h>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/view_as_real.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <utility>

namespace redco {

using namespace random;

namespace {

thread_local const Region* current_region = nullptr;

using Rng = std::optional<at::Generator>;  // the argument type of LibTorch's kernels

CounterGenerator& counter_of(Rng rng) {
  CounterGenerator* counter = rng ? counter_generator(*rng) : nullptr;
  require(counter != nullptr,
          "random numbers: expected a generator of redco; this one is of another kind");
  return *counter;
}

Stream stream_of(CounterGenerator& rng, Region region) {
  Stream stream{rng.next_key(), std::move(region)};
  const CounterGenerator::Batch& batch = rng.batch();
  const auto& sizes = stream.region.sizes;
  if (batch.size > 0 && !sizes.empty() && sizes[0] > 0 && sizes[0] % batch.size == 0)
    stream.first = c10::multiply_integers(sizes) / batch.size * batch.first;
  return stream;
}

// The region of `tensor`, or of a similar tensor whose last size is `last`.
Region region_of(const at::Tensor& tensor, std::optional<int64_t> last = {}) {
  Region region = current_region ? *current_region : Region::whole(tensor.sizes());
  if (last) {
    require(region.sizes.back() == tensor.size(-1),
            "multinomial: the last dimension, the categories, must not be split");
    region.sizes.back() = *last;
  }
  return region;
}

// One draw: calls fill(tensor, stream) with the next stream of `rng`. Meta tensors are not filled.
template <class Fill>
at::Tensor& draw(at::Tensor& self, Rng rng, const Fill& fill) {
  Stream stream = next_stream(self, rng.value_or(at::Generator()));
  if (!self.is_meta()) fill(self, stream);
  return self;
}

// One draw: applies `of` to float64 numbers in (0, 1).
template <class Of>
at::Tensor& draw_by_inverse(at::Tensor& self, Rng rng, const Of& of) {
  return draw(self, rng, [&](at::Tensor& out, const Stream& stream) {
    at::Tensor unit = at::empty(out.sizes(), out.options().dtype(at::kDouble));
    fill_open_uniform(unit, stream);
    out.copy_(of(unit));
  });
}

void check_probability(const char* op, double p) {
  require(p >= 0 && p <= 1, op, ": expected a probability from 0 to 1, got ", p);
}

at::Tensor& bernoulli_float(at::Tensor& self, double p, Rng rng) {
  check_probability("bernoulli_", p);
  return draw(self, rng,
              [&](at::Tensor& out, const Stream& stream) { fill_bernoulli(out, stream, p); });
}

at::Tensor& bernoulli_tensor(at::Tensor& self, const at::Tensor& p, Rng rng) {
  return draw_by_inverse(self, rng, [&](const at::Tensor& unit) { return unit.lt(p); });
}

at::Tensor& bernoulli_out(const at::Tensor& self, Rng rng, at::Tensor& out) {
  out.resize_(self.sizes());
  return bernoulli_tensor(out, self, rng);
}

at::Tensor& uniform(at::Tensor& self, double from, double to, Rng rng) {
  require(from <= to, "uniform_: from = ", from, " must not be above to = ", to);
  return draw(self, rng,
              [&](at::Tensor& out, const Stream& stream) { fill_uniform(out, stream, from, to); });
}

at::Tensor& normal(at::Tensor& self, double mean, double std, Rng rng) {
  require(std >= 0, "normal_: std = ", std, " must not be negative");
  return draw(self, rng, [&](at::Tensor& out, const Stream& stream) {
    if (!out.is_complex()) return fill_normal(out, stream, mean, std);
    Stream parts = stream;
    parts.first *= 2;
    parts.region.sizes.push_back(2);
    parts.region.starts.push_back(0);
    fill_normal(at::view_as_real(out), parts, 0, std / M_SQRT2);
    out.add_(mean);
  });
}

// Normal numbers with tensors for mean or std, written to `out`.
template <class Mean, class Std>
at::Tensor& normal_of(const Mean& mean, const Std& std, Rng rng, at::Tensor& out) {
  return normal(out, 0, 1, rng).mul_(std).add_(mean);
}

at::Tensor& normal_tensor_float_out(const at::Tensor& mean, double std, Rng rng, at::Tensor& out) {
  out.resize_(mean.sizes());
  return normal_of(mean, std, rng, out);
}

at::Tensor normal_tensor_float(const at::Tensor& mean, double std, Rng rng) {
  at::Tensor out = at::empty_like(mean, at::MemoryFormat::Contiguous);
  return normal_of(mean, std, rng, out);
}

at::Tensor& normal_float_tensor_out(double mean, const at::Tensor& std, Rng rng, at::Tensor& out) {
  out.resize_(std.sizes());
  return normal_of(mean, std, rng, out);
}

at::Tensor normal_float_tensor(double mean, const at::Tensor& std, Rng rng) {
  at::Tensor out = at::empty_like(std, at::MemoryFormat::Contiguous);
  return normal_of(mean, std, rng, out);
}

at::Tensor& normal_tensor_tensor_out(const at::Tensor& mean, const at::Tensor& std, Rng rng,
                                     at::Tensor& out) {
  out.resize_(at::infer_size(mean.sizes(), std.sizes()));
  return normal_of(mean, std, rng, out);
}

at::Tensor normal_tensor_tensor(const at::Tensor& mean, const at::Tensor& std, Rng rng) {
  at::Tensor out = at::empty(at::infer_size(mean.sizes(), std.sizes()), mean.options());
  return normal_of(mean, std, rng, out);
}

at::Tensor& log_normal(at::Tensor& self, double mean, double std, Rng rng) {
  require(std > 0, "log_normal_: std = ", std, " must be positive");
  return draw(self, rng, [&](at::Tensor& out, const Stream& stream) {
    at::Tensor power = at::empty(out.sizes(), out.options().dtype(at::kDouble));
    fill_normal(power, stream, mean, std);
    out.copy_(power.exp_());
  });
}

at::Tensor& exponential(at::Tensor& self, double lambda, Rng rng) {
  require(lambda > 0, "exponential_: lambda = ", lambda, " must be positive");
  return draw_by_inverse(self, rng, [&](at::Tensor& unit) { return unit.log_().div_(-lambda); });
}

at::Tensor& cauchy(at::Tensor& self, double median, double sigma, Rng rng) {
  require(sigma > 0, "cauchy_: sigma = ", sigma, " must be positive");
  return draw_by_inverse(self, rng, [&](at::Tensor& unit) {
    return unit.sub_(0.5).mul_(M_PI).tan_().mul_(sigma).add_(median);
  });
}

at::Tensor& geometric(at::Tensor& self, double p, Rng rng) {
  require(p > 0 && p < 1, "geometric_: p = ", p, " must be between 0 and 1");
  return draw_by_inverse(
      self, rng, [&](at::Tensor& unit) { return unit.log_().div_(std::log1p(-p)).ceil_(); });
}

// Integers in [from, to), in a dtype that represents all of them.
at::Tensor& integers(at::Tensor& self, int64_t from, int64_t to, Rng rng) {
  require(from < to, "random_: from = ", from, " must be below to = ", to);
  if (self.scalar_type() == at::kBool) {
    require(from >= 0 && to <= 2, "random_: a bool tensor holds 0 and 1 only");
    return bernoulli_float(self, to - from == 2 ? 0.5 : double(from), rng);
  }
  return draw(self, rng, [&](at::Tensor& out, const Stream& stream) {
    fill_integers(out, stream, from, uint64_t(to) - uint64_t(from));
  });
}

// The largest n such that the dtype represents all integers from 0 to n.
int64_t largest_integer(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return 1;
    case at::kByte:
      return std::numeric_limits<uint8_t>::max();
    case at::kChar:
      return std::numeric_limits<int8_t>::max();
    case at::kShort:
      return std::numeric_limits<int16_t>::max();
    case at::kInt:
      return std::numeric_limits<int32_t>::max();
    case at::kLong:
      return std::numeric_limits<int64_t>::max() - 1;  // so that n + 1 does not overflow
    case at::kBFloat16:
      return 1 << 8;
    case at::kHalf:
      return 1 << 11;
    case at::kFloat:
      return 1 << 24;
    case at::kDouble:
      return int64_t(1) << 53;
    default:
      fail("random_: a tensor of ", type, " cannot be filled with integers");
  }
}

at::Tensor& random_from(at::Tensor& self, int64_t from, std::optional<int64_t> to, Rng rng) {
  if (!to && from == std::numeric_limits<int64_t>::min())
    return draw(self, rng,
                [](at::Tensor& out, const Stream& stream) { fill_integers(out, stream, 0, 0); });
  int64_t largest = largest_integer(self.scalar_type());
  require(!to || *to - 1 <= largest, "random_: to = ", to.value_or(0), " is too large for ",
          self.scalar_type());
  return integers(self, from, to ? *to : largest + 1, rng);
}

at::Tensor& random_to(at::Tensor& self, int64_t to, Rng rng) {
  return random_from(self, 0, to, rng);
}

at::Tensor& random_of_type(at::Tensor& self, Rng rng) { return random_from(self, 0, {}, rng); }

// Samples categories by their weights, for each row. With replacement: by the inverse of the
// cumulative sum. Without: the first events of exponential processes with these rates (Efraimidis
// and Spirakis, 2006).
at::Tensor sample(const at::Tensor& weights, int64_t n, bool replacement, Rng rng) {
  require(weights.dim() == 1 || weights.dim() == 2,
          "multinomial: expected weights of 1 or 2 dimensions, got ", weights.sizes());
  int64_t n_categories = weights.size(-1);
  require(weights.is_floating_point(), "multinomial: expected floating-point weights, got ",
          weights.scalar_type());
  require(n > 0 && (replacement || n <= n_categories), "multinomial: num_samples = ", n, " of ",
          n_categories, " categories", replacement ? "" : " without replacement");
  at::DimVector shape(weights.sizes());
  shape.back() = n;
  auto is_by_inverse = replacement && n > 1;
  Stream stream = stream_of(counter_of(rng), region_of(weights, is_by_inverse ? n : n_categories));
  if (weights.is_meta()) return at::empty(shape, weights.options().dtype(at::kLong));
  at::Tensor rates = weights.to(at::kDouble), total = rates.sum(-1, true);
  require(rates.ge(0).logical_and_(rates.isfinite()).all().item<bool>() &&
              total.gt(0).all().item<bool>(),
          "multinomial: weights must be finite and not negative, with a positive sum in each row");
  at::Tensor unit =
      at::empty(is_by_inverse ? at::IntArrayRef(shape) : rates.sizes(), rates.options());
  fill_open_uniform(unit, stream);
  if (is_by_inverse) {
    at::Tensor sums = rates.cumsum(-1);
    at::Tensor found = at::searchsorted(sums, unit.mul_(total), false, /*right=*/true);
    return found.clamp_max_(n_categories - 1);
  }
  at::Tensor soonest = rates.div(unit.log_().neg_());
  require(replacement || (weights.gt(0).sum(-1).ge(n)).all().item<bool>(),
          "multinomial: num_samples = ", n, " of a row with fewer positive weights");
  return std::get<1>(soonest.topk(n, -1));
}

at::Tensor& sample_out(const at::Tensor& weights, int64_t n, bool replacement, Rng rng,
                       at::Tensor& out) {
  at::Tensor result = sample(weights, n, replacement, rng);
  out.resize_(result.sizes());
  return out.copy_(result);
}

// The sort order of n random numbers. It is the same for the whole batch.
at::Tensor& randperm_out(int64_t n, Rng rng, at::Tensor& out) {
  require(n >= 0, "randperm: n = ", n, " must not be negative");
  require(current_region == nullptr, "randperm: its result cannot be split while it is drawn");
  out.resize_({n});
  Stream stream{counter_of(rng).next_key(), Region::whole({n})};
  if (out.is_meta()) return out;
  at::Tensor numbers = at::empty({n}, out.options().dtype(at::kLong));
  fill_integers(numbers, stream, 0, 0);
  return out.copy_(numbers.argsort(/*stable=*/true, 0, false));
}

// Rejects operators whose numbers would not depend on positions only.
void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  fail(op.schema().name(),
       ": its numbers would depend on how tensors are split; use rand, randn or another "
       "distribution, or pass a torch.Generator");
}

}  // namespace

LocalRegion::LocalRegion(at::Generator rng, Region region)
    : with_rng_(std::move(rng)),
      region_(std::move(region)),
      outer_(std::exchange(current_region, &region_)) {}

LocalRegion::~LocalRegion() { current_region = outer_; }

Stream random::next_stream(const at::Tensor& tensor, const at::Generator& rng) {
  return stream_of(counter_of(rng), region_of(tensor));
}

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m) {
  m.impl("bernoulli_.float", bernoulli_float);
  m.impl("bernoulli_.Tensor", bernoulli_tensor);
  m.impl("bernoulli.out", bernoulli_out);
  m.impl("uniform_", uniform);
  m.impl("normal_", normal);
  m.impl("normal.Tensor_float", normal_tensor_float);
  m.impl("normal.Tensor_float_out", normal_tensor_float_out);
  m.impl("normal.float_Tensor", normal_float_tensor);
  m.impl("normal.float_Tensor_out", normal_float_tensor_out);
  m.impl("normal.Tensor_Tensor", normal_tensor_tensor);
  m.impl("normal.Tensor_Tensor_out", normal_tensor_tensor_out);
  m.impl("log_normal_", log_normal);
  m.impl("exponential_", exponential);
  m.impl("cauchy_", cauchy);
  m.impl("geometric_", geometric);
  m.impl("random_", random_of_type);
  m.impl("random_.to", random_to);
  m.impl("random_.from", random_from);
  m.impl("multinomial", sample);
  m.impl("multinomial.out", sample_out);
  m.impl("randperm.generator_out", randperm_out);
  for (const char* name :
       {"poisson", "binomial", "_standard_gamma", "_sample_dirichlet", "rrelu_with_noise",
        "rrelu_with_noise_", "rrelu_with_noise.out", "_fused_dropout"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse>());
}

}  // namespace redco
