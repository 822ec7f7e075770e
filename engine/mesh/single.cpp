// The group and notes of a single process.

#include "single.h"

#include <redco/error.h>

#include <map>
#include <mutex>
#include <vector>

namespace redco::mesh {

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
  // Copies, as with several processes: results never share memory with the input.
  std::unique_ptr<Pending> start_all_gather(at::Tensor tensor) override {
    return ended(tensor.unsqueeze(0).clone());
  }
  std::unique_ptr<Pending> start_reduce_scatter(at::Tensor tensor, ReduceOp) override {
    return ended(tensor.select(0, 0).clone());
  }
  std::unique_ptr<Pending> start_all_to_all(at::Tensor tensor) override {
    return ended(tensor.clone());
  }
  std::unique_ptr<Pending> start_exchange(std::vector<at::Tensor> sent,
                                          std::vector<int64_t>) override {
    return ended(sent.front().clone());
  }

 private:
  std::string name_;
};

class OwnNotes final : public Notes {
 public:
  std::string next_exchange() override { return std::to_string(n_exchanges_++) + "/"; }
  void leave(const std::string& key, const std::string& text) override {
    std::lock_guard lock(mutex_);
    notes_[key] = text;
  }
  std::string await(const std::string& key, const std::string& what) override {
    std::lock_guard lock(mutex_);
    auto found = notes_.find(key);
    require(found != notes_.end(), what, ": nobody else will leave the note ", key);
    return found->second;
  }

 private:
  int64_t n_exchanges_ = 0;
  std::mutex mutex_;
  std::map<std::string, std::string> notes_;
};

}  // namespace

std::unique_ptr<Notes> make_own_notes() { return std::make_unique<OwnNotes>(); }

std::unique_ptr<Group> make_single(std::string name) {
  return std::make_unique<Single>(std::move(name));
}

}  // namespace redco::mesh
