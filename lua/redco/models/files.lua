--- Model folders in the format of Hugging Face's libraries.
local checks = require "redco.models.checks"
local fail = require "redco.fail"
local is_adapter = require("redco.lora.layers").is_adapter
local json = require "redco.models.json"
local listed = require "redco.models.listed"
local native = require "redco.native"
local packed = require "redco.models.packed"
local quantized = require "redco.quant.weights"
local quantized_folder = require "redco.quant.written_folders"
local tell_unused = require "redco.models.unused_weights"
local ties = require "redco.models.ties"
local torch = require "redco.torch"
local warn = require "redco.warn"

local files = {}

local largest_json = 2 ^ 28  -- bytes

--- Reads a JSON file of the folder; returns nil if there is none.
function files.json(dir, name)
  local path = dir .. "/" .. name
  if not native.file_exists(path) then return nil end
  local file = native.byte_file(path, "a JSON file")
  if #file > largest_json then
    fail("%s: the file has %.0f bytes, expected at most %.0f", path, #file, largest_json)
  end
  local value = json.decode(path, file:bytes(0, #file))
  if type(value) ~= "table" then fail("%s: %s, expected an object", path, value) end
  return value
end

--- Reads generation_config.json of the folder; returns nil if there is none.
function files.generation_config(dir)
  local config = files.json(dir, "generation_config.json")
  -- null switches an option off. Among the options whose default has an effect, only this one may
  -- be null.
  if config and json.nulls(config).top_k then config.top_k = 0 end
  return config
end

--- Returns an uninitialised parameter of these sizes. Matrices are sharded over the processes, so
--- that no process holds a whole model.
function files.new_parameter(sizes, dtype)
  return native.parameter(sizes, { dtype = dtype, sharded = #sizes > 1 })
end

--- Adds the parameters of the family that `params` lack, initialised as in a new model. Returns
--- `params` and the names of those that are new, without buffers. With `source`, where the others
--- are from, a notice has them.
function files.add_new(params, family, config, dtype, generator, source)
  -- A compiled loop may hold this function, and what it captures, as long as the program runs.
  local made = { params = params, names = {} }
  local buffers = family.buffers or {}
  family.add_parameters(config, function(name, sizes, init)
    local all, names = made.params, made.names
    if all[name] then return end
    all[name] = init(files.new_parameter(sizes, dtype), generator)
    native.set_source(all[name], "", "")
    if not buffers[name] then names[#names + 1] = name end
  end)
  if source and #made.names > 0 then
    warn("%s: weights of the %s are missing and newly initialized: %s. Train them before you use "
      .. "what they compute", source, family.architecture, listed(made.names, 8))
  end
  local names = made.names
  made.params, made.names = nil, nil
  return params, names
end

--- Raises an error, which ends with `reason`, if the processes do not have the memory for so many
--- new parameters.
function files.check_memory(family, n_parameters, dtype, reason)
  if native.is_planning() then return end  -- large parameters have no values
  local n = 4096
  local part = native.parameter({ n, 1 }, { dtype = dtype }):to_local()
  if part.device ~= "cpu" then return end
  local needed = n_parameters / n * part:nbytes()
  for line in io.lines "/proc/meminfo" do
    local available = tonumber(line:match "^MemAvailable:%s+(%d+) kB")
    if available and needed > available * 1024 then
      fail("%s: %.0f new parameters need %.1f GB in each process, and %.1f GB are free%s",
        family.model_type, n_parameters, needed / 1e9, available * 1024 / 1e9, reason)
    end
  end
end

-- Returns the parameter in `sizes` for a weight's name: the name itself, the task's name, or the
-- name with or without base_model_prefix.
local function place_of(family, name, sizes)
  if family.current_name then name = family.current_name(name) end
  if sizes[name] then return name end
  if family.own_name and sizes[family.own_name(name)] then return family.own_name(name) end
  local prefix = family.base_model_prefix .. "."
  if sizes[prefix .. name] then return prefix .. name end
  local rest = name:sub(#prefix + 1)
  if name:sub(1, #prefix) == prefix and sizes[rest] then return rest end
end

local function is_ignored(family, config, name)
  if config.tie_word_embeddings and name == (family.lm_head or "lm_head") .. ".weight" then
    return true
  end
  for _, pattern in ipairs(family.ignored or {}) do
    if name:find(pattern) then return true end
  end
  return false
end

-- Returns a hint for errors about weights: the sizes that the configuration lacks.
local function by_assumption(assumed)
  if not assumed or #assumed == 0 then return "" end
  return "; config.json lacks these, taken as " .. listed(assumed)
end

-- Returns a hint for errors about missing weights, if only the family's own head is missing.
local function by_task(family, missing)
  local head, headless = (family.lm_head or "lm_head") .. ".weight", (family.tasks or {}).features
  for _, variant in ipairs(family.variants or {}) do
    if variant.task == "features" then headless = variant end
  end
  if #missing ~= 1 or missing[1] ~= head or family.task or not headless then return "" end
  return ('; without a head it opens as %s, with task = "features"'):format(headless.architecture)
end

-- Returns the second names of parameters in files: { [name] = parameter }. They have precedence.
local function copies_of(family, config) return family.copies and family.copies(config) or {} end

-- Returns the name of each parameter in the file, and the names of unused weights.
local function match(family, config, weights, sizes, assumed)
  local sources, surplus, missing, unused = {}, {}, {}, {}
  local own_head, embedding = ties.own_head(family, config)
  local copies = copies_of(family, config)
  for _, name in ipairs(weights:keys()) do
    local place, current = copies[name] or place_of(family, name, sizes),
      family.current_name and family.current_name(name) or name
    local is_copied = place and copies[sources[place]] ~= nil
    if copies[name] then
      sources[place] = name
    elseif place and not is_copied and not (sources[place] and place ~= name) then
      sources[place] = name
    elseif not place and is_ignored(family, config, current) then
      unused[#unused + 1] = name
      unused[current] = name
    elseif not place then
      surplus[#surplus + 1] = name
    end
  end
  -- Programs that write each tensor once may have left out the embedding.
  if own_head and not sources[embedding] then sources[embedding] = unused[own_head] end
  local is_new = family.new_if_missing or {}
  for name in pairs(sizes) do
    if not sources[name] and not is_new[name] then missing[#missing + 1] = name end
  end
  if #missing > 0 then
    fail("%s: weights of the %s are missing: %s%s%s%s", weights.path, family.architecture,
      listed(missing), #surplus > 0 and "; unknown weights: " .. listed(surplus) or "",
      by_task(family, missing), by_assumption(assumed))
  end
  if #surplus > 0 then
    fail("%s: the %s has no place for the weights %s%s", weights.path, family.architecture,
      listed(surplus), by_assumption(assumed))
  end
  return sources, unused
end

local function check_shape(weights, source, name, sizes, assumed)
  local shape = weights:shape(source)
  if table.concat(shape, ", ") ~= table.concat(sizes, ", ") then
    fail("%s: the weight %s is [%s], expected [%s] by the configuration%s", weights.path, name,
      table.concat(shape, ", "), table.concat(sizes, ", "), by_assumption(assumed))
  end
end

--- Whether a folder has a head beside the embedding to which its configuration ties it, with other
--- values.
function files.has_separate_head(family, config, weights)
  local own, tied = ties.own_head(family, config)
  if not own then return false end
  local sizes, found = {}, {}
  family.add_parameters(config, function(name, shape) sizes[name] = shape end)
  for _, name in ipairs(weights:keys()) do
    local current = family.current_name and family.current_name(name) or name
    found[current == own and own or place_of(family, name, sizes) or name] = name
  end
  return found[own] and found[tied] and not ties.are_equal(weights, found[own], found[tied])
end

--- Loads the parameters of a model of this family from a file or folder of weights. Returns them
--- and the names of those that are new. options: dtype (nil: as stored), low_memory, generator (of
--- what is new), quantize (a type, false for none, or nil: as stored), assumed (sizes that
--- config.json lacks, for errors).
function files.load_params(family, config, weights, options)
  local names, sizes, kinds = {}, {}, packed.kinds(family, config)
  family.add_parameters(config, function(name, shape)
    names[#names + 1], sizes[name] = name, shape
  end)
  local sources, unused = match(family, config, weights, sizes, options.assumed)
  tell_unused(family, config, weights, unused, sources)
  local params, copied = {}, {}
  for _, name in ipairs(names) do
    local source = sources[name]
    if source then
      check_shape(weights, source, name, sizes[name], options.assumed)
    end
    if source and not packed.add(params, name, weights, source, kinds[name], options) then
      local stored = weights:tensor(source)
      checks.dtype(weights.path, name, stored.dtype)
      local dtype = options.dtype or stored.dtype
      if options.low_memory and stored.dtype == dtype then
        params[name] = stored
      else
        params[name] = torch.no_grad(function()
          return files.new_parameter(sizes[name], dtype):copy_(stored)
        end)
        copied[#copied + 1] = name
      end
      native.set_source(params[name], weights.path, source)
    end
  end
  if options.quantize then packed.tell_unpacked(family, params, kinds, options.quantize) end
  checks.finite(weights.path, copied, params, family.buffers)
  return files.add_new(params, family, config, options.dtype, options.generator, weights.path)
end

--- Raises an error unless the names are those of the family, so that the written file can be read.
function files.check_names(family, config, params)
  local rest, missing = {}, {}
  for name in pairs(params) do
    if not quantized.owner(params, name) then rest[name] = true end
  end
  family.add_parameters(config, function(name)
    if not rest[name] then missing[#missing + 1] = name end
    rest[name] = nil
  end)
  if #missing > 0 then
    fail("save_pretrained: weights of the %s are missing: %s", family.architecture, listed(missing))
  end
  local surplus = {}
  for name in pairs(rest) do
    if is_adapter(name) then
      fail("save_pretrained: the parameters have adapters (%s): redco.lora.merge(params) adds them "
        .. "to the weights, redco.lora.save_pretrained(dir, params) writes only them", name)
    end
    if name:find "embeddings%.added_tokens%." then
      fail("save_pretrained: the parameters have vectors of added tokens (%s), for which the "
        .. "folder has no place: redco.diffusion.save_textual_inversion(pipeline, dir, params) "
        .. "writes them", name)
    end
    surplus[#surplus + 1] = name
  end
  if #surplus > 0 then
    fail("save_pretrained: the %s has no place for the weights %s", family.architecture,
      listed(surplus))
  end
end

--- Writes a model folder that `load_params` and `json` read.
function files.save(dir, model, params, max_shard_size)
  local model_config = model.config
  local own_head = ties.own_head(model.family, model_config)
  local is_untied = own_head and params[own_head]  -- adapters gave the head its own weight
  if is_untied then
    model_config = setmetatable({ tie_word_embeddings = false }, { __index = model_config })
  end
  files.check_names(model.family, model_config, params)
  local texts, config, dtype = {}, json.copy(model.config), nil
  for _, value in pairs(params) do
    if torch.is_tensor(value) and value.dtype ~= "uint8" then dtype = value.dtype end
  end
  local tensors, quantization_config =
    quantized_folder(params, packed.kinds(model.family, model_config), dtype)
  for name, text in pairs((model.sentence_pooling or {}).files or {}) do texts[name] = text end
  config.tie_word_embeddings = model_config.tie_word_embeddings
  if is_untied and config.text_config then
    config.text_config = json.copy(config.text_config)
    config.text_config.tie_word_embeddings = false
  end
  config.dtype, config.torch_dtype = nil, dtype
  config.quantization_config = quantization_config
  texts["config.json"] = json.encode("config.json", config, 2) .. "\n"
  if model.generation_config then
    texts["generation_config.json"] =
      json.encode("generation_config.json", model.generation_config, 2) .. "\n"
  end
  local written = {}
  local file_name = model.family.file_name
  for name, tensor in pairs(tensors) do
    written[file_name and file_name(name) or name] = tensor
  end
  for name, parameter in pairs(copies_of(model.family, model.config)) do
    written[name] = params[parameter]
  end
  for _, folder in ipairs(model.family.folders or {}) do
    local prefix, part = folder .. ".", {}
    for name in pairs(params) do
      if name:sub(1, #prefix) == prefix then
        part[name:sub(#prefix + 1)], written[name] = params[name], nil
      end
    end
    native.save_weights(dir .. "/" .. folder, part, { max_shard_size = max_shard_size })
  end
  native.save_weights(dir, written, { max_shard_size = max_shard_size, texts = texts })
end

return files
