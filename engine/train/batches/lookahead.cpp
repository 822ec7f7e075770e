// A dataset that announces the next batches of a pass to `prefetch`.

#include "lookahead.h"

#include "../random.h"
#include "local_batch.h"

#include <redco/error.h>
#include <redco/random.h>

#include <algorithm>
#include <vector>

namespace redco::train {

namespace {

class Lookahead {
 public:
  Lookahead(const Dataset& examples, const Pass& pass, std::shared_ptr<Mesh> mesh)
      : examples_(examples),
        pass_(pass),
        mesh_(std::move(mesh)),
        n_batches_((int64_t(pass.order.size()) + pass.batch_size - 1) / pass.batch_size),
        next_(pass.first_batch),
        announced_(pass.first_batch) {}

  Tree collate(const std::vector<int64_t>& indices) {
    auto expected = next_ < n_batches_ ? examples_of(next_) : std::span<const int64_t>();
    if (!std::equal(indices.begin(), indices.end(), expected.begin(), expected.end()))
      return collate_again(indices);
    announce(next_ + examples_.n_ahead);
    Tree batch = [&] {
      WithRng with_rng(rng_of(expected));
      return examples_.collate(indices);
    }();
    announce(++next_ + examples_.n_ahead);
    return batch;
  }

 private:
  // The examples of batch k that this process collates.
  std::span<const int64_t> examples_of(int64_t k) const {
    size_t first = size_t(k * pass_.batch_size), size = size_t(pass_.batch_size);
    auto batch = pass_.order.subspan(first, std::min(size, pass_.order.size() - first));
    return pass_.collate == Collate::local ? local_part(batch, *mesh_) : batch;
  }

  // The generator of a part of the order; the part must be within one step.
  at::Generator rng_of(std::span<const int64_t> examples) const {
    int64_t place = examples.data() - pass_.order.data();
    int64_t per_step = pass_.batches_per_step * pass_.batch_size;
    at::Generator rng = make_rng(derive_seed(pass_.seed, {uint64_t(place / per_step)}));
    counter_generator(rng)->set_batch({place % per_step, int64_t(examples.size())});
    return rng;
  }

  // Collates a batch out of order: an earlier batch again, or all examples of a step.
  Tree collate_again(const std::vector<int64_t>& indices) {
    auto found = std::ranges::search(pass_.order, indices);
    require(!found.empty(), "a batch of ", indices.size(), " examples is not one of this pass");
    WithRng with_rng(rng_of({found.begin(), found.end()}));
    return examples_.collate(indices);
  }

  void announce(int64_t end) {
    if (!examples_.prefetch) return;
    for (; announced_ < std::min(end, n_batches_); ++announced_) {
      auto examples = examples_of(announced_);
      WithRng with_rng(rng_of(examples));
      examples_.prefetch({examples.begin(), examples.end()});
    }
  }

  Dataset examples_;
  Pass pass_;
  std::shared_ptr<Mesh> mesh_;
  int64_t n_batches_, next_, announced_;
};

}  // namespace

Dataset with_lookahead(const Dataset& examples, const Pass& pass,
                       const std::shared_ptr<Mesh>& mesh) {
  auto lookahead = std::make_shared<Lookahead>(examples, pass, mesh);
  Dataset ahead = examples;
  ahead.collate = [lookahead](const std::vector<int64_t>& indices) {
    return lookahead->collate(indices);
  };
  ahead.prefetch = {};
  return ahead;
}

}  // namespace redco::train
