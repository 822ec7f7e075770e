--- Gated DeltaNet (Yang, Kautz and Hatamizadeh, 2024) as Qwen has it: q, k and v pass a short
--- convolution each, then the gated delta rule. Shapes: G heads of keys, R of values for each, K
--- and V their sizes.
local blocks = require "redco.models.layers.blocks"
local convolve = require "redco.models.states.causal_convolution"
local delta_rule = require "redco.models.states.delta_rule"
local torch = require "redco.torch"

-- Initialises the logarithms of rates that are uniform in [0.01, 16).
local function log_of_uniform(t, generator)
  return torch.no_grad(function() return t:uniform_(0.01, 16, { generator = generator }):log_() end)
end

-- x / |x|, with Qwen's epsilon.
local function normalised(x)
  return x * (x * x):sum({ -1 }, true):add(1e-6):rsqrt()
end

--- Returns a mixer of llama_like.lua. `is_joined`: whether q, k, v and the gate of a head are in
--- one projection, beta and decay in another, as in Qwen3-Next.
return function(c, is_joined)
  local n_keys, n_values = c.linear_num_key_heads, c.linear_num_value_heads
  local key_size, value_size = c.linear_key_head_dim, c.linear_value_head_dim
  local n_each, width = n_values / n_keys, c.hidden_size
  local keys, values = n_keys * key_size, n_values * value_size
  local activation = blocks.activation(c.model_type, c.hidden_act)
  local mixer = { name = "linear_attn" }

  function mixer.add_parameters(name, linear, _, add)
    local function project(part, n) linear(name .. ".in_proj_" .. part, width, n, false) end
    if is_joined then
      project("qkvz", 2 * keys + 2 * values)
      project("ba", 2 * n_values)
    else
      project("qkv", 2 * keys + values)
      project("z", values)
      project("b", n_values)
      project("a", n_values)
    end
    add(name .. ".conv1d.weight", { 2 * keys + values, 1, c.linear_conv_kernel_dim },
      blocks.normal(c.initializer_range))
    add(name .. ".dt_bias", { n_values }, blocks.ones)
    add(name .. ".A_log", { n_values }, log_of_uniform)
    add(name .. ".norm.weight", { value_size }, blocks.ones)
    linear(name .. ".out_proj", values, width, false)
  end

  -- Returns q and k [B, T, G * K], v and the gate [B, T, G * R * V], beta and decay [B, T, G, R].
  local function projected(params, name, x, o)
    local batch, length = x:size(0), x:size(1)
    local function project(part) return blocks.linear(params, name .. ".in_proj_" .. part, x, o) end
    local function grouped(y, size) return y:view { batch, length, n_keys, size } end
    if not is_joined then
      local q, k, v = unpack(project "qkv":split({ keys, keys, values }, -1))
      return { q, k, v }, project "z", grouped(project "b", n_each), grouped(project "a", n_each)
    end
    local own = n_each * value_size
    local parts = grouped(project "qkvz", 2 * key_size + 2 * own)
      :split({ key_size, key_size, own, own }, -1)
    for i, part in ipairs(parts) do parts[i] = part:flatten(2) end
    local beta, decay = unpack(grouped(project "ba", 2 * n_each):chunk(2, -1))
    return parts, parts[4], beta, decay
  end

  function mixer.forward(params, name, x, _, mask, o)
    local batch, length = x:size(0), x:size(1)
    if mask.kept then x = x * mask.kept end
    local parts, gate, beta, a = projected(params, name, x, o)
    local weights = params[name .. ".conv1d.weight"]:split({ keys, keys, values }, 0)
    for i = 1, 3 do
      parts[i] = activation(convolve(parts[i], weights[i], nil, o.cache, name .. ".conv" .. i))
    end
    local dtype = blocks.wide_dtype(x)
    local q, k = unpack { parts[1]:to(dtype):view { batch, length, n_keys, key_size },
      parts[2]:to(dtype):view { batch, length, n_keys, key_size } }
    local v = parts[3]:view { batch, length, n_keys, n_each, value_size }
    local function of_heads(part)
      return params[name .. "." .. part]:to(dtype):view { n_keys, n_each }
    end
    local decay = -of_heads "A_log":exp() * torch.softplus(a:to(dtype) + of_heads "dt_bias")
    local y, state = delta_rule(normalised(q) * key_size ^ -0.5, normalised(k), v, decay,
      beta:sigmoid(), o.cache and o.cache:state(name))
    if o.cache then o.cache:keep(name, state) end
    y = blocks.rms_norm(params, name .. ".norm", y:to(x.dtype), c.rms_norm_eps)
    gate = gate:view { batch, length, n_keys, n_each, value_size }
    y = (y * torch.silu(gate:to(dtype))):to(x.dtype):reshape { batch, length, values }
    return blocks.linear(params, name .. ".out_proj", y, o)
  end

  return mixer
end
