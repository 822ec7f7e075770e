#pragma once

#include "places.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace redco::random::on_device {

constexpr size_t most_dims = 8;  // as in words.cuh

/// `Words` of words.cuh: the numbers of a dense tensor's elements.
struct Words {
  uint64_t key;
  int64_t first, run_length;
  int n_outer;
  std::array<int64_t, most_dims> sizes, strides;

  Words(const at::Tensor& out, const Stream& stream, const Places& places)
      : key(stream.key),
        first(places.first()),
        run_length(places.run_length()),
        n_outer(int(places.n_outer())) {
    for (size_t d = 0; d < places.n_outer(); ++d) {
      sizes[d] = out.size(int64_t(d));
      strides[d] = places.stride(d);
    }
  }
};

}  // namespace redco::random::on_device
