// Runs operators for their shapes alone, on an imagined mesh.

#include "trace.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <utility>
#include <vector>

namespace redco::sharding {

namespace {

class ImaginedGroup final : public Group {
 public:
  ImaginedGroup(std::string name, int64_t size) : name_(std::move(name)), size_(size) {}

  const std::string& name() const override { return name_; }
  int64_t rank() const override { return 0; }
  int64_t size() const override { return size_; }

  std::unique_ptr<Pending> start_all_reduce(at::Tensor tensor, ReduceOp) override {
    return ended(tensor);
  }
  std::unique_ptr<Pending> start_all_gather(at::Tensor tensor) override {
    std::vector<int64_t> sizes = tensor.sizes().vec();
    sizes.insert(sizes.begin(), size_);
    return ended(tensor.new_empty(sizes));
  }
  std::unique_ptr<Pending> start_reduce_scatter(at::Tensor tensor, ReduceOp) override {
    return ended(tensor.select(0, 0));
  }
  std::unique_ptr<Pending> start_all_to_all(at::Tensor tensor) override { return ended(tensor); }

 private:
  std::string name_;
  int64_t size_;
};

class ImaginedMesh final : public Mesh {
 public:
  ImaginedMesh(int64_t n_model_shards, c10::Device device)
      : device_(device), world_("world", n_model_shards) {
    processes_.size = n_model_shards;
    for (Dim dim : dims)
      groups_.emplace_back(facts[dim].name, has(dim, model) ? n_model_shards : 1);
  }
  const Processes& processes() const override { return processes_; }
  c10::Device device() const override { return device_; }
  Group& group(Dim dim) const override { return groups_[dim]; }
  Group& world() const override { return world_; }

 private:
  Processes processes_;
  c10::Device device_;
  mutable std::vector<ImaginedGroup> groups_;
  mutable ImaginedGroup world_;
};

at::Tensor without_values(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

// Zeros; kernels may check the strides.
at::Tensor with_any_values(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_meta()) return tensor;
  at::TensorOptions options = tensor.options().device(at::kCPU);
  if (!tensor.is_non_overlapping_and_dense()) return at::zeros(tensor.sizes(), options);
  return at::empty_strided(tensor.sizes(), tensor.strides(), options).zero_();
}

template <class Function>
void map_tensors(c10::IValue& value, const Function& function) {
  if (value.isTensor()) {
    value = function(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(function(tensor));
    value = list;
  } else if (value.isList()) {
    c10::List<c10::IValue> list = value.toList().copy();
    for (size_t i = 0; i < list.size(); ++i) {
      c10::IValue element = list.get(i);
      if (element.isTensor()) list.set(i, function(element.toTensor()));
    }
    value = list;
  }
}

}  // namespace

std::shared_ptr<const Mesh> make_imagined_mesh(int64_t n_model_shards, c10::Device device) {
  return std::make_shared<ImaginedMesh>(n_model_shards, device);
}

void call_without_values(torch::jit::Stack& stack,
                         const std::function<void(torch::jit::Stack&)>& function) {
  for (c10::IValue& value : stack)
    map_tensors(value, [](const at::Tensor& tensor) {
      return tensor.defined() && !tensor.is_meta() ? without_values(tensor) : tensor;
    });
  torch::jit::Stack again = stack;
  // A copy to another dtype names the device, too.
  for (c10::IValue& value : stack)
    if (value.isDevice()) value = c10::Device(c10::kMeta);
  try {
    function(stack);
    return;
  } catch (const c10::Error&) {
    // Some operators compute shapes together with values: run these on zeros.
    stack = std::move(again);
  }
  for (c10::IValue& value : stack) map_tensors(value, with_any_values);
  function(stack);
  for (c10::IValue& value : stack)
    map_tensors(value, [](const at::Tensor& tensor) {
      return tensor.defined() ? without_values(tensor) : tensor;
    });
}

}  // namespace redco::sharding
