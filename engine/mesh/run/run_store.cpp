// Opens and connects to the store of a run.

#include <redco/detail/run_store.h>

#include "../store/client.h"
#include "../store/server.h"
#include "announced_store.h"

#include <redco/detail/printable.h>
#include <redco/error.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

namespace redco {

using namespace mesh;
using namespace store;

namespace {

constexpr const char* loopback = "127.0.0.1";
constexpr const char* failure_key = "failure";

std::unique_ptr<RunStore> opened(RunStore* store) { return std::unique_ptr<RunStore>(store); }

c10::intrusive_ptr<c10d::Store> part_of(const c10::intrusive_ptr<c10d::Store>& whole,
                                        const std::string& run, int64_t attempt) {
  return c10::make_intrusive<c10d::PrefixStore>("redco/" + run + "/" + std::to_string(attempt),
                                                whole);
}

[[noreturn]] void fail_to_open(const Processes& processes, const std::string& why) {
  fail("process ", processes.rank, " cannot ", processes.hosts_store ? "open" : "reach",
       " the store of the run at ", processes.store_address, ":", processes.store_port, ": ", why);
}

// A host's own name often resolves to its loopback address.
void require_reachable(const std::vector<Descriptor>& listeners, const Processes& processes) {
  if (processes.local_size == processes.size || is_loopback(processes.store_address)) return;
  require(std::ranges::any_of(
              listeners,
              [](const Descriptor& each) { return !is_loopback(place_of(each.get()).first); }),
          "the address ", processes.store_address, " of process 0's host leads to ",
          place_of(listeners[0].get()).first,
          ", where other hosts cannot reach it: give the host's address on the network");
}

// An address at which this process reaches its own store.
std::string own_address(const std::string& listening) {
  if (listening == "0.0.0.0") return loopback;
  return listening == "::" ? "::1" : listening;
}

}  // namespace

RunStore::RunStore(const Processes& processes, std::chrono::milliseconds timeout, bool is_local)
    : address_(processes.store_address), port_(processes.store_port) {
  RunSecret secret = processes.secret.empty() ? find_run_secret()
                                              : RunSecret{processes.secret, "the run's launcher"};
  secret_ = secret.text;
  std::string own;
  try {
    if (processes.hosts_store) {
      bool is_anywhere = is_local || processes.is_announced;
      std::string address =
          processes.is_announced ? address_towards(processes.store_address) : address_;
      auto listeners = listen_at(address, is_anywhere ? 0 : port_, timeout);
      require_reachable(listeners, processes);
      std::tie(own, port_) = place_of(listeners[0].get());
      if (processes.is_announced) address_ = own;
      server_ = std::make_shared<StoreServer>(std::move(listeners), secret.text);
    }
    if (processes.is_announced)
      std::tie(address_, port_) = announce_store(processes, {address_, port_}, timeout);
    StorePlace place{own.empty() ? address_ : own_address(own), port_, secret.text, secret.source};
    whole_ = c10::make_intrusive<StoreClient>(place, timeout, timeout);
    store_ = part_of(whole_, processes.run, processes.attempt);
  } catch (const c10::Error& error) {
    fail_to_open(processes, error.what_without_backtrace());
  } catch (const Interrupted&) {
    throw;
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    fail_to_open(processes, error.what());
  }
}

RunStore::RunStore(const RunStore& whole, const std::string& run, int64_t attempt)
    : address_(whole.address_),
      port_(whole.port_),
      secret_(whole.secret_),
      server_(whole.server_),
      whole_(whole.whole_),
      store_(part_of(whole_, run, attempt)) {}

RunStore::~RunStore() = default;

std::unique_ptr<RunStore> RunStore::part(const std::string& run, int64_t attempt) const {
  return opened(new RunStore(*this, run, attempt));
}

std::unique_ptr<RunStore> RunStore::open(const std::string& secret) {
  Processes processes;
  processes.hosts_store = true;
  processes.store_address = loopback;
  processes.secret = secret;
  return opened(new RunStore(processes, std::chrono::minutes(1), true));
}

std::unique_ptr<RunStore> RunStore::connect(const Processes& processes,
                                            std::chrono::milliseconds timeout) {
  require_address(processes);
  return opened(new RunStore(processes, timeout, false));
}

void RunStore::require_address(const Processes& processes) {
  if (processes.store_address.empty())
    throw UsageError(processes.source +
                     " do not tell where process 0 is: host0_address (--host0-address, "
                     "REDCO_HOST0_ADDRESS) must, as the others reach it");
}

void RunStore::note_failure(const Failure& failure) {
  std::string text =
      std::to_string(failure.rank) + " " + std::to_string(failure.exit_code) + "\n" + failure.text;
  store_->compareSet(failure_key, std::vector<uint8_t>(),
                     std::vector<uint8_t>(text.begin(), text.end()));
}

std::optional<RunStore::Failure> RunStore::failure() {
  if (!store_->check({failure_key})) return std::nullopt;
  std::string text = store_->get_to_str(failure_key);
  size_t space = text.find(' '), end = text.find('\n');
  int exit_code = std::stoi(text.substr(space + 1, end));
  return Failure{std::stoll(text.substr(0, space)), printable(text.substr(end + 1)),
                 exit_code > 0 && exit_code < 256 ? exit_code : 1};
}

}  // namespace redco
