-- redco.metrics against the reference packages themselves, on the shipped texts and random ones.
local redco = require "redco"
local testing = require "testing"

local metrics, test = redco.metrics, testing.test

local path = os.tmpname()
local packages = "rouge_score==0.1.2 nltk==3.9.1 sacrebleu==2.6.0 scikit-learn==1.6.1"
local status = os.execute(("./environment.sh metrics.py '%s' '%s'"):format(packages, path))
if status ~= 0 then os.exit(status >= 256 and status / 256 or status) end
local peer = redco.data.json(path)
os.remove(path)

local function expect_near(actual, expected, what)
  local off = math.abs(actual - expected)
  if off > 1e-9 * math.max(1, math.abs(expected)) or off ~= off then
    error(("%s: expected %.17g, got %.17g"):format(what, expected, actual), 2)
  end
end

for name, group in pairs(peer.groups) do
  local predictions, references = group.predictions, group.references

  for kind, expected in pairs(group.rouge) do
    test(("rouge, %s, %s"):format(name, kind), function()
      local options = { use_stemmer = kind == "stemmed", rouge_types = group.types }
      for i, scores in ipairs(expected) do
        local found = metrics.rouge_score(predictions[i], references[i], options)
        for rouge_type, numbers in pairs(scores) do
          local what = ("%s of %q"):format(rouge_type, predictions[i])
          expect_near(found[rouge_type].precision, numbers[1], what)
          expect_near(found[rouge_type].recall, numbers[2], what)
          expect_near(found[rouge_type].fmeasure, numbers[3], what)
        end
      end
    end)
  end

  for _, case in ipairs(group.bleu) do
    local options, expected = unpack(case)
    local shown = {}
    for key, value in pairs(options) do shown[#shown + 1] = key .. "=" .. tostring(value) end
    table.sort(shown)
    test(("bleu, %s, %s"):format(name, table.concat(shown, " ")), function()
      local found = metrics.bleu(predictions, references, options)
      for key, value in pairs(expected) do
        if type(value) == "number" then
          expect_near(found[key], value, key)
        else
          for n = 1, 4 do expect_near(found[key][n], value[n], key) end
        end
      end
    end)
  end

  test("sentence_bleu, " .. name, function()
    for i, expected in ipairs(group.sentence_bleu) do
      expect_near(metrics.sentence_bleu(predictions[i], references[i]).score, expected,
        ("%q"):format(predictions[i]))
    end
  end)

  test("chrf, " .. name, function()
    for _, case in ipairs(group.chrf) do
      expect_near(metrics.chrf(predictions, references, case[1]).score, case[2], "chrf")
    end
  end)

  test("squad, " .. name, function()
    local found = metrics.squad(predictions, references)
    expect_near(found.exact_match, group.squad[1], "exact_match")
    expect_near(found.f1, group.squad[2], "f1")
  end)
end

test("correlations and errors of numbers", function()
  for _, case in ipairs(peer.numbers) do
    for _, name in ipairs { "pearsonr", "spearmanr", "mean_squared_error", "mean_absolute_error",
      "r2" } do
      expect_near(metrics[name](case.predictions, case.references), case[name], name)
    end
  end
end)

test("scores of predicted classes", function()
  for _, case in ipairs(peer.classes) do
    expect_near(metrics.accuracy(case.predictions, case.references), case.accuracy, "accuracy")
    expect_near(metrics.matthews_correlation(case.predictions, case.references), case.matthews,
      "matthews")
    expect_near(metrics.balanced_accuracy(case.predictions, case.references), case.balanced,
      "balanced")
    for _, name in ipairs { "f1", "precision", "recall" } do
      for average, expected in pairs(case[name]) do
        expect_near(metrics[name](case.predictions, case.references, { average = average }),
          expected, name .. " " .. average)
      end
    end
    local matrix = metrics.confusion_matrix(case.predictions, case.references)
    testing.expect_equal(tostring(matrix), tostring(redco.torch.tensor(case.confusion)))
  end
end)

test("scores of a positive class", function()
  for _, case in ipairs(peer.scores) do
    for _, name in ipairs { "roc_auc", "average_precision" } do
      expect_near(metrics[name](case.scores, case.references), case[name], name)
    end
    local curve = metrics.roc_curve(case.scores, case.references)
    for name, expected in pairs(case.curve) do
      testing.expect_equal(#curve[name], #expected)
      for i, value in ipairs(expected) do
        expect_near(math.min(curve[name][i], 1e300), value, name)
      end
    end
  end
  for _, case in ipairs(peer.top_k) do
    expect_near(metrics.top_k_accuracy(redco.torch.tensor(case.scores), case.references,
      { k = case.k }), case.accuracy, "top_k")
  end
end)

test("stems", function()
  local stem = require "redco.metrics.porter_stemmer"
  for word, expected in pairs(peer.stems) do
    testing.expect_equal(word .. " " .. stem(word), word .. " " .. expected)
  end
end)

testing.finish()
