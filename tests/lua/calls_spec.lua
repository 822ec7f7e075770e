-- Wrong calls of operators and what they say; which number becomes which type.
local testing = require "testing"
local torch = require "redco.torch"

local test, expect_error, expect_equal = testing.test, testing.expect_error, testing.expect_equal

local a = torch.zeros({ 2, 3 })
local exact = 9007199254740993LL  -- 2^53 + 1, which no double holds

test("an unknown name is refused with a near one", function()
  expect_error(function() return torch.sofmax end, "torch has no 'sofmax'",
    "did you mean 'softmax'?")
  expect_error(function() return torch.matmull(a, a) end, "torch has no 'matmull'", "'matmul'")
  expect_error(function() return a:sofmax(0) end, "a Tensor has no 'sofmax'",
    "did you mean 'softmax'?")
end)

test("a wrong type is refused with what was given and the candidates", function()
  expect_error(function() torch.add(a, "x") end,
    "torch.add: no overload takes (Tensor float32[2, 3], \"x\")", "candidates:",
    "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
    "add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor")
  expect_error(function() a:add(true, print) end,
    "Tensor:add: no overload takes (Tensor float32[2, 3], true, function)")
  expect_error(function() a:add(nil) end, "(Tensor float32[2, 3], nil)", "candidates:")
  expect_error(function() torch.softmax(a, 0, "flaot32") end, "\"flaot32\"", "softmax.int(")
  expect_error(function() torch.rand({ 2 }, { dtype = 3 }) end, "dtype = number 3")
  expect_error(function() torch.rand({ 2 }, { device = "nowhere" }) end, "device = \"nowhere\"")
  expect_error(function() torch.rand({ 2 }, { generator = 5 }) end, "generator = number 5")
  expect_error(function() torch.rand({ 2 }, { out = 5 }) end, "out = number 5")
  expect_error(function() a:clone({ memory_format = "diagonal" }) end,
    "memory_format = \"diagonal\"")
  expect_error(function() torch.sum(a, { 0 }, 1) end, "number 1)", "bool keepdim=False")
end)

test("each tensor is described with its type and shape", function()
  local flag, none, one = torch.tensor({ true }), torch.zeros({ 0, 2 }), torch.tensor(1)
  expect_error(function() torch.add(flag, none, one) end,
    "(Tensor bool[1], Tensor float32[0, 2], Tensor int64[])")
  local half = torch.zeros({ 4 }, { dtype = "bfloat16" })
  expect_error(function() torch.relu(half, half) end, "(Tensor bfloat16[4], Tensor bfloat16[4])",
    "relu(Tensor self) -> Tensor")
end)

test("wrong elements of a list are refused", function()
  expect_error(function() torch.zeros({ 2, "x" }) end, "torch.zeros: no overload takes",
    "zeros(SymInt[] size")
  expect_error(function() torch.zeros({ 2, 1.5 }) end, "torch.zeros: no overload takes")
  expect_error(function() torch.zeros(2, 1.5) end, "(number 2, number 1.5)")
  expect_error(function() torch.cat({ a, 3 }) end, "torch.cat: no overload takes",
    "cat(Tensor[] tensors, int dim=0) -> Tensor")
  expect_error(function() torch.cat({ a, nil, a }) end, "torch.cat: no overload takes")
  expect_error(function() torch.cat(a) end, "(Tensor float32[2, 3])")
  expect_error(function() torch.max(a, 1, { out = { torch.zeros({ 2 }), 3 } }) end, "number 3",
    "max.dim_max(")
end)

test("a list that also has named entries is refused", function()
  expect_error(function() torch.sum(a, { 1, keepdim = true }) end, "{1, keepdim = true}",
    "a list and named arguments are two tables")
end)

test("a missing argument is refused with the candidates", function()
  expect_error(function() torch.add() end, "torch.add: no overload takes ()", "candidates:")
  expect_error(function() torch.add(a) end, "(Tensor float32[2, 3])", "Tensor other")
  expect_error(function() a:gather(0) end, "Tensor:gather: no overload takes", "Tensor index")
  expect_error(function() torch.add(a, { alpha = 2 }) end, "alpha = number 2", "Tensor other")
end)

test("too many arguments are refused", function()
  expect_error(function() torch.relu(a, 1) end, "torch.relu: no overload takes",
    "(Tensor float32[2, 3], number 1)", "relu(Tensor self) -> Tensor")
  expect_error(function() torch.add(a, a, 1, 2) end, "number 1, number 2)")
  expect_error(function() a:add(a, 1, { alpha = 2 }) end, "number 1, {alpha = number 2})")
end)

test("an unknown or repeated named argument is refused", function()
  expect_error(function() torch.add(a, a, { alhpa = 2 }) end, "{alhpa = number 2}",
    "it has no argument 'alhpa': did you mean 'alpha'?", "candidates:")
  expect_error(function() a:sum({ dim = 0, keepdims = true }) end,
    "no argument 'keepdims'", "'keepdim'")
  expect_error(function() torch.rand({ 2 }, { memory_format = "channels_last" }) end,
    "it has no argument 'memory_format'")
  expect_error(function() torch.sum(a, 0, { dim = 1 }) end, "dim = number 1")
  expect_error(function() torch.add(a, 1, { self = a }) end, "self = Tensor float32[2, 3]")
end)

test("an error of the operator itself carries its name and the arguments", function()
  expect_error(function() torch.matmul(a, a) end, "torch.matmul: ", "mat1 and mat2 shapes",
    "given: (Tensor float32[2, 3], Tensor float32[2, 3])")
  expect_error(function() a:view({ 4 }) end, "Tensor:view:", "given: (Tensor float32[2, 3]")
  expect_error(function() torch.sum(a, 2) end, "torch.sum: Dimension out of range",
    "given: (Tensor float32[2, 3], number 2)")
  expect_error(function() torch.cat({}) end, "torch.cat:")
  expect_error(function() torch.empty(-1) end, "torch.empty:", "given: (number -1)")
end)

test("a dimension by name is refused as a wrong type", function()
  expect_error(function() torch.softmax(a, "rows") end, "torch.softmax: no overload takes",
    "(Tensor float32[2, 3], \"rows\")")
  expect_error(function() a:transpose("rows", "columns") end, "no overload takes")
end)

test("an error is a string that names the script and the line", function()
  local message = expect_error(function() torch.relu() end, "calls_spec.lua:")
  expect_equal(type(message), "string")
end)

test("a refused call changes nothing", function()
  local x = torch.ones({ 2 })
  expect_error(function() x:add_("2") end, "Tensor:add_")
  expect_error(function() x:add_(torch.ones({ 3 })) end, "Tensor:add_")
  testing.expect_close(x, { 1, 1 })
end)

test("filling factories make float32 of integral numbers", function()
  expect_equal(torch.full({ 2 }, 1).dtype, "float32")
  expect_equal(torch.full({ 2 }, 1.5).dtype, "float32")
  expect_equal(torch.full({ 2 }, 2 ^ 53).dtype, "float32")
  expect_equal(torch.full({ 2 }, true).dtype, "bool")
  expect_equal(torch.full({ 2 }, 1LL).dtype, "int64")
  expect_equal(torch.full({ 2 }, 1, { dtype = "int32" }).dtype, "int32")
  expect_equal(torch.full_like(torch.tensor({ 1 }), 2).dtype, "int64")
  expect_equal(a:new_full({ 2 }, 3).dtype, "float32")
  expect_equal(torch.scalar_tensor(3).dtype, "float32")
  expect_equal(torch.linspace(0, 4, 5).dtype, "float32")
end)

test("arange counts in integers when its bounds are integral", function()
  expect_equal(torch.arange(3).dtype, "int64")
  expect_equal(torch.arange(1, 4, 2).dtype, "int64")
  expect_equal(torch.arange(0, 1, 0.5).dtype, "float32")
  expect_equal(torch.arange(3, { dtype = "float64" }).dtype, "float64")
end)

test("torch.tensor infers PyTorch's types", function()
  expect_equal(torch.tensor({ 1, 2 }).dtype, "int64")
  expect_equal(torch.tensor({ 1, 2.5 }).dtype, "float32")
  expect_equal(torch.tensor({ true, false }).dtype, "bool")
  expect_equal(torch.tensor({ true, 2 }).dtype, "int64")
  expect_equal(torch.tensor({}).dtype, "float32")
  expect_equal(torch.tensor({ 1, 2 }, { dtype = "float32" }).dtype, "float32")
end)

test("an integral number keeps an integer tensor one, any other makes it float", function()
  local i = torch.tensor({ 1, 2 })
  expect_equal((i + 1).dtype, "int64")
  expect_equal(i:mul(2).dtype, "int64")
  expect_equal(i:mul(0.5).dtype, "float32")
  expect_equal(i:add(1, { alpha = 2 }).dtype, "int64")
  expect_equal(a:add(1LL).dtype, "float32")
  expect_equal(torch.zeros({ 2 }, { dtype = "float64" }):add(0.1)[0]:item(), 0.1)
end)

test("int64 beyond 2^53 stays exact both ways", function()
  local big = torch.tensor({ exact, -exact })
  expect_equal(big.dtype, "int64")
  expect_equal(big[0]:item(), exact)
  expect_equal(big:tolist()[2], -exact)
  expect_equal(type(big[0]:item()), "cdata")
  expect_equal(type(torch.tensor({ 5 }):item()), "number")
  expect_equal(big:add(2)[0]:item(), exact + 2)
  expect_equal(big:add(exact)[0]:item(), 2 * exact)
  expect_equal(torch.full({ 1 }, exact):item(), exact)
  expect_equal(torch.tensor({ 2 ^ 53 }):add(1):item(), exact)
  expect_equal(torch.tensor(9223372036854775807LL):item(), 9223372036854775807LL)
  expect_equal(torch.tensor(-9223372036854775807LL - 1):item(), -9223372036854775807LL - 1)
end)

test("an int64 is taken wherever a number is", function()
  expect_equal(torch.zeros({ 2LL, 3 }).shape[1], 2)
  expect_equal(a:sum(1LL).shape[1], 2)
  expect_equal(torch.dropout(a, 0LL, false).shape[1], 2)
  local line = torch.tensor({ { { 1.5, 2.5 } } })
  testing.expect_close(torch.upsample_nearest1d(line, nil, { 2LL }), { { { 1.5, 1.5, 2.5, 2.5 } } })
end)

test("a number that no integer is exactly is refused where one is asked", function()
  expect_error(function() torch.zeros({ 2 ^ 60 }) end, "torch.zeros: no overload takes")
  expect_error(function() torch.zeros(2 ^ 53 + 2) end,
    "torch.zeros: no overload takes (number 9.007")
  expect_error(function() torch.sum(a, 2 ^ 60) end, "number 1.1529215046068e+18")
  expect_error(function() torch.sum(a, 0.5) end, "number 0.5")
  expect_error(function() torch.sum(a, 1 / 0) end, "number inf")
  expect_error(function() torch.sum(a, 0 / 0) end, "nan")
  expect_error(function() torch.randperm(2 ^ 54) end, "torch.randperm: no overload takes")
  expect_error(function() torch.zeros(18446744073709551615ULL) end,
    "torch.zeros: no overload takes")
  expect_error(function() torch.manual_seed(2 ^ 60) end, "expected an integer")
end)

test("requires_grad is for factories, and a boolean", function()
  expect_equal(torch.zeros({ 2 }, { requires_grad = true }).requires_grad, true)
  expect_equal(torch.zeros({ 2 }, { requires_grad = false }).requires_grad, false)
  expect_equal(torch.zeros_like(a, { requires_grad = true }).requires_grad, true)
  expect_error(function() torch.zeros({ 2 }, { requires_grad = "no" }) end, "requires_grad")
  expect_error(function() torch.zeros({ 2 }, { requires_grad = true, dtype = "int64" }) end,
    "torch.zeros")
  expect_error(function() torch.add(a, a, { requires_grad = true }) end, "requires_grad")
end)

testing.finish()
