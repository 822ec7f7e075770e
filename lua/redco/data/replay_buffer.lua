--- Replay buffers: the newest transitions, as tensors.
local arguments = require "redco.arguments"
local check_integer = require "redco.check_integer"
local fail = require "redco.fail"
local registry = require "redco.registry"
local torch = require "redco.torch"
local tree = require "redco.tree"

local methods = registry.define("ReplayBuffer", [[
ReplayBuffer {capacity, size, position, tensors: table}
The newest `capacity` rows of a tree of tensors.
  size: the number of rows held
  position: the row that is written next, counted from 0
  tensors: the rows, a tree of tensors [capacity, ...]; those from number `size` on are not set]],
  {})

local meta = { __name = "ReplayBuffer" }

function meta.__index(_, key)
  return methods[key] or fail("a ReplayBuffer has no '%s'", key)
end

function meta.__tostring(self)
  return ("ReplayBuffer(%.0f of %.0f rows)"):format(self.size, self.capacity)
end

local function shape_of(t) return table.concat(t.shape, ", ") end

-- Checks that rows have the dtypes and shapes of the buffer, and returns their number.
local function check_rows(self, rows)
  local paths, own = tree.paths(self.tensors), tree.leaves(self.tensors)
  if table.concat(tree.paths(rows), "\n") ~= table.concat(paths, "\n") then
    fail("ReplayBuffer:add: expected the tensors %s, got %s", table.concat(paths, ", "),
      table.concat(tree.paths(rows), ", "))
  end
  local count
  for i, leaf in ipairs(tree.leaves(rows)) do
    local expected = own[i]
    if not torch.is_tensor(leaf) or leaf:dim() ~= expected:dim() or leaf.dtype ~= expected.dtype
      or leaf:size(0) ~= (count or leaf:size(0))
      or leaf:dim() > 1 and shape_of(leaf[{ { 0, 0 } }]) ~= shape_of(expected[{ { 0, 0 } }]) then
      fail("ReplayBuffer:add: %s: expected %s [%s, ...] like the buffer's [%s], got %s", paths[i],
        expected.dtype, count or "rows", shape_of(expected),
        torch.is_tensor(leaf) and ("%s [%s]"):format(leaf.dtype, shape_of(leaf)) or type(leaf))
    end
    count = leaf:size(0)
  end
  return count
end

methods.add = registry.define("ReplayBuffer:add", [[
add(self, rows: table) -> self
Copies rows, a tree of tensors [count, ...], into the buffer. If it is full, they replace the oldest
ones.]], function(self, rows)
  local count = check_rows(self, rows)
  local capacity = self.capacity
  local kept = math.min(count, capacity)  -- the last ones, if there are more rows than the capacity
  local first = (self.position + count - kept) % capacity
  local until_end = math.min(kept, capacity - first)
  torch.no_grad(function()
    tree.map(function(own, given)
      given = given:detach():narrow(0, count - kept, kept)
      own:narrow(0, first, until_end):copy_(given:narrow(0, 0, until_end))
      own:narrow(0, 0, kept - until_end):copy_(given:narrow(0, until_end, kept - until_end))
    end, self.tensors, rows)
  end)
  self.position, self.size = (first + kept) % capacity, math.min(capacity, self.size + count)
  return self
end)

local sample = arguments("ReplayBuffer:sample", {}, { "generator" })
methods.sample = registry.define("ReplayBuffer:sample", [[
sample(self, count, {generator}) -> table
Returns `count` rows, drawn with replacement, as a tree of tensors [count, ...]. A generator that is
equal on all processes, as of `Deployer:gen_rng`, gives the same rows on all.]],
function(self, count, options)
  local o = sample(options)
  if not o.generator then
    fail "ReplayBuffer:sample: the argument 'generator' is missing, such as torch.Generator(seed)"
  end
  if self.size == 0 then fail "ReplayBuffer:sample: the buffer is empty: add rows first" end
  check_integer("ReplayBuffer:sample", "count", count, 1)
  local places = torch.randint(self.size, { count }, { generator = o.generator })
  return tree.map(function(t) return t:index_select(0, places:to(t.device)) end, self.tensors)
end)

methods.state_dict = registry.define("ReplayBuffer:state_dict", [[
state_dict(self) -> {tensors, position, size}
Returns the buffer as a tree for `torch.save`: tensors, and two numbers. The tensors are not
copied.]], function(self)
  return { tensors = self.tensors, position = self.position, size = self.size }
end)

local options = arguments("data.replay_buffer", {}, { "capacity", "example", "state" })
return registry.define("redco.data.replay_buffer", [[
replay_buffer{capacity = nil, example: table = nil, state: table = nil} -> ReplayBuffer
Returns an empty buffer for `capacity` rows like `example`, a tree of tensors: one row, without a
dimension for rows. The tensors of the buffer have its dtypes and devices. Or restores the
buffer whose `ReplayBuffer:state_dict` is given.]], function(given)
  local o = options(given)
  if o.state then
    local leaves = type(o.state) == "table" and tree.leaves(o.state.tensors or {}) or {}
    if #leaves == 0 then
      fail "data.replay_buffer: state: expected the table that ReplayBuffer:state_dict returned"
    end
    local function number(value) return torch.is_tensor(value) and value:item() or value end
    return setmetatable({ capacity = leaves[1]:size(0), size = number(o.state.size),
      position = number(o.state.position), tensors = o.state.tensors }, meta)
  end
  check_integer("data.replay_buffer", "capacity", o.capacity, 1)
  if type(o.example) ~= "table" or #tree.leaves(o.example) == 0 then
    fail "data.replay_buffer: example: expected a table of tensors, those of one row"
  end
  local tensors = tree.map(function(leaf)
    if not torch.is_tensor(leaf) then
      fail("data.replay_buffer: example: expected only tensors, found a %s", type(leaf))
    end
    return torch.zeros({ o.capacity, unpack(leaf.shape) },
      { dtype = leaf.dtype, device = leaf.device })
  end, o.example)
  return setmetatable({ capacity = o.capacity, size = 0, position = 0, tensors = tensors }, meta)
end)
