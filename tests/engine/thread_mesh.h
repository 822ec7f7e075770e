#pragma once

// A mesh of threads: what the sharding does between processes, in one, so that thousands of cases
// run in seconds and a debugger sees all ranks.

#include <redco/detail/notes.h>
#include <redco/error.h>
#include <redco/mesh.h>
#include <redco/moves.h>

#include <ATen/ATen.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace redco::testing {

// The state that the ranks of one group share: each puts a tensor there, and reads those of all.
class Meeting {
 public:
  explicit Meeting(int64_t size) : size_(size), tensors_(size_t(size)) {}

  std::vector<at::Tensor> exchange(int64_t rank, const at::Tensor& tensor) {
    std::unique_lock lock(mutex_);
    tensors_[size_t(rank)] = tensor.clone();
    wait(lock);
    std::vector<at::Tensor> all = tensors_;
    wait(lock);
    return all;
  }

  // Ends all others: a rank failed.
  void abort() {
    std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  void wait(std::unique_lock<std::mutex>& lock) {
    int64_t round = round_;
    if (++arrived_ == size_) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    } else if (!changed_.wait_for(lock, std::chrono::seconds(20),
                                  [&] { return round_ != round || aborted_; })) {
      throw std::runtime_error("a rank did not come to a collective");
    }
    if (aborted_) throw std::runtime_error("another rank failed");
  }

  int64_t size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<at::Tensor> tensors_;
  int64_t arrived_ = 0, round_ = 0;
  bool aborted_ = false;
};

class ThreadGroup final : public Group {
 public:
  ThreadGroup(std::string name, int64_t rank, int64_t size, std::shared_ptr<Meeting> meeting)
      : name_(std::move(name)), rank_(rank), size_(size), meeting_(std::move(meeting)) {}

  const std::string& name() const override { return name_; }
  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }

  std::unique_ptr<Pending> start_all_reduce(at::Tensor tensor, ReduceOp op) override {
    count(all_reduce_kind, 2 * int64_t(tensor.nbytes()) * (size_ - 1) / size_);
    tensor.copy_(reduced(at::stack(meeting_->exchange(rank_, tensor)), op));
    return ended(tensor);
  }
  std::unique_ptr<Pending> start_all_gather(at::Tensor tensor) override {
    count(all_gather_kind, int64_t(tensor.nbytes()) * (size_ - 1));
    return ended(at::stack(meeting_->exchange(rank_, tensor)));
  }
  std::unique_ptr<Pending> start_reduce_scatter(at::Tensor tensor, ReduceOp op) override {
    count(reduce_scatter_kind, int64_t(tensor.nbytes()) * (size_ - 1) / size_);
    return ended(reduced(at::stack(rows_of_mine(tensor)), op));
  }
  std::unique_ptr<Pending> start_all_to_all(at::Tensor tensor) override {
    count(all_to_all_kind, int64_t(tensor.nbytes()) * (size_ - 1) / size_);
    return ended(at::stack(rows_of_mine(tensor)));
  }
  std::unique_ptr<Pending> start_exchange(std::vector<at::Tensor> sent,
                                          std::vector<int64_t> n_received) override {
    int64_t bytes = 0;
    std::vector<int64_t> ends{0};
    for (int64_t to = 0; to < size_; ++to) {
      if (to != rank_) bytes += int64_t(sent[size_t(to)].nbytes());
      ends.push_back(ends.back() + sent[size_t(to)].size(0));
    }
    count(all_to_all_kind, bytes);
    const auto all_ends = meeting_->exchange(rank_, at::tensor(ends));
    const auto all = meeting_->exchange(rank_, at::cat(sent));
    std::vector<at::Tensor> received;
    for (size_t from = 0; from < all.size(); ++from) {
      const auto begin = all_ends[from][rank_].item<int64_t>();
      const auto n = all_ends[from][rank_ + 1].item<int64_t>() - begin;
      if (n != n_received[from]) throw std::runtime_error("other rows came than were expected");
      received.push_back(all[from].narrow(0, begin, n));
    }
    return ended(at::cat(received));
  }

 private:
  static at::Tensor reduced(const at::Tensor& rows, ReduceOp op) {
    switch (op) {
      case ReduceOp::sum:
        return rows.sum(0, false, rows.scalar_type());
      case ReduceOp::max:
        return rows.amax(0);
      case ReduceOp::min:
        return rows.amin(0);
    }
    return rows;
  }

  std::vector<at::Tensor> rows_of_mine(const at::Tensor& tensor) {
    std::vector<at::Tensor> rows;
    for (const at::Tensor& other : meeting_->exchange(rank_, tensor)) rows.push_back(other[rank_]);
    return rows;
  }

  void count(Kind kind, int64_t bytes) {
    ++counters_[kind].count;
    counters_[kind].bytes += bytes;
    count_move(name_, kind, bytes);
  }

  std::string name_;
  int64_t rank_, size_;
  std::shared_ptr<Meeting> meeting_;
};

class ThreadNotes final : public Notes {
 public:
  std::string next_exchange() override {
    std::lock_guard lock(mutex_);
    return std::to_string(n_exchanges_[std::this_thread::get_id()]++) + "/";
  }
  void leave(const std::string& key, const std::string& text) override {
    std::lock_guard lock(mutex_);
    notes_[key] = text;
    changed_.notify_all();
  }
  std::string await(const std::string& key, const std::string& what) override {
    std::unique_lock lock(mutex_);
    bool is_there =
        changed_.wait_for(lock, std::chrono::seconds(20), [&] { return notes_.contains(key); });
    if (!is_there) throw std::runtime_error(what + ": no note " + key);
    return notes_.at(key);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> notes_;
  std::map<std::thread::id, int64_t> n_exchanges_;
};

class ThreadMesh final : public Mesh {
 public:
  using Groups = std::vector<std::unique_ptr<Group>>;

  ThreadMesh(int64_t rank, Groups groups, std::unique_ptr<Group> world,
             std::shared_ptr<Notes> notes)
      : groups_(std::move(groups)), world_(std::move(world)), notes_(std::move(notes)) {
    processes_.rank = rank;
    processes_.size = world_->size();
  }
  const Processes& processes() const override { return processes_; }
  c10::Device device() const override { return c10::kCPU; }
  Group& group(Dim dim) const override { return *groups_[dim]; }
  Group& world() const override { return *world_; }
  Notes& notes() const override { return *notes_; }

 private:
  Processes processes_;
  Groups groups_;
  std::unique_ptr<Group> world_;
  std::shared_ptr<Notes> notes_;
};

/// The operators of this thread that gathered their arguments because they have no rule, or it none
/// for these.
inline std::string gathered_without_rule() {
  std::string names;
  for (const auto& [move, moved] : move_counters().moves)
    if (move.cause == Move::without_rule && move.is_gather()) names += " " + move.what;
  return names;
}

/// Runs `body` on every rank of a mesh of this shape at once. Throws what the first rank to fail
/// threw.
inline void on_threads(const Mesh::Shape& shape,
                       const std::function<void(const std::shared_ptr<const Mesh>&)>& body) {
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  redco::require(n > 0, "a mesh without processes");
  auto world = std::make_shared<Meeting>(n);
  auto notes = std::make_shared<ThreadNotes>();
  std::map<std::pair<Mesh::Dim, int64_t>, std::shared_ptr<Meeting>> meetings;  // by first rank
  for (int64_t rank = 0; rank < n; ++rank)
    for (Mesh::Dim dim : Mesh::dims)
      meetings.try_emplace({dim, Mesh::line_of(dim, shape, rank).first},
                           std::make_shared<Meeting>(shape[dim]));

  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadMesh::Groups groups;
        for (Mesh::Dim dim : Mesh::dims) {
          Mesh::Line line = Mesh::line_of(dim, shape, rank);
          groups.push_back(std::make_unique<ThreadGroup>(Mesh::facts[dim].name,
                                                         (rank - line.first) / line.step, line.size,
                                                         meetings.at({dim, line.first})));
        }
        body(std::make_shared<ThreadMesh>(rank, std::move(groups),
                                          std::make_unique<ThreadGroup>("world", rank, n, world),
                                          notes));
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        world->abort();
        for (const auto& [place, meeting] : meetings) meeting->abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

/// The same on a mesh of dp and mp.
inline void on_threads(int64_t n_dp, int64_t n_mp,
                       const std::function<void(const std::shared_ptr<const Mesh>&)>& body) {
  on_threads({n_dp, 1, 1, 1, n_mp, 1}, body);
}

/// "2x1" for dp and mp, or "2x1x2" with dp_replicate, "2x1-context2" with cp.
inline std::string shape_text(const Mesh::Shape& shape) {
  std::string text = std::to_string(shape[Mesh::dp]) + "x" + std::to_string(shape[Mesh::mp]);
  int64_t n_copies = shape[Mesh::dp_replicate];
  if (n_copies > 1) text += "x" + std::to_string(n_copies);
  if (shape[Mesh::cp] > 1) text += "-context" + std::to_string(shape[Mesh::cp]);
  return text;
}

}  // namespace redco::testing
