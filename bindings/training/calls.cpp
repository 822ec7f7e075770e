// Calls of a Lua function with many values, for this library's Lua files.

#include "state/object.h"
#include "training_objects.h"
#include "workers.h"

#include <redco/detail/check_stop.h>
#include <redco/error.h>
#include <redco/random.h>

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

namespace redco::lua {

namespace {

// How long a call may still take after its time limit before its threads are given up.
constexpr auto patience = std::chrono::seconds(3);

// Keeps the threads of calls that never return until the process ends.
void leave(std::shared_ptr<Workers> workers) {
  static auto& mutex = *new std::mutex;
  static auto& left = *new std::vector<std::shared_ptr<Workers>>;
  std::lock_guard lock(mutex);
  left.push_back(std::move(workers));
}

// One call. Numbers that it draws depend on the seed alone.
struct Call {
  explicit Call(uint64_t given) : seed(given) {}

  uint64_t seed;
  Ref argument;  // in the worker's state
  Tree result;
  Workers::Job job;

  void run(const Ref& function, const Ref& given) {
    lua_State* L = function.state();
    WithRng with_rng(make_rng(seed));
    result = balanced(L, [&] {
      MathRandom math_random(L);
      luaL_checkstack(L, 4, "a call");
      function.push();
      given.push();
      call(L, 1, 1);
      return check_tree(L, lua_gettop(L), "what the function returned");
    });
  }
};

using CallList = std::vector<std::shared_ptr<Call>>;

class LuaCalls {
 public:
  static constexpr const char* lua_name = "Calls";

  LuaCalls(Ref function, std::string name, int64_t n, std::string what)
      : function_(std::move(function)), name_(std::move(name)), what_(std::move(what)), n_(n) {
    start();
  }
  ~LuaCalls() {
    if (!workers_) return;
    workers_->interrupt(this);
    if (!workers_->await_end_of(this, patience)) leave(std::move(workers_));
  }
  LuaCalls(const LuaCalls&) = delete;
  LuaCalls& operator=(const LuaCalls&) = delete;

  // Calls the function with each item. Returns the number of a call that does not return, if any.
  std::optional<size_t> map(const std::vector<Ref>& items, const std::vector<uint64_t>& seeds,
                            Workers::Clock::duration limit, CallList& calls) {
    if (n_ > 0) {
      start();
      return map_in_workers(items, seeds, limit, calls);
    }
    for (size_t i = 0; i < items.size(); ++i) {
      calls.push_back(std::make_shared<Call>(seeds[i]));
      calls[i]->run(function_, items[i]);
    }
    return std::nullopt;
  }

 private:
  void start() {
    if (n_ > 0 && !workers_) workers_ = std::make_shared<Workers>(function_, name_, n_, what_);
  }

  std::shared_ptr<Call> begin(Workers::Worker& worker, const Ref& item, uint64_t seed) {
    auto made = std::make_shared<Call>(seed);
    made->argument = worker.copy(item, what_ + ": the argument");
    made->job.owner = this;
    made->job.worker = &worker;
    made->job.run = [own = made.get()](Workers::Worker& here) {
      auto drop = c10::make_scope_exit([&] { own->argument = Ref(); });
      own->run(here.function, own->argument);
    };
    workers_->add({made, &made->job});
    return made;
  }

  std::optional<size_t> map_in_workers(const std::vector<Ref>& items,
                                       const std::vector<uint64_t>& seeds,
                                       Workers::Clock::duration limit, CallList& calls) {
    Context& context = lua::context(function_.state());
    auto stop = c10::make_scope_exit([&] {
      if (workers_) workers_->interrupt(this);
    });
    size_t end = items.size();  // after an error: of the calls before it
    std::unique_lock lock(workers_->mutex);
    while (true) {
      if (Workers::Worker* worker = calls.size() < end ? workers_->idle() : nullptr) {
        lock.unlock();
        calls.push_back(begin(*worker, items[calls.size()], seeds[calls.size()]));
        lock.lock();
        continue;
      }
      bool is_over = calls.size() >= end;
      for (size_t i = 0; i < std::min(calls.size(), end); ++i) {
        const Workers::Job& job = calls[i]->job;
        if (job.error) end = i;
        if (!job.is_done) is_over = false;
        if (!job.is_begun || job.is_done) continue;
        if (Workers::Clock::now() - job.begin < limit + patience) continue;
        lock.unlock();
        leave(std::move(workers_));
        return i;
      }
      if (is_over) break;
      workers_->wait(lock, context);
      check_stop();
    }
    if (end < calls.size()) std::rethrow_exception(calls[end]->job.error);
    return std::nullopt;
  }

  Ref function_;
  std::string name_, what_;
  int64_t n_;
  std::shared_ptr<Workers> workers_;  // null: no workers, or the earlier ones never returned
};

int new_calls(lua_State* L) {
  std::string what = luaL_checkstring(L, 4);
  int64_t n = check_integer(L, 3, (what + ": num_workers").c_str());
  require(n >= 0 && n <= 1024, what, ": num_workers = ", n, " is not from 0 to 1024");
  push_object(L, std::make_shared<LuaCalls>(Ref(L, 1), luaL_checkstring(L, 2), n, what));
  return 1;
}

int map(lua_State* L) {
  auto calls_of = check_object<LuaCalls>(L, 1, "Calls:map");
  std::vector<Ref> items;
  std::vector<uint64_t> seeds;
  for (int i = 1; i <= int(lua_objlen(L, 2)); ++i) {
    lua_rawgeti(L, 2, i);
    items.emplace_back(L, -1);
    lua_rawgeti(L, 3, i);
    seeds.push_back(uint64_t(check_integer(L, -1, "Calls:map: seeds")));
    lua_pop(L, 2);
  }
  auto limit = std::chrono::duration_cast<Workers::Clock::duration>(
      std::chrono::duration<double>(std::min(luaL_checknumber(L, 4), 1e9)));
  CallList calls;
  auto hung = calls_of->map(items, seeds, limit, calls);
  lua_createtable(L, int(calls.size()), 0);
  for (size_t i = 0; i < calls.size() && !hung; ++i) {
    push_tree(L, calls[i]->result);
    lua_rawseti(L, -2, int(i) + 1);
  }
  if (!hung) return 1;
  lua_pushinteger(L, lua_Integer(*hung) + 1);
  return 2;
}

int seconds(lua_State* L) {
  auto now = Workers::Clock::now().time_since_epoch();
  lua_pushnumber(L, std::chrono::duration<double>(now).count());
  return 1;
}

}  // namespace

void add_calls(lua_State* L) {
  make_object_type<LuaCalls>(
      L,
      "Calls {}\n"
      "A function that is called with many values, here or in threads.",
      {{"map", map,
        "map(self, items: list, seeds: list, seconds: number) -> list, integer\n"
        "Calls the function with each item, or a copy of it in a thread. Returns the results, "
        "trees; or the number of a call that did not return within `seconds` and three more. "
        "Random numbers in a call depend on its seed. Raises the error of the first call that "
        "fails."}});
  // new_calls(f, name, num_workers, what) and seconds(), of a clock that is never set back
  lua_pushcfunction(L, new_calls);
  lua_setfield(L, -2, "new_calls");
  lua_pushcfunction(L, seconds);
  lua_setfield(L, -2, "seconds");
}

}  // namespace redco::lua
