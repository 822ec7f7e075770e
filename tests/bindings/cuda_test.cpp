// Runs scripts for a GPU on a library that stands in for LibTorch's: torch.cuda, when the collector
// works, and on which thread backward runs.
#include <redco/error.h>
#include <redco/script_engine.h>

#include "fake_cuda.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <doctest/doctest.h>

#include <string>
#include <thread>

namespace redco {
namespace {

using testing::fake_cuda;

const std::string head = R"(
local redco = require "redco"
local torch, nn = redco.torch, redco.nn
local GB = 2 ^ 30 / 4  -- elements of float32
local function on_gpu(n) return torch.empty({ math.floor(n) }, { device = "cuda" }) end
-- How many cycles of the collector f takes: each finalizes what is garbage then.
local function cycles(f)
  local n, is_counting = 0, true
  local function arm()
    getmetatable(newproxy(true)).__gc = function()
      n = n + 1
      if is_counting then arm() end
    end
  end
  collectgarbage()
  collectgarbage "stop"
  arm()
  f()
  is_counting = false
  collectgarbage "restart"
  return n
end
)";

void run(ScriptEngine& engine, const std::string& code) { engine.run_string(head + code, "piece"); }

std::string failure(ScriptEngine& engine, const std::string& code) {
  try {
    run(engine, code);
  } catch (const ScriptError& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("torch.cuda: devices") {
  ScriptEngine engine;
  run(engine, R"(
    assert(torch.cuda.is_available() and torch.cuda.device_count() == 2)
    assert(torch.cuda.current_device() == 0 and on_gpu(1).device == "cuda:0")
    torch.cuda.set_device(1)
    assert(torch.cuda.current_device() == 1 and on_gpu(1).device == "cuda:1")
    torch.cuda.set_device "cuda:0"
    assert(torch.cuda.current_device() == 0)
    torch.cuda.synchronize()
    torch.cuda.synchronize(1))");
  CHECK(fake_cuda().n_synchronized == 2);
  CHECK(has(failure(engine, "torch.cuda.set_device(2)"),
            "there is no GPU 2; this process sees 2, counted from 0"));
  CHECK(has(failure(engine, "torch.cuda.synchronize 'cpu'"), "expected a number or \"cuda:0\""));
}

TEST_CASE("torch.cuda: memory of each GPU") {
  ScriptEngine engine;
  run(engine, R"(
    local before = torch.cuda.memory_allocated()
    local kept = on_gpu(GB)
    assert(torch.cuda.memory_allocated() == before + 2 ^ 30)
    assert(torch.cuda.memory_allocated(1) == 0 and torch.cuda.max_memory_allocated "cuda:1" < 2 ^ 30)
    kept = nil
    collectgarbage()
    assert(torch.cuda.memory_allocated() == before)
    assert(torch.cuda.max_memory_allocated() >= before + 2 ^ 30)
    torch.cuda.reset_peak_memory_stats()
    assert(torch.cuda.max_memory_allocated() == before)
    assert(torch.cuda.memory_reserved() == before and torch.cuda.max_memory_reserved() == before)
    local free, total = torch.cuda.mem_get_info()
    assert(total == 80 * 2 ^ 30 and free == total - before)
    torch.cuda.empty_cache())");
  CHECK(fake_cuda().n_emptied == 1);
}

TEST_CASE("torch.cuda.Event") {
  ScriptEngine engine;
  run(engine, R"(
    local a = torch.cuda.Event { enable_timing = true }
    local b = torch.cuda.Event { enable_timing = true }
    assert(a:query())
    a:synchronize()
    a:record()
    b:record()
    assert(b:query() and a:elapsed_time(b) == 1))");
  CHECK(has(failure(engine, "local a = torch.cuda.Event() a:record() a:elapsed_time(a)"),
            "enable_timing = true"));
  CHECK(has(failure(engine,
                    "local a = torch.cuda.Event { enable_timing = true } "
                    "a:elapsed_time(a)"),
            "first event was never recorded"));
  fake_cuda().events_are_done = false;
  CHECK(has(failure(engine,
                    "local a = torch.cuda.Event { enable_timing = true } a:record() "
                    "assert(not a:query()) a:elapsed_time(a)"),
            "call end_event:synchronize() first"));
  run(engine, R"(
    local a = torch.cuda.Event { enable_timing = true }
    a:record()
    a:synchronize()
    assert(a:elapsed_time(a) == 0))");
  CHECK(fake_cuda().events_are_done);
}

TEST_CASE("a torch.Generator draws for tensors on a GPU") {
  ScriptEngine engine;
  run(engine, R"(
    local x = on_gpu(3)
    assert(x:normal_(0, 1, { generator = torch.Generator(1) }) == x and x.device == "cuda:0")
    local y = torch.randn({ 3 }, { generator = torch.Generator(1), device = "cuda" })
    assert(y.device == "cuda:0")
    assert(torch.normal(x, 1, { generator = torch.Generator(1) }).device == "cuda:0"))");
}

TEST_CASE("convolutions are as exact as products") {
  ScriptEngine engine;
  CHECK(!at::globalContext().allowTF32CuDNN());
  run(engine, "torch.set_float32_matmul_precision 'high'");
  CHECK(at::globalContext().allowTF32CuDNN());
  run(engine, "torch.set_float32_matmul_precision 'highest'");
  CHECK(!at::globalContext().allowTF32CuDNN());
}

TEST_CASE("a restricted engine has no GPU") {
  ScriptEngine engine({.restricted = true});
  engine.run_string(R"(
    local torch = require "redco.torch"
    assert(not torch.cuda.is_available() and torch.cuda.device_count() == 0)
    assert(torch.cuda.memory_allocated() == 0))");
  for (const std::string name : {"cuda.synchronize", "cuda.set_device", "cuda.Event", "backends",
                                 "use_deterministic_algorithms", "set_float32_matmul_precision"}) {
    CAPTURE(name);
    CHECK_THROWS_WITH_AS(engine.run_string("return require('redco.torch')." + name),
                         doctest::Contains("not available in a restricted engine"), ScriptError);
  }
}

TEST_CASE("all garbage is collected for each 5 % of a GPU's memory") {
  ScriptEngine engine;
  run(engine, R"(
    -- 0.4 of 80 GB
    assert(cycles(function() for _ = 1, 100 do on_gpu(GB / 256) end end) == 0)
    -- 16 of 80 GB are due four cycles
    local n = cycles(function() for _ = 1, 160 do on_gpu(GB / 10) end end)
    assert(n == 4, n)
    assert(torch.cuda.memory_allocated() < 4 * 2 ^ 30))");
}

TEST_CASE("a GPU that is full of garbage has room") {
  ScriptEngine engine;
  run(engine, R"(
    local kept = on_gpu(79 * GB)
    collectgarbage "stop"
    on_gpu(GB / 4)
    on_gpu(GB / 5)
    assert(torch.cuda.memory_allocated() > 79.4 * 2 ^ 30)
    assert(#on_gpu(0.9 * GB) > 0 and kept))");
  CHECK(has(failure(engine, "local kept = on_gpu(79 * GB) on_gpu(2 * GB)"), "out of memory"));
}

TEST_CASE("garbage is freed before a backward pass if the GPU is more than half full") {
  ScriptEngine engine;
  run(engine, R"(
    local x = torch.empty({ 4 }, { device = "cuda", requires_grad = true })
    local function backward_with(n)
      local kept = on_gpu(n)
      collectgarbage()
      collectgarbage "stop"
      for _ = 1, 9 do on_gpu(GB / 9.5) end
      x:backward(torch.empty_like(x))
      local garbage = torch.cuda.memory_allocated() - n * 4
      x.grad = nil
      kept = nil
      collectgarbage "restart"
      return garbage
    end
    local half_full, nearly_empty = backward_with(41 * GB), backward_with(20 * GB)
    assert(half_full < 2 ^ 20, half_full)
    assert(nearly_empty > 0.1 * 2 ^ 30, nearly_empty)
    backward_with(41 * GB))");
}

TEST_CASE("backward runs on the thread of the script") {
  ScriptEngine engine({.strict = false});
  std::thread::id ran;
  run(engine, "x = torch.empty({ 4 }, { device = 'cuda', requires_grad = true })");
  engine.get_global("x").tensor().register_hook(
      [&](const at::Tensor&) { ran = std::this_thread::get_id(); });
  run(engine, "x:backward(torch.empty_like(x))");
  CHECK((ran == std::this_thread::get_id()));
  ran = {};
  run(engine, "torch.autograd.grad(x, x, { grad_outputs = { torch.empty_like(x) } })");
  CHECK((ran == std::this_thread::get_id()));
}

TEST_CASE("attention of one query row does without cuDNN, if something else is allowed") {
  ScriptEngine engine;
  auto attend = [&](int rows) {
    run(engine, "nn.attention(torch.empty({ 1, 2, " + std::to_string(rows) +
                    ", 8 }, { device = 'cuda' }), torch.empty({ 1, 2, 5, 8 }, { device = 'cuda' })"
                    ", torch.empty({ 1, 2, 5, 8 }, { device = 'cuda' }))"
                    "assert(torch.backends.cuda.cudnn_sdp_enabled())");
    return fake_cuda().attention_by_cudnn;
  };
  CHECK(attend(5));
  CHECK(!attend(1));
  run(engine, "torch.backends.cuda.enable_flash_sdp(false)");
  CHECK(!attend(1));
  run(engine, "torch.backends.cuda.enable_mem_efficient_sdp(false)");
  CHECK(attend(1));
  run(engine, "torch.backends.cuda.enable_flash_sdp(true)");
  run(engine, "torch.backends.cuda.enable_mem_efficient_sdp(true)");
}

}  // namespace
}  // namespace redco
