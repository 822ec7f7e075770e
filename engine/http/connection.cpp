#include "connection.h"

#include <boost/asio/write.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <cstdio>
#include <utility>

namespace redco {

namespace beast = boost::beast;
using boost::system::error_code;

namespace {

// How long, and how much, a client may still send after the last response of a connection. If the
// server closed it at once, the client could lose the response.
constexpr auto time_to_linger = std::chrono::seconds(2);

std::string head_of(int status, const HttpHeaders& headers) {
  std::string text = "HTTP/1.1 " + std::to_string(status) + " ";
  text += std::string(beast::http::obsolete_reason(beast::http::int_to_status(unsigned(status))));
  text += "\r\n";
  for (const auto& [name, value] : headers) text += name + ": " + value + "\r\n";
  return text;
}

}  // namespace

HttpRequest::Connection::Connection(asio::ip::tcp::socket socket,
                                    std::shared_ptr<http::Clients> server)
    : server_(std::move(server)), socket_(std::move(socket)), deadline_(socket_.get_executor()) {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
}

void HttpRequest::Connection::start() {
  limit(server_->limits().time_to_send);
  read_head();
}

void HttpRequest::Connection::enter(Phase phase) {
  phase_ = phase;
  phase_began_ = std::chrono::steady_clock::now();
}

std::optional<std::chrono::steady_clock::time_point> HttpRequest::Connection::reading_since()
    const {
  if (phase_ != Phase::reading) return std::nullopt;
  return phase_began_;
}

// Closes the connection after `time`, unless another call changes the limit; 0 means never.
void HttpRequest::Connection::limit(std::chrono::milliseconds time) {
  if (time.count() == 0) {
    deadline_.cancel();
    return;
  }
  deadline_.expires_after(time);
  deadline_.async_wait([self = shared_from_this()](error_code error) {
    if (!error) self->close();
  });
}

void HttpRequest::Connection::read_head() {
  enter(Phase::reading);
  parser_.emplace();
  parser_->header_limit(std::uint32_t(server_->limits().header_bytes));
  parser_->body_limit(server_->limits().body_bytes);
  beast::http::async_read_header(
      socket_, buffer_, *parser_, [self = shared_from_this()](error_code error, size_t) {
        if (error) return self->on_bad_request(error);
        if (!beast::iequals(self->parser_->get()[beast::http::field::expect], "100-continue"))
          return self->read_body();
        asio::async_write(self->socket_, asio::buffer("HTTP/1.1 100 Continue\r\n\r\n", 25),
                          [self](error_code, size_t) { self->read_body(); });
      });
}

void HttpRequest::Connection::read_body() {
  beast::http::async_read(socket_, buffer_, *parser_,
                          [self = shared_from_this()](error_code error, size_t) {
                            if (error) return self->on_bad_request(error);
                            self->on_request();
                          });
}

void HttpRequest::Connection::begin_exchange() {
  enter(Phase::responding);
  is_last_queued_ = false;
  exchange_ = std::make_shared<Exchange>();
}

void HttpRequest::Connection::on_request() {
  auto message = parser_->release();
  parser_.reset();
  limit({});
  begin_exchange();
  exchange_->keeps_alive = message.keep_alive();
  exchange_->is_chunked = message.version() >= 11;
  exchange_->is_head = message.method() == beast::http::verb::head;
  HttpHeaders headers;
  for (const auto& field : message)
    headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  std::string path(message.target());
  path = path.substr(0, path.find('?'));
  watch();
  server_->take(std::make_shared<HttpRequest>(shared_from_this(), exchange_,
                                              std::string(message.method_string()), std::move(path),
                                              std::move(headers), std::move(message.body())));
}

void HttpRequest::Connection::on_bad_request(error_code error) {
  using Error = beast::http::error;
  const bool is_http = error.category() == beast::http::make_error_code(Error{}).category();
  if (!is_http || error == Error::end_of_stream || error == Error::partial_message) return close();
  int status = 400;
  std::string text = "this is not a valid HTTP request: " + error.message();
  if (error == Error::body_limit) {
    status = 413;
    text = "the body of a request may have " + std::to_string(server_->limits().body_bytes) +
           " bytes at most";
  } else if (error == Error::header_limit) {
    status = 431;
    text = "the headers of a request may have " + std::to_string(server_->limits().header_bytes) +
           " bytes at most";
  }
  begin_exchange();
  const std::string body = R"({"error":{"message":")" + text +
                           R"(","type":"invalid_request_error","param":null,"code":null}})";
  send_head(*exchange_, status, {{"Content-Type", "application/json"}}, &body);
}

// Reads while the response is made, to detect a client that leaves.
void HttpRequest::Connection::watch() {
  if (is_watching_ || buffer_.size() > 0) return;
  is_watching_ = true;
  socket_.async_read_some(buffer_.prepare(4096),
                          [self = shared_from_this()](error_code error, size_t n) {
                            self->is_watching_ = false;
                            if (error) return self->close();
                            self->buffer_.commit(n);
                            if (self->phase_ == Phase::reading) self->start();
                            if (self->phase_ == Phase::lingering) self->linger();
                          });
}

void HttpRequest::Connection::send_head(Exchange& exchange, int status, const HttpHeaders& headers,
                                        const std::string* body) {
  HttpHeaders all = headers;
  if (server_->is_closing()) exchange.keeps_alive = false;
  if (body != nullptr) {
    all.emplace_back("Content-Length", std::to_string(body->size()));
  } else if (exchange.is_chunked) {
    all.emplace_back("Transfer-Encoding", "chunked");
  } else {
    exchange.keeps_alive = false;
  }
  all.emplace_back("Connection", exchange.keeps_alive ? "keep-alive" : "close");
  std::string bytes = head_of(status, all) + "\r\n";
  if (body != nullptr && !exchange.is_head) bytes += *body;
  send(exchange, std::move(bytes), body != nullptr);
}

void HttpRequest::Connection::send_part(Exchange& exchange, const std::string& part) {
  if (part.empty() || exchange.is_head) return;
  if (!exchange.is_chunked) return send(exchange, part, false);
  char size[24];
  std::snprintf(size, sizeof size, "%zx\r\n", part.size());
  send(exchange, size + part + "\r\n", false);
}

void HttpRequest::Connection::send_end(Exchange& exchange) {
  send(exchange, exchange.is_chunked && !exchange.is_head ? "0\r\n\r\n" : "", true);
}

// On any thread.
void HttpRequest::Connection::send(Exchange& exchange, std::string bytes, bool is_last) {
  if (!exchange.is_open) return;
  if (is_last) exchange.is_open = false;
  asio::post(socket_.get_executor(),
             [self = shared_from_this(), bytes = std::move(bytes), is_last]() mutable {
               if (!self->socket_.is_open()) return;
               self->unsent_.push_back(std::move(bytes));
               self->is_last_queued_ |= is_last;
               if (!self->is_writing_) self->write();
             });
}

void HttpRequest::Connection::write() {
  is_writing_ = true;
  limit(server_->limits().time_to_receive);
  asio::async_write(socket_, asio::buffer(unsent_.front()),
                    [self = shared_from_this()](error_code error, size_t) {
                      self->is_writing_ = false;
                      self->unsent_.pop_front();
                      if (error) return self->close();
                      if (!self->unsent_.empty()) return self->write();
                      self->limit({});
                      if (self->is_last_queued_) self->on_response_sent();
                    });
}

void HttpRequest::Connection::on_response_sent() {
  if (!exchange_->keeps_alive || server_->is_closing()) return linger();
  if (buffer_.size() > 0) return start();
  enter(Phase::reading);
  limit(server_->limits().time_to_idle);
  watch();
}

// Lets the client read the response before the connection ends.
void HttpRequest::Connection::linger() {
  if (phase_ != Phase::lingering) {
    enter(Phase::lingering);
    limit(time_to_linger);
    error_code ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  }
  if (is_watching_) return;
  buffer_.clear();
  socket_.async_read_some(buffer_.prepare(4096),
                          [self = shared_from_this()](error_code error, size_t) {
                            if (error) return self->close();
                            self->linger();
                          });
}

void HttpRequest::Connection::end_if_idle() {
  if (phase_ == Phase::reading) close();
}

void HttpRequest::Connection::drop(Exchange& exchange) {
  if (!exchange.is_open.exchange(false)) return;
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->close(); });
}

void HttpRequest::Connection::close() {
  if (exchange_) exchange_->is_open = false;
  deadline_.cancel();
  if (!socket_.is_open()) return;
  error_code ignored;
  socket_.close(ignored);
  server_->remove(shared_from_this());
}

HttpRequest::HttpRequest(std::shared_ptr<Connection> connection, std::shared_ptr<Exchange> exchange,
                         std::string method, std::string path, HttpHeaders headers,
                         std::string body)
    : connection_(std::move(connection)),
      exchange_(std::move(exchange)),
      method_(std::move(method)),
      path_(std::move(path)),
      headers_(std::move(headers)),
      body_(std::move(body)) {}

HttpRequest::~HttpRequest() { connection_->drop(*exchange_); }

std::string HttpRequest::header(const std::string& name) const {
  for (const auto& [each, value] : headers_)
    if (beast::iequals(each, name)) return value;
  return "";
}

bool HttpRequest::is_open() const { return exchange_->is_open; }

void HttpRequest::respond(int status, const HttpHeaders& headers, const std::string& body) {
  connection_->send_head(*exchange_, status, headers, &body);
}
void HttpRequest::begin(int status, const HttpHeaders& headers) {
  connection_->send_head(*exchange_, status, headers, nullptr);
}
void HttpRequest::write(const std::string& part) { connection_->send_part(*exchange_, part); }
void HttpRequest::finish() { connection_->send_end(*exchange_); }

}  // namespace redco
