--- Adapter folders as peft writes and reads them: adapter_config.json, adapter_model.safetensors;
--- older ones have adapter_model.bin.
local checks = require "redco.models.checks"
local data = require "redco.data"
local fail = require "redco.fail"
local native = require "redco.native"
local ordered_table = require "redco.ordered_table"
local torch = require "redco.torch"

local folder = {}

local config_file = "adapter_config.json"
local prefix = "base_model.model."

-- The keys of a configuration that are read here, with their types.
local types = {
  alpha_pattern = "table", fan_in_fan_out = "boolean", lora_alpha = "number",
  lora_dropout = "number", r = "number", rank_pattern = "table", use_rslora = "boolean",
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

local function check(path, config)
  if type(config) ~= "table" then fail("%s: expected an object", path) end
  local function refuse(key, expected)
    local value = type(config[key]) == "table" and "a table" or tostring(config[key])
    fail("%s: %s = %s is not supported, only %s", path, key, value, expected)
  end
  if config.peft_type ~= "LORA" then refuse("peft_type", '"LORA"') end
  if (config.bias or "none") ~= "none" then refuse("bias", '"none"') end
  if not harmless[tostring(config.init_lora_weights == nil or config.init_lora_weights)] then
    refuse("init_lora_weights", "those that do not change the base model")
  end
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
-- none. The first match counts, so a name comes before those that it ends in, also with the usual
-- value.
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

-- {[layer's name] = {lora_A = name in the file, lora_B = ...}}
local function adapters_in(weights)
  local found = {}
  for _, key in ipairs(weights:keys()) do
    local name, matrix = key:match("^" .. prefix:gsub("%.", "%%.") .. "(.+)%.(lora_[AB])%.weight$")
    if not name then
      fail("%s: expected names like %sX.lora_A.weight, got %s", weights.path, prefix, key)
    end
    found[name] = found[name] or {}
    found[name][matrix] = key
  end
  return found
end

-- Adds the adapter whose matrices are the tensors `keys` to the layer.
local function place(layer, keys, fan_in_fan_out, path, config, weights)
  if not (keys.lora_A and keys.lora_B) then
    fail("%s: %s has no %s", weights.path, layer.name, keys.lora_A and "lora_B" or "lora_A")
  end
  local r = by_pattern(path, config.rank_pattern, layer.name) or config.r
  local alpha = by_pattern(path, config.alpha_pattern, layer.name) or config.lora_alpha
  check_shapes(weights.path, layer, weights:shape(keys.lora_A), weights:shape(keys.lora_B), r,
    fan_in_fan_out)
  for _, matrix in ipairs { "lora_A", "lora_B" } do
    local name = keys[matrix]
    local tensor = weights:tensor(name)
    checks.dtype(weights.path, name, tensor.dtype)
    local parameter = torch.no_grad(function()
      return native.parameter(tensor.shape, { dtype = tensor.dtype }):copy_(tensor)
    end)
    checks.finite(weights.path, { name }, { [name] = parameter })
    layer:set_matrix(matrix, parameter)
  end
  layer:set("lora_scaling", alpha / (config.use_rslora and math.sqrt(r) or r))
  if (config.lora_dropout or 0) > 0 then layer:set("lora_dropout", config.lora_dropout) end
  if fan_in_fan_out then layer:set("lora_fan_in_fan_out", true) end
end

-- Like peft, prefers safetensors.
local function open_weights(dir)
  local stem = dir .. "/adapter_model"
  local is_older = native.file_exists(stem .. ".bin")
    and not native.file_exists(stem .. ".safetensors")
  return native.open_weights(stem .. (is_older and ".bin" or ".safetensors"))
end

--- Adds the adapters of a folder to these layers.
function folder.load(dir, layers)
  local path = dir .. "/" .. config_file
  local config, weights = data.json(path), open_weights(dir)
  check(path, config)
  local stored, of_conv1d = adapters_in(weights), false
  for _, layer in ipairs(layers) do
    of_conv1d = of_conv1d or stored[layer.name] ~= nil and layer:is_conv1d()
  end
  -- In a model of several parts, peft's flag applies only to the layers of GPT-2.
  local others = config.fan_in_fan_out and not of_conv1d
  for _, layer in ipairs(layers) do
    local keys = stored[layer.name]
    stored[layer.name] = nil
    if keys then place(layer, keys, layer:is_conv1d() or others, path, config, weights) end
  end
  local rest = next(stored)
  if rest then fail("%s: there is no layer %s in the parameters", weights.path, rest) end
end

-- Returns the last parts of names if all layers with that ending have an adapter, else whole names.
local function target_modules(layers)
  local is_whole, names, seen = {}, {}, {}
  for _, layer in ipairs(layers) do
    local last = layer.name:match "[^.]*$"
    is_whole[last] = is_whole[last] ~= false and layer:matrix "lora_A" ~= nil
  end
  for _, layer in ipairs(layers) do
    local last = layer.name:match "[^.]*$"
    local name = is_whole[last] and last or layer.name
    if layer:matrix "lora_A" and not seen[name] then names[#names + 1] = name end
    seen[name] = seen[name] or layer:matrix "lora_A" ~= nil
  end
  return names
end

--- Writes the adapters of these layers.
function folder.save(dir, layers, options)
  local config = {
    peft_type = "LORA", base_model_name_or_path = options.base_model_name_or_path,
    task_type = options.task_type, target_modules = target_modules(layers), bias = "none",
    fan_in_fan_out = false, inference_mode = true, use_rslora = false, lora_dropout = 0,
  }
  local tensors, ranks, alphas = {}, {}, {}
  for _, layer in ipairs(layers) do
    local a = layer:matrix "lora_A"
    if a then
      tensors[prefix .. layer.name .. ".lora_A.weight"] = a
      tensors[prefix .. layer.name .. ".lora_B.weight"] = layer:matrix "lora_B"
      local r = a:size(0)
      -- Write the scaling as alpha / r, whichever formula set it.
      local alpha = layer:get "lora_scaling" * r
      config.r, config.lora_alpha = config.r or r, config.lora_alpha or alpha
      ranks[layer.name], alphas[layer.name] = r, alpha
      config.lora_dropout = layer:get "lora_dropout" or config.lora_dropout
      config.fan_in_fan_out = layer:get "lora_fan_in_fan_out" or config.fan_in_fan_out
    end
  end
  if not config.r then fail "lora.save_pretrained: there is no adapter in the tree" end
  config.rank_pattern = patterns_of(ranks, config.r)
  config.alpha_pattern = patterns_of(alphas, config.lora_alpha)
  native.save_weights(dir, tensors, {
    stem = "adapter_model",
    texts = { [config_file] = native.json_encode(config_file, config, 2) .. "\n" },
  })
end

return folder
