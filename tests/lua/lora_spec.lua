-- Low-rank adapters: peft's own on the models, adapters in any tree of layers, folders, errors.
local cases = require "model_cases"
local redco = require "redco"
local testing = require "testing"

local lora, torch, tree = redco.lora, redco.torch, redco.tree
local test, expect_close, expect_error = testing.test, testing.expect_close, testing.expect_error

local scratch = testing.folder()

local function expect_same_params(actual, expected)
  testing.expect_equal(table.concat(tree.paths(actual), " "),
    table.concat(tree.paths(expected), " "))
  tree.map(function(a, b)
    if torch.is_tensor(b) then expect_close(a, b, 0, 0) else testing.expect_equal(a, b) end
  end, actual, expected)
end

for _, folder in ipairs(cases.folders) do
  for _, name in ipairs(cases.found(folder, cases.lora_names)) do
    local case = cases.open(folder, name)
    local model = redco.models.from_pretrained(case.base.dir)
    local params = lora.from_pretrained(case.dir, model.params)
    local function check(what, body) test(("%s/%s: %s"):format(folder, name, what), body) end

    local function expect_logits(given)
      local inputs = cases.inputs(case, "fwd")
      local expected = case.arrays["fwd.logits"]
      local n = expected:size(0)
      local kept = inputs.attention_mask:narrow(0, inputs.attention_mask:size(0) - n, n):ne(0)
      local logits = model(given, inputs)
      logits = logits:narrow(0, logits:size(0) - n, n)
      expect_close(logits[kept], expected[kept], 0, 2e-4)
    end

    check("logits", function() expect_logits(params) end)

    check("merged", function()
      local merged = lora.merge(params)
      expect_logits(merged)
      model.save_pretrained(scratch .. "/merged", { params = merged })
      expect_logits(redco.models.from_pretrained(scratch .. "/merged").params)
      for key, tensor in pairs(model.params) do
        if not params[key:gsub("weight$", "lora_A.weight")] then
          assert(merged[key] == tensor, key .. " has been copied")
        end
      end
    end)

    check("generation", function()
      local ids = { input_ids = case.arrays["fwd.input_ids"]:narrow(0, 0, 1):narrow(1, 0, 4) }
      local function tokens(given)
        return table.concat(model.generate(given, ids, { max_new_tokens = 6 }):tolist()[1], " ")
      end
      testing.expect_equal(tokens(params), tokens(lora.merge(params)))
      assert(tokens(params) ~= tokens(model.params), "the adapters change nothing")
    end)

    check("written and read", function()
      lora.save_pretrained(scratch .. "/adapter", params)
      expect_same_params(lora.from_pretrained(scratch .. "/adapter", model.params), params)
      local ours = redco.data.json(scratch .. "/adapter/adapter_config.json")
      local theirs = redco.data.json(case.dir .. "/adapter_config.json")
      for _, key in ipairs { "peft_type", "r", "lora_alpha", "bias", "fan_in_fan_out",
        "use_rslora", "lora_dropout" } do
        testing.expect_equal(ours[key], theirs[key])
      end
      testing.expect_equal(table.concat(ours.target_modules, " "),
        table.concat(theirs.target_modules, " "))
      local file = scratch .. "/adapter/adapter_model"
      local read = torch.load(file .. ".safetensors")
      expect_same_params(read, torch.load(case.dir .. "/adapter_model.safetensors"))
      -- The name that peft's files of torch.save have; the content says which kind it is.
      assert(os.rename(file .. ".safetensors", file .. ".bin"))
      expect_same_params(lora.from_pretrained(scratch .. "/adapter", model.params), params)
    end)

    check("gradients, of the adapters alone", function()
      local tracked = tree.map(function(leaf) return leaf end, params)
      for key, leaf in pairs(tracked) do
        if not lora.is_frozen(key) and torch.is_tensor(leaf) then
          tracked[key] = leaf:clone():requires_grad_()
        end
      end
      local loss = model.loss(tracked, cases.training_inputs(case, "batch0"))
      loss:backward()
      cases.expect_near("the loss", loss:item(), case.expected.training.loss_fp64, 1e-5)
      local gradients = {}
      for key, leaf in pairs(tracked) do
        if torch.is_tensor(leaf) and leaf.requires_grad then
          gradients[cases.peft_name(key)] = leaf.grad
        else
          assert(not torch.is_tensor(leaf) or not leaf.grad, key .. " has a gradient")
        end
      end
      cases.expect_gradients(case, gradients)
    end)

    check("five steps of AdamW", function()
      local adamw, losses, n_tracked = case.expected.training.adamw, {}, nil
      local trainer = redco.Trainer {
        deployer = redco.Deployer { seed = 0, verbose = false },
        params = params,
        collate_fn = function(examples)
          return cases.training_inputs(case, "batch" .. examples[1])
        end,
        loss_fn = function(_, _, given, batch)
          n_tracked = 0
          for _, leaf in pairs(given) do
            if torch.is_tensor(leaf) and leaf.requires_grad then
              n_tracked = n_tracked + leaf:numel()
            end
          end
          local loss, count = model.loss(given, batch)
          losses[#losses + 1] = loss:item()
          return loss, count
        end,
        optimizer = lora.freeze_base(redco.optim.adamw {
          learning_rate = adamw.lr, betas = adamw.betas, eps = adamw.eps,
          weight_decay = adamw.weight_decay,
        }),
      }
      for step = 0, adamw.steps - 1 do
        trainer:train { examples = { step }, per_device_batch_size = 1 }
      end
      cases.expect_trained(case, losses, cases.adapters(trainer.params))
      for key, tensor in pairs(model.params) do
        assert(trainer.params[key]:data_ptr() == tensor:data_ptr(), key .. " has been copied")
      end
      local n_elements = tree.count(cases.adapters(params))
      local memory = trainer:memory()
      testing.expect_equal(memory.grads.here, 4 * n_elements)
      assert(memory.opt_state.here <= 8 * n_elements + 8, "the base has optimizer state")
      testing.expect_equal(n_tracked, n_elements)
    end)
  end
end

-- Any tree of layers.

local function nested()
  return {
    blocks = { { q_proj = redco.nn.Linear(6, 6), up = redco.nn.Linear(6, 10, { bias = false }) },
      { q_proj = redco.nn.Linear(6, 6), up = redco.nn.Linear(6, 10, { bias = false }) } },
    norm = redco.nn.LayerNorm(6),
  }
end

-- An adapter is nothing at first: gives it values.
local function shaken(params)
  for _, path in ipairs(tree.paths(params)) do
    assert(not path:find "lora_B" or path:find "lora_B%.weight$", path)
  end
  local index = 0
  return tree.map(function(leaf)
    index = index + 1
    local name = tree.paths(params)[index]
    return name:find "lora_B%.weight$" and torch.randn_like(leaf) or leaf
  end, params)
end

test("the table of tokens can have an adapter", function()
  for _, model_type in ipairs { "llama", "gpt2" } do
    local module = model_type == "llama" and "embed_tokens" or "wte"
    local model = redco.models.from_pretrained("../cases/" .. model_type)
    local params = lora.add(model.params, { target_modules = { module }, r = 2, lora_alpha = 6,
      generator = redco.Rng(1) })
    local inputs = { input_ids = torch.tensor { { 5, 6, 7, 8 } } }
    local plain = model(model.params, inputs)
    expect_close(model(params, inputs), plain, 0, 0)
    for name, leaf in pairs(params) do
      if name:find "embedding_A" then params[name] = torch.randn_like(leaf) end
    end
    local changed = model(params, inputs)
    assert(not torch.allclose(changed, plain))
    expect_close(model(lora.merge(params), inputs), changed, 1e-4, 1e-4)
    lora.save_pretrained(scratch .. "/tokens", params)
    expect_close(model(lora.from_pretrained(scratch .. "/tokens", model.params), inputs), changed,
      1e-5, 1e-5)
  end
end)

test("adapters in a tree of tables", function()
  local base, x = nested(), torch.randn { 3, 6 }
  local params = lora.add(base, { target_modules = { "q_proj" }, r = 2, lora_alpha = 6 })
  assert(base.blocks[1].q_proj.lora_A == nil, "the given tree has changed")
  assert(params.blocks[1].q_proj.weight == base.blocks[1].q_proj.weight)
  assert(params.blocks[1].up.lora_A == nil)
  local layer = params.blocks[2].q_proj
  expect_close(redco.nn.linear(layer, x), redco.nn.linear(base.blocks[2].q_proj, x), 0, 0)
  params = shaken(params)
  layer = params.blocks[2].q_proj
  expect_close(redco.nn.linear(layer, x), torch.linear(x, layer.weight
    + 3 * layer.lora_B.weight:matmul(layer.lora_A.weight), layer.bias), 1e-5, 1e-5)
  local merged = lora.merge(params)
  expect_close(redco.nn.linear(merged.blocks[2].q_proj, x), redco.nn.linear(layer, x), 1e-5, 1e-5)
  testing.expect_equal(table.concat(tree.paths(merged), " "),
    table.concat(tree.paths(base), " "))
  lora.save_pretrained(scratch .. "/nested", params, { task_type = "FEATURE_EXTRACTION" })
  expect_same_params(lora.from_pretrained(scratch .. "/nested", base), params)
end)

test("one layer alone", function()
  local params = shaken(lora.add(redco.nn.Linear(4, 3), { target_modules = ".*", r = 1 }))
  local x = torch.randn { 2, 4 }
  expect_close(redco.nn.linear(lora.merge(params), x), redco.nn.linear(params, x), 1e-5, 1e-5)
end)

test("what is chosen", function()
  local function names(modules)
    local found = {}
    for _, path in ipairs(tree.paths(lora.add(nested(), { target_modules = modules }))) do
      found[#found + 1] = path:match "^(.*)%.lora_A%.weight$"
    end
    return table.concat(found, " ")
  end
  testing.expect_equal(names { "up" }, "blocks.1.up blocks.2.up")
  testing.expect_equal(names { "2.up", "q_proj" }, "blocks.1.q_proj blocks.2.q_proj blocks.2.up")
  testing.expect_equal(names "blocks%.1%..*", "blocks.1.q_proj blocks.1.up")
  expect_error(function() names { "proj" } end, "no layer's name ends in 'proj'", "q_proj, up")
  expect_error(function() names "up" end, "no layer's name matches the pattern 'up'", "q_proj, up")
end)

test("initial values, rank and scaling", function()
  local function first(options)
    options.target_modules, options.generator = { "up" }, torch.Generator(3)
    return lora.add(nested(), options).blocks[1].up
  end
  local layer = first { r = 4 }
  expect_close(layer.lora_A.weight, first({ r = 4 }).lora_A.weight, 0, 0)
  testing.expect_equal(table.concat(layer.lora_A.weight.shape, " "), "4 6")
  testing.expect_equal(table.concat(layer.lora_B.weight.shape, " "), "10 4")
  local bound = layer.lora_A.weight:abs():max():item()
  assert(bound <= 1 / math.sqrt(6) and bound > 0.7 / math.sqrt(6), bound)
  testing.expect_equal(layer.lora_B.weight:abs():max():item(), 0)
  testing.expect_equal(layer.lora_scaling, 2)
  testing.expect_equal(first({ r = 4, lora_alpha = 3, use_rslora = true }).lora_scaling, 1.5)
end)

test("square weights [in, out]", function()
  -- GPT-2's attn.c_proj is square: only its name tells which way it lies.
  local weight, x = torch.randn { 5, 5 }, torch.randn { 2, 5 }
  for name, is_conv1d in pairs {
    ["transformer.h.0.attn.c_proj"] = true, ["decoder.h.11.mlp.c_fc"] = true,
    ["attn.c_proj"] = false, ["h.0.attn.q_proj"] = false,
  } do
    local params = shaken(lora.add({ [name .. ".weight"] = weight },
      { target_modules = ".*", r = 2 }))
    testing.expect_equal(params[name .. ".lora_fan_in_fan_out"] or false, is_conv1d)
    local blocks = require "redco.models.layers.blocks"
    local apply = is_conv1d and blocks.transposed_linear or blocks.linear
    expect_close(apply(lora.merge(params), name, x, {}), apply(params, name, x, {}), 1e-5, 1e-5)
  end
end)

test("weights [out, in] by the names of GPT-2", function()
  for model_type, config in pairs {
    gpt_bigcode = { n_embd = 8, n_head = 2, n_layer = 1, n_positions = 4, n_inner = 8 },
    gpt_neo = { hidden_size = 8, num_heads = 2, num_layers = 1, max_position_embeddings = 4,
      intermediate_size = 8, attention_layers = { "global" } },
  } do
    config.model_type, config.vocab_size = model_type, 9
    local model = redco.models.from_config(config, { generator = torch.Generator(1) })
    local params = shaken(lora.add(model.params,
      { target_modules = { "c_fc", "c_proj" }, r = 2 }))
    local inputs = { input_ids = torch.tensor { { 1, 2, 3 } } }
    torch.no_grad(function()
      expect_close(model(lora.merge(params), inputs), model(params, inputs), 1e-5, 1e-5)
    end)
    for name in pairs(params) do assert(not name:find "fan_in_fan_out", name) end
  end
end)

test("dropout", function()
  local layer = shaken(lora.add(redco.nn.Linear(64, 8, { bias = false }),
    { target_modules = ".*", r = 8, lora_dropout = 0.5 }))
  local x = torch.ones { 4, 64 }
  local plain = redco.nn.linear(layer, x)
  expect_close(redco.nn.linear(layer, x, { train = false }), plain, 0, 0)
  local function trained(seed)
    return redco.nn.linear(layer, x, { train = true, rng = torch.Generator(seed) })
  end
  expect_close(trained(1), trained(1), 0, 0)
  assert((trained(1) - plain):abs():max():item() > 0.1)
  -- Half of the inputs, twice as large, go through the adapter and only there.
  local kept = torch.empty_like(x):bernoulli_(0.5, { generator = torch.Generator(1) }) * 2
  expect_close(trained(1), torch.linear(x, layer.weight) + layer.lora_scaling
    * torch.linear(torch.linear(x * kept, layer.lora_A.weight), layer.lora_B.weight), 1e-4, 1e-4)
  expect_error(function() redco.nn.linear(layer, x, { train = true }) end, "needs rng")
end)

test("dropout of adapters inside other layers", function()
  local options = { target_modules = ".*", r = 2, lora_dropout = 0.5 }
  local x = torch.randn { 2, 3, 8 }
  local mlp = shaken(lora.add(redco.nn.MLP { 8, 8, 8 }, options))
  local attention = shaken(lora.add(redco.nn.MultiheadAttention(8), options))
  local function expect_dropout(apply)
    local plain, dropped = apply {}, apply { train = true, rng = torch.Generator(1) }
    assert(not torch.equal(plain, dropped))
    expect_close(apply { train = true, rng = torch.Generator(1) }, dropped, 0, 0)
  end
  expect_dropout(function(o) return redco.nn.mlp(mlp, x, o) end)
  expect_dropout(function(o)
    o.num_heads = 2
    return redco.nn.multihead_attention(attention, x, o)
  end)
  local model = redco.models.from_config { model_type = "llama", num_hidden_layers = 1,
    num_attention_heads = 1, hidden_size = 8, vocab_size = 8, intermediate_size = 4 }
  options.target_modules = { "down_proj" }
  local params = shaken(lora.add(model.params, options))
  local ids = torch.zeros({ 1, 2 }, { dtype = "int64" })
  expect_dropout(function(o) return model(params, { input_ids = ids }, o) end)
end)

test("a base of 16 bits", function()
  local base = tree.map(function(t) return t:to "bfloat16" end, redco.nn.Linear(8, 8))
  local layer = shaken(lora.add(base, { target_modules = ".*" }))
  testing.expect_equal(layer.lora_A.weight.dtype, "float32")
  local x = torch.randn({ 2, 8 }):to "bfloat16"
  local y = redco.nn.linear(layer, x)
  testing.expect_equal(y.dtype, "bfloat16")
  local merged = lora.merge(layer)
  testing.expect_equal(merged.weight.dtype, "bfloat16")
  expect_close(redco.nn.linear(merged, x):float(), y:float(), 0.05, 0.05)
end)

test("ranks and scalings of their own", function()
  local base = nested()
  local params = lora.add(base, { target_modules = { "q_proj" }, r = 2, lora_alpha = 5 })
  params = shaken(lora.add(params, { target_modules = { "1.up" }, r = 3, use_rslora = true }))
  lora.save_pretrained(scratch .. "/ranks", params)
  local config = redco.data.json(scratch .. "/ranks/adapter_config.json")
  testing.expect_equal(config.rank_pattern["blocks.1.up"], 3)
  local read = lora.from_pretrained(scratch .. "/ranks", base)
  expect_close(read.blocks[1].up.lora_A.weight, params.blocks[1].up.lora_A.weight, 0, 0)
  assert(math.abs(read.blocks[1].up.lora_scaling - 8 / math.sqrt(3)) < 1e-12)
  testing.expect_equal(read.blocks[1].q_proj.lora_scaling, 2.5)
end)

-- Layouts: an adapter lies as the weight beside it.

local function layout(params, forward)
  local deployer = redco.Deployer { seed = 1, verbose = false }
  local found = {}
  for _, decision in ipairs(deployer:get_sharding_rules(params, forward, {}, 2)) do
    local placement = decision[2]
    found[decision[1]] = type(placement) ~= "table" and tostring(placement)
      or ("%d in blocks of %d"):format(placement.dim, placement.block)
  end
  return found
end

local function expect_layout(config, modules, expected)
  local model = redco.models.from_config(config)
  local ids = torch.zeros({ 2, 4 }, { dtype = "int64" })
  local function forward(params) return model(params, { input_ids = ids }) end
  local base = layout(model.params, forward)
  local found = layout(lora.add(model.params, { target_modules = modules, r = 1 }), forward)
  for name, placement in pairs(base) do testing.expect_equal(found[name], placement) end
  for ending, placement in pairs(expected) do
    local n = 0
    for name, actual in pairs(found) do
      if name:sub(-#ending) == ending then
        n = n + 1
        if actual ~= placement then error(("%s: %s, not %s"):format(name, actual, placement)) end
      end
    end
    assert(n > 0, "no parameter ends in " .. ending)
  end
end

test("the layout of GPT-2 with adapters", function()
  expect_layout({ model_type = "gpt2", n_layer = 2, n_head = 4, n_embd = 32, vocab_size = 64,
    n_positions = 16 }, { "c_attn", "c_proj", "c_fc" }, {
      ["attn.c_attn.weight"] = "1 in blocks of 32",
      ["attn.c_attn.lora_A.weight"] = "replicate",
      ["attn.c_attn.lora_B.weight"] = "0 in blocks of 32",
      ["attn.c_proj.lora_A.weight"] = "1",
      ["attn.c_proj.lora_B.weight"] = "replicate",
      ["mlp.c_fc.lora_A.weight"] = "replicate",
      ["mlp.c_fc.lora_B.weight"] = "0",
      ["mlp.c_proj.lora_A.weight"] = "1",
      ["mlp.c_proj.lora_B.weight"] = "replicate",
    })
end)

test("the layout of LLaMA with adapters, one head of keys and values", function()
  expect_layout({ model_type = "llama", num_hidden_layers = 2, num_attention_heads = 4,
    num_key_value_heads = 1, hidden_size = 32, intermediate_size = 48, vocab_size = 64,
  }, "model%.layers%.%d+%..*_proj", {
    ["q_proj.lora_A.weight"] = "replicate", ["q_proj.lora_B.weight"] = "0",
    ["k_proj.weight"] = "replicate", ["k_proj.lora_B.weight"] = "replicate",
    ["v_proj.lora_A.weight"] = "replicate", ["v_proj.lora_B.weight"] = "replicate",
    ["o_proj.lora_A.weight"] = "1", ["o_proj.lora_B.weight"] = "replicate",
    ["up_proj.lora_B.weight"] = "0", ["down_proj.lora_A.weight"] = "1",
  })
end)

-- Mistakes that raise errors.

test("arguments", function()
  local function add(options)
    return function() lora.add(nested(), options) end
  end
  expect_error(add {}, "target_modules: expected")
  expect_error(add { target_modules = { "up" }, r = 0 }, "r: expected a positive integer, got 0")
  expect_error(add { target_modules = { "up" }, lora_dropout = 1 },
    "lora_dropout: expected a number in [0, 1)")
  expect_error(add { target_modules = { "up" }, alpha = 1 }, "unknown argument 'alpha'")
  expect_error(add { target_modules = { "norm" } }, "the weight of norm is [6]")
  local params = lora.add(nested(), { target_modules = { "up" } })
  expect_error(function() lora.add(params, { target_modules = { "up" } }) end,
    "blocks.1.up has an adapter already")
  expect_error(function() lora.merge(nested()) end, "there is no adapter")
  expect_error(function() lora.save_pretrained(scratch .. "/none", nested()) end,
    "there is no adapter")
  expect_error(function()
    lora.add({ ["a.weight"] = torch.zeros { 2, 3 }, ["a.bias"] = torch.zeros { 3 } },
      { target_modules = { "a" } })
  end, "a has a weight [2, 3] and a bias [3]", "fan_in_fan_out = true")
end)

test("layers that are not linear, and the head", function()
  local model = redco.models.from_config { model_type = "gpt2", n_layer = 1, n_head = 1,
    n_embd = 4, vocab_size = 8, n_positions = 8 }
  local ids = { input_ids = torch.zeros({ 1, 2 }, { dtype = "int64" }) }
  expect_error(function() model(lora.add(model.params, { target_modules = { "wpe" } }), ids) end,
    "transformer.wpe has an adapter")
  expect_error(function()
    redco.nn.embedding(lora.add(redco.nn.Embedding(4, 4), { target_modules = ".*" }),
      ids.input_ids)
  end, "nn.embedding: the parameters have an adapter")
end)

test("a model with adapters is not written as a model", function()
  local model = redco.models.from_config { model_type = "gpt2", n_layer = 1, n_head = 1,
    n_embd = 4, vocab_size = 8, n_positions = 8 }
  model.params = lora.add(model.params, { target_modules = { "c_attn" } })
  expect_error(function() model.save_pretrained(scratch .. "/refused") end, "redco.lora.merge",
    "redco.lora.save_pretrained")
  assert(tostring(model):find "GPT2LMHeadModel")
end)

local write = testing.write

test("of patterns that a name matches the first in the file counts", function()
  local function linear() return { weight = torch.zeros { 3, 4 } } end
  local base = { q = linear(), block = { q = linear(), inner = { q = linear() } } }
  local dir = scratch .. "/patterns"
  lora.save_pretrained(dir, lora.add(base, { target_modules = { "q" }, r = 1, lora_alpha = 1 }))
  local text = redco.data.read(dir .. "/adapter_config.json")
  local function scalings(patterns)
    write(dir .. "/adapter_config.json",
      (text:gsub("}%s*$", ', "alpha_pattern": ' .. patterns .. "}")))
    local params = lora.from_pretrained(dir, base)
    return ("%g %g %g"):format(params.q.lora_scaling, params.block.q.lora_scaling,
      params.block.inner.q.lora_scaling)
  end
  testing.expect_equal(scalings [[{"q": 2, "block.q": 3, "inner.q": 4}]], "2 2 2")
  testing.expect_equal(scalings [[{"inner.q": 4, "block.q": 3, "q": 2}]], "2 3 4")
  testing.expect_equal(scalings [[{"block.q": 3, "q": 2, "inner.q": 4}]], "2 3 2")
  testing.expect_equal(scalings [[{"^q": 5, "^block\\.q": 6}]], "5 6 1")
  testing.expect_equal(scalings [[{"block.inner.q": 7}]], "1 1 7")
  -- Folders are read again, though one name ends in another.
  local params = lora.from_pretrained(dir, base)
  params.q.lora_scaling, params.block.q.lora_scaling = 8, 9
  lora.save_pretrained(dir, params)
  local again = lora.from_pretrained(dir, base)
  testing.expect_equal(("%g %g %g"):format(again.q.lora_scaling, again.block.q.lora_scaling,
    again.block.inner.q.lora_scaling), "8 9 7")
end)

test("adapters of keys and values that a layer does not compute are left out", function()
  local q, k = "model.layers.0.self_attn.q_proj.", "model.layers.0.self_attn.k_proj."
  local base = { [q .. "weight"] = torch.zeros { 3, 4 }, [k .. "weight"] = torch.zeros { 3, 4 } }
  local dir = scratch .. "/shared_keys"
  lora.save_pretrained(dir, lora.add(base, { target_modules = { "q_proj", "k_proj" }, r = 1 }))
  base[k .. "weight"] = nil
  local params = lora.from_pretrained(dir, base)
  assert(params[q .. "lora_A.weight"] and not params[k .. "lora_A.weight"])
  testing.expect_error(function()
    lora.from_pretrained(dir, { ["model.layers.0.mlp.up_proj.weight"] = torch.zeros { 3, 4 } })
  end, "there is no layer model.layers.0.self_attn.")
end)

test("names of version 5 of transformers, of a model with a head and of one without", function()
  local dir, a = scratch .. "/version_5", torch.randn { 2, 4 }
  for _, part in ipairs { "", "segformer." } do
    local name = part .. "encoder.block.0.1.mlp.dense1."
    local base = { [name .. "weight"] = torch.zeros { 3, 4 } }
    lora.save_pretrained(dir, lora.add(base, { target_modules = { "dense1" }, r = 2 }))
    local prefix = "base_model.model." .. part .. "stages.0.blocks.1.mlp.fc1.lora_"
    torch.save({ [prefix .. "A.weight"] = a, [prefix .. "B.weight"] = torch.zeros { 3, 2 } },
      dir .. "/adapter_model.safetensors")
    assert(lora.from_pretrained(dir, base)[name .. "lora_A.weight"]:equal(a))
  end
end)

test("folders that are not supported", function()
  local base = { ["a.weight"] = torch.zeros { 3, 4 } }
  local dir = scratch .. "/bad"
  lora.save_pretrained(dir, lora.add(base, { target_modules = { "a" }, r = 2 }))
  local config = redco.data.json(dir .. "/adapter_config.json")
  local function expect_refused(key, value, ...)
    local changed = {}
    for k, v in pairs(config) do changed[k] = v end
    changed[key] = value
    write(dir .. "/adapter_config.json",
      require("redco.native").json_encode("a", changed))
    expect_error(function() lora.from_pretrained(dir, base) end, dir, ...)
  end
  expect_refused("use_dora", true, "use_dora: a has none, expected a lora_magnitude_vector [3]")
  expect_refused("use_dora", 1, "use_dora = 1 is not supported, only a boolean")
  expect_refused("lora_bias", true, "lora_bias = true is not supported")
  expect_refused("trainable_token_indices", { 1, 2 },
    "trainable_token_indices = [1,2] is not supported, only without it")
  expect_refused("modules_to_save", "score",
    "modules_to_save = score is not supported, only a table")
  expect_refused("bias", "all", "bias = all is not supported")
  expect_refused("peft_type", "LOHA", "peft_type = LOHA")
  expect_refused("init_lora_weights", "pissa_niter_4", "init_lora_weights = pissa_niter_4")
  expect_refused("something_new", 3, "something_new = 3 is not supported")
  expect_refused("rank_pattern", { ["a|b"] = 2 }, "the pattern 'a|b'")
  expect_refused("r", "2", "r = 2 is not supported, only a number")
  expect_refused("r", nil, "r is missing")
  expect_refused("alpha_pattern", "a", "alpha_pattern = a is not supported, only a table")
  expect_refused("alpha_pattern", { a = "x" }, "expected a number for the pattern 'a'")
  expect_refused("lora_dropout", 1, "lora_dropout = 1 is not supported")
  write(dir .. "/adapter_config.json", "3")
  expect_error(function() lora.from_pretrained(dir, base) end, "expected an object")
  write(dir .. "/adapter_config.json", require("redco.native").json_encode("a", config))
  expect_error(function() lora.from_pretrained(dir, { ["b.weight"] = base["a.weight"] }) end,
    "there is no layer a in the parameters")
  expect_error(function() lora.from_pretrained(dir, { ["a.weight"] = torch.zeros { 4, 3 } }) end,
    "a has lora_A [2, 4] and lora_B [3, 2], expected [2, 3] and [4, 2]")
  expect_error(function() lora.from_pretrained(dir, { ["a.weight"] = torch.zeros { 4 } }) end,
    "the weight of a is [4]")
  torch.save({ ["base_model.model.a.lora_A.weight"] = torch.zeros { 2, 4 } },
    dir .. "/adapter_model.safetensors")
  expect_error(function() lora.from_pretrained(dir, base) end, "a has no lora_B")
  local function save_with(name, tensor)
    torch.save({ ["base_model.model.a.lora_A.weight"] = torch.zeros { 2, 4 },
      ["base_model.model.a.lora_B.weight"] = torch.zeros { 3, 2 },
      ["base_model.model." .. name] = tensor }, dir .. "/adapter_model.safetensors")
  end
  save_with("score.weight", torch.zeros { 2, 4 })
  expect_error(function() lora.from_pretrained(dir, base) end, "there is no parameter score.weight",
    "modules_to_save", "open the base with the task of the adapters")
  save_with("a.bias", torch.zeros { 2 })
  expect_error(function()
    lora.from_pretrained(dir, { ["a.weight"] = base["a.weight"], ["a.bias"] = torch.zeros { 3 } })
  end, "a.bias is [2], expected [3]")
  save_with("a.lora_magnitude_vector", torch.zeros { 2 })
  expect_error(function() lora.from_pretrained(dir, base) end,
    "a has a lora_magnitude_vector, but use_dora is not set")
  save_with("a.lora_something", torch.zeros { 2 })
  expect_error(function() lora.from_pretrained(dir, base) end, "a.lora_something is of no kind")
  torch.save({ ["a.weight"] = torch.zeros { 2, 4 } }, dir .. "/adapter_model.safetensors")
  expect_error(function() lora.from_pretrained(dir, base) end, "expected names like", "a.weight")
end)

testing.finish()
