#include "pipeline.h"

#include <algorithm>

namespace redco::train {

std::vector<Turn> turns_of(int64_t stage, int64_t n_stages, size_t n_batches) {
  const size_t n_ahead = std::min(size_t(n_stages - 1 - stage), n_batches);
  std::vector<Turn> turns;
  for (size_t i = 0; i < n_batches + n_ahead; ++i) {
    if (i < n_batches) turns.push_back({i, false});
    if (i >= n_ahead) turns.push_back({i - n_ahead, true});
  }
  return turns;
}

}  // namespace redco::train
