--- Runs a spec of tests/lua with its tensors on the GPU: redco-lua on_gpu.lua operators_spec.lua
--- Functions that make or read tensors put them on the GPU, unless the call names a device. The
--- spec compares with values of the CPU. Functions that only the CPU has are left out.
local gpu = require "gpu"
local redco = require "redco"
local testing = require "testing"
local torch = redco.torch

local function on_gpu(leaf)
  if not torch.is_tensor(leaf) or leaf.device ~= "cpu" or gpu.device == "cpu" then return leaf end
  local moved = torch.no_grad(function() return leaf:to(gpu.device) end)
  return leaf.requires_grad and moved:detach():requires_grad_() or moved
end

local function names_device(options) return type(options) == "table" and options.device ~= nil end

for name in ([[arange empty eye frombuffer full linspace load logspace ones rand randint randn
  randperm tensor tril_indices triu_indices zeros]]):gmatch "%S+" do
  local make = torch[name]
  rawset(torch, name, function(...)
    local made = make(...)
    if names_device((select(select("#", ...), ...))) then return made end
    return type(made) == "table" and redco.tree.map(on_gpu, made) or on_gpu(made)
  end)
end

-- Tests about the CPU, by spec: its random numbers, its texts, and errors that a GPU reports later
-- and for the whole process.
local of_cpu = {
  operators_spec = { "operators: random", "operators: random through functions" },
  nn_spec = { "wrong labels and options of the losses are errors of the line that called" },
  transforms_spec = { "tensors inside a transformation can be printed",
    "grad of grad goes through attention" },
}
-- Operators, by group of cases: those without a kernel for GPUs, with arguments that must be on the
-- CPU, or with results that are not determined.
local operators_of_cpu = {
  reductions = [[unique_dim histogram _histogramdd_bin_edges _histogramdd_from_bin_cts
    _histogramdd_from_bin_tensors aminmax]],
  ["comparison and sorting"] = "sort", ["linear algebra"] = "linalg_lstsq",
  shape = "tensor_split", indexing = "scatter scatter_ embedding_bag _embedding_bag",
  ["normalisation and attention"] = "_pack_padded_sequence _pad_packed_sequence lstm",
  ["lists of tensors"] = "_foreach_addcmul", types = "matmul",
}

local spec = assert(arg[1], "usage: on_gpu.lua SPEC")
if gpu.is_there then
  testing.left_out = {}
  for group, names in pairs(operators_of_cpu) do
    testing.left_out[group] = {}
    for name in names:gmatch "%S+" do testing.left_out[group][name] = true end
  end
  local is_left_out, test = {}, testing.test
  for _, name in ipairs(of_cpu[spec:match "(.*)%.lua$"] or {}) do is_left_out[name] = true end
  function testing.test(name, body)
    if is_left_out[name] then return print("about the CPU: " .. name) end
    return test(name, body)
  end
end
rawset(_G, "arg", { [0] = spec })
dofile(spec)
