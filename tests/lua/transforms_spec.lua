-- redco.grad, redco.value_and_grad and redco.vmap.
local testing = require "testing"
local redco = require "redco"
local torch = redco.torch

local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

local here = "transforms_spec.lua:"

local function f64(data) return torch.tensor(data, { dtype = "float64" }) end

test("grad keeps the tree of its first argument", function()
  local params = {
    layers = { { w = f64 { 1, 2 }, b = f64 { 3 } }, { w = f64 { 4, 5 }, b = f64 { 6 } } },
    scale = f64(2),
    unused = f64 { 7, 8 },
    ids = torch.tensor { 1, 2 },
    name = "tiny",
  }
  local function loss(p, x)
    local total = 0
    for _, layer in ipairs(p.layers) do total = total + (layer.w * x).sum(layer.w * x)
      + layer.b:sum() ^ 2 end
    return total * p.scale
  end
  local value, gradients = redco.value_and_grad(loss)(params, f64 { 10, 20 })
  expect_close(value, f64((50 + 9 + 140 + 36) * 2))
  expect_equal(value.requires_grad, false)
  expect_close(gradients.layers[1].w, { 20, 40 })
  expect_close(gradients.layers[1].b, { 12 })
  expect_close(gradients.layers[2].w, { 20, 40 })
  expect_close(gradients.layers[2].b, { 24 })
  expect_close(gradients.scale, f64(235))
  expect_close(gradients.unused, { 0, 0 })
  assert(gradients.ids == params.ids and gradients.name == "tiny")
  expect_equal(#gradients.layers, 2)
  expect_equal(gradients.scale.requires_grad, false)
  -- nothing happened to what was given
  expect_equal(params.scale.requires_grad, false)
  expect_equal(params.scale.grad, nil)
  expect_close(redco.grad(loss)(params, f64 { 10, 20 }).scale, f64(235))
end)

test("grad of a single tensor, and of a list", function()
  expect_close(redco.grad(function(x) return (x ^ 3):sum() end)(f64 { 1, 2 }), { 3, 12 })
  local gradients = redco.grad(function(list) return (list[1] * list[2]):sum() end) { f64 { 1, 2 },
    f64 { 3, 4 } }
  expect_close(gradients[1], { 3, 4 })
  expect_close(gradients[2], { 1, 2 })
end)

test("errors say which function was called, and why", function()
  for _, name in ipairs { "grad", "value_and_grad" } do
    local transform, full_name = redco[name], "redco." .. name .. ": "
    for _, params in ipairs { torch.tensor { 1, 2 }, { ids = torch.tensor { 1.0 } }, {} } do
      expect_error(function() transform(function() return f64 { 1 } end)(params) end, here,
        full_name, "no floating-point tensor", "float32")
    end
    expect_error(function() transform(function(x) return x end)(f64 { 1, 2 }) end, here,
      full_name, "must return", "float64[2]")
    expect_error(function() redco.vmap(transform(function(x) return x end))(f64 { { 1, 2 } }) end,
      full_name, "must return")
  end
end)

test("only the first argument is differentiated", function()
  local w = f64({ 2 }):requires_grad_()
  local gradient = redco.grad(function(x, y) return (x * y * w):sum() end)(f64 { 3 }, f64 { 5 })
  expect_close(gradient, { 10 })
  expect_equal(w.grad, nil)
end)

test("what f returns beside its value follows the gradients", function()
  local f = function(x) return (x ^ 2):sum(), { twice = x * 2 }, nil, "text" end
  local value, gradient, extra, nothing, text = redco.value_and_grad(f)(f64 { 3 })
  expect_close(value, f64(9))
  expect_close(gradient, { 6 })
  expect_close(extra.twice, { 6 })
  expect_equal(extra.twice.requires_grad, false)
  expect_equal(nothing, nil)
  expect_equal(text, "text")
  expect_equal(select("#", redco.value_and_grad(function(x) return x:sum(), nil end)(f64 { 3 })), 3)
end)

test("a loss that does not depend on the params has zero gradients", function()
  expect_close(redco.grad(function() return f64(3) end)(f64 { 1, 2 }), { 0, 0 })
  expect_close(redco.grad(function(x) return x:detach():sum() end)(f64 { 1, 2 }), { 0, 0 })
end)

test("grad works inside no_grad", function()
  local x = f64({ 1, 2 }):requires_grad_()
  local gradient = torch.no_grad(function() return redco.grad(function(p)
    return (p ^ 2):sum() end)(x) end)
  expect_close(gradient, { 2, 4 })
  expect_equal(gradient.requires_grad, false)
  expect_close(torch.no_grad(redco.grad(function(p) return (p ^ 2):sum() end), f64 { 3 }), { 6 })
end)

test("grad of grad", function()
  local function f(x) return (torch.sin(x) * x ^ 2):sum() end
  local x = f64 { 0.3, -1.2, 2 }
  local second = redco.grad(function(p) return redco.grad(f)(p):sum() end)(x)
  expect_close(second, 2 * torch.sin(x) + 4 * x * torch.cos(x) - x ^ 2 * torch.sin(x), 1e-10, 1e-10)
  local third = redco.grad(function(p)
    return redco.grad(function(q) return redco.grad(f)(q):sum() end)(p):sum()
  end)(x)
  expect_close(third, 6 * torch.cos(x) - 6 * x * torch.sin(x) - x ^ 2 * torch.cos(x), 1e-10, 1e-10)
end)

test("create_graph lets backward go through a gradient", function()
  local x = f64({ 2 }):requires_grad_()
  -- x requires gradients: on by itself
  local gradient = redco.grad(function(p) return (p ^ 3):sum() end)(x)
  gradient:sum():backward()
  expect_close(x.grad, { 12 })
  local y, w = f64 { 2 }, f64({ 5 }):requires_grad_()
  local gradient_of_y = redco.grad(function(p) return (p ^ 2 * w):sum() end,
    { create_graph = true })(y)
  gradient_of_y:sum():backward()
  expect_close(w.grad, { 4 })
  local plain = redco.grad(function(p) return (p ^ 2 * w):sum() end)(y)
  expect_equal(plain.requires_grad, false)
  local off = redco.grad(function(p) return (p ^ 2):sum() end, { create_graph = false })(x)
  expect_equal(off.requires_grad, false)
end)

test("what grad refuses", function()
  expect_error(function() redco.grad(function(x) return x * 2 end)(f64 { 1, 2 }) end,
    "one element", "[2]", here)
  expect_error(function() redco.grad(function() return 3 end)(f64 { 1 }) end, "tensor", "number",
    here)
  expect_error(function() redco.grad(function() end)(f64 { 1 }) end, "nil", here)
  expect_error(function() redco.grad(function(x) return x:argmax() end)(f64 { 1 }) end, "int64[]",
    here)
  expect_error(function() redco.grad(function(x) return x:sum() end, { create_graph = 1 }) end,
    "number", here)
  expect_error(function() redco.grad(function(x) return x:sum() end, { creat_graph = true }) end,
    "creat_graph", here)
  expect_error(function() redco.grad(3) end, "function", "number", here)
  expect_error(function() redco.vmap("f") end, "function", "\"f\"", here)
  local message = expect_error(function()
    redco.grad(function(x) return (x + torch.ones(7)):sum() end)(torch.ones(3))
  end, "float32[3]", "float32[7]", here)
  assert(message:find("^" .. here:gsub("%.", "%%.") .. "%d+:"), message)
end)

-- vmap

test("vmap maps over the first dimension of every tensor", function()
  local x, y = torch.arange(6):view(3, 2):double(), torch.arange(3):double()
  local shapes = {}
  local result = redco.vmap(function(a, b)
    shapes[1], shapes[2] = #a.shape, #b.shape
    return a:dot(a) + b
  end)(x, y)
  expect_close(result, { 1, 14, 43 })
  assert(shapes[1] == 1 and shapes[2] == 0)
end)

test("vmap takes and gives trees", function()
  local batch = { input = { torch.arange(4):view(2, 2):double(), f64 { 10, 20 } }, name = "b" }
  local result, twice = redco.vmap(function(b)
    assert(b.name == "b")
    return { sum = b.input[1]:sum(), list = { b.input[1] * b.input[2], b.name } }, b.input[2] * 2
  end)(batch)
  expect_close(result.sum, { 1, 5 })
  expect_close(result.list[1], { { 0, 10 }, { 40, 60 } })
  expect_equal(result.list[2], "b")
  expect_close(twice, { 20, 40 })
end)

test("in_dims and out_dims", function()
  local m, v = torch.arange(6):view(2, 3):double(), f64 { 1, 2 }
  local dot = function(a, b) return a:dot(b) end
  expect_close(redco.vmap(dot, { in_dims = { 1, false } })(m, v), { 6, 9, 12 })
  expect_close(redco.vmap(dot, { in_dims = { -1, false } })(m, v), { 6, 9, 12 })
  expect_close(redco.vmap(function(a) return a * 2 end, { in_dims = 1 })(m), (m * 2):t())
  expect_close(redco.vmap(function(a) return a * 2 end, { in_dims = 1, out_dims = 1 })(m), m * 2)
  expect_close(redco.vmap(function(a) return a * 2 end, { out_dims = -1 })(m), (m * 2):t())
  -- a result that does not depend on the batch
  expect_close(redco.vmap(function() return f64 { 7, 8 } end)(m), { { 7, 8 }, { 7, 8 } })
  expect_close(redco.vmap(function() return f64 { 7, 8 } end, { out_dims = 1 })(m),
    { { 7, 7 }, { 8, 8 } })
end)

test("results of vmap keep their places, nil too", function()
  local a, b, c = redco.vmap(function(x) return x + 1, nil, x * 2 end)(f64 { 1, 2 })
  expect_close(a, { 2, 3 })
  expect_equal(b, nil)
  expect_close(c, { 2, 4 })
end)

test("per-example gradients are vmap over grad", function()
  torch.manual_seed(1)
  local params = { w1 = torch.randn({ 5, 4 }):double(), w2 = torch.randn({ 3, 5 }):double(),
    b = torch.zeros({ 3 }):double() }
  local function loss(p, x, y)
    local hidden = torch.layer_norm(torch.tanh(torch.mv(p.w1, x)), { 5 })
    local logits = torch.mv(p.w2, hidden) + p.b
    return torch.cross_entropy_loss(logits:unsqueeze(0), y:unsqueeze(0))
  end
  local x, y = torch.randn({ 6, 4 }):double(), torch.tensor { 0, 1, 2, 2, 1, 0 }
  local gradients = redco.vmap(redco.grad(loss), { in_dims = { false, 0, 0 } })(params, x, y)
  local values, again = redco.vmap(redco.value_and_grad(loss),
    { in_dims = { false, 0, 0 } })(params, x, y)
  for i = 0, 5 do
    local value, expected = redco.value_and_grad(loss)(params, x[i], y[i])
    expect_close(values[i], value)
    for name in pairs(params) do
      expect_close(gradients[name][i], expected[name], 1e-10, 1e-12)
      expect_close(again[name][i], expected[name], 1e-10, 1e-12)
    end
  end
  expect_equal(gradients.w1.requires_grad, false)
end)

test("grad over vmap", function()
  local w, x = f64 { 1, 2 }, torch.arange(6):view(3, 2):double()
  local gradient = redco.grad(function(p)
    return redco.vmap(function(row) return (row * p):sum() ^ 2 end)(x):sum()
  end)(w)
  local expected = torch.zeros_like(w)
  for i = 0, 2 do expected = expected + 2 * x[i]:dot(w) * x[i] end
  expect_close(gradient, expected)
end)

test("second derivatives inside vmap", function()
  local x = f64 { 0.5, 1, 2 }
  local second = redco.vmap(redco.grad(redco.grad(function(p) return p ^ 3 * torch.sin(p) end)))(x)
  expect_close(second, 6 * x * torch.sin(x) + 6 * x ^ 2 * torch.cos(x) - x ^ 3 * torch.sin(x),
    1e-10, 1e-10)
end)

test("grad over vmap over grad", function()
  local x = f64 { 0.5, 1, 2 }
  local gradient = redco.grad(function(scale)
    return redco.vmap(redco.grad(function(p) return p ^ 3 * scale end))(x):sum()
  end)(f64(2))
  expect_close(gradient, (3 * x ^ 2):sum())
end)

test("nested vmap", function()
  local a, b = torch.arange(6):view(2, 3):double(), torch.arange(12):view(4, 3):double()
  local all_pairs = redco.vmap(function(row)
    return redco.vmap(function(other) return row:dot(other) end)(b)
  end)(a)
  expect_close(all_pairs, torch.mm(a, b:t()))
  local inner = redco.vmap(redco.vmap(function(x) return x ^ 2 + 1 end))(a)
  expect_close(inner, a ^ 2 + 1)
end)

test("randomness must be chosen", function()
  local x = torch.zeros { 8, 4 }
  local noise = function(row) return row + torch.rand_like(row) end
  expect_error(function() redco.vmap(noise)(x) end, "random", here)
  local different = redco.vmap(noise, { randomness = "different" })(x)
  assert(not torch.allclose(different[0], different[1]))
  local same = redco.vmap(function() return torch.rand { 4 } end, { randomness = "same" })(x)
  expect_close(same[0], same[7])
  expect_error(function() redco.vmap(noise, { randomness = "some" })(x) end, "some", "different",
    here)
end)

test("what vmap refuses", function()
  local x = torch.arange(6):view(2, 3):double()
  expect_error(function() redco.vmap(function(a) return a:sum():item() end)(x) end, "item", here)
  expect_error(function() redco.vmap(function(a) return a:tolist() end)(x) end, here)
  expect_error(function() redco.vmap(function(a) return a[torch.gt(a, 1)] end)(x) end, here)
  expect_error(function() redco.vmap(function(a) return a:nonzero() end)(x) end, here)
  expect_error(function()
    redco.vmap(function(a)
      local shared = torch.zeros { 3 }:double()
      shared:add_(a) -- every entry would write into the same place
      return shared
    end)(x)
  end, "add_", here)
  expect_error(function() redco.vmap(function(a, b) return a + b end)(x, torch.ones(3)) end, "3",
    "2", here)
  expect_error(function() redco.vmap(function(a) return a end)(3) end, "no argument", here)
  expect_error(function() redco.vmap(function(a) return a end)(torch.tensor(1)) end, "dimension",
    here)
  expect_error(function() redco.vmap(function(a) return a end, { in_dims = 5 })(x) end, "in_dims",
    here)
  expect_error(function() redco.vmap(function(a) return a end, { in_dims = { 0 } })(x, x) end,
    "in_dims", "2", here)
  expect_error(function() redco.vmap(function(a) return a end, { in_dims = "first" }) end,
    "in_dims", "first", here)
  expect_error(function() redco.vmap(function(a) return a end, { in_dims = { 0.5 } })(x) end,
    "in_dims", "0.5", here)
  expect_error(function() redco.vmap(function(a) return a end, { out_dims = "x" }) end, "out_dims",
    here)
  expect_error(function() redco.vmap(function(a) return a end, { out_dims = 7 })(x) end,
    "out_dims", here)
  expect_error(function() redco.vmap(function(a) return a end, { in_dim = 0 }) end, "in_dim", here)
  expect_error(function() redco.vmap(function(a) return a end)(torch.zeros { 0, 3 }) end, "empty",
    here)
end)

test("an error inside leaves no level behind", function()
  local x = torch.ones { 2, 3 }
  local message = expect_error(function()
    redco.vmap(redco.grad(function(row) return (row + torch.ones(7)):sum() end))(x)
  end, "7", here)
  assert(message:find("^" .. here:gsub("%.", "%%.") .. "%d+:"), message)
  expect_error(function() redco.vmap(function() error("mine") end)(x) end, "mine", here)
  expect_error(function() redco.vmap(redco.grad(function(row) return row end))(x) end,
    "one element", here)
  expect_equal((torch.ones(2) + 1):sum():item(), 4)
  expect_close(redco.vmap(function(row) return row:sum() end)(x), { 3, 3 })
  expect_equal(torch.is_grad_enabled(), true)
end)

test("tensors inside a transformation can be printed", function()
  local text
  redco.vmap(function(row)
    text = tostring(row)
    return row
  end)(torch.ones { 2, 3 })
  expect_equal(text, [=[
BatchedTensor(lvl=1, bdim=0, value=
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
)]=])
end)

test("grad of grad goes through attention", function()
  torch.manual_seed(0)
  local tree = redco.tree
  local params = tree.map(function(t) return t:double() end, redco.nn.MultiheadAttention(8))
  local x = torch.randn({ 2, 3, 8 }, { dtype = "float64" })
  local gradients = redco.grad(function(p)
    return redco.nn.multihead_attention(p, x, { num_heads = 2, causal = true }):pow(2):sum()
  end)
  local function norm(p)
    local total = 0
    for _, leaf in ipairs(tree.leaves(gradients(p))) do total = total + leaf:pow(2):sum() end
    return total
  end
  local direction = tree.map(torch.randn_like, params)
  local along = 0
  local second = redco.grad(norm)(params)
  tree.map(function(a, b) along = along + (a * b):sum():item() end, second, direction)
  local eps = 1e-5
  local function moved(by)
    return norm(tree.map(function(a, b) return a + by * b end, params, direction)):item()
  end
  local expected = (moved(eps) - moved(-eps)) / (2 * eps)
  assert(math.abs(along - expected) < 1e-6 * math.abs(expected), along .. " " .. expected)
end)

test("numbers make plain tensors inside vmap and grad, and lists are made of them there", function()
  local kept
  local function f(row)
    kept = kept or torch.tensor({ 1, 2, 3 }, { dtype = "float32" })
    local steps = torch.arange(3):float():tolist()
    return (row * kept):sum() * torch.tensor({ steps[3] }, { dtype = "float32" }):sum()
  end
  local rows = torch.ones { 4, 3 }
  for _ = 1, 2 do
    expect_close(redco.vmap(redco.grad(f))(rows)[2], { 2, 4, 6 })
    expect_close(f(rows[0]), torch.tensor(12):float())
  end
end)

-- LibTorch has no batching rule for the negative log-likelihood.
test("cross_entropy under vmap: values and gradients of both orders are those of a loop", function()
  local n, sizes = 3, { { 5 }, { 4, 5 }, { 2, 5, 3 } }
  for number = 0, 17 do
    local rng, shape = torch.Generator(number), sizes[number % 3 + 1]
    local reduction, is_weighted = math.floor(number / 3) % 3, number >= 9
    local labels_shape = { n, unpack(shape) }
    table.remove(labels_shape, #shape > 1 and 3 or 2)
    local x = torch.randn({ n, unpack(shape) }, { generator = rng, dtype = "float64" })
    local labels = torch.randint(5, labels_shape, { generator = rng })
    if #shape > 1 then
      labels = labels:masked_fill(torch.rand(labels_shape, { generator = rng }):lt(0.3), -100)
    end
    local weight = is_weighted and torch.rand({ 5 }, { generator = rng, dtype = "float64" }) or nil
    local function loss(row, target)
      return torch.cross_entropy_loss(row, target, { weight = weight, reduction = reduction })
    end
    local function total(row, target) return loss(row, target):pow(2):sum() end
    local function again(row, target)
      return redco.grad(total, { create_graph = true })(row, target):pow(2):sum()
    end
    for _, f in ipairs { loss, redco.grad(total), redco.grad(again) } do
      local all = redco.vmap(f)(x, labels)
      for i = 0, n - 1 do expect_close(all[i], f(x[i], labels[i])) end
    end
  end
end)

testing.finish()
