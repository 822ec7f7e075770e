--- Reads how a folder of sentence-transformers makes vectors of texts.
local fail = require "redco.fail"
local files = require "redco.models.files"
local json = require "redco.models.json"
local pooling = require "redco.models.pooling"
local warn = require "redco.warn"

-- The names of pooling.lua, and the keys of older folders in the order in which several vectors
-- are joined.
local renamed = { lasttoken = "last" }
local older_keys = {
  { "pooling_mode_cls_token", "cls" },
  { "pooling_mode_max_tokens", "max" },
  { "pooling_mode_mean_tokens", "mean" },
  { "pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens" },
  { "pooling_mode_weightedmean_tokens", "weightedmean" },
  { "pooling_mode_lasttoken", "last" },
}

-- Returns the kinds of pooling of a configuration.
local function kinds_of(config, path)
  local kinds, given = {}, config.pooling_mode
  if given == nil then
    for _, row in ipairs(older_keys) do
      if config[row[1]] == true then kinds[#kinds + 1] = row[2] end
    end
    return #kinds > 0 and kinds or { "mean" }
  end
  for i, kind in ipairs(type(given) == "table" and given or { given }) do
    kinds[i] = renamed[kind] or kind
    if not pooling[kinds[i]] then fail("%s: unknown pooling_mode '%s'", path, kind) end
  end
  return kinds
end

--- Returns the kinds of vectors, which are joined, whether the result has length 1, and the files
--- that say so by name: { kinds, normalizes, files }; nil if the folder says nothing.
return function(dir)
  local modules = files.json(dir, "modules.json")
  local found = { normalizes = false, files = {} }
  local path = not modules and "1_Pooling"
  for _, module in ipairs(modules or {}) do
    local kind = type(module) == "table" and tostring(module.type):match "[^.]*$"
    if kind == "Pooling" then
      path = module.path or ""
    elseif kind == "Normalize" then
      found.normalizes = true
    elseif kind ~= "Transformer" then
      found.files = nil
      warn("%s/modules.json: what %s does to the vectors is not done", dir, tostring(kind))
    end
  end
  if not path then return nil end
  if not tostring(path):find "^[%w_]+$" then
    fail("%s/modules.json: the path of Pooling is '%s', expected one as 1_Pooling", dir, path)
  end
  local name = path .. "/config.json"
  local config = files.json(dir, name)
  if not config then return nil end
  found.kinds = kinds_of(config, dir .. "/" .. name)
  if found.files then
    found.files[name] = json.encode(name, config, 2) .. "\n"
    found.files["modules.json"] = modules and json.encode("modules.json", modules, 2) .. "\n"
  end
  return found
end
