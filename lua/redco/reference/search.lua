--- Finds entries of the reference by words in their names, arguments and texts.
local native = require "redco.native"
local registry = require "redco.registry"
local surface = require "redco.reference.surface"
local topics = require "redco.reference.topics"
local wrap_lines = require "redco.reference.wrap"

local search = {}

local most_entries, most_operators = 12, 12

-- "Learning_rate" and "learning rate" are the same words.
local function words_of(text)
  return (text:lower():gsub("[%s_]+", " "))
end

-- "clip" of "clipping", which also finds "clips".
local function stem_of(word)
  if #word < 6 then return word end
  return (word:gsub("ing$", ""):gsub("([bdgmnprt])%1$", "%1"))
end

-- Words of questions, such as "how do I save a model".
local empty = {}
for word in ("a an and are can do for how i in is my of on the to use what with"):gmatch "%S+" do
  empty[word] = true
end

local function has_all(text, words)
  local has_any = false
  for word in words:gmatch "%S+" do
    if not empty[word] then
      if not text:find(stem_of(word), 1, true) then return false end
      has_any = true
    end
  end
  return has_any
end

-- Returns how well an entry fits, 1 for the best; nil if it does not.
local function rank(full_name, words)
  local name = words_of(full_name:match "[^.:]+$")
  if has_all(name, words) then return 1 end
  local read = surface.read(full_name)
  for _, argument in ipairs(not read.is_list and read.arguments or {}) do
    if words_of(argument.name) == words then return 2 end
  end
  local text = words_of(full_name .. " " .. registry.text(full_name))
  if text:find(words, 1, true) then return 3 end
  return has_all(words_of(full_name) .. " " .. text, words) and 4 or nil
end

--- Returns the full names of the entries that fit a query, the best first.
function search.entries(query)
  local words = words_of(query):match "^ ?(.-) ?$"
  local found, ranks = {}, {}
  if #words < 2 then return found end
  for _, full_name in ipairs(registry.names()) do
    ranks[full_name] = surface.page(full_name) and rank(full_name, words)
    if ranks[full_name] then found[#found + 1] = full_name end
  end
  table.sort(found, function(a, b)
    if ranks[a] ~= ranks[b] then return ranks[a] < ranks[b] end
    return a < b
  end)
  return found
end

--- Returns the full names of the entries that are not called `part`, but have it in their last name
--- or as an argument, at most eight.
function search.similar(part)
  local found, words = {}, words_of(part)
  if #words < 3 then return found end
  for _, full_name in ipairs(registry.names()) do
    if #found == 8 then break end
    local is_similar = surface.page(full_name) and full_name:match "[^.:]+$" ~= part
    if is_similar and (rank(full_name, words) or 3) < 3 then found[#found + 1] = full_name end
  end
  return found
end

--- Returns the names of ATen's operators that contain the text.
function search.operators(part)
  local found = {}
  if #part < 2 or part:find "[^%w_]" then return found end
  for _, name in ipairs(require "redco.torch".operators()) do
    if name:find(part:lower(), 1, true) then found[#found + 1] = "torch." .. name end
  end
  table.sort(found, function(a, b)
    if #a ~= #b then return #a < #b end
    return a < b
  end)
  return found
end

local function cut(list, most)
  local few = { unpack(list, 1, most) }
  if #list > most then few[#few + 1] = ("%d more"):format(#list - most) end
  return few
end

--- Returns a list of what fits a query, for the screen; nil if nothing does. `is_name`: there is
--- help for the query itself.
function search.text(query, is_name)
  local entries, operators = search.entries(query), search.operators(query)
  local topic = topics.line(query)
  if #entries + #operators == 0 then return topic end
  local lines = { (is_name and "these mention '%s':"
    or "there is no help for '%s'; these mention it:"):format(query) }
  for i, full_name in ipairs(cut(entries, most_entries)) do
    if i > most_entries then
      lines[#lines + 1] = "  and " .. full_name
    else
      wrap_lines(lines, 80, full_name, "  ")
      wrap_lines(lines, 80, surface.summary(surface.read(full_name)), "      ", "      ")
    end
  end
  if #operators > 0 then
    wrap_lines(lines, 80, "operators: " .. table.concat(cut(operators, most_operators), ", "),
      "  ", "      ")
  end
  if topic then wrap_lines(lines, 80, topic) end
  return table.concat(lines, "\n")
end

--- Returns the answer to a query that nothing fits: similar names of the reference and operators.
--- Of a dotted name the last part counts.
function search.missing(query)
  local last = query:match "([^.:]+)[.:]*$" or query
  local candidates, seen, similar = require "redco.torch".operators(), {}, {}
  for _, name in ipairs(registry.names()) do
    candidates[#candidates + 1] = name
    candidates[#candidates + 1] = name:match "[^.:]+$"
  end
  for _, name in ipairs(candidates) do
    if name:lower():find(last:lower(), 1, true) and not seen[name] and #similar < 8 then
      seen[name] = true
      similar[#similar + 1] = name
    end
  end
  local nearest = native.nearest(last, candidates)
  if nearest and not seen[nearest] then table.insert(similar, 1, nearest) end
  return ("there is no help for '%s'%s"):format(query,
    #similar > 0 and "; similar names: " .. table.concat(similar, ", ") or "")
end

return search
