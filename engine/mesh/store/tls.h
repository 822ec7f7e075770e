#pragma once

#include <memory>
#include <string>

struct ssl_ctx_st;
struct ssl_st;

namespace redco::store {

/// The context of one end of TLS connections: TLS 1.3 with the shared secret as the only key (RFC
/// 8446, section 2.2), so that there are no certificates. Uses OpenSSL.
class Tls {
 public:
  enum class Side { client, server };
  Tls(Side side, const std::string& secret);
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

 private:
  friend class TlsStream;
  Side side_;
  std::string key_;
  std::shared_ptr<ssl_ctx_st> context_;
};

/// A connection. It neither owns nor closes its socket.
class TlsStream {
 public:
  enum class Step {
    done,
    wants_read,   ///< retry once the socket is readable
    wants_write,  ///< retry once it is writable
    closed,       ///< by the peer, or the network
    refused,      ///< by TLS: the peer has another secret or uses another protocol
  };
  TlsStream(const Tls& tls, int socket);

  Step handshake();
  /// Appends available bytes; never returns `done`.
  Step read(std::string& into);
  /// Writes bytes from the front and removes them.
  Step write(std::string& from);

 private:
  Step step_of(int result);
  std::shared_ptr<ssl_st> stream_;
};

}  // namespace redco::store
