// Threads that collate batches ahead of their use.

#include "collate_workers.h"

#include "state/collector.h"
#include "state/tensor.h"

#include <redco/random.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace redco::lua {

// A requested batch, collated by any free worker.
struct CollateWorkers::Batch {
  std::vector<int64_t> indices;
  at::Generator rng;  // undefined if there is none; the worker draws from it
  uint64_t key = 0;   // seed of the rng it was requested with
  CounterGenerator::Batch place;
  Tree tree;
  Workers::Job job;
};

// The requested batches of one dataset, in order.
class CollateWorkers::Batches {
 public:
  Batches(std::shared_ptr<CollateWorkers> workers, const Examples& examples)
      : workers_(std::move(workers)), examples_(examples) {}

  ~Batches() {
    workers().interrupt(this);
    workers().await_end_of(this);
    workers().while_idle([&](Workers::Worker& worker) { datasets_.erase(&worker); });
  }

  void prefetch(const std::vector<int64_t>& indices) {
    if (!is_copied_) copy_examples();
    auto batch = std::make_shared<Batch>();
    batch->indices = indices;
    if (const at::Generator& rng = WithRng::current(); rng.defined()) {
      batch->key = rng.current_seed();
      batch->place = counter_generator(rng)->batch();
      batch->rng = make_rng(batch->key);
      counter_generator(batch->rng)->set_batch(batch->place);
    }
    ahead_.push_back(batch);
    batch->job.owner = this;
    batch->job.run = [this, own = batch.get()](Workers::Worker& worker) {
      WithRng with_rng(own->rng);
      own->tree = datasets_.at(&worker).collate(own->indices);
    };
    workers().add({batch, &batch->job});
  }

  Tree collate(const std::vector<int64_t>& indices) {
    std::shared_ptr<Batch> batch = take(indices);
    wait_for(batch->job);
    if (batch->job.error) std::rethrow_exception(batch->job.error);
    // The worker's collector has counted this memory; count it for this state's collector too.
    for (const auto& [path, tensor] : named_tensors(batch->tree))
      count_tensor_bytes(examples_.value().state(), tensor.device(), int64_t(tensor.nbytes()));
    return std::move(batch->tree);
  }

 private:
  // Returns the requested batch and drops those requested before it.
  std::shared_ptr<Batch> take(const std::vector<int64_t>& indices) {
    const at::Generator& rng = WithRng::current();
    auto found = std::find_if(ahead_.begin(), ahead_.end(), [&](const auto& batch) {
      if (batch->indices != indices || batch->rng.defined() != rng.defined()) return false;
      if (!rng.defined()) return true;
      const auto& place = counter_generator(rng)->batch();
      return batch->key == rng.current_seed() && batch->place.first == place.first &&
             batch->place.size == place.size;
    });
    std::shared_ptr<Batch> batch;
    if (found == ahead_.end()) {  // not prefetched, for example read a second time
      prefetch(indices);
      batch = std::move(ahead_.back());
      ahead_.pop_back();
    } else {
      batch = std::move(*found);
      ahead_.erase(ahead_.begin(), found + 1);
    }
    return batch;
  }

  Workers& workers() { return workers_->workers_; }

  void copy_examples() {
    workers().while_idle([&](Workers::Worker& worker) {
      Ref copied = worker.copy(examples_.value(), workers().what() + ": the examples");
      protect(worker.state(), [&](lua_State* to) {
        copied.push();
        datasets_[&worker] = make_dataset(Examples(to, -1, "examples"), worker.function);
      });
    });
    is_copied_ = true;
  }

  void wait_for(const Workers::Job& job) {
    Context& context = lua::context(examples_.value().state());
    std::unique_lock lock(workers().mutex);
    while (!job.is_done) workers().wait(lock, context);
  }

  std::shared_ptr<CollateWorkers> workers_;
  Examples examples_;
  bool is_copied_ = false;
  std::map<const Workers::Worker*, Dataset> datasets_;  // of examples in the worker's state
  std::deque<std::shared_ptr<Batch>> ahead_;
};

CollateWorkers::CollateWorkers(const Ref& collate_fn, int64_t num_workers, int64_t prefetch_factor,
                               const std::string& what)
    : workers_(collate_fn, "collate_fn", num_workers, what),
      n_ahead_(num_workers * prefetch_factor) {}

Dataset CollateWorkers::dataset(const Examples& examples) {
  auto batches = std::make_shared<Batches>(shared_from_this(), examples);
  Dataset dataset;
  dataset.size = examples.size();
  dataset.collate = [batches](const std::vector<int64_t>& indices) {
    return batches->collate(indices);
  };
  dataset.prefetch = [batches](const std::vector<int64_t>& indices) { batches->prefetch(indices); };
  dataset.n_ahead = n_ahead_;
  return dataset;
}

}  // namespace redco::lua
