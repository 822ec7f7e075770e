--- SAM 2's decoder of masks (Kirillov et al., 2023; Ravi et al., 2024): tokens of an object and the
--- places of an image attend to each other, and each mask is a product of a token with the image's
--- features. Shapes: R rows, one for each object of each image, N tokens, H and W rows and columns.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local nn = require "redco.nn"
local torch = require "redco.torch"

local masks = { model_type = "sam2_mask_decoder" }

local eps, eps_of_images = 1e-5, 1e-6  -- of norms

masks.defaults = {
  hidden_size = 256,
  mlp_dim = 2048,
  num_hidden_layers = 2,
  num_attention_heads = 8,
  attention_downsample_rate = 2,
  num_multimask_outputs = 3,
  iou_head_depth = 3,
  iou_head_hidden_dim = 256,
  dynamic_multimask_via_stability = true,
  dynamic_multimask_stability_delta = 0.05,
  dynamic_multimask_stability_thresh = 0.98,
}
masks.optional = { "hidden_act" }
masks.least = { mlp_dim = 1, attention_downsample_rate = 1, num_multimask_outputs = 1,
  iou_head_depth = 1, iou_head_hidden_dim = 1 }
local deepest = 1000  -- of iou_head_depth

function masks.check(c)
  local where, size = "sam2: mask_decoder_config", c.hidden_size
  local inner = math.floor(size / c.attention_downsample_rate)
  if size % 8 ~= 0 then
    fail("%s: hidden_size is %d, expected a multiple of 8: masks are of an eighth", where, size)
  end
  for _, n in ipairs { size, inner } do
    if n < 1 or n % c.num_attention_heads ~= 0 then
      fail("%s: attention of %d numbers has num_attention_heads = %d, which does not divide them",
        where, n, c.num_attention_heads)
    end
  end
  if c.iou_head_depth > deepest then
    fail("%s: iou_head_depth is %d, expected at most %d", where, c.iou_head_depth, deepest)
  end
end

-- Returns the names of the layers of a feed-forward part with `depth` layers, at least two.
local function mlp_layers(depth)
  local names = { "proj_in" }
  for i = 0, depth - 3 do names[#names + 1] = "layers." .. i end
  names[#names + 1] = "proj_out"
  return names
end

local function add_mlp(add, name, n_in, inner, n_out, depth, init)
  local names = mlp_layers(depth)
  for i, part in ipairs(names) do
    blocks.add_linear(add, ("%s.%s"):format(name, part), i == 1 and n_in or inner,
      i == #names and n_out or inner, init)
  end
end

-- Applies linear layers with ReLU between them.
local function mlp(params, name, depth, x, o)
  local names = mlp_layers(depth)
  for i, part in ipairs(names) do
    x = blocks.linear(params, ("%s.%s"):format(name, part), x, o)
    if i < #names then x = torch.relu(x) end
  end
  return x
end

local function layer_name(i) return ("transformer.layers.%d."):format(i) end

--- Declares the parameters; `std` is that of weights.
function masks.add_parameters(c, add, std)
  local normal, size = blocks.normal(std), c.hidden_size
  local n_masks = c.num_multimask_outputs + 1
  local function attention(name, rate)
    local inner = math.floor(size / rate)
    for _, part in ipairs { "q_proj", "k_proj", "v_proj" } do
      blocks.add_linear(add, name .. "." .. part, size, inner, normal)
    end
    blocks.add_linear(add, name .. ".o_proj", inner, size, normal)
  end
  add("obj_score_token.weight", { 1, size }, normal)
  add("iou_token.weight", { 1, size }, normal)
  add("mask_tokens.weight", { n_masks, size }, normal)
  for i = 0, c.num_hidden_layers - 1 do
    local layer = layer_name(i)
    attention(layer .. "self_attn", 1)
    attention(layer .. "cross_attn_token_to_image", c.attention_downsample_rate)
    attention(layer .. "cross_attn_image_to_token", c.attention_downsample_rate)
    for k = 1, 4 do blocks.add_layer_norm(add, layer .. "layer_norm" .. k, size) end
    -- The depth is the number of transformer layers, as in transformers.
    add_mlp(add, layer .. "mlp", size, c.mlp_dim, size, c.num_hidden_layers, normal)
  end
  attention("transformer.final_attn_token_to_image", c.attention_downsample_rate)
  blocks.add_layer_norm(add, "transformer.layer_norm_final_attn", size)
  blocks.add_convolution(add, "conv_s0", { size / 8, size, 1, 1 }, normal)
  blocks.add_convolution(add, "conv_s1", { size / 4, size, 1, 1 }, normal)
  for i, n_in in ipairs { size, size / 4 } do  -- transposed: [in, out, ...]
    local n_out = size / 2 ^ (i + 1)
    add(("upscale_conv%d.weight"):format(i), { n_in, n_out, 2, 2 }, normal)
    add(("upscale_conv%d.bias"):format(i), { n_out }, blocks.zeros)
  end
  blocks.add_layer_norm(add, "upscale_layer_norm", size / 4)
  for i = 0, n_masks - 1 do
    add_mlp(add, "output_hypernetworks_mlps." .. i, size, size, size / 8, 3, normal)
  end
  add_mlp(add, "iou_prediction_head", size, c.iou_head_hidden_dim, n_masks, c.iou_head_depth,
    normal)
  add_mlp(add, "pred_obj_score_head", size, size, 1, 3, normal)
end

--- Returns what the decoder reads of the two larger images: `i` is 0 or 1.
function masks.of_larger(params, i, image)
  return blocks.conv2d(params, "conv_s" .. i, image)
end

-- Returns function(params, i, x, image, tokens, places, o) -> x, image: layer i. `tokens` and
-- `places` are added to queries and keys.
local function new_layer(c, attend)
  return function(params, i, x, image, tokens, places, o)
    local layer = layer_name(i)
    local function norm(k, y)
      return blocks.layer_norm(params, layer .. "layer_norm" .. k, y, eps)
    end
    if i == 0 then  -- x is `tokens` itself, which other layers add
      x = attend(params, layer .. "self_attn", x, x, x, o)
    else
      x = x + attend(params, layer .. "self_attn", x + tokens, x + tokens, x, o)
    end
    x = norm(1, x)
    x = norm(2, x + attend(params, layer .. "cross_attn_token_to_image", x + tokens,
      image + places, image, o))
    x = norm(3, x + mlp(params, layer .. "mlp", c.num_hidden_layers, x, o))
    image = norm(4, image + attend(params, layer .. "cross_attn_image_to_token", image + places,
      x + tokens, x, o))
    return x, image
  end
end

-- Returns function(params, tokens [R, N, size], image [R, H W, size], places, o) -> both.
local function new_transformer(c)
  local function attend(params, name, q, k, v, o)
    local function heads(part, x)
      return blocks.split_heads(blocks.linear(params, ("%s.%s"):format(name, part), x, o),
        c.num_attention_heads)
    end
    local y = blocks.attention(heads("q_proj", q), heads("k_proj", k), heads("v_proj", v), {}, o)
    return blocks.linear(params, name .. ".o_proj", y, o)
  end

  local apply_layer = new_layer(c, attend)
  return function(params, tokens, image, places, o)
    local x = tokens
    for i = 0, c.num_hidden_layers - 1 do
      x, image = nn.block(apply_layer, params, i, x, image, tokens, places, o)
    end
    x = x + attend(params, "transformer.final_attn_token_to_image", x + tokens, image + places,
      image, o)
    return blocks.layer_norm(params, "transformer.layer_norm_final_attn", x, eps), image
  end
end

-- Returns the features [R, size / 8, 4 H, 4 W] of an image [R, size, H, W] and two larger ones.
local function enlarged(params, image, larger)
  local function twice(i, x)
    local name = "upscale_conv" .. i
    return torch.conv_transpose2d(x, params[name .. ".weight"], params[name .. ".bias"],
      { stride = 2 })
  end
  local x = (twice(1, image) + larger[2]):permute { 0, 2, 3, 1 }
  x = torch.gelu(blocks.layer_norm(params, "upscale_layer_norm", x, eps_of_images))
  return torch.gelu(twice(2, x:permute { 0, 3, 1, 2 }) + larger[1])
end

-- Returns the first mask and its score if that mask hardly depends on the threshold, else the best
-- of the other masks and its score.
local function stable(c, logits, scores)
  local delta = c.dynamic_multimask_stability_delta
  local first, n = logits:narrow(1, 0, 1), c.num_multimask_outputs
  local function area(least) return first:gt(least):flatten(2):sum(-1):float() end
  local inner, outer = area(delta), area(-delta)
  local stability = torch.where(outer:gt(0), inner / outer:clamp_min(1), torch.ones_like(outer))
  local is_stable = stability:ge(c.dynamic_multimask_stability_thresh)
  local others = scores:narrow(1, 1, n)
  local best = others:argmax(-1, true)
  local place = best:view { -1, 1, 1, 1 }:expand { -1, 1, logits:size(2), logits:size(3) }
  return torch.where(is_stable:view { -1, 1, 1, 1 }, first,
    logits:narrow(1, 1, n):gather(1, place)),
    torch.where(is_stable, scores:narrow(1, 0, 1), others:gather(1, best))
end

--- Returns function(params, images, tokens, added, places, gives_several, o) -> masks [B, P, n,
--- 4 H, 4 W], scores [B, P, n], logits of there being an object [B, P, 1], of B images with P
--- objects each. `images` are the three of the model of images, the largest first; `tokens` [B, P,
--- N, size], `added` and `places` those of sam2_prompts.lua.
function masks.new(c)
  local transform, n_masks = new_transformer(c), c.num_multimask_outputs + 1
  return function(params, images, tokens, added, places, gives_several, o)
    local batch, n_objects, _, size = unpack(tokens.shape)
    local height, width = images[3]:size(2), images[3]:size(3)
    local function per_object(x) return x:repeat_interleave(n_objects, 0) end
    local own = torch.cat({ params["obj_score_token.weight"], params["iou_token.weight"],
      params["mask_tokens.weight"] }, 0):unsqueeze(0):expand { batch * n_objects, -1, -1 }
    local x = torch.cat({ own, tokens:flatten(0, 1):to(own.dtype) }, 1)
    local image = per_object(images[3] + added):flatten(2):transpose(1, 2)
    x, image = transform(params, x, image, places:flatten(2):transpose(1, 2), o)
    image = enlarged(params, image:transpose(1, 2):reshape { -1, size, height, width },
      { per_object(images[1]), per_object(images[2]) })
    local list = {}
    for i = 0, n_masks - 1 do
      list[i + 1] = mlp(params, "output_hypernetworks_mlps." .. i, 3, x:select(1, 2 + i), o)
    end
    local logits = torch.matmul(torch.stack(list, 1), image:flatten(2))
      :view { -1, n_masks, image:size(2), image:size(3) }
    local scores = mlp(params, "iou_prediction_head", c.iou_head_depth, x:select(1, 1), o):sigmoid()
    local is_there = mlp(params, "pred_obj_score_head", 3, x:select(1, 0), o)
    if gives_several then
      logits, scores = logits:narrow(1, 1, n_masks - 1), scores:narrow(1, 1, n_masks - 1)
    elseif c.dynamic_multimask_via_stability and not o.train then
      logits, scores = stable(c, logits, scores)
    else
      logits, scores = logits:narrow(1, 0, 1), scores:narrow(1, 0, 1)
    end
    local function by_image(t) return t:unflatten(0, { batch, n_objects }) end
    return by_image(logits), by_image(scores), by_image(is_there)
  end
end

return masks
