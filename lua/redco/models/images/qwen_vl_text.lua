--- The decoders of Qwen-VL: Qwen2, Qwen3 and Qwen3.5 with positions of time, row and column. Texts
--- alone have one position, so such a decoder alone is a Qwen2, Qwen3 or Qwen3.5, but for Qwen3's
--- with experts.
local experts = require "redco.models.layers.experts"
local fail = require "redco.fail"
local json = require "redco.models.json"
local new_family = require "redco.models.kinds.llama_like"
local qwen2 = require "redco.models.families.qwen2"
local qwen3_5 = require "redco.models.states.qwen3_5_rows"
local rotary = require "redco.models.layers.rotary"
local sparse_layers = require "redco.models.layers.sparse_layers"
local windows = require "redco.models.layers.windows"

-- Removes the kind "mrope". Returns mrope_section: how many pairs of a head rotate with each of the
-- three positions.
local function complete_positions(c, default)
  local section = default
  for _, key in ipairs { "rope_scaling", "rope_parameters" } do
    if type(c[key]) == "table" then
      local given = json.copy(c[key])
      if given.type == "mrope" then given.type = nil end
      if given.rope_type == "mrope" then given.rope_type = nil end
      section, c[key] = given.mrope_section or section, given
    end
  end
  if type(section) ~= "table" or #section ~= 3 then
    fail("%s: mrope_section: expected a table of three numbers, got %s", c.model_type, section)
  end
  return section
end

-- The first pairs rotate with time, the next ones with rows, the last ones with columns.
local parts = { default = { 16, 24, 24 }, axes = function(section)
  local axes = {}
  for axis, n in ipairs(section) do
    for _ = 1, n do axes[#axes + 1] = axis - 1 end
  end
  return axes
end }

-- Pairs alternate between time, rows and columns. The remaining pairs rotate with time.
local function axes_of_turns(section, n_pairs)
  local axes = {}
  for i = 0, n_pairs - 1 do
    local axis = i % 3
    axes[i + 1] = i < 3 * section[axis + 1] and axis or 0
  end
  return axes
end

local turns = { default = { 24, 20, 20 }, axes = axes_of_turns }
local turns_of_qwen3_5 = { default = { 11, 11, 10 }, axes = axes_of_turns }

local types = {}

-- Adds a family. Without images it is the family of the model_type `alone`, unless that is nil.
local function add(row, order, alone)
  local facts = row.facts
  function row.facts(c)
    local all, n_pairs = facts(c), rotary.size(c) / 2
    all.axes = order.axes(c.rope_scaling.mrope_section, n_pairs)
    if #all.axes ~= n_pairs then
      fail("%s: mrope_section has %d pairs, expected those of a head, %d", c.model_type, #all.axes,
        n_pairs)
    end
    return all
  end

  local family = new_family(row)
  local complete = family.complete
  function family.complete(c, is_file)
    local section = complete_positions(c, order.default)
    complete(c, is_file)
    c.rope_scaling = c.rope_scaling or { rope_type = "default" }
    c.rope_scaling.mrope_section = section
  end

  --- Returns a configuration of the decoder alone.
  family.alone = alone and function(given)
    local c = json.copy(given)
    for key, value in pairs(family.defaults) do
      if c[key] == nil and not json.nulls(c)[key] then c[key] = value end
    end
    complete_positions(c, order.default)
    c.model_type, c.architectures = alone, nil
    return c
  end

  types[row.model_type] = family
end

for _, name in ipairs { "qwen2_vl_text", "qwen2_5_vl_text" } do
  add({
    model_type = name, architecture = name == "qwen2_vl_text" and "Qwen2VLTextModel"
      or "Qwen2_5_VLTextModel",
    defaults = {
      vocab_size = 152064,
      hidden_size = 8192,
      intermediate_size = 29568,
      num_hidden_layers = 80,
      num_attention_heads = 64,
      num_key_value_heads = 8,
      hidden_act = "silu",
      max_position_embeddings = 32768,
      rms_norm_eps = 1e-5,
      rope_theta = 1000000,
      use_sliding_window = false,
      sliding_window = 4096,
      max_window_layers = 80,
    },
    nullable = qwen2.nullable, optional = { "layer_types" },
    complete = windows.complete_last,
    facts = function(c) return { qkv_bias = true, window = windows.of_types(c) } end,
  }, parts, "qwen2")
end

add({
  model_type = "qwen3_vl_text", architecture = "Qwen3VLTextModel",
  defaults = {
    vocab_size = 151936,
    hidden_size = 4096,
    intermediate_size = 22016,
    num_hidden_layers = 32,
    num_attention_heads = 32,
    num_key_value_heads = 32,
    head_dim = 128,
    hidden_act = "silu",
    max_position_embeddings = 128000,
    rms_norm_eps = 1e-6,
    rope_theta = 500000,
    attention_bias = false,
  },
  nullable = { "num_key_value_heads" },
  facts = function(c)
    return { qkv_bias = c.attention_bias, o_bias = c.attention_bias, head_norms = "head" }
  end,
}, turns, "qwen3")

add({
  model_type = "qwen3_vl_moe_text", architecture = "Qwen3VLMoeTextModel",
  defaults = {
    vocab_size = 151936,
    hidden_size = 2048,
    intermediate_size = 5632,
    num_hidden_layers = 24,
    num_attention_heads = 16,
    num_key_value_heads = 16,
    hidden_act = "silu",
    max_position_embeddings = 128000,
    rms_norm_eps = 1e-6,
    rope_theta = 500000,
    attention_bias = false,
    decoder_sparse_step = 1,
    moe_intermediate_size = 1408,
    num_experts_per_tok = 4,
    num_experts = 60,
    output_router_logits = false,
    router_aux_loss_coef = 0.001,
  },
  nullable = { "num_key_value_heads" },
  -- Version 5 of transformers writes the experts' matrices [n, out, in], not [n, in, out].
  optional = { "mlp_only_layers", "norm_topk_prob", "experts_are_turned" },
  aliases = { num_local_experts = "num_experts" },
  n_experts = "num_experts",
  facts = function(c)
    local mixture = experts.new(c, {
      stacked = { "experts.gate_up_proj", "experts.down_proj" },
      is_transposed = not c.experts_are_turned, is_normalised = true,
      n = c.num_experts, n_chosen = c.num_experts_per_tok, inner = c.moe_intermediate_size,
    })
    return { qkv_bias = c.attention_bias, o_bias = c.attention_bias, head_norms = "head",
      experts = sparse_layers(c, mixture) }
  end,
}, turns)

add(qwen3_5.dense(), turns_of_qwen3_5)
add(qwen3_5.mixture(), turns_of_qwen3_5)

return types
