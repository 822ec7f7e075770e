// Waits for collectives, and reports failures of other processes in the meantime.

#include "await.h"

#include <redco/error.h>
#include <redco/group.h>

#include <c10/util/Exception.h>

#include <exception>
#include <sstream>
#include <thread>

namespace redco::mesh {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Waits until the work ends or `time` is over; returns whether it ended. Throws its failure.
bool has_ended(c10d::Work& work, milliseconds time) {
  try {
    work.wait(time);
    return true;
  } catch (const std::exception&) {
    if (!work.isCompleted()) return false;  // only a timeout
  }
  work.wait();
  return true;
}

// Polls briefly, because sleeping and waking up take longer than a small collective. Longer polling
// would take cores from the threads that send and receive.
void poll_for_end(c10d::Work& work) {
  auto until = steady_clock::now() + std::chrono::microseconds(200);
  while (!work.isCompleted() && steady_clock::now() < until) std::this_thread::yield();
}

std::string seconds(milliseconds time) {
  std::ostringstream text;
  text << double(time.count()) / 1000 << " s";
  return text.str();
}

// "process 2", "processes 0, 3"
std::string processes_text(const std::vector<int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "process " : "processes ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

thread_local steady_clock::duration time_in_collectives{};

// Adds its lifetime to the time in collectives.
struct InCollective {
  steady_clock::time_point from = steady_clock::now();
  ~InCollective() { time_in_collectives += steady_clock::now() - from; }
};

// Calls `body`, and converts errors of the backend to one that names the failed process.
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

void await(const Started& collective) {
  const GroupParts& group = *collective.group;
  Lookout lookout(collective);
  if (group.backend.runs_on_stream) {
    lookout.check_not_aborted();
    explained(lookout, [&] { return collective.work->wait(); });
    return;
  }
  InCollective in_collective;
  if (group.has_core) poll_for_end(*collective.work);
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
  // If a failure caused an abort, it is known before the abort.
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

// A backend detects a broken connection before it is known which process failed and why.
void Lookout::explain(const std::string& cause) const {
  auto until = steady_clock::now() + Peers::patience + std::chrono::seconds(2);
  while (steady_clock::now() < until) {
    check();
    std::this_thread::sleep_for(Peers::look_around);
  }
  fail(collective_.what(), " failed: ", cause);
}

}  // namespace redco::mesh

namespace redco {

double seconds_in_collectives() {
  return std::chrono::duration<double>(mesh::time_in_collectives).count();
}

}  // namespace redco
