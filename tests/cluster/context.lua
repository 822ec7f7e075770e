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
