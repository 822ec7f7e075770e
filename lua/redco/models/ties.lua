--- Heads that share the embedding's weight, and what folders say about them.
local ties = {}

--- Returns the major version of transformers that wrote a configuration, or nil.
function ties.version(config)
  return tonumber(tostring(config.transformers_version):match "^%d+")
end

--- Returns the name of the weight that the head would have if it were not tied, and the name of the
--- weight to which the configuration ties it; nil if it is not tied or cannot be otherwise.
function ties.own_head(family, config)
  if not family.head or not config.tie_word_embeddings then return nil end
  local untied = setmetatable({ tie_word_embeddings = false }, { __index = config })
  local own, tied = family.head(untied), family.head(config)
  if own ~= tied then return own, tied end
end

--- Whether two weights of a file have the same values.
function ties.are_equal(weights, name, other)
  local a, b = weights:shape(name), weights:shape(other)
  if table.concat(a, " ") ~= table.concat(b, " ") then return false end
  a, b = weights:tensor(name), weights:tensor(other)
  return a.dtype == b.dtype and a:equal(b)
end

return ties
