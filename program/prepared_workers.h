// Worker processes that share their launcher's start.

#pragma once

#include <sys/types.h>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace redco {

/// A process of a run and this process' ends of its pipes.
struct WorkerProcess {
  pid_t process = 0;
  int output = -1, error = -1;
  int prompt = -1;  ///< of the worker that has the prompt
};

/// The descriptor on which the worker with the prompt asks for all workers' output to be printed:
/// it writes a byte, and reads one when that is done.
constexpr int prompt_descriptor = 3;

/// Variables to add to a process' environment, by name.
using Variables = std::map<std::string, std::string>;

/// Forks a process that has the standard streams and signals of a worker, and sets `worker`.
/// Returns true in the new process. If this process has threads, the new one may only call
/// functions that are safe in a signal handler, until it starts a program. The worker with the
/// prompt keeps this process' standard input and process group, since only that group may read from
/// the terminal. Throws Error if no process can be started.
bool fork_worker(bool has_prompt, WorkerProcess& worker);

/// The processes of a run's first attempt, forked before the launcher has threads. LibTorch's start
/// takes a quarter of a second and fills 64 MB: workers that are forked after it share both.
class PreparedWorkers {
 public:
  /// Forks `n` processes, the first of them with the prompt of a shared one. In each of them the
  /// constructor returns, too, as soon as `start` has passed its environment.
  PreparedWorkers(int64_t n, bool share_prompt);
  /// Ends the processes that were not taken.
  ~PreparedWorkers();
  PreparedWorkers(const PreparedWorkers&) = delete;
  PreparedWorkers& operator=(const PreparedWorkers&) = delete;

  /// Whether this process is one of them.
  bool is_worker() const { return is_worker_; }
  bool empty() const { return waiting_.empty(); }
  /// Starts the next process with these variables.
  WorkerProcess start(const Variables& variables);

 private:
  struct Waiting {
    WorkerProcess worker;
    int environment;  // a socket that takes the variables
  };
  std::vector<Waiting> waiting_;
  bool is_worker_ = false;
};

}  // namespace redco
