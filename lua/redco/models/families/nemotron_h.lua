--- Nemotron-H, Nemotron Nano 2 and 3 (NVIDIA, 2025), as Hugging Face's `NemotronHForCausalLM`: each
--- layer is one of Mamba-2, attention without positions, a feed-forward layer or experts.
local attention = require "redco.models.layers.llama_attention"
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local grouped_experts = require "redco.models.layers.grouped_experts"
local mamba2_layer = require "redco.models.states.mamba2_layer"
local new_family = require "redco.models.kinds.mamba_like"
local new_mlp = require "redco.models.layers.llama_mlp"
local steps = require "redco.models.states.steps"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

local nemotron = {
  model_type = "nemotron_h",
  models = "Nemotron-H, Nemotron Nano 2 and 3",
  remarks = "states and experts; without groups of experts and `moe_latent_size`; layers that "
    .. "predict a second token are ignored",
  architecture = "NemotronHForCausalLM",
  tasks = { features = tasks.features "NemotronH" },
  defaults = {
    vocab_size = 131072,
    intermediate_size = 21504,
    num_attention_heads = 32,
    num_key_value_heads = 8,
    head_dim = 128,
    max_position_embeddings = 4096,
    attention_dropout = 0,
    mlp_hidden_act = "relu2",
    mlp_bias = false,
    mamba_num_heads = 128,
    mamba_head_dim = 64,
    mamba_hidden_act = "silu",
    ssm_state_size = 128,
    n_groups = 8,
    conv_kernel = 4,
    use_conv_bias = true,
    use_bias = false,
    time_step_min = 0.001,
    time_step_max = 0.1,
    time_step_floor = 1e-4,
    rescale_prenorm_residual = true,
    n_routed_experts = 8,
    n_shared_experts = 1,
    moe_intermediate_size = 7688,
    moe_shared_expert_intermediate_size = 7688,
    num_experts_per_tok = 2,
    routed_scaling_factor = 1,
    norm_topk_prob = true,
    initializer_range = 0.02,
    residual_in_fp32 = false,
    pad_token_id = 0,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  nullable = { "num_key_value_heads" },
  optional = { "layers_block_type", "hybrid_override_pattern", "layer_types" },
  aliases = { num_local_experts = "n_routed_experts" },
  only = { n_group = 1, topk_group = 1, hidden_dropout = 0 },
  -- Layers that predict a second token, which transformers ignores too.
  ignored = { "^mtp%." },
  layer_kinds = { "full_attention", "linear_attention", "attention", "mamba", "mlp", "moe" },
}

local kinds = { M = "mamba", E = "moe", ["*"] = "attention", ["-"] = "mlp" }
local of_version_5 = { linear_attention = "mamba", full_attention = "attention" }

-- Returns the kinds of the layers.
local function kinds_of(c)
  local list, pattern = c.layers_block_type or c.layer_types, c.hybrid_override_pattern
  local found = {}
  if list then
    for i, kind in ipairs(list) do found[i] = of_version_5[kind] or kind end
  elseif type(pattern) == "string" then
    for i = 1, #pattern do
      found[i] = kinds[pattern:sub(i, i)] or fail("nemotron_h: hybrid_override_pattern has '%s', "
        .. "which is none of M, E, * and -", pattern:sub(i, i))
    end
  else
    found = { "mamba", "moe", "attention", "mlp" }
  end
  return found
end

function nemotron.complete(c)
  c.num_key_value_heads = c.num_key_value_heads or c.num_attention_heads
  c.num_hidden_layers = #kinds_of(c)
end

function nemotron.check(c)
  blocks.check_multiple(c, "num_attention_heads", "num_key_value_heads")
  blocks.check_multiple(c, "mamba_num_heads", "n_groups")
  if c.moe_latent_size then fail "nemotron_h: moe_latent_size is not supported" end
end

-- Returns the mixer of attention, whose facts are those of LLaMA.
local function new_attention(c)
  local facts = { qkv_bias = false, o_bias = false, o_name = "o_proj", pairs = {} }
  return {
    name = "mixer", forward = attention.new(c, facts),
    add_parameters = function(...) attention.add_parameters(c, facts, ...) end,
  }
end

-- Returns a feed-forward layer as a mixer.
local function as_mixer(layer)
  return {
    name = "mixer",
    add_parameters = function(name, linear, _, add) layer.add_parameters(name, linear, add) end,
    forward = function(params, name, x, _, _, o) return layer.forward(params, name, x, o) end,
  }
end

function nemotron.mixer(c)
  local own = setmetatable({ hidden_act = c.mlp_hidden_act, n_group = 1, topk_group = 1 },
    { __index = c })
  local names, normal = { "up_proj", "down_proj" }, blocks.normal(c.initializer_range)
  local inits = { conv = normal,
    out = c.rescale_prenorm_residual and steps.inits(c).out or normal }
  local makers = {
    mamba = function()
      return mamba2_layer(c, {
        name = "mixer", n_heads = c.mamba_num_heads, inner = c.mamba_num_heads * c.mamba_head_dim,
        n_groups = c.n_groups, n_states = c.ssm_state_size, kernel = c.conv_kernel,
        conv_bias = c.use_conv_bias, in_bias = c.use_bias, out_bias = c.use_bias,
        activation = c.mamba_hidden_act, eps = c.layer_norm_epsilon, norm = "gated",
        least = c.time_step_min, most = math.huge, dt_init = steps.init(c), inits = inits,
      })
    end,
    attention = function() return new_attention(c) end,
    mlp = function()
      return as_mixer(new_mlp(own,
        { activation = "hidden_act", mlp_names = names, mlp_bias = c.mlp_bias }))
    end,
    moe = function()
      return as_mixer(grouped_experts.new(own, {
        score = torch.sigmoid, bias = "gate.e_score_correction_bias", names = names,
        shared = c.moe_shared_expert_intermediate_size, shared_bias = c.mlp_bias,
      }))
    end,
  }
  local made, list = {}, kinds_of(c)
  return function(i)
    local kind = list[i + 1]
    made[kind] = made[kind] or makers[kind]()
    return made[kind]
  end
end

return new_family(nemotron)
