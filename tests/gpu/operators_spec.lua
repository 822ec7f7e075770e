-- Tensors, operators and gradients on a GPU.
local gpu = require "gpu"
local redco = require "redco"
local testing = require "testing"

local torch, nn = redco.torch, redco.nn
local test, expect_near = testing.test, gpu.expect_near
local device = gpu.device
local generator = torch.Generator(1)

local function random(...) return torch.randn({ ... }, { generator = generator }) end

test("a tensor goes to the GPU and comes back", function()
  local x = random(257, 33)
  local y = x:to(device)
  assert(y:cpu() == x and y.device:find("^" .. device))
  y[{ 0, { 0, 2 } }] = 7
  assert(y[0]:tolist()[2] == 7 and y[{ 1, 5 }]:item() == x[{ 1, 5 }]:item())
  assert(#tostring(y) > 0 and y[y:gt(6)]:numel() >= 2)
end)

test("products, softmax and norms in three dtypes", function()
  local a, b, weight = random(300, 200), random(200, 500), torch.ones(500)
  local exact = a:double():matmul(b:double())
  for dtype, bound in pairs { float32 = 2e-6, bfloat16 = 1e-2, float16 = 1e-2 } do
    local y = a:to(dtype):to(device):matmul(b:to(dtype):to(device))
    local w = weight:to(dtype):to(device)
    expect_near(dtype .. " matmul", y, exact, bound)
    expect_near(dtype .. " softmax", y:softmax(-1), exact:softmax(-1), 10 * bound)
    expect_near(dtype .. " layer_norm", torch.layer_norm(y, { 500 }, w),
      torch.layer_norm(exact, { 500 }, weight:double()), 2 * bound)
    expect_near(dtype .. " rms_norm", torch.rms_norm(y, { 500 }, w),
      torch.rms_norm(exact, { 500 }, weight:double()), 2 * bound)
  end
end)

test("attention: plain, causal, with a mask, grouped heads, one query row", function()
  local k, v = random(2, 4, 64, 64), random(2, 4, 64, 64)
  local mask = torch.zeros { 2, 1, 1, 64 }
  mask:narrow(-1, 60, 4):fill_(-math.huge)
  for _, length in ipairs { 64, 1 } do
    local q = random(2, 8, length, 64)
    for _, given in ipairs { {}, { causal = length > 1 }, { mask = mask } } do
      local function attend(dtype, where)
        local function on(t) return t and t:to(dtype):to(where) end
        return nn.attention(on(q), on(k), on(v),
          { causal = given.causal, mask = on(given.mask), enable_gqa = true })
      end
      local exact = attend("float64", "cpu")
      expect_near("float32", attend("float32", device), exact, 1e-5)
      expect_near("bfloat16", attend("bfloat16", device), exact, 1e-2)
    end
  end
end)

test("attention with a trained bias keeps no scores, in any order of memory", function()
  local heads, n = 8, 1024
  for _, is_permuted in ipairs { false, true } do
    local bias = is_permuted and random(n, n, heads):permute { 2, 0, 1 } or random(heads, n, n)
    bias = bias:to(device):bfloat16():unsqueeze(0):requires_grad_()
    local q = random(gpu.is_there and 8 or 1, heads, n, 64):to(device):bfloat16():requires_grad_()
    local before = gpu.is_there and torch.cuda.memory_allocated()
    local y = nn.attention(q, q, q, { mask = bias })
    -- The scores have 134 MB, the bias 17, and the result 8.
    if gpu.is_there then assert(torch.cuda.memory_allocated() - before < 40e6) end
    y:float():sum():backward()
    assert(bias.grad:isfinite():all():item())
  end
end)

test("attention of grouped heads in float32 keeps no scores", function()
  local n = 1024
  local q = random(gpu.is_there and 8 or 1, 8, n, 64):to(device):requires_grad_()
  local k = random(q:size(0), 2, n, 64):to(device):requires_grad_()
  local before = gpu.is_there and torch.cuda.memory_allocated()
  local y = nn.attention(q, k, k, { causal = true, enable_gqa = true })
  -- The scores have 268 MB, the result and the copies of k and v 17 each.
  if gpu.is_there then assert(torch.cuda.memory_allocated() - before < 80e6) end
  y:sum():backward()
  assert(k.grad:isfinite():all():item())
end)

test("attention within segments and windows, and its gradients", function()
  local length = 500
  local ids = torch.ones({ 2, length }, { dtype = "int64" })
  ids[0]:add_(torch.arange(length):div(90, { rounding_mode = "floor" }))
  ids[1]:narrow(0, length - 30, 30):fill_(0)
  -- 60 and 44 elements are padded on a GPU; longer heads than 256 have a mask there.
  for _, sizes in ipairs { { 64, 64 }, { 60, 44 }, { 264, 264 } } do
    local q, k = random(2, 8, length, sizes[1]), random(2, 2, length, sizes[1])
    local v, d_y = random(2, 2, length, sizes[2]), random(2, 8, length, sizes[2])
    for _, near in ipairs { { ids }, { nil, 50 }, { ids, 50 } } do
      local function results(dtype, where)
        local function on(t) return t:to(dtype):to(where):detach() end
        local leaves = { on(q):requires_grad_(), on(k):requires_grad_(), on(v):requires_grad_() }
        local y = nn.attention(leaves[1], leaves[2], leaves[3], { causal = true, window = near[2],
          segment_ids = near[1] and near[1]:to(where), enable_gqa = true })
        y:backward(on(d_y))
        return { y, leaves[1].grad, leaves[2].grad, leaves[3].grad }
      end
      local exact = results("float64", "cpu")
      for dtype, bound in pairs { float32 = 1e-5, bfloat16 = 2e-2, float16 = 5e-3 } do
        for i, found in ipairs(results(dtype, device)) do
          expect_near(("%s, %d"):format(dtype, i), found, exact[i], bound)
        end
      end
    end
  end
end)

test("attention within segments keeps no mask and no scores", function()
  local n = gpu.is_there and 16384 or 256
  local q = random(1, 2, n, 64):to(device):bfloat16():requires_grad_()
  local ids = torch.arange(n):div(100, { rounding_mode = "floor" }):unsqueeze(0):to(device)
  local before = gpu.is_there and torch.cuda.memory_allocated()
  if gpu.is_there then torch.cuda.reset_peak_memory_stats() end
  for _, window in ipairs { 1000, n } do
    local y = nn.attention(q, q, q, { causal = true, segment_ids = ids, window = window })
    y:float():sum():backward()
    assert(q.grad:isfinite():all():item())
  end
  -- A mask of booleans has 268 MB.
  if gpu.is_there then assert(torch.cuda.max_memory_allocated() - before < 150e6) end
end)

test("attention where only the bias is trained", function()
  local bias, q = random(1, 4, 24, 24), random(2, 4, 24, 16)
  local k, v, d_y = random(2, 4, 24, 16), random(2, 4, 24, 16), random(2, 4, 24, 16)
  local function gradient(dtype, where)
    local function on(t) return t:to(dtype):to(where) end
    local trained = on(bias:detach()):requires_grad_()
    nn.attention(on(q), on(k), on(v), { mask = trained }):backward(on(d_y))
    return trained.grad
  end
  local exact = gradient("float64", "cpu")
  expect_near("float32", gradient("float32", device), exact, 1e-5)
  expect_near("bfloat16", gradient("bfloat16", device), exact, 2e-2)
end)

test("silu_mul and its gradients: dense, halves of one tensor, rows of odd lengths", function()
  for _, size in ipairs { 64, 7, 1000 } do
    local joined = random(33, 2 * size) * 3
    local function run(dtype, where, is_joined)
      local leaf = joined:detach():to(dtype):to(where):requires_grad_()
      local gate, up = unpack(leaf:chunk(2, -1))
      if not is_joined then gate, up = gate:contiguous(), up:contiguous() end
      local y = nn.silu_mul(gate, up)
      y:square():sum():backward()
      return { y, leaf.grad }
    end
    for _, is_joined in ipairs { false, true } do
      local exact = run("float64", "cpu", is_joined)
      for dtype, bound in pairs { float32 = 1e-6, bfloat16 = 2e-2, float16 = 2e-3 } do
        for i, result in ipairs(run(dtype, device, is_joined)) do
          expect_near(("%s %d, %d columns"):format(dtype, i, size), result, exact[i], bound)
        end
      end
    end
  end
end)

test("rotary positions: heads and positions in either order, parts of heads, odd sizes", function()
  for _, sizes in ipairs { { 64, 32 }, { 80, 16 }, { 6, 3 }, { 20, 8 } } do
    local size, n_pairs = unpack(sizes)
    local x, angles = random(3, 5, 7, size), random(3, 1, 5, n_pairs) * 3
    for _, interleaved in ipairs { false, true } do
      local function run(dtype, where)
        local leaf = x:detach():to(dtype):to(where):requires_grad_()
        local function on(t) return t:to(dtype):to(where) end
        local y = nn.apply_rotary_emb(leaf:transpose(1, 2), on(angles:cos()), on(angles:sin()),
          { interleaved = interleaved })
        y:square():mul(on(x:transpose(1, 2))):sum():backward()
        local by_heads = nn.apply_rotary_emb(leaf:detach():transpose(1, 2):contiguous(),
          on(angles:narrow(0, 0, 1):cos()), on(angles:narrow(0, 0, 1):sin()))
        return { y, leaf.grad, by_heads }
      end
      local exact = run("float64", "cpu")
      for dtype, bound in pairs { float32 = 1e-6, bfloat16 = 2e-2, float16 = 2e-3 } do
        for i, result in ipairs(run(dtype, device)) do
          expect_near(("%s %d, %d of %d elements"):format(dtype, i, 2 * n_pairs, size), result,
            exact[i], bound)
        end
      end
    end
  end
end)

test("linear_cross_entropy: classes in 16-byte units or not, a bias, no gradient", function()
  for _, n_classes in ipairs { 1, 7, 64, 1000 } do
    local x, weight, bias = random(40, 16), random(n_classes, 16), random(n_classes)
    local labels = torch.randint(n_classes, { 40 }, { generator = generator })
    labels:narrow(0, 3, 4):fill_(-100)
    local function run(dtype, where, smoothing)
      local leaves = redco.tree.map(function(t)
        return t:detach():to(dtype):to(where):requires_grad_()
      end, { x, weight, bias })
      local function loss()
        return nn.linear_cross_entropy(leaves[1], leaves[2], labels:to(where),
          { bias = leaves[3], label_smoothing = smoothing })
      end
      local results = { (torch.no_grad(loss)), (loss()) }
      results[2]:backward()
      for _, leaf in ipairs(leaves) do results[#results + 1] = leaf.grad end
      return results
    end
    for _, smoothing in ipairs { 0, 0.2 } do
      local exact = run("float64", "cpu", smoothing)
      for dtype, bound in pairs { float32 = 1e-5, bfloat16 = 2e-2, float16 = 4e-3 } do
        for i, result in ipairs(run(dtype, device, smoothing)) do
          -- With one class all gradients are 0.
          if exact[i]:norm():item() > 0 then
            local what = ("%s %d, %d classes"):format(dtype, i, n_classes)
            expect_near(what, result, exact[i], bound)
          end
        end
      end
    end
  end
end)

test("linear_cross_entropy: the loss and its gradients, over several blocks of rows", function()
  local x, weight = random(2500, 32) * 0.5, random(100000, 32) * 0.1
  local labels = torch.randint(100000, { 2500 }, { generator = generator })
  labels:narrow(0, 5, 9):fill_(-100)
  local function run(dtype, where)
    local a, b = x:to(dtype):to(where):requires_grad_(), weight:to(dtype):to(where):requires_grad_()
    local loss = nn.linear_cross_entropy(a, b, labels:to(where), { label_smoothing = 0.1 })
    loss:backward()
    return { loss, a.grad, b.grad }
  end
  local exact = run("float64", "cpu")
  for dtype, bound in pairs { float32 = 1e-5, bfloat16 = 2e-2 } do
    for i, result in ipairs(run(dtype, device)) do
      expect_near(dtype .. " " .. i, result, exact[i], bound)
    end
  end
end)

test("linear_logprobs: those of labels, and gradients by weights of their own", function()
  local x, weight, bias = random(300, 32) * 0.5, random(1001, 32) * 0.1, random(1001)
  local labels, factors = torch.randint(1001, { 300 }, { generator = generator }), random(300)
  labels:narrow(0, 5, 9):fill_(-100)
  local function run(dtype, where)
    local leaves = redco.tree.map(function(t)
      return t:detach():to(dtype):to(where):requires_grad_()
    end, { x, weight, bias })
    local each = nn.linear_logprobs(leaves[1], leaves[2], labels:to(where), { bias = leaves[3] })
    local results, sum = { each }, (each * factors:to(each.dtype):to(where)):sum()
    sum:backward()
    for _, leaf in ipairs(leaves) do results[#results + 1] = leaf.grad end
    return results
  end
  local exact = run("float64", "cpu")
  for dtype, bound in pairs { float32 = 1e-5, bfloat16 = 2e-2, float16 = 4e-3 } do
    for i, result in ipairs(run(dtype, device)) do
      expect_near(dtype .. " " .. i, result, exact[i], bound)
    end
  end
end)

test("gradients, gradients of gradients, and vmap of gradients", function()
  local params = nn.MLP({ 20, 50, 1 }, { generator = generator })
  local x = random(30, 20)
  local function loss(p, rows) return nn.mlp(p, rows):tanh():pow(2):sum() end
  local function size_of_gradient(p, rows)
    local sum = 0
    for _, leaf in ipairs(redco.tree.leaves(redco.grad(loss, { create_graph = true })(p, rows))) do
      sum = leaf:pow(2):sum() + sum
    end
    return sum
  end
  local rows = redco.vmap(redco.grad(loss), { in_dims = { false, 0 } })
  for bound, f in pairs { [1e-5] = redco.grad(loss), [1e-4] = redco.grad(size_of_gradient),
    [1.1e-5] = rows } do
    local expected = redco.tree.leaves(f(params, x))
    for i, leaf in ipairs(redco.tree.leaves(f(gpu.on(device, params), x:to(device)))) do
      expect_near("leaf " .. i, leaf, expected[i], bound)
    end
  end
end)

test("a checkpointed function runs again on the script's thread, with its dropout", function()
  local weight, x = random(64, 64), random(16, 64)
  local function gradient(where, is_checkpointed)
    local w, rng = gpu.on(where, weight, true), redco.Rng(5)
    local function layer(rows)
      return nn.dropout(rows:matmul(w):relu(), 0.3, { train = true, rng = rng })
    end
    local y = is_checkpointed and redco.checkpoint(layer, x:to(where)) or layer(x:to(where))
    y:pow(2):sum():backward()
    return w.grad
  end
  expect_near("kept", gradient(device, true), gradient(device, false), 1e-6)
  expect_near("on the CPU", gradient(device, true), gradient("cpu", true), 1e-5)
end)

test("products of float32 are exact unless TF32 is allowed", function()
  local a, b = random(512, 512), random(512, 512)
  local exact, x, y = a:double():matmul(b:double()), a:to(device), b:to(device)
  expect_near("highest", x:matmul(y), exact, 2e-6)
  torch.set_float32_matmul_precision "high"
  local product = x:matmul(y)
  torch.set_float32_matmul_precision "highest"
  expect_near("high", product, exact, 2e-3)
end)

test("convolutions of float32 are exact unless TF32 is allowed", function()
  local x, weight = random(4, 16, 20, 20), random(32, 16, 3, 3)
  local exact = torch.conv2d(x:double(), weight:double())
  expect_near("highest", torch.conv2d(x:to(device), weight:to(device)), exact, 2e-6)
end)

test("a TorchScript module on the GPU", function()
  local path = assert(os.getenv "REDCO_SOURCE") .. "/tests/lua/script_module.pt"
  local module = torch.jit.load(path, { map_location = device })
  for name, tensor in pairs(module.params) do assert(tensor.device:find("^" .. device), name) end
end)

test("a pinned tensor is copied while the host goes on", function()
  if not gpu.is_there then return end
  local x = random(1000, 1000):pin_memory()
  assert(x:is_pinned())
  local y = x:to { device = device, non_blocking = true }
  torch.cuda.synchronize()
  assert(y:cpu() == x)
end)

test("events time work, and memory follows tensors", function()
  if not gpu.is_there then return end
  local from = torch.cuda.Event { enable_timing = true }
  local to = torch.cuda.Event { enable_timing = true }
  local before = torch.cuda.memory_allocated()
  local x = torch.ones({ 4096, 4096 }, { device = device })
  assert(torch.cuda.memory_allocated() >= before + x:nbytes())
  from:record()
  for _ = 1, 10 do x:matmul(x) end
  to:record()
  to:synchronize()
  assert(from:query() and from:elapsed_time(to) > 0.1)
  -- Far more than the card has, were garbage kept.
  for _ = 1, 4000 do torch.empty({ 2 ^ 24 }, { device = device }) end
  torch.cuda.synchronize()
  local _, total = torch.cuda.mem_get_info()
  assert(torch.cuda.max_memory_allocated() < before + total / 5)
end)

testing.finish()
