--- Qwen's models that read images of any size in their texts: a tower of grid_tower.lua, and a
--- decoder whose positions are those of time, row and column (grid_positions.lua).
local fail = require "redco.fail"
local grids = require "redco.models.images.patch_grids"
local json = require "redco.models.json"
local names = require "redco.models.images.qwen_vl_names"
local new_family = require "redco.models.kinds.features_in_text"
local positions = require "redco.models.images.grid_positions"
local splice = require "redco.models.images.splice_varied"
local torch = require "redco.torch"
local tower = require "redco.models.images.grid_tower"

-- Keys that transformers reads for any decoder.
local text_keys = { "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings",
  "use_cache" }

-- Returns the keys of the text model that no other part has.
local function own_keys(text)
  local keys = {}
  for _, list in ipairs { text.defaults, text.aliases or {} } do
    for key in pairs(list) do keys[key] = true end
  end
  for _, key in ipairs(text.optional) do keys[key] = true end
  for _, key in ipairs(text_keys) do keys[key] = nil end
  return keys
end

-- Early folders have the text model's keys beside vision_config. Later folders have them in
-- text_config, too, which has precedence. Returns the configuration with these keys only in
-- text_config.
local function with_text_config(text, given)
  if given.hidden_size == nil then return given end
  local c, own, nulls = json.copy(given), {}, json.nulls(given)
  local function add(key)
    own[key] = given[key]
    if nulls[key] then json.set_null(own, key) end
  end
  for _, key in ipairs(text_keys) do add(key) end
  for key in pairs(own_keys(text)) do
    add(key)
    c[key] = nil
  end
  if given.text_config ~= nil then return c end
  c.text_config, c.tie_word_embeddings = own, own.tie_word_embeddings
  return c
end

-- Names of keys that only version 5 of transformers reads.
local second_names = { num_attention_heads = "num_heads", num_hidden_layers = "depth" }

local function check_names(vision)
  for second, first in pairs(second_names) do
    if vision[second] ~= nil and vision[second] ~= vision[first] then
      fail("%s: vision_config has %s = %s and %s = %s, which is not supported", vision.model_type,
        second, vision[second], first, vision[first])
    end
  end
end

-- Returns the function `read` of a family of features_in_text.lua.
local function new_read(row)
  return function(c, given, inputs, is_image, images, o)
    if not images then
      given.position_ids = given.position_ids or positions.of_text(inputs, o, inputs.input_ids)
      return
    end
    if inputs.segment_ids then
      fail("%s: segment_ids: rows of several sequences have no images", c.model_type)
    end
    local vision = c.vision_config
    grids.complete(c.model_type, images, vision.spatial_merge_size, row.tower(vision).window)
    images.spliced.has_rows = images.n_real ~= nil
    if not inputs.position_ids then
      given.axis_position_ids = positions.of_images(c.model_type, inputs, o, is_image, images)
    end
    function given.after_layer(i, x)
      local features = images.deep[i + 1]
      return features
        and x + splice(c.model_type, torch.zeros_like(x), is_image, features, images.spliced) or x
    end
  end
end

--- Returns a family. A row has the fields of one of features_in_text.lua, and
---   text: the family of the decoder
---   tower(vision_config): the facts of grid_tower.lua
---   vision: defaults of vision_config, its optional keys, and check(c)
---   defaults: the numbers of special tokens, if not those of Qwen2-VL
---   file_name: as that of a family, if files have other names
return function(row)
  local text, vision = row.text, row.vision
  local check = vision.check
  vision.model_type, vision.prefix = row.model_type, ""
  vision.optional = { "in_chans", "rope_parameters", "spatial_patch_size",
    unpack(vision.optional or {}) }
  function vision.add_parameters(c, add) tower.add_parameters(c, row.tower(c), add) end
  function vision.new_tower(c) return tower.new(c, row.tower(c)) end
  function vision.check(c)
    if check then check(c) end
    check_names(c)
    tower.check(c, row.tower(c))
  end

  row.is_tied = false
  row.names = { text = "model.language_model.", tower = "model.visual.",
    projector = "model.visual.merger." }
  row.current_name, row.file_name = names.current_name, row.file_name or names.same
  row.parts = { text_config = text.model_type, vision_config = vision.model_type }
  row.decoder, row.tower_of_images = text, vision
  row.feature_inputs, row.unit_dims = { "image_grid_thw" }, 3
  row.defaults = row.defaults or { image_token_id = 151655, video_token_id = 151656,
    vision_start_token_id = 151652, vision_end_token_id = 151653 }
  row.read = new_read(row)
  function row.router_loss(c) return text.router_loss(c.text_config) end
  function row.with_parts(given) return with_text_config(text, given) end

  function row.new_projector(c)
    return tower.new_projector(c.vision_config, row.tower(c.vision_config))
  end

  function row.new_splice(c)
    return function(_, x, is_image, features, images)
      return splice(c.model_type, x, is_image, features, images.spliced)
    end
  end

  function row.placeholder(c, token_of)
    local word = token_of(c.image_token_id)
    return word, function(info)
      local _, height, width = unpack(info.image_grid_thw)
      return word:rep(height * width / c.vision_config.spatial_merge_size ^ 2)
    end
  end

  return new_family(row)
end
