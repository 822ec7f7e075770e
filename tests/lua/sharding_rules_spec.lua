-- How known models are laid out: Redco's golden layouts, or better where a comment says so.
--
-- Redco's kernels are [in, out], these weights are [out, in] (GPT-2's are [in, out]): its "(-, mp)"
-- of a kernel is dimension 0 here. What a table does not name is whole.
local models = require "layout_models"
local redco = require "redco"
local testing = require "testing"

local test = testing.test
local deployer = redco.Deployer { seed = 1, verbose = false }

local function placement_text(placement)
  if type(placement) ~= "table" then return tostring(placement) end
  return ("%d in blocks of %d by %d"):format(placement.dim, placement.block or 0,
    placement.grain or 1)
end

local function decide(name, sizes, n, rules)
  local model = models[name](sizes)
  return deployer:get_sharding_rules(model.params, model.forward, rules or {}, n)
end

-- The layout with layers of one kind in one entry: { ["h.*.fc.weight"] = "0" }.
local function layout(decisions)
  local found = {}
  for _, decision in ipairs(decisions) do
    local name = decision[1]:gsub("%.%d+%.", ".*.")
    local text = placement_text(decision[2])
    if found[name] and found[name] ~= text then
      error(("the layers differ in %s: %s and %s"):format(name, found[name], text))
    end
    found[name] = text
  end
  return found
end

-- `expected`: the placements of the parameters whose names end so.
local function expect_layout(decisions, expected)
  local used, wrong = {}, {}
  for name, placement in pairs(layout(decisions)) do
    local wanted, longest = "replicate", 0
    for ending, each in pairs(expected) do
      if ("." .. name):sub(-#ending - 1) == "." .. ending then
        used[ending] = true
        if #ending > longest then wanted, longest = placement_text(each), #ending end
      end
    end
    if wanted ~= placement then
      wrong[#wrong + 1] = ("%s: expected %s, got %s"):format(name, wanted, placement)
    end
  end
  for ending in pairs(expected) do
    if not used[ending] then wrong[#wrong + 1] = "no parameter ends in " .. ending end
  end
  table.sort(wrong)
  if #wrong > 0 then error(table.concat(wrong, "\n") .. "\n" .. tostring(decisions), 2) end
end

local sizes = { vocabulary = 97, width = 96, heads = 24, kv_heads = 8 }

-- The rules of all transformers: queries, keys and values by heads, the output by its input; the
-- feed-forward pair by outputs, then inputs. Biases follow the outputs.
local golden = {
  -- Redco: c_attn's heads are torn apart by columns, c_fc row-wise (its kernels are [out, in] but
  -- not known to be), and the embedding is split by columns where 50257 does not divide. Here the
  -- parts of c_attn are split each, and 97 rows unevenly. The positions are sliced, not looked up:
  -- that needs them whole.
  gpt2 = {
    ["wte.weight"] = 0,
    ["c_attn.weight"] = { dim = 1, block = 96 }, ["c_attn.bias"] = { dim = 0, block = 96 },
    ["attn.c_proj.weight"] = 0,
    ["c_fc.weight"] = 1, ["c_fc.bias"] = 0,
    ["mlp.c_proj.weight"] = 0,
  },
  -- Redco's; that the head's bias is split with it is ours.
  gptj = {
    ["wte.weight"] = 0, ["lm_head.weight"] = 0, ["lm_head.bias"] = 0,
    ["q_proj.weight"] = 0, ["k_proj.weight"] = 0, ["v_proj.weight"] = 0, ["out_proj.weight"] = 1,
    ["fc_in.weight"] = 0, ["fc_in.bias"] = 0, ["fc_out.weight"] = 1,
  },
  -- Redco's at 2. At 4 it splits both embeddings by columns, for 2050 positions do not divide: the
  -- head, which is the embedding, then sums over columns all logits. Here rows, unevenly.
  opt = {
    ["embed_tokens.weight"] = 0, ["embed_positions.weight"] = 0,
    ["q_proj.weight"] = 0, ["k_proj.weight"] = 0, ["v_proj.weight"] = 0, ["out_proj.weight"] = 1,
    ["q_proj.bias"] = 0, ["k_proj.bias"] = 0, ["v_proj.bias"] = 0,
    ["fc1.weight"] = 0, ["fc1.bias"] = 0, ["fc2.weight"] = 1,
  },
  -- Redco's.
  llama = {
    ["embed_tokens.weight"] = 0, ["lm_head.weight"] = 0,
    ["q_proj.weight"] = 0, ["k_proj.weight"] = 0, ["v_proj.weight"] = 0, ["o_proj.weight"] = 1,
    ["gate_proj.weight"] = 0, ["up_proj.weight"] = 0, ["down_proj.weight"] = 1,
  },
  -- Redco's, with the tables of biases by relative position, [buckets, heads], split by heads as
  -- the scores they are added to. Redco splits all tables alike: by buckets, whose sums would have
  -- to be made whole.
  t5 = {
    ["shared.weight"] = 0, ["lm_head.weight"] = 0, ["relative_attention_bias.weight"] = 1,
    ["q.weight"] = 0, ["k.weight"] = 0, ["v.weight"] = 0, ["o.weight"] = 1,
    ["wi_0.weight"] = 0, ["wi_1.weight"] = 0, ["wo.weight"] = 1,
  },
  -- Redco's, but for the embedding, which it splits by columns because 50265 is odd.
  bart = {
    ["shared.weight"] = 0, ["embed_positions.weight"] = 0, ["final_logits_bias"] = 1,
    ["q_proj.weight"] = 0, ["k_proj.weight"] = 0, ["v_proj.weight"] = 0, ["out_proj.weight"] = 1,
    ["q_proj.bias"] = 0, ["k_proj.bias"] = 0, ["v_proj.bias"] = 0,
    ["fc1.weight"] = 0, ["fc1.bias"] = 0, ["fc2.weight"] = 1,
  },
  -- Redco has one rule for all that is called `dense`, so nothing of it is a pair; and splits the
  -- embeddings by columns because there is one row of token types.
  roberta = {
    ["word_embeddings.weight"] = 0, ["position_embeddings.weight"] = 0,
    ["query.weight"] = 0, ["key.weight"] = 0, ["value.weight"] = 0,
    ["query.bias"] = 0, ["key.bias"] = 0, ["value.bias"] = 0,
    ["attention.output.dense.weight"] = 1,
    ["intermediate.dense.weight"] = 0, ["intermediate.dense.bias"] = 0,
    ["output.dense.weight"] = 1,
    ["lm_head.bias"] = 0,  -- split, the head's dense layer would be gathered before its norm
  },
  -- Redco splits the patches' projection by its outputs: all sums between the blocks would be. It
  -- splits the classifier too: four collectives for few weights.
  vit = {
    ["query.weight"] = 0, ["key.weight"] = 0, ["value.weight"] = 0,
    ["query.bias"] = 0, ["key.bias"] = 0, ["value.bias"] = 0,
    ["attention.output.dense.weight"] = 1,
    ["intermediate.dense.weight"] = 0, ["intermediate.dense.bias"] = 0,
    ["output.dense.weight"] = 1,
  },
  -- Redco splits the convolutions too: they are little, and their sums would be the largest.
  mnist_cnn = {
    ["dense_0.weight"] = 0, ["dense_0.bias"] = 0, ["dense_1.weight"] = 1,
  },
}

for name, expected in pairs(golden) do
  test(name .. " over 2, 4 and 8", function()
    for _, n in ipairs { 2, 4, 8 } do expect_layout(decide(name, sizes, n), expected) end
  end)
end

test("three shards: nothing has to be a power of two, or divide", function()
  -- Redco leaves LLaMA whole without a word, and splits the MNIST kernels' 3 x 3 pixels.
  local thirds = { vocabulary = 97, width = 96, heads = 12, kv_heads = 3 }
  for name, expected in pairs(golden) do expect_layout(decide(name, thirds, 3), expected) end
end)

local function reason_of(decisions, ending)
  for _, decision in ipairs(decisions) do
    if decision[1]:sub(-#ending) == ending then return decision.reason end
  end
  error("no parameter ends in " .. ending)
end

local function copy(expected, changes)
  local result = {}
  for ending, placement in pairs(expected) do result[ending] = placement end
  for ending, placement in pairs(changes) do result[ending] = placement end
  return result
end

test("fewer heads of keys and values than shards: those stay whole, and it is said why", function()
  -- Redco cuts heads in halves.
  local few = { vocabulary = 97, width = 96, heads = 24, kv_heads = 2 }
  local expected = copy(golden.llama,
    { ["k_proj.weight"] = "replicate", ["v_proj.weight"] = "replicate" })
  for _, n in ipairs { 4, 8 } do
    local decisions = decide("llama", few, n)
    expect_layout(decisions, expected)
    local reason = reason_of(decisions, "k_proj.weight")
    assert(reason:find("as [2, 6, 2, 4], which " .. n .. " ranks do not divide", 1, true), reason)
  end
end)

test("a model's own head is split by its classes, and so is its bias", function()
  local model = redco.models.from_config { model_type = "gptj", vocab_size = 97, n_positions = 8,
    n_embd = 16, n_layer = 1, n_head = 4, rotary_dim = 2 }
  local decisions = deployer:get_sharding_rules(model.params, function(params)
    local ids = redco.torch.zeros({ 2, 8 }, { dtype = "int64" })
    return model.loss(params, { input_ids = ids, labels = ids })
  end, {}, 2)
  local found = layout(decisions)
  testing.expect_equal(found["lm_head.weight"], "0")
  testing.expect_equal(found["lm_head.bias"], "0")
end)

test("one head of keys and values for all stays whole", function()
  local one = { vocabulary = 97, width = 96, heads = 24, kv_heads = 1 }
  local decisions = decide("llama", one, 2)
  expect_layout(decisions, copy(golden.llama,
    { ["k_proj.weight"] = "replicate", ["v_proj.weight"] = "replicate" }))
  for _, ending in ipairs { "k_proj.weight", "v_proj.weight" } do
    assert(reason_of(decisions, ending):find "parts of attention heads")
  end
end)

test("heads that do not divide: some ranks hold one more than others", function()
  local twelve = { vocabulary = 97, width = 96, heads = 12, kv_heads = 12 }
  local outputs, inputs = { dim = 0, grain = 8 }, { dim = 1, grain = 8 }
  local attention = { ["q_proj.weight"] = outputs, ["k_proj.weight"] = outputs,
    ["v_proj.weight"] = outputs }
  for name, expected in pairs {
    gpt2 = copy(golden.gpt2, { ["c_attn.weight"] = { dim = 1, block = 96, grain = 8 },
      ["c_attn.bias"] = { dim = 0, block = 96, grain = 8 }, ["attn.c_proj.weight"] = outputs }),
    llama = copy(copy(golden.llama, attention), { ["o_proj.weight"] = inputs }),
    gptj = copy(copy(golden.gptj, attention), { ["out_proj.weight"] = inputs }),
    -- 12 heads of position biases are little: whole, their gradients need no gather.
    t5 = copy(golden.t5, { ["q.weight"] = outputs, ["k.weight"] = outputs, ["v.weight"] = outputs,
      ["o.weight"] = inputs, ["relative_attention_bias.weight"] = "replicate" }),
  } do
    local decisions = decide(name, twelve, 8)
    expect_layout(decisions, expected)
    local queries = { gpt2 = "c_attn.weight", t5 = "SelfAttention.q.weight" }
    local reason = reason_of(decisions, queries[name] or "q_proj.weight")
    assert(reason:find("between heads", 1, true), reason)
  end
end)

test("a projection that all blocks add to stays whole: split, it would have each of them sum",
  function()
    local vectors = { vocabulary = 97, width = 96, heads = 24, kv_heads = 8, features = 32 }
    local expected = copy(golden.llama, { ["projection.weight"] = "replicate" })
    expected["embed_tokens.weight"] = nil
    for _, n in ipairs { 2, 4, 8 } do expect_layout(decide("llama", vectors, n), expected) end
  end)

test("a stream of channels stays whole, and both convolutions of a block are split", function()
  local torch = redco.torch
  local images = torch.zeros { 2, 3, 8, 8 }
  local function params_of(n_blocks)
    local params = { first = torch.zeros { 32, 3, 3, 3 }, blocks = {} }
    for i = 1, n_blocks do
      params.blocks[i] = { time = torch.zeros { 32, 16 }, up = torch.zeros { 32, 32, 3, 3 },
        down = torch.zeros { 32, 32, 3, 3 } }
    end
    return params
  end
  local same, one = { 1, 1 }, { 1, 1 }
  local function forward(p)
    local x = torch.conv2d(images, p.first, nil, one, same)
    for _, block in ipairs(p.blocks) do
      local y = torch.conv2d(torch.group_norm(x, 4), block.up, nil, one, same)
      y = y + torch.linear(torch.zeros { 2, 16 }, block.time):view { 2, 32, 1, 1 }
      x = x + torch.conv2d(torch.silu(y), block.down, nil, one, same)
    end
    return x:square():mean()
  end
  for _, n in ipairs { 2, 4 } do
    local decisions = deployer:get_sharding_rules(params_of(2), forward, {}, n)
    expect_layout(decisions, { ["blocks.*.up"] = 0, ["blocks.*.down"] = 1, ["blocks.*.time"] = 0 })
  end
end)

test("pairs of weights are those with the smallest sums", function()
  local torch = redco.torch
  local x = torch.zeros { 512, 16 }
  -- In pairs from the first layer on, each block would sum 256 features instead of 64.
  local decisions = deployer:get_sharding_rules({ first = torch.zeros { 64, 16 },
    up = torch.zeros { 256, 64 }, down = torch.zeros { 64, 256 } }, function(p)
    local y = torch.linear(x, p.first)
    for _ = 1, 4 do y = y + torch.linear(torch.tanh(torch.linear(y, p.up)), p.down) end
    return y:square():mean()
  end, {}, 2)
  expect_layout(decisions, { up = 0, down = 1 })
end)

test("the largest element of all does not end the search", function()
  local torch = redco.torch
  local decisions = deployer:get_sharding_rules({ up = torch.zeros { 64, 64 },
    down = torch.zeros { 64, 64 } }, function(p)
    local y = torch.ones { 4, 64 }:matmul(p.up)
    return (y - y:max()):exp():matmul(p.down):sum()
  end, {}, 2)
  expect_layout(decisions, { up = 1, down = 0 })
end)

test("the reason for what stays whole is the one that holds", function()
  local torch, nn = redco.torch, redco.nn
  local x = torch.randn { 2, 8, 16 }
  local ids = torch.tensor { 0, 0 }
  for _, case in ipairs {
    -- Phi-3's queries, keys and values: 2 ranks divide each of them.
    { torch.zeros { 32, 16 }, "each of the 3 parts fused in it", function(w)
      return torch.linear(x, w):split_with_sizes({ 16, 8, 8 }, -1)
    end },
    { torch.zeros { 12, 16 }, "the shortest are on one rank each", function(w)
      return torch.linear(x, w):split_with_sizes({ 8, 2, 2 }, -1)[2]:unbind(-1)
    end },
    { torch.zeros { 5, 16 }, "are unbound along", function(w)
      return torch.linear(x, w):split_with_sizes({ 1, 2, 2 }, -1)[2]:unbind(-1)
    end },
    { torch.zeros { 3 * 16, 16 }, "each of the 3 parts fused in it", function(w)
      return torch.linear(x, w):split(16, -1)
    end },
    { torch.zeros { 16, 16 }, "are unbound along", function(w)
      return torch.linear(x, w):unbind(-1)
    end },
    { torch.zeros { 12, 16 }, "split along its outputs between heads", function(w)
      return torch.linear(x, w):view { 2, 8, 3, 4 }
    end },
    { torch.zeros { 16, 16 }, "as [2, 128], where the dimension that would be split stands behind",
      function(w) return torch.linear(x, w):view { 2, 128 } end },
    { torch.zeros { 1, 16 }, "dimension 0 is shorter than the 2 ranks", function(w)
      return torch.linear(x, w)
    end },
    { torch.zeros { 1, 16 }, "dimension 0 is shorter than the 2 ranks", function(w)
      return torch.embedding(w, ids)
    end },
    { torch.zeros { 16 }, "used with whole tensors", function(w)
      return torch.layer_norm(x, { 16 }, w)
    end },
    { torch.eye(16), "aten::linalg_inv_ex needs all of it", function(w)
      return torch.linalg_inv(w)
    end },
    { torch.zeros { 16, 16 }, "does not use it", function() end },
    { torch.zeros { 16, 16 }, "its input is whole: split along its outputs", function(w)
      return nn.linear({ weight = w }, x)
    end },
  } do
    local weight, expected, forward = unpack(case)
    local decisions = deployer:get_sharding_rules({ weight = weight },
      function(params) forward(params.weight) end, {}, 2)
    local reason = decisions[1].reason
    if not reason:find(expected, 1, true) then
      error(("expected a reason with %q, got %q"):format(expected, reason))
    end
  end
end)

test("a norm of each head leaves its heads split, with nothing to search", function()
  local torch = redco.torch
  local decisions = deployer:get_sharding_rules(
    { up = torch.zeros { 64, 16 }, z = torch.zeros { 16, 64 } }, function(p)
      local y = torch.linear(torch.zeros { 2, 8, 16 }, p.up):view { 2, 8, 4, 16 }
      return torch.linear(torch.rms_norm(y, { 16 }):view { 2, 8, 64 }, p.z):sum()
    end, {}, 2)
  expect_layout(decisions, { up = 0, z = 1 })
  local reason = reason_of(decisions, "z")
  assert(reason == "its input is split: split along its inputs", reason)
end)

test("rules come first, and what is left is decided beside them", function()
  local decisions = decide("llama", sizes, 2,
    { { "lm_head.weight", "replicate" }, { "layers.1.mlp.up_proj.weight", 0 } })
  expect_layout(decisions, copy(golden.llama, { ["lm_head.weight"] = "replicate" }))
  local reason = reason_of(decisions, "lm_head.weight")
  assert(reason == 'by the rule "lm_head.weight"', reason)
end)

testing.finish()
