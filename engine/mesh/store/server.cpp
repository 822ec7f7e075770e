// The server of the run's store.

#include "server.h"

#include <redco/detail/last_error.h>
#include <redco/detail/notices.h>
#include <redco/detail/thread_without_signals.h>
#include <redco/error.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

namespace redco::store {

namespace {

constexpr size_t most_bytes = size_t(2) << 30;
// Handshakes take milliseconds. If there are more at once, the oldest is dropped and must retry.
constexpr size_t most_strangers = 256;
constexpr std::chrono::seconds time_of_strangers(10);

}  // namespace

struct StoreServer::Client {
  Client(const Tls& tls, Descriptor connected)
      : socket(std::move(connected)), stream(tls, socket.get()), since(Clock::now()) {}
  Descriptor socket;
  TlsStream stream;
  Clock::time_point since;
  bool has_secret = false;
  bool wants_to_write = false;
  std::string arrived = {}, answers = {};
};

StoreServer::StoreServer(std::vector<Descriptor> listeners, const std::string& secret)
    : listeners_(std::move(listeners)),
      tls_(Tls::Side::server, secret),
      events_(epoll_create1(EPOLL_CLOEXEC)),
      stop_(eventfd(0, EFD_CLOEXEC)),
      table_(most_bytes) {
  require(events_.get() >= 0 && stop_.get() >= 0,
          "cannot open the store of the run: ", LastError{});
  watch(stop_.get(), false, true);
  for (const auto& each : listeners_) watch(each.get(), false, true);
  thread_ = thread_without_signals([this] { run(); });
}

StoreServer::~StoreServer() {
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void StoreServer::watch(int socket, bool also_for_writing, bool is_new) {
  epoll_event event = {};
  event.events = also_for_writing ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.fd = socket;
  epoll_ctl(events_.get(), is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, socket, &event);
}

void StoreServer::run() {
  constexpr int look_around = 1000;  // milliseconds
  epoll_event events[64];
  while (true) {
    int n =
        epoll_wait(events_.get(), events, std::size(events), strangers_.empty() ? -1 : look_around);
    for (int i = 0; i < n; ++i) {
      int socket = events[i].data.fd;
      if (socket == stop_.get()) return;
      auto found = clients_.find(socket);
      if (found == clients_.end()) {
        if (std::ranges::find(listeners_, socket, &Descriptor::get) != listeners_.end())
          accept_from(socket);
        continue;
      }
      bool stays = false;
      try {
        stays = serve(*found->second);
      } catch (const std::exception&) {
        // It sent an invalid message, or memory ran out.
      }
      if (!stays) drop(socket);
    }
    drop_slow_strangers();
  }
}

void StoreServer::accept_from(int listener) {
  Descriptor made(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (made.get() < 0) {
    bool has_no_more = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (errno == EMFILE && !std::exchange(has_said_so_, true))
      notice(
          "the store of the run cannot take more connections: its process may not open more "
          "files (ulimit -n)");
    if (has_no_more && !strangers_.empty()) drop(strangers_.front());
    if (has_no_more) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return;
  }
  int yes = 1, socket = made.get();
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
  try {
    clients_[socket] = std::make_unique<Client>(tls_, std::move(made));
  } catch (const std::exception&) {
    clients_.erase(socket);
    return;
  }
  strangers_.push_back(socket);
  watch(socket, false, true);
  if (strangers_.size() > most_strangers) drop(strangers_.front());
}

void StoreServer::drop(int socket) {
  std::erase(strangers_, socket);
  clients_.erase(socket);  // closing the socket removes it from epoll
}

void StoreServer::drop_slow_strangers() {
  while (!strangers_.empty() &&
         Clock::now() - clients_.at(strangers_.front())->since > time_of_strangers)
    drop(strangers_.front());
}

// Continues the TLS handshake. Returns false to drop the client.
bool StoreServer::shake_hands(Client& client) {
  switch (client.stream.handshake()) {
    case TlsStream::Step::done:
      client.has_secret = true;
      std::erase(strangers_, client.socket.get());
      return true;
    case TlsStream::Step::wants_read:
      return true;
    case TlsStream::Step::wants_write:
      client.wants_to_write = true;
      return true;
    case TlsStream::Step::refused:
      // Logged once, so that strangers cannot fill the log of a run.
      if (!std::exchange(has_refused_, true))
        notice("the store of the run refused " + peer_of(client.socket.get()) +
               ", which does not have the run's secret; others will be refused in silence");
      return false;
    case TlsStream::Step::closed:
      break;
  }
  return false;
}

bool StoreServer::serve(Client& client) {
  using Step = TlsStream::Step;
  bool wanted_to_write = std::exchange(client.wants_to_write, false);
  if (!client.has_secret && !shake_hands(client)) return false;
  if (client.has_secret) {
    Step step = client.stream.read(client.arrived);
    if (step == Step::closed || step == Step::refused) return false;
    while (auto request = take_message(client.arrived))
      client.answers += packed(table_.answer(*request));
    step = client.stream.write(client.answers);
    if (step == Step::closed || step == Step::refused) return false;
    client.wants_to_write = step == Step::wants_write;
  }
  if (client.wants_to_write != wanted_to_write)
    watch(client.socket.get(), client.wants_to_write, false);
  return true;
}

}  // namespace redco::store
