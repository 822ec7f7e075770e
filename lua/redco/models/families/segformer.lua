--- SegFormer (Xie et al., 2021), as Hugging Face's `SegformerForSemanticSegmentation`,
--- `SegformerForImageClassification` and `SegformerModel`: stages of attention to fewer places than
--- it has queries, and a head that adds up all stages. Shapes: B batch, H and W rows and columns.
local batch_norm = require "redco.models.layers.batch_norm"
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local losses = require "redco.models.tasks.task_losses"
local new_family = require "redco.models.kinds.images_family"
local nn = require "redco.nn"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

local eps = 1e-5  -- of all norms, whatever the configuration's layer_norm_eps

local lists = { "depths", "hidden_sizes", "mlp_ratios", "num_attention_heads", "patch_sizes",
  "sr_ratios", "strides" }

local function check(c)
  for _, key in ipairs(lists) do
    if #c[key] ~= c.num_encoder_blocks then
      fail("segformer: %s has %d numbers, expected num_encoder_blocks, %d", key, #c[key],
        c.num_encoder_blocks)
    end
  end
  for i, n_heads in ipairs(c.num_attention_heads) do
    if c.hidden_sizes[i] % n_heads ~= 0 then
      fail("segformer: hidden_sizes[%d], %d, is not a multiple of num_attention_heads, %d", i,
        c.hidden_sizes[i], n_heads)
    end
  end
end

local function layer_name(stage, i) return ("encoder.block.%d.%d."):format(stage - 1, i - 1) end

local function add_parameters(c, add)
  local normal = blocks.normal(c.initializer_range)
  local function linear(name, n_in, n_out) blocks.add_linear(add, name, n_in, n_out, normal) end
  local function convolution(name, n_in, n_out, side)
    blocks.add_convolution(add, name, { n_out, n_in, side, side }, normal)
  end
  local n_in = c.num_channels
  for stage, size in ipairs(c.hidden_sizes) do
    local patches = ("encoder.patch_embeddings.%d."):format(stage - 1)
    convolution(patches .. "proj", n_in, size, c.patch_sizes[stage])
    blocks.add_layer_norm(add, patches .. "layer_norm", size)
    local inner, ratio = math.floor(size * c.mlp_ratios[stage]), c.sr_ratios[stage]
    for i = 1, c.depths[stage] do
      local layer = layer_name(stage, i)
      blocks.add_layer_norm(add, layer .. "layer_norm_1", size)
      for _, part in ipairs { "query", "key", "value" } do
        linear(layer .. "attention.self." .. part, size, size)
      end
      if ratio > 1 then
        convolution(layer .. "attention.self.sr", size, size, ratio)
        blocks.add_layer_norm(add, layer .. "attention.self.layer_norm", size)
      end
      linear(layer .. "attention.output.dense", size, size)
      blocks.add_layer_norm(add, layer .. "layer_norm_2", size)
      linear(layer .. "mlp.dense1", size, inner)
      convolution(layer .. "mlp.dwconv.dwconv", 1, inner, 3)
      linear(layer .. "mlp.dense2", inner, size)
    end
    blocks.add_layer_norm(add, ("encoder.layer_norm.%d"):format(stage - 1), size)
    n_in = size
  end
end

-- [B, H * W, C] -> [B, C, H, W]
local function to_grid(x, height, width)
  return x:transpose(1, 2):reshape { x:size(0), x:size(2), height, width }
end

-- [B, C, H, W] -> [B, H * W, C]
local function to_rows(x) return x:flatten(2):transpose(1, 2) end

local function norm(params, name, x) return blocks.layer_norm(params, name, x, eps) end

-- Attention of x [B, H * W, C] to squares of ratio x ratio places.
local function attend(c, params, name, x, n_heads, ratio, height, width, o)
  local function heads(part, y)
    return blocks.split_heads(blocks.linear(params, name .. "self." .. part, y, o), n_heads)
  end
  local seen = x
  if ratio > 1 then
    if height < ratio or width < ratio then
      fail("segformer: a stage has %d x %d places, fewer than its sr_ratios, %d: give larger "
        .. "images", height, width, ratio)
    end
    local fewer = blocks.conv2d(params, name .. "self.sr", to_grid(x, height, width),
      { stride = ratio })
    seen = norm(params, name .. "self.layer_norm", to_rows(fewer))
  end
  local y = blocks.attention(heads("query", x), heads("key", seen), heads("value", seen),
    { dropout = c.attention_probs_dropout_prob }, o)
  return blocks.dropout(blocks.linear(params, name .. "output.dense", y, o),
    c.hidden_dropout_prob, o)
end

local function new_encoder(c)
  local activation, n_layers = blocks.activation("segformer", c.hidden_act), 0
  for _, depth in ipairs(c.depths) do n_layers = n_layers + depth end

  return function(params, inputs, o, kept)
    local x, n = inputs.pixel_values, 0
    if x:dim() ~= 4 or x:size(1) ~= c.num_channels then
      fail("segformer: pixel_values are [%s], expected [batch, %d, height, width]",
        table.concat(x.shape, ", "), c.num_channels)
    end
    x = x:to(params["encoder.patch_embeddings.0.proj.weight"].dtype)
    local function drop(y) return blocks.dropout(y, c.hidden_dropout_prob, o) end

    local function apply_layer(layer, stage, height, width, y, p)
      local seen = attend(c, params, layer .. "attention.",
        norm(params, layer .. "layer_norm_1", y), c.num_attention_heads[stage],
        c.sr_ratios[stage], height, width, o)
      y = y + blocks.drop_path(seen, p, o)
      local inner = blocks.linear(params, layer .. "mlp.dense1",
        norm(params, layer .. "layer_norm_2", y), o)
      inner = blocks.conv2d(params, layer .. "mlp.dwconv.dwconv", to_grid(inner, height, width),
        { padding = 1, groups = inner:size(2) })
      inner = drop(activation(to_rows(inner)))
      inner = drop(blocks.linear(params, layer .. "mlp.dense2", inner, o))
      return y + blocks.drop_path(inner, p, o)
    end

    for stage, depth in ipairs(c.depths) do
      local patches = ("encoder.patch_embeddings.%d."):format(stage - 1)
      x = blocks.conv2d(params, patches .. "proj", x, { stride = c.strides[stage],
        padding = math.floor(c.patch_sizes[stage] / 2) })
      local height, width = x:size(2), x:size(3)
      x = norm(params, patches .. "layer_norm", to_rows(x))
      for i = 1, depth do
        local p = c.drop_path_rate * n / math.max(n_layers - 1, 1)
        x = nn.block(apply_layer, layer_name(stage, i), stage, height, width, x, p)
        n = n + 1
      end
      x = to_grid(norm(params, ("encoder.layer_norm.%d"):format(stage - 1), x), height, width)
      if kept then kept[#kept + 1] = x end
    end
    return x
  end
end

-- The class that scores the classes of each place, from the sum of all stages at the size of the
-- first stage.
local function new_segmentation(family)
  local result = {
    architecture = "SegformerForSemanticSegmentation", task = "semantic_segmentation",
    ignored = { "^classifier%.", batch_norm.ignored }, loss = losses.of_pixels,
  }

  function result.add_parameters(c, add)
    local normal, size = blocks.normal(c.initializer_range), c.decoder_hidden_size
    add_parameters(c, blocks.add_with_prefix(add, "segformer."))
    for i, n_in in ipairs(c.hidden_sizes) do
      blocks.add_linear(add, ("decode_head.linear_c.%d.proj"):format(i - 1), n_in, size, normal)
    end
    add("decode_head.linear_fuse.weight", { size, size * #c.hidden_sizes, 1, 1 }, normal)
    batch_norm.add(add, "decode_head.batch_norm", size)
    add("decode_head.classifier.weight", { c.num_labels, size, 1, 1 }, normal)
    add("decode_head.classifier.bias", { c.num_labels }, blocks.zeros)
  end

  result.new_if_missing = { ["decode_head.classifier.weight"] = true,
    ["decode_head.classifier.bias"] = true }

  function result.new_functions(c)
    local encode = new_encoder(c)

    local function output(params, inputs, o)
      local stages, parts = {}, {}
      encode(blocks.with_prefix(params, "segformer."), inputs, o, stages)
      local sides = { stages[1]:size(2), stages[1]:size(3) }
      for i, x in ipairs(stages) do
        local name = ("decode_head.linear_c.%d.proj"):format(i - 1)
        local y = to_grid(blocks.linear(params, name, to_rows(x), o), x:size(2), x:size(3))
        parts[#stages + 1 - i] = torch.upsample_bilinear2d(y, sides, false)
      end
      local y = blocks.conv2d(params, "decode_head.linear_fuse", torch.cat(parts, 1))
      y = torch.relu(batch_norm.apply(params, "decode_head.batch_norm", y, o))
      y = blocks.dropout(y, c.classifier_dropout_prob, o)
      return blocks.conv2d(params, "decode_head.classifier", y)
    end

    return {
      output = output,
      hidden_states = function(params, inputs, o)
        local kept = {}
        return encode(blocks.with_prefix(params, "segformer."), inputs, o, kept), kept
      end,
    }
  end

  function result.compare(model, params, inputs, o) return model.output(params, inputs, o) end

  return setmetatable(result, { __index = family })
end

local family = new_family {
  model_type = "segformer",
  models = "SegFormer",
  class = "Segformer",
  prefix = "segformer",
  check = check,
  defaults = {
    num_channels = 3,
    num_encoder_blocks = 4,
    depths = { 2, 2, 2, 2 },
    sr_ratios = { 8, 4, 2, 1 },
    hidden_sizes = { 32, 64, 160, 256 },
    patch_sizes = { 7, 3, 3, 3 },
    strides = { 4, 2, 2, 2 },
    num_attention_heads = { 1, 2, 5, 8 },
    mlp_ratios = { 4, 4, 4, 4 },
    hidden_act = "gelu",
    hidden_dropout_prob = 0.0,
    attention_probs_dropout_prob = 0.0,
    classifier_dropout_prob = 0.1,
    initializer_range = 0.02,
    drop_path_rate = 0.1,
    layer_norm_eps = 1e-6,
    decoder_hidden_size = 256,
    semantic_loss_ignore_index = 255,
  },
  optional = { "image_size", "downsampling_rates" },
  only = { reshape_last_stage = true },
  ignored = { "^decode_head%." },
  add_parameters = add_parameters,
  new_encoder = new_encoder,
  new_features = function() return function(_, x) return x end end,
  classified = function(c)
    return c.hidden_sizes[#c.hidden_sizes], blocks.normal(c.initializer_range),
      function(_, x) return x:mean { 2, 3 } end
  end,
}
family.complete = tasks.complete_labels
table.insert(family.variants, new_segmentation(family))

return family
