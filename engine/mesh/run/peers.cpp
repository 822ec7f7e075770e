// Heartbeats between the processes of a run, and detection of failures and divergence.

#include "peers.h"

#include <redco/detail/forced_stop.h>
#include <redco/detail/printable.h>
#include <redco/detail/thread_without_signals.h>
#include <redco/error.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <sstream>
#include <thread>
#include <utility>

namespace redco::mesh {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds long_round_time = milliseconds(500);
constexpr milliseconds short_round_time = milliseconds(50);

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

Peers::Peers(const Processes& processes, std::unique_ptr<RunStore> store)
    : rank_(processes.rank),
      where_(processes.store_address + ":" + std::to_string(processes.store_port)),
      hosts_store_(processes.hosts_store),
      store_(std::move(store)),
      signs_(size_t(processes.size)) {
  for (int64_t rank = 0; rank < processes.size; ++rank) {
    keys_.push_back("alive/" + std::to_string(rank));
    keys_of_end_.push_back("ended/" + std::to_string(rank));
    keys_of_last_.push_back("last/" + std::to_string(rank));
  }
  store_->c10d()->set(keys_[size_t(rank_)], std::vector<uint8_t>{'0'});
  thread_without_signals([this] { run(); }).detach();
}

void Peers::stop(const std::function<void()>& last) {
  std::unique_lock lock(mutex_);
  stop_ = true;
  ++n_ended_;
  changed_.notify_all();
  changed_.wait_for(lock, std::chrono::seconds(1), [this] { return stopped_; });
  if (!stopped_ || !(hosts_store_ || last)) return;
  lock.unlock();
  try {
    if (!all_reach(keys_of_end_) || !last) return;
    last();
    // Tells the host of the store that this process has read that all have ended. The host keeps
    // the store open until all processes have told it.
    store_->c10d()->set(keys_of_last_[size_t(rank_)], std::vector<uint8_t>{'1'});
    if (hosts_store_) all_reach(keys_of_last_);
  } catch (const std::exception&) {
    // There is no store that others could need.
  }
}

// Waits for the keys of all processes. Returns false if a process failed or is silent, or after an
// interrupt.
bool Peers::all_reach(const std::vector<std::string>& keys) {
  std::vector<std::vector<uint8_t>> last_signs;
  auto end = steady_clock::now() + patience;
  auto& store = *store_->c10d();
  while (!store.check(keys)) {
    if (store_->failure() || is_interrupt_pending() || steady_clock::now() >= end) return false;
    if (store.check(keys_)) {
      auto signs = store.multiGet(keys_);
      if (std::exchange(last_signs, signs) != signs) end = steady_clock::now() + patience;
    }
    std::this_thread::sleep_for(milliseconds(10));
  }
  return !store_->failure();
}

void Peers::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    std::string lost;
    try {
      exchange_signs();
      exchange_logs();
    } catch (const c10::Error& error) {
      lost = error.what_without_backtrace();
    } catch (const std::exception& error) {
      lost = error.what();
    }
    lock.lock();
    ++rounds_;
    looks_since_round_ = 0;
    lost_ = lost;
    if (failure() || !stray_.empty()) {
      // Calls `leave` with the lock held, because the turn may not end meanwhile. A divergence
      // alone does not make this process leave: it leaves when another process has failed because
      // of the divergence, and so reports that failure's text.
      if (failure())
        if (auto leave = std::exchange(leave_turn_, nullptr)) leave();
      auto bodies = std::exchange(on_failure_, {});
      lock.unlock();
      for (auto& body : bodies) body();
      lock.lock();
    }
    // A comparison of logs takes several rounds; the first ones are short.
    bool is_short = asked_ > 0 && rounds_since_asked_ < 10;
    milliseconds planned = is_short ? short_round_time : long_round_time;
    auto from = steady_clock::now();
    changed_.wait_for(lock, planned, [this] { return stop_ || hurries_; });
    hurries_ = false;
    // Counts at most the planned time: if this process was suspended for longer, that does not mean
    // that the others were silent.
    round_time_ =
        std::min(planned, std::chrono::duration_cast<milliseconds>(steady_clock::now() - from));
  }
  std::string last = own_sign();
  lock.unlock();
  try {
    store_->c10d()->set(keys_[size_t(rank_)], bytes_of(last));
    store_->c10d()->set(keys_of_end_[size_t(rank_)], std::vector<uint8_t>{'1'});
  } catch (const std::exception&) {
    // The others will notice that this process is gone.
  }
  lock.lock();
  stopped_ = true;
  changed_.notify_all();
}

std::string Peers::own_sign() const {
  auto mark = SpmdLog::get().mark();
  std::ostringstream sign;
  sign << rounds_ + 1 << ' ' << generation_ << ' ' << mark.count << ' ' << mark.digest << ' '
       << asked_ << ' ' << n_ended_;
  for (int64_t count : counts_) sign << ' ' << count;
  return sign.str();
}

void Peers::exchange_signs() {
  std::string mine;
  std::shared_ptr<RunStore> turn;
  {
    std::lock_guard lock(mutex_);
    turn = turn_;
    mine = own_sign();
  }
  auto& store = *store_->c10d();
  store.set(keys_[size_t(rank_)], bytes_of(mine));
  auto failure = store_->failure();
  auto turn_failure = turn ? turn->failure() : std::nullopt;
  // Processes that have not connected yet have no key, and multiGet would wait for it.
  if (!all_came_) all_came_ = store.check(keys_);
  std::vector<std::vector<uint8_t>> read;
  if (all_came_) read = store.multiGet(keys_);
  std::lock_guard lock(mutex_);
  failure_ = failure;
  if (turn == turn_) turn_failure_ = turn_failure;
  read_signs(read);
}

void Peers::read_signs(const std::vector<std::vector<uint8_t>>& texts) {
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    Sign& sign = signs_[rank];
    std::string now = text_of(texts[rank]);
    ++sign.times_read;
    if (now == sign.text) {
      sign.unchanged += round_time_;
      continue;
    }
    const Sign before = std::exchange(sign, {});
    sign.text = now;
    std::istringstream numbers(now);
    int64_t number = 0;
    numbers >> number >> sign.generation >> sign.mark.count >> sign.mark.digest >> sign.asked >>
        sign.n_ended;
    while (numbers >> number) sign.counts.push_back(number);
    if (sign.n_ended == before.n_ended) sign.times_read = before.times_read;
    if (strays(sign)) suspects_ = true;
  }
}

// Whether the process's log differs from this process's log up to the same entry.
bool Peers::strays(const Sign& sign) const {
  if (sign.generation != generation_) return false;
  auto own = SpmdLog::get().digest_after(sign.mark.count);
  return own && *own != sign.mark.digest;
}

void Peers::exchange_logs() {
  constexpr int64_t patient_rounds = 20;
  std::string prefix, generation;
  bool answers = false, reads = false;
  {
    std::lock_guard lock(mutex_);
    ++rounds_since_asked_;
    for (const Sign& sign : signs_)
      if (sign.asked > asked_) {
        asked_ = sign.asked;
        rounds_since_asked_ = 0;
      }
    // Starts no comparison while another one runs.
    if (suspects_ && stray_.empty() && (asked_ == 0 || rounds_since_asked_ > patient_rounds)) {
      asked_here_ = ++asked_;
      rounds_since_asked_ = 0;
    }
    suspects_ = false;
    if (asked_ == 0 || rounds_since_asked_ > patient_rounds) return;
    prefix = "logs/" + std::to_string(asked_) + "/";
    generation = std::to_string(generation_);
    answers = std::exchange(answered_, asked_) != asked_;
    reads = asked_here_ == asked_ && all_came_;
  }
  auto& store = *store_->c10d();
  if (answers)
    store.set(prefix + std::to_string(rank_),
              bytes_of(generation + '\n' + SpmdLog::get().packed()));
  std::string found_key = prefix + "found";
  if (reads) {
    std::vector<std::string> keys;
    for (size_t rank = 0; rank < signs_.size(); ++rank)
      keys.push_back(prefix + std::to_string(rank));
    if (!store.check(keys)) return;
    std::vector<std::string> logs;
    for (const auto& bytes : store.multiGet(keys)) {
      std::string text = text_of(bytes);
      size_t end = text.find('\n');
      // The log of another generation cannot be compared.
      logs.push_back(text.substr(0, end) == generation ? text.substr(end + 1) : "");
    }
    auto difference = SpmdLog::first_difference(logs);
    if (!difference) {
      std::lock_guard lock(mutex_);
      rounds_since_asked_ = patient_rounds;  // this process may ask again
      return;
    }
    store.set(found_key, bytes_of(generation + '\n' + *difference));
  }
  if (!store.check({found_key})) return;
  std::string found = text_of(store.get(found_key));
  std::lock_guard lock(mutex_);
  size_t end = found.find('\n');
  if (found.substr(0, end) == std::to_string(generation_))
    stray_ = printable(found.substr(end + 1));
  rounds_since_asked_ = patient_rounds;
}

void Peers::check_started(const What& what, size_t group, int64_t number,
                          const std::vector<int64_t>& among) {
  std::lock_guard lock(mutex_);
  for (int64_t rank : among) {
    const auto& counts = signs_[size_t(rank)].counts;
    if (has_ended(rank) && (group >= counts.size() || counts[group] < number))
      fail_without(rank, what);
  }
}

void Peers::check_came(const What& what, int64_t rank, const std::function<bool()>& came) {
  std::lock_guard lock(mutex_);
  if (has_ended(rank) && !came()) fail_without(rank, what);
}

// Whether the process has ended its script, or the turn that this process is in.
bool Peers::has_ended(int64_t rank) const {
  const Sign& sign = signs_[size_t(rank)];
  // Requires that the sign was read more than once: then a failure would be known by now.
  return sign.n_ended > n_ended_ && sign.times_read > 0 && sign.generation == generation_;
}

void Peers::fail_without(int64_t rank, const What& what) const {
  fail(what(), " ended, because process ", rank, " has ended its ",
       has_turns_ ? "part without it and waits at the prompt" : "script without it");
}

void Peers::exchange_now() {
  std::lock_guard lock(mutex_);
  hurries_ = true;
  changed_.notify_all();
}

void Peers::compare_logs() {
  std::lock_guard lock(mutex_);
  suspects_ = true;
}

size_t Peers::add_group() {
  std::lock_guard lock(mutex_);
  counts_.push_back(0);
  return counts_.size() - 1;
}

void Peers::forget_groups() {
  std::lock_guard lock(mutex_);
  counts_.clear();
  ++generation_;
  suspects_ = false;
  stray_.clear();
  SpmdLog::get().clear();
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
    const auto& counts = signs_[size_t(rank)].counts;
    if (rank != rank_ && (group >= counts.size() || counts[group] < number)) found.push_back(rank);
  }
  return found;
}

void Peers::check(const What& what, const std::vector<int64_t>& waited_for) {
  std::lock_guard lock(mutex_);
  // Counts checks instead of the time, so that a process that was suspended does not take the
  // others for gone. Counts at most one check per 3/4 of `look_around`, because a wait on a GPU
  // returns at once.
  auto now = steady_clock::now();
  if (now - last_look_ >= look_around * 3 / 4) {
    last_look_ = now;
    ++looks_since_round_;
  }
  if (!lost_.empty() || looks_since_round_ * look_around >= patience)
    fail(what(), " ended: the store of the run at ", where_,
         " does not answer, so the process that hosts it has ended, failed or was stopped",
         lost_.empty() ? "" : ": ", lost_);
  bool is_between_turns = has_turns_ && !turn_;
  if (!stray_.empty() && !is_between_turns) fail(stray_);
  if (!failure_) {
    for (int64_t rank : waited_for) {
      const Sign& sign = signs_[size_t(rank)];
      bool has_ended = sign.n_ended > n_ended_;  // and is silent for that reason
      if (has_ended || sign.unchanged < patience) continue;
      std::ostringstream text;
      text << "no sign of life for " << patience.count() / 1000
           << " s: it has ended, was killed or was stopped";
      store_->note_failure({rank, text.str()});
      failure_ = store_->failure();  // another process may have been first
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
  has_turns_ = true;
  leave_turn_ = std::move(leave);
}

void Peers::end_turn() {
  std::lock_guard lock(mutex_);
  ++n_ended_;
  turn_.reset();
  turn_failure_.reset();
  leave_turn_ = nullptr;
}

void Peers::report_failure(const std::string& text, int exit_code) {
  store_->note_failure({rank_, text, exit_code});
}

}  // namespace redco::mesh
