--- DBRX (Databricks, 2024), as Hugging Face's `DbrxForCausalLM`: mixtures of experts, the matrices
--- of all in one weight, norms without biases, and q, k and v in one projection.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local json = require "redco.models.json"
local masks = require "redco.models.layers.masks"
local native = require "redco.native"
local nn = require "redco.nn"
local norms = require "redco.models.layers.norms"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

local dbrx = {
  model_type = "dbrx",
  models = "DBRX",
  remarks = "experts; adapters of attention only",
  inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids" },
  architecture = "DbrxForCausalLM",
  base_model_prefix = "transformer",
  tasks = { features = tasks.features "Dbrx" },
  size_key = "d_model",
  defaults = {
    vocab_size = 32000,
    d_model = 2048,
    n_heads = 16,
    n_layers = 24,
    max_seq_len = 2048,
    resid_pdrop = 0,
    emb_pdrop = 0,
    initializer_range = 0.02,
    tie_word_embeddings = false,
  },
  -- Other names of the same settings (attribute_map of transformers).
  aliases = { hidden_size = "d_model", num_attention_heads = "n_heads",
    num_hidden_layers = "n_layers", max_position_embeddings = "max_seq_len" },
  optional = { "attn_config", "ffn_config", "num_key_value_heads", "rope_parameters" },
  -- Each version of transformers computes another loss of the router's probabilities.
  only = { output_router_logits = false, tie_word_embeddings = false },
  ignored = { "%.rotary_emb%.inv_freq$" },
}

local eps = 1e-5  -- of all norms

local attention_defaults = { attn_pdrop = 0, kv_n_heads = 1 }
local experts_defaults = { ffn_hidden_size = 3584, moe_num_experts = 4, moe_top_k = 1,
  moe_normalize_expert_weights = 1 }

-- Returns a part of the configuration, with its defaults. Null removes a default.
local function part_of(c, key, defaults)
  local given = c[key]
  if given ~= nil and type(given) ~= "table" then
    fail("dbrx: %s is %s, expected a table", key, tostring(given))
  end
  local part = {}
  for name, value in pairs(defaults) do part[name] = value end
  for name in pairs(given and json.nulls(given) or {}) do json.set_null(part, name) end
  for name, value in pairs(given or {}) do part[name] = value end
  return part
end

function dbrx.complete(c)
  local rope = type(c.rope_parameters) == "table" and c.rope_parameters or {}
  if (rope.rope_type or "default") ~= "default" then
    fail("dbrx: rope_type '%s' is not supported, only 'default'", rope.rope_type)
  end
  c.attn_config = part_of(c, "attn_config", attention_defaults)
  c.ffn_config = part_of(c, "ffn_config", experts_defaults)
  -- Only version 5 of transformers writes rope_parameters, and then ignores attn_config.rope_theta.
  c.attn_config.rope_theta = rope.rope_theta or c.attn_config.rope_theta or 10000
  c.num_key_value_heads, c.rope_parameters = c.attn_config.kv_n_heads, nil
end

function dbrx.check(c)
  blocks.check_multiple(c, "d_model", "n_heads")
  blocks.check_multiple(c, "n_heads", "num_key_value_heads")
  local ffn = c.ffn_config
  if ffn.moe_top_k > ffn.moe_num_experts then
    fail("dbrx: ffn_config.moe_top_k (%d) exceeds moe_num_experts (%d)", ffn.moe_top_k,
      ffn.moe_num_experts)
  end
  if ffn.moe_jitter_eps then
    fail("dbrx: ffn_config.moe_jitter_eps = %s is not supported", tostring(ffn.moe_jitter_eps))
  end
end

-- Returns the sizes of q, k and v.
local function sizes_of(c)
  local kv = c.num_key_value_heads * c.d_model / c.n_heads
  return { c.d_model, kv, kv }
end

function dbrx.add_parameters(c, add)
  local normal, width, ffn, sizes = blocks.normal(c.initializer_range), c.d_model, c.ffn_config,
    sizes_of(c)
  local function linear(name, n_in, n_out)
    blocks.add_linear(add, name, n_in, n_out, normal, false)
  end
  local function norm(name) norms.layer_without_bias.add(add, name, { width }) end
  add("transformer.wte.weight", { c.vocab_size, width },
    blocks.normal_but_padding(c, c.initializer_range), "embedding")
  for i = 0, c.n_layers - 1 do
    local block = ("transformer.blocks.%d."):format(i)
    norm(block .. "norm_attn_norm.norm_1")
    linear(block .. "norm_attn_norm.attn.Wqkv", width, sizes[1] + sizes[2] + sizes[3])
    linear(block .. "norm_attn_norm.attn.out_proj", width, width)
    norm(block .. "norm_attn_norm.norm_2")
    linear(block .. "ffn.router.layer", width, ffn.moe_num_experts)
    for _, part in ipairs { "w1", "v1", "w2" } do
      add(block .. "ffn.experts.mlp." .. part, { ffn.moe_num_experts * ffn.ffn_hidden_size, width },
        normal)
    end
  end
  norm "transformer.norm_f"
  add("lm_head.weight", { c.vocab_size, width }, normal, "head")
end

function dbrx.head() return "lm_head.weight" end

-- Returns function(params, name, x, angles, mask, o).
local function new_attention(c)
  local given, sizes = c.attn_config, sizes_of(c)
  local limit = given.clip_qkv == true and 1 or given.clip_qkv  -- true counts as 1
  local n_heads = { c.n_heads, c.num_key_value_heads, c.num_key_value_heads }
  return function(params, name, x, angles, mask, o)
    local all = blocks.linear(params, name .. ".Wqkv", x, o)
    if limit then all = all:clamp(-limit, limit) end
    local parts = all:split(sizes, -1)
    for k = 1, 3 do
      parts[k] = blocks.split_heads(parts[k], n_heads[k])
      if k < 3 then parts[k] = rotary.turn_halves(parts[k], unpack(angles)) end
    end
    local q, k, v = unpack(parts)
    if o.cache then k, v = o.cache:extend(name, k, v) end
    local y = blocks.attention(q, k, v, { seen = mask, dropout = given.attn_pdrop,
      enable_gqa = n_heads[2] < n_heads[1] }, o)
    return blocks.linear(params, name .. ".out_proj", y, o)
  end
end

-- Returns function(params, name, x, o), the mixture of experts.
local function new_mixture(c)
  local ffn = c.ffn_config
  local n, inner, order = ffn.moe_num_experts, ffn.ffn_hidden_size, ffn.moe_normalize_expert_weights
  local activation = blocks.activation("dbrx", (ffn.ffn_act_fn or {}).name or "silu")

  return function(params, name, x, o)
    local tokens = x:reshape { -1, c.d_model }
    local logits = blocks.linear(params, name .. ".router.layer", tokens, o)
    local weights, numbers = unpack { logits:to(blocks.wide_dtype(x)):softmax(-1)
      :topk(ffn.moe_top_k, -1) }
    if type(order) == "number" then weights = weights / weights:norm(order, { -1 }, true) end
    local function matrices(part)
      return params[name .. ".experts.mlp." .. part]:view { n, inner, c.d_model }
    end
    local y = activation(native.grouped_linear(tokens, numbers, matrices("w1"):unbind(0)))
      * native.grouped_linear(tokens, numbers, matrices("v1"):unbind(0))
    y = y * weights:to(x.dtype):unsqueeze(-1)
    return native.grouped_linear(y, numbers, matrices("w2"):transpose(1, 2):unbind(0)):sum { 1 }
      :view(x.shape)
  end
end

function dbrx.new_forward(c)
  local attention, mixture, padding_row = new_attention(c), new_mixture(c), blocks.padding_row(c)
  local rope = rotary.settings("dbrx", { rope_theta = c.attn_config.rope_theta,
    max_position_embeddings = c.max_seq_len }, c.d_model / c.n_heads)

  return function(params, inputs, o)
    local function norm(name, y) return norms.layer_without_bias.apply(params, name, y, eps) end
    local function drop(y) return blocks.dropout(y, c.resid_pdrop, o) end
    local x = blocks.dropout(
      blocks.embedding(params, "transformer.wte", inputs.input_ids, padding_row), c.emb_pdrop, o)
    local mask = masks.causal(inputs, o, x, { plain_dropout = c.attn_config.attn_pdrop })
    local angles = { rotary.angles(rope, inputs, o, x) }
    local function layer(block, y)
      local own = block .. "norm_attn_norm."
      y = y + drop(attention(params, own .. "attn", norm(own .. "norm_1", y), angles, mask, o))
      return y + drop(mixture(params, block .. "ffn", norm(own .. "norm_2", y), o))
    end
    for i = 0, c.n_layers - 1 do x = nn.block(layer, ("transformer.blocks.%d."):format(i), x) end
    return norm("transformer.norm_f", x)
  end
end

return dbrx
