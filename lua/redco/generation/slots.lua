--- The rows that a batch decodes together. A row has a slot of one cache. All rows end at the same
--- column, and a mask hides what is before them, so that a new row can take a slot at any time.
--- Shapes: B slots, V words. If rows are split over processes, each part has as many slots.
local fail = require "redco.fail"
local native = require "redco.native"
local new_cache = require "redco.models.cache"
local new_kept = require "redco.generation.kept"
local captured = require "redco.generation.captured"
local torch = require "redco.torch"

local Slots = {}
Slots.__index = Slots

local function int64(list, device)
  return torch.tensor(list, { dtype = "int64", device = device })
end

--- Returns the part of the processes that holds slot i, from 0. Slots of a part are adjacent.
function Slots:part_of(i) return math.floor(i * self.n_parts / self.size) end

--- Returns a tensor [B, ...] split over the parts.
function Slots:split(t)
  return self.n_parts > 1 and native.shard(t, self.placement) or t
end

--- Returns slots index[i] of t [B, ...], for each i; those of a part come from the same part.
function Slots:selected(t, index)
  if self.n_parts == 1 then return t:index_select(0, int64(index, t.device)) end
  local n_old, n_new = t:size(0) / self.n_parts, #index / self.n_parts
  local own = {}
  for i, slot in ipairs(index) do own[i] = slot % n_old end
  local shape, rest = { self.n_parts, n_new }, { self.n_parts, n_old }
  local ones = { self.n_parts, n_new }
  for d = 1, t:dim() - 1 do
    shape[d + 2], rest[d + 2], ones[d + 2] = t:size(d), t:size(d), 1
  end
  -- The index is split like t; else another dimension of t would be split instead.
  local places = self:split(int64(own, t.device):view(ones)):expand(shape)
  table.remove(shape, 1)
  shape[1] = #index
  return t:view(rest):gather(1, places):reshape(shape)
end

-- Runs the model. Returns the scores [B, V] after the last column.
local function scores_of_model(self, ids, mask, cache)
  local hidden = self.model.hidden_states(self.params,
    { input_ids = self:split(ids), attention_mask = mask and self:split(mask) },
    { cache = cache })
  return self.model.logits(self.params, hidden:select(1, -1)):float():full()
end

local function scores_of(self, ids, starts, cache)
  local length = cache.length + ids:size(1)
  local mask
  for _, start in ipairs(starts) do
    if start > 0 then
      mask = torch.arange(length):ge(int64(starts):unsqueeze(1)):to "int64":to(self.device)
      break
    end
  end
  return scores_of_model(self, ids, mask, cache)
end

-- Makes steps alike (Cache:fix) until the cache gets other tensors. One GPU captures the second.
local function fix(self)
  local cache, size = self.cache, self.size
  cache:fix(self.device)
  local ids = torch.zeros({ size, 1 }, { dtype = "int64", device = self.device })
  local starts, columns = ids:clone(), torch.arange(cache.capacity, { device = self.device })
  local run = captured(self.params, ids, function()
    return scores_of_model(self, ids, columns:ge(starts):to "int64", cache)
  end)
  function self.fixed_step(tokens)
    ids:copy_(int64(tokens))
    starts:copy_(int64(self.starts):unsqueeze(1))
    cache.place:fill_(cache.length)
    local scores = run()
    cache.length = cache.length + 1
    return scores
  end
end

local function unfix(self)
  self.fixed_step = nil
  if self.cache then self.cache.place = nil end
end

local room = 64  -- columns for new tokens; the cache adds more when they are used

-- Moves all rows to the right by `n` columns, or to the left if it is negative.
local function move(self, n)
  local cache = self.cache
  local length = cache.length
  if n > 0 then unfix(self) end
  cache:map_columns(function(t)
    if n > 0 then
      return torch.constant_pad_nd(t:narrow(2, 0, length), { 0, 0, n, room }, 0)
    end
    local own = t:to_local()
    own:narrow(2, 0, length + n):copy_(own:narrow(2, -n, length + n):clone())
    return t
  end)
  cache.length = length + n
  for i, start in ipairs(self.starts) do self.starts[i] = math.max(0, start + n) end
end

--- Drops columns on the left that no open row uses, if there are at least `least`.
function Slots:compact(least)
  local first = self.cache.length
  for i in pairs(self.rows) do first = math.min(first, self.starts[i + 1]) end
  if first >= least then move(self, -first) end
end

--- Appends a token to each open row, the last of row.tokens. Returns the next scores [B, V].
function Slots:decode()
  local cache = self.cache
  self:compact(cache.length == self.most and 1 or 32)
  local tokens = {}
  for i = 0, self.size - 1 do
    local row = self.rows[i]
    tokens[i + 1] = { row and row.tokens[#row.tokens] or 0 }
  end
  if self.is_static and cache.length < (cache:n_places() or math.huge) then
    if not self.fixed_step then fix(self) end
    return self.fixed_step(tokens)
  end
  unfix(self)  -- the cache grows
  return scores_of(self, int64(tokens, self.device), self.starts, cache)
end

-- Returns the ids of new rows' prompts: each prompt once in a part, and `n` rows in each part.
local function sources_of(self, new)
  local lists, of_prompt, length = {}, {}, 0
  for part = 0, self.n_parts - 1 do lists[part], of_prompt[part] = {}, {} end
  for _, row in ipairs(new) do
    local part = self:part_of(row.slot)
    local list, known = lists[part], of_prompt[part]
    local key = table.concat(row.prompt, " ")
    if not known[key] then
      list[#list + 1], known[key] = row.prompt, #list
      length = math.max(length, #row.prompt)
    end
    row.source = known[key]  -- counted in its part, from 0
  end
  local n = 0
  for part = 0, self.n_parts - 1 do n = math.max(n, #lists[part]) end
  local ids, starts = {}, {}
  for part = 0, self.n_parts - 1 do
    for i = 1, n do
      local prompt, list = lists[part][i] or { 0 }, {}
      for at = 1, length do list[at] = prompt[at - length + #prompt] or 0 end
      ids[#ids + 1], starts[#starts + 1] = list, length - #prompt
    end
  end
  return ids, starts, n
end

-- Copies prompts of `length` tokens from `fresh` to the columns before the end of the cache, and
-- their states.
local function insert(self, new, fresh)
  local by_part, most = {}, 0
  for part = 1, self.n_parts do by_part[part] = {} end
  for _, row in ipairs(new) do
    local list = by_part[self:part_of(row.slot) + 1]
    list[#list + 1] = row
    most = math.max(most, #list)
  end
  -- All parts have the same number of entries; -1 means no row.
  local from, to, n_slots = {}, {}, self.size / self.n_parts
  for part = 1, self.n_parts do
    for i = 1, most do
      local row = by_part[part][i]
      from[#from + 1] = row and row.source or -1
      to[#to + 1] = row and row.slot % n_slots or -1
    end
  end
  local own_from = self:split(int64(from, self.device)):to_local()
  local own_to = self:split(int64(to, self.device)):to_local()
  local is_row = own_to:ge(0)
  own_from, own_to = own_from[is_row], own_to[is_row]
  local past, length = self.cache.length, fresh.length
  for layer, held in ipairs(self.cache.layers) do
    for i = 1, 2 do
      local rows = fresh.layers[layer][i]:to_local():index_select(0, own_from)
      held[i]:to_local():narrow(2, past - length, length)
        :index_copy_(0, own_to, rows:narrow(2, 0, length))
    end
  end
  for layer, held in ipairs(self.cache.states) do
    for i, state in ipairs(fresh.states[layer]) do
      held[i]:to_local():index_copy_(0, own_to, state:to_local():index_select(0, own_from))
    end
  end
end

-- Makes the cache of rows that begin together from `fresh`, the cache of their prompts.
local function begin(self, fresh, index)
  fresh:map(function(t) return self:selected(t, index) end)
  fresh:map_columns(function(t)
    return torch.constant_pad_nd(t:narrow(2, 0, fresh.length), { 0, 0, 0, room }, 0)
  end)
  self.cache = fresh
end

-- Under sequence parallelism the processes of a model may share the columns of keys and values.
local function with_whole_columns(t)
  return t:is_sharded() and t:placement().mp == "shard(2)" and native.whole_on_shards(t) or t
end

-- Returns a tensor [B, ...] split by rows over the parts. A model may have split its heads there
-- instead.
local function in_parts(self, t)
  if not t:is_sharded() then return t end
  local mp = (t:placement().mp or ""):match "^shard%((%d+)%)$"
  local wanted = { mp = tonumber(mp) }
  for name, dim in pairs(self.placement or {}) do wanted[name] = dim end
  return native.shard(t, wanted)
end

-- Runs the prompts of new rows. Takes the first tokens of prompts from `kept`, if given. Returns
-- the next scores [#new, V].
local function fill(self, new, kept)
  local ids, starts, n = sources_of(self, new)
  local length = #ids[1]
  local fresh = new_cache(length)
  if kept then kept:load(fresh, self, new, n, length) end
  local new_ids = int64(ids, self.device):narrow(1, fresh.length, length - fresh.length)
  local scores = scores_of(self, new_ids, starts, fresh)
  fresh:map_columns(with_whole_columns)
  fresh:map(function(t) return in_parts(self, t) end)
  if not self.cache then
    local index = {}
    for i = 1, self.size do
      index[i], self.starts[i] = self:part_of(i - 1) * n, length - 1
    end
    for _, row in ipairs(new) do
      index[row.slot + 1] = self:part_of(row.slot) * n + row.source
    end
    begin(self, fresh, index)
  else
    if self.cache.length < length then move(self, length - self.cache.length) end
    insert(self, new, fresh)
  end
  local order = {}
  for i, row in ipairs(new) do
    self.rows[row.slot] = row
    self.starts[row.slot + 1] = self.cache.length - #row.prompt
    order[i] = self:part_of(row.slot) * n + row.source
  end
  return scores:index_select(0, int64(order, scores.device))
end

--- Reads the prompts of new rows, whose slots are free. Returns their next scores [#new, V], and
--- the rows in the order of these.
function Slots:fill(new)
  local groups, of_key = {}, {}
  for _, row in ipairs(new) do
    local key = row.kept and row.kept:group(row) or "none"
    if not of_key[key] then
      of_key[key] = { kept = row.kept and row.kept.bundle }
      groups[#groups + 1] = of_key[key]
    end
    table.insert(of_key[key], row)
  end
  local scores, rows = {}, {}
  for i, group in ipairs(groups) do
    scores[i] = fill(self, group, group.kept)
    for _, row in ipairs(group) do rows[#rows + 1], row.kept = row, nil end
  end
  return #scores > 1 and torch.cat(scores) or scores[1], rows
end

--- Gives a row one of the slots of the list `free`, and removes it there.
function Slots:take(free, row)
  local place, kept, n_kept = 1, self.kept:find(row.prompt)
  for i, slot in ipairs(free) do
    if kept and self:part_of(slot) == kept.part then
      place, row.kept, row.n_kept = i, kept, n_kept
      break
    end
  end
  row.slot = table.remove(free, place)
end

--- Frees the slots of rows, of which `kept` keeps some.
function Slots:free(rows)
  self.kept:add(self, rows)
  for _, row in ipairs(rows) do self.rows[row.slot], row.slot = nil, nil end
  if next(self.rows) == nil then
    unfix(self)
    self.cache = nil
  end
end

--- Gives each part `n` slots, at least as many as it has open rows.
function Slots:resize(n)
  local n_old, index = self.size / self.n_parts, {}
  local rows, starts = {}, {}
  for part = 0, self.n_parts - 1 do
    local first, count = part * n_old, 0
    for i = first, first + n_old - 1 do
      local row = self.rows[i]
      if row then
        row.slot, count = part * n + count, count + 1
        rows[row.slot], index[row.slot + 1], starts[row.slot + 1] = row, i, self.starts[i + 1]
      end
    end
    for i = part * n + count, part * n + n - 1 do
      index[i + 1], starts[i + 1] = first, self.cache and self.cache.length - 1 or 0
    end
  end
  unfix(self)
  if self.cache then
    self.cache:map(function(t) return self:selected(t, index) end)
  end
  self.size, self.rows, self.starts = n * self.n_parts, rows, starts
end

--- Returns the number of open rows in the part that has the most.
function Slots:most_in_a_part()
  local counts, most = {}, 0
  for i in pairs(self.rows) do
    local part = self:part_of(i)
    counts[part] = (counts[part] or 0) + 1
    most = math.max(most, counts[part])
  end
  return most
end

--- Returns n free slots, or all if there are fewer, one after another from each part.
function Slots:free_slots(n)
  local each, free = self.size / self.n_parts, {}
  for at = 0, each - 1 do
    for part = 0, self.n_parts - 1 do
      local slot = part * each + at
      if #free < n and not self.rows[slot] then free[#free + 1] = slot end
    end
  end
  return free
end

-- Raises an error if the positions of the model change in texts of up to max_length tokens.
local function check_length(model, max_length)
  local family, c = model.family, model.config
  local limit = family.restart_length and family.restart_length(c)
  local scaling = type(c.rope_scaling) == "table" and c.rope_scaling.rope_type
  if scaling == "dynamic" then limit = c.max_position_embeddings end
  if limit and max_length > limit then
    fail("models.new_batch: max_length is %d, but positions of this %s change after %d tokens, "
      .. "with which its rows cannot be decoded together: lower max_length", max_length,
      c.model_type, limit)
  end
end

--- Returns no slots, for rows of at most `max_length` tokens. `deployer`, or nil, has the processes
--- over which rows are split. `most` is the number of positions of the model, or nil. `n_kept` is
--- how many rows that have ended are kept. `is_static`: whether steps are alike while rows stay.
return function(model, params, max_length, most, n_kept, deployer, is_static)
  check_length(model, max_length)
  local n_parts, device, placement = 1, nil, nil
  for _, leaf in pairs(params) do
    if torch.is_tensor(leaf) then device = leaf.device end
  end
  if deployer then
    local mesh = deployer.mesh
    n_parts = mesh.dp * (mesh.dp_replicate or 1)
    placement = { dp = 0, dp_replicate = (mesh.dp_replicate or 1) > 1 and 0 or nil }
  end
  return setmetatable({
    model = model, params = params, device = device, n_parts = n_parts, placement = placement,
    most = most, size = 0, kept = new_kept(n_kept), is_static = is_static,
    rows = {},  -- open rows by slot, from 0
    starts = {},  -- the first column of each slot, from 1
  }, Slots)
end
