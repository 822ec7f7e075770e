// Fills tensors with random numbers by tensor operators, for any device.

#include "places.h"
#include "words.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/special_ndtri.h>

namespace redco::random::by_operators {

namespace {

bool is_wide(const at::Tensor& out) { return out.scalar_type() == at::kDouble; }

// The `bits` highest of 64 bits, for bits < 64: masked, because shifting int64 replicates the sign.
at::Tensor top_bits_of(const at::Tensor& number, int bits) {
  return number.bitwise_right_shift(64 - bits).bitwise_and_(int64_t(~uint64_t(0) >> (64 - bits)));
}

// The `bits` highest bits of each element's 32 or 64 random bits, as int64.
at::Tensor top_bits(const at::Tensor& out, const Stream& stream, bool wide, int bits) {
  at::Tensor places = Places(out.sizes(), stream).tensor(out.device());
  if (!wide) return words_at(places, stream.key).bitwise_right_shift(32 - bits);
  at::Tensor all = wide_words_at(places, stream.key);
  return bits == 64 ? all : top_bits_of(all, bits);
}

at::Tensor open_unit(const at::Tensor& out, const Stream& stream) {
  return top_bits(out, stream, true, 52).to(at::kDouble).add_(0.5).mul_(two_to(-52));
}

}  // namespace

void fill_uniform(at::Tensor out, const Stream& stream, double low, double high) {
  int digits = digits_of(out.scalar_type());
  at::Tensor steps = top_bits(out, stream, is_wide(out), digits);
  out.copy_(steps.to(is_wide(out) ? at::kDouble : at::kFloat)
                .mul_(two_to(-digits))
                .mul_(high - low)
                .add_(low));
}

void fill_open_uniform(at::Tensor out, const Stream& stream) { out.copy_(open_unit(out, stream)); }

void fill_normal(at::Tensor out, const Stream& stream, double mean, double std) {
  at::Tensor normal;
  if (is_wide(out)) {
    normal = at::special_ndtri(open_unit(out, stream));
  } else {
    at::Tensor word = top_bits(out, stream, false, 32);
    at::Tensor bits = word.bitwise_right_shift(31 - quantile_bits)
                          .bitwise_and_((int64_t(1) << quantile_bits) - 1);
    at::Tensor below = at::special_ndtri(bits.to(at::kDouble).add_(0.5).mul_(quantile_step));
    normal = below.mul_(word.bitwise_right_shift(31).mul_(2).sub_(1));
  }
  out.copy_(normal.mul_(std).add_(mean));
}

void fill_bernoulli(at::Tensor out, const Stream& stream, double p) {
  out.copy_(top_bits(out, stream, false, 32).lt(bernoulli_bound(p)));
}

void fill_integers(at::Tensor out, const Stream& stream, int64_t base, uint64_t range) {
  at::Tensor number = top_bits(out, stream, true, 64);
  auto divisor = int64_t(range);
  if (is_short(range)) {
    at::Tensor low = number.bitwise_and(int64_t(0xFFFFFFFF)).mul_(divisor).bitwise_right_shift(32);
    number = top_bits_of(number, 32).mul_(divisor).add_(low).bitwise_right_shift(32);
  } else if (range > 0) {
    number = top_bits_of(number, 63).remainder_(divisor);
  }
  out.copy_(number.add_(base));
}

}  // namespace redco::random::by_operators
