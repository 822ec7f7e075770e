--- Completes and checks configurations, from scripts and from `config.json`.
local fail = require "redco.fail"
local json = require "redco.models.json"
local names_of = require "redco.names_of"
local native = require "redco.native"
local sizes = require "redco.models.config_sizes"

-- Keys that Hugging Face writes into the configuration of any family.
local common = {}
for _, key in ipairs {
  "architectures", "bos_token_id", "decoder_start_token_id", "dtype", "eos_token_id",
  "forced_bos_token_id", "forced_eos_token_id", "is_encoder_decoder", "model_type",
  "pad_token_id", "tie_word_embeddings", "tokenizer_class", "torch_dtype", "transformers_version",
  "use_cache",
} do common[key] = true end

-- Keys that transformers reads for any family and that are not supported, with the value that has
-- no effect; `false` if there is none.
local unsupported = {
  attention_chunk_size = false,
  quantization_config = false,
  sliding_window = false,
  tie_encoder_decoder = false,
}

-- The set of the keys of the family itself.
local function keys_of(family)
  local names = {}
  for _, list in ipairs { family.defaults, family.only or {}, family.aliases or {} } do
    for name in pairs(list) do names[name] = true end
  end
  for _, name in ipairs(family.optional or {}) do names[name] = true end
  return names
end

local function check_layer_types(family, c, known)
  if c.layer_types == nil then return end
  if type(c.layer_types) ~= "table" then
    fail("%s: the configuration's layer_types are %s, expected a list", family.model_type,
      c.layer_types)
  end
  local window = known.attention_chunk_size and "chunked_attention" or "sliding_attention"
  local kinds = family.layer_kinds or { "full_attention", known.layer_types and window or nil }
  local has = {}
  for _, kind in ipairs(kinds) do has[kind] = true end
  for _, kind in ipairs(c.layer_types) do
    if not has[kind] then
      fail("%s: the configuration's layer_types have %s, which is not supported, only %s",
        family.model_type, kind, table.concat(kinds, " and "))
    end
  end
  if known.layer_types and #c.layer_types ~= c.num_hidden_layers then
    fail("%s: layer_types has %d entries, but num_hidden_layers is %s", family.model_type,
      #c.layer_types, c.num_hidden_layers)
  end
end

local function refuse_unsupported(family, c)
  local known = keys_of(family)
  for key, neutral in pairs(unsupported) do
    if c[key] ~= nil and c[key] ~= neutral and not known[key] then
      local value = type(c[key]) == "table" and "" or " = " .. tostring(c[key])
      fail("%s: the configuration has %s%s, which is not supported%s", family.model_type, key,
        value, key == "quantization_config" and ": give the folder of the model before quantization"
        or "")
    end
  end
  if c.layer_types ~= nil and known.sliding_window and not known.layer_types then
    fail("%s: the configuration has layer_types, which is not supported: its sliding_window is "
      .. "that of all layers", family.model_type)
  end
  check_layer_types(family, c, known)
  if type(c.pruned_heads) == "table" and next(c.pruned_heads) ~= nil then
    fail("%s: the configuration has pruned_heads, which are not supported", family.model_type)
  end
end

local function refuse_unknown(family, given)
  local known = keys_of(family)
  for name in pairs(common) do known[name] = true end
  for key in pairs(given) do
    if not known[key] then
      local near = native.nearest(tostring(key), names_of(known))
      fail("%s: unknown key '%s' in the configuration%s", family.model_type, key,
        near and ("; did you mean '%s'?"):format(near) or "")
    end
  end
end

local largest, largest_float = 2 ^ 31 - 1, 3.4e38
local may_be_negative = { clamp_len = true, length_penalty = true, vision_feature_layer = true }

-- Returns a description of the expected value if this one is not valid, else nil or false.
local function mismatch(family, key, value, default)
  if type(default) == "table" and type(value) == "table" and default[1] ~= nil then
    local expected
    for _, element in ipairs(value) do
      expected = expected or mismatch(family, key, element, default[1])
    end
    return expected and "a list, each element " .. expected
  end
  local is_number = type(value) == "number"
  local least = (family.least or {})[key] or sizes[key]
  if least then
    local fits = is_number and value >= least and value <= largest and value % 1 == 0
    return not fits and ("a whole number from %d to %d"):format(least, largest)
  elseif default ~= nil and type(value) ~= type(default) then
    return "a " .. type(default)
  elseif is_number and key:find "_token_id$" then
    return (value < -1 or value > largest or value % 1 ~= 0) and "the number of a token"
  elseif is_number and key:find "drop" then
    return not (value >= 0 and value <= 1) and "a probability, from 0 to 1"
  elseif is_number and not key:find "_index$" and not may_be_negative[key] then
    return not (value >= 0 and value < largest_float) and "a number from 0 to 3.4e38"
  end
end

-- Whether a key that has a default may be null, which means none.
local function is_nullable(family, key)
  for _, name in ipairs(family.nullable or {}) do
    if name == key then return true end
  end
  return false
end

local function check_kinds(family, c)
  local function check(key, default)
    local expected = mismatch(family, key, c[key], default)
    if expected then
      local value = c[key]
      fail("%s: the configuration's %s is %s, expected %s", family.model_type, key,
        type(value) == "string" and ("'%s'"):format(value) or tostring(value), expected)
    end
  end
  for key, default in pairs(family.defaults) do
    local is_none = c[key] == nil and (key:find "_token_id$" or is_nullable(family, key))
    local is_list = key == "eos_token_id" and type(c[key]) == "table"
    if not is_none and not is_list then check(key, key:find "_token_id$" and 0 or default) end
  end
  for _, key in ipairs(family.optional or {}) do
    if c[key] ~= nil and not (family.lists and family.lists[key]) then check(key) end
  end
  if c.pad_token_id ~= nil then check("pad_token_id", 0) end
  for key, value in pairs(family.only or {}) do
    if c[key] ~= nil and c[key] ~= value then
      fail("%s: %s = %s is not supported, only %s", family.model_type, key, c[key],
        value)
    end
  end
end

local most_tensors, most_elements = 100000, 1e13

-- Counts the parameters before any is allocated.
local function count_parameters(family, c)
  local n_tensors, n_elements = 0, 0
  family.add_parameters(c, function(_, shape)
    local n = 1
    for _, size in ipairs(shape) do n = n * size end
    n_tensors, n_elements = n_tensors + 1, n_elements + n
    if n_tensors > most_tensors or n_elements > most_elements then
      fail("%s: the configuration makes more than %s", family.model_type,
        n_tensors > most_tensors and "100,000 tensors" or "10,000,000,000,000 parameters")
    end
  end)
  return n_elements
end

-- Null means none for tokens and for other keys that may be null; in a script, false means the
-- same. For a switch, null means off.
local function remove_nulls(family, given, c)
  local keys = {}
  for key in pairs(json.nulls(given)) do keys[key] = true end
  for key, value in pairs(given) do
    local is_none = key:find "_token_id$" or is_nullable(family, key)
    if value == false and is_none then keys[key] = true end
  end
  for key in pairs(keys) do
    local default = family.defaults[key]
    if type(default) == "boolean" then
      c[key] = false
    elseif default == nil or key:find "_token_id$" or is_nullable(family, key) then
      json.set_null(c, key)
    else
      fail("%s: the configuration's %s is null, expected a %s", family.model_type, key,
        type(default))
    end
  end
end

-- Returns the sorted sizes that the configuration lacks, such as "num_hidden_layers = 32", and
-- those that its parts lack, such as "vision_config.patch_size = 32".
local function assumed_sizes(family, given)
  local is_given, list = {}, {}
  for key in pairs(given) do is_given[(family.aliases or {})[key] or key] = true end
  for key in pairs(json.nulls(given)) do is_given[key] = true end
  for key, default in pairs(family.defaults) do
    if sizes[key] and not is_given[key] then
      list[#list + 1] = ("%s = %s"):format(key, tostring(default))
    end
  end
  for kind, part in pairs(family.config_parts and family.config_parts(given) or {}) do
    for _, size in ipairs(assumed_sizes(part, given[kind] or {})) do
      list[#list + 1] = kind .. "." .. size
    end
  end
  table.sort(list)
  return list
end

--- Returns the complete configuration of a model of this family, the number of parameters, and a
--- list of the sizes that `given` lacks, with their defaults. An unknown key is an error in a
--- script (`is_file` is false); in a file it is kept, to be saved again.
local function complete_config(family, given, is_file)
  if family.with_parts then given = family.with_parts(given) end
  if not is_file then refuse_unknown(family, given) end
  local c = json.copy(given)
  for key, value in pairs(family.defaults) do
    if c[key] == nil then c[key] = value end
  end
  remove_nulls(family, given, c)
  for alias, name in pairs(family.aliases or {}) do
    if c[alias] ~= nil then c[name], c[alias] = c[alias], nil end
  end
  refuse_unsupported(family, c)
  check_kinds(family, c)
  if (c.num_hidden_layers or 0) > most_tensors then
    fail("%s: the configuration makes more than 100,000 tensors: num_hidden_layers is %d",
      family.model_type, c.num_hidden_layers)
  end
  if family.complete then
    family.complete(c, is_file)
    check_kinds(family, c)
  end
  json.mark_reals(c, keys_of(family))
  c.model_type = family.model_type
  if family.task or not c.architectures then c.architectures = { family.architecture } end
  if family.check then family.check(c) end
  return c, count_parameters(family, c), assumed_sizes(family, given)
end

return complete_config
