--- Texts with images or sounds as the inputs of a model: what Hugging Face's processors do.
local complete_config = require "redco.models.config"
local fail = require "redco.fail"
local families = require "redco.models.family_table"
local files = require "redco.models.files"
local hub = require "redco.hub"
local native = require "redco.native"
local new_feature_extractor = require "redco.data.feature_extractor"
local new_image_processor = require "redco.data.image_processor"
local registry = require "redco.registry"
local torch = require "redco.torch"

-- Counts `word`, a plain string and no pattern, in a text.
local function count_of(text, word)
  local n, place = 0, 1
  while true do
    local first, last = text:find(word, place, true)
    if not first then return n end
    n, place = n + 1, last + 1
  end
end

-- Replaces each word in a text with the next result of next_text().
local function replaced(text, word, next_text)
  return (text:gsub(word:gsub("%p", "%%%0"), function() return next_text() end))
end

-- Flattens the images or sounds of one or of several texts, each of which may have a list of them.
-- `dims` are the dimensions of one. Returns all, and the length of each list, or nil without lists.
local function flat(units, dims)
  local list, counts = {}, {}
  for i, unit in ipairs(torch.is_tensor(units) and { units } or units) do
    if torch.is_tensor(unit) and unit:dim() == dims then
      list[#list + 1] = unit
    else
      local own = torch.is_tensor(unit) and torch.unbind(unit) or unit
      for _, one in ipairs(own) do list[#list + 1] = one end
      counts[i] = #own
    end
  end
  return list, #counts > 0 and not torch.is_tensor(units) and counts or nil
end

-- Returns t [n, ...] as [rows, most, ...]: `counts` of each row, and `fill` behind them.
local function in_rows(t, counts, fill)
  local rows, first, most, pads = {}, 0, math.max(unpack(counts)), {}
  for i = 1, 2 * t:dim() - 1 do pads[i] = 0 end
  for i, count in ipairs(counts) do
    pads[2 * t:dim()] = most - count
    rows[i], first = torch.constant_pad_nd(t:narrow(0, first, count), pads, fill), first + count
  end
  return torch.stack(rows)
end

-- Returns how many images, tiles or sounds each text has.
local function units_of(counts, infos, n)
  if n == #infos then return counts end
  local units, image = {}, 0
  for i, count in ipairs(counts) do
    units[i] = 0
    for _ = 1, count do
      image = image + 1
      units[i] = units[i] + infos[image].n_tiles
    end
  end
  return units
end

-- What stands for missing images in place of zeros.
local fills = { image_position_ids = -1 }

-- Adds the inputs about images or sounds to a batch. If a text does not have exactly one image, a
-- tile or a sound, each text gets a row of them. `own` are the lengths of lists of images, or nil.
local function add_inputs(family, batch, inputs, infos, counts, own)
  local name_of_values = family.medium.values
  local values = inputs[name_of_values]
  local units, has_rows = units_of(counts, infos, values:size(0)), family.has_rows
  for _, n in ipairs(units) do has_rows = has_rows or n ~= 1 end
  local function put(name, t)
    batch[name] = has_rows and in_rows(t, units, fills[name] or 0) or t
  end
  put(name_of_values, values)
  for _, name in ipairs(family.feature_inputs) do
    if name == "pixel_attention_mask" then
      put(name, torch.ones({ values:size(0), values:size(2), values:size(3) }, { dtype = "int64" }))
    elseif name == "batch_num_images" then
      batch[name] = own and torch.tensor(own, { dtype = "int64" })
    elseif inputs[name] then
      put(name, inputs[name])
    elseif infos[1][name] then
      local rows = {}
      for i, info in ipairs(infos) do rows[i] = info[name] end
      put(name, torch.tensor(rows, { dtype = "int64" }))
    end
  end
end

-- Returns for each image whether it is alone in its text.
local function singles(counts)
  local list = {}
  for _, count in ipairs(counts) do
    for _ = 1, count do list[#list + 1] = count == 1 end
  end
  return list
end

-- Returns the preparer of sounds that fill windows, the last one with padding. Spectra are relative
-- to the loudest part of the whole sound.
local function windows_of(extract, settings, config)
  local n_frames = 2 * config.max_source_positions
  return function(list, _, rate)
    local windows, infos = {}, {}
    for i, sound in ipairs(list) do
      local own = extract({ sound }, { padding = "longest", truncation = false,
        pad_to_multiple_of = n_frames * settings.hop_length, sampling_rate = rate })
      infos[i] = { n_tiles = own:size(2) / n_frames }
      windows[i] = own[0]:unflatten(1, { infos[i].n_tiles, n_frames }):transpose(0, 1)
    end
    return { input_features = torch.cat(windows, 0) }, infos
  end
end

-- Ways to make inputs of a list of images or sounds: the dimensions of one, and new(dir, family,
-- config), which returns function(list, counts of lists or nil, sampling rate) -> inputs, infos.
local preparers = {
  image = { dims = 3, new = function(dir, family, config)
    local prepare = new_image_processor(dir, family.image_options and family.image_options(config))
    return function(list, own)
      local inputs, infos = prepare(list, nil, own and singles(own))
      return torch.is_tensor(inputs) and { pixel_values = inputs } or inputs, infos
    end
  end },
  sound = { dims = 1, new = function(dir, family, config)
    local extract, settings = new_feature_extractor(dir)
    if family.fills_windows then return windows_of(extract, settings, config.audio_config) end
    return function(list, _, rate)
      local features, mask = extract(list, { sampling_rate = rate })
      local infos = {}
      for i, n_frames in ipairs(mask:sum({ 1 }):tolist()) do infos[i] = { n_frames = n_frames } end
      return { input_features = features, feature_attention_mask = mask }, infos
    end
  end },
}

return registry.define("redco.models.processor", [[
processor(dir) -> function(texts: string or list of strings, units = nil, options: table = nil) -> batch
Returns a function that makes inputs of a model that reads images or sounds with texts, as
transformers' AutoProcessor does: in place of each image's word in a text stand as many image tokens
as the model has features for an image. The word is that of the chat template, "<image>" of LLaVA,
"<start_of_image>" of Gemma 3, "<|AUDIO|>" of Qwen2-Audio.

`units` are images or sounds in the order of their words, in one list or a list for each text: uint8
images [3, height, width], or sounds [samples], as for `redco.data.feature_extractor`. `options` are
those of the tokenizer, and of sounds `sampling_rate`, to compare with the model's. The batch has
input_ids, attention_mask, what the model reads about images, such as image_sizes, and pixel_values,
those of `redco.data.image_processor`. If each text has one image or tile, pixel_values are [texts,
3, height, width], else [texts, k, 3, height, width] with zeros where a text has fewer than k
images, so that a batch can be split by texts. Of sounds it has input_features [texts, mels, frames]
or [texts, k, mels, frames], and feature_attention_mask, 1 for frames that are no padding. `dir` is
the folder of the model, with its tokenizer and preprocessor_config.json, or a name of the Hub.

PaliGemma's texts get their images in front if they have no word for them; options.suffix, a text
for each of `texts`, is an answer. The batch has `labels`, which are -100 but for the tokens of
answers, and `token_type_ids`, which are 1 for them. LLaVA-OneVision cuts an image into tiles if it
is alone in its list, or if there are no lists.]], function(dir)
  if type(dir) ~= "string" then
    fail("models.processor: expected a model's folder, got %s", native.describe(dir))
  end
  dir = hub.path("models.processor", dir, "processor")
  local config = files.json(dir, "config.json")
    or fail("models.processor: there is no %s/config.json", dir)
  local family = families[config.model_type]
  local medium = family and family.medium
  if not medium then
    fail("models.processor: %s: a %s reads no images or sounds with texts", dir,
      tostring(config.model_type))
  end
  config = complete_config(family, config, true)
  local tokens = native.read_tokenizer(dir)
  local preparer = preparers[medium.unit]
  local prepare = preparer.new(dir, family, config)
  local word, instead = family.placeholder(config, function(id)
    return tokens:convert_ids_to_tokens(id)
  end)

  local function expanded(texts, infos)
    local list, i = {}, 0
    for k, text in ipairs(texts) do
      list[k] = replaced(text, word, function()
        i = i + 1
        return type(instead) == "string" and instead or instead(infos[i])
      end)
    end
    return list
  end

  return function(texts, units, options)
    local o, list, own = {}, flat(units or {}, preparer.dims)
    for key, value in pairs(options or {}) do o[key] = value end
    local rate
    if medium.unit == "sound" then rate, o.sampling_rate = o.sampling_rate, nil end
    if type(texts) == "string" then texts = { texts } end
    if family.prompts then texts = family.prompts(texts, o, tokens, word, own) end
    local counts, total = {}, 0
    for i, text in ipairs(texts) do
      counts[i] = count_of(text, word)
      total = total + counts[i]
    end
    if units and total ~= #list then
      fail("models.processor: the texts have '%s' %d times for %d %ss", word, total, #list,
        medium.unit)
    end
    local inputs, infos
    if #list > 0 then
      inputs, infos = prepare(list, own, rate)
      texts = expanded(texts, infos)
    end
    local batch = tokens(texts, o)
    if family.has_answers then
      batch.labels = batch.input_ids:masked_fill(batch.token_type_ids:eq(0), -100)
    end
    if inputs then add_inputs(family, batch, inputs, infos, counts, own) end
    return batch
  end
end)
