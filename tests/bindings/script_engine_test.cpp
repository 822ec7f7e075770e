#include <redco/error.h>
#include <redco/script_engine.h>

#include "collected_lines.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace redco {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Runs a piece that must fail; returns the error.
ScriptError failure(ScriptEngine& engine, const std::string& code) {
  try {
    engine.run_string(code, "piece");
  } catch (const ScriptError& error) {
    return error;
  }
  FAIL("expected an error from: ", code);
  return ScriptError("", "", ScriptError::Kind::script);
}

TEST_CASE("trees go both ways, tensors are shared") {
  ScriptEngine engine;
  at::Tensor x = at::arange(6, at::kFloat).view({2, 3});
  engine.set_global("batch", Tree::Dict{{"x", x}, {"names", Tree::List{"a", 2, 0.5, true}}});
  engine.run_string(R"(
    batch.x:mul_(2)
    rawset(_G, "result", { sum = batch.x:sum(), first = batch.names[1], n = #batch.names })
    rawset(_G, "model", { forward = function(a, b) return a + b, "two" end }))");
  CHECK(x[1][2].item<float>() == 10);
  Tree result = engine.get_global("result");
  CHECK(result.at("sum").tensor().item<float>() == 30);
  CHECK(result.at("first").as<std::string>() == "a");
  CHECK(result.at("n").as<int64_t>() == 4);
  std::vector<Tree> results = engine.call("model.forward", {x, 1});
  REQUIRE(results.size() == 2);
  CHECK(results[0].tensor()[0][0].item<float>() == 1);
  CHECK(results[1].as<std::string>() == "two");
  CHECK_THROWS_WITH(engine.call("model.backward", {}), doctest::Contains("model.backward"));
  CHECK_THROWS_WITH(engine.call("nothing.at.all", {}), doctest::Contains("nothing.at.all"));
  CHECK(engine.get_global("nothing").is_none());
}

TEST_CASE("a file gets its arguments, and finds modules beside it") {
  std::string folder = (std::filesystem::temp_directory_path() / "engineXXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  std::ofstream(folder + "/main.lua")
      << "#!/usr/bin/env redco-lua\nrawset(_G, 'got', { arg[0], arg[1], select(2, ...), "
         "require('beside').value })";
  std::ofstream(folder + "/beside.lua") << "return { value = 7 }";
  std::ofstream(folder + "/broken.lua") << "local x = 1\nlocal = 2";
  ScriptEngine engine;
  engine.run_file(folder + "/main.lua", {"one", "two"});
  const auto got = engine.get_global("got").as<Tree::List>();
  REQUIRE(got.size() == 4);
  CHECK(got[0].as<std::string>() == folder + "/main.lua");
  CHECK(got[1].as<std::string>() == "one");
  CHECK(got[2].as<std::string>() == "two");
  CHECK(got[3].as<int64_t>() == 7);
  CHECK_THROWS_WITH_AS(engine.run_file(folder + "/broken.lua"), doctest::Contains("broken.lua:2:"),
                       ScriptError);
  CHECK_THROWS_AS(engine.run_file(folder + "/none.lua"), UsageError);
  std::filesystem::remove_all(folder);
}

TEST_CASE("strict globals, and how to do without") {
  ScriptEngine strict;
  CHECK(has(failure(strict, "local x = 1\nreturn undeclared").what(),
            "piece:2: undeclared global 'undeclared' is read; declare it with `local`"));
  CHECK(has(failure(strict, "undeclared = 1").what(), "'undeclared' is assigned"));
  ScriptEngine free({.strict = false});
  free.run_string("x = 1 assert(y == nil)");
  CHECK(free.get_global("x").as<int64_t>() == 1);
}

TEST_CASE("kinds of errors") {
  ScriptEngine engine;
  ScriptError script = failure(engine, "local function f() error('mine') end\nf()\n");
  CHECK(script.kind() == ScriptError::Kind::script);
  CHECK(std::string(script.what()) == "piece:1: mine");
  CHECK(has(script.traceback(), "piece:2"));
  try {
    engine.run_string("require('redco').options { n = 1 }", "piece", {"--m=2"});
    FAIL("expected an error");
  } catch (const ScriptError& error) {
    CHECK(error.kind() == ScriptError::Kind::usage);
  }
  CHECK(has(failure(engine, "error({})").what(), "table"));
  CHECK(has(
      failure(engine, "error(setmetatable({}, {__tostring = function() return 'T!' end}))").what(),
      "T!"));
}

// ---- T12: what is thrown arrives with its words, and everything on the way is unwound ----

int alive = 0;
struct Counted {
  Counted() { ++alive; }
  ~Counted() { --alive; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
};

TEST_CASE("T12: every error through every kind of call") {
  ScriptEngine engine;
  auto thrower = [&](const std::string& name, void (*raise)()) {
    engine.register_function(name, [raise](const std::vector<Tree>&) -> std::vector<Tree> {
      Counted counted;
      raise();
      return {};
    });
  };
  thrower("engine_error", [] { fail("an engine error"); });
  thrower("torch_error", [] { TORCH_CHECK(false, "a torch error"); });
  thrower("no_memory", [] { throw std::bad_alloc(); });
  thrower("fine", [] {});
  engine.run_string("rawset(_G, 'lua_error', function() error('a lua error', 0) end)");
  struct Error {
    std::string function;
    std::string text;
  };
  const Error errors[] = {{"engine_error", "an engine error"},
                          {"torch_error", "a torch error"},
                          {"no_memory", "not enough memory"},
                          {"lua_error", "a lua error"}};
  struct Way {
    std::string name;
    const char* code;  // calls f and returns the message it caught
  };
  const Way ways[] = {
      {"pcall", "return select(2, pcall(f))"},
      {"xpcall", "return select(2, xpcall(f, function(m) return 'seen: ' .. m end))"},
      {"coroutine", "return select(2, coroutine.resume(coroutine.create(f)))"},
      {"coroutine.wrap", "return select(2, pcall(coroutine.wrap(f)))"},
      {"metamethod",
       "return select(2, pcall(function() return setmetatable({}, { __index = f }).x end))"},
      {"sort", "return select(2, pcall(table.sort, { 3, 1, 2 }, f))"},
      {"gsub", "return select(2, pcall(string.gsub, 'abc', '%w', f))"},
      {"traced loop",
       "return select(2, pcall(function() for i = 1, 300 do if i == 299 then f() else fine() end "
       "end end))"},
      {"no_grad", "return select(2, pcall(torch.no_grad, f))"},
      {"vmap", "return select(2, pcall(redco.vmap(f), torch.ones { 2 }))"},
      {"grad", "return select(2, pcall(redco.grad(f), { torch.ones { 2 } }))"},
      {"recomputation",
       "local again = false\n"
       "local function once(x) if again then f() end again = true return (x * x):sum() end\n"
       "local x = torch.ones({ 2 }, { requires_grad = true })\n"
       "local loss = redco.checkpoint(once, x)\n"
       "return select(2, pcall(loss.backward, loss))"},
      {"loss_fn",
       "local trainer = redco.Trainer { deployer = redco.Deployer { seed = 0 }, loss_fn = "
       "function() return (f()) end,\n"
       "  collate_fn = function() return {} end, params = { w = torch.ones { 2 } },\n"
       "  optimizer = redco.optim.sgd { learning_rate = 0.1 } }\n"
       "return select(2, pcall(trainer.train, trainer, { examples = { 1 }, per_device_batch_size = "
       "1 }))"},
  };
  engine.run_string("rawset(_G, 'redco', require 'redco') rawset(_G, 'torch', redco.torch)");
  for (const Error& error : errors) {
    for (const Way& way : ways) {
      CAPTURE(error.function);
      CAPTURE(way.name);
      std::string code =
          "rawset(_G, 'way', function() local f = " + error.function + "\n" + way.code + " end)";
      engine.run_string(code);
      Tree message = engine.call("way", {}).at(0);
      REQUIRE(message.is<std::string>());
      CHECK(has(message.as<std::string>(), error.text));
      CHECK(alive == 0);
      // The engine is as it was.
      CHECK(engine.call("torch.is_grad_enabled", {}).at(0).as<bool>());
    }
    CAPTURE(error.function);
    CHECK(has(failure(engine, "\n" + error.function + "()").what(), error.text));
    CHECK(alive == 0);
  }
  // A value that is no text passes through Lua as it is.
  engine.run_string(
      "local ok, e = pcall(torch.no_grad, function() error({ code = 7 }) end)\n"
      "assert(not ok and type(e) == 'string' or e.code == 7)");
}

TEST_CASE("an error of a host function is told with the line that called it") {
  ScriptEngine engine;
  engine.register_function("host", [](const std::vector<Tree>& args) -> std::vector<Tree> {
    fail("host: ", args.size(), " arguments");
  });
  CHECK(std::string(failure(engine, "\nlocal x = host(1, 2)").what()) ==
        "piece:2: host: 2 arguments");
}

// ---- T11 ----

TEST_CASE("T11: whatever allocation fails, it is an error, and the engine goes on") {
  ScriptEngine engine({.strict = false});
  engine.set_memory_limit(size_t{1} << 40);
  engine.run_string("redco = require 'redco' torch = redco.torch nn = redco.nn");
  engine.register_function("host", [](const std::vector<Tree>& args) { return args; });
  struct Thing {
    double value;
    at::Tensor add(const at::Tensor& x) const { return x + value; }
  };
  engine.register_type<Thing>("Thing")
      .constructor([](double value) { return std::make_shared<Thing>(Thing{value}); })
      .method("add", &Thing::add)
      .property("value", &Thing::value);
  const char* pieces[] = {
      "local t = torch.tensor { { 1, 2 }, { 3, 4 } } return (t + 1):tolist()",
      "return tostring(torch.randn { 3, 3 })",
      "local x = torch.ones({ 3 }, { requires_grad = true }); (x * x):sum():backward() return "
      "x.grad",
      "return redco.tree.map(function(x) return x * 2 end, { a = { torch.ones(2), 3 }, b = 4 })",
      "return redco.value_and_grad(function(p) return nn.mlp(p, torch.ones { 1, 2 }):sum() end)"
      "(nn.MLP { 2, 3, 1 })",
      "return redco.vmap(function(x) return x * 2 end)(torch.ones { 3, 2 })",
      "return (select(2, pcall(torch.zeros, { 1, 'x' }))):rep(100)",
      "local s = ('x'):rep(1000) return { s, s .. s }",
      "return redco.checkpoint(function(v) return (v * v):sum() end, torch.ones({ 3 }, "
      "{ requires_grad = true })):backward()",
      "return redco.with_rng(redco.Rng(1), function() return torch.randn { 2 } end)",
      "return redco.metrics.rouge({ 'a b c' }, { 'a c' })",
      "return redco.tree.leaves { a = torch.ones(1), b = { 1, 'x' } }",
      "local x = torch.zeros { 2, 2 } x[0] = 1 return x[0][1]:item() + x:sum(-1).shape[1]",
      "local co = coroutine.wrap(function(x) coroutine.yield(x * 2) end) return co(torch.ones(2))",
      "return host({ x = torch.ones(2), y = { 1, 'two' } })",
      "local thing = Thing(3) thing.value = thing.value + 1 return thing:add(torch.ones(2))",
      "local trainer = redco.Trainer { deployer = redco.Deployer { seed = 0 },"
      "  loss_fn = function(rng, state, p, batch) return nn.cross_entropy(p.w:expand(2, 2), "
      "batch.y) end,"
      "  collate_fn = function(examples) return { y = torch.tensor(examples) } end,"
      "  params = { w = torch.zeros { 2 } }, optimizer = redco.optim.adamw { learning_rate = 0.1 } "
      "}"
      "  trainer:train { examples = { 0, 1, 1, 0 }, per_device_batch_size = 2 }"
      "  return trainer.params.w",
  };
  for (const std::string piece : pieces) {
    CAPTURE(piece);
    std::string code = "work = function() " + piece + " end";
    engine.run_string(code);
    engine.run_string("work()");  // what is made once is made
    int failures = 0;
    bool done = false;
    for (size_t extra = 0; !done; extra += failures < 100 ? 48 : 480) {
      REQUIRE(extra < (size_t{4} << 20));
      engine.run_string("collectgarbage() collectgarbage()");
      Tree kb = engine.call("collectgarbage", {"count"}).at(0);  // a whole number now and then
      double held = kb.is<double>() ? kb.as<double>() : double(kb.as<int64_t>());
      engine.set_memory_limit(size_t(held * 1024) + extra);
      try {
        engine.call("work", {});
        done = true;
      } catch (const ScriptError& error) {
        std::string message = error.what();
        CAPTURE(message);
        REQUIRE(has(message, "not enough memory"));
        ++failures;
      } catch (const std::bad_alloc&) {
        ++failures;
      }
      engine.set_memory_limit(size_t{1} << 40);
    }
    CHECK(failures > 0);
  }
}

TEST_CASE("engines on threads of their own do not meet") {
  std::vector<std::thread> threads;
  std::vector<double> sums(3);
  for (size_t i = 0; i < sums.size(); ++i) {
    threads.emplace_back([i, &sums] {
      ScriptEngine engine;
      engine.set_global("n", int64_t(i + 1));
      engine.run_string(R"(
        local torch = require "redco.torch"
        local x = torch.zeros({ 8 }, { requires_grad = true })
        for _ = 1, 200 do (x * n):sum():backward() end
        rawset(_G, "sum", x.grad:sum():item())
        assert(not pcall(function() return torch.ones { 2 } + torch.ones { 3 } end)))");
      sums[i] = double(engine.get_global("sum").as<int64_t>());
    });
  }
  for (auto& thread : threads) thread.join();
  for (size_t i = 0; i < sums.size(); ++i) CHECK(sums[i] == 8.0 * 200 * double(i + 1));
}

TEST_CASE("an interrupt ends a loop of operators, and the engine goes on") {
  ScriptEngine engine;
  std::thread impatient([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    engine.interrupt();
  });
  auto start = std::chrono::steady_clock::now();
  ScriptError error =
      failure(engine, "local t = require('redco.torch').ones { 10 } while true do t = t + 1 end");
  impatient.join();
  CHECK(error.kind() == ScriptError::Kind::interrupted);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::milliseconds(1200));
  engine.run_string("assert(1 + 1 == 2)");
}

TEST_CASE("a request to stop ends the training of one engine, at a step") {
  constexpr const char* training = R"(
    local redco = require "redco"
    local torch = redco.torch
    trainer = redco.Trainer { deployer = redco.Deployer { seed = 0 },
      loss_fn = function(rng, state, p, batch) return (p.w * batch.x):pow(2):sum() end,
      collate_fn = function(examples) return { x = torch.tensor(examples) } end,
      params = { w = torch.ones { 1 } }, optimizer = redco.optim.sgd { learning_rate = 0 } }
    trainer:fit { train_examples = { 1, 2 }, per_device_batch_size = 1, n_epochs = n_epochs })";
  ScriptEngine stopped({.strict = false}), other({.strict = false});
  CHECK_FALSE(stopped.request_stop());
  stopped.set_global("n_epochs", 1000000);
  other.set_global("n_epochs", 50);
  std::thread beside([&] {
    while (!stopped.request_stop()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  std::thread trains_too([&] { other.run_string(training); });
  ScriptError error = failure(stopped, training);
  beside.join();
  trains_too.join();
  CHECK(error.kind() == ScriptError::Kind::stopped);
  CHECK(error.signal() == SIGTERM);
  stopped.run_string("assert(trainer.step > 0 and trainer.step < 2000000)");
  other.run_string("assert(trainer.step == 100)");
}

TEST_CASE("what a run tells goes to the host's console") {
  auto console = std::make_shared<CollectedLines>();
  ScriptEngine engine({.console = console});
  engine.run_string("require('redco').Deployer { seed = 0 }:log_info('hello')");
  REQUIRE(console->lines.size() == 1);
  CHECK(has(console->lines[0], "hello"));
}

}  // namespace
}  // namespace redco
