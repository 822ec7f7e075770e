--- PaliGemma (Beyer et al., 2024), as Hugging Face's `PaliGemmaForConditionalGeneration`: one layer
--- projects SigLIP's hidden states to the embeddings of Gemma, where the tokens of a prompt see
--- each other. Those of an answer, where token_type_ids are 1, see only what is before them.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local families = require "redco.models.family_table"
local layers = require "redco.models.layers.clip_layers"
local new_family = require "redco.models.kinds.features_in_text"

local paligemma = {
  model_type = "paligemma",
  models = "PaliGemma, PaliGemma 2",
  architecture = "PaliGemmaForConditionalGeneration",
  parts = { text_config = "gemma", vision_config = "siglip_vision_model" },
  default_parts = {
    text_config = { model_type = "gemma", hidden_size = 2048, num_hidden_layers = 18,
      intermediate_size = 16384, num_attention_heads = 8, num_key_value_heads = 1,
      vocab_size = 257152 },
    vision_config = { model_type = "siglip_vision_model", intermediate_size = 4096,
      hidden_size = 1152, patch_size = 14, image_size = 224, num_hidden_layers = 27,
      num_attention_heads = 16, vision_use_head = false },
  },
  is_tied = true,
  first_position = 1,
  inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids", "token_type_ids",
    "pixel_values" },
  defaults = { image_token_index = 256000, projection_dim = 2048, hidden_size = 2048 },
  optional = { "tie_word_embeddings", "vocab_size" },
  aliases = { image_token_id = "image_token_index" },
}

-- Version 5 of transformers writes this key, but the inputs decide which tokens see each other.
function paligemma.settle(kind, config)
  if kind == "text_config" then config.use_bidirectional_attention = nil end
end

function paligemma.check(c)
  if c.projection_dim ~= c.text_config.hidden_size then
    fail("paligemma: projection_dim is %d, but text_config.hidden_size is %d", c.projection_dim,
      c.text_config.hidden_size)
  end
end

function paligemma.n_features(c) return layers.n_patches(c.vision_config) end

paligemma.has_answers = true

-- Puts the images before a text and options.suffix, the answer, behind it. The tokens of an answer
-- have type 1, from which the processor makes labels.
function paligemma.prompts(texts, options, tokens, word, counts)
  local has_words, list, suffix = false, {}, options.suffix
  for _, text in ipairs(texts) do has_words = has_words or text:find(word, 1, true) ~= nil end
  for i, text in ipairs(texts) do
    if not has_words then text = word:rep(counts and counts[i] or 1) .. text end
    local first = (text:reverse():find(word:reverse(), 1, true) or #text + 1) - 1
    list[i] = text:sub(1, #text - first) .. tokens.bos_token .. text:sub(#text - first + 1) .. "\n"
  end
  options.add_special_tokens, options.suffix, options.return_token_type_ids = false, nil, true
  if suffix then
    options.text_pair = {}
    for i, text in ipairs(type(suffix) == "table" and suffix or { suffix }) do
      options.text_pair[i] = text .. tokens.eos_token
    end
  end
  return list
end

-- The whole prompt is span 0; tokens of the answer have -1.
function paligemma.spans_of(inputs, is_image, o)
  local types = inputs.token_type_ids
  if types then return -types:ne(0):to "int64" end
  if inputs.labels then
    fail "paligemma: a loss needs token_type_ids: 0 for tokens of the prompt, 1 for the answer's"
  end
  return blocks.is_prompt(o) and is_image:to "int64" * 0 or nil
end

function paligemma.logits_cap(c)
  local text = families[c.text_config.model_type]
  return text.logits_cap and text.logits_cap(c.text_config)
end

function paligemma.new_projector(c)
  local projector = {}

  function projector.add_parameters(add)
    blocks.add_linear(add, "linear", c.vision_config.hidden_size, c.projection_dim,
      blocks.normal(c.text_config.initializer_range))
  end

  function projector.forward(params, _, last, o) return blocks.linear(params, "linear", last, o) end

  return projector
end

return new_family(paligemma)
