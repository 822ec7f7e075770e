#pragma once

#include "state/context.h"

#include <redco/script_engine.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace redco::lua {

/// Threads that run jobs, each with a separate Lua state. A Lua function is copied to all of them;
/// other values are copied while a thread is idle.
class Workers {
 public:
  using Clock = std::chrono::steady_clock;

  struct Worker {
    explicit Worker(const Context& main);
    lua_State* state() const { return engine.state(); }
    /// Returns a copy of the value in this state. The worker must be idle.
    Ref copy(const Ref& value, const std::string& what) const;

    ScriptEngine engine;
    Context& context;  // also used by other threads, for `interrupted`
    Ref function;      // in this state
    std::thread thread;
  };

  struct Job {
    const void* owner = nullptr;
    std::function<void(Worker&)> run;
    Worker* worker = nullptr;  ///< the one that must run it; null: any
    Clock::time_point begin = {};
    bool is_begun = false, is_done = false;
    std::exception_ptr error = {};
  };

  /// Errors begin with `what`, and call the function `name`. Throws Error if a part of the function
  /// cannot be copied; the error names the part.
  Workers(const Ref& function, const std::string& name, int64_t n, const std::string& what);
  /// Ends the threads once their running jobs have ended.
  ~Workers();

  const std::string& what() const { return what_; }

  void add(std::shared_ptr<Job> job);
  /// Waits up to 50 ms for any job to end. The caller holds the mutex. Throws if the script of
  /// `main` is to end.
  void wait(std::unique_lock<std::mutex>& lock, Context& main);
  /// Returns a worker without a job, or null. The caller holds the mutex.
  Worker* idle();
  /// Drops the jobs of an owner and interrupts those that run.
  void interrupt(const void* owner);
  /// Waits for the running jobs of an owner, up to a limit. Returns whether they have ended.
  bool await_end_of(const void* owner, Clock::duration limit);
  void await_end_of(const void* owner);
  /// Calls `body(worker)` for each worker while none of them runs.
  void while_idle(const std::function<void(Worker&)>& body);

  std::mutex mutex;  ///< protects the jobs

 private:
  struct Place;

  void start();
  void end();
  void run(Place& place);

  std::string name_, what_;
  std::vector<std::unique_ptr<Place>> places_;
  // Protected by the mutex:
  std::condition_variable to_workers_, from_workers_;
  std::deque<std::shared_ptr<Job>> waiting_;
  int64_t n_running_ = 0;
  bool is_paused_ = false, is_ending_ = false;
};

}  // namespace redco::lua
