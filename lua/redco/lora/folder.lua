--- Adapter folders as peft writes and reads them: adapter_config.json, adapter_model.safetensors;
--- older folders have adapter_model.bin. A parameter that is saved whole has its own name in the
--- folder, or that of the base_layer if its layer also has an adapter.
local checks = require "redco.models.checks"
local choose = require "redco.lora.choose"
local data = require "redco.data"
local fail = require "redco.fail"
local initial = require "redco.lora.initial"
local layers = require "redco.lora.layers"
local native = require "redco.native"
local ordered_table = require "redco.ordered_table"
local saved = require "redco.lora.saved"
local stacks = require "redco.lora.stacks"
local tied = require "redco.lora.tied"
local torch = require "redco.torch"
local version_4_name = require "redco.lora.version_5"
local version_5_stacks = require "redco.lora.version_5_stacks"

local folder = {}

local config_file = "adapter_config.json"
local prefix = "base_model.model."

-- The keys of a configuration that are read here, with their types.
local types = {
  alpha_pattern = "table", ensure_weight_tying = "boolean", fan_in_fan_out = "boolean",
  loftq_config = "table", lora_alpha = "number", lora_dropout = "number",
  modules_to_save = "table", r = "number", rank_pattern = "table", target_parameters = "table",
  use_dora = "boolean", use_rslora = "boolean",
}

-- Keys that `check` reads, or that do not affect the adapter's output. Every other key must be off.
local known = {}
for _, key in ipairs {
  "auto_mapping", "base_model_name_or_path", "bias", "exclude_modules", "inference_mode",
  "init_lora_weights", "layers_pattern", "layers_to_transform", "megatron_core", "peft_type",
  "peft_version", "qalora_group_size", "revision", "target_modules", "task_type",
} do known[key] = true end

local function is_off(value)
  return value == false or value == "" or type(value) == "table" and next(value) == nil
end

-- Initialisations that do not change the base model.
local harmless = {
  ["true"] = true, ["false"] = true, gaussian = true, orthogonal = true, eva = true,
}

-- Shows a value of a configuration, in JSON if it is a table.
local function shown(value)
  if type(value) ~= "table" then return tostring(value) end
  return (native.json_encode(config_file, value):gsub("%s+", " "))
end

local function check(path, config)
  if type(config) ~= "table" then fail("%s: expected an object", path) end
  local function refuse(key, expected)
    fail("%s: %s = %s is not supported, only %s", path, key, shown(config[key]), expected)
  end
  if config.peft_type ~= "LORA" then refuse("peft_type", '"LORA"') end
  if (config.bias or "none") ~= "none" then refuse("bias", '"none"') end
  local init = config.init_lora_weights
  if init ~= nil and not harmless[tostring(init)] and not initial.changes_base(init) then
    refuse("init_lora_weights", "pissa, olora, loftq and those that do not change the base model")
  end
  if init == "loftq" then initial.check(path, init, config.loftq_config or {}) end
  for key, value in pairs(config) do
    local expected = types[key]
    if expected and type(value) ~= expected then refuse(key, "a " .. expected) end
    if not expected and not known[key] and not is_off(value) then refuse(key, "without it") end
  end
  for _, key in ipairs { "r", "lora_alpha" } do
    if not config[key] then fail("%s: %s is missing", path, key) end
  end
  local dropout = config.lora_dropout or 0
  if dropout < 0 or dropout >= 1 then refuse("lora_dropout", "numbers in [0, 1)") end
end

-- Converts a pattern of peft, a regular expression for the last parts of names, to a Lua pattern.
-- The second result says whether it matches whole names.
local function lua_pattern(path, pattern)
  -- peft puts this before names of parameters that it made from names of modules.
  pattern = pattern:gsub("^%.%*\\%.", "")
  local is_whole = pattern:sub(1, 1) == "^"
  local rest = is_whole and pattern:sub(2) or pattern
  local plain = rest:gsub("\\%.", "")
  if plain:find "[^%w_.%-]" then
    fail("%s: the pattern '%s' is not supported, only the last parts of names, with . and \\., and "
      .. "^ in front of whole names", path, pattern)
  end
  return rest:gsub("%-", "%%-"):gsub("\\%.", "%%."), is_whole
end

-- Returns the value of the first pattern, in the file's order, that matches the end of a layer's
-- name.
local function by_pattern(path, patterns, name)
  for pattern, value in pairs(patterns or {}) do
    if type(value) ~= "number" then
      fail("%s: expected a number for the pattern '%s', got %s", path, pattern,
        native.describe(value))
    end
    local expression, is_whole = lua_pattern(path, pattern)
    local is_match = name:find("^" .. expression .. "$")
      or not is_whole and name:find("%." .. expression .. "$")
    if is_match then return value end
  end
end

-- Returns the values that differ from the usual one, by layer name, for a file; nil if there are
-- none. The first match counts, so a name comes before its own endings, even with the usual value.
local function patterns_of(values, usual)
  local names, needed, result = {}, {}, ordered_table()
  for name, value in pairs(values) do
    names[#names + 1] = name
    if value ~= usual then needed[#needed + 1] = name end
  end
  table.sort(names, function(a, b) return #a ~= #b and #a > #b or #a == #b and a < b end)
  for _, name in ipairs(names) do
    for _, other in ipairs(needed) do
      if name == other or name:sub(-#other - 1) == "." .. other then result[name] = values[name] end
    end
  end
  return needed[1] and result
end

-- Checks that a layer and its adapter have the same numbers of inputs and outputs.
local function check_shapes(path, layer, a, b, r, fan_in_fan_out)
  local n_in, n_out = layer:sizes(fan_in_fan_out)
  if a[1] ~= r or b[2] ~= r or a[2] ~= n_in or b[1] ~= n_out or #a ~= 2 or #b ~= 2 then
    fail("%s: %s has lora_A [%s] and lora_B [%s], expected [%d, %d] and [%d, %d] beside its weight",
      path, layer.name, table.concat(a, ", "), table.concat(b, ", "), r, n_in, n_out, r)
  end
end

local matrices = {
  lora_A = "%.lora_A%.weight$", lora_B = "%.lora_B%.weight$",
  lora_embedding_A = "%.lora_embedding_A$", lora_embedding_B = "%.lora_embedding_B$",
  lora_magnitude_vector = "%.lora_magnitude_vector$",
}

-- Sorts the tensors of a file into those of adapters, {[layer's name] = {lora_A = name in the file,
-- ...}}, and those that are saved whole, {[parameter's name] = {key = name in the file, is_base =
-- whether the layer has an adapter too}}.
local function sort_tensors(weights)
  local adapters, whole = {}, {}
  for _, key in ipairs(weights:keys()) do
    if key:sub(1, #prefix) ~= prefix then
      fail("%s: expected names like %sX.lora_A.weight, got %s", weights.path, prefix, key)
    end
    local name, is_matrix = key:sub(#prefix + 1), false
    for matrix, pattern in pairs(matrices) do
      local layer, n = name:gsub(pattern, "")
      if n == 1 then
        adapters[layer], is_matrix = adapters[layer] or {}, true
        adapters[layer][matrix] = key
      end
    end
    if not is_matrix then
      if name:find "lora_" then
        fail("%s: the tensor %s is of no kind that is supported: lora_A, lora_B, "
          .. "lora_embedding_A, lora_embedding_B, lora_magnitude_vector and modules that are saved "
          .. "whole", weights.path, key)
      end
      local parameter, n = name:gsub("%.base_layer%.", ".")
      whole[parameter] = { key = key, is_base = n > 0 }
    end
  end
  return adapters, whole
end

-- Returns the tensor of the file as a parameter, in `dtype` if it is given.
local function parameter(weights, key, dtype)
  local tensor = weights:tensor(key)
  checks.dtype(weights.path, key, tensor.dtype)
  local made = torch.no_grad(function()
    return native.parameter(tensor.shape, { dtype = dtype or tensor.dtype }):copy_(tensor)
  end)
  checks.finite(weights.path, { key }, { [key] = made })
  return made
end

-- Adds the magnitudes of DoRA.
local function place_magnitude(layer, key, n_out, weights)
  local shape = key and weights:shape(key) or {}
  if #shape ~= 1 or shape[1] ~= n_out then
    fail("%s: use_dora: %s has %s, expected a lora_magnitude_vector [%d]", weights.path,
      layer.name, key and "[" .. table.concat(shape, ", ") .. "]" or "none", n_out)
  end
  layer:set("lora_magnitude_vector", parameter(weights, key))
end

-- Returns the rank and the scaling of the adapter of this name.
local function settings_of(path, config, name)
  local r = by_pattern(path, config.rank_pattern, name) or config.r
  local alpha = by_pattern(path, config.alpha_pattern, name) or config.lora_alpha
  return r, alpha / (config.use_rslora and math.sqrt(r) or r)
end

-- Adds the adapters of stacks. `names` has their names in the file, {[layer] = name}. Removes the
-- adapters from `stored`.
local function place_stacks(names, stored, path, config, weights)
  local found = {}
  for layer, name in pairs(names) do
    found[layer], stored[name] = stored[name], nil
    local keys = found[layer] or {}
    if not (keys.lora_A and keys.lora_B) then
      fail("%s: there are no lora_A and lora_B of %s", weights.path, layer.parameter)
    end
    stacks.check(path, layer, config)
  end
  local is_exchanged = stacks.exchanged(weights, found)
  for layer, keys in pairs(found) do
    local r, scaling = settings_of(path, config, layer.parameter)
    torch.no_grad(function()
      local a, b = stacks.read(weights.path, layer, parameter(weights, keys.lora_A),
        parameter(weights, keys.lora_B), r, is_exchanged(layer))
      layer:set_matrix("lora_A", native.parameter(a.shape, { dtype = a.dtype }):copy_(a))
      layer:set_matrix("lora_B", native.parameter(b.shape, { dtype = b.dtype }):copy_(b))
    end)
    layer:set("lora_scaling", scaling)
  end
end

-- Adds the adapter whose matrices are the tensors `keys` to the layer.
local function place(layer, keys, fan_in_fan_out, path, config, weights)
  local is_embedding = (keys.lora_embedding_A or keys.lora_embedding_B) ~= nil
  local names = is_embedding and { "lora_embedding_A", "lora_embedding_B" }
    or { "lora_A", "lora_B" }
  for _, name in ipairs(names) do
    if not keys[name] then fail("%s: %s has no %s", weights.path, layer.name, name) end
  end
  local r, scaling = settings_of(path, config, keys.name)
  check_shapes(weights.path, layer, weights:shape(keys[names[1]]), weights:shape(keys[names[2]]), r,
    fan_in_fan_out or is_embedding)
  for _, name in ipairs(names) do
    local matrix = parameter(weights, keys[name])
    if is_embedding then layer:set(name, matrix) else layer:set_matrix(name, matrix) end
  end
  layer:set("lora_scaling", scaling)
  if keys.lora_magnitude_vector and not config.use_dora then
    fail("%s: %s has a lora_magnitude_vector, but use_dora is not set", path, layer.name)
  end
  if config.use_dora then
    local _, n_out = layer:sizes(fan_in_fan_out or is_embedding)
    place_magnitude(layer, keys.lora_magnitude_vector, n_out, weights)
  end
  if is_embedding then return end
  if (config.lora_dropout or 0) > 0 then layer:set("lora_dropout", config.lora_dropout) end
  if fan_in_fan_out then layer:set("lora_fan_in_fan_out", true) end
  if initial.changes_base(config.init_lora_weights) then
    initial.restore(path, layer, config.init_lora_weights, config.loftq_config, r, scaling)
  end
end

-- Gives the adapters that `sort_tensors` found the names of the layers, because names differ in
-- version 5 of transformers. `name` of an adapter is its name in the file. Leaves out those of keys
-- and values in layers that read another layer's: in version 4 Gemma 3n has them and uses them not.
local function rename(stored, all)
  local exists, found = {}, {}
  for _, layer in ipairs(all) do exists[layer.name] = true end
  for name, keys in pairs(stored) do
    keys.name = name
    local own = version_4_name(name, exists)
    local attention = not own and name:match "^(.*%.self_attn%.)[kv]_proj$"
    if not (attention and version_4_name(attention .. "q_proj", exists)) then
      found[own or name] = keys
    end
  end
  return found
end

-- Replaces a tensor of the tree, wherever it is.
local function replace(parameters, old, new)
  for _, found in pairs(parameters) do
    if rawequal(found.node[found.key], old) then found.node[found.key] = new end
  end
end

-- Replaces the parameters that the folder has whole.
local function place_whole(params, whole, path, weights)
  local parameters, chosen = saved.parameters(params), {}
  for name, entry in pairs(whole) do
    local found, key = parameters[name], entry.key
    if not found then
      fail("%s: there is no parameter %s, of modules_to_save in %s, in the parameters; open the "
        .. "base with the task of the adapters", weights.path, name, path)
    end
    local own = found.node[found.key]
    local expected, shape = table.concat(own.shape, ", "), table.concat(weights:shape(key), ", ")
    if shape ~= expected then
      fail("%s: %s is [%s], expected [%s] as in the parameters", weights.path, key, shape, expected)
    end
    local given = parameter(weights, key, own.dtype)
    if not entry.is_base then
      found.node[found.key], chosen[name] = given, true
    elseif not given:equal(own) then
      replace(parameters, own, given)
    end
  end
  saved.mark(params, chosen)
end

-- Like peft, prefers safetensors.
local function open_weights(dir)
  local stem = dir .. "/adapter_model"
  local is_older = native.file_exists(stem .. ".bin")
    and not native.file_exists(stem .. ".safetensors")
  return native.open_weights(stem .. (is_older and ".bin" or ".safetensors"))
end

--- Adds the adapters of a folder to the tree, and replaces what the folder has whole.
function folder.load(dir, params)
  local path = dir .. "/" .. config_file
  local config, weights = data.json(path), open_weights(dir)
  check(path, config)
  local stored, whole = sort_tensors(weights)
  tied.open(params, stored, whole, config.ensure_weight_tying)
  local all, of_conv1d = layers.of(params), false
  local with_stacks = layers.with_stacks(params)
  for _, stack in ipairs(version_5_stacks(with_stacks)) do with_stacks[#with_stacks + 1] = stack end
  local names = stacks.names_of_targets(with_stacks, config.target_parameters)
  place_stacks(names, stored, path, config, weights)
  stored = rename(stored, all)
  for _, layer in ipairs(all) do
    of_conv1d = of_conv1d or stored[layer.name] ~= nil and layer:is_conv1d()
  end
  -- In a model of several parts, peft's flag applies only to the layers of GPT-2.
  local others = config.fan_in_fan_out and not of_conv1d
  for _, layer in ipairs(all) do
    local keys = stored[layer.name]
    stored[layer.name] = nil
    if keys then place(layer, keys, layer:is_conv1d() or others, path, config, weights) end
  end
  local rest = next(stored)
  if rest then
    fail("%s: there is no layer %s in the parameters", weights.path, rest)
  end
  place_whole(params, whole, path, weights)
end

-- Adds the parameters that are saved whole to `tensors`. Returns the names of their modules.
local function add_whole(params, all, tensors)
  local chosen, parameters = saved.to_write(params)
  local has_adapter, modules = {}, {}
  for _, layer in ipairs(all) do has_adapter[layer.name] = layer:has_adapter() end
  for name in pairs(chosen) do
    local layer, last = name:match "^(.*)%.([^.]*)$"
    if not layer then
      fail("lora.save_pretrained: the parameter %s was trained and is in no module, so the folder "
        .. "has no place for it", name)
    end
    local found = parameters[name]
    local middle = has_adapter[layer] and ".base_layer." or "."
    tensors[prefix .. layer .. middle .. last] = found.node[found.key]
    if not has_adapter[layer] then modules[name] = true end
  end
  return saved.module_names(modules, parameters)
end

--- Writes the adapters of a tree and what is saved whole beside them.
function folder.save(dir, params, options)
  local all = layers.with_stacks(params)
  local config = {
    peft_type = "LORA", base_model_name_or_path = options.base_model_name_or_path,
    task_type = options.task_type, bias = "none", fan_in_fan_out = false, inference_mode = true,
    use_rslora = false, lora_dropout = 0,
  }
  config.target_modules, config.target_parameters = choose.targets_of(all)
  local stack_names = stacks.names(all, function(layer) return layer:has_adapter() end)
  local tensors, ranks, alphas = {}, {}, {}
  for _, layer in ipairs(all) do
    local a, is_embedding = layer:matrix "lora_A", false
    local key = prefix .. (stack_names[layer] or layer.name)
    if stack_names[layer] then
      tensors[key .. ".lora_A.weight"], tensors[key .. ".lora_B.weight"] = stacks.written(layer)
    elseif a then
      tensors[key .. ".lora_A.weight"], tensors[key .. ".lora_B.weight"] = a, layer:matrix "lora_B"
    elseif layer:get "lora_embedding_A" then
      a, is_embedding = layer:get "lora_embedding_A", true
      tensors[key .. ".lora_embedding_A"] = a
      tensors[key .. ".lora_embedding_B"] = layer:get "lora_embedding_B"
    end
    if layer:get "lora_magnitude_vector" then
      tensors[key .. ".lora_magnitude_vector"] = layer:get "lora_magnitude_vector"
      config.use_dora = true
    end
    if layer:get "lora_init" then
      config.init_lora_weights = layer:get "lora_init"
      local loftq_iter = layer:get "lora_loftq_iter"
      config.loftq_config = loftq_iter and { loftq_bits = 4, loftq_iter = loftq_iter }
    end
    if a then
      local r = a:size(-2)
      -- Write the scaling as alpha / r, whichever formula set it.
      local alpha = layer:get "lora_scaling" * r
      config.r, config.lora_alpha = config.r or r, config.lora_alpha or alpha
      local name = stack_names[layer] and layer.parameter or layer.name
      ranks[name], alphas[name] = r, alpha
      config.lora_dropout = layer:get "lora_dropout" or config.lora_dropout
      if not is_embedding then
        config.fan_in_fan_out = layer:get "lora_fan_in_fan_out" or config.fan_in_fan_out
      end
    end
  end
  if not config.r then fail "lora.save_pretrained: there is no adapter in the tree" end
  config.rank_pattern = patterns_of(ranks, config.r)
  config.alpha_pattern = patterns_of(alphas, config.lora_alpha)
  local modules = add_whole(params, all, tensors)
  if modules[1] then
    config.modules_to_save = modules
    -- peft asks for the weight of a tied output layer, too.
    local embedding, weight = tied.saved_embedding(params, modules, options.task_type)
    if embedding then
      config.ensure_weight_tying = true
      tensors[prefix .. weight] = embedding
    end
  end
  native.save_weights(dir, tensors, {
    stem = "adapter_model",
    texts = { [config_file] = native.json_encode(config_file, config, 2) .. "\n" },
  })
end

return folder
