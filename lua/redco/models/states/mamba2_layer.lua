--- The layer of Mamba-2 (Dao and Gu, 2024): a short convolution, then the scan of state_space.lua,
--- then a norm with a gate. Shapes: H heads of P elements in G groups, N the size of a state.
local blocks = require "redco.models.layers.blocks"
local convolve = require "redco.models.states.causal_convolution"
local native = require "redco.native"
local scan = require "redco.models.states.state_space"
local torch = require "redco.torch"

-- Initialises the rates of heads as Mamba-2 does: log 1, log 2, ...
local function log_of_numbers(t)
  return torch.no_grad(function()
    return t:copy_(torch.arange(1, t:size(0) + 1, { device = t.device }):log())
  end)
end

-- Normalises the groups of y [..., G, size], in float32 at least. Does not use LibTorch's norm,
-- because the groups may be split.
local function normalised(y, eps)
  return y * torch.rsqrt((y * y):mean({ -1 }, true) + eps)
end

--- Returns a mixer of llama_like.lua. given: name; n_heads; inner (H P); n_groups; n_states (N);
--- kernel (of the convolution); conv_bias, in_bias, out_bias; activation (its name); eps; least and
--- most (a step), or nil; dt_init; norm: "gated" if the gate comes before the norm, "then_gated" if
--- after, "none" if there is no norm; in_scale and scales { gate, x, B, C, dt }, of the input and
--- the projections, or nil; inits, as steps.inits returns them, or nil.
return function(c, given)
  local n_groups, inner = given.n_groups, given.inner
  local n_each, of_states = given.n_heads / n_groups, n_groups * given.n_states
  local activation = blocks.activation(c.model_type, given.activation)
  local mixer, normal = { name = given.name }, blocks.normal(c.initializer_range)
  local inits = given.inits or { conv = normal, out = normal }

  function mixer.add_parameters(name, linear, _, add)
    linear(name .. ".in_proj", c.hidden_size, 2 * inner + 2 * of_states + given.n_heads,
      given.in_bias)
    add(name .. ".conv1d.weight", { inner + 2 * of_states, 1, given.kernel }, inits.conv)
    if given.conv_bias then add(name .. ".conv1d.bias", { inner + 2 * of_states }, blocks.zeros) end
    add(name .. ".dt_bias", { given.n_heads }, given.dt_init or blocks.ones)
    add(name .. ".A_log", { given.n_heads }, log_of_numbers)
    add(name .. ".D", { given.n_heads }, blocks.ones)
    if given.norm ~= "none" then add(name .. ".norm.weight", { inner }, blocks.ones) end
    blocks.add_linear(add, name .. ".out_proj", inner, c.hidden_size, inits.out, given.out_bias)
  end

  -- Returns the gate [B, T, H P], x, B and C [B, T, ...] after the convolution, and dt [B, T, H].
  local function projected(params, name, x, kept, o)
    if kept then x = x * kept end
    if given.in_scale then x = x * given.in_scale end
    local parts = blocks.linear(params, name .. ".in_proj", x, o)
      :split({ inner, inner, of_states, of_states, given.n_heads }, -1)
    for i, scale in ipairs(given.scales or {}) do parts[i] = parts[i] * scale end
    local sizes = { inner, of_states, of_states }
    local weights, bias = params[name .. ".conv1d.weight"]:split(sizes, 0),
      params[name .. ".conv1d.bias"]
    local biases = bias and bias:split(sizes, 0) or {}
    for i = 1, 3 do
      local y = parts[i + 1]
      if kept and given.in_bias then y = y * kept end
      y = activation(convolve(y, weights[i], biases[i], o.cache, name .. ".conv" .. i))
      -- A single group is read by all heads.
      parts[i + 1] = i > 1 and n_groups == 1 and native.whole_on_shards(y) or y
    end
    -- The bias that padding gets, and the tokens before it, must not enter the state there.
    if kept then parts[2] = parts[2] * kept end
    return unpack(parts)
  end

  -- Returns y [B, T, G, R, P] with norm and gate, as [B, T, H P].
  local function gated(params, name, y, gate)
    local batch, length, size = y:size(0), y:size(1), inner / n_groups
    local shape = { batch, length, n_groups, size }
    y, gate = y:reshape(shape), torch.silu(gate:view(shape):to(y.dtype))
    if given.norm ~= "then_gated" then y = y * gate end
    if given.norm ~= "none" then
      local weight = params[name .. ".norm.weight"]:view { n_groups, size }
      y = normalised(y, given.eps) * weight:to(y.dtype)
    end
    if given.norm == "then_gated" then y = y * gate end
    return y:flatten(2)
  end

  function mixer.forward(params, name, input, _, mask, o)
    local batch, length = input:size(0), input:size(1)
    local gate, x, b, c_, dt = projected(params, name, input, mask.kept, o)
    local dtype = blocks.wide_dtype(input)
    local function of_heads(part)
      return params[name .. "." .. part]:to(dtype):view { n_groups, n_each }
    end
    local function grouped(y, ...) return y:view { batch, length, n_groups, ... } end
    x = grouped(x, n_each, inner / given.n_heads):to(dtype)
    dt = torch.softplus(grouped(dt, n_each):to(dtype) + of_heads "dt_bias")
    if given.least then dt = dt:clamp(given.least, given.most) end
    local y, state = scan(x, dt, -of_heads "A_log":exp(), grouped(b, given.n_states),
      grouped(c_, given.n_states), o.cache and o.cache:state(name))
    if o.cache then o.cache:keep(name, state) end
    y = torch.addcmul(y, x, of_heads "D":unsqueeze(-1))
    return blocks.linear(params, name .. ".out_proj", gated(params, name, y, gate):to(input.dtype),
      o)
  end

  return mixer
end
