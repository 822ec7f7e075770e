#include "await.h"

#include <redco/error.h>
#include <redco/group.h>

#include <c10/util/Exception.h>

#include <exception>
#include <sstream>
#include <thread>

namespace redco {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Whether the work has ended, once it has or the time is up. Throws what it failed with.
bool has_ended(c10d::Work& work, milliseconds time) {
  try {
    work.wait(time);
    return true;
  } catch (const std::exception&) {
    if (!work.isCompleted()) return false;  // only the time was up
  }
  work.wait();
  return true;
}

// Falling asleep and waking up take longer than a small collective: for as long as one takes its
// end is looked for without. Not longer, for that keeps the cores from the threads that send and
// receive.
void look_for_end(c10d::Work& work) {
  auto until = steady_clock::now() + std::chrono::microseconds(200);
  while (!work.isCompleted() && steady_clock::now() < until) std::this_thread::yield();
}

std::string seconds(milliseconds time) {
  std::ostringstream text;
  text << static_cast<double>(time.count()) / 1000 << " s";
  return text.str();
}

// "process 2", "processes 0, 3"
std::string processes_text(const std::vector<int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "process " : "processes ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

thread_local steady_clock::duration time_in_collectives{};

// Adds the time it lives.
struct InCollective {
  steady_clock::time_point from = steady_clock::now();
  ~InCollective() { time_in_collectives += steady_clock::now() - from; }
};

// Calls `body`. What the backend throws becomes an error that says who failed.
template <class Body>
auto explained(const Lookout& lookout, const Body& body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    lookout.explain(error.what_without_backtrace());
  } catch (const std::exception& error) {
    lookout.explain(error.what());
  }
}

}  // namespace

double seconds_in_collectives() {
  return std::chrono::duration<double>(time_in_collectives).count();
}

void await(const Started& collective) {
  const GroupParts& group = *collective.group;
  Lookout lookout(collective);
  if (group.backend.runs_on_stream) {
    lookout.check_not_aborted();
    explained(lookout, [&] { return collective.work->wait(); });
    return;
  }
  InCollective in_collective;
  if (group.has_core) look_for_end(*collective.work);
  while (true) {
    if (explained(lookout, [&] { return has_ended(*collective.work, Peers::look_around); })) return;
    lookout.look();
    if (lookout.is_late()) lookout.fail_late();
  }
}

void Lookout::check() const {
  const auto& [group, what, number, work] = collective_;
  check_interrupt();
  group->peers->check(what, group->processes);
  group->peers->check_started(what, group->number, number, group->processes);
}

void Lookout::look() {
  check();
  Peers& peers = *collective_.group->peers;
  auto waited = this->waited();
  if (waited >= milliseconds(300) && waited < milliseconds(1500)) peers.exchange_now();
  if (waited >= until_suspicion_) {
    peers.compare_logs();
    until_suspicion_ *= 2;
  }
}

void Lookout::check_not_aborted() const {
  const auto& [group, what, number, work] = collective_;
  // The failure that an abort comes from is known before the abort.
  group->peers->check(what, {});
  if (group->backend.c10d->getError() != c10d::ErrorType::SUCCESS)
    explain("the connection between the devices broke");
  if (*group->backend.is_aborted) fail(what(), " was aborted after an earlier error");
}

std::vector<int64_t> Lookout::missing() const {
  const GroupParts& group = *collective_.group;
  return group.peers->behind(group.number, collective_.number, group.processes);
}

void Lookout::fail_late() const {
  auto missing = this->missing();
  fail(collective_.what(), " did not end within ", seconds(collective_.group->timeout),
       missing.empty() ? "; all processes have started it"
                       : "; " + processes_text(missing) + (missing.size() == 1 ? " has" : " have") +
                             " not started it");
}

// A backend notices first that a connection broke; who failed, and of what, is known soon after.
void Lookout::explain(const std::string& cause) const {
  auto until = steady_clock::now() + Peers::patience + std::chrono::seconds(2);
  while (steady_clock::now() < until) {
    check();
    std::this_thread::sleep_for(Peers::look_around);
  }
  fail(collective_.what(), " failed: ", cause);
}

}  // namespace redco
