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

/// How a process ended, as a shell's exit code: 128 + the signal for one that a signal ended.
int exit_code(int status);
/// "ended with exit code 1", "was ended by signal 9 (Killed)"
std::string describe_end(int status);

/// The processes of one host in one attempt of a run. What they write comes out in whole lines with
/// `[rank] ` before them, and where they share a prompt `[all] ` before those that all write. None
/// outlives this process.
class Workers {
 public:
  using Variables = std::map<std::string, std::string>;
  struct Ended {
    int64_t rank;
    int status;
    bool was_asked;  ///< by a signal of `send`
  };

  /// Starts `command` in one process for each of `variables`, which are added to its environment
  /// and tell its RANK. `blocked` are the signals that this process blocks and a worker does not.
  /// Where they share a prompt the first keeps this process's standard input, and is in its process
  /// group: only there may a program read from the terminal. Throws Error when one cannot be
  /// started.
  Workers(const std::vector<std::string>& command, const std::vector<Variables>& variables,
          const sigset_t& blocked, bool share_prompt);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// What to wait for.
  void add_sources(std::vector<pollfd>& sources) const;
  /// Hands on what they have written, and answers the one that has the prompt.
  void pump();
  /// When to do so at the latest, though nothing was written.
  std::optional<JoinedOutput::Clock::time_point> due() const;
  /// Looks who has ended since the last call; with one, all it has started has ended too.
  std::vector<Ended> take_ended();
  bool all_ended() const;
  /// To all that have not ended, and what they have started.
  void send(int signal);
  /// Ends what they do at the prompt, and not them.
  void interrupt();

  /// The descriptor by which the worker with the prompt asks that all its fellows have written come
  /// out: it writes a byte and reads one.
  static constexpr int prompt_descriptor = 3;

 private:
  struct Worker {
    int64_t rank = 0;
    pid_t process = 0;
    bool leads_group = true;
    std::vector<std::unique_ptr<WorkerOutput>> outputs = {};
    bool was_asked = false;
    bool has_ended = false;
  };
  void start(const std::vector<std::string>& command, const Variables& variables,
             const sigset_t& blocked);
  bool is_asked();

  bool share_prompt_;
  int prompt_ = -1;                   // our end of the prompt descriptor
  std::vector<JoinedOutput> joined_;  // of standard output and standard error
  std::vector<Worker> workers_;
};

}  // namespace redco
