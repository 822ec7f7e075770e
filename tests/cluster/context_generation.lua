-- Generation from prompts whose positions context shards split: the keys and values of the prompt
-- stay where they are computed, and a step sends what its queries found. The tokens are those of
-- one process. In two or four processes.
local redco = require "redco"
local testing = require "testing"
local traffic = require "traffic"

local torch = redco.torch
local test = testing.test
local source = assert(os.getenv "REDCO_SOURCE")
local n_processes = tonumber(os.getenv "WORLD_SIZE")
local generator = torch.Generator(5)

local function randn(...)
  return torch.randn({ ... }, { generator = generator, dtype = "float64" })
end

local function open(name)
  local model = redco.models.from_pretrained(source .. "/tests/cases/" .. name,
    { dtype = "float64" })
  model.generation_config = {}
  return model
end

-- Lays out the parameters as training does.
local function laid_out(model, deployer)
  local trainer = redco.Trainer {
    deployer = deployer, compute_dtype = "float64",
    params = redco.tree.map(function(p) return p:detach():clone() end, model.params),
    optimizer = redco.optim.sgd { learning_rate = 0 },
    collate_fn = function(rows)
      local ids = torch.stack(rows)
      return { input_ids = ids, labels = ids:roll(-1, 1) }
    end,
    loss_fn = model.loss_fn,
  }
  local examples = {}
  for i = 1, 4 do examples[i] = torch.arange(16) + i end
  trainer:setup_running_step { examples = examples, per_device_batch_size = 1 }
  return trainer.params
end

-- Before there is a Deployer, which would spread the parameters over the processes.
local names = { "llama", "gpt2", "qwen2", "gemma2" }
local models = {}
for _, name in ipairs(names) do models[name] = open(name) end

redco.Deployer { seed = 1, n_context_shards = n_processes, verbose = false }

-- Attention of few queries --------------------------------------------------------------------

local function expect_attention(q, k, v, options, placement)
  local whole = redco.nn.attention(q, k, v, options)
  local parts = {}
  for name, value in pairs(options) do parts[name] = value end
  local k_parts, v_parts = redco.shard(k, placement), redco.shard(v, placement)
  local moved = traffic.sent("cp", function()
    testing.expect_close(redco.nn.attention(q, k_parts, v_parts, parts):full(), whole, 1e-12, 1e-14)
  end)
  local size = q:numel() / q:size(3) * (v:size(3) + 1) * 8
  traffic.expect_only(moved, { all_gather = { 1, (n_processes - 1) * size } })
end

test("few queries attend to the keys of each process", function()
  for _, length in ipairs { 16, 19 } do
    for _, placement in ipairs { { cp = 2 }, { cp = { dim = 2, block = { length - 5, 5 } } } } do
      for _, n_kv in ipairs { 4, 2, 1 } do
        for _, n_queries in ipairs { 1, 3 } do
          local q = randn(2, 4, n_queries, 6)
          local k, v = randn(2, n_kv, length, 6), randn(2, n_kv, length, 6)
          local grouped = { enable_gqa = n_kv < 4 }
          expect_attention(q, k, v, grouped, placement)
          -- Some queries see nothing in the part of a process, and one sees nothing at all.
          local seen = torch.arange(length):lt(3):view { 1, 1, 1, length }
            :expand { 2, 1, n_queries, length }:clone()
          seen[1][0][0]:fill_(0)
          local added = torch.zeros(seen.shape, { dtype = "float64" })
            :masked_fill(seen:logical_not(), -math.huge)
          for _, mask in ipairs { seen, added, randn(n_queries, length), randn(2, 4, 1, length) } do
            if mask:size(-2) == n_queries then
              expect_attention(q, k, v, { mask = mask, enable_gqa = n_kv < 4, scale = 0.3 },
                placement)
            end
          end
        end
      end
    end
  end
end)

test("attention that is differentiated, or has many queries", function()
  local k = redco.shard(randn(2, 4, 16, 6), { cp = 2 })
  for _, n_queries in ipairs { 1, 16 } do
    local q = randn(2, 4, n_queries, 6)
    local leaf, whole = k:detach():requires_grad_(), k:full():requires_grad_()
    redco.nn.attention(q, leaf, leaf, {}):sum():backward()
    local plain = redco.nn.attention(q, whole, whole, {})
    plain:sum():backward()
    testing.expect_close(leaf.grad:full(), whole.grad, 1e-10, 1e-12)
    testing.expect_close(redco.nn.attention(q, k, k, {}):full(), plain:detach(), 1e-12, 1e-14)
  end
end)

-- Room behind split positions -----------------------------------------------------------------

test("room is split too, and written where it is", function()
  for _, length in ipairs { 8, 11 } do
    local x, new = randn(2, 3, length, 2), randn(2, 3, 2, 2)
    local whole = torch.constant_pad_nd(x, { 0, 0, 0, length }, 7)
    traffic.expect_only(traffic.sent("cp", function()
      local parts = torch.constant_pad_nd(redco.shard(x, { cp = 2 }), { 0, 0, 0, length }, 7)
      -- Equal blocks, and, after more room, other ones.
      for at = length - 1, 2 * length - 2, 3 do
        whole:narrow(2, at, 2):copy_(new)
        parts:index_copy_(2, torch.arange(at, at + 2), new)
        whole:narrow(2, at, 1):copy_(new:narrow(2, 1, 1))
        parts:index_copy_(2, torch.tensor { at }, new:narrow(2, 1, 1))
      end
      for _, more in ipairs { 0, 3 } do
        parts = torch.constant_pad_nd(parts, { 0, 0, 0, more }, 1)
        whole = torch.constant_pad_nd(whole, { 0, 0, 0, more }, 1)
        for _, seen in ipairs { 3, length, length + 1, 2 * length - 1, 2 * length + more } do
          local prefix = parts:narrow(2, 0, seen)
          testing.expect_equal(prefix:to_local():size(2) <= parts:to_local():size(2), true)
          assert(prefix:placement().cp ~= "replicate")
        end
      end
    end), {})
    local parts = torch.constant_pad_nd(redco.shard(x, { cp = 2 }), { 0, 0, 0, length }, 7)
    local plain = torch.constant_pad_nd(x, { 0, 0, 0, length }, 7)
    for _, more in ipairs { 0, 3 } do
      parts = torch.constant_pad_nd(parts, { 0, 0, 0, more }, 1)
      plain = torch.constant_pad_nd(plain, { 0, 0, 0, more }, 1)
      for at = length - 1, 2 * length - 2, 3 do
        plain:narrow(2, at, 2):copy_(new)
        parts:index_copy_(2, torch.arange(at, at + 2), new)
        plain:narrow(2, at, 1):copy_(new:narrow(2, 1, 1))
        parts:index_copy_(2, torch.tensor { at }, new:narrow(2, 1, 1))
      end
      testing.expect_equal(parts:full():equal(plain), true)
      for n = 1, length do
        testing.expect_equal(torch.constant_pad_nd(parts, { 0, 0, 0, -n }):full():equal(
          torch.constant_pad_nd(plain, { 0, 0, 0, -n })), true)
      end
      for seen = 1, plain:size(2) do
        local prefix, expected = parts:narrow(2, 0, seen), plain:narrow(2, 0, seen)
        testing.expect_equal(prefix:full():equal(expected), true)
        -- Readers that need other parts.
        testing.expect_equal(prefix:flip { 2 }:full():equal(expected:flip { 2 }), true)
        testing.expect_close(prefix:cumsum(2):full(), expected:cumsum(2), 1e-12, 1e-12)
        testing.expect_close(prefix:sum(2):full(), expected:sum(2), 1e-12, 1e-12)
        testing.expect_close((prefix * 2):transpose(1, 2):reshape { 2, seen, 6 }:full(),
          (expected * 2):transpose(1, 2):reshape { 2, seen, 6 }, 0, 0)
        testing.expect_close(torch.cat({ prefix, new }, 2):full(), torch.cat({ expected, new }, 2),
          0, 0)
        testing.expect_close(prefix[{ {}, {}, { 0, -1, 2 } }]:full(),
          expected[{ {}, {}, { 0, -1, 2 } }], 0, 0)
        for _, n in ipairs { -1, 2 } do
          local pad = { 0, 0, 0, n }
          testing.expect_close(torch.constant_pad_nd(prefix, pad, 4):full(),
            torch.constant_pad_nd(expected, pad, 4), 0, 0)
        end
        local last = prefix:narrow(2, math.floor(seen / 2), seen - math.floor(seen / 2))
        testing.expect_equal(last:full():equal(
          expected:narrow(2, math.floor(seen / 2), seen - math.floor(seen / 2))), true)
        testing.expect_equal(prefix:select(2, seen - 1):full():equal(
          expected:select(2, seen - 1)), true)
      end
      -- A write through the first positions reaches the whole tensor.
      parts:narrow(2, 0, length + 2):mul_(2)
      plain:narrow(2, 0, length + 2):mul_(2)
      testing.expect_equal(parts:full():equal(plain), true)
    end
  end
end)

test("gradients through room", function()
  for _, length in ipairs { 8, 11 } do
    local function loss(x)
      local y = torch.constant_pad_nd(x, { 0, 0, 0, 5 }, 2)
      return (y * y):sum() + (y:narrow(2, 0, length + 3):sin() * 3):sum()
        + y:narrow(2, 0, length):exp():sum()
    end
    local x = randn(2, 3, length, 2)
    local a, b = x:clone():requires_grad_(), redco.shard(x, { cp = 2 }):detach():requires_grad_()
    loss(a):backward()
    loss(b):backward()
    testing.expect_close(b.grad:full(), a.grad, 1e-10, 1e-12)
  end
end)

-- Models --------------------------------------------------------------------------------------

local n_rows = 2
local function prompt(length)
  return torch.randint(3, 200, { n_rows, length }, { generator = torch.Generator(length) })
end

-- Options of generation, and whether rows have padding.
local ways = {
  greedy = { {} },
  ["greedy with padding"] = { {}, true },
  sampled = { { do_sample = true, temperature = 0.8, top_k = 20, seed = 4 } },
  beams = { { num_beams = 3 } },
  ["static cache"] = { { cache_implementation = "static" }, true },
}

local function generated(model, params, ids, way, placement)
  local options, has_padding = unpack(way)
  local inputs, o = { input_ids = ids }, { max_new_tokens = 7, eos_token_id = -1,
    pad_token_id = 0 }
  for name, value in pairs(options) do o[name] = value end
  if has_padding then
    inputs.attention_mask = torch.arange(ids:size(1)):ge(torch.tensor { { 0 }, { 9 } })
      :to "int64"
  end
  for name, t in pairs(inputs) do
    if placement then inputs[name] = redco.shard(t, placement) end
  end
  return (model.generate(params, inputs, o))
end

local function expect_same_tokens(model, params, layout)
  for _, length in ipairs { 16, 19 } do
    for what, way in pairs(ways) do
      test(("%s, %d tokens, %s on %s"):format(model.config.model_type, length, what, layout),
        function()
          local ids = prompt(length)
          local expected = generated(model, model.params, ids, way)
          local found = generated(model, params, ids, way, { cp = 1 })
          assert(found:equal(expected), ("%s, expected %s"):format(found, expected))
        end)
    end
  end
end

for _, name in ipairs(names) do
  expect_same_tokens(models[name], models[name].params, n_processes .. " context shards")
end

test("a cache is split, and a step sends what its queries found", function()
  local model = models.llama
  local c = model.config
  local length, room = 32, 16
  local cache = redco.models.new_cache(length + room)
  local ids = redco.shard(prompt(length), { cp = 1 })
  torch.no_grad(function()
    model.hidden_states(model.params, { input_ids = ids }, { cache = cache })
    local bytes = 0
    for _, held in ipairs(cache.layers) do
      for i = 1, 2 do bytes = bytes + held[i]:to_local():numel() * 8 end
    end
    local of_token = c.num_hidden_layers * 2 * c.num_key_value_heads * c.head_dim * n_rows * 8
    testing.expect_equal(bytes, of_token * (length + room) / n_processes)
    for n_tokens = 1, 2 do
      local new = prompt(n_tokens)
      local found = n_rows * c.num_attention_heads * n_tokens * (c.head_dim + 1) * 8
      traffic.expect_only(traffic.sent("cp", function()
        model.hidden_states(model.params, { input_ids = new }, { cache = cache })
      end), { all_gather = { c.num_hidden_layers,
        c.num_hidden_layers * (n_processes - 1) * found } })
    end
  end)
end)

test("a cache that grows", function()
  for _, name in ipairs(names) do
    local model = models[name]
    local function hidden(ids)
      local cache, all = redco.models.new_cache(), {}
      local function read(new)
        all[#all + 1] = model.hidden_states(model.params, { input_ids = new },
          { cache = cache }):full()
      end
      torch.no_grad(function()
        read(ids)
        for _, n in ipairs { 1, 1, 3, 14, 1, 2 } do read(prompt(n)) end
      end)
      return torch.cat(all, 1)
    end
    testing.expect_close(hidden(redco.shard(prompt(9), { cp = 1 })), hidden(prompt(9)), 1e-9, 1e-11)
  end
end)

if n_processes == 4 then
  local deployer = redco.Deployer { seed = 1, n_context_shards = 2, n_model_shards = 2,
    verbose = false }
  for _, name in ipairs(names) do
    expect_same_tokens(models[name], laid_out(models[name], deployer), "1x2, two context shards")
  end
end

testing.finish()
