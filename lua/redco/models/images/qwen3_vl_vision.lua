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

--- Returns the same of Qwen3.5, whose decoder reads features once.
function vision.of_qwen3_5()
  local own = vision.new()
  own.defaults.deepstack_visual_indexes = nil
  own.optional = { "deepstack_visual_indexes" }
  function own.check(c)
    local indexes = c.deepstack_visual_indexes or {}
    if #indexes > 0 then
      fail("%s: deepstack_visual_indexes have %d, expected no numbers", c.model_type, indexes[1])
    end
  end
  return own
end

--- Returns the facts of grid_tower.lua.
function vision.tower(c)
  return { size = c.hidden_size, inner = c.intermediate_size, out = c.out_hidden_size,
    norm = norms.layer, mlp = { "mlp.linear_fc1", "mlp.linear_fc2" },
    merger = { "norm", "linear_fc1", "linear_fc2" }, has_patch_bias = true, side = side_of(c),
    window = 1, is_full = function() return true end, deep = c.deepstack_visual_indexes or {} }
end

return vision
