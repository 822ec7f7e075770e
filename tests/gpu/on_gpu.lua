--- Runs a spec of tests/lua with its tensors on the GPU: redco-lua on_gpu.lua operators_spec.lua
--- What makes or reads tensors puts them there, unless the call names a device. The spec compares
--- with values of the CPU, so a failure is a defect, or a test of what only the CPU has.
local gpu = require "gpu"
local redco = require "redco"
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

local spec = assert(arg[1], "usage: on_gpu.lua SPEC")
rawset(_G, "arg", { [0] = spec })
dofile(spec)
