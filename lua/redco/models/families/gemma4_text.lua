--- The text model of Gemma 4 (Google, 2026), as Hugging Face's `Gemma4ForCausalLM`: heads of
--- several sizes, values that may be keys, embeddings for each layer, experts beside the
--- feed-forward layer, and last layers that use the keys and values of earlier ones.
local blocks = require "redco.models.layers.blocks"
local experts = require "redco.models.layers.experts"
local fail = require "redco.fail"
local layers = require "redco.models.layers.gemma_layers"
local masks = require "redco.models.layers.masks"
local native = require "redco.native"
local new_mlp = require "redco.models.layers.llama_mlp"
local nn = require "redco.nn"
local norms = require "redco.models.layers.norms"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"
local windows = require "redco.models.layers.windows"

local gemma4 = {
  model_type = "gemma4_text",
  models = "Gemma 4 E2B, E4B, 31B, 26B-A4B",
  architecture = "Gemma4ForCausalLM",
  base_model_prefix = "model",
  takes_features = true,
  inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids" },
  tasks = { features = tasks.features "Gemma4Text" },
  defaults = {
    vocab_size = 262144,
    hidden_size = 2304,
    intermediate_size = 9216,
    num_hidden_layers = 30,
    num_attention_heads = 8,
    num_key_value_heads = 4,
    head_dim = 256,
    hidden_activation = "gelu_pytorch_tanh",
    max_position_embeddings = 131072,
    initializer_range = 0.02,
    rms_norm_eps = 1e-6,
    attention_bias = false,
    attention_dropout = 0,
    sliding_window = 512,
    vocab_size_per_layer_input = 262144,
    hidden_size_per_layer_input = 256,
    attention_k_eq_v = false,
    num_kv_shared_layers = 0,
    enable_moe_block = false,
    use_double_wide_mlp = false,
    tie_word_embeddings = true,
    pad_token_id = 0,
    bos_token_id = 2,
    eos_token_id = 1,
  },
  least = { hidden_size_per_layer_input = 0 },
  optional = { "layer_types", "final_logit_softcapping", "rope_parameters", "global_head_dim",
    "num_global_key_value_heads", "per_layer_config", "num_experts", "top_k_experts",
    "moe_intermediate_size", "use_bidirectional_attention", "is_causal" },
  -- Weights of the last layers, which use the keys and values of earlier layers instead.
  ignored = { "%.self_attn%.[kv]_proj%.", "%.self_attn%.k_norm%.", "%.rotary_emb%." },
  logits_cap = function(c) return c.final_logit_softcapping end,
  head = blocks.tied_head "model.embed_tokens.weight",
}

function gemma4.complete(c)
  windows.complete(c, function(i) return (i + 1) % 6 ~= 0 end)
  c.layer_types[#c.layer_types] = "full_attention"  -- as transformers does
  c.rope_parameters = c.rope_parameters or {
    sliding_attention = { rope_type = "default", rope_theta = 10000 },
    full_attention = { rope_type = "proportional", partial_rotary_factor = 0.25,
      rope_theta = 1000000 },
  }
end

-- Returns the sizes of the attention of layer i, for gemma_layers.lua.
local function sizes_of(c, i)
  local is_full = c.layer_types[i + 1] == "full_attention"
  local own = c.per_layer_config and (c.per_layer_config[tostring(i)] or {})
  if not own and is_full then
    own = { head_dim = c.global_head_dim or 512,
      num_key_value_heads = c.attention_k_eq_v and c.num_global_key_value_heads or nil }
  end
  own = own or {}
  return { head_dim = own.head_dim or c.head_dim,
    n_kv = own.num_key_value_heads or c.num_key_value_heads,
    has_v = not (c.attention_k_eq_v and is_full) }
end

-- Returns the settings of the positions of a kind of layers, with heads of `size` elements.
local function rope_of(c, kind, size)
  local given = c.rope_parameters[kind]
  if type(given) ~= "table" then
    fail("gemma4_text: rope_parameters.%s is %s, expected a table", kind, given)
  end
  local own = { model_type = c.model_type, rope_parameters = given,
    max_position_embeddings = c.max_position_embeddings }
  rotary.complete(own)
  local scaling, share = own.rope_scaling, own.partial_rotary_factor or 1
  if scaling and scaling.rope_type == "proportional" then
    scaling.share = share
  elseif scaling and share ~= 1 then
    fail("gemma4_text: rope_parameters.%s has partial_rotary_factor = %s, which is only supported "
      .. "with the rope_type proportional", kind, share)
  end
  own.rope_theta = own.rope_theta or 10000
  return rotary.settings("gemma4_text", own, size)
end

local function check_layer(c, i)
  local own, sizes = (c.per_layer_config or {})[tostring(i)] or {}, sizes_of(c, i)
  for key in pairs(own) do
    if key ~= "head_dim" and key ~= "num_key_value_heads" then
      fail("gemma4_text: per_layer_config has %s, which is not supported, only head_dim and "
        .. "num_key_value_heads", key)
    end
  end
  if c.num_attention_heads % sizes.n_kv ~= 0 then
    fail("gemma4_text: num_attention_heads (%d) is not a multiple of the %d heads of keys of layer "
      .. "%d", c.num_attention_heads, sizes.n_kv, i)
  end
  rope_of(c, c.layer_types[i + 1], sizes.head_dim)
end

function gemma4.check(c)
  if c.num_kv_shared_layers >= c.num_hidden_layers then
    fail("gemma4_text: num_kv_shared_layers (%d) must be below num_hidden_layers (%d)",
      c.num_kv_shared_layers, c.num_hidden_layers)
  end
  local shared_of = layers.new_shared(c)
  for i = 0, c.num_hidden_layers - 1 do
    check_layer(c, i)
    shared_of(i)
  end
  windows.of_types(c)
  if not c.enable_moe_block then return end
  for _, key in ipairs { "num_experts", "top_k_experts", "moe_intermediate_size" } do
    if not c[key] then fail("gemma4_text: enable_moe_block needs %s, which is missing", key) end
  end
  if c.top_k_experts > c.num_experts then
    fail("gemma4_text: top_k_experts (%d) exceeds num_experts (%d)", c.top_k_experts, c.num_experts)
  end
end

local function rms(c, params, name, x) return norms.rms.apply(params, name, x, c.rms_norm_eps) end

-- Returns the experts of a layer. The router normalises and scales its input, and scales the
-- weights of the chosen experts.
local function new_mixture(c)
  local own = setmetatable({ hidden_act = c.hidden_activation }, { __index = c })
  local function route(params, name, x, o)
    x = norms.rms_plain.apply(params, nil, x, c.rms_norm_eps) * params[name .. ".router.scale"]
    -- Each model shard chooses among all experts.
    local logits = native.whole_on_shards(
      blocks.linear(params, name .. ".router.proj", x * c.hidden_size ^ -0.5, o))
    local probs = logits:to(blocks.wide_dtype(x)):softmax(-1)
    local weights, numbers = unpack { probs:topk(c.top_k_experts, -1) }
    weights = weights / weights:sum({ -1 }, true)
    local factors = params[name .. ".router.per_expert_scale"]
    return logits, weights * factors:index_select(0, numbers:view(-1)):view(numbers.shape), numbers
  end
  return experts.new(own, {
    n = c.num_experts, inner = c.moe_intermediate_size, router = "router.proj", route = route,
    stacked = { "experts.gate_up_proj", "experts.down_proj" },
    add_more = function(name, add)
      add(name .. ".router.scale", { c.hidden_size }, blocks.ones)
      add(name .. ".router.per_expert_scale", { c.num_experts }, blocks.ones)
    end,
  })
end

-- Returns function(i) -> the feed-forward layer of layer i, and the experts beside it or nil.
local function mlps_of(c)
  local shared_of = layers.new_shared(c)
  local mixture = c.enable_moe_block and new_mixture(c) or nil
  return function(i)
    local factor = c.use_double_wide_mlp and shared_of(i) and 2 or 1
    return new_mlp(c, { activation = "hidden_activation", inner = factor * c.intermediate_size,
      mlp_names = { "gate_proj", "up_proj", "down_proj" }, mlp_bias = false }), mixture
  end
end

local norm_names = { "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
  "post_feedforward_layernorm" }
local norms_of_experts = { "post_feedforward_layernorm_1", "post_feedforward_layernorm_2",
  "pre_feedforward_layernorm_2" }

function gemma4.add_parameters(c, add)
  local width, own, normal = c.hidden_size, c.hidden_size_per_layer_input,
    blocks.normal(c.initializer_range)
  local shared_of, mlp_of = layers.new_shared(c), mlps_of(c)
  local function linear(name, n_in, n_out, bias)
    blocks.add_linear(add, name, n_in, n_out, normal, bias or false)
  end
  local function norm(name, sizes) norms.rms.add(add, name, sizes) end
  add("model.embed_tokens.weight", { c.vocab_size, width },
    blocks.normal_but_padding(c, c.initializer_range), "embedding")
  for i = 0, c.num_hidden_layers - 1 do
    local layer, mlp, mixture = ("model.layers.%d."):format(i), mlp_of(i)
    layers.add_attention(c, layer .. "self_attn", sizes_of(c, i), shared_of(i), linear, norm)
    mlp.add_parameters(layer .. "mlp", linear)
    for _, name in ipairs(norm_names) do norm(layer .. name, { width }) end
    add(layer .. "layer_scalar", { 1 }, blocks.ones)
    if mixture then
      mixture.add_parameters(layer:sub(1, -2), linear, add)
      for _, name in ipairs(norms_of_experts) do norm(layer .. name, { width }) end
    end
    if own > 0 then
      linear(layer .. "per_layer_input_gate", width, own)
      linear(layer .. "per_layer_projection", own, width)
      norm(layer .. "post_per_layer_input_norm", { width })
    end
  end
  norm("model.norm", { width })
  if own > 0 then layers.add_inputs_of_layers(c, linear, norm, add) end
  if not c.tie_word_embeddings then
    add("lm_head.weight", { c.vocab_size, width }, normal, "head")
  end
end

-- Returns function(window) -> how far tokens see to both sides, or nil if they see only backwards.
local function reach_of(c)
  if c.use_bidirectional_attention == "all" then
    return function(window) return math.floor(window / 2) + 1 end
  end
  return c.is_causal == false and function(window) return window end or nil
end

function gemma4.new_forward(c)
  local padding_row, window, reach = blocks.padding_row(c), windows.of_types(c), reach_of(c)
  local activation = blocks.activation("gemma4_text", c.hidden_activation)
  local n_layers, own, shared_of = c.num_hidden_layers, c.hidden_size_per_layer_input,
    layers.new_shared(c)
  local mlp_of, attentions, ropes, mlps, mixtures = mlps_of(c), {}, {}, {}, {}
  for i = 0, n_layers - 1 do
    local sizes = sizes_of(c, i)
    attentions[i], ropes[i] = layers.new_attention(c, sizes),
      rope_of(c, c.layer_types[i + 1], sizes.head_dim)
    mlps[i], mixtures[i] = mlp_of(i)
  end

  -- Adds the outputs of the feed-forward layer and the experts to x. Returns the sum, and the
  -- router's logits and the numbers of its experts.
  local function fed(params, layer, i, x, o)
    local function norm(name, y) return rms(c, params, layer .. name, y) end
    local y = mlps[i].forward(params, layer .. "mlp", norm("pre_feedforward_layernorm", x), o)
    local logits, numbers
    if mixtures[i] then
      local chosen
      chosen, logits, numbers = mixtures[i].forward(params, layer:sub(1, -2),
        norm("pre_feedforward_layernorm_2", x), o, x)
      y = norm("post_feedforward_layernorm_1", y) + norm("post_feedforward_layernorm_2", chosen)
    end
    return x + norm("post_feedforward_layernorm", y), logits, numbers
  end

  return function(params, inputs, o)
    local x = layers.scaled(blocks.embedding(params, "model.embed_tokens", inputs.input_ids,
      padding_row), c.hidden_size)
    if inputs.spliced then x = inputs.spliced(x) end
    local of_layers = own > 0
      and layers.inputs_of_layers(c, params, inputs.input_ids, x, o)
    local given = { reach = reach, plain_dropout = c.attention_dropout }
    local mask_near = masks.by_window(inputs, o, x, given)
    -- Without a window the tokens of an image do not see those after them.
    local mask_all = inputs.image_spans and masks.by_window(
      setmetatable({ image_spans = false }, { __index = inputs }), o, x, given) or mask_near
    local function mask_of(width) return (width and mask_near or mask_all)(width) end
    local shared, routers = {}, { numbers = {} }

    local function apply_layer(i, y, own_input, turn, mask, keys)
      local layer = ("model.layers.%d."):format(i)
      local function norm(name, z) return rms(c, params, layer .. name, z) end
      local seen, k, v = attentions[i](params, layer .. "self_attn", norm("input_layernorm", y),
        turn, mask, keys, o)
      y = y + norm("post_attention_layernorm", seen)
      local logits, numbers
      y, logits, numbers = fed(params, layer, i, y, o)
      if own_input then
        local z = activation(blocks.linear(params, layer .. "per_layer_input_gate", y, o))
        z = blocks.linear(params, layer .. "per_layer_projection", z * own_input, o)
        y = y + norm("post_per_layer_input_norm", z)
      end
      return y * params[layer .. "layer_scalar"]:detach(), k, v, logits, numbers
    end

    for i = 0, n_layers - 1 do
      local k, v, logits, numbers
      local turn = { rotary.angles(ropes[i], inputs, o, x) }
      x, k, v, logits, numbers = nn.block(apply_layer, i, x, of_layers and of_layers:select(2, i),
        turn, mask_of(window(i)), shared[shared_of(i) or -1])
      shared[i] = { k, v }
      routers[#routers + 1], routers.numbers[#routers.numbers + 1] = logits, numbers
    end
    return rms(c, params, "model.norm", x), routers
  end
end

return gemma4
