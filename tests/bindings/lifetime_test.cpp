// Lifetimes of engines, and of the tensors and callbacks that cross their border; and errors on
// their way through both languages.
#include <redco/error.h>
#include <redco/script_engine.h>

#include "resident_memory.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace redco {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

ScriptError failure(const std::function<void()>& body) {
  try {
    body();
  } catch (const ScriptError& error) {
    return error;
  }
  FAIL("expected a ScriptError");
  return ScriptError("", "", ScriptError::Kind::script);
}

constexpr const char* small_training = R"(
  local redco = require "redco"
  local torch = redco.torch
  local trainer = redco.Trainer { deployer = redco.Deployer { seed = 0 },
    loss_fn = function(rng, state, p, batch) return (p.w * batch.x):pow(2):sum() end,
    collate_fn = function(examples) return { x = torch.tensor(examples) } end,
    params = { w = torch.ones { 25000 } }, optimizer = redco.optim.adamw { learning_rate = 0.1 } }
  trainer:train { examples = { 1, 2, 3 }, per_device_batch_size = 1 }
  local cycle = { trainer, torch.ones { 1000 } }
  cycle[3] = cycle
  rawset(_G, "kept", cycle))";

TEST_CASE("a gradient that would run a closed engine's Lua says so") {
  at::Tensor loss, x = at::ones({3}).requires_grad_();
  {
    ScriptEngine engine;
    engine.set_global("x", x);
    engine.run_string(R"(
      local redco = require "redco"
      rawset(_G, "loss", redco.checkpoint(function(v) return (v * v):sum() end, x)))");
    loss = engine.get_global("loss").tensor();
  }
  CHECK(loss.item<float>() == 3);
  CHECK_THROWS_WITH(loss.backward(), doctest::Contains("after its engine was destroyed"));
  loss.reset();  // drops what held the function
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("a gradient runs the Lua of an engine that is not the last one used") {
  at::Tensor x = at::ones({3}).requires_grad_();
  ScriptEngine one, two;
  one.set_global("x", x);
  one.run_string(R"(
    local redco = require "redco"
    rawset(_G, "loss", redco.checkpoint(function(v) return (v * v):sum() end, x)))");
  two.set_global("loss", one.get_global("loss"));
  two.run_string("loss:backward()");
  CHECK(x.grad().sum().item<float>() == 6);
}

TEST_CASE("functions of the program live as long as their engine") {
  auto held = std::make_shared<int>(7);
  {
    ScriptEngine engine;
    engine.register_function("get",
                             [held](const std::vector<Tree>&) { return std::vector<Tree>{*held}; });
    engine.run_string("local x = get() rawset(_G, 'closure', function() return get() + x end)");
    CHECK(engine.call("closure", {}).at(0).as<int64_t>() == 14);
    CHECK(held.use_count() == 2);
    engine.register_function("get", [](const std::vector<Tree>&) { return std::vector<Tree>{}; });
    engine.run_string("closure = nil collectgarbage() collectgarbage()");
    CHECK(held.use_count() == 1);
    engine.register_function("get",
                             [held](const std::vector<Tree>&) { return std::vector<Tree>{}; });
  }
  CHECK(held.use_count() == 1);
}

TEST_CASE("an error in a callback crosses both languages with its text, line and kind") {
  ScriptEngine engine({.strict = false});
  engine.run_string(R"(
    function train(f)
      local redco = require "redco"
      local trainer = redco.Trainer { deployer = redco.Deployer { seed = 0 },
        loss_fn = function(rng, state, p, batch)
          f()
          return p.w:sum()
        end,
        collate_fn = function(examples) return { x = redco.torch.tensor(examples) } end,
        params = { w = redco.torch.ones { 2 } }, optimizer = redco.optim.sgd { learning_rate = 1 } }
      trainer:train { examples = { 1 }, per_device_batch_size = 1 }
    end
    function broken() error "broken here" end
    function wrong_usage() require("redco").options { n = 1 } end)",
                    "script");
  ScriptError broken = failure([&] { engine.run_string("\ntrain(broken)", "piece"); });
  CHECK(std::string(broken.what()) == "script:13: broken here");
  CHECK(broken.kind() == ScriptError::Kind::script);
  CHECK(has(broken.traceback(), "script:6:"));   // in loss_fn
  CHECK(has(broken.traceback(), "script:13:"));  // in broken
  ScriptError usage = failure([&] { engine.run_string("train(wrong_usage)", "piece", {"--m=2"}); });
  CHECK(usage.kind() == ScriptError::Kind::usage);
  CHECK(has(usage.what(), "--m"));
  CHECK(has(usage.what(), "script:14:"));
  // Through a coroutine, which puts a place before the text.
  usage =
      failure([&] { engine.run_string("coroutine.wrap(train)(wrong_usage)", "piece", {"--m=2"}); });
  CHECK(usage.kind() == ScriptError::Kind::usage);
  // The facts about an error do not explain a later one with the same text.
  failure([&] { engine.run_string("train(broken)", "piece"); });
  ScriptError later = failure([&] { engine.run_string("error('script:13: broken here', 0)"); });
  CHECK(std::string(later.what()) == broken.what());
  CHECK_FALSE(has(later.traceback(), "script:6:"));
}

TEST_CASE("error values of every kind arrive, also those that cannot be told") {
  ScriptEngine engine({.strict = false});
  auto text = [&](const std::string& code) {
    return std::string(failure([&] { engine.run_string(code, "piece"); }).what());
  };
  CHECK(text("error(42)") == "piece:1: 42");
  CHECK(text("error()") == "an error value that is not text: nil");
  CHECK(text("error({ 1, code = 2 })") == "an error value that is not text: table {1, code = 2}");
  CHECK(text("error(setmetatable({}, { __tostring = function() return 'told' end }))") == "told");
  CHECK(text("error(setmetatable({}, { __tostring = function(e) error(e) end }))") ==
        "an error value that is not text: table {}");
  CHECK(text("error(setmetatable({}, { __tostring = function() return {} end }))") ==
        "an error value that is not text: table {}");
  CHECK(has(text("local function f() return 1 + f() end f()"), "stack overflow"));
  CHECK(has(text("error(require('redco.torch').ones { 2 })"), "1"));
  CHECK(text("local s = 'not closed") == "piece:1: unfinished string near '<eof>'");
  CHECK(has(text("\x1bLJ\2"), "attempt to load"));  // bytecode
}

TEST_CASE("a tensor of two engines is freed once, by the last") {
  at::Tensor shared = at::ones({4});
  auto one = std::make_unique<ScriptEngine>(), two = std::make_unique<ScriptEngine>();
  one->set_global("t", shared);
  two->set_global("t", one->get_global("t"));
  two->run_string("t:add_(1)");
  one->run_string("assert(t:sum():item() == 8)");
  one->run_string("rawset(_G, 'view', t:view { 2, 2 })");
  one->run_string("rawset(_G, 'y', t:detach():requires_grad_() * 2)");
  at::Tensor y = one->get_global("y").tensor();
  one.reset();
  CHECK(y.sum().item<float>() == 16);
  y.sum().backward();
  y.reset();
  two->run_string("assert(t:sum():item() == 8)");
  CHECK(shared.use_count() == 2);
  two.reset();
  CHECK(shared.use_count() == 1);
}

TEST_CASE("an engine may move from one thread to another, and be closed there") {
  auto engine = std::make_unique<ScriptEngine>();
  engine->run_string(small_training);
  std::thread([&] {
    engine->run_string(small_training);
    engine.reset();
  }).join();
}

TEST_CASE("T13: 200 engines, each with a training, leave nothing behind") {
  double before = 0;
  for (int i = 0; i < 200; ++i) {
    ScriptEngine engine;
    if (i % 2 == 0) engine.set_memory_limit(size_t{1} << 30);
    engine.run_string(small_training);
    if (i % 3 == 0) failure([&] { engine.run_string("kept[1]:train { examples = 'none' }"); });
    if (i == 39) before = resident_mb();
  }
  // One that stayed would be more than 100 MB by now: 160 of 0.7 MB.
  CHECK(resident_mb() - before < slack_mb);
}

}  // namespace
}  // namespace redco
