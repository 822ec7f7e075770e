-- Quantized weights on every layout, with adapters of each kind: the losses of some steps are those
-- of one process, and each process holds packed parts. A second argument is the only variant.
local native = require "redco.native"
local redco = require "redco"
local testing = require "testing"

local lora, quant, torch, tree = redco.lora, redco.quant, redco.torch, redco.tree
local folder = arg[1] .. "/quantized"

local function new_model(model_type, more)
  local config = { model_type = model_type, vocab_size = 96, hidden_size = 128,
    intermediate_size = 192, num_hidden_layers = 2, num_attention_heads = 4,
    num_key_value_heads = 2 }
  for key, value in pairs(more or {}) do config[key] = value end
  local model = redco.models.from_config(config, { generator = torch.Generator(1) })
  model.save_pretrained(folder .. "/" .. model_type)
  return model
end

local ids = torch.randint(0, 96, { 8, 17 }, { generator = torch.Generator(5) })
local examples = {}
for i = 0, 7 do
  examples[i + 1] = { input_ids = ids[i]:narrow(0, 0, 16), labels = ids[i]:narrow(0, 1, 16) }
end
local adamw = redco.optim.adamw { learning_rate = 1e-2 }

local function adapted(params, options)
  local o = { target_modules = { "q_proj", "v_proj", "down_proj" }, r = 4,
    generator = torch.Generator(2) }
  for key, value in pairs(options) do o[key] = value end
  return lora.add(params, o)
end

-- The losses of some steps of one process with plain tensors, by hand.
local function expected_of(model, params)
  local names, optimizer = {}, lora.freeze_base(adamw)
  for name, leaf in pairs(params) do
    if torch.is_tensor(leaf) and not lora.is_frozen(name) then names[#names + 1] = name end
  end
  local state, losses = nil, {}
  for step = 1, 3 do
    local batch = redco.data.default_collate(examples)
    local trained = {}
    for _, name in ipairs(names) do trained[name] = params[name] end
    local loss, gradients = redco.value_and_grad(function(given)
      local all = tree.map(function(leaf) return leaf end, params)
      for name, leaf in pairs(given) do all[name] = leaf end
      return (model.loss(all, batch))
    end)(trained)
    losses[step], state = loss:item(), state or optimizer:init(trained)
    optimizer:step(gradients, state, trained)
  end
  return losses
end

-- Whole tensors on each process.
local function plain(params)
  return tree.map(function(leaf)
    return torch.is_tensor(leaf) and leaf:full() or leaf
  end, params)
end

local llama = new_model "llama"

testing.test("parts are rounded as the whole, with the importance of columns", function()
  for _, name in ipairs { "gate_proj", "down_proj" } do
    local weight = llama.params["model.layers.1.mlp." .. name .. ".weight"]
    local importance = torch.rand({ weight:size(1) }, { generator = torch.Generator(3) })
    local whole = native.quantize(weight:full(), "q4_0", importance)
    testing.expect_close(native.quantize(weight, "q4_0", importance):full(), whole, 0, 0)
  end
end)

testing.test("each process rounds its part of a folder", function()
  local mesh = redco.Deployer({ seed = 1, n_model_shards = 2, verbose = false }).mesh
  local quantize, n, n_rounded = native.quantize, 0, 0
  native.quantize = function(part, ...)
    n, n_rounded = n + part:numel(), n_rounded + part:to_local():numel()
    return quantize(part, ...)
  end
  local ok, message = pcall(redco.models.from_pretrained, folder .. "/llama", { quantize = "q4_0" })
  native.quantize = quantize
  assert(ok, message)
  testing.expect_equal(n_rounded * mesh.dp * mesh.mp, n)
end)

local experts = { num_local_experts = 4, num_experts_per_tok = 2, initializer_range = 0.1 }
local gated, of_experts = { "mlp.gate_proj", "mlp.down_proj" }, "block_sparse_moe."
local variants = {
  { name = "q8_0", model = llama, type = "q8_0", options = {}, packed = gated },
  { name = "q4_0", model = llama, type = "q4_0", options = { use_dora = true }, packed = gated },
  { name = "q8_0 with PiSSA", model = llama, type = "q8_0", packed = gated,
    options = { use_dora = true, init_lora_weights = "pissa" } },
  { name = "LoftQ", model = llama,
    options = { init_lora_weights = "loftq", target_modules = { "q_proj" } } },
  { name = "AWQ", model = llama, calibrated = "awq", options = { use_dora = true } },
  { name = "Mixtral", model = new_model("mixtral", experts), type = "q8_0",
    options = { target_modules = { "q_proj", "w1", "w2" } },
    packed = { of_experts .. "experts.3.w1", of_experts .. "experts.1.w2" } },
  { name = "Granite", model = new_model("granitemoe", experts), type = "q4_0",
    options = { target_modules = { "q_proj", "v_proj" },
      target_parameters = { "input_linear.weight", "output_linear.weight" } },
    packed = { of_experts .. "input_linear", of_experts .. "output_linear" },
    split = { of_experts .. "input_linear.lora_B", of_experts .. "output_linear.lora_A" },
    rules = { { "output_linear.weight", 2 } } },  -- else it is whole: it is little here
}

-- gpt-oss, in a folder that has its experts in MXFP4.
local function new_gpt_oss()
  local model = new_model("gpt_oss", { head_dim = 32, num_local_experts = 4,
    num_experts_per_tok = 2 })
  local params = plain(model.params)
  for name, leaf in pairs(model.params) do
    if name:find "experts%.[%l_]+_proj$" then
      params[name] = native.quantize(leaf:full():transpose(1, 2):contiguous(), "mxfp4")
      params[name .. "_type"], params[name .. "_is_transposed"] = "mxfp4", true
    end
  end
  model.save_pretrained(folder .. "/gpt_oss", { params = params })
  return model
end
table.insert(variants, { name = "gpt-oss", model = new_gpt_oss(),
  options = { target_modules = { "q_proj" },
    target_parameters = { "experts.gate_up_proj", "experts.down_proj" } }, opens = true,
  packed = { "mlp.experts.gate_up_proj", "mlp.experts.down_proj" },
  split = { "mlp.experts.gate_up_proj.lora_A", "mlp.experts.down_proj.lora_B" } })

for i = #variants, 1, -1 do
  if arg[2] and variants[i].name ~= arg[2] then table.remove(variants, i) end
end

-- Returns the parameters that a variant begins with.
local function base_of(variant)
  local model = variant.model
  if variant.type or variant.opens then
    return redco.models.from_pretrained(folder .. "/" .. model.config.model_type,
      { quantize = variant.type }).params
  end
  if not variant.calibrated then return plain(model.params) end
  local whole = setmetatable({ params = plain(model.params) }, { __index = model })
  local texts = {}
  for i = 0, 7 do texts[i + 1] = ids[i]:tolist() end
  return (quant.calibrate(whole, texts, { method = variant.calibrated, group_size = 64 }))
end

for _, variant in ipairs(variants) do
  local model, type, base = variant.model, variant.type, base_of(variant)
  local expected = expected_of(model, plain(adapted(base, variant.options)))

  testing.test(variant.name .. ": quantized folders are as the whole weights", function()
    if not type then return end
    local name = "model.layers.1.self_attn.q_proj.weight"
    local whole = quant.quantize({ layer = { weight = model.params[name]:full() } },
      { type = type, target_modules = { "layer" } })
    testing.expect_close(base[name]:full(), whole.layer.weight, 0, 0)
  end)

  for _, options in ipairs { { n_model_shards = 1 }, { n_model_shards = 2 },
    { n_model_shards = 1, zero = 3, zero_min_size = 1 },
    { n_model_shards = 2, zero = 3, zero_min_size = 1 },
    { n_model_shards = 2, sequence_parallel = true }, { n_expert_shards = 2 } } do
    if options.n_expert_shards and not model.config.num_local_experts then break end
    options.seed, options.verbose = 1, false
    local deployer = redco.Deployer(options)
    local layout = ("%dx%d with zero %d%s%s"):format(deployer.mesh.dp, deployer.mesh.mp,
      options.zero or 0, options.sequence_parallel and " and sequences in parts" or "",
      options.n_expert_shards and " and expert shards" or "")
    testing.test(variant.name .. " on " .. layout, function()
      local trainer = redco.Trainer {
        deployer = deployer, params = adapted(base, variant.options), loss_fn = model.loss_fn,
        collate_fn = redco.data.default_collate, optimizer = lora.freeze_base(adamw),
        params_sharding_rules = variant.rules,
      }
      local losses = {}
      for step = 1, 3 do
        trainer:fit { train_examples = examples, n_epochs = 1,
          per_device_batch_size = 8 / deployer.mesh.dp / deployer.mesh.ep,
          on_step = function(event) losses[step] = event.metrics.loss end }
      end
      for step = 1, 3 do
        testing.expect_close(torch.tensor(losses[step]), torch.tensor(expected[step]), 2e-5, 0)
      end
      -- A file of llama.cpp has the whole weights, each process gives its part.
      if variant.name == "q8_0" then
        local file_path = folder .. ".gguf"
        model.save_gguf(file_path, { params = lora.base(trainer.params), tokenizer = false })
        local read = redco.models.from_pretrained(file_path)
        for name, leaf in pairs(base) do
          if torch.is_tensor(leaf) then
            testing.expect_close(read.params[name]:full(), leaf:full(), 0, 0)
          end
        end
      end
      -- Each process holds its part of the blocks.
      local function expect_part(name, dtype)
        name = "model.layers.0." .. name
        local weight = trainer.params[name .. ".weight"] or trainer.params[name]
        testing.expect_equal(weight.dtype, dtype)
        if options.n_expert_shards then return end
        testing.expect_equal(weight:to_local():numel() * deployer.mesh.mp
          * (options.zero == 3 and deployer.mesh.dp or 1), weight:numel())
      end
      for _, name in ipairs(variant.packed or {}) do expect_part(name, "uint8") end
      -- And of the adapters of experts, which follow them.
      for _, name in ipairs(variant.split or {}) do expect_part(name, "float32") end
    end)
  end
end

testing.finish()
