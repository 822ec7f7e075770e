// A client of the run's store.

#include "client.h"

#include <redco/detail/notices.h>
#include <redco/error.h>

#include <c10/util/Exception.h>

#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace redco::store {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::seconds time_to_answer(30);

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string first_of(const Message& answer) {
  require(!answer.parts.empty(), "an answer of the run's store is empty");
  return answer.parts[0];
}

void limit_waits(int socket, std::chrono::seconds time) {
  timeval limit = {time.count(), 0};
  for (int which : {SO_RCVTIMEO, SO_SNDTIMEO})
    setsockopt(socket, SOL_SOCKET, which, &limit, sizeof(limit));
}

}  // namespace

StoreClient::StoreClient(const StorePlace& place, milliseconds time_to_connect,
                         milliseconds timeout)
    : place_(place), tls_(Tls::Side::client, place.secret) {
  timeout_ = timeout;
  connect(time_to_connect);
}

std::string StoreClient::name() const {
  return "the store of the run at " + place_.address + ":" + std::to_string(place_.port);
}

void StoreClient::connect(milliseconds time) {
  auto until = steady_clock::now() + time;
  Waiting waiting(name());
  auto say_why_not = [&](const std::string& why) { waiting.change(name() + " (" + why + ")"); };
  for (bool was_refused = false;;) {
    auto left = std::chrono::ceil<milliseconds>(until - steady_clock::now());
    socket_ = connect_to(place_.address, place_.port, std::max(left, milliseconds(1)), say_why_not);
    limit_waits(socket_.get(), time_to_answer);
    stream_.emplace(tls_, socket_.get());
    auto step = stream_->handshake();
    if (step == TlsStream::Step::done) return;
    // OpenSSL refuses if the clock is set in the middle of a handshake.
    if (step == TlsStream::Step::refused && !std::exchange(was_refused, true)) continue;
    require(step != TlsStream::Step::refused, "it refuses this process's secret, of ",
            place_.secret_source,
            ": process 0 has another secret, or another program listens there. All hosts must have "
            "the same secret: copy ~/.config/redco/secret "
            "of host 0, or name a file that they share with --secret-file (REDCO_SECRET_FILE)");
    // The server was busy or is shutting down.
    require(steady_clock::now() < until, "it does not answer");
    say_why_not("it does not answer");
    std::this_thread::sleep_for(milliseconds(200));
  }
}

c10::intrusive_ptr<c10d::Store> StoreClient::clone() {
  return c10::make_intrusive<StoreClient>(place_, time_to_answer, timeout_);
}

void StoreClient::lose(const std::string& why) {
  lost_ = why;
  stream_.reset();
  socket_ = Descriptor();
  fail(name(), " ", lost_);
}

Message StoreClient::ask(Message::Request kind, std::vector<std::string> parts) {
  using Step = TlsStream::Step;
  std::string request = packed({kind, std::move(parts)});
  std::lock_guard lock(mutex_);
  if (!stream_) lose(lost_);
  auto check = [&](Step step) {
    if (step == Step::wants_write) lose("does not answer");
    if (step == Step::closed || step == Step::refused) lose("has closed the connection");
  };
  while (!request.empty()) {
    Step step = stream_->write(request);
    if (step == Step::wants_read) lose("does not answer");
    check(step);
  }
  while (true) {
    size_t before = arrived_.size();
    Step step = stream_->read(arrived_);
    check(step);
    if (arrived_.size() == before) lose("does not answer");
    if (auto answer = take_message(arrived_)) {
      if (answer->kind == Message::failed) fail(name(), ": ", first_of(*answer));
      return *answer;
    }
  }
}

void StoreClient::set(const std::string& key, const std::vector<uint8_t>& value) {
  ask(Message::set, {key, text_of(value)});
}

std::vector<uint8_t> StoreClient::compareSet(const std::string& key,
                                             const std::vector<uint8_t>& expected,
                                             const std::vector<uint8_t>& desired) {
  return bytes_of(first_of(ask(Message::compare_set, {key, text_of(expected), text_of(desired)})));
}

std::vector<uint8_t> StoreClient::get(const std::string& key) { return multiGet({key})[0]; }

int64_t StoreClient::add(const std::string& key, int64_t value) {
  return std::stoll(first_of(ask(Message::add, {key, std::to_string(value)})));
}

bool StoreClient::deleteKey(const std::string& key) {
  return ask(Message::remove, {key}).kind == Message::yes;
}

bool StoreClient::check(const std::vector<std::string>& keys) {
  return ask(Message::check, keys).kind == Message::yes;
}

int64_t StoreClient::getNumKeys() { return std::stoll(first_of(ask(Message::count, {}))); }

void StoreClient::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void StoreClient::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  auto until = steady_clock::now() + timeout;
  for (milliseconds sleep(1); !check(keys); sleep = std::min(2 * sleep, milliseconds(20))) {
    if (steady_clock::now() >= until)
      C10_THROW_ERROR(DistStoreError, "nobody has written " + keys.front() + " into " + name() +
                                          " within " + std::to_string(timeout.count()) + " ms");
    std::this_thread::sleep_for(sleep);
  }
}

void StoreClient::append(const std::string& key, const std::vector<uint8_t>& value) {
  ask(Message::append, {key, text_of(value)});
}

std::vector<std::vector<uint8_t>> StoreClient::multiGet(const std::vector<std::string>& keys) {
  Message answer = ask(Message::get, keys);
  while (answer.kind == Message::no) {
    wait(keys);
    answer = ask(Message::get, keys);
  }
  require(answer.parts.size() == keys.size(), name(), " sent a wrong number of values");
  std::vector<std::vector<uint8_t>> values;
  for (const auto& part : answer.parts) values.push_back(bytes_of(part));
  return values;
}

void StoreClient::multiSet(const std::vector<std::string>& keys,
                           const std::vector<std::vector<uint8_t>>& values) {
  require(keys.size() == values.size(), keys.size(), " keys for ", values.size(), " values");
  std::vector<std::string> parts;
  for (size_t i = 0; i < keys.size(); ++i) parts.insert(parts.end(), {keys[i], text_of(values[i])});
  ask(Message::set, std::move(parts));
}

}  // namespace redco::store
