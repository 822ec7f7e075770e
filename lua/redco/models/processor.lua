--- Texts with images as the inputs of a model: what Hugging Face's processors do.
local complete_config = require "redco.models.config"
local fail = require "redco.fail"
local families = require "redco.models.family_table"
local files = require "redco.models.files"
local native = require "redco.native"
local new_image_processor = require "redco.data.image_processor"
local registry = require "redco.registry"
local torch = require "redco.torch"

-- Returns how often `word`, which is no pattern, is in a text.
local function count_of(text, word)
  local n, place = 0, 1
  while true do
    local first, last = text:find(word, place, true)
    if not first then return n end
    n, place = n + 1, last + 1
  end
end

-- Returns the text with `instead` in place of each `word`.
local function replaced(text, word, instead)
  return (text:gsub(word:gsub("%p", "%%%0"), (instead:gsub("%%", "%%%%"))))
end

-- Returns a list of the images of one text or of several, which may be a list each.
local function flat(images)
  local list = {}
  for _, image in ipairs(torch.is_tensor(images) and { images } or images) do
    if torch.is_tensor(image) and image:dim() == 3 then
      list[#list + 1] = image
    else
      for _, own in ipairs(torch.is_tensor(image) and torch.unbind(image) or image) do
        list[#list + 1] = own
      end
    end
  end
  return list
end

-- Returns the pixel values [n, ...], or [texts, k, ...] of several images for each text.
local function pixels_of(prepare, images, counts)
  local pixels, first = prepare(images), counts[1]
  for _, count in ipairs(counts) do
    if count ~= first then return pixels end
  end
  return first > 1 and pixels:unflatten(0, { #counts, first }) or pixels
end

return registry.define("redco.models.processor", [[
processor(dir) -> function(texts: string or list of strings, images = nil, options: table = nil) -> batch
Returns a function that makes inputs of a model that reads images with texts, as transformers'
AutoProcessor does: in place of each image's word in a text stand as many image tokens as the model
has features for an image. The word is that of the chat template, "<image>" of LLaVA and
"<start_of_image>" of Gemma 3.

`images` are uint8 tensors [3, height, width], in the order of their words, in one list or a list for
each text. `options` are those of the tokenizer. The batch has input_ids, attention_mask and
pixel_values [images, 3, height, width], or [texts, k, 3, height, width] if each text has k > 1
images, so that a batch can be split by texts. `dir` is the folder of the model, with its tokenizer
and preprocessor_config.json.]], function(dir)
  if type(dir) ~= "string" then
    fail("models.processor: expected a model's folder, got %s", native.describe(dir))
  end
  local config = files.json(dir, "config.json")
    or fail("models.processor: there is no %s/config.json", dir)
  local family = families[config.model_type]
  if not family or not family.reads_images then
    fail("models.processor: %s: a %s reads no images with texts", dir, tostring(config.model_type))
  end
  config = complete_config(family, config, true)
  local tokens, prepare = native.Tokenizer.from_pretrained(dir), new_image_processor(dir)
  local word, instead = family.image_text(config, function(id)
    return tokens:convert_ids_to_tokens(id)
  end)

  return function(texts, images, options)
    if type(texts) == "string" then texts = { texts } end
    local expanded, counts, total, list = {}, {}, 0, images and flat(images) or {}
    for i, text in ipairs(texts) do
      counts[i] = count_of(text, word)
      total, expanded[i] = total + counts[i], images and replaced(text, word, instead) or text
    end
    if images and total ~= #list then
      fail("models.processor: the texts have '%s' %d times for %d images", word, total, #list)
    end
    local batch = tokens(expanded, options)
    if #list > 0 then batch.pixel_values = pixels_of(prepare, list, counts) end
    return batch
  end
end)
