// Sockets: name resolution, listening and connecting.

#include "sockets.h"

#include <redco/detail/notices.h>
#include <redco/error.h>

#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

namespace redco::store {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds time_to_connect(2000);
constexpr milliseconds between_attempts(200);

struct Resolved {
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> first{nullptr, freeaddrinfo};
  std::string why_not = {};
};

// Fails at once if this process may open no more files: waiting would not change that.
void check_open_files() {
  require(errno != EMFILE, std::strerror(EMFILE), ": this process may not open more (ulimit -n)");
}

Resolved resolve(const std::string& address, int64_t port, int type) {
  addrinfo wanted = {};
  wanted.ai_socktype = type;
  wanted.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  int failure = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (failure == 0) return {{found, freeaddrinfo}};
  if (failure == EAI_SYSTEM) check_open_files();
  std::string why = failure == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(failure);
  return {.why_not = "cannot resolve " + address + ": " + why};
}

std::string number_of(const sockaddr* address, socklen_t length, int64_t* port = nullptr) {
  char host[NI_MAXHOST], service[NI_MAXSERV];
  if (getnameinfo(address, length, host, sizeof(host), service, sizeof(service),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "";
  if (port != nullptr) *port = std::stoll(service);
  return host;
}

bool connect_within(int socket, const addrinfo& to, milliseconds time) {
  if (connect(socket, to.ai_addr, to.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return false;
  pollfd writable{socket, POLLOUT, 0};
  int n = poll(&writable, 1, int(time.count()));
  int failure = n == 0 ? ETIMEDOUT : n < 0 ? errno : 0;
  socklen_t length = sizeof(failure);
  if (n > 0) getsockopt(socket, SOL_SOCKET, SO_ERROR, &failure, &length);
  errno = failure;
  return failure == 0;
}

// On failure the result is empty and errno is set.
Descriptor listen_on(const sockaddr* address, socklen_t length) {
  Descriptor made(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int yes = 1, no = 0;
  setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (address->sa_family == AF_INET6)
    setsockopt(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  bool listens = made.get() >= 0 && bind(made.get(), address, length) == 0 &&
                 listen(made.get(), SOMAXCONN) == 0;
  return listens ? std::move(made) : Descriptor();
}

Descriptor listen_everywhere(int64_t port) {
  sockaddr_in6 six = {};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(uint16_t(port));
  auto made = listen_on(reinterpret_cast<sockaddr*>(&six), sizeof(six));
  if (made.get() >= 0 || errno == EADDRINUSE) return made;
  sockaddr_in four = {};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  return listen_on(reinterpret_cast<sockaddr*>(&four), sizeof(four));
}

}  // namespace

Descriptor::~Descriptor() {
  int cause = errno;
  if (number_ >= 0) close(number_);
  errno = cause;
}
Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address == "localhost";
}

// Connecting a datagram socket sends nothing but selects the route.
std::string address_towards(const std::string& target) {
  Resolved addresses = resolve(target, 9, SOCK_DGRAM);
  require(addresses.first != nullptr, addresses.why_not, ", the address of process 0's host");
  for (const addrinfo* each = addresses.first.get(); each != nullptr; each = each->ai_next) {
    Descriptor probe(socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (probe.get() < 0 || connect(probe.get(), each->ai_addr, each->ai_addrlen) != 0) continue;
    std::string own = place_of(probe.get()).first;
    if (!own.empty()) return own;
  }
  fail("there is no route to ", target, ", the address of process 0's host");
}

std::string interface_of(const std::string& address) {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(found, freeifaddrs);
  for (const ifaddrs* each = found; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (number_of(each->ifa_addr, length) == address) return each->ifa_name;
  }
  return "";
}

std::vector<Descriptor> listen_at(const std::string& address, int64_t port, milliseconds time) {
  Waiting waiting("the address " + address + " to be resolved, where process 0 shall listen");
  auto until = steady_clock::now() + time;
  Resolved addresses = resolve(address, port, SOCK_STREAM);
  while (!addresses.first) {
    require(steady_clock::now() < until, addresses.why_not);
    check_interrupt();
    std::this_thread::sleep_for(between_attempts);
    addresses = resolve(address, port, SOCK_STREAM);
  }
  std::vector<Descriptor> listeners;
  int cause = 0;
  for (const addrinfo* each = addresses.first.get(); each != nullptr; each = each->ai_next) {
    Descriptor made = listen_on(each->ai_addr, each->ai_addrlen);
    if (made.get() >= 0)
      listeners.push_back(std::move(made));
    else if (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT)
      cause = errno;
    if (port == 0 && !listeners.empty()) break;  // further listeners would have other ports
  }
  if (listeners.empty() && cause == 0) {
    Descriptor made = listen_everywhere(port);
    if (made.get() >= 0)
      listeners.push_back(std::move(made));
    else
      cause = errno;
  }
  require(!listeners.empty(), "cannot listen at ", address, ":", port, ": ", std::strerror(cause));
  return listeners;
}

std::pair<std::string, int64_t> place_of(int socket) {
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  auto* generic = reinterpret_cast<sockaddr*>(&own);
  int64_t port = 0;
  if (getsockname(socket, generic, &length) != 0) return {};
  std::string address = number_of(generic, length, &port);
  return {address, port};
}

std::string peer_of(int socket) {
  sockaddr_storage other = {};
  socklen_t length = sizeof(other);
  auto* generic = reinterpret_cast<sockaddr*>(&other);
  return getpeername(socket, generic, &length) == 0 ? number_of(generic, length) : "";
}

Descriptor connect_to(const std::string& address, int64_t port, milliseconds time,
                      const std::function<void(const std::string&)>& why_not) {
  auto until = steady_clock::now() + time;
  while (true) {
    check_interrupt();
    Resolved addresses = resolve(address, port, SOCK_STREAM);
    std::string why = addresses.why_not;
    for (const addrinfo* each = addresses.first.get(); each != nullptr; each = each->ai_next) {
      check_interrupt();
      Descriptor made(socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (made.get() < 0) check_open_files();
      auto left = std::chrono::ceil<milliseconds>(until - steady_clock::now());
      if (made.get() < 0 ||
          !connect_within(made.get(), *each, std::clamp(left, milliseconds(1), time_to_connect))) {
        why = std::strerror(errno);
        continue;
      }
      int yes = 1;
      setsockopt(made.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
      fcntl(made.get(), F_SETFL, 0);  // blocking from now on
      return made;
    }
    require(steady_clock::now() < until, why);
    why_not(why);
    std::this_thread::sleep_for(between_attempts);
  }
}

}  // namespace redco::store
