--- CLIP's model of texts (Radford et al., 2021), as Hugging Face's `CLIPTextModel` and
--- `CLIPTextModelWithProjection`. Its features are the hidden state of the end token.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local layers = require "redco.models.layers.clip_layers"
local masks = require "redco.models.layers.masks"
local tower = require "redco.models.kinds.tower"

local text = {
  model_type = "clip_text_model",
  models = "the texts' half of CLIP",
  architecture = "CLIPTextModel",
  prefix = "text_model.",
  inputs = { "input_ids", "attention_mask", "position_ids" },
  defaults = {
    vocab_size = 49408,
    hidden_size = 512,
    intermediate_size = 2048,
    projection_dim = 512,
    num_hidden_layers = 12,
    num_attention_heads = 8,
    max_position_embeddings = 77,
    hidden_act = "quick_gelu",
    layer_norm_eps = 1e-5,
    attention_dropout = 0.0,
    initializer_range = 0.02,
    initializer_factor = 1.0,
    pad_token_id = 1,
    bos_token_id = 49406,
    eos_token_id = 49407,
  },
  ignored = { "position_ids$", "^vision_model%.", "^visual_projection%.", "^text_projection%.",
    "^logit_scale$" },
}

function text.check(c)
  blocks.check_multiple(c, "hidden_size", "num_attention_heads")
  if type(c.eos_token_id) ~= "number" then
    fail("%s: eos_token_id is %s, expected the number of the end token, where features are read",
      c.model_type, type(c.eos_token_id) == "table" and "a list" or tostring(c.eos_token_id))
  end
end

--- Returns the initialisers of the layers of a CLIP model of texts or of images.
function text.inits(c)
  local factor, size = c.initializer_factor, c.hidden_size
  local inner = size ^ -0.5 * (2 * c.num_hidden_layers) ^ -0.5 * factor
  return {
    projection = blocks.normal(inner), out = blocks.normal(size ^ -0.5 * factor),
    fc1 = blocks.normal((2 * size) ^ -0.5 * factor), fc2 = blocks.normal(inner),
  }
end

--- Returns the initialiser of the projection.
function text.init_of_projection(c)
  return blocks.normal(c.hidden_size ^ -0.5 * c.initializer_factor)
end

text.projection = tower.linear_projection("text_projection", text.init_of_projection)

function text.add_parameters(c, add)
  local normal = blocks.normal(0.02 * c.initializer_factor)
  add("embeddings.token_embedding.weight", { c.vocab_size, c.hidden_size }, normal)
  add("embeddings.position_embedding.weight", { c.max_position_embeddings, c.hidden_size }, normal)
  layers.add_parameters(c, add, text.inits(c))
  blocks.add_layer_norm(add, "final_layer_norm", c.hidden_size)
end

-- Returns the places [B] of the end tokens. Old configurations have a wrong eos_token_id, 2; then
-- the end token is the token with the largest number.
local function end_places(c, ids)
  if c.eos_token_id == 2 then return ids:argmax(-1) end
  return ids:eq(c.eos_token_id):to("int64"):argmax(-1)
end

function text.new_tower(c)
  local run = layers.new(c)
  return function(params, inputs, o, kept)
    local x = layers.embed_tokens(c, params, inputs)
    x = run(params, x, masks.causal(inputs, {}, x), o, kept)
    x = blocks.layer_norm(params, "final_layer_norm", x, c.layer_norm_eps)
    local places = end_places(c, inputs.input_ids):view { -1, 1, 1 }
    return x, x:gather(1, places:expand { -1, 1, c.hidden_size }):squeeze(1)
  end
end

return tower.family(text)
