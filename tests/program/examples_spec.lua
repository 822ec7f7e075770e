-- The examples learn what their READMEs say, and give the same numbers however a batch is cut.
local gguf_files = require "gguf_files"
local testing = require "testing"

local program, source, scratch = os.getenv "REDCO_LUA", os.getenv "REDCO_SOURCE", os.tmpname()
os.remove(scratch)
os.execute("mkdir " .. scratch)

-- Runs an example; returns the lines of its metrics.jsonl: of steps, and of evaluations.
local function run(example, arguments)
  local workdir = os.tmpname()
  os.remove(workdir)
  workdir = scratch .. "/" .. workdir:match "[^/]+$"
  local command = ("'%s' '%s/examples/%s/train.lua' --workdir=%s %s >%s/output 2>&1"):format(
    program, source, example, workdir, arguments, scratch)
  if os.execute(command) ~= 0 then
    error(command .. "\n" .. io.open(scratch .. "/output"):read "*a", 0)
  end
  local steps, evaluations = {}, {}
  for line in io.lines(workdir .. "/metrics.jsonl") do
    local list = line:find '"kind":"eval"' and evaluations or steps
    local metrics = {}
    for name, value in line:gmatch '"([%w_]+)":([-%d.e+]+)' do metrics[name] = tonumber(value) end
    list[#list + 1] = metrics
  end
  return steps, evaluations
end

for model, least in pairs { cnn = 0.98, mlp = 0.97 } do
  testing.test("digits: the " .. model .. " learns", function()
    local _, evaluations = run("digits", "--model=" .. model)
    local accuracy = evaluations[#evaluations].accuracy
    assert(accuracy > least, "accuracy on held-out digits: " .. accuracy)
  end)
end

testing.test("digits: IDX files are read", function()
  local folder = "/usr/share/datasets/fashion-mnist"
  if not io.open(folder .. "/t10k-labels-idx1-ubyte.gz") then
    print("absent, so not tried: Debian's dataset-fashion-mnist")
    return
  end
  local steps = run("digits", "--max-steps=100 --data=" .. folder)
  assert(steps[100].loss < steps[1].loss - 0.5, steps[100].loss)
end)

testing.test("digits: a batch in four pieces gives the same losses", function()
  local options = "--dropout=0 --max-steps=10 --global-batch-size=32 --per-device-batch-size="
  local whole, pieces = run("digits", options .. 32), run("digits", options .. 8)
  assert(#whole == 10 and #pieces == 10)
  for i = 1, 10 do
    for _, name in ipairs { "loss", "grad_norm", "lr" } do
      local a, b = whole[i][name], pieces[i][name]
      assert(math.abs(a - b) <= 2e-5 * math.max(1, math.abs(a)),
        ("step %d: %s %.8f, %.8f"):format(i, name, a, b))
    end
  end
end)

testing.test("language_modeling: it learns, and two runs are the same", function()
  local options = "--max-steps=40 --n-layer=2 --n-embd=64 --length=64 --dropout=0.1 "
    .. "--n-generated=20 --n-epochs=1"
  local first, evaluations = run("language_modeling", options)
  assert(first[1].loss > 5 and evaluations[1].loss < 3.5, evaluations[1].loss)
  local second = run("language_modeling", options)
  for i = 1, 40 do testing.expect_equal(second[i].loss, first[i].loss) end
end)

-- With a model of random weights: that it learns says that the answers are where they are sought.
testing.test("chat: adapters learn answers, and chat.lua takes them", function()
  local case, model = source .. "/tests/cases/llama3", scratch .. "/model.gguf"
  gguf_files.write(model, gguf_files.add_byte_level(gguf_files.metadata(case), case),
    gguf_files.tensors(case, "F32"))
  local data = assert(io.open(scratch .. "/answers.jsonl", "w"))
  for i = 1, 40 do data:write(('{"question": "What is %d?", "answer": "the sea"}\n'):format(i)) end
  data:close()
  local steps, evaluations = run("chat/finetune", ("--model=%s --data=%s/answers.jsonl "
    .. "--n-epochs=12 --learning-rate=0.05 --n-samples=1"):format(model, scratch))
  assert(steps[1].loss > 4 and evaluations[#evaluations].loss < 0.1,
    steps[1].loss .. " " .. evaluations[#evaluations].loss)
  local pipe = io.popen(("'%s' '%s/examples/chat/chat.lua' --temperature=0 --model=%s "
    .. "--adapter=$(echo %s/*/adapter) --prompt='What is 77?'"):format(program, source, model,
    scratch))
  testing.expect_equal(pipe:read "*a", "the sea\n")
  pipe:close()
end)

os.execute("rm -r " .. scratch)
testing.finish()
