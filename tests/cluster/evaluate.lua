-- redco.evaluate on every layout: scores, log-likelihoods and answers are those of one process, for
-- parameters that no Trainer has laid out, and for those of one.
local redco = require "redco"
local testing = require "testing"

local source = assert(os.getenv "REDCO_SOURCE")
local tasks = source .. "/examples/evaluation/"
local folder = source .. "/tests/cases/gpt2"
local model = redco.models.from_pretrained(folder, { dtype = "float64" })
local tokenizer = redco.Tokenizer.from_pretrained(folder)

local sums = { task = "sums", data = tasks .. "data/gsm8k_test.jsonl", num_fewshot = 1,
  doc_to_text = "Q: {{question}}\nA:", doc_to_target = "answer",
  generation_kwargs = { ["until"] = "\n", max_gen_toks = 6 } }

local function evaluate(deployer, params)
  return redco.evaluate { deployer = deployer, model = model, params = params,
    tokenizer = tokenizer, batch_size = 3, bootstrap_iters = 100, tasks = {
      tasks .. "arc_easy.toml", tasks .. "last_word.toml", tasks .. "wikitext.lua", sums } }
end

-- Compares tables of numbers, texts and booleans.
local function expect_same(place, found, expected)
  if type(expected) == "table" then
    for name, value in pairs(expected) do
      expect_same(place .. "." .. tostring(name), found[name], value)
    end
  elseif type(expected) == "number" then
    assert(math.abs(found - expected) <= 1e-9 * math.max(1, math.abs(expected)),
      ("%s is %.12g, expected %.12g"):format(place, found, expected))
  else
    assert(found == expected,
      ("%s is %s, expected %s"):format(place, tostring(found), tostring(expected)))
  end
end

local deployers = {}
for i, n_model_shards in ipairs { 1, 2 } do
  deployers[i] = redco.Deployer { seed = 1, verbose = false, n_model_shards = n_model_shards }
end

local expected = deployers[1]:alone(function(own)
  local results, samples = evaluate(own, model.params)
  return { results = results.results, samples = samples }
end)[1]

for _, deployer in ipairs(deployers) do
  local layout = ("%dx%d"):format(deployer.mesh.dp, deployer.mesh.mp)
  testing.test("an evaluation on " .. layout, function()
    local results, samples = evaluate(deployer, model.params)
    expect_same("results", results.results, expected.results)
    expect_same("samples", samples, expected.samples)
    local trainer = redco.Trainer { deployer = deployer, params = model.params,
      collate_fn = redco.data.padding_collate {}, loss_fn = model.loss_fn,
      optimizer = redco.optim.sgd { learning_rate = 0 } }
    local of_trainer = evaluate(deployer, trainer.params)
    expect_same("results", of_trainer.results, expected.results)
  end)
end

testing.finish()
