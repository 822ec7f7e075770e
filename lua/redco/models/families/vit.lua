--- ViT (Dosovitskiy et al., 2020), as Hugging Face's `ViTForImageClassification` and `ViTModel`,
--- and the latter's encoder without the pooler, as a part of other models.
local blocks = require "redco.models.blocks"
local fail = require "redco.fail"
local losses = require "redco.models.task_losses"
local nn = require "redco.nn"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

local encoder = {
  model_type = "vit",
  architecture = "ViTModel",
  base_model_prefix = "vit",
  defaults = {
    hidden_size = 768,
    num_hidden_layers = 12,
    num_attention_heads = 12,
    intermediate_size = 3072,
    hidden_act = "gelu",
    hidden_dropout_prob = 0.0,
    attention_probs_dropout_prob = 0.0,
    initializer_range = 0.02,
    layer_norm_eps = 1e-12,
    image_size = 224,
    patch_size = 16,
    num_channels = 3,
    qkv_bias = true,
  },
  optional = { "encoder_stride", "pooler_output_size", "pooler_act", "id2label", "label2id",
    "num_labels" },
  ignored = { "^pooler%.", "^vit%.pooler%.", "^classifier%." },
}

function encoder.check(c)
  blocks.check_multiple(c, "hidden_size", "num_attention_heads")
  blocks.check_multiple(c, "image_size", "patch_size")
end

-- Truncated at -2 and 2, not at two standard deviations, as in transformers.
local function normal_of(c)
  return function(t, generator)
    return nn.init.trunc_normal_(t, { std = c.initializer_range, generator = generator })
  end
end

function encoder.add_parameters(c, add)
  local size, normal = c.hidden_size, normal_of(c)
  local function linear(name, n_in, n_out, bias)
    blocks.add_linear(add, name, n_in, n_out, normal, bias)
  end
  add("embeddings.cls_token", { 1, 1, size }, normal)
  add("embeddings.position_embeddings", { 1, (c.image_size / c.patch_size) ^ 2 + 1, size }, normal)
  local patches = "embeddings.patch_embeddings.projection"
  add(patches .. ".weight", { size, c.num_channels, c.patch_size, c.patch_size }, normal)
  add(patches .. ".bias", { size }, blocks.zeros)
  for i = 0, c.num_hidden_layers - 1 do
    local layer = ("encoder.layer.%d."):format(i)
    for _, part in ipairs { "query", "key", "value" } do
      linear(layer .. "attention.attention." .. part, size, size, c.qkv_bias)
    end
    linear(layer .. "attention.output.dense", size, size)
    linear(layer .. "intermediate.dense", size, c.intermediate_size)
    linear(layer .. "output.dense", c.intermediate_size, size)
    blocks.add_layer_norm(add, layer .. "layernorm_before", size)
    blocks.add_layer_norm(add, layer .. "layernorm_after", size)
  end
  blocks.add_layer_norm(add, "layernorm", size)
end

--- function(params, inputs, o, kept) -> [B, 1 + patches, hidden_size]; inputs: pixel_values [B, C,
--- H, W]. Appends the input of the first layer and the output of each to the list `kept`, if it is
--- given.
function encoder.new_encoder(c)
  local activation = blocks.activation("vit", c.hidden_act)

  local function embedded(params, pixel_values)
    local expected = { c.num_channels, c.image_size, c.image_size }
    local shape = pixel_values.shape
    if #shape ~= 4 or table.concat(shape, ", ", 2) ~= table.concat(expected, ", ") then
      fail("vit: pixel_values are [%s], expected [batch, %s]", table.concat(shape, ", "),
        table.concat(expected, ", "))
    end
    local name = "embeddings.patch_embeddings.projection"
    local patches = torch.conv2d(pixel_values, params[name .. ".weight"], params[name .. ".bias"],
      { c.patch_size, c.patch_size })
    local class = params["embeddings.cls_token"]:expand { shape[1], 1, c.hidden_size }
    return torch.cat({ class, patches:flatten(2):transpose(1, 2) }, 1)
      + params["embeddings.position_embeddings"]
  end
  local attention = blocks.new_attention(c.num_attention_heads, { q = ".attention.query",
    k = ".attention.key", v = ".attention.value", out = ".output.dense" },
    c.attention_probs_dropout_prob)

  return function(params, inputs, o, kept)
    local function drop(x) return blocks.dropout(x, c.hidden_dropout_prob, o) end
    local function keep(x) if kept then kept[#kept + 1] = x end end
    local x = drop(embedded(params, inputs.pixel_values))
    keep(x)
    local function apply_layer(layer, y)
      local function norm(name)
        return blocks.layer_norm(params, layer .. name, y, c.layer_norm_eps)
      end
      local seen = attention.to_itself(params, layer .. "attention", norm "layernorm_before", {}, o)
      y = y + drop(seen)
      local inner = blocks.linear(params, layer .. "intermediate.dense", norm "layernorm_after", o)
      return y + drop(blocks.linear(params, layer .. "output.dense", activation(inner), o))
    end
    for i = 0, c.num_hidden_layers - 1 do
      x = nn.block(apply_layer, ("encoder.layer.%d."):format(i), x)
      keep(x)
    end
    return blocks.layer_norm(params, "layernorm", x, c.layer_norm_eps)
  end
end

local vit = {
  model_type = "vit",
  models = "ViT",
  architecture = "ViTForImageClassification",
  base_model_prefix = "vit",
  defaults = encoder.defaults,
  optional = { "problem_type", unpack(encoder.optional) },
  ignored = { "^vit%.pooler%." },
  encoder = encoder,
  task = "image_classification",
  inputs = { "pixel_values" },
  check = encoder.check,
  loss = losses.of_images "ViTForImageClassification",
}

vit.complete = tasks.complete_labels

function vit.add_parameters(c, add)
  encoder.add_parameters(c, blocks.add_with_prefix(add, "vit."))
  blocks.add_linear(add, "classifier", c.hidden_size, c.num_labels, normal_of(c))
end

function vit.head() return "classifier.weight", "classifier.bias" end

function vit.new_forward(c)
  local encode = encoder.new_encoder(c)
  return function(params, inputs, o)
    return encode(blocks.with_prefix(params, "vit."), inputs, o)
  end
end

function vit.new_head_input()
  return function(_, hidden) return hidden:select(1, 0) end
end

-- Features of images: the first token behind the pooler's layer.
local model = {
  model_type = "vit",
  architecture = "ViTModel",
  base_model_prefix = "vit",
  defaults = encoder.defaults,
  optional = encoder.optional,
  ignored = { "^classifier%." },
  task = "features",
  inputs = { "pixel_values" },
  check = encoder.check,
  -- Some folders lack it.
  new_if_missing = { ["pooler.dense.weight"] = true, ["pooler.dense.bias"] = true },
}

function model.complete(c)
  c.pooler_output_size = c.pooler_output_size or c.hidden_size
  c.pooler_act = c.pooler_act or "tanh"
end

function model.add_parameters(c, add)
  encoder.add_parameters(c, add)
  blocks.add_linear(add, "pooler.dense", c.hidden_size, c.pooler_output_size, normal_of(c))
end

function model.new_functions(c)
  local encode = encoder.new_encoder(c)
  local activation = blocks.activation("vit", c.pooler_act)
  return {
    output = function(params, inputs, o)
      local first = encode(params, inputs, o):select(1, 0)
      return activation(blocks.linear(params, "pooler.dense", first, o))
    end,
    hidden_states = function(params, inputs, o)
      local kept = {}
      return encode(params, inputs, o, kept), kept
    end,
  }
end

vit.variants = { vit, model }

return vit
