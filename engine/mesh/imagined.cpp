// A mesh of any size, of which only this process exists.

#include "imagined.h"

#include "single.h"
#include "wire_form.h"

#include <redco/detail/notes.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace redco::mesh {

namespace {

thread_local CollectiveObserver* of_this_thread = nullptr;

// Tells the observer that a group allocates, while the object exists.
class Allocating {
 public:
  Allocating() : observer_(of_this_thread) {
    if (observer_) observer_->enter();
  }
  ~Allocating() {
    if (observer_) observer_->leave();
  }
  Allocating(const Allocating&) = delete;
  Allocating& operator=(const Allocating&) = delete;

 private:
  CollectiveObserver* observer_;
};

using Finish = std::function<at::Tensor()>;
using Tensors = std::vector<at::Tensor>;

// A collective with the tensors that the library holds for it until the wait.
class Imagined final : public Pending {
 public:
  Imagined(std::optional<int64_t> number, Finish finish, Tensors held)
      : number_(number), finish_(std::move(finish)), held_(std::move(held)) {}

  at::Tensor wait() override {
    if (!finish_) return result_;
    if (of_this_thread && number_) of_this_thread->waited(*number_);
    at::NoGradGuard no_grad;
    Allocating allocating;
    result_ = std::exchange(finish_, nullptr)();
    held_.clear();
    return result_;
  }

 private:
  std::optional<int64_t> number_;  // the observer's number of this collective
  Finish finish_;
  Tensors held_;
  at::Tensor result_;
};

// Allocates as C10dGroup and its library do.
class ImaginedGroup final : public Group {
 public:
  ImaginedGroup(std::string name, std::optional<Mesh::Dim> dim, const Mesh::Line& line,
                int64_t rank, Library library)
      : name_(std::move(name)), dim_(dim), line_(line), rank_(rank), library_(library) {}

  const std::string& name() const override { return name_; }
  int64_t rank() const override { return rank_; }
  int64_t size() const override { return line_.size; }

  std::unique_ptr<Pending> start_all_reduce(at::Tensor tensor, ReduceOp op) override {
    at::NoGradGuard no_grad;
    Allocating allocating;
    if (is_summed_by_parts(tensor, op, size())) return start_sum_by_parts(tensor);
    const Reduced reduced = reduced_form(tensor, op, size());
    auto number = count(all_reduce_kind, reduced.tensor);
    if (library_ == Library::gloo && is_exchanged(tensor, size())) {
      Tensors rows = one_from_each(tensor);
      return started(
          number, [tensor, rows, op] { return tensor.copy_(reduce(rows, op)); }, rows);
    }
    if (!tensor.is_meta() && op == ReduceOp::sum) reduced.tensor.mul_(size());
    return started(number,
                   [tensor, reduced] {
                     reduced.put_back(tensor);
                     return tensor;
                   },
                   {reduced.tensor});
  }

  std::unique_ptr<Pending> start_all_gather(at::Tensor tensor) override {
    auto number = count(all_gather_kind, tensor);
    at::NoGradGuard no_grad;
    Allocating allocating;
    at::Tensor result = copies_of(tensor);
    return started(number, [result] { return result; }, {tensor, result});
  }

  std::unique_ptr<Pending> start_all_to_all(at::Tensor tensor) override {
    auto number = count(all_to_all_kind, tensor);
    at::NoGradGuard no_grad;
    Allocating allocating;
    at::Tensor result = exchanged(tensor);
    return started(number, [result] { return result; }, {tensor, result});
  }

  std::unique_ptr<Pending> start_exchange(Tensors sent, std::vector<int64_t> n_received) override {
    int64_t bytes = 0, n = 0;
    for (size_t rank = 1; rank < sent.size(); ++rank) bytes += int64_t(sent[rank].nbytes());
    for (int64_t each : n_received) n += each;
    auto number = count(all_to_all_kind, bytes);
    at::NoGradGuard no_grad;
    Allocating allocating;
    std::vector<int64_t> sizes = sent[0].sizes().vec();
    sizes[0] = n;
    at::Tensor result = at::zeros(sizes, sent[0].options());
    return started(
        number, [result] { return result; }, std::move(sent));
  }

  std::unique_ptr<Pending> start_reduce_scatter(at::Tensor tensor, ReduceOp op) override {
    auto number = count(reduce_scatter_kind, tensor);
    at::NoGradGuard no_grad;
    Allocating allocating;
    if (library_ == Library::nccl && is_scattered_exactly(tensor, op)) {
      at::Tensor result = at::empty(tensor.sizes().slice(1), tensor.options());
      if (!tensor.is_meta())
        result.copy_(tensor.select(0, 0)).mul_(op == ReduceOp::sum ? size() : 1);
      return started(number, [result] { return result; }, {tensor, result});
    }
    if (library_ == Library::gloo) {
      Tensors rows = one_from_each(tensor[0]);
      return started(
          number, [rows, op] { return reduce(rows, op); }, rows);
    }
    at::Tensor rows = exchanged(tensor);
    return started(number, [rows, op] { return reduce(rows.unbind(), op); }, {tensor, rows});
  }

 private:
  std::optional<int64_t> count(Kind kind, const at::Tensor& sent) {
    return count(kind, bytes_sent(kind, int64_t(sent.nbytes()), size()));
  }
  std::optional<int64_t> count(Kind kind, int64_t bytes) {
    ++counters_[kind].count;
    counters_[kind].bytes += bytes;
    if (!of_this_thread) return std::nullopt;
    return of_this_thread->started({kind, dim_, size(), line_.step, bytes});
  }

  std::unique_ptr<Pending> start_sum_by_parts(const at::Tensor& tensor) {
    at::Tensor parts = to_parts(tensor, size()), arrived = at::empty_like(parts);
    auto number = count(all_reduce_kind, parts);
    auto finish = [parts, tensor, n = size()] {
      put_parts_back(parts, tensor);
      if (!tensor.is_meta()) tensor.copy_(tensor.to(at::kFloat).mul_(n));
      return tensor;
    };
    if (library_ == Library::nccl)
      return started(number, finish, {parts, reduce(arrived.unbind(), ReduceOp::sum)});
    return started(number,
                   [arrived, finish] {
                     reduce(arrived.unbind(), ReduceOp::sum);
                     return finish();
                   },
                   {parts});
  }

  at::Tensor copies_of(const at::Tensor& tensor) const {
    std::vector<int64_t> sizes = tensor.sizes().vec();
    sizes.insert(sizes.begin(), size());
    return tensor.unsqueeze(0).expand(sizes).clone(at::MemoryFormat::Contiguous);
  }

  // This rank's tensor, and a copy of it for each other rank: all ranks hold the same values.
  Tensors one_from_each(const at::Tensor& own) const {
    Tensors tensors{own};
    while (int64_t(tensors.size()) < size()) tensors.push_back(own.clone());
    return tensors;
  }

  // Receives row 0 from each rank: the other ranks hold the same values.
  at::Tensor exchanged(const at::Tensor& tensor) const {
    at::Tensor result = at::empty_like(tensor);
    if (!tensor.is_meta()) result.copy_(tensor.select(0, 0).unsqueeze(0).expand_as(tensor));
    return result;
  }

  std::unique_ptr<Pending> started(std::optional<int64_t> number, Finish finish, Tensors held) {
    return std::make_unique<Imagined>(number, std::move(finish), std::move(held));
  }

  std::string name_;
  std::optional<Mesh::Dim> dim_;
  Mesh::Line line_;
  int64_t rank_;
  Library library_;
};

class ImaginedMesh final : public Mesh {
 public:
  ImaginedMesh(const Shape& shape, int64_t stage, int64_t n_chunks, Library library,
               c10::Device device)
      : device_(device), notes_(make_own_notes()) {
    n_chunks_per_stage_ = n_chunks;
    processes_.size = 1;
    for (int64_t size : shape) processes_.size *= size;
    const int64_t n_stages = shape[stages], n_of_stage = processes_.size / n_stages;
    const int64_t rank = stage * n_of_stage;  // not processes_.rank: the first one writes warnings
    auto make = [&](const std::string& name, std::optional<Dim> dim,
                    const Line& line) -> std::unique_ptr<Group> {
      if (line.size == 1) return make_single(name);
      return std::make_unique<ImaginedGroup>(name, dim, line, (rank - line.first) / line.step,
                                             library);
    };
    for (Dim dim : dims) groups_.push_back(make(facts[dim].name, dim, line_of(dim, shape, rank)));
    world_ = make("world", std::nullopt, {0, 1, processes_.size});
    for (const auto& link : links_of(n_stages, n_chunks)) {
      const int64_t from = link.first % n_stages, to = link.second % n_stages;
      if (from == stage || to == stage)
        links_[link] =
            make(name_of(link), stages, {from * n_of_stage, (to - from) * n_of_stage, 2});
    }
  }
  const Processes& processes() const override { return processes_; }
  c10::Device device() const override { return device_; }
  Group& group(Dim dim) const override { return *groups_[dim]; }
  Group& world() const override { return *world_; }
  Notes& notes() const override { return *notes_; }

 private:
  static constexpr Dim stages = dim_of(pipeline);

  Processes processes_;
  c10::Device device_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::unique_ptr<Group> world_;
  std::unique_ptr<Notes> notes_;
};

}  // namespace

CollectiveObserver::CollectiveObserver() : outer_(std::exchange(of_this_thread, this)) {}

CollectiveObserver::~CollectiveObserver() { of_this_thread = outer_; }

std::shared_ptr<Mesh> make_imagined_mesh(const MeshSize& size, Library library,
                                         c10::Device device) {
  Mesh::Shape shape;
  for (Mesh::Dim dim : Mesh::dims)
    shape[dim] = Mesh::has(dim, Mesh::pipeline)  ? size.stages
                 : Mesh::has(dim, Mesh::model)   ? size.model
                 : Mesh::has(dim, Mesh::context) ? size.context
                 : Mesh::has(dim, Mesh::expert)  ? size.experts
                 : Mesh::has(dim, Mesh::zero)    ? size.zero
                                                 : size.replicated;
  return std::make_shared<ImaginedMesh>(shape, size.stage, size.chunks, library, device);
}

std::unique_ptr<Group> make_imagined_group(std::string name, int64_t size, int64_t rank) {
  if (size == 1) return make_single(std::move(name));
  return std::make_unique<ImaginedGroup>(std::move(name), std::nullopt, Mesh::Line{0, 1, size},
                                         rank, Library::gloo);
}

}  // namespace redco::mesh
