--- The text model in the folder of a model that also reads images or sound: its configuration is in
--- `text_config`, and its weights have a prefix.
local part = {}

-- Keys of the whole that hold for the text model unless it has its own.
local shared = { "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "dtype",
  "torch_dtype" }

--- Returns the configuration of the text model.
function part.config(whole)
  local config = {}
  for key, value in pairs(whole.text_config) do config[key] = value end
  for _, key in ipairs(shared) do
    if config[key] == nil then config[key] = whole[key] end
  end
  return config
end

-- Returns the name that a weight of the folder has in the text model, or nil.
local function own_name(name)
  local rest = name:match "^model%.language_model%.(.*)"
  if rest then return "model." .. rest end
  return name:match "^language_model%.(.*)" or name:match "^lm_head%..*"
end

--- Returns the weights of the text model, an object like that of native.open_weights.
function part.weights(whole)
  local self, names, sources = { path = whole.path }, {}, {}
  for _, source in ipairs(whole:keys()) do
    local name = own_name(source)
    if name then names[#names + 1], sources[name] = name, source end
  end
  function self.keys() return names end
  function self.shape(_, name) return whole:shape(sources[name]) end
  function self.tensor(_, name) return whole:tensor(sources[name]) end
  return self
end

return part
