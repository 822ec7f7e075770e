-- The READMEs and the pages of docs/ show what happens. Of the blocks of a file
-- - lua: one that requires "redco" begins a script, those after it go on with it. What it prints
--   stands in it after -->, all of that or nothing. A script whose first line is `-- NAME.lua` is
--   that file, and is run by the block of commands after it;
-- - sh: each line is a command. Those of ./bootstrap that train stop after two steps;
-- - text: what the commands above it write;
-- others are not run. In what is shown "..." stands for anything, and blanks are all the same.
local gguf_files = require "gguf_files"
local program = require "program"
local redco = require "redco"
local shown = require "shown"
local testing = require "testing"

local source = os.getenv "REDCO_SOURCE"

-- Commands and scripts run in a folder that is like the repository's, where `redco-lua` is this
-- program.
assert(os.execute(("cd '%s' && mkdir bin && ln -s '%s' bin/redco-lua && ln -s '%s'/examples "
  .. "'%s'/tests ."):format(program.folder, program.path, source, source)) == 0)

-- In place of the model that examples/chat fetches.
local case, model = source .. "/tests/cases/llama3", program.folder .. "/model.gguf"
gguf_files.write(model, gguf_files.add_byte_level(gguf_files.metadata(case), case),
  gguf_files.tensors(case, "F32"))

-- In place of a user's pictures, and of a published Stable Diffusion.
local diffusion_folder = "stable-diffusion-2-1-base"
assert(os.execute(("mkdir '%s/pictures'"):format(program.folder)) == 0)
redco.data.save_image(redco.torch.rand { 3, 32, 32 }, program.folder .. "/pictures/a.png")
program.write("pictures/metadata.jsonl", '{"file_name": "a.png", "text": "a picture"}\n')
assert(os.execute(("ln -s '%s/tests/cases/stable_diffusion' '%s/%s'"):format(source,
  program.folder, diffusion_folder)) == 0)

-- In place of a published Qwen2.5-VL, and of a user's questions.
assert(os.execute(("ln -s '%s/tests/cases/qwen2_5_vl' '%s/Qwen2.5-VL-3B-Instruct'"):format(source,
  program.folder)) == 0)
program.write("questions.jsonl", ([[
{"image": "pictures/a.png", "question": "What is this?", "answer": "a picture"}
]]):rep(20))

-- Options that make the models, the evaluations and the data of examples smaller.
local small_encoder = "--hidden-size=32 --num-attention-heads=2 --num-hidden-layers=1"
local smaller = {
  classification = small_encoder, retrieval = small_encoder .. " --matryoshka-dims=32,8",
  zero_shot = small_encoder .. " --n-emoji=4 --n-places=1",
  text_to_image = "--vae-steps=2 --num-inference-steps=2 --n-class-images=2 --n-emoji=4",
  image_to_text = small_encoder .. " --max-tgt-len=8 --num-beams=1 --n-emoji=8",
  speech_to_text = "--max-tgt-len=8 --num-beams=1 --n-sequences=24 --n-held-out=6",
  text_to_text = "--max-tgt-len=8 --num-beams=1 --num-layers=1 --eval-every=400 "
    .. "--n-sentences=64 --n-held-out=8",
  language_modeling = "--max-new-tokens=8 --n-layer=1 --n-embd=32 --n-head=2",
}

-- Returns the command to run here for one of a page; an unknown one is an error.
local function stand_in(command)
  if command:find "^redco%-lua " then return command end
  if command == "./bootstrap test" then return "true" end  -- what runs this very file
  if command == "./bootstrap package" then return "true" end  -- tests/install/package_test.sh
  if command == "./bootstrap wheel" then return "true" end  -- tests/install/wheel_test.sh
  local script = command:match "^%./bootstrap run (.+)$"
  assert(script, "no test runs this command of a page: " .. command)
  local short
  if script:find "digits/short%.lua$" then return "redco-lua " .. script end
  if script:find "examples/chat/" then short = "--model=" .. model end
  if script:find "federated_learning" then
    short = "--n-rounds=1 --n-clients=20 --local-epochs=1 --data=digits"
  elseif script:find "image_to_text/questions%.lua" then
    short = small_encoder .. " --max-steps=2 --max-new-tokens=4 --n-emoji=8"
  elseif script:find "train%.lua" or script:find "reinforcement_learning/" then
    short = (short or "") .. " --max-steps=2"
    if script:find "sums%.lua" then short = short .. " --n-held-out=9 --solved-steps=2" end
    short = short .. " " .. (smaller[script:match "examples/([%w_]+)/train%.lua"] or "")
  elseif script:find "generate%.lua" then
    short = "--max-new-tokens=2 --model-dir=workdir/model"
  elseif script:find "classify%.lua" then
    short = ""
  elseif script:find "compare%.lua" then
    short = "--num-inference-steps=2 --n-pictures=2"
  end
  assert(short, "no test makes this script short: " .. script)
  return ("redco-lua %s %s"):format(script, short)
end

-- Returns what a command writes, errors included.
local function run(command)
  local status, output = program.shell("PATH=$PWD/bin:$PATH " .. command .. " 2>&1 </dev/null")
  if status ~= 0 then error(("%s\nfailed with %d:\n%s"):format(command, status, output), 0) end
  return output
end

-- The blocks of a file with a language: {language, text, line}.
local function blocks_of(file)
  local text, blocks, position = "\n" .. program.read(source .. "/" .. file), {}, 1
  while true do
    local first, last, language, block = text:find("\n```(%w*)\n(.-)\n```", position)
    if not first then return blocks end
    position = last
    local _, line = text:sub(1, first):gsub("\n", "")
    blocks[#blocks + 1] = { language = language, text = block .. "\n", line = line }
  end
end

-- Puts together what is run at once: {line, lua or sh, shown}.
local function runs_of(blocks)
  local runs = {}
  for _, block in ipairs(blocks) do
    local last = runs[#runs]
    if block.language == "sh" then
      runs[#runs + 1] = { line = block.line, sh = block.text }
    elseif block.language == "text" then
      assert(last and last.sh, block.line .. ": no command before what it writes")
      last.shown = block.text
    elseif block.language == "lua" and block.text:find 'require "redco"' then
      runs[#runs + 1] = { line = block.line, lua = block.text }
    elseif block.language == "lua" then
      local script = #runs
      while script > 0 and not runs[script].lua do script = script - 1 end
      assert(script > 0, block.line .. ': no script that begins with require "redco"')
      runs[script].lua = runs[script].lua .. block.text
    end
  end
  return runs
end

-- The name of a script that a command runs.
local function name_of(entry) return entry.lua and entry.lua:match "^%-%- ([%w_]+%.lua)\n" end

local function is_script(entry) return entry and entry.lua and not name_of(entry) end

-- The outcomes of the script at i and of those up to the next command: one process runs them.
local function run_scripts(runs, i)
  local paths = {}
  while is_script(runs[i]) do
    paths[#paths + 1] = program.write(("page_%d.lua"):format(i), runs[i].lua)
    i = i + 1
  end
  return program.run_in_turn(paths)
end

local function check_script(lua, outcome)
  if not outcome.is_good then error(outcome.err, 0) end
  local text = shown.by(lua)
  if text then shown.expect(outcome.out, text) end
end

local function run_commands(commands, text)
  local output = {}
  for command in commands:gmatch "[^\n]+" do output[#output + 1] = run(stand_in(command)) end
  if text then shown.expect(table.concat(output), text) end
end

local files = io.popen(("cd '%s' && find . -name README.md -not -path './build/*' -not -path "
  .. "'./docs/reference/*' && ls docs/*.md"):format(source))
local n_runs = 0
for file in files:lines() do
  local runs, outcomes, first = runs_of(blocks_of(file)), nil, nil
  for i, entry in ipairs(runs) do
    n_runs = n_runs + 1
    testing.test(("%s:%d"):format(file, entry.line), function()
      local name = name_of(entry)
      if name then
        program.write(name, entry.lua)
        local next_run = runs[i + 1] and runs[i + 1].sh or ""
        assert(next_run:find(name, 1, true), "no command after it runs " .. name)
      elseif entry.lua then
        if not is_script(runs[i - 1]) then
          outcomes = nil  -- of other scripts
          outcomes, first = run_scripts(runs, i), i
        end
        check_script(entry.lua, outcomes[i - first + 1])
      else
        run_commands(entry.sh, entry.shown)
      end
    end)
  end
end
testing.test("there are blocks", function() assert(n_runs >= 20, n_runs) end)

testing.test("docs/post_training.md counts the lines of code of examples", function()
  local n_examples = 0
  local page = io.open(source .. "/docs/post_training.md"):read "*a"
  for count, path in page:gmatch "%[(%d+)%]%(%.%./(examples/[%w_/]+%.lua)%)" do
    local n_lines, n_code = 0, 0
    for line in io.lines(source .. "/" .. path) do
      n_lines = n_lines + 1
      if line:find "%S" and not line:find "^%s*%-%-" then n_code = n_code + 1 end
    end
    testing.expect_equal(n_code, tonumber(count))
    assert(n_lines < 130, path)
    n_examples = n_examples + 1
  end
  testing.expect_equal(n_examples, 4)
end)
program.remove_folder()
testing.finish()
