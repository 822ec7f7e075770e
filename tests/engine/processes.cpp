#include "processes.h"

#include <redco/detail/run_secret.h>
#include <redco/detail/run_store.h>

#include <doctest/doctest.h>

#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace {

using std::chrono::steady_clock;

// Which call of a test case a process was started for: they are counted.
constexpr const char* call_variable = "REDCO_TEST_CALL";

std::string test_name() { return doctest::getContextOptions()->currentTest->m_name; }

// The number of this call within the running test case.
int64_t next_call() {
  static std::map<std::string, int64_t> calls;
  return calls[test_name()]++;
}

pid_t start(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> words{"/proc/self/exe", "--minimal", "--no-intro", "--no-version"};
  std::string filter;
  for (char c : test_name()) filter += c == ',' || c == '*' ? '?' : c;  // both mean something there
  words.push_back("--test-case=" + filter);
  for (char** each = environ; *each != nullptr; ++each) {
    std::string entry = *each;
    if (!variables.contains(entry.substr(0, entry.find('=')))) words.push_back(entry);
  }
  size_t n_args = 5;
  for (const auto& [name, value] : variables) words.push_back(name + "=" + value);
  std::vector<char*> args, environment;
  for (size_t i = 0; i < words.size(); ++i)
    (i < n_args ? args : environment).push_back(words[i].data());
  args.push_back(nullptr);
  environment.push_back(nullptr);
  pid_t process = 0;
  REQUIRE(posix_spawn(&process, args[0], nullptr, nullptr, args.data(), environment.data()) == 0);
  return process;
}

std::string describe(int status) {
  if (WIFSIGNALED(status)) return "died of signal " + std::to_string(WTERMSIG(status));
  return "ended with " + std::to_string(WEXITSTATUS(status));
}

// Waits for all; ends them when one fails or the time is up.
void watch(std::map<pid_t, int64_t> running, const Layout& layout) {
  auto until = steady_clock::now() + layout.time_limit;
  bool stopped = false;
  auto stop = [&](const std::string& why) {
    if (std::exchange(stopped, true)) return;
    FAIL_CHECK(why);
    for (auto [process, rank] : running) kill(process, SIGKILL);
  };
  while (!running.empty()) {
    int status = 0;
    pid_t ended = 0;
    for (auto [process, rank] : running)
      if (ended = waitpid(process, &status, WNOHANG); ended != 0) break;
    if (ended != 0) {
      int64_t rank = running.at(ended);
      running.erase(ended);
      if (status != 0 && rank != layout.victim)
        stop("process " + std::to_string(rank) + " " + describe(status));
    } else if (steady_clock::now() > until) {
      stop("the processes did not end within " + std::to_string(layout.time_limit.count()) + " s");
      until += layout.time_limit;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

}  // namespace

void in_bare_processes(const Layout& layout,
                       const std::function<void(const redco::Processes&)>& body) {
  std::string call = std::to_string(next_call());
  if (const char* mine = std::getenv(call_variable)) {
    if (call != mine) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    redco::Processes processes = redco::find_processes();
    INFO("in process ", processes.rank, " of ", processes.size);
    body(processes);
    return;
  }
  auto store = redco::RunStore::open();
  std::map<pid_t, int64_t> running;
  for (int64_t rank = 0; rank < layout.n_processes; ++rank) {
    std::string number = std::to_string(rank), size = std::to_string(layout.n_processes);
    running[start({{call_variable, call},
                   {"RANK", number},
                   {"LOCAL_RANK", number},
                   {"WORLD_SIZE", size},
                   {"LOCAL_WORLD_SIZE", size},
                   {"MASTER_ADDR", "127.0.0.1"},
                   {"MASTER_PORT", std::to_string(store->port())},
                   {redco::launcher_store_variable, "True"},
                   {redco::secret_variable, store->secret()},
                   {"OMP_NUM_THREADS", "1"}})] = rank;
  }
  watch(std::move(running), layout);
}

void in_processes(const Layout& layout, const std::function<void(redco::Mesh&)>& body) {
  in_bare_processes(layout, [&](const redco::Processes& processes) {
    auto mesh = redco::Mesh::make({.processes = processes,
                                   .n_model_shards = layout.n_model_shards,
                                   .timeout = layout.time_limit});
    body(*mesh);
  });
}
