--- Decoders that also read images, as Hugging Face's classes `...ForConditionalGeneration`:
--- features of a model of images, projected, stand in the rows of a decoder in place of image
--- tokens. The decoder is one of llama_like.lua, the model of images a tower (tower.lua).
local blocks = require "redco.models.blocks"
local complete_config = require "redco.models.config"
local fail = require "redco.fail"
local families = require "redco.models.family_table"
local json = require "redco.models.json"
local splice = require "redco.models.splice"
local ties = require "redco.models.ties"
local tower = require "redco.models.tower"

local prefix = "model."

-- Returns the family of a part, "text_config" or "vision_config".
local function part_of(family, kind, config)
  local model_type = type(config) == "table" and config.model_type or family.parts[kind]
  local found = families[model_type]
  local part = found and (kind == "text_config" and found.is_llama_like and found or
    kind == "vision_config" and found.tower)
  return part or fail("%s: its %s has model_type '%s', which is not supported", family.model_type,
    kind, model_type)
end

-- The names that a decoder has by itself, and here.
local function name_of_text(name)
  return name:find "^model%." and prefix .. "language_model." .. name:sub(#prefix + 1) or name
end

local function with_names_of_text(params)
  local names = {}
  return setmetatable({}, { __index = function(_, name)
    names[name] = names[name] or name_of_text(name)
    return params[names[name]]
  end })
end

-- The names in older folders, and in those whose model of images has no prefix.
local function current_name(name)
  local renamed = name:gsub("^language_model%.model%.", "model.language_model.")
    :gsub("^language_model%.lm_head%.", "lm_head."):gsub("^vision_tower%.", "model.vision_tower.")
    :gsub("^multi_modal_projector%.", "model.multi_modal_projector.")
  local rest = renamed:match "^model%.vision_tower%.(.*)"
  if rest and not rest:find "^vision_model%." then
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

-- The text model's flag counts in version 4 of transformers, that of the whole in version 5.
local function complete_ties(family, c, given)
  local own, whole = given.text_config.tie_word_embeddings, given.tie_word_embeddings
  if whole == nil then whole = family.is_tied end
  if own == nil then own = c.text_config.tie_word_embeddings end
  if (ties.version(given) or 0) >= 5 then own = whole or family.is_tied_by_text and own end
  c.tie_word_embeddings, c.text_config.tie_word_embeddings = own, own
end

local function complete(family, c, is_file)
  local given = { tie_word_embeddings = c.tie_word_embeddings, text_config = c.text_config or {},
    transformers_version = c.transformers_version }
  for _, kind in ipairs { "text_config", "vision_config" } do
    if c[kind] ~= nil and type(c[kind]) ~= "table" then
      fail("%s: the configuration's %s is no table", family.model_type, kind)
    end
    local part = part_of(family, kind, c[kind])
    c[kind] = complete_config(part, c[kind] or family.default_parts[kind] or {}, is_file)
  end
  complete_ties(family, c, given)
  for _, key in ipairs { "bos_token_id", "eos_token_id", "pad_token_id" } do
    if c[key] == nil and not json.nulls(c)[key] then c[key] = c.text_config[key] end
  end
end

--- Returns a family. A row has the fields of a family, and
---   parts: the model_types of text_config and vision_config that have none
---   default_parts: their configurations where the whole has none
---   is_tied: the default of tie_word_embeddings in version 5 of transformers, and is_tied_by_text:
---     whether true in text_config is enough there
---   new_projector(c, image): { add_parameters(c, add), forward(params, kept, last, o) ->
---     features [n, F, size] }, with the parameters' names behind "multi_modal_projector."; `kept`
---     are the hidden states before and after each layer of the model of images, `last` its output
---   n_features(c): how many features an image has
---   image_text(c, token_of): the word for an image in texts, and what stands for it in rows;
---     token_of(id) is the text of a token
---   n_image_layers(c): how many layers of the model of images are read, or nil for all
---   sees_spans: whether the tokens of an image see each other
return function(row)
  local family = {
    base_model_prefix = "model", reads_images = true, nullable = { "text_config", "vision_config" },
    inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids", "pixel_values" },
    prompt_inputs = { "pixel_values" }, default_parts = {}, current_name = current_name,
    file_name = file_name,
    optional = { "tie_word_embeddings" },
    ignored = { "%.position_ids$", "%.rotary_emb%.inv_freq$" },
  }
  function family.image_text(c, token_of)
    local word = token_of(c.image_token_index)
    return word, word:rep(family.n_features(c))
  end

  for key, value in pairs(row) do family[key] = value end
  family.defaults = { text_config = {}, vision_config = {} }
  for key, value in pairs(row.defaults) do family.defaults[key] = value end

  function family.config_parts(given)
    return { text_config = part_of(family, "text_config", given.text_config),
      vision_config = part_of(family, "vision_config", given.vision_config) }
  end

  function family.complete(c, is_file)
    complete(family, c, is_file)
    if row.complete then row.complete(c, is_file) end
  end

  local function text_of(c) return part_of(family, "text_config", c.text_config) end

  function family.add_parameters(c, add)
    local image = part_of(family, "vision_config", c.vision_config)
    tower.add_parameters(image, c.vision_config,
      blocks.add_with_prefix(add, prefix .. "vision_tower."))
    family.new_projector(c).add_parameters(
      blocks.add_with_prefix(add, prefix .. "multi_modal_projector."))
    local text = setmetatable({ tie_word_embeddings = c.tie_word_embeddings },
      { __index = c.text_config })
    text_of(c).add_parameters(text, function(name, ...) add(name_of_text(name), ...) end)
  end

  -- Only the product: transformers leaves out what a decoder alone does to its logits.
  function family.head(c)
    local weight, bias = text_of(c).head(setmetatable(
      { tie_word_embeddings = c.tie_word_embeddings }, { __index = c.text_config }))
    if bias then
      fail("%s: its text_config has model_type '%s', whose last layer has a bias, which is not "
        .. "supported", family.model_type, c.text_config.model_type)
    end
    return name_of_text(weight)
  end

  -- Returns function(params, pixel_values [n, ...] or [B, k, ...], o) -> features [n, F, size].
  local function new_features(c)
    local image = part_of(family, "vision_config", c.vision_config)
    local n_layers = family.n_image_layers and family.n_image_layers(c)
    local run = tower.new(image, setmetatable({ num_hidden_layers = n_layers,
      vision_use_head = false }, { __index = c.vision_config }))
    local projector = family.new_projector(c)
    return function(params, pixels, o)
      if pixels:dim() == 5 then pixels = pixels:flatten(0, 1) end
      local kept = {}
      local last = run(blocks.with_prefix(params, prefix .. "vision_tower."),
        { pixel_values = pixels }, o, kept)
      return projector.forward(
        blocks.with_prefix(params, prefix .. "multi_modal_projector."), kept, last, o)
    end
  end

  function family.new_forward(c)
    local decode, features_of = text_of(c).new_forward(c.text_config), new_features(c)
    return function(params, inputs, o)
      local ids = inputs.input_ids
      local is_image = ids:eq(c.image_token_index)
      local given = { attention_mask = inputs.attention_mask, position_ids = inputs.position_ids,
        segment_ids = inputs.segment_ids, input_ids = ids }
      if c.image_token_index >= c.text_config.vocab_size then
        given.input_ids = ids:masked_fill(is_image, 0)
      end
      if inputs.pixel_values then
        if family.sees_spans then given.image_spans = splice.spans(is_image) end
        function given.spliced(x)
          return splice.features(family.model_type, x, is_image,
            features_of(params, inputs.pixel_values, { train = o.train, rng = o.rng }))
        end
      end
      return decode(with_names_of_text(params), given, o)
    end
  end

  function family.restart_length(c)
    local own = text_of(c).restart_length
    return own and own(c.text_config)
  end

  return family
end
