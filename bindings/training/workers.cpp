// Threads that run jobs, each with a separate Lua state.

#include "workers.h"

#include "state/copy_value.h"

#include <redco/detail/forced_stop.h>
#include <redco/detail/notices.h>
#include <redco/detail/thread_without_signals.h>
#include <redco/error.h>
#include <redco/stop.h>

#include <ATen/Parallel.h>

#include <pthread.h>
#include <stdio_ext.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <latch>
#include <system_error>
#include <utility>

namespace redco::lua {

// A worker and the job that it runs.
struct Workers::Place {
  explicit Place(const Context& main) : worker(main) {}
  Worker worker;
  std::shared_ptr<Job> running;
};

namespace {

// Worker threads leave signals to the main thread. The programs that they start must get signals,
// so this clears the signal mask in its scope.
struct WithSignals {
  WithSignals() {
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, &before);
  }
  ~WithSignals() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  sigset_t before;
};

// Calls the upvalue, io.popen or os.execute. io.popen flushes all files of the process, so it waits
// for each thread that holds a file's lock to read. No other thread uses the returned pipe, so
// reading the pipe takes no lock.
int run_program(lua_State* L) {
  bool is_read = lua_isnoneornil(L, 2) || std::string(luaL_checkstring(L, 2)).starts_with("r");
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  WithSignals with_signals;
  call(L, lua_gettop(L) - 1, LUA_MULTRET);
  if (is_read && lua_isuserdata(L, 1))
    __fsetlocking(*static_cast<FILE**>(lua_touserdata(L, 1)), FSETLOCKING_BYCALLER);
  return lua_gettop(L);
}

// Waits without a limit. condition_variable::wait would need the libstdc++ of GCC 12 where the
// program runs; RHEL 9 has that of GCC 11.
template <typename F>
void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, F is_true) {
  while (!changed.wait_for(lock, std::chrono::hours(1), is_true)) continue;
}

// Lets threads run programs at the same time.
void replace_runners(lua_State* L) {
  for (auto [module, name] : {std::pair("io", "popen"), std::pair("os", "execute")}) {
    lua_getglobal(L, module);
    lua_getfield(L, -1, name);
    lua_pushcclosure(L, run_program, 1);
    lua_setfield(L, -2, name);
    lua_pop(L, 1);
  }
}

}  // namespace

Workers::Worker::Worker(const Context& main)
    : engine({.strict = main.is_strict, .exits_process = main.exits_process}),
      context(lua::context(engine.state())) {
  context.is_worker = true;
  protect(state(), replace_runners);
}

Ref Workers::Worker::copy(const Ref& value, const std::string& what) const {
  lua_State* from = value.state();
  Ref copied;
  try {
    protect(state(), [&](lua_State* to) {
      balanced(from, [&] {
        value.push();
        copy_value(from, -1, to, what);
      });
      copied = Ref(to, -1);
    });
  } catch (const ScriptError& error) {
    fail(error.what());  // without the script line, which belongs to the other state
  }
  return copied;
}

namespace {

// Lets a worker find modules in the script's folder.
void copy_paths(lua_State* from, lua_State* to) {
  lua_getfield(from, LUA_GLOBALSINDEX, "package");
  lua_getfield(to, LUA_GLOBALSINDEX, "package");
  for (const char* name : {"path", "cpath"}) {
    lua_getfield(from, -1, name);
    lua_pushstring(to, lua_tostring(from, -1));
    lua_setfield(to, -2, name);
    lua_pop(from, 1);
  }
  lua_pop(from, 1);
  lua_pop(to, 1);
}

}  // namespace

Workers::Workers(const Ref& function, const std::string& name, int64_t n, const std::string& what)
    : name_(name), what_(what) {
  lua_State* L = function.state();
  for (int64_t i = 0; i < n; ++i) {
    auto place = std::make_unique<Place>(context(L));
    Worker& worker = place->worker;
    protect(worker.state(), [&](lua_State* to) { copy_paths(L, to); });
    worker.function = worker.copy(function, what_ + ": " + name_);
    places_.push_back(std::move(place));
  }
  start();
}

Workers::~Workers() { end(); }

void Workers::start() {
  // Each worker computes with one thread. LibTorch's setting applies to the calling thread and to
  // threads started later.
  int n_threads = at::get_num_threads();
  std::latch started(ptrdiff_t(places_.size()));
  try {
    for (auto& place : places_)
      place->worker.thread = thread_without_signals([this, &started, own = place.get()] {
        at::set_num_threads(1);
        started.count_down();
        run(*own);
      });
  } catch (const std::system_error& error) {
    end();
    fail(what_, ": num_workers = ", places_.size(), ": cannot start a thread: ", error.what());
  }
  started.wait();
  at::set_num_threads(n_threads);
}

void Workers::end() {
  {
    std::lock_guard lock(mutex);
    is_ending_ = true;
  }
  to_workers_.notify_all();
  for (auto& place : places_)
    if (place->worker.thread.joinable()) place->worker.thread.join();
}

void Workers::add(std::shared_ptr<Job> job) {
  std::lock_guard lock(mutex);
  waiting_.push_back(std::move(job));
  to_workers_.notify_all();
}

void Workers::wait(std::unique_lock<std::mutex>& lock, Context& main) {
  from_workers_.wait_for(lock, std::chrono::milliseconds(50));
  check_interrupt();
  if (main.interrupted) throw Interrupted();
}

Workers::Worker* Workers::idle() {
  for (auto& place : places_) {
    bool is_taken = std::ranges::any_of(
        waiting_, [&](const auto& job) { return job->worker == &place->worker; });
    if (!place->running && !is_taken) return &place->worker;
  }
  return nullptr;
}

void Workers::interrupt(const void* owner) {
  std::lock_guard lock(mutex);
  std::erase_if(waiting_, [&](const auto& job) { return job->owner == owner; });
  for (auto& place : places_)
    if (place->running && place->running->owner == owner) place->worker.context.interrupted = true;
}

bool Workers::await_end_of(const void* owner, Clock::duration limit) {
  std::unique_lock lock(mutex);
  return from_workers_.wait_for(lock, limit, [&] {
    return std::ranges::none_of(
        places_, [&](auto& place) { return place->running && place->running->owner == owner; });
  });
}

// A compiled Lua loop cannot be interrupted: if a signal is to end the script and such a loop does
// not return, the whole program ends.
void Workers::await_end_of(const void* owner) {
  constexpr auto patience = std::chrono::seconds(3);
  Waiting waiting(what_ + ": " + name_ + " to return");
  if (await_end_of(owner, patience)) return;
  if (int signal = asked_to_end(); signal != 0 && std::uncaught_exceptions() > 0)
    force_stop(signal, what_ + ": ended by signal " + std::to_string(signal) + ", because " +
                           name_ + " does not return");
  while (!await_end_of(owner, std::chrono::hours(1))) continue;
}

void Workers::while_idle(const std::function<void(Worker&)>& body) {
  std::unique_lock lock(mutex);
  is_paused_ = true;
  wait_until(from_workers_, lock, [&] { return n_running_ == 0; });
  auto resume = [&] {
    is_paused_ = false;
    to_workers_.notify_all();
  };
  try {
    for (auto& place : places_) body(place->worker);
  } catch (...) {
    resume();
    throw;
  }
  resume();
}

void Workers::run(Place& place) {
  Worker& worker = place.worker;
  std::unique_lock lock(mutex);
  while (true) {
    auto next = waiting_.end();
    wait_until(to_workers_, lock, [&] {
      next = std::ranges::find_if(
          waiting_, [&](const auto& job) { return !job->worker || job->worker == &worker; });
      return is_ending_ || (!is_paused_ && next != waiting_.end());
    });
    if (is_ending_) return;
    std::shared_ptr<Job> job = std::move(*next);
    waiting_.erase(next);
    place.running = job;
    job->begin = Clock::now();
    job->is_begun = true;
    ++n_running_;
    lock.unlock();
    std::exception_ptr error;
    try {
      protect(worker.state(), [&](lua_State*) { job->run(worker); });
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    job->error = std::move(error);
    job->is_done = true;
    place.running = nullptr;
    worker.context.interrupted = false;
    --n_running_;
    from_workers_.notify_all();
  }
}

}  // namespace redco::lua
