// A group for device tensors whose collectives run on the host.

#include "host_group.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace redco::mesh {

namespace {

// A collective on the host. `wait` copies its result back to the device.
class Returning final : public Pending {
 public:
  Returning(std::unique_ptr<Pending> on_host, std::function<at::Tensor(at::Tensor)> back)
      : on_host_(std::move(on_host)), back_(std::move(back)) {}

  at::Tensor wait() override {
    if (on_host_) {
      at::Tensor result = on_host_->wait();
      at::NoGradGuard no_grad;
      result_ = back_(std::move(result));
      on_host_.reset();
    }
    return result_;
  }

 private:
  std::unique_ptr<Pending> on_host_;  // null after `wait`
  std::function<at::Tensor(at::Tensor)> back_;
  at::Tensor result_;
};

class HostGroup final : public Group {
 public:
  explicit HostGroup(std::unique_ptr<Group> on_host) : on_host_(std::move(on_host)) {}

  const std::string& name() const override { return on_host_->name(); }
  int64_t rank() const override { return on_host_->rank(); }
  int64_t size() const override { return on_host_->size(); }

  std::unique_ptr<Pending> start_all_reduce(at::Tensor tensor, ReduceOp op) override {
    auto started = on_host_->start_all_reduce(to_host(tensor), op);
    return returning(std::move(started), [tensor](at::Tensor result) {
      if (!result.is_same(tensor)) tensor.copy_(result);
      return tensor;
    });
  }
  std::unique_ptr<Pending> start_all_gather(at::Tensor tensor) override {
    return returning(on_host_->start_all_gather(to_host(tensor)), to(tensor.device()));
  }
  std::unique_ptr<Pending> start_reduce_scatter(at::Tensor tensor, ReduceOp op) override {
    return returning(on_host_->start_reduce_scatter(to_host(tensor), op), to(tensor.device()));
  }
  std::unique_ptr<Pending> start_all_to_all(at::Tensor tensor) override {
    return returning(on_host_->start_all_to_all(to_host(tensor)), to(tensor.device()));
  }
  std::unique_ptr<Pending> start_exchange(std::vector<at::Tensor> sent,
                                          std::vector<int64_t> n_received) override {
    const c10::Device device = sent.front().device();
    for (at::Tensor& tensor : sent) tensor = to_host(tensor);
    return returning(on_host_->start_exchange(std::move(sent), std::move(n_received)), to(device));
  }

 private:
  static at::Tensor to_host(const at::Tensor& tensor) {
    at::NoGradGuard no_grad;
    return tensor.to(at::kCPU);
  }
  static std::function<at::Tensor(at::Tensor)> to(c10::Device device) {
    return [device](at::Tensor result) { return result.to(device); };
  }
  std::unique_ptr<Pending> returning(std::unique_ptr<Pending> started,
                                     std::function<at::Tensor(at::Tensor)> back) {
    counters_ = on_host_->counters();
    return std::make_unique<Returning>(std::move(started), std::move(back));
  }

  std::unique_ptr<Group> on_host_;
};

}  // namespace

std::unique_ptr<Group> make_host_group(std::unique_ptr<Group> on_host) {
  return std::make_unique<HostGroup>(std::move(on_host));
}

}  // namespace redco::mesh
