-- Context shards: attention over positions that several processes hold, slices that shift them, and
-- the placements of batches. What plain tensors give is expected. In two or four processes.
local redco = require "redco"
local testing = require "testing"
local torch = require "redco.torch"
local traffic = require "traffic"

local test = testing.test
local n_processes = tonumber(os.getenv "WORLD_SIZE")
local generator = torch.Generator(3)

local function randn(...)
  return torch.randn({ ... }, { generator = generator, dtype = "float64" })
end

local function deployer_of(n_context_shards, n_model_shards)
  return redco.Deployer { seed = 1, n_context_shards = n_context_shards,
    n_model_shards = n_model_shards, verbose = false }
end

-- The result of f and the gradients of its arguments.
local function results(f, arguments, gradient)
  local leaves = {}
  for i, x in ipairs(arguments) do leaves[i] = x:detach():requires_grad_() end
  local y = f(unpack(leaves))
  y:backward(gradient)
  local all = { y:detach() }
  for _, leaf in ipairs(leaves) do all[#all + 1] = leaf.grad end
  return all
end

local function expect_same(f, arguments, placements)
  local ones = torch.ones_like(f(unpack(arguments)))
  local whole = results(f, arguments, ones)
  local shards = {}
  for i, x in ipairs(arguments) do shards[i] = redco.shard(x, placements[i] or placements) end
  local found = results(f, shards, ones)
  for i, expected in ipairs(whole) do
    testing.expect_close(found[i]:full(), expected, 1e-9, 1e-11)
  end
end

-- The collectives over the context shards, as a text.
local function sent(body)
  local found, words = traffic.sent("cp", body), {}
  for _, kind in ipairs(traffic.kinds) do
    if found[kind].count > 0 then words[#words + 1] = ("%d %s"):format(found[kind].count, kind) end
  end
  return table.concat(words, ", ")
end

local function attention(options)
  return function(q, k, v)
    -- Positions are dimension 2, as in the layers of models.
    return redco.nn.attention(q, k, v, options) * torch.arange(q:size(-1), { dtype = "float64" })
  end
end

local function heads_and_positions(n_heads, n_kv, length, n_keys)
  return { randn(2, n_heads, length, 4), randn(2, n_kv, n_keys or length, 4),
    randn(2, n_kv, n_keys or length, 4) }
end

local n_context = n_processes
local deployer = deployer_of(n_context)
local positions = { cp = 2 }

for _, length in ipairs { 8, 11 } do
  local exchanged = "8 all_to_all"
  test(("attention, %d positions: exchanged for heads"):format(length), function()
    for _, causal in ipairs { false, true } do
      local moved = sent(function()
        expect_same(attention { causal = causal }, heads_and_positions(4, 4, length), positions)
      end)
      testing.expect_equal(moved:match "%d+ all_to_all", exchanged)
    end
  end)
  test(("attention, %d positions: grouped heads"):format(length), function()
    for _, n_kv in ipairs { 1, 2 } do
      for _, causal in ipairs { false, true } do
        local moved = sent(function()
          expect_same(attention { causal = causal, enable_gqa = true },
            heads_and_positions(4, n_kv, length), positions)
        end)
        testing.expect_equal(moved:match "%d+ all_to_all", exchanged)
      end
    end
  end)
  test(("attention, %d positions: heads that do not divide"):format(length), function()
    for _, causal in ipairs { false, true } do
      expect_same(attention { causal = causal }, heads_and_positions(3, 3, length), positions)
      expect_same(attention { causal = causal, enable_gqa = true },
        heads_and_positions(6, 3, length), positions)
    end
  end)
  test(("attention, %d positions: masks"):format(length), function()
    local seen = randn(2, 1, length, length):gt(-1):logical_or(torch.eye(length):gt(0))
    for _, placement in ipairs { { cp = 2 }, { cp = 3 }, {} } do
      local function masked(q, k, v)
        local mask = q:is_sharded() and redco.shard(seen, placement) or seen
        return redco.nn.attention(q, k, v, { mask = mask })
      end
      expect_same(masked, heads_and_positions(4, 4, length), positions)
      expect_same(masked, heads_and_positions(3, 3, length), positions)
    end
  end)
  test(("attention, %d positions: a mask is gathered once"):format(length), function()
    local mask = redco.shard(randn(2, 1, length, length), { cp = 3 })
    local given = heads_and_positions(4, 4, length)
    for i, x in ipairs(given) do given[i] = redco.shard(x, positions) end
    local q, k, v = unpack(given)
    local function attend() return redco.nn.attention(q, k, v, { mask = mask }) end
    local first
    testing.expect_equal(sent(function() first = attend() + attend() end),
      "1 all_gather, 8 all_to_all")
    mask:add_(torch.randn(mask.shape, { generator = torch.Generator(1), dtype = "float64" }))
    local plain = redco.nn.attention(q:full(), k:full(), v:full(), { mask = mask:full() })
    testing.expect_close(attend():full(), plain, 1e-9, 1e-11)
    assert((first - plain):abs():max():item() > 0.1)
  end)
  test(("attention, %d positions: within segments and a window"):format(length), function()
    local ids = torch.arange(2 * length):view { 2, length }:div(3, { rounding_mode = "floor" })
    for _, placement in ipairs { { cp = 1 }, {} } do
      for _, window in ipairs { 2, length } do
        local function attend(q, k, v)
          return redco.nn.attention(q, k, v, { causal = true, enable_gqa = true, window = window,
            segment_ids = q:is_sharded() and redco.shard(ids, placement) or ids })
        end
        for n_kv = 1, 4 do
          if n_kv ~= 3 then
            local moved = sent(function()
              expect_same(attend, heads_and_positions(4, n_kv, length), positions)
            end)
            testing.expect_equal(moved:match "%d+ all_to_all", exchanged)
          end
        end
        expect_same(attend, heads_and_positions(3, 3, length), positions)
        expect_same(attend, heads_and_positions(6, 3, length), positions)
      end
    end
    local shared = redco.shard(ids, { cp = 1 })
    local given = heads_and_positions(4, 4, length)
    for i, x in ipairs(given) do given[i] = redco.shard(x, positions) end
    local function attend()
      return redco.nn.attention(given[1], given[2], given[3],
        { causal = true, segment_ids = shared })
    end
    testing.expect_equal(sent(function() return attend() + attend() end),
      "1 all_gather, 8 all_to_all")
  end)
  test(("attention, %d positions: to other ones"):format(length), function()
    expect_same(attention {}, heads_and_positions(4, 4, length, 9), positions)
    expect_same(attention {}, heads_and_positions(4, 4, length, 9), { positions, {}, {} })
    expect_same(attention {}, heads_and_positions(4, 4, length, 9), { {}, positions, positions })
  end)
  test(("attention, %d positions: step by step"):format(length), function()
    expect_same(attention { softcap = 2, causal = true }, heads_and_positions(4, 4, length),
      positions)
    expect_same(attention { causal = true, enable_gqa = true, softcap = 2 },
      heads_and_positions(4, 2, length), positions)
  end)
end

test("the gradient of attention's gradient", function()
  local function penalty(q, k, v)
    local y = torch.softmax(q:matmul(k:transpose(2, 3)), -1):matmul(v)
    return redco.grad(function(x) return (x * x * y:detach()):sum() end)(q) * y
  end
  expect_same(penalty, heads_and_positions(4, 4, 8), positions)
end)

for _, dtype in ipairs { "float64", "int64" } do
  test("slices that shift positions exchange the ends, " .. dtype, function()
    local x = randn(3, 48, 2) * 10
    local function both(y)
      return y:narrow(1, 1, 47) * 2 + y:narrow(1, 0, 47) + y[{ {}, { 1, -2 } }]:sum()
    end
    local moved = traffic.sent("cp", function()
      if dtype == "float64" then return expect_same(both, { x }, { cp = 1 }) end
      local found = both(redco.shard(x:to(dtype), { cp = 1 }))
      testing.expect_equal(found:equal(both(x:to(dtype))), true)
    end)
    assert(moved.all_to_all.count > 0)
  end)
end

test("positions that are joined stay split", function()
  local x, first = randn(3, 48, 2), randn(3, 1, 2)
  local function shifted(y, z) return torch.cat({ z, y:narrow(1, 0, 47) }, 1) * y end
  local function longer(y, z) return torch.cat({ z, y, y * 2, z }, 1) end
  local moved = traffic.sent("cp", function()
    expect_same(shifted, { x, first }, { { cp = 1 }, {} })
    expect_same(longer, { x, first }, { { cp = 1 }, {} })
  end)
  assert(moved.all_to_all.count > 0)
  local shards = { redco.shard(x, { cp = 1 }), redco.shard(first, {}) }
  for _, f in ipairs { shifted, longer } do
    testing.expect_equal(f(unpack(shards)):placement().cp, "shard(1)")
  end
end)

test("a few positions are sent to all", function()
  local x = redco.shard(randn(2, 48, 4):float(), { cp = 1 })
  local moved = traffic.sent("cp", function()
    testing.expect_close(x:narrow(1, 23, 2):full(), x:full():narrow(1, 23, 2), 0, 0)
  end)
  -- Two shards hold one of them each.
  testing.expect_equal(moved.all_to_all.bytes, (n_context - 1) * 2 * 4 * 4)
end)

test("a write to a slice that shifts positions reaches the tensor", function()
  for _, first in ipairs { 0, 1 } do
    local x = randn(3, 48)
    local a, b = x:clone(), redco.shard(x, { cp = 1 })
    a:narrow(1, first, 47):mul_(2)
    b:narrow(1, first, 47):mul_(2)
    a:narrow(1, first, 2):add_(1)
    b:narrow(1, first, 2):add_(1)
    testing.expect_close(b:full(), a, 0, 0)
    local part_a, part_b = a:narrow(1, first, 47), b:narrow(1, first, 47)
    a:add_(1)
    b:add_(1)
    testing.expect_close(part_b:full(), part_a, 0, 0)
  end
end)

-- Convolutions ----------------------------------------------------------------------------------

-- Adds weights to the sum, so that elements of the gradient differ.
local function weighted(y)
  return y * torch.arange(y:size(-1), { dtype = y.dtype }):add(1)
end

-- {size of the kernel, stride, padding, dilation, groups}
local kernels = { { 3, 1, 1, 1, 1 }, { 4, 1, 3, 1, 4 }, { 3, 2, 1, 1, 1 }, { 3, 2, 0, 1, 2 },
  { 3, 1, 2, 2, 1 }, { 2, 2, 0, 1, 1 }, { 1, 1, 0, 1, 1 }, { 5, 3, 2, 1, 2 }, { 2, 1, 0, 3, 4 } }

for _, length in ipairs { 48, 51 } do
  test(("convolutions over %d positions exchange the ends of parts"):format(length), function()
    for _, row in ipairs(kernels) do
      local size, stride, padding, dilation, groups = unpack(row)
      local function convolve(x, weight, bias)
        return weighted(torch.conv1d(x, weight, bias, stride, padding, dilation, groups))
      end
      local moved = traffic.sent("cp", function()
        expect_same(convolve, { randn(2, 4, length), randn(4, 4 / groups, size), randn(4) },
          { { cp = 2 }, {}, {} })
      end)
      -- The result and the gradient of x are gathered by the test.
      testing.expect_equal(moved.all_gather.count, 2)
      assert(moved.all_to_all.count <= 3, moved.all_to_all.count)
    end
  end)
end

test("bytes of a convolution", function()
  local n_channels, length, batch = 4, 48, 2
  local x = redco.shard(randn(batch, n_channels, length), { cp = 2 }):requires_grad_()
  local weight = randn(n_channels, 1, 4):requires_grad_()
  local y
  -- Each of the other processes gets as many positions as the one that needs most. Parts of the
  -- padded input, and of the result, begin at other positions.
  local ends = batch * n_channels * (n_context == 2 and 2 or 3) * 8
  local function exchange(n) return { n, n * (n_context - 1) * ends } end
  traffic.expect_only(traffic.sent("cp", function()
    y = torch.conv1d(torch.constant_pad_nd(x, { 3, 0 }), weight, nil, 1, 0, 1, n_channels)
  end), { all_to_all = exchange(2) })
  testing.expect_equal(y:placement().cp, "shard(2)")
  local moved = traffic.sent("cp", function() y:backward(y:detach()) end)
  -- Back through both, and the inputs of the convolution once more.
  testing.expect_equal(moved.all_to_all.count, 3)
  testing.expect_equal(moved.all_gather.count, 0)
end)

test("group norm of split positions sends sums", function()
  for _, n_groups in ipairs { 1, 2, 4 } do
    for _, shape in ipairs { { 2, 4, 19 }, { 2, 4, 3, 19 } } do
      local moved = traffic.sent("cp", function()
        expect_same(function(x, weight, bias)
          return weighted(torch.group_norm(x, n_groups, weight, bias)) * x
        end, { randn(unpack(shape)), randn(4), randn(4) }, { { cp = #shape - 1 }, {}, {} })
        expect_same(function(x) return weighted(torch.group_norm(x, n_groups)):square() end,
          { randn(unpack(shape)) }, { { cp = #shape - 1 } })
      end)
      testing.expect_equal(moved.all_gather.count, 4)
    end
  end
end)

test("convolutions of short parts, and of images", function()
  expect_same(function(x, weight) return weighted(torch.conv1d(x, weight, nil, 1, 6)) end,
    { randn(2, 4, 16), randn(4, 4, 13) }, { { cp = 2 }, {} })
  expect_same(function(x, weight) return weighted(torch.conv1d(x, weight, nil, 1, 1)) end,
    { randn(2, 4, 3), randn(4, 4, 3) }, { { cp = 2 }, {} })
  expect_same(function(x, weight) return weighted(torch.conv_transpose1d(x, weight, nil, 2, 1)) end,
    { randn(2, 4, 48), randn(4, 4, 3) }, { { cp = 2 }, {} })
  for dim = 2, 3 do
    local moved = traffic.sent("cp", function()
      expect_same(function(x, weight)
        return weighted(torch.conv2d(x, weight, nil, { 1, 2 }, { 1, 2 }, { 2, 1 }))
      end, { randn(2, 4, 24, 48), randn(4, 4, 3, 3) }, { { cp = dim }, {} })
    end)
    testing.expect_equal(moved.all_gather.count, 2)
  end
  -- Neither the input nor the gradient of the result says all.
  expect_same(function(x, weight)
    local y = torch.conv1d(x, weight, nil, 1, 3)
    return weighted(y:full():narrow(2, 0, 48)) + weighted(y:narrow(2, 0, 48))
  end, { randn(2, 4, 48), randn(4, 4, 4) }, { { cp = 2 }, {} })
end)

test("convolutions that LibTorch refuses", function()
  local x = redco.shard(randn(2, 4, 48), { cp = 2 })
  local weight = randn(4, 4, 3)
  for _, arguments in ipairs { { 0 }, { -1 }, { 1, -1 }, { 1, 0, 0 }, { { 1, 1 } } } do
    assert(not pcall(torch.conv1d, x, weight, nil, unpack(arguments)))
  end
  assert(not pcall(torch.conv1d, x, randn(4, 4, 3, 3)))
end)

test("the gradient of a convolution's gradient, and vmap", function()
  for _, row in ipairs { { 3, 1, 1, 1, 1 }, { 4, 1, 3, 1, 4 }, { 3, 2, 1, 1, 2 } } do
    local size, stride, padding, dilation, groups = unpack(row)
    local function convolve(x, weight)
      return torch.conv1d(x, weight, nil, stride, padding, dilation, groups)
    end
    local function penalty(x, weight)
      local g = redco.grad(function(z) return (convolve(z, weight) ^ 3):sum() end)(x)
      return weighted(g * g)
    end
    expect_same(penalty, { randn(2, 4, 48), randn(4, 4 / groups, size) }, { { cp = 2 }, {} })
    local function each(x, weight)
      local function one(z) return convolve(z:unsqueeze(0), weight):squeeze(0) end
      return weighted(redco.vmap(one)(x))
    end
    expect_same(each, { randn(2, 4, 48), randn(4, 4 / groups, size) }, { { cp = 2 }, {} })
  end
end)

test("padding on both sides exchanges what shifts", function()
  for _, pad in ipairs { { 3, 0 }, { 2, 1 }, { -2, 0 }, { -1, 2 }, { 2, -3 }, { 0, -2 } } do
    local moved = traffic.sent("cp", function()
      expect_same(function(x) return weighted(torch.constant_pad_nd(x, pad, 2):square()) end,
        { randn(2, 3, 48) }, { cp = 2 })
    end)
    testing.expect_equal(moved.all_gather.count, 2)
  end
  expect_same(function(x) return weighted(torch.constant_pad_nd(x, { 30, 1 }, 2)) end,
    { randn(2, 3, 48) }, { cp = 2 })
end)

-- Batches ----------------------------------------------------------------------------------------

local function placements_in(context_dims, collate, leaves)
  local found = {}
  local trainer = redco.Trainer {
    deployer = deployer, params = { w = torch.ones { 2 } }, collate = collate,
    optimizer = redco.optim.sgd { learning_rate = 0.1 }, context_dims = context_dims,
    collate_fn = function(examples)
      local batch = {}
      for name, sizes in pairs(leaves) do
        batch[name] = torch.ones { #examples, unpack(sizes) }
      end
      return batch
    end,
    loss_fn = function(_, _, params, batch)
      for name, leaf in pairs(batch) do found[name] = leaf:placement().cp or "replicate" end
      return params.w:sum()
    end,
  }
  trainer:train_step { examples = { 1, 2, 3, 4 }, per_device_batch_size = 4 }
  return found
end

test("the tensors of a batch are split along their positions", function()
  local leaves = { ids = { 8 }, image = { 3, 8, 9 }, few = { n_context - 1 }, label = {} }
  local function expect(found, ids, image)
    local text = ("%s %s %s %s"):format(found.ids, found.image, found.few, found.label)
    testing.expect_equal(text, ("%s %s replicate replicate"):format(ids, image))
  end
  for _, collate in ipairs { "global", "local" } do
    expect(placements_in(nil, collate, leaves), "shard(1)",
      n_context <= 3 and "shard(1)" or "replicate")
    expect(placements_in({ image = 3, ids = false }, collate, leaves), "replicate", "shard(3)")
  end
end)

test("wrong dimensions of positions", function()
  local function given(context_dims)
    return function() placements_in(context_dims, "global", { ids = { 8 } }) end
  end
  testing.expect_error(given { ids = 2 },
    "context_dims: 'ids' of the batch has the shape [4, 8] and no positions in dimension 2")
  testing.expect_error(given { ids = 0 },
    "context_dims.ids: expected the dimension of the positions, from 1, or false, got")
  testing.expect_error(given { 1 }, "is not the name of a tensor of the batch")
end)

test("a number that does not divide the processes", function()
  testing.expect_error(function() deployer_of(3) end,
    ("n_context_shards = 3 must divide %d"):format(n_processes))
end)

-- With model shards ------------------------------------------------------------------------------

if n_processes == 4 then
  deployer = deployer_of(2, 2)
  test("attention on 1x2 with two context shards", function()
    for _, n_kv in ipairs { 8, 4, 2 } do
      local moved = sent(function()
        expect_same(attention { causal = true, enable_gqa = true },
          heads_and_positions(8, n_kv, 11), { mp = 1, cp = 2 })
      end)
      testing.expect_equal(moved:match "%d+ all_to_all", "8 all_to_all")
    end
    expect_same(attention { causal = true, enable_gqa = true }, heads_and_positions(6, 3, 11),
      { { mp = 1, cp = 2 }, { cp = 2 }, { cp = 2 } })
    expect_same(attention { causal = true, enable_gqa = true }, heads_and_positions(8, 1, 11),
      { { mp = 1, cp = 2 }, { cp = 2 }, { cp = 2 } })
  end)
end

testing.finish()
