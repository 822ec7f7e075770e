-- Adapters of parameters that have the matrices of all experts. adapters_peer.py compares them with
-- those of peft.
local native = require "redco.native"
local redco = require "redco"
local testing = require "testing"

local lora, torch = redco.lora, redco.torch
local test, expect_close, expect_error = testing.test, testing.expect_close, testing.expect_error

local scratch = testing.folder()
local gates, down = "experts.gate_up_proj", "experts.down_proj"

local function new_model(model_type, more)
  local config = { model_type = model_type, vocab_size = 40, hidden_size = 16,
    intermediate_size = 24, num_hidden_layers = 2, num_attention_heads = 2,
    num_key_value_heads = 2, num_local_experts = 4, num_experts_per_tok = 2, head_dim = 8,
    initializer_range = 0.2 }
  for key, value in pairs(more or {}) do config[key] = value end
  return redco.models.from_config(config, { generator = torch.Generator(1) })
end

local function adapted(params, options)
  local o = { r = 3, lora_alpha = 6, generator = torch.Generator(2) }
  for key, value in pairs(options) do o[key] = value end
  local result = lora.add(params, o)
  torch.no_grad(function()
    for name, leaf in pairs(result) do
      if name:find "lora_B" then
        redco.nn.init.normal_(leaf, { std = 0.3, generator = o.generator })
      end
    end
  end)
  return result
end

local inputs = { input_ids = torch.randint(0, 40, { 2, 9 }, { generator = torch.Generator(4) }) }
local granite = { "input_linear.weight", "output_linear.weight" }
local cases = {
  { "granitemoe", granite },
  { "gpt_oss", { gates, down } },
  { "llama4_text", { gates, down }, { intermediate_size_mlp = 24, num_experts_per_tok = 1 } },
}

for _, case in ipairs(cases) do
  local model_type, names, more = unpack(case)
  local model = new_model(model_type, more)
  test(model_type .. ": outputs and gradients are those of the changed parameters", function()
    for _, options in ipairs { {}, { use_rslora = true } } do
      options.target_parameters = names
      local params = adapted(model.params, options)
      local scaling = options.use_rslora and 6 / math.sqrt(3) or 2
      local leaves, stacks, places = {}, {}, {}
      for name, leaf in pairs(params) do
        if name:find "%.lora_[AB]%." then
          params[name] = leaf:detach():requires_grad_()
          leaves[#leaves + 1] = params[name]
        end
      end
      local whole = redco.tree.map(function(leaf) return leaf end, model.params)
      for name, leaf in pairs(model.params) do
        for _, ending in ipairs(names) do
          if name:sub(-#ending) == ending then
            local stem = name:gsub("%.weight$", "")
            local a, b = params[stem .. ".lora_A.weight"], params[stem .. ".lora_B.weight"]
            whole[name] = leaf + scaling * b:matmul(a)
            stacks[#stacks + 1], places[#places + 1] = name, { a, b }
          end
        end
      end
      testing.expect_equal(#leaves, 2 * #stacks)
      local expected, y = model(whole, inputs), model(params, inputs)
      expect_close(y, expected, 1e-4, 1e-5)
      assert((y - model(model.params, inputs)):abs():max():item() > 0.1)
      local own = torch.autograd.grad({ y:sin():sum() }, leaves)
      for i, gradient in ipairs(torch.autograd.grad({ expected:sin():sum() }, leaves)) do
        expect_close(own[i], gradient, 2e-3, 1e-4)
        assert(gradient:abs():max():item() > 1e-3)
      end
      expect_close(model(lora.merge(params), inputs), y, 1e-4, 1e-5)
      expect_close(model(lora.base(params), inputs), model(model.params, inputs), 0, 0)
    end
  end)

  test(model_type .. ": a new adapter changes nothing", function()
    local params = lora.add(model.params, { target_parameters = names, r = 2,
      init_lora_weights = "gaussian" })
    expect_close(model(params, inputs), model(model.params, inputs), 0, 0)
  end)

  test(model_type .. ": folders", function()
    local params = adapted(model.params,
      { target_modules = { "q_proj" }, target_parameters = names })
    lora.save_pretrained(scratch .. "/all", params)
    local opened = lora.from_pretrained(scratch .. "/all", model.params)
    expect_close(model(opened, inputs), model(params, inputs), 0, 0)
    -- Only one parameter, of one layer.
    local name = names == granite and "model.layers.1.block_sparse_moe.output_linear.weight"
      or model_type == "gpt_oss" and "model.layers.1.mlp.experts.down_proj"
      or "model.layers.1.feed_forward.experts.down_proj"
    local one = adapted(model.params, { target_modules = {}, target_parameters = { name } })
    lora.save_pretrained(scratch .. "/one", one)
    local config = redco.data.json(scratch .. "/one/adapter_config.json")
    testing.expect_equal(config.target_parameters[1], name)
    testing.expect_equal(#config.target_modules, 0)
    local keys = native.open_weights(scratch .. "/one/adapter_model.safetensors"):keys()
    testing.expect_equal(#keys, 2)
    assert(not keys[1]:find "base_layer")
    expect_close(model(lora.from_pretrained(scratch .. "/one", model.params), inputs),
      model(one, inputs), 0, 0)
  end)
end

-- Exchanges rows and columns of the matrices in a folder.
local function exchange(from, to, n, r)
  local tensors, names = torch.load(from .. "/adapter_model.safetensors"), {}
  for name, leaf in pairs(tensors) do
    local other = name:find "lora_A" and name:gsub("lora_A", "lora_B")
      or name:gsub("lora_B", "lora_A")
    if name:find "lora_A" then
      leaf = leaf:view { n, r, -1 }:permute { 2, 1, 0 }:flatten(1, 2)
    else
      leaf = leaf:view { -1, r, n }:permute { 2, 1, 0 }:flatten(0, 1)
    end
    names[other] = leaf:contiguous()
  end
  native.save_weights(to, names, { stem = "adapter_model", texts = {
    ["adapter_config.json"] = io.open(from .. "/adapter_config.json"):read "*a" } })
end

test("folders of other versions have rows and columns exchanged, also of square weights", function()
  for _, size in ipairs { 24, 16 } do
    local model = new_model("gpt_oss", { intermediate_size = size })
    local params = adapted(model.params, { target_parameters = { gates, down } })
    lora.save_pretrained(scratch .. "/now", params)
    exchange(scratch .. "/now", scratch .. "/then", 4, 3)
    local opened = lora.from_pretrained(scratch .. "/then", model.params)
    expect_close(model(opened, inputs), model(params, inputs), 0, 0)
  end
end)

-- gpt-oss with experts in MXFP4, and the same as floats.
local function new_packed()
  local model = new_model("gpt_oss", { hidden_size = 64, intermediate_size = 96 })
  local packed = redco.tree.map(function(leaf) return leaf end, model.params)
  for name, leaf in pairs(model.params) do
    if name:find "experts%.[%l_]+_proj$" then
      packed[name] = native.quantize(leaf:transpose(1, 2):contiguous(), "mxfp4")
      packed[name .. "_type"], packed[name .. "_is_transposed"] = "mxfp4", true
    end
  end
  return model, packed, redco.quant.dequantize(packed)
end

test("packed experts compute with adapters, merge and are written as their floats", function()
  local model, packed, floats = new_packed()
  local options = { target_parameters = { gates, down } }
  local params, expected = adapted(packed, options), adapted(floats, options)
  expect_close(model(params, inputs), model(expected, inputs), 1e-4, 1e-5)
  expect_close(model(lora.merge(params), inputs), model(expected, inputs), 1e-4, 1e-5)
  local again, lost = lora.merge(params, { quantize = true })
  local name = "model.layers.0.mlp.experts.down_proj"
  testing.expect_equal(again[name .. "_type"], "mxfp4")
  testing.expect_equal(table.concat(again[name].shape, " "), table.concat(packed[name].shape, " "))
  assert(lost[name] > 0 and lost[name] < 2, lost[name])
  assert((model(again, inputs) - model(expected, inputs)):abs():mean():item()
    < (model(packed, inputs) - model(expected, inputs)):abs():mean():item())
  lora.save_pretrained(scratch .. "/packed", params)
  local opened = lora.from_pretrained(scratch .. "/packed", floats)
  expect_close(model(opened, inputs), model(expected, inputs), 1e-4, 1e-5)
  model.save_pretrained(scratch .. "/base", { params = packed })
  local base = redco.models.from_pretrained(scratch .. "/base")
  lora.save_pretrained(scratch .. "/of_file", adapted(base.params, options))
  testing.expect_equal(
    #native.open_weights(scratch .. "/of_file/adapter_model.safetensors"):keys(), 8)
end)

test("Granite's experts in q4_0", function()
  local model = new_model("granitemoe", { hidden_size = 64, intermediate_size = 96 })
  model.save_pretrained(scratch .. "/granite")
  local packed = redco.models.from_pretrained(scratch .. "/granite", { quantize = "q4_0" }).params
  local options = { target_parameters = granite }
  local params = adapted(packed, options)
  local expected = model(adapted(redco.quant.dequantize(packed), options), inputs)
  expect_close(model(params, inputs), expected, 1e-4, 1e-5)
  expect_close(model(lora.merge(params), inputs), expected, 1e-4, 1e-5)
end)

test("a Trainer trains adapters of experts alone, also of packed ones", function()
  local model, packed = new_packed()
  local params = adapted(packed, { target_parameters = { down } })
  local trainer = redco.Trainer {
    deployer = redco.Deployer { seed = 1, verbose = false }, params = params,
    optimizer = lora.freeze_base(redco.optim.adamw { learning_rate = 0.01 }),
    collate_fn = function()
      return { input_ids = inputs.input_ids, labels = inputs.input_ids:flip(1) }
    end,
    loss_fn = model.loss_fn,
  }
  trainer:fit { train_examples = { 1, 2 }, n_epochs = 2, per_device_batch_size = 2 }
  local name = "model.layers.1.mlp.experts.down_proj"
  assert(not trainer.params[name .. ".lora_A.weight"]:equal(params[name .. ".lora_A.weight"]))
  expect_close(trainer.params[name], packed[name], 0, 0)
end)

test("the parameter of a layer is that layer", function()
  local model = new_model "granitemoe"
  local options = { r = 2, generator = torch.Generator(1), target_parameters = { "q_proj.weight" } }
  local params = lora.add(model.params, options)
  local name = "model.layers.0.self_attn.q_proj.lora_A.weight"
  testing.expect_equal(table.concat(params[name].shape, " "), "2 16")
end)

test("what adapters of experts cannot have", function()
  local model, name = new_model "gpt_oss", "model.layers.0.mlp.experts.down_proj"
  local function expect(options, ...)
    options.target_parameters = options.target_parameters or { down }
    expect_error(function() lora.add(model.params, options) end, ...)
  end
  expect({ use_dora = true }, "lora.add: model.layers.", "adapters cannot have use_dora")
  expect({ lora_dropout = 0.1 }, "adapters cannot have lora_dropout = 0.1, only 0")
  expect({ fan_in_fan_out = true }, "adapters cannot have fan_in_fan_out")
  expect({ init_lora_weights = "pissa" }, "init_lora_weights = true or \"gaussian\", got \"pissa\"")
  expect({ target_parameters = "experts" }, "expected the last parts", "got string")
  expect({ target_parameters = {} }, "expected the last parts", "got {}")
  expect({ target_parameters = { "up_proj" } }, "no parameter's name ends in 'up_proj'",
    "end in experts.down_proj, experts.gate_up_proj")
  expect({ target_parameters = { "down_proj_bias" } }, "no parameter's name ends in")
  local params = lora.add(model.params, { target_parameters = { down } })
  expect_error(function() lora.add(params, { target_parameters = { down } }) end,
    name .. " has an adapter already")
  expect_error(function()
    lora.add(new_model("mixtral").params, { target_parameters = { gates } })
  end, "these experts are layers, which target_modules choose")
  expect_error(function()
    lora.add(new_model("granitemoe").params, { target_modules = { "input_linear" } })
  end, "adapters are for linear layers; target_parameters takes \"input_linear.weight\"")
end)

test("experts that are layers open adapters of version 5, where they are stacks", function()
  local model, r = new_model "mixtral", 2
  local name = "model.layers.0.block_sparse_moe.experts."
  local inner, size = unpack(model.params[name .. "0.w1.weight"].shape)
  local n = model.config.num_local_experts
  local function random(...) return torch.randn({ ... }, { generator = torch.Generator(3) }) end
  local module, tensors = "base_model.model.model.layers.0.mlp.experts.", {}
  tensors[module .. "base_layer.lora_A.weight"] = random(n * r, size)
  tensors[module .. "base_layer.lora_B.weight"] = random(2 * inner, n * r)
  tensors[module .. "lora_A.weight"] = random(n * r, inner)
  tensors[module .. "lora_B.weight"] = random(size, n * r)
  local config = { peft_type = "LORA", r = r, lora_alpha = 6, target_modules = {},
    target_parameters = { "layers.0.mlp." .. gates, "layers.0.mlp." .. down } }
  native.save_weights(scratch .. "/version_5", tensors, { stem = "adapter_model",
    texts = { ["adapter_config.json"] = native.json_encode("", config) } })
  local found = lora.from_pretrained(scratch .. "/version_5", model.params)
  local merged = lora.merge(found)
  -- Expert e has the rows e r to (e + 1) r of A, and every n-th column of B from e.
  local function change(prefix, e)
    local a = tensors[module .. prefix .. "lora_A.weight"]:narrow(0, e * r, r)
    local b = tensors[module .. prefix .. "lora_B.weight"]:view { -1, r, n }:select(2, e)
    return b:matmul(a) * (6 / r)
  end
  for e = 0, n - 1 do
    local function expect(part, expected)
      local key = name .. e .. "." .. part .. ".weight"
      testing.expect_close(merged[key] - model.params[key], expected, 1e-4, 1e-5)
    end
    local gate, up = unpack(change("base_layer.", e):chunk(2, 0))
    expect("w1", gate)
    expect("w3", up)
    expect("w2", change("", e))
  end
end)

test("Granite's experts open adapters of version 5, where they have other names", function()
  local model = new_model "granitemoe"
  local params = adapted(model.params, { target_parameters = granite })
  lora.save_pretrained(scratch .. "/version_4", params)
  local tensors = {}
  for name, tensor in pairs(torch.load(scratch .. "/version_4/adapter_model.safetensors")) do
    name = name:gsub("input_linear", "experts.base_layer"):gsub("output_linear", "experts")
    tensors[name] = tensor
  end
  local config = redco.data.json(scratch .. "/version_4/adapter_config.json")
  config.target_parameters = { gates, down }
  native.save_weights(scratch .. "/version_5", tensors, { stem = "adapter_model",
    texts = { ["adapter_config.json"] = native.json_encode("", config) } })
  local opened = lora.from_pretrained(scratch .. "/version_5", model.params)
  for name, leaf in pairs(params) do
    if torch.is_tensor(leaf) then testing.expect_equal(opened[name] == leaf, true) end
  end
end)

test("damaged folders", function()
  local model = new_model "gpt_oss"
  lora.save_pretrained(scratch .. "/whole",
    adapted(model.params, { target_parameters = { gates, down } }))
  local file = scratch .. "/whole/adapter_model.safetensors"
  local config = redco.data.json(scratch .. "/whole/adapter_config.json")
  local function expect(change, ...)
    local tensors, own = torch.load(file), redco.tree.map(function(v) return v end, config)
    change(tensors, own)
    native.save_weights(scratch .. "/damaged", tensors, { stem = "adapter_model",
      texts = { ["adapter_config.json"] = native.json_encode("", own) } })
    expect_error(function() lora.from_pretrained(scratch .. "/damaged", model.params) end, ...)
  end
  local key = "base_model.model.model.layers.0.mlp.experts.base_layer.lora_A.weight"
  expect(function(tensors) tensors[key] = nil end,
    "there are no lora_A and lora_B of model.layers.0.mlp.experts.gate_up_proj")
  expect(function(tensors) tensors[key] = torch.zeros { 12, 5 } end,
    "gate_up_proj has lora_A [12, 5]", "for 4 experts of rank 3")
  expect(function(tensors) tensors[key] = torch.zeros { 8, 16 } end, "has lora_A [8, 16]")
  expect(function(tensors) tensors[key] = torch.zeros { 12 } end, "has lora_A [12]")
  expect(function(_, own) own.target_parameters = nil end, "there is no layer")
  expect(function(_, own) own.use_dora = true end, "adapters cannot have use_dora")
  expect(function(_, own) own.lora_dropout = 0.5 end, "adapters cannot have lora_dropout = 0.5")
  expect(function(_, own) own.target_parameters = "x" end, "target_parameters")
end)

testing.finish()
