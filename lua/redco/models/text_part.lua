--- The text model in the folder of a model that also reads images or sound: its configuration is in
--- `text_config`, and its weights have a prefix.
local json = require "redco.models.json"
local listed = require "redco.models.listed"
local ties = require "redco.models.ties"
local warn = require "redco.warn"

local part = {}

-- Keys of the whole that hold for the text model unless it has its own.
local shared = { "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "dtype",
  "torch_dtype", "transformers_version" }

--- Returns the configuration of the text model. `parts` has its model_type where that is missing.
function part.config(whole, parts)
  local config = json.copy(whole.text_config)
  config.model_type = config.model_type or parts.text_config
  for _, key in ipairs(shared) do
    if config[key] == nil then config[key] = whole[key] end
  end
  -- Version 5 of transformers ties the head by the whole's key, version 4 by the text model's.
  if (ties.version(whole) or 0) >= 5 and whole.tie_word_embeddings ~= nil then
    config.tie_word_embeddings = whole.tie_word_embeddings
  end
  return config
end

-- Returns the name that a weight of the folder has in the text model, or nil.
local function own_name(name)
  local rest = name:match "^model%.language_model%.(.*)" or name:match "^model%.text_model%.(.*)"
  if rest then return "model." .. rest end
  return name:match "^language_model%.(.*)" or name:match "^lm_head%..*"
end

--- Returns the weights of the text model, an object like that of native.open_weights. Shows a
--- warning with the others.
function part.weights(whole)
  local self, names, sources, others = { path = whole.path }, {}, {}, {}
  for _, source in ipairs(whole:keys()) do
    local name = own_name(source)
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
