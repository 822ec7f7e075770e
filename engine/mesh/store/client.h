#pragma once

#include "messages.h"
#include "sockets.h"
#include "tls.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace redco::store {

/// The address of a run's store and the secret for access.
struct StorePlace {
  std::string address;
  int64_t port = 0;
  std::string secret;
  std::string secret_source;  ///< for messages
};

/// A connection to the store of a run, with LibTorch's Store interface. Waits poll, so that they do
/// not block the server. Throws Error if the store cannot be reached in time, refuses this
/// process's secret, or does not answer for 30 s.
class StoreClient final : public c10d::Store {
 public:
  StoreClient(const StorePlace& place, std::chrono::milliseconds time_to_connect,
              std::chrono::milliseconds timeout);

  using Store::compareSet;
  using Store::set;
  c10::intrusive_ptr<Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }

 private:
  void connect(std::chrono::milliseconds time);
  Message ask(Message::Request kind, std::vector<std::string> parts);
  [[noreturn]] void lose(const std::string& why);
  std::string name() const;

  const StorePlace place_;
  const Tls tls_;
  std::mutex mutex_;
  Descriptor socket_;
  std::optional<TlsStream> stream_;
  std::string arrived_, lost_;
};

}  // namespace redco::store
