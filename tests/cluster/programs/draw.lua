--- Draws a random program: a list of Lua lines over variables x1, x2, ..., of which each is run on
--- plain tensors as soon as it is drawn. That run is what the sharded one must equal.
local Random = require "programs.random"
local environment = require "programs.environment"
local groups = require "programs.operators"
local place = require "programs.placeholders"
local training = require "programs.training"
local torch = require "redco.torch"

local Draw = {}
Draw.__index = Draw

local most_elements, most_dims, largest = 300, 5, 1e3

local group_names = {}
for name, rows in pairs(groups) do
  group_names[#group_names + 1] = name
  rows.weights, rows.total = {}, 0
  for i, row in ipairs(rows) do
    rows.weights[i] = row.weight or 1
    rows.total = rows.total + rows.weights[i]
  end
end
table.sort(group_names)

local function kind_of(dtype)
  if dtype:find "float" then return "float" end
  return dtype == "bool" and "bool" or dtype:find "complex" and "complex" or "int"
end

--- The text of a constant, sharded; in a loss function the Trainer shards.
function Draw:sharded(text, sizes)
  if self.is_training then return text end
  return ("shard(%s, %s)"):format(text, self:placement(sizes))
end

function Draw:seed() return self.random:between(1, 9999) end
function Draw:size() return self.random:choice(self.sizes) end

--- The text of a placement for a tensor of these sizes.
function Draw:placement(sizes, may_be_sum)
  local text, dims = {}, {}
  for _, axis in ipairs { "dp", "mp" } do
    local word
    if #sizes > 0 and self.random:chance(0.7) then
      local dim = self.random:below(#sizes)
      local size = sizes[dim + 1]
      word = tostring(dim)
      if size > 2 and dims.dp ~= dim and self.random:chance(0.15) then
        local first = self.random:between(1, size - 1)
        word = ("{ dim = %d, block = %s }"):format(dim, size % 2 == 0 and self.random:chance(0.5)
          and size / 2 or ("{ %d, %d }"):format(first, size - first))
        if axis == "dp" then self.is_blocked = dim end
      elseif size > 3 and size % 2 == 0 and dims.dp ~= dim and self.random:chance(0.1) then
        word = ("{ dim = %d, grain = 2 }"):format(dim)
        if axis == "dp" then self.is_blocked = dim end
      end
      if axis == "mp" and dims.dp == dim and self.is_blocked == dim then word = nil end
      dims[axis] = dim
    elseif may_be_sum and self.random:chance(0.5) then
      word = '"sum"'
    end
    if word then text[#text + 1] = axis .. " = " .. word end
  end
  self.is_blocked = nil
  return #text == 0 and "{}" or "{ " .. table.concat(text, ", ") .. " }"
end

--- Runs a line; keeps it if it runs, and registers what it defines.
function Draw:run(line, names)
  local chunk = assert(loadstring(line, "=" .. line))
  local ok, message = pcall(setfenv(chunk, self.env))
  if not ok then return false, message end
  self.steps[#self.steps + 1] = line
  for _, name in ipairs(names or {}) do self:register(name) end
  return true
end

function Draw:describe(name)
  local t = self.env[name]
  local info = { name = name, shape = t.shape, dtype = t.dtype, kind = kind_of(t.dtype),
    numel = t:numel() }
  info.ndim = #info.shape
  return info
end

local function is_tame(t)
  if t:numel() == 0 then return true end
  return t:detach():abs():max():item() < largest  -- false for NaN
end

function Draw:register(name)
  local t = self.env[name]
  if not torch.is_tensor(t) then
    self.env[name] = nil
    return
  end
  local info = self:describe(name)
  if info.numel > most_elements or info.ndim > most_dims then return end
  if info.kind == "float" and not self.is_special and not is_tame(t) then return end
  self.pool[#self.pool + 1] = info
end

--- A tensor of the pool for which is_right(info); the newer ones more often.
function Draw:pick(is_right)
  local found = {}
  for _, info in ipairs(self.pool) do if is_right(info) then found[#found + 1] = info end end
  if #found == 0 then return nil end
  local from = self.random:chance(0.5) and math.max(1, #found - 3) or 1
  return found[self.random:between(from, #found)]
end

local function is_of_kind(info, kind)
  return kind == "any" or info.kind == kind or kind == "number"
    and (info.kind == "float" or info.kind == "int")
end

function Draw:new_name()
  self.n = self.n + 1
  return "x" .. self.n
end

--- A new input of these sizes; returns what is known of it.
function Draw:input(sizes, dtype, needs_grad)
  needs_grad = needs_grad and not self.is_training
  local name = self:new_name()
  local list = table.concat(sizes, ", ")
  local make
  if dtype == "int64" then
    make = ("ints(%d, { %s }, 7)"):format(self:seed(), list)
  elseif dtype == "bool" then
    make = ("mask(%d, { %s })"):format(self:seed(), list)
  else
    make = ("%s(%d, { %s }%s)"):format(self.is_special and self.random:chance(0.6) and "special"
      or "randn",
      self:seed(), list, dtype == "float64" and "" or (", %q"):format(dtype))
  end
  local line = name .. " = "
  local choice = self.random:below(20)
  if choice < 2 or self.is_training then
    line = line .. make
  else
    local placement = self:placement(sizes, dtype ~= "bool" and not self.is_special)
    line = line .. (placement:find "sum" and "terms" or "shard") .. "(" .. make .. ", "
      .. placement .. ")"
  end
  if needs_grad then line = line .. ":requires_grad_()" end
  if not self:run(line, { name }) then return nil end
  local info = self.pool[#self.pool]
  if not info or info.name ~= name then return nil end
  info.is_leaf = needs_grad
  if needs_grad then self.leaves[#self.leaves + 1] = name end
  return info
end

--- A tensor of these sizes and this dtype, of the pool or a new input.
function Draw:tensor(sizes, dtype)
  local found = self.random:chance(0.6) and self:pick(function(info)
    if info.dtype ~= dtype or info.ndim ~= #sizes then return false end
    for i, size in ipairs(sizes) do if info.shape[i] ~= size then return false end end
    return true
  end)
  return found or self:input(sizes, dtype, self.random:chance(0.7))
end

--- The row's template with its places filled; nil if it does not apply.
function Draw:fill(v)
  local applies = true
  local text = v.row[1]:gsub("<([%w_-]+)>", function(name)
    if not applies then return "" end
    local value = v.fixed[name] or place[name](self, v)
    if not value then applies = false end
    v.fixed[name] = value
    return value or ""
  end)
  return applies and (not v.row.when or v.row.when(v, self)) and text
    or nil
end

local function has_ties(t)
  if t:numel() < 2 then return false end
  local sorted = t:detach():reshape { -1 }:sort()
  return sorted:diff():eq(0):any():item()
end

--- Whether two places of a tensor are one element, but for those that are expanded.
local function overlaps(t)
  local places, strides = torch.zeros({ 1 }, { dtype = "int64" }), t:stride()
  for dim, size in ipairs(t.shape) do
    if size == 0 then return false end
    if strides[dim] > 0 then
      places = (places:unsqueeze(1) + torch.arange(size) * strides[dim]):flatten()
    end
  end
  return has_ties(places)
end

--- The variables after the program so far, with copies of some.
function Draw:replay(copied)
  local env = environment.plain()
  for i, step in ipairs(self.steps) do
    pcall(setfenv(loadstring(step), env))
    if self.is_training and i == training.n_head then training.compute(env) end
  end
  for name in pairs(copied) do env[name] = env[name]:clone() end
  return env
end

--- Whether what a line writes to a tensor is the same in whichever order elements are written. If
--- not, LibTorch promises no result: that of a write to overlapping windows, or of reading what
--- shares memory with the tensor and lies otherwise. It refuses some of these; on another layout
--- the two may not share memory.
function Draw:is_defined(line, name)
  if overlaps(self.env[name]) then return false end
  local others = {}
  for other in line:gmatch "%f[%w]x%d+" do
    if other ~= name and torch.is_tensor(self.env[other]) then others[other] = true end
  end
  if not next(others) then return true end
  local together, chunk = self:replay {}, loadstring(line)
  local is_readable, apart = pcall(self.replay, self, others)
  if not is_readable then return true end
  local ok, message = pcall(setfenv(chunk, together))
  if not ok and tostring(message):find("single memory location", 1, true) then return false end
  -- Another line that fails is the same on all layouts: it writes nothing.
  if not ok or not pcall(setfenv(chunk, apart)) then return true end
  local a, b = together[name], apart[name]
  return a:eq(b):logical_or(a:isnan():logical_and(b:isnan())):all():item()
end

--- Chooses a group, a row and its <x>. Now and then these are the group and the tensor of the step
--- before: calls that differ in little must not be taken for one another.
function Draw:choose()
  local last = self.random:chance(0.2) and self.last
  for _ = 1, 8 do
    local group = last and last.group
      or groups[self.random:weighted(group_names, self.group_weights, self.group_total)]
    local row = self.random:weighted(group, group.weights, group.total)
    local kind, dims = row.kind or "float", row.dims or { 0 }
    local function is_right(info)
      return is_of_kind(info, kind) and info.ndim >= dims[1] and info.ndim <= (dims[2] or 9)
        and not (row.writes and info.is_leaf)
    end
    local x
    if last then x = is_right(last.x) and last.x else x = self:pick(is_right) end
    if x then
      self.last = { row = row, group = group, x = x, fixed = {},
        index_n = last and last.index_n or nil }
      return self.last
    end
  end
end

--- Draws one operator and runs it; returns whether there is one more line.
function Draw:step()
  local v = self:choose()
  local text = v and self:fill(v)
  if not text then return false end
  local row, x = v.row, v.x
  if row.distinct and has_ties(self.env[x.name]) then return false end
  -- LibTorch writes to a copy whose windows overlap too.
  if text:find("_scatter(", 1, true) and overlaps(self.env[x.name]) then return false end
  local n, names = row.n or 1, {}
  if n == 0 then
    local ok = self:is_defined(text, x.name) and self:attempt(text)
    if ok then self:refresh(x) end
    return ok
  end
  if n == "list" then n, text = self.random:between(1, 3), "unpack(" .. text .. ")" end
  for i = 1, n do names[i] = self:new_name() end
  return self:attempt(table.concat(names, ", ") .. " = " .. text, names)
end

--- Runs a line; now and then one that fails is kept: it must fail on sharded tensors too.
function Draw:attempt(line, names)
  for word in self.without:gmatch "%S+" do if line:find(word, 1, true) then return false end end
  local ok = self:run(line, names)
  if not ok and self.random:chance(0.03) then
    self.steps[#self.steps + 1] = line
    return true
  end
  return ok
end

--- An in-place operator may have changed the shape.
function Draw:refresh(x)
  local now = self:describe(x.name)
  for key, value in pairs(now) do x[key] = value end
end

--- Lines that add up `names` in the variable `sum` and take its gradients as PREFIXx1, ...
function Draw:differentiate(names, sum, prefix)
  local env, made = self.env, {}
  env[sum] = 0
  local lines, kinds = { sum .. " = 0" }, {}
  for _, name in ipairs(names) do kinds[name] = self.random:chance(0.3) and "total" or "term" end
  local function add(name)
    local line = ("%s = %s + %s(%s, %.1f)"):format(sum, sum, kinds[name] or "term", name,
      0.3 + 0.1 * (#lines % 5))
    lines[#lines + 1] = line
    local ok = pcall(setfenv(loadstring(line), env))
    if not ok then table.remove(lines) end
  end
  local function attempt(list)
    env[sum], lines = 0, { sum .. " = 0" }
    for _, name in ipairs(list) do add(name) end
    if not torch.is_tensor(env[sum]) or not env[sum].requires_grad then return false end
    made = {}
    for i, leaf in ipairs(self.leaves) do made[i] = prefix .. leaf:gsub("%W", "") end
    lines[#lines + 1] = ("%s = grads(%s, { %s })"):format(table.concat(made, ", "), sum,
      table.concat(self.leaves, ", "))
    return pcall(setfenv(loadstring(lines[#lines]), env))
  end
  local ok = attempt(names)
  if not ok and #names > 0 and not self.random:chance(0.1) then
    local good = {}
    for _, name in ipairs(names) do if attempt { name } then good[#good + 1] = name end end
    ok = #good > 0 and attempt(good)
    if not ok then return {} end
  end
  if #lines < 3 then return {} end
  for _, line in ipairs(lines) do self.steps[#self.steps + 1] = line end
  return ok and made or {}
end

--- Writes to some tensors at the end, when no gradient needs them: who shares their memory shows.
function Draw:poke()
  for _ = 1, self.random:below(3) do
    local x = self:pick(function(info) return info.kind == "float" and not info.is_leaf end)
    if x and not overlaps(self.env[x.name]) then
      self:run(("no_grad(function() %s:add_(0.5) end)"):format(x.name))
    end
  end
end

--- Tensors for a loss.
function Draw:terms()
  local names = {}
  for _, info in ipairs(self.pool) do
    local t = self.env[info.name]
    if (info.kind == "float" or info.kind == "complex") and t.requires_grad
      and self.random:chance(0.7) then
      names[#names + 1] = info.name
    end
  end
  return names
end

--- The loss of a training step.
function Draw:add_loss()
  local n = #self.steps
  local gradients = self:differentiate(self:terms(), "loss", "g")
  if #self.steps == n or #gradients == 0 then return false end
  for _, name in ipairs(gradients) do
    local t = self.env[name]
    if torch.is_tensor(t) and not is_tame(t) then return false end
  end
  -- The gradients are the Trainer's.
  table.remove(self.steps)
  return true
end

local function dtype_of(random)
  local n = random:below(20)
  if n < 14 then return "float64" end
  return n < 16 and "float32" or n < 18 and "float16" or "bfloat16"
end

--- The parameters and the batch of a training step.
function Draw:head(shapes)
  local random = self.random
  local function tensors(names, sizes, suffix)
    local list = {}
    for i, name in ipairs(names) do
      list[i] = ("%s = randn(%d, { %s }%s)%s"):format(name, self:seed(),
        table.concat(sizes[i], ", "),
        self.dtype == "float64" and "" or (", %q"):format(self.dtype), suffix)
    end
    return table.concat(list, ", ")
  end
  local rows, names, rules = random:between(1, 5), { "a", "b", "c" }, {}
  for i, name in ipairs(names) do
    shapes[i] = shapes[i] or { self:size(), self:size() }
    local dim = #shapes[i] > 0 and random:chance(0.7) and random:below(#shapes[i])
    rules[i] = ("{ '%s', %s }"):format(name, dim or "'replicate'")
  end
  local batch = { { rows, self:size() }, random:chance(0.5) and { rows }
    or { rows, self:size(), self:size() } }
  self:run(("p = { %s }"):format(tensors(names, shapes, ":requires_grad_()")))
  self:run(("b = { %s }"):format(tensors({ "x", "y" }, batch, "")))
  if self.dtype == "float32" and random:chance(0.7) then
    rules[#rules + 1] = ("compute_dtype = %q"):format(random:choice { "bfloat16", "bfloat16",
      "float64" })
  end
  self:run(("rules = { %s }"):format(table.concat(rules, ", ")))
  training.compute(self.env)
  for _, text in ipairs { "p.a", "p.b", "p.c", "b.x", "b.y", "b.x * 1", "p.a * 1" } do
    local name = self:new_name()
    self:run(name .. " = " .. text, { name })
    local info = self.pool[#self.pool]
    if not info or info.name ~= name then return false end  -- too large
    info.is_leaf = text:find "^p%.%a$" ~= nil
  end
  return true
end

--- Writes to a parameter, as weight clipping does: what reads it later must see that.
function Draw:write_parameter()
  local random = self.random
  self:run(("no_grad(function() %s%s:%s end)"):format(random:choice { "p.a", "p.b", "p.c" },
    random:choice { "", ":detach()", ":squeeze()", ":flatten()", ":unsqueeze(0)" },
    random:choice { "tanh_()", "mul_(0.5)", "clamp_(-0.5, 0.5)" }))
end

--- The program of a seed: { seed, steps = lines, env = variables of its plain run, is_special }.
local draw
function draw(seed, is_training, without)
  local random = Random.new(seed)
  local self = setmetatable({ random = random, env = environment.plain(), steps = {}, pool = {},
    leaves = {}, n = 0, is_training = is_training, without = without or "" }, Draw)
  self.dtype, self.is_special = dtype_of(random), random:chance(0.08)
  -- A Trainer stops at a loss that is not finite.
  if is_training then self.is_special = false end
  self.sizes = {}
  for i = 1, 3 do self.sizes[i] = random:choice { 1, 2, 2, 3, 3, 4, 4, 5, 6, 7 } end
  if random:chance(0.15) then self.sizes[3] = 1 end
  if random:chance(0.04) and not is_training then self.sizes[3] = 0 end
  self.group_weights, self.group_total = {}, 0
  for i in ipairs(group_names) do
    self.group_weights[i] = random:choice { 0.2, 1, 1, 4 }
    self.group_total = self.group_total + self.group_weights[i]
  end
  if is_training and self.dtype:find "16" then self.dtype = "float32" end
  local shapes = {}
  for i = 1, is_training and 3 or random:between(2, 4) do
    local shape = {}
    if i > 1 and random:chance(0.4) then
      shape = shapes[1]
    else
      for dim = 1, random:choice { 0, 1, 1, 2, 2, 2, 3, 3, is_training and 2 or 3, is_training
        and 3 or 4 } do shape[dim] = self:size() end
    end
    shapes[i] = shape
    if is_training then goto continue end
    local dtype = i > 1 and random:chance(0.25) and random:choice { "int64", "int64", "bool" }
      or self.dtype
    local info = self:input(shape, dtype, dtype == self.dtype and random:chance(0.8))
    -- A leaf cannot be written to.
    if info and info.is_leaf and random:chance(0.7) then
      local name = self:new_name()
      self:run(("%s = %s * 1"):format(name, info.name), { name })
    end
    ::continue::
  end
  if is_training and not self:head(shapes) then return draw(seed, false, without) end
  if self.dtype == "float64" and random:chance(0.12) and self.pool[1] then
    local name = self:new_name()
    self:run(("%s = torch.complex(%s, %s * 0.5)"):format(name, self.pool[1].name,
      self.pool[1].name), { name })
  end
  local wanted = #self.steps + random:choice { 3, 4, 5, 6, 8, 10, 12, 15 }
  for _ = 1, wanted * 4 do
    if #self.steps >= wanted then break end
    if is_training and self.env.masters == self.env.p and random:chance(0.08) then
      self:write_parameter()
    end
    self:step()
  end
  if is_training then
    self.leaves = { "masters.a", "masters.b", "masters.c" }
    if not self:add_loss() then return draw(seed, false, without) end
  elseif #self.leaves > 0 then
    local first = self:differentiate(self:terms(), "loss", "g")
    local again = {}
    for _, name in ipairs(first) do
      local t = self.env[name]
      if torch.is_tensor(t) and t.requires_grad then again[#again + 1] = name end
    end
    if #again > 0 then self:differentiate(again, "second", "h") end
  end
  if not is_training then self:poke() end
  return { seed = seed, steps = self.steps, env = self.env, is_special = self.is_special }
end

return draw
