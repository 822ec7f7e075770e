#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace redco {

/// A file descriptor that is closed with this.
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

/// This host's address on the way to `target`, which may be a name. Throws Error where there is no
/// way.
std::string address_towards(const std::string& target);

/// Sockets that listen at the address, a name or a number, and the port; 0: any. A name may have
/// several addresses. Where none is this host's, as behind a router or a Kubernetes service, they
/// listen at all of this host's. Waits until the name is known. Throws Error when it is not within
/// the time, or they cannot listen.
std::vector<Descriptor> listen_at(const std::string& address, int64_t port,
                                  std::chrono::milliseconds time);

/// The number of a socket's own address, and its port.
std::pair<std::string, int64_t> place_of(int socket);
/// The number of the address at its other end; empty where that has gone.
std::string peer_of(int socket);

/// A connection to the address and port, which may come to be within the time: `why_not` is told
/// what stands in its way so far. Throws Error when the time is over, Interrupted after
/// request_interrupt.
Descriptor connect_to(const std::string& address, int64_t port, std::chrono::milliseconds time,
                      const std::function<void(const std::string&)>& why_not);

}  // namespace redco
