--- DINOv2 (Oquab et al., 2023), as Hugging Face's `Dinov2Model` and `Dinov2ForImageClassification`:
--- ViT with a scale behind each layer, and positions for images of any size.
local new_family = require "redco.models.kinds.vit_like"
local torch = require "redco.torch"

-- The gated layer has two thirds of the plain layer's size, rounded up to a multiple of 8.
local function mlp(c)
  local inner = math.floor(c.hidden_size * c.mlp_ratio)
  if not c.use_swiglu_ffn then return { up = "mlp.fc1", down = "mlp.fc2", inner = inner } end
  return { up = "mlp.weights_in", down = "mlp.weights_out", is_gated = true,
    inner = math.floor((math.floor(inner * 2 / 3) + 7) / 8) * 8 }
end

-- Returns the first token and the mean of the patches.
local function read(x, n_first)
  local patches = x:narrow(1, n_first, x:size(1) - n_first)
  return torch.cat({ x:select(1, 0), patches:mean { 1 } }, 1)
end

--- Returns a family like DINOv2. A row has model_type, models, class, and what differs: `more`
--- defaults, registers and interpolates (vit_like.lua).
local function like_dinov2(row)
  local defaults = {
    hidden_size = 768,
    num_hidden_layers = 12,
    num_attention_heads = 12,
    mlp_ratio = 4,
    hidden_act = "gelu",
    hidden_dropout_prob = 0.0,
    attention_probs_dropout_prob = 0.0,
    initializer_range = 0.02,
    layer_norm_eps = 1e-6,
    image_size = 224,
    num_channels = 3,
    qkv_bias = true,
    layerscale_value = 1.0,
    use_swiglu_ffn = false,
    use_mask_token = true,
    drop_path_rate = 0.0,
  }
  for key, value in pairs(row.more) do defaults[key] = value end
  return new_family {
    model_type = row.model_type,
    models = row.models,
    class = row.class,
    prefix = row.model_type,
    defaults = defaults,
    -- Keys of the backbone class, which is a part of detectors.
    optional = { "apply_layernorm", "reshape_hidden_states", "out_features", "out_indices",
      "stage_names" },
    registers = row.registers,
    norms = { "norm1", "norm2" },
    mlp = mlp,
    has_layer_scale = true,
    interpolates = row.interpolates,
    read = read,
    n_read = 2,
  }
end

local dinov2 = like_dinov2 {
  model_type = "dinov2", models = "DINOv2", class = "Dinov2", interpolates = "plain",
  more = { patch_size = 14 },
}
dinov2.like_dinov2 = like_dinov2
return dinov2
