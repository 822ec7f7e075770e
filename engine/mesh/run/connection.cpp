// The connection of this process to the others of its run.

#include "connection.h"

#include <redco/detail/thread_without_signals.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <cstdlib>
#include <future>
#include <map>

namespace redco::mesh {

c10::intrusive_ptr<c10d::Store> with_prefix(const c10::intrusive_ptr<c10d::Store>& store,
                                            const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
}

struct Connection::All {
  std::mutex mutex;
  std::map<std::string, Connection> connections;
};

void Connection::end_all() {
  for_each([](Connection& connection) { connection.end(); });
}

void Connection::end() {
  std::erase_if(backends_, [](const auto& each) {
    const Backend& backend = each.second;
    return !backend.c10d || *backend.is_aborted;
  });
  if (backends_.empty()) return peers_.stop();
  peers_.stop([this] {
    // Shuts down in the same order on all processes. A broken connection may never end, so the
    // thread is detached.
    std::packaged_task<void()> task([backends = backends_] {
      for (const auto& [group, backend] : backends) backend.c10d->shutdown();
    });
    auto ended = task.get_future();
    thread_without_signals([task = std::make_shared<decltype(task)>(std::move(task))] {
      (*task)();
    }).detach();
    ended.wait_for(std::chrono::seconds(10));
  });
}

Connection::All& Connection::all() {
  // Registers `end_all`, so that the others learn that this script has ended, however the process
  // ends.
  static All& made = []() -> All& {
    std::atexit(end_all);
    std::at_quick_exit(end_all);
    return *new All;
  }();
  return made;
}

Connection& Connection::of(const Processes& processes, std::chrono::milliseconds timeout) {
  std::lock_guard lock(all().mutex);
  std::string where = processes.store_address + ":" + std::to_string(processes.store_port);
  return all().connections.try_emplace(where, processes, timeout).first->second;
}

void Connection::for_each(const std::function<void(Connection&)>& body) {
  std::lock_guard lock(all().mutex);
  for (auto& [where, connection] : all().connections) body(connection);
}

Connection::Connection(const Processes& processes, std::chrono::milliseconds timeout)
    : processes_(processes),
      timeout_(timeout),
      store_(RunStore::connect(processes, timeout)),
      peers_(processes, another_client()) {}

std::unique_ptr<RunStore> Connection::another_client() const {
  Processes client = processes_;
  client.hosts_store = client.is_announced = false;
  client.store_address = store_->address();
  client.store_port = store_->port();
  client.secret = store_->secret();
  return RunStore::connect(client, timeout_);
}

std::shared_ptr<RunStore> Connection::client_for_connecting() {
  if (!may_reconnect_) return store_;
  // A client that is still in use belongs to an abandoned attempt: makes another one. Keeps a
  // client if it can, because connecting to a store may take seconds if addresses need name
  // lookups.
  if (!connecting_ || connecting_.use_count() > 1) connecting_ = another_client();
  return connecting_;
}

std::string Connection::next_mesh() {
  return "generation" + std::to_string(reconnects_) + "/mesh" + std::to_string(n_meshes_++);
}

void Connection::add(Lines* lines) {
  std::lock_guard lock(mutex_);
  lines_.insert(lines);
}

void Connection::remove(Lines* lines) {
  std::lock_guard lock(mutex_);
  lines_.erase(lines);
}

void Connection::disconnect() {
  std::lock_guard lock(mutex_);
  ++reconnects_;
  n_meshes_ = 0;
  peers_.forget_groups();
  for (Lines* each : lines_) each->disconnect();
  backends_.clear();
}

}  // namespace redco::mesh
