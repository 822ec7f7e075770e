--- Models built as Idefics 3 (Laurençon et al., 2024), as Hugging Face's
--- `Idefics3ForConditionalGeneration`: each tile of an image goes through SigLIP without a head;
--- squares of its patches, joined, are projected to the embeddings of a decoder.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local layers = require "redco.models.layers.clip_layers"
local new_family = require "redco.models.kinds.features_in_text"
local siglip = require "redco.models.families.siglip_vision_model".tower
local squares = require "redco.models.images.patch_squares"

local function without_head(c) return setmetatable({ vision_use_head = false }, { __index = c }) end

-- A mask may hide only whole tiles, the zeros at the end of a row.
local function check_mask(c, mask)
  if not mask or mask:to_local().device == "meta" then return end
  mask = mask:flatten(1):ne(0)
  if mask:any(1):ne(mask:all(1)):any():item() then
    fail("%s: a pixel_attention_mask that hides a part of a tile is not supported", c.model_type)
  end
end

local function new_tower(model_type)
  local tower = { model_type = model_type, optional = {} }
  tower.defaults = { hidden_size = 1152, intermediate_size = 3072, num_hidden_layers = 12,
    num_attention_heads = 16, num_channels = 3, image_size = 224, patch_size = 32,
    hidden_act = "gelu_pytorch_tanh", layer_norm_eps = 1e-6, attention_dropout = 0.0,
    initializer_range = 0.02 }

  function tower.add_parameters(c, add)
    local normal = blocks.normal(c.initializer_range)
    siglip.add_parameters(without_head(c), function(name, sizes, init, ...)
      if #sizes > 1 then init = normal end
      add(name, sizes, name:find "bias$" and blocks.zeros or init, ...)
    end)
  end

  function tower.new_tower(c)
    local run = siglip.new_tower(without_head(c))
    return function(params, inputs, ...)
      check_mask(c, inputs.pixel_attention_mask)
      return run(params, inputs, ...)
    end
  end

  return setmetatable(tower, { __index = siglip })
end

-- Returns the text in place of an image: its tiles row by row, then the whole image, scaled down.
local function tiled(part, whole, around)
  return function(info)
    local list = {}
    for row = 1, info.rows do
      for column = 1, info.columns do
        list[#list + 1] = ("%s<row_%d_col_%d>%s"):format(around, row, column, part)
      end
      list[#list + 1] = "\n"
    end
    if info.rows > 0 then list[#list + 1] = "\n" end
    return table.concat(list) .. around .. whole .. part .. around
  end
end

--- Returns a family. A row has model_type, models, architecture, and vision_type, the model_type of
--- its vision_config.
return function(row)
  local family = {
    model_type = row.model_type,
    models = row.models,
    remarks = row.remarks,
    architecture = row.architecture,
    parts = { text_config = "llama" },
    tower_of_images = new_tower(row.vision_type),
    names = { text = "model.text_model.", tower = "model.", projector = "model.connector." },
    feature_inputs = { "pixel_attention_mask" },
    has_rows = true,
    is_tied = false,
    is_tied_by_text = true,
    default_parts = { text_config = { model_type = "llama", rms_norm_eps = 1e-5 } },
    defaults = {
      image_token_id = 128257,
      scale_factor = 2,
    },
  }

  local function sides_of(c)
    local side = math.floor(c.vision_config.image_size / c.vision_config.patch_size)
    if side % c.scale_factor ~= 0 then
      fail("%s: scale_factor is %d, which does not divide the %d patches of a side",
        family.model_type, c.scale_factor, side)
    end
    return side, c.scale_factor
  end

  family.check = sides_of

  function family.n_features(c) return layers.n_patches(c.vision_config) / c.scale_factor ^ 2 end

  function family.placeholder(c, token_of)
    local word = token_of(c.image_token_id)
    return word, tiled(word:rep(family.n_features(c)), "<global-img>", "<fake_token_around_image>")
  end

  function family.new_projector(c)
    local side, factor = sides_of(c)
    local projector = {}

    function projector.add_parameters(add)
      blocks.add_linear(add, "modality_projection.proj", c.vision_config.hidden_size * factor ^ 2,
        c.text_config.hidden_size, blocks.normal(c.text_config.initializer_range), false)
    end

    function projector.forward(params, _, last, o)
      return blocks.linear(params, "modality_projection.proj",
        squares.of(last, side, side, factor):flatten(2), o)
    end

    return projector
  end

  return new_family(family)
end
