// The store of a run, its secret, and others who reach its port.
#include <redco/detail/run_store.h>

#include <redco/detail/notices.h>
#include <redco/detail/printable.h>
#include <redco/detail/run_secret.h>
#include <redco/error.h>

#include "../../engine/mesh/store/table.h"
#include "files.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <resolv.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

using redco::RunStore;
using redco::store::Message;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// Names of addresses that were looked up, by whether a lookup ends soon if no server answers.
std::atomic<int> n_short_lookups, n_long_lookups;

redco::Processes member_of(const RunStore& store) {
  redco::Processes member{.rank = 1, .size = 2};
  member.local_size = 2;
  member.store_address = store.address();
  member.store_port = store.port();
  member.secret = store.secret();
  return member;
}

sockaddr_in loopback(int64_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(uint16_t(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// A connection of somebody who reaches the port.
struct Stranger {
  explicit Stranger(int64_t port) : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback(port);
    REQUIRE(connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }
  ~Stranger() { close(socket); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  void send_bytes(const std::string& bytes) const {
    (void)!send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // All that comes until the store closes the connection, or has said nothing for a while.
  std::string received() const {
    std::string all;
    char bytes[4096];
    for (pollfd readable{socket, POLLIN, 0}; poll(&readable, 1, 500) > 0;) {
      ssize_t n = recv(socket, bytes, sizeof(bytes), 0);
      if (n <= 0) break;
      all.append(bytes, size_t(n));
    }
    return all;
  }
  int socket;
};

// Passes on what one client and the store say, and keeps what the client has said.
std::string recorded(const RunStore& store, const std::function<void(int64_t port)>& body) {
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in own = loopback(0);
  socklen_t length = sizeof(own);
  auto* generic = reinterpret_cast<sockaddr*>(&own);
  REQUIRE(bind(listener, generic, length) == 0);
  REQUIRE(listen(listener, 1) == 0);
  REQUIRE(getsockname(listener, generic, &length) == 0);
  std::string said;
  std::thread between([&] {
    int client = accept(listener, nullptr, nullptr);
    Stranger server(store.port());
    pollfd ends[] = {{client, POLLIN, 0}, {server.socket, POLLIN, 0}};
    char bytes[4096];
    while (poll(ends, 2, -1) > 0) {
      int from = ends[0].revents != 0 ? 0 : 1;
      ssize_t n = recv(ends[from].fd, bytes, sizeof(bytes), 0);
      if (n <= 0) break;
      if (from == 0) said.append(bytes, size_t(n));
      (void)!send(ends[1 - from].fd, bytes, size_t(n), MSG_NOSIGNAL);
    }
    close(client);
  });
  body(ntohs(own.sin_port));
  between.join();
  close(listener);
  return said;
}

// Sets a variable for a scope, or unsets it.
struct Variable {
  Variable(const char* name, const std::string& value) : name(name) {
    const char* now = std::getenv(name);
    had = now != nullptr;
    before = had ? now : "";
    value.empty() ? unsetenv(name) : setenv(name, value.c_str(), 1);
  }
  ~Variable() { had ? setenv(name, before.c_str(), 1) : unsetenv(name); }
  const char* name;
  bool had;
  std::string before;
};

template <class Body>
std::string usage_error(Body body) {
  try {
    body();
  } catch (const redco::UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

// In place of the C library's.
extern "C" [[gnu::visibility("default")]] int getnameinfo(const sockaddr* address, socklen_t length,
                                                          char* host, socklen_t host_size,
                                                          char* service, socklen_t service_size,
                                                          int flags) {
  static const auto next =
      reinterpret_cast<decltype(&getnameinfo)>(dlsym(RTLD_NEXT, "getnameinfo"));
  n_short_lookups += (flags & NI_NUMERICHOST) == 0 && _res.retrans == 1 && _res.retry == 1;
  return next(address, length, host, host_size, service, service_size, flags | NI_NUMERICHOST);
}

TEST_CASE("who has the secret has a store as LibTorch's") {
  auto store = RunStore::open();
  auto member = RunStore::connect(member_of(*store), seconds(5));
  auto part = store->part("run", 1), same = member->part("run", 1);
  auto &a = *part->c10d(), &b = *same->c10d();
  a.set("key", "value");
  CHECK(b.get_to_str("key") == "value");
  CHECK(b.check({"key"}));
  CHECK_FALSE(b.check({"key", "other"}));
  CHECK_FALSE(member->c10d()->check({"key"}));
  CHECK(a.add("sum", 2) == 2);
  CHECK(b.add("sum", -5) == -3);
  CHECK(b.compareSet("new", "", "1") == "1");
  CHECK(b.compareSet("new", "", "2") == "1");
  CHECK(b.compareSet("new", "1", "3") == "3");
  CHECK(b.compareSet("missing", "x", "y") == "x");
  a.append("list", {'a'});
  b.append("list", {'b', '\0'});
  CHECK(a.get("list") == std::vector<uint8_t>{'a', 'b', '\0'});
  a.multiSet({"x", "y"}, {{'1'}, {}});
  CHECK(b.multiGet({"x", "y"}) == std::vector<std::vector<uint8_t>>{{'1'}, {}});
  CHECK(a.deleteKey("x"));
  CHECK_FALSE(a.deleteKey("x"));
  CHECK_THROWS_WITH(b.wait({"nothing"}, milliseconds(30)), doctest::Contains("nothing"));
  std::string large(3'000'000, 'x');
  a.set("large", large);
  CHECK(b.get_to_str("large") == large);
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(50));
    a.clone()->set("later", "now");
  });
  CHECK(b.get_to_str("later") == "now");
  later.join();
  CHECK_THROWS_WITH(a.add("key", 1), doctest::Contains("\"value\" is not a number"));
}

TEST_CASE("who has another secret neither reads nor writes, and is noticed once") {
  std::vector<std::string> notices;
  std::mutex mutex;
  redco::show_notices([&](const std::string& text) {
    std::lock_guard lock(mutex);
    notices.push_back(text);
  });
  auto store = RunStore::open();
  store->c10d()->set("key", "value");
  auto keys = store->c10d()->getNumKeys();
  auto stranger = member_of(*store);
  for (const char* secret : {"another secret, of enough letters", ""}) {
    Variable own("REDCO_SECRET", "one of the user's, not the run's");
    stranger.secret = secret;
    auto from = std::chrono::steady_clock::now();
    CHECK_THROWS_WITH(RunStore::connect(stranger, seconds(60)),
                      doctest::Contains("refuses this process's secret"));
    CHECK(std::chrono::steady_clock::now() - from < seconds(5));
  }
  // Requests without TLS, TLS that breaks off, another protocol.
  std::string request = redco::store::packed({Message::set, {"redco//0/failure", "0 0\nnothing"}});
  for (const std::string& said :
       {request, std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\x16\x03\x01\x02\x00\x01", 6),
        std::string(100'000, '\xff')}) {
    Stranger other(store->port());
    other.send_bytes(said);
    other.send_bytes(request);
    CHECK(other.received().find("value") == std::string::npos);
  }
  CHECK(store->c10d()->getNumKeys() == keys);
  CHECK_FALSE(store->failure());
  redco::show_notices(nullptr);
  REQUIRE(notices.size() == 1);
  CHECK(notices[0].find("refused 127.0.0.1") != std::string::npos);
}

TEST_CASE("what a member has said cannot be said again") {
  auto store = RunStore::open();
  std::string said = recorded(*store, [&](int64_t port) {
    auto member = member_of(*store);
    member.store_port = port;
    RunStore::connect(member, seconds(5))->c10d()->add("sum", 1);
  });
  CHECK(store->c10d()->add("sum", 0) == 1);
  CHECK(said.size() > 300);
  CHECK(said.find("sum") == std::string::npos);
  for (int i = 0; i < 3; ++i) {
    Stranger again(store->port());
    again.send_bytes(said);
    again.received();
  }
  CHECK(store->c10d()->add("sum", 0) == 1);
}

TEST_CASE("strangers who connect and say nothing keep nobody out") {
  auto store = RunStore::open();
  std::vector<std::unique_ptr<Stranger>> idle;
  for (int i = 0; i < 600; ++i) idle.push_back(std::make_unique<Stranger>(store->port()));
  auto from = std::chrono::steady_clock::now();
  RunStore::connect(member_of(*store), seconds(20))->c10d()->set("key", "value");
  CHECK(store->c10d()->get_to_str("key") == "value");
  CHECK(std::chrono::steady_clock::now() - from < seconds(10));
  // No more of them than a bound are kept.
  int n_open = 0;
  for (const auto& each : idle) {
    char byte;
    n_open += recv(each->socket, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN ? 1 : 0;
  }
  CHECK(n_open <= 256);
}

TEST_CASE("the store holds so many bytes") {
  redco::store::StoreTable table(1000);
  auto kind = [&](uint8_t request, std::vector<std::string> parts) {
    return table.answer({request, std::move(parts)}).kind;
  };
  CHECK(kind(Message::set, {"a", std::string(500, 'x')}) == Message::yes);
  CHECK(kind(Message::set, {"a", std::string(600, 'x')}) == Message::yes);
  CHECK(kind(Message::set, {"b", std::string(300, 'x')}) == Message::failed);
  CHECK(kind(Message::append, {"a", std::string(300, 'x')}) == Message::failed);
  CHECK(kind(Message::check, {"b"}) == Message::no);
  CHECK(kind(Message::remove, {"a"}) == Message::yes);
  CHECK(kind(Message::set, {"b", std::string(300, 'x')}) == Message::yes);
  // Keys cost something too.
  for (int i = 0; i < 20; ++i) kind(Message::set, {std::to_string(i), ""});
  CHECK(std::stoi(table.answer({Message::count}).parts[0]) < 8);
  for (uint8_t request = 0; request < 20; ++request)
    for (size_t n : {1, 3, 5}) CHECK_NOTHROW(kind(request, std::vector<std::string>(n, "odd")));
  std::string lie("\xff\xff\xff\xff.....", 9);
  CHECK_THROWS_AS(redco::store::take_message(lie), redco::Error);
  std::string cut("\x05\x00\x00\x00\x00\xff\x00\x00\x00", 9);
  CHECK_THROWS_AS(redco::store::take_message(cut), redco::Error);
  auto store = RunStore::open();
  CHECK_THROWS_WITH(store->c10d()->set("a", std::string(65 << 20, 'x')),
                    doctest::Contains("too long"));
}

TEST_CASE("a failure has an exit code that is none of success, and a text for terminals") {
  for (auto [given, taken] : {std::pair(0, 1), {-3, 1}, {256, 1}, {1, 1}, {2, 2}, {143, 143}}) {
    auto store = RunStore::open();
    store->note_failure({3, "a\x1b[2Jb\r\x07\n\tc \u00e9 \u009b5m \xff", given});
    auto failure = store->failure();
    REQUIRE(failure);
    CHECK(failure->exit_code == taken);
    CHECK(failure->rank == 3);
    CHECK(failure->text == "a\\x1b[2Jb\\x0d\\x07\n\tc \u00e9 \\xc2\\x9b5m \\xff");
  }
}

TEST_CASE("where a secret comes from") {
  Folder folder;
  Variable text("REDCO_SECRET", ""), file("REDCO_SECRET_FILE", "");
  Variable config("XDG_CONFIG_HOME", folder / "config");
  // The user's own is made by the first that needs it, and is the same for all.
  std::vector<std::string> found(8);
  std::vector<std::thread> hosts;
  for (auto& each : found) hosts.emplace_back([&each] { each = redco::find_run_secret().text; });
  for (auto& each : hosts) each.join();
  for (const auto& each : found) CHECK(each == found[0]);
  CHECK(found[0].size() == 64);
  std::string path = folder / "config/redco/secret";
  struct stat about;
  REQUIRE(stat(path.c_str(), &about) == 0);
  CHECK((about.st_mode & 0777) == 0600);
  CHECK(std::distance(std::filesystem::directory_iterator(folder / "config/redco"), {}) == 1);
  chmod(path.c_str(), 0640);
  CHECK(usage_error(redco::find_run_secret).find("other users can read") != std::string::npos);
  // A file of one's own, then a variable, go before.
  std::string own = folder / "own";
  Variable named("REDCO_SECRET_FILE", own);
  CHECK(usage_error(redco::find_run_secret).find("no file " + own) != std::string::npos);
  write_bytes(own, "short\n");
  chmod(own.c_str(), 0600);
  CHECK(usage_error(redco::find_run_secret).find("of 5 characters") != std::string::npos);
  write_bytes(own, "0123456789abcdef\n");
  CHECK(redco::find_run_secret().text == "0123456789abcdef");
  Variable given("REDCO_SECRET", "fedcba9876543210");
  CHECK(redco::find_run_secret().text == "fedcba9876543210");
}

TEST_CASE("under torchrun process 0 tells at torchrun's store where the run's is") {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  c10d::TCPStore torchrun("127.0.0.1", options);
  n_short_lookups = 0;
  redco::Processes first{.rank = 0, .size = 2, .local_size = 2, .store_address = "127.0.0.1"};
  first.store_port = torchrun.getPort();
  first.run = "none";
  first.is_announced = first.hosts_store = true;
  first.secret = redco::random_secret();
  redco::Processes second = first;
  second.rank = 1;
  second.hosts_store = false;
  std::unique_ptr<RunStore> of_second;
  std::thread later([&] { of_second = RunStore::connect(second, seconds(20)); });
  auto of_first = RunStore::connect(first, seconds(20));
  later.join();
  REQUIRE(of_second);
  // If there are none, ShortLookups (announced_store.cpp) are no longer needed.
  CHECK(int(n_short_lookups) == 2);
  CHECK(of_first->port() != torchrun.getPort());
  of_first->c10d()->set("key", "value");
  CHECK(of_second->c10d()->get_to_str("key") == "value");
  CHECK(torchrun.getNumKeys() < 4);
  // Who leads the others elsewhere learns nothing, and they do not go on.
  auto announce = [&](const std::string& text) {
    torchrun.set("redco/none/0/store", std::vector<uint8_t>(text.begin(), text.end()));
  };
  auto elsewhere = RunStore::open();
  announce("127.0.0.1 " + std::to_string(elsewhere->port()));
  CHECK_THROWS_WITH(RunStore::connect(second, seconds(20)), doctest::Contains("refuses"));
  announce("nowhere");
  CHECK_THROWS_WITH(RunStore::connect(second, seconds(20)), doctest::Contains("no valid port"));
}
