--- Configurations: what a script gives or a `config.json` has, completed and checked.
local fail = require "redco.fail"
local native = require "redco.native"

-- What Hugging Face writes into the configuration of any family.
local common = {}
for _, key in ipairs {
  "architectures", "bos_token_id", "decoder_start_token_id", "dtype", "eos_token_id",
  "forced_bos_token_id", "forced_eos_token_id", "is_encoder_decoder", "model_type",
  "pad_token_id", "tie_word_embeddings", "torch_dtype", "transformers_version", "use_cache",
} do common[key] = true end

local function known_names(family)
  local names = {}
  for name in pairs(common) do names[#names + 1] = name end
  for name in pairs(family.defaults) do names[#names + 1] = name end
  for name in pairs(family.only or {}) do names[#names + 1] = name end
  for _, name in ipairs(family.optional or {}) do names[#names + 1] = name end
  return names
end

local function refuse_unknown(family, given)
  local names, known = known_names(family), {}
  for _, name in ipairs(names) do known[name] = true end
  for key in pairs(given) do
    if not known[key] then
      local near = native.nearest(tostring(key), names)
      fail("%s: unknown key '%s' in the configuration%s", family.model_type, tostring(key),
        near and ("; did you mean '%s'?"):format(near) or "")
    end
  end
end

local function check_kinds(family, c)
  for key, default in pairs(family.defaults) do
    if type(c[key]) ~= type(default) then
      fail("%s: the configuration's %s is %s, expected a %s", family.model_type, key,
        tostring(c[key]), type(default))
    end
  end
  for key, value in pairs(family.only or {}) do
    if c[key] ~= nil and c[key] ~= value then
      fail("%s: %s = %s is not supported, only %s", family.model_type, key, tostring(c[key]),
        tostring(value))
    end
  end
end

--- The configuration of a model of this family. A script's (`is_file` is false) must have no key
--- that means nothing; a file's may, and they are kept, to be saved again.
local function complete_config(family, given, is_file)
  if not is_file then refuse_unknown(family, given) end
  local c = {}
  for key, value in pairs(family.defaults) do c[key] = value end
  for key, value in pairs(given) do c[key] = value end
  if family.complete then family.complete(c, is_file) end
  check_kinds(family, c)
  c.model_type = family.model_type
  c.architectures = c.architectures or { family.architecture }
  if family.check then family.check(c) end
  return c
end

return complete_config
