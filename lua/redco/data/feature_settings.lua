--- Reads the settings of a feature extractor.
local fail = require "redco.fail"

local harmless = { auto_map = true, feature_extractor_type = true, processor_class = true,
  return_tensors = true }

--- Returns the settings of a preprocessor_config.json. facts:
---   defaults: values by key
---   counts: the set of keys whose values are whole numbers of at least 1
---   harmless: a list of more keys without an effect, as others follow from them
---   only: values by key, which are the only ones supported
return function(where, config, facts)
  local known, o, counts = {}, {}, facts.counts or {}
  for _, key in ipairs(facts.harmless or {}) do known[key] = true end
  for key, value in pairs(config) do
    local expected = facts.only[key]
    if expected ~= nil and value ~= expected then
      fail("%s: %s = %s is not supported, only %s", where, key, value, expected)
    elseif expected == nil and facts.defaults[key] == nil and not harmless[key]
      and not known[key] then
      fail("%s: %s is not supported", where, key)
    end
  end
  for key, default in pairs(facts.defaults) do
    local value = config[key]
    if value == nil then value = default end
    local is_count = type(value) == "number" and value >= 1 and value <= 1e6 and value % 1 == 0
    if type(value) ~= type(default) or counts[key] and not is_count then
      fail("%s: %s is %s, expected a %s", where, key, value,
        counts[key] and "whole number of at least 1" or type(default))
    end
    o[key] = value
  end
  return o
end
