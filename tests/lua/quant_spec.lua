-- Quantized weights: the numbers of the reference packages, products, layers, models, errors.
local native = require "redco.native"
local redco = require "redco"
local testing = require "testing"
local tiny = require "tiny_models"

local lora, nn, quant, torch = redco.lora, redco.nn, redco.quant, redco.torch
local test, expect_close, expect_error = testing.test, testing.expect_close, testing.expect_error
local expect_equal = testing.expect_equal

local source = assert(os.getenv "REDCO_SOURCE")
local given = torch.load(source .. "/tests/lua/quantized_cases.safetensors")
local generator = torch.Generator(1)
local function random(...) return torch.randn({ ... }, { generator = generator }) end

local function expect_same(a, b)
  expect_equal(a:eq(b):all():item(), true)
end

for _, type in ipairs(quant.types()) do
  local blocks, numbers = given[type.name .. ".blocks"], given[type.name .. ".numbers"]

  test(type.name .. ": the numbers of the reference", function()
    expect_equal(blocks:size(-1), type.bytes)
    expect_same(native.dequantize(blocks, type.name), numbers)
    expect_same(native.dequantize(blocks, type.name, "bfloat16"), numbers:bfloat16())
    expect_same(native.dequantize(blocks, type.name, "float64"), numbers:double())
  end)

  test(type.name .. ": products of few and of many rows, and their gradients", function()
    for _, shape in ipairs { { 1 }, { 16 }, { 3, 7 }, { 0 } } do
      shape[#shape + 1] = 256
      local x, bias = random(unpack(shape)):double(), random(3):double()
      local dense = numbers:double()
      for _, dtype in ipairs { "float64", "float32" } do
        local y = native.quantized_linear(x:to(dtype), blocks, type.name, bias:to(dtype))
        local expected = torch.linear(x, dense, bias)
        local scale = x:numel() > 0 and torch.linear(x:abs(), dense:abs()):max():item() or 1
        expect_close(y:double(), expected, 0, (dtype == "float64" and 1e-14 or 1e-6) * scale)
      end
      local leaf = x:clone():requires_grad_()
      local r = random(unpack(shape, 1, #shape - 1)):double():unsqueeze(-1)
      ;(native.quantized_linear(leaf, blocks, type.name) * r):sum():backward()
      expect_close(leaf.grad, r * dense:sum { 0 }, 1e-12, 1e-12)
    end
  end)

  -- The sum of the squares of the errors in each row, each times a weight.
  local function errors_of(made, weight)
    return ((native.dequantize(made, type.name) - given.values):pow(2) * weight):sum { 1 }
  end

  -- Whether numbers are rounded as well: the root mean squares are at most 1.02 times as large. One
  -- row has numbers of a thousandth.
  local function expect_as_good(made, reference, weight)
    local function total_of(made_blocks)
      local rows = errors_of(made_blocks, weight):tolist()
      return rows[1] + rows[3], rows[2]
    end
    local large, small = total_of(made)
    local their_large, their_small = total_of(reference)
    if large > 1.0404 * their_large or small > 1.0404 * their_small then
      error(("%g and %g, the reference has %g and %g"):format(large, small, their_large,
        their_small))
    end
  end

  test(type.name .. ": rounds as well as the reference", function()
    local own, fitted = native.quantize(given.values, type.name), given[type.name .. ".fitted"]
    expect_same(native.quantize(given.values:double(), type.name), own)
    local weighted = given[type.name .. ".weighted"]
    if weighted then
      local weight = given.importance
      local made = native.quantize(given.values, type.name, weight)
      expect_as_good(made, weighted, weight)
      assert(errors_of(made, weight):sum():item() < errors_of(own, weight):sum():item())
    end
    if fitted then return expect_as_good(own, fitted, 1) end
    local reference = given[type.name .. ".encoded"]
    -- The least of a block of zeros may be -0.
    expect_same(native.dequantize(own, type.name), native.dequantize(reference, type.name))
    expect_equal(own:ne(reference):sum():item() <= 2, true)
  end)

  test(type.name .. ": zeros, tiny and huge numbers, and no importance", function()
    local x = torch.zeros { 3, 256 }
    x[{ 1, {} }], x[{ 2, {} }] = 1e-30, 60000
    x[{ 2, 7 }] = -65504
    local back = native.dequantize(native.quantize(x, type.name), type.name)
    expect_equal(back:isfinite():all():item(), true)
    expect_close(back[{ { 0, 2 }, {} }], torch.zeros { 2, 256 }, 0, 1e-7)
    local with = native.quantize(given.values, type.name, torch.zeros { 256 })
    expect_equal(errors_of(with, 1):le(errors_of(native.quantize(given.values, type.name), 1) * 1.5
      + 1e-12):all():item(), true)
  end)
end

test("second gradients, vmap and autocast", function()
  local blocks, dense = given["q4_0.blocks"], given["q4_0.numbers"]:double()
  local x = random(4, 256):double():requires_grad_()
  local y = native.quantized_linear(x, blocks, "q4_0"):pow(3):sum()
  local first = torch.autograd.grad({ y }, { x }, { create_graph = true })[1]
  local second = torch.autograd.grad({ first:pow(2):sum() }, { x })[1]
  local other = x:detach():requires_grad_()
  local z = torch.linear(other, dense):pow(3):sum()
  local f = torch.autograd.grad({ z }, { other }, { create_graph = true })[1]
  expect_close(second, torch.autograd.grad({ f:pow(2):sum() }, { other })[1], 1e-10, 1e-10)
  local rows = redco.vmap(function(row) return native.quantized_linear(row, blocks, "q4_0") end)(
    x:detach())
  expect_close(rows, torch.linear(x:detach(), dense), 1e-12, 1e-12)
end)

test("layers and adapters compute with quantized weights", function()
  local params = { a = nn.Linear(64, 32, { generator = generator }),
    b = nn.Linear(32, 64, { generator = generator, bias = false }) }
  local packed = quant.quantize(params, { type = "q8_0", target_modules = { "a", "b" } })
  expect_equal(packed.a.weight_type, "q8_0")
  expect_equal(packed.a.weight.dtype, "uint8")
  expect_equal(params.a.weight_type, nil)
  local floats = quant.dequantize(packed)
  expect_equal(floats.a.weight_type, nil)
  expect_close(floats.a.weight, params.a.weight, 0, 1e-3)
  local x = random(5, 64)
  local function forward(p) return nn.linear(p.b, nn.linear(p.a, x)) end
  expect_close(forward(packed), forward(floats), 1e-5, 1e-5)

  local function adapted(tree)
    local result = lora.add(tree, { target_modules = { "a" }, r = 2,
      generator = torch.Generator(2) })
    result.a.lora_B.weight = torch.full_like(result.a.lora_B.weight:detach(), 0.1)
    return result
  end
  expect_close(forward(adapted(packed)), forward(adapted(floats)), 1e-5, 1e-5)
  local merged = lora.merge(adapted(packed))
  expect_equal(merged.a.weight_type, nil)
  expect_equal(merged.a.weight.dtype, "float32")
  expect_equal(merged.b.weight_type, "q8_0")
  expect_close(forward(merged), forward(adapted(floats)), 1e-5, 1e-5)
end)

test("errors say what was expected", function()
  local params = { a = nn.Linear(64, 32), b = nn.Linear(48, 32) }
  local function quantize(...)
    local words = { ... }
    return function() quant.quantize(params, { type = words[1], target_modules = words[2] }) end
  end
  expect_error(quantize("q9", { "a" }), 'quantized numbers is "q9", expected one of q8_0, q4_0')
  expect_error(quantize("q8_0", { "b" }), "q8_0 has blocks of 32", "[32, 48]")
  expect_error(quantize("q8_0", { "c" }), "no layer's name ends in 'c'; layer names end in a, b")
  expect_error(quantize "q8_0", "quant.quantize: target_modules: expected the last parts")
  local packed = quant.quantize(params, { type = "q4_1", target_modules = { "a" } })
  expect_error(function()
    quant.quantize(packed, { type = "q4_1", target_modules = { "a" } })
  end, "a is quantized already")
  expect_error(function() nn.linear(packed.a, random(2, 32)) end, "expected x [..., 64]", "q4_1")
  for _, value in ipairs { 0 / 0, math.huge, 1e5 } do
    expect_error(function() native.quantize(torch.full({ 32 }, value), "q4_0") end, "not finite")
  end
  expect_error(function() native.dequantize(given["q8_0.blocks"], "q4_0") end,
    "expected q4_0 in blocks [..., n, 18]", "[3, 8, 34]")
end)

local function new_llama()
  return redco.models.from_config({ model_type = "llama", vocab_size = 96, hidden_size = 64,
    intermediate_size = 128, num_hidden_layers = 2, num_attention_heads = 4,
    num_key_value_heads = 2 }, { generator = torch.Generator(3) })
end

local folder = testing.folder()
new_llama().save_pretrained(folder .. "/llama")
local ids = torch.randint(0, 96, { 2, 30 }, { generator = generator })

test("quantized folders are written, and open with the same blocks", function()
  local config = { model_type = "llama", vocab_size = 20, hidden_size = 64,
    intermediate_size = 128, num_hidden_layers = 1, num_attention_heads = 4,
    num_key_value_heads = 1 }
  local plain = redco.models.from_config(config, { generator = generator })
  local out = folder .. "/written"
  for _, type in ipairs { "int4", "int8", "fp8", "nf4", "fp4" } do
    local params = quant.quantize(plain.params, { type = type,
      target_modules = { "q_proj", "k_proj", "down_proj" } })
    plain.save_pretrained(out, { params = params })
    local opened = redco.models.from_pretrained(out)
    for name, value in pairs(params) do
      local read = opened.params[name]
      if torch.is_tensor(value) then expect_same(read, value) else expect_equal(read, value) end
    end
    local settings = redco.data.json(out .. "/config.json").quantization_config
    local floats = table.concat(settings.ignore or settings.llm_int8_skip_modules, " ")
    assert(floats:find "layers.0.mlp.up_proj" and not floats:find "q_proj", floats)
  end
  local params = quant.quantize(plain.params, { type = "int4", target_modules = { "q_proj" } })
  params = quant.quantize(params, { type = "nf4", target_modules = { "k_proj" } })
  expect_error(function() plain.save_pretrained(out, { params = params }) end,
    "a folder has one type")
end)

test("merging into quantized weights says what it loses", function()
  local model = redco.models.from_pretrained(folder .. "/llama", { quantize = "q4_0" })
  local params = lora.add(model.params, { target_modules = { "q_proj", "v_proj" },
    generator = generator })
  for name, t in pairs(params) do
    if name:find "lora_B" then
      torch.no_grad(function() t:copy_(random(unpack(t.shape)) * 0.1) end)
    end
  end
  local floats = lora.merge(params)
  local packed, lost = lora.merge(params, { quantize = true })
  local layer = "model.layers.0.self_attn.q_proj"
  expect_equal(packed[layer .. ".weight_type"], "q4_0")
  local base = native.dequantize(model.params[layer .. ".weight"], "q4_0")
  local rounding = native.dequantize(packed[layer .. ".weight"], "q4_0")
    - floats[layer .. ".weight"]
  local expected = rounding:norm():item() / (floats[layer .. ".weight"] - base):norm():item()
  expect_close(torch.tensor(lost[layer]), torch.tensor(expected), 1e-4, 0)
  expect_equal(select(2, lora.merge(params)), nil)
end)

test("a folder is quantized while it is read", function()
  local packed = redco.models.from_pretrained(folder .. "/llama", { quantize = "q8_0" })
  local plain = redco.models.from_pretrained(folder .. "/llama")
  expect_equal(tostring(packed), tostring(plain))
  expect_equal(packed.params["model.layers.1.mlp.up_proj.weight_type"], "q8_0")
  expect_equal(packed.params["lm_head.weight_type"], nil)
  -- A checkpoint names it instead of writing it.
  expect_equal(select(2, native.source_of(packed.params["model.layers.1.mlp.up_proj.weight"])),
    "model.layers.1.mlp.up_proj.weight")
  local floats = quant.dequantize(packed.params)
  expect_close(packed(packed.params, { input_ids = ids }), plain(floats, { input_ids = ids }),
    1e-5, 1e-5)
  local options = { max_new_tokens = 8, do_sample = false }
  expect_equal(packed.generate(packed.params, { input_ids = ids }, options):tolist()[2][38],
    plain.generate(floats, { input_ids = ids }, options):tolist()[2][38])
  expect_error(function() packed.save_pretrained(folder .. "/out") end, "quantized to q8_0",
    "redco.quant.dequantize", "save_gguf")
  packed.save_pretrained(folder .. "/out", { params = floats })
  expect_error(function()
    redco.models.from_pretrained(folder .. "/llama", { quantize = "int3" })
  end, "quantize: expected false or one of q8_0", "got int3")
end)

test("adapters are trained on quantized weights, which are not", function()
  local model = redco.models.from_pretrained(folder .. "/llama", { quantize = "nf4" })
  local deployer = redco.Deployer { seed = 1, verbose = false }
  local function trainer(params, optimizer)
    return redco.Trainer { deployer = deployer, params = params, optimizer = optimizer,
      loss_fn = model.loss_fn, collate_fn = redco.data.default_collate }
  end
  local sgd = redco.optim.sgd { learning_rate = 0.5 }
  expect_error(function() trainer(model.params, sgd) end, "is quantized and cannot be trained",
    "redco.lora.add")
  local params = lora.add(model.params, { target_modules = { "q_proj", "down_proj" }, r = 2 })
  local adapters = trainer(params, lora.freeze_base(sgd))
  local rows = {}
  for i = 1, 4 do rows[i] = { input_ids = ids[i % 2], labels = ids[i % 2]:roll(-1) } end
  local before = model.loss(params, { input_ids = ids, labels = ids:roll(-1, 1) }):item()
  adapters:fit { train_examples = rows, per_device_batch_size = 2, n_epochs = 4 }
  local after = model.loss(adapters.params, { input_ids = ids, labels = ids:roll(-1, 1) }):item()
  expect_equal(after < before, true)
  expect_same(adapters.params["model.layers.0.mlp.down_proj.weight"],
    model.params["model.layers.0.mlp.down_proj.weight"])
end)

-- The sizes of the families that blocks must divide.
local is_size = {}
for name in ("hidden_size intermediate_size d_model d_ff d_kv encoder_ffn_dim decoder_ffn_dim "
  .. "ffn_dim word_embed_proj_dim dim hidden_dim n_embd embedding_size moe_intermediate_size "
  .. "projection_dim projection_size q_lora_rank kv_lora_rank head_dim qk_rope_head_dim "
  .. "qk_nope_head_dim v_head_dim out_hidden_size "
  .. "patch_embeds_hidden_size fpn_hidden_size"):gmatch "%S+" do is_size[name] = true end

local are_sizes_in = { mrope_section = true, embed_dim_per_stage = true }

local function grown(config, are_sizes)
  local result = {}
  for key, value in pairs(config) do
    local is_convolutional = key == "backbone_config"  -- it has no products
    result[key] = is_convolutional and value
      or type(value) == "table" and grown(value, are_sizes_in[key])
      or (are_sizes or is_size[key]) and value * 8 or value
  end
  return result
end

for _, name in ipairs(tiny.names()) do
  local model_type, task = name:match "^([^.]+)%.?(.*)$"
  task = task ~= "" and task or nil
  test(name .. ": a quantized model computes as its dequantized one", function()
    local config = grown(tiny.config(model_type))
    config.vocab_size = tiny.reads_tokens(config) and 32 or nil
    config.pad_token_id = config.pad_token_id or task == "sequence_classification" and 0 or nil
    redco.models.from_config(config, { task = task, generator = torch.Generator(3) })
      .save_pretrained(folder .. "/family")
    local function open()
      return redco.models.from_pretrained(folder .. "/family", { task = task, quantize = "q8_0" })
    end
    if model_type == "gpt2" or model_type == "resnet" then  -- [in, out], and convolutions
      return expect_error(open, "has no weight that can be quantized so")
    end
    local model = open()
    local inputs = tiny.inputs(name, model)
    local function value(params)
      if model.output and not model.family.loss then
        return model.output(params, inputs):pow(2):mean()
      end
      return (model.loss(params, inputs))
    end
    expect_close(value(model.params), value(quant.dequantize(model.params)), 1e-6, 0)
  end)
end

-- Writes the folder with a `quantization_config` and weights that `change` has replaced.
local function quantized_folder(config, change)
  local json = redco.data.json(folder .. "/llama/config.json")
  json.quantization_config = config
  testing.write(folder .. "/bad/config.json", native.json_encode("config.json", json, 2))
  local tensors = torch.load(folder .. "/llama/model.safetensors")
  if change then change(tensors, "model.layers.0.mlp.up_proj.") end
  native.save_weights(folder .. "/bad", tensors)
  return function() return redco.models.from_pretrained(folder .. "/bad") end
end

test("folders of unknown or damaged forms are refused by name", function()
  os.execute("mkdir -p " .. folder .. "/bad")
  expect_error(quantized_folder { quant_method = "hqq" }, "the method hqq is not read",
    "bitsandbytes, gptq, awq")
  expect_error(quantized_folder "nf4", "the method false is not read")
  expect_error(quantized_folder { quant_method = "gptq", bits = 3 }, "gptq with 3 bits")
  expect_error(quantized_folder { quant_method = "awq", bits = 4, version = "marlin" },
    "awq with 4 bits and version marlin")
  expect_error(quantized_folder { quant_method = "compressed-tensors", format = "marlin-24" },
    "the format marlin-24")
  local group = { weights = { num_bits = 8, strategy = "block" } }
  expect_error(quantized_folder { quant_method = "compressed-tensors", format = "float-quantized",
    config_groups = { group_0 = group } }, "the format float-quantized by block")

  local function gptq(name, value)
    return quantized_folder({ quant_method = "gptq", bits = 4 }, function(tensors, stem)
      tensors[stem .. "weight"] = nil
      tensors[stem .. "qweight"] = torch.zeros({ 8, 128 }, { dtype = "int32" })
      tensors[stem .. "qzeros"] = torch.zeros({ 1, 16 }, { dtype = "int32" })
      tensors[stem .. "scales"] = torch.ones { 1, 128 }
      if name then tensors[stem .. name] = value end
    end)
  end
  local model = gptq()()
  -- Zeros are stored less 1.
  expect_same(native.dequantize(model.params["model.layers.0.mlp.up_proj.weight"], "int4"),
    torch.full({ 128, 64 }, -1))
  expect_error(gptq("g_idx", torch.arange(64):flip { 0 }), "desc_act")
  expect_error(gptq("qweight", torch.zeros({ 4, 128 }, { dtype = "int32" })),
    "up_proj.weight: rows of 32 numbers are not read")
  expect_error(gptq("scales", torch.ones { 3, 128 }), "up_proj.weight")
  expect_error(quantized_folder({ quant_method = "gptq", bits = 4 }, function(tensors, stem)
    tensors[stem .. "qweight"] = torch.zeros({ 8, 128 }, { dtype = "int32" })
    tensors[stem .. "scales"] = torch.ones { 1, 128 }
  end), "up_proj.qzeros is missing")

  local function mxfp4(blocks, scales)
    return quantized_folder({ quant_method = "mxfp4" }, function(tensors, stem)
      tensors[stem .. "weight_blocks"], tensors[stem .. "weight_scales"] = blocks, scales
      tensors[stem .. "weight"] = nil
    end)
  end
  expect_error(mxfp4(torch.zeros({ 1, 128, 2, 16 }, { dtype = "uint8" })),
    "up_proj.weight is [1, 64, 128]")
end)

test("experts of gpt-oss are read from blocks of mxfp4", function()
  local dir = folder .. "/mxfp4"
  local model = redco.models.from_config({ model_type = "gpt_oss", vocab_size = 32,
    hidden_size = 32, intermediate_size = 32, num_hidden_layers = 1, num_attention_heads = 2,
    num_key_value_heads = 1, head_dim = 8, num_local_experts = 2, num_experts_per_tok = 1,
  }, { generator = torch.Generator(1) })
  model.save_pretrained(dir)
  local json = redco.data.json(dir .. "/config.json")
  json.quantization_config = { quant_method = "mxfp4" }
  testing.write(dir .. "/config.json", native.json_encode("config.json", json, 2))
  local name = "model.layers.0.mlp.experts.down_proj"
  local function write(blocks, scales)
    local tensors = torch.load(dir .. "/model.safetensors")
    for key, value in pairs(tensors) do tensors[key] = value:clone() end
    tensors[name], tensors[name .. "_blocks"], tensors[name .. "_scales"] = nil, blocks, scales
    native.save_weights(dir, tensors)
  end
  -- The first byte of an output has the numbers of the first two inputs: 1.5 and -6, times 4.
  local blocks = torch.zeros({ 2, 32, 1, 16 }, { dtype = "uint8" })
  blocks[1][5][0]:narrow(0, 0, 1):fill_(0xF3)
  local scales = torch.full({ 2, 32, 1 }, 129, { dtype = "uint8" })
  write(blocks, scales)
  local read = redco.models.from_pretrained(dir, { dtype = "auto", quantize = false }).params[name]
  expect_equal(read.dtype, "bfloat16")
  expect_equal(read[1][0][5]:item(), 6)
  expect_equal(read[1][1][5]:item(), -24)
  expect_equal(read:count_nonzero():item(), 2)

  -- They stay packed, compute the same, and are written as they were.
  local floats = redco.models.from_pretrained(dir, { quantize = false })
  local packed = redco.models.from_pretrained(dir)
  expect_equal(table.concat(packed.params[name].shape, " "), "2 32 1 17")
  expect_equal(packed.params[name .. "_type"], "mxfp4")
  expect_equal(tostring(packed), tostring(floats))
  local inputs = { input_ids = torch.tensor { { 1, 2, 3 } }, labels = torch.tensor { { 2, 3, 4 } } }
  expect_close(packed.loss(packed.params, inputs), floats.loss(floats.params, inputs), 1e-6, 0)
  local dense = quant.dequantize(packed.params, { dtype = "bfloat16" })
  expect_same(dense[name], read)
  expect_equal(dense[name .. "_type"], nil)
  packed.save_pretrained(dir .. "/written")
  local written = torch.load(dir .. "/written/model.safetensors")
  expect_same(written[name .. "_blocks"], blocks)
  expect_same(written[name .. "_scales"], scales)
  local again = redco.models.from_pretrained(dir .. "/written")
  expect_same(again.params[name], packed.params[name])

  local function open() return redco.models.from_pretrained(dir) end
  write(blocks, nil)
  expect_error(open, name .. "_scales is missing")
  write(blocks, scales:narrow(1, 0, 31):clone())
  expect_error(open, "are [2, 32, 1, 16] and [2, 31, 1], expected")
  write(blocks:to "int32", scales)
  expect_error(open, "are int32 and uint8, expected uint8")
end)

local rounding = require "redco.quant.rounding"

test("gptq and awq lose less than rounding on correlated inputs", function()
  for seed = 1, 3 do
    local rng = torch.Generator(seed)
    local mixing = torch.randn({ 256, 256 }, { generator = rng })
    local sizes = torch.randn({ 256 }, { generator = rng }):exp()
    local x = torch.randn({ 400, 256 }, { generator = rng }):matmul(mixing) * sizes
    local w = torch.randn({ 48, 256 }, { generator = rng })
    local hessian, magnitude = x:t():matmul(x), x:abs():mean { 0 }
    for _, method in ipairs { "gptq", "awq" } do
      for _, group_size in ipairs { 64, 128, 256 } do
        local blocks, scale, off, off_nearest = rounding.round("test", w, hessian, magnitude,
          { method = method, group_size = group_size, damping = 0.01 })
        local values = native.dequantize(blocks, "int4")
        if scale then values = values * scale end
        local y = torch.linear(x, w)
        local found = (torch.linear(x, values) - y):square():sum() / y:square():sum()
        expect_close(found, torch.tensor(off), 1e-2, 0)
        assert(off < off_nearest, method .. " " .. group_size)
        if group_size == 64 then
          local plain = native.dequantize(native.quantize(w, "int4"), "int4")
          local of_rounding = (torch.linear(x, plain) - y):square():sum() / y:square():sum()
          expect_close(of_rounding, torch.tensor(off_nearest), 1e-2, 0)
        end
      end
    end
  end
end)

test("inputs that are always zero do not stop gptq", function()
  local x = random(100, 64)
  x:narrow(1, 5, 3):zero_()
  local blocks, _, off = rounding.round("test", random(8, 64), x:t():matmul(x), x:abs():mean { 0 },
    { method = "gptq", group_size = 64, damping = 0.01 })
  assert(off < 0.1 and native.dequantize(blocks, "int4"):isfinite():all():item())
end)

test("a model is calibrated block by block", function()
  local model = redco.models.from_config({ model_type = "llama", vocab_size = 96,
    hidden_size = 64, intermediate_size = 128, num_hidden_layers = 3, num_attention_heads = 4,
    num_key_value_heads = 2, initializer_range = 0.2 }, { generator = torch.Generator(3) })
  local own, texts = torch.Generator(4), {}
  for i = 1, 12 do texts[i] = torch.randint(0, 96, { 24 }, { generator = own }):tolist() end
  -- Inputs of different sizes, as real models have them.
  for name, leaf in pairs(model.params) do
    if name:find "norm" then leaf:copy_((torch.randn({ 64 }, { generator = own }) / 2):exp()) end
  end
  local inputs = { input_ids = torch.tensor(texts, { dtype = "int64" }) }
  local function logits(params) return model(params, inputs) end
  local plain = quant.quantize(model.params, { type = "int4", target_modules = { "q_proj",
    "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj" } })
  local expected = logits(model.params)
  local function off(params) return (logits(params) - expected):square():mean():item() end
  for _, method in ipairs { "gptq", "awq" } do
    local params, report = quant.calibrate(model, texts, { method = method, group_size = 64 })
    local n = 0
    for name, layer in pairs(report.layers) do
      n = n + 1
      assert(layer.error <= layer.rounding_error, name)
      expect_equal(params[name .. ".weight_type"], "int4")
      if method == "gptq" then expect_equal(params[name .. ".weight_input_scale"], nil) end
    end
    expect_equal(n, 21)
    assert(off(params) < off(plain), method)
    assert(report.perplexity_before > 1 and report.perplexity_after > 1)
    expect_close(torch.tensor(math.log(report.perplexity_before)),
      model.loss(model.params, { input_ids = inputs.input_ids, labels = inputs.input_ids },
        { shift = true }):detach(), 1e-4, 0)
    expect_close(logits(quant.dequantize(params)), logits(params), 1e-4, 1e-4)
    local adapted = lora.add(params, { target_modules = { "q_proj", "down_proj" }, r = 2,
      use_dora = true })
    expect_close(logits(adapted), logits(params), 1e-4, 1e-4)
    lora.save_pretrained(folder .. "/calibrated_" .. method, adapted)
    expect_close(logits(lora.merge(adapted)), logits(params), 1e-4, 1e-4)
    -- The model is as it was.
    expect_equal(model.params["model.layers.0.mlp.up_proj.weight"].dtype, "float32")
    expect_close(logits(model.params), expected, 0, 0)
  end
end)

test("what calibration refuses", function()
  local model = new_llama()
  local function calibrate(options, texts)
    return function() quant.calibrate(model, texts or { { 1, 2, 3 } }, options) end
  end
  expect_error(calibrate { method = "rtn" }, 'method: expected "gptq" or "awq", got rtn')
  expect_error(calibrate { type = "q4_0" }, 'type: expected "int4", got q4_0')
  expect_error(calibrate { group_size = 100 }, "group_size: expected a multiple of 64, got 100")
  expect_error(calibrate({}, { "a text" }), "texts need the tokenizer")
  expect_error(calibrate({}, {}), "expected a list of texts")
  expect_error(calibrate({}, { { 1 } }), "no text has two tokens")
  expect_error(calibrate { group_size = 512 }, "no weight of the model has a multiple of 512")
  expect_error(calibrate({}, { { 1, 1000 } }), "index out of range")
  local inputs = { input_ids = torch.tensor { { 1, 2, 3 } } }
  assert(model(model.params, inputs):isfinite():all():item())
end)

testing.finish()
