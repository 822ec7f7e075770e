// Connects the launchers of a run's hosts.

#include "hosts.h"

#include <redco/detail/last_error.h>
#include <redco/detail/notices.h>
#include <redco/detail/run_secret.h>
#include <redco/error.h>

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace redco {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds round_time(250);
// The time limit for the store to answer.
constexpr std::chrono::seconds store_patience(5);
// The time that a host waits at its end: host 0 for the others, which may be writing a checkpoint;
// the others for the store.
constexpr std::chrono::minutes farewell(10);
constexpr std::chrono::seconds short_farewell(2);
// A launcher that is alive gives a sign within this time.
constexpr std::chrono::milliseconds time_for_sign(2000);

// Names this launcher in messages.
std::string own_name() {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  return "process " + std::to_string(getpid()) + " of " + host;
}

}  // namespace

// The state shared by the launcher and the thread that talks to the store. The thread is detached,
// and left behind if the store does not answer.
struct Hosts::Link {
  explicit Link(int descriptor) : descriptor(fcntl(descriptor, F_DUPFD_CLOEXEC, 0)) {}
  ~Link() { close(descriptor); }
  template <class Change>
  void update(Change change) {
    std::lock_guard lock(mutex);
    change(*this);
    is_updated = true;
    changed.notify_all();
  }

  const int descriptor;
  std::mutex mutex;
  std::condition_variable changed;
  // Set by the launcher.
  bool is_updated = false;  // some of these have changed
  bool joins = false;
  bool finishes = false;
  bool leaves = false;
  bool is_abandoned = false;
  std::optional<RunStore::Failure> failure;
  std::optional<HostBoard::End> end;
  // Set by the thread.
  News news;
  bool has_ended = false;
  std::optional<Clock::time_point> answered;  // last answer of the store
};

// Runs in the thread that talks to the store.
class Hosts::Talk {
 public:
  Talk(std::shared_ptr<Link> link, const Processes& place, int64_t n_workers,
       const Restarts& restarts)
      : link_(std::move(link)), place_(place), n_workers_(n_workers), restarts_(restarts) {}

  void run(std::unique_ptr<RunStore> store, std::chrono::seconds limit) {
    try {
      if (!store) store = RunStore::connect(place_, limit);
      board_.emplace(std::move(store), place_.size);
      if (place_.rank == 0) lead_.emplace(*board_, restarts_);
      if (is_only_one())
        while (round()) wait();
    } catch (const c10::Error& error) {
      publish([&](News& news) { news.lost = error.what_without_backtrace(); });
    } catch (const std::exception& error) {
      publish([&](News& news) { news.lost = error.what(); });
    }
    waiting_.reset();
    part_.reset();
    lead_.reset();
    board_.reset();
    std::lock_guard lock(link_->mutex);
    link_->has_ended = true;
    link_->changed.notify_all();
  }

 private:
  template <class Change>
  void publish(Change change) {
    std::lock_guard lock(link_->mutex);
    change(link_->news);
    eventfd_write(link_->descriptor, 1);
  }

  void wait() {
    std::unique_lock lock(link_->mutex);
    link_->answered = Clock::now();
    link_->changed.wait_for(lock, round_time, [this] { return link_->is_updated; });
    link_->is_updated = false;
  }

  // Whether no other launcher uses this one's rank.
  bool is_only_one() {
    std::string own = own_name(), first = board_->claim(place_.rank, own);
    if (first == own) return true;
    // The other launcher may have ended, so that this one replaces it.
    std::string sign = board_->sign(place_.rank);
    for (auto waited = round_time; waited <= time_for_sign; waited += round_time) {
      std::this_thread::sleep_for(round_time);
      if (board_->sign(place_.rank) == sign) continue;
      std::string text = "the launcher of host " + std::to_string(place_.rank) + " is " + first +
                         " already, and this is " + own +
                         ": each host needs a different number (--process-id, REDCO_PROCESS_ID)";
      publish([&](News& news) { news.end = {2, text}; });
      return false;
    }
    board_->take_over(place_.rank, own);
    return true;
  }

  // Returns whether there is another round.
  bool round() {
    board_->set_sign(place_.rank, std::to_string(++n_rounds_));
    if (lead_) lead_->round();
    bool joins, finishes, leaves, is_abandoned;
    std::optional<RunStore::Failure> failure;
    std::optional<HostBoard::End> end;
    {
      std::lock_guard lock(link_->mutex);
      joins = link_->joins;
      finishes = link_->finishes;
      leaves = link_->leaves;
      is_abandoned = link_->is_abandoned;
      failure = std::exchange(link_->failure, std::nullopt);
      end = link_->end;
    }
    if (is_abandoned) return false;
    if (end) board_->set_end(*end);
    if (failure && part_) part_->note_failure(*failure);
    if (finishes) board_->set_done(attempt_, place_.rank);
    if (finishes && place_.size > 1) wait_for("the processes of the other hosts to end");
    if (joins) take_part();
    // Read the end first: it may follow from a failure, and both are published together.
    auto last = board_->end();
    if (last) waiting_.reset();
    auto first = part_ ? part_->failure() : std::nullopt;
    if (first || last)
      publish([&](News& news) {
        if (!link_->joins) news.failure = first;
        news.end = last;
      });
    return !leaves || !leave();
  }

  // Joins the open attempt, or starts the one that this host has joined.
  void take_part() {
    auto open = board_->attempt();
    if (!open) return;
    auto crew = board_->crew(*open);
    if (crew)
      waiting_.reset();
    else if (place_.rank != 0)  // host 0 names the hosts it waits for
      wait_for("host 0 to start the run once all hosts have joined");
    bool has_joined = joined_ == *open;
    if (!crew && !has_joined) {
      board_->join(*open, {place_.rank, n_workers_});
      joined_ = *open;
    }
    if (!crew) return;
    Attempt attempt{.number = *open, .run = crew->run};
    bool takes_part = false;
    for (const auto& [host, n_workers] : crew->members) {
      if (host == place_.rank) {
        takes_part = true;
        attempt.first_rank = attempt.size;
      }
      attempt.size += n_workers;
    }
    if (!takes_part || *open == attempt_) return;
    auto part = board_->part(*open, *crew);
    if (!has_joined) {
      part->note_failure({attempt.first_rank, "its host lost the connection and reconnected"});
      return;
    }
    part_ = std::move(part);
    attempt_ = *open;
    std::lock_guard lock(link_->mutex);
    link_->joins = false;
    link_->news.attempt = attempt;
    eventfd_write(link_->descriptor, 1);
  }

  bool leave() {
    board_->set_left(place_.rank);
    if (!lead_ || lead_->all_left()) return true;
    wait_for("the launchers of the other hosts to end");
    return false;
  }

  void wait_for(const char* what) {
    if (!waiting_) waiting_ = std::make_unique<Waiting>(what);
  }

  std::shared_ptr<Link> link_;
  const Processes place_;
  const int64_t n_workers_;
  const Restarts restarts_;
  std::optional<HostBoard> board_;
  std::optional<HostLead> lead_;
  std::unique_ptr<RunStore> part_;  // of the attempt that this host last took part in
  int64_t attempt_ = -1;
  int64_t joined_ = -1;
  int64_t n_rounds_ = 0;
  std::unique_ptr<Waiting> waiting_;
};

Hosts::Hosts(const Processes& place, int64_t n_workers, const Restarts& restarts)
    : place_(place),
      n_workers_(n_workers),
      restarts_(restarts),
      descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  require(descriptor_ >= 0, "cannot make an event: ", LastError{});
  std::unique_ptr<RunStore> store;
  if (place_.size == 1) {
    store = RunStore::open();
    place_.store_address = "127.0.0.1";
    place_.store_port = store->port();
    secret_ = store->secret();
  } else {
    secret_ = find_run_secret().text;
  }
  RunStore::require_address(place_);
  start(std::move(store), restarts_.first_meeting);
}

void Hosts::start(std::unique_ptr<RunStore> store, std::chrono::seconds limit) {
  link_ = std::make_shared<Link>(descriptor_);
  Talk talk(link_, place_, n_workers_, restarts_);
  std::thread([talk = std::move(talk), store = std::move(store), limit]() mutable {
    talk.run(std::move(store), limit);
  }).detach();
}

Hosts::~Hosts() {
  bool is_lost = !news().lost.empty();
  link_->update([](Link& link) { link.leaves = true; });
  std::unique_lock lock(link_->mutex);
  if (link_->answered && !is_lost)
    link_->changed.wait_for(lock,
                            place_.rank == 0 ? std::chrono::seconds(farewell) : short_farewell,
                            [this] { return link_->has_ended; });
  close(descriptor_);
}

Hosts::News Hosts::news() {
  eventfd_t count;
  eventfd_read(descriptor_, &count);
  std::lock_guard lock(link_->mutex);
  News news = link_->news;
  bool is_own = place_.rank == 0;
  if (!is_own && news.lost.empty() && link_->answered &&
      Clock::now() - *link_->answered > store_patience)
    news.lost = "it does not answer";
  return news;
}

void Hosts::join() {
  link_->update([](Link& link) {
    link.joins = true;
    link.finishes = false;
    link.failure.reset();
    link.news.attempt.reset();
    link.news.failure.reset();
  });
}

void Hosts::note_failure(const RunStore::Failure& failure) {
  link_->update([&](Link& link) { link.failure = failure; });
}

void Hosts::finish() {
  link_->update([](Link& link) { link.finishes = true; });
}

void Hosts::end(const HostBoard::End& end) {
  link_->update([&](Link& link) { link.end = end; });
}

void Hosts::reach_again() {
  link_->update([](Link& link) { link.is_abandoned = true; });
  start(nullptr, restarts_.next_meeting);
}

}  // namespace redco
