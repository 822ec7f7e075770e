// A group whose collectives run in a c10d backend, Gloo or NCCL.

#include "c10d_group.h"

#include "alone.h"
#include "await.h"
#include "spmd_log.h"
#include "wire_form.h"

#include <redco/error.h>
#include <redco/moves.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <functional>
#include <numeric>
#include <utility>

namespace redco::mesh {

namespace {

// Views a contiguous tensor as bytes, because backends lack some dtypes. as_strided, because a
// tensor of one element may have any stride, which a view would keep.
at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1}).view(at::kByte);
}

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
  }
  fail("unknown reduction");
}

// The description of a collective in messages.
struct Label {
  Group::Kind kind;
  at::ScalarType type;
  std::vector<int64_t> sizes;

  std::string text(const GroupParts& group) const {
    std::string text = group.is_link() ? "a message" : Group::name(kind);
    append_type(text += " of ", type, sizes);
    return text.append(" over group \"").append(group.name).append("\"");
  }
};

using Work = c10::intrusive_ptr<c10d::Work>;
using Finish = std::function<at::Tensor()>;

// A collective from its start to its wait.
class Call : public Pending {
 public:
  Call(Group::Kind kind, std::shared_ptr<GroupLine> line, Started started, Finish finish)
      : kind_(kind),
        line_(std::move(line)),
        started_(std::move(started)),
        finish_(std::move(finish)) {}
  // Memory that a GPU still writes to must not be freed.
  ~Call() override {
    if (!started_.work || !started_.group->backend.runs_on_stream) return;
    try {
      started_.work->wait();
    } catch (const std::exception&) {
      // It ended with an error.
    }
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  at::Tensor wait() override {
    if (finish_) {
      RECORD_USER_SCOPE(Group::name(kind_));
      if (started_.work) {
        await(started_);
        line_->remove(started_);
      }
      at::NoGradGuard no_grad;
      result_ = std::exchange(finish_, nullptr)();
      started_.work.reset();
    }
    return result_;
  }

 private:
  Group::Kind kind_;
  std::shared_ptr<GroupLine> line_;
  Started started_;  // null if there is nothing to send
  Finish finish_;
  at::Tensor result_;
};

class C10dGroup : public Group {
 public:
  explicit C10dGroup(std::shared_ptr<GroupLine> line)
      : line_(std::move(line)), parts_(line_->unconnected()) {}

  const std::string& name() const override { return parts_.name; }
  int64_t rank() const override { return parts_.rank; }
  int64_t size() const override { return int64_t(parts_.processes.size()); }

  std::unique_ptr<Pending> start_all_reduce(at::Tensor tensor, ReduceOp op) override;
  std::unique_ptr<Pending> start_all_gather(at::Tensor tensor) override;
  std::unique_ptr<Pending> start_reduce_scatter(at::Tensor tensor, ReduceOp op) override;
  std::unique_ptr<Pending> start_all_to_all(at::Tensor tensor) override;
  std::unique_ptr<Pending> start_exchange(std::vector<at::Tensor> sent,
                                          std::vector<int64_t> n_received) override;

 private:
  // Checks, counts and logs a collective that is about to start; `sent` is the tensor that is
  // communicated.
  Label announce(Kind kind, const at::Tensor& tensor, const at::Tensor& sent,
                 ReduceOp op = ReduceOp::sum);
  Label announce(Kind kind, const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) {
    return announce(kind, tensor, tensor, op);
  }
  // Counts and logs a collective.
  void start(const Label& label, int64_t bytes, ReduceOp op = ReduceOp::sum);
  void log(const Label& label, ReduceOp op);
  Started begin(Label label, Work work);
  std::unique_ptr<Pending> started(Label label, Work work, Finish finish);
  // A sum in two steps (is_summed_by_parts).
  std::unique_ptr<Pending> start_sum_by_parts(const at::Tensor& tensor);
  // Sends and receives a tensor for each rank (Backend::exchange).
  Work exchange(std::vector<at::Tensor> sent, std::vector<at::Tensor> received);
  // Sends row r to rank r. Row r of the result is from rank r.
  Work exchange_rows(const at::Tensor& tensor, const at::Tensor& result);
  // Memory for tensors of this size from the other ranks, and the own one.
  std::vector<at::Tensor> one_from_each(const at::Tensor& own) const;
  const Backend& backend() { return line_->parts()->backend; }

  std::shared_ptr<GroupLine> line_;
  const GroupParts& parts_;  // the group's parts before it is connected
};

void C10dGroup::log(const Label& label, ReduceOp op) {
  std::string_view operator_name = current_operator();
  std::string text = "calls " + label.text(parts_);
  if (op != ReduceOp::sum) text += op == ReduceOp::max ? " by max" : " by min";
  if (!operator_name.empty()) text.append(" for ").append(operator_name);
  uint64_t alike = Digest()
                       .add(uint64_t(label.kind))
                       .add(uint64_t(op))
                       .add(parts_.name)
                       .add(operator_name)
                       .value();
  uint64_t in_group = Digest().add(uint64_t(label.type)).add(label.sizes).value();
  // Only the two processes of a link take part in its collectives, at different points of their
  // sequences of collectives. So these stay out of the log, whose digest they have: what a step
  // that failed has sent must not be received by the next one.
  uint64_t digest =
      parts_.is_link() ? Digest().add(alike).add(in_group).add(SpmdLog::get().mark().digest).value()
                       : SpmdLog::get().add_collective(std::move(text), alike,
                                                       parts_.processes.front(), in_group);
  // Connects the group only after logging: connecting waits for all its processes, and a process
  // that diverged may never connect.
  const Backend& backend = line_->parts()->backend;
  if (backend.expect) backend.expect(digest);
}

Label C10dGroup::announce(Kind kind, const at::Tensor& tensor, const at::Tensor& sent,
                          ReduceOp op) {
  Label label{kind, tensor.scalar_type(), tensor.sizes().vec()};
  Alone::refuse([&] { return label.text(parts_); });
  if (!tensor.is_contiguous()) fail(label.text(parts_), ": the tensor must be contiguous");
  bool has_rows = kind == reduce_scatter_kind || kind == all_to_all_kind;
  if (has_rows && (tensor.dim() == 0 || tensor.size(0) != size()))
    fail(label.text(parts_), ": dimension 0 must have ", size(), " rows, one for each rank");
  start(label, bytes_sent(kind, int64_t(sent.nbytes()), size()), op);
  return label;
}

void C10dGroup::start(const Label& label, int64_t bytes, ReduceOp op) {
  auto& traffic = counters_[label.kind];
  ++traffic.count;
  traffic.bytes += bytes;
  count_move(name(), label.kind, bytes);
  log(label, op);
}

Started C10dGroup::begin(Label label, Work work) {
  auto parts = line_->parts();
  int64_t number = parts->peers->count(parts->number);
  What what = [label = std::move(label), parts] { return label.text(*parts); };
  Started started{std::move(parts), std::move(what), number, std::move(work)};
  if (started.work) line_->add(started);
  return started;
}

std::unique_ptr<Pending> C10dGroup::started(Label label, Work work, Finish finish) {
  Group::Kind kind = label.kind;
  return std::make_unique<Call>(kind, line_, begin(std::move(label), std::move(work)),
                                std::move(finish));
}

Work C10dGroup::exchange(std::vector<at::Tensor> sent, std::vector<at::Tensor> received) {
  if (sent.front().numel() == 0) return {};
  return backend().exchange(std::move(sent), std::move(received));
}

Work C10dGroup::exchange_rows(const at::Tensor& tensor, const at::Tensor& result) {
  if (backend().exchange) {
    Work work = exchange(tensor.unbind(), result.unbind());
    result[rank()].copy_(tensor[rank()]);  // while the others are on their way
    return work;
  }
  if (tensor.numel() == 0) return {};
  at::Tensor to = as_bytes(result), from = as_bytes(tensor);
  std::vector<int64_t> equal_rows;
  return backend().c10d->alltoall_base(to, from, equal_rows, equal_rows);
}

// Sends a tensor to all ranks, into their rows of `result`.
Work gather(const Backend& backend, int64_t rank, const at::Tensor& tensor,
            const at::Tensor& result) {
  if (backend.exchange) {
    std::vector<at::Tensor> copies(static_cast<size_t>(result.size(0)), tensor);
    Work work = backend.exchange(std::move(copies), result.unbind());
    result[rank].copy_(tensor);
    return work;
  }
  at::Tensor to = as_bytes(result), from = as_bytes(tensor);
  return backend.c10d->_allgather_base(to, from);
}

std::unique_ptr<Pending> C10dGroup::start_sum_by_parts(const at::Tensor& tensor) {
  at::Tensor parts = to_parts(tensor, size()), arrived = at::empty_like(parts);
  Label label = announce(all_reduce_kind, tensor, parts);
  Started scattered = begin(std::move(label), exchange_rows(parts, arrived));
  auto gather_sums = [line = line_, rank = rank(), scattered, parts, arrived] {
    at::Tensor sum = reduce(arrived.unbind(), ReduceOp::sum);
    Started gathered = scattered;
    gathered.work = gather(gathered.group->backend, rank, sum, parts);
    line->add(gathered);
    return gathered;
  };
  if (!backend().runs_on_stream) {
    // All processes wait for their collectives in the same order.
    auto finish = [line = line_, gather_sums, parts, tensor] {
      Started gathered = gather_sums();
      await(gathered);
      line->remove(gathered);
      put_parts_back(parts, tensor);
      return tensor;
    };
    return std::make_unique<Call>(all_reduce_kind, line_, std::move(scattered), std::move(finish));
  }
  // The device waits, and the host queues both steps.
  await(scattered);
  return std::make_unique<Call>(all_reduce_kind, line_, gather_sums(), [parts, tensor] {
    put_parts_back(parts, tensor);
    return tensor;
  });
}

std::vector<at::Tensor> C10dGroup::one_from_each(const at::Tensor& own) const {
  std::vector<at::Tensor> tensors;
  for (int64_t each = 0; each < size(); ++each)
    tensors.push_back(each == rank() ? own : at::empty_like(own));
  return tensors;
}

// A tensor without values, as while a layout is searched, is not sent.
std::unique_ptr<Pending> C10dGroup::start_all_reduce(at::Tensor tensor, ReduceOp op) {
  if (tensor.is_meta()) return ended(tensor);
  at::NoGradGuard no_grad;
  if (is_summed_by_parts(tensor, op, size())) return start_sum_by_parts(tensor);
  const Reduced reduced = reduced_form(tensor, op, size());
  Label label = announce(all_reduce_kind, tensor, reduced.tensor, op);
  if (tensor.is_complex() && op != ReduceOp::sum)
    fail(label.text(parts_), ": complex numbers have a sum, but no order");
  if (backend().exchange && is_exchanged(tensor, size())) {
    std::vector<at::Tensor> rows = one_from_each(tensor), copies(rows.size(), tensor);
    Work work = exchange(std::move(copies), rows);
    return started(label, work, [tensor, rows, op] { return tensor.copy_(reduce(rows, op)); });
  }
  Work work;
  if (tensor.numel() > 0) {
    std::vector<at::Tensor> tensors{reduced.tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(reduced.op);
    work = backend().c10d->allreduce(tensors, options);
  }
  return started(label, work, [tensor, reduced] {
    reduced.put_back(tensor);
    return tensor;
  });
}

std::unique_ptr<Pending> C10dGroup::start_all_gather(at::Tensor tensor) {
  at::NoGradGuard no_grad;
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), size());
  if (tensor.is_meta()) return ended(tensor.new_empty(sizes));
  Label label = announce(all_gather_kind, tensor);
  at::Tensor result = at::empty(sizes, tensor.options());
  Work work;
  if (tensor.numel() > 0) work = gather(backend(), rank(), tensor, result);
  return started(label, work, [result] { return result; });
}

std::unique_ptr<Pending> C10dGroup::start_all_to_all(at::Tensor tensor) {
  if (tensor.is_meta()) return ended(tensor);
  Label label = announce(all_to_all_kind, tensor);
  at::NoGradGuard no_grad;
  at::Tensor result = at::empty_like(tensor);
  return started(label, exchange_rows(tensor, result), [result] { return result; });
}

// Leaves the number of rows out of the compared label, because it differs between processes.
std::unique_ptr<Pending> C10dGroup::start_exchange(std::vector<at::Tensor> sent,
                                                   std::vector<int64_t> n_received) {
  at::NoGradGuard no_grad;
  std::vector<int64_t> sizes = sent[0].sizes().vec();
  sizes[0] = std::accumulate(n_received.begin(), n_received.end(), int64_t{0});
  at::Tensor result = at::empty(sizes, sent[0].options());
  if (result.is_meta()) return ended(result);
  Label label{all_to_all_kind, result.scalar_type(), {sizes.begin() + 1, sizes.end()}};
  if (parts_.is_link()) label.sizes = {sent[1].size(0) + sizes[0]};  // one of them is 0
  Alone::refuse([&] { return label.text(parts_); });
  int64_t bytes = 0;
  for (int64_t to = 0; to < size(); ++to) {
    at::Tensor& rows = sent[size_t(to)];
    rows = rows.contiguous();
    if (to != rank()) bytes += int64_t(rows.nbytes());
  }
  start(label, bytes);
  std::vector<at::Tensor> received = result.split_with_sizes(n_received);
  Work work;
  if (backend().exchange) {
    work = backend().exchange(sent, received);
    received[size_t(rank())].copy_(sent[size_t(rank())]);
  } else {
    work = backend().c10d->alltoall(received, sent);
  }
  return started(label, work, [result, sent] { return result; });
}

std::unique_ptr<Pending> C10dGroup::start_reduce_scatter(at::Tensor tensor, ReduceOp op) {
  if (tensor.is_meta()) return ended(tensor.select(0, 0));
  Label label = announce(reduce_scatter_kind, tensor, op);
  at::NoGradGuard no_grad;
  if (is_scattered_exactly(tensor, op) && backend().has_reduce_scatter && tensor.numel() > 0) {
    at::Tensor result = at::empty(tensor.sizes().slice(1), tensor.options());
    c10d::ReduceScatterOptions options;
    options.reduceOp = to_c10d(op);
    Work work = backend().c10d->_reduce_scatter_base(result, tensor, options);
    return started(label, work, [result] { return result; });
  }
  if (backend().exchange) {
    std::vector<at::Tensor> rows = one_from_each(tensor[rank()]);
    Work work = exchange(tensor.unbind(), rows);
    return started(label, work, [rows, op] { return reduce(rows, op); });
  }
  at::Tensor rows = at::empty_like(tensor);
  return started(label, exchange_rows(tensor, rows),
                 [rows, op] { return reduce(rows.unbind(), op); });
}

}  // namespace

std::unique_ptr<Group> make_c10d_group(std::shared_ptr<GroupLine> line) {
  return std::make_unique<C10dGroup>(std::move(line));
}

}  // namespace redco::mesh
