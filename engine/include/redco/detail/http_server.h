#pragma once

#include <redco/export.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace redco {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

/// A request, and the client that waits for its response. The response is either `respond`, or
/// `begin`, any number of `write`, and `finish`. What is sent to a client that has left is dropped.
class REDCO_API HttpRequest {
 public:
  class Connection;
  struct Exchange;

  /// Made by HttpServer.
  HttpRequest(std::shared_ptr<Connection> connection, std::shared_ptr<Exchange> exchange,
              std::string method, std::string path, HttpHeaders headers, std::string body);
  /// Closes the connection if the response is not finished.
  ~HttpRequest();
  HttpRequest(const HttpRequest&) = delete;
  HttpRequest& operator=(const HttpRequest&) = delete;

  const std::string& method() const { return method_; }
  /// The path, without the query behind a question mark.
  const std::string& path() const { return path_; }
  const std::string& body() const { return body_; }
  /// The value of a header whatever its case, or "".
  std::string header(const std::string& name) const;

  /// Whether the client waits: it has not left, and the response is not finished.
  bool is_open() const;

  void respond(int status, const HttpHeaders& headers, const std::string& body);
  void begin(int status, const HttpHeaders& headers);
  void write(const std::string& part);
  void finish();

 private:
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<Exchange> exchange_;
  std::string method_, path_;
  HttpHeaders headers_;
  std::string body_;
};

/// The limits for one client.
struct HttpLimits {
  size_t header_bytes = 16 * 1024;
  size_t body_bytes = 4 * 1024 * 1024;
  /// A further one takes the place of the one that has waited longest for a request.
  size_t connections = 1024;
  /// To send a whole request, however it arrives; to receive a part of a response; and to keep a
  /// connection without a request.
  std::chrono::milliseconds time_to_send{20000}, time_to_receive{30000}, time_to_idle{60000};
};

/// An HTTP/1.1 server without TLS. One thread of its own reads requests and writes responses; any
/// thread may take the requests. It answers itself what is no request or exceeds the limits, with
/// the status and a JSON object {"error": {"message", "type", "param", "code"}}.
class REDCO_API HttpServer {
 public:
  /// Listens at an address or a host's name, and a port; 0: any. Throws Error if that fails.
  HttpServer(const std::string& host, int port, HttpLimits limits = {});
  /// Calls `close`.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  /// Whether only programs of this machine can connect.
  bool is_local() const;

  /// The next request, or null if there is none within the time.
  std::shared_ptr<HttpRequest> next(std::chrono::milliseconds time);

  /// Ends: no more requests, clients get the rest of finished responses for at most two seconds,
  /// and the port is free.
  void close();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

/// Whether two texts are equal, in a time that depends on the length of `given` only.
REDCO_API bool is_same_secret(const std::string& given, const std::string& secret);

}  // namespace redco
