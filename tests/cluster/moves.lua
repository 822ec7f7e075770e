-- Bytes are counted by their purpose. The report names each operator whose arguments are gathered,
-- with its line, its bytes and an advice that works. All bytes add up to those of the groups. Two
-- processes.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_equal, expect_close = testing.test, testing.expect_equal, testing.expect_close

local generator = torch.Generator(2)
local function random(...) return torch.randn({ ... }, { generator = generator }) end

--- The moves that `body` adds, and a check that they are all that the groups sent.
local function moves_of(body)
  local before = redco.sharding_counters()
  local result = body()
  local after = redco.sharding_counters()
  local function key(move)
    return table.concat({ move.cause, move.what, move.line, tostring(move.is_backward), move.group,
      move.kind }, "\n")
  end
  local was, moves, sums = {}, {}, {}
  for _, move in ipairs(before.moves) do was[key(move)] = move end
  for _, move in ipairs(after.moves) do
    local old = was[key(move)] or { calls = 0, collectives = 0, bytes = 0 }
    if move.collectives > old.collectives then
      for _, name in ipairs { "calls", "collectives", "bytes" } do
        move[name] = move[name] - old[name]
      end
      moves[#moves + 1] = move
      local sum = sums[move.group .. " " .. move.kind] or { count = 0, bytes = 0 }
      sum.count, sum.bytes = sum.count + move.collectives, sum.bytes + move.bytes
      sums[move.group .. " " .. move.kind] = sum
    end
  end
  for group, kinds in pairs(after.collectives) do
    for kind, traffic in pairs(kinds) do
      local old = before.collectives[group][kind]
      local sum = sums[group .. " " .. kind] or { count = 0, bytes = 0 }
      expect_equal(sum.count, traffic.count - old.count)
      expect_equal(sum.bytes, traffic.bytes - old.bytes)
    end
  end
  local gathered = 0
  for _, move in ipairs(moves) do if move.is_gather then gathered = gathered + move.bytes end end
  expect_equal(gathered, after.gathered_bytes - before.gathered_bytes)
  return moves, result
end

local deployer = redco.Deployer { seed = 1, n_model_shards = 2, verbose = false }
assert(deployer.mesh.mp == 2)

local x, y, square = random(6, 8), random(4, 8), random(6, 6)
local ids = torch.tensor { 0, 2, 1, 2, 5, 4 }
local mask = x:gt(0)
local bags = torch.tensor { { 0, 1 }, { 2, 3 } }

-- Each gathers x, whose rows are split.
local gathering = {
  slice = { "aten::slice", function(a) return (a:narrow(0, 1, 3)) end },
  select = { "aten::select", function(a) return (a:select(0, 4)) end },
  unbind = { "aten::unbind", function(a) return (a:unbind(0)[3]) end },
  split = { "aten::split", function(a) return (a:split(2)[1]) end },
  split_with_sizes = { "aten::split_with_sizes",
    function(a) return (a:split_with_sizes({ 1, 5 })[2]) end },
  glu = { "aten::glu", function(a) return (torch.glu(a, 0)) end },
  sort = { "aten::sort", function(a) return (a:sort(0)) end },
  topk = { "aten::topk", function(a) return (a:topk(2, 0)) end },
  kthvalue = { "aten::kthvalue", function(a) return (a:kthvalue(2, 0)) end },
  median = { "aten::median", function(a) return (a:median(0)) end },
  mode = { "aten::mode", function(a) return (a:mode(0)) end },
  cumprod = { "aten::cumprod", function(a) return (a:cumprod(0)) end },
  cummax = { "aten::cummax", function(a) return (a:cummax(0)) end },
  logcumsumexp = { "aten::logcumsumexp", function(a) return (a:logcumsumexp(0)) end },
  flip = { "aten::flip", function(a) return (a:flip { 0 }) end },
  roll = { "aten::roll", function(a) return (a:roll({ 1 }, { 0 })) end },
  cat = { "aten::cat", function(a) return (torch.cat({ a, y }, 0)) end },
  pad = { "aten::constant_pad_nd",
    function(a) return (torch.constant_pad_nd(a, { 0, 0, 1, 1 })) end },
  index = { "aten::index", function(a) return (a[mask]) end },
  take = { "aten::take", function(a) return (a:take(ids)) end },
  masked_select = { "aten::masked_select", function(a) return (a:masked_select(mask)) end },
  nonzero = { "aten::nonzero", function(a) return (a:gt(0):nonzero()) end },
  view = { "aten::view", function(a) return (a:view { 3, 16 }) end },
  unfold = { "aten::unfold", function(a) return (a:unfold(0, 2, 1)) end },
  as_strided = { "aten::as_strided", function(a) return (a:as_strided({ 3, 3 }, { 8, 1 })) end },
  diagonal = { "aten::diagonal", function(a) return (a:diagonal()) end },
  inverse = { "aten::linalg_inv_ex",
    function(a) return (torch.linalg_inv(a:narrow(1, 0, 6))) end },
  fft = { "aten::_fft_r2c", function(a) return (torch.fft_rfft(a, nil, 0):abs()) end },
  histc = { "aten::histc", function(a) return (a:histc(4, -1, 1)) end },
  cdist = { "aten::_cdist_forward", function(a) return (torch.cdist(a, a)) end },
  embedding_bag = { "aten::_embedding_bag_forward_only",
    function(a) return (torch.embedding_bag(a, bags:view { 4 }, torch.tensor { 0, 2 })) end },
  multinomial = { "aten::multinomial", function(a) return (a:abs():t():multinomial(2):mul(0)) end },
  trace = { "aten::trace", function(a) return (torch.trace(a)) end },
  mm = { "aten::mm", function(a) return (a:t():mm(redco.shard(square, { mp = 1 }))) end },
}

local advices = {}

local names = {}
for name in pairs(gathering) do names[#names + 1] = name end
table.sort(names)  -- all processes in one order

for _, name in ipairs(names) do
  local case = gathering[name]
  test("gathered and named: " .. name, function()
    local op, f = unpack(case)
    local part = redco.shard(x, { mp = 0 })
    local line = debug.getinfo(f, "S").linedefined
    local moves, result = moves_of(function() return f(part) end)
    local found, all = nil, {}
    for _, move in ipairs(moves) do
      all[#all + 1] = ("%s %s %s"):format(move.cause, move.what, move.kind)
      if move.is_gather and move.what == op then found = move end
    end
    if not found then error("no move of " .. op .. ", but of:\n" .. table.concat(all, "\n")) end
    -- One whose function has several lines names one of those.
    local last = debug.getinfo(f, "S").lastlinedefined
    local named = tonumber(found.line:match "moves%.lua:(%d+)$")
    assert(named >= line and named <= last, found.line)
    assert(found.bytes > 0 and found.collectives > 0 and found.group == "mp")
    advices[found.advice] = op
    expect_close(result:full():double(), f(x):full():double(), 1e-5, 1e-5)
  end)
end

-- The code of each advice: rules that a Trainer takes, and expressions that give on parts
-- what they give on the whole, with nothing gathered.
local classes, weight = torch.arange(8), random(6, 8)
local whole = { torch = torch, x = x, y = y, mask = mask, ids = ids, classes = classes,
  weight = weight, bags = bags, logits = x }
local parts = setmetatable({
  x = redco.shard(x, { mp = 0 }), logits = redco.shard(x, { mp = 0 }),
  weight = redco.shard(weight, { mp = 0 }),
}, { __index = whole })
local params = { layer = { up = { weight = torch.zeros { 1536, 1536 } },
  down = { weight = torch.zeros { 1536, 1536 } } } }

test("every advice can be followed", function()
  local n, n_codes = 0, 0
  local texts = {}
  for advice in pairs(advices) do texts[#texts + 1] = advice end
  table.sort(texts)
  for _, advice in ipairs(texts) do
    local op = advices[advice]
    n = n + 1
    for code in advice:gmatch "`([^`]+)`" do
      n_codes = n_codes + 1
      local function run(env)
        local chunk = assert(loadstring("return " .. code) or loadstring(code))
        return setfenv(chunk, env)()
      end
      if code:find "^params_sharding_rules" then
        local env = {}
        run(env)
        local decisions = deployer:get_sharding_rules(params, function() end,
          env.params_sharding_rules, 2)
        assert(#decisions == 2)
      else
        local moves, result = moves_of(function()
          return redco.with_rng(deployer:gen_rng(), run, parts)
        end)
        for _, move in ipairs(moves) do
          if move.is_gather then error(("%s: %s gathers in %s"):format(op, move.what, code)) end
        end
        if not code:find "uniform_" then expect_close(result:full(), run(whole), 1e-5, 1e-5) end
      end
    end
  end
  expect_equal(n, 14)
  assert(n_codes > n)
end)

test("what a script asks for is no operator's", function()
  local part = redco.shard(x, { mp = 0 })
  local moves = moves_of(function() return (part:full()) end)
  expect_equal(#moves, 1)
  assert(moves[1].cause == "request" and moves[1].what == "full" and not moves[1].is_gather)
  assert(moves[1].line:find "moves.lua:" and moves[1].calls == 1 and moves[1].kind == "all_gather")
  moves = moves_of(function() return (redco.shard(part, { mp = 1 })) end)
  assert(moves[1].cause == "request" and moves[1].kind == "all_to_all")
  moves = moves_of(function() return (part:sum()) end)
  expect_equal(#moves, 1)
  assert(moves[1].what == "aten::sum" and moves[1].kind == "all_reduce" and not moves[1].is_gather)
  local sum = redco.shard(x, { mp = "partial" })
  moves = moves_of(function() return (torch.cdist(sum, part)) end)
  expect_equal(#moves, 2)
  for _, move in ipairs(moves) do
    assert(move.calls == 1 and move.is_gather == (move.kind == "all_gather"))
  end
  local gradient = redco.shard(x, { mp = 0 }):requires_grad_()
  moves = moves_of(function() (gradient:cumprod(0) * gradient):sum():backward() end)
  local is_backward = {}
  for _, move in ipairs(moves) do
    if move.is_gather then is_backward[#is_backward + 1] = move.is_backward end
  end
  table.sort(is_backward, function(a, b) return not a and b end)
  assert(is_backward[1] == false and is_backward[#is_backward] == true)
end)

test("an extreme along parts sends values and places", function()
  local part = redco.shard(x, { mp = 0 })
  for op, f in pairs { max = function() return part:max(0) end,
    argmax = function() return part:argmax(0) end } do
    local moves = moves_of(f)
    expect_equal(#moves, 1)
    assert(moves[1].what == "aten::" .. op and not moves[1].is_gather)
    expect_equal(moves[1].bytes, 8 * (4 + 8))  -- float32 and int64
  end
end)

test("under autocast shared parameters are gathered once, as without it", function()
  local function gathered(compute_dtype)
    local own = redco.Deployer { seed = 1, zero = 3, zero_min_size = 1, verbose = false }
    local model = redco.models.from_config({ model_type = "gpt2", vocab_size = 20,
      n_positions = 6, n_embd = 8, n_layer = 3, n_head = 2 }, { generator = own:gen_rng() })
    local trainer = redco.Trainer {
      deployer = own, params = model.params, compute_dtype = compute_dtype,
      optimizer = redco.optim.adamw { learning_rate = 0.1 },
      collate_fn = function(examples)
        local tokens = torch.stack(examples)
        return { input_ids = tokens, labels = tokens }
      end,
      loss_fn = function(_, _, p, batch) return model.loss(p, batch) end,
    }
    local examples = {}
    for i = 1, 8 do examples[i] = torch.full({ 6 }, i, { dtype = "int64" }) end
    local function train() trainer:train { examples = examples, per_device_batch_size = 2 } end
    train()  -- the first pass finds out which types a block is read in
    local found = { collectives = 0, bytes = 0 }
    for _, move in ipairs((moves_of(train))) do
      if move.cause == "parameters" then
        found.collectives = found.collectives + move.collectives
        found.bytes = found.bytes + move.bytes
      end
    end
    return found
  end
  local plain = gathered "float32"
  assert(plain.collectives > 0)
  for _, case in ipairs { { "bfloat16", 0.5 }, { "autocast:bfloat16", 1 } } do
    local compute_dtype, share = unpack(case)
    local found = gathered(compute_dtype)
    expect_equal(found.collectives, plain.collectives)
    expect_equal(found.bytes, share * plain.bytes)
  end
end)

test("metrics.jsonl has the bytes that each step gathered", function()
  local workdir = arg[1] .. "/gathered"
  local own = redco.Deployer { seed = 1, verbose = false, workdir = workdir }
  assert(own.mesh.dp == 2)
  local trainer = redco.Trainer {
    deployer = own, params = { w = torch.ones { 3 } },
    optimizer = redco.optim.sgd { learning_rate = 0.1 },
    collate_fn = function(examples) return { x = torch.stack(examples) } end,
    loss_fn = function(_, _, p, batch) return (batch.x * p.w):cumsum(0):pow(2):mean() end,
  }
  local examples = {}
  for i = 1, 12 do examples[i] = torch.full({ 3 }, i) end
  local moves = moves_of(function()
    trainer:fit { train_examples = examples, n_epochs = 1, per_device_batch_size = 2 }
  end)
  local gathered, in_steps, n_steps = 0, 0, 0
  for _, move in ipairs(moves) do if move.is_gather then gathered = gathered + move.bytes end end
  -- Two rows of three numbers in each step, sent to the one other process.
  assert(gathered >= 3 * 2 * 3 * 4)
  if own.process_id ~= 0 then return end  -- process 0 writes the file
  for line in io.lines(workdir .. "/metrics.jsonl") do
    n_steps, in_steps = n_steps + 1, in_steps + tonumber(line:match '"gathered_bytes":(%d+)')
  end
  expect_equal(n_steps, 3)
  expect_equal(in_steps, gathered)
end)

test("a run's bytes add up, by cause", function()
  for zero = 0, 3 do
    for _, n_model_shards in ipairs { 1, 2 } do
      local workdir = ("%s/moves-%d-%d"):format(arg[1], zero, n_model_shards)
      local own = redco.Deployer { seed = 1, n_model_shards = n_model_shards, zero = zero,
        zero_min_size = 1, verbose = false, workdir = workdir,
        sequence_parallel = n_model_shards == 2 and zero == 3 }
      local moves = moves_of(function()
        local model = redco.models.from_config({ model_type = "gpt2", vocab_size = 20,
          n_positions = 6, n_embd = 8, n_layer = 2, n_head = 2 }, { generator = own:gen_rng() })
        local trainer = redco.Trainer {
          deployer = own, params = model.params,
          optimizer = redco.optim.adamw { learning_rate = 0.1 },
          collate_fn = function(examples)
            local tokens = torch.stack(examples)
            return { input_ids = tokens, labels = tokens }
          end,
          loss_fn = function(_, _, p, batch) return model.loss(p, batch) end,
        }
        local examples = {}
        for i = 1, 8 do examples[i] = torch.full({ 6 }, i, { dtype = "int64" }) end
        trainer:fit { train_examples = examples, eval_examples = examples, n_epochs = 1,
          per_device_batch_size = 4 / own.mesh.dp, save_last_ckpt = true }
      end)
      local causes = {}
      for _, move in ipairs(moves) do
        causes[move.cause] = (causes[move.cause] or 0) + move.bytes
      end
      assert(causes.other)
      expect_equal(causes.parameters ~= nil, zero > 0 and own.mesh.dp > 1)
      expect_equal(causes.gradients ~= nil, own.mesh.dp > 1 or causes.gradients ~= nil)
      expect_equal(causes["operator without rule"], nil)
      for line in io.lines(workdir .. "/metrics.jsonl") do
        assert(line:find "gathered_bytes" or line:find '"eval"', line)
      end
    end
  end
end)

testing.finish()
