--- Mamba-2 (Dao and Gu, 2024) and Codestral Mamba, as Hugging Face's `Mamba2ForCausalLM`.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local hybrid = require "redco.models.states.hybrid_layers"
local mamba2_layer = require "redco.models.states.mamba2_layer"
local new_family = require "redco.models.kinds.mamba_like"
local steps = require "redco.models.states.steps"
local tasks = require "redco.models.tasks"

local mamba2 = {
  model_type = "mamba2",
  models = "Mamba-2, Codestral Mamba",
  remarks = "states; a norm for each group of heads, as in version 5",
  architecture = "Mamba2ForCausalLM",
  tasks = { features = tasks.features "Mamba2" },
  defaults = {
    num_heads = 128,
    head_dim = 64,
    state_size = 128,
    expand = 2,
    conv_kernel = 4,
    n_groups = 8,
    use_bias = false,
    use_conv_bias = true,
    hidden_act = "silu",
    time_step_min = 0.001,
    time_step_max = 0.1,
    time_step_floor = 1e-4,
    rescale_prenorm_residual = false,
    chunk_size = 256,
    pad_token_id = 1,
    bos_token_id = 0,
    eos_token_id = 2,
  },
  optional = { "time_step_limit", "time_step_rank", "rms_norm", "norm_before_gate" },
  only = { norm_before_gate = true },
}

function mamba2.check(c)
  if c.hidden_size * c.expand ~= c.num_heads * c.head_dim then
    fail("mamba2: hidden_size * expand = %g must be num_heads * head_dim = %d",
      c.hidden_size * c.expand, c.num_heads * c.head_dim)
  end
  blocks.check_multiple(c, "num_heads", "n_groups")
end

function mamba2.mixer(c)
  local least, most = hybrid.limits(c)
  local mixer = mamba2_layer(c, {
    name = "mixer", n_heads = c.num_heads, inner = c.num_heads * c.head_dim, n_groups = c.n_groups,
    n_states = c.state_size, kernel = c.conv_kernel, conv_bias = c.use_conv_bias,
    in_bias = c.use_bias, out_bias = c.use_bias, activation = c.hidden_act,
    eps = c.layer_norm_epsilon, least = least, most = most, norm = "gated", dt_init = steps.init(c),
    inits = steps.inits(c),
  })
  return function() return mixer end
end

return new_family(mamba2)
