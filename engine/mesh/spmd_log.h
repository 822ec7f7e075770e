#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace redco::mesh {

/// A hash that is the same on every machine.
class Digest {
 public:
  Digest& add(uint64_t word) {
    value_ = (value_ ^ word) * 0x9E3779B97F4A7C15;
    value_ ^= value_ >> 29;
    return *this;
  }
  Digest& add(std::string_view text);
  Digest& add(c10::IntArrayRef numbers);
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xCBF29CE484222325;
};

/// The log of actions that every process of the run must perform in the same order: the collectives
/// it starts, and everything that determines later results, such as batches, settings of the
/// optimizer and each random draw of a loss_fn. Its running digest must be equal on all processes.
/// The digests are compared without extra messages (`Backend::expect`, `Peers`); only if they
/// differ are the entries exchanged, to find the first difference. Thread-safe.
class SpmdLog {
 public:
  static SpmdLog& get();

  /// If off, as in a run of one process, nothing is logged.
  bool is_on() const {
    return is_on_.load(std::memory_order_relaxed) && !is_paused_.load(std::memory_order_relaxed);
  }
  void turn_on() { is_on_ = true; }
  /// While it is paused nothing is logged: what the process does concerns no other, or only those
  /// of its stage of a pipeline. Returns whether it was paused before.
  bool pause(bool is_paused) { return is_paused_.exchange(is_paused); }
  /// Clears the log; all processes must do so at the same point.
  void clear();

  /// Adds an action. `text` describes it in messages: `trains on 8 examples`. The `digest` must be
  /// equal on all processes; without one, the text.
  void add(std::string text) { add(std::move(text), 0); }
  void add(std::string text, uint64_t digest);

  /// Adds a collective: `digest` must be equal on all processes, `digest_in_group` on those of its
  /// group, whose first process is `group`. Returns a digest of both and of all earlier entries.
  uint64_t add_collective(std::string text, uint64_t digest, int64_t group,
                          uint64_t digest_in_group);

  /// The number of entries so far and their running digest.
  struct Mark {
    int64_t count = 0;
    uint64_t digest = 0;
  };
  Mark mark() const;
  /// The running digest after `count` entries; none if unknown.
  std::optional<uint64_t> digest_after(int64_t count) const;

  /// The newest entries, serialised for another process.
  std::string packed() const;
  /// The first entry in which the processes differ, as an error text. `logs` are packed logs by
  /// rank.
  static std::optional<std::string> first_difference(const std::vector<std::string>& logs);

 private:
  struct Entry {
    int64_t index = 0;
    uint64_t digest = 0;  // of this entry alone
    uint64_t after = 0;   // of all entries up to this one
    int64_t group = -1;   // the group's first process; -1 if not a collective
    uint64_t digest_in_group = 0;
    std::string site;
    std::string text;
  };
  static std::vector<Entry> unpacked(const std::string& packed);
  const Entry& append(Entry entry);

  std::atomic<bool> is_on_ = false;
  std::atomic<bool> is_paused_ = false;
  mutable std::mutex mutex_;
  Mark mark_;
  std::vector<Entry> newest_;  // a ring buffer
};

/// While it exists, the log is paused.
class PausedLog {
 public:
  PausedLog() : was_paused_(SpmdLog::get().pause(true)) {}
  ~PausedLog() { SpmdLog::get().pause(was_paused_); }
  PausedLog(const PausedLog&) = delete;
  PausedLog& operator=(const PausedLog&) = delete;

 private:
  bool was_paused_;
};

/// "Float[4, 8]"
void append_type(std::string& text, at::ScalarType type, c10::IntArrayRef sizes);

/// While it exists, each draw of a CounterGenerator on this thread is logged, or with false none.
class LogDraws {
 public:
  explicit LogDraws(bool logs = true);
  ~LogDraws();
  LogDraws(const LogDraws&) = delete;
  LogDraws& operator=(const LogDraws&) = delete;

 private:
  bool outer_;
};
/// Logs a draw, the `count`-th of the generator with this key.
void log_draw(uint64_t key, uint64_t count);

/// The operator that currently runs on sharded tensors on this thread; empty if there is none.
std::string_view& current_operator();

}  // namespace redco::mesh
