-- The files of a model folder as the models module reads and writes them.
local redco = require "redco"
local native = require "redco.native"
local testing = require "testing"

local torch = redco.torch
local test, expect_close, expect_equal, expect_error =
  testing.test, testing.expect_close, testing.expect_equal, testing.expect_error

local folder = testing.folder()
local params = { ["a.weight"] = torch.arange(6, { dtype = "float32" }):view { 2, 3 },
  ["a.bias"] = torch.ones({ 2 }, { dtype = "bfloat16" }), step = torch.tensor(7) }

test("what was saved is opened with names, shapes and types", function()
  native.save_weights(folder, params)
  local weights = native.open_weights(folder)
  expect_equal(weights.path, folder)
  expect_equal(table.concat(weights:keys(), " "), "a.bias a.weight step")
  expect_equal(table.concat(weights:shape "a.weight", " "), "2 3")
  expect_equal(#weights:shape "step", 0)
  expect_equal(weights:dtype "a.bias", "bfloat16")
  for name, tensor in pairs(params) do expect_close(weights:tensor(name), tensor) end
  local parameter = redco.parameter({ 2, 3 }, { dtype = "bfloat16" })
  expect_equal(parameter.dtype, "bfloat16")
  parameter:copy_(weights:tensor "a.weight")
  expect_close(parameter, params["a.weight"]:to "bfloat16")
end)

test("max_shard_size as a number and as a text, metadata", function()
  native.save_weights(folder, params, { max_shard_size = 28, metadata = { origin = "spec" } })
  local index = redco.data.read(folder .. "/model.safetensors.index.json")
  assert(index:find("model-00002-of-00002.safetensors", 1, true), index)
  local part = redco.data.read(folder .. "/model-00001-of-00002.safetensors")
  assert(part:find('"format":"pt","origin":"spec"', 1, true), part)
  expect_close(native.open_weights(folder):tensor "step", params.step)
  native.save_weights(folder, params, { max_shard_size = "0.05KB" })
  expect_equal(#native.open_weights(folder .. "/model.safetensors"):keys(), 3)
end)

test("tensors that were read are collected by the bytes of the file that they hold", function()
  native.save_weights(folder .. "/large", { a = torch.zeros { 2 ^ 20 } })
  local weights, held = native.open_weights(folder .. "/large"), setmetatable({}, { __mode = "k" })
  for _ = 1, 100 do held[weights:tensor "a"] = true end
  local n = 0
  for _ in pairs(held) do n = n + 1 end
  assert(n < 50, n)
end)

test("what is wrong is said with the line of the script", function()
  local function save(...)
    local arguments = { ... }
    return function() native.save_weights(unpack(arguments)) end
  end
  expect_error(save(nil, params), "weights_spec.lua:", "expected the path of a folder, got nil")
  expect_error(save(folder, 5), "expected a table of tensors by name, got number 5")
  expect_error(save(folder, { torch.ones { 1 } }), "expected names as keys, got number 1")
  expect_error(save(folder, { a = { b = torch.ones { 1 } } }), 'params["a"]', "got table")
  for _, size in ipairs { "5", "GB", "-5GB", "5 GB", "1e10GB", "nanGB", true } do
    expect_error(save(folder, params, { max_shard_size = size }), "max_shard_size", '"5GB"')
  end
  expect_error(save(folder, params, { max_shard_size = -1 }), "max_shard_size is -1")
  expect_error(save(folder, params, { metadata = { 1 } }), "metadata")
  expect_error(save(folder, params, { metadata = { k = 1 } }), "metadata.k: expected a text")
  expect_error(save(folder, params, { max_shards = 1 }), "max_shards")
  local weights = native.open_weights(folder)
  expect_error(function() weights:tensor "a.wieght" end, "weights_spec.lua:", folder, "a.weight")
  expect_error(function() weights:shape() end, "Weights:shape", "name of a tensor, got nothing")
  expect_error(function() weights.keys() end, "Weights:keys", "with a colon")
  expect_error(function() native.open_weights(folder .. "/none") end, folder, "No such file")
  expect_error(function() native.open_weights() end, "expected the path of the file, got nothing")
  expect_error(function() redco.parameter({ 2 }, { type = "int8" }) end, "type")
  expect_equal(weights.nothing, nil)
end)

testing.finish()
