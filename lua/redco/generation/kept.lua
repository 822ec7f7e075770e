--- The rows of a batch that have ended, with their tokens, keys, values and states. A row
--- whose prompt begins with such tokens, the next turn of a conversation, reads only the rest.
local torch = require "redco.torch"

-- Rows that have ended in one step: their cache entries [B, ...] with the last `length` columns.
-- All parts have the same number of rows.
local Bundle = {}
Bundle.__index = Bundle

-- One row of a bundle: its tokens, its part and its place in the part, from 0.
local Entry = {}
Entry.__index = Entry

-- Returns lists {name, entries}: f of each entry of a group of a cache.
local function named(group, f)
  local names, list = {}, {}
  for name, held in pairs(group) do
    if type(name) == "string" then names[held] = name end
  end
  for i, held in ipairs(group) do
    local own = {}
    for k, t in ipairs(held) do own[k] = f(t) end
    list[i] = { names[held], own }
  end
  return list
end

-- Returns the tokens of a row that the cache has: all but the last.
local function tokens_of(row)
  local list = {}
  for i, token in ipairs(row.prompt) do list[i] = token end
  for i = 1, #row.tokens - 1 do list[#list + 1] = row.tokens[i] end
  return list
end

local function new_bundle(slots, rows)
  local self = setmetatable({ entries = {}, length = 0, size = 0 }, Bundle)
  local by_part = {}
  for part = 0, slots.n_parts - 1 do by_part[part] = {} end
  for i, row in ipairs(rows) do
    local list, tokens = by_part[slots:part_of(row.slot)], tokens_of(row)
    self.entries[i] = setmetatable({ bundle = self, tokens = tokens,
      part = slots:part_of(row.slot), place = #list }, Entry)
    list[#list + 1] = row.slot
    self.size, self.length = math.max(self.size, #list), math.max(self.length, #tokens)
  end
  local index = {}
  for part = 0, slots.n_parts - 1 do
    for i = 1, self.size do
      index[#index + 1] = by_part[part][i] or part * slots.size / slots.n_parts
    end
  end
  local cache = slots.cache
  self.layers = named(cache.layers, function(t)
    return slots:selected(t:narrow(2, cache.length - self.length, self.length), index)
  end)
  self.states = named(cache.states, function(t) return slots:selected(t, index) end)
  return self
end

--- Puts the first tokens of new rows into `fresh`, an empty cache for prompts of up to `length`
--- tokens that end at the same column. `n` is its number of rows in each part.
function Bundle:load(fresh, slots, new, n, length)
  local n_read = 0  -- the same for each row, so that all end together
  for _, row in ipairs(new) do n_read = math.max(n_read, #row.prompt - row.n_kept) end
  local past = length - n_read
  local index, places = {}, {}
  for part = 0, slots.n_parts - 1 do
    for i = 1, n do
      index[part * n + i], places[part * n + i] = part * self.size, torch.zeros { past }:tolist()
    end
  end
  for _, row in ipairs(new) do
    local entry = row.kept
    local at = entry.part * n + row.source + 1
    index[at] = entry.part * self.size + entry.place
    local first = self.length - #entry.tokens  -- the column of the first token
    for column = length - #row.prompt, past - 1 do
      places[at][column + 1] = first + column - length + #row.prompt
    end
  end
  local columns = torch.tensor(places, { dtype = "int64", device = slots.device })
  columns = slots:split(columns):to_local():unsqueeze(1):unsqueeze(-1)
  for _, layer in ipairs(self.layers) do
    local held = {}
    for i, t in ipairs(layer[2]) do
      local rows = slots:selected(t, index)
      local own, chosen = rows:to_local(), rows:narrow(2, 0, past):clone()
      chosen:to_local():copy_(
        own:gather(2, columns:expand { own:size(0), own:size(1), past, own:size(3) }))
      held[i] = chosen
    end
    fresh:add(fresh.layers, layer[1], held)
  end
  for _, layer in ipairs(self.states) do
    local held = {}
    for i, t in ipairs(layer[2]) do held[i] = slots:selected(t, index) end
    fresh:add(fresh.states, layer[1], held)
  end
  fresh.length = past
end

--- Returns a key that is the same for rows that may be loaded together. States belong to the last
--- token, so that rows with them must read as many further ones.
function Entry:group(row)
  local n_read = #self.bundle.states > 0 and #row.prompt - row.n_kept or 0
  return ("%s %d"):format(tostring(self.bundle), n_read)
end

local Kept = {}
Kept.__index = Kept

--- Keeps rows that end, instead of the oldest ones. They still have their slots.
function Kept:add(slots, rows)
  local list = {}
  for _, row in ipairs(rows) do
    if #list < self.most and #row.tokens > 0 then list[#list + 1] = row end
  end
  if #list == 0 then return end
  table.insert(self.bundles, 1, new_bundle(slots, list))
  local n = 0
  for i, bundle in ipairs(self.bundles) do
    n = n + #bundle.entries
    if n > self.most then
      for k = i, #self.bundles do self.bundles[k] = nil end
      break
    end
  end
end

-- Returns how many tokens both lists begin with, at most `most`.
local function common(a, b, most)
  for i = 1, math.min(#a, most) do
    if a[i] ~= b[i] then return i - 1 end
  end
  return math.min(#a, most)
end

--- Returns the entry with the most first tokens of a prompt, and their number; nil if these are
--- less than half of the prompt. The last token is always read, for the scores after it.
function Kept:find(prompt)
  local best, most = nil, 0
  for _, bundle in ipairs(self.bundles) do
    for _, entry in ipairs(bundle.entries) do
      local n = common(entry.tokens, prompt, #prompt - 1)
      local is_usable = #bundle.states == 0 or n == #entry.tokens
      if is_usable and n > most then best, most = entry, n end
    end
  end
  if 2 * most >= #prompt then return best, most end
end

--- Forgets all rows: the parameters have changed.
function Kept:clear() self.bundles = {} end

--- Returns an empty store of up to `most` rows.
return function(most) return setmetatable({ most = most, bundles = {} }, Kept) end
