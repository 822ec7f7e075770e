// The head of a dataset and the order of an epoch.

#include <redco/dataset.h>

#include "../random.h"

#include <algorithm>
#include <numeric>

namespace redco {

using namespace train;

Dataset head(const Dataset& dataset, int64_t size) {
  Dataset result = dataset;
  result.size = std::min(dataset.size, size);
  return result;
}

std::vector<int64_t> epoch_order(int64_t size, uint64_t seed, uint64_t epoch) {
  SplitMix64 next(derive_seed(seed, {epoch}));
  std::vector<int64_t> order(size_t(std::max<int64_t>(size, 0)));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (size_t i = order.size(); i-- > 1;) {
    uint64_t bound = i + 1, rejected = (0 - bound) % bound;
    unsigned __int128 product;
    do product = static_cast<unsigned __int128>(next()) * bound;
    while (uint64_t(product) < rejected);
    std::swap(order[i], order[size_t(product >> 64)]);
  }
  return order;
}

}  // namespace redco
