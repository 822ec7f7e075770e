--- DETR (Carion et al., 2020), as Hugging Face's `DetrForObjectDetection`: an encoder-decoder over
--- the places of an image, whose queries find one object each or none. Shapes: B images, T places,
--- Q queries.
local backbone = require "redco.models.images.resnet_backbone"
local batch_norm = require "redco.models.layers.batch_norm"
local blocks = require "redco.models.layers.blocks"
local detection = require "redco.models.tasks.detection"
local fail = require "redco.fail"
local masks = require "redco.models.layers.masks"
local nn = require "redco.nn"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

local of_backbone = "model.backbone.conv_encoder.model."
local eps = 1e-5

local detr = {
  model_type = "detr",
  models = "DETR",
  remarks = "gives logits and boxes; `labels` and `boxes` are those of objects; the norms and the "
    .. "first layers of the ResNet get no gradient",
  architecture = "DetrForObjectDetection",
  task = "object_detection",
  base_model_prefix = "model",
  inputs = { "pixel_values", "pixel_mask" },
  labels = { "labels", "boxes" },
  nullable = { "backbone_config", "backbone", "dilation" },
  defaults = {
    num_channels = 3,
    num_queries = 100,
    encoder_layers = 6,
    encoder_ffn_dim = 2048,
    encoder_attention_heads = 8,
    decoder_layers = 6,
    decoder_ffn_dim = 2048,
    decoder_attention_heads = 8,
    activation_function = "relu",
    d_model = 256,
    dropout = 0.1,
    attention_dropout = 0.0,
    activation_dropout = 0.0,
    init_std = 0.02,
    dilation = false,
    class_cost = 1,
    bbox_cost = 5,
    giou_cost = 2,
    bbox_loss_coefficient = 5,
    giou_loss_coefficient = 2,
    eos_coefficient = 0.1,
  },
  optional = { "backbone", "backbone_config", "backbone_kwargs", "use_timm_backbone", "id2label",
    "label2id", "num_labels", "problem_type", "init_xavier_std", "mask_loss_coefficient",
    "dice_loss_coefficient", "use_pretrained_backbone", "is_encoder_decoder", "classifier_dropout",
    "max_position_embeddings", "num_hidden_layers", "scale_embedding" },
  only = { auxiliary_loss = false, encoder_layerdrop = 0, decoder_layerdrop = 0,
    position_embedding_type = "sine" },
  ignored = { batch_norm.ignored },
  new_if_missing = { ["class_labels_classifier.weight"] = true,
    ["class_labels_classifier.bias"] = true },
  -- Parameters that are not trained, by a part of the name.
  buffers = setmetatable({}, { __index = function(_, name)
    return name:sub(1, #of_backbone) == of_backbone
      and backbone.is_frozen(name:sub(#of_backbone + 1))
  end }),
}
detr.variants = { detr }

function detr.complete(c, is_file)
  tasks.complete_labels(c)
  backbone.complete(c, is_file)
end

function detr.check(c)
  for _, part in ipairs { "encoder", "decoder" } do
    blocks.check_multiple(c, "d_model", part .. "_attention_heads")
  end
  if c.d_model % 4 ~= 0 then
    fail("detr: d_model is %d, expected a multiple of 4: a half is for rows and one for columns, "
      .. "each in sines and cosines", c.d_model)
  end
end

local function layer_name(part, i) return ("model.%s.layers.%d."):format(part, i) end

function detr.add_parameters(c, add)
  local size, normal = c.d_model, blocks.normal(c.init_std)
  local function linear(name, n_in, n_out) blocks.add_linear(add, name, n_in, n_out, normal) end
  local function attention(name)
    for _, part in ipairs { "q_proj", "k_proj", "v_proj", "out_proj" } do
      linear(name .. "." .. part, size, size)
    end
    blocks.add_layer_norm(add, name .. "_layer_norm", size)
  end
  local n_channels = backbone.add_parameters(c, blocks.add_with_prefix(add, of_backbone))
  blocks.add_convolution(add, "model.input_projection", { size, n_channels, 1, 1 }, normal)
  add("model.query_position_embeddings.weight", { c.num_queries, size }, normal)
  for _, part in ipairs { "encoder", "decoder" } do
    for i = 0, c[part .. "_layers"] - 1 do
      local layer = layer_name(part, i)
      attention(layer .. "self_attn")
      if part == "decoder" then attention(layer .. "encoder_attn") end
      linear(layer .. "fc1", size, c[part .. "_ffn_dim"])
      linear(layer .. "fc2", c[part .. "_ffn_dim"], size)
      blocks.add_layer_norm(add, layer .. "final_layer_norm", size)
    end
  end
  blocks.add_layer_norm(add, "model.decoder.layernorm", size)
  linear("class_labels_classifier", size, c.num_labels + 1)
  for i = 0, 2 do linear("bbox_predictor.layers." .. i, size, i < 2 and size or 4) end
end

-- Returns the mask [B, rows, columns] of places, each with the value of its nearest pixel.
local function mask_of_places(inputs, height, width)
  local mask, pixels = inputs.pixel_mask, inputs.pixel_values
  if not mask then
    return torch.ones({ pixels:size(0), height, width }, { device = pixels.device })
  end
  local expected = { pixels:size(0), pixels:size(2), pixels:size(3) }
  if table.concat(mask.shape, ", ") ~= table.concat(expected, ", ") then
    fail("detr: pixel_mask is [%s], expected [%s]", table.concat(mask.shape, ", "),
      table.concat(expected, ", "))
  end
  return torch.upsample_nearest2d(mask:float():unsqueeze(1), { height, width }):squeeze(1)
end

-- Returns the positions [B, T, size] of places of the mask [B, rows, columns]: sines and cosines of
-- the row and of the column, counted without padding and scaled to a full circle.
local function positions_of(mask, size)
  local half = size / 2
  local function along(axis)
    local counts = mask:cumsum(axis)
    local last = counts:narrow(axis, counts:size(axis) - 1, 1)
    local angles = {}
    for i = 0, half / 2 - 1 do angles[i + 1] = 10000 ^ (2 * i / half) end
    local turned = (counts / (last + 1e-6) * (2 * math.pi)):unsqueeze(-1)
      / torch.tensor(angles, { dtype = mask.dtype, device = mask.device })
    return torch.stack({ turned:sin(), turned:cos() }, -1):flatten(-2)
  end
  return torch.cat({ along(1), along(2) }, -1):flatten(1, 2)
end

local function new_attention(c, n_heads)
  return function(params, name, queries, keys, values, mask, o)
    local function heads(part, x)
      return blocks.split_heads(blocks.linear(params, name .. part, x, o), n_heads)
    end
    local y = blocks.attention(heads(".q_proj", queries), heads(".k_proj", keys),
      heads(".v_proj", values), { mask = mask, dropout = c.attention_dropout }, o)
    return blocks.linear(params, name .. ".out_proj", y, o)
  end
end

-- Returns a function(params, i, x, positions, memory, places, mask, o) that applies layer i.
local function new_layer(c, part)
  local attend = new_attention(c, c[part .. "_attention_heads"])
  local activation = blocks.activation("detr", c.activation_function)
  return function(params, i, x, positions, memory, places, mask, o)
    local layer = layer_name(part, i)
    local function added(y, norm)
      return blocks.layer_norm(params, layer .. norm, x + blocks.dropout(y, c.dropout, o), eps)
    end
    local at = x + positions
    x = added(attend(params, layer .. "self_attn", at, at, x, not memory and mask or nil, o),
      "self_attn_layer_norm")
    if memory then
      x = added(attend(params, layer .. "encoder_attn", x + positions, memory + places, memory,
        mask, o), "encoder_attn_layer_norm")
    end
    local inner = activation(blocks.linear(params, layer .. "fc1", x, o))
    inner = blocks.dropout(inner, c.activation_dropout, o)
    return added(blocks.linear(params, layer .. "fc2", inner, o), "final_layer_norm")
  end
end

function detr.new_functions(c)
  local see, encode, decode = backbone.new(c), new_layer(c, "encoder"), new_layer(c, "decoder")

  -- Returns the states of the queries [B, Q, size]. Appends the inputs of the decoder's layers and
  -- the output to `kept`.
  local function run(params, inputs, o, kept)
    local image = see(blocks.with_prefix(params, of_backbone), inputs.pixel_values, o)
    local places = mask_of_places(inputs, image:size(2), image:size(3))
    local mask = masks.padding(places:flatten(1), image.dtype)
    local positions = positions_of(places, c.d_model):to(image.dtype)
    local x = blocks.conv2d(params, "model.input_projection", image):flatten(2):transpose(1, 2)
    x = blocks.dropout(x, c.dropout, o)
    for i = 0, c.encoder_layers - 1 do
      x = nn.block(encode, params, i, x, positions, nil, nil, mask, o)
    end
    local queries = params["model.query_position_embeddings.weight"]:unsqueeze(0)
    local y = torch.zeros_like(queries):expand { x:size(0), -1, -1 }
    for i = 0, c.decoder_layers - 1 do
      if kept then kept[#kept + 1] = y end
      y = nn.block(decode, params, i, y, queries, x, positions, mask, o)
    end
    y = blocks.layer_norm(params, "model.decoder.layernorm", y, eps)
    if kept then kept[#kept + 1] = y end
    return y
  end

  return {
    output = function(params, inputs, o)
      local found = run(params, inputs, o)
      local boxes = found
      for i = 0, 2 do
        boxes = blocks.linear(params, "bbox_predictor.layers." .. i, boxes, o)
        if i < 2 then boxes = torch.relu(boxes) end
      end
      return blocks.linear(params, "class_labels_classifier", found, o), boxes:sigmoid()
    end,
    hidden_states = function(params, inputs, o)
      local kept = {}
      return run(params, inputs, o, kept), kept
    end,
  }
end

function detr.compare(model, params, inputs, o)
  local logits, boxes = model.output(params, inputs, o)
  return { logits = logits, boxes = boxes }
end

detr.loss = detection.loss

return detr
