--- The layers of Whisper's encoder and decoder (Radford et al., 2022). Norms are before layers, and
--- `stack` is "encoder" or "decoder", with which the keys of sizes begin.
local blocks = require "redco.models.layers.blocks"
local nn = require "redco.nn"

local layers = {}

--- Declares the parameters of a stack's layers, and of the norm behind them.
function layers.add_parameters(c, stack, add)
  local normal, size, inner = blocks.normal(c.init_std), c.d_model, c[stack .. "_ffn_dim"]
  local function linear(name, n_in, n_out, bias)
    blocks.add_linear(add, name, n_in, n_out, normal, bias)
  end
  local function norm(name) blocks.add_layer_norm(add, name, size) end
  local function attention(name)
    for _, part in ipairs { ".k_proj", ".v_proj", ".q_proj", ".out_proj" } do
      linear(name .. part, size, size, part ~= ".k_proj")
    end
    norm(name .. "_layer_norm")
  end
  for i = 0, c[stack .. "_layers"] - 1 do
    local layer = ("layers.%d."):format(i)
    attention(layer .. "self_attn")
    if stack == "decoder" then attention(layer .. "encoder_attn") end
    linear(layer .. "fc1", size, inner)
    linear(layer .. "fc2", inner, size)
    norm(layer .. "final_layer_norm")
  end
  norm "layer_norm"
end

--- Returns the output of the norm behind the layers.
function layers.last_norm(params, x) return blocks.layer_norm(params, "layer_norm", x, 1e-5) end

--- Returns function(params, x, o, mask, memory, kept) -> x, the input of the last norm. Appends the
--- input of the first layer and the output of each to the list `kept`, if it is given.
function layers.new(c, stack)
  local attention = blocks.new_attention(c[stack .. "_attention_heads"],
    { q = ".q_proj", k = ".k_proj", v = ".v_proj", out = ".out_proj" }, c.attention_dropout)
  local activation = blocks.activation(c.model_type, c.activation_function)

  return function(params, x, o, mask, memory, kept)
    local function residual(name, input, f)
      local y = f(blocks.layer_norm(params, name, input, 1e-5))
      return input + blocks.dropout(y, c.dropout, o)
    end
    local function apply_layer(layer, z)
      z = residual(layer .. "self_attn_layer_norm", z, function(y)
        return attention.to_itself(params, layer .. "self_attn", y, mask, o)
      end)
      z = memory and residual(layer .. "encoder_attn_layer_norm", z, function(y)
        return attention.to_memory(params, layer .. "encoder_attn", y, memory, {}, o)
      end) or z
      return residual(layer .. "final_layer_norm", z, function(y)
        y = activation(blocks.linear(params, layer .. "fc1", y, o))
        return blocks.linear(params, layer .. "fc2", blocks.dropout(y, c.activation_dropout, o), o)
      end)
    end
    for i = 0, c[stack .. "_layers"] - 1 do
      if kept then kept[#kept + 1] = x end
      x = nn.block(apply_layer, ("layers.%d."):format(i), x)
    end
    if kept then kept[#kept + 1] = x end
    return x
  end
end

return layers
