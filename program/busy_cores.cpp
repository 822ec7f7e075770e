// Operators divide their work among threads, and each part of a step ends when the slowest thread
// does. On busy cores some thread always waits for a core, and small steps take several times as
// long as with one thread. The number of threads is not changed here: results would depend on the
// other programs, because it changes the order of sums.

#include "busy_cores.h"

#include <redco/detail/notices.h>
#include <redco/detail/thread_without_signals.h>

#include <ATen/Parallel.h>

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>

namespace redco {

namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds between_looks(5);

// Seconds that threads of this process have waited for a core.
struct Waited {
  double in_all = 0, in_others = 0;  // in threads other than the main thread
};

// The second number of Linux's schedstat is the time on a run queue in nanoseconds. Kernels without
// it count nothing.
Waited waited() {
  Waited sum;
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    std::ifstream file(task.path() / "schedstat");
    int64_t running = 0, waiting = 0;
    file >> running >> waiting;
    sum.in_all += double(waiting) / 1e9;
    if (task.path().filename() != std::to_string(getpid())) sum.in_others += double(waiting) / 1e9;
  }
  return sum;
}

void watch() {
  Waited before = waited();
  auto from = steady_clock::now();
  while (true) {
    std::this_thread::sleep_for(between_looks);
    Waited now = waited();
    double time = std::chrono::duration<double>(steady_clock::now() - from).count();
    double in_all = now.in_all - before.in_all, in_others = now.in_others - before.in_others;
    if (in_all > 0.5 * time && in_others > 0.1 * time) {
      std::ostringstream text;
      text.precision(2);
      text << "the cores are busy: the threads of this process waited " << in_all
           << " s for a core in the last " << time
           << " s. With small models OMP_NUM_THREADS=1 may be several times as fast";
      return notice(text.str());
    }
    before = now;
    from = steady_clock::now();
  }
}

}  // namespace

void watch_for_busy_cores() {
  if (at::get_num_threads() == 1) return;
  try {
    thread_without_signals(watch).detach();
  } catch (const std::system_error&) {
    // There can be no more threads.
  }
}

}  // namespace redco
