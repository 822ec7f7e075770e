-- redco.evaluate: the numbers of lm-evaluation-harness, its few-shot examples, filters, files of
-- results, and tasks that are wrong.
local native = require "redco.native"
local new_filters = require "redco.evaluate.filters"
local new_random = require "redco.evaluate.python_random"
local python_text = require "redco.evaluate.python_text"
local redco = require "redco"
local table_of = require "redco.evaluate.results".table_of
local testing = require "testing"

local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error

local source = os.getenv "REDCO_SOURCE" or "../.."
local tasks = source .. "/examples/evaluation/"
local folder = source .. "/tests/cases/gpt2"
local deployer = redco.Deployer { seed = 1, verbose = false }
local model = redco.models.from_pretrained(folder)
local tokenizer = redco.Tokenizer.from_pretrained(folder)

local function evaluate(task, more)
  local options = { deployer = deployer, model = model, tokenizer = tokenizer, tasks = { task },
    bootstrap_iters = 1000 }
  for name, value in pairs(more or {}) do options[name] = value end
  local found, samples = redco.evaluate(options)
  local name = next(found.results)
  return found.results[name], samples[name], found
end

local function expect_numbers(found, expected)
  for name, value in pairs(expected) do
    local ours = found[name]
    assert(ours == value or math.abs(ours - value) <= 1e-4 * math.max(1, math.abs(value)),
      ("%s is %s, expected %s"):format(name, tostring(ours), tostring(value)))
  end
end

local function texts(list) return table.concat(list, ",") end

test("groups have the means of their tasks' scores", function()
  local found = redco.evaluate { deployer = deployer, model = model, tokenizer = tokenizer,
    tasks = { tasks .. "arc_easy.toml", tasks .. "reasoning.toml" }, bootstrap_iters = 100 }
  local all = found.results
  local sum, norm, n = 0, 0, 0
  for _, name in ipairs { "arc_easy", "hellaswag", "winogrande" } do
    sum, n = sum + all[name]["acc,none"] * all[name].sample_len, n + all[name].sample_len
    norm = norm + (all[name]["acc_norm,none"] or 0) / 2
  end
  expect_numbers(found.groups.reasoning, { ["acc,none"] = sum / n, ["acc_norm,none"] = norm,
    sample_len = n })
  expect_equal(texts(found.group_subtasks.reasoning), "arc_easy,hellaswag,winogrande")
  assert(table_of(found):find "reasoning +1", table_of(found))
  local function expect(text, group)
    expect_error(function() evaluate(group) end, text)
  end
  local arc = tasks .. "arc_easy.toml"
  expect("group g: task: expected a list of tasks", { group = "g" })
  expect("did you mean 'aggregate_metric_list'", { group = "g", task = { arc },
    aggregate_metrics_list = {} })
  expect("entry 1: metric is missing", { group = "g", task = { arc },
    aggregate_metric_list = { {} } })
  expect("expected \"mean\", got 'max'", { group = "g", task = { arc },
    aggregate_metric_list = { { metric = "acc", aggregation = "max" } } })
  expect("two have the name 'arc_easy'", { group = "arc_easy", task = { arc } })
  local endless = { group = "g" }
  endless.task = { endless }
  expect("does one contain itself?", endless)
end)

test("answers that are repeated are filtered together", function()
  local function pipeline(...)
    return new_filters("a task", { { name = "x", filter = { ... } } })[1].apply
  end
  local answers = { "b 7", "a 5", "c 5", "d 7", "5" }
  local number = { ["function"] = "regex", regex_pattern = "\\d" }
  local vote = { ["function"] = "majority_vote" }
  local function first_k(k) return { ["function"] = "take_first_k", k = k } end
  expect_equal(texts(pipeline(number, vote)(answers)), "5")
  expect_equal(texts(pipeline(number, first_k(4), vote)(answers)), "7")
  expect_equal(texts(pipeline(number, first_k(1))(answers)), "7")
  expect_equal(texts(pipeline({ ["function"] = "take_first" }, number)(answers)), "7")
  expect_error(function() pipeline(first_k(6))(answers) end, "k is 6, and a document has 5")
  local given = { task = "sampled", data = source .. "/examples/evaluation/data/arc.jsonl",
    doc_to_text = "{{question}}", doc_to_target = "{{answerKey}}", repeats = 4,
    generation_kwargs = { do_sample = true, temperature = 1, max_gen_toks = 3, ["until"] = {} },
    filter_list = { { name = "maj@4", filter = { vote, { ["function"] = "take_first" } } } } }
  local found, samples = evaluate(given, { limit = 2 })
  assert(found["exact_match,maj@4"])
  expect_equal(#samples[1].resps, 4)
  expect_equal(#samples[1].filtered_resps, 1)
  given.repeats = 0
  expect_error(function() evaluate(given) end, "repeats: expected a whole number of at least 1")
end)

test("random numbers are Python's", function()
  local random = new_random(1234)
  expect_equal(texts(random.sample(25, 6)), "25,15,4,1,3,19")
  expect_equal(texts(random.sample(25, 6)), "2,22,23,3,4,12")
  expect_equal(texts(random.sample(1000, 3)), "243,18,32")
  expect_equal(texts(random.sample(1000, 3)), "808,17,355")
  expect_equal(random.random(), 0.6483160303777565)
  random = new_random(0)
  expect_equal(texts(random.sample(3, 3)), "2,3,1")
  expect_equal(random.random(), 0.25891675029296335)
  random = new_random(4294967295)
  expect_equal(texts(random.sample(50, 2)), "41,40")
  random = new_random(1)
  local last
  for _ = 1, 700 do last = random.random() end  -- beyond one block of words
  expect_equal(last, 0.24309173409213014)
end)

test("regular expressions find what Python's find", function()
  local function found(expression, text)
    local list = {}
    for i, groups in ipairs(python_text.find_all(expression, text)) do
      list[i] = "<" .. table.concat(groups, "|") .. ">"
    end
    return table.concat(list)
  end
  expect_equal(found("|a", "aab"), "<><a><><a><><>")
  expect_equal(found("(\\w)(\\d)?", "a1b é"), "<a|1><b|><é|>")
  expect_equal(found("\\b|x", "ax x"), "<><x><><><x><>")
  expect_equal(python_text.without("axbx", "x*"), "ab")
  expect_equal(python_text.count_words " two\194\160 words\n", 4)
  expect_equal(python_text.strip "\226\128\131 a b\t\n\28", "a b")
  expect_equal(python_text.length "aé€", 3)
  expect_error(function() native.find_matches("(", "") end, "'('", "not understood")
  expect_error(function() native.find_matches("(a+)+$", ("a"):rep(40) .. "\255") end, "UTF-8")
end)

test("templates of tasks keep newlines, and need all names", function()
  local function render(text, variables) return native.render_template(text, variables or {}) end
  expect_equal(render("{% if true %}\n  a\n{% endif %}\n"), "\n  a\n\n")
  expect_equal(render("{{ a | default('none') }}{{ b is defined }}"), "noneFalse")
  expect_equal(render("{{ [x, 'it\\'s', 1.5] }}", { x = 2 }), "[2, \"it's\", 1.5]")
  expect_error(function() render("a\n{{ b }}") end, "template, line 2", "'b' is not defined")
  expect_error(function() render "{{ a.b }}" end, "'a'")
  expect_error(function() render("{{ a.b }}", { a = { c = 1 } }) end, "'b' is not defined")
  expect_error(function() render "{% for x in a %}{% endfor %}" end, "'a' is not defined")
  expect_error(function() render "a\n{% if %}" end, "template, line 2")
end)

test("scores are the harness's", function()
  expect_numbers(evaluate(tasks .. "arc_easy.toml", { num_fewshot = 2 }), {
    ["acc,none"] = 0.4, ["acc_stderr,none"] = 0.16329931618554522,
    ["acc_norm,none"] = 0.4, ["acc_norm_stderr,none"] = 0.16329931618554522, sample_len = 10 })
  expect_numbers(evaluate(tasks .. "last_word.toml"), {
    ["perplexity,none"] = 54770259944.94369, ["perplexity_stderr,none"] = 2.277451235726865e16,
    ["acc,none"] = 0, ["acc_stderr,none"] = 0 })
  expect_numbers(evaluate { task = "pages", data = tasks .. "data/wikitext.jsonl",
    output_type = "loglikelihood_rolling", doc_to_target = "page" }, {
    ["word_perplexity,none"] = 417468048.15153664, ["byte_perplexity,none"] = 168.23723441365482,
    ["bits_per_byte,none"] = 7.3943532292503305, ["bits_per_byte_stderr,none"] = "N/A" })
  local _, samples = evaluate { task = "sums", data = tasks .. "data/gsm8k_test.jsonl",
    num_fewshot = 1, doc_to_text = "Q: {{question}}\nA:", doc_to_target = "answer",
    generation_kwargs = { ["until"] = "\n", max_gen_toks = 12 } }
  expect_equal(samples[2].filtered_resps[1], " pe pe pe pe pe pe pe pe pe pe pe des")
end)

test("numbers do not depend on the batch size", function()
  for _, name in ipairs { "arc_easy.toml", "last_word.toml", "wikitext.lua" } do
    local one = evaluate(tasks .. name, { batch_size = 1 })
    expect_numbers(evaluate(tasks .. name, { batch_size = 5 }), one)
  end
end)

test("adapters merged into quantized weights", function()
  local dir = source .. "/tests/cases/"
  local quantized = redco.models.from_pretrained(dir .. "llama", { quantize = "nf4" })
  local options = { deployer = deployer, model = quantized, tasks = { tasks .. "arc_easy.toml" },
    tokenizer = redco.Tokenizer.from_pretrained(dir .. "llama"), bootstrap_iters = 0 }
  local before = redco.evaluate(options).results.arc_easy["acc,none"]
  options.params = redco.lora.merge(
    redco.lora.from_pretrained(dir .. "lora_llama", quantized.params))
  assert(redco.evaluate(options).results.arc_easy["acc,none"] ~= before)
end)

test("overlapping windows condition on more, and predict each token once", function()
  local task = { task = "pages", data = tasks .. "data/wikitext.jsonl", doc_to_target = "page",
    output_type = "loglikelihood_rolling" }
  local function logprob(stride, max_length)
    task.stride = stride
    local _, samples = evaluate(task, { max_length = max_length })
    return samples[1].resps[1]
  end
  -- By hand: the first window predicts 16 tokens, and each other token has the 16 before it.
  local ids = tokenizer:encode(redco.data.jsonl(task.data)[1].page)
  local function logprobs(context)
    local logits = model(model.params, { input_ids = redco.torch.tensor { context } })
    return logits[0]:log_softmax(-1)
  end
  local sum, first = 0, logprobs { 767, unpack(ids, 1, 15) }
  for i, id in ipairs(ids) do
    local each = i <= 16 and first[i - 1] or logprobs({ unpack(ids, i - 16, i - 1) })[15]
    sum = sum + each[id]:item()
  end
  assert(math.abs(logprob(1, 16) - sum) < 1e-2, logprob(1, 16) .. " " .. sum)
  assert(math.abs(logprob(16, 16) - sum) > 1, "the stride changes nothing")
end)

test("tables, files of CSV, and numbers in them", function()
  local path = testing.write("choices.csv", "q,a,b,answer\nWhich?,one,two,1\nWho?,me,you,0\n")
  local _, samples = evaluate { task = "csv", data = path, output_type = "multiple_choice",
    doc_to_text = "{{q}}", doc_to_choice = "{{[a, b]}}", doc_to_target = "answer" }
  expect_equal(samples[1].target, 1)
  expect_equal(samples[1].arguments[2][2], " two")
  local rows = { { q = "a", answer = "y" }, { q = "b", answer = "n" } }
  local result, of_lua = evaluate { task = "lua", data = rows, output_type = "multiple_choice",
    doc_to_text = function(doc) return doc.q .. "?" end, doc_to_choice = { "y", "n" },
    doc_to_target = "answer", num_fewshot = 1, fewshot_config = { sampler = "first_n" } }
  expect_equal(result.sample_len, 2)
  expect_equal(of_lua[1].arguments[1][1], "b? n\n\na?")
end)

test("the files of results have the harness's form", function()
  local out = testing.folder() .. "/out/deep"
  evaluate(tasks .. "arc_easy.toml", { output = out, log_samples = true, limit = 0.35 })
  local pipe = assert(io.popen(("ls '%s'"):format(out)))
  local names = pipe:read "*a"
  pipe:close()
  local results = native.json_decode("results",
    testing.read(out .. "/" .. names:match "results_[%dT-]+%.json"))
  expect_equal(results.results.arc_easy["acc_stderr,none"] ~= nil, true)
  expect_equal(results["n-samples"].arc_easy.original, 10)
  expect_equal(results["n-samples"].arc_easy.effective, 4)
  expect_equal(results.configs.arc_easy.doc_to_choice, "{{choices.text}}")
  expect_equal(results.versions.arc_easy, 1)
  expect_equal(results["n-shot"].arc_easy, 0)
  local samples = redco.data.jsonl(out .. "/" .. names:match "samples_arc_easy_[%dT-]+%.jsonl")
  expect_equal(#samples, 4)
  expect_equal(samples[1].arguments.gen_args_1.arg_1, " a sparrow")
  expect_equal(samples[1].target, "1")
  expect_equal(#samples[1].filtered_resps, 4)
end)

-- ---- what is wrong ----

local row = { task = "t", data = { { q = "a", c = { "x", "y" }, t = 0 }, { q = "b",
  c = { "x", "y" }, t = 1 } }, output_type = "multiple_choice", doc_to_text = "{{q}}",
  doc_to_choice = "c", doc_to_target = "t" }

local function refused(change, parts, more)
  local task = {}
  for name, value in pairs(row) do task[name] = value end
  for name, value in pairs(change) do task[name] = value end
  expect_error(function() evaluate(task, more) end, unpack(parts))
end

test("fields that are missing, unknown or of another type", function()
  refused({ doc_to_txt = "a" }, { "unknown field 'doc_to_txt'", "did you mean 'doc_to_text'" })
  refused({ output_type = "choice" }, { "output_type", "multiple_choice", "'choice'" })
  refused({ doc_to_text = 5 }, { "doc_to_text", "string or a function", "5" })
  refused({ num_fewshot = -1 }, { "num_fewshot", "-1" })
  refused({ stride = 4 }, { "stride", "loglikelihood_rolling" })
  refused({ filter_list = { {} } }, { "filter_list", "generate_until" })
  refused({ metric_list = { { metric = "accuracy" } } }, { "entry 1", "acc_norm", "accuracy" })
  refused({ metric_list = { { metric = "acc", ignore_case = true } } }, { "ignore_case" })
  refused({ metric_list = {} }, { "metric_list is empty" })
  refused({ fewshot_config = { split = "a" } }, { "split is not supported" })
  refused({ fewshot_config = { sampler = "best" } }, { "sampler", "first_n", "best" })
  expect_error(function() evaluate { task = "t", doc_to_target = "a" } end, "data is missing")
  expect_error(function() evaluate { task = "t", data = {} } end, "doc_to_target is missing")
  expect_error(function() evaluate { data = row.data, doc_to_target = "t" } end, "task is missing")
  expect_error(function() evaluate(5) end, "expected paths or tables")
end)

test("documents that are wrong are named by their file and line", function()
  local path = testing.write("rows.jsonl",
    '{"q": "a", "c": ["x", "y"], "t": 0}\n\n{"q": "b", "c": ["x", "y"]}\n')
  refused({ data = path }, { "doc_to_target", "there is no 't'", "rows.jsonl:3" })
  refused({ data = path, doc_to_text = "{{q}}\n{{z}}", doc_to_target = 0 },
    { "doc_to_text", "template, line 2", "'z' is not defined", "rows.jsonl:1", "has c, q" })
  refused({ data = path, doc_to_text = "{{q", doc_to_target = 0 }, { "doc_to_text", "line 1" })
  refused({ doc_to_text = "question" }, { "no 'question' in the documents", "c, q, t" })
  refused({ data = {} }, { "no documents" })
  refused({ data = testing.write("empty.jsonl", "\n") }, { "no documents", "empty.jsonl" })
  refused({ data = testing.write("list.jsonl", "[1]\n") }, { "list.jsonl:1", "an object" })
  refused({ data = "nowhere.jsonl" }, { "task t: data: there is no file nowhere.jsonl" })
  refused({ data = "data.txt" }, { "data.txt", ".jsonl" })
  refused({ doc_to_text = function(doc) return doc.q.z.y end }, { "doc_to_text", "example 1" })
  refused({ process_doc = function() end }, { "process_doc returned nil" })
  local broken = testing.write("broken.toml", 'task = "a"\ndata = \n')
  expect_error(function() evaluate(broken) end, "broken.toml:2: not TOML")
  expect_error(function() evaluate "nowhere.toml" end, "there is no file nowhere.toml")
  expect_error(function() evaluate "nowhere.lua" end, "there is no file nowhere.lua")
  expect_error(function() evaluate "task.yaml" end, ".toml or .lua")
  expect_error(function() evaluate(testing.write("no_table.lua", "return 1")) end, "no_table.lua")
end)

test("choices and targets", function()
  refused({ doc_to_choice = { "x" } }, { "two choices or more, got 1", "example 1" })
  refused({ doc_to_choice = "q" }, { "doc_to_choice", "expected a list" })
  refused({ doc_to_choice = { "x", "" } }, { "choice 2", "an empty one" })
  refused({ doc_to_choice = { "x", 2 } }, { "choice 2", "2" })
  refused({ doc_to_target = 2 }, { "no choice 2", "count from 0" })
  refused({ doc_to_target = "{{t + 7}}" }, { "no choice 7" })
  refused({ doc_to_target = "{{'z'}}" }, { "'z' is none of the choices" })
  refused({ doc_to_target = function() return {} end }, { "no choice is right" })
  refused({ output_type = "loglikelihood", doc_to_choice = nil,
    doc_to_target = function() return {} end }, { "doc_to_target" })
end)

test("few-shot examples that are too few", function()
  refused({ num_fewshot = 2 }, { "num_fewshot is 2", "only 2 documents", "no example of itself" })
  refused({ num_fewshot = 3, fewshot_data = row.data }, { "num_fewshot is 3", "only 2" })
  refused({ num_fewshot = 1, data = { row.data[1], row.data[1] } }, { "num_fewshot is 1" })
  refused({}, { "num_fewshot is 4" }, { num_fewshot = 4 })
  refused({ num_fewshot = 2, fewshot_config = { sampler = "first_n" } }, { "num_fewshot is 2" })
end)

test("generation, lengths and options of the call", function()
  local function of(more)
    return { output_type = "generate_until", generation_kwargs = more }
  end
  refused(of { max_gen_toks = 64 }, { "max_gen_toks is 64", "at most 64" })
  refused(of { max_gen_toks = 0 }, { "max_gen_toks", "at least 1" })
  refused(of { ["until"] = 5 }, { "until", "5" })
  refused(of { beams = 5, max_gen_toks = 4 }, { "beams" })
  refused({ output_type = "generate_until", filter_list = { { name = "a", filter = {
    { ["function"] = "regex", regex_pattern = "(" } } } } }, { "filter 1", "'('" })
  refused({ output_type = "generate_until", filter_list = { { name = "a", filter = {
    { ["function"] = "reg" } } } } }, { "filter 1", "regex", "reg" })
  refused({ doc_to_choice = { ("word "):rep(80), "y" } }, { "is to be scored", "at most 64" })
  refused({}, { "limit" }, { limit = 0 })
  refused({}, { "batch_size" }, { batch_size = 0 })
  refused({}, { "apply_chat_template", "no chat_template" }, { apply_chat_template = true })
  refused({}, { "tasks" }, { tasks = {} })
  refused({}, { "params: expected parameters of the model" }, { params = {} })
  refused({}, { "two have the name 't'" }, { tasks = { row, row } })
  refused({}, { "output" }, { output = "/dev/null/a" })
  refused({}, { "model", "BertForMaskedLM" }, { model = redco.models.from_pretrained(source
    .. "/tests/cases/bert", { task = "masked_lm" }) })
end)

testing.finish()
