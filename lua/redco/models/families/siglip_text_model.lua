--- SigLIP's model of texts (Zhai et al., 2023), as Hugging Face's `SiglipTextModel`. Its features
--- are those of the last token, which may be padding.
local blocks = require "redco.models.layers.blocks"
local inits = require "redco.models.images.siglip_inits"
local layers = require "redco.models.layers.clip_layers"
local masks = require "redco.models.layers.masks"
local tower = require "redco.models.kinds.tower"

local text = {
  model_type = "siglip_text_model",
  models = "the texts' half of SigLIP",
  architecture = "SiglipTextModel",
  prefix = "text_model.",
  inputs = { "input_ids", "attention_mask", "position_ids" },
  defaults = {
    vocab_size = 32000,
    hidden_size = 768,
    intermediate_size = 3072,
    num_hidden_layers = 12,
    num_attention_heads = 12,
    max_position_embeddings = 64,
    hidden_act = "gelu_pytorch_tanh",
    layer_norm_eps = 1e-6,
    attention_dropout = 0.0,
    pad_token_id = 1,
    bos_token_id = 49406,
    eos_token_id = 49407,
  },
  optional = { "projection_size" },
  ignored = { "position_ids$", "^vision_model%.", "^logit_scale$", "^logit_bias$" },
}

function text.complete(c) c.projection_size = c.projection_size or c.hidden_size end

function text.check(c) blocks.check_multiple(c, "hidden_size", "num_attention_heads") end

function text.add_parameters(c, add)
  local size = c.hidden_size
  add("embeddings.token_embedding.weight", { c.vocab_size, size }, inits.embedding(size))
  add("embeddings.position_embedding.weight", { c.max_position_embeddings, size },
    inits.embedding(size))
  layers.add_parameters(c, add, inits.layers)
  blocks.add_layer_norm(add, "final_layer_norm", size)
  blocks.add_linear(add, "head", size, c.projection_size, inits.lecun(size))
end

function text.new_tower(c)
  local run = layers.new(c)
  return function(params, inputs, o, kept)
    local x = layers.embed_tokens(c, params, inputs)
    local mask = { mask = masks.both_sides(inputs, x) }
    x = run(params, x, mask, o, kept)
    x = blocks.layer_norm(params, "final_layer_norm", x, c.layer_norm_eps)
    return x, blocks.linear(params, "head", x:select(1, x:size(1) - 1), o)
  end
end

return tower.family(text)
