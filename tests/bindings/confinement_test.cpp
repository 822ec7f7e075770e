// The resources of the host that a restricted engine may take: memory of tensors, time in operators
// and in functions of Lua, and nothing of its state.
#include <redco/error.h>
#include <redco/script_engine.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace redco {
namespace {

constexpr size_t megabyte = size_t{1} << 20;
constexpr auto script = ScriptError::Kind::script;
constexpr auto out_of_instructions = ScriptError::Kind::out_of_instructions;

const std::string head = "local redco = require 'redco' local torch = redco.torch; ";

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// How a piece failed, or "".
std::string failure(ScriptEngine& engine, const std::string& code,
                    ScriptError::Kind kind = script) {
  try {
    engine.run_string(head + code, "piece");
  } catch (const ScriptError& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "";
}

TEST_CASE("operators do not reach other devices or files") {
  ScriptEngine engine({.restricted = true});
  engine.set_global("x", at::ones({2, 2}));
  for (const std::string elsewhere :
       {"torch.ones({ 2 }, { device = 'meta' })", "x:to 'meta'",
        "torch.tensor({ 1 }, { device = 'cuda' })", "torch.from_file('/etc/passwd')",
        "x:from_file('/etc/passwd')"})
    CHECK(has(failure(engine, elsewhere), "is not available in a restricted engine"));
  CHECK(has(failure(engine, "io.open('x')"), "'io' is not available in a restricted engine"));
}

TEST_CASE("the memory of tensors is limited, that of single operators too") {
  ScriptEngine engine({.restricted = true});
  engine.set_tensor_memory_limit(64 * megabyte);
  for (const std::string greedy :
       {"return torch.ones { 1024, 1024, 1024 }",
        "local t = {} for i = 1, 100 do t[i] = torch.zeros { 256, 1024 } end",
        "return torch.ones({ 1 }):expand { 2^33 }:contiguous()",
        "return torch.ones({ 1 }):repeat_interleave(2^33)", "return torch.empty { 2^40 }",
        "return torch.bincount(torch.tensor { 2^40 })",
        "local x = torch.ones { 20000, 1 } return x:matmul(x:t())", "return torch.arange(2^40)",
        "return redco.nn.Linear(2^20, 2^20)"}) {
    CAPTURE(greedy);
    CHECK(has(failure(engine, greedy), "not enough memory"));
    CHECK(failure(engine, "assert(torch.ones({ 1024, 1024 }):sum():item() == 2^20)") == "");
  }
  // Tensors that were dropped count no more.
  CHECK(failure(engine, "for i = 1, 200 do local t = torch.zeros { 1024, 1024 } end") == "");
  // Nor does what the program gave, nor what others make.
  engine.set_global("given", at::zeros({32, 1024, 1024}));
  CHECK(failure(engine, "assert(given:sum():item() == 0)") == "");
  CHECK(at::zeros({64, 1024, 1024}).numel() == 64 * 1024 * 1024);
  engine.set_tensor_memory_limit(0);
  CHECK(failure(engine, "return torch.zeros { 32, 1024, 1024 }") == "");
  CHECK_THROWS_AS(ScriptEngine().set_tensor_memory_limit(1), Error);
}

TEST_CASE("tensors of an engine outlive it") {
  at::Tensor kept;
  {
    ScriptEngine engine({.restricted = true});
    engine.set_tensor_memory_limit(megabyte);
    engine.run_string(head + "rawset(_G, 'kept', torch.ones { 1000 })");
    kept = engine.get_global("kept").tensor();
  }
  CHECK(kept.sum().item<double>() == 1000);
}

TEST_CASE("operators take instructions, and more if they take long") {
  ScriptEngine engine({.restricted = true});
  engine.set_tensor_memory_limit(512 * megabyte);
  engine.set_instruction_limit(1'000'000);
  engine.set_global("x", at::ones({1000, 1000}));
  engine.set_global("square", at::ones({100, 100}));
  for (const std::string slow :
       {"while true do x:matmul(x) end", "while true do torch.linalg.svd(square) end",
        "local y = torch.ones({ 100, 100 }):requires_grad_() y = y:matmul(y):sum() "
        "while true do y:backward { retain_graph = true } end",
        "while true do torch.ones {} end",
        "redco.vmap(function(row) while true do row:outer(row) end end)(square)"}) {
    CAPTURE(slow);
    CHECK(has(failure(engine, slow, out_of_instructions), "1000000 instructions"));
    // Nor does it go on who catches that.
    CHECK(
        has(failure(engine, "pcall(function() " + slow + " end) pcall(print)", out_of_instructions),
            "1000000 instructions"));
  }
  CHECK(failure(engine, "local y = torch.ones { 10, 10 } for i = 1, 100 do y:matmul(y) end") == "");
}

TEST_CASE("functions of Lua take instructions, and those that take long") {
  ScriptEngine engine({.restricted = true});
  engine.set_memory_limit(256 * megabyte);
  engine.set_instruction_limit(1'000'000);
  for (const std::string slow :
       {"local s = ('x'):rep(1e6) while true do s:upper() end",
        "local s = ('x'):rep(1e5) while true do s = s .. 'x' end",
        "local t = {} for i = 1, 1e5 do t[i] = i end while true do table.insert(t, 1, 0) end",
        "local t = {} for i = 1, 1e5 do t[i] = i end while true do table.remove(t, 1) end",
        "local t = {} for i = 1, 1e5 do t[i] = i end while true do table.sort(t) end",
        "local s = ('x'):rep(1e5) while true do s:find('y', 1, true) end"}) {
    CAPTURE(slow);
    CHECK(has(failure(engine, slow, out_of_instructions), "1000000 instructions"));
  }
}

TEST_CASE("the modes and the random numbers of the program stay its own") {
  at::manual_seed(3);
  at::Tensor expected = at::rand({4});
  at::manual_seed(3);
  ScriptEngine engine({.restricted = true}), other({.restricted = true});
  bool recorded = false;
  engine.register_function("look", [&](const std::vector<Tree>&) {
    recorded = c10::GradMode::is_enabled();
    return std::vector<Tree>{at::rand({4})};
  });
  engine.run_string(head + R"(
    torch.manual_seed(5)
    torch.rand { 7 }
    torch.dropout(torch.ones { 100 }, 0.5, true)
    torch.set_grad_enabled(false)
    rawset(_G, "seen", look())
    assert(not torch.is_grad_enabled()))");
  CHECK(c10::GradMode::is_enabled());
  CHECK(recorded);
  // The program's first numbers, though the engine drew before.
  CHECK(at::equal(engine.get_global("seen").tensor(), expected));
  // Seeds are each engine's own, and give the same.
  for (ScriptEngine* each : {&engine, &other}) each->run_string(head + "torch.manual_seed(5)");
  other.run_string(head + "rawset(_G, 'r', torch.cat { torch.rand { 3 }, torch.randperm(5) })");
  engine.run_string(head + "rawset(_G, 'r', torch.cat { torch.rand { 3 }, torch.randperm(5) })");
  CHECK(at::equal(engine.get_global("r").tensor(), other.get_global("r").tensor()));
}

}  // namespace
}  // namespace redco
