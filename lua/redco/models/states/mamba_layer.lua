--- The layer of Mamba (Gu and Dao, 2023): a short convolution, then the scan of selective_scan.lua,
--- then a gate. Shapes: D channels, N the size of a state.
local blocks = require "redco.models.layers.blocks"
local convolve = require "redco.models.states.causal_convolution"
local scan = require "redco.models.states.selective_scan"
local torch = require "redco.torch"

-- Initialises the rates of states as Mamba does: log 1, log 2, ... in each channel.
local function log_of_numbers(t)
  return torch.no_grad(function()
    return t:copy_(torch.arange(1, t:size(1) + 1, { device = t.device }):log():expand(t.shape))
  end)
end

local normalised = { "dt", "b", "c" }
local function norm_name(name, i) return ("%s.%s_layernorm"):format(name, normalised[i]) end

--- Returns a mixer of llama_like.lua. given: name; inner (D); rank (of the step); n_states (N);
--- kernel (of the convolution); conv_bias; bias (of the projections); activation (its name); norms,
--- or nil: a kind of norms.lua for the step, B and C; eps; step_init (of dt_proj's bias), or nil;
--- inits, as steps.inits returns them, or nil.
return function(c, given)
  local inner, rank, n_states = given.inner, given.rank, given.n_states
  local activation = blocks.activation(c.model_type, given.activation)
  local mixer, normal = { name = given.name }, blocks.normal(c.initializer_range)
  local inits = given.inits or { conv = normal, out = normal, step = normal }

  function mixer.add_parameters(name, linear, _, add)
    linear(name .. ".in_proj", c.hidden_size, 2 * inner, given.bias)
    add(name .. ".conv1d.weight", { inner, 1, given.kernel }, inits.conv)
    if given.conv_bias then add(name .. ".conv1d.bias", { inner }, blocks.zeros) end
    linear(name .. ".x_proj", inner, rank + 2 * n_states, false)
    blocks.add_linear(add, name .. ".dt_proj", rank, inner, inits.step, given.step_init)
    add(name .. ".A_log", { inner, n_states }, log_of_numbers)
    add(name .. ".D", { inner }, blocks.ones)
    for i, size in ipairs { rank, n_states, n_states } do
      if given.norms then given.norms.add(add, norm_name(name, i), { size }) end
    end
    blocks.add_linear(add, name .. ".out_proj", inner, c.hidden_size, inits.out, given.bias)
  end

  function mixer.forward(params, name, input, _, mask, o)
    local kept = mask.kept
    if kept then input = input * kept end
    local x, gate = unpack(blocks.linear(params, name .. ".in_proj", input, o):chunk(2, -1))
    if kept and given.bias then x = x * kept end
    local bias = params[name .. ".conv1d.bias"]
    x = activation(convolve(x, params[name .. ".conv1d.weight"], bias, o.cache, name .. ".conv"))
    if kept then x = x * kept end
    local parts = blocks.linear(params, name .. ".x_proj", x, o)
      :split({ rank, n_states, n_states }, -1)
    for i = 1, given.norms and 3 or 0 do
      parts[i] = given.norms.apply(params, norm_name(name, i), parts[i], given.eps)
    end
    local dtype = blocks.wide_dtype(input)
    local dt = torch.softplus(blocks.linear(params, name .. ".dt_proj", parts[1], o):to(dtype))
    local y, state = scan(x, dt, -params[name .. ".A_log"]:to(dtype):exp(), parts[2], parts[3],
      o.cache and o.cache:state(name))
    if o.cache then o.cache:keep(name, state) end
    y = torch.addcmul(y, x:to(dtype), params[name .. ".D"]:to(dtype)) * torch.silu(gate:to(dtype))
    return blocks.linear(params, name .. ".out_proj", y:to(input.dtype), o)
  end

  return mixer
end
