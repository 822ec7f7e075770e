--- SigLIP's model of images (Zhai et al., 2023), as Hugging Face's `SiglipVisionModel`. A learned
--- query attends to the hidden states; its output gives the features.
local blocks = require "redco.models.blocks"
local adapter = require "redco.lora.adapter"
local inits = require "redco.models.siglip_inits"
local layers = require "redco.models.clip_layers"
local native = require "redco.native"
local torch = require "redco.torch"
local tower = require "redco.models.tower"

local vision = {
  model_type = "siglip_vision_model",
  models = "the images' half of SigLIP",
  architecture = "SiglipVisionModel",
  prefix = "vision_model.",
  inputs = { "pixel_values" },
  optional = { "vision_use_head" },
  defaults = {
    hidden_size = 768,
    intermediate_size = 3072,
    num_hidden_layers = 12,
    num_attention_heads = 12,
    num_channels = 3,
    image_size = 224,
    patch_size = 16,
    hidden_act = "gelu_pytorch_tanh",
    layer_norm_eps = 1e-6,
    attention_dropout = 0.0,
  },
  ignored = { "position_ids$", "^text_model%.", "^logit_scale$", "^logit_bias$" },
}

function vision.check(c) blocks.check_multiple(c, "hidden_size", "num_attention_heads") end

function vision.add_parameters(c, add)
  local size, patch = c.hidden_size, c.patch_size
  add("embeddings.patch_embedding.weight", { size, c.num_channels, patch, patch },
    inits.lecun(c.num_channels * patch ^ 2))
  add("embeddings.patch_embedding.bias", { size }, blocks.zeros)
  add("embeddings.position_embedding.weight", { layers.n_patches(c), size },
    blocks.normal(size ^ -0.5))
  layers.add_parameters(c, add, inits.layers)
  blocks.add_layer_norm(add, "post_layernorm", size)
  if c.vision_use_head == false then return end
  add("head.probe", { 1, 1, size }, inits.xavier)
  add("head.attention.in_proj_weight", { 3 * size, size }, inits.xavier)
  add("head.attention.in_proj_bias", { 3 * size }, blocks.zeros)
  blocks.add_linear(add, "head.attention.out_proj", size, size, inits.lecun(size))
  blocks.add_layer_norm(add, "head.layernorm", size)
  layers.add_mlp(add, "head.mlp", c, inits.layers)
end

-- Returns the output [B, 1, size] of the head's attention. q, k and v have one weight, so the query
-- goes through it as a token before the others: a weight that is split between processes is then
-- used whole, as its heads are.
local function attend(c, params, x, o)
  local name = "head.attention."
  local batch, length, size = unpack(x.shape)
  local rows = torch.cat({ params["head.probe"]:expand { batch, 1, size }, x }, 1)
  local joined = native.linear(rows, params[name .. "in_proj_weight"],
    params[name .. "in_proj_bias"])
  local n_heads = c.num_attention_heads
  local heads = joined:view { batch, length + 1, 3, n_heads, size / n_heads }
  local q, k, v = unpack(heads:transpose(1, 3):unbind(2))
  local y = blocks.attention(q:narrow(2, 0, 1), k:narrow(2, 1, length), v:narrow(2, 1, length), {},
    o)
  adapter.refuse(params, name .. "out_proj")
  return blocks.linear(params, name .. "out_proj", y, o)
end

function vision.new_tower(c)
  local run, mlp = layers.new(c), layers.new_mlp(c)
  return function(params, inputs, o, kept)
    local function norm(name, x) return blocks.layer_norm(params, name, x, c.layer_norm_eps) end
    local x = layers.embed_patches(c, params, inputs)
      + params["embeddings.position_embedding.weight"]:unsqueeze(0)
    x = norm("post_layernorm", run(params, x, {}, o, kept))
    if c.vision_use_head == false then return x end
    local pooled = attend(c, params, x, o)
    pooled = pooled + mlp(params, "head.mlp", norm("head.layernorm", pooled), o)
    return x, pooled:select(1, 0)
  end
end

local family = tower.family(vision)
family.only = { vision_use_head = true }  -- as a model alone, it gives its features

return family
