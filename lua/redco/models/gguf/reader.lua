--- Typed access to a GGUF file's keys of its architecture.
local fail = require "redco.fail"

-- Keys that change a model's results, with the value that has no effect. A file with another value
-- is refused, unless the row of its architecture reads the key.
local neutral = {
  ["attention.causal"] = true,
  ["attention.clamp_kqv"] = 0,
  ["attention.layer_norm_epsilon"] = 0,
  ["attention.max_alibi_bias"] = 0,
  ["attention.scale"] = 0,
  ["attention.sliding_window"] = 0,
  ["attn_logit_softcapping"] = 0,
  ["embedding_scale"] = 1,
  ["expert_count"] = 0,
  ["expert_shared_count"] = 0,
  ["expert_used_count"] = 0,
  ["expert_weights_scale"] = 1,
  ["final_logit_softcapping"] = 0,
  ["logit_scale"] = 1,
  ["nextn_predict_layers"] = 0,
  ["residual_scale"] = 1,
  ["rope.scaling.alpha"] = 0,
  ["rope.scaling.yarn_attn_factor"] = 1,
  ["rope.scaling.yarn_beta_fast"] = 32,
  ["rope.scaling.yarn_beta_slow"] = 1,
  ["rope.scaling.yarn_ext_factor"] = 1,
  ["rope.scaling.yarn_log_multiplier"] = 0,
  ["use_parallel_residual"] = false,
}

-- Returns the value of a key that has a list with one for each layer. All must be equal.
local function of_all_layers(file, name, list)
  for _, value in ipairs(list) do
    if value ~= list[1] then
      fail("%s: %s has %s and %s: layers of different sizes are not supported", file.path, name,
        list[1], value)
    end
  end
  return list[1]
end

--- Returns the short decimal nearest to a number in single precision.
local function decimal(x) return tonumber(("%.7g"):format(x)) end

--- Returns an object with functions that read a key. A key without a default is required.
return function(file, architecture)
  -- Each access to `file.metadata` copies all of it.
  local metadata = file.metadata
  local r, is_read, has = { path = file.path, decimal = decimal, metadata = metadata }, {}, {}
  for _, tensor in ipairs(file:keys()) do has[tensor] = true end

  --- Returns whether the file has a tensor.
  function r.has(tensor) return has[tensor] == true end

  --- Returns the name of a key in the file.
  function r.name(key) return architecture .. "." .. key end

  --- Returns the value of a key as it is, or nil.
  function r.value(key)
    is_read[key] = true
    return metadata[r.name(key)]
  end

  local function typed(key, default, kind)
    local value = r.value(key)
    if value == nil then value = default end
    if type(value) == "table" then value = of_all_layers(file, r.name(key), value) end
    if type(value) ~= kind then
      fail("%s: the key %s is %s, expected a %s", file.path, r.name(key),
        value == nil and "missing" or "a " .. type(value), kind)
    end
    return value
  end

  function r.number(key, default) return typed(key, default, "number") end
  function r.flag(key, default) return typed(key, default, "boolean") end

  --- Returns a number in single precision as its short decimal.
  function r.fraction(key, default) return decimal(r.number(key, default)) end

  --- Returns a positive integer.
  function r.count(key, default)
    local value = r.number(key, default)
    if value < 1 or value % 1 ~= 0 or value >= 2 ^ 31 then
      fail("%s: %s is %s, expected a positive integer", file.path, r.name(key), value)
    end
    return value
  end

  --- Raises an error for a key that changes results and was not read.
  function r.refuse_others()
    for key, value_without_effect in pairs(neutral) do
      local value = metadata[r.name(key)]
      local has_effect = value ~= nil and value ~= value_without_effect
        and not (value == 0 and value_without_effect == 1)
        and not (value == 1 and key:find "^expert_")
      if has_effect and not is_read[key] then
        fail("%s: %s is %s, which is not supported, only %s", file.path, r.name(key), value,
          value_without_effect)
      end
    end
  end

  return r
end
