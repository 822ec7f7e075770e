#pragma once

#include <memory>
#include <string>

struct ssl_ctx_st;
struct ssl_st;

namespace redco {

/// What one end of TLS connections needs: TLS 1.3 whose only key is the secret that both ends have
/// (RFC 8446, section 2.2), so that there are no certificates. By OpenSSL.
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

/// One connection. It neither owns nor closes its socket.
class TlsStream {
 public:
  enum class Step {
    done,
    wants_read,   ///< again once the socket is readable
    wants_write,  ///< again once it is writable
    closed,       ///< by the other end, or the network
    refused,      ///< by TLS: the other end has another secret, or speaks something else
  };
  TlsStream(const Tls& tls, int socket);

  Step handshake();
  /// Adds what there is; never `done`.
  Step read(std::string& into);
  /// Writes from the front, and removes that.
  Step write(std::string& from);

 private:
  Step step_of(int result);
  std::shared_ptr<ssl_st> stream_;
};

}  // namespace redco
