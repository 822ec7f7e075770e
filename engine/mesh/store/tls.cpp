// TLS with a shared secret, using OpenSSL.

#include "tls.h"

#include <redco/error.h>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace redco::store {

namespace {

constexpr const char* identity = "redco";

// OpenSSL's own cleanup at exit would run before threads that use it have ended.
void start_openssl() {
  static const bool is_started = OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr) == 1;
  require(is_started, "OpenSSL cannot be started");
}

// A key with the length of TLS's hash. It needs no stretching: secrets are random.
std::string key_of(const std::string& secret) {
  std::string text = "redco run " + secret, key(32, '\0');
  unsigned int size = 0;
  int done = EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(key.data()),
                        &size, EVP_sha256(), nullptr);
  require(done == 1 && size == key.size(), "OpenSSL cannot compute SHA-256");
  return key;
}

const std::string& key_in(SSL* stream) {
  return *static_cast<const std::string*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(stream)));
}

unsigned int give_key(SSL* stream, unsigned char* into, unsigned int size) {
  const std::string& key = key_in(stream);
  if (key.size() > size) return 0;
  std::memcpy(into, key.data(), key.size());
  return static_cast<unsigned int>(key.size());
}

unsigned int client_key(SSL* stream, const char*, char* name, unsigned int name_size,
                        unsigned char* into, unsigned int size) {
  if (std::strlen(identity) >= name_size) return 0;
  std::strcpy(name, identity);
  return give_key(stream, into, size);
}

unsigned int server_key(SSL* stream, const char* name, unsigned char* into, unsigned int size) {
  return std::strcmp(name, identity) == 0 ? give_key(stream, into, size) : 0;
}

// OpenSSL's socket functions raise SIGPIPE, which a library cannot make the program ignore.
int socket_of(BIO* bio) { return int(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

int send_bytes(BIO* bio, const char* bytes, int n) {
  BIO_clear_retry_flags(bio);
  ssize_t done;
  do done = send(socket_of(bio), bytes, size_t(n), MSG_NOSIGNAL);
  while (done < 0 && errno == EINTR);
  if (done < 0 && errno == EAGAIN) BIO_set_retry_write(bio);
  return int(done);
}

int receive_bytes(BIO* bio, char* bytes, int n) {
  BIO_clear_retry_flags(bio);
  ssize_t done;
  do done = recv(socket_of(bio), bytes, size_t(n), 0);
  while (done < 0 && errno == EINTR);
  if (done < 0 && errno == EAGAIN) BIO_set_retry_read(bio);
  return int(done);
}

long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

const BIO_METHOD* socket_method() {
  static const BIO_METHOD* made = [] {
    BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    BIO_meth_set_write(method, send_bytes);
    BIO_meth_set_read(method, receive_bytes);
    BIO_meth_set_ctrl(method, control);
    return method;
  }();
  return made;
}

}  // namespace

Tls::Tls(Side side, const std::string& secret) : side_(side) {
  start_openssl();
  key_ = key_of(secret);
  context_ = {SSL_CTX_new(side == Side::server ? TLS_server_method() : TLS_client_method()),
              SSL_CTX_free};
  SSL_CTX* context = context_.get();
  bool is_set = context != nullptr && SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
                SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") ==
                    1 &&  // to match the hash of the key
                SSL_CTX_set_num_tickets(context, 0) == 1;
  require(is_set, "OpenSSL cannot make TLS 1.3 connections");
  SSL_CTX_set_app_data(context, &key_);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  if (side == Side::server) {
    SSL_CTX_set_psk_server_callback(context, server_key);
  } else {
    SSL_CTX_set_psk_client_callback(context, client_key);
    // Reject a server that has a certificate instead of the secret.
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  }
}

TlsStream::TlsStream(const Tls& tls, int socket) : stream_(SSL_new(tls.context_.get()), SSL_free) {
  BIO* bio = stream_ ? BIO_new(socket_method()) : nullptr;
  require(bio != nullptr, "OpenSSL cannot make a TLS connection");
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(socket)));
  BIO_set_init(bio, 1);
  SSL_set_bio(stream_.get(), bio, bio);
  if (tls.side_ == Tls::Side::server)
    SSL_set_accept_state(stream_.get());
  else
    SSL_set_connect_state(stream_.get());
}

TlsStream::Step TlsStream::step_of(int result) {
  switch (SSL_get_error(stream_.get(), result)) {
    case SSL_ERROR_NONE:
      return Step::done;
    case SSL_ERROR_WANT_READ:
      return Step::wants_read;
    case SSL_ERROR_WANT_WRITE:
      return Step::wants_write;
    case SSL_ERROR_SSL:
      return Step::refused;
    default:
      return Step::closed;
  }
}

TlsStream::Step TlsStream::handshake() {
  ERR_clear_error();
  return step_of(SSL_do_handshake(stream_.get()));
}

TlsStream::Step TlsStream::read(std::string& into) {
  char bytes[16384];
  while (true) {
    ERR_clear_error();
    int n = SSL_read(stream_.get(), bytes, sizeof(bytes));
    if (n <= 0) return step_of(n);
    into.append(bytes, size_t(n));
    if (SSL_pending(stream_.get()) == 0) return Step::wants_read;
  }
}

TlsStream::Step TlsStream::write(std::string& from) {
  size_t written = 0;
  Step step = Step::done;
  while (written < from.size() && step == Step::done) {
    ERR_clear_error();
    auto n = int(std::min(from.size() - written, size_t(1) << 20));
    int done = SSL_write(stream_.get(), from.data() + written, n);
    if (done <= 0)
      step = step_of(done);
    else
      written += size_t(done);
  }
  from.erase(0, written);
  return step;
}

}  // namespace redco::store
