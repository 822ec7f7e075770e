#include "single.h"

#include <redco/error.h>

namespace redco {

namespace {

class Single : public Group {
 public:
  explicit Single(std::string name) : name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }

  std::unique_ptr<Pending> start_all_reduce(at::Tensor tensor, ReduceOp) override {
    return ended(std::move(tensor));
  }
  // Copies, as with peers: results never share memory with what was given.
  std::unique_ptr<Pending> start_all_gather(at::Tensor tensor) override {
    return ended(tensor.unsqueeze(0).clone());
  }
  std::unique_ptr<Pending> start_reduce_scatter(at::Tensor tensor, ReduceOp) override {
    return ended(tensor.select(0, 0).clone());
  }
  std::unique_ptr<Pending> start_all_to_all(at::Tensor tensor) override {
    return ended(tensor.clone());
  }

 private:
  std::string name_;
};

}  // namespace

std::unique_ptr<Group> make_single(std::string name) {
  return std::make_unique<Single>(std::move(name));
}

}  // namespace redco
