// ScriptEngine::interrupt: what it ends, through whatever it must pass, and what it leaves alone.
#include <redco/error.h>
#include <redco/script_engine.h>

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace redco {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Objects of the program that are on the way of an error.
std::atomic<int> alive = 0;
struct Counted {
  Counted() { ++alive; }
  ~Counted() { --alive; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
};

// Runs a piece that must fail; returns the error.
ScriptError failure(ScriptEngine& engine, const std::string& code) {
  try {
    engine.run_string(code, "piece");
  } catch (const ScriptError& error) {
    return error;
  }
  return ScriptError("nothing failed", "", ScriptError::Kind::script);
}

// An engine with `torch`, `redco`, and two functions of the program: `started()`, after which it
// may be interrupted, and `through(f)`, which calls the global function `f` from C++.
class Host {
 public:
  Host() : engine({.strict = false}) {
    engine.register_function("started", [this](const std::vector<Tree>&) {
      started = true;
      return std::vector<Tree>{};
    });
    engine.register_function("through", [this](const std::vector<Tree>& args) {
      Counted counted;
      return engine.call(args.at(0).as<std::string>(), {});
    });
    engine.run_string(R"(
      redco = require "redco"
      torch = redco.torch
      function forever() started() local t = torch.ones { 8 } while true do t = t + 0 end end)");
  }

  // Runs `code`, interrupts it from another thread; returns how it ended.
  ScriptError interrupted(const std::string& code) {
    started = false;
    std::thread watch([this] {
      while (!started) std::this_thread::sleep_for(milliseconds(1));
      std::this_thread::sleep_for(milliseconds(20));
      asked = Clock::now();
      engine.interrupt();
    });
    ScriptError result = failure(engine, code);
    auto ended = Clock::now();
    started = true;
    watch.join();
    CHECK(ended - asked.load() < milliseconds(1000));
    CHECK(ended > asked.load());
    return result;
  }

  ScriptEngine engine;
  std::atomic<bool> started = false;
  std::atomic<Clock::time_point> asked = Clock::time_point{};
};

TEST_CASE("an interrupt from another thread ends the script, wherever it is") {
  Host host;
  const char* pieces[] = {
      "forever()",
      "coroutine.wrap(forever)()",
      "assert(coroutine.resume(coroutine.create(forever)))",
      "local x = setmetatable({}, { __index = forever }).x",
      "table.sort({ 3, 1, 2 }, forever)",
      "('abc'):gsub('%w', forever)",
      "torch.no_grad(forever)",
      "redco.vmap(function(x) forever() return x end)(torch.ones { 2 })",
      "redco.grad(function(p) forever() return p end)(torch.ones {})",
      "through('forever')",
      "function nested() through('forever') end torch.no_grad(through, 'nested')",
      R"(local trainer = redco.Trainer { deployer = redco.Deployer { seed = 0 },
           loss_fn = function(rng, state, p, batch) started() return p.w:sum() end,
           collate_fn = function(examples) return { x = torch.tensor(examples) } end,
           params = { w = torch.zeros { 2 } }, optimizer = redco.optim.sgd { learning_rate = 0 } }
         trainer:fit { train_examples = { 1, 2 }, per_device_batch_size = 1, n_epochs = 1000000 })",
      R"(local deployer = redco.Deployer { seed = 0 }
         local predictor = redco.Predictor { deployer = deployer,
           collate_fn = function(examples) return { x = torch.tensor(examples) } end,
           pred_fn = function(rng, p, batch) forever() return batch end }
         predictor:predict { examples = { 1, 2 }, per_device_batch_size = 1, params = {} })",
  };
  for (const std::string piece : pieces) {
    CAPTURE(piece);
    ScriptError error = host.interrupted(piece);
    CHECK(error.kind() == ScriptError::Kind::interrupted);
    CHECK_MESSAGE(std::string(error.what()).find("interrupted") != std::string::npos, error.what());
    CHECK(error.traceback().find("piece:") != std::string::npos);
    CHECK(alive == 0);
    // The engine works on, as it did before: gradients, and the next run is not interrupted.
    host.engine.run_string(R"(
      assert(torch.is_grad_enabled() and coroutine.running() == nil)
      local x = torch.ones({ 2 }, { requires_grad = true });
      (x * 3):sum():backward()
      assert(x.grad:sum():item() == 6))");
  }
}

TEST_CASE("a script that catches the interrupt goes on, and can pass it on") {
  Host host;
  ScriptError caught = host.interrupted(R"(
    local ok, message = pcall(forever)
    assert(not ok and message:find "interrupted")
    error "the script's own end")");
  CHECK(caught.kind() == ScriptError::Kind::script);
  CHECK(std::string(caught.what()) == "piece:4: the script's own end");
  ScriptError passed = host.interrupted(R"(
    local ok, message = xpcall(forever, function(m) return m end)
    error(message, 0))");
  CHECK(passed.kind() == ScriptError::Kind::interrupted);
}

TEST_CASE("an interrupt reaches the one engine that it was meant for") {
  Host meant;
  std::atomic<bool> stop = false;
  std::atomic<int64_t> rounds = 0;
  std::string other_failed;
  std::thread other([&] {
    try {
      Host host;
      while (!stop) {
        host.engine.run_string("local t = torch.ones { 8 } for _ = 1, 100 do t = t + 0 end");
        ++rounds;
      }
    } catch (const std::exception& error) {
      other_failed = error.what();
    }
  });
  while (rounds == 0 && other_failed.empty()) std::this_thread::sleep_for(milliseconds(1));
  for (int i = 0; i < 5; ++i)
    CHECK(meant.interrupted("forever()").kind() == ScriptError::Kind::interrupted);
  int64_t before = rounds;
  while (rounds < before + 10 && other_failed.empty()) std::this_thread::sleep_for(milliseconds(1));
  stop = true;
  other.join();
  CHECK(other_failed == "");
}

TEST_CASE("an interrupt never keeps the collector from freeing a tensor") {
  Host host;
  at::Tensor shared = at::ones({4});
  host.engine.set_global("shared", shared);
  host.engine.register_function("ask", [&](const std::vector<Tree>&) {
    std::thread([&] { host.engine.interrupt(); }).join();
    return std::vector<Tree>{};
  });
  host.engine.run_string("require('jit').off() collectgarbage() collectgarbage()");
  auto held = shared.storage().use_count();
  host.engine.run_string("kept = {} for i = 1, 1000 do kept[i] = shared:view { 4 } end");
  REQUIRE(shared.storage().use_count() == held + 1000);
  // No function is called after `ask`, except by the collector.
  ScriptError error = failure(host.engine, R"(
    kept = nil
    ask()
    for i = 1, 1000000 do last = { i } end
    passed = true
    torch.ones { 1 })");
  CHECK(error.kind() == ScriptError::Kind::interrupted);
  CHECK(host.engine.get_global("passed").is<bool>());
  host.engine.run_string("collectgarbage() collectgarbage()");
  CHECK(shared.storage().use_count() == held);
}

ScriptEngine* handled = nullptr;

TEST_CASE("a signal handler ends a loop of plain Lua, before LuaJIT compiles it") {
  Host host;
  handled = &host.engine;
  auto before = std::signal(SIGALRM, [](int) { handled->interrupt(); });
  host.engine.run_string("require('jit').off()");
  ualarm(50000, 0);
  ScriptError error = failure(host.engine, "local n = 0 while true do n = n + 1 end");
  CHECK(std::string(error.what()) == "piece:1: interrupted");
  CHECK(error.kind() == ScriptError::Kind::interrupted);
  std::signal(SIGALRM, before);
  host.engine.run_string("assert(1 + 1 == 2)");
}

}  // namespace
}  // namespace redco
