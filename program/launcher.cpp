// Starts, watches and restarts the worker processes of a run on one host.

#include "launcher.h"

#include "guardian.h"
#include "hosts.h"
#include "shared_prompt.h"
#include "terminal.h"
#include "workers.h"

#include <redco/detail/cores.h>
#include <redco/detail/last_error.h>
#include <redco/detail/notices.h>
#include <redco/detail/printable.h>
#include <redco/detail/run_secret.h>
#include <redco/error.h>

#include <poll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

namespace redco {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// After the first failure, the other workers get this time to notice it and end, then this time to
// end after SIGTERM.
constexpr milliseconds time_to_notice = milliseconds(1000);
constexpr milliseconds time_to_end = milliseconds(3000);
// The longest sleep, since not all events wake the launcher.
constexpr milliseconds longest_sleep = milliseconds(500);

template <class... Args>
void say(const Args&... args) {
  std::ostringstream text;
  (text << ... << args);
  std::fprintf(stderr, "redco-lua: %s\n", printable(text.str()).c_str());
}

// Whether a restart would not help: wrong usage, or an end that a signal asked for.
bool is_final(const Workers::Ended& worker, int code) {
  bool was_saved = WIFEXITED(worker.status) && !worker.was_asked && code > 128;
  return code == 2 || (was_saved && code <= 128 + SIGRTMAX);
}

// The launcher has three pipes and a connection or more to each worker.
void check_open_files(int64_t n_workers) {
  rlimit limit{};
  int64_t needed = 16 + 4 * n_workers;
  require(getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= rlim_t(needed),
          "this shell allows ", limit.rlim_cur, " open files a process (ulimit -n), and ",
          n_workers, " processes need at least ", needed);
}

class Launch {
 public:
  Launch(const Processes& place, int64_t n_workers, const Restarts& restarts,
         const std::vector<std::string>& command, bool share_prompt);
  int run();

 private:
  void wait_for_something();
  void on_signals();
  void ask_to_end();
  void meet(const Hosts::News& news);
  void start();
  void on_ended();
  void follow(const Hosts::News& news);
  void stop_in_time();
  void conclude(const Hosts::News& news);
  std::vector<Variables> variables() const;

  const Processes place_;
  const int64_t n_workers_;
  const Restarts restarts_;
  const std::vector<std::string>& command_;
  const bool share_prompt_;
  const Guardian guardian_;
  sigset_t signals_;
  int signal_source_ = -1;
  std::unique_ptr<Hosts> hosts_;
  std::optional<int> result_;
  int forwarded_ = 0;               // the signal that asked the run to end
  std::optional<Waiting> waiting_;  // for workers that were asked to end

  // State of the running attempt.
  Hosts::Attempt attempt_;
  std::unique_ptr<Workers> workers_;    // null between attempts
  std::vector<Workers::Ended> failed_;  // in the order in which they ended
  int next_signal_ = 0;                 // after a failure: the next signal for the others, at when_
  steady_clock::time_point when_;
};

Launch::Launch(const Processes& place, int64_t n_workers, const Restarts& restarts,
               const std::vector<std::string>& command, bool share_prompt)
    : place_(place),
      n_workers_(n_workers),
      restarts_(restarts),
      command_(command),
      share_prompt_(share_prompt) {
  check_open_files(n_workers);
  // Before any thread starts, so that none handles these signals.
  sigemptyset(&signals_);
  for (int each : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&signals_, each);
  sigprocmask(SIG_BLOCK, &signals_, nullptr);
  signal_source_ = signalfd(-1, &signals_, SFD_CLOEXEC | SFD_NONBLOCK);
  require(signal_source_ >= 0, "cannot receive signals: ", LastError{});
  hosts_ = std::make_unique<Hosts>(place_, n_workers_, restarts_);
}

int Launch::run() {
  hosts_->join();
  while (!result_) {
    wait_for_something();
    on_signals();
    auto news = hosts_->news();
    if (workers_) {
      on_ended();
      follow(news);
      stop_in_time();
    } else {
      meet(news);
    }
  }
  return *result_;
}

void Launch::wait_for_something() {
  std::vector<pollfd> sources{{signal_source_, POLLIN, 0}, {hosts_->descriptor(), POLLIN, 0}};
  if (workers_) workers_->add_sources(sources);
  auto time = longest_sleep;
  auto until = [&](steady_clock::time_point when) {
    time = std::min(time, std::chrono::ceil<milliseconds>(when - steady_clock::now()));
  };
  if (next_signal_ != 0) until(when_);
  if (auto due = workers_ ? workers_->due() : std::nullopt) until(*due);
  poll(sources.data(), sources.size(), int(std::max<int64_t>(0, time.count())));
}

void Launch::on_signals() {
  signalfd_siginfo info;
  while (read(signal_source_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGCHLD) continue;
    if (info.ssi_signo == SIGINT && share_prompt_ && workers_) {
      workers_->interrupt();
      continue;
    }
    forwarded_ = int(info.ssi_signo);
    if (workers_) ask_to_end();
    hosts_->end({128 + forwarded_, ""});
  }
}

void Launch::ask_to_end() {
  workers_->send(forwarded_);
  if (!waiting_)
    waiting_.emplace("the processes of this host, which signal " + std::to_string(forwarded_) +
                     " asked to end");
}

void Launch::meet(const Hosts::News& news) {
  if (forwarded_ != 0) {
    result_ = 128 + forwarded_;
  } else if (news.end) {
    if (!news.end->text.empty()) say(news.end->text);
    result_ = news.end->code;
  } else if (!news.lost.empty()) {
    say(news.lost);
    result_ = 1;
  } else if (news.attempt) {
    attempt_ = *news.attempt;
    start();
  }
}

void Launch::start() {
  std::ostringstream ranks;
  ranks << attempt_.first_rank << " to " << attempt_.first_rank + n_workers_ - 1 << " of "
        << attempt_.size;
  if (attempt_.number > 0)
    say("restart ", attempt_.number, " of ", restarts_.max, ", with processes ", ranks.str(),
        " on this host");
  else if (place_.size > 1)
    say("host ", place_.rank, " of ", place_.size, ", as ", place_.source, " say, runs processes ",
        ranks.str(), ", which meet at ", hosts_->address(), ":", hosts_->port());
  workers_ = std::make_unique<Workers>(command_, variables(), signals_, share_prompt_);
}

std::vector<Variables> Launch::variables() const {
  int64_t local_size = place_.local_size * n_workers_;
  auto n_cores = int64_t(std::thread::hardware_concurrency());
  Variables all = {
      {"WORLD_SIZE", std::to_string(attempt_.size)},
      {"LOCAL_WORLD_SIZE", std::to_string(local_size)},
      {"MASTER_ADDR", hosts_->address()},
      {"MASTER_PORT", std::to_string(hosts_->port())},
      {launcher_store_variable, "True"},
      {secret_variable, hosts_->secret()},
      {Guardian::variable, guardian_.value()},
      {"TORCHELASTIC_RUN_ID", attempt_.run},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(attempt_.number)},
  };
  // The workers must not use this launcher's own place.
  for (const char* name : {"REDCO_N_PROCESSES", "REDCO_PROCESS_ID", "REDCO_HOST0_ADDRESS",
                           "REDCO_HOST0_PORT", secret_file_variable})
    all[name] = "";
  if (share_prompt_) all[prompt_variable] = std::to_string(terminal_width(STDOUT_FILENO));
  if (std::getenv("OMP_NUM_THREADS") == nullptr)
    all["OMP_NUM_THREADS"] = std::to_string(std::max<int64_t>(1, n_cores / local_size));
  // With several launchers on a host, none of them knows which cores the others use.
  std::vector<std::string> cores;
  if (place_.local_size == 1) cores = divided_cores(n_workers_);
  std::vector<Variables> each(size_t(n_workers_), all);
  for (int64_t i = 0; i < n_workers_; ++i) {
    auto& variables = each[size_t(i)];
    variables["RANK"] = std::to_string(attempt_.first_rank + i);
    variables["LOCAL_RANK"] = std::to_string(place_.local_rank * n_workers_ + i);
    variables[cores_variable] = cores.empty() ? "all" : cores[size_t(i)];
  }
  return each;
}

void Launch::on_ended() {
  workers_->pump();
  for (const auto& worker : workers_->take_ended()) {
    if (worker.status == 0) continue;
    failed_.push_back(worker);
    hosts_->note_failure({worker.rank, describe_end(worker.status), exit_code(worker.status)});
  }
}

void Launch::follow(const Hosts::News& news) {
  if (news.end && news.end->code > 128 && forwarded_ == 0) {
    forwarded_ = news.end->code - 128;
    ask_to_end();
  }
  bool ends = news.failure || !news.lost.empty() || (news.end && news.end->code != 0);
  // Workers that were asked to save and end may take their time.
  bool may_wait = forwarded_ != 0 && forwarded_ != SIGINT;
  if (ends && !may_wait && next_signal_ == 0) {
    next_signal_ = SIGTERM;
    when_ = steady_clock::now() + time_to_notice;
  }
  if (!workers_->all_ended()) return;
  waiting_.reset();
  workers_->pump();
  if (forwarded_ != 0) {
    result_ = failed_.empty() ? 0 : 128 + forwarded_;
  } else if (ends) {
    conclude(news);
  } else if (failed_.empty()) {
    hosts_->finish();
    if (news.end) result_ = 0;
  }
}

void Launch::stop_in_time() {
  if (next_signal_ == 0 || steady_clock::now() < when_ || !workers_) return;
  workers_->send(next_signal_);
  workers_->send(SIGCONT);  // a stopped process ends only when continued
  next_signal_ = SIGKILL;
  when_ = steady_clock::now() + time_to_end;
}

// The store knows which worker failed first: a worker reports its own failure, or a missing worker,
// before it ends.
void Launch::conclude(const Hosts::News& news) {
  workers_.reset();  // prints their last lines
  const Workers::Ended* own = failed_.empty() ? nullptr : &failed_.front();
  bool is_elsewhere = false;
  if (news.failure) {
    auto rank = news.failure->rank;
    say("process ", rank, " of ", attempt_.size, " failed first: ", news.failure->text);
    is_elsewhere = rank < attempt_.first_rank || rank >= attempt_.first_rank + n_workers_;
    auto culprit = std::ranges::find(failed_, rank, &Workers::Ended::rank);
    if (culprit != failed_.end() && !culprit->was_asked) own = &*culprit;
  } else if (!news.lost.empty()) {
    say("the store of the run at ", hosts_->address(), ":", hosts_->port(), " is lost (", news.lost,
        "): the launcher of host 0 has ended, or its host cannot be reached");
  }
  int code = own != nullptr && !own->was_asked ? exit_code(own->status)
             : news.failure                    ? news.failure->exit_code
                                               : 1;
  if (is_elsewhere && news.end) code = news.end->code;
  if (news.end || restarts_.max == 0 || (own != nullptr && is_final(*own, code))) {
    hosts_->end({code, ""});
    result_ = code;
    return;
  }
  failed_.clear();
  next_signal_ = 0;
  if (!news.lost.empty()) hosts_->reach_again();
  hosts_->join();
}

// Restores the terminal: a worker that edits lines may be killed.
class TerminalState {
 public:
  TerminalState() : is_terminal_(tcgetattr(STDIN_FILENO, &state_) == 0) {}
  ~TerminalState() {
    if (is_terminal_) tcsetattr(STDIN_FILENO, TCSADRAIN, &state_);
  }

 private:
  termios state_;
  bool is_terminal_;
};

}  // namespace

int launch(const Processes& place, int64_t n_workers, const Restarts& restarts,
           const std::vector<std::string>& command, bool share_prompt) {
  std::optional<TerminalState> kept;
  if (share_prompt) {
    // Ctrl-Z would stop some of the processes, and the others would report these as failed.
    std::signal(SIGTSTP, SIG_IGN);
    kept.emplace();
  }
  return Launch(place, n_workers, restarts, command, share_prompt).run();
}

}  // namespace redco
