--- JetMoE (Shen et al., 2024), as Hugging Face's `JetMoeForCausalLM`: a router chooses among
--- feed-forward experts, and another among experts of attention, which have projections of queries
--- and outputs. All experts share keys and values.
local blocks = require "redco.models.layers.blocks"
local experts = require "redco.models.layers.experts"
local native = require "redco.native"
local new_family = require "redco.models.kinds.llama_like"
local norms = require "redco.models.layers.norms"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

-- Returns the norm. transformers reads rms_norm_eps only for the last one.
local function new_norm(c)
  return { add = norms.rms.add, apply = function(params, name, x)
    return norms.rms.apply(params, name, x, name == "model.norm" and c.rms_norm_eps or 1e-6)
  end }
end

-- Returns the mixture of feed-forward layers.
local function new_mixture(c)
  local own = setmetatable({ hidden_act = c.activation_function }, { __index = c })
  local mixture = experts.new(own, {
    n = c.num_local_experts, n_chosen = c.num_experts_per_tok, inner = c.intermediate_size,
    is_normalised = true, router = "router.layer",
    stacked = { "input_linear.weight", "output_linear.weight" },
    add_more = function(name, add) add(name .. ".bias", { c.hidden_size }, blocks.zeros) end,
  })
  local forward = mixture.forward
  function mixture.forward(params, name, x, o)
    local y, logits, numbers = forward(params, name, x, o)
    return y + params[name .. ".bias"], logits, numbers
  end
  return mixture
end

-- Returns attention as a mixer of llama_like.lua. Shapes: B rows of T tokens, k experts of each
-- token, H heads of keys and values of D.
local function new_attention(c)
  local n, n_chosen, n_heads = c.num_local_experts, c.num_experts_per_tok, c.num_key_value_heads
  local size, inner = c.hidden_size, n_heads * c.kv_channels
  local layer = { name = "self_attention" }

  function layer.add_parameters(name, linear, _, add)
    local normal = blocks.normal(c.initializer_range)
    linear(name .. ".experts.router.layer", size, n, false)
    add(name .. ".experts.input_linear.weight", { n, inner, size }, normal, "linear")
    add(name .. ".experts.output_linear.weight", { n, size, inner }, normal, "linear")
    add(name .. ".experts.bias", { size }, blocks.zeros)
    linear(name .. ".kv_proj", size, 2 * inner, false)
  end

  local function of_experts(params, name, x, numbers)
    return native.grouped_linear(x, numbers, params[name]:unbind(0), params[name .. "_type"])
  end

  function layer.forward(params, name, x, angles, mask, o)
    local batch, length, own = x:size(0), x:size(1), name .. ".experts."
    local tokens = x:reshape { -1, size }
    local logits = blocks.linear(params, own .. "router.layer", tokens, o)
    local scores, numbers = unpack { logits:to(blocks.wide_dtype(x)):topk(n_chosen, -1) }
    local weights = scores:softmax(-1):to(x.dtype):unsqueeze(-1)

    -- [B * T, k, H * D] -> [B, H * k, T, D], and back
    local q = of_experts(params, own .. "input_linear.weight", tokens, numbers)
      :view { batch, length, n_chosen, n_heads, c.kv_channels }:permute { 0, 3, 2, 1, 4 }
      :reshape { batch, n_heads * n_chosen, length, c.kv_channels }
    local k, v = unpack(blocks.linear(params, name .. ".kv_proj", x, o):chunk(2, -1))
    k, v = blocks.split_heads(k, n_heads), blocks.split_heads(v, n_heads)
    q, k = rotary.turn_halves(q, unpack(angles)), rotary.turn_halves(k, unpack(angles))
    if o.cache then k, v = o.cache:extend(name, k, v) end
    local y = blocks.attend(q, k, v, { seen = mask, dropout = c.attention_dropout,
      enable_gqa = n_chosen > 1 }, o)
    y = y:view { batch, n_heads, n_chosen, length, c.kv_channels }:permute { 0, 3, 2, 1, 4 }
      :reshape { batch * length, n_chosen, inner }
    y = of_experts(params, own .. "output_linear.weight", y * weights, numbers):sum { 1 }
    return y:view(x.shape) + params[own .. "bias"]
  end

  return layer
end

return new_family {
  model_type = "jetmoe",
  models = "JetMoE-8B",
  remarks = "experts; adapters of keys and values only",
  architecture = "JetMoeForCausalLM",
  tasks = tasks.of_decoder("JetMoe", {}),
  defaults = {
    vocab_size = 32000,
    hidden_size = 2048,
    num_hidden_layers = 12,
    num_key_value_heads = 16,
    kv_channels = 128,
    intermediate_size = 5632,
    max_position_embeddings = 4096,
    activation_function = "silu",
    num_local_experts = 8,
    num_experts_per_tok = 2,
    aux_loss_coef = 0.01,
    rms_norm_eps = 1e-6,
    initializer_range = 0.01,
    bos_token_id = 1,
    eos_token_id = 2,
    tie_word_embeddings = true,
  },
  aliases = { head_dim = "kv_channels" },
  -- transformers 4 fails if this key is true.
  only = { output_router_logits = false },
  n_experts = "num_local_experts",
  complete = function(c)
    c.head_dim = c.kv_channels
    c.num_attention_heads = c.num_key_value_heads * c.num_experts_per_tok
  end,
  facts = function(c)
    local mixture, attention = new_mixture(c), new_attention(c)
    return {
      norm = new_norm(c), experts = function() return mixture end,
      mixer = function() return attention end,
    }
  end,
}
