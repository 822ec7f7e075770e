--- Tells which weights of a folder a model does not use.
local listed = require "redco.models.listed"
local ties = require "redco.models.ties"
local warn = require "redco.warn"

-- Weights that no model needs: computed tables and masks of old files, the counters of batch norms,
-- the layers of DeepSeek-V3 that predict a second token, and keys and values of Gemma 3n's last
-- layers, which transformers does not use either.
local useless = {
  "position_ids$", "token_type_ids$", "%.attn%.bias$", "%.attention%.bias$", "masked_bias$",
  "%.inv_freq$",
  "%.relative_position_index$", "%.num_batches_tracked$",
  "coder%.version$", "coder%.embed_positions%.weight$",
  "%.EncDecAttention%.relative_attention_bias%.weight$", "^model%.layers%.61%.",
  "%.language_model%..*%.self_attn%.[kv]_",
}

local function is_useless(name)
  for _, pattern in ipairs(useless) do
    if name:find(pattern) then return true end
  end
  return false
end

-- Whether a weight is a copy of one that is used: of the embedding or of a bias of the vocabulary.
local function is_copy(weights, name, sources, config)
  local n = weights:shape(name)[1]
  if n ~= config.vocab_size and n ~= config.decoder_vocab_size then return false end
  for _, source in pairs(sources) do
    if ties.are_equal(weights, name, source) then return true end
  end
  return false
end

--- Shows a warning with those among `names`, which the model has no place for, that are neither
--- useless nor copies. `sources` are the names of the weights that are used.
return function(family, config, weights, names, sources)
  local unused, hint = {}, ""
  local own, tied = ties.own_head(family, config)
  for _, name in ipairs(names) do
    if not is_useless(name) and not is_copy(weights, name, sources, config) then
      unused[#unused + 1] = name
      if name == own then
        hint = ("; %s ties the head to %s, which has other values: with config = "
          .. "{ tie_word_embeddings = false } the head of the file is used"):format(
          "tie_word_embeddings", tied)
      end
    end
  end
  if #unused == 0 then return end
  warn("%s: the %s does not use these weights: %s%s", weights.path, family.architecture,
    listed(unused), hint)
end
