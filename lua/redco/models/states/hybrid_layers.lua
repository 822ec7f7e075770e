--- Layers of Mamba-2 beside attention in decoders like LLaMA, by the keys that their configurations
--- share.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local mamba2_layer = require "redco.models.states.mamba2_layer"

local hybrid = {}

--- The kinds of layers, as versions 4 and 5 of transformers call them.
hybrid.kinds = { "full_attention", "linear_attention", "attention", "mamba" }
local has_attention = { full_attention = true, attention = true }

--- The defaults of the keys, and those without one.
hybrid.defaults = {
  mamba_n_heads = 128,
  mamba_n_groups = 1,
  mamba_d_state = 256,
  mamba_d_conv = 4,
  mamba_expand = 2,
  mamba_chunk_size = 256,
  mamba_conv_bias = true,
  mamba_proj_bias = false,
}
hybrid.optional = { "mamba_d_head", "mamba_d_ssm", "layer_types", "time_step_limit" }

-- Returns the number of elements of all heads.
local function inner_size(c) return c.mamba_d_ssm or c.mamba_expand * c.hidden_size end

--- Raises an error if the sizes contradict each other.
function hybrid.check(c)
  local inner = inner_size(c)
  if inner % c.mamba_n_heads ~= 0 then
    fail("%s: the %g elements of the layers with states are not a multiple of mamba_n_heads (%d)",
      c.model_type, inner, c.mamba_n_heads)
  end
  local size = c.mamba_d_head or "auto"
  if size ~= "auto" and size ~= inner / c.mamba_n_heads then
    fail("%s: mamba_d_head is %s, and must be %d, the elements of each of mamba_n_heads heads",
      c.model_type, size, inner / c.mamba_n_heads)
  end
  blocks.check_multiple(c, "mamba_n_heads", "mamba_n_groups")
end

-- Returns a bound of time_step_limit. Version 5 writes infinity as {"__float__": "Infinity"}.
local function number(c, value)
  if type(value) == "table" and value.__float__ == "Infinity" then return math.huge end
  return type(value) == "number" and value
    or fail("%s: time_step_limit is not two numbers", c.model_type)
end

--- Returns the ends of time_step_limit, or nil.
function hybrid.limits(c)
  local limit = c.time_step_limit
  if not limit then return end
  if type(limit) ~= "table" then fail("%s: time_step_limit is not two numbers", c.model_type) end
  return number(c, limit[1]), number(c, limit[2])
end

--- Returns the mixer; `more` are facts of mamba2_layer.lua.
function hybrid.mamba(c, more)
  local least, most = hybrid.limits(c)
  local facts = {
    name = "mamba", n_heads = c.mamba_n_heads, inner = inner_size(c), n_groups = c.mamba_n_groups,
    n_states = c.mamba_d_state, kernel = c.mamba_d_conv, conv_bias = c.mamba_conv_bias,
    in_bias = c.mamba_proj_bias, out_bias = c.mamba_proj_bias, activation = c.hidden_act,
    eps = c.rms_norm_eps, least = least, most = most, norm = "gated",
  }
  for key, value in pairs(more or {}) do facts[key] = value end
  return mamba2_layer(c, facts)
end

--- Returns a function of i: the mixer of layer i, or nil if it has attention by layer_types.
function hybrid.mixers(c, mixer)
  return function(i) return not has_attention[c.layer_types[i + 1]] and mixer or nil end
end

--- Returns the defaults of a family, with `own`.
function hybrid.with_defaults(own)
  for key, value in pairs(hybrid.defaults) do
    if own[key] == nil then own[key] = value end
  end
  return own
end

return hybrid
