--- The objects that a script makes before it trains: models, tokenizers, image processors,
--- conversations, samplers and Trainers.
local made = {}

-- {module, function, the list that gets its results}.
local makers = {
  { "models", "from_config", "models" },
  { "models", "from_pretrained", "models" },
  { "models", "from_encoder_decoder_pretrained", "models" },
  { "Tokenizer", "from_pretrained", "tokenizers" },
  { "data", "image_processor", "processors" },
  { "data", "conversations", "conversations" },
  { "data", "preferences", "conversations" },
  { "rl.language", "sampler", "samplers" },
  { "", "Trainer", "trainers" },
}

local function table_of(redco, path)
  local found = redco
  for name in path:gmatch "[^.]+" do found = found[name] end
  return found
end

--- From now on, what these functions return is also in the lists of the returned table: `models`,
--- `tokenizers`, `processors`, `conversations`, `samplers`, `trainers`, and `folders`, the path of
--- each model. Its `stop` ends that.
function made.watch(redco)
  local lists = { models = {}, tokenizers = {}, processors = {}, conversations = {}, samplers = {},
    trainers = {}, folders = {} }
  local originals = {}
  for i, maker in ipairs(makers) do
    local module, name, list = table_of(redco, maker[1]), maker[2], lists[maker[3]]
    local original = module[name]
    originals[i] = original
    rawset(module, name, function(...)
      local value = original(...)
      list[#list + 1] = value
      if list == lists.models and type((...)) == "string" then lists.folders[value] = ... end
      return value
    end)
  end
  function lists.stop()
    for i, maker in ipairs(makers) do rawset(table_of(redco, maker[1]), maker[2], originals[i]) end
  end
  return lists
end

return made
