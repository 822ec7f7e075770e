--- Layers as pairs of functions: a capitalised one (`Linear`) returns a table of parameters, the
--- same name in lower case (`linear`) computes with it. Weights have PyTorch's names and shapes.
local registry = require "redco.registry"
local strict = require "redco.strict"

local nn = { init = strict("redco.nn.init", require "redco.nn.initializers") }

for _, part in ipairs { "layers", "dropout", "convolution", "pooling", "norms", "attention",
  "embedding_bag", "recompute", "recurrent", "recurrent_stacks", "losses", "loss_functions" } do
  for name, value in pairs(require("redco.nn." .. part)) do nn[name] = value end
end

return registry.define("redco.nn", [[
redco.nn
Layers as pairs of functions without hidden state. A capitalised function (`Linear`) returns a table
of parameters, the same name in lower case (`linear`) computes with it. Weights have PyTorch's names
and shapes.]], strict("redco.nn", nn))
