--- LFM2's short convolution (Liquid AI, 2025): of three projections of a token two are multiplied
--- before it, the third after it.
local blocks = require "redco.models.layers.blocks"
local convolve = require "redco.models.states.causal_convolution"

-- Returns a mixer of llama_like.lua.
local function new_mixer(c)
  local width, bias = c.hidden_size, c.conv_bias
  local mixer = { name = "conv" }

  function mixer.add_parameters(name, linear, _, add)
    add(name .. ".conv.weight", { width, 1, c.conv_L_cache }, blocks.normal(c.initializer_range))
    if bias then add(name .. ".conv.bias", { width }, blocks.zeros) end
    linear(name .. ".in_proj", width, 3 * width, bias)
    linear(name .. ".out_proj", width, width, bias)
  end

  function mixer.forward(params, name, x, _, mask, o)
    if mask.kept then x = x * mask.kept end
    local before, after, y = unpack(blocks.linear(params, name .. ".in_proj", x, o):chunk(3, -1))
    y = before * y
    if mask.kept and bias then y = y * mask.kept end
    y = convolve(y, params[name .. ".conv.weight"], params[name .. ".conv.bias"], o.cache, name)
    return blocks.linear(params, name .. ".out_proj", after * y, o)
  end

  return mixer
end

local convolution = {}

--- Returns the facts of LFM2's decoders for llama_like.lua.
function convolution.facts(c)
  local mixer = new_mixer(c)
  return {
    eps = "norm_eps", norms = { "operator_norm", nil, "ffn_norm" }, last_norm = "embedding_norm",
    mlp_name = "feed_forward", mlp_names = { "w1", "w3", "w2" }, activation = "silu",
    o_name = "out_proj", head_norms = "head", head_norm_names = { "q_layernorm", "k_layernorm" },
    mixer = function(i) return c.layer_types[i + 1] == "conv" and mixer or nil end,
  }
end

return convolution
