-- One process does what the others do not. Each kind must end, on every process and within seconds,
-- with an error of Lua that names what both did and where, or be right: never with a crash, a hang
-- or another result.
local program = require "program"
local testing = require "testing"

local test = testing.test
local path = os.getenv "REDCO_SOURCE" .. "/tests/cluster/strays.lua"
local strays = dofile(path)

-- All cases of a layout run in the same processes: at a prompt, which goes on after an error.
local sessions = {
  { name = "2x1", n = 2, n_model_shards = 1 },
  { name = "2x2", n = 4, n_model_shards = 2 },
  { name = "1x2 with REDCO_CHECK_SPMD=1", n = 2, n_model_shards = 2, is_checked = true },
}

local commands = {}
for i, session in ipairs(sessions) do
  session.cases = {}
  for _, case in ipairs(strays.cases) do
    if case.is_checked or not session.is_checked or #case.expected == 0 then
      session.cases[#session.cases + 1] = case
    end
  end
  local lines = { ("S = dofile %q"):format(path),
    ("S.start(%d, %q)"):format(session.n_model_shards, program.folder .. "/work" .. i) }
  for k, case in ipairs(session.cases) do
    -- Which process strays changes from case to case.
    lines[#lines + 1] = ("print('case ' .. %q)"):format(case.name)
    lines[#lines + 1] = ("S.run(%q, %d)"):format(case.name, k % session.n)
  end
  local script = program.write("session" .. i, table.concat(lines, "\n") .. "\n")
  commands[#commands + 1] = ("REDCO_CHECK_SPMD=%d timeout 200 \"$REDCO_LUA\" "
    .. "--nproc %d <%s >%s.out 2>&1 &")
    :format(session.is_checked and 1 or 0, session.n, script, script)
end

-- As scripts, some.
local scripts = { "save", "lengths", "another size" }
for i, name in ipairs(scripts) do
  local script = program.write(("script%d.lua"):format(i), ([[
local S = dofile %q
S.start(1, %q)
S.run(%q, 0)]]):format(path, program.folder .. "/script" .. i, name))
  commands[#commands + 1] = ("{ \"$REDCO_LUA\" --nproc 2 %s; echo \"code $?\"; } >%s.out 2>&1 &")
    :format(script, script)
end
program.shell(table.concat(commands, "\n") .. "\nwait")

local function expect_line(text, case)
  for line in text:gmatch "strays%.lua:(%d+)" do
    line = tonumber(line)
    if line >= case.first_line and line <= case.last_line then return end
  end
  error(("expected a line from %d to %d in:\n%s"):format(case.first_line, case.last_line, text), 2)
end

for i, session in ipairs(sessions) do
  local out = program.read(("%s/session%d.out"):format(program.folder, i))
  for k, case in ipairs(session.cases) do
    test(("%s: process %d strays: %s"):format(session.name, k % session.n, case.name), function()
      local _, from = out:find(("] case %s\n"):format(case.name), 1, true)
      assert(from, out)
      local text = out:sub(from + 1, (out:find("] case ", from, true) or 0) - 1)
      assert(not text:find "SIG" and not text:find "timeout" and not text:find "within 20 s", text)
      if #case.expected == 0 or case.is_checked and not session.is_checked then
        return program.expect_has(text, "276")  -- the sum
      end
      program.expect_has(text, unpack(case.expected))
      if case.has_line then expect_line(text, case) end
    end)
  end
end

for i, name in ipairs(scripts) do
  test(("a script of two processes ends with 1: %s"):format(name), function()
    local text = program.read(("%s/script%d.lua.out"):format(program.folder, i))
    program.expect_has(text, "code 1\n", "process 0", "process 1", "the processes diverged")
    for rank = 0, 1 do
      assert(text:match(("%%[%d%%] redco%%-lua: [^\n]*diverged"):format(rank)), text)
    end
    assert(not text:find("terminate called", 1, true), text)
  end)
end

program.remove_folder()
testing.finish()
