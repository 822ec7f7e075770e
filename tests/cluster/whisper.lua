-- Whisper's generation on processes that share the model or the batch: the tokens of transformers,
-- with times, and rows of different lengths in several windows.
local cases = require "model_cases"
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local source = assert(os.getenv "REDCO_SOURCE")
local case = cases.open(source .. "/tests/cases", "whisper")
local model = redco.models.from_pretrained(case.dir)

local parts = {}
for i = 0, 4 do parts[i + 1] = case.arrays[("batch%d.input_features"):format(i)] end
local long = torch.cat(parts, 2):narrow(2, 0, 430)
local mask = torch.ones({ 2, 430 }, { dtype = "int64" })
mask[1]:narrow(0, 260, 170):fill_(0)
local is_tested = { first_at_once = true, two_long = true }

local function rows_of(expected)
  local rows = {}
  for i = 0, 1 do
    rows[i + 1] = expected.features == "short" and { input_features = parts[1][i] }
      or { input_features = long[i], attention_mask = mask[i] }
  end
  return rows
end

local function collate(rows)
  local batch = {}
  for key in pairs(rows[1]) do
    batch[key] = torch.stack { rows[1][key], rows[2] and rows[2][key] }
  end
  return batch
end

for _, n_model_shards in ipairs { 1, 2 } do
  for _, expected in ipairs(redco.data.json(source .. "/tests/lua/whisper_cases.json")) do
    local function body()
      model.generation_config = expected.generation_config
      local deployer = redco.Deployer { seed = 1, n_model_shards = n_model_shards, verbose = false }
      local predictor = redco.Predictor {
        deployer = deployer, collate_fn = collate,
        pred_fn = function(_, params, batch)
          return (model.generate(params, batch, expected.options))
        end,
      }
      local preds = predictor:predict {
        examples = rows_of(expected), params = model.params,
        per_device_batch_size = math.ceil(2 / deployer.mesh.dp),
      }
      for i, row in ipairs(expected.sequences) do
        testing.expect_equal(table.concat(preds[i]:tolist(), " "), table.concat(row, " "))
      end
    end
    if is_tested[expected.name] then
      testing.test(("%s with %d shards"):format(expected.name, n_model_shards), body)
    end
  end
end

testing.finish()
