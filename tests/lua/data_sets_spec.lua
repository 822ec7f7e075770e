-- Sets of examples that are read when they are asked for.
local redco = require "redco"
local testing = require "testing"

local data, torch = redco.data, redco.torch
local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

local folder = testing.folder()

local write = testing.write
local function joined(set) return table.concat(set:tolist(), " ") end

local function squares(n)
  local asked = {}
  return data.dataset(n, function(i)
    asked[#asked + 1] = i
    return i * i
  end), asked
end

test("a data set has a length, examples by number, and nil beyond them", function()
  local set, asked = squares(5)
  expect_equal(#set, 5)
  expect_equal(set[3], 9)
  expect_equal(table.concat(asked, " "), "3")
  for _, i in ipairs { -1, 6, 1.5 } do expect_equal(set[i], nil) end
  expect_error(function() return set[0] end, "data_sets_spec.lua:", "they count from 1")
  expect_equal(tostring(set), "Dataset(5 examples)")
  expect_error(function() return set.maps end, "data_sets_spec.lua:", "'maps'")
  expect_error(function() data.dataset(1.5, print) end, "data_sets_spec.lua:", "1.5")
  expect_error(function() data.dataset(1) end, "data_sets_spec.lua:", "expected a function")
end)

test("map, select, slice, concat, tolist and ipairs", function()
  local set, asked = squares(6)
  local mapped = set:map(function(x) return -x end)
  expect_equal(#asked, 0)
  expect_equal(joined(mapped), "-1 -4 -9 -16 -25 -36")
  expect_equal(joined(set:select { 5, 1, 1 }), "25 1 1")
  expect_equal(joined(set:slice(2, 4)), "4 9 16")
  expect_equal(joined(set:slice(5)), "25 36")
  expect_equal(#set:slice(4, 3), 0)
  local all = data.concat { set:slice(1, 2), { "a", "b" }, data.dataset(0, print), squares(3) }
  expect_equal(#all, 7)
  expect_equal(joined(all), "1 4 a b 1 4 9")
  local seen = {}
  for i, example in set:ipairs() do seen[i] = example end
  expect_equal(table.concat(seen, " "), "1 4 9 16 25 36")
  expect_error(function() set:select { 1, 7 } end, "data_sets_spec.lua:", "entry 2 is 7", "1 to 6")
  expect_error(function() set:slice(0, 2) end, "data_sets_spec.lua:", "0 to 2")
end)

test("split holds out every k-th example, of a list or of a data set", function()
  local train, held_out = data.split({ 1, 2, 3, 4, 5, 6, 7 }, { every = 3 })
  expect_equal(table.concat(train, " "), "1 2 4 5 7")
  expect_equal(table.concat(held_out, " "), "3 6")
  local set, asked = squares(7)
  train, held_out = data.split(set, { every = 3 })
  expect_equal(#train .. " " .. #held_out .. " " .. #asked, "5 2 0")
  expect_equal(train[4], 25)
  expect_equal(table.concat(asked, " "), "5")
  expect_equal(joined(train), "1 4 16 25 49")
  expect_equal(joined(held_out), "9 36")
  train, held_out = data.split({ "a", "b", "c", "d" }, { every = 2 })
  expect_equal(table.concat(train) .. table.concat(held_out), "acbd")
  train, held_out = data.split({ "a" }, { every = 5 })
  expect_equal(#train .. " " .. #held_out, "1 0")
  for _, every in ipairs { 1, 2.5, "2" } do
    expect_error(function() data.split({}, { every = every }) end, "data_sets_spec.lua:",
      "every: expected an integer of at least 2, got " .. every)
  end
  expect_error(function() data.split({}) end, "every: expected an integer", "nil")
  expect_error(function() data.split(5, { every = 2 }) end, "a list or a data set, got number 5")
end)

test("paragraphs, and several files as one set", function()
  local a, b = write("a.txt", "one\ntwo\n\n\nthree\n"), write("b.txt", "four")
  expect_equal(table.concat(data.paragraphs(a):tolist(), "|"), "one\ntwo|three")
  local both = data.paragraphs { a, b }
  expect_equal(#both, 3)
  expect_equal(both[3], "four")
  expect_equal(joined(data.lines { b, a }), "four one two   three")
end)

test("csv: names, quotes, line breaks in values, tabs", function()
  local path = write("a.csv", '\239\187\191id,"a ""name""",text\r\n'
    .. '1,x,"two\r\nlines, ""quoted"""\r\n\r\n2,,\r\n')
  local set = data.csv(path)
  expect_equal(#set, 2)
  expect_equal(set[1].id, "1")
  expect_equal(set[1]['a "name"'], "x")
  expect_equal(set[1].text, 'two\r\nlines, "quoted"')
  expect_equal(set[2].text, "")
  expect_equal(table.concat(data.csv(path, { header = false })[3], "|"), "2||")
  local tabs = data.csv(write("a.tsv", "a\tb\n1,5\t\"\t\"\n"))
  expect_equal(tabs[1].a .. tabs[1].b, "1,5\t")
  -- Blanks at the end of a record are part of its last value, which may be empty.
  local ends = data.csv(write("ends.tsv", "a\tb\tc\n1\t2\t\n\t\t\r\n3\t4\t5 \r\n\n \n\n"))
  expect_equal(#ends, 3)
  local texts = {}
  for i, row in ends:ipairs() do texts[i] = row.a .. "|" .. row.b .. "|" .. row.c end
  expect_equal(table.concat(texts, ","), "1|2|,||,3|4|5 ")
  expect_equal(data.csv(write("last.csv", "a,b\n1,\t\n"))[1].b, "\t")
  expect_equal(data.csv(write("semi.csv", "a;b\n1;2\n"), { delimiter = ";" })[1].b, "2")
  expect_equal(#data.csv(write("none.csv", "")), 0)
  local stray = data.csv(write("stray.tsv", 'a\tb\n5" pipe\t"1,"",\n2"\n6"\t3\n'))
  expect_equal(#stray, 2)
  expect_equal(stray[1].a .. "|" .. stray[1].b .. "|" .. stray[2].a, '5" pipe|1,",\n2|6"')
  expect_equal(#data.csv { path, path }, 4)
end)

test("csv: lines that end in CR, and in several ways", function()
  local function records(text, options)
    local texts = {}
    for i, row in data.csv(write("ends.csv", text), options):ipairs() do
      texts[i] = row.a .. "|" .. row.b
    end
    return table.concat(texts, ",")
  end
  expect_equal(records "a,b\r1,2\r3,4\r", "1|2,3|4")
  expect_equal(records "a,b\r1,2\r3,4", "1|2,3|4")
  expect_equal(records "a,b\r\n1,2\r3,4\n5,6\r\r\n\n7,8", "1|2,3|4,5|6,7|8")
  expect_equal(records 'a,b\r"1\r\n2","3\r"\r4,\r', "1\r\n2|3\r,4|")
  local set = data.csv(write("ends.csv", 'a,b\r1,2\r"x\ry",2,3\r\n'))
  expect_error(function() return set[2] end, "ends.csv:3:", "3 values")
  expect_equal(table.concat(data.lines(write("ends.txt", "a\rb\r\n\rc\n")):tolist(), ","), "a,b,,c")
  expect_equal(#data.paragraphs(write("ends.txt", "a\rb\r\rc\r")), 2)
end)

test("csv: two columns of one name are an error that names it", function()
  local path = write("twice.csv", "a,b,a\n1,2,3\n")
  expect_error(function() data.csv(path) end, "data_sets_spec.lua:", "twice.csv", "1 and 3", "'a'",
    "header = false")
  expect_equal(table.concat(data.csv(path, { header = false })[2], ","), "1,2,3")
end)

test("csv: what is wrong is said with file and line, when it is read", function()
  local set = data.csv(write("bad.csv", 'a,b\n1,2\n"x\ny",2,3\n"open,1\n'))
  expect_equal(set[1].b, "2")
  expect_error(function() return set[2] end, "data_sets_spec.lua:", "bad.csv:3:", "3 values", "2")
  expect_error(function() return set[3] end, "bad.csv:5:", "a quote is not closed")
  set = data.csv(write("bad.csv", 'a,b\n"1"x,2\n'))
  expect_error(function() return set[1] end, "bad.csv:2:", "after a closing quote there is 'x'")
  expect_error(function() data.csv("a.csv", { sep = ";" }) end, "csv", "'sep'")
  expect_error(function() data.csv("a.csv", { delimiter = ", " }) end, "one character")
end)

test("image_folder: classes by folders", function()
  local bytes = data.read "image_cases/grey.png"
  for _, name in ipairs { "set/dog/2.png", "set/cat/sub/1.PNG", "set/dog/1.png", "flat/a.png" } do
    os.execute(("mkdir -p '%s/%s'"):format(folder, name:match "(.*)/"))
    write(name, bytes)
  end
  write("set/dog/notes.txt", "no image")
  local set = data.image_folder(folder .. "/set")
  expect_equal(table.concat(set.classes, " "), "cat dog")
  local found = {}
  for i, example in set:ipairs() do
    found[i] = example.path:sub(#folder + 2) .. "=" .. example.label
    expect_close(example.image, data.image "image_cases/grey.png")
  end
  expect_equal(table.concat(found, " "), "set/cat/sub/1.PNG=0 set/dog/1.png=1 set/dog/2.png=1")
  expect_equal(data.image_folder(folder .. "/flat")[1].label, nil)
  -- "cat-big/1.png" is before "cat/1.png", but "cat" is before "cat-big".
  for _, name in ipairs { "names/cat-big/1.png", "names/cat/1.png", "names/cat/._1.png",
    "names/.cache/1.png" } do
    os.execute(("mkdir -p '%s/%s'"):format(folder, name:match "(.*)/"))
    write(name, bytes)
  end
  local names = data.image_folder(folder .. "/names")
  expect_equal(table.concat(names.classes, " "), "cat cat-big")
  expect_equal(#names, 2)
  expect_equal(names[1].path:match "names/(.*)" .. names[1].label, "cat-big/1.png1")
  expect_equal(names[2].path:match "names/(.*)" .. names[2].label, "cat/1.png0")
  expect_error(function() data.image_folder(folder .. "/nowhere") end, "nowhere", "No such file")
  os.execute(("mkdir '%s/empty'"):format(folder))
  expect_error(function() data.image_folder(folder .. "/empty") end, "there are no image files")
end)

test("image_folder: captions in metadata.jsonl", function()
  os.execute(("mkdir -p '%s/captions/sub'"):format(folder))
  write("captions/sub/a.png", data.read "image_cases/grey.png")
  write("captions/metadata.jsonl", [[{"file_name": "sub/a.png", "text": "grey", "size": 3}
{"file_name": "b.png", "text": "absent"}
{"text": "no name"}
]])
  local set = data.image_folder(folder .. "/captions")
  expect_equal(#set, 3)
  expect_equal(set[1].text .. set[1].size, "grey3")
  expect_equal(set[1].path, folder .. "/captions/sub/a.png")
  expect_close(set[1].image, data.image "image_cases/grey.png")
  expect_error(function() return set[2] end, "b.png")
  expect_error(function() return set[3] end, "metadata.jsonl: line 3 has no file_name")
  write("captions/metadata.jsonl", "")
  expect_error(function() data.image_folder(folder .. "/captions") end, "has no lines")
end)

test("tokens: rows that overlap by one, within each file", function()
  local path = folder .. "/tokens.bin"
  data.write_tokens(path, torch.arange(10))
  local set = data.tokens(path, { seq_len = 4 })
  expect_equal(#set, 2)
  expect_close(set[1], torch.tensor { 0, 1, 2, 3, 4 })
  expect_close(set[2], torch.tensor { 4, 5, 6, 7, 8 })
  expect_equal(#data.tokens({ path, path }, { seq_len = 9 }), 2)
  expect_equal(#data.tokens(path, { seq_len = 10 }), 0)
  data.write_tokens(path, torch.tensor { 70000, 1, 2 }, { dtype = "uint32" })
  expect_close(data.tokens(path, { seq_len = 2 })[1], torch.tensor { 70000, 1, 2 })
  expect_close(data.tokens(write("raw.bin", "\1\0\2\0\3\1"), { seq_len = 2 })[1],
    torch.tensor { 1, 2, 259 })
  expect_error(function() data.write_tokens(path, torch.tensor { 70000 }) end, "70000", "uint16")
  expect_error(function() data.tokens(path) end, "seq_len")
  expect_error(function() data.tokens(path, { seq_len = 2, dtype = "int8" }) end, "uint16")
end)

-- Training on data sets.

local function new_trainer(collate_fn, deployer)
  return redco.Trainer {
    deployer = deployer or redco.Deployer { seed = 3, verbose = false },
    params = { w = torch.zeros { 1 } }, collate_fn = collate_fn,
    loss_fn = function(_, _, params, batch) return (params.w * batch.x - batch.y):pow(2):mean() end,
    optimizer = redco.optim.sgd { learning_rate = 1e-3 },
  }
end

local function collate(examples)
  local x = {}
  for i, example in ipairs(examples) do x[i] = example.x end
  x = torch.tensor(x, { dtype = "float32" })
  return { x = x, y = x * 2 }
end

test("fit, eval_loss and predict take a set where they take a list", function()
  local list = {}
  for i = 1, 20 do list[i] = { x = i % 7 } end
  local reads = 0
  local set = data.dataset(#list, function(i)
    reads = reads + 1
    return list[i]
  end)
  -- An object that is no data set of this library, but has a length and examples by number.
  local other = setmetatable({}, {
    __len = function() return #list end, __index = function(_, i) return list[i] end,
  })
  local results = {}
  for name, examples in pairs { list = list, set = set, other = other } do
    local trainer = new_trainer(collate)
    local predictor = trainer:get_default_predictor {
      pred_fn = function(_, params, batch) return batch.x * params.w end,
    }
    trainer:fit {
      train_examples = examples, eval_examples = examples, per_device_batch_size = 8, n_epochs = 2,
      eval_predictor = predictor, eval_metric_fn = function(given, preds)
        -- A list in the sanity check and after each epoch, whatever eval_examples is.
        assert(type(given) == "table" and not getmetatable(given))
        expect_equal(#given, #preds)
        for i, example in ipairs(given) do expect_equal(example.x, list[i].x) end
        local sum = 0
        for i = 1, #preds do sum = sum + preds[i]:item() * given[i].x end
        return { sum = sum }
      end,
    }
    local preds = predictor:predict {
      examples = examples, per_device_batch_size = 6, params = trainer.params,
    }
    results[name] = { trainer.params.w:item(), torch.stack(preds):sum():item(),
      trainer:eval_loss { examples = examples, per_device_batch_size = 5 } }
  end
  for i = 1, 3 do
    expect_equal(results.set[i], results.list[i])
    expect_equal(results.other[i], results.list[i])
  end
  assert(reads > 0)
  expect_error(function()
    new_trainer(collate):fit { train_examples = 5, per_device_batch_size = 1, n_epochs = 1 }
  end, "train_examples: expected a list or a data set, got number 5")
end)

test("a tensor's rows are examples", function()
  local rows, seen = torch.arange(6):view { 3, 2 }, {}
  new_trainer(function(examples)
    seen[#seen + 1] = table.concat(examples[1]:tolist(), " ")
    return { x = torch.ones { 1 }, y = torch.ones { 1 } }
  end):eval_loss { examples = rows, per_device_batch_size = 1 }
  expect_equal(table.concat(seen, ", "), "0 1, 2 3, 4 5")
end)

test("an example that cannot be read ends the training with its file and line", function()
  local lines = {}
  for i = 1, 10 do lines[i] = i == 7 and '{"x": 1,}' or ('{"x": %d}'):format(i) end
  local set = data.jsonl(write("train.jsonl", table.concat(lines, "\n")))
  expect_error(function()
    new_trainer(collate):fit { train_examples = set, per_device_batch_size = 2, n_epochs = 1 }
  end, "data_sets_spec.lua:", "train.jsonl:7: not valid JSON")
end)

-- 1 GB of lines in a sparse file, with half of that to hold everything.
test("a data set larger than memory trains", function()
  if os.getenv "REDCO_SANITIZE" == "1" then return end  -- which needs memory of its own
  local script = write("large.lua", [[
    local redco = require "redco"
    local torch = redco.torch
    local path, size = arg[1], 2^30
    local file = assert(io.open(path, "wb"))
    for i = 0, 127 do
      file:seek("set", i * size / 128)
      file:write(i, "\n")  -- they differ, for Lua holds equal strings once
    end
    file:seek("set", size)
    file:write "\n"
    file:close()
    local set = redco.data.lines(path)
    local trainer = redco.Trainer {
      deployer = redco.Deployer { seed = 1, verbose = false }, params = { w = torch.zeros { 1 } },
      collate_fn = function(examples)
        local sizes = {}
        for i, example in ipairs(examples) do sizes[i] = #example end
        return { x = torch.tensor(sizes) }
      end,
      loss_fn = function(_, _, params, batch) return (params.w + batch.x:sum()):sum() end,
      optimizer = redco.optim.sgd { learning_rate = 1 },
    }
    trainer:fit { train_examples = set, per_device_batch_size = 1, n_epochs = 1 }
    print(#set, trainer.step)
  ]])
  local command = ("ulimit -d 524288 && exec '%s' '%s' '%s/large.txt' 2>&1"):format(
    os.getenv "REDCO_LUA", script, folder)
  local pipe = io.popen(command)
  local out = pipe:read "*a"
  pipe:close()
  expect_equal(out, "129\t129\n")
end)

testing.finish()
