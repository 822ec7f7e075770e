-- redco.metrics against rouge_score, sacrebleu and scikit-learn.
local redco = require "redco"
local testing = require "testing"

local metrics, torch = redco.metrics, redco.torch
local test, expect_error, expect_equal = testing.test, testing.expect_error, testing.expect_equal

local function expect_near(actual, expected, what)
  local off = math.abs(actual - expected)
  if off > 1e-9 * math.max(1, math.abs(expected)) or off ~= off then
    error(("%s: expected %.17g, got %.17g"):format(what or "value", expected, actual), 2)
  end
end

test("error rates are jiwer's", function()
  for _, case in ipairs(redco.data.json("audio_cases/cases.json").error_rates) do
    expect_near(metrics.word_error_rate(case.predictions, case.references), case.wer, "words")
    expect_near(metrics.character_error_rate(case.predictions, case.references), case.cer,
      "characters")
  end
  -- White space is that of Python: no-break and other spaces, and separators.
  for _, case in ipairs {
    { "a\194\160b c", "a b c", 1, 0.2 }, { "a \194\160 b", "a b", 0, 0.4 },
    { "\226\128\131a b\226\128\131", "a b", 0, 0 }, { "a\226\128\168\226\128\168b", "a b", 0, 0.5 },
    { "a\28\28b", "a b", 0, 0.5 }, { "a\194\160b", "a\194\160b c", 1, 2 / 3 },
    { "a\226\128\139b c", "ab c", 0.5, 0.2 }, { "a\194\133\tb", "a b", 0, 0.5 },
  } do
    local reference, prediction, words, characters = unpack(case)
    expect_near(metrics.word_error_rate({ prediction }, { reference }), words, "words")
    expect_near(metrics.character_error_rate({ prediction }, { reference }), characters,
      "characters")
  end
  expect_error(function() metrics.word_error_rate({ "a" }, { " " }) end, "word_error_rate", "empty")
  expect_error(function() metrics.word_error_rate({ "a" }, {}) end, "1 and 0")
  expect_error(function() metrics.character_error_rate({ "a" }, { { "a" } }) end, "strings")
end)

local function expect_list(actual, expected, what)
  expect_equal(#actual, #expected)
  for i, value in ipairs(expected) do expect_near(actual[i], value, what .. " " .. i) end
end

local function expect_bleu(actual, expected)
  expect_near(actual.score, expected.score, "score")
  expect_near(actual.bp, expected.bp, "bp")
  expect_list(actual.precisions, expected.precisions, "precision")
  expect_list(actual.counts, expected.counts, "count")
  expect_list(actual.totals, expected.totals, "total")
  expect_equal(actual.sys_len, expected.sys_len)
  expect_equal(actual.ref_len, expected.ref_len)
end

local function check_folder(folder)
  local stored = redco.data.json(folder .. "/metrics/metrics.json")
  local predictions, references = {}, {}
  for i, case in ipairs(stored.cases) do
    predictions[i], references[i] = case.hypothesis, case.reference
  end
  assert(#predictions >= 40)
  for _, key in ipairs { "rouge", "rouge_stem" } do
    local options, sums = { use_stemmer = key == "rouge_stem" }, {}
    for _, case in ipairs(stored.cases) do
      local scores = metrics.rouge_score(case.hypothesis, case.reference, options)
      for name, expected in pairs(case[key]) do
        local found = scores[name]
        expect_list({ found.precision, found.recall, found.fmeasure }, expected, name)
        sums[name] = (sums[name] or 0) + expected[3]
      end
    end
    for name, mean in pairs(metrics.rouge(predictions, references, options)) do
      expect_near(mean, sums[name] / #predictions, name)
    end
  end
  for _, case in ipairs(stored.cases) do
    expect_near(metrics.sentence_bleu(case.hypothesis, case.reference).score, case.sentence_bleu)
  end
  for name, options in pairs { ["13a"] = {}, ["13a_lower"] = { lowercase = true },
    none = { tokenize = "none" }, char = { tokenize = "char" } } do
    expect_bleu(metrics.bleu(predictions, references, options), stored.corpus_bleu[name])
  end
  expect_near(metrics.chrf(predictions, references).score, stored.corpus_chrf, "chrF")
end

test("the reference cases", function() check_folder "../cases" end)

local folder = (os.getenv "REDCO_CASES" or ""):match "[^:]+"
if folder and io.open(folder .. "/metrics/metrics.json") then
  test("the cases in REDCO_CASES", function() check_folder(folder) end)
else
  print "REDCO_CASES names no folder: only the cases of the repository are tested"
end

-- From here on the figures were copied from the packages; tests/peers compares many more texts.

test("rouge: several references, the best for each type", function()
  local scores = metrics.rouge({ "the cat sat" }, { { "a cat ran away", "the cat sat down" } })
  expect_near(scores.rouge1, 6 / 7)
  expect_near(scores.rougeL, 6 / 7)
  expect_near(scores.rouge2, 0.8)
  local only = metrics.rouge({ "a b c" }, { "a b d" }, { rouge_types = { "rouge3", "rouge1" } })
  expect_near(only.rouge1, 2 / 3)
  expect_equal(only.rouge3, 0)
  expect_equal(only.rougeL, nil)
end)

test("bleu_and_rouge compares predictions with a field of the examples", function()
  local preds, references = { "the cat sat on the mat", "a b c d" }, { "the cat sat", "a b c d" }
  local scores = metrics.bleu_and_rouge "target" ({ { target = references[1] },
    { target = references[2] } }, preds)
  for name, expected in pairs(metrics.rouge(preds, references)) do
    expect_near(scores[name], expected, name)
  end
  expect_near(scores.bleu, metrics.bleu(preds, references).score)
end)

test("rouge: texts without words, words beyond ASCII", function()
  for _, pair in ipairs { { "", "a" }, { "a", "" }, { "", "" }, { "...", "日本" } } do
    for name, score in pairs(metrics.rouge({ pair[1] }, { pair[2] })) do
      expect_equal(score, 0, name)
    end
  end
  expect_near(metrics.rouge({ "Café \226\132\170g" }, { "caf kg" }).rouge1, 1)
end)

test("rougeLsum: sentences are lines, and no word counts twice", function()
  local scores = metrics.rouge_score("a b\nc d", "c d a b\na x")
  expect_near(scores.rougeLsum.precision, 1)
  expect_near(scores.rougeLsum.recall, 4 / 6)
  expect_near(scores.rougeL.precision, 2 / 4)
end)

test("stems are those of NLTK", function()
  local stem = require "redco.metrics.porter_stemmer"
  for word, expected in pairs { caresses = "caress", ponies = "poni", ties = "tie", died = "die",
    spied = "spi", feed = "feed", agreed = "agre", hopping = "hop", falling = "fall",
    filing = "file", enjoy = "enjoy", happy = "happi", radically = "radic", geology = "geolog",
    rational = "ration", vietnamization = "vietnam", adoption = "adopt", controlling = "control",
    sky = "sky", skies = "sky", hopefully = "hope", yyyy = "yyyi", ["1990s"] = "1990",
    sensibilities = "sensibl", owed = "owe", as = "as" } do
    expect_equal(stem(word), expected)
  end
end)

test("bleu: several references, and the nearest length, the shorter of two", function()
  local found = metrics.bleu({ "the cat sat on the mat" },
    { { "a cat sat on the mat today", "the cat is on the" } })
  expect_equal(found.ref_len, 5)
  expect_list(found.counts, { 6, 5, 3, 2 }, "count")
  expect_near(found.score, 84.08964152537145)
end)

test("bleu: smoothing", function()
  local prediction, reference = { "the cat is here today now" }, { "the cat sat on the mat" }
  for method, expected in pairs { exp = 16.233395773754953, floor = 8.633400213704508,
    none = 0, ["add-k"] = 27.301208627090666 } do
    expect_near(metrics.bleu(prediction, reference, { smooth_method = method }).score, expected,
      method)
  end
  expect_near(metrics.bleu(prediction, reference, { smooth_method = "floor", smooth_value = 0.5 })
    .score, 19.304869754804482)
  expect_equal(metrics.bleu({ "" }, { "a" }).score, 0)
  expect_equal(metrics.bleu({ "" }, { "" }).score, 0)
end)

test("bleu tokenizers", function()
  local tokenizers = require "redco.metrics.bleu_tokenizers"
  for _, case in ipairs {
    { "13a", "&quot;1,000.5&amp;lt;\" he's (so-called) 3-4 e.g. <skipped>x\ny",
      "\" 1,000.5 < \" he's ( so-called ) 3 - 4 e . g . x y" },
    { "intl", "„1,000.5“ él—dijo: €5 + 3. ¿Qué?", "„1,000.5 “ él — dijo : € 5 + 3 . ¿ Qué ?" },
    { "char", "né 日", "n é 日" },
    { "none", "a,  b\tc", "a, b c" },
  } do
    expect_equal(table.concat(tokenizers[case[1]](case[2]), " "), case[3])
  end
end)

test("lower case: letters beyond ASCII, the sigma that ends a word", function()
  local unicode = require "redco.metrics.unicode"
  for text, expected in pairs { ["ÀÉÎ ŒÑ"] = "àéî œñ", ["ΟΔΟΣ ΣΑΣ Σ"] = "οδος σας σ",
    ["ΟΣ'Ν ΑΣ."] = "οσ'ν ας.", ["ΑΣ’Α Α’Σ"] = "ασ’α α’ς",
    ["ДОМ"] = "дом", ["\196\176"] = "i\204\135",
    ["\240\144\144\128"] = "\240\144\144\168",
    ["ªΣ ºΣ ⓐΣ 🅰Σ ʰΣ"] = "ªς ºς ⓐς 🅰ς ʰσ", ["Α\204\129Σ: ΑΣ:Α"] = "α\204\129ς: ασ:α",
    ["\255\200x\200\239\191\189"] = "\255\200x\200\239\191\189", AbC = "abc" } do
    expect_equal(unicode.lower(text), expected)
  end
end)

test("classes of characters, and white space, as for Python", function()
  local unicode = require "redco.metrics.unicode"
  for class, characters in pairs { L = "aéЖ日ª", N = "7²٣Ⅻ", P = "!-„“—¿。", S = "$+^`€°😀",
    M = "\204\129", Z = " \194\160\226\128\137\226\128\168\227\128\128",
    C = "\t\226\128\139\255" } do
    for _, character in ipairs(unicode.characters(characters)) do
      expect_equal(unicode.class(character), class)
      local is_blank = class == "Z" or character == "\t"
      expect_equal(unicode.is_blank(character), is_blank)
      expect_equal(unicode.plain_blanks(character), class == "Z" and " " or character)
    end
  end
  expect_equal(unicode.plain_blanks "a\194\133b\28", "a b\28")
  assert(unicode.is_blank "\194\133" and unicode.is_blank "\28" and not unicode.is_blank "x")
end)

test("chrF++, and of several references the best", function()
  local found = metrics.chrf({ "the (cat) sat", "uno" }, { { "a dog", "The cat sat." }, "dos" },
    { word_order = 2 })
  expect_near(found.score, 19.323360611927654)
  expect_equal(found.word_order, 2)
  expect_equal(metrics.chrf({ "" }, { "" }).score, 0)
end)

test("the translation edit rate moves spans of words", function()
  -- sacrebleu 2.6.0: the hypothesis, the references, options, and edits.
  for _, case in ipairs {
    { "a b c d e f", { "d e f a b c" }, {}, 1 },
    { "A b, c", { "a b c" }, {}, 1 },
    { "A b, c", { "a b c" }, { case_sensitive = true }, 2 },
    { "A b, c", { "a b c" }, { no_punct = true }, 0 },
    { "a b, it's", { "a b , it 's" }, { normalized = true }, 0 },
    { "我们。见", { "我 们 见" }, { normalized = true, no_punct = true, asian_support = true }, 0 },
    { "x", { "a b", "x y z w" }, {}, 2 },
    { "one two three", { "" }, {}, 3 },
  } do
    local found = metrics.ter({ case[1] }, { case[2] }, case[3])
    local n_words = 0
    for _, text in ipairs(case[2]) do
      for _ in text:gmatch "%S+" do n_words = n_words + 1 / #case[2] end
    end
    expect_equal(found.num_edits, case[4], case[1])
    expect_near(found.ref_length, n_words)
    expect_near(found.score, n_words > 0 and 100 * case[4] / n_words or 100)
  end
  expect_equal(metrics.ter({ "" }, { "" }).score, 0)
  -- More moves than are tried.
  local words = {}
  for i = 1, 60 do words[i] = (i * 7) % 5 end
  local reversed = {}
  for i = 1, 60 do reversed[i] = words[61 - i] end
  local found = metrics.ter({ table.concat(words, " ") }, { table.concat(reversed, " ") })
  expect_equal(found.num_edits, 48)
end)

test("exact match, and SQuAD's scores", function()
  expect_equal(metrics.exact_match({ "a", "B", "c" }, { "a", "b", { "x", "c" } }), 2 / 3)
  local found = metrics.squad({ "The cat, sat!", "in the “a” b", "nothing" },
    { { "cat sat", "x" }, "“ ” B c", "at all" })
  expect_near(found.exact_match, 100 / 3)
  expect_near(found.f1, (100 + 100 * 0.75 + 0) / 3)
end)

test("accuracy and F1 of classes, from lists, strings and tensors", function()
  local predictions, references = { 0, 1, 2, 2, 1, 0, 3 }, { 0, 2, 2, 1, 1, 0, 1 }
  expect_equal(metrics.accuracy(predictions, references), 4 / 7)
  expect_equal(metrics.accuracy(torch.tensor(predictions, { dtype = "int64" }),
    torch.tensor(references, { dtype = "int32" })), 4 / 7)
  expect_equal(metrics.accuracy({ "a", "b" }, { "a", "c" }), 0.5)
  for average, expected in pairs { macro = 0.475, weighted = 0.6, micro = 4 / 7 } do
    expect_near(metrics.f1(predictions, references, { average = average }), expected, average)
  end
  expect_near(metrics.f1({ 1, 1, 0, 0 }, { 1, 0, 1, 0 }), 0.5)
  expect_near(metrics.f1({ "yes", "no" }, { "yes", "yes" }, { pos_label = "yes" }), 2 / 3)
  expect_equal(metrics.f1({ 0, 0 }, { 0, 0 }), 0)
end)

test("the scores of GLUE: Matthews, Pearson and Spearman, with ties and constants", function()
  expect_near(metrics.matthews_correlation({ 1, 0, 0, 1, 1 }, { 1, 0, 1, 1, 0 }), 1 / 6)
  expect_near(metrics.matthews_correlation({ 0, 1, 2, 2, 1, 0, 3 }, { 0, 2, 2, 1, 1, 0, 1 }),
    0.41247895569215276)
  expect_equal(metrics.matthews_correlation({ 1, 1, 1 }, { 0, 1, 1 }), 0)
  local x, y = { 1, 2.5, 2.5, 4, 0 }, { 0.5, 3, 2, 2, -1 }
  expect_near(metrics.pearsonr(x, y), 0.8291157144114419)
  expect_near(metrics.spearmanr(x, torch.tensor(y)), 0.7631578947368421)
  -- The mean of three times 0.1 is rounded to another number than 0.1.
  for _, constant in ipairs { { 1, 1, 1 }, { 0.1, 0.1, 0.1 } } do
    for _, other in ipairs { { 1, 2, 4 }, { 0.7, 0.7, 0.7 } } do
      local found = metrics.pearsonr(constant, other)
      assert(found ~= found, found)
    end
  end
  for _, scale in ipairs { 1e200, 1e-200 } do
    expect_near(metrics.pearsonr({ scale, 2 * scale, 4 * scale }, { 1, 2, 4 }), 1)
  end
  for _, correlation in ipairs { metrics.pearsonr, metrics.spearmanr } do
    expect_error(function() correlation({ 0.1, 0 / 0, 0.3 }, { 1, 2, 3 }) end, "entry 2", "NaN")
  end
  expect_error(function() metrics.spearmanr({ 1, "a" }, { 1, 2 }) end, "entry 2", "number")
  expect_error(function() metrics.pearsonr({ 1, 2 }, { 1 }) end, "2 and 1")
end)

-- The figures of a task by scikit-learn's and SciPy's names.
local glue = {
  accuracy = metrics.accuracy, f1 = metrics.f1,
  matthews_correlation = metrics.matthews_correlation, mse = metrics.mean_squared_error,
  pearson = metrics.pearsonr, spearmanr = metrics.spearmanr,
}
function glue.f1_macro(predictions, references)
  return metrics.f1(predictions, references, { average = "macro" })
end
function glue.acc_and_f1(...) return (metrics.accuracy(...) + metrics.f1(...)) / 2 end

test("the reference cases of GLUE", function()
  local folders = { "../cases" }
  for one in (os.getenv "REDCO_CASES" or ""):gmatch "[^:]+" do folders[#folders + 1] = one end
  for _, one in ipairs(folders) do
    local path, n = one .. "/glue_metrics/glue_metrics.json", 0
    local file = io.open(path)
    if file then file:close() end
    for i, case in ipairs(file and redco.data.json(path).cases or {}) do
      for name, score in pairs(glue) do
        if case[name] then
          n = n + 1
          expect_near(score(case.predictions, case.references), case[name],
            ("%s of case %d"):format(name, i))
        end
      end
    end
    assert(not file or n > 40, n)
  end
end)

test("precision, recall, balanced accuracy and the confusion matrix", function()
  local predictions, references = { 0, 1, 1, 2, 2, 2 }, { 0, 1, 0, 2, 2, 1 }
  expect_near(metrics.precision(predictions, references, { average = "macro" }), (1 + 1 / 2 + 2 / 3)
    / 3)
  expect_near(metrics.recall(predictions, references, { average = "weighted" }), 4 / 6)
  expect_near(metrics.precision(predictions, references, { average = "micro" }), 4 / 6)
  expect_near(metrics.balanced_accuracy(predictions, references), (1 / 2 + 1 / 2 + 1) / 3)
  expect_equal(metrics.precision({ 0, 0 }, { 1, 0 }), 0)
  local matrix, classes = metrics.confusion_matrix(torch.tensor(predictions), references)
  expect_equal(table.concat(matrix:reshape { -1 }:tolist(), " "), "1 1 0 0 1 1 0 0 2")
  expect_equal(table.concat(classes, " "), "0 1 2")
  matrix, classes = metrics.confusion_matrix({ "cat", "dog" }, { "cat", "cow" },
    { classes = { "dog", "cat" } })
  expect_equal(table.concat(matrix:reshape { -1 }:tolist(), " "), "0 0 0 1")
  expect_equal(table.concat(classes, " "), "dog cat")
end)

test("scores of a positive class, and errors of numbers", function()
  local scores, references = { 0.1, 0.4, 0.35, 0.8, 0.4 }, { 0, 0, 1, 1, 1 }
  expect_near(metrics.roc_auc(scores, references), (1 + 2 + 1.5) / 6)
  expect_near(metrics.average_precision(scores, references), 1 / 3 + 2 / 3 / 3 + 3 / 4 / 3)
  expect_near(metrics.roc_auc(torch.tensor { 0.9, 0.1 }, { "no", "yes" }, { pos_label = "yes" }), 0)
  local curve = metrics.roc_curve({ 3, 2, 2, 1 }, { 1, 1, 0, 0 })
  expect_equal(table.concat(curve.tpr, " ") .. ", " .. table.concat(curve.fpr, " ") .. ", "
    .. table.concat(curve.thresholds, " "), "0 0.5 1 1, 0 0 0.5 1, inf 3 2 1")
  local logits = torch.tensor { { 0.1, 0.5, 0.4 }, { 0.6, 0.3, 0.1 } }
  expect_near(metrics.top_k_accuracy(logits, { 2, 2 }, { k = 2 }), 0.5)
  -- Of equal scores the later class is first, as in scikit-learn.
  local ties = torch.tensor { { 0, 0, 0, 0 }, { 1, 1, 0, 0 }, { 0, 2, 2, 1 }, { 1, 1, 1, 0 },
    { 3, 0, 0, 3 } }
  for k, expected in ipairs { { 0.6, 0.4 }, { 0.6, 1 }, { 0.8, 1 } } do
    expect_near(metrics.top_k_accuracy(ties, { 0, 1, 2, 0, 3 }, { k = k }), expected[1], "ties")
    expect_near(metrics.top_k_accuracy(ties, { 3, 0, 1, 2, 0 }, { k = k }), expected[2], "ties")
  end
  expect_near(metrics.mean_squared_error({ 1, 2 }, { 3, 2 }), 2)
  expect_near(metrics.mean_absolute_error({ 1, 2 }, { 3, 2 }), 1)
  expect_near(metrics.r2({ 1, 2 }, { 3, 2 }), -7)
  expect_equal(metrics.r2({ 2, 2 }, { 2, 2 }) .. " " .. metrics.r2({ 2, 1 }, { 2, 2 }), "1 0")
  expect_equal(metrics.r2({ 1, 2, 3 }, { 0.1, 0.1, 0.1 }), 0)  -- their mean is rounded
end)

test("perplexity, of logits and of the losses of batches", function()
  local logits = torch.tensor({ { { 1, 2, 3 }, { 0, 0, 0 }, { 5, 1, 1 } } }, { dtype = "float64" })
  local labels = torch.tensor({ { 2, 0, -100 } }, { dtype = "int64" })
  local first = math.log(math.exp(-2) + math.exp(-1) + 1)
  expect_near(metrics.perplexity(logits, labels), math.exp((first + math.log(3)) / 2))
  expect_near(metrics.perplexity_from_losses({ 1, 2 }, { 3, 1 }), math.exp(5 / 4))
  expect_error(function() metrics.perplexity(logits, labels:fill_(-100)) end, "ignore_index")
  expect_error(function() metrics.perplexity_from_losses({ 1 }, { 0 }) end, "counts are 0")
end)

test("misuse is an error of the caller's line", function()
  local where = "metrics_spec.lua:"
  for _, name in ipairs { "rouge", "bleu", "chrf", "ter", "exact_match", "squad" } do
    local score = metrics[name]
    expect_error(function() score({}, {}) end, where, "metrics." .. name, "at least one, got 0")
    expect_error(function() score({ "a" }, { "a", "b" }) end, where, "got 1 and 2")
    expect_error(function() score("a", { "a" }) end, where, "got string and table")
    expect_error(function() score({ "a" }, { {} }) end, where, "references[1]", "an empty list")
    expect_error(function() score({ "a" }, { { "a", 3 } }) end, where, "references[1][2]", "number")
    expect_error(function() score({ 3 }, { "a" }) end, where, "predictions[1]", "number")
  end
  expect_error(function() metrics.rouge({ "a" }, { "a" }, { use_stemer = true }) end, where,
    "did you mean 'use_stemmer'")
  expect_error(function() metrics.rouge({ "a" }, { "a" }, { rouge_types = { "rouge0" } }) end,
    where, "rouge0")
  expect_error(function() metrics.bleu({ "a" }, { "a" }, { tokenize = "zh" }) end, where, "zh")
  expect_error(function() metrics.bleu({ "a" }, { "a" }, { smooth_method = "x" }) end, where, "x")
  expect_error(function() metrics.f1({ 0, 1, 2 }, { 0, 1, 2 }) end, where, "needs two classes")
  expect_error(function() metrics.f1({ 0 }, { 0 }, { average = "x" }) end, where, "macro")
  expect_error(function() metrics.roc_auc({ 0.5, 0.2 }, { 1, 1 }) end, where, "one class", "2 of 2")
  expect_error(function() metrics.roc_auc({ 0.5, 0.2 }, { 0, 0 }) end, where, "0 of 2")
  expect_error(function() metrics.roc_auc({ 0.5, 0 / 0 }, { 0, 1 }) end, where, "entry 2 is NaN")
  expect_error(function() metrics.roc_auc({ 0.5 }, { 0, 1 }) end, where, "1 and 2")
  expect_error(function() metrics.roc_auc({ 1, 2, 3 }, { 0, 1, 2 }) end, where, "two classes")
  expect_error(function() metrics.average_precision({ 1 }, { 0 }) end, where, "none of the 1")
  expect_error(function() metrics.top_k_accuracy(torch.zeros { 2, 3 }, { 1, 1 }, { k = 4 }) end,
    where, "from 1 to 3")
  expect_error(function() metrics.top_k_accuracy(torch.zeros { 2, 3 }, { 1 }, { k = 1 }) end, where,
    "[2]", "[1]")
  expect_error(function() metrics.top_k_accuracy(torch.full({ 1, 9 }, 0 / 0), { 1 }) end, where,
    "NaN")
  expect_error(function() metrics.confusion_matrix({ 1 }, { 1 }, { classes = { 1, 1 } }) end, where,
    "twice")
  expect_error(function() metrics.r2({ 1 }, { 1 }) end, where, "at least 2")
  expect_error(function() metrics.recall({ 0, 1, 2 }, { 0, 1, 2 }) end, where, "metrics.recall")
  expect_error(function() metrics.accuracy({ 0 }, {}) end, where, "got 1 and 0")
  expect_error(function() metrics.accuracy(3, {}) end, where, "got number")
end)

testing.finish()
