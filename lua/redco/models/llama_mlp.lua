--- Feed-forward layers, by the facts of llama_like.lua.
local blocks = require "redco.models.blocks"

--- Returns an object with `add_parameters(name, linear)` and `forward(params, name, x, o)`.
return function(c, facts)
  local activation = blocks.activation(c.model_type, c[facts.activation])
  local first, second, last = unpack(facts.mlp_names)
  local mlp = {}

  function mlp.add_parameters(name, linear)
    local width, inner, bias = c.hidden_size, c.intermediate_size, facts.mlp_bias
    if facts.joins_gate then
      linear(name .. ".gate_up_proj", width, 2 * inner, bias)
    else
      linear(name .. "." .. first, width, inner, bias)
      if last then linear(name .. "." .. second, width, inner, bias) end
    end
    linear(name .. "." .. (last or second), inner, width, bias)
  end

  function mlp.forward(params, name, x, o)
    local function linear(part, y) return blocks.linear(params, name .. "." .. part, y, o) end
    if not last then return linear(second, activation(linear(first, x))) end
    if facts.joins_gate then
      local gate, up = unpack(linear("gate_up_proj", x):chunk(2, -1))
      return linear(last, activation(gate) * up)
    end
    return linear(last, activation(linear(first, x)) * linear(second, x))
  end

  return mlp
end

