#include "connection.h"

#include <redco/detail/thread_without_signals.h>
#include <redco/error.h>

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <array>
#include <boost/asio/executor_work_guard.hpp>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <set>
#include <thread>

namespace redco {

namespace {

using Tcp = asio::ip::tcp;

Tcp::endpoint resolve(asio::io_context& io, const std::string& host, int port) {
  boost::system::error_code error;
  Tcp::resolver resolver(io);
  auto found = resolver.resolve(host, std::to_string(port), Tcp::resolver::passive, error);
  require(!error && !found.empty(), "cannot listen at ", host, ": ", error.message());
  return *found.begin();
}

constexpr auto pause_without_files = std::chrono::milliseconds(100);
constexpr auto time_to_close = std::chrono::seconds(2);

}  // namespace

class HttpServer::Impl : public http::Clients, public std::enable_shared_from_this<Impl> {
 public:
  Impl(const std::string& host, int port, HttpLimits limits)
      : limits_(limits), acceptor_(io_), pause_(io_) {
    Tcp::endpoint at = resolve(io_, host, port);
    boost::system::error_code error;
    acceptor_.open(at.protocol(), error);
    if (!error) acceptor_.set_option(Tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(at, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    require(!error, "cannot listen at ", host, ", port ", port, ": ", error.message());
    local_ = acceptor_.local_endpoint();
    asio::post(io_, [this] { accept(); });
  }

  void start() {
    thread_ = thread_without_signals([this] { run(); });
  }

  const Tcp::endpoint& local() const { return local_; }

  std::shared_ptr<HttpRequest> next(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    has_request_.wait_for(lock, time, [&] { return !requests_.empty(); });
    if (requests_.empty()) return nullptr;
    auto request = std::move(requests_.front());
    requests_.pop_front();
    return request;
  }

  void close() {
    if (!thread_.joinable()) return;
    std::unique_lock lock(mutex_);
    auto waiting = std::exchange(requests_, {});
    is_closing_ = true;
    lock.unlock();
    waiting.clear();  // closes their connections
    asio::post(io_, [this] {
      boost::system::error_code ignored;
      acceptor_.close(ignored);
      pause_.cancel();
      for_each([](auto& connection) { connection.end_if_idle(); });
    });
    lock.lock();
    is_empty_.wait_for(lock, time_to_close, [&] { return n_connections_ == 0; });
    lock.unlock();
    asio::post(io_, [this] {
      for_each([](auto& connection) { connection.close(); });
      work_.reset();
    });
    thread_.join();
  }

  // Of http::Clients, on the server's thread.
  const HttpLimits& limits() const override { return limits_; }
  bool is_closing() const override {
    std::lock_guard lock(mutex_);
    return is_closing_;
  }
  void take(std::shared_ptr<HttpRequest> request) override {
    std::lock_guard lock(mutex_);
    if (is_closing_) return;
    requests_.push_back(std::move(request));
    has_request_.notify_one();
  }
  void remove(const std::shared_ptr<HttpRequest::Connection>& connection) override {
    if (connections_.erase(connection) > 0) count();
    if (!is_accepting_) accept();
  }

 private:
  // Until `close`.
  void run() {
    while (true) {
      try {
        io_.run();
        return;
      } catch (const std::exception&) {
        // No memory for a connection: the others go on.
      }
    }
  }

  template <class F>
  void for_each(F function) {
    const auto connections = connections_;  // they remove themselves
    for (const auto& each : connections) function(*each);
  }

  void count() {
    std::lock_guard lock(mutex_);
    n_connections_ = connections_.size();
    if (n_connections_ == 0) is_empty_.notify_all();
  }

  // Closes the connection that has waited longest for a request, except a new one. Returns
  // whether there was one.
  bool make_room(const std::shared_ptr<HttpRequest::Connection>& added = nullptr) {
    std::shared_ptr<HttpRequest::Connection> oldest;
    for (const auto& each : connections_)
      if (each != added && each->reading_since() &&
          (!oldest || *each->reading_since() < *oldest->reading_since()))
        oldest = each;
    if (oldest) oldest->close();
    return oldest != nullptr;
  }

  // Pauses while there are too many connections, or no more file descriptors.
  void accept() {
    is_accepting_ = connections_.size() <= limits_.connections && acceptor_.is_open();
    if (!is_accepting_) return;
    acceptor_.async_accept([this](boost::system::error_code error, Tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (error) {
        if (make_room()) return accept();
        pause_.expires_after(pause_without_files);
        pause_.async_wait([this](boost::system::error_code) { accept(); });
        return;
      }
      auto connection =
          std::make_shared<HttpRequest::Connection>(std::move(socket), shared_from_this());
      connections_.insert(connection);
      count();
      connection->start();
      is_accepting_ = false;
      if (connections_.size() > limits_.connections) make_room(connection);
      if (!is_accepting_) accept();
    });
  }

  const HttpLimits limits_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  Tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  Tcp::endpoint local_;
  std::set<std::shared_ptr<HttpRequest::Connection>> connections_;  // of the thread
  bool is_accepting_ = false;

  mutable std::mutex mutex_;  // for all below
  std::condition_variable has_request_, is_empty_;
  std::deque<std::shared_ptr<HttpRequest>> requests_;
  size_t n_connections_ = 0;
  bool is_closing_ = false;

  std::thread thread_;
};

HttpServer::HttpServer(const std::string& host, int port, HttpLimits limits)
    : impl_(std::make_shared<Impl>(host, port, limits)) {
  impl_->start();
}
HttpServer::~HttpServer() { close(); }
int HttpServer::port() const { return impl_->local().port(); }
bool HttpServer::is_local() const { return impl_->local().address().is_loopback(); }
std::shared_ptr<HttpRequest> HttpServer::next(std::chrono::milliseconds time) {
  return impl_->next(time);
}
void HttpServer::close() { impl_->close(); }

bool is_same_secret(const std::string& given, const std::string& secret) {
  using Sum = std::array<unsigned char, SHA256_DIGEST_LENGTH>;
  auto sum_of = [](const std::string& text) {
    Sum sum;
    SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), sum.data());
    return sum;
  };
  const Sum a = sum_of(given), b = sum_of(secret);
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace redco
