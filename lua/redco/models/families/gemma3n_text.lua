--- The text model of Gemma 3n (Gemma Team, 2025), as Hugging Face's `Gemma3nForCausalLM`: copies of
--- the hidden states (altup.lua), embeddings for each layer, feed-forward layers that are mostly
--- zero, and last layers that use the keys and values of earlier ones.
local altups = require "redco.models.layers.altup"
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local gemma3 = require "redco.models.families.gemma3_text"
local layers = require "redco.models.layers.gemma_layers"
local masks = require "redco.models.layers.masks"
local nn = require "redco.nn"
local norms = require "redco.models.layers.norms"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"
local windows = require "redco.models.layers.windows"

local gemma3n = {
  model_type = "gemma3n_text",
  models = "Gemma 3n E2B, E4B",
  remarks = "of folders with images and sound only the text model is read",
  architecture = "Gemma3nForCausalLM",
  base_model_prefix = "model",
  inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids" },
  tasks = { features = tasks.features "Gemma3nText" },
  defaults = {
    vocab_size = 262400,
    hidden_size = 2048,
    num_hidden_layers = 35,
    num_attention_heads = 8,
    num_key_value_heads = 2,
    head_dim = 256,
    hidden_activation = "gelu_pytorch_tanh",
    max_position_embeddings = 32768,
    initializer_range = 0.02,
    rms_norm_eps = 1e-6,
    attention_bias = false,
    attention_dropout = 0,
    rope_theta = 1000000,
    rope_local_base_freq = 10000,
    sliding_window = 512,
    final_logit_softcapping = 30,
    vocab_size_per_layer_input = 262144,
    hidden_size_per_layer_input = 256,
    altup_active_idx = 0,
    altup_coef_clip = 120,
    altup_correct_scale = true,
    altup_num_inputs = 4,
    num_kv_shared_layers = 15,
    laurel_rank = 64,
    tie_word_embeddings = true,
    pad_token_id = 0,
    bos_token_id = 2,
    eos_token_id = 1,
  },
  nullable = { "final_logit_softcapping", "altup_coef_clip" },
  optional = { "layer_types", "intermediate_size", "activation_sparsity_pattern", "rope_scaling",
    "rope_parameters" },
  -- Version 4 of transformers writes "language_model" behind each "model", also within a name.
  current_name = function(name) return (name:gsub("model%.language_model", "model")) end,
  -- Weights of the last layers, which use the keys and values of earlier layers instead.
  ignored = { "%.self_attn%.[kv]_proj%.", "%.self_attn%.k_norm%.", "%.rotary_emb%.inv_freq$" },
  lists = { intermediate_size = true, activation_sparsity_pattern = true },
  logits_cap = function(c) return c.final_logit_softcapping end,
  head = blocks.tied_head "model.embed_tokens.weight",
}

-- Completes a list with a number for each layer.
local function complete_list(c, key, default)
  local given, n = c[key], c.num_hidden_layers
  if type(given) == "number" then
    c[key] = {}
    for i = 1, n do c[key][i] = given end
  elseif given == nil then
    c[key] = {}
    for i = 1, n do c[key][i] = default(i) end
  end
  if type(c[key]) ~= "table" or #c[key] ~= n then
    fail("gemma3n_text: %s must be a list of %d numbers, one for each layer", key, n)
  end
  for _, value in ipairs(c[key]) do
    if type(value) ~= "number" or value < 0 then
      fail("gemma3n_text: %s must have numbers that are not negative, got %s", key, value)
    end
  end
end

function gemma3n.complete(c)
  gemma3.read_rope_parameters(c)
  rotary.complete(c)
  windows.complete(c, function(i) return (i + 1) % 5 ~= 0 end)
  complete_list(c, "intermediate_size", function() return 16384 end)
  complete_list(c, "activation_sparsity_pattern", function(i)
    return c.num_hidden_layers > 10 and i <= 10 and 0.95 or 0
  end)
end

function gemma3n.check(c)
  blocks.check_multiple(c, "num_attention_heads", "num_key_value_heads")
  if c.altup_active_idx % 1 ~= 0 or c.altup_active_idx >= c.altup_num_inputs then
    fail("gemma3n_text: altup_active_idx is %s, expected a number below altup_num_inputs, %d",
      c.altup_active_idx, c.altup_num_inputs)
  end
  local shared_of = layers.new_shared(c)
  for i = 0, c.num_hidden_layers - 1 do shared_of(i) end
  windows.of_types(c)
end

local function sizes_of(c)
  return { head_dim = c.head_dim, n_kv = c.num_key_value_heads, has_v = true }
end

local norm_names = { "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
  "post_feedforward_layernorm", "post_per_layer_input_norm" }

local function new_altup(c)
  return altups(c, function(params, name, x)
    return norms.rms.apply(params, name, x, c.rms_norm_eps)
  end)
end

function gemma3n.add_parameters(c, add)
  local width, own = c.hidden_size, c.hidden_size_per_layer_input
  local normal, altup = blocks.normal(c.initializer_range), new_altup(c)
  local shared_of = layers.new_shared(c)
  local function linear(name, n_in, n_out, bias)
    blocks.add_linear(add, name, n_in, n_out, normal, bias or false)
  end
  local function norm(name, sizes) norms.rms.add(add, name, sizes) end
  local of_tokens = blocks.normal_but_padding(c, c.initializer_range)
  add("model.embed_tokens.weight", { c.vocab_size, width }, of_tokens, "embedding")
  for i = 0, c.num_hidden_layers - 1 do
    local layer, inner = ("model.layers.%d."):format(i), c.intermediate_size[i + 1]
    layers.add_attention(c, layer .. "self_attn", sizes_of(c), shared_of(i), linear, norm)
    linear(layer .. "mlp.gate_proj", width, inner)
    linear(layer .. "mlp.up_proj", width, inner)
    linear(layer .. "mlp.down_proj", inner, width)
    for _, name in ipairs(norm_names) do norm(layer .. name, { width }) end
    altup.add_parameters(layer .. "altup", linear, norm, add)
    linear(layer .. "laurel.linear_left", width, c.laurel_rank)
    linear(layer .. "laurel.linear_right", c.laurel_rank, width)
    norm(layer .. "laurel.post_laurel_norm", { width })
    linear(layer .. "per_layer_input_gate", width, own)
    linear(layer .. "per_layer_projection", own, width)
  end
  norm("model.norm", { width })
  layers.add_inputs_of_layers(c, linear, norm, add)
  for i = 0, c.altup_num_inputs - 2 do
    linear(("model.altup_projections.%d"):format(i), width, width)
    linear(("model.altup_unembed_projections.%d"):format(i), width, width)
  end
  if not c.tie_word_embeddings then
    add("lm_head.weight", { c.vocab_size, width }, normal, "head")
  end
end

-- Returns function(params, name, x, o), a feed-forward layer that zeroes a share of the gates: the
-- lowest ones, if the gates are normally distributed.
local function new_mlp(c, share)
  local activation = blocks.activation("gemma3n_text", c.hidden_activation)
  local deviations = share > 0
    and math.sqrt(2) * torch.erfinv(torch.tensor(2 * share - 1, { dtype = "float32" })):item()
  return function(params, name, x, o)
    local gate = blocks.linear(params, name .. ".gate_proj", x, o)
    if deviations then
      local mean = gate:mean({ -1 }, true)
      local deviation = (gate - mean):square():mean({ -1 }, true):sqrt()
      gate = torch.relu(gate - (mean + deviation * deviations))
    end
    local y = blocks.gated(activation, gate, blocks.linear(params, name .. ".up_proj", x, o))
    return blocks.linear(params, name .. ".down_proj", y, o)
  end
end

function gemma3n.new_forward(c)
  local attend, altup = layers.new_attention(c, sizes_of(c)), new_altup(c)
  local shared_of = layers.new_shared(c)
  local padding_row, window = blocks.padding_row(c), windows.of_types(c)
  local activation = blocks.activation("gemma3n_text", c.hidden_activation)
  local n_layers = c.num_hidden_layers
  local whole = rotary.settings("gemma3n_text", c, c.head_dim)
  local near = rotary.settings("gemma3n_text", {
    rope_theta = c.rope_local_base_freq, max_position_embeddings = c.max_position_embeddings,
  }, c.head_dim)
  local mlps = {}
  for i = 1, n_layers do mlps[i - 1] = new_mlp(c, c.activation_sparsity_pattern[i]) end

  return function(params, inputs, o)
    local function norm(name, y) return norms.rms.apply(params, name, y, c.rms_norm_eps) end
    local x = layers.scaled(blocks.embedding(params, "model.embed_tokens", inputs.input_ids,
      padding_row), c.hidden_size)
    local ids = inputs.input_ids
    local of_layers = layers.inputs_of_layers(c, params,
      ids:masked_fill(ids:ge(c.vocab_size_per_layer_input), 0), x, o)
    local angles = {}
    local mask_of = masks.by_window(inputs, o, x, { plain_dropout = c.attention_dropout })
    for kind, rope in pairs { full_attention = whole, sliding_attention = near } do
      angles[kind] = { rotary.angles(rope, inputs, o, x) }
    end

    local function apply_layer(i, states, own_input, turn, mask, shared)
      local layer = ("model.layers.%d."):format(i)
      local predicted = altup.predict(params, layer .. "altup", states, o)
      local input = predicted:select(2, c.altup_active_idx)
      local y = norm(layer .. "input_layernorm", input)
      local low = blocks.linear(params, layer .. "laurel.linear_right",
        blocks.linear(params, layer .. "laurel.linear_left", y, o), o)
      local laurel = y + norm(layer .. "laurel.post_laurel_norm", low)
      local attended, k, v = attend(params, layer .. "self_attn", y, turn, mask, shared, o)
      local sum = (input + norm(layer .. "post_attention_layernorm", attended) + laurel)
        / math.sqrt(2)
      local fed = mlps[i](params, layer .. "mlp", norm(layer .. "pre_feedforward_layernorm", sum),
        o)
      sum = sum + norm(layer .. "post_feedforward_layernorm", fed)
      states = altup.correct(params, layer .. "altup", predicted, sum, o)
      local first = states:select(2, c.altup_active_idx)
      if c.altup_correct_scale then
        first = first * params[layer .. "altup.correct_output_scale"]
      end
      first = activation(blocks.linear(params, layer .. "per_layer_input_gate", first, o))
      first = blocks.linear(params, layer .. "per_layer_projection", first * own_input, o)
      first = norm(layer .. "post_per_layer_input_norm", first):unsqueeze(2)
      local n = c.altup_num_inputs
      states = torch.cat({ states:narrow(2, 0, 1), states:narrow(2, 1, n - 1) + first }, 2)
      return states, k, v
    end

    local states, shared = altup.spread(params, "model.altup_projections", x, o), {}
    for i = 0, n_layers - 1 do
      local kind, source = c.layer_types[i + 1], shared_of(i)
      local k, v
      states, k, v = nn.block(apply_layer, i, states, of_layers:select(2, i), angles[kind],
        mask_of(window(i)), source and shared[source] or nil)
      shared[i] = { k, v }
    end
    return norm("model.norm", altup.gather(params, "model.altup_unembed_projections", states, o))
  end
end

return gemma3n
