#include <redco/run_store.h>

#include <redco/error.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace redco {

namespace {

constexpr const char* loopback = "127.0.0.1";
constexpr const char* failure_key = "failure";

// A socket that listens where only this host's processes reach it, at a free port. The store takes
// it over.
std::pair<int, uint16_t> listen_on_loopback() {
  int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, loopback, &address.sin_addr);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  bool listens = descriptor >= 0 && bind(descriptor, generic, length) == 0 &&
                 listen(descriptor, SOMAXCONN) == 0 &&
                 getsockname(descriptor, generic, &length) == 0;
  int cause = errno;
  if (!listens && descriptor >= 0) close(descriptor);
  require(listens, "cannot listen on ", loopback, ": ", std::strerror(cause));
  return {descriptor, ntohs(address.sin_port)};
}

std::unique_ptr<RunStore> opened(RunStore* store) { return std::unique_ptr<RunStore>(store); }

c10::intrusive_ptr<c10d::Store> part_of(const c10::intrusive_ptr<c10d::Store>& whole,
                                        const std::string& run, int64_t attempt) {
  return c10::make_intrusive<c10d::PrefixStore>("redco/" + run + "/" + std::to_string(attempt),
                                                whole);
}

}  // namespace

RunStore::RunStore(const std::string& host, const Processes& processes,
                   std::chrono::milliseconds timeout, bool is_local) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(processes.store_port);
  options.isServer = processes.hosts_store;
  options.waitWorkers = false;
  options.timeout = timeout;
  if (is_local) std::tie(options.masterListenFd, options.port) = listen_on_loopback();
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
    port_ = store->getPort();
    whole_ = std::move(store);
    store_ = part_of(whole_, processes.run, processes.attempt);
  } catch (const c10::Error& error) {
    fail("process ", processes.rank, " cannot ", options.isServer ? "open" : "reach",
         " the store of the run at ", host, ":", options.port, ": ",
         error.what_without_backtrace());
  }
}

RunStore::RunStore(const RunStore& whole, const std::string& run, int64_t attempt)
    : whole_(whole.whole_), store_(part_of(whole_, run, attempt)), port_(whole.port_) {}

RunStore::~RunStore() = default;

std::unique_ptr<RunStore> RunStore::part(const std::string& run, int64_t attempt) const {
  return opened(new RunStore(*this, run, attempt));
}

std::unique_ptr<RunStore> RunStore::open() {
  Processes processes;
  processes.hosts_store = true;
  return opened(new RunStore(loopback, processes, std::chrono::minutes(1), true));
}

std::unique_ptr<RunStore> RunStore::connect(const Processes& processes,
                                            std::chrono::milliseconds timeout) {
  require_address(processes);
  return opened(new RunStore(processes.store_address, processes, timeout, false));
}

void RunStore::require_address(const Processes& processes) {
  if (processes.store_address.empty())
    throw UsageError(processes.source +
                     " do not tell where process 0 is: host0_address (--host0-address, "
                     "REDCO_HOST0_ADDRESS) must, as the others reach it");
}

int64_t RunStore::port() const { return port_; }

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
  return Failure{std::stoll(text.substr(0, space)), text.substr(end + 1),
                 std::stoi(text.substr(space + 1, end))};
}

}  // namespace redco
