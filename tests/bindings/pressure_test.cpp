// T13: LuaJIT's collector does not see the memory of tensors. What scripts let go is freed in time,
// and what is done again and again takes no more.
#include <redco/error.h>
#include <redco/script_engine.h>

#include "resident_memory.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace redco {
namespace {

TEST_CASE("10,000 temporaries of 1 MB never take 64 MB") {
  ScriptEngine engine;
  double before = 0, most = 0;
  engine.register_function("look", [&](const std::vector<Tree>&) {
    most = std::max(most, resident_mb() - before);
    return std::vector<Tree>{};
  });
  engine.run_string(R"(
    local torch = require "redco.torch"
    rawset(_G, "work", function(n)
      for i = 1, n do
        local t = torch.ones { 262144 }
        if i % 10 == 0 then look() end
      end
    end))");
  engine.call("work", {100});
  before = resident_mb();
  most = 0;
  engine.call("work", {10000});
#ifndef __SANITIZE_ADDRESS__  // keeps what is freed
  CHECK(most < 64);
#endif
  CHECK(before > 0);
}

// Pieces of the surface, each done hundreds of times. Some round adds nothing, unless each leaks.
TEST_CASE("what is done again takes no more memory") {
  ScriptEngine engine({.strict = false});
  engine.run_string(R"(
    redco = require "redco"
    torch, nn = redco.torch, redco.nn
    x = torch.ones { 250, 1000 }
    model = nn.MLP { 1000, 250, 10 }
    trainer = redco.Trainer { deployer = redco.Deployer { seed = 0 },
      loss_fn = function(rng, state, p, batch) return nn.mlp(p, batch.x):pow(2):mean() end,
      collate_fn = function(examples) return { x = x } end,
      params = model, optimizer = redco.optim.adamw { learning_rate = 0.1 } })");
  const std::string pieces[] = {
      "local y = x * 2 return y:sum():item()",
      "local y = x:clone() y.grad = x:clone() y:requires_grad_(); (y * y):sum():backward()",
      "return redco.value_and_grad(function(p) return nn.mlp(p, x):sum() end)(model)",
      "return redco.vmap(function(row) return row * 2 end)(x)",
      "return redco.checkpoint(function(v) return (v * v):sum() end, x:clone():requires_grad_())"
      ":backward()",
      "pcall(torch.matmul, x:clone(), x:clone())",
      "pcall(function() local y = x:clone() error(y) end)",
      "coroutine.wrap(function(y) coroutine.yield(y) end)(x:clone())",
      "local t = { x:clone() } t[2] = t",
      "pcall(redco.Trainer, { deployer = redco.Deployer { seed = 0 }, params = { x:clone() } })",
      "trainer:train { examples = { 1, 2 }, per_device_batch_size = 1 }",
  };
  for (const std::string& piece : pieces) {
    CAPTURE(piece);
    engine.run_string("function piece() " + piece + " end");
    auto done = [&](int n) {
      engine.run_string("for i = 1, " + std::to_string(n) + " do piece() end");
      engine.run_string("collectgarbage() collectgarbage()");
      return resident_mb();
    };
    double before = done(50), least = 1e9;
    for (int round = 0; round < 3; ++round) {
      double after = done(50);
      least = std::min(least, after - before);
      before = after;
    }
#ifndef __SANITIZE_ADDRESS__
    CHECK(least < 8);  // each makes a megabyte or more
#endif
    CHECK(before > 0);
  }
}

TEST_CASE("closing an engine frees its tensors") {
  at::Tensor shared = at::ones({4});
  {
    ScriptEngine one, two;
    for (ScriptEngine* engine : {&one, &two}) {
      engine->set_global("shared", shared);
      engine->run_string(R"(
        local views = {}
        for i = 1, 100 do views[i] = shared:view { 2, 2 } end
        rawset(_G, "kept", { views, coroutine.wrap(function() return views end) }))");
    }
    CHECK(shared.storage().use_count() > 200);
  }
  CHECK(shared.storage().use_count() == 1);
}

}  // namespace
}  // namespace redco
