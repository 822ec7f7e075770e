--- Which layers of Qwen's mixtures have experts.
local fail = require "redco.fail"

--- Returns a function of i: the mixture, or nil if layer i is an ordinary feed-forward layer, by
--- decoder_sparse_step and mlp_only_layers.
return function(c, mixture)
  local is_dense, dense_layers = {}, c.mlp_only_layers or {}
  if type(dense_layers) ~= "table" then
    fail("%s: mlp_only_layers is %s, expected a list of layers", c.model_type, dense_layers)
  end
  for _, i in ipairs(dense_layers) do is_dense[i] = true end
  return function(i)
    return not is_dense[i] and (i + 1) % c.decoder_sparse_step == 0 and mixture or nil
  end
end
