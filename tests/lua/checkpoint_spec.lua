-- redco.checkpoint: the numbers are those of the plain call, the memory is not.
local testing = require "testing"
local redco = require "redco"
local torch = redco.torch

local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

local here = "checkpoint_spec.lua:"

local function exactly(actual, expected)
  if actual ~= expected then
    error(("expected %s, got %s"):format(tostring(expected), tostring(actual)), 2)
  end
end

local function weights()
  torch.manual_seed(5)
  return {
    torch.randn({ 8, 8 }, { dtype = "float64", requires_grad = true }),
    torch.randn({ 8, 8 }, { dtype = "float64", requires_grad = true }),
  }
end

local function block(x, w)
  return torch.layer_norm(torch.gelu(torch.mm(x, w)) + x, { 8 })
end

--- Value and gradients of `f(run, x, w)`, in which `run` calls its first argument, with or without
--- a checkpoint.
local function both_ways(f)
  local outcomes = {}
  for i, run in ipairs { function(g, ...) return g(...) end, redco.checkpoint } do
    local w = weights()
    local x = torch.randn({ 4, 8 }, { dtype = "float64", requires_grad = true })
    local loss = f(run, x, w)
    loss:backward()
    outcomes[i] = { loss:detach(), x.grad, w[1].grad, w[2].grad, torch.rand(3) }
  end
  for i = 1, 5 do exactly(outcomes[2][i], outcomes[1][i]) end
end

test("the same loss and gradients as without", function()
  both_ways(function(run, x, w)
    for i = 1, 4 do x = run(block, x, w[i % 2 + 1]) end
    return x:pow(2):mean()
  end)
end)

test("the recomputed function draws the same random numbers", function()
  both_ways(function(run, x, w)
    for i = 1, 2 do
      x = run(function(y, v) return torch.dropout(block(y, v), 0.5, true) * torch.rand_like(y) end,
        x, w[i])
    end
    return (x * x):sum() -- what is drawn after backward is compared too
  end)
end)

test("a generator given to an operator is wound back too", function()
  local function gradient(run)
    local generator = torch.Generator(9)
    local x = torch.ones({ 16 }, { requires_grad = true })
    local y = run(function(v)
      return v ^ 2 * torch.rand({ 16 }, { generator = generator })
    end, x)
    y:sum():backward()
    return x.grad, torch.rand({ 2 }, { generator = generator })
  end
  local plain, after = gradient(function(f, ...) return f(...) end)
  local checkpointed, after_checkpoint = gradient(redco.checkpoint)
  exactly(checkpointed, plain)
  exactly(after_checkpoint, after)
end)

test("the function runs again in backward, once", function()
  local runs = 0
  local x = torch.ones({ 3 }, { requires_grad = true })
  local y = redco.checkpoint(function(v)
    runs = runs + 1
    return v:exp():sin():exp()
  end, x)
  expect_equal(runs, 1)
  y:sum():backward()
  expect_equal(runs, 2)
end)

test("without gradients nothing runs twice", function()
  local runs = 0
  local y = torch.no_grad(function()
    return redco.checkpoint(function(v)
      runs = runs + 1
      return v:exp()
    end, torch.ones({ 3 }, { requires_grad = true }))
  end)
  expect_equal(runs, 1)
  expect_equal(y.requires_grad, false)
end)

test("tables, several results and plain values pass through", function()
  local x = torch.ones({ 2 }, { requires_grad = true })
  local tree, number, nothing, text = redco.checkpoint(function(batch, scale, empty)
    assert(empty == nil and scale == 3)
    return { out = { batch.x:exp() * scale, batch.x ^ 3 } }, 7, nil, "text"
  end, { x = x }, 3, nil)
  assert(number == 7 and nothing == nil and text == "text")
  local loss = tree.out[1]:sum() + tree.out[2]:sum()
  loss:backward()
  expect_close(x.grad, torch.exp(torch.ones(2)) * 3 + 3)
end)

test("results that are used one by one", function()
  local x = torch.ones({ 2 }, { requires_grad = true })
  local a, b = redco.checkpoint(function(v) return v:exp(), v:sin() end, x)
  a:sum():backward()
  expect_close(x.grad, torch.exp(torch.ones(2)))
  x.grad = nil
  b:sum():backward()
  expect_close(x.grad, torch.cos(torch.ones(2)))
end)

test("retain_graph allows a second backward", function()
  local x = torch.ones({ 2 }, { requires_grad = true })
  local loss = redco.checkpoint(function(v) return v:exp():sin():sum() end, x)
  loss:backward { retain_graph = true }
  local once = x.grad:clone()
  loss:backward()
  expect_close(x.grad, once * 2)
  expect_error(function() loss:backward() end, "second time", here)
end)

test("a nested checkpoint", function()
  both_ways(function(run, x, w)
    local y = run(function(a)
      local b = run(function(c) return torch.dropout(block(c, w[1]), 0.3, true) end, a * 2)
      return run(block, torch.sin(b), w[2]):tanh()
    end, x)
    return y:pow(2):sum()
  end)
end)

test("weights that the function finds by itself get gradients", function()
  both_ways(function(run, x, w)
    return run(function(y) return block(block(y, w[1]), w[2]) end, x):pow(2):sum()
  end)
end)

test("second derivatives go through a checkpoint", function()
  local function second(run)
    local x = torch.tensor({ 0.3, -1.1 }, { dtype = "float64", requires_grad = true })
    local y = run(function(v) return torch.sin(v * v):exp() * v end, x):sum()
    local gradient = torch.autograd.grad(y, x, { create_graph = true })[1]
    return torch.autograd.grad((gradient ^ 2):sum(), x)[1]
  end
  expect_close(second(redco.checkpoint), second(function(f, ...) return f(...) end), 1e-12, 1e-12)
end)

test("redco.grad goes through a checkpoint, also inside vmap", function()
  local w = weights()
  local function loss(run)
    return function(p, x) return run(function(v) return torch.tanh(torch.mv(p, v)):sin() end,
      x):pow(2):sum() end
  end
  local plain = loss(function(f, ...) return f(...) end)
  local x = torch.randn({ 3, 8 }, { dtype = "float64" })
  local p = w[1]:detach()
  exactly(redco.grad(loss(redco.checkpoint))(p, x[0]), redco.grad(plain)(p, x[0]))
  local per_example = redco.vmap(redco.grad(loss(redco.checkpoint)), { in_dims = { false, 0 } })(p,
    x)
  expect_close(per_example, redco.vmap(redco.grad(plain), { in_dims = { false, 0 } })(p, x), 1e-12,
    1e-12)
end)

test("a function may take gradients of its own, inside vmap", function()
  both_ways(function(run, x)
    return run(function(v)
      return redco.vmap(redco.grad(function(row) return row:softmax(0):pow(2):sum() end))(v):sin()
    end, x):sum()
  end)
end)

test("a tensor in two roles, and views", function()
  both_ways(function(run, x, w)
    return run(function(a, b)
      local halves = a:view(2, 2, 8)
      return halves[0] * halves[1] + torch.mm(b[{ { 0, 2 } }], w[1]):exp() * 1e-3
    end, x, x):sum()
  end)
end)

test("an error in the first run passes with its line", function()
  local message = expect_error(function()
    redco.checkpoint(function() error("broken") end)
  end, "broken", here)
  assert(message:find("checkpoint_spec.lua:%d+: broken"), message)
  -- nothing is left behind: saving works as before
  local x = torch.ones({ 2 }, { requires_grad = true })
  x:exp():sum():backward()
  expect_close(x.grad, torch.exp(torch.ones(2)))
end)

test("an error in the second run passes with its line, and the random state comes back", function()
  local x = torch.ones({ 2 }, { requires_grad = true })
  local runs = 0
  local y = redco.checkpoint(function(v)
    runs = runs + 1
    if runs == 2 then error("broken in backward") end
    return torch.dropout(v:exp(), 0.5, true)
  end, x)
  torch.manual_seed(77)
  local expected = torch.rand(3)
  torch.manual_seed(77)
  local message = expect_error(function() y:sum():backward() end, "broken in backward", here)
  assert(message:find("checkpoint_spec.lua:%d+: broken in backward"), message)
  exactly(torch.rand(3), expected)
  local z = torch.ones({ 2 }, { requires_grad = true })
  z:exp():sum():backward()
  expect_close(z.grad, torch.exp(torch.ones(2)))
end)

test("a function that does something else in its second run is an error", function()
  local function with_second_run(f)
    local x = torch.ones({ 2 }, { requires_grad = true })
    local runs = 0
    local y = redco.checkpoint(function(v)
      runs = runs + 1
      return f(v, runs)
    end, x)
    return function() y:sum():backward() end
  end
  expect_error(with_second_run(function(v, run) return run == 1 and v:exp():sin() or v * 1 end),
    "redco.checkpoint", "2", "same", here)
  expect_error(with_second_run(function(v, run)
    return run == 1 and v:exp() or v:repeat_interleave(2):exp()
  end), "redco.checkpoint", "float32[2]", "float32[4]", "same", here)
end)

test("the second run ends when backward has what it needs", function()
  local x, n_ended = torch.ones({ 2 }, { requires_grad = true }), 0
  local y = redco.checkpoint(function(v)
    local result = v:exp():sin() + 1
    n_ended = n_ended + 1
    return result
  end, x)
  y:sum():backward()
  expect_equal(n_ended, 1)
  expect_close(x.grad, torch.exp(torch.ones(2)) * torch.cos(torch.exp(torch.ones(2))))
end)

-- ---- what the function reads is what it read ----

--- Calls `f(w)`, which uses w in a checkpoint and returns the result and a function that writes in
--- place to something that the checkpoint read. Expects backward to fail with these words.
local function expect_refused(f, ...)
  local w = torch.ones({ 3 }, { requires_grad = true })
  local y, write = f(w)
  torch.no_grad(write)
  expect_error(function() y:sum():backward() end, here, "redco.checkpoint: ", "modif", ...)
end

local function since(name)
  return name .. ", float32[3], has been modified in place since the function read it: it is "
    .. "at version ", "clone()"
end

test("a write to what the function read is an error that names it", function()
  local refused = {
    ["argument 1"] = function(w)
      local x = w * 1
      return redco.checkpoint(function(h) return (h + 1):tanh() end, x), function() x:mul_(3) end
    end,
    ["argument 2.layers.1.bias"] = function(w)
      local tree = { layers = { { bias = torch.zeros(3) } } }
      return redco.checkpoint(function(x, p) return (x + p.layers[1].bias):tanh() end, w, tree),
        function() tree.layers[1].bias:add_(1) end
    end,
    bias = function(w)
      local bias = torch.zeros(3)
      return redco.checkpoint(function(x) return (x + bias):tanh() end, w),
        function() bias:fill_(1) end
    end,
    ["params.scale"] = function(w) -- clipped through an alias, as after a step
      local params = { scale = torch.ones({ 3 }, { requires_grad = true }) }
      local function layer(x) return (x * params.scale):tanh() end
      return redco.checkpoint(function(x) return layer(x):exp() end, w),
        function() params.scale:detach():clamp_(0, 0.5) end
    end,
    base = function(w) -- the function reads a view of it
      local base = torch.zeros { 3 }
      return redco.checkpoint(function(x) return (x * base:view(3)[{ { 0, 3 } }]):tanh() end, w),
        function() base[0] = 5 end
    end,
    inner = function(w)
      local inner = torch.zeros(3)
      return redco.checkpoint(function(x)
        return redco.checkpoint(function(z) return (z + inner):tanh() end, x * 2)
      end, w), function() inner:add_(1) end
    end,
  }
  for name, f in pairs(refused) do expect_refused(f, since(name)) end
end)

test("a function that writes to what exists outside of it would do so twice", function()
  expect_refused(function(w)
    local state = { mean = torch.zeros(3) }
    return redco.checkpoint(function(x)
      state.mean:mul_(0.9):add_(x:detach(), { alpha = 0.1 })
      return (x - state.mean):tanh()
    end, w), function() end
  end, "state.mean, float32[3], exists outside of the function", "twice")
  expect_refused(function(w)
    return redco.checkpoint(function(x) return x:add_(1):tanh() end, w * 1), function() end
  end, "argument 1, float32[3], exists outside", "twice")
end)

test("a write after the first of two backwards", function()
  local x = torch.ones({ 3 })
  local w = torch.ones({ 3 }, { requires_grad = true })
  local loss = redco.checkpoint(function(v) return (v * x):tanh():sum() end, w)
  loss:backward { retain_graph = true }
  expect_error(function() x:add_(1) loss:backward() end, since "x", here)
end)

test("writes that change nothing that is read again", function()
  both_ways(function(run, x, w)
    local unread, like = torch.zeros(8), torch.zeros({ 4, 8 }, { dtype = "float64" })
    local early = torch.ones({ 8 }, { dtype = "float64" }):mul_(2)
    local y, z = run(function(a, b, other)
      local own = torch.zeros_like(like) + a:size(1) + #other
      own[1] = 3
      own:add_(1)
      local c = torch.mm(a, b):add_(1)
      c[0]:mul_(2)
      return c + own * early, c * 2
    end, x, w[1], unread)
    y:add_(z) -- the results are not read
    z:mul_(0.5)
    unread:add_(1)
    like:add_(1)
    local late = run(block, y * 1, w[2])
    return (y + z + late):pow(2):sum()
  end)
end)

test("parameters that change between steps", function()
  local function trained(run)
    local w = weights()
    for _ = 1, 3 do
      local loss = run(function(v) return torch.tanh(torch.mm(v, w[1])):sum() end, w[2])
      loss:backward()
      torch.no_grad(function()
        for _, p in ipairs(w) do
          p:sub_(p.grad * 0.1)
          p.grad = nil
        end
      end)
    end
    return w
  end
  local plain, checkpointed = trained(function(f, ...) return f(...) end), trained(redco.checkpoint)
  for i = 1, 2 do exactly(checkpointed[i], plain[i]) end
end)

test("running statistics of a norm move once", function()
  local nn = redco.nn
  local function run_with(run)
    local norm = nn.BatchNorm(8)
    norm.weight:requires_grad_()
    torch.manual_seed(3)
    for _ = 1, 2 do
      local x = torch.randn { 5, 8 }
      local y = run(function(v) return nn.batch_norm(norm, v, { train = true }):tanh() end, x)
      y:pow(2):sum():backward()
    end
    return norm
  end
  local plain, norm = run_with(function(f, ...) return f(...) end), run_with(redco.checkpoint)
  for _, name in ipairs { "running_mean", "running_var" } do exactly(norm[name], plain[name]) end
  exactly(norm.weight.grad, plain.weight.grad)
end)

test("a TorchScript module in a checkpoint, from its first call on", function()
  local function gradient(run, module)
    local x = torch.ones({ 4, 3 }, { requires_grad = true })
    local y = redco.with_rng(redco.Rng(5), function()
      return run(function(v) return (module(nil, v)) end, x * 1)
    end)
    y:sum():backward()
    return x.grad
  end
  local function plain(f, ...) return f(...) end
  local module = torch.jit.load("script_dropout.pt"):train()
  local expected = gradient(plain, torch.jit.load("script_dropout.pt"):train())
  for _ = 1, 4 do exactly(gradient(redco.checkpoint, module), expected) end
  for _ = 1, 4 do exactly(gradient(plain, module), expected) end
end)

test("what checkpoint refuses", function()
  expect_error(function() redco.checkpoint() end, "function", here)
  expect_error(function() redco.checkpoint(torch.ones(1)) end, "function", "Tensor", here)
end)

-- The bytes of this process that are allocated and not freed, by glibc.
local ffi = require "ffi"
ffi.cdef [[
typedef struct { size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks,
  fordblks, keepcost; } mallinfo2_t;
mallinfo2_t mallinfo2(void);
]]
local function live_mb()
  collectgarbage()
  collectgarbage()
  local info = ffi.C.mallinfo2()
  return tonumber(info.uordblks + info.hblkhd) / 2 ^ 20
end

test("backward passes inside each other stay on their thread, or are refused", function()
  local depth
  local function nested(most)
    depth = depth + 1
    local x, runs = torch.ones({ 2 }, { requires_grad = true }), 0
    local y = redco.checkpoint(function(a)
      runs = runs + 1
      if runs == 2 and depth < most then nested(most) end
      return a * a
    end, x)
    y:sum():backward()
    expect_close(x.grad, torch.full({ 2 }, 2))
  end
  for _, most in ipairs { 2, 50 } do
    depth = 0
    nested(most)
    expect_equal(depth, most)
  end
  for _ = 1, 2 do  -- an error ends all of them
    depth = 0
    expect_error(function() nested(70) end, "inside 50 other backward passes", "redco.checkpoint")
    expect_equal(depth, 51)
  end
end)

test("a checkpoint saves memory", function()
  -- 40 operators that each save 4 MB; a checkpoint keeps only what goes in
  local function deep(x)
    for _ = 1, 40 do x = torch.sin(x) end
    return x
  end
  local probe, empty = torch.zeros(2 ^ 24), live_mb()
  assert(#probe == 2 ^ 24)
  probe = nil
  if live_mb() - empty > -60 then return probe end -- a sanitizer's allocator, not glibc's
  local function held(run)
    local x = torch.ones({ 1024 * 1024 }, { requires_grad = true })
    local before = live_mb()
    local y = run(deep, x)
    local mb = live_mb() - before
    y:sum():backward()
    return mb, x.grad
  end
  local more, expected = held(function(f, ...) return f(...) end)
  local less, gradient = held(redco.checkpoint)
  exactly(gradient, expected)
  assert(more > 155 and more < 165, "the plain call should hold 160 MB, it holds " .. more)
  assert(less < 5, "the checkpoint should hold its result of 4 MB, it holds " .. less)
end)

test("a checkpoint whose result is dropped is freed", function()
  local kept = setmetatable({}, { __mode = "v" })
  do
    local x = torch.ones({ 4 }, { requires_grad = true })
    local argument = { x = x }
    kept[1] = argument
    local y = redco.checkpoint(function(a) return a.x:exp() end, argument)
    y:sum():backward()
  end
  collectgarbage() collectgarbage() collectgarbage()
  expect_equal(kept[1], nil)
  do
    local argument = { x = torch.ones({ 4 }, { requires_grad = true }) }
    kept[1] = argument
    local never = redco.checkpoint(function(a) return a.x:exp() end, argument)
    assert(never.requires_grad)
  end
  for _ = 1, 5 do collectgarbage() end
  expect_equal(kept[1], nil)
  do
    local argument = { x = torch.ones({ 3, 4 }, { requires_grad = true }) }
    kept[1] = argument
    local never = redco.checkpoint(function(a)
      return redco.vmap(function(row) return row:softmax(0):pow(2):sum() end)(a.x)
    end, argument)
    assert(never.requires_grad)
  end
  for _ = 1, 5 do collectgarbage() end
  expect_equal(kept[1], nil)
end)

testing.finish()
