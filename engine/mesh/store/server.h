#pragma once

#include "sockets.h"
#include "table.h"
#include "tls.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace redco::store {

/// The server of a run's store, for processes with its secret. Others can only make it hold the
/// first messages of TLS, for a bounded number of connections and a bounded time. It runs on a
/// thread.
class StoreServer {
 public:
  StoreServer(std::vector<Descriptor> listeners, const std::string& secret);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  struct Client;

  void run();
  void accept_from(int listener);
  void drop(int socket);
  void drop_slow_strangers();
  bool serve(Client& client);
  bool shake_hands(Client& client);
  void watch(int socket, bool also_for_writing, bool is_new);

  const std::vector<Descriptor> listeners_;
  const Tls tls_;
  Descriptor events_, stop_;
  StoreTable table_;
  std::map<int, std::unique_ptr<Client>> clients_;  // by socket
  std::vector<int> strangers_;  // clients that have not proved the secret, oldest first
  bool has_refused_ = false;
  bool has_said_so_ = false;  // that no more files may be opened
  std::thread thread_;
};

}  // namespace redco::store
