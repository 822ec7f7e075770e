-- Gradients by LibTorch's recorder: against finite differences, and what must be refused.
local testing = require "testing"
local torch = require "redco.torch"

local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

local function random(...) return torch.randn({ ... }, { dtype = "float64" }) end

local function leaves(tensors)
  local result = {}
  for i, t in ipairs(tensors) do result[i] = t:detach():clone():requires_grad_() end
  return result
end

--- The gradients of f(inputs...), a scalar, by central differences.
local function numeric_gradients(f, inputs, step)
  local gradients = {}
  for i, input in ipairs(inputs) do
    local changed = { unpack(inputs) }
    local values = input:detach():clone()
    changed[i] = values
    local flat, gradient = values:view(-1), torch.zeros_like(values):view(-1)
    for k = 0, flat:numel() - 1 do
      local x = flat[k]:item()
      flat[k] = x + step
      local above = f(unpack(changed)):item()
      flat[k] = x - step
      gradient[k] = (above - f(unpack(changed)):item()) / (2 * step)
      flat[k] = x
    end
    gradients[i] = gradient:view_as(values)
  end
  return gradients
end

--- A scalar of f's result in which every element has its own weight.
local function weighted(f)
  return function(...)
    local y = f(...)
    return (y * torch.linspace(0.5, 1.5, y:numel(), { dtype = "float64" }):view_as(y)):sum()
  end
end

local function check_gradients(f, inputs, tolerance)
  local variables = leaves(inputs)
  local analytic = torch.autograd.grad(f(unpack(variables)), variables, { allow_unused = true })
  local numeric = numeric_gradients(f, inputs, 1e-6)
  for i in ipairs(inputs) do
    expect_close(analytic[i] or torch.zeros_like(inputs[i]), numeric[i], tolerance or 1e-6,
      tolerance or 1e-6)
  end
end

--- First the gradient of f, then the gradient of a scalar made of that gradient.
local function check_second_order(f, inputs)
  check_gradients(f, inputs)
  local function gradient_norm(...)
    local variables = {}
    for i, input in ipairs { ... } do
      variables[i] = input.requires_grad and input or input:detach():clone():requires_grad_()
    end
    local total = 0
    for i, gradient in ipairs(torch.autograd.grad(f(unpack(variables)), variables,
      { create_graph = true, allow_unused = true })) do
      if gradient then
        total = total + (gradient * torch.linspace(1, 2, gradient:numel(),
          { dtype = "float64" }):view_as(gradient)):sum() * i
      end
    end
    return total
  end
  check_gradients(gradient_norm, inputs, 2e-6)
end

-- name -> { f, inputs... }; with `smooth` the second order is checked too.
local expressions = {
  { "a polynomial", { smooth = true }, function(x, y) return x * x * y + 3 * x - y ^ 3 end,
    { 2, 3 }, { 2, 3 } },
  { "numbers on the left", { smooth = true }, function(x) return 2 - x + 3 / (x * x + 1) - 2
    ^ x end, { 5 } },
  { "exp of a sum of squares", { smooth = true }, function(x)
    return torch.exp(-(x * x):sum(1)) end, { 3, 4 } },
  { "sin over a power", { smooth = true }, function(x) return torch.sin(x) / (x ^ 2 + 1) end,
    { 6 } },
  { "a matrix product", { smooth = true }, function(a, b) return torch.matmul(a, b):tanh() end,
    { 3, 4 }, { 4, 2 } },
  { "a batched matrix product", { smooth = true }, function(a, b)
    return torch.matmul(a, b):sigmoid() end, { 2, 3, 4 }, { 4, 3 } },
  { "einsum", { smooth = true }, function(a, b) return torch.einsum("bij,bkj->bik", { a, b })
    ^ 2 end, { 2, 2, 3 }, { 2, 4, 3 } },
  { "a linear layer", { smooth = true }, function(x, w, b)
    return torch.gelu(torch.linear(x, w, b)) end, { 3, 4 }, { 5, 4 }, { 5 } },
  { "softmax", { smooth = true }, function(x) return torch.softmax(x, -1) end, { 3, 5 } },
  { "log_softmax of a product", { smooth = true }, function(x, w)
    return torch.log_softmax(torch.mm(x, w), 1) end, { 3, 2 }, { 2, 4 } },
  { "logsumexp", { smooth = true }, function(x) return torch.logsumexp(x, { 1 }) end, { 3, 4 } },
  { "layer norm", { smooth = true }, function(x, w, b) return torch.layer_norm(x, { 4 }, w, b) end,
    { 3, 4 }, { 4 }, { 4 } },
  { "batch norm", { smooth = true }, function(x, w, b)
    return torch.batch_norm(x, w, b, nil, nil, true, 0.1, 1e-5, false)
  end, { 5, 3 }, { 3 }, { 3 } },
  { "a convolution", { smooth = true }, function(x, w, b)
    return torch.conv2d(x, w, b, { stride = 2, padding = 1 }):tanh() end,
    { 1, 2, 5, 5 }, { 3, 2, 3, 3 }, { 3 } },
  { "a one-dimensional convolution", { smooth = true }, function(x, w)
    return torch.conv1d(x, w, nil, { dilation = 2 }) ^ 2 end,
    { 2, 2, 7 }, { 2, 2, 3 } },
  { "a transposed convolution", {}, function(x, w) return torch.conv_transpose2d(x, w):sin() end,
    { 1, 2, 3, 3 }, { 2, 1, 2, 2 } },
  { "pooling", {}, function(x) return torch.avg_pool2d(x ^ 2, { 2, 2 })
    + torch.max_pool2d(x, { 2, 2 }) end, { 1, 2, 4, 4 } },
  { "embedding", { smooth = true }, function(w)
    return torch.embedding(w, torch.tensor { { 0, 2 }, { 2, 1 } }):sum(1):exp()
  end, { 4, 3 } },
  { "index and gather", { smooth = true }, function(x)
    return x[torch.tensor { 0, 2, 0 }] ^ 2 + x[{ { 0, 3 }, { 0, 2 } }]:sum(1, true)
      * torch.gather(x, 1, torch.tensor { { 1, 0 }, { 0, 0 }, { 1, 1 } }):sum()
  end, { 3, 2 } },
  { "a mask", { smooth = true }, function(x)
    return x[torch.tensor { { true, false, true }, { false, true, true } }] ^ 3
  end, { 2, 3 } },
  { "indexed assignment", { smooth = true }, function(x, y)
    local z = x * 2
    z[{ {}, 1 }] = y ^ 2
    z[0] = z[1]:clone() * z[2]:sum()
    return z ^ 2
  end, { 3, 2 }, { 3 } },
  { "cat and stack", { smooth = true }, function(x, y)
    return torch.cat({ x ^ 2, x * y }, 1):mm(torch.stack({ x[0], y[1], x[1], y[0] }))
  end, { 2, 2 }, { 2, 2 } },
  { "split, chunk and transpose", { smooth = true }, function(x)
    local a, b = unpack(torch.split(x, 2, 1))
    return torch.matmul(a, b:t()) * a[0]:sum()
  end, { 3, 4 } },
  { "attention by its parts", { smooth = true }, function(q, k, v)
    local scores = torch.matmul(q, k:transpose(-2, -1)) / math.sqrt(3)
    local mask = torch.ones({ 4, 4 }, { dtype = "bool" }):tril()
    return torch.matmul(torch.softmax(scores:masked_fill(mask:logical_not(), -math.huge), -1), v)
  end, { 1, 2, 4, 3 }, { 1, 2, 4, 3 }, { 1, 2, 4, 3 } },
  { "scaled_dot_product_attention's math", { smooth = true }, function(q, k, v)
    return (torch._scaled_dot_product_attention_math(q, k, v, nil, 0, true))
  end, { 1, 2, 3, 2 }, { 1, 2, 3, 2 }, { 1, 2, 3, 2 } },
  { "scaled_dot_product_attention", {}, function(q, k, v)
    return torch.scaled_dot_product_attention(q, k, v, { is_causal = true })
  end, { 1, 2, 4, 3 }, { 1, 2, 4, 3 }, { 1, 2, 4, 3 } },
  { "cross entropy", { smooth = true }, function(x)
    return torch.cross_entropy_loss(x, torch.tensor { 1, 0, -100 },
      { ignore_index = -100, label_smoothing = 0.1 })
  end, { 3, 4 } },
  { "binary cross entropy", { smooth = true }, function(x)
    return torch.binary_cross_entropy_with_logits(x,
      torch.tensor({ 1, 0, 1 }, { dtype = "float64" }))
  end, { 3 } },
  { "where, clamp, abs and max", {}, function(x, y)
    return torch.where(torch.gt(x, y), x ^ 2, y) + x:clamp(-0.5, 0.5) + y:abs()
      + torch.maximum(x, y)
  end, { 7 }, { 7 } },
  { "cumsum, prod and var", { smooth = true }, function(x) return x:cumsum(0) * x:prod(1, true)
    + x:var(1):sum() end, { 3, 3 } },
  { "inverse and log-determinant", { smooth = true }, function(x)
    local m = torch.matmul(x, x:t()) + torch.eye(3, { dtype = "float64" })
    return torch.logdet(m) + torch.inverse(m):sum()
  end, { 3, 3 } },
  { "solve and cholesky", {}, function(x, y)
    local m = torch.matmul(x, x:t()) + 2 * torch.eye(3, { dtype = "float64" })
    return torch.linalg_solve(m, y) + torch.linalg_cholesky(m):sum()
  end, { 3, 3 }, { 3, 2 } },
  { "in-place operators on what is not saved", { smooth = true }, function(x)
    local y = x * 3
    y:add_(x ^ 2)
    y:mul_(2)
    return y ^ 2
  end, { 4 } },
  { "views, expand and permute", { smooth = true }, function(x)
    return (x:view(2, 3):permute(1, 0):reshape(-1) * x:unsqueeze(1):expand(6, 6):diagonal() ^ 2)
  end, { 6 } },
  { "a recurrent loop", { smooth = true }, function(x, w)
    local state = torch.zeros({ 3 }, { dtype = "float64" })
    for i = 0, 3 do state = torch.tanh(torch.mv(w, state) + x[i]) end
    return state
  end, { 4, 3 }, { 3, 3 } },
}

for _, expression in ipairs(expressions) do
  local name, options, f = expression[1], expression[2], weighted(expression[3])
  test("gradients agree with finite differences: " .. name, function()
    torch.manual_seed(7)
    local inputs = {}
    for i = 4, #expression do inputs[#inputs + 1] = random(unpack(expression[i])) end
    if options.smooth then check_second_order(f, inputs) else check_gradients(f, inputs) end
  end)
end

test("gradcheck finds a wrong gradient", function()
  -- the same check on a function whose history misses a term
  expect_error(function()
    check_gradients(function(x) return (x * x:detach()):sum() end, { random(3) })
  end, "differ")
end)

test("the third order", function()
  torch.manual_seed(3)
  local x = random(4):requires_grad_()
  local function derivative(y) return torch.autograd.grad(y:sum(), x,
    { create_graph = true })[1] end
  local y = torch.sin(x) * x ^ 3
  local third = derivative(derivative(derivative(y)))
  local v = x:detach()
  -- (x^3 sin x)''' by hand
  expect_close(third, -v ^ 3 * torch.cos(v) - 9 * v ^ 2 * torch.sin(v) + 18 * v * torch.cos(v) + 6
    * torch.sin(v), 1e-9, 1e-9)
  check_gradients(function(z)
    z = z.requires_grad and z or z:detach():requires_grad_()
    local first = torch.autograd.grad(torch.exp(torch.sin(z)):sum(), z, { create_graph = true })[1]
    return torch.autograd.grad((first ^ 2):sum(), z, { create_graph = true })[1]:sum()
  end, { random(3) }, 1e-5)
end)

test("backward adds into grad of the leaves", function()
  local x = torch.tensor({ 1, 2 }, { dtype = "float32", requires_grad = true })
  local w = torch.tensor({ 3, 4 }, { dtype = "float32" }):requires_grad_()
  local y = (x * w):sum()
  expect_equal(y.requires_grad, true)
  expect_equal(y.is_leaf, false)
  expect_equal(x.is_leaf, true)
  y:backward()
  expect_close(x.grad, { 3, 4 })
  expect_close(w.grad, { 1, 2 })
  local twice = x * 2
  twice:sum():backward()
  expect_close(x.grad, { 5, 6 }) -- added up
  x.grad = nil
  twice = x * 2
  twice:backward(torch.tensor { 1, 10 })
  expect_close(x.grad, { 2, 20 })
  expect_equal(x.grad.requires_grad, false)
  w:requires_grad_(false)
  expect_equal((w * 2).requires_grad, false)
end)

test("backward with create_graph gives a gradient that has a history", function()
  local x = torch.tensor({ 2 }, { dtype = "float64", requires_grad = true })
  x:pow(3):sum():backward { create_graph = true }
  expect_equal(x.grad.requires_grad, true)
  local second = torch.autograd.grad(x.grad:sum(), x)[1]
  expect_close(second, { 12 })
  x.grad = nil -- the cycle x -> grad -> x
end)

test("autograd.grad leaves grad alone", function()
  local x, unused = torch.ones(2):requires_grad_(), torch.ones(1):requires_grad_()
  local y = x * torch.tensor { 2, 3 }
  local gradients = torch.autograd.grad(y, { x, unused },
    { grad_outputs = torch.tensor { 1, 10 }:float(), allow_unused = true })
  expect_close(gradients[1], { 2, 30 })
  expect_equal(gradients[2], false)
  expect_equal(x.grad, nil)
  -- several outputs, weighted by several grad_outputs
  local a, b = x * 2, x ^ 2
  expect_close(torch.autograd.grad({ a, b }, x,
    { grad_outputs = { torch.ones(2), torch.ones(2) * 10 } })[1], { 22, 22 })
  local here = "autograd_spec.lua"
  expect_error(function() torch.autograd.grad((x * 2):sum(), { x, unused }) end, "allow_unused",
    here)
  expect_error(function() torch.autograd.grad(x:sum(), { x, 3 }) end, "inputs", "entry 2",
    "number 3", here)
  expect_error(function() torch.autograd.grad(3, x) end, "outputs", "number 3", here)
  expect_error(function() torch.autograd.grad(torch.ones(1), x) end, "require grad", here)
  expect_error(function() torch.autograd.grad(x * 2, x) end, "float32[2]", here)
  expect_error(function() torch.autograd.grad(x * 2, x, { grad_outputs = torch.ones(3) }) end,
    "[2]", "[3]", here)
end)

test("operators in no_grad are not recorded, and the mode comes back", function()
  local x = torch.ones(2):requires_grad_()
  local y, a, b = torch.no_grad(function(p, q) return x * 2, p, q end, 1, "q")
  expect_equal(y.requires_grad, false)
  assert(a == 1 and b == "q")
  expect_equal(torch.is_grad_enabled(), true)
  expect_equal((x * 2).requires_grad, true)
  torch.no_grad(function()
    expect_equal(torch.is_grad_enabled(), false)
    expect_equal(torch.enable_grad(function() return x * 2 end).requires_grad, true)
    expect_equal(torch.is_grad_enabled(), false)
    torch.no_grad(function() end)
    expect_equal(torch.is_grad_enabled(), false)
    x:add_(1) -- a leaf may be changed here
  end)
  expect_close(x, { 2, 2 })
end)

test("an error inside no_grad brings the mode back", function()
  local message = expect_error(function() torch.no_grad(function() error("broken") end) end,
    "broken")
  assert(message:find("autograd_spec.lua:%d+: broken"), message)
  expect_equal(torch.is_grad_enabled(), true)
  expect_error(function() torch.no_grad(function() return torch.ones(2) + torch.ones(3) end) end,
    "float32[3]")
  expect_equal(torch.is_grad_enabled(), true)
  torch.no_grad(function()
    pcall(torch.enable_grad, error, "x")
    expect_equal(torch.is_grad_enabled(), false)
  end)
  local co = coroutine.wrap(function() torch.no_grad(function() coroutine.yield() end) end)
  expect_error(function() co() end, "yield")
  expect_equal(torch.is_grad_enabled(), true)
  expect_error(function() torch.no_grad() end, "function")
  expect_error(function() torch.no_grad(3) end, "number 3")
end)

test("set_grad_enabled", function()
  torch.set_grad_enabled(false)
  local recorded = (torch.ones(1):requires_grad_() * 2).requires_grad
  torch.set_grad_enabled(true)
  expect_equal(recorded, false)
  expect_error(function() torch.set_grad_enabled(1) end, "boolean", "number 1")
end)

test("what backward refuses", function()
  local here = "autograd_spec.lua:"
  local x = torch.ones(2):requires_grad_()
  expect_error(function() (x * 2):backward() end, "one element", "float32[2]", here)
  expect_error(function() torch.ones(1):backward() end, "require grad", here)
  expect_error(function() (x * 2):backward(torch.ones(3)) end, "[2]", "[3]", here)
  expect_error(function() (x * 2):backward("ones") end, "ones", here)
  expect_error(function() x:sum():backward { retain_grpah = true } end, "retain_grpah",
    "retain_graph", here)
  expect_error(function() x:sum():backward(nil, { create_grph = true }) end, "create_grph", here)
  expect_error(function() x:sum():backward { retain_graph = 1 } end, "retain_graph", "number 1",
    here)
  expect_error(function() torch.autograd.grad(x:sum(), x, { allow_unsed = true }) end,
    "allow_unsed", here)
  expect_error(function() torch.tensor({ 1, 2 }):requires_grad_() end, "floating point", here)
  expect_error(function() (x * 2):requires_grad_(false) end, "detach", here)
end)

test("a second backward needs retain_graph", function()
  local x = torch.ones(2):requires_grad_()
  local y = (x * x):sum()
  y:backward { retain_graph = true }
  y:backward()
  expect_close(x.grad, { 4, 4 })
  expect_error(function() y:backward() end, "second time", "retain_graph", "autograd_spec.lua:")
end)

test("a saved tensor changed in place is an error", function()
  local x = torch.ones(2):requires_grad_()
  local y = x:exp()
  y:mul_(2)
  expect_error(function() y:sum():backward() end, "inplace", "autograd_spec.lua:")
  expect_error(function() x:add_(1) end, "leaf", "in-place", "autograd_spec.lua:")
  expect_error(function() x[0]:add_(1) end, "leaf", "autograd_spec.lua:")
end)

test("detach and clone", function()
  local x = torch.ones(2):requires_grad_()
  local y = (x * 2):detach()
  expect_equal(y.requires_grad, false)
  local copy = x:clone()
  expect_equal(copy.requires_grad, true)
  copy:sum():backward()
  expect_close(x.grad, { 1, 1 })
end)

test("grad of a tensor that is no leaf is nil", function()
  local x = torch.ones(2):requires_grad_()
  local y = x * 2
  y:sum():backward()
  expect_equal(y.grad, nil)
  local kept = x * 3
  kept:retain_grad()
  kept:sum():backward()
  expect_close(kept.grad, { 1, 1 })
end)

testing.finish()
