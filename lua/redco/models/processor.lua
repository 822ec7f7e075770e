--- Texts with images as the inputs of a model: what Hugging Face's processors do.
local complete_config = require "redco.models.config"
local fail = require "redco.fail"
local families = require "redco.models.family_table"
local files = require "redco.models.files"
local hub = require "redco.hub"
local native = require "redco.native"
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

-- Flattens the images of one or of several texts, each of which may have a list of images. Returns
-- all images, and the length of each list, or nil without lists.
local function flat(images)
  local list, counts = {}, {}
  for i, image in ipairs(torch.is_tensor(images) and { images } or images) do
    if torch.is_tensor(image) and image:dim() == 3 then
      list[#list + 1] = image
    else
      local own = torch.is_tensor(image) and torch.unbind(image) or image
      for _, one in ipairs(own) do list[#list + 1] = one end
      counts[i] = #own
    end
  end
  return list, #counts > 0 and not torch.is_tensor(images) and counts or nil
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

-- Returns how many images or tiles of pixel_values each text has.
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

-- Adds the inputs about images to a batch. If a text does not have exactly one image or tile, each
-- text gets a row of them. `own` are the lengths of lists of images, or nil.
local function add_images(family, batch, images, infos, counts, own)
  local pixels = images.pixel_values
  local units, has_rows = units_of(counts, infos, pixels:size(0)), family.has_rows
  for _, n in ipairs(units) do has_rows = has_rows or n ~= 1 end
  local function put(name, t)
    batch[name] = has_rows and in_rows(t, units, fills[name] or 0) or t
  end
  put("pixel_values", pixels)
  for _, name in ipairs(family.image_inputs) do
    if name == "pixel_attention_mask" then
      put(name, torch.ones({ pixels:size(0), pixels:size(2), pixels:size(3) }, { dtype = "int64" }))
    elseif name == "batch_num_images" then
      batch[name] = own and torch.tensor(own, { dtype = "int64" })
    elseif images[name] then
      put(name, images[name])
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

return registry.define("redco.models.processor", [[
processor(dir) -> function(texts: string or list of strings, images = nil, options: table = nil) -> batch
Returns a function that makes inputs of a model that reads images with texts, as transformers'
AutoProcessor does: in place of each image's word in a text stand as many image tokens as the model
has features for an image. The word is that of the chat template, "<image>" of LLaVA and
"<start_of_image>" of Gemma 3.

`images` are uint8 tensors [3, height, width], in the order of their words, in one list or a list for
each text. `options` are those of the tokenizer. The batch has input_ids, attention_mask, what the
model reads about images, such as image_sizes, and pixel_values, those of `redco.data.image_processor`.
If each text has one image or tile, pixel_values are [texts, 3, height, width], else
[texts, k, 3, height, width] with zeros where a text has fewer than k images, so that a batch can be
split by texts. `dir` is the folder of the model, with its tokenizer and
preprocessor_config.json, or a name of the Hub.

PaliGemma's texts get their images in front if they have no word for them; options.suffix, a text for
each of `texts`, is an answer. The batch has `labels`, which are -100 but for the tokens of answers,
and `token_type_ids`, which are 1 for them. LLaVA-OneVision cuts an image into
tiles if it is alone in its list, or if there are no lists.]], function(dir)
  if type(dir) ~= "string" then
    fail("models.processor: expected a model's folder, got %s", native.describe(dir))
  end
  dir = hub.path("models.processor", dir, "processor")
  local config = files.json(dir, "config.json")
    or fail("models.processor: there is no %s/config.json", dir)
  local family = families[config.model_type]
  if not family or not family.reads_images then
    fail("models.processor: %s: a %s reads no images with texts", dir, tostring(config.model_type))
  end
  config = complete_config(family, config, true)
  local tokens = native.read_tokenizer(dir)
  local prepare = new_image_processor(dir, family.image_options and family.image_options(config))
  local word, instead = family.image_text(config, function(id)
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

  return function(texts, images, options)
    local o, list, own = {}, flat(images or {})
    for key, value in pairs(options or {}) do o[key] = value end
    if type(texts) == "string" then texts = { texts } end
    if family.prompts then texts = family.prompts(texts, o, tokens, word, own) end
    local counts, total = {}, 0
    for i, text in ipairs(texts) do
      counts[i] = count_of(text, word)
      total = total + counts[i]
    end
    if images and total ~= #list then
      fail("models.processor: the texts have '%s' %d times for %d images", word, total, #list)
    end
    local prepared, infos
    if #list > 0 then
      prepared, infos = prepare(list, nil, own and singles(own))
      texts = expanded(texts, infos)
    end
    local batch = tokens(texts, o)
    if family.has_answers then
      batch.labels = batch.input_ids:masked_fill(batch.token_type_ids:eq(0), -100)
    end
    if torch.is_tensor(prepared) then prepared = { pixel_values = prepared } end
    if prepared then add_images(family, batch, prepared, infos, counts, own) end
    return batch
  end
end)
