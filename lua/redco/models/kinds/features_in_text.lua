--- Decoders that also read images or sounds, as Hugging Face's classes
--- `...ForConditionalGeneration`: features of a model of images or sounds, projected, stand in the
--- rows of a decoder in place of tokens for them. The decoder is a family that `takes_features`,
--- the model of images or sounds a tower (tower.lua).
local blocks = require "redco.models.layers.blocks"
local complete_config = require "redco.models.config"
local fail = require "redco.fail"
local families = require "redco.models.family_table"
local json = require "redco.models.json"
local splice = require "redco.models.images.splice"
local ties = require "redco.models.ties"
local tower = require "redco.models.kinds.tower"

local prefix = "model."

-- What families of images and of sounds call otherwise: an image or a sound, the tower's
-- configuration and its prefix, the input and how many dimensions it has for a list of them, and
-- the token, for whose number families have one of two keys.
local media = {
  image = { unit = "image", part = "vision_config", tower = "model.vision_tower.",
    values = "pixel_values", dims = 4, tokens = { "image_token_index", "image_token_id" } },
  sound = { unit = "sound", part = "audio_config", tower = "model.audio_tower.",
    values = "input_features", dims = 3, tokens = { "audio_token_index", "audio_token_id" } },
}

local function token_of(family, c)
  local keys = family.medium.tokens
  return c[keys[1]] or c[keys[2]]
end

-- Returns the family of a part, "text_config" or that of the tower.
local function part_of(family, kind, config)
  local is_text = kind == "text_config"
  if not is_text and family.tower_of_images then return family.tower_of_images end
  local model_type = type(config) == "table" and config.model_type or family.parts[kind]
  if not is_text and family.towers[model_type] then return family.towers[model_type] end
  local decoder = is_text and family.decoder
  if decoder and decoder.model_type == model_type then return decoder end
  local found = families[model_type]
  local part = found and (is_text and found.takes_features and found or not is_text and found.tower)
  return part or fail("%s: its %s has model_type '%s', which is not supported", family.model_type,
    kind, model_type)
end

-- Converts the name that a decoder gives to a parameter to the name here.
local function name_of_text(family, name)
  if name:find "^model%." then return family.names.text .. name:sub(#prefix + 1) end
  return name == "lm_head.weight" and family.lm_head .. ".weight" or name
end

local function with_names_of_text(family, params)
  local names = {}
  return setmetatable({}, { __index = function(_, name)
    names[name] = names[name] or name_of_text(family, name)
    return params[names[name]]
  end })
end

-- Whether the name in the model of images lacks a prefix that transformers adds.
local function lacks_prefix(family, name)
  if family.tower_of_images or name:find "^vision_model%." then return false end
  for _, facts in pairs(family.towers) do
    if facts.has_name(name) then return false end
  end
  return true
end

-- Converts names from older folders, and from folders whose model of images has no prefix.
local function current_name(family, name)
  local renamed = name:gsub("^language_model%.model%.", "model.language_model.")
    :gsub("^language_model%.lm_head%.", "lm_head."):gsub("^vision_tower%.", "model.vision_tower.")
    :gsub("^audio_tower%.", "model.audio_tower.")
    :gsub("^multi_modal_projector%.", "model.multi_modal_projector.")
    :gsub("^image_newline$", "model.image_newline")
  local rest = renamed:match "^model%.vision_tower%.(.*)"
  if rest and lacks_prefix(family, rest) then
    return prefix .. "vision_tower.vision_model." .. rest
  end
  return renamed
end

-- The name that transformers writes into files.
local function file_name(name)
  local rest = name:match "^model%.language_model%.(.*)"
  if rest then return "language_model.model." .. rest end
  return name:find "^lm_head%." and "language_model." .. name or name:sub(#prefix + 1)
end

-- Version 4 of transformers reads the flag of the text model, version 5 that of the whole.
local function complete_ties(family, c, given)
  local own, whole = given.text_config.tie_word_embeddings, given.tie_word_embeddings
  if whole == nil then whole = family.is_tied end
  if own == nil then own = c.text_config.tie_word_embeddings end
  local reads_whole = (ties.version(given) or 0) >= 5 and not family.ties_as_text
  if reads_whole then own = whole or family.is_tied_by_text and own end
  c.tie_word_embeddings, c.text_config.tie_word_embeddings = own, own
end

local function complete(family, c, is_file)
  local given = { tie_word_embeddings = c.tie_word_embeddings, text_config = c.text_config or {},
    transformers_version = c.transformers_version }
  for _, kind in ipairs { "text_config", family.medium.part } do
    if c[kind] ~= nil and type(c[kind]) ~= "table" then
      fail("%s: the configuration's %s is no table", family.model_type, kind)
    end
    if family.settle and c[kind] then
      c[kind] = json.copy(c[kind])
      family.settle(kind, c[kind])
    end
    local part = part_of(family, kind, c[kind])
    c[kind] = complete_config(part, c[kind] or family.default_parts[kind] or {}, is_file)
  end
  complete_ties(family, c, given)
  for _, key in ipairs { "bos_token_id", "eos_token_id", "pad_token_id" } do
    if c[key] == nil and not json.nulls(c)[key] then c[key] = c.text_config[key] end
  end
end

local function text_of(family, c) return part_of(family, "text_config", c.text_config) end

local function tower_of(family, c)
  local part = family.medium.part
  return part_of(family, part, c[part]), c[part]
end

-- Returns function(params, units, o) -> features [n, F, size]. `units` are images or sounds.
local function new_features(family, c)
  local facts, own = tower_of(family, c)
  local n_layers = family.n_image_layers and family.n_image_layers(c)
  local run = tower.new(facts, setmetatable({ num_hidden_layers = n_layers,
    vision_use_head = false }, { __index = own }))
  local projector = family.new_projector(c)
  return function(params, units, o)
    local kept, n_tiles = {}, family.unit_dims == 5 and units.pixel_values:size(1)
    if n_tiles then
      units = setmetatable({ pixel_values = units.pixel_values:flatten(0, 1) }, { __index = units })
    end
    local last = run(blocks.with_prefix(params, family.names.tower), units, o, kept)
    local x = projector.forward(blocks.with_prefix(params, family.names.projector), kept, last, o,
      units)
    return n_tiles and x:unflatten(0, { x:size(0) / n_tiles, n_tiles }):flatten(1, 2) or x
  end
end

-- Returns the inputs about images or sounds, without the dimension of rows.
local function units_of(family, inputs)
  local units, values = {}, inputs[family.medium.values]
  local has_rows = values:dim() > family.unit_dims
  for _, name in ipairs { family.medium.values, unpack(family.feature_inputs) } do
    local value = inputs[name]
    units[name] = has_rows and value and value:dim() > 1 and value:flatten(0, 1) or value
  end
  if has_rows then units.n_real = splice.n_real(values) end
  return units
end

--- Returns a family. A row has the fields of a family, and
---   medium: what it reads, "image", or "sound", where all that is said here of images counts for
---     sounds, with audio_config and input_features in place of vision_config and pixel_values
---   parts: the model_types of text_config and vision_config that have none
---   decoder: the family of its text_config, if that is no model alone
---   tower_of_images: the tower of its model of images, if there is only one; its vision_config may
---     have any model_type
---   towers: by model_type, the towers of images that are no models alone; they have a function
---     has_name(name): whether a parameter is the tower's
---   names: the prefixes of the parameters, { text = ..., tower = ..., projector = ... }, if others
---     than LLaVA's; then files have these names, too
---   may_lack_images: whether a folder without vision_config has only the text model
---   lm_head: the name of the head, if not "lm_head"
---   default_parts: their configurations where the whole has none
---   is_tied: the default of tie_word_embeddings in version 5 of transformers, and is_tied_by_text:
---     whether true in text_config is enough there. With ties_as_text only that in text_config
---     counts
---   new_projector(c, image): { add_parameters(c, add), forward(params, kept, last, o, images) ->
---     features [n, F, size] }, with the parameters' names behind "multi_modal_projector."; `kept`
---     are the hidden states before and after each layer of the model of images, `last` its output
---   n_features(c): how many features an image or a tile has
---   placeholder(c, token_of): the word for an image in texts, and what stands for it in rows,
---     a text or function(a table of the image processor's info): the text; token_of(id) is the
---     text of a token
---   image_options(c): options of the image processor that count instead of the folder's
---   prompts(texts, options, tokens, word, counts) -> texts: changes the options of the tokenizer;
---     `counts` are the numbers of images, if each text has a list
---   has_answers: whether token_type_ids are 1 for the tokens of an answer, which are labels
---   has_rows: whether pixel_values of the processor always have a dimension of rows
---   fills_windows: whether a long sound has several windows, as an image has tiles; else it is cut
---   n_image_layers(c): how many layers of the model of images are read, or nil for all
---   spans_of(inputs, is_image, o): the spans of tokens that see each other (masks.lua), or nil
---   first_position: the position of the first token, if not 0
---   feature_inputs: names of inputs about the images beside pixel_values
---   unit_dims: how many dimensions pixel_values of a list of images have; 4 (of sounds 3), or 5 if
---     an image is [tiles, 3, height, width]: then features [n, F, size] are those of all tiles
---   new_splice(c): function(params, x, is_image, features, images) that replaces splice.features;
---     `images` has the inputs about images, without the dimension of rows, and n_real (splice.lua)
---   settle(kind, config): changes the given configuration of a part
---   add_own_parameters(c, add): parameters of no part
---   read(c, given, inputs, is_image, images, o): adds inputs of the decoder to `given`; `images`
---     is nil in a call without pixel_values
---   with_parts(config): the configuration with its parts, from one that has their keys elsewhere
---
--- pixel_values have one of two shapes. [n, ...]: images or tiles in the order of their tokens.
--- [B, k, ...]: the images of each row; zeros follow if a row has fewer than k. A batch of this
--- shape can be split over processes by rows.
return function(row)
  local medium = media[row.medium or "image"]
  local usual_names = { text = "model.language_model.", tower = medium.tower,
    projector = "model.multi_modal_projector." }
  local family = {
    base_model_prefix = "model", nullable = { "text_config", medium.part },
    inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids", medium.values },
    prompt_inputs = { medium.values }, default_parts = {}, names = usual_names,
    feature_inputs = {}, unit_dims = medium.dims, towers = {}, lm_head = "lm_head",
    optional = { "tie_word_embeddings" },
    ignored = { "%.position_ids$", "%.rotary_emb%.inv_freq$" },
  }
  function family.placeholder(c, text_of_token)
    local word = text_of_token(token_of(family, c))
    return word, word:rep(family.n_features(c))
  end

  for key, value in pairs(row) do family[key] = value end
  family.medium = medium
  if family.names == usual_names then
    function family.current_name(name) return current_name(family, name) end
    family.file_name = file_name
  end
  for _, name in ipairs(family.feature_inputs) do
    for _, list in ipairs { family.inputs, family.prompt_inputs } do list[#list + 1] = name end
  end
  family.defaults = { text_config = {}, [medium.part] = {} }
  for key, value in pairs(row.defaults) do family.defaults[key] = value end

  function family.config_parts(given)
    return { text_config = part_of(family, "text_config", given.text_config),
      [medium.part] = part_of(family, medium.part, given[medium.part]) }
  end

  function family.complete(c, is_file)
    complete(family, c, is_file)
    if row.complete then row.complete(c, is_file) end
  end

  function family.add_parameters(c, add)
    local facts, own = tower_of(family, c)
    tower.add_parameters(facts, own, blocks.add_with_prefix(add, family.names.tower))
    family.new_projector(c).add_parameters(blocks.add_with_prefix(add, family.names.projector))
    if family.add_own_parameters then family.add_own_parameters(c, add) end
    local text = setmetatable({ tie_word_embeddings = c.tie_word_embeddings },
      { __index = c.text_config })
    text_of(family, c).add_parameters(text, function(name, ...)
      add(name_of_text(family, name), ...)
    end)
  end

  -- transformers reads only the weight here, and omits what a decoder alone does to its logits.
  function family.head(c)
    local weight, bias = text_of(family, c).head(setmetatable(
      { tie_word_embeddings = c.tie_word_embeddings }, { __index = c.text_config }))
    if bias then
      fail("%s: its text_config has model_type '%s', whose last layer has a bias, which is not "
        .. "supported", family.model_type, c.text_config.model_type)
    end
    return name_of_text(family, weight)
  end

  local function splice_equal(_, x, is_unit, features, units)
    return splice.features(family.model_type, x, is_unit, features, units.n_real, medium.unit)
  end

  function family.new_forward(c)
    local decode = text_of(family, c).new_forward(c.text_config)
    local features_of = new_features(family, c)
    local put = family.new_splice and family.new_splice(c) or splice_equal
    return function(params, inputs, o)
      local ids, token = inputs.input_ids, token_of(family, c)
      local is_unit = ids:eq(token)
      local given = { attention_mask = inputs.attention_mask, position_ids = inputs.position_ids,
        segment_ids = inputs.segment_ids, input_ids = ids }
      if token >= c.text_config.vocab_size then
        given.input_ids = ids:masked_fill(is_unit, 0)
      end
      if family.first_position and not given.position_ids then
        given.position_ids = blocks.position_ids(given, o, ids) + family.first_position
      end
      if family.spans_of then given.image_spans = family.spans_of(inputs, is_unit, o) end
      local units = inputs[medium.values] and units_of(family, inputs)
      if family.read then family.read(c, given, inputs, is_unit, units, o) end
      if units then
        function given.spliced(x)
          return put(params, x, is_unit,
            features_of(params, units, { train = o.train, rng = o.rng }), units)
        end
      end
      return decode(with_names_of_text(family, params), given, o)
    end
  end

  function family.restart_length(c)
    local own = text_of(family, c).restart_length
    return own and own(c.text_config)
  end

  return family
end
