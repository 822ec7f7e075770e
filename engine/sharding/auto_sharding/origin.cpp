#include "origin.h"

#include <numeric>

namespace redco::sharding {

namespace {

int64_t product(const at::Tensor& given, const std::vector<int>& dims, size_t first) {
  return std::accumulate(dims.begin() + int64_t(first), dims.end(), int64_t{1},
                         [&](int64_t all, int dim) { return all * given.size(dim); });
}

// Returns the dimensions of a tensor that a view merges into one.
std::vector<int> merged_dims(const at::Tensor& tensor, int64_t size, int64_t stride) {
  for (int64_t last = 0; last < tensor.dim(); ++last) {
    if ((tensor.size(last) == 1) != (size == 1) || tensor.stride(last) != stride) continue;
    std::vector<int> dims = {int(last)};
    int64_t found = tensor.size(last);
    for (int64_t dim = last - 1; found < size && dim >= 0; --dim) {
      if (tensor.size(dim) == 1) continue;
      if (tensor.stride(dim) != stride * found) break;
      dims.insert(dims.begin(), int(dim));
      found *= tensor.size(dim);
    }
    if (found == size) return dims;
  }
  return {};
}

}  // namespace

Origin origin_of(const at::Tensor& given, int parameter) {
  Origin origin{parameter, {}};
  for (int dim = 0; dim < given.dim(); ++dim) origin.dims.push_back({dim});
  return origin;
}

Origin of_view(const Origin& origin, const at::Tensor& tensor, const at::Tensor& view) {
  Origin result{origin.parameter, {}};
  for (int64_t i = 0; i < view.dim(); ++i) {
    std::vector<int>& own = result.dims.emplace_back();
    for (int dim : merged_dims(tensor, view.size(i), view.stride(i))) {
      const std::vector<int>& more = origin.dims[size_t(dim)];
      if (more.empty()) {
        own.clear();
        break;
      }
      own.insert(own.end(), more.begin(), more.end());
    }
  }
  return result;
}

std::optional<Placement> on_parameter(const Origin& origin, const Placement& on_tensor,
                                      const at::Tensor& given, int64_t n_ranks) {
  const std::vector<int>& dims = origin.dims[size_t(on_tensor.dim)];
  if (dims.size() == 1) {
    Placement same = on_tensor;
    same.dim = dims[0];
    return same;
  }
  if (on_tensor.lengths) return std::nullopt;
  const int64_t block = on_tensor.block_length(product(given, dims, 0));
  for (size_t i = 0; i < dims.size(); ++i) {
    if (product(given, dims, i) != block) continue;
    const int64_t inner = product(given, dims, i + 1);
    if (on_tensor.grain % inner == 0) return Placement::shard(dims[i], 0, on_tensor.grain / inner);
    if (given.size(dims[i]) % n_ranks == 0) return Placement::shard(dims[i]);
  }
  return std::nullopt;
}

std::optional<Placement> on_tensor(const Origin& origin, const Placement& on_parameter,
                                   const at::Tensor& given, int64_t n_ranks) {
  for (size_t i = 0; i < origin.dims.size(); ++i) {
    const std::vector<int>& dims = origin.dims[i];
    for (size_t k = 0; k < dims.size(); ++k) {
      if (dims[k] != on_parameter.dim) continue;
      Placement result = on_parameter;
      result.dim = int32_t(i);
      if (dims.size() == 1) return result;
      if (on_parameter.is_in_blocks()) return std::nullopt;
      const int64_t inner = product(given, dims, k + 1);
      const bool is_even = given.size(dims[k]) % (n_ranks * on_parameter.grain) == 0;
      return Placement::shard(int64_t(i), k == 0 ? 0 : inner * given.size(dims[k]),
                              is_even ? 1 : on_parameter.grain * inner);
    }
  }
  return std::nullopt;
}

}  // namespace redco::sharding
