// What a restricted engine takes of the host: memory of tensors, time in operators and in functions
// of Lua, and nothing of its state.
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
constexpr auto out_of_steps = ScriptError::Kind::out_of_steps;

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

TEST_CASE("operators that trust their arguments are not there") {
  ScriptEngine engine({.restricted = true});
  engine.set_global("x", at::ones({2, 2}));
  for (const std::string refused : {"torch.max_pool2d_with_indices_backward",
                                    "torch.unfold_backward",
                                    "torch.embedding_bag",
                                    "torch.sparse_coo_tensor",
                                    "torch.segment_reduce",
                                    "torch.from_file",
                                    "torch.as_strided",
                                    "torch.resize_",
                                    "torch.linalg.ldl_solve",
                                    "torch._weight_norm",
                                    "torch.Tensor.resize_",
                                    "x.resize_",
                                    "x.as_strided",
                                    "x.data",
                                    "x.from_file",
                                    "x.set_",
                                    "x._shape_as_tensor",
                                    "torch.quantize_per_tensor",
                                    "torch.to_mkldnn",
                                    "x.to_sparse",
                                    "torch.pin_memory"}) {
    CAPTURE(refused);
    CHECK(failure(engine, "return " + refused) != "");
  }
  CHECK(has(failure(engine, "torch.resize_(x, { 9 })"), "torch.resize_ is not available"));
  CHECK(has(failure(engine, "torch.add(x, x, { out = x })"), "'out' is not available"));
  CHECK(has(failure(engine, "torch.ones({ 2 }, { layout = 'sparse_coo' })"), "'layout' is not"));
  for (const std::string elsewhere : {"torch.ones({ 2 }, { device = 'meta' })", "x:to 'meta'",
                                      "torch.tensor({ 1 }, { device = 'cuda' })"})
    CHECK(has(failure(engine, elsewhere), "is not available in a restricted engine"));
  CHECK(has(failure(engine, "io.open('x')"), "'io' is not available in a restricted engine"));
  engine.run_string(head + R"(
    for _, name in ipairs(torch.operators()) do
      assert(type(torch[name:match "^[^_].*" or "add"]) == "function", name)
    end
    assert(#torch.operators() > 400 and x:add(1):mul_(2):sum():item() == 16))");
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
  // What is let go counts no more.
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

TEST_CASE("new tensors show nothing of what was in memory before") {
  ScriptEngine engine({.restricted = true});
  for (int i = 0; i < 20; ++i) at::full({1000}, 7, at::kLong);
  CHECK(failure(engine,
                "for i = 1, 20 do assert(torch.empty({ 1000 }, { dtype = 'int64' }):sum()"
                ":item() == 0) end") == "");
}

TEST_CASE("operators take steps, before they begin") {
  ScriptEngine engine({.restricted = true});
  engine.set_tensor_memory_limit(512 * megabyte);
  engine.set_step_limit(10'000'000);
  engine.set_global("x", at::ones({6000, 6000}));
  engine.set_global("image", at::ones({1, 64, 512, 512}));
  for (const std::string slow :
       {"x:matmul(x)", "torch.ones({ 1 }):expand { 2^40 }:sum()", "torch.linalg.svd(x)",
        "torch.einsum('ab,bc->ac', { x, x })", "torch.cdist(x, x)", "x:digamma()",
        "torch.conv2d(image, torch.ones { 64, 64, 15, 15 }, nil, { 1, 1 }, { 7, 7 })",
        "torch.max_pool2d(image, { 63, 63 }, { 1, 1 })", "torch.linalg.inv(x)",
        "local y = image:view(1, 1, 262144, 64) torch.scaled_dot_product_attention(y, y, y)",
        "local y = torch.ones({ 1000, 1000 }):requires_grad_() y = y:matmul(y):sum() "
        "while true do y:backward { retain_graph = true } end",
        "while true do torch.ones {} end",
        "redco.vmap(function(row) return row:outer(row):matmul(row:outer(row)) end)(x)"}) {
    CAPTURE(slow);
    CHECK(has(failure(engine, slow, out_of_steps), "10000000 steps"));
    // Nor does it go on who catches that.
    CHECK(has(failure(engine, "pcall(function() " + slow + " end) pcall(print)", out_of_steps),
              "10000000 steps"));
  }
  CHECK(failure(engine, "local y = torch.ones { 100, 100 } for i = 1, 100 do y:matmul(y) end") ==
        "");
}

TEST_CASE("functions of Lua take steps, and instructions that take long") {
  ScriptEngine engine({.restricted = true});
  engine.set_memory_limit(256 * megabyte);
  engine.set_step_limit(1'000'000);
  for (const std::string slow :
       {"(('a'):rep(300)):find((('.-'):rep(6)) .. 'b')", "(('a'):rep(30000)):match('(.-)(.-)%2b')",
        "(('a'):rep(30000)):gsub(('.-'):rep(20) .. 'b', '')",
        "for _ in (('a'):rep(30000)):gmatch('(.*)%1b') do end",
        "local s = ('x'):rep(1e6) while true do s:upper() end",
        "local s = ('x'):rep(1e5) while true do s = s .. 'x' end",
        "local t = {} for i = 1, 1e5 do t[i] = i end while true do table.insert(t, 1, 0) end",
        "local t = {} for i = 1, 1e5 do t[i] = i end while true do table.remove(t, 1) end",
        "local t = {} for i = 1, 1e5 do t[i] = i end while true do table.sort(t) end",
        "local s = ('x'):rep(1e7) while true do s:find('y', 1, true) end"}) {
    CAPTURE(slow);
    CHECK(has(failure(engine, slow, out_of_steps), "1000000 steps"));
  }
}

// The same in an engine that has LuaJIT's own.
TEST_CASE("patterns are those of Lua") {
  const std::string code = R"lua(
    local out = {}
    local function note(...)
      for i = 1, select("#", ...) do out[#out + 1] = tostring((select(i, ...))) end
      out[#out + 1] = ";"
    end
    local subjects = { "", "a", "hello world", "key = value, other=  thing", "f(a(b)c)d", "aXbXc",
      "THE (quick) fox", "  trim me  ", "x\0y\0", "[[set]]-^$", "2026-11-22", ("ab"):rep(40) }
    local patterns = { "", "a", ".", ".-", ".*", "^", "$", "^a", "a$", "(%w+)%s*=%s*(%w+)", "%b()",
      "()", "(.)%1", "[^%s]+", "[a-f]", "[]]", "[^]]", "[%a-]", "%f[%w]%w+", "^%s*(.-)%s*$", "%d+",
      "(%d+)-(%d+)-(%d+)", "%z", "a?b", "(a*(.)%w(%s*))", "((a)(b))", "X", "%u%l*", "[%z\1-\127]",
      "%", "[a", "(", ")", "%1", "%f", "%b", "(()", "[%", "%g+", "ab-", "[a-", "^^a", "a^", "$a" }
    for _, s in ipairs(subjects) do
      for _, p in ipairs(patterns) do
        note(pcall(string.find, s, p) and true, select(2, pcall(string.find, s, p)) ~= nil)
        for _, f in ipairs { string.find, string.match } do
          for _, init in ipairs { 1, 3, -2, 100 } do
            local ok, a, b, c, d = pcall(f, s, p, init)
            note(ok, ok and a, ok and b, ok and c, ok and d)
          end
        end
        note(s:find(p, 1, true))
        note(pcall(function()
          local n = 0
          for a, b in s:gmatch(p) do note(a, b) n = n + 1 if n > 99 then break end end
        end) and true)
        for _, by in ipairs { "<%0>", "%1", "x", function(c) return #s > 3 and c or nil end,
          setmetatable({}, { __index = function(_, k) return k == "a" and "A" end }) } do
          local ok, r, n = pcall(string.gsub, s, p, by, 5)
          note(ok, ok and r, ok and n)
        end
      end
    end
    rawset(_G, "found", table.concat(out, "|")))lua";
  ScriptEngine restricted({.restricted = true}), free;
  restricted.run_string(code);
  free.run_string(code);
  auto found = restricted.get_global("found").as<std::string>();
  CHECK(found.size() > 100000);
  CHECK(found == free.get_global("found").as<std::string>());
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
