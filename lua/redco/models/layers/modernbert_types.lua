--- Converts the keys of transformers 5 in ModernBERT's configuration: layer_types, and
--- rope_parameters for each type.
local fail = require "redco.fail"

return function(c)
  local given = c.rope_parameters
  if type(given) ~= "table" then return end
  for kind, key in pairs { full_attention = "global_rope_theta",
    sliding_attention = "local_rope_theta" } do
    local rope = given[kind] or {}
    if rope.rope_type and rope.rope_type ~= "default" then
      fail("modernbert: rope_parameters.%s has rope_type %s, which is not supported, only default",
        kind, rope.rope_type)
    end
    c[key] = rope.rope_theta or c[key]
  end
  local n, types = c.global_attn_every_n_layers, c.layer_types or {}
  for i = #types, 2, -1 do
    if types[i] == "full_attention" then n = i - 1 end
  end
  for i, kind in ipairs(types) do
    if (kind == "full_attention") ~= ((i - 1) % n == 0) then
      fail("modernbert: layer_types has %s for layer %d; full_attention is supported in the first "
        .. "and each further n-th layer only", kind, i - 1)
    end
  end
  c.global_attn_every_n_layers, c.rope_parameters, c.layer_types = n, nil, nil
end
