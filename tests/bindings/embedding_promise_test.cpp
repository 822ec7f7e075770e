// T15: what the library promises to the program that it is a part of: it prints nothing, ends no
// process, and leaves handlers of signals, the locale, files and threads as they were.
#include <redco/error.h>
#include <redco/script_engine.h>

#include "collected_lines.h"
#include "resident_memory.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <torch/csrc/jit/python/update_graph_executor_opt.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <unistd.h>

#include <array>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace redco {
namespace {

constexpr const char* training = R"(
  local redco = require "redco"
  local torch = redco.torch
  local trainer = redco.Trainer { deployer = redco.Deployer { seed = 0 },
    loss_fn = function(rng, state, p, batch) return (p.w * batch.x):pow(2):sum() end,
    collate_fn = function(examples) return { x = torch.tensor(examples) } end,
    params = { w = torch.ones { 1000 } }, optimizer = redco.optim.adamw { learning_rate = 0.1 } }
  trainer:fit { train_examples = { 1, 2, 3 }, per_device_batch_size = 1, n_epochs = 2 })";

// LibTorch warns of it each time.
constexpr const char* warning = R"(
  local torch = require "redco.torch"
  torch.add(torch.ones(3), torch.ones(3), { out = torch.ones(2) }))";

// Scripts as a program may meet them.
const char* const bad_scripts[] = {
    "error('as it should')",
    "error({})",
    "error()",
    "local = 1",
    "x = = 2",
    "return nothing.at.all",
    "undeclared = 1",
    "local function f() return f() + 1 end f()",
    "string.rep('x', -1)()",
    "setmetatable({}, { __index = function(t, k) return t[k] end }).x()",
    "coroutine.yield()",
    "coroutine.wrap(error)('in a coroutine')",
    "table.sort({ 3, 1, 2 }, function() return true end) error 'order'",
    "require 'nothing'",
    "require('redco.torch').ones({ 2 }):view { 3 }",
    "require('redco.torch').ones(-1)",
    "require('redco.torch').ones { 2 ^ 40, 2 ^ 20 }",
    "require('redco.torch').nothing()",
    "require('redco.torch').ones({ 2 }):backward()",
    "require('redco.torch').load('/nowhere')",
    "require('redco.torch').jit.load('/proc/self/exe')",
    "require('redco').models.from_pretrained('/nowhere')",
    "require('redco').Deployer { seeed = 1 }",
    "require('redco').Deployer { seed = 1, workdir = '/proc/nowhere' }",
    "require('redco').Trainer {}",
    "require('redco').grad(function(x) return x end)({ require('redco.torch').ones { 2 } })",
    "require('redco').vmap(error)(require('redco.torch').ones { 2 })",
    "require('redco').Rng('seed')",
    "require('redco').checkpoint(error, 'in what is run again')",
    "newproxy(true).x = 1",
    "os.exit(7)",
    "os.exit(true)",
    "assert(not pcall(os.exit, 7))",
    "assert(not xpcall(os.exit, debug.traceback)) while true do require('redco').Rng(1) end",
    "coroutine.wrap(os.exit)(7)",
    "debug.sethook(function() debug.sethook() error('hook') end, '', 1) for i = 1, 10 do end",
};

void run_bad_scripts(ScriptEngine& engine) {
  for (const char* script : bad_scripts) {
    CAPTURE(std::string(script));
    CHECK_THROWS_AS(engine.run_string(script, "bad"), ScriptError);
    engine.run_string("assert(1 + 1 == 2)");
  }
}

std::string switches_of_libtorch() {
  const at::Context& all = at::globalContext();
  std::ostringstream text;
  text << all.userEnabledFlashSDP() << all.userEnabledMemEfficientSDP() << all.userEnabledMathSDP()
       << all.userEnabledCuDNNSDP() << all.checkSparseTensorInvariants().value_or(false)
       << torch::jit::getGraphExecutorOptimize() << torch::jit::getProfilingMode();
  return text.str();
}

// Returns the state that belongs to the process, as a text that can be compared.
std::string state_of_process() {
  std::ostringstream text;
  for (int signal = 1; signal < 65; ++signal) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) != 0) continue;
    text << signal << " " << reinterpret_cast<void*>(action.sa_handler) << " " << action.sa_flags
         << "\n";
  }
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  for (int signal = 1; signal < 65; ++signal) text << sigismember(&mask, signal);
  text << "\n"
       << std::setlocale(LC_ALL, nullptr) << "\n"
       << std::filesystem::current_path() << "\n";
  for (char** variable = environ; *variable != nullptr; ++variable) text << *variable << "\n";
  mode_t mode = umask(0);
  umask(mode);
  text << mode << "\n" << switches_of_libtorch();
  return text.str();
}

// Returns what the process writes to its standard output and error meanwhile.
template <class Body>
std::string printed(Body body) {
  std::string path = (std::filesystem::temp_directory_path() / "printedXXXXXX").string();
  int file = mkstemp(path.data());
  REQUIRE(file >= 0);
  std::array<int, 2> saved = {dup(1), dup(2)};
  std::fflush(nullptr);
  dup2(file, 1);
  dup2(file, 2);
  body();
  std::fflush(nullptr);
  for (int i : {0, 1}) {
    dup2(saved[i], i + 1);
    close(saved[i]);
  }
  close(file);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  return text.str();
}

size_t count_entries(const char* folder) {
  size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++n;
  return n;
}

TEST_CASE("bad scripts on two threads change nothing of the process, and print nothing") {
  std::setlocale(LC_ALL, "C.UTF-8");  // not the one it starts with
  signal(SIGUSR2, [](int) {});
  { ScriptEngine engine; }
  std::string before = state_of_process();
  std::string text = printed([] {
    std::vector<std::thread> threads;
    for (bool limited : {false, true})
      threads.emplace_back([limited] {
        ScriptEngine engine;
        if (limited) engine.set_memory_limit(size_t{64} << 20);
        run_bad_scripts(engine);
        engine.run_string(training);
        engine.run_string(warning);
        run_bad_scripts(engine);
      });
    for (auto& thread : threads) thread.join();
  });
  CHECK(text == "");
  CHECK(state_of_process() == before);
}

TEST_CASE("LibTorch's warnings are the console's, each once") {
  auto console = std::make_shared<CollectedLines>();
  ScriptEngine engine({.console = console});
  for (int i = 0; i < 3; ++i) engine.run_string(warning);
  REQUIRE(console->lines.size() == 1);
  CHECK(console->lines[0].starts_with("warning: An output with one or more elements was resized"));
}

TEST_CASE("second derivatives change no switch of LibTorch, also while they are computed") {
  const std::string before = switches_of_libtorch();
  std::string meanwhile;
  ScriptEngine engine;
  engine.register_function("look", [&] { meanwhile += switches_of_libtorch(); });
  engine.run_string(R"(
    local redco = require "redco"
    local torch = redco.torch
    local function loss(x)
      look()
      return torch.scaled_dot_product_attention(x, x, x):pow(3):sum()
    end
    redco.grad(function(x) return redco.grad(loss)(x):pow(2):sum() end)(torch.ones { 1, 1, 3, 4 }))");
  CHECK(meanwhile == before);
  CHECK(switches_of_libtorch() == before);
}

TEST_CASE("os.exit ends the script, not the process") {
  ScriptEngine engine({.strict = false}), restricted({.restricted = true});
  engine.register_function("again", [&] { engine.run_string("os.exit(5)"); });
  engine.run_string("function leave(...) os.exit(...) end");
  auto code_of = [&](const std::string& script) {
    try {
      engine.run_string(script, "piece");
    } catch (const ScriptError& error) {
      CHECK(error.kind() == ScriptError::Kind::exited);
      CHECK(error.signal() == 0);
      return error.exit_code();
    }
    return -1;
  };
  CHECK(code_of("os.exit()") == 0);
  CHECK(code_of("os.exit(7)") == 7);
  CHECK(code_of("os.exit(true)") == 0);
  CHECK(code_of("os.exit(false)") == 1);
  CHECK(code_of("leave(3) error 'not reached'") == 3);
  CHECK(code_of("pcall(os.exit, 4) type(1) error 'not reached'") == 4);
  CHECK(code_of("pcall(os.exit, 4)") == 4);
  CHECK(code_of("coroutine.wrap(os.exit)(6)") == 6);
  CHECK(code_of("again()") == 5);
  CHECK_THROWS_WITH(engine.run_string("local x = 1\nos.exit(7)", "piece"), "piece:2: os.exit(7)");
  CHECK_THROWS_WITH(engine.call("leave", {8}), doctest::Contains("os.exit(8)"));
  engine.run_string("assert(pcall(type, 1))");
  CHECK_THROWS_AS(restricted.run_string("os.exit(0)"), ScriptError);
}

TEST_CASE("1000 engines are created and destroyed without growth") {
  double memory = 0;
  size_t files = 0, threads = 0;
  for (int i = 0; i < 1000; ++i) {
    ScriptEngine engine({.restricted = i % 2 == 0});
    if (i % 3 == 0) engine.set_memory_limit(size_t{64} << 20);
    if (i % 5 == 0) engine.set_instruction_limit(1000000);
    engine.register_function("host", [](const std::vector<Tree>& args) { return args; });
    engine.set_global("x", at::ones({16}));
    engine.run_string(i % 10 != 0 ? "rawset(_G, 'kept', { host(x), x * 2 })" : R"(
      local redco = require "redco"
      local loss, grads = redco.value_and_grad(function(p) return (p * x):sum() end)(x * 2)
      rawset(_G, "kept", { host(loss), coroutine.wrap(function() coroutine.yield() end) }))");
    CHECK_THROWS_AS(engine.run_string("error('bad')"), ScriptError);
    if (i == 99) {
      memory = resident_mb();
      files = count_entries("/proc/self/fd");
      threads = count_entries("/proc/self/task");
    }
  }
  CHECK(resident_mb() - memory < slack_mb);
  CHECK(count_entries("/proc/self/fd") == files);
  CHECK(count_entries("/proc/self/task") == threads);
}

TEST_CASE("engines come and go on two threads at once") {
  std::vector<std::thread> threads;
  std::array<std::string, 2> errors;
  for (size_t i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      try {
        for (int n = 0; n < 100; ++n) {
          ScriptEngine engine({.restricted = n % 2 == 0});
          engine.run_string("assert(require('redco.torch').ones({ 8 }):sum():item() == 8)");
        }
      } catch (const std::exception& error) {
        errors[i] = error.what();
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(errors[0] == "");
  CHECK(errors[1] == "");
}

}  // namespace
}  // namespace redco
