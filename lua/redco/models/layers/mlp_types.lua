--- The list mlp_layer_types of a configuration: which layers have experts, "sparse", or are
--- ordinary, "dense".
local fail = require "redco.fail"

local types = {}

local kinds = { dense = true, sparse = true }

--- Completes the list: `is_sparse(i)` of layer i, from 0, where the configuration has none.
function types.complete(c, is_sparse)
  if c.mlp_layer_types then return end
  c.mlp_layer_types = {}
  for i = 0, c.num_hidden_layers - 1 do
    c.mlp_layer_types[i + 1] = is_sparse(i) and "sparse" or "dense"
  end
end

function types.check(c)
  local list = c.mlp_layer_types
  if type(list) ~= "table" or #list ~= c.num_hidden_layers then
    fail("%s: mlp_layer_types has %s entries, but num_hidden_layers is %d", c.model_type,
      type(list) == "table" and #list or "no", c.num_hidden_layers)
  end
  for _, kind in ipairs(list) do
    if not kinds[kind] then
      fail("%s: mlp_layer_types have %s, which is not supported, only dense and sparse",
        c.model_type, kind)
    end
  end
end

--- Returns a function of i: the mixture, or nil if layer i is an ordinary one.
function types.layers(c, mixture)
  return function(i) return c.mlp_layer_types[i + 1] == "sparse" and mixture or nil end
end

return types
