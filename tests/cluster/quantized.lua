-- Quantized weights on every layout: the losses and the adapters after some steps are those of one
-- process, and each process holds packed parts.
local native = require "redco.native"
local redco = require "redco"
local testing = require "testing"

local lora, quant, torch, tree = redco.lora, redco.quant, redco.torch, redco.tree
local folder = arg[1] .. "/quantized"

local model = redco.models.from_config({ model_type = "llama", vocab_size = 96, hidden_size = 128,
  intermediate_size = 192, num_hidden_layers = 2, num_attention_heads = 4,
  num_key_value_heads = 2 }, { generator = torch.Generator(1) })
model.save_pretrained(folder)

local ids = torch.randint(0, 96, { 8, 17 }, { generator = torch.Generator(5) })
local examples = {}
for i = 0, 7 do
  examples[i + 1] = { input_ids = ids[i]:narrow(0, 0, 16), labels = ids[i]:narrow(0, 1, 16) }
end
local adamw = redco.optim.adamw { learning_rate = 1e-2 }

local function adapted(params)
  return lora.add(params, { target_modules = { "q_proj", "v_proj", "down_proj" }, r = 4,
    generator = torch.Generator(2) })
end

-- The losses of some steps of one process with plain tensors, by hand.
local function expected_of(params)
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

testing.test("parts are rounded as the whole, with the importance of columns", function()
  for _, name in ipairs { "gate_proj", "down_proj" } do
    local weight = model.params["model.layers.1.mlp." .. name .. ".weight"]
    local importance = torch.rand({ weight:size(1) }, { generator = torch.Generator(3) })
    local whole = native.quantize(weight:full(), "q4_0", importance)
    testing.expect_close(native.quantize(weight, "q4_0", importance):full(), whole, 0, 0)
  end
end)

for _, type in ipairs { "q8_0", "q4_0" } do
  local opened = redco.models.from_pretrained(folder, { quantize = type })
  local expected = expected_of(plain(adapted(opened.params)))

  testing.test(type .. " of a folder is that of the whole weights", function()
    local name = "model.layers.1.mlp.gate_proj.weight"
    local whole = quant.quantize({ layer = { weight = model.params[name]:full() } },
      { type = type, target_modules = { "layer" } })
    testing.expect_close(opened.params[name]:full(), whole.layer.weight, 0, 0)
  end)

  for _, options in ipairs { { n_model_shards = 1 }, { n_model_shards = 2 },
    { n_model_shards = 1, zero = 3, zero_min_size = 1 },
    { n_model_shards = 2, zero = 3, zero_min_size = 1 },
    { n_model_shards = 2, sequence_parallel = true } } do
    options.seed, options.verbose = 1, false
    local deployer = redco.Deployer(options)
    testing.test(("%s on %dx%d with zero %d%s"):format(type, deployer.mesh.dp, deployer.mesh.mp,
      options.zero or 0, options.sequence_parallel and " and sequences in parts" or ""), function()
      local trainer = redco.Trainer {
        deployer = deployer, params = adapted(opened.params), loss_fn = model.loss_fn,
        collate_fn = redco.data.default_collate, optimizer = lora.freeze_base(adamw),
      }
      local losses = {}
      for step = 1, 3 do
        trainer:fit { train_examples = examples, n_epochs = 1,
          per_device_batch_size = 8 / deployer.mesh.dp,
          on_step = function(event) losses[step] = event.metrics.loss end }
      end
      for step = 1, 3 do
        testing.expect_close(torch.tensor(losses[step]), torch.tensor(expected[step]), 2e-5, 0)
      end
      -- A file of llama.cpp has the whole weights, each process gives its part.
      local file_path = folder .. ".gguf"
      model.save_gguf(file_path, { params = lora.base(trainer.params), tokenizer = false })
      local read = redco.models.from_pretrained(file_path)
      for name, leaf in pairs(opened.params) do
        if torch.is_tensor(leaf) then
          testing.expect_close(read.params[name]:full(), leaf:full(), 0, 0)
        end
      end
      local function part(name)
        return trainer.params["model.layers.0." .. name]:to_local().shape
      end
      local n_shards, zero = deployer.mesh.mp, options.zero == 3 and deployer.mesh.dp or 1
      local shape = part "mlp.down_proj.weight"
      testing.expect_equal(shape[1], 128 / zero)
      testing.expect_equal(shape[2], 6 / n_shards)
      shape = part "mlp.gate_proj.weight"
      testing.expect_equal(shape[1] * shape[2], 192 * 4 / n_shards / zero)
    end)
  end
end

testing.finish()
