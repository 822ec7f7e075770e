--- The text model in the folder of a model that also reads images or sound: its configuration is in
--- `text_config`, and its weights have a prefix.
local families = require "redco.models.family_table"
local json = require "redco.models.json"
local listed = require "redco.models.listed"
local ties = require "redco.models.ties"
local warn = require "redco.warn"

local part = {}

-- Keys of the whole configuration that the text model inherits, unless it has its own.
local shared = { "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "dtype",
  "torch_dtype", "transformers_version" }

-- Modules of decoders that are no families. Without images, each is another family's decoder.
local decoders = {
  qwen2_vl_text = "redco.models.images.qwen_vl_text",
  qwen2_5_vl_text = "redco.models.images.qwen_vl_text",
  qwen3_vl_text = "redco.models.images.qwen_vl_text",
}

local function other_of(model_type)
  return decoders[model_type] and require(decoders[model_type])[model_type]
end

local function type_of(whole)
  local family = families[whole.model_type]
  return whole.text_config.model_type or family and family.parts.text_config
end

--- Returns a configuration with text_config, where an older folder has its keys elsewhere. That of
--- a decoder that is another's alone becomes the other's.
function part.with_parts(given)
  local other, family = other_of(given.model_type), families[given.model_type]
  if other then return other.alone(given) end
  return family and family.with_parts and family.with_parts(given) or given
end

--- Whether the configuration has a text model that opens alone.
function part.has_family(whole)
  if type(whole.text_config) ~= "table" then return false end
  local model_type = type_of(whole)
  return (families[model_type] or decoders[model_type]) and true or false
end

--- Returns the configuration of the text model.
function part.config(whole)
  local config = json.copy(whole.text_config)
  config.model_type = type_of(whole)
  local own = config.tie_word_embeddings
  for _, key in ipairs(shared) do
    if config[key] == nil then config[key] = whole[key] end
  end
  -- Version 5 of transformers ties most heads by the whole's key, version 4 by the text model's.
  if (families[whole.model_type] or {}).ties_as_text then
    config.tie_word_embeddings = own
  elseif (ties.version(whole) or 0) >= 5 and whole.tie_word_embeddings ~= nil then
    config.tie_word_embeddings = whole.tie_word_embeddings
  end
  local other = other_of(config.model_type)
  return other and other.alone(config) or config
end

-- Returns the name that a weight of the folder has in the text model, or nil.
local function own_name(name)
  local rest = name:match "^model%.language_model%.(.*)" or name:match "^model%.text_model%.(.*)"
  if rest then return "model." .. rest end
  return name:match "^language_model%.(.*)" or name:match "^lm_head%..*"
end

--- Returns the weights of the text model, an object like that of native.open_weights. `model_type`
--- is that of the whole. Shows a warning with the others.
function part.weights(whole, model_type)
  local current_name = (families[model_type] or {}).current_name or function(name) return name end
  local self, names, sources, others = { path = whole.path }, {}, {}, {}
  for _, source in ipairs(whole:keys()) do
    local name = own_name(current_name(source))
    if name then
      names[#names + 1], sources[name] = name, source
    else
      others[#others + 1] = source
    end
  end
  if #others > 0 then
    warn("%s: only the text model is read, without the weights %s", whole.path, listed(others))
  end
  function self.keys() return names end
  function self.shape(_, name) return whole:shape(sources[name]) end
  function self.tensor(_, name) return whole:tensor(sources[name]) end
  return self
end

return part
