--- CLAP's model of sounds (Wu et al., 2023; Chen et al., 2022), as Hugging Face's `ClapAudioModel`
--- and `ClapAudioModelWithProjection`: a Swin Transformer over spectra, which are cut into pieces
--- that stand one below the other as a square. Shapes: B batch, H and W rows and columns of
--- patches.
local batch_norm = require "redco.models.layers.batch_norm"
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local projection = require "redco.models.sound.clap_projection"
local stages = require "redco.models.images.swin_stages"
local torch = require "redco.torch"
local tower = require "redco.models.kinds.tower"

local eps = 1e-5
local patches, fusion = "patch_embed.", "patch_embed.fusion_model."
local n_parts = 3  -- parts of a longer sound, in addition to the whole

local audio = {
  model_type = "clap_audio_model",
  models = "the sounds' half of CLAP",
  architecture = "ClapAudioModel",
  prefix = "audio_model.audio_encoder.",
  own_prefix = "audio_encoder.",
  inputs = { "input_features", "is_longer" },
  defaults = {
    window_size = 8,
    num_mel_bins = 64,
    spec_size = 256,
    hidden_act = "gelu",
    patch_size = 4,
    patch_stride = { 4, 4 },
    num_classes = 527,
    hidden_size = 768,
    projection_dim = 512,
    depths = { 2, 2, 6, 2 },
    num_attention_heads = { 4, 8, 16, 32 },
    enable_fusion = false,
    hidden_dropout_prob = 0.1,
    patch_embeds_hidden_size = 96,
    enable_patch_layer_norm = true,
    drop_path_rate = 0.0,
    attention_probs_dropout_prob = 0.0,
    qkv_bias = true,
    mlp_ratio = 4.0,
    aff_block_r = 4,
    num_hidden_layers = 4,
    projection_hidden_act = "relu",
    layer_norm_eps = 1e-5,
    initializer_factor = 1.0,
  },
  optional = { "fusion_type" },
  only = { patch_embed_input_channels = 1, flatten_patch_embeds = true },
  ignored = { batch_norm.ignored, "relative_position_index$", "^audio_projection%.",
    "^text_model%.", "^text_projection%.", "^logit_scale_" },
}

-- Returns the facts of the stages.
local function facts_of(c)
  return setmetatable({ num_heads = c.num_attention_heads, embed_dim = c.patch_embeds_hidden_size },
    { __index = c })
end

-- Returns the number of pieces into which a spectrum is cut.
local function n_pieces(c) return math.floor(c.spec_size / c.num_mel_bins) end

function audio.check(c)
  stages.check(facts_of(c))
  if #c.patch_stride ~= 2 then
    fail("clap_audio_model: patch_stride has %d numbers, expected 2", #c.patch_stride)
  end
  if n_pieces(c) < 1 or c.spec_size % n_pieces(c) ~= 0 then
    fail("clap_audio_model: spec_size (%d) is not a multiple of its quotient by num_mel_bins (%d)",
      c.spec_size, c.num_mel_bins)
  end
  if c.enable_fusion and c.fusion_type == "channel_map" then
    fail "clap_audio_model: fusion_type = channel_map is not supported, only null"
  end
end

-- The branches of the block that fuses features, with the index of their first convolution.
local branches = { local_att = 0, global_att = 1 }

local function branch_names(branch)
  local first = branches[branch]
  local function name(i) return ("%s%s.%d"):format(fusion, branch, first + i) end
  return name(0), name(1), name(3), name(4)
end

function audio.add_parameters(c, add)
  local normal, size = blocks.normal(projection.deviation(c)), c.patch_embeds_hidden_size
  local function convolution(name, n_in, n_out, height, width)
    blocks.add_convolution(add, name, { n_out, n_in, height, width }, normal)
  end
  batch_norm.add(add, "batch_norm", c.num_mel_bins)
  convolution(patches .. "proj", 1, size, c.patch_size, c.patch_size)
  if c.enable_patch_layer_norm then blocks.add_layer_norm(add, patches .. "norm", size) end
  if c.enable_fusion then
    local inner = math.floor(size / c.aff_block_r)
    convolution(patches .. "mel_conv2d", 1, size, c.patch_size, c.patch_size * n_parts)
    for branch in pairs(branches) do
      local down, down_norm, up, up_norm = branch_names(branch)
      convolution(down, size, inner, 1, 1)
      batch_norm.add(add, down_norm, inner)
      convolution(up, inner, size, 1, 1)
      batch_norm.add(add, up_norm, size)
    end
  end
  local facts = facts_of(c)
  stages.add_parameters(facts, "", add, normal)
  blocks.add_layer_norm(add, "norm", stages.size(facts))
end

audio.projection = projection.new "audio_projection"
local add_projection = audio.projection.add

function audio.projection.add(c, add, whole)
  local size = stages.size(facts_of(c))
  if c.hidden_size ~= size then
    fail("clap_audio_model: hidden_size is %d, expected the size of the last stage, %d",
      c.hidden_size, size)
  end
  add_projection(c, add, whole)
end

local function check_features(c, features)
  local most = c.spec_size * n_pieces(c)
  local n_rows = c.enable_fusion and n_parts + 1 or 1
  if torch.is_tensor(features) and features:dim() == 4 and features:size(1) == n_rows
    and features:size(2) <= most and features:size(3) == c.num_mel_bins then
    return
  end
  fail("%s: inputs.input_features are %s, expected [batch, %d, frames, %d] of at most %d frames, "
    .. "as from redco.data.feature_extractor", c.model_type, torch.is_tensor(features)
    and ("[%s]"):format(table.concat(features.shape, ", ")) or tostring(features), n_rows,
    c.num_mel_bins, most)
end

-- Returns spectra [B, n, frames, mels] as squares [B, n, side, side].
local function squares(c, x)
  local side, n = c.spec_size, n_pieces(c)
  local length, height = side * n, side / n
  if x:size(2) < length then
    x = torch.upsample_bicubic2d(x, { length, x:size(3) }, true)
  end
  if x:size(3) < height then x = torch.upsample_bicubic2d(x, { length, height }, true) end
  local batch, rows = x:size(0), x:size(1)
  return x:reshape { batch, rows, n, side, height }:transpose(3, 4)
    :reshape { batch, rows, side, side }
end

-- Fuses two features a and b [B, size, H, W]: returns their sum, weighted by attention to a + b
-- (Dai et al., 2021). In training the norms see all sounds, so that no shape depends on values. In
-- transformers they see only the longer sounds.
local function fused(params, a, b, o)
  local both = a + b
  local function branch(name, x)
    local down, down_norm, up, up_norm = branch_names(name)
    local function convolved(layer, norm, y)
      return batch_norm.apply(params, norm, blocks.conv2d(params, layer, y), o)
    end
    return convolved(up, up_norm, torch.relu(convolved(down, down_norm, x)))
  end
  local weight = (branch("local_att", both) + branch("global_att", both:mean({ 2, 3 }, true)))
    :sigmoid()
  return (a * weight + b * (1 - weight)) * 2
end

-- Returns patches [B, H, W, size] of squares [B, 1 or 4, side, side].
local function embedded(c, params, x, is_longer, o)
  local padding = {}
  for i, stride in ipairs(c.patch_stride) do
    padding[i] = math.floor((c.patch_size - stride) / 2)
  end
  local function convolved(name, y, stride)
    return blocks.conv2d(params, patches .. name, y, { stride = stride, padding = padding })
  end
  local y = convolved("proj", x:narrow(1, 0, 1), c.patch_stride)
  if c.enable_fusion then
    local rows, columns = unpack(c.patch_stride)
    local parts = convolved("mel_conv2d", x:narrow(1, 1, n_parts):flatten(0, 1):unsqueeze(1),
      { rows, columns * n_parts })
    local size, height, width = parts:size(1), parts:size(2), parts:size(3)
    parts = parts:view { -1, n_parts, size, height, width }:permute { 0, 2, 3, 1, 4 }:flatten(3)
    parts = torch.constant_pad_nd(parts, { 0, y:size(3) - n_parts * width }, 0)
    y = torch.where(is_longer:ne(0):view { -1, 1, 1, 1 }, fused(params, y, parts, o), y)
  end
  y = y:permute { 0, 2, 3, 1 }
  return c.enable_patch_layer_norm and blocks.layer_norm(params, patches .. "norm", y, eps) or y
end

function audio.new_tower(c)
  local run = stages.new(facts_of(c), "")
  return function(params, inputs, o, kept)
    local function keep(x) if kept then kept[#kept + 1] = x:flatten(1, 2) end end
    local features, is_longer = inputs.input_features, inputs.is_longer
    check_features(c, features)
    if c.enable_fusion and (not is_longer or is_longer:numel() ~= features:size(0)) then
      fail("%s: inputs.is_longer is %s, expected whether each of %d sounds is longer, [batch, 1]",
        c.model_type, is_longer and ("[%s]"):format(table.concat(is_longer.shape, ", ")) or "nil",
        features:size(0))
    end
    local x = features:to(params["batch_norm.weight"].dtype):transpose(1, 3)
    x = batch_norm.apply(params, "batch_norm", x, o):transpose(1, 3)
    x = embedded(c, params, squares(c, x), is_longer, o)
    keep(x)
    x = blocks.layer_norm(params, "norm", run(params, x, o, keep):flatten(1, 2), eps)
    return x, x:mean { 1 }
  end
end

return tower.family(audio)
