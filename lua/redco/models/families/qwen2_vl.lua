--- Qwen2-VL (Wang et al., 2024), as Hugging Face's `Qwen2VLForConditionalGeneration`: images of any
--- size, with rotary positions of rows and columns.
local new_family = require "redco.models.kinds.qwen_vl"
local names = require "redco.models.images.qwen_vl_names"
local norms = require "redco.models.layers.norms"
local texts = require "redco.models.images.qwen_vl_text"

return new_family {
  model_type = "qwen2_vl",
  models = "Qwen2-VL, QVQ",
  architecture = "Qwen2VLForConditionalGeneration",
  text = texts.qwen2_vl_text,
  is_tied_by_text = true,
  file_name = names.file_name,
  vision = {
    defaults = {
      depth = 32,
      embed_dim = 1280,
      hidden_size = 3584,
      hidden_act = "quick_gelu",
      mlp_ratio = 4,
      num_heads = 16,
      in_channels = 3,
      patch_size = 14,
      spatial_merge_size = 2,
      temporal_patch_size = 2,
      initializer_range = 0.02,
    },
  },
  tower = function(c)
    return { size = c.embed_dim, inner = math.floor(c.embed_dim * c.mlp_ratio), out = c.hidden_size,
      norm = norms.layer, mlp = { "mlp.fc1", "mlp.fc2" }, merger = { "ln_q", "mlp.0", "mlp.2" },
      window = 1, is_full = function() return true end, deep = {} }
  end,
}
