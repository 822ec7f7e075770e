// The worker processes of one host.

#pragma once

#include "joined_output.h"
#include "worker_output.h"

#include <poll.h>
#include <sys/types.h>
#include <csignal>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
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

/// The exit code of a shell for a process status: 128 + the signal if a signal ended it.
int exit_code(int status);
/// "ended with exit code 1", "was ended by signal 9 (Killed)"
std::string describe_end(int status);

/// The processes of one host in one attempt of a run. Their output is printed in whole lines with
/// the prefix `[rank] `, or with a shared prompt `[all] ` for lines that all write. None outlives
/// this process.
class Workers {
 public:
  struct Ended {
    int64_t rank;
    int status;
    bool was_asked;  ///< `send` had signalled it before
  };

  /// Starts this program with the words of `command` once for each of `variables`, which are added
  /// to its environment and include its RANK. `blocked`: signals that this process blocks, and
  /// workers must not. Throws Error if a process cannot be started.
  Workers(const std::vector<std::string>& command, const std::vector<Variables>& variables,
          const sigset_t& blocked, bool share_prompt);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Adds the descriptors to poll.
  void add_sources(std::vector<pollfd>& sources) const;
  /// Passes on the workers' output, and answers the worker that has the prompt.
  void pump();
  /// The latest time to call `pump` even without new output.
  std::optional<JoinedOutput::Clock::time_point> due() const;
  /// Returns the workers that have ended since the last call, and kills the processes that these
  /// started.
  std::vector<Ended> take_ended();
  bool all_ended() const;
  /// Signals all running workers and the processes that they started.
  void send(int signal);
  /// Interrupts the workers' current chunk at the prompt.
  void interrupt();

 private:
  struct Worker {
    int64_t rank = 0;
    pid_t process = 0;
    bool leads_group = true;
    std::vector<std::unique_ptr<WorkerOutput>> outputs = {};
    bool was_asked = false;
    bool has_ended = false;
  };
  void add(const WorkerProcess& started, const std::string& rank);
  bool is_asked();

  bool share_prompt_;
  int prompt_ = -1;                   // this process' end of the prompt descriptor
  std::vector<JoinedOutput> joined_;  // standard output, standard error
  std::vector<Worker> workers_;
};

}  // namespace redco
