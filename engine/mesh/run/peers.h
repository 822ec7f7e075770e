#pragma once

#include "../spmd_log.h"

#include <redco/detail/run_store.h>
#include <redco/export.h>
#include <redco/mesh.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace redco::mesh {

/// Returns a description of the current wait, when a message needs it: "all_reduce of Float[3] over
/// ...".
using What = std::function<std::string()>;

/// The state of the other processes of the run as known to this one. A thread writes a heartbeat to
/// the store twice a second, and reads those of the others and whether one has failed. It never
/// waits for them: failures are only reported to code that waits. It must exist until `stop`, and
/// longer if the store hangs: its thread cannot be taken out of a store that does not answer.
class REDCO_API Peers {
 public:
  Peers(const Processes& processes, std::unique_ptr<RunStore> store);
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// Returns the number of a new group. Processes make their groups in the same order.
  size_t add_group();
  /// Forgets all groups; they are numbered from 0 again.
  void forget_groups();
  /// Counts a collective that the group starts and returns its number. The next heartbeat publishes
  /// it.
  int64_t count(size_t group);
  /// The processes of `among` that have not started the group's collective of this number, as far
  /// as is known.
  std::vector<int64_t> behind(size_t group, int64_t number, const std::vector<int64_t>& among);

  /// Throws Error, which begins with `what`, if a process has failed or one of `waited_for` sends
  /// no heartbeat. Must be called at least every `look_around` while waiting.
  void check(const What& what, const std::vector<int64_t>& waited_for);

  /// Throws Error if one of `among` has ended without the group's collective of this number.
  void check_started(const What& what, size_t group, int64_t number,
                     const std::vector<int64_t>& among);

  /// Throws Error if the process has ended without coming to a place where all meet. `came` looks
  /// there again: it may have come before it ended.
  void check_came(const What& what, int64_t rank, const std::function<bool()>& came);

  /// Sends and reads heartbeats at once, which shows most divergences of the processes. To be
  /// called when a collective takes longer than usual. `check` throws the result.
  void exchange_now();
  /// Makes the processes compare their logs. To be called when a collective takes seconds.
  void compare_logs();

  /// Calls `body` on the heartbeat thread once a failure is known.
  void on_failure(std::function<void()> body);

  /// Ends the heartbeats when this process's script has ended; waits at most a second. If there is
  /// a `last`, waits for the end of all scripts and calls it, unless a process failed. A process
  /// that hosts the store waits for the others, too, which still need it. Both wait for as long as
  /// another process gives signs of life.
  void stop(const std::function<void()>& last = {});

  /// Reports to the others that this process failed, with the reason and its exit code.
  void report_failure(const std::string& text, int exit_code);

  /// From now on failures recorded in `turn`, a part of the run's store, count as well. Once one is
  /// known, `leave` is called on the heartbeat thread.
  void begin_turn(std::shared_ptr<RunStore> turn, std::function<void()> leave);
  /// Failures of the turn no longer count.
  void end_turn();

  static constexpr std::chrono::milliseconds look_around = std::chrono::milliseconds(200);
  /// The time without a heartbeat after which a process counts as gone.
  static constexpr std::chrono::milliseconds patience = std::chrono::seconds(5);

 private:
  struct Sign {
    std::string text;  // the last text read
    int64_t generation = 0;
    SpmdLog::Mark mark;           // of the process's SpmdLog
    int64_t asked = 0;            // the newest comparison of logs that the process knows
    int64_t n_ended = 0;          // turns that it has ended, plus one when its script has ended
    int64_t times_read = 0;       // how often this n_ended was read again
    std::vector<int64_t> counts;  // collectives started, by group
    std::chrono::milliseconds unchanged = {};  // sum of the round times
  };

  void run();
  bool all_reach(const std::vector<std::string>& keys);
  std::string own_sign() const;
  void exchange_signs();
  void read_signs(const std::vector<std::vector<uint8_t>>& texts);
  bool strays(const Sign& sign) const;
  void exchange_logs();
  const std::optional<RunStore::Failure>& failure() const;
  bool has_ended(int64_t rank) const;
  [[noreturn]] void fail_without(int64_t rank, const What& what) const;

  const int64_t rank_;
  const std::string where_;
  const bool hosts_store_;
  std::unique_ptr<RunStore> store_;
  std::vector<std::string> keys_, keys_of_end_, keys_of_last_;
  bool all_came_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  bool stopped_ = false;
  int64_t rounds_ = 0;
  std::chrono::milliseconds round_time_ = {};  // duration of the last round
  int64_t looks_since_round_ = 0;
  std::chrono::steady_clock::time_point last_look_;
  std::string lost_;  // why the store cannot be reached
  std::optional<RunStore::Failure> failure_;
  int64_t n_ended_ = 0;
  bool has_turns_ = false;
  std::shared_ptr<RunStore> turn_;  // null between turns
  std::optional<RunStore::Failure> turn_failure_;
  std::function<void()> leave_turn_;
  std::vector<int64_t> counts_;  // of this process
  int64_t generation_ = 0;       // how often groups and logs were reset
  // Comparisons of logs are numbered. When a process asks for a comparison, every process writes
  // its log, and the process that asked reads all logs.
  bool hurries_ = false, suspects_ = false;
  int64_t asked_ = 0, asked_here_ = 0, answered_ = 0;
  int64_t rounds_since_asked_ = 0;
  std::string stray_;  // the divergence that a comparison found; empty if none
  std::vector<Sign> signs_;
  std::vector<std::function<void()>> on_failure_;
};

}  // namespace redco::mesh
