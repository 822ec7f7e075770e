--- Shared parts of Mamba's configurations: how steps are initialised, keys, and facts of layers.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local nn = require "redco.nn"
local torch = require "redco.torch"

local steps = {}

--- Initialises what softplus makes steps between time_step_min and time_step_max.
function steps.init(c)
  return function(t, generator)
    local low, high = math.log(c.time_step_min), math.log(c.time_step_max)
    return torch.no_grad(function()
      local dt = t:uniform_(low, high, { generator = generator }):exp():clamp(c.time_step_floor)
      return t:copy_(dt + (-torch.expm1(-dt)):log())
    end)
  end
end

-- Returns the initialiser of the weight of dt_proj.
local function of_step_weights(c)
  local std = steps.rank(c, "time_step_rank") ^ -0.5 * (c.time_step_scale or 1)
  if c.time_step_init_scheme == "constant" then return blocks.constant(std) end
  return function(t, generator)
    return nn.init.uniform_(t, { a = -std, b = std, generator = generator })
  end
end

--- Returns the initialisers of the weights of Mamba's layers that are not normal: { conv, out, step
--- (of dt_proj) }.
function steps.inits(c)
  local scale = c.rescale_prenorm_residual and c.num_hidden_layers ^ -0.5 or 1
  return {
    conv = blocks.of_fan_in,
    out = function(t, generator)
      blocks.of_fan_in(t, generator)
      return torch.no_grad(function() return t:mul_(scale) end)
    end,
    step = of_step_weights(c),
  }
end

--- Returns the rank of the steps by a key, which may be nil or "auto".
function steps.rank(c, key)
  local rank = c[key]
  if rank == nil or rank == "auto" then return math.ceil(c.hidden_size / 16) end
  return type(rank) == "number" and rank >= 1 and rank % 1 == 0 and rank
    or fail("%s: %s is %s, expected a whole number or \"auto\"", c.model_type, key, rank)
end

--- Keys without a default.
steps.optional = { "time_step_rank", "time_step_scale", "time_step_init_scheme", "use_mambapy",
  "use_associative_scan", "use_falcon_mambapy", "intermediate_size" }

--- Returns the defaults of Mamba's keys, with `own`.
function steps.with_defaults(own)
  for key, value in pairs {
    vocab_size = 50280, hidden_size = 768, num_hidden_layers = 32, state_size = 16, expand = 2,
    conv_kernel = 4, use_bias = false, use_conv_bias = true, hidden_act = "silu",
    time_step_min = 0.001, time_step_max = 0.1, time_step_floor = 1e-4,
    rescale_prenorm_residual = false, tie_word_embeddings = true, pad_token_id = 0,
    bos_token_id = 0, eos_token_id = 0,
  } do
    if own[key] == nil then own[key] = value end
  end
  return own
end

--- Returns the facts of mamba_layer.lua.
function steps.facts(c)
  return {
    -- As in transformers, intermediate_size has precedence if a file has it.
    name = "mixer", inner = c.intermediate_size or math.floor(c.expand * c.hidden_size),
    rank = steps.rank(c, "time_step_rank"), n_states = c.state_size, kernel = c.conv_kernel,
    conv_bias = c.use_conv_bias, bias = c.use_bias, activation = c.hidden_act,
    step_init = steps.init(c), inits = steps.inits(c),
  }
end

return steps
