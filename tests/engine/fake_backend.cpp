// Collectives on the streams of fake devices, as c10d's for NCCL: they are queued on a stream of
// their own, `wait` makes the current stream wait for them and returns, and they keep their tensors
// until then.

#include "../../engine/mesh/gloo.h"
#include "fake_device.h"
#include "fake_streams.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace fake {

namespace {

std::atomic<c10::DeviceIndex> connecting = -1;
std::atomic<int64_t> n_made = 0;

struct Shutdowns {
  std::mutex mutex;
  std::vector<std::chrono::steady_clock::time_point> times;

  static Shutdowns& get() {
    static auto& made = *new Shutdowns;
    return made;
  }
};

class StreamWork final : public c10d::Work {
 public:
  StreamWork(Event ended, c10::Device device, std::vector<at::Tensor> tensors,
             std::vector<at::Tensor> outputs)
      : ended_(std::move(ended)),
        device_(device),
        stash_(std::move(tensors)),
        outputs_(std::move(outputs)) {}

  bool isCompleted() override { return ended_->has_happened(); }
  bool wait(std::chrono::milliseconds) override {
    Stream::of(device_).wait_for(ended_);
    stash_.clear();
    return true;
  }
  std::vector<at::Tensor> result() override { return outputs_; }

 private:
  Event ended_;
  c10::Device device_;
  std::vector<at::Tensor> stash_;
  std::vector<at::Tensor> outputs_;  // as long as the work
};

// The memory alone: nothing here keeps it.
at::Tensor unowned(const at::Tensor& tensor) {
  return at::for_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes())
      .strides(tensor.strides())
      .options(at::TensorOptions(tensor.scalar_type()))
      .make_tensor();
}

class StreamBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Inner = c10::intrusive_ptr<c10d::Backend>;
  using Collective = std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>;

  StreamBackend(Inner inner, int rank, int size, c10::Device device)
      : c10d::Backend(rank, size), state_(std::make_shared<State>()), device_(device) {
    state_->inner = std::move(inner);
  }

  const std::string getBackendName() const override { return "fake"; }
  c10d::ErrorType getError() override { return state_->error; }
  void abort() override {
    // Gloo's own end would wait for its work.
    if (!state_->is_aborted.exchange(true)) new std::shared_ptr<State>(state_);
  }

  void shutdown() override {
    Shutdowns& all = Shutdowns::get();
    std::lock_guard lock(all.mutex);
    all.times.push_back(std::chrono::steady_clock::now());
  }

  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors,
                                           const c10d::AllreduceOptions& options) override {
    return queue(tensors, tensors, [all = Tensors{unowned(tensors[0])}, options](auto& inner) {
      Tensors each = all;
      return inner.allreduce(each, options);
    });
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& to, at::Tensor& from,
                                                 const c10d::AllgatherOptions& options) override {
    return queue({to, from}, {to}, [a = unowned(to), b = unowned(from), options](auto& inner) {
      at::Tensor to = a, from = b;
      return inner._allgather_base(to, from, options);
    });
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& to, at::Tensor& from, const c10d::ReduceScatterOptions& options) override {
    // Gloo has none: all rows are reduced, in `sums`.
    auto sums = std::make_shared<at::Tensor>();
    auto start = [from = unowned(from), op = options.reduceOp, sums](auto& inner) {
      *sums = from.clone();
      Tensors rows{*sums};
      return inner.allreduce(rows, {.reduceOp = op});
    };
    auto finish = [to = unowned(to), sums, rank = getRank()] { to.copy_(sums->select(0, rank)); };
    return queue({to, from}, {to}, start, finish);
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& to, at::Tensor& from,
                                               std::vector<int64_t>& to_sizes,
                                               std::vector<int64_t>& from_sizes,
                                               const c10d::AllToAllOptions& options) override {
    return queue({to, from}, {to},
                 [a = unowned(to), b = unowned(from), to_sizes, from_sizes, options](auto& inner) {
                   at::Tensor to = a, from = b;
                   auto in = to_sizes, out = from_sizes;
                   return inner.alltoall_base(to, from, in, out, options);
                 });
  }

 private:
  struct State {
    Inner inner;
    std::atomic<bool> is_aborted = false;
    std::atomic<c10d::ErrorType> error = c10d::ErrorType::SUCCESS;
    Stream& stream = *new Stream;

    // Whether it has ended well.
    bool run(const Collective& start, const std::function<void()>& finish) {
      try {
        auto work = is_aborted ? nullptr : start(*inner);
        while (!is_aborted) {
          if (work->isCompleted()) {
            work->wait();
            finish();
            return true;
          }
          std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
      } catch (const std::exception&) {
        error = c10d::ErrorType::COMM_ERROR;
      }
      return false;
    }
  };

  c10::intrusive_ptr<c10d::Work> queue(
      Tensors tensors, Tensors outputs, Collective start, std::function<void()> finish = [] {}) {
    for (const at::Tensor& each : tensors)
      TORCH_CHECK(each.device() == device_, "Tensors must be on the device of the group");
    state_->stream.wait_for(Stream::of(device_).record());
    Tensors results;
    for (const at::Tensor& each : outputs) results.push_back(unowned(each));
    state_->stream.add(
        [state = state_, start = std::move(start), finish = std::move(finish), results] {
          if (state->run(start, finish)) return;
          // NaN as floats.
          for (const at::Tensor& each : results)
            std::memset(each.mutable_data_ptr(), 0xFF, each.nbytes());
        });
    return c10::make_intrusive<StreamWork>(state_->stream.record(), device_, std::move(tensors),
                                           std::move(outputs));
  }

  std::shared_ptr<State> state_;
  c10::Device device_;
};

}  // namespace

c10::Device connecting_device() { return {type, connecting}; }

int64_t n_connected() { return n_made; }

std::vector<std::chrono::steady_clock::time_point> shutdowns() {
  Shutdowns& all = Shutdowns::get();
  std::lock_guard lock(all.mutex);
  return all.times;
}

redco::mesh::Backend on_stream(const redco::mesh::DeviceRequest& request) {
  ++n_made;
  connecting = current_device().index();
  redco::mesh::Backend inner = redco::mesh::make_gloo(
      request.store, request.rank, request.size, request.timeout, "127.0.0.1", /*one_host=*/true);
  redco::mesh::Backend backend;
  backend.c10d = c10::make_intrusive<StreamBackend>(inner.c10d, int(request.rank),
                                                    int(request.size), request.device);
  backend.has_reduce_scatter = backend.runs_on_stream = true;
  return backend;
}

}  // namespace fake
