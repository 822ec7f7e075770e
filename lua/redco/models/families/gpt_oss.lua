--- gpt-oss (OpenAI, 2025), as Hugging Face's `GptOssForCausalLM`: LLaMA with experts in each layer,
--- windows in every other layer, and in each head a score that takes its share of attention.
local blocks = require "redco.models.layers.blocks"
local experts = require "redco.models.layers.experts"
local native = require "redco.native"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"
local windows = require "redco.models.layers.windows"

local gpt_oss = {
  model_type = "gpt_oss",
  models = "gpt-oss-20b, 120b",
  remarks = "experts, in MXFP4 or floats; without `output_router_logits`",
  architecture = "GptOssForCausalLM",
  tasks = tasks.of_decoder("GptOss", { token_classification = "score" }),
  defaults = {
    vocab_size = 201088,
    hidden_size = 2880,
    intermediate_size = 2880,
    num_hidden_layers = 36,
    num_attention_heads = 64,
    num_key_value_heads = 8,
    head_dim = 64,
    hidden_act = "silu",
    max_position_embeddings = 131072,
    rms_norm_eps = 1e-5,
    rope_theta = 150000,
    sliding_window = 128,
    num_local_experts = 128,
    num_experts_per_tok = 4,
    attention_bias = true,
    swiglu_alpha = 1.702,
    swiglu_limit = 7,
    output_router_logits = false,
    router_aux_loss_coef = 0.9,
  },
  nullable = { "num_key_value_heads", "head_dim", "sliding_window" },
  -- Model folders contain the last keys, which transformers does not read.
  optional = { "layer_types", "experts_per_token", "initial_context_length" },
  -- Version 4 of transformers computes the router loss from scores, not from probabilities.
  only = { output_router_logits = false },
  aliases = { num_experts = "num_local_experts" },
  n_experts = "num_local_experts",
}

function gpt_oss.complete(c)
  windows.complete(c, function(i) return i % 2 == 0 end)
  if c.rope_parameters or c.rope_scaling then return end
  c.rope_scaling = { rope_type = "yarn", factor = 32, beta_fast = 32, beta_slow = 1,
    truncate = false, original_max_position_embeddings = 4096 }
end

-- Returns a router like those of experts.lua, with a softmax over the chosen experts only.
local function new_route(c)
  return function(params, name, x, o)
    -- Each model shard chooses among all experts.
    local logits = native.whole_on_shards(blocks.linear(params, name .. ".router", x, o))
    local top, numbers = unpack { logits:topk(c.num_experts_per_tok, -1) }
    return logits, top:to(blocks.wide_dtype(top)):softmax(-1), numbers
  end
end

-- Returns a function of [..., 2 inner], in which gates and their factors alternate.
local function new_gated(c)
  return function(y)
    local shape = y.shape
    shape[#shape], shape[#shape + 1] = shape[#shape] / 2, 2
    local gate, up = unpack(y:view(shape):unbind(-1))
    gate = gate:clamp(nil, c.swiglu_limit)
    up = up:clamp(-c.swiglu_limit, c.swiglu_limit)
    return (up + 1) * (gate * torch.sigmoid(gate * c.swiglu_alpha))
  end
end

function gpt_oss.facts(c)
  local mixture = experts.new(c, {
    n = c.num_local_experts, inner = c.intermediate_size, router = "router",
    router_bias = blocks.normal(c.initializer_range), route = new_route(c),
    stacked = { "experts.gate_up_proj", "experts.down_proj" }, is_transposed = true, bias = true,
    gated = new_gated(c),
  })
  return {
    qkv_bias = c.attention_bias, o_bias = c.attention_bias, has_sinks = true,
    window = windows.of_types(c), experts = function() return mixture end,
  }
end

return new_family(gpt_oss)
