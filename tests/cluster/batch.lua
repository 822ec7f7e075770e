-- Continuous batching on every layout: with parameters that a Trainer has laid out, the tokens are
-- those of one process, whether rows are split over the processes or not. Without
-- REDCO_TEST_FULL=1 only LLaMA tries every combination.
local redco = require "redco"
local testing = require "testing"
local tiny = require "tiny_models"
local turns = require "turns"

local torch = redco.torch
local source = assert(os.getenv "REDCO_SOURCE")

local generator = torch.Generator(3)
local prompts = {}
for i = 1, 9 do
  prompts[i] = torch.randint(3, 200, { 3 + i * 7 % 11 }, { generator = generator }):tolist()
end
prompts[7] = prompts[2]

-- Returns a model in float64: a folder of tests/cases, or a tiny one with states.
local function open(name)
  if not tiny.has_state(name) then
    return redco.models.from_pretrained(source .. "/tests/cases/" .. name, { dtype = "float64" })
  end
  local model = tiny.new(name)
  model.params = redco.tree.map(function(p) return p:double() end, model.params)
  return model
end

local function run(model, params, options)
  options.max_length = 32
  local batch = redco.models.new_batch(model, params, options)
  local rows, texts = {}, {}
  for i, prompt in ipairs(prompts) do
    if i > 6 then batch:step() end
    local own = {}
    for at, token in ipairs(prompt) do own[at] = token % model.config.vocab_size end
    rows[i] = batch:add(own, { max_new_tokens = 3 + i * 5 % 17, seed = i, temperature = 0.9 })
  end
  batch:run()
  for i, row in ipairs(rows) do
    texts[i] = table.concat(row.tokens, " ") .. " " .. row.finish_reason
  end
  return table.concat(texts, "\n")
end

for _, name in ipairs { "llama", "gpt2", "gemma2", "qwen2", "falcon_h1", "qwen3_next" } do
  local model = open(name)
  model.generation_config = {}
  local expected = run(model, model.params, { max_rows = 3 })
  local conversations, n_all = turns.run(model, model.params, prompts, { max_rows = 3 })
  testing.test(name .. ", turns", function()
    local texts, n = turns.run(model, model.params, prompts, { max_rows = 16, kept_rows = 16 })
    testing.expect_equal(texts, conversations)
    assert(n < n_all)
  end)
  local tries_all = name == "llama" or testing.is_full
  for number, options in ipairs { { n_model_shards = 1 }, { n_model_shards = 2, zero = 3 },
    { n_model_shards = 1, zero = 3 }, { n_model_shards = 2 },
    { n_model_shards = 2, sequence_parallel = true }, { n_context_shards = 2 } } do
    if number > 2 and not tries_all then break end
    options.seed, options.verbose = 1, false
    local deployer = redco.Deployer(options)
    local layout = ("%dx%d with zero %d%s%s"):format(deployer.mesh.dp, deployer.mesh.mp,
      options.zero or 0, options.sequence_parallel and " and sequences in parts" or "",
      options.n_context_shards and " and context shards" or "")
    local trainer = redco.Trainer {
      deployer = deployer, params = redco.tree.map(function(p) return p:detach():clone() end,
        model.params),
      optimizer = redco.optim.sgd { learning_rate = 0 }, compute_dtype = "float64",
      collate_fn = function(rows)
        local ids = torch.stack(rows)
        return { input_ids = ids, labels = ids:roll(-1, 1) }
      end,
      loss_fn = model.loss_fn,
    }
    local examples = {}
    for i = 1, 4 do examples[i] = torch.tensor(prompts[1]) end
    trainer:setup_running_step { examples = examples, per_device_batch_size = 1 }
    for _, max_rows in ipairs { 3, 16 } do
      for _, split in ipairs { false, deployer } do
        local what = split and "split rows" or "rows"
        testing.test(("%s, %d %s on %s"):format(name, max_rows, what, layout), function()
          local own = { max_rows = max_rows, deployer = split or nil }
          testing.expect_equal(run(model, trainer.params, own), expected)
          if max_rows == 3 then return end
          own.kept_rows = 16
          testing.expect_equal(turns.run(model, trainer.params, prompts, own), conversations)
        end)
      end
    end
  end
end

testing.finish()
