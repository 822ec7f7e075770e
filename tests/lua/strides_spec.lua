-- Results and gradients of operators are those of the values, however the arguments lie in memory:
-- every call of op_cases.lua with strided arguments against the same with contiguous ones.
local testing = require "testing"
local torch = require "redco.torch"

local none = {}

-- Their results describe or read the memory itself.
local excepted = {}
for name in ([[as_strided as_strided_ as_strided_scatter as_strided_copy is_contiguous stride view
  view_as view_as_real view_as_complex _unsafe_view _reshape_alias storage_offset resize_ resize_as_
  data_ptr is_set_to set_]]):gmatch "%S+" do
  excepted[name] = true
end

-- The same values, each followed by others.
local function strided(tensor)
  return torch.stack({ tensor, torch.ones_like(tensor) }, -1):select(-1, 0)
end

-- Kernels have faster ways where the first argument is contiguous.
local first
local function strided_but_first(tensor)
  if first then return strided(tensor) end
  first = true
  return tensor:clone()
end

local function sorted_keys(list)
  local keys = {}
  for key in pairs(list) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  return keys
end

--- The arguments of a case, with `place` applied to tensors; the first `most` floating ones become
--- `leaves`.
local function arguments_of(value, place, leaves, most)
  if torch.is_tensor(value) then
    if not value.dtype:match "float" or #leaves == most then return place(value) end
    local leaf = value:clone():requires_grad_()
    leaves[#leaves + 1] = leaf
    return place(leaf)
  end
  if type(value) ~= "table" or value == none then return value end
  local copy = {}
  for _, key in ipairs(sorted_keys(value)) do
    copy[key] = arguments_of(value[key], place, leaves, most)
  end
  return copy
end

--- Adds the floating tensors among results to a sum with different weights.
local function add_up(sum, values, floats)
  for _, value in ipairs(values) do
    if torch.is_tensor(value) then
      if value.dtype:match "float" then
        floats[#floats + 1] = value:detach():clone()
        if value.requires_grad then
          local weights = torch.arange(1, value:numel() + 1, { dtype = value.dtype }):cos()
          sum = sum + (value * weights:view(value.shape)):sum():to("float64")
        end
      end
    elseif type(value) == "table" then
      sum = add_up(sum, value, floats)
    end
  end
  return sum
end

--- The floating results of a call and the gradients of its arguments.
local function outcome(case, place, most)
  local leaves, floats = {}, {}
  local arguments = arguments_of(case[3], place, leaves, most)
  for k = 1, #case[3] do if arguments[k] == none then arguments[k] = nil end end
  local receiver = case[2] == "m" and arguments[1] or torch
  torch.manual_seed(1)
  local results = { receiver[case[1]](unpack(arguments, 1, #case[3])) }
  local sum = add_up(torch.zeros({}, { dtype = "float64" }), results, floats)
  if not sum.requires_grad then return floats end
  local grads = torch.autograd.grad({ sum }, leaves, nil, { allow_unused = true })
  for k = 1, #leaves do if grads[k] then floats[#floats + 1] = grads[k] end end
  return floats
end

local function same(a, b)
  return table.concat(a.shape, ",") == table.concat(b.shape, ",")
    and torch.allclose(a, b, { rtol = 1e-4, atol = 1e-5, equal_nan = true })
end

local n_compared = 0

local function run_group(cases)
  local failures = {}
  for _, case in ipairs(cases) do
    -- Some refuse gradients with respect to some arguments, or strided ones.
    local is_right, contiguous, most
    for _, n in ipairs { 9, 3, 1, 0 } do
      most = n
      is_right, contiguous = pcall(outcome, case, torch.clone, most)
      if is_right then break end
    end
    for _, place in ipairs { strided, strided_but_first } do
      first = nil
      local is_run, found = pcall(outcome, case, place, most)
      if is_right and is_run and not excepted[case[1]] then
        local is_same = #found == #contiguous
        for k = 1, #found do is_same = is_same and same(contiguous[k], found[k]) end
        if not is_same then
          failures[#failures + 1] = ("op_cases.lua:%d: %s"):format(case.line, case[1])
        end
        n_compared = n_compared + 1
      end
    end
  end
  if #failures > 0 then error(table.concat(failures, "\n"), 0) end
end

local env = setmetatable({ none = none, inf = math.huge, nan = 0 / 0, generator = torch.Generator },
  { __index = function(_, key) error("no input '" .. tostring(key) .. "'") end })

function env.input(name, description)
  local dtype, shape, data = unpack(description)
  local real = ({ complex64 = "float32", complex128 = "float64" })[dtype]
  local t = torch.tensor(data, { dtype = real or dtype })
  if real then t = torch.view_as_complex(t:reshape { -1, 2 }) end
  env[name] = t:reshape(shape)
end

function env.group(name, _, body)
  local cases = {}
  env.case = function(case)
    case.line = debug.getinfo(2, "l").currentline
    cases[#cases + 1] = case
  end
  body()
  if name:find "^random" then return end  -- they share generators
  testing.test("strides: " .. name, function() run_group(cases) end)
end

local folder = debug.getinfo(1, "S").source:match "^@(.*)strides_spec%.lua$"
setfenv(assert(loadfile(folder .. "op_cases.lua")), env)()

env.group("one value per channel", {}, function()
  env.case { "batch_norm", "f", { env.m, env.c, env.c, none, none, true, 0.1, 1e-5, false } }
end)

testing.test("most cases are compared", function()
  print(n_compared .. " calls")
  assert(n_compared > 2000, n_compared)
end)

-- Kernels for images choose between two memory formats by strides that sizes of 1 leave open.
testing.test("gradients of images whose memory format is open", function()
  local w = torch.randn({ 4 }, { generator = torch.Generator(2), dtype = "float64" })
  local kernel = torch.randn({ 2, 4, 3, 1 }, { generator = torch.Generator(3), dtype = "float64" })
  local layers = {
    batch_norm = function(x) return torch.batch_norm(x, w, w, nil, nil, true, 0.1, 1e-5, false) end,
    group_norm = function(x) return torch.group_norm(x, 2, w, w) end,
    conv2d = function(x) return torch.conv2d(x, kernel) end,
    avg_pool2d = function(x) return torch.avg_pool2d(x, { 2, 1 }) end,
    max_pool2d = function(x) return torch.max_pool2d(x, { 2, 1 }) end,
    adaptive_avg_pool2d = function(x) return torch.adaptive_avg_pool2d(x, { 2, 1 }) end,
    upsample_nearest2d = function(x) return torch.upsample_nearest2d(x, { 10, 1 }) end,
    upsample_bilinear2d = function(x) return torch.upsample_bilinear2d(x, { 10, 1 }, false) end,
  }
  local layouts = {
    { { 3, 5, 4 }, function(x) return x:transpose(1, 2):unsqueeze(-1) end },
    { { 3, 1, 5, 4 }, function(x) return x:transpose(1, 3) end },
    { { 3, 5, 1, 4 }, function(x) return x:permute { 0, 3, 1, 2 } end },
  }
  for name, layer in pairs(layers) do
    for number, layout in ipairs(layouts) do
      local sizes, view = unpack(layout)
      local given = torch.randn(sizes, { generator = torch.Generator(1), dtype = "float64" })
      -- The gradient of a layer's result, of the same layout as its input; and that of this.
      local function gradients(is_contiguous)
        local base = given:clone():requires_grad_()
        local x = view(base)
        local y = layer(is_contiguous and x:contiguous() or x)
        local wanted = torch.arange(y:numel(), { dtype = "float64" }):sin():view(y.shape)
        if not is_contiguous then
          wanted = wanted:permute({ 0, 2, 3, 1 }):contiguous():permute { 0, 3, 1, 2 }
        end
        local grad = torch.autograd.grad(y, { base }, { grad_outputs = { wanted },
          create_graph = true })[1]
        return grad, grad.requires_grad
          and torch.autograd.grad(grad:pow(3):sum(), { base }, { allow_unused = true })[1]
      end
      local once, twice = gradients(false)
      local once_plain, twice_plain = gradients(true)
      local where = ("%s in layout %d"):format(name, number)
      assert(torch.allclose(once, once_plain, { atol = 1e-12 }), where)
      assert(not twice or torch.allclose(twice, twice_plain, { atol = 1e-12 }),
        where .. ", twice")
    end
  end
end)

testing.finish()
