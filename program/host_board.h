#pragma once

#include <redco/detail/run_store.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace redco {

/// The messages that the launchers of a run exchange through its store.
class HostBoard {
 public:
  struct Member {
    int64_t host = 0;
    int64_t n_workers = 0;
  };
  /// The participants of an attempt, in the order of their ranks.
  struct Crew {
    std::string run;
    std::vector<Member> members;
  };
  struct End {
    int code = 0;
    std::string text;
  };

  HostBoard(std::unique_ptr<RunStore> store, int64_t n_hosts);

  int64_t n_hosts() const { return n_hosts_; }
  int64_t port() const { return store_->port(); }

  /// Registers a launcher for a host, unless the host has one. Returns the registered launcher.
  std::string claim(int64_t host, const std::string& launcher);
  /// Replaces the host's launcher.
  void take_over(int64_t host, const std::string& launcher);
  /// A heartbeat: each one must have a different text.
  void set_sign(int64_t host, const std::string& sign);
  std::string sign(int64_t host);

  /// The current attempt. Hosts may join it until it has a crew.
  void open(int64_t attempt);
  std::optional<int64_t> attempt();
  void join(int64_t attempt, const Member& member);
  /// The hosts that have joined.
  std::vector<Member> joined(int64_t attempt);
  void set_crew(int64_t attempt, const Crew& crew);
  std::optional<Crew> crew(int64_t attempt);
  /// The part of the store that the attempt's workers see.
  std::unique_ptr<RunStore> part(int64_t attempt, const Crew& crew);

  /// All of a host's workers of the attempt have finished.
  void set_done(int64_t attempt, int64_t host);
  bool is_done(int64_t attempt, int64_t host);

  /// Sets the end of the run, unless it is set.
  void set_end(const End& end);
  std::optional<End> end();
  /// The host has read the end, or no longer needs it.
  void set_left(int64_t host);
  bool has_left(int64_t host);

 private:
  void set(const std::string& key, const std::string& text);
  std::optional<std::string> find(const std::string& key);

  std::unique_ptr<RunStore> store_;
  std::unique_ptr<RunStore> hosts_;
  int64_t n_hosts_;
};

}  // namespace redco
