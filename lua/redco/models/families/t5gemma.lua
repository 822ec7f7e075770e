--- T5Gemma (Google, 2025), as Hugging Face's `T5GemmaForConditionalGeneration`: an encoder and a
--- decoder of the layers of Gemma 2.
local attention = require "redco.models.layers.llama_attention"
local blocks = require "redco.models.layers.blocks"
local complete_config = require "redco.models.config"
local gemma2 = require "redco.models.families.gemma2"
local masks = require "redco.models.layers.masks"
local new_mlp = require "redco.models.layers.llama_mlp"
local nn = require "redco.nn"
local norms = require "redco.models.layers.norms"
local rotary = require "redco.models.layers.rotary"
local ties = require "redco.models.ties"
local torch = require "redco.torch"
local windows = require "redco.models.layers.windows"

local part = setmetatable({
  model_type = "t5_gemma_module",
  optional = { "is_decoder", "dropout_rate", "cross_attention_hidden_size",
    unpack(gemma2.optional) },
}, { __index = gemma2 })

-- Returns the inputs with a mask of the decoder's padding, made from pad_token_id as in
-- transformers. The model that generates makes no such mask.
local function with_decoder_mask(c, inputs)
  local ids, pad = inputs.decoder_input_ids, c.decoder.pad_token_id
  if not ids or inputs.decoder_attention_mask or not pad then return inputs end
  local all = { decoder_attention_mask = ids:ne(pad) }
  for name, value in pairs(inputs) do all[name] = value end
  return all
end

-- Returns the row of a task: a head behind the decoder, or behind the encoder alone.
local function classifier(kind)
  return function(config)
    local has_encoder_only = config.is_encoder_decoder == false
    return {
      architecture = "T5GemmaFor" .. kind, head = "score.out_proj", has_dropout = true,
      has_encoder_only = has_encoder_only, complete_inputs = with_decoder_mask,
      ignored = has_encoder_only and { "^model%.decoder%." } or nil,
      size = function(c) return (has_encoder_only and c.encoder or c.decoder).hidden_size end,
    }
  end
end

local t5gemma = {
  model_type = "t5gemma",
  models = "T5Gemma",
  architecture = "T5GemmaForConditionalGeneration",
  base_model_prefix = "model",
  inputs = { "input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask",
    "encoder_hidden_states" },
  defaults = {
    encoder = {},
    decoder = {},
    vocab_size = 256000,
    dropout_rate = 0,
    classifier_dropout_rate = 0.0,
    attention_dropout = 0,
    is_encoder_decoder = true,
    tie_word_embeddings = true,
  },
  optional = { "initializer_range" },
  only = { is_encoder_decoder = true },
  ignored = { "%.rotary_emb%.inv_freq$", "^score%." },
  tasks = {
    sequence_classification = classifier "SequenceClassification",
    token_classification = classifier "TokenClassification",
  },
  decoder_parameters = "^model%.decoder%.",
  head_inits = function(c)
    local normal = blocks.normal((c.initializer_range or 0.02) * c.num_labels ^ -0.5)
    return normal, normal
  end,
  lm_head = "lm_head.out_proj",
  head = blocks.tied_head("model.decoder.embed_tokens.weight", "lm_head.out_proj.weight"),
  logits_cap = function(c) return c.decoder.final_logit_softcapping end,
}

-- Returns the first token of the decoder's inputs, and the token that replaces ignored labels.
function t5gemma.shift_tokens(c) return c.decoder.bos_token_id, c.decoder.pad_token_id end

function t5gemma.config_parts() return { encoder = part, decoder = part } end

function t5gemma.complete(c, is_file)
  for _, kind in ipairs { "encoder", "decoder" } do
    c[kind] = complete_config(part, c[kind], is_file)
    c[kind].dropout_rate, c[kind].attention_dropout = c.dropout_rate, c.attention_dropout
    c[kind].is_decoder = kind == "decoder"
  end
  c.decoder.cross_attention_hidden_size = c.encoder.hidden_size
  for _, key in ipairs { "bos_token_id", "eos_token_id", "pad_token_id" } do
    if c[key] == nil then c[key] = c.decoder[key] end
  end
  c.decoder_start_token_id = c.decoder_start_token_id or c.bos_token_id
end

-- The facts of the layers of both stacks, for llama_attention.lua and llama_mlp.lua.
local function facts_of(c)
  local facts = gemma2.facts(c)
  facts.o_name, facts.turn = "o_proj", rotary.turn_halves
  facts.mlp_names, facts.mlp_bias = { "gate_proj", "up_proj", "down_proj" }, false
  facts.inner_dropout = c.dropout_rate
  return facts
end

local layer_names = { "self_attn", "cross_attn", "feedforward" }

local function add_stack(c, side, add)
  local stack, width, facts = ("model.%s."):format(side), c.hidden_size, facts_of(c)
  local normal, mlp = blocks.normal(c.initializer_range), new_mlp(c, facts)
  local function linear(name, n_in, n_out, bias)
    blocks.add_linear(add, name, n_in, n_out, normal, bias)
  end
  local function norm(name) norms.rms_from_one.add(add, name, { width }) end
  add(stack .. "embed_tokens.weight", { c.vocab_size, width },
    blocks.normal_but_padding(c, c.initializer_range), "embedding")
  for i = 0, c.num_hidden_layers - 1 do
    local layer = ("%slayers.%d."):format(stack, i)
    attention.add_parameters(c, facts, layer .. "self_attn", linear, norm, add)
    mlp.add_parameters(layer .. "mlp", linear)
    if side == "decoder" then
      local name, n_in, size = layer .. "cross_attn", c.cross_attention_hidden_size,
        rotary.head_dim(c)
      linear(name .. ".q_proj", width, c.num_attention_heads * size, c.attention_bias)
      linear(name .. ".k_proj", n_in, c.num_key_value_heads * size, c.attention_bias)
      linear(name .. ".v_proj", n_in, c.num_key_value_heads * size, c.attention_bias)
      linear(name .. ".o_proj", c.num_attention_heads * size, width, c.attention_bias)
    end
    for _, name in ipairs(layer_names) do
      if name ~= "cross_attn" or side == "decoder" then
        norm(("%spre_%s_layernorm"):format(layer, name))
        norm(("%spost_%s_layernorm"):format(layer, name))
      end
    end
  end
  norm(stack .. "norm")
end

function t5gemma.add_parameters(c, add)
  add_stack(c.encoder, "encoder", add)
  add_stack(c.decoder, "decoder", add)
  if not c.tie_word_embeddings then
    local n = c.decoder.vocab_size
    add("lm_head.out_proj.weight", { n, c.decoder.hidden_size },
      blocks.normal(c.decoder.initializer_range * n ^ -0.5))
  end
end

-- Returns function(params, name, x, memory, mask, o), attention to the encoder's output.
local function new_cross_attention(c, facts)
  local size = rotary.head_dim(c)
  local function heads(params, name, x, n, o)
    return blocks.linear(params, name, x, o):view { x:size(0), x:size(1), n, size }:transpose(1, 2)
  end
  return function(params, name, x, memory, mask, o)
    local k, v = blocks.of_memory(o, name, function()
      return heads(params, name .. ".k_proj", memory, c.num_key_value_heads, o),
        heads(params, name .. ".v_proj", memory, c.num_key_value_heads, o)
    end)
    local q = heads(params, name .. ".q_proj", x, c.num_attention_heads, o)
    local y = blocks.attention(q, k, v, { mask = mask, scale = facts.attention_scale,
      softcap = facts.softcap, dropout = c.attention_dropout,
      enable_gqa = c.num_key_value_heads < c.num_attention_heads }, o)
    return blocks.linear(params, name .. ".o_proj", y, o)
  end
end

-- Returns either stack: function(params, input_ids, o, mask_of, memory, memory_mask). `mask_of`
-- takes the embeddings and returns function(window) -> mask.
local function new_stack(c, side)
  local stack, facts, window = ("model.%s."):format(side), facts_of(c), windows.of_types(c)
  local attend, mlp, cross = attention.new(c, facts), new_mlp(c, facts),
    new_cross_attention(c, facts)
  local padding_row = blocks.padding_row(c)
  local rope = rotary.settings(t5gemma.model_type, c, rotary.size(c))

  return function(params, input_ids, o, mask_of, memory, memory_mask)
    local function drop(x) return blocks.dropout(x, c.dropout_rate, o) end
    local function norm(name, y)
      return norms.rms_from_one.apply(params, name, y, c.rms_norm_eps)
    end
    local x = blocks.embedding(params, stack .. "embed_tokens", input_ids, padding_row)
    x = drop(x * torch.tensor(math.sqrt(c.hidden_size), { dtype = x.dtype }):item())
    mask_of = mask_of(x)
    local angles = { rotary.angles(rope, {}, o, x) }
    local function apply_layer(layer, input, mask)
      -- y + f(y), with a norm before and one after f.
      local function added(k, y, f)
        local z = f(norm(("%spre_%s_layernorm"):format(layer, layer_names[k]), y))
        return y + drop(norm(("%spost_%s_layernorm"):format(layer, layer_names[k]), z))
      end
      local y = added(1, input, function(z)
        return attend(params, layer .. "self_attn", z, angles, mask, o)
      end)
      y = memory and added(2, y, function(z)
        return cross(params, layer .. "cross_attn", z, memory, memory_mask, o)
      end) or y
      return added(3, y, function(z) return mlp.forward(params, layer .. "mlp", z, o) end)
    end
    for i = 0, c.num_hidden_layers - 1 do
      x = nn.block(apply_layer, ("%slayers.%d."):format(stack, i), x, mask_of(window(i)))
    end
    return drop(norm(stack .. "norm", x))
  end
end

function t5gemma.new_encoder(c)
  local encoder = new_stack(c.encoder, "encoder")
  -- In version 4 of transformers, tokens see one token less to both sides.
  local less = (ties.version(c) or 0) >= 5 and 0 or 1
  local function reach(window) return window - less end
  return function(params, inputs, o)
    local ids, mask = inputs.input_ids, inputs.attention_mask
    -- Without a mask, pad_token_id marks padding, as in transformers.
    if not mask and c.encoder.pad_token_id then mask = ids:ne(c.encoder.pad_token_id) end
    return encoder(params, ids, o, function(x)
      return masks.by_window({ attention_mask = mask }, o, x, { reach = reach })
    end)
  end
end

function t5gemma.new_forward(c)
  local decoder = new_stack(c.decoder, "decoder")
  return function(params, inputs, o, memory)
    return decoder(params, inputs.decoder_input_ids, o, function(x)
      return masks.by_window({ attention_mask = inputs.decoder_attention_mask }, o, x)
    end, memory, masks.padding(inputs.attention_mask, memory.dtype))
  end
end

return t5gemma
