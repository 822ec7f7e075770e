--- The model of images of Qwen3-VL and Qwen3.5, with experts or without.
local fail = require "redco.fail"
local norms = require "redco.models.layers.norms"

local vision = {}

-- Returns the side of the square of learned positions.
local function side_of(c) return math.floor(math.sqrt(c.num_position_embeddings)) end

local function check(c)
  for _, i in ipairs(c.deepstack_visual_indexes) do
    if i >= c.depth then
      fail("%s: deepstack_visual_indexes have %d, expected numbers below depth, %d",
        c.model_type, i, c.depth)
    end
  end
end

--- Returns the defaults and the check of vision_config.
function vision.new()
  return {
    defaults = {
      depth = 27,
      hidden_size = 1152,
      hidden_act = "gelu_pytorch_tanh",
      intermediate_size = 4304,
      num_heads = 16,
      in_channels = 3,
      patch_size = 16,
      spatial_merge_size = 2,
      temporal_patch_size = 2,
      out_hidden_size = 3584,
      num_position_embeddings = 2304,
      deepstack_visual_indexes = { 8, 16, 24 },
      initializer_range = 0.02,
    },
    check = check,
  }
end

--- Returns the facts of grid_tower.lua.
function vision.tower(c)
  return { size = c.hidden_size, inner = c.intermediate_size, out = c.out_hidden_size,
    norm = norms.layer, mlp = { "mlp.linear_fc1", "mlp.linear_fc2" },
    merger = { "norm", "linear_fc1", "linear_fc2" }, has_patch_bias = true, side = side_of(c),
    window = 1, is_full = function() return true end, deep = c.deepstack_visual_indexes or {} }
end

--- Completes the row of a model of Qwen3.5 for qwen_vl.lua. Its decoder reads features once.
function vision.row_of_qwen3_5(row)
  row.vision, row.tower = vision.new(), vision.tower
  row.vision.defaults.deepstack_visual_indexes = nil
  row.vision.optional = { "deepstack_visual_indexes" }
  function row.vision.check(c)
    if c.deepstack_visual_indexes and #c.deepstack_visual_indexes > 0 then
      fail("%s: deepstack_visual_indexes have %d, expected no numbers", c.model_type,
        c.deepstack_visual_indexes[1])
    end
  end
  row.ignored = { "%.rotary_pos_emb%.inv_freq$", "^mtp%." }
  -- States have no rows of several sequences.
  row.inputs = { "input_ids", "attention_mask", "position_ids", "pixel_values" }
  row.defaults = { image_token_id = 248056, video_token_id = 248057,
    vision_start_token_id = 248053, vision_end_token_id = 248054 }
  return row
end

return vision
