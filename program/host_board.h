#pragma once

#include <redco/detail/run_store.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace redco {

/// What the launchers of a run write for each other into its store.
class HostBoard {
 public:
  struct Member {
    int64_t host = 0;
    int64_t n_workers = 0;
  };
  /// Who takes part in an attempt, in the order of their ranks.
  struct Plan {
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

  /// Which launcher is the host's: that one, unless there has been another.
  std::string claim(int64_t host, const std::string& launcher);
  /// That one from now on.
  void take_over(int64_t host, const std::string& launcher);
  /// A sign of life: another text each time.
  void set_sign(int64_t host, const std::string& sign);
  std::string sign(int64_t host);

  /// The attempt that hosts may join, until it has a plan, or take part in.
  void open(int64_t attempt);
  std::optional<int64_t> attempt();
  void join(int64_t attempt, const Member& member);
  /// Those of all hosts that have joined.
  std::vector<Member> joined(int64_t attempt);
  void set_plan(int64_t attempt, const Plan& plan);
  std::optional<Plan> plan(int64_t attempt);
  /// What its workers see of the store.
  std::unique_ptr<RunStore> part(int64_t attempt, const Plan& plan);

  /// A host whose workers of the attempt did all they had to.
  void set_done(int64_t attempt, int64_t host);
  bool is_done(int64_t attempt, int64_t host);

  /// Unless it has one already.
  void set_end(const End& end);
  std::optional<End> end();
  /// A host that has read the end, or needs it no more.
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
