// Wrong uses of the embedding interface: each an error that says so, none a crash, and the engine
// goes on. Those of types are in host_type_test.cpp.
#include <redco/error.h>
#include <redco/script_engine.h>

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace redco {
namespace {

using Trees = std::vector<Tree>;

struct Wrong {
  const char* what;
  std::function<void(ScriptEngine&)> use;
  const char* error;
};

const Wrong wrong[] = {
    {"a function that is not there", [](ScriptEngine& e) { e.call("nothing", {}); },
     "no global 'nothing'"},
    {"what is no function", [](ScriptEngine& e) { e.call("number", {}); },
     "'number' is not a function but number 7"},
    {"a field of what has none", [](ScriptEngine& e) { e.call("number.x", {}); },
     "'number.x': 'x' is looked up in a number"},
    {"a function without a name", [](ScriptEngine& e) { e.call("", {}); }, "''"},
    {"a value of no field", [](ScriptEngine& e) { e.get_global("number.x.y"); }, "number.x.y"},
    {"a function as a value", [](ScriptEngine& e) { e.get_global("print"); }, "function"},
    {"a table that holds itself", [](ScriptEngine& e) { e.get_global("cycle"); }, ""},
    {"a result that is no tree", [](ScriptEngine& e) { e.call("returns_function", {}); },
     "function"},
    {"a global without a name", [](ScriptEngine& e) { e.set_global("", 1); },
     "is not a name of a global"},
    {"a global with a dot", [](ScriptEngine& e) { e.set_global("a.b", 1); }, "'a.b' is not a name"},
    {"a function with a dot",
     [](ScriptEngine& e) { e.register_function("a.b", [](const Trees&) { return Trees{}; }); },
     "'a.b' is not a name"},
    {"an empty function", [](ScriptEngine& e) { e.register_function("f", nullptr); },
     "'f': the function is empty"},
    {"a file that is not there", [](ScriptEngine& e) { e.run_file("/nowhere/x.lua"); },
     "cannot read the script /nowhere/x.lua"},
    {"a folder for a file", [](ScriptEngine& e) { e.run_file("/tmp"); }, "/tmp"},
    {"a program for a script", [](ScriptEngine& e) { e.run_file("/proc/self/exe"); }, ""},
    {"a script with an error", [](ScriptEngine& e) { e.run_string("x =", "piece"); }, "piece:1:"},
    {"bytecode", [](ScriptEngine& e) { e.run_string("\x1bLJ\2\2"); }, "attempt to load"},
    {"a negative limit", [](ScriptEngine& e) { e.set_instruction_limit(-1); },
     "expected 0 or more, got -1"},
    {"a report that was not asked for", [](ScriptEngine& e) { e.sharding_report(); },
     "ScriptEngineOptions::reports_sharding"},
    {"what an argument has not",
     [](ScriptEngine& e) {
       e.register_function("f",
                           [](const Trees& args) { return Trees{args.at(0).as<std::string>()}; });
       e.run_string("f(1)", "piece");
     },
     "string"},
    {"arguments that are not there",
     [](ScriptEngine& e) {
       e.register_function("f", [](const Trees& args) { return Trees{args.at(3)}; });
       e.run_string("f(1)", "piece");
     },
     "piece:1:"},
    {"an argument that is no tree",
     [](ScriptEngine& e) {
       e.register_function("f", [](const Trees&) { return Trees{}; });
       e.run_string("f(1, print)", "piece");
     },
     "f: argument 2"},
    {"an exception of no class",
     [](ScriptEngine& e) {
       e.register_function("f", [](const Trees&) -> Trees { throw 42; });
       e.run_string("f()", "piece");
     },
     "f threw an exception that is not a std::exception"},
    {"more results than Lua holds",
     [](ScriptEngine& e) {
       e.register_function("f", [](const Trees&) { return Trees(2000000); });
       e.run_string("f()");
     },
     "results of a call"},
    {"more arguments than Lua holds", [](ScriptEngine& e) { e.call("print", Trees(2000000)); },
     "arguments of a call"},
    {"an endless call of itself",
     [](ScriptEngine& e) {
       e.register_function("f", [&e](const Trees&) { return e.call("f", {}); });
       e.call("f", {});
     },
     "overflow"},
    {"an endless call of Lua and C++",
     [](ScriptEngine& e) {
       e.run_string(
           "f = function() return (require('redco').checkpoint(f)) end local ok, e = pcall(f) "
           "f = function() return (require('redco.torch').no_grad(f)) end f()");
     },
     "stack overflow"},
    {"a host that changes what runs",
     [](ScriptEngine& e) {
       e.register_function("f", [&e](const Trees&) {
         e.register_function("f", [](const Trees&) { return Trees{}; });
         e.run_string("collectgarbage() collectgarbage()");
         fail("changed");
         return Trees{};
       });
       e.run_string("f()");
     },
     "changed"},
};

TEST_CASE("each wrong use is an error that says so, and the engine goes on") {
  ScriptEngine engine({.strict = false});
  engine.run_string(R"(
    number = 7
    cycle = {}
    cycle[1] = cycle
    function returns_function() return print end)");
  for (const Wrong& each : wrong) {
    CAPTURE(std::string(each.what));
    try {
      each.use(engine);
      FAIL_CHECK("no error");
    } catch (const Error& error) {
      std::string text = error.what();
      CHECK_MESSAGE(text.find(each.error) != std::string::npos, text);
      CHECK(text != "");
    }
    engine.run_string("assert(require('redco.torch').ones({ 2 }):sum():item() == 2)");
  }
}

TEST_CASE("two threads at once: one goes on, the other is told") {
  ScriptEngine engine;
  engine.register_function("meanwhile", [&](const Trees&) {
    std::string text;
    std::thread([&] {
      try {
        engine.run_string("return 1");
      } catch (const Error& error) {
        text = error.what();
      }
    }).join();
    return Trees{text};
  });
  Tree text = engine.call("meanwhile", {}).at(0);
  CHECK(text.as<std::string>().find("used by two threads at once") != std::string::npos);
  std::thread([&] { engine.run_string("return 1"); }).join();
  engine.run_string("return 1");
}

TEST_CASE("an engine that is destroyed by a function that it calls ends first") {
  auto engine = std::make_unique<ScriptEngine>();
  engine->register_function("destroy", [&](const Trees&) {
    engine.reset();
    return Trees{};
  });
  CHECK_THROWS_WITH_AS(engine->run_string("destroy() require('redco.torch').ones { 1 }"),
                       doctest::Contains("interrupted"), ScriptError);
  CHECK(engine == nullptr);
}

TEST_CASE("a memory limit that is below what is used") {
  ScriptEngine engine;
  for (size_t limit : {0, 1, 1000, 100000}) {
    engine.set_memory_limit(limit);
    CHECK_THROWS_WITH(engine.run_string("return ('x'):rep(1000000)"),
                      doctest::Contains("not enough memory"));
    CHECK_THROWS_WITH(engine.set_global("x", at::ones({1})),
                      doctest::Contains("not enough memory"));
    engine.set_memory_limit(size_t{1} << 30);
    engine.run_string("assert(#('x'):rep(1000000) == 1000000)");
  }
}

}  // namespace
}  // namespace redco
