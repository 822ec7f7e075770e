--- Feed-forward layers, by the facts of llama_like.lua.
local blocks = require "redco.models.layers.blocks"

--- Returns an object with `add_parameters(name, linear)` and `forward(params, name, x, o)`.
return function(c, facts)
  local activation = blocks.activation(c.model_type, c[facts.activation] or facts.activation)
  local first, second, last = unpack(facts.mlp_names)
  local joined = facts.joins_gate and (facts.joined_name or "gate_up_proj")
  local gate_scale, scale = facts.gate_scale or 1, facts.mlp_scale or 1
  local mlp = { name = facts.mlp_name }

  function mlp.add_parameters(name, linear)
    local width, bias = c.hidden_size, facts.mlp_bias
    local inner = facts.inner or c.intermediate_size
    if joined then
      linear(name .. "." .. joined, width, 2 * inner, bias)
    else
      linear(name .. "." .. first, width, inner, bias)
      if last then linear(name .. "." .. second, width, inner, bias) end
    end
    linear(name .. "." .. (last or second), inner, width, bias)
  end

  function mlp.forward(params, name, x, o)
    local function linear(part, y) return blocks.linear(params, name .. "." .. part, y, o) end
    if not last then return linear(second, activation(linear(first, x))) end
    local gate, up
    if joined then
      gate, up = unpack(linear(joined, x):chunk(2, -1))
    else
      gate, up = linear(first, x), linear(second, x)
    end
    local inner = blocks.gated(activation, gate_scale ~= 1 and gate * gate_scale or gate, up)
    local y = linear(last, blocks.dropout(inner, facts.inner_dropout or 0, o))
    return scale ~= 1 and y * scale or y
  end

  return mlp
end

