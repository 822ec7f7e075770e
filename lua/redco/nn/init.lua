--- Layers without hidden state: a name with a capital (`Linear`) makes a table of parameters, the
--- same name in lower case (`linear`) applies one. Weights are laid out and named as in PyTorch.
local registry = require "redco.registry"

local nn = { init = require "redco.nn.initializers" }

for _, part in ipairs { "layers", "dropout", "convolution", "attention", "recurrent", "losses" } do
  for name, value in pairs(require("redco.nn." .. part)) do nn[name] = value end
end

return registry.define("redco.nn", [[
redco.nn
Layers without hidden state. A name with a capital (`Linear`) makes a table of parameters, the same
name in lower case (`linear`) applies one. Weights are laid out and named as in PyTorch.]], nn)
