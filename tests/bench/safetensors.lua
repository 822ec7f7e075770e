-- Gigabytes a second of loading weights of GPT-2 small into fresh parameters and of saving them.
-- The first load is into memory that the process has never touched; the file stays, so that the
-- next run has touched none before. bench_page_cache shows what the machine does with the file.
local clock = require "clock"
local redco = require "redco"
local native = require "redco.native"

local o = redco.options { folder = "/tmp/redco-bench-weights", rounds = 7, threads = 2 }
redco.torch.set_num_threads(o.threads)

local sizes = { ["wte.weight"] = { 50257, 768 }, ["wpe.weight"] = { 1024, 768 },
  ["ln_f.weight"] = { 768 }, ["ln_f.bias"] = { 768 } }
for layer = 0, 11 do
  for name, size in pairs {
    ["ln_1.weight"] = { 768 }, ["ln_1.bias"] = { 768 },
    ["attn.c_attn.weight"] = { 768, 2304 }, ["attn.c_attn.bias"] = { 2304 },
    ["attn.c_proj.weight"] = { 768, 768 }, ["attn.c_proj.bias"] = { 768 },
    ["ln_2.weight"] = { 768 }, ["ln_2.bias"] = { 768 },
    ["mlp.c_fc.weight"] = { 768, 3072 }, ["mlp.c_fc.bias"] = { 3072 },
    ["mlp.c_proj.weight"] = { 3072, 768 }, ["mlp.c_proj.bias"] = { 768 },
  } do
    sizes["h." .. layer .. "." .. name] = size
  end
end
local params, bytes = {}, 0
for name, size in pairs(sizes) do
  params[name] = redco.torch.full({ 1 }, 0.5):expand(#size == 2 and size or { 1, size[1] })
  bytes = bytes + params[name]:numel() * 4
end
local file = io.open(o.folder .. "/model.safetensors")
if file then file:close() else native.save_weights(o.folder, params) end

local function load()
  local weights = native.open_weights(o.folder)
  for _, name in ipairs(weights:keys()) do
    params[name] = redco.parameter(weights:shape(name)):copy_(weights:tensor(name))
  end
end

local function save() native.save_weights(o.folder, params) end

local function rate(f)
  local start = clock.now()
  f()
  return bytes / (clock.now() - start) / 1e9
end

local loads, saves = {}, {}
for round = 0, o.rounds do
  params = {}
  collectgarbage()
  collectgarbage()
  loads[round] = rate(load)
  saves[round] = rate(save)
end
print(('{"name": "safetensors", "GB": %.3f, "first load GB/s": %.2f, "load GB/s": %.2f, '
  .. '"save GB/s": %.2f, "threads": %d}'):format(bytes / 1e9, loads[0], clock.median(loads),
  clock.median(saves), o.threads))
