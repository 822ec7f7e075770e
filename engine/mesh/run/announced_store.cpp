// Publishes the address of the run's store in torchrun's store.

#include "announced_store.h"

#include "../store/sockets.h"

#include <redco/detail/notices.h>
#include <redco/error.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <resolv.h>

#include <sstream>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace redco::mesh {

using namespace store;

namespace {

// LibTorch's log looks up the name of the address that its store connects to, which takes ten
// seconds if no name server answers (https://github.com/pytorch/pytorch/issues/159007). While this
// exists, a lookup on this thread asks each server once, for a second.
class ShortLookups {
 public:
  ShortLookups() {
    if ((_res.options & RES_INIT) == 0) res_init();
    before_ = {std::exchange(_res.retrans, 1), std::exchange(_res.retry, 1)};
  }
  ~ShortLookups() { std::tie(_res.retrans, _res.retry) = before_; }
  ShortLookups(const ShortLookups&) = delete;
  ShortLookups& operator=(const ShortLookups&) = delete;

 private:
  std::pair<int, int> before_;
};

}  // namespace

std::pair<std::string, int64_t> announce_store(const Processes& processes,
                                               const std::pair<std::string, int64_t>& own,
                                               std::chrono::milliseconds timeout) {
  std::string name =
      "torchrun's store at " + processes.store_address + ":" + std::to_string(processes.store_port);
  Waiting waiting(name);
  auto until = std::chrono::steady_clock::now() + timeout;
  // LibTorch's client cannot be interrupted, so wait until the port is open before using it.
  connect_to(processes.store_address, processes.store_port, timeout,
             [&](const std::string& why) { waiting.change(name + " (" + why + ")"); });
  ShortLookups lookups;
  c10d::TCPStoreOptions options;
  options.port = uint16_t(processes.store_port);
  options.waitWorkers = false;
  options.timeout = timeout;
  c10d::TCPStore store(processes.store_address, options);
  std::string key = "redco/" + processes.run + "/" + std::to_string(processes.attempt) + "/store";
  if (processes.hosts_store) {
    std::string text = own.first + " " + std::to_string(own.second);
    store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
    return own;
  }
  waiting.change("process 0, which tells at " + name + " where the run's store is");
  while (!store.check({key})) {
    check_interrupt();
    require(std::chrono::steady_clock::now() < until,
            "process 0 did not publish its address there");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  std::istringstream words(store.get_to_str(key));
  std::pair<std::string, int64_t> found;
  words >> found.first >> found.second;
  require(found.second > 0 && found.second < 65536, "it has no valid port of the run's store");
  return found;
}

}  // namespace redco::mesh
