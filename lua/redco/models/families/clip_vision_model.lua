--- CLIP's model of images (Radford et al., 2021), as Hugging Face's `CLIPVisionModel` and
--- `CLIPVisionModelWithProjection`. Its features are the hidden state of the class token.
local blocks = require "redco.models.layers.blocks"
local layers = require "redco.models.layers.clip_layers"
local text = require "redco.models.families.clip_text_model"
local torch = require "redco.torch"
local tower = require "redco.models.kinds.tower"

local vision = {
  model_type = "clip_vision_model",
  models = "the images' half of CLIP",
  architecture = "CLIPVisionModel",
  prefix = "vision_model.",
  inputs = { "pixel_values" },
  defaults = {
    hidden_size = 768,
    intermediate_size = 3072,
    projection_dim = 512,
    num_hidden_layers = 12,
    num_attention_heads = 12,
    num_channels = 3,
    image_size = 224,
    patch_size = 32,
    hidden_act = "quick_gelu",
    layer_norm_eps = 1e-5,
    attention_dropout = 0.0,
    initializer_range = 0.02,
    initializer_factor = 1.0,
  },
  ignored = { "position_ids$", "^text_model%.", "^visual_projection%.", "^text_projection%.",
    "^logit_scale$" },
}

function vision.check(c) blocks.check_multiple(c, "hidden_size", "num_attention_heads") end

vision.projection = tower.linear_projection("visual_projection", text.init_of_projection)

function vision.add_parameters(c, add)
  local size, normal = c.hidden_size, blocks.normal(c.initializer_range * c.initializer_factor)
  add("embeddings.class_embedding", { size }, blocks.normal(size ^ -0.5 * c.initializer_factor))
  add("embeddings.patch_embedding.weight", { size, c.num_channels, c.patch_size, c.patch_size },
    normal)
  add("embeddings.position_embedding.weight", { layers.n_patches(c) + 1, size }, normal)
  blocks.add_layer_norm(add, "pre_layrnorm", size)
  layers.add_parameters(c, add, text.inits(c))
  blocks.add_layer_norm(add, "post_layernorm", size)
end

function vision.new_tower(c)
  local run = layers.new(c)
  return function(params, inputs, o, kept)
    local function norm(name, x) return blocks.layer_norm(params, name, x, c.layer_norm_eps) end
    local patches = layers.embed_patches(c, params, inputs)
    local class = params["embeddings.class_embedding"]:expand { patches:size(0), 1, c.hidden_size }
    local x = torch.cat({ class, patches }, 1)
      + params["embeddings.position_embedding.weight"]:unsqueeze(0)
    x = run(params, norm("pre_layrnorm", x), {}, o, kept)
    return x, norm("post_layernorm", x:select(1, 0))
  end
end

return tower.family(vision)
