#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace redco::store {

/// A file descriptor that is closed with the object.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  int get() const { return number_; }

 private:
  int number_;
};

bool is_loopback(const std::string& address);

/// This host's address on the route to `target`, which may be a name. Throws Error if there is no
/// route.
std::string address_towards(const std::string& target);

/// The name of the network interface that has this numeric address; empty if none has.
std::string interface_of(const std::string& address);

/// Listens at an address, a name or a number, and a port; 0: any. A name may have several
/// addresses. If none belongs to this host, as behind a router or a Kubernetes service, listens at
/// all addresses of this host. Waits until the name can be resolved. Throws Error if that takes too
/// long or listening fails.
std::vector<Descriptor> listen_at(const std::string& address, int64_t port,
                                  std::chrono::milliseconds time);

/// The numeric local address of a socket and its port.
std::pair<std::string, int64_t> place_of(int socket);
/// The numeric address of a socket's peer; empty if it has disconnected.
std::string peer_of(int socket);

/// Connects to an address and port, with retries until the timeout: `why_not` is called with the
/// reason of each failed attempt. Throws Error on the timeout, Interrupted after request_interrupt.
Descriptor connect_to(const std::string& address, int64_t port, std::chrono::milliseconds time,
                      const std::function<void(const std::string&)>& why_not);

}  // namespace redco::store
