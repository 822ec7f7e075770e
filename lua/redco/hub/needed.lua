--- Which files of a repository a loader reads. A `source` is the list of a repository's files, on
--- this machine or on the server: `names`, has(name), and text(name), the content.
local native = require "redco.native"

local weights_of = {
  model = { "model.safetensors", "pytorch_model.bin" },
  adapters = { "adapter_model.safetensors", "adapter_model.bin" },
  component = { "diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.bin" },
}

local vocabularies = { "tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model",
  "spiece.model", "sentencepiece.bpe.model" }

-- By the kind of a folder: one file of each list must be there; `weights` is a key of weights_of.
local kinds = {
  config = { { "config.json" } },
  model = { { "config.json" }, weights = "model" },
  tokenizer = { vocabularies },
  processor = { { "preprocessor_config.json", "processor_config.json" } },
  adapters = { { "adapter_config.json" }, weights = "adapters" },
  component = { { "config.json" }, weights = "component" },
  scheduler = { { "scheduler_config.json" } },
  picture_adapters = { { "pytorch_lora_weights.safetensors" } },
  embeddings = { { "learned_embeds.safetensors", "learned_embeds.bin" } },
}

local function add(list, more)
  for _, name in ipairs(more) do list[#list + 1] = name end
  return list
end

-- Returns the files that an index names, and the index.
local function shards(source, folder, index)
  local map = native.json_decode(index, source.text(index)).weight_map
  local seen, list = {}, { index }
  for _, name in pairs(type(map) == "table" and map or {}) do
    if type(name) == "string" and not seen[name] then
      seen[name], list[#list + 1] = true, folder .. name
    end
  end
  return list
end

-- Returns the files of the weights in a folder, or nil and what is missing.
local function weights(source, folder, kind)
  for _, whole in ipairs(weights_of[kind]) do
    local index = folder .. whole .. ".index.json"
    if source.has(folder .. whole) then return { folder .. whole } end
    if source.has(index) then
      local list = shards(source, folder, index)
      for _, name in ipairs(list) do
        if not source.has(name) then return nil, name end
      end
      return list
    end
  end
  return nil, folder .. weights_of[kind][1]
end

-- Parts of the names of settings, vocabularies and templates.
local parts_of_names = { "config", "token", "vocab", "merges", "template", "modules", "%.model$",
  "%.jinja$" }

local function is_setting(name)
  local ending = name:match "%.(%a+)$"
  if ending ~= "json" and ending ~= "txt" and ending ~= "model" and ending ~= "jinja" then
    return false
  end
  for _, pattern in ipairs(parts_of_names) do
    if name:find(pattern) then return true end
  end
  return false
end

-- The files beside the weights, also in the folders of chat templates and of the steps of sentence
-- encoders ("1_Pooling").
local function small(source, folder)
  local list = {}
  for _, name in ipairs(source.names) do
    local rest = name:sub(1, #folder) == folder and name:sub(#folder + 1) or "/"
    local place, file = rest:match "^([^/]+)/([^/]+)$"
    local is_near = not rest:find("/", 1, true)
      or place and (place:find "^%d+_" or place == "additional_chat_templates")
    if is_near and is_setting(file or rest) then list[#list + 1] = name end
  end
  return list
end

-- The weights of the steps of a sentence encoder, "2_Dense/model.safetensors".
local function steps(source, folder, list)
  if not source.has(folder .. "modules.json") then return list end
  for _, name in ipairs(small(source, folder)) do
    local step = name:sub(#folder + 1):match "^(%d+_[^/]+/)config%.json$"
    add(list, step and weights(source, folder .. step, "model") or {})
  end
  return list
end

local function of_kind(source, folder, kind)
  local list = small(source, folder)
  for _, choices in ipairs(kinds[kind]) do
    local found = false
    for _, name in ipairs(choices) do found = found or source.has(folder .. name) and name end
    if not found then return nil, folder .. table.concat(choices, " or ") end
    list[#list + 1] = folder .. found
  end
  if not kinds[kind].weights then return list end
  local files, missing = weights(source, folder, kinds[kind].weights)
  if not files then return nil, missing end
  add(list, files)
  return kind == "model" and steps(source, folder, list) or list
end

-- Parts of a pipeline that are not read.
local unread = { feature_extractor = true, image_encoder = true, safety_checker = true }

local function kind_of_part(name, library)
  if name == "scheduler" or name:find "^tokenizer" then return (name:match "^%a+") end
  return library == "transformers" and "model" or "component"
end

local function of_pipeline(source, folder)
  local index = folder .. "model_index.json"
  if not source.has(index) then return nil, index end
  local list = { index }
  for name, entry in pairs(native.json_decode(index, source.text(index))) do
    local library = type(entry) == "table" and entry[1]
    if type(library) == "string" and not unread[name] then
      local files, missing = of_kind(source, folder .. name .. "/", kind_of_part(name, library))
      if not files then return nil, missing end
      add(list, files)
    end
  end
  return list
end

-- A file, with the others if it is one of several parts of a GGUF file.
local function of_file(source, path)
  local stem, total = path:match "^(.*%-)%d+%-of%-(%d+)%.gguf$"
  local list = { path }
  for i = 1, tonumber(total) or 0 do
    list[i] = ("%s%05d-of-%s.gguf"):format(stem, i, total)
  end
  for _, name in ipairs(list) do
    if not source.has(name) then return nil, name end
  end
  return list
end

--- Returns the names of the files of `source` that a loader of this kind reads; if one that it
--- needs is not there, nil and its name. `path` is a folder of the repository, "" for all, or a
--- file. The kinds are those above, "pipeline", and "text_model": a model or a folder of adapters.
return function(source, kind, path)
  if path:find "%.gguf$" or path ~= "" and source.has(path) then return of_file(source, path) end
  local folder = path == "" and "" or path .. "/"
  if kind == "pipeline" then return of_pipeline(source, folder) end
  if kind == "text_model" then
    kind = source.has(folder .. "adapter_config.json") and "adapters" or "model"
  end
  return of_kind(source, folder, kind)
end
