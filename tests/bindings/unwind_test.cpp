// T12: errors that are no text, and errors in finalizers, through every kind of call between Lua
// and C++; those with a text are in engine_test.cpp. Whatever passes, objects of C++ on its way are
// destroyed, and the stack of Lua is as high as before.
#include <redco/error.h>
#include <redco/script_engine.h>

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <lua.hpp>
#include <memory>
#include <string>
#include <vector>

namespace redco {
namespace {

using Trees = std::vector<Tree>;

int alive = 0;
struct Counted {
  Counted() { ++alive; }
  ~Counted() { --alive; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
};

struct Way {
  const char* name;
  const char* code;       // calls f and returns what pcall did
  bool keeps_the_object;  // C++ on the way makes a text of it
};
const Way ways[] = {
    {"pcall", "return pcall(f)", true},
    {"xpcall", "return xpcall(f, function(e) return e end)", true},
    {"coroutine", "return coroutine.resume(coroutine.create(f))", true},
    {"coroutine.wrap", "return pcall(coroutine.wrap(f))", true},
    {"metamethod", "return pcall(function() return setmetatable({}, { __index = f }).x end)", true},
    {"sort", "return pcall(table.sort, { 3, 1, 2 }, f)", true},
    {"gsub", "return pcall(string.gsub, 'abc', '%w', f)", true},
    {"a function of the program", "return pcall(through)", false},
    {"no_grad", "return pcall(torch.no_grad, f)", false},
    {"vmap", "return pcall(redco.vmap(f), torch.ones { 2 })", false},
    {"grad", "return pcall(redco.grad(f), { torch.ones { 2 } })", false},
    {"recomputation", R"(
      local again = false
      local loss = redco.checkpoint(function(x)
        if again then f() end
        again = true
        return (x * x):sum()
      end, torch.ones({ 2 }, { requires_grad = true }))
      return pcall(loss.backward, loss))",
     false},
    {"loss_fn", R"(
      local trainer = redco.Trainer { deployer = redco.Deployer { seed = 0 },
        loss_fn = function() return (f()) end, collate_fn = function() return {} end,
        params = { w = torch.ones { 2 } }, optimizer = redco.optim.sgd { learning_rate = 0.1 } }
      return pcall(trainer.train, trainer, { examples = { 1 }, per_device_batch_size = 1 }))",
     false},
};

class Host {
 public:
  Host() : engine({.strict = false}) {
    engine.register_function("through", [this](const Trees&) {
      Counted counted;
      return engine.call("f", {});
    });
    engine.run_string("redco = require 'redco' torch = redco.torch");
  }
  ScriptEngine engine;
};

TEST_CASE("an error object passes, or is told, and leaves nothing behind") {
  Host host;
  lua_State* L = host.engine.state();
  int height = lua_gettop(L);
  for (const Way& way : ways) {
    CAPTURE(std::string(way.name));
    host.engine.run_string(std::string("object = setmetatable({}, { __tostring = function() return "
                                       "'an object' end })\n"
                                       "f = function() error(object) end\n"
                                       "way = function() ") +
                           way.code + " end");
    host.engine.run_string(R"(
      local ok, e = way()
      got = { ok, rawequal(e, object), tostring(e) })");
    const auto got = host.engine.get_global("got").as<Tree::List>();
    CHECK_FALSE(got[0].as<bool>());
    if (way.keeps_the_object) CHECK(got[1].as<bool>());
    CHECK(got[2].as<std::string>().find("an object") != std::string::npos);
    CHECK(alive == 0);
    CHECK(lua_gettop(L) == height);
  }
}

TEST_CASE("no error leaves its traces on the stack") {
  Host host;
  lua_State* L = host.engine.state();
  int height = lua_gettop(L);
  for (const char* code : {"error('a text')", "error({})", "error()", "through()", "local = 1",
                           "torch.ones(2) + torch.ones(3)", "torch.no_grad(error)"}) {
    CAPTURE(std::string(code));
    host.engine.run_string("f = function() error('below') end");
    CHECK_THROWS_AS(host.engine.run_string(code), ScriptError);
    CHECK(lua_gettop(L) == height);
    CHECK(alive == 0);
  }
  CHECK_THROWS_AS(host.engine.call("f", {1, 2, 3}), ScriptError);
  CHECK_THROWS_AS(host.engine.get_global("print"), ScriptError);
  CHECK(lua_gettop(L) == height);
}

TEST_CASE("finalizers run what they like, and their errors are Lua's") {
  Host host;
  auto held = std::make_shared<int>(1);
  host.engine.register_function("fail", [held](const Trees&) -> Trees {
    Counted counted;
    fail("from C++");
  });
  host.engine.run_string(R"(
    told = {}
    for _, f in ipairs { fail, error, function() torch.ones(2):view { 3 } end,
                         function() told[#told + 1] = torch.ones({ 2 }):sum():item() end } do
      getmetatable(newproxy(true)).__gc = f
    end
    for i = 1, 10 do pcall(collectgarbage) end
    assert(#told == 1 and told[1] == 2))");
  CHECK(alive == 0);
  host.engine.run_string("fail = nil for i = 1, 3 do pcall(collectgarbage) end");
  CHECK(held.use_count() == 1);
}

}  // namespace
}  // namespace redco
