--- Qwen2.5-VL (Bai et al., 2025), as Hugging Face's `Qwen2_5_VLForConditionalGeneration`: Qwen2-VL
--- with windows of patches in most layers of its model of images.
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.qwen_vl"
local names = require "redco.models.images.qwen_vl_names"
local norms = require "redco.models.layers.norms"
local texts = require "redco.models.images.qwen_vl_text"

-- Returns how many rows and columns of features a window has.
local function window_of(c)
  local n = math.floor(math.floor(c.window_size / c.spatial_merge_size) / c.patch_size)
  if n > 0 then return n end
  fail("qwen2_5_vl: window_size is %d, expected at least spatial_merge_size * patch_size = %d",
    c.window_size, c.spatial_merge_size * c.patch_size)
end

return new_family {
  model_type = "qwen2_5_vl",
  models = "Qwen2.5-VL, and others in its form",
  architecture = "Qwen2_5_VLForConditionalGeneration",
  text = texts.qwen2_5_vl_text,
  is_tied_by_text = true,
  file_name = names.file_name,
  vision = {
    defaults = {
      depth = 32,
      hidden_size = 3584,
      hidden_act = "silu",
      intermediate_size = 3420,
      num_heads = 16,
      in_channels = 3,
      patch_size = 14,
      spatial_merge_size = 2,
      temporal_patch_size = 2,
      tokens_per_second = 4,
      window_size = 112,
      out_hidden_size = 3584,
      fullatt_block_indexes = { 7, 15, 23, 31 },
      initializer_range = 0.02,
    },
    check = window_of,
  },
  tower = function(c)
    local is_full = {}
    for _, i in ipairs(c.fullatt_block_indexes) do is_full[i] = true end
    return { size = c.hidden_size, inner = c.intermediate_size, out = c.out_hidden_size,
      norm = norms.rms, mlp = { "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj" },
      merger = { "ln_q", "mlp.0", "mlp.2" }, window = window_of(c),
      is_full = function(i) return is_full[i] or false end, deep = {} }
  end,
}
