-- luacheck: ignore 581 (with NaN among them, `not (a < b)` is not `a >= b`)
-- Tensors from Lua values and back, and the operators of Lua on them.
local testing = require "testing"
local torch = require "redco.torch"

local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

local function shape_of(t) return "[" .. table.concat(t.shape, ", ") .. "]" end

-- Two tables of numbers, booleans and tables, entry by entry.
local function expect_list(actual, expected, path)
  path = path or "list"
  assert(type(actual) == type(expected), ("%s: expected a %s, got a %s"):format(path,
    type(expected), type(actual)))
  if type(expected) ~= "table" then
    assert(actual == expected, ("%s: expected %s, got %s"):format(path, tostring(expected),
      tostring(actual)))
    return
  end
  assert(#actual == #expected, ("%s: expected %d entries, got %d"):format(path, #expected, #actual))
  for i = 1, #expected do expect_list(actual[i], expected[i], path .. "[" .. i .. "]") end
end

test("torch.tensor infers the dtype as PyTorch does", function()
  local cases = {
    { { 1, 2, 3 }, "int64" },
    { { 1, 2.5 }, "float32" },
    { { 1, 1 / 0 }, "float32" },
    { { 0 / 0 }, "float32" },
    { { true, false }, "bool" },
    { { true, 2 }, "int64" },
    { { true, 2.5 }, "float32" },
    { { 3LL, 4 }, "int64" },
    { {}, "float32" },
    { { {}, {} }, "float32" },
    { 7, "int64" },
    { 7.25, "float32" },
    { false, "bool" },
    { 9007199254740993LL, "int64" },
    { 2 ^ 53, "int64" },
    { 2 ^ 60, "float32" }, -- a Lua number this large need not be what was meant
  }
  for i, case in ipairs(cases) do
    local t = torch.tensor(case[1])
    assert(t.dtype == case[2], ("case %d: expected %s, got %s"):format(i, case[2], t.dtype))
    expect_equal(t.device, "cpu")
  end
end)

test("a dtype is its name", function()
  for _, name in ipairs { "float32", "bfloat16", "int64", "bool" } do
    expect_equal(torch[name], name)
    expect_equal(torch.zeros({ 2 }, { dtype = torch[name] }).dtype, torch[name])
  end
end)

test("a shape counts from 1, and says so", function()
  local shape = torch.zeros({ 2, 3 }).shape
  expect_equal(shape[1] * 10 + shape[2], 23)
  assert(shape[3] == nil and shape.name == nil)
  expect_error(function() return shape[0] end, "tensor_spec.lua:", "counts from 1, got 0")
  expect_error(function() return shape[-1] end, "tensor:size(dim)")
end)

test("operators of PyTorch's modules are found there", function()
  expect_close(torch.linalg.inv(torch.eye(2) * 2), torch.eye(2) / 2)
  expect_equal(torch.fft.rfft(torch.ones { 4 }).dtype, "complex64")
  expect_error(function() return torch.linalg.in_v end, "torch has no 'linalg_in_v'", "linalg_inv")
end)

test("torch.tensor takes its shape from the nesting", function()
  expect_equal(shape_of(torch.tensor(5)), "[]")
  expect_equal(shape_of(torch.tensor {}), "[0]")
  expect_equal(shape_of(torch.tensor { {}, {} }), "[2, 0]")
  expect_equal(shape_of(torch.tensor { { 1, 2, 3 }, { 4, 5, 6 } }), "[2, 3]")
  expect_equal(shape_of(torch.tensor { { { 1 }, { 2 } } }), "[1, 2, 1]")
  expect_list(torch.tensor { { 1, 2, 3 }, { 4, 5, 6 } }:tolist(), { { 1, 2, 3 }, { 4, 5, 6 } })
end)

test("torch.tensor takes dtype, device and requires_grad", function()
  local t = torch.tensor({ 1, 2 }, { dtype = "float64", requires_grad = true })
  expect_equal(t.dtype, "float64")
  expect_equal(t.requires_grad, true)
  expect_equal(torch.tensor({ 1, 2 }).requires_grad, false)
  expect_equal(torch.tensor({ 1 }, { device = "meta" }).device, "meta")
  expect_list(torch.tensor({ 1.9, -1.9 }, { dtype = "int64" }):tolist(), { 1, -1 })
  expect_list(torch.tensor({ 0, 2, 0.5 }, { dtype = "bool" }):tolist(), { false, true, true })
  expect_error(function() torch.tensor({ 1 }, { dtyp = "int64" }) end, "dtyp", "requires_grad")
  expect_error(function() torch.tensor({ 1 }, { dtype = "int65" }) end, "int65")
  expect_error(function() torch.tensor({ 1 }, { device = "gpu" }) end, "gpu")
  expect_error(function() torch.tensor({ 1 }, "float32") end, "dtype")
  expect_error(function() torch.tensor({ 1 }, { requires_grad = true }) end, "floating point")
end)

test("torch.tensor copies a tensor and stacks a list of them", function()
  local source = torch.tensor { 1, 2 }
  local copy = torch.tensor(source)
  copy[0] = 9
  expect_list(source:tolist(), { 1, 2 })
  expect_list(torch.tensor({ source, source + 1 }):tolist(), { { 1, 2 }, { 2, 3 } })
  expect_equal(torch.tensor({ source }, { dtype = "float32" }).dtype, "float32")
  expect_error(function() torch.tensor { source, torch.tensor { 1, 2, 3 } } end, "data[2]", "[3]",
    "[2]")
  expect_error(function() torch.tensor { source, 1 } end, "data[2]", "number 1")
end)

test("torch.tensor refuses ragged and foreign data with the place", function()
  expect_error(function() torch.tensor { { 1, 2 }, { 3 } } end, "data[2]", "1 entries", "2")
  expect_error(function() torch.tensor { { 1 }, 2 } end, "data[2]", "number 2", "tables")
  expect_error(function() torch.tensor { 1, { 2 } } end, "data[2]", "table", "elements")
  expect_error(function() torch.tensor { { { 1 }, { 2 } }, { { 3 }, { 4, 5 } } } end, "data[2][2]")
  expect_error(function() torch.tensor { 1, "two" } end, "data[2]", '"two"')
  expect_error(function() torch.tensor { { 1, 2 }, { 3, print } } end, "data[2][2]", "function")
  expect_error(function() torch.tensor { x = 1 } end, "named")
  expect_error(function() torch.tensor { 1, 2, x = 3 } end, "named")
  expect_error(function() torch.tensor { { 1 }, { [1] = 1, [5] = 2 } } end, "data[2]")
  expect_error(function() torch.tensor { 1, nil, 3 } end, "torch.tensor")
  expect_error(function() torch.tensor("1") end, '"1"')
  local loop = {}
  loop[1] = loop
  expect_error(function() torch.tensor(loop) end, "contain itself")
end)

test("torch.tensor refuses numbers its dtype cannot hold", function()
  expect_error(function() torch.tensor({ 1, 300 }, { dtype = "uint8" }) end, "data[2]", "300",
    "uint8")
  expect_error(function() torch.tensor({ { -1 } }, { dtype = "uint8" }) end, "data[1][1]", "-1",
    "uint8")
  expect_error(function() torch.tensor({ 0 / 0 }, { dtype = "int64" }) end, "data[1]", "nan",
    "int64")
  expect_error(function() torch.tensor({ 2 ^ 63 }, { dtype = "int64" }) end, "data[1]", "int64")
  expect_error(function() torch.tensor(40000, { dtype = "int16" }) end, "40000", "int16")
  expect_list(torch.tensor({ 255, 0 }, { dtype = "uint8" }):tolist(), { 255, 0 })
  expect_list(torch.tensor({ -128, 127 }, { dtype = "int8" }):tolist(), { -128, 127 })
  expect_equal(torch.tensor({ -2 ^ 63 }, { dtype = "int64" }):item(), -9223372036854775807LL - 1)
end)

test("int64 values beyond 2^53 stay exact", function()
  local big = 9007199254740993LL -- 2^53 + 1, which no double holds
  local t = torch.tensor { big, -big, 1 }
  expect_equal(t.dtype, "int64")
  expect_equal(type(t[0]:item()), "cdata")
  assert(t[0]:item() == big and t[1]:item() == -big)
  expect_equal(tostring(t[0]:item()), "9007199254740993LL")
  local list = t:tolist()
  assert(list[1] == big and list[2] == -big and type(list[3]) == "number")
  assert((t + 1)[0]:item() == big + 1)
  assert((t + big)[0]:item() == 2 * big)
  assert(torch.full({}, big, { dtype = "int64" }):item() == big)
  t[2] = big
  assert(t[2]:item() == big)
  expect_equal(type(torch.tensor(2 ^ 53):item()), "number")
  -- comparisons do not go through a double either
  local next_one = torch.tensor(9007199254740992LL)
  assert(next_one < t[0] and not (t[0] < next_one) and not (t[0] <= next_one))
  assert(t[0] ~= next_one)
end)

test("item and tolist give Lua values", function()
  expect_equal(torch.tensor(2.5):item(), 2.5)
  expect_equal(torch.tensor({ { 3 } }):item(), 3)
  expect_equal(torch.tensor(true):item(), true)
  expect_list(torch.view_as_complex(torch.tensor { 1.5, -2 }):item(), { 1.5, -2 })
  expect_error(function() torch.tensor({ 1, 2 }):item() end, "int64[2]")
  expect_error(function() torch.tensor({}):item() end, "float32[0]")
  expect_equal(torch.tensor(7):tolist(), 7)
  expect_list(torch.tensor({}):tolist(), {})
  expect_list(torch.zeros({ 2, 0 }):tolist(), { {}, {} })
  expect_list(torch.zeros({ 0, 2 }):tolist(), {})
  expect_list(torch.tensor({ { 1, 2 }, { 3, 4 } }):t():tolist(), { { 1, 3 }, { 2, 4 } })
  expect_list(torch.tensor({ 0.5, 1.5 }, { dtype = "bfloat16" }):tolist(), { 0.5, 1.5 })
  expect_list(torch.arange(6):to("uint8"):view(2, 3):tolist(), { { 0, 1, 2 }, { 3, 4, 5 } })
  expect_list(torch.tensor({ true, false }):tolist(), { true, false })
  expect_error(function() torch.view_as_complex(torch.ones(2)):tolist() end, "view_as_real")
  -- a view whose negation is only noted
  local z = torch.view_as_complex(torch.tensor { { 1, 2 }, { 3, -4 } }:float())
  expect_list(torch.imag(z:conj()):tolist(), { -2, 4 })
end)

test("properties", function()
  local t = torch.zeros { 2, 3 }
  expect_list(t.shape, { 2, 3 })
  expect_equal(t.dtype, "float32")
  expect_equal(t.device, "cpu")
  expect_equal(t.ndim, 2)
  expect_equal(t.is_leaf, true)
  expect_equal(t.grad, nil)
  expect_list(t.T.shape, { 3, 2 })
  expect_equal(t:size(-1), 3)
  expect_list(t:size(), { 2, 3 })
  expect_list(t:stride(), { 3, 1 })
  expect_equal(t:stride(0), 3)
  expect_equal(t:dim(), 2)
  expect_equal(t:numel(), 6)
  expect_equal(t:nbytes(), 24)
  expect_equal(t:is_contiguous(), true)
  expect_equal(t:t():is_contiguous(), false)
  t.shape[1] = 99 -- a copy
  expect_list(t.shape, { 2, 3 })
  expect_error(function() return t.shap end, "shap")
  expect_error(function() t.shape = {} end, "shape")
  expect_error(function() t.anything = 1 end, "anything")
  expect_error(function() return t:size(5) end, "5")
end)

test("arithmetic with tensors and with numbers on either side", function()
  local a, b = torch.tensor { 1.0, 2.5 }, torch.tensor { 4, 0.5 }
  expect_close(a + b, { 5, 3 })
  expect_close(a - b, { -3, 2 })
  expect_close(a * b, { 4, 1.25 })
  expect_close(a / b, { 0.25, 5 })
  expect_close(b % a, { 0, 0.5 })
  expect_close(a ^ b, { 1, 2.5 ^ 0.5 })
  expect_close(-a, { -1, -2.5 })
  expect_close(a + 1, { 2, 3.5 })
  expect_close(1 + a, { 2, 3.5 })
  expect_close(a - 1, { 0, 1.5 })
  expect_close(1 - a, { 0, -1.5 })
  expect_close(a * 2, { 2, 5 })
  expect_close(2 * a, { 2, 5 })
  expect_close(a / 2, { 0.5, 1.25 })
  expect_close(2 / a, { 2, 0.8 })
  expect_close(a % 2, { 1, 0.5 })
  expect_close(5 % torch.tensor { 2, 3 }, { 1, 2 })
  expect_close(a ^ 2, { 1, 6.25 })
  expect_close(2 ^ a, { 2, 2 ^ 2.5 })
  expect_close(-7 % torch.tensor { 2, 3 }, { 1, 2 }) -- the sign of the divisor, as in Lua
end)

test("a number does not change a tensor's dtype beyond its kind", function()
  local i, f, h = torch.tensor { 1, 2 }, torch.tensor { 0.5 },
    torch.tensor({ 1, 2 }, { dtype = "bfloat16" })
  expect_equal((i + 1).dtype, "int64")
  expect_equal((1 - i).dtype, "int64")
  expect_equal((i * 2).dtype, "int64")
  expect_equal((i + 0.5).dtype, "float32")
  expect_equal((i / 2).dtype, "float32")
  expect_equal((2 / i).dtype, "float32")
  expect_equal((i + f).dtype, "float32")
  expect_equal((h * 2.5).dtype, "bfloat16")
  expect_equal((f * 1LL).dtype, "float32")
  expect_equal((torch.tensor { true } + 1).dtype, "int64")
  expect_equal((i + true).dtype, "int64")
  expect_list((3 / torch.tensor { 2, 4 }):tolist(), { 1.5, 0.75 })
end)

test("operators broadcast and refuse what does not fit", function()
  expect_close(torch.tensor { { 1 }, { 2 } } + torch.tensor { 10, 20 }, { { 11, 21 }, { 12, 22 } })
  local here = "tensor_spec.lua"
  expect_error(function() return torch.ones(2) + torch.ones(3) end, "float32[2]", "float32[3]",
    here)
  expect_error(function() return torch.ones(2) + "x" end, '"x"', here)
  expect_error(function() return torch.ones(2) + nil end, "nil", here)
  expect_error(function() return { 1 } * torch.ones(2) end, "table", here)
  expect_error(function() return torch.ones(2) / { 1 } end, "table", here)
  expect_error(function() return { 1 } / torch.ones(2) end, "table", here)
  expect_error(function() return -torch.tensor { true } end, "bool", here)
end)

test("comparisons of single elements", function()
  local one, two = torch.tensor(1), torch.tensor { 2.5 }
  assert(one < two and one <= two and two > one and two >= one)
  assert(not (two < one) and not (two <= one))
  assert(one <= one and one >= one and not (one < one))
  local nan = torch.tensor(0 / 0)
  assert(not (nan < one) and not (nan > one) and not (nan <= nan))
  expect_error(function() return torch.ones(2) < one end, "torch.lt", "float32[2]")
  expect_error(function() return one < torch.view_as_complex(torch.ones(2)) end, "Complex")
  -- LuaJIT itself refuses operands of two types, whatever their metatables say
  expect_error(function() return one < 2 end, "attempt to compare userdata with number")
  expect_list(torch.lt(torch.tensor { 1, 3 }, 2):tolist(), { true, false })
  expect_list(torch.tensor({ 1, 3 }):eq(torch.tensor { 1, 2 }):tolist(), { true, false })
end)

test("== is equality of the values", function()
  local a = torch.tensor { 1, 2 }
  assert(a == torch.tensor { 1, 2 })
  assert(a == a)
  assert(a ~= torch.tensor { 1, 3 })
  assert(a ~= torch.tensor { 1, 2, 3 })
  assert(a ~= torch.tensor({ 1, 2 }, { dtype = "float32" }), "the dtype is a part of the value")
  assert(a ~= torch.tensor { { 1, 2 } })
  assert(torch.tensor(0 / 0) ~= torch.tensor(0 / 0))
  assert(torch.tensor {} == torch.tensor {})
  assert(a ~= 1 and a ~= "x", "Lua compares values of different types as unequal")
end)

test("# is the size of the first dimension", function()
  expect_equal(#torch.zeros { 5, 2 }, 5)
  expect_equal(#torch.tensor {}, 0)
  expect_error(function() return #torch.tensor(1) end, "no dimensions")
end)

test(".. joins the text of a tensor", function()
  expect_equal("loss " .. torch.tensor(0.5), "loss tensor(0.5000)")
  expect_equal(torch.tensor(1) .. "!", "tensor(1)!")
  expect_error(function() return torch.tensor(1) .. {} end, "table")
end)

test("to, and the casts", function()
  local t = torch.tensor { 1.5, -2.5 }
  for name, dtype in pairs { float = "float32", double = "float64", half = "float16",
    bfloat16 = "bfloat16", long = "int64", int = "int32", bool = "bool" } do
    expect_equal(t[name](t).dtype, dtype)
  end
  expect_equal(t:to("int32").dtype, "int32")
  expect_list(t:to("int32"):tolist(), { 1, -2 })
  expect_equal(t:to("cpu").dtype, "float32")
  expect_equal(t:to(torch.tensor { 1 }).dtype, "int64")
  expect_equal(t:to { dtype = "float64", device = "meta" }.device, "meta")
  expect_equal(t:to("float64", "meta").dtype, "float64")
  t:to("float32")[0] = 9 -- itself: nothing changes
  expect_equal(t[0]:item(), 9)
  t:to { dtype = "float32", copy = true }[0] = 1
  expect_equal(t[0]:item(), 9)
  expect_error(function() t:to("flaot32") end, "flaot32")
  expect_error(function() t:to(3) end, "number 3")
  expect_error(function() t:to { dtyp = "int64" } end, "dtyp")
end)

test("address is that of the elements", function()
  local ffi = require "ffi"
  local t = torch.tensor { 1, 2, 3 }
  local data = ffi.cast("int64_t*", t:address())
  data[1] = 20
  expect_list(t:tolist(), { 1, 20, 3 })
  expect_error(function() torch.zeros({ 2, 3 }):t():address() end, "contiguous")
  expect_error(function() torch.zeros({ 2 }, { device = "meta" }):address() end, "CPU")
end)

test("methods called on what is no tensor say so", function()
  local item = torch.ones(1).item
  expect_error(function() item() end, "Tensor", "nothing")
  expect_error(function() item(3) end, "Tensor", "number 3")
  expect_error(function() item(io.stdout) end, "Tensor", "userdata")
end)

test("a shape is a list that can be printed and compared", function()
  local a, b = torch.empty { 2, 3 }, torch.empty { 3, 2 }
  expect_equal(tostring(a.shape), "torch.Size([2, 3])")
  expect_equal(tostring(torch.empty {}.shape), "torch.Size([])")
  assert(a.shape == b:t().shape and a.shape ~= b.shape and a.shape ~= torch.empty { 2 }.shape)
  expect_equal(#a.shape, 2)
  expect_equal(torch.zeros(a.shape).shape, a.shape)
end)

test("a name that is near is told", function()
  expect_error(function() return torch.empty(1).shap end, "did you mean 'shape'?")
  expect_error(function() return torch.tensr end, "did you mean 'tensor'?")
  expect_error(function() return torch.empty(1):tolst() end, "did you mean 'tolist'?")
end)

test("a device that is not there", function()
  if torch.cuda.is_available() then
    print("there is a GPU, so not tried: the error without one")
    return
  end
  for _, f in ipairs {
    function() return torch.zeros({ 2 }, { device = "cuda" }) end,
    function() return torch.zeros { 2 }:to "cuda:0" end,
    function() return torch.zeros { 2 }:cuda() end,
  } do
    expect_error(f, 'device "cuda"')
  end
  assert(torch.zeros { 2 }:cpu().device == "cpu")
end)

test("data_ptr reaches the elements", function()
  local t = torch.arange(1000, { dtype = "float64" })
  local p, sum = t:data_ptr(), 0
  for i = 0, 999 do
    sum = sum + p[i]
    p[i] = 2 * p[i]
  end
  expect_equal(sum, 499500)
  expect_equal(t:sum():item(), 999000)
  expect_equal(torch.tensor({ 7, -8 }, { dtype = "int16" }):data_ptr()[1], -8)
  assert(torch.tensor { false, true }:data_ptr()[1] == true)
  expect_error(function() return torch.randn({ 2, 3 }):t():data_ptr() end, "contiguous")
  local complex = torch.zeros({ 2 }, { dtype = "complex64" })
  expect_error(function() return complex:data_ptr() end, "complex64")
end)

test("tensors of the device meta have no values", function()
  local t = torch.zeros({ 2 }, { device = "meta" })
  for _, read in ipairs { "tolist", "cpu", "nonzero" } do
    expect_error(function() print(t[read](t)) end, "tensor_spec.lua:", "has no values")
  end
  expect_error(function() print(t[0]:item()) end, "tensor_spec.lua:", "has no values")
end)

testing.finish()
