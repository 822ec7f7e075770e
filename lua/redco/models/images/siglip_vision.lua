--- SigLIP's and SigLIP 2's models of images: a learned query attends to the hidden states; its
--- output gives the features.
local adapter = require "redco.lora.adapter"
local blocks = require "redco.models.layers.blocks"
local inits = require "redco.models.images.siglip_inits"
local layers = require "redco.models.layers.clip_layers"
local native = require "redco.native"
local torch = require "redco.torch"
local tower = require "redco.models.kinds.tower"

local function add_head(c, add)
  local size = c.hidden_size
  add("head.probe", { 1, 1, size }, inits.xavier)
  add("head.attention.in_proj_weight", { 3 * size, size }, inits.xavier)
  add("head.attention.in_proj_bias", { 3 * size }, blocks.zeros)
  blocks.add_linear(add, "head.attention.out_proj", size, size, inits.lecun(size))
  blocks.add_layer_norm(add, "head.layernorm", size)
  layers.add_mlp(add, "head.mlp", c, inits.layers)
end

-- Returns the output [B, 1, size] of the head's attention. q, k and v have one weight, so the query
-- passes through it as a token before the others. This uses the weight as a whole, also if it is
-- split between processes by heads.
local function attend(c, params, x, mask, o)
  local name = "head.attention."
  local batch, length, size = unpack(x.shape)
  local rows = torch.cat({ params["head.probe"]:expand { batch, 1, size }, x }, 1)
  local joined = native.linear(rows, params[name .. "in_proj_weight"],
    params[name .. "in_proj_bias"])
  local n_heads = c.num_attention_heads
  local heads = joined:view { batch, length + 1, 3, n_heads, size / n_heads }
  local q, k, v = unpack(heads:transpose(1, 3):unbind(2))
  local y = blocks.attention(q:narrow(2, 0, 1), k:narrow(2, 1, length), v:narrow(2, 1, length),
    mask, o)
  adapter.refuse(params, name .. "out_proj")
  return blocks.linear(params, name .. "out_proj", y, o)
end

--- Returns a family. A row has the fields of a tower without its functions, `more` defaults, and
---   add_embeddings(c, add)
---   embed(c, params, inputs) -> x [B, patches, size], a mask of attention as in blocks.attend
return function(row)
  local vision = { prefix = "vision_model.",
    defaults = {
      hidden_size = 768,
      intermediate_size = 3072,
      num_hidden_layers = 12,
      num_attention_heads = 12,
      num_channels = 3,
      patch_size = 16,
      hidden_act = "gelu_pytorch_tanh",
      layer_norm_eps = 1e-6,
      attention_dropout = 0.0,
    },
    optional = { "vision_use_head" },
    ignored = { "position_ids$", "^text_model%.", "^logit_scale$", "^logit_bias$" },
  }
  for key, value in pairs(row) do vision[key] = value end
  for key, value in pairs(row.more) do vision.defaults[key] = value end

  function vision.check(c) blocks.check_multiple(c, "hidden_size", "num_attention_heads") end

  function vision.add_parameters(c, add)
    row.add_embeddings(c, add)
    layers.add_parameters(c, add, inits.layers)
    blocks.add_layer_norm(add, "post_layernorm", c.hidden_size)
    if c.vision_use_head ~= false then add_head(c, add) end
  end

  function vision.new_tower(c)
    local run, mlp = layers.new(c), layers.new_mlp(c)
    return function(params, inputs, o, kept)
      local function norm(name, x) return blocks.layer_norm(params, name, x, c.layer_norm_eps) end
      local x, mask = row.embed(c, params, inputs)
      x = norm("post_layernorm", run(params, x, mask, o, kept))
      if c.vision_use_head == false then return x end
      local pooled = attend(c, params, x, mask, o)
      pooled = pooled + mlp(params, "head.mlp", norm("head.layernorm", pooled), o)
      return x, pooled:select(1, 0)
    end
  end

  local family = tower.family(vision)
  family.only = { vision_use_head = true }  -- a model alone returns the features of its head
  return family
end
