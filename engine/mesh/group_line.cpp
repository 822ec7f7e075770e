// The connection of a group.

#include "group_line.h"

#include <chrono>
#include <thread>

namespace redco::mesh {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Keeps a backend alive until the process ends.
void keep_until_exit(const Backend& backend) {
  static std::mutex mutex;
  static auto& left = *new std::vector<Backend>;
  std::lock_guard lock(mutex);
  left.push_back(backend);
}

}  // namespace

std::shared_ptr<const GroupParts> GroupLine::parts() {
  std::lock_guard lock(mutex_);
  if (!connected_) {
    auto parts = std::make_shared<GroupParts>(unconnected_);
    connect_(*parts);
    connected_ = std::move(parts);
  }
  return connected_;
}

void GroupLine::add(const Started& started) {
  std::lock_guard lock(mutex_);
  if (started.group->backend.runs_on_stream) {
    watch_host_reads();
    newest_.set(started);
    in_flight_.clear();
  } else {
    std::erase_if(in_flight_, [](const auto& each) { return each->isCompleted(); });
  }
  in_flight_.push_back(started.work);
}

void GroupLine::remove(const Started& started) {
  if (started.group->backend.runs_on_stream) return;
  std::lock_guard lock(mutex_);
  std::erase(in_flight_, started.work);
}

void GroupLine::disconnect() {
  std::lock_guard lock(mutex_);
  in_flight_.clear();
  newest_.clear();
  // Work that waits on a stream blocks all later work there.
  if (connected_ && connected_->backend.runs_on_stream) connected_->backend.abort();
  // The old backend is kept: its work may wait for processes that get here later, or never after a
  // divergence; and when an old Gloo backend is destroyed, it closes sockets of the new connection.
  if (connected_) keep_until_exit(connected_->backend);
  connected_ = nullptr;
}

// Destroying a backend waits for its work. Work that the other processes will not join must not
// block this process.
GroupLine::~GroupLine() {
  auto until = steady_clock::now() + milliseconds(500);
  for (const auto& work : in_flight_) {
    while (!work->isCompleted() && steady_clock::now() < until)
      std::this_thread::sleep_for(milliseconds(1));
    if (work->isCompleted()) continue;
    keep_until_exit(connected_->backend);
    return;
  }
}

}  // namespace redco::mesh
