--- Models that find objects as RT-DETR does (Zhao et al., 2023): places of images of three sizes
--- are rated, and the best become queries, whose boxes each layer refines. Shapes: B images, S
--- places of all sizes, Q queries, C classes.
local backbone = require "redco.models.images.rt_detr_backbone"
local batch_norm = require "redco.models.layers.batch_norm"
local blocks = require "redco.models.layers.blocks"
local denoising = require "redco.models.images.rt_detr_denoising"
local deformable = require "redco.models.layers.deformable_attention"
local detection = require "redco.models.tasks.detection"
local encoder = require "redco.models.images.rt_detr_encoder"
local fail = require "redco.fail"
local nn = require "redco.nn"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

local of_backbone, of_encoder = "model.backbone.model.", "model.encoder."
local eps = 1e-5
local box_side = 0.05  -- the side of the first guesses of boxes in the largest image
local least = 1e-2  -- guesses that are nearer to the border of the image do not count
local far = 1e4  -- the logit of such guesses, whose sigmoid is 1

local defaults = {
  initializer_range = 0.01,
  layer_norm_eps = 1e-5,
  batch_norm_eps = 1e-5,
  encoder_hidden_dim = 256,
  encoder_in_channels = { 512, 1024, 2048 },
  feat_strides = { 8, 16, 32 },
  encoder_layers = 1,
  encoder_ffn_dim = 1024,
  encoder_attention_heads = 8,
  dropout = 0.0,
  activation_dropout = 0.0,
  encode_proj_layers = { 2 },
  positional_encoding_temperature = 10000,
  encoder_activation_function = "gelu",
  activation_function = "silu",
  normalize_before = false,
  hidden_expansion = 1.0,
  d_model = 256,
  num_queries = 300,
  decoder_in_channels = { 256, 256, 256 },
  decoder_ffn_dim = 1024,
  num_feature_levels = 3,
  decoder_n_points = 4,
  decoder_layers = 6,
  decoder_attention_heads = 8,
  decoder_activation_function = "relu",
  attention_dropout = 0.0,
  num_denoising = 100,
  label_noise_ratio = 0.5,
  box_noise_scale = 1.0,
  matcher_alpha = 0.25,
  matcher_gamma = 2.0,
  matcher_class_cost = 2.0,
  matcher_bbox_cost = 5.0,
  matcher_giou_cost = 2.0,
  auxiliary_loss = true,
  focal_loss_alpha = 0.75,
  focal_loss_gamma = 2.0,
  weight_loss_vfl = 1.0,
  weight_loss_bbox = 5.0,
  weight_loss_giou = 2.0,
}

local function xavier(t, generator)
  return nn.init.xavier_uniform_(t, { generator = generator })
end

local function check(c)
  local name = c.model_type
  blocks.check_multiple(c, "d_model", "decoder_attention_heads")
  blocks.check_multiple(c, "encoder_hidden_dim", "encoder_attention_heads")
  if c.encoder_hidden_dim % 4 ~= 0 then
    fail("%s: encoder_hidden_dim (%d) is not a multiple of 4: a half is for rows and one for "
      .. "columns, each in sines and cosines", name, c.encoder_hidden_dim)
  end
  local sizes = {}
  for i, stage in ipairs(backbone.stages(c.backbone_config)) do
    sizes[i] = c.backbone_config.hidden_sizes[stage]
  end
  if table.concat(sizes, ", ") ~= table.concat(c.encoder_in_channels, ", ") then
    fail("%s: encoder_in_channels are %s, and its backbone_config gives images of %s channels",
      name, table.concat(c.encoder_in_channels, ", "), table.concat(sizes, ", "))
  end
  if #c.decoder_in_channels ~= #sizes or c.num_feature_levels ~= #sizes then
    fail("%s: decoder_in_channels has %d numbers and num_feature_levels is %d, expected %d each",
      name, #c.decoder_in_channels, c.num_feature_levels, #sizes)
  end
  for _, place in ipairs(c.encode_proj_layers) do
    if place < 0 or place >= #sizes then
      fail("%s: encode_proj_layers has %d, and there are %d images", name, place, #sizes)
    end
  end
end

local function layer_name(i) return ("model.decoder.layers.%d."):format(i) end

local function add_mlp(add, name, sizes, init, last)
  for i = 1, #sizes - 1 do
    local is_last = i == #sizes - 1
    blocks.add_linear(add, ("%s.layers.%d"):format(name, i - 1), sizes[i], sizes[i + 1],
      is_last and last or init)
  end
end

local function add_parameters(facts, c, add)
  local size, normal = c.d_model, blocks.normal(c.initializer_range)
  local function linear(name, n_in, n_out) blocks.add_linear(add, name, n_in, n_out, normal) end
  local function projection(name, n_in, n_out)
    add(name .. ".0.weight", { n_out, n_in, 1, 1 }, normal)
    batch_norm.add(add, name .. ".1", n_out)
  end
  -- In a new model, queries have no class, and boxes stay in their places.
  local prior = c.initializer_bias_prior_prob or 1 / (c.num_labels + 1)
  local function classes(name)
    blocks.add_linear(add, name, size, c.num_labels, xavier,
      blocks.constant(-math.log((1 - prior) / prior)))
  end
  backbone.add_parameters(c.backbone_config, blocks.add_with_prefix(add, of_backbone))
  encoder.add_parameters(c, blocks.add_with_prefix(add, of_encoder))
  for i, n_in in ipairs(c.encoder_in_channels) do
    projection("model.encoder_input_proj." .. i - 1, n_in, c.encoder_hidden_dim)
    projection("model.decoder_input_proj." .. i - 1, c.decoder_in_channels[i], size)
  end
  if c.num_denoising > 0 then
    add("model.denoising_class_embed.weight", { c.num_labels + 1, size }, xavier)
  end
  linear("model.enc_output.0", size, size)
  blocks.add_layer_norm(add, "model.enc_output.1", size)
  classes "model.enc_score_head"
  add_mlp(add, "model.enc_bbox_head", { size, size, size, 4 }, normal, normal)
  add_mlp(add, "model.decoder.query_pos_head", { 4, 2 * size, size }, normal, normal)
  for i = 0, c.decoder_layers - 1 do
    local layer = layer_name(i)
    for _, part in ipairs { "q_proj", "k_proj", "v_proj", "out_proj" } do
      linear(layer .. "self_attn." .. part, size, size)
    end
    deformable.add_parameters(add, layer .. "encoder_attn.", size, c.decoder_attention_heads,
      c.num_feature_levels, c.decoder_n_points)
    if facts.add_to_attention then facts.add_to_attention(c, add, layer .. "encoder_attn.") end
    linear(layer .. "fc1", size, c.decoder_ffn_dim)
    linear(layer .. "fc2", c.decoder_ffn_dim, size)
    for _, part in ipairs { "self_attn", "encoder_attn", "final" } do
      blocks.add_layer_norm(add, layer .. part .. "_layer_norm", size)
    end
    classes("model.decoder.class_embed." .. i)
    add_mlp(add, "model.decoder.bbox_embed." .. i, { size, size, size, 4 }, normal, blocks.zeros)
  end
end

-- Applies linear layers with ReLU between them.
local function mlp(params, name, n, x, o)
  for i = 0, n - 1 do
    x = blocks.linear(params, ("%s.layers.%d"):format(name, i), x, o)
    if i < n - 1 then x = torch.relu(x) end
  end
  return x
end

local function logit(x)
  return (x:clamp_min(eps) / (1 - x):clamp_min(eps)):log()
end

-- Returns the logits of the first guesses of boxes [1, S, 4], and which are within the image, [1,
-- S, 1].
local function guesses(sizes, like)
  local options, parts = { device = like.device }, {}
  for level, sides in ipairs(sizes) do
    local height, width = unpack(sides)
    local rows = ((torch.arange(height, options):float() + 0.5) / height):unsqueeze(1)
      :expand { height, width }
    local columns = ((torch.arange(width, options):float() + 0.5) / width):unsqueeze(0)
      :expand { height, width }
    local side = torch.full_like(rows, box_side * 2 ^ (level - 1))
    parts[level] = torch.stack({ columns, rows, side, side }, -1):flatten(0, 1)
  end
  local boxes = torch.cat(parts, 0):unsqueeze(0)
  local is_within = boxes:gt(least):logical_and(boxes:lt(1 - least)):all(-1, true)
  local logits = (boxes / (1 - boxes)):log():masked_fill(is_within:logical_not(), far)
  return logits:to(like.dtype), is_within
end

-- Returns rows of t [B, S, n] by places [B, Q].
local function rows_of(t, places)
  return t:gather(1, places:unsqueeze(-1):expand { -1, -1, t:size(2) })
end

-- Returns function(params, i, x, boxes, memory, sizes, mask, o) that applies layer i of the
-- decoder. `mask` [Q, Q] says which queries see which, or is nil.
local function new_layer(c, scale)
  local n_heads = c.decoder_attention_heads
  local activation = blocks.activation(c.model_type, c.decoder_activation_function)
  local look = deformable.new(n_heads, c.num_feature_levels, c.decoder_n_points, scale)
  return function(params, i, x, boxes, memory, sizes, mask, o)
    local layer = layer_name(i)
    local function linear(name, y) return blocks.linear(params, layer .. name, y, o) end
    local function drop(y) return blocks.dropout(y, c.dropout, o) end
    local function added(norm, y)
      return blocks.layer_norm(params, layer .. norm, x + y, c.layer_norm_eps)
    end
    local function heads(part, y)
      return blocks.split_heads(linear("self_attn." .. part, y), n_heads)
    end
    local places = mlp(params, "model.decoder.query_pos_head", 2, boxes, o)
    local at = x + places
    local y = blocks.attention(heads("q_proj", at), heads("k_proj", at), heads("v_proj", x),
      { mask = mask, dropout = c.attention_dropout }, o)
    x = added("self_attn_layer_norm", drop(linear("self_attn.out_proj", y)))
    y = look(params, layer .. "encoder_attn.", x + places, memory, sizes, boxes, o)
    x = added("encoder_attn_layer_norm", drop(y))
    y = blocks.dropout(activation(linear("fc1", x)), c.activation_dropout, o)
    return added("final_layer_norm", drop(linear("fc2", y)))
  end
end

local function new_functions(facts, c)
  local see, encode = backbone.new(c.backbone_config), encoder.new(c)
  local decode = new_layer(c, facts.scale and facts.scale(c) or 0.5)

  -- Returns the places [B, S, size] of the encoder's images, and their sides.
  local function places_of(params, inputs, o)
    local pixels = inputs.pixel_values
    if pixels:dim() ~= 4 or pixels:size(1) ~= c.backbone_config.num_channels then
      fail("%s: pixel_values are [%s], expected [batch, %d, height, width]", c.model_type,
        table.concat(pixels.shape, ", "), c.backbone_config.num_channels)
    end
    local function projected(name, i, x, norm_eps)
      x = torch.conv2d(x, params[("%s.%d.0.weight"):format(name, i - 1)])
      return batch_norm.apply(params, ("%s.%d.1"):format(name, i - 1), x, o, norm_eps)
    end
    local images = see(blocks.with_prefix(params, of_backbone), pixels, o)
    for i, x in ipairs(images) do images[i] = projected("model.encoder_input_proj", i, x, eps) end
    local rows, sizes = {}, {}
    for i, x in ipairs(encode(blocks.with_prefix(params, of_encoder), images, o)) do
      sizes[i] = { x:size(2), x:size(3) }
      rows[i] = projected("model.decoder_input_proj", i, x, c.batch_norm_eps):flatten(2)
        :transpose(1, 2)
    end
    return torch.cat(rows, 1), sizes
  end

  -- Returns the list of { logits, boxes } of the best places and of each layer, with `denoised` and
  -- n_groups for detection.focal_loss, and the states of the queries. Appends the states in all
  -- layers to `kept`.
  local function run(params, inputs, o, kept)
    local memory, sizes = places_of(params, inputs, o)
    local guess, is_within = guesses(sizes, memory)
    if memory:size(1) < c.num_queries then
      fail("%s: %d places are fewer than num_queries, %d: give larger images", c.model_type,
        memory:size(1), c.num_queries)
    end
    local rated = memory * is_within:to(memory.dtype)
    rated = blocks.linear(params, "model.enc_output.0", rated, o)
    rated = blocks.layer_norm(params, "model.enc_output.1", rated, c.layer_norm_eps)
    local classes = blocks.linear(params, "model.enc_score_head", rated, o)
    local logits = mlp(params, "model.enc_bbox_head", 3, rated, o) + guess
    local rating = classes:detach():max(-1)
    local _, best = rating:topk(c.num_queries, 1)
    logits = rows_of(logits, best)
    local list = { { logits = rows_of(classes, best), boxes = logits:sigmoid() } }
    local x, boxes = rows_of(rated, best):detach(), logits:detach():sigmoid()
    local more = not kept and denoising.queries(c, params, inputs, o)
    if more then
      x = torch.cat({ more.x:to(x.dtype), x }, 1)
      boxes = torch.cat({ logit(more.boxes:to(x.dtype)):sigmoid(), boxes }, 1)
      list.denoised, list.n_groups = {}, more.n_groups
    end
    local function add(found)
      local first = more and more.n or 0
      local function part(start, n)
        return { logits = found.logits:narrow(1, start, n),
          boxes = found.boxes:narrow(1, start, n) }
      end
      list[#list + 1] = part(first, c.num_queries)
      if more then list.denoised[#list.denoised + 1] = part(0, first) end
    end
    for i = 0, c.decoder_layers - 1 do
      if kept then kept[#kept + 1] = x end
      x = nn.block(decode, params, i, x, boxes, memory, sizes, more and more.mask or nil, o)
      local refined = (mlp(params, "model.decoder.bbox_embed." .. i, 3, x, o) + logit(boxes))
        :sigmoid()
      add { boxes = refined,
        logits = blocks.linear(params, "model.decoder.class_embed." .. i, x, o) }
      boxes = refined:detach()
    end
    if kept then kept[#kept + 1] = x end
    return list, x
  end

  return {
    output = function(params, inputs, o)
      local list = run(params, inputs, o)
      return list[#list].logits, list[#list].boxes
    end,
    hidden_states = function(params, inputs, o)
      local kept = {}
      local _, x = run(params, inputs, o, kept)
      return x, kept
    end,
    all_layers = function(params, inputs, o) return (run(params, inputs, o)) end,
  }
end

--- Returns a family. A row has model_type, models, class and `more` defaults; only; scale(c), that
--- of points in a box, by default 0.5; add_to_attention(c, add, name), further parameters of
--- deformable attention; frozen, a pattern of those that are not trained.
return function(row)
  local family = {
    model_type = row.model_type,
    models = row.models,
    remarks = "gives logits and boxes; `labels` and `boxes` are those of objects; the norms of the "
      .. "ResNet get no gradient",
    architecture = row.class .. "ForObjectDetection",
    task = "object_detection",
    base_model_prefix = "model",
    inputs = { "pixel_values" },
    labels = { "labels", "boxes" },
    nullable = { "backbone_config", "eval_size", "anchor_image_size",
      "initializer_bias_prior_prob" },
    defaults = {},
    -- anchor_image_size has no effect, since the places are those of the images themselves.
    optional = { "backbone", "backbone_config", "backbone_kwargs", "use_timm_backbone", "id2label",
      "label2id", "num_labels", "problem_type", "use_pretrained_backbone", "eos_coefficient",
      "anchor_image_size", "eval_size",
      "disable_custom_kernels", "initializer_bias_prior_prob", "is_encoder_decoder",
      "matcher_class_cost" },
    only = { freeze_backbone_batch_norms = true, learn_initial_query = false,
      use_focal_loss = true, with_box_refine = true },
    aliases = { hidden_size = "d_model", num_attention_heads = "encoder_attention_heads" },
    ignored = { batch_norm.ignored, "^bbox_embed%.", "^class_embed%." },  -- copies
    buffers = setmetatable({}, { __index = function(_, name)
      return name:sub(1, #of_backbone) == of_backbone and backbone.is_frozen(name)
        or row.frozen and name:find(row.frozen) ~= nil
    end }),
    check = check,
  }
  for _, list in ipairs { defaults, row.more or {} } do
    for key, value in pairs(list) do family.defaults[key] = value end
  end
  for key, value in pairs(row.only or {}) do family.only[key] = value end
  family.variants = { family }

  function family.complete(c, is_file)
    tasks.complete_labels(c)
    backbone.complete(c, is_file)
  end

  function family.add_parameters(c, add) add_parameters(row, c, add) end

  function family.new_functions(c) return new_functions(row, c) end

  function family.compare(model, params, inputs, o)
    local list = model.all_layers(params, inputs, o)
    if not model.config.auxiliary_loss then return { list[#list] } end
    return list
  end

  family.loss = detection.focal_loss
  return family
end
