#pragma once

#include <redco/detail/http_server.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>

namespace redco {

namespace asio = boost::asio;

namespace http {

/// The part of a server that its connections call.
class Clients {
 public:
  virtual ~Clients() = default;
  virtual const HttpLimits& limits() const = 0;
  virtual bool is_closing() const = 0;
  virtual void take(std::shared_ptr<HttpRequest> request) = 0;
  /// May destroy the connection.
  virtual void remove(const std::shared_ptr<HttpRequest::Connection>& connection) = 0;
};

}  // namespace http

/// The state that a request and its connection share.
struct HttpRequest::Exchange {
  std::atomic<bool> is_open = true;  ///< the client is there, and the response is not finished
  bool keeps_alive = false, is_chunked = false, is_head = false;
};

/// A client's connection: one request after another. Functions run on the server's thread, except
/// where they say otherwise.
class HttpRequest::Connection : public std::enable_shared_from_this<HttpRequest::Connection> {
 public:
  Connection(asio::ip::tcp::socket socket, std::shared_ptr<http::Clients> server);

  void start();
  /// Closes the connection unless a response is under way.
  void end_if_idle();
  void close();
  /// Since when it waits for a request or the rest of one; absent while a response is under way.
  std::optional<std::chrono::steady_clock::time_point> reading_since() const;

  // On any thread. `body` is absent if parts follow.
  void send_head(Exchange& exchange, int status, const HttpHeaders& headers,
                 const std::string* body);
  void send_part(Exchange& exchange, const std::string& part);
  void send_end(Exchange& exchange);
  /// Closes the connection if the response is not finished.
  void drop(Exchange& exchange);

 private:
  enum class Phase { reading, responding, lingering };

  void enter(Phase phase);
  void limit(std::chrono::milliseconds time);
  void read_head();
  void read_body();
  void begin_exchange();
  void on_request();
  void on_bad_request(boost::system::error_code error);
  void watch();
  void send(Exchange& exchange, std::string bytes, bool is_last);
  void write();
  void on_response_sent();
  void linger();

  const std::shared_ptr<http::Clients> server_;  // it has what the socket needs
  asio::ip::tcp::socket socket_;
  asio::steady_timer deadline_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  Phase phase_ = Phase::reading;
  std::chrono::steady_clock::time_point phase_began_ = std::chrono::steady_clock::now();
  bool is_watching_ = false;  // a read waits for further bytes, or for the client to leave
  bool is_writing_ = false;
  bool is_last_queued_ = false;
  std::deque<std::string> unsent_;
  std::shared_ptr<Exchange> exchange_;  // the current or last one
};

}  // namespace redco
