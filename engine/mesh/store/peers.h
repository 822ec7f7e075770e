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

namespace redco {

/// Says what a process waits in, once a message is needed: "all_reduce of Float[3] over ...".
using What = std::function<std::string()>;

/// What this process knows of the others of its run, and they of it. A thread writes a sign of life
/// into the store twice a second and reads those of the others, and whether one has failed. It
/// never waits for them: only who waits in a collective asks. It must live until `stop`, and longer
/// if the store hangs: its thread cannot be taken out of a store that does not answer.
class REDCO_API Peers {
 public:
  Peers(const Processes& processes, std::unique_ptr<RunStore> store);
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// The number of one more group. Processes make their groups in the same order.
  size_t add_group();
  /// Groups are numbered from 0 again.
  void forget_groups();
  /// The number of one more collective that the group starts: the others are told with the next
  /// sign.
  int64_t count(size_t group);
  /// Those of `among` that have not started the group's collective of this number, as far as is
  /// known.
  std::vector<int64_t> behind(size_t group, int64_t number, const std::vector<int64_t>& among);

  /// Throws Error, which begins with `what`, when a process has failed or one of `waited_for` gives
  /// no sign of life. To be called at least every `look_around` while waiting.
  void check(const What& what, const std::vector<int64_t>& waited_for);

  /// Throws Error when one of `among` has ended without the group's collective of this number.
  void check_started(const What& what, size_t group, int64_t number,
                     const std::vector<int64_t>& among);

  /// To be called while a collective takes longer than most: exchanges signs at once, which shows
  /// most divergences of the processes. What they find, `check` throws.
  void exchange_now();
  /// To be called while a collective takes seconds: has the processes compare their logs.
  void compare_logs();

  /// Calls `body`, on the thread of the signs, once a failure is known.
  void on_failure(std::function<void()> body);

  /// This process's script has ended. Ends the signs of life; waits a second at most.
  void stop();

  /// Tells the others that this process has failed, why, and what it ends with.
  void report_failure(const std::string& text, int exit_code);

  /// From now on failures that stand in `turn`, a part of the run's store, count as well. Once one
  /// is known `leave` is called, on the thread of the signs.
  void begin_turn(std::shared_ptr<RunStore> turn, std::function<void()> leave);
  /// Those count no more.
  void end_turn();

  static constexpr std::chrono::milliseconds look_around = std::chrono::milliseconds(200);
  /// How long a process may give no sign before it counts as gone.
  static constexpr std::chrono::milliseconds patience = std::chrono::seconds(5);

 private:
  struct Sign {
    std::string text;  // as read last
    int64_t generation = 0;
    SpmdLog::Mark mark;                        // of the log of what must be alike
    int64_t asked = 0;                         // the newest comparison of logs that it knows of
    int64_t n_ended = 0;                       // turns that it has ended; its script is one more
    int64_t times_read = 0;                    // with this number
    std::vector<int64_t> counts;               // collectives started, by group
    std::chrono::milliseconds unchanged = {};  // by the length of the rounds
  };

  void run();
  std::string own_sign() const;
  void exchange_signs();
  void read_signs(const std::vector<std::vector<uint8_t>>& texts);
  bool strays(const Sign& sign) const;
  void exchange_logs();
  const std::optional<RunStore::Failure>& failure() const;

  const int64_t rank_;
  const std::string where_;
  std::unique_ptr<RunStore> store_;
  std::vector<std::string> keys_;
  bool all_came_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  bool stopped_ = false;
  int64_t rounds_ = 0;
  std::chrono::milliseconds round_time_ = {};  // of the last one
  int64_t looks_since_round_ = 0;
  std::chrono::steady_clock::time_point last_look_;
  std::string lost_;  // why the store cannot be reached
  std::optional<RunStore::Failure> failure_;
  int64_t n_ended_ = 0;
  bool has_turns_ = false;
  std::shared_ptr<RunStore> turn_;  // null between turns
  std::optional<RunStore::Failure> turn_failure_;
  std::function<void()> leave_turn_;
  std::vector<int64_t> counts_;  // this process's own
  int64_t generation_ = 0;       // how often groups and logs have begun anew
  // Comparisons of logs are numbered. Each process writes its log for one that another asks for;
  // the one that asks reads them all.
  bool hurries_ = false, suspects_ = false;
  int64_t asked_ = 0, asked_here_ = 0, answered_ = 0;
  int64_t rounds_since_asked_ = 0;
  std::string stray_;  // what they found; empty: nothing
  std::vector<Sign> signs_;
  std::vector<std::function<void()>> on_failure_;
};

}  // namespace redco
