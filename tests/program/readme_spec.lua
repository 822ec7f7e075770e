-- Every block of Lua in a README is a script that runs, every shell command is one that works.
-- Commands that train stop after two steps, and write to a folder of their own.
local gguf_files = require "gguf_files"
local testing = require "testing"

local program, source, scratch = os.getenv "REDCO_LUA", os.getenv "REDCO_SOURCE", os.tmpname()
os.remove(scratch)
os.execute("mkdir " .. scratch)

local function run(command)
  local output = scratch .. "/output"
  local status = os.execute(("cd '%s' && %s >'%s' 2>&1 </dev/null"):format(source, command, output))
  if status ~= 0 then
    local file = assert(io.open(output))
    error(("%s\nfailed:\n%s"):format(command, file:read "*a"), 0)
  end
end

-- In place of the model that examples/chat fetches.
local case, model = source .. "/tests/cases/llama3", scratch .. "/model.gguf"
gguf_files.write(model, gguf_files.add_byte_level(gguf_files.metadata(case), case),
  gguf_files.tensors(case, "F32"))

-- What a command of a README stands for here; an unknown one is an error.
local function stand_in(command)
  if command == "./bootstrap test" then return "true" end  -- what runs this very file
  if command == "./bootstrap package" then return "true" end  -- tests/install/package_test.sh
  local script = command:match "^%./bootstrap run (.+)$"
  assert(script, "no test runs this command of a README: " .. command)
  if script:find "examples/chat/" then
    script = script:gsub("workdir/", scratch .. "/workdir/") .. " --model=" .. model
  end
  if script:find "chat%.lua" then return ("'%s' %s"):format(program, script) end
  local workdir, short = scratch .. "/workdir", nil
  if script:find "train%.lua" then
    short = "--max-steps=2 --workdir=" .. workdir
    if script:find "_to_text" then short = short .. " --max-tgt-len=8 --num-beams=1" end
  elseif script:find "generate%.lua" then
    short = "--max-new-tokens=2 --model-dir=" .. workdir .. "/model"
  end
  assert(short, "no test makes this script short: " .. script)
  return ("'%s' %s %s"):format(program, script, short)
end

local checks = {
  lua = function(block)
    local path = scratch .. "/block.lua"
    local file = assert(io.open(path, "w"))
    file:write((block:gsub('"workdir/', '"' .. scratch .. "/workdir/")))
    file:close()
    run(("'%s' %s"):format(program, path))
  end,
  sh = function(block)
    for command in block:gmatch "[^\n]+" do run(stand_in(command)) end
  end,
}

local readmes = io.popen(
  ("cd '%s' && find . -name README.md -not -path './build/*'"):format(source))
local n_blocks = 0
for readme in readmes:lines() do
  local file = assert(io.open(source .. "/" .. readme))
  local text = "\n" .. file:read "*a"
  file:close()
  local position = 1
  while true do
    local first, last, language, block = text:find("\n```(%w*)\n(.-)\n```", position)
    if not first then break end
    position = last
    local _, line = text:sub(1, first):gsub("\n", "")
    if checks[language] then
      n_blocks = n_blocks + 1
      testing.test(("%s:%d"):format(readme, line), function() checks[language](block) end)
    end
  end
end
testing.test("there are blocks", function() assert(n_blocks >= 7, n_blocks) end)
os.execute("rm -r " .. scratch)
testing.finish()
