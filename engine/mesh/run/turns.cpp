// Turns of all processes of a run, coordinated through the store.

#include <redco/detail/turns.h>

#include "connection.h"

#include <redco/error.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace redco {

using namespace mesh;

namespace {

// Waits until all keys exist; returns false after `time`. Polls, because a timed-out wait of the
// store writes a warning to its log, after name lookups of both ends.
bool await_keys(c10d::Store& store, const std::vector<std::string>& keys,
                std::chrono::milliseconds time) {
  constexpr auto sleep = std::chrono::milliseconds(10);
  auto until = std::chrono::steady_clock::now() + time;
  while (!store.check(keys)) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(sleep);
  }
  return true;
}

}  // namespace

Turns::Turns(const Processes& processes)
    : processes_(processes),
      connection_(Connection::of(processes, MeshOptions().timeout)),
      store_(connection_.another_client()) {
  connection_.reconnect_after_failures();
}

Turns::~Turns() = default;

std::string Turns::key(const std::string& name) const {
  return "turn" + std::to_string(number_) + "/" + name;
}

void Turns::give(const std::optional<std::string>& task) {
  std::string text = task ? "+" + *task : "";
  store_->c10d()->set(key("task"), std::vector<uint8_t>(text.begin(), text.end()));
}

std::optional<std::string> Turns::take() {
  auto what = [] { return std::string("waiting for process 0"); };
  while (!await_keys(*store_->c10d(), {key("task")}, std::chrono::seconds(1)))
    connection_.peers().check(what, {});
  std::string text = store_->c10d()->get_to_str(key("task"));
  if (text.empty()) return std::nullopt;
  return text.substr(1);
}

void Turns::begin(std::function<void()> leave) {
  failed_ = false;
  turn_ = store_->part(processes_.run + "/" + key("failures"), processes_.attempt);
  connection_.peers().begin_turn(turn_, std::move(leave));
}

RunStore::Failure Turns::fail(const std::string& text) {
  failed_ = true;
  turn_->note_failure({processes_.rank, text});
  auto of_run = store_->failure();
  return of_run ? *of_run : *turn_->failure();
}

bool Turns::end() {
  connection_.peers().end_turn();
  auto& store = *store_->c10d();
  std::vector<std::string> keys;
  std::vector<int64_t> all;
  for (int64_t rank = 0; rank < processes_.size; ++rank) {
    all.push_back(rank);
    keys.push_back(key("ended/" + std::to_string(rank)));
  }
  store.set(keys[size_t(processes_.rank)], std::vector<uint8_t>{failed_});
  auto is_interrupted = [] {
    try {
      check_interrupt();
      return false;
    } catch (const Interrupted&) {
      return true;
    }
  };
  while (!await_keys(store, keys, Peers::look_around)) {
    if (is_interrupted()) turn_->note_failure({processes_.rank, "interrupted"});
    connection_.peers().check([] { return std::string("waiting for the other processes"); }, all);
  }
  is_interrupted();  // clears an interrupt that came too late
  bool any_failed = false;
  for (const auto& ended : store.multiGet(keys)) any_failed |= ended != std::vector<uint8_t>{0};
  if (any_failed) connection_.disconnect();
  ++number_;
  return !any_failed;
}

}  // namespace redco
