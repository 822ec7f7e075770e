// The positions of a local tensor's elements in the logical tensor.

#include "places.h"

#include <redco/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

namespace redco::random {

Region Region::whole(at::IntArrayRef sizes) {
  Region region;
  region.sizes.assign(sizes.begin(), sizes.end());
  region.starts.assign(sizes.size(), 0);
  return region;
}

Places::Places(at::IntArrayRef sizes, const Stream& stream) : sizes_(sizes), first_(stream.first) {
  const Region& region = stream.region;
  require(region.sizes.size() == sizes.size() && region.starts.size() == sizes.size(),
          "random numbers: the region has ", region.sizes.size(), " dimensions, the tensor ",
          sizes.size());
  strides_.resize(sizes.size());
  int64_t stride = 1;
  bool consecutive = true;
  for (size_t d = sizes.size(); d-- > 0;) {
    require(region.starts[d] >= 0 && region.starts[d] + sizes[d] <= region.sizes[d],
            "random numbers: the local tensor holds the places ", region.starts[d], " to ",
            region.starts[d] + sizes[d], " of dimension ", d, ", whose size is ", region.sizes[d]);
    strides_[d] = stride;
    first_ += region.starts[d] * stride;
    if (consecutive) {
      run_length_ *= sizes[d];
      n_outer_ = d;
      consecutive = sizes[d] == region.sizes[d];
    }
    stride *= region.sizes[d];
  }
}

int64_t Places::run(int64_t number) const {
  int64_t place = first_;
  for (size_t d = n_outer_; d-- > 0; number /= sizes_[d]) place += number % sizes_[d] * strides_[d];
  return place;
}

at::Tensor Places::tensor(at::Device device) const {
  auto options = at::device(device).dtype(at::kLong);
  at::Tensor all = at::full({}, first_, options);
  for (size_t d = 0; d < sizes_.size(); ++d)
    all = all.unsqueeze(-1) + at::arange(sizes_[d], options) * strides_[d];
  return all;
}

double dropout_factor(double p, at::ScalarType dtype) {
  const double factor = dropout_scale(p);
  switch (dtype) {
    case at::kFloat:
      return float(factor);
    case at::kHalf:
      return float(at::Half(float(factor)));
    case at::kBFloat16:
      return float(at::BFloat16(float(factor)));
    default:
      return factor;
  }
}

int digits_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return 53;
    case at::kFloat:
      return 24;
    case at::kHalf:
      return 11;
    case at::kBFloat16:
      return 8;
    default:
      fail("random numbers: uniform ones are float64, float32, float16 or bfloat16, not ", type);
  }
}

}  // namespace redco::random
