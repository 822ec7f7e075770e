--- RT-DETR v2 (Lv et al., 2024), as Hugging Face's `RTDetrV2ForObjectDetection`: the scale of the
--- points at which a query looks is a setting.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.rt_detr_like"

return new_family {
  model_type = "rt_detr_v2", models = "RT-DETR v2", class = "RTDetrV2",
  more = { decoder_n_levels = 3, decoder_offset_scale = 0.5 },
  only = { decoder_method = "default" },
  scale = function(c)
    if c.decoder_n_levels ~= c.num_feature_levels then
      fail("rt_detr_v2: decoder_n_levels is %d, expected num_feature_levels, %d",
        c.decoder_n_levels, c.num_feature_levels)
    end
    return c.decoder_offset_scale
  end,
  -- Model files contain 1 / decoder_n_points as a parameter.
  add_to_attention = function(c, add, name)
    add(name .. "n_points_scale", { c.decoder_n_levels * c.decoder_n_points },
      blocks.constant(1 / c.decoder_n_points))
  end,
  frozen = "%.n_points_scale$",
}
