// Threads that collate batches ahead of their use, each with its Lua state.

#include "collate_workers.h"

#include "state/collector.h"
#include "state/copy_value.h"
#include "state/tensor.h"

#include <redco/detail/forced_stop.h>
#include <redco/detail/notices.h>
#include <redco/detail/thread_without_signals.h>
#include <redco/error.h>
#include <redco/random.h>
#include <redco/script_engine.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <latch>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

namespace redco::lua {

// A requested batch, collated by any free worker.
struct CollateWorkers::Batch {
  const Batches* owner;
  std::vector<int64_t> indices;
  at::Generator rng;  // undefined if there is none; the worker draws from it
  uint64_t key = 0;   // seed of the rng it was requested with
  CounterGenerator::Batch place;
  bool is_done = false;
  Tree tree;
  std::exception_ptr error;
};

struct CollateWorkers::Worker {
  explicit Worker(const Context& main)
      : engine({.strict = main.is_strict, .exits_process = main.exits_process}),
        context(lua::context(engine.state())) {
    context.is_worker = true;
  }
  lua_State* state() const { return engine.state(); }

  // Calls `body(to)` with a copy of the value on top of this state's stack.
  template <class Body>
  void copy(const Ref& value, const std::string& what, Body body) {
    lua_State* from = value.state();
    try {
      protect(state(), [&](lua_State* to) {
        balanced(from, [&] {
          value.push();
          copy_value(from, -1, to, what);
        });
        body(to);
      });
    } catch (const ScriptError& error) {
      fail(error.what());  // without the script line, which belongs to the other state
    }
  }

  ScriptEngine engine;
  Context& context;                            // also used by other threads, for `interrupted`
  Ref collate_fn;                              // in this state
  std::map<const Batches*, Dataset> datasets;  // of examples in this state
  const Batches* running = nullptr;            // the owner of the batch being collated
  std::thread thread;
};

// The requested batches of one dataset, in order.
class CollateWorkers::Batches {
 public:
  Batches(std::shared_ptr<CollateWorkers> workers, const Examples& examples)
      : workers_(std::move(workers)), examples_(examples) {}

  ~Batches() {
    CollateWorkers& all = *workers_;
    {
      std::lock_guard lock(all.mutex_);
      std::erase_if(all.waiting_, [&](const auto& batch) { return batch->owner == this; });
      for (auto& worker : all.workers_)
        if (worker->running == this) worker->context.interrupted = true;
    }
    all.await_end_of(this);
    all.while_idle([&](Worker& worker) { worker.datasets.erase(this); });
  }

  void prefetch(const std::vector<int64_t>& indices) {
    if (!is_copied_) copy_examples();
    auto batch = std::make_shared<Batch>();
    batch->owner = this;
    batch->indices = indices;
    if (const at::Generator& rng = WithRng::current(); rng.defined()) {
      batch->key = rng.current_seed();
      batch->place = counter_generator(rng)->batch();
      batch->rng = make_rng(batch->key);
      counter_generator(batch->rng)->set_batch(batch->place);
    }
    ahead_.push_back(batch);
    std::lock_guard lock(workers_->mutex_);
    workers_->waiting_.push_back(std::move(batch));
    workers_->to_workers_.notify_one();
  }

  Tree collate(const std::vector<int64_t>& indices) {
    std::shared_ptr<Batch> batch = take(indices);
    wait_for(*batch);
    if (batch->error) std::rethrow_exception(batch->error);
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

  void copy_examples() {
    workers_->while_idle([&](Worker& worker) {
      worker.copy(examples_.value(), workers_->what_ + ": the examples", [&](lua_State* to) {
        worker.datasets[this] = make_dataset(Examples(to, -1, "examples"), worker.collate_fn);
      });
    });
    is_copied_ = true;
  }

  void wait_for(Batch& batch) {
    Context& context = lua::context(examples_.value().state());
    std::unique_lock lock(workers_->mutex_);
    while (!batch.is_done) {
      workers_->from_workers_.wait_for(lock, std::chrono::milliseconds(50));
      check_interrupt();
      if (context.interrupted) throw Interrupted();
    }
  }

  std::shared_ptr<CollateWorkers> workers_;
  Examples examples_;
  bool is_copied_ = false;
  std::deque<std::shared_ptr<Batch>> ahead_;
};

namespace {

// Lets a worker find modules in the script's folder.
void copy_paths(lua_State* from, lua_State* to) {
  lua_getfield(from, LUA_GLOBALSINDEX, "package");
  lua_getfield(to, LUA_GLOBALSINDEX, "package");
  for (const char* name : {"path", "cpath"}) {
    lua_getfield(from, -1, name);
    lua_pushstring(to, lua_tostring(from, -1));
    lua_setfield(to, -2, name);
    lua_pop(from, 1);
  }
  lua_pop(from, 1);
  lua_pop(to, 1);
}

}  // namespace

CollateWorkers::CollateWorkers(const Ref& collate_fn, int64_t num_workers, int64_t prefetch_factor,
                               const std::string& what)
    : what_(what), n_ahead_(num_workers * prefetch_factor) {
  lua_State* L = collate_fn.state();
  for (int64_t i = 0; i < num_workers; ++i) {
    auto worker = std::make_unique<Worker>(context(L));
    protect(worker->state(), [&](lua_State* to) { copy_paths(L, to); });
    worker->copy(collate_fn, what_ + ": collate_fn",
                 [&](lua_State* to) { worker->collate_fn = Ref(to, -1); });
    workers_.push_back(std::move(worker));
  }
  start();
}

CollateWorkers::~CollateWorkers() { end(); }

void CollateWorkers::start() {
  // Each worker computes with one thread. LibTorch's setting applies to the calling thread and to
  // threads started later.
  int n_threads = at::get_num_threads();
  std::latch started(ptrdiff_t(workers_.size()));
  try {
    for (auto& worker : workers_)
      worker->thread = thread_without_signals([this, &started, own = worker.get()] {
        at::set_num_threads(1);
        started.count_down();
        run(*own);
      });
  } catch (const std::system_error& error) {
    end();
    fail(what_, ": num_workers = ", workers_.size(), ": cannot start a thread: ", error.what());
  }
  started.wait();
  at::set_num_threads(n_threads);
}

void CollateWorkers::end() {
  {
    std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  to_workers_.notify_all();
  for (auto& worker : workers_)
    if (worker->thread.joinable()) worker->thread.join();
}

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

// Waits for running calls of collate_fn. A compiled Lua loop cannot be interrupted: if a signal is
// to end the script and such a loop does not return, the whole program ends.
void CollateWorkers::await_end_of(const Batches* owner) {
  constexpr auto patience = std::chrono::seconds(3);
  Waiting waiting(what_ + ": collate_fn to return");
  std::unique_lock lock(mutex_);
  auto has_ended = [&] {
    return std::ranges::none_of(workers_, [&](auto& each) { return each->running == owner; });
  };
  if (from_workers_.wait_for(lock, patience, has_ended)) return;
  if (int signal = asked_to_end(); signal != 0 && std::uncaught_exceptions() > 0) {
    lock.unlock();
    force_stop(signal, what_ + ": ended by signal " + std::to_string(signal) +
                           ", because collate_fn does not return");
    lock.lock();
  }
  from_workers_.wait(lock, has_ended);
}

template <class Body>
void CollateWorkers::while_idle(Body body) {
  std::unique_lock lock(mutex_);
  is_paused_ = true;
  from_workers_.wait(lock, [&] { return n_running_ == 0; });
  auto resume = [&] {
    is_paused_ = false;
    to_workers_.notify_all();
  };
  try {
    for (auto& worker : workers_) body(*worker);
  } catch (...) {
    resume();
    throw;
  }
  resume();
}

void CollateWorkers::run(Worker& worker) {
  std::unique_lock lock(mutex_);
  while (true) {
    to_workers_.wait(lock, [&] { return is_ending_ || (!is_paused_ && !waiting_.empty()); });
    if (is_ending_) return;
    std::shared_ptr<Batch> batch = std::move(waiting_.front());
    waiting_.pop_front();
    worker.running = batch->owner;
    ++n_running_;
    const Dataset& dataset = worker.datasets.at(batch->owner);
    lock.unlock();
    Tree tree;
    std::exception_ptr error;
    try {
      WithRng with_rng(batch->rng);
      protect(worker.state(), [&](lua_State*) { tree = dataset.collate(batch->indices); });
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    batch->tree = std::move(tree);
    batch->error = std::move(error);
    batch->is_done = true;
    worker.running = nullptr;
    worker.context.interrupted = false;
    --n_running_;
    from_workers_.notify_all();
  }
}

}  // namespace redco::lua
