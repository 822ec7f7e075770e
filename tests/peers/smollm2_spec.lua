-- Real weights: SmolLM2-135M-Instruct from the GGUF file that examples/chat fetches gives the
-- tokens, losses and logits that transformers gives (tests/cases/smollm2).
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_equal = testing.test, testing.expect_equal
local source = assert(os.getenv "REDCO_SOURCE")

local fetched = io.popen(("'%s/examples/chat/fetch.sh'"):format(source))
local path = fetched:read "*l"
fetched:close()
if not path then
  print "skipped: the model could not be fetched"
  os.exit(77)
end

local tokenizer = redco.Tokenizer.from_pretrained(path)
local model = redco.models.from_pretrained(path, { quantize = false })
-- The reference had the weights in float16, and computed in float32.
for name, tensor in pairs(model.params) do
  model.params[name] = tensor:to "float16":to "float32"
end
local expected = redco.data.json(source .. "/tests/cases/smollm2/expected.json")

local function expect_ids(actual, list)
  expect_equal(table.concat(actual, " "), table.concat(list, " "))
end

local function expect_near(what, actual, wanted, tolerance)
  local off = math.abs(actual - wanted)
  if off > tolerance or off ~= off then
    error(("%s is %.9g, expected %.9g"):format(what, actual, wanted), 2)
  end
end

local losses, counts = {}, {}  -- of the prompts

for _, case in ipairs(expected.cases) do
  local function check(what, body) test(("%s: %q"):format(what, case.prompt), body) end
  local input_ids = torch.tensor({ case.ids }, { dtype = "int64" })

  check("tokens", function()
    expect_ids(tokenizer:encode(case.prompt), case.ids)
    expect_equal(tokenizer:decode(case.greedy24), case.greedy_text)
    expect_equal(tokenizer:decode(case.beam4_16), case.beam4_text)
  end)

  check("logits and loss", function()
    local logits = torch.no_grad(function()
      return model(model.params, { input_ids = input_ids })
    end)
    local top, places = logits[{ 0, -1 }]:topk(10)
    expect_ids(places:tolist(), case.last_logits_top10.ids)
    testing.expect_close(top, case.last_logits_top10.values, 0, 1e-3)
    local n = #case.ids - 1
    local perplexity = redco.metrics.perplexity(logits[0]:narrow(0, 0, n),
      input_ids[0]:narrow(0, 1, n))
    expect_near("the loss", math.log(perplexity), case.loss, 1e-4)
    losses[#losses + 1], counts[#counts + 1] = math.log(perplexity), n
  end)

  check("greedy search", function()
    local ids = model.generate(model.params, { input_ids = input_ids }, { max_new_tokens = 24 })
    expect_ids(ids[0]:tolist(), case.greedy24)
  end)

  check("beam search", function()
    local ids, scores = model.generate(model.params, { input_ids = input_ids },
      { max_new_tokens = 16, num_beams = 4 })
    expect_ids(ids[0]:tolist(), case.beam4_16)
    expect_near("the score", scores[0]:item(), case.beam4_score, 1e-4)
  end)
end

test("perplexity of all prompts", function()
  local wanted, n = 0, 0
  for i, case in ipairs(expected.cases) do
    wanted, n = wanted + case.loss * counts[i], n + counts[i]
  end
  local perplexity = redco.metrics.perplexity_from_losses(losses, counts)
  print(("perplexity: %.4f"):format(perplexity))
  expect_near("the perplexity", perplexity, math.exp(wanted / n), 1e-2)
end)
testing.finish()
