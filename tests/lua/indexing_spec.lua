-- t[i], t[{...}] and assignment to them. Positions count from 0, as in PyTorch.
local testing = require "testing"
local torch = require "redco.torch"

local test, expect_error = testing.test, testing.expect_error
local expect_equal = testing.expect_equal

local function expect_tensor(actual, expected)
  expected = torch.is_tensor(expected) and expected
    or torch.tensor(expected, { dtype = actual.dtype })
  if actual ~= expected then
    error(("expected %s, got %s"):format(tostring(expected), tostring(actual)), 2)
  end
end

local function grid() return torch.arange(12):view(3, 4) end

test("an integer selects from the first dimension", function()
  local t = grid()
  expect_tensor(t[0], { 0, 1, 2, 3 })
  expect_tensor(t[2], { 8, 9, 10, 11 })
  expect_tensor(t[-1], { 8, 9, 10, 11 })
  expect_equal(t[1][2]:item(), 6)
  expect_equal(t[1LL][-4]:item(), 4)
  expect_equal(t[0].ndim, 1)
  expect_equal(t[0][0].ndim, 0)
end)

test("a list of integers selects an element", function()
  local t = grid()
  expect_equal(t[{ 1, 2 }]:item(), 6)
  expect_equal(t[{ -1, -1 }]:item(), 11)
  expect_tensor(t[{ 1 }], { 4, 5, 6, 7 })
  expect_tensor(t[{}], t)
end)

test("slices are {start, stop, step} with stop excluded", function()
  local t = grid()
  expect_tensor(t[{ { 0, 2 } }], { { 0, 1, 2, 3 }, { 4, 5, 6, 7 } })
  expect_tensor(t[{ { 1 } }], { { 4, 5, 6, 7 }, { 8, 9, 10, 11 } })
  expect_tensor(t[{ {}, { 1, 3 } }], { { 1, 2 }, { 5, 6 }, { 9, 10 } })
  expect_tensor(t[{ {}, 1 }], { 1, 5, 9 })
  expect_tensor(t[{ {}, { 0, 4, 2 } }], { { 0, 2 }, { 4, 6 }, { 8, 10 } })
  expect_tensor(t[{ {}, { 1, 4, 2 } }], { { 1, 3 }, { 5, 7 }, { 9, 11 } })
  expect_tensor(t[{ { -2 } }], { { 4, 5, 6, 7 }, { 8, 9, 10, 11 } })
  expect_tensor(t[{ { 0, -1 }, -1 }], { 3, 7 })
  expect_tensor(t[{ { 0, 99 }, 0 }], { 0, 4, 8 }) -- as in PyTorch a slice is cut to what there is
  expect_equal(t[{ { 2, 1 } }]:size(0), 0)
end)

test("... and newaxis", function()
  local t = torch.arange(24):view(2, 3, 4)
  expect_tensor(t[{ "...", 0 }], { { 0, 4, 8 }, { 12, 16, 20 } })
  expect_tensor(t[{ 1, "...", { 0, 1 } }], { { 12 }, { 16 }, { 20 } })
  expect_equal(table.concat(t[{ "newaxis", 0, "newaxis" }].shape, ","), "1,1,3,4")
  expect_equal(table.concat(t[{ "...", "newaxis" }].shape, ","), "2,3,4,1")
end)

test("integer and slice indices give views", function()
  local t = grid()
  t[0]:fill_(-1)
  t[{ {}, { 3 } }]:mul_(10)
  expect_tensor(t, { { -1, -1, -1, -10 }, { 4, 5, 6, 70 }, { 8, 9, 10, 110 } })
end)

test("a tensor of integers gathers", function()
  local t = grid()
  expect_tensor(t[torch.tensor { 2, 0, 2 }], { { 8, 9, 10, 11 }, { 0, 1, 2, 3 }, { 8, 9, 10, 11 } })
  expect_tensor(t[{ torch.tensor { 0, 1 }, torch.tensor { 3, -1 } }], { 3, 7 })
  expect_tensor(t[{ {}, torch.tensor { 3, 0 } }], { { 3, 0 }, { 7, 4 }, { 11, 8 } })
  expect_tensor(t[{ torch.tensor { { 0 }, { 2 } }, torch.tensor { 0, 1 } }], { { 0, 1 }, { 8, 9 } })
  expect_tensor(t[{ 1, torch.tensor { 3, 3 } }], { 7, 7 })
  expect_tensor(t[torch.tensor(1)], { 4, 5, 6, 7 })
  expect_equal(t[torch.tensor({}, { dtype = "int64" })]:size(0), 0)
  local copy = t[torch.tensor { 0 }]
  copy:fill_(99) -- gathered elements are copies
  expect_equal(t[{ 0, 0 }]:item(), 0)
end)

test("a mask selects", function()
  local t = grid()
  expect_tensor(t[torch.gt(t, 8)], { 9, 10, 11 })
  expect_tensor(t[torch.tensor { true, false, true }], { { 0, 1, 2, 3 }, { 8, 9, 10, 11 } })
  expect_tensor(t[{ {}, torch.tensor { true, false, false, true } }],
    { { 0, 3 }, { 4, 7 }, { 8, 11 } })
  expect_equal(t[torch.gt(t, 99)]:numel(), 0)
end)

test("assignment of numbers", function()
  local t = grid()
  t[0] = 5
  t[{ 1, 2 }] = -1
  t[{ {}, { 0, 1 } }] = 7
  t[{ 2, "..." }] = 8LL
  expect_tensor(t, { { 7, 5, 5, 5 }, { 7, 5, -1, 7 }, { 8, 8, 8, 8 } })
  t[torch.lt(t, 0)] = 0
  expect_equal(t[{ 1, 2 }]:item(), 0)
  t[torch.tensor { 0, 2 }] = 1
  expect_tensor(t, { { 1, 1, 1, 1 }, { 7, 5, 0, 7 }, { 1, 1, 1, 1 } })
  t["..."] = 3
  expect_equal(t:sum():item(), 36)
  local mask = torch.tensor { false, false }
  mask[1] = true
  expect_tensor(mask, { false, true })
  local f = torch.zeros(2)
  f[0], f[1] = 0.5, 1 / 0
  expect_equal(f[0]:item(), 0.5)
  expect_equal(f[1]:item(), 1 / 0)
end)

test("assignment of tensors broadcasts and casts", function()
  local t = grid()
  t[0] = torch.tensor { 9, 8, 7, 6 }
  t[{ {}, 0 }] = torch.tensor { -1, -2, -3 }
  t[{ { 1 }, { 2 } }] = torch.tensor(50)
  expect_tensor(t, { { -1, 8, 7, 6 }, { -2, 5, 50, 50 }, { -3, 9, 50, 50 } })
  t[torch.tensor { 0, 1 }] = torch.tensor { 1, 2, 3, 4 }
  expect_tensor(t[1], { 1, 2, 3, 4 })
  t[0] = torch.tensor { 1.9, 2.9, 3.9, 4.9 }
  expect_tensor(t[0], { 1, 2, 3, 4 })
  t[torch.eq(t, 50)] = torch.tensor { 60, 61 }
  expect_tensor(t[2], { -3, 9, 60, 61 })
  expect_equal(t.dtype, "int64")
end)

test("an index out of range names the index and the shape", function()
  local t = grid()
  local here = "indexing_spec.lua"
  expect_error(function() return t[3] end, "index 3", "dimension 0", "[3, 4]", here)
  expect_error(function() return t[-4] end, "index -4", "dimension 0", "[3, 4]", here)
  expect_error(function() return t[{ 0, 4 }] end, "index 4", "dimension 1", "[3, 4]", here)
  expect_error(function() return t[{ {}, -5 }] end, "index -5", "dimension 1", "[3, 4]", here)
  expect_error(function() return t[{ "...", 4 }] end, "index 4", "dimension 1", "[3, 4]", here)
  expect_error(function() return t[{ "newaxis", 3 }] end, "index 3", "[3, 4]", here)
  expect_error(function() return t[torch.tensor { 0, 3 }] end, "index 3", "dimension 0", "[3, 4]",
    here)
  expect_error(function() t[3] = 1 end, "index 3", "dimension 0", "[3, 4]", here)
  expect_error(function() t[{ 0, 7 }] = 1 end, "index 7", "dimension 1", "[3, 4]", here)
  expect_error(function() t[{ 0, 7 }] = torch.tensor(1) end, "index 7", "dimension 1", "[3, 4]",
    here)
  expect_error(function() t[torch.tensor { 9 }] = 1 end, "index 9", "[3, 4]", here)
  expect_error(function() return torch.tensor(1)[0] end, "index 0", "no dimensions", here)
  expect_error(function() return torch.zeros({ 0 })[0] end, "index 0", "[0]", here)
end)

test("indices that do not fit the tensor", function()
  local t = grid()
  expect_error(function() return t[{ 0, 0, 0 }] end, "3", "[3, 4]")
  expect_error(function() return t[{ 0, 0, "..." , 0 }] end, "[3, 4]")
  expect_error(function() return t[{ "...", 0, "..." }] end, "...", "[3, 4]")
  expect_error(function() return t[torch.tensor { true, false }] end, "mask", "[3, 4]")
  expect_error(function() return t[{ {}, torch.tensor { true } }] end, "mask", "[3, 4]")
  expect_error(function() return t[torch.tensor { 0.5 }] end, "float32", "[3, 4]")
  expect_error(function() return t[{ torch.tensor { 0, 1 }, torch.tensor { 0, 1, 2 } }] end,
    "[2], [3]")
  expect_error(function() return t[1.5] end, "1.5")
  expect_error(function() return t[{ 1.5 }] end, "1.5")
  expect_error(function() return t[{ { 0, 1.5 } }] end, "1.5")
  expect_error(function() return t[{ { 0, 2, 0 } }] end, "step", "0")
  expect_error(function() return t[{ { 2, 0, -1 } }] end, "step", "-1")
  expect_error(function() return t[{ { 0, 1, 1, 1 } }] end, "slice", "4")
  expect_error(function() return t[{ "first" }] end, '"first"', "newaxis")
  expect_error(function() return t[true] end, "true")
  expect_error(function() return t[{ true }] end, "true")
  expect_error(function() return t[print] end, "function")
  expect_error(function() return t[nil] end, "nil")
  expect_error(function() return t[{ start = 1 }] end, "start")
  expect_error(function() return t[{ { stop = 1 } }] end, "stop")
  expect_error(function() return t[{ 0, { 1, stop = 2 } }] end, "stop")
end)

test("values that do not fit the place", function()
  local t = grid()
  expect_error(function() t[0] = torch.tensor { 1, 2 } end, "[2]", "[3, 4]")
  expect_error(function() t[torch.tensor { 0, 1 }] = torch.tensor { 1, 2, 3 } end, "3")
  expect_error(function() t[0] = "one" end, '"one"')
  expect_error(function() t[0] = { 1, 2, 3, 4 } end, "table")
  expect_error(function() t[0] = nil end, "nil")
end)

test("gradients pass through reads and writes", function()
  local x = torch.tensor({ 1, 2, 3 }, { dtype = "float32", requires_grad = true })
  local y = torch.zeros(4)
  y[{ { 0, 3 } }] = x * 2
  y[1] = x[0] * 10
  local total = y:sum() + x[torch.tensor { 2, 2 }]:sum() + x[{ { 0, 1 } }]:sum()
  total:backward()
  expect_tensor(x.grad, { 13, 0, 4 })
  expect_error(function() x[0] = 1 end, "leaf", "indexing_spec.lua")
  torch.no_grad(function() x[0] = 5 end)
  expect_equal(x[0]:item(), 5)
end)

test("grad is the only field to assign, to a fitting tensor or nil", function()
  local x = torch.ones(2):requires_grad_()
  x.grad = torch.tensor { 3, 4 }:float()
  expect_tensor(x.grad, { 3, 4 })
  x.grad = nil
  expect_equal(x.grad, nil)
  expect_error(function() x.grad = torch.ones(3) end, "grad", "[3]", "[2]")
  expect_error(function() x.grad = torch.ones(2):double() end, "grad", "float64", "float32")
  expect_error(function() x.grad = 1 end, "grad", "number 1")
  expect_error(function() x.data = 1 end, "data")
end)

testing.finish()
