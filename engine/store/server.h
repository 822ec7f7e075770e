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

namespace redco {

/// The store of a run, for all who have its secret. What others send is never more than the first
/// messages of TLS, of a bounded number of connections for a bounded time. A thread serves it.
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
  std::map<int, std::unique_ptr<Client>> clients_;  // by their sockets
  std::vector<int> strangers_;  // those that have not shown the secret, the oldest first
  bool has_refused_ = false;
  std::thread thread_;
};

}  // namespace redco
