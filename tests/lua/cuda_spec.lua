-- torch.cuda on a machine without a GPU, and the switches of LibTorch. tests/bindings/cuda_test.cpp
-- has the same functions with GPUs.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error

test("torch.cuda without a GPU: PyTorch's answers, or an error that says so", function()
  if torch.cuda.is_available() then
    print("there is a GPU, so not tried: the answers without one")
    return
  end
  expect_equal(torch.cuda.device_count(), 0)
  for _, name in ipairs { "memory_allocated", "max_memory_allocated", "memory_reserved",
    "max_memory_reserved" } do
    expect_equal(torch.cuda[name](), 0)
    expect_equal(torch.cuda[name](0), 0)
  end
  torch.cuda.reset_peak_memory_stats()
  torch.cuda.empty_cache()
  for _, name in ipairs { "synchronize", "current_device", "get_device_name", "mem_get_info" } do
    expect_error(torch.cuda[name], 'device "cuda": ')
  end
  expect_error(function() torch.cuda.set_device(0) end, 'device "cuda": ')
  local event = torch.cuda.Event { enable_timing = true }
  assert(event:query())
  event:synchronize()
  expect_error(function() event.query {} end, "expected an Event, got table {}; methods are called")
  expect_error(function() event:record() end, 'device "cuda": ')
  expect_error(function() torch.cuda.Event { timing = true } end, "no argument 'timing'",
    "enable_timing")
  expect_equal(torch.ones(3):is_pinned(), false)
  expect_error(function() torch.ones(3):pin_memory() end, "Tensor:pin_memory", "accelerator")
end)

test("how exact products of float32 are", function()
  expect_equal(torch.get_float32_matmul_precision(), "highest")
  for _, precision in ipairs { "high", "medium", "highest" } do
    torch.set_float32_matmul_precision(precision)
    expect_equal(torch.get_float32_matmul_precision(), precision)
  end
  expect_error(function() torch.set_float32_matmul_precision "tf32" end, '"highest"', '"tf32"')
end)

test("deterministic algorithms", function()
  local x = torch.zeros(3)
  local function put() x:put_(torch.tensor { 1 }, torch.ones(1)) end
  expect_equal(torch.are_deterministic_algorithms_enabled(), false)
  put()
  torch.use_deterministic_algorithms(true)
  expect_equal(torch.are_deterministic_algorithms_enabled(), true)
  expect_error(put, "put_", "deterministic")
  torch.use_deterministic_algorithms(true, { warn_only = true })
  put()
  torch.use_deterministic_algorithms(false)
  put()
  expect_error(function() torch.use_deterministic_algorithms "yes" end, "true or false", '"yes"')
end)

test("which attention is allowed", function()
  local cuda = torch.backends.cuda
  for _, name in ipairs { "flash", "mem_efficient", "cudnn", "math" } do
    local enable, is_enabled = cuda["enable_" .. name .. "_sdp"], cuda[name .. "_sdp_enabled"]
    assert(is_enabled())
    enable(false)
    assert(not is_enabled())
    enable(true)
    assert(is_enabled())
  end
  expect_error(function() cuda.enable_flash_sdp(1) end, "expected true or false, got number 1")
end)

test("a TorchScript module is read to a device", function()
  for _, device in ipairs { "meta", "cpu" } do
    local module = torch.jit.load("script_module.pt", { map_location = device })
    for _, leaf in ipairs(redco.tree.leaves(module.params)) do expect_equal(leaf.device, device) end
  end
  expect_error(function() torch.jit.load("script_module.pt", { map_location = "gpu" }) end,
    'map_location = "gpu"')
  expect_error(function() torch.jit.load("script_module.pt", { device = "cpu" }) end,
    "no argument 'device'")
  if not torch.cuda.is_available() then
    expect_error(function() torch.jit.load("script_module.pt", { map_location = "cuda" }) end,
      'device "cuda": ')
  end
end)

testing.finish()
