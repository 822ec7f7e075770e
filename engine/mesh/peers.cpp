#include "peers.h"

#include <redco/error.h>
#include <redco/thread_without_signals.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <sstream>
#include <thread>
#include <utility>

namespace redco {

namespace {

constexpr std::chrono::milliseconds round_time = std::chrono::milliseconds(500);

}  // namespace

Peers::Peers(const Processes& processes, std::unique_ptr<RunStore> store)
    : rank_(processes.rank),
      where_(processes.store_address + ":" + std::to_string(processes.store_port)),
      store_(std::move(store)),
      signs_(static_cast<size_t>(processes.size)) {
  for (int64_t rank = 0; rank < processes.size; ++rank)
    keys_.push_back("alive/" + std::to_string(rank));
  store_->c10d()->set(keys_[static_cast<size_t>(rank_)], std::vector<uint8_t>{'0'});
  thread_without_signals([this] { run(); }).detach();
}

void Peers::stop() {
  std::unique_lock lock(mutex_);
  stop_ = true;
  changed_.notify_all();
  changed_.wait_for(lock, std::chrono::seconds(1), [this] { return stopped_; });
}

void Peers::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    std::string lost;
    try {
      exchange_signs();
    } catch (const c10::Error& error) {
      lost = error.what_without_backtrace();
    } catch (const std::exception& error) {
      lost = error.what();
    }
    lock.lock();
    ++rounds_;
    looks_since_round_ = 0;
    lost_ = lost;
    if (failure()) {
      // Not without the lock: once the turn has ended there is nothing to leave.
      if (auto leave = std::exchange(leave_turn_, nullptr)) leave();
      auto bodies = std::exchange(on_failure_, {});
      lock.unlock();
      for (auto& body : bodies) body();
      lock.lock();
    }
    changed_.wait_for(lock, round_time, [this] { return stop_; });
  }
  stopped_ = true;
  changed_.notify_all();
}

void Peers::exchange_signs() {
  std::ostringstream mine;
  std::shared_ptr<RunStore> turn;
  {
    std::lock_guard lock(mutex_);
    turn = turn_;
    mine << rounds_ + 1;
    for (int64_t count : counts_) mine << ' ' << count;
  }
  std::string text = mine.str();
  auto& store = *store_->c10d();
  store.set(keys_[static_cast<size_t>(rank_)], std::vector<uint8_t>(text.begin(), text.end()));
  auto failure = store_->failure();
  auto turn_failure = turn ? turn->failure() : std::nullopt;
  // Those that have not come yet have no key, for which multiGet would wait.
  if (!all_came_) all_came_ = store.check(keys_);
  std::vector<std::vector<uint8_t>> read;
  if (all_came_) read = store.multiGet(keys_);
  std::lock_guard lock(mutex_);
  failure_ = failure;
  if (turn == turn_) turn_failure_ = turn_failure;
  for (size_t rank = 0; rank < read.size(); ++rank) {
    Sign& sign = signs_[rank];
    std::string now(read[rank].begin(), read[rank].end());
    if (now == sign.text) {
      ++sign.unchanged;
      continue;
    }
    sign = {now, {}, 0};
    std::istringstream numbers(now);
    int64_t number = 0;
    for (numbers >> number; numbers >> number;) sign.counts.push_back(number);
  }
}

size_t Peers::add_group() {
  std::lock_guard lock(mutex_);
  counts_.push_back(0);
  return counts_.size() - 1;
}

void Peers::forget_groups() {
  std::lock_guard lock(mutex_);
  counts_.clear();
}

void Peers::on_failure(std::function<void()> body) {
  std::lock_guard lock(mutex_);
  on_failure_.push_back(std::move(body));
}

int64_t Peers::count(size_t group) {
  std::lock_guard lock(mutex_);
  return ++counts_[group];
}

std::vector<int64_t> Peers::behind(size_t group, int64_t number,
                                   const std::vector<int64_t>& among) {
  std::lock_guard lock(mutex_);
  std::vector<int64_t> found;
  for (int64_t rank : among) {
    const auto& counts = signs_[static_cast<size_t>(rank)].counts;
    if (rank != rank_ && (group >= counts.size() || counts[group] < number)) found.push_back(rank);
  }
  return found;
}

void Peers::check(const What& what, const std::vector<int64_t>& waited_for) {
  std::lock_guard lock(mutex_);
  // Counted, not timed: a process that was stopped itself must not take the others for gone.
  ++looks_since_round_;
  if (!lost_.empty() || looks_since_round_ * look_around >= patience)
    fail(what(), " ended: the store of the run at ", where_,
         " does not answer, so the process that hosts it has ended, failed or was stopped",
         lost_.empty() ? "" : ": ", lost_);
  if (!failure_) {
    for (int64_t rank : waited_for) {
      if (signs_[static_cast<size_t>(rank)].unchanged * round_time < patience) continue;
      std::ostringstream text;
      text << "no sign of life for " << patience.count() / 1000
           << " s: it has ended, was killed or was stopped";
      store_->note_failure({rank, text.str()});
      failure_ = store_->failure();  // another may have been first
      break;
    }
  }
  if (const auto& known = failure())
    fail(what(), " ended, because process ", known->rank,
         " failed: ", known->text.substr(0, known->text.find("\nstack traceback")));
}

const std::optional<RunStore::Failure>& Peers::failure() const {
  return failure_ ? failure_ : turn_failure_;
}

void Peers::begin_turn(std::shared_ptr<RunStore> turn, std::function<void()> leave) {
  std::lock_guard lock(mutex_);
  turn_ = std::move(turn);
  leave_turn_ = std::move(leave);
}

void Peers::end_turn() {
  std::lock_guard lock(mutex_);
  turn_.reset();
  turn_failure_.reset();
  leave_turn_ = nullptr;
}

void Peers::report_failure(const std::string& text, int exit_code) {
  store_->note_failure({rank_, text, exit_code});
}

}  // namespace redco
