--- Qwen's decoders that have Gated DeltaNet in place of attention in most layers.
local blocks = require "redco.models.layers.blocks"
local delta_net = require "redco.models.states.delta_net"
local norms = require "redco.models.layers.norms"

local layers = { kinds = { "full_attention", "linear_attention" } }

--- The defaults of the keys that these decoders share.
layers.defaults = {
  num_attention_heads = 16,
  head_dim = 256,
  hidden_act = "silu",
  max_position_embeddings = 32768,
  rms_norm_eps = 1e-6,
  partial_rotary_factor = 0.25,
  attention_bias = false,
  linear_conv_kernel_dim = 4,
  linear_key_head_dim = 128,
  linear_value_head_dim = 128,
  linear_num_key_heads = 16,
  linear_num_value_heads = 32,
}

--- Completes layer_types: every so many layers one has attention.
function layers.complete(c)
  if c.layer_types then return end
  c.layer_types = {}
  for i = 1, c.num_hidden_layers do
    local has_attention = i % (c.full_attention_interval or 4) == 0
    c.layer_types[i] = has_attention and "full_attention" or "linear_attention"
  end
end

-- Returns the facts of llama_like.lua. `is_joined` as in delta_net.lua.
local function facts_of(c, is_joined)
  local mixer = delta_net(c, is_joined)
  return {
    norm = norms.rms_from_one, head_norms = "head", is_gated = true, qkv_bias = c.attention_bias,
    o_bias = c.attention_bias,
    mixer = function(i) return c.layer_types[i + 1] == "linear_attention" and mixer or nil end,
  }
end

--- Completes the row of a family for llama_like.lua. Its `more(c, facts)`, or nil, adds facts.
function layers.row(row, is_joined, more)
  for key, value in pairs(layers.defaults) do
    if row.defaults[key] == nil then row.defaults[key] = value end
  end
  row.inputs = { "input_ids", "attention_mask", "position_ids" }
  row.only = { hidden_act = "silu" }  -- version 4 of transformers ignores others in some places
  row.layer_kinds, row.complete = layers.kinds, layers.complete
  -- Layers that predict a second token, which transformers ignores too.
  row.ignored = { "%.rotary_emb%.inv_freq$", "^mtp%." }
  function row.check(c)
    blocks.check_multiple(c, "linear_num_value_heads", "linear_num_key_heads")
  end
  function row.facts(c)
    local facts = facts_of(c, is_joined)
    if more then more(c, facts) end
    return facts
  end
  return row
end

return layers
